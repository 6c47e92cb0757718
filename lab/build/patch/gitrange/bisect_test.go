package gitrange

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// bells is a tree of 10 commits, c0 to c9: each changes sub/bell.c but c4, which changes another file, and c6, which is documentation. c7 is what a bisection is to find.
func bells(t *testing.T, dir string) (commits []string) {
	t.Helper()
	git(t, filepath.Dir(dir), "init", "-q", "-b", "main", dir)
	for i := range 10 {
		name := map[int]string{4: "other.c", 6: "doc/bell"}[i]
		if name == "" {
			name = "sub/bell.c"
		}
		write(t, filepath.Join(dir, name), fmt.Sprintf("int bell = %d;\n", i))
		git(t, dir, "add", ".")
		git(t, dir, "commit", "-q", "-m", fmt.Sprintf("c%d", i))
		commits = append(commits, git(t, dir, "rev-parse", "HEAD"))
	}
	return commits
}

// bisected is what a bisection of the tree comes to in which the commits from the bad one on are bad, and some are skipped.
func bisected(t *testing.T, dir, good, bad string, commits []string, firstBad int, skip ...int) (asked []int, first string, suspects []string, err error) {
	t.Helper()
	ctx := t.Context()
	b, err := StartBisection(ctx, dir, good, bad, []string{"sub", "include/net/sub"}, []string{"doc", "README"})
	if err != nil {
		return nil, "", nil, err
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(b.g.dir); !os.IsNotExist(err) {
			t.Error(err)
		}
	}()
	if err := b.Begin(ctx); err != nil {
		return nil, "", nil, err
	}
	for {
		c, ok, err := b.Next(ctx)
		if err != nil {
			return asked, "", nil, err
		}
		if !ok {
			break
		}
		i := slices.Index(commits, c.Name)
		asked = append(asked, i)
		if i < 0 || len(asked) > len(commits) || c.Subject != fmt.Sprintf("c%d", i) {
			t.Fatalf("asked for %v, %q", asked, c.Subject)
		}
		term := Good
		if slices.Contains(skip, i) {
			term = Skip
		} else if i >= firstBad {
			term = Bad
		}
		if files, _, err := b.Files(ctx, c.Name); err != nil || len(files) != 1 || !strings.HasPrefix(string(files["sub/bell.c"]), "int bell = ") {
			t.Errorf("%s: files %v, %v", c.Subject, files, err)
		}
		if err := b.Judge(ctx, c.Name, term); err != nil {
			return asked, "", nil, err
		}
	}
	first, suspects = b.Found()
	return asked, first, suspects, nil
}

// Whatever kind of a tree it is, the same commit is found, and nothing is written there.
func TestBisection(t *testing.T) {
	home := sandbox(t)
	dir := filepath.Join(home, "tree")
	commits := bells(t, dir)
	bare, work, deep := filepath.Join(home, "bare.git"), filepath.Join(home, "work"), filepath.Join(home, "deep")
	git(t, home, "clone", "-q", "--bare", dir, bare)
	git(t, dir, "worktree", "add", "-q", work)
	git(t, home, "clone", "-q", "--depth", "9", "file://"+dir, deep)
	git(t, dir, "bisect", "start", "HEAD", "HEAD~3")
	git(t, home, "config", "--global", "safe.bareRepository", "explicit")
	before := git(t, dir, "for-each-ref") + git(t, dir, "bisect", "log") + git(t, dir, "status", "--porcelain")
	for _, tree := range []string{dir, filepath.Join(dir, "sub"), work, deep, "~/tree"} {
		asked, first, suspects, err := bisected(t, tree, commits[1], "main", commits, 7)
		if err != nil || first != commits[7] || len(suspects) > 0 || len(asked) > 4 || slices.Contains(asked, 4) || slices.Contains(asked, 6) {
			t.Errorf("%s: asked for %v, found %s, %v, %v", tree, asked, first, suspects, err)
		}
	}
	if now := git(t, dir, "for-each-ref") + git(t, dir, "bisect", "log") + git(t, dir, "status", "--porcelain"); now != before {
		t.Errorf("it was\n%s\nand is\n%s", before, now)
	}
	git(t, home, "config", "--global", "--unset", "safe.bareRepository")
	if _, first, _, err := bisected(t, bare, commits[1], "HEAD", commits, 7); err != nil || first != commits[7] {
		t.Errorf("bare: %s, %v", first, err)
	}
	// What would tell is skipped: git says which of them it may be.
	if _, first, suspects, err := bisected(t, dir, commits[1], commits[9], commits, 7, 5, 7); err != nil || first != "" || len(suspects) != 3 ||
		!slices.Contains(suspects, commits[5]) || !slices.Contains(suspects, commits[7]) || !slices.Contains(suspects, commits[8]) {
		t.Errorf("found %s, suspects %v, %v", first, suspects, err)
	}
	if _, first, _, err := bisected(t, dir, commits[1], commits[9], commits, 7, 5); err != nil || first != commits[7] && first != "" {
		t.Errorf("found %s, %v", first, err)
	}
}

