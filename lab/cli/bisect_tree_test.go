package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"irqlab/lab/bisect"
	"irqlab/lab/build/patch/gitrange"
	"irqlab/lab/try"
)

// gitIn runs git in a tree, as a user with no settings.
func gitIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	c := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=Bell Ringer", "-c", "user.email=bell@example.org", "-c", "protocol.file.allow=always"}, args...)...)
	c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// A change is a commit of a synthetic history: files' names to what makes the next version of each.
type change struct {
	subject string
	of      map[string]func(string) string
}

func appended(text string) func(string) string { return func(s string) string { return s + text } }

func replaced(t *testing.T, pattern, by string) func(string) string {
	return func(s string) string {
		out := regexp.MustCompile(pattern).ReplaceAllString(s, by)
		if out == s {
			t.Errorf("there is no %s in the source", pattern)
		}
		return out
	}
}

// commitsOf makes a tree with files and folders of a source as its first commit, and the changes behind it; it returns all commits.
func commitsOf(t *testing.T, dir string, source fs.FS, tops []string, changes []change) (commits []string) {
	t.Helper()
	files := map[string]string{"kernel/stands-for": "the rest\n"}
	for _, top := range tops {
		if err := fs.WalkDir(source, top, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := fs.ReadFile(source, name)
			files[name] = string(data)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	commit := func(subject string) {
		for name, text := range files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		gitIn(t, dir, "add", "-A")
		gitIn(t, dir, "commit", "-q", "-m", subject)
		commits = append(commits, gitIn(t, dir, "rev-parse", "HEAD"))
	}
	gitIn(t, filepath.Dir(dir), "init", "-q", "-b", "main", dir)
	commit("as the kernel has it")
	for _, c := range changes {
		for name, edit := range c.of {
			files[name] = edit(files[name])
		}
		commit(c.subject)
	}
	return commits
}

// snapshotOf is everything in a tree's folder: names, sizes and times.
func snapshotOf(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	if err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		fmt.Fprintln(&b, name, info.Size(), info.ModTime().UnixNano())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Of twelve commits of the driver bisect finds the one that puts all vectors on one CPU, past one that does not build. Its log leads git to the same commit, the user's tree and the
// bisection that is under way there are as they were, and ends that are not what they are said to be are told with the table. The changes are made here, of the fetched source: no
// text of the kernel's is in this repository.
func TestBisectTree(t *testing.T) {
	if testing.Short() {
		t.Skip("builds modules and boots virtual machines")
	}
	t.Parallel()
	src := sourceOfDriver(t)
	const gdma, ethernet, header = try.ModuleDir + "/gdma_main.c", try.ModuleDir + "/mana_en.c", "include/net/mana/gdma.h"
	// A file that a commit does not have is not taken from the kernel's source.
	bare := &moduleMaker{source: src}
	whole, err := bare.whole(map[string][]byte{gdma: []byte("x"), "include/net/mana/notes.txt": []byte("x")})
	for _, name := range []string{ethernet, header, try.ModuleDir + "/Makefile"} {
		if content, there := whole[name]; err != nil || !there || content != nil {
			t.Errorf("%s: %t, %q, %v", name, there, content, err)
		}
	}
	if _, there := whole["include/net/mana/notes.txt"]; there || string(whole[gdma]) != "x" {
		t.Errorf("%q", whole)
	}
	one := func(name string, edit func(string) string) map[string]func(string) string {
		return map[string]func(string) string{name: edit}
	}
	const first = 8 // the bad commit, as an index
	dir := t.TempDir()
	tree := filepath.Join(dir, "linux")
	commits := commitsOf(t, tree, src.FS(), modulePaths, []change{
		{"mana: a comment", one(gdma, appended("/* irqlab 1 */\n"))},
		{"genirq: not the driver", one("kernel/irq/matrix.c", appended("/* irqlab 2 */\n"))},
		{"mana: rename a local variable", one(gdma, replaced(t, `\bcpu\b`, "nr"))},
		{"mana: a file of its own", map[string]func(string) string{try.ModuleDir + "/irqlab.h": appended("#define IRQLAB 4\n"), gdma: appended("#include \"irqlab.h\"\n")}},
		{"mana: half of a change", one(gdma, appended("static int irqlab_test = irqlab_undeclared;\n"))},
		{"mana: the other half", one(gdma, replaced(t, `(?m)^static int irqlab_test = .*\n`, "/* irqlab 6 */\n"))},
		{"mana: a comment in a header", one(header, appended("/* irqlab 7 */\n"))},
		{"mana: simplify the spreading", one(gdma, replaced(t, `\b(cpumask_of|topology_sibling_cpumask)\(nr\)`, "cpumask_of(0)"))},
		{"mana: a comment elsewhere", one(ethernet, appended("/* irqlab 9 */\n"))},
		{"mana: one more", one(gdma, appended("/* irqlab 10 */\n"))},
		{"Documentation: how to read it", one("Documentation/mana.rst", appended("Mana\n"))},
	})
	gitIn(t, tree, "bisect", "start", "HEAD", "HEAD~9") // the user's own
	const four = "1x4x1"
	before := snapshotOf(t, tree)

	out, log := filepath.Join(dir, "out"), filepath.Join(dir, "bisect.log")
	status, text, msg := irqlab(t, "bisect", "--good", commits[0], "--bad", commits[len(commits)-1], "--tree", tree, "--case", four, "--out", out, "--log", log, "--format", "json")
	t.Log(msg)
	var found bisect.Bisection
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		t.Fatalf("status %d, %v: %s%s", status, err, text, msg)
	}
	t.Cleanup(func() { // what was built for the test goes; the kernel's own, unpatched, stays
		for _, step := range found.Steps {
			if step.Module != "" && step.Name != commits[0] {
				if err := os.RemoveAll(filepath.Dir(step.Module)); err != nil {
					t.Error(err)
				}
			}
		}
	})
	table, err := os.ReadFile(filepath.Join(out, bisectText))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", table)
	if status != ExitPass || found.FirstBad == nil || found.FirstBad.Name != commits[first] || found.Verdict.Word != bisect.WordFound {
		t.Fatalf("status %d, first bad %+v, verdict %+v: %s", status, found.FirstBad, found.Verdict, msg)
	}
	if r := found.Range; r.Commits != 11 || r.OfModule != 9 || r.Elsewhere != 1 || len(found.Notes) == 0 || !strings.Contains(found.Notes[0], "other files of the kernel: 1 of 11;") {
		t.Errorf("range %+v, notes %q", r, found.Notes)
	}
	skipped := slices.IndexFunc(found.Steps, func(s bisect.Step) bool { return s.Verdict == gitrange.Skip })
	if skipped < 0 || found.Steps[skipped].Name != commits[5] || len(found.Steps[skipped].Errors) == 0 || !strings.Contains(found.Steps[skipped].Errors[0].Text, "irqlab_undeclared") {
		t.Errorf("skipped: step %d of %+v", skipped, found.Steps)
	}
	if len(found.Cases) != 1 || found.Cases[0].Change != try.Worse || found.Comparison == nil {
		t.Errorf("last good and first bad: %+v", found.Cases)
	}
	for _, want := range []string{"bad   " + commits[first][:12] + "  0; 0,0,0,0", "skip  " + commits[5][:12], "first bad commit: " + commits[first] + "\n", "mana: simplify the spreading\n", "clustered, and was not before", "irqlab_undeclared"} {
		if !strings.Contains(string(table), want) {
			t.Errorf("%s: no %q", bisectText, want)
		}
	}
	if after := snapshotOf(t, tree); after != before {
		t.Error("something in the user's tree was written")
	}
	for _, name := range []string{log, filepath.Join(out, bisectLog)} {
		work := filepath.Join(t.TempDir(), "clone")
		gitIn(t, dir, "clone", "-q", tree, work)
		gitIn(t, work, "bisect", "replay", name)
		if said := gitIn(t, work, "bisect", "log"); !strings.Contains(said, "# first bad commit: ["+commits[first]+"]") {
			t.Errorf("git bisect replay %s: %s", name, said)
		}
	}

	// The ends the wrong way about are told with the table, and the module that was built before is taken again.
	status, text, msg = irqlab(t, "bisect", "--good", commits[first], "--bad", commits[first+1], "--tree", tree, "--case", four)
	if status != ExitFail || !strings.Contains(text, "the good end is bad") || !strings.Contains(text, "interrupts handled per CPU") {
		t.Errorf("a good end that fails: status %d: %s%s", status, text, msg)
	}

	// An interrupt ends it with what was judged, which the log has, too.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var shown writing
	shown.then = func() {
		if strings.Contains(shown.String(), "bad   ") { // both ends
			cancel()
		}
	}
	var errs bytes.Buffer
	status = Run(ctx, []string{"bisect", "--good", commits[0], "--bad", commits[len(commits)-1], "--tree", tree, "--case", four, "--log", log}, Streams{In: strings.NewReader(""), Out: &shown, Err: &errs})
	if left := "interrupted\nlast good: " + commits[0][:12]; status != ExitInterrupted || !strings.Contains(shown.String(), left) || !strings.Contains(shown.String(), "skip  "+commits[5][:12]) {
		t.Errorf("interrupted: status %d: %s%s", status, &shown.Buffer, &errs)
	}
	if said, err := os.ReadFile(log); err != nil || !strings.Contains(string(said), "git bisect bad "+commits[11]) || !strings.Contains(string(said), "git bisect skip "+commits[5]) {
		t.Errorf("%v: %s", err, said)
	}
}

// What is no bisection is told before anything is fetched or built, and leaves nothing.
func TestBisectTreeInput(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("IRQLAB_CACHE", filepath.Join(dir, "cache"))
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("GIT_CEILING_DIRECTORIES", dir)
	tree := filepath.Join(dir, "linux")
	gitIn(t, dir, "init", "-q", "-b", "main", tree)
	for i, name := range []string{"README", try.ModuleDir + "/Makefile", "kernel/a.c", try.ModuleDir + "/b.c"} {
		path := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		gitIn(t, tree, "add", "-A")
		gitIn(t, tree, "commit", "-q", "-m", fmt.Sprint("c", i))
	}
	t.Chdir(tree)
	if err := os.WriteFile("../used", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ args, want string }{
		{"bisect", "name a commit that is good"},
		{"bisect --good HEAD~2 a b", "accepts at most 1 arg"},
		{"bisect --good HEAD~9", "there is no commit HEAD~9"},
		{"bisect --good HEAD~2 --bad HEAD~1", "no commit behind HEAD~2 up to HEAD~1 changes " + try.ModuleDir + " or include/net/mana: --whole judges"},
		{"bisect --good HEAD --bad HEAD~1", "the good one is the later"},
		{"bisect --good HEAD~1 --tree ..", "no git repository"},
		{"bisect --good HEAD~1 --tree ../no-such", "no such folder"},
		{"bisect --good HEAD~1 --format mail", "allowed: table, json"},
		{"bisect --good HEAD~1 --log /dev/null", "/dev/null is no file"},
		{"bisect --good HEAD~1 --log ../no-such/log", "--log: "},
		{"bisect --good HEAD~1 --out ..", "choose a new or empty directory"},
		{"bisect --good HEAD~1 sprad", `did you mean "spread"`},
		{"bisect --good HEAD~1 low-vcpu", "no case of low-vcpu has to do with the kernel's driver"},
		{"bisect --good HEAD~1 --case 1x4x3", "--case"},
		{"bisect --good HEAD~1 --shape cores=0", "--shape"},
		{"bisect --good HEAD~1 --kernel git:.@HEAD", "by --whole"},
		{"bisect --good HEAD~1 --whole --kernel debian:7.3", "with --whole each commit is the kernel"},
		{"bisect --good HEAD~4 --whole", "there is no commit HEAD~4"},
		{"bisect --good HEAD~1 --kernel debian:seven", "starts with a digit"},
	} {
		status, out, msg := irqlab(t, strings.Fields(tt.args)...)
		if status != ExitUsage || !strings.Contains(msg, tt.want) || out != "" {
			t.Errorf("irqlab %s: status %d: %s%s; want %d and %q", tt.args, status, out, msg, ExitUsage, tt.want)
		}
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
