package gitrange

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// shown is what Walk gives of a commit, a line for each file.
func shown(ctx context.Context, dir, rev string) (string, error) {
	t, err := OpenTree(ctx, dir, rev)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Walk(ctx, func(f File, n, of int, r io.Reader) error {
		if f.Name == "skipped" {
			return nil // without a look at what it holds
		}
		data, err := io.ReadAll(r)
		fmt.Fprintf(&b, "%d/%d %s %v %v %q\n", n, of, f.Name, f.Executable, f.Link, data)
		return err
	})
	return b.String(), err
}

func TestTree(t *testing.T) {
	home := sandbox(t)
	dir := filepath.Join(home, "tree")
	history(t, dir)
	write(t, filepath.Join(dir, "run.sh"), "#!/bin/sh\n")
	write(t, filepath.Join(dir, "skipped"), "a\nb\n")
	write(t, filepath.Join(dir, "empty"), "")
	if err := os.Chmod(filepath.Join(dir, "empty"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../outside", filepath.Join(dir, "sub/link")); err != nil {
		t.Fatal(err)
	}
	// What git archive or a checkout would do with these is not done.
	write(t, filepath.Join(dir, ".gitattributes"), "run.sh export-ignore filter=bell\n*.c export-subst text eol=crlf\n")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "more")
	trap := filepath.Join(home, "trap")
	write(t, trap, "#!/bin/sh\ntouch '"+trap+".sprung'\ncat\n")
	git(t, dir, "config", "filter.bell.smudge", trap)
	git(t, dir, "config", "core.pager", trap)
	git(t, dir, "config", "tar.tar.command", trap)

	attributes := "0/6 .gitattributes true false \"run.sh export-ignore filter=bell\\n*.c export-subst text eol=crlf\\n\"\n"
	want := attributes + "1/6 empty false false \"\"\n2/6 run.sh true false \"#!/bin/sh\\n\"\n" +
		"4/6 sub/bell.c true false \"" + strings.ReplaceAll(third, "\n", "\\n") + "\"\n5/6 sub/link false true \"../outside\"\n"
	bare, shallow, worktree := filepath.Join(home, "bare"), filepath.Join(home, "shallow"), filepath.Join(home, "worktree")
	git(t, home, "clone", "-q", "--bare", dir, bare)
	git(t, home, "clone", "-q", "--depth=1", "file://"+dir, shallow)
	git(t, dir, "worktree", "add", "-q", worktree, "HEAD~2")
	for _, tt := range []struct{ dir, rev, want, err string }{
		{dir, "HEAD", want, ""},
		{dir, "main", want, ""},
		{bare, "main", want, ""},
		{shallow, "HEAD", want, ""},
		{worktree, "main", want, ""},
		{filepath.Join(dir, "sub"), "HEAD", want, ""},
		{worktree, "HEAD", "0/1 sub/bell.c true false \"" + strings.ReplaceAll(second, "\n", "\\n") + "\"\n", ""},
		{shallow, "HEAD~1", "", "shallow: git fetch --unshallow"},
		{dir, "nothing", "", "there is no commit nothing"},
		{dir, "--all", "", "is no commit"},
		{dir, "HEAD:sub/bell.c", "", "there is no commit"},
		{home, "HEAD", "", "no git repository"},
		{filepath.Join(home, "none"), "HEAD", "", "no such folder"},
	} {
		got, err := shown(t.Context(), tt.dir, tt.rev)
		if got != tt.want || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s at %s: %v\n%s", tt.dir, tt.rev, err, got)
		}
	}
	if _, err := os.Stat(trap + ".sprung"); err == nil {
		t.Error("something of the repository's was run")
	}
	a, errA := OpenTree(t.Context(), dir, "HEAD")
	b, errB := OpenTree(t.Context(), bare, "main")
	if errA != nil || errB != nil || a.ID != b.ID || a.Commit != b.Commit || a.ID == a.Commit {
		t.Errorf("%+v %v, %+v %v", a, errA, b, errB)
	}
}

// A clone that lacks files says so, and how to get them.
func TestTreeOfPartialClone(t *testing.T) {
	home := sandbox(t)
	dir, partial := filepath.Join(home, "tree"), filepath.Join(home, "partial")
	history(t, dir)
	git(t, dir, "config", "uploadpack.allowFilter", "true")
	git(t, home, "clone", "-q", "--bare", "--filter=blob:none", "file://"+dir, partial)
	if _, err := shown(t.Context(), partial, "main"); err == nil || !strings.Contains(err.Error(), "git fetch --refetch --no-filter") {
		t.Fatal(err)
	}
	git(t, partial, "fetch", "-q", "--refetch", "--no-filter")
	if got, err := shown(t.Context(), partial, "main"); err != nil || !strings.Contains(got, "sub/bell.c") {
		t.Errorf("%v\n%s", err, got)
	}
}

// A tree that git itself would not check out.
func TestTreeThatLeavesItself(t *testing.T) {
	home := sandbox(t)
	dir := filepath.Join(home, "tree")
	history(t, dir)
	blob := git(t, dir, "rev-parse", "HEAD:sub/bell.c")
	for _, name := range []string{"..", "a\\b/../../c", "."} {
		var raw bytes.Buffer
		raw.WriteString("100644 " + name + "\x00")
		id, err := hex.DecodeString(blob)
		if err != nil {
			t.Fatal(err)
		}
		raw.Write(id)
		c := exec.Command("git", "-C", dir, "hash-object", "-t", "tree", "-w", "--stdin", "--literally")
		c.Stdin = &raw
		tree, err := c.Output()
		if err != nil {
			t.Fatal(err)
		}
		commit := git(t, dir, "commit-tree", "-m", "away", strings.TrimSpace(string(tree)))
		if got, err := shown(t.Context(), dir, commit); err == nil || !strings.Contains(err.Error(), "has a file") {
			t.Errorf("%q: %v: %s", name, err, got)
		}
	}
}
