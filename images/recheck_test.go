package images

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// flipBit changes a file and keeps its size and time.
func flipBit(t *testing.T, path string) {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 0x20
	if err := errors.Join(os.WriteFile(path, b, st.Mode().Perm()), os.Chtimes(path, st.ModTime(), st.ModTime())); err != nil {
		t.Fatal(err)
	}
}

// What was booted is read again: any file of its entry counts, and outside the cache what the file was when it was pinned.
func TestRecheck(t *testing.T) {
	t.Parallel()
	c := newCache(t)
	var builds atomic.Int32
	for _, key := range []string{"good", "bad", "gone"} {
		if _, err := c.entry(t.Context(), "test", key, sampleEntry(&builds)); err != nil {
			t.Fatal(err)
		}
	}
	flipBit(t, filepath.Join(c.dir, "test/bad/sub/file"))
	if err := os.RemoveAll(filepath.Join(c.dir, "test/gone")); err != nil {
		t.Fatal(err)
	}
	outside := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(outside, name)
		if err := os.WriteFile(path, []byte("content of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	same, changed, removed, unknown := file("same"), file("changed"), file("removed"), file("unknown")
	for _, path := range []string{same, changed, removed, outside, filepath.Join(c.dir, "test/good/sub")} {
		if err := c.Pin(path); err != nil {
			t.Fatal(err)
		}
	}
	flipBit(t, changed)
	if err := errors.Join(c.Pin(changed), os.Remove(removed)); err != nil { // the first time counts
		t.Fatal(err)
	}
	for path, way := range map[string]string{
		filepath.Join(c.dir, "test/good/sub/file"): "",
		filepath.Join(c.dir, "test/good"):          "",
		filepath.Join(c.dir, "test/bad/sub"):       "irqlab cache verify", // another file of the entry than what is asked about
		filepath.Join(c.dir, "test/gone/sub/file"): "",
		same:    "",
		unknown: "",
		outside: "",
		changed: "run it again",
		removed: "run it again",
	} {
		for range 2 { // the second answer is the first
			err := c.Recheck(t.Context(), path)
			var bad *ChangedError
			if way == "" && err != nil || way != "" && (!errors.As(err, &bad) || !strings.Contains(err.Error(), way) || !strings.HasPrefix(path, bad.Path)) {
				t.Errorf("%s: %v, want a way out by %q", path, err, way)
			}
		}
	}
	if _, err := c.entry(t.Context(), "test", "late", sampleEntry(&builds)); err != nil {
		t.Fatal(err)
	}
	if err := c.Recheck(t.Context(), filepath.Join(c.dir, "test/late")); err != nil {
		t.Fatal(err)
	}
	flipBit(t, filepath.Join(c.dir, "test/late/sub/file"))
	if err := c.Recheck(t.Context(), filepath.Join(c.dir, "test/late")); err != nil {
		t.Errorf("an entry is read once in the life of a process, and was read again: %v", err)
	}
}
