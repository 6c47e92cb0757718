package vfiouser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	full := "0000" + "0000" // 0.0
	for _, c := range []struct {
		name    string
		version Version
		json    string
		errno   unix.Errno
		want    string
	}{
		{"QEMU", Version{}, qemuVersion, 0, `{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576}}` + "\x00"},
		{"newer minor", Version{Minor: 7}, qemuVersion, 0, `{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576}}` + "\x00"},
		{"no room for more", Version{}, "{}\x00", 0, "{}\x00"},
		{"major 1", Version{Major: 1}, qemuVersion, unix.EINVAL, ""},
		{"no JSON", Version{}, "", unix.EINVAL, ""},
		{"only NUL", Version{}, "\x00", unix.EINVAL, ""},
		{"no NUL", Version{}, "{}", unix.EINVAL, ""},
		{"not an object", Version{}, "[1]\x00", unix.EINVAL, ""},
		{"capabilities of another type", Version{}, `{"capabilities":3}` + "\x00", unix.EINVAL, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cl := connect(t, newBoard(), unix.SOCK_STREAM, replyLimit)
			errno, reply := cl.call(CmdVersion, append(encoded(&c.version, versionSize), c.json...))
			if errno != c.errno {
				t.Fatalf("errno %v, want %v", errno, c.errno)
			}
			if errno != 0 {
				cl.fails(unix.EINVAL, CmdGetInfo, encoded(&DeviceInfo{ArgSize: 16}, getInfoSize)) // still not negotiated
				return
			}
			if got := fmt.Sprintf("%x", reply[:4]); got != full {
				t.Errorf("version %s, want 0.0", got)
			}
			if got := string(reply[4:]); got != c.want || len(got) > 194 || len(got) > len(c.json) {
				t.Errorf("JSON %q of %d bytes, want %q", got, len(got), c.want)
			}
			cl.fails(unix.EINVAL, CmdVersion, append(encoded(&Version{}, versionSize), c.json...)) // once is enough
		})
	}
}

func TestInfo(t *testing.T) {
	t.Parallel()
	c := newClient(t, newBoard())
	if got := fmt.Sprintf("%x", c.ok(CmdGetInfo, encoded(&DeviceInfo{ArgSize: 16}, getInfoSize))); got != "10000000030000000900000005000000" {
		t.Errorf("GET_INFO reply %s", got)
	}
	c.fails(unix.EINVAL, CmdGetInfo, encoded(&DeviceInfo{ArgSize: 15}, getInfoSize))

	for index := range uint32(NumRegions) {
		reply := c.ok(CmdGetRegionInfo, encoded(&RegionInfo{ArgSize: 32, Index: index}, regionInfoSize))
		var got RegionInfo
		got.decode(reply)
		want := RegionInfo{ArgSize: 32, Index: index}
		switch index {
		case 0:
			want.Flags, want.Size = 3, 64
		case 7:
			want.Flags, want.Size = 1, MaxTransfer
		}
		if len(reply) != regionInfoSize || got != want {
			t.Errorf("region %d: %+v in %d bytes, want %+v", index, got, len(reply), want)
		}
	}
	c.fails(unix.EINVAL, CmdGetRegionInfo, encoded(&RegionInfo{ArgSize: 32, Index: 9}, regionInfoSize))
	c.fails(unix.EINVAL, CmdGetRegionInfo, encoded(&RegionInfo{ArgSize: 31}, regionInfoSize))
	c.fails(unix.EINVAL, CmdGetRegionInfo, encoded(&RegionInfo{ArgSize: 32}, regionInfoSize)[:31])

	for index, want := range map[uint32]string{
		0: "10000000000000000000000000000000", 1: "10000000000000000100000000000000", 2: "10000000010000000200000014000000", 4: "10000000000000000400000000000000",
	} {
		if got := fmt.Sprintf("%x", c.ok(CmdGetIRQInfo, encoded(&IRQInfo{ArgSize: 16, Index: index}, irqInfoSize))); got != want {
			t.Errorf("IRQ %d: %s, want %s", index, got, want)
		}
	}
	for _, index := range []uint32{3, 5, 1 << 31} {
		c.fails(unix.EINVAL, CmdGetIRQInfo, encoded(&IRQInfo{ArgSize: 16, Index: index}, irqInfoSize))
	}
	c.fails(unix.EINVAL, CmdGetIRQInfo, encoded(&IRQInfo{ArgSize: 12, Index: 2}, irqInfoSize))
}

