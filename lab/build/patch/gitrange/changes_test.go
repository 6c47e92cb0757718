package gitrange

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The changes between any two commits are what makes the files of the one of those of the other, but for what is outside.
func TestChanges(t *testing.T) {
	home := sandbox(t)
	dir := filepath.Join(home, "tree")
	git(t, home, "init", "-q", "-b", "main", dir)
	var commits []*Tree
	commit := func(edit func()) {
		edit()
		git(t, dir, "add", "-A")
		git(t, dir, "commit", "-q", "--allow-empty", "-m", "x")
		c, err := OpenTree(t.Context(), dir, "HEAD")
		if err != nil {
			t.Fatal(err)
		}
		commits = append(commits, c)
	}
	put := func(name, text string) { write(t, filepath.Join(dir, name), text) }
	commit(func() { put("a.c", "1"); put("sub/b.c", "1"); put("doc/x", "1") })
	commit(func() { put("a.c", "2"); put("doc/x", "2") })
	commit(func() { put("new/c.c", ""); put("a.c", "1") })
	commit(func() {
		if err := os.Remove(filepath.Join(dir, "sub/b.c")); err != nil {
			t.Fatal(err)
		}
	})
	commit(func() {
		put("doc/y", "1")
		if err := os.Remove(filepath.Join(dir, "doc/x")); err != nil {
			t.Fatal(err)
		}
	})
	outside := func(name string) bool { return strings.HasPrefix(name, "doc/") }
	for _, tc := range []struct {
		from, to int
		want     map[string]string // "-": gone
	}{
		{0, 0, map[string]string{}},
		{0, 1, map[string]string{"a.c": "2"}},
		{1, 0, map[string]string{"a.c": "1"}},
		{0, 2, map[string]string{"new/c.c": ""}},
		{0, 3, map[string]string{"new/c.c": "", "sub/b.c": "-"}},
		{3, 0, map[string]string{"new/c.c": "-", "sub/b.c": "1"}},
		{3, 4, map[string]string{}},
	} {
		changed, _, err := commits[tc.to].Changes(t.Context(), commits[tc.from], outside)
		got := map[string]string{}
		for name, content := range changed {
			got[name] = string(content)
			if content == nil {
				got[name] = "-"
			}
		}
		if err != nil || !maps.Equal(got, tc.want) {
			t.Errorf("from %d to %d: %q, %v; want %q", tc.from, tc.to, got, err, tc.want)
		}
	}
	// Commits that differ in nothing but documentation have one key, all others their own.
	keys := make([]string, len(commits))
	for i, c := range commits {
		var err error
		if _, keys[i], err = c.Changes(t.Context(), commits[0], outside); err != nil {
			t.Fatal(err)
		}
	}
	if keys[3] != keys[4] || len(slices.Compact(slices.Sorted(slices.Values(keys)))) != 4 {
		t.Errorf("keys %q", keys)
	}
	commit(func() {
		if err := os.Symlink("a.c", filepath.Join(dir, "link.c")); err != nil {
			t.Fatal(err)
		}
	})
	var unfit *FilesError
	if _, _, err := commits[5].Changes(t.Context(), commits[0], outside); !errors.As(err, &unfit) || !strings.Contains(err.Error(), "link.c") {
		t.Errorf("a link: %v", err)
	}
}
