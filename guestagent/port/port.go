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
	file  *os.File
	first []byte // read while waiting for the host, to be read again
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

// Wait returns once the host has sent something; when ctx ends before, the connection is closed. Nothing is sent meanwhile, for two
// reasons: bytes written while no host listens are lost, and a VM restored from a snapshot meets a host that never saw what was said before it.
func (c *Conn) Wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { c.file.Close() })
	defer stop()
	buf := make([]byte, 512)
	for {
		n, err := c.file.Read(buf)
		if n > 0 {
			c.first = buf[:n]
			return nil
		}
		if errors.Is(err, io.EOF) { // no host there
			err = waitHost(ctx, c.file)
		}
		if err != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return fmt.Errorf("%s: waiting for the host: %w", c.file.Name(), err)
		}
	}
}

// waitHost returns once a host is connected or has sent something. While none is, poll reports a hang-up without pause; only
// an edge-triggered wait sleeps until the state changes.
func waitHost(ctx context.Context, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(ep)
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET, Fd: int32(fd)})
	}); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	events := make([]unix.EpollEvent, 1)
	for {
		// The pause bounds how late a cancelled ctx is seen, and covers an edge lost to a snapshot.
		if _, err := unix.EpollWait(ep, events, 1000); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var state []unix.PollFd
		if err := raw.Control(func(fd uintptr) {
			state = []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			_, failed = unix.Poll(state, 0)
		}); err != nil {
			return err
		}
		if failed != nil && !errors.Is(failed, unix.EINTR) {
			return failed
		}
		if state[0].Revents&unix.POLLHUP == 0 || state[0].Revents&unix.POLLIN != 0 {
			return nil
		}
	}
}

func (c *Conn) Read(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	n, err := c.file.Read(p)
	if errors.Is(err, io.EOF) {
		// The host has gone. The kernel would hold what is written until the next one comes, who would take it for the beginning of its own conversation.
		_ = c.file.SetWriteDeadline(time.Unix(1, 0))
	}
	return n, err
}

func (c *Conn) Write(p []byte) (int, error) { return c.file.Write(p) }

// Close ends the connection from the guest's side.
func (c *Conn) Close() error { return c.file.Close() }

type addr string

func (addr) Network() string  { return "virtio-serial" }
func (a addr) String() string { return string(a) }

// LocalAddr is the port's device file.
func (c *Conn) LocalAddr() net.Addr { return addr(c.file.Name()) }

// RemoteAddr is the same: a port has one host.
func (c *Conn) RemoteAddr() net.Addr { return addr(c.file.Name()) }

// SetDeadline bounds pending and later reads and writes.
func (c *Conn) SetDeadline(t time.Time) error { return c.file.SetDeadline(t) }

// SetReadDeadline bounds reads.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.file.SetReadDeadline(t) }

// SetWriteDeadline bounds writes.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.file.SetWriteDeadline(t) }

var _ net.Conn = (*Conn)(nil)
