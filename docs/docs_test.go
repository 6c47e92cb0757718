package docs_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"irqlab/docs/markdown"
)

const root = ".."

func pages(t *testing.T) map[string]*markdown.Page {
	t.Helper()
	list, err := markdown.Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	byPath := map[string]*markdown.Page{}
	for _, p := range list {
		byPath[p.Path] = p
	}
	for _, must := range []string{"README.md", "CONTRIBUTING.md", "docs/README.md"} {
		if byPath[must] == nil {
			t.Fatalf("there is no %s", must)
		}
	}
	return byPath
}

// broken says what is wrong with a link on a page, "" if it leads somewhere.
func broken(byPath map[string]*markdown.Page, from, to string) string {
	if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
		return ""
	}
	file, anchor, _ := strings.Cut(to, "#")
	target := from
	if file != "" {
		target = path.Join(path.Dir(from), file)
	}
	if strings.HasPrefix(target, "../") {
		return "leads out of the repository"
	}
	if _, err := os.Stat(filepath.Join(root, target)); err != nil && byPath[target] == nil {
		return err.Error()
	}
	if p := byPath[target]; anchor != "" && (p == nil || !p.Anchors[anchor]) {
		return target + " has no heading of that name"
	}
	return ""
}

func TestLinks(t *testing.T) {
	byPath := pages(t)
	n := 0
	for _, p := range byPath {
		for _, l := range p.Links {
			n++
			if why := broken(byPath, p.Path, l.Text); why != "" {
				t.Errorf("%s:%d: %s: %s", p.Path, l.Line, l.Text, why)
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d links were found", n)
	}
}

func TestBroken(t *testing.T) {
	p, err := markdown.Parse("docs/a.md", []byte("# One `two`, three\n\n## Same\n\n## Same\n\n[x](no-such.md)\n"))
	if err != nil {
		t.Fatal(err)
	}
	byPath := map[string]*markdown.Page{p.Path: p}
	for _, tc := range []struct {
		to   string
		want string // in the reason; "": none
	}{
		{"https://example.org/x#y", ""},
		{"../main.go", ""},
		{"../lab/", ""},
		{"../no-such.go", "no such file"},
		{"../../elsewhere", "out of the repository"},
		{"#one-two-three", ""},
		{"#same-1", ""},
		{"#same-2", "no heading"},
		{"#one", "no heading"},
		{"../main.go#L5", "no heading"},
		{p.Links[0].Text, "no such file"},
	} {
		got := broken(byPath, "docs/a.md", tc.to)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q in it", tc.to, got, tc.want)
		}
	}
}

// TestIndex makes sure that every page under docs can be found from one of the two indexes.
func TestIndex(t *testing.T) {
	byPath := pages(t)
	var linked []string
	for _, index := range []string{"docs/README.md", "CONTRIBUTING.md"} {
		for _, l := range byPath[index].Links {
			file, _, _ := strings.Cut(l.Text, "#")
			linked = append(linked, path.Join(path.Dir(index), file))
		}
	}
	for name := range byPath {
		if strings.HasPrefix(name, "docs/") && name != "docs/README.md" && !slices.Contains(linked, name) {
			t.Errorf("%s is in no index (docs/README.md, or CONTRIBUTING.md for docs/dev)", name)
		}
	}
}

// sources calls do with every file of the repository that has one of the extensions.
func sources(t *testing.T, extensions []string, do func(name, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return filepath.SkipDir
		case d.IsDir() || !slices.Contains(extensions, filepath.Ext(file)):
			return nil
		}
		text, err := os.ReadFile(file)
		do(filepath.ToSlash(strings.TrimPrefix(file, root+"/")), string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

var mention = regexp.MustCompile(`docs/[a-z/-]+\.md(?:, \\?"([^"\\]+)\\?")?`)

// TestMentions makes sure that what comments, errors and scenarios say of a page, `docs/x.md, "Heading"`, is there.
func TestMentions(t *testing.T) {
	byPath := pages(t)
	n := 0
	sources(t, []string{".go", ".yaml", ".yml"}, func(name, text string) {
		if name == "docs/docs_test.go" {
			return
		}
		for _, m := range mention.FindAllStringSubmatch(text, -1) {
			n++
			file, _, _ := strings.Cut(m[0], ",")
			if p := byPath[file]; p == nil {
				t.Errorf("%s: there is no %s", name, file)
			} else if m[1] != "" && !p.Anchors[markdown.Anchor(m[1])] {
				t.Errorf("%s: %s has no heading %q", name, file, m[1])
			}
		}
	})
	if n < 10 {
		t.Errorf("only %d mentions were found", n)
	}
}

var (
	variable = regexp.MustCompile(`\bIRQLAB_[A-Z_]+\b`)
	asking   = regexp.MustCompile(`(Setenv\()?"(IRQLAB_[A-Z_]+)"`)
)

// TestEnvironment holds docs/environment.md to the variables that the code asks for, in both directions. Those that begin with IRQLAB_TEST_ are how tests talk to themselves.
func TestEnvironment(t *testing.T) {
	var asked []string
	sources(t, []string{".go"}, func(_, text string) {
		for _, m := range asking.FindAllStringSubmatch(text, -1) {
			if m[1] == "" && !strings.HasPrefix(m[2], "IRQLAB_TEST_") {
				asked = append(asked, m[2])
			}
		}
	})
	page := string(pages(t)["docs/environment.md"].Source)
	told := variable.FindAllString(page, -1)
	for _, v := range asked {
		if !slices.Contains(told, v) {
			t.Errorf("docs/environment.md does not tell of %s", v)
		}
	}
	for _, v := range told {
		if !slices.Contains(asked, v) {
			t.Errorf("docs/environment.md tells of %s, which nothing asks for", v)
		}
	}
}

// What users read on a terminal has lines that fit; tables and code have the width that they have.
func TestProseFits(t *testing.T) {
	const most = 100
	for name := range pages(t) {
		if strings.HasPrefix(name, "docs/dev/") || name == "CONTRIBUTING.md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		code := false
		n := 0
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSuffix(line, "\n")
			n++
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
			}
			link := regexp.MustCompile(`\]\([^)]*\)`).ReplaceAllString(line, "]") // which nobody can break
			if width := len([]rune(link)); !code && width > most && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "    ") {
				t.Errorf("%s:%d: %d columns", name, n, width)
			}
		}
	}
}
