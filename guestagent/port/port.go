// Package port finds virtio-serial ports by name and makes each a byte stream that follows the host's coming and going.
// It knows ports, not what is spoken over them.
package port

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/kfile"
)

const class = "sys/class/virtio-ports"

// Find returns the device file of the port with the given name; the error is fs.ErrNotExist where there is none.
func Find(r kfile.Root, name string) (string, error) {
	entries, err := os.ReadDir(r.Path(class))
	if err != nil {
		return "", fmt.Errorf("virtio-serial port %q: %w", name, err)
	}
	for _, e := range entries {
		if n, err := r.String(class, e.Name(), "name"); err == nil && n == name {
			return r.Path("dev", e.Name()), nil
		}
	}
	return "", fmt.Errorf("virtio-serial port %q: %w", name, os.ErrNotExist)
}

// Conn is one host connection on a port. It is a net.Conn so that SSH can run on it.
type Conn struct {
	first []byte // read while waiting for the host, to be read again

	gate *Gate // nil: the port is never let go
	port string

	mu     sync.Mutex
	file   *os.File
	times  int // that the port had been let go when file was opened
	closed bool
}

// Open opens the port; from then on the host's bytes are kept. A port can be open once: Close it and open it again for the next host.
// Closing also drops what the former host left unread.
func Open(path string) (*Conn, error) {
	// Non-blocking, so that the runtime's poller waits and deadlines work.
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return &Conn{file: f}, nil
}

func (c *Conn) current() *os.File {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.file
}

// renewed opens the port again if it has been let go since the file was opened, which then is of no more use, and waits for it before.
func (c *Conn) renewed(file *os.File) bool {
	if c.gate == nil {
		return false
	}
	times := c.gate.await()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return false
	case c.file != file: // another has done it
		return true
	case c.times == times:
		return false
	}
	c.file.Close() // before the port is opened again, which can be open once
	path, err := c.gate.Find(c.port)
	if err != nil {
		return false
	}
	fresh, err := Open(path)
	if err != nil {
		return false
	}
	c.file, c.times = fresh.file, times
	return true
}

// Wait returns once the host has sent something; when ctx ends before, the connection is closed. Nothing is sent meanwhile, for two
// reasons: bytes written while no host listens are lost, and a VM restored from a snapshot meets a host that never saw what was said before it.
func (c *Conn) Wait(ctx context.Context) error {
	if err := c.wait(ctx); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("%s: waiting for the host: %w", c.current().Name(), err)
	}
	return nil
}

func (c *Conn) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	var changes *edges
	defer func() {
		if changes != nil {
			changes.Close()
		}
	}()
	buf := make([]byte, 512)
	for {
		file := c.current()
		n, err := file.Read(buf)
		if n > 0 {
			c.first = buf[:n]
			return nil
		}
		if c.renewed(file) {
			if changes != nil {
				changes.Close()
			}
			changes = nil
			continue
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		if changes == nil { // no host there
			if changes, err = watch(file); err != nil {
				return err
			}
		}
		if err := changes.next(ctx); err != nil {
			return err
		}
	}
}

// edges tells of changes of a port's state. A port without a host is always ready to be read, for its end, and poll says so without pause; what is
// reported edge-triggered is reported once.
type edges struct{ set *os.File }

// watch begins to watch a port. Its state at the moment is the first change.
func watch(f *os.File) (*edges, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	// The runtime's poller watches the set in turn: a thread that slept in it would keep the runtime's one processor from the other port.
	if err := unix.SetNonblock(ep, true); err != nil {
		unix.Close(ep)
		return nil, err
	}
	e := &edges{os.NewFile(uintptr(ep), "epoll")}
	port, err := f.SyscallConn()
	if err == nil {
		var failed error
		err = port.Control(func(fd uintptr) {
			failed = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET})
		})
		err = errors.Join(err, failed)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// edgePause bounds how late a change is seen that a snapshot has swallowed.
const edgePause = time.Second

// next returns at the next change, at the end of ctx, or after a pause.
func (e *edges) next(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { e.set.Close() })
	defer stop()
	if err := e.set.SetReadDeadline(time.Now().Add(edgePause)); err != nil {
		return err
	}
	set, err := e.set.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = set.Read(func(fd uintptr) (done bool) {
		n, err := unix.EpollWait(int(fd), make([]unix.EpollEvent, 1), 0)
		failed = err
		return n != 0 // an error's is -1
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(failed, unix.EINTR):
		return nil
	}
	return errors.Join(err, failed)
}

func (e *edges) Close() error { return e.set.Close() }

func (c *Conn) Read(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	for {
		file := c.current()
		n, err := file.Read(p)
		if n == 0 && err != nil && c.renewed(file) {
			continue
		}
		if errors.Is(err, io.EOF) {
			// The host has gone. The kernel would hold what is written until the next one comes, who would take it for the beginning of its own conversation.
			_ = file.SetWriteDeadline(time.Unix(1, 0))
		}
		return n, err
	}
}

func (c *Conn) Write(p []byte) (int, error) {
	for c.gate != nil {
		c.gate.writing.RLock()
		file := c.current()
		if c.fresh() {
			defer c.gate.writing.RUnlock()
			return file.Write(p)
		}
		c.gate.writing.RUnlock() // the port has been let go
		if !c.renewed(file) {
			break
		}
	}
	return c.current().Write(p)
}

// fresh reports whether the port has not been let go since its file was opened.
func (c *Conn) fresh() bool {
	times := c.gate.gone()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.times == times || c.closed
}

// Close ends the connection from the guest's side.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.file.Close()
}

type addr string

func (addr) Network() string  { return "virtio-serial" }
func (a addr) String() string { return string(a) }

// LocalAddr is the port's device file.
func (c *Conn) LocalAddr() net.Addr { return addr(c.current().Name()) }

// RemoteAddr is the same: a port has one host.
func (c *Conn) RemoteAddr() net.Addr { return addr(c.current().Name()) }

// SetDeadline bounds pending and later reads and writes.
func (c *Conn) SetDeadline(t time.Time) error { return c.current().SetDeadline(t) }

// SetReadDeadline bounds reads.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.current().SetReadDeadline(t) }

// SetWriteDeadline bounds writes.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.current().SetWriteDeadline(t) }

var _ net.Conn = (*Conn)(nil)
