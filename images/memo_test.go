package images

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A remembered initramfs is found only while every part of it is the file it was, and it is there itself.
func TestInitramfsMemo(t *testing.T) {
	t.Parallel()
	c := testCache(t)
	ctx := t.Context()
	entry, err := c.entry(ctx, kernelKind, "k", func(_ context.Context, dir string) error {
		return os.MkdirAll(filepath.Join(dir, "lib/modules/7"), 0o700)
	})
	if err != nil {
		t.Fatal(err)
	}
	archive, err := c.entry(ctx, initramfsKind, "i", func(_ context.Context, dir string) error {
		return os.WriteFile(filepath.Join(dir, initramfsName), []byte("archive"), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := c.keys(ctx)
	if err != nil {
		t.Fatal(err)
	}
	k := Kernel{Release: "7", ModulesDir: filepath.Join(entry, "lib/modules/7")}
	made := Initramfs{Path: filepath.Join(archive, initramfsName), Modules: []string{"mana"}}
	parts := func() map[string]fileID {
		t.Helper()
		p, err := c.initramfsParts(ctx, k, keys)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	found := func() bool {
		path, m, ok := c.recallInitramfs(k, parts())
		if ok && (path != made.Path || len(m.Modules) != 1) {
			t.Errorf("recalled %s with %v", path, m.Modules)
		}
		return ok
	}

	c.rememberInitramfs(k, parts(), made)
	if found() {
		t.Error("parts written a moment ago were remembered")
	}
	for start := time.Now(); !found(); { // the youngest part is an entry just made
		if time.Since(start) > time.Minute {
			t.Fatal("never remembered")
		}
		time.Sleep(100 * time.Millisecond)
		c.rememberInitramfs(k, parts(), made)
	}
	manifest := filepath.Join(entry, manifestName)
	b, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(manifest); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(manifest, b, 0o600); err != nil { // the kernel was unpacked anew
		t.Fatal(err)
	}
	if found() {
		t.Error("another kernel entry went unnoticed")
	}
	for start := time.Now(); !found(); {
		if time.Since(start) > time.Minute {
			t.Fatal("never remembered")
		}
		time.Sleep(100 * time.Millisecond)
		c.rememberInitramfs(k, parts(), made)
	}
	if err := c.remove(ctx, initramfsKind, "i"); err != nil {
		t.Fatal(err)
	}
	if found() {
		t.Error("an archive that is gone was found")
	}
	if path := c.memoPath(Kernel{Release: "7", ModulesDir: "/usr/src/linux"}); path != "" {
		t.Errorf("a build tree, whose modules change unseen, would be remembered in %s", path)
	}
}
