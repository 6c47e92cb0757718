// Package devmodel serves a PCI function to QEMU on a vfio-user socket.
//
// It ties the protocol (vfiouser) to a function (pcifn) and a path in the file system, and knows neither what the function does nor who runs QEMU.
//
//	fn, err := pcifn.New(pcifn.DefaultConfig(), behaviour)
//	dev, err := devmodel.Listen("/run/user/1000/fn.sock", fn)
//	defer dev.Close()
//	err = dev.Serve(ctx)
//
// QEMU attaches it with -device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"/run/user/1000/fn.sock"}}'. Guest memory must be a memory-backend-memfd
// with share=on; with share=off the function reads and writes a private copy, and nothing says so.
package devmodel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"irqlab/devmodel/pcifn"
	"irqlab/devmodel/vfiouser"
)

// MaxSocketPath is the longest path, in bytes, that a unix socket address holds.
const MaxSocketPath = len(unix.RawSockaddrUnix{}.Path) - 1

// Device is a function that listens.
type Device struct {
	path     string
	listener *net.UnixListener
	fn       *pcifn.Function

	mu      sync.Mutex
	cancel  context.CancelFunc // of the Serve that runs
	stopped chan struct{}      // closed when it has returned
	closed  bool
}

// ErrInUse says that something listens on the socket path already, or the device is being served already.
var ErrInUse = errors.New("in use")

// Listen makes the socket, readable and writable by its owner only, and listens; a client that connects now waits for Serve. The folder must exist. A socket left
// behind by a process that is gone is replaced; anything else at the path is an error.
func Listen(socketPath string, fn *pcifn.Function) (*Device, error) {
	wrap := func(err error) error { return fmt.Errorf("device socket %s: %w", socketPath, err) }
	switch {
	case fn == nil:
		return nil, wrap(errors.New("no function to serve"))
	case socketPath == "" || strings.HasPrefix(socketPath, "@") || strings.ContainsRune(socketPath, 0):
		return nil, wrap(errors.New("want the path of a file"))
	case len(socketPath) > MaxSocketPath:
		return nil, wrap(fmt.Errorf("the path has %d bytes and a unix socket address holds %d: choose a shorter folder", len(socketPath), MaxSocketPath))
	}
	dir := filepath.Dir(socketPath)
	if st, err := os.Stat(dir); err != nil {
		return nil, wrap(fmt.Errorf("folder: %w", err))
	} else if !st.IsDir() {
		return nil, wrap(fmt.Errorf("%s is not a folder", dir))
	}
	if err := removeStale(socketPath); err != nil {
		return nil, wrap(err)
	}
	// The mode is set on the descriptor before the bind gives it a name, so that there is no moment in which others may connect.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var mode error
		if err := c.Control(func(fd uintptr) { mode = unix.Fchmod(int(fd), 0o600) }); err != nil {
			return err
		}
		return mode
	}}
	l, err := lc.Listen(context.Background(), "unix", socketPath)
	if err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			err = fmt.Errorf("%w: %w", ErrInUse, err)
		}
		return nil, wrap(err)
	}
	if err := os.Chmod(socketPath, 0o600); err != nil {
		_ = l.Close()
		return nil, wrap(err)
	}
	return &Device{path: socketPath, listener: l.(*net.UnixListener), fn: fn}, nil
}

// removeStale removes a socket that nobody listens on.
func removeStale(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.Mode().Type() != fs.ModeSocket:
		return errors.New("something that is not a socket is there: remove it or choose another path")
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("%w: another process listens there", ErrInUse)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// Path is the socket's path.
func (d *Device) Path() string { return d.path }

// Function is what is served.
func (d *Device) Function() *pcifn.Function { return d.fn }

// Serve answers clients, one at a time, until ctx ends or Close is called; the error is nil then. It can be called once.
func (d *Device) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	if d.stopped != nil {
		d.mu.Unlock()
		return fmt.Errorf("device socket %s: %w: it has been served before", d.path, ErrInUse)
	}
	d.cancel, d.stopped = cancel, make(chan struct{})
	d.mu.Unlock()
	defer close(d.stopped)
	return vfiouser.Serve(ctx, d.listener, d.fn)
}

// Close ends Serve, waits until it has let go of the client's memory and descriptors, and removes the socket. It may be called more than once.
func (d *Device) Close() error {
	d.mu.Lock()
	first := !d.closed
	d.closed = true
	cancel, stopped := d.cancel, d.stopped
	d.mu.Unlock()
	if cancel != nil {
		cancel() // closes the listener too
		<-stopped
	}
	if err := d.listener.Close(); first && err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("device socket %s: %w", d.path, err)
	}
	return nil
}
