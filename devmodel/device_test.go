package devmodel_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"irqlab/devmodel"
	"irqlab/devmodel/pcifn"
)

func newFunction(t testing.TB) *pcifn.Function {
	t.Helper()
	fn, err := pcifn.New(pcifn.Config{}, newScratchpad(pcifn.DefaultBAR0Size))
	if err != nil {
		t.Fatal(err)
	}
	return fn
}

func TestListen(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	path := filepath.Join(dir, "fn.sock")
	dev, err := devmodel.Listen(path, newFunction(t))
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket is %v, %v", st.Mode(), err)
	}
	if _, err := devmodel.Listen(path, newFunction(t)); !errors.Is(err, devmodel.ErrInUse) {
		t.Errorf("a second device on the same path: %v", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- dev.Serve(ctx) }()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("serve: %v", err)
	}
	if err := dev.Serve(context.Background()); !errors.Is(err, devmodel.ErrInUse) {
		t.Errorf("served twice: %v", err)
	}
	for range 2 {
		if err := dev.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket stays behind: %v", err)
	}
	if err := dev.Serve(context.Background()); err != nil {
		t.Errorf("serve after close: %v", err)
	}

	// A socket whose process is gone is replaced.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	dev, err = devmodel.Listen(path, newFunction(t))
	if err != nil {
		t.Fatalf("over a stale socket: %v", err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

func TestListenRefuses(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, path, want string }{
		{"no path", "", "want the path of a file"},
		{"abstract", "@fn", "want the path of a file"},
		{"too long", filepath.Join(dir, strings.Repeat("x", 120)), "holds 107"},
		{"no folder", filepath.Join(dir, "none", "fn.sock"), "folder"},
		{"a file for a folder", filepath.Join(file, "fn.sock"), "not a "},
		{"a file in the way", file, "not a socket"},
		{"a folder in the way", dir, "not a socket"},
	} {
		_, err := devmodel.Listen(c.path, newFunction(t))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "device socket "+c.path) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("the file in the way now holds %q, %v", b, err)
	}
	if _, err := devmodel.Listen(filepath.Join(dir, "fn.sock"), nil); err == nil {
		t.Error("listened for no function")
	}
	// The longest path that fits works.
	long := filepath.Join(dir, strings.Repeat("y", devmodel.MaxSocketPath-len(dir)-1))
	dev, err := devmodel.Listen(long, newFunction(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = dev.Close()
}
