package images

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A named pipe or a socket in the place of any file that a kernel is taken from is refused, and not waited for.
func TestNotRegular(t *testing.T) {
	t.Parallel()
	c := testCache(t)
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree", "arch", "x86", "boot")
	if err := os.MkdirAll(tree, 0o700); err != nil {
		t.Fatal(err)
	}
	image, deb, socket := filepath.Join(dir, "bzImage"), filepath.Join(dir, "x.deb"), filepath.Join(dir, "s.deb")
	for _, pipe := range []string{image, deb, filepath.Join(tree, "bzImage")} {
		if err := syscall.Mkfifo(pipe, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	within := func(what string, f func() error) {
		t.Helper()
		answer := make(chan error, 1)
		go func() { answer <- f() }()
		select {
		case err := <-answer:
			if err == nil || !strings.Contains(err.Error(), errNotRegular.Error()) {
				t.Errorf("%s: %v; want %q", what, err, errNotRegular)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("%s: no answer", what)
		}
	}
	for _, spec := range []string{image, deb, socket, deb + "," + deb, filepath.Join(dir, "tree")} {
		within(spec, func() error { _, err := c.Kernel(t.Context(), spec, nil); return err })
	}
	for _, name := range []string{"modules.builtin", "modules.dep", "modules.order"} {
		modules := filepath.Join(dir, "with-"+name)
		if err := os.Mkdir(modules, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(filepath.Join(modules, name), 0o600); err != nil {
			t.Fatal(err)
		}
		within(name, func() error { _, err := openModules(t.Context(), modules); return err })
	}
	within("a module", func() error { _, err := readModule(image); return err })
}
