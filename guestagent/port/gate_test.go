package port

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"

	"irqlab/guestagent/kfile"
)

// plugged is a tree with one port of a virtio device, which a terminal's other end stands for.
func plugged(t *testing.T) (root kfile.Root, plug func() (host *os.File)) {
	t.Helper()
	root = kfile.Root(t.TempDir())
	for name, text := range map[string]string{class + "/vport3p1/name": "irqlab.agent\n", driver + "/unbind": "", driver + "/bind": ""} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(root.Path(name)), 0o755), os.WriteFile(root.Path(name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("../../../virtio7", root.Path(class, "vport3p1/device")), os.Mkdir(root.Path("dev"), 0o755)); err != nil {
		t.Fatal(err)
	}
	return root, func() *os.File {
		master, slave, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { master.Close(); slave.Close() })
		if _, err := term.MakeRaw(int(slave.Fd())); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(root.Path("dev/vport3p1"))
		if err := os.Symlink(slave.Name(), root.Path("dev/vport3p1")); err != nil {
			t.Fatal(err)
		}
		return master
	}
}

// A conversation goes on over a port that was let go meanwhile: what is read and written then waits, and goes by the port that is there afterwards.
func TestGate(t *testing.T) {
	root, plug := plugged(t)
	before := plug()
	gate := NewGate(root)
	conn, err := gate.Open("irqlab.agent")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := before.WriteString("a"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := io.ReadFull(conn, b); err != nil || b[0] != 'a' {
		t.Fatalf("%q, %v", b, err)
	}
	read, wrote := make(chan string, 1), make(chan error, 1)
	go func() {
		b := make([]byte, 1)
		_, err := io.ReadFull(conn, b)
		read <- string(b) + errText(err)
	}()
	var after *os.File
	err = gate.Without(t.Context(), func() error {
		if got, _ := root.String(driver, "unbind"); got != "virtio7" {
			t.Errorf("unbound was %q", got)
		}
		before.Close() // the port's end, for the reader
		go func() {
			_, err := conn.Write([]byte("w"))
			wrote <- err
		}()
		select {
		case got := <-read:
			t.Errorf("read %s while the port was away", got)
		case err := <-wrote:
			t.Errorf("written while the port was away: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		after = plug()
		rename := func(name string) {
			if err := os.WriteFile(root.Path(class, "vport3p1/name"), []byte(name), 0o644); err != nil {
				t.Error(err)
			}
		}
		rename("(null)\n") // it is there before the host has told its name
		time.AfterFunc(20*time.Millisecond, func() { rename("irqlab.agent\n") })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := root.String(driver, "bind"); got != "virtio7" {
		t.Errorf("bound was %q", got)
	}
	if _, err := after.WriteString("b"); err != nil {
		t.Fatal(err)
	}
	if got := <-read; got != "b" {
		t.Errorf("read %s", got)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(after, b); err != nil || b[0] != 'w' {
		t.Errorf("the host has %q, %v", b, err)
	}
}

// One who waits for a host, and one who opens a port, wait for the port as well; a port that is closed is not opened again.
func TestGateWaits(t *testing.T) {
	root, plug := plugged(t)
	before := plug()
	gate := NewGate(root)
	conn, err := gate.Open("irqlab.agent")
	if err != nil {
		t.Fatal(err)
	}
	waited, opened := make(chan error, 1), make(chan error, 1)
	go func() { waited <- conn.Wait(t.Context()) }()
	var after *os.File
	err = gate.Without(t.Context(), func() error {
		before.Close()
		go func() {
			c, err := gate.Open("irqlab.agent")
			if err == nil {
				err = c.Close()
			}
			opened <- err
		}()
		select {
		case err := <-opened:
			t.Errorf("opened while the port was away: %v", err)
		case err := <-waited:
			t.Errorf("waited for while the port was away: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		after = plug()
		return errors.New("no sleep")
	})
	if err == nil || !strings.Contains(err.Error(), "no sleep") {
		t.Errorf("the function's own error: %v", err)
	}
	if err := <-opened; err != nil {
		t.Error(err)
	}
	if _, err := after.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	conn.Close()
	if err := gate.Without(t.Context(), func() error { plug(); return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 2)); err == nil {
		if _, err = conn.Read(make([]byte, 2)); err == nil { // what woke the wait was still to be read
			t.Error("read from a closed connection")
		}
	}
	if conn.renewed(conn.current()) {
		t.Error("a closed connection was opened again")
	}
}

func TestGateWithoutPorts(t *testing.T) {
	called := false
	if err := NewGate(kfile.Root(t.TempDir())).Without(t.Context(), func() error { called = true; return nil }); err == nil || called {
		t.Errorf("%v, called %t", err, called)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}