func access(region uint32, off uint64, count uint32, data ...byte) []byte {
	return append(encoded(&RegionAccess{Offset: off, Region: region, Count: count}, regionAccessSize), data...)
}

func TestRegionAccess(t *testing.T) {
	t.Parallel()
	b := newBoard()
	c := newClient(t, b)
	write := access(0, 4, 4, 1, 2, 3, 4)
	if reply := c.ok(CmdRegionWrite, write); !bytes.Equal(reply, write[:16]) {
		t.Errorf("write reply %x, want the request's %x", reply, write[:16])
	}
	if reply := c.ok(CmdRegionRead, access(0, 2, 4)); !bytes.Equal(reply, access(0, 2, 4, 0, 0, 1, 2)) {
		t.Errorf("read reply %x", reply)
	}
	// A posted write, then a read: in order, and only one reply.
	c.send(CmdRegionWrite, flagNoReply, access(0, 8, 1, 9))
	if reply := c.ok(CmdRegionRead, access(0, 8, 1)); reply[16] != 9 {
		t.Errorf("the read after a posted write gives %d", reply[16])
	}
	// The largest transfer, whole.
	if reply := c.ok(CmdRegionRead, access(7, 0, MaxTransfer)); len(reply) != regionAccessSize+MaxTransfer {
		t.Errorf("read %d bytes", len(reply)-regionAccessSize)
	}
	if reply := c.ok(CmdRegionRead, access(0, 64, 0)); len(reply) != regionAccessSize {
		t.Errorf("an empty read gives %d bytes", len(reply))
	}
	for _, bad := range []struct {
		errno unix.Errno
		cmd   Command
		body  []byte
	}{
		{unix.EINVAL, CmdRegionRead, access(0, 61, 4)},
		{unix.EINVAL, CmdRegionRead, access(0, 1<<64-2, 4)},
		{unix.EINVAL, CmdRegionRead, access(1, 0, 4)},
		{unix.EINVAL, CmdRegionRead, access(9, 0, 4)},
		{unix.E2BIG, CmdRegionRead, access(7, 0, MaxTransfer+1)},
		{unix.E2BIG, CmdRegionRead, access(7, 0, 1<<32-1)},
		{unix.EINVAL, CmdRegionRead, access(0, 0, 4)[:15]},
		{unix.EINVAL, CmdRegionWrite, access(7, 0, 1, 1)},
		{unix.EINVAL, CmdRegionWrite, access(0, 0, 4, 1, 2, 3)},
		{unix.EINVAL, CmdRegionWrite, access(0, 0, 2, 1, 2, 3)},
		{unix.E2BIG, CmdRegionWrite, access(0, 0, 1<<32-1)},
		{unix.ENXIO, CmdRegionWrite, access(0, 63, 1, 0)}, // the device's own errno
	} {
		c.fails(bad.errno, bad.cmd, bad.body)
	}
	// The largest request there can be is read whole and answered; the region is too small for it.
	c.fails(unix.EINVAL, CmdRegionWrite, access(0, 0, MaxTransfer, make([]byte, MaxTransfer)...))
	c.ok(CmdReset, nil)
	if b.resets != 1 {
		t.Errorf("%d resets", b.resets)
	}
	if err := c.leave(); err != nil {
		t.Errorf("an orderly end gives %v", err)
	}
	if b.gone != 1 {
		t.Errorf("the device was told %d times", b.gone)
	}
}

