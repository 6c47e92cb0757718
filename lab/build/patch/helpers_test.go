package patch

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// fits tells of every hunk: = exact, + offset, a digit for fuzz, or the reason why not.
func fits(r *Result) string {
	var all []string
	for _, h := range r.Hunks {
		switch {
		case h.Misfit != nil:
			all = append(all, string(h.Misfit.Reason))
		case h.Fuzz > 0:
			all = append(all, fmt.Sprint(h.Fuzz))
		case h.Offset != 0:
			all = append(all, "+")
		default:
			all = append(all, "=")
		}
	}
	return strings.Join(all, " ")
}

// contents is what a result changed, removed files without text.
func contents(r *Result) map[string]string {
	m := map[string]string{}
	for _, f := range r.Files {
		m[f.Path] = string(f.Content)
	}
	return m
}

func tree(files ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for i := 0; i < len(files); i += 2 {
		m[files[i]] = &fstest.MapFile{Data: []byte(files[i+1]), Mode: 0o644}
	}
	return m
}

// binary is a program's path, or the test is skipped.
func binary(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip(err)
	}
	return path
}

// command runs a program that knows nothing of the user's configuration.
func command(t testing.TB, dir, stdin, name string, args ...string) (string, error) {
	t.Helper()
	c := exec.Command(binary(t, name), args...)
	c.Dir = dir
	c.Stdin = strings.NewReader(stdin)
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CEILING_DIRECTORIES=" + filepath.Dir(dir),
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@example.org"}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.String(), err
}

// laid writes the files that a series touches into a new folder.
func laid(t testing.TB, tree fs.FS, s Series) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range s.Paths() {
		data, err := fs.ReadFile(tree, p)
		if err != nil {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, p), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// changedIn reads back what differs from the tree.
func changedIn(t testing.TB, dir string, tree fs.FS, s Series) map[string]string {
	t.Helper()
	m := map[string]string{}
	for _, p := range s.Paths() {
		before, err := fs.ReadFile(tree, p)
		after, err2 := os.ReadFile(filepath.Join(dir, p))
		if string(before) != string(after) || (err == nil) != (err2 == nil) {
			m[p] = string(after)
		}
	}
	return m
}

// gnuPatch is what patch -F3 makes of it; false if it does not apply.
func gnuPatch(t testing.TB, tree fs.FS, s Series) (map[string]string, bool) {
	t.Helper()
	dir := laid(t, tree, s)
	for _, p := range s {
		if _, err := command(t, dir, string(p.Diff()), "patch", "-p1", "-F3", "-N", "-s", "--no-backup-if-mismatch"); err != nil {
			return nil, false
		}
	}
	return changedIn(t, dir, tree, s), true
}

// gitApply is what git apply makes of it; false if it does not apply.
func gitApply(t testing.TB, tree fs.FS, s Series) (map[string]string, bool) {
	t.Helper()
	dir := laid(t, tree, s)
	for _, p := range s {
		if _, err := command(t, dir, string(p.Diff()), "git", "apply", "--whitespace=nowarn"); err != nil {
			return nil, false
		}
	}
	return changedIn(t, dir, tree, s), true
}
