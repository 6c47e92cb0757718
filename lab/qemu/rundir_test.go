package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRunDirRoot(t *testing.T) {
	dir := t.TempDir()
	foreign := "/" // another user's
	if os.Geteuid() == 0 {
		foreign = filepath.Join(dir, "foreign")
		if err := errors.Join(os.Mkdir(foreign, 0o700), os.Chown(foreign, 12345, -1)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TMPDIR", "/some/tmp")
	for _, tt := range []struct{ xdg, want string }{
		{dir, filepath.Join(dir, "irqlab")},
		{"", "/some/tmp/irqlab-"},
		{"relative", "/some/tmp/irqlab-"},
		{filepath.Join(dir, "missing"), "/some/tmp/irqlab-"},
		{foreign, "/some/tmp/irqlab-"},
	} {
		t.Setenv("XDG_RUNTIME_DIR", tt.xdg)
		if got := RunDirRoot(); !strings.HasPrefix(got, tt.want) {
			t.Errorf("XDG_RUNTIME_DIR=%q: %s, want %s…", tt.xdg, got, tt.want)
		}
	}
}

func TestRunDirRefused(t *testing.T) {
	t.Parallel()
	root := testRoot(t)
	for _, name := range []string{"../up", "a/b", "-x", ".x", strings.Repeat("x", 41), "a b"} {
		if d, err := newRunDir(root, name); err == nil {
			_ = d.Close()
			t.Errorf("name %q was taken", name)
		}
	}
	open := filepath.Join(root, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := newRunDir(open, "x"); err == nil || !strings.Contains(err.Error(), "XDG_RUNTIME_DIR") {
		t.Errorf("a root that others can enter: %v", err)
	}
	link := filepath.Join(root, "link")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	if _, err := newRunDir(link, "x"); err == nil {
		t.Error("a root that is a link was taken")
	}
	deep := filepath.Join(root, strings.Repeat("d", 80))
	if _, err := newRunDir(deep, "x"); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("a path too long for sockets: %v", err)
	}
	if entries, _ := os.ReadDir(deep); len(entries) > 1 { // the lock
		t.Errorf("left behind: %v", entries)
	}
}

func TestListAndFind(t *testing.T) {
	t.Parallel()
	root := testRoot(t)
	if vms := list(root); len(vms) != 0 {
		t.Errorf("running: %v", vms)
	}
	open := func(name string) *RunDir {
		d, err := newRunDir(root, name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		return d
	}
	a, b1, b2, coming := open("a"), open("b"), open("b"), open("coming")
	for i, d := range []*RunDir{b2, a, b1} {
		if err := d.publish(100 + i); err != nil {
			t.Fatal(err)
		}
	}
	broken := open("broken")
	if err := os.WriteFile(filepath.Join(broken.Path, stateFile), []byte(`{"name":"../../etc"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	vms := list(root)
	if len(vms) != 3 || vms[0].Name != "a" || vms[0].PID != 101 || vms[0].SSHSocket != filepath.Join(a.Path, sshSocket) || vms[1].Name != "b" || vms[2].Name != "b" {
		t.Errorf("running: %+v", vms)
	}
	if r, err := find(vms, "a"); err != nil || r.Dir != a.Path {
		t.Errorf("a: %+v, %v", r, err)
	}
	if r, err := find(vms, filepath.Base(b1.Path)); err != nil || r.Dir != b1.Path {
		t.Errorf("by directory: %+v, %v", r, err)
	}
	var not *NotRunningError
	if _, err := find(vms, "b"); !errors.As(err, &not) || !not.Several || !strings.Contains(err.Error(), filepath.Base(b2.Path)) {
		t.Errorf("b: %v", err)
	}
	if _, err := find(vms, "coming"); !errors.As(err, &not) || not.Several || !strings.Contains(err.Error(), "a, b, b") {
		t.Errorf("%s: %v", coming.Name, err)
	}
	if _, err := find(nil, "a"); err == nil || !strings.Contains(err.Error(), "no VM is running") {
		t.Errorf("none: %v", err)
	}
	if err := a.Close(); err != nil || exists(a.Path) {
		t.Errorf("close: %v", err)
	}
	if vms := list(root); len(vms) != 2 {
		t.Errorf("running: %+v", vms)
	}
}

func TestKeptRunDirIsNotRunning(t *testing.T) {
	t.Parallel()
	root := testRoot(t)
	d, err := newRunDir(root, "kept")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.publish(1), d.Keep(), d.Close()); err != nil {
		t.Fatal(err)
	}
	if vms := list(root); len(vms) != 0 || !exists(d.Path) {
		t.Errorf("running: %+v; kept: %t", vms, exists(d.Path))
	}
}