// TestUnknownCommands has every command that a client may not send, known to the protocol or not.
func TestUnknownCommands(t *testing.T) {
	t.Parallel()
	c := newClient(t, newBoard())
	for _, cmd := range []Command{0, CmdGetRegionIOFDs, CmdDMARead, CmdDMAWrite, 14, CmdRegionWriteMulti, CmdDeviceFeature, 17, 18, 19, 0xffff} {
		c.fails(unix.ENOSYS, cmd, make([]byte, 64))
		c.fails(unix.ENOSYS, cmd, nil)
	}
	// Flags of no meaning in a request.
	id := c.send(CmdReset, flagError, nil)
	if h, _ := c.receive(); h.ID != id || h.Errno != uint32(unix.EINVAL) {
		t.Errorf("a request with the error flag: %+v", h)
	}
}

// TestNoReply sends every command, good and bad, with NO_REPLY: the next reply must be that of the request after it.
func TestNoReply(t *testing.T) {
	t.Parallel()
	c := newClient(t, newBoard())
	fd := eventfd(t, unix.EFD_NONBLOCK)
	for cmd := range Command(20) {
		for _, size := range []int{0, 4, 16, 20, 24, 32, 100} {
			c.send(cmd, flagNoReply, make([]byte, size))
			c.send(cmd, flagNoReply|flagError, make([]byte, size))
			c.send(cmd, flagNoReply, make([]byte, size), fd)
			c.ok(CmdGetInfo, encoded(&DeviceInfo{ArgSize: 16}, getInfoSize))
		}
	}
}

// TestOneReplyOnePacket uses a packet socket, on which every write is seen apart: a reply must be one.
func TestOneReplyOnePacket(t *testing.T) {
	t.Parallel()
	c := connect(t, newBoard(), unix.SOCK_SEQPACKET, replyLimit)
	buf := make([]byte, 1<<16)
	for _, m := range []struct {
		cmd  Command
		body []byte
	}{
		{CmdVersion, append(encoded(&Version{}, versionSize), qemuVersion...)},
		{CmdRegionRead, access(7, 0, 4096)},
		{CmdRegionWrite, access(0, 0, 4, 1, 2, 3, 4)},
		{CmdGetRegionInfo, encoded(&RegionInfo{ArgSize: 32}, regionInfoSize)},
		{CmdGetRegionInfo, encoded(&RegionInfo{ArgSize: 32, Index: 99}, regionInfoSize)},
		{99, nil},
	} {
		c.send(m.cmd, 0, m.body)
		n, err := c.conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		var h Header
		h.decode(buf)
		if int(h.Size) != n {
			t.Errorf("%v: the first packet has %d of %d bytes", m.cmd, n, h.Size)
		}
	}
}

// TestBrokenStreams sends what is no message; the server must close and say why.
func TestBrokenStreams(t *testing.T) {
	t.Parallel()
	header := func(size, flags uint32) []byte {
		return encoded(&Header{ID: 1, Command: CmdReset, Size: size, Flags: flags}, headerSize)
	}
	for _, c := range []struct {
		name  string
		bytes []byte
	}{
		{"too small", header(15, 0)},
		{"size 0", header(0, 0)},
		{"too large", header(maxMessage+1, 0)},
		{"huge", header(1<<32-1, 0)},
		{"a reply", header(16, flagTypeReply)},
		{"a reply that wants no reply", header(16, flagTypeReply|flagNoReply)},
		{"half a header", header(16, 0)[:7]},
		{"half a body", append(header(64, 0), 1, 2, 3)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cl := newClient(t, newBoard())
			cl.raw(c.bytes, eventfd(t, 0))
			_ = cl.conn.CloseWrite()
			if h, _, err := cl.tryReceive(); err == nil {
				t.Errorf("answered %+v", h)
			}
			if err := cl.ended(); !errors.Is(err, ErrProtocol) {
				t.Errorf("serving ended with %v, want a protocol error", err)
			}
		})
	}
}

