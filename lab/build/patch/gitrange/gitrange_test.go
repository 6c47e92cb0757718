package gitrange

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"irqlab/lab/build/patch"
)

// sandbox is a user with a home and nothing set.
func sandbox(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("GIT_CEILING_DIRECTORIES", dir)
	return dir
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	c := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=Bell Ringer", "-c", "user.email=bell@example.org", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"}, args...)...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

const (
	first  = "int bell;\nint rope;\n"
	second = "int bell;\nint tower;\nint rope;\n"
	third  = "int bell;\nint tower;\nint clock;\nint rope;\n"
)

// history is a repository with three commits, of which each changes sub/bell.c.
func history(t *testing.T, dir string) {
	t.Helper()
	git(t, filepath.Dir(dir), "init", "-q", dir)
	for i, text := range []string{first, second, third} {
		write(t, filepath.Join(dir, "sub/bell.c"), text)
		git(t, dir, "add", ".")
		git(t, dir, "commit", "-q", "-m", []string{"bell: hang it", "bell: build a tower", "bell: a clock, too"}[i])
	}
}

// titles are those of the series, after it made of from what it should.
func titles(t *testing.T, spec, from, to string) string {
	t.Helper()
	s, err := Read(context.Background(), spec)
	if err != nil {
		return err.Error()
	}
	r, err := patch.Apply(fstest.MapFS{"sub/bell.c": &fstest.MapFile{Data: []byte(from), Mode: 0o755}}, s, patch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Files) == 0 || string(r.Files[len(r.Files)-1].Content) != to {
		t.Errorf("%s: %+v", spec, r.Files)
	}
	var all []string
	for _, p := range s {
		if p.Source != "git:"+spec {
			t.Errorf("source %s", p.Source)
		}
		all = append(all, p.Title)
	}
	return strings.Join(append(all, s.Notes()...), "; ")
}

