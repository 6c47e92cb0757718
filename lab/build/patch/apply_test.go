package patch

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// parsed reads a diff of "x", written as what stands behind its two names.
func parsed(t testing.TB, text string) Series {
	t.Helper()
	s, err := Read(Input{"in", strings.NewReader(text)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ofX is a diff of x with these hunks.
func ofX(hunks string) string { return "--- a/x\n+++ b/x\n" + hunks }

// numbered is the lines from to to, each with its number.
func numbered(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

const middle = "@@ -7,7 +7,7 @@\n line 7\n line 8\n line 9\n-line 10\n+LINE 10\n line 11\n line 12\n line 13\n"

func TestApply(t *testing.T) {
	ten := func(s string) string { return strings.Replace(s, "line 10\n", "LINE 10\n", 1) }
	twenty := numbered(1, 20)
	replace := strings.NewReplacer
	twice := strings.Repeat("int f%d(void)\n{\n\tlock();\n\twork();\n\tunlock();\n}\n", 2)
	twice = "/* head */\n" + fmt.Sprintf(twice, 1, 2)
	inF := func(section string) string {
		return ofX("@@ -30,3 +30,3 @@" + section + "\n \tlock();\n-\twork();\n+\tplay();\n \tunlock();\n")
	}
	for _, tt := range []struct {
		name, diff, file string // file is x's text; "-" if it is not there
		fuzz             int
		want             string // as fits has it
		text             string // x's text after, or what the first misfit says
	}{
		{"exact", ofX(middle), twenty, 0, "=", ten(twenty)},
		{"offset", ofX(middle), "a\nb\n" + twenty, 0, "+", "a\nb\n" + ten(twenty)},
		{"offset upwards", ofX(middle), numbered(4, 20), 0, "+", ten(numbered(4, 20))},
		{"fuzz 1", ofX(middle), replace("line 7\n", "other\n").Replace(twenty), 3, "1", ten(replace("line 7\n", "other\n").Replace(twenty))},
		{"fuzz 2", ofX(middle), replace("line 12\n", "other\n").Replace(twenty), 3, "2", ten(replace("line 12\n", "other\n").Replace(twenty))},
		{"fuzz 3", ofX(middle), replace("line 9\n", "other\n").Replace(twenty), 3, "3", ten(replace("line 9\n", "other\n").Replace(twenty))},
		{"fuzz 3 where 2 is allowed", ofX(middle), replace("line 9\n", "other\n").Replace(twenty), 2, "different", "6 of the 7 lines that it expects stand near line 7, the others differ"},
		{"fuzz keeps the file's lines", ofX(middle), replace("line 7\n", "seven\n", "line 13\n", "thirteen\n").Replace(twenty), 1, "1", ten(replace("line 7\n", "seven\n", "line 13\n", "thirteen\n").Replace(twenty))},
		{"no fuzz", ofX(middle), replace("line 7\n", "other\n").Replace(twenty), 0, "different", "6 of the 7 lines"},
		{"the changed line differs", ofX(middle), replace("line 10\n", "other\n").Replace(twenty), 3, "different", "6 of the 7 lines"},
		{"fuzz in two places", ofX(middle), "a\n" + replace("line 7\n", "other\n").Replace(twenty) + "b\n" + replace("line 13\n", "other\n").Replace(numbered(8, 20)), 3, "ambiguous", "fits in 2 places with fuzz 1, and which one is meant is not guessed"},
		{"fuzz leaves no evidence", ofX("@@ -1,3 +1,4 @@\n a\n+x\n b\n c\n"), "1\n2\n3\n4\n", 3, "different", "nothing like it is in this file"},
		{"fuzz leaves braces", ofX("@@ -2,5 +2,6 @@\n a\n {\n+x\n \n }\n b\n"), "q\n{\n\n}\nr\n", 3, "different", "3 of the 5 lines"},
		{"twice, at its line", ofX("@@ -4,3 +4,3 @@\n \tlock();\n-\twork();\n+\tplay();\n \tunlock();\n"), twice, 0, "=", strings.Replace(twice, "work", "play", 1)},
		{"twice, elsewhere", inF(""), twice, 3, "ambiguous", "fits in 2 places, and which one"},
		{"twice, function 2", inF(" int f2(void)"), twice, 0, "+", "/* head */\nint f1(void)\n{\n\tlock();\n\twork();\n\tunlock();\n}\nint f2(void)\n{\n\tlock();\n\tplay();\n\tunlock();\n}\n"},
		{"twice, a function that is not there", inF(" int f3(void)"), twice, 0, "ambiguous", "fits in 2 places"},
		{"twice, function both are in", inF(" int f"), twice, 0, "ambiguous", "fits in 2 places"},
		{"the second hunk goes with the first", ofX("@@ -1,3 +1,3 @@\n line 1\n-line 2\n+two\n line 3\n@@ -5,3 +5,3 @@\n }\n-}\n+end\n }\n"), "a\nb\nline 1\nline 2\nline 3\nx\n}\n}\n}\n}\n}\n", 0, "+ +", "a\nb\nline 1\ntwo\nline 3\nx\n}\nend\n}\n}\n}\n"},
		{"hunks in no order", ofX("@@ -7,3 +7,3 @@\n line 7\n-line 8\n+eight\n line 9\n@@ -1,3 +1,3 @@\n line 1\n-line 2\n+two\n line 3\n"), twenty, 0, "= different", "what it expects stands at line 1, but before the hunk that comes first"},
		{"the file's start stays it", ofX("@@ -1,3 +1,4 @@\n+new\n line 1\n line 2\n line 3\n"), twenty, 0, "=", "new\n" + twenty},
		{"the file's start has moved", ofX("@@ -1,3 +1,4 @@\n+new\n line 1\n line 2\n line 3\n"), "a\n" + twenty, 0, "different", "what it expects stands at line 2, but by the hunk's context it should begin the file"},
		{"the file's end has moved", ofX("@@ -18,3 +18,4 @@\n line 18\n line 19\n line 20\n+new\n"), twenty + "a\n", 0, "different", "stands at line 18, but by the hunk's context it should end the file"},
		{"the file's end has moved, with fuzz", ofX("@@ -18,3 +18,4 @@\n line 18\n line 19\n line 20\n+new\n"), twenty + "a\n", 3, "different", "it should end the file"},
		{"no newline before", ofX("@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n"), "a", 0, "=", "b\n"},
		{"no newline after", ofX("@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n"), "a\n", 0, "=", "b"},
		{"no newline in both", ofX("@@ -1,2 +1,2 @@\n-a\n+b\n c\n\\ Pas de fin de ligne\n"), "a\nc", 0, "=", "b\nc"},
		{"a newline that is not there", ofX("@@ -1 +1 @@\n-a\n+b\n"), "a", 0, "whitespace", "but for spaces and tabs"},
		{"a file in CRLF", ofX("@@ -1,2 +1,2 @@\n-a\r\n+b\r\n c\r\n"), "a\r\nc\r\n", 0, "=", "b\r\nc\r\n"},
		{"bytes that are no UTF-8", ofX("@@ -1 +1 @@\n-a\xff\n+b\xfe\n"), "a\xff\n", 0, "=", "b\xfe\n"},
		{"tabs lost", ofX("@@ -1,2 +1,2 @@\n-        a();\n+        b();\n         c();\n"), "\ta();\n\tc();\n", 3, "whitespace", "would fit at line 1 but for spaces and tabs"},
		{"already applied", ofX(middle), ten(twenty), 3, "already-applied", "line 7 has the text with it. Use --revert to take it out"},
		{"already applied, elsewhere", ofX(middle), "a\n" + ten(twenty), 3, "already-applied", "line 8 has the text with it"},
		{"already applied in part", ofX("@@ -1,3 +1,3 @@\n line 1\n-line 2\n+two\n line 3\n" + middle), ten(twenty), 3, "= already-applied", "line 7 has"},
		{"another version", ofX("@@ -1,4 +1,7 @@\n line 1\n line 2\n+set_up_the_lamp(1);\n+light_the_lamp(2);\n+ring_the_bell(3);\n+put_out_the_lamp(4);\n-line 3\n line 4\n"),
			"line 1\nset_up_the_lamp(1);\nlight_the_lamp(2);\nring_the_bell(3);\nputout(4);\nline 5\n", 0, "other-version", "3 of the 4 lines that it adds are there"},
		{"another file", ofX(middle), "a\nb\n", 3, "different", "nothing like it is in this file"},
		{"an empty file", ofX(middle), "", 3, "different", "nothing like it"},
		{"no context", ofX("@@ -5,0 +6 @@\n+new\n"), twenty, 3, "ambiguous", "has no context"},
		{"no context, but lines removed", ofX("@@ -5 +5 @@\n-line 5\n+new\n"), "a\n" + twenty, 0, "+", "a\n" + replace("line 5\n", "new\n").Replace(twenty)},
		{"a line number far out", ofX("@@ -999999999,2 +999999999,2 @@\n-a\n+b\n c\n"), "a\nc\n", 0, "+", "b\nc\n"},
		{"file missing", ofX(middle), "-", 3, "file-missing", "the file x is not there"},
		{"new file", "--- /dev/null\n+++ b/x\n@@ -0,0 +1,2 @@\n+a\n+b\n", "-", 0, "=", "a\nb\n"},
		{"new file, there with the same text", "--- /dev/null\n+++ b/x\n@@ -0,0 +1,2 @@\n+a\n+b\n", "a\nb\n", 0, "already-applied", "already applied, or given in reverse: the file that it makes is there"},
		{"new file, there with other text", "--- /dev/null\n+++ b/x\n@@ -0,0 +1,2 @@\n+a\n+b\n", "a\n", 0, "file-exists", "but it is there, with other text"},
		{"removed file", "--- a/x\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n", "a\nb\n", 0, "=", "-"},
		{"removed file, gone", "--- a/x\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n", "-", 0, "already-applied", "already applied: the file that the patch removes is not there"},
		{"removed file with more in it", "--- a/x\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n", "a\nb\nc\n", 0, "different", "has more in it than the patch knows"},
		{"binary", "diff --git a/x b/x\nGIT binary patch\nliteral 1\nIcmZ\n\n", "a", 0, "refused", "a binary change, which is not applied"},
		{"an empty file is made", "diff --git a/x b/x\nnew file mode 100644\n", "-", 0, "=", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := tree("other", "")
			if tt.file != "-" {
				files = tree("x", tt.file)
			}
			s := parsed(t, tt.diff)
			r, err := Apply(files, s, Options{MaxFuzz: tt.fuzz})
			if r == nil {
				t.Fatal(err)
			}
			if got := fits(r); got != tt.want {
				t.Errorf("got %s, want %s (%v)", got, tt.want, err)
			}
			var failed *ApplyError
			if errors.As(err, &failed) {
				if r.Files != nil {
					t.Error("files though it failed")
				}
				if m := failed.Misfits[0].Misfit; !strings.Contains(m.Text, tt.text) {
					t.Errorf("says %q, want %q", m.Text, tt.text)
				}
				return
			}
			if len(r.Files) != 1 || r.Files[0].Path != "x" || r.Files[0].Removed != (tt.text == "-") {
				t.Fatalf("%+v", r.Files)
			}
			if got := string(r.Files[0].Content); got != tt.text && tt.text != "-" {
				t.Errorf("got\n%s\nwant\n%s", got, tt.text)
			}
			if r.Fuzz() == 0 {
				checkReverse(t, files, s, r)
			}
		})
	}
}

// A misfit has what is expected, and what stands at the nearest place.
func TestMisfitShowsTheText(t *testing.T) {
	file := "a\nb\n" + strings.Replace(numbered(1, 20), "line 10\n", "other\n", 1)
	r, err := Apply(tree("x", file), parsed(t, ofX("@@ -2,3 +2,3 @@\n line 2\n-line 3\n+three\n line 4\n"+middle)), Options{MaxFuzz: DefaultFuzz})
	var failed *ApplyError
	if !errors.As(err, &failed) || failed.Total != 2 || len(failed.Misfits) != 1 || len(r.Hunks) != 2 {
		t.Fatal(err)
	}
	h := failed.Misfits[0]
	if h.Hunk != 2 || h.Of != 2 || h.SourceLine != 8 || h.Path != "x" {
		t.Errorf("%+v", h)
	}
	m := h.Misfit
	if m.Line != 9 || strings.Join(m.Want, "|") != "line 7|line 8|line 9|line 10|line 11|line 12|line 13" || strings.Join(m.Found, "|") != "line 7|line 8|line 9|other|line 11|line 12|line 13" {
		t.Errorf("%+v", m)
	}
	if want := "1 of 2 hunks do not apply\nx, hunk 2 of 2 (in, line 8): 6 of the 7 lines that it expects stand near line 9, the others differ: rebase it by hand"; err.Error() != want {
		t.Errorf("%s", err)
	}
}

// Several files and patches: what is there in the end, sorted, "path=text" with its mode if it is not 644, "-path" if removed.
func TestApplySeries(t *testing.T) {
	change := func(from, to string) string { return ofX("@@ -1 +1 @@\n-" + from + "\n+" + to + "\n") }
	box := func(diffs ...string) string {
		var b strings.Builder
		for i, d := range diffs {
			b.WriteString(boxFrom + mailText(fmt.Sprintf("[PATCH %d/%d] a", i+1, len(diffs)), inMail(d)))
		}
		return b.String()
	}
	git := func(old, new, rest string) string { return "diff --git a/" + old + " b/" + new + "\n" + rest }
	rename := func(old, new string) string { return git(old, new, "rename from "+old+"\nrename to "+new+"\n") }
	for _, tt := range []struct{ name, text, want string }{
		{"one upon the other", box(change("a", "b"), change("b", "c")), "x=c"},
		{"one takes back the other", box(change("a", "b"), change("b", "a")), ""},
		{"the second does not fit", box(change("a", "b"), change("a", "c")), "different"},
		{"made, then changed", box("--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+a\n", strings.ReplaceAll(change("a", "b"), "/x", "/n")), "n=b"},
		{"made, then removed", box("--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+a\n", "--- a/n\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"), ""},
		{"a file twice in one", change("a", "b") + change("b", "c"), "x=c"},
		{"rename", rename("x", "d/z"), "d/z=a -x"},
		{"rename, with a change", git("x", "z", "rename from x\nrename to z\n--- a/x\n+++ b/z\n@@ -1 +1 @@\n-a\n+b\n"), "-x z=b"},
		{"rename of what is not there", rename("q", "z"), "file-missing"},
		{"rename that is done", rename("q", "y"), "already-applied"},
		{"rename onto another", rename("x", "y"), "file-exists"},
		{"two swapped", rename("x", "y") + rename("y", "x"), "x=why y=a"},
		{"copy", git("x", "z", "copy from x\ncopy to z\n--- a/x\n+++ b/z\n@@ -1 +1 @@\n-a\n+b\n"), "z=b"},
		{"copy of what the patch changes", change("a", "b") + git("x", "z", "copy from x\ncopy to z\n"), "x=b z=a"},
		{"mode", git("x", "x", "old mode 100644\nnew mode 100755\n"), "x=a(755)"},
		{"mode and text", git("x", "x", "old mode 100644\nnew mode 100755\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"), "x=b(755)"},
		{"a program is made", git("z", "z", "new file mode 100755\n--- /dev/null\n+++ b/z\n@@ -0,0 +1 @@\n+a\n"), "z=a(755)"},
		{"a file where a folder is", git("dir", "dir", "new file mode 100644\n"), "refused"},
		{"a file below a file", git("y/z", "y/z", "new file mode 100644\n"), "refused"},
		{"a file below a new file", git("n", "n", "new file mode 100644\n") + git("n/z", "n/z", "new file mode 100644\n"), "refused"},
		{"outside what is built", change("a", "b") + git("docs/z", "docs/z", "index 1..2 100644\nGIT binary patch\nliteral 1\nIcmZ\n\n"), "x=b outside docs/z"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := tree("x", "a\n", "y", "why\n", "dir/file", "f\n")
			s := parsed(t, tt.text)
			r, err := Apply(files, s, Options{Outside: func(p string) bool { return strings.HasPrefix(p, "docs/") }})
			if r == nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range r.Files {
				text := f.Path + "=" + strings.TrimSuffix(string(f.Content), "\n")
				if f.Removed {
					text = "-" + f.Path
				} else if f.Mode != 0o644 {
					text += fmt.Sprintf("(%o)", f.Mode)
				}
				got = append(got, text)
			}
			if len(r.Outside) > 0 {
				got = append(got, "outside "+strings.Join(r.Outside, " "))
			}
			if err != nil {
				got = []string{string(err.(*ApplyError).Misfits[0].Misfit.Reason)}
			}
			if g := strings.Join(got, " "); g != tt.want {
				t.Errorf("got %s, want %s (%v)", g, tt.want, err)
			}
			if err == nil && !strings.Contains(tt.name, "copy") && len(r.Outside) == 0 {
				checkReverse(t, files, s, r)
			}
		})
	}
}

// A tree on the disk: symbolic links, wherever they lead, are not followed, and nothing is written.
func TestApplyFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"tree/real", "outside"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"tree/x", "tree/real/x", "outside/x"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("a\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"tree/out": "../outside", "tree/in": "real", "tree/link": "x", "tree/hung": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"x": "", "real/x": "", "out/x": "out is not a folder in this tree, but a symbolic link", "in/x": "in is not a folder",
		"link": "it is not a regular file in this tree, but a symbolic link", "hung": "but a symbolic link", "real": "but a folder", "x/y": "x is not a folder in this tree, but a file",
	} {
		for _, diff := range []string{"--- a/" + path + "\n+++ b/" + path + "\n@@ -1 +1 @@\n-a\n+b\n", "diff --git a/" + path + " b/" + path + "\nnew file mode 100644\n"} {
			_, err := Apply(os.DirFS(filepath.Join(dir, "tree")), parsed(t, diff), Options{})
			if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: %v, want %s", path, err, want)
			}
			if want == "" && err != nil && !strings.Contains(diff, "new file") {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	if data, _ := os.ReadFile(filepath.Join(dir, "tree/x")); string(data) != "a\n" {
		t.Error("the tree was written to")
	}
}

// Of very many hunks that do not fit, all are told, but not all looked at.
func TestApplyManyMisfits(t *testing.T) {
	var b strings.Builder
	for i := range maxMisfits + 10 {
		fmt.Fprintf(&b, "@@ -%d +%d @@\n-no %d\n+new\n", i+1, i+1, i)
	}
	r, err := Apply(tree("x", numbered(1, 20)), parsed(t, ofX(b.String())), Options{})
	var failed *ApplyError
	if !errors.As(err, &failed) || len(failed.Misfits) != maxMisfits+10 || failed.Total != maxMisfits+10 {
		t.Fatal(err)
	}
	for i, want := range map[int]string{maxReasons - 1: "nothing like it", maxReasons: "does not fit", maxMisfits - 1: "does not fit", maxMisfits: "not tried any more"} {
		if got := r.Hunks[i].Misfit.Text; !strings.Contains(got, want) {
			t.Errorf("%d: %s, want %s", i, got, want)
		}
	}
}

// A tree that cannot be read is no fault of the patch.
func TestApplyTreesFault(t *testing.T) {
	broken := fstest.MapFS{"x": &fstest.MapFile{Data: []byte("a\n"), Mode: 0o644}}
	_, err := Apply(faulty{broken}, parsed(t, ofX("@@ -1 +1 @@\n-a\n+b\n")), Options{})
	var failed *ApplyError
	if !errors.Is(err, fs.ErrPermission) || errors.As(err, &failed) {
		t.Error(err)
	}
}

type faulty struct{ fs.FS }

func (faulty) Open(string) (fs.File, error) { return nil, fs.ErrPermission }

func TestReverseAndPaths(t *testing.T) {
	s := append(parsed(t, lampDiff), parsed(t, bellDiff)...)
	if got := s.Paths(); !slices.Equal(got, []string{"bell.c", "lamp/lamp.c"}) {
		t.Error(got)
	}
	back := s.Reverse()
	if back[0].Files[0].New != "" || !back[0].Reversed || s[0].Reversed {
		t.Errorf("%+v", back[0])
	}
	again := back.Reverse()
	for i := range s {
		if string(again[i].Diff()) != string(s[i].Diff()) {
			t.Errorf("%s", again[i].Diff())
		}
	}
	// Taken out of a tree that does not have it.
	_, err := Apply(tree("lamp/lamp.c", lampFile(t)), s[:1].Reverse(), Options{})
	if err == nil || !strings.Contains(err.Error(), "None of it is in this tree: without --revert it would apply.") {
		t.Error(err)
	}
	_, err = Apply(tree("y", ""), s[1:].Reverse(), Options{})
	if err == nil || !strings.Contains(err.Error(), "cannot be taken out: the file that the patch makes is not there") {
		t.Error(err)
	}
	_, err = Apply(tree("y", ""), s[:1], Options{})
	if err == nil || !strings.Contains(err.Error(), "None of its files is in this tree: is the patch one for the kernel?") {
		t.Error(err)
	}
}

// The id is git's, whatever the form the patch came in.
func TestIDIsGits(t *testing.T) {
	for _, diff := range []string{lampDiff, bellDiff, lampDiff + bellDiff, bellDiff + lampDiff,
		"diff --git a/x b/x\nold mode 100644\nnew mode 100755\n" + lampDiff,
		"diff --git a/x b/x\nold mode 100644\nnew mode 100755\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a \t b\n+ c\n",
		"diff --git a/x y b/x y\n--- a/x y\t\n+++ b/x y\t\n@@ -1 +1 @@\n-a\n+c\n\\ No newline at end of file\n",
		"diff --git a/x b/x\ndeleted file mode 100644\n--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
		"diff --git \"a/\\303\\274\" \"b/\\303\\274\"\n--- \"a/\\303\\274\"\n+++ \"b/\\303\\274\"\n@@ -1 +1 @@\n-a\n+c\n",
	} {
		out, err := command(t, t.TempDir(), diff, "git", "patch-id", "--stable")
		if err != nil {
			t.Fatal(err, out)
		}
		want, _, _ := strings.Cut(out, " ")
		s := parsed(t, diff)
		if got := s.ID(); got != want {
			t.Errorf("got %s, git says %s\n%s", got, want, diff)
		}
		if a, b := s[0].Files, slices.Clone(s[0].Files); len(a) == 2 && len(a[0].Hunks) > 0 {
			slices.Reverse(b)
			if (&Patch{Files: b}).ID() != s.ID() {
				t.Error("the order of files changes the id")
			}
		}
	}
	a, b := parsed(t, lampDiff), parsed(t, bellDiff)
	if append(slices.Clone(a), b...).ID() == append(slices.Clone(b), a...).ID() {
		t.Error("the order of patches does not change the id")
	}
}

// The result has everything that the real programs make of a patch with renames, modes, new and removed files.
func TestSeriesAsGit(t *testing.T) {
	diff := "diff --git a/x b/z\nrename from x\nrename to z\n--- a/x\n+++ b/z\n@@ -1 +1 @@\n-a\n+b\n" + bellDiff + "diff --git a/y b/y\ndeleted file mode 100644\n--- a/y\n+++ /dev/null\n@@ -1 +0,0 @@\n-why\n"
	files := tree("x", "a\n", "y", "why\n")
	s := parsed(t, diff)
	r, err := Apply(files, s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want, ok := gitApply(t, files, s)
	if !ok || !maps.Equal(contents(r), want) {
		t.Errorf("git: %v %q, ours %q", ok, want, contents(r))
	}
}