// TestPieces sends messages in every kind of piece, and descriptors with messages that are read together.
func TestPieces(t *testing.T) {
	t.Parallel()
	b := newBoard()
	c := newClient(t, b)
	msg := append(encoded(&Header{ID: 7, Command: CmdRegionRead, Size: 32}, headerSize), access(0, 0, 4)...)
	for i := range msg {
		c.raw(msg[i : i+1])
	}
	if h, body := c.receive(); h.ID != 7 || len(body) != 20 {
		t.Errorf("a message sent byte by byte: %+v, %d bytes", h, len(body))
	}
	c.raw(bytes.Repeat(msg, 100))
	for range 100 {
		c.receive()
	}

	// Three maps, each with its own file, and three that carry none, all sent before the first reply is read.
	for i := range 6 {
		fds := []int{}
		if i%2 == 0 {
			fd := memfd(t, 4*dmaPage)
			if _, err := unix.Pwrite(fd, []byte{byte(0x50 + i)}, 0); err != nil {
				t.Fatal(err)
			}
			fds = append(fds, fd)
		}
		c.send(CmdDMAMap, 0, encoded(&DMAMap{ArgSize: 32, Flags: 3, IOVA: uint64(i) << 20, Size: dmaPage}, dmaMapSize), fds...)
	}
	for range 6 {
		if h, _ := c.receive(); h.Flags != 1 {
			t.Errorf("map: %+v", h)
		}
	}
	b.mem.SetEnabled(true)
	for i := range 6 {
		p := []byte{0}
		err := b.mem.Read(uint64(i)<<20, p)
		if i%2 == 0 && (err != nil || p[0] != byte(0x50+i)) {
			t.Errorf("range %d: %#x, %v", i, p, err)
		}
		if i%2 == 1 && !errors.Is(err, ErrNoDescriptor) {
			t.Errorf("range %d: %v", i, err)
		}
	}

	// The descriptor comes with the header, the body later and in pieces; or with the body.
	for i, split := range []int{16, 20, 5} {
		m := append(encoded(&Header{ID: 9, Command: CmdDMAMap, Size: 48}, headerSize),
			encoded(&DMAMap{ArgSize: 32, Flags: 3, IOVA: uint64(i+8) << 20, Size: dmaPage}, dmaMapSize)...)
		c.raw(m[:split], memfd(t, dmaPage))
		c.raw(m[split:])
		if h, _ := c.receive(); h.Flags != 1 {
			t.Errorf("split at %d: %+v", split, h)
		}
		if err := b.mem.Read(uint64(i+8)<<20, []byte{0}); err != nil {
			t.Errorf("split at %d: %v", split, err)
		}
	}

	// More descriptors than a message may have: refused, and the stream goes on.
	var many []int
	for range MaxDescriptors + 4 {
		many = append(many, eventfd(t, 0))
	}
	c.fails(unix.EINVAL, CmdSetIRQs, encoded(&SetIRQs{ArgSize: 20, Flags: 0x24, Index: 2, Count: 20}, setIRQsSize), many...)
	c.fails(unix.EINVAL, CmdReset, nil, many[0])
	c.ok(CmdReset, nil)
}

// TestPanickingDevice keeps the connection: a dead socket would cost the VM.
func TestPanickingDevice(t *testing.T) {
	t.Parallel()
	b := newBoard()
	b.hook = func(off uint64) {
		if off == 13 {
			panic("unlucky")
		}
	}
	c := newClient(t, b)
	c.fails(unix.EIO, CmdRegionRead, access(0, 13, 1))
	c.ok(CmdRegionRead, access(0, 12, 1))
	events, _ := b.rec.Events()
	found := false
	for _, e := range events {
		found = found || e.Kind == TracePanic && strings.Contains(e.Text, "unlucky")
	}
	if !found {
		t.Error("the panic is not on the trace")
	}
}