func TestRead(t *testing.T) {
	home := sandbox(t)
	dir := filepath.Join(home, "a@b") // a name that looks like a revision's
	history(t, dir)
	work := filepath.Join(home, "work")
	git(t, dir, "worktree", "add", "-q", work)
	write(t, filepath.Join(work, "sub/bell.c"), first)
	git(t, work, "add", ".")
	write(t, filepath.Join(work, "sub/bell.c"), second)
	write(t, filepath.Join(work, "new.c"), "")
	bare, shallow, empty := filepath.Join(home, "bare"), filepath.Join(home, "shallow"), filepath.Join(home, "empty")
	git(t, home, "clone", "-q", "--bare", dir, bare)
	git(t, home, "clone", "-q", "--depth", "2", "file://"+dir, shallow)
	git(t, home, "init", "-q", empty)
	// Whatever the user prefers, git writes the same.
	git(t, home, "config", "--global", "diff.noprefix", "true")
	git(t, home, "config", "--global", "format.attach", "true")
	git(t, home, "config", "--global", "format.coverLetter", "true")
	git(t, home, "config", "--global", "format.subjectPrefix", "LAMP")
	git(t, home, "config", "--global", "color.ui", "always")
	git(t, home, "config", "--global", "diff.context", "0")
	t.Setenv("GIT_DIR", empty)
	t.Setenv("GIT_EXTERNAL_DIFF", "false")
	const tower, clock = "bell: build a tower", "bell: a clock, too"
	for _, tt := range []struct{ spec, from, to, want string }{
		{dir + "@HEAD~2..HEAD", first, third, tower + "; " + clock},
		{dir + "@HEAD~2..", first, third, tower + "; " + clock},
		{dir + "@HEAD~1", first, second, tower},
		{dir + "/sub@main", second, third, clock},
		{"~/a@b@main@{0}", second, third, clock},
		{work, third, second, "changes that are not committed; 1 files that git does not know are not in the patch (git add -N puts them in): new.c."},
		{work + "@HEAD", second, third, clock},
		{bare + "@HEAD", second, third, clock},
		{shallow + "@HEAD", second, third, clock},
		{dir, "", "", "nothing is changed that is not committed: name commits"},
		{bare, "", "", "a repository without a work tree has no changes"},
		{dir + "/.git", "", "", "a repository without a work tree has no changes"},
		{empty, "", "", "there is no commit yet"},
		{home, "", "", "no git repository"},
		{filepath.Join(home, "nowhere"), "", "", "no such folder"},
		{dir + "@HEAD..HEAD", "", "", "no commits in HEAD..HEAD"},
		{dir + "@HEAD..HEAD~1", "", "", "HEAD is no ancestor of HEAD~1"},
		{dir + "@HEAD~1...HEAD", "", "", "a symmetric difference is no series"},
		{dir + "@nothing..HEAD", "", "", "there is no commit nothing"},
		{dir + "@HEAD~2", "", "", "there is no commit HEAD~2^"},
		{dir + "@--output=x..HEAD", "", "", `"--output=x" is no commit`},
		{dir + "@..HEAD", "", "", `"" is no commit`},
		{shallow + "@HEAD~2..HEAD", "", "", "which is shallow: git fetch --unshallow"},
	} {
		if got := titles(t, tt.spec, tt.from, tt.to); got != tt.want && (tt.to != "" || !strings.Contains(got, tt.want)) {
			t.Errorf("%s: got %s, want %s", tt.spec, got, tt.want)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if _, err := Read(ctx, dir+"@HEAD"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A range with a merge in it is one patch.
func TestMerge(t *testing.T) {
	dir := filepath.Join(sandbox(t), "tree")
	history(t, dir)
	git(t, dir, "checkout", "-q", "-b", "side", "HEAD~2")
	write(t, filepath.Join(dir, "a.c"), "int a;\n")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "a")
	git(t, dir, "merge", "-q", "-m", "merge", "main")
	if got, want := titles(t, dir+"@main~2..side", first, third), "main~2..side; The 4 commits of main~2..side have 1 merges among them, so they are applied as one patch."; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A repository that was prepared to run something: nothing of it runs, nothing is written.
func TestHostileRepository(t *testing.T) {
	home := sandbox(t)
	dir := filepath.Join(home, "tree")
	history(t, dir)
	trap := filepath.Join(home, "trap")
	write(t, trap, "#!/bin/sh\necho \"$0 $*\" >> '"+trap+".sprung'\ncat\n")
	for _, name := range []string{"core.fsmonitor", "core.pager", "core.sshCommand", "diff.external", "diff.bell.command", "diff.bell.textconv", "filter.bell.clean", "filter.bell.smudge", "filter.bell.process",
		"filter.B.E.clean", "gpg.program", "core.editor", "core.alternateRefsCommand", "format.pager", "pager.diff"} {
		git(t, dir, "config", name, trap)
	}
	git(t, dir, "config", "filter.bell.required", "true")
	git(t, dir, "config", "log.showSignature", "true")
	git(t, dir, "config", "remote.origin.url", "ext::"+trap)
	git(t, dir, "config", "remote.origin.promisor", "true")
	write(t, filepath.Join(dir, ".git/info/attributes"), "*.c filter=bell diff=bell\n*.h filter=B.E\n")
	write(t, filepath.Join(dir, ".gitattributes"), "*.c filter=bell diff=bell\n")
	for _, hook := range []string{"post-index-change", "pre-commit", "fsmonitor-watchman", "reference-transaction", "post-checkout"} {
		write(t, filepath.Join(dir, ".git/hooks", hook), "#!/bin/sh\nexec '"+trap+"'\n")
	}
	// The trap works: git alone springs it.
	write(t, filepath.Join(dir, "sub/bell.c"), second)
	c := exec.Command("git", "-C", dir, "diff")
	c.Env = append(os.Environ(), "GIT_PAGER=cat")
	_ = c.Run()
	if _, err := os.Stat(trap + ".sprung"); err != nil {
		t.Fatal("the trap is none")
	}
	if err := os.Remove(trap + ".sprung"); err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile(filepath.Join(dir, ".git/index"))
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range []string{dir, dir + "@HEAD~2..HEAD"} {
		if _, err := Read(context.Background(), spec); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}
	if said, err := os.ReadFile(trap + ".sprung"); err == nil {
		t.Errorf("ran: %s", said)
	}
	if now, err := os.ReadFile(filepath.Join(dir, ".git/index")); err != nil || !bytes.Equal(now, index) {
		t.Error("the index was written")
	}
	// A name that git's -c cannot say.
	f, err := os.OpenFile(filepath.Join(dir, ".git/config"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("[filter \"a=b\"]\n\tclean = " + trap + "\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(context.Background(), dir); err == nil || !strings.Contains(err.Error(), "cannot be switched off") {
		t.Error(err)
	}
}

// Somebody else's repository is git's to refuse; the error says what to do.
func TestForeignRepository(t *testing.T) {
	home := sandbox(t)
	if os.Getuid() != 0 {
		t.Skip("only root can give a folder to somebody else")
	}
	dir := filepath.Join(home, "tree")
	history(t, dir)
	for _, d := range []string{dir, filepath.Join(dir, ".git")} {
		if err := os.Chown(d, 12345, 12345); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Read(context.Background(), dir+"@HEAD")
	if err == nil || !strings.Contains(err.Error(), "belongs to somebody else") {
		t.Fatal(err)
	}
	git(t, home, "config", "--global", "--add", "safe.directory", dir)
	if _, err := Read(context.Background(), dir+"@HEAD"); err != nil {
		t.Error(err)
	}
}
