package port

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"irqlab/guestagent/kfile"
)

func TestFind(t *testing.T) {
	root := t.TempDir()
	for dev, name := range map[string]string{"vport0p1": "irqlab.agent\n", "vport1p1": "irqlab.ssh\n"} {
		d := filepath.Join(root, class, dev)
		if err := errors.Join(os.MkdirAll(d, 0o755), os.WriteFile(filepath.Join(d, "name"), []byte(name), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, class, "vport2p0"), 0o755); err != nil { // a port without a name
		t.Fatal(err)
	}
	if got, err := Find(kfile.Root(root), "irqlab.ssh"); err != nil || got != filepath.Join(root, "dev/vport1p1") {
		t.Errorf("%q, %v", got, err)
	}
	for _, r := range []string{root, t.TempDir()} {
		if _, err := Find(kfile.Root(r), "nothing"); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
}

// pair opens a terminal in raw mode: like a port, a device file that is polled and whose other end can go away.
func pair(t *testing.T) (host *os.File, guest *Conn) {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close(); slave.Close() })
	if _, err := term.MakeRaw(int(slave.Fd())); err != nil {
		t.Fatal(err)
	}
	c, err := Open(slave.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return master, c
}

func TestConn(t *testing.T) {
	host, guest := pair(t)
	if _, err := host.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	if err := guest.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	// What woke Wait is still to be read, in pieces as small as the reader likes.
	b := make([]byte, 3)
	if _, err := io.ReadFull(guest, b); err != nil || string(b) != "hel" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := io.ReadFull(guest, b[:2]); err != nil || string(b[:2]) != "lo" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := guest.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(host, b); err != nil || string(b) != "abc" {
		t.Errorf("%q, %v", b, err)
	}
	if err := guest.SetDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := guest.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after the deadline: %v", err)
	}
	if guest.LocalAddr().Network() != "virtio-serial" || guest.RemoteAddr().String() == "" {
		t.Error("no address")
	}
}

// TestHostLeaves makes sure that nothing written to a host that has gone is kept for the next.
func TestHostLeaves(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	guest := &Conn{file: os.NewFile(uintptr(fds[0]), "port")}
	defer guest.Close()
	defer unix.Close(fds[1])
	written := make(chan error, 1)
	go func() {
		_, err := guest.Write(make([]byte, 16<<20)) // more than is taken unread
		written <- err
	}()
	if err := unix.Shutdown(fds[1], unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	if n, err := guest.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read %d, %v", n, err)
	}
	select {
	case err := <-written:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the pending write: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the pending write still waits")
	}
	if _, err := guest.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a later write: %v", err)
	}
}

// A port whose host has gone is ready to be read without pause; waiting for the next host must not be busy.
func TestAbsentHostIsNoChange(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	guest := os.NewFile(uintptr(fds[0]), "port")
	defer guest.Close()
	defer unix.Close(fds[1])
	if err := unix.Shutdown(fds[1], unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	e, err := watch(guest)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.next(t.Context()); err != nil { // what it is
		t.Fatal(err)
	}
	if n, err := guest.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("read %d, %v", n, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), edgePause/4)
	defer cancel()
	if err := e.next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no change, and next returns %v", err)
	}
}

func TestWaitCancelled(t *testing.T) {
	_, guest := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- guest.Wait(ctx) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