// TestNeverLate has a device, and then a client, that take longer than the limit: the connection closes and nothing late is sent.
func TestNeverLate(t *testing.T) {
	t.Parallel()
	const limit = 100 * time.Millisecond
	start := func(t *testing.T, b *board) *client {
		c := connect(t, b, unix.SOCK_STREAM, limit)
		c.ok(CmdVersion, append(encoded(&Version{}, versionSize), qemuVersion...))
		return c
	}
	closed := func(t *testing.T, c *client) {
		t.Helper()
		if h, _, err := c.tryReceive(); err == nil {
			t.Errorf("answered late: %+v", h)
		} else if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("receive: %v", err)
		}
		if err := c.ended(); !errors.Is(err, ErrLate) {
			t.Errorf("serving ended with %v, want ErrLate", err)
		}
	}
	t.Run("stuck device", func(t *testing.T) {
		t.Parallel()
		b := newBoard()
		release := make(chan struct{})
		b.hook = func(uint64) { <-release }
		c := start(t, b)
		c.send(CmdRegionRead, 0, access(0, 0, 4))
		if _, _, err := c.tryReceive(); err == nil {
			t.Error("answered")
		}
		close(release)
		closed(t, c)
	})
	t.Run("slow device", func(t *testing.T) {
		t.Parallel()
		b := newBoard()
		b.hook = func(uint64) { time.Sleep(3 * limit) }
		c := start(t, b)
		c.send(CmdRegionRead, 0, access(0, 0, 4))
		closed(t, c)
	})
	t.Run("half a message", func(t *testing.T) {
		t.Parallel()
		c := start(t, newBoard())
		c.raw([]byte{1, 2, 3})
		closed(t, c)
	})
	t.Run("replies not read", func(t *testing.T) {
		t.Parallel()
		c := start(t, newBoard())
		for range 8 {
			c.send(CmdRegionRead, 0, access(7, 0, MaxTransfer))
		}
		if err := c.ended(); !errors.Is(err, ErrLate) {
			t.Errorf("serving ended with %v, want ErrLate", err)
		}
	})
}

// TestClients serves several on one socket: one after the other, and never two.
func TestClients(t *testing.T) {
	t.Parallel()
	b := newBoard()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, b) }()
	dial := func() *client {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(testTimeout))
		t.Cleanup(func() { _ = conn.Close() })
		return &client{t: t, conn: conn}
	}
	hello := append(encoded(&Version{}, versionSize), qemuVersion...)

	first := dial()
	first.ok(CmdVersion, hello)
	second := dial()
	second.fails(unix.EBUSY, CmdVersion, hello)
	if _, _, err := second.tryReceive(); err == nil {
		t.Error("the refused client's connection stays open")
	}
	first.ok(CmdReset, nil) // undisturbed

	// A client that comes just before the other leaves is served.
	third := dial()
	third.send(CmdVersion, 0, hello)
	_ = first.conn.Close()
	if h, _ := third.receive(); h.Flags != 1 {
		t.Errorf("the next client got %+v", h)
	}
	if b.gone != 1 {
		t.Errorf("the device was told of %d clients' ends", b.gone)
	}

	cancel()
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
	if _, _, err := third.tryReceive(); err == nil {
		t.Error("the connection outlives the server")
	}
}

// TestDescriptorLeaks counts this process's descriptors around clients that send some on every kind of message and leave in every kind of way. It is not parallel.
func TestDescriptorLeaks(t *testing.T) {
	event, file := eventfd(t, unix.EFD_NONBLOCK), memfd(t, 16*dmaPage)
	pipe := make([]int, 2)
	if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	b := newBoard()
	round := func() {
		c := newClient(t, b)
		for cmd := range Command(20) {
			for _, body := range [][]byte{
				nil, make([]byte, 64),
				encoded(&SetIRQs{ArgSize: 20, Flags: 0x24, Index: 2, Count: 2}, 64),
				encoded(&SetIRQs{ArgSize: 20, Flags: 0x24, Index: 2, Count: 1}, 64),
				encoded(&DMAMap{ArgSize: 32, Flags: 3, IOVA: 0x1000, Size: dmaPage}, dmaMapSize),
			} {
				c.call(cmd, body, event)
				c.call(cmd, body, event, event)
				c.call(cmd, body, file)
				c.call(cmd, body, pipe[1])
				c.send(cmd, flagNoReply, body, event, file, pipe[1])
			}
		}
		c.ok(CmdReset, nil)
		c.raw(encoded(&Header{ID: 1, Command: CmdSetIRQs, Size: 36}, headerSize), event, event) // and no body
		_ = c.leave()

		c = newClient(t, b)
		c.raw(encoded(&Header{Size: 3}, headerSize), event, file)
		_ = c.leave()
	}
	round() // the runtime opens descriptors of its own the first time
	before := openFDs(t)
	for range 5 {
		round()
	}
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	if b.mem.Len() != 0 {
		t.Errorf("%d ranges stay mapped", b.mem.Len())
	}
}