// Without paths the whole tree is bisected, but for what matters to nobody, and git does the same again from the log.
func TestBisectionOfAll(t *testing.T) {
	home := sandbox(t)
	dir := filepath.Join(home, "tree")
	commits := bells(t, dir)
	b, err := StartBisection(t.Context(), dir, commits[1], "main", nil, []string{"doc", "README"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if b.Commits != 8 || b.Touching != 7 || b.Elsewhere != 0 {
		t.Errorf("%d commits, %d to be judged, %d elsewhere", b.Commits, b.Touching, b.Elsewhere)
	}
	if err := b.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	for {
		c, ok, err := b.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		term := Good
		switch i := slices.Index(commits, c.Name); {
		case i == 6:
			t.Errorf("asked for documentation")
		case i >= 4: // the commit of another file
			term = Bad
		}
		if err := b.Judge(t.Context(), c.Name, term); err != nil {
			t.Fatal(err)
		}
	}
	if first, _ := b.Found(); first != commits[4] {
		t.Errorf("found %s, want %s", first, commits[4])
	}
	write(t, filepath.Join(home, "log"), b.Log())
	git(t, dir, "bisect", "replay", filepath.Join(home, "log"))
	if said := git(t, dir, "bisect", "log"); !strings.Contains(said, "# first bad commit: ["+commits[4]+"]") {
		t.Errorf("git bisect replay: %s", said)
	}
	var none *NoRangeError
	if _, err := StartBisection(t.Context(), dir, commits[5], commits[6], nil, []string{"doc", "README"}); !errors.As(err, &none) || !strings.Contains(err.Error(), "changes more than doc, README") {
		t.Errorf("documentation alone: %v", err)
	}
}

func TestBisectionRange(t *testing.T) {
	home := sandbox(t)
	dir := filepath.Join(home, "tree")
	commits := bells(t, dir)
	shallow := filepath.Join(home, "shallow")
	git(t, home, "clone", "-q", "--depth", "4", "file://"+dir, shallow)
	// A shallow clone that has the good end, but not all between: two lines meet, one of them cut off.
	side := filepath.Join(home, "side")
	git(t, home, "clone", "-q", dir, side)
	git(t, side, "checkout", "-q", "-b", "side", commits[2])
	for i := range 6 {
		write(t, filepath.Join(side, "sub/clock.c"), fmt.Sprintf("int clock = %d;\n", i))
		git(t, side, "add", ".")
		git(t, side, "commit", "-q", "-m", fmt.Sprintf("s%d", i))
	}
	git(t, side, "merge", "-q", "-m", "merge", commits[3])
	half := filepath.Join(home, "half")
	git(t, home, "clone", "-q", "--depth", "3", "-b", "side", "file://"+side, half)
	// One that has both ends, and not what joins them.
	ends := filepath.Join(home, "ends")
	git(t, dir, "branch", "old", commits[2])
	git(t, home, "clone", "-q", "--depth", "2", "--no-single-branch", "file://"+dir, ends)
	git(t, dir, "checkout", "-q", "--orphan", "alone")
	git(t, dir, "commit", "-q", "-m", "alone")
	for _, tt := range []struct{ dir, good, bad, want string }{
		{dir, commits[3], commits[4], "no commit behind " + commits[3] + " up to " + commits[4] + " changes sub"},
		{dir, commits[5], commits[5], "there is no commit behind"},
		{dir, commits[8], commits[2], "the good one is the later of the two"},
		{dir, "alone", commits[2], "have no commit in common"},
		{dir, "nothing", "main", "there is no commit nothing"},
		{dir, "--output=x", "main", `"--output=x" is no commit`},
		{dir, "main:sub", "main", "there is no commit main:sub"},
		{shallow, commits[1], "main", "in this clone, which is shallow: git fetch --unshallow"},
		{ends, "origin/old", "main", "is no ancestor of main as far as this clone goes"},
		{half, commits[3], "side", "are not all there (the clone is shallow"},
		{home, "a", "b", "no git repository"},
		{filepath.Join(home, "nowhere"), "a", "b", "no such folder"},
	} {
		if b, err := StartBisection(t.Context(), tt.dir, tt.good, tt.bad, []string{"sub"}, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, %s to %s: %+v, %v; want %s", tt.dir, tt.good, tt.bad, b, err, tt.want)
		}
	}
	b, err := StartBisection(t.Context(), dir, commits[1], commits[9], []string{"sub"}, []string{"doc"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if b.Commits != 8 || b.Touching != 6 || b.Elsewhere != 1 || b.Good.Subject != "c1" || b.Bad.Subject != "c9" {
		t.Errorf("%+v", b)
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := b.Begin(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "irqlab-bisect-*")); err == nil && !slices.Contains(left, b.g.dir) {
		t.Error(left)
	}
}

// Where the good end is on another line, git asks for where the two part: if that is bad, there is nothing to find.
func TestBisectionOfTwoLines(t *testing.T) {
	dir := filepath.Join(sandbox(t), "tree")
	commits := bells(t, dir)
	git(t, dir, "checkout", "-q", "-b", "stable", commits[3])
	write(t, filepath.Join(dir, "sub/bell.c"), "int bell = 100;\n")
	git(t, dir, "commit", "-q", "-a", "-m", "mend")
	if asked, first, _, err := bisected(t, dir, "stable", "main", commits, 7); err != nil || first != commits[7] || asked[0] != 3 {
		t.Errorf("asked for %v, found %s, %v", asked, first, err)
	}
	var none *NoRangeError
	if asked, first, _, err := bisected(t, dir, "stable", "main", commits, 3); !errors.As(err, &none) || !strings.Contains(err.Error(), "was mended on the way") {
		t.Errorf("asked for %v, found %s, %v", asked, first, err)
	}
}

// What is no plain file in the paths is told, and the same files have the same key.
func TestBisectionFiles(t *testing.T) {
	dir := filepath.Join(sandbox(t), "tree")
	commits := bells(t, dir)
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "sub/link.c")); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "a link")
	b, err := StartBisection(t.Context(), dir, commits[1], "main", []string{"sub"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var unfit *FilesError
	if _, _, err := b.Files(t.Context(), b.Bad.Name); !errors.As(err, &unfit) || !strings.Contains(err.Error(), "sub/link.c") {
		t.Error(err)
	}
	keys := map[string]int{}
	for _, i := range []int{3, 4, 5, 6} {
		_, key, err := b.Files(t.Context(), commits[i])
		if err != nil {
			t.Error(err)
		}
		keys[key]++
	}
	if len(keys) != 2 {
		t.Error(keys)
	}
}

// A partial clone is told to fetch what it lacks, and it helps.
func TestBisectionOfPartialClone(t *testing.T) {
	home := sandbox(t)
	dir, partial := filepath.Join(home, "tree"), filepath.Join(home, "partial")
	bells(t, dir)
	for i := range 2 {
		write(t, filepath.Join(dir, "sub", []string{"still.c", "bell.c"}[i]), "int still;\n")
		git(t, dir, "add", ".")
		git(t, dir, "commit", "-q", "-m", "more")
	}
	git(t, dir, "config", "uploadpack.allowFilter", "true")
	git(t, home, "clone", "-q", "--bare", "--filter=blob:none", "file://"+dir, partial)
	b, err := StartBisection(t.Context(), partial, "main~1", "main", []string{"sub"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	_, _, err = b.Files(t.Context(), b.Bad.Name)
	if err == nil || !strings.HasPrefix(err.Error(), partial+" lacks objects") {
		t.Fatal(err)
	}
	_, command, _ := strings.Cut(err.Error(), "these do: ")
	c := exec.Command("sh", "-c", command)
	c.Dir = partial
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", command, err, out)
	}
	for _, name := range []string{b.Good.Name, b.Bad.Name} {
		if files, _, err := b.Files(t.Context(), name); err != nil || len(files) != 2 {
			t.Errorf("%v, %v", files, err)
		}
	}
}

// What a killed bisection leaves goes with the next; what is in use, just made, or somebody else's stays.
func TestSweep(t *testing.T) {
	home := sandbox(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	dir := filepath.Join(home, "tree")
	commits := bells(t, dir)
	b, err := StartBisection(t.Context(), dir, commits[1], "main", []string{"sub"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	killed, fresh, theirs := filepath.Join(temp, ownPrefix+"1"), filepath.Join(temp, ownPrefix+"2"), filepath.Join(temp, ownPrefix+"3")
	for _, d := range []string{killed, fresh, theirs} {
		write(t, filepath.Join(d, ownLock), "")
	}
	for _, d := range []string{killed, theirs, b.g.dir} {
		if err := os.Chtimes(d, old, old); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{b.g.dir, fresh}
	if os.Getuid() == 0 {
		if err := os.Chown(theirs, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		want = append(want, theirs)
	}
	if next, err := StartBisection(t.Context(), dir, commits[1], "main", []string{"sub"}, nil); err != nil || next.Close() != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(temp, "*"))
	slices.Sort(left)
	slices.Sort(want)
	if err != nil || !slices.Equal(left, want) {
		t.Errorf("left %v, %v; want %v", left, err, want)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// A tree that was prepared to run something, and one of somebody else's.
func TestBisectionOfHostileTree(t *testing.T) {
	home := sandbox(t)
	dir := filepath.Join(home, "tree")
	commits := bells(t, dir)
	trap := filepath.Join(home, "trap")
	write(t, trap, "#!/bin/sh\necho \"$0 $*\" >> '"+trap+".sprung'\ncat\n")
	for _, name := range []string{"core.fsmonitor", "core.pager", "core.sshCommand", "diff.external", "diff.bell.command", "diff.bell.textconv", "filter.bell.smudge", "gpg.program", "core.alternateRefsCommand",
		"alias.bisect", "pager.log", "core.editor"} {
		value := trap
		if name == "alias.bisect" {
			value = "!" + trap
		}
		git(t, dir, "config", name, value)
	}
	git(t, dir, "config", "log.showSignature", "true")
	git(t, dir, "config", "core.hooksPath", filepath.Join(dir, "hooks"))
	write(t, filepath.Join(dir, ".git/info/attributes"), "*.c filter=bell diff=bell\n")
	for _, hook := range []string{"post-index-change", "reference-transaction", "post-checkout"} {
		write(t, filepath.Join(dir, "hooks", hook), "#!/bin/sh\nexec '"+trap+"'\n")
	}
	git(t, dir, "update-ref", "refs/heads/x", "HEAD") // the trap works: git alone springs it
	if err := os.Remove(trap + ".sprung"); err != nil {
		t.Fatal(err)
	}
	if _, first, _, err := bisected(t, dir, commits[1], commits[9], commits, 7); err != nil || first != commits[7] {
		t.Errorf("found %s, %v", first, err)
	}
	if said, err := os.ReadFile(trap + ".sprung"); err == nil {
		t.Errorf("ran: %s", said)
	}
	if os.Getuid() != 0 {
		return // only root can give a folder to somebody else
	}
	for _, d := range []string{dir, filepath.Join(dir, ".git")} {
		if err := os.Chown(d, 12345, 12345); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := StartBisection(t.Context(), dir, commits[1], commits[9], []string{"sub"}, nil); err == nil || !strings.Contains(err.Error(), "belongs to somebody else") {
		t.Error(err)
	}
}
