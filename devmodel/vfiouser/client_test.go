package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"irqlab/devmodel/trace"
)

// board is the least Device: region 0 is 64 bytes of memory, region 7 a megabyte that can only be read, and MSI-X has 20 vectors.
type board struct {
	rec  *trace.Recorder
	mem  *Memory
	irqs *Interrupts
	hook func(off uint64) // called by every access to region 0

	mu           sync.Mutex
	ram          [64]byte
	resets, gone int
}

func newBoard() *board {
	rec := trace.New(4096)
	return &board{rec: rec, mem: NewMemory(rec), irqs: NewInterrupts(20, rec)}
}

func (b *board) Region(index uint32) RegionInfo {
	switch index {
	case 0:
		return RegionInfo{Flags: RegionRead | RegionWrite, Size: 64}
	case RegionConfig:
		return RegionInfo{Flags: RegionRead, Size: MaxTransfer}
	}
	return RegionInfo{}
}

func (b *board) IRQs(index uint32) (*Interrupts, bool) {
	if index == IRQMSIX {
		return b.irqs, true
	}
	return nil, index != IRQErr
}

func (b *board) Memory() *Memory        { return b.mem }
func (b *board) Trace() *trace.Recorder { return b.rec }

func (b *board) ReadRegion(index uint32, off uint64, p []byte) error {
	if b.hook != nil {
		b.hook(off)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(p)
	if index == 0 {
		copy(p, b.ram[off:])
	}
	return nil
}

func (b *board) WriteRegion(_ uint32, off uint64, p []byte) error {
	if b.hook != nil {
		b.hook(off)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	copy(b.ram[off:], p)
	if off == 63 {
		return unix.ENXIO
	}
	return nil
}

func (b *board) Reset()      { b.mu.Lock(); b.resets++; b.mu.Unlock() }
func (b *board) ClientGone() { b.mu.Lock(); b.gone++; b.mu.Unlock() }

// client is the other end of the socket.
type client struct {
	t      testing.TB
	conn   *net.UnixConn
	id     uint16
	result chan error // what serving it returned
}

const testTimeout = 30 * time.Second

// socketPair is two connected sockets.
func socketPair(t testing.TB, kind int) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

// connect serves dev to a client that has not negotiated yet.
func connect(t testing.TB, dev Device, kind int, limit time.Duration) *client {
	t.Helper()
	ours, theirs := socketPair(t, kind)
	c := &client{t: t, conn: ours, id: 100, result: make(chan error, 1)}
	_ = ours.SetDeadline(time.Now().Add(testTimeout))
	go func() { c.result <- serveConn(context.Background(), theirs, dev, limit) }()
	t.Cleanup(func() { _ = ours.Close() })
	return c
}

const qemuVersion = `{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576,"pgsizes":4096,"max_dma_maps":65535,` +
	`"migration":{"pgsize":4096,"max_bitmap_size":268435456},"write_multiple":true}}` + "\x00"

// newClient serves dev to a client that has negotiated.
func newClient(t testing.TB, dev Device) *client {
	t.Helper()
	c := connect(t, dev, unix.SOCK_STREAM, replyLimit)
	c.ok(CmdVersion, append(encoded(&Version{}, versionSize), qemuVersion...))
	return c
}

func encoded(m message, size int) []byte {
	b := make([]byte, size)
	m.encode(b)
	return b
}

// send sends one message in one piece, with descriptors.
func (c *client) send(cmd Command, flags uint32, body []byte, fds ...int) (id uint16) {
	c.t.Helper()
	c.id++
	b := make([]byte, headerSize, headerSize+len(body))
	(&Header{ID: c.id, Command: cmd, Size: uint32(headerSize + len(body)), Flags: flags}).encode(b)
	c.raw(append(b, body...), fds...)
	return c.id
}

func (c *client) raw(b []byte, fds ...int) {
	c.t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := c.conn.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = c.conn.Write(b[n:])
	}
	if err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// receive returns one message.
func (c *client) receive() (Header, []byte) {
	c.t.Helper()
	h, body, err := c.tryReceive()
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	return h, body
}

func (c *client) tryReceive() (h Header, body []byte, err error) {
	b := make([]byte, headerSize)
	if err := readFull(c.conn, b); err != nil {
		return h, nil, err
	}
	h.decode(b)
	if h.Size < headerSize || h.Size > maxMessage {
		return h, nil, fmt.Errorf("a reply of %d bytes", h.Size)
	}
	body = make([]byte, h.Size-headerSize)
	return h, body, readFull(c.conn, body)
}

func readFull(conn net.Conn, b []byte) error {
	for len(b) > 0 {
		n, err := conn.Read(b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// call sends a request and returns its reply, whose form it checks.
func (c *client) call(cmd Command, body []byte, fds ...int) (unix.Errno, []byte) {
	c.t.Helper()
	id := c.send(cmd, 0, body, fds...)
	h, reply := c.receive()
	if h.ID != id || h.Command != cmd {
		c.t.Fatalf("%v: the reply is to id %d, %v; sent id %d", cmd, h.ID, h.Command, id)
	}
	switch {
	case h.Flags == 0x01 && h.Errno == 0:
	case h.Flags == 0x21 && h.Size == headerSize && int32(h.Errno) > 0:
	default:
		c.t.Fatalf("%v: malformed reply %+v", cmd, h)
	}
	return unix.Errno(h.Errno), reply
}

func (c *client) ok(cmd Command, body []byte, fds ...int) []byte {
	c.t.Helper()
	errno, reply := c.call(cmd, body, fds...)
	if errno != 0 {
		c.t.Fatalf("%v: %v", cmd, errno)
	}
	return reply
}

func (c *client) fails(want unix.Errno, cmd Command, body []byte, fds ...int) {
	c.t.Helper()
	if errno, _ := c.call(cmd, body, fds...); errno != want {
		c.t.Errorf("%v: errno %d (%v), want %v", cmd, uint32(errno), errno, want)
	}
}

// leave closes the client's end and returns what serving it returned.
func (c *client) leave() error {
	c.t.Helper()
	_ = c.conn.Close()
	return c.ended()
}

// ended waits until the server is done with the client.
func (c *client) ended() error {
	c.t.Helper()
	select {
	case err := <-c.result:
		return err
	case <-time.After(testTimeout):
		c.t.Fatal("the server does not let go of the client")
		return nil
	}
}

// memfd is a file of size bytes whose page n is filled with byte n+1.
func memfd(t testing.TB, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	for off := int64(0); off < size && off < 1<<20; off += dmaPage {
		page := []byte(strings.Repeat(string(rune(off/dmaPage%100+1)), dmaPage))
		if _, err := unix.Pwrite(fd, page, off); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

func eventfd(t testing.TB, flags int) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// counter takes an eventfd's count and leaves 0.
func counter(t testing.TB, fd int) uint64 {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 0); err != nil || n == 0 {
		return 0
	}
	var b [8]byte
	if _, err := unix.Read(fd, b[:]); err != nil {
		if errors.Is(err, unix.EAGAIN) {
			return 0
		}
		t.Fatal(err)
	}
	return le.Uint64(b[:])
}

// openFDs counts this process's descriptors.
func openFDs(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
