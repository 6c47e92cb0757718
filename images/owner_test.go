package images

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Nothing from a cache that somebody else could have filled is run, whoever it is, and least of all by root.
func TestForeignCache(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make what belongs to somebody else")
	}
	const nobody = 65534
	mkdir := func(t *testing.T, path string, mode os.FileMode, uid int) {
		t.Helper()
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		make func(t *testing.T, home string) // of home/cache
		want []string                        // in the error; none: it opens
	}{
		"new":                       {func(*testing.T, string) {}, nil},
		"one's own":                 {func(t *testing.T, home string) { mkdir(t, home+"/cache", 0o700, 0) }, nil},
		"one's own, readable":       {func(t *testing.T, home string) { mkdir(t, home+"/cache/qemu", 0o755, 0) }, nil},
		"empty, writable for all":   {func(t *testing.T, home string) { mkdir(t, home+"/cache", 0o777, 0) }, nil},
		"parent sticky, as /tmp is": {func(t *testing.T, home string) { mkdir(t, home, 0o777|os.ModeSticky, 0) }, nil},
		"another's":                 {func(t *testing.T, home string) { mkdir(t, home+"/cache", 0o700, nobody) }, []string{"it belongs to nobody", "run as root", "IRQLAB_CACHE"}},
		"filled, writable for all": {func(t *testing.T, home string) {
			mkdir(t, home+"/cache/qemu", 0o700, 0)
			mkdir(t, home+"/cache", 0o777, 0)
		}, []string{"mode 0777", "IRQLAB_CACHE"}},
		"filled, writable for a group": {func(t *testing.T, home string) {
			mkdir(t, home+"/cache/qemu", 0o700, 0)
			mkdir(t, home+"/cache", 0o770, 0)
		}, []string{"mode 0770", "IRQLAB_CACHE"}},
		"another's kind of entries":     {func(t *testing.T, home string) { mkdir(t, home+"/cache/kernel", 0o700, nobody) }, []string{"kernel: it belongs to nobody", "IRQLAB_CACHE"}},
		"another's state":               {func(t *testing.T, home string) { mkdir(t, home+"/cache/state", 0o700, nobody) }, []string{"state: it belongs to nobody"}},
		"in another's home":             {func(t *testing.T, home string) { mkdir(t, home, 0o755, nobody) }, []string{"it belongs to nobody", "IRQLAB_CACHE"}},
		"in a directory of everybody's": {func(t *testing.T, home string) { mkdir(t, home, 0o777, 0) }, []string{"anybody can write to it", "IRQLAB_CACHE"}},
		"a link into another's home": {func(t *testing.T, home string) {
			mkdir(t, home+"/other/cache", 0o700, 0)
			mkdir(t, home+"/other", 0o755, nobody)
			if err := os.Symlink(home+"/other/cache", home+"/cache"); err != nil {
				t.Fatal(err)
			}
		}, []string{"it belongs to nobody"}},
	} {
		t.Run(name, func(t *testing.T) {
			home := filepath.Join(t.TempDir(), "home")
			mkdir(t, home, 0o700, 0)
			tc.make(t, home)
			_, err := OpenCache(home + "/cache")
			if tc.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v; want %q", err, want)
				}
			}
			if strings.HasPrefix(name, "another's") {
				if _, err := os.Stat(home + "/cache/tmp"); err == nil {
					t.Error("something was put into a cache that was refused")
				}
			}
		})
	}

	// An entry of one's own cache that somebody else made, or a file in it, is made anew, whatever it is: a QEMU, a library, a kernel, an initramfs.
	for _, foreign := range []string{".", "sub/file", "link"} {
		c := testCache(t)
		builds := 0
		build := func() string {
			dir, err := c.entry(context.Background(), "qemu", "x", func(_ context.Context, dir string) error {
				builds++
				mkdir(t, filepath.Join(dir, "sub"), 0o700, 0)
				if err := os.Symlink("sub/file", filepath.Join(dir, "link")); err != nil {
					return err
				}
				return os.WriteFile(filepath.Join(dir, "sub/file"), []byte("x"), 0o700)
			})
			if err != nil {
				t.Fatal(err)
			}
			return dir
		}
		dir := build()
		if build(); builds != 1 {
			t.Fatalf("built %d times", builds)
		}
		if err := os.Lchown(filepath.Join(dir, foreign), nobody, nobody); err != nil {
			t.Fatal(err)
		}
		if c.has("qemu", "x") {
			t.Errorf("%s is somebody else's, and is used", foreign)
		}
		if build(); builds != 2 {
			t.Errorf("%s is somebody else's, and was not made anew", foreign)
		}
	}
}
