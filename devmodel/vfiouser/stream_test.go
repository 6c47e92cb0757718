package vfiouser

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stream is messages one after the other, for seeds.
func stream(messages ...[]byte) []byte {
	var out []byte
	for i, m := range messages {
		cmd, body := Command(m[0]), m[1:]
		out = append(out, encoded(&Header{ID: uint16(i), Command: cmd, Size: uint32(headerSize + len(body))}, headerSize)...)
		out = append(out, body...)
	}
	return out
}

func msg(c Command, body []byte) []byte { return append([]byte{byte(c)}, body...) }

// FuzzServer sends any bytes, in pieces, with descriptors on some of them, to a whole server. It must end when the client does, answer nothing but well-formed
// replies, panic in no handler, and keep no descriptor and no mapping.
func FuzzServer(f *testing.F) {
	hello := msg(CmdVersion, append(encoded(&Version{}, versionSize), qemuVersion...))
	f.Add(stream(hello), uint16(0), false)
	f.Add(stream(hello, msg(CmdGetInfo, encoded(&DeviceInfo{ArgSize: 16}, getInfoSize)), msg(CmdReset, nil)), uint16(7), true)
	f.Add(stream(hello, msg(CmdSetIRQs, irqBody(assign, 2, 0, 1)), msg(CmdSetIRQs, irqBody(trigger, 2, 0, 1))), uint16(300), true)
	f.Add(stream(hello, msg(CmdDMAMap, mapBody(0, dmaPage, 0, 3)), msg(CmdDMAUnmap, unmapBody(0, 1<<40, 0))), uint16(226), true)
	f.Add(stream(hello, msg(CmdRegionWrite, access(0, 0, 4, 1, 2, 3, 4)), msg(CmdRegionRead, access(7, 0, 4096))), uint16(40), false)
	f.Add(encoded(&Header{Size: 1 << 31, Flags: 0xffffffff}, headerSize), uint16(1), true)
	f.Fuzz(func(t *testing.T, data []byte, piece uint16, withFDs bool) {
		if len(data) > 1<<16 {
			return
		}
		var pieces []piecePart
		for i := 0; len(data) > 0; i++ {
			n := len(data)
			if piece > 0 {
				n = min(n, int(piece))
			}
			p := piecePart{bytes: data[:n]}
			if withFDs {
				p.fds = i%3 + 1
			}
			pieces, data = append(pieces, p), data[n:]
		}
		fuzzSession(t, pieces)
	})
}

// FuzzMessages sends well-framed messages of any content, after the version, so that every operation's own checks are reached. Each message is four bytes (command,
// flags, descriptors, length of the body) and its body.
func FuzzMessages(f *testing.F) {
	add := func(messages ...[]byte) {
		var out []byte
		for _, m := range messages {
			out = append(out, m[0], 0, m[1], byte(len(m)-2))
			out = append(out, m[2:]...)
		}
		f.Add(out)
	}
	m := func(c Command, fds byte, body []byte) []byte { return append([]byte{byte(c), fds}, body...) }
	add(m(CmdSetIRQs, 1, irqBody(assign, 2, 3, 1)), m(CmdSetIRQs, 0, irqBody(trigger, 2, 0, 20)), m(CmdSetIRQs, 0, irqBody(trigger, 2, 0, 0)))
	add(m(CmdSetIRQs, 0, irqBody(assign, 2, 0, 1)), m(CmdSetIRQs, 0, irqBody(IRQDataBool|IRQActionMask, 2, 0, 2, 1, 1)))
	add(m(CmdDMAMap, 2, mapBody(0, dmaPage, 0, 3)), m(CmdDMAMap, 0, mapBody(1<<32, 1<<32, 0, 1)), m(CmdDMAUnmap, 0, unmapBody(0, dmaPage, 0)), m(CmdDMAUnmap, 0, unmapBody(0, 0, 2)))
	add(m(CmdRegionWrite, 0, access(0, 4, 4, 1, 2, 3, 4)), m(CmdRegionRead, 0, access(0, 0, 64)), m(CmdRegionRead, 0, access(7, 0, MaxTransfer)), m(CmdReset, 0, nil))
	add(m(CmdGetInfo, 0, encoded(&DeviceInfo{ArgSize: 16}, getInfoSize)), m(CmdGetRegionInfo, 0, encoded(&RegionInfo{ArgSize: 32, Index: 4}, regionInfoSize)),
		m(CmdGetIRQInfo, 0, encoded(&IRQInfo{ArgSize: 16, Index: 2}, irqInfoSize)), m(CmdDeviceFeature, 3, make([]byte, 16)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<12 {
			return
		}
		pieces := []piecePart{{bytes: stream(msg(CmdVersion, append(encoded(&Version{}, versionSize), qemuVersion...)))}}
		for id := uint16(1); len(data) >= 4; id++ {
			h := Header{ID: id, Command: Command(data[0]), Flags: uint32(data[1])}
			fds := int(data[2] % 4)
			body := data[4:min(len(data), 4+int(data[3]))]
			data = data[4+len(body):]
			h.Size = uint32(headerSize + len(body))
			pieces = append(pieces, piecePart{append(encoded(&h, headerSize), body...), fds})
		}
		fuzzSession(t, pieces)
	})
}

// piecePart is bytes sent at once; fds says which descriptors go along: none, an eventfd, a file, or both.
type piecePart struct {
	bytes []byte
	fds   int
}

// fuzzSession runs a whole server against a client that sends pieces and then no more.
func fuzzSession(t *testing.T, pieces []piecePart) {
	event, file := eventfd(t, unix.EFD_NONBLOCK), memfd(t, dmaPage)
	choices := [][]int{nil, {event}, {file}, {event, event, file}}
	before := openFDs(t)
	b := newBoard()
	ours, theirs := socketPair(t, unix.SOCK_STREAM)
	defer ours.Close()
	done := make(chan error, 1)
	go func() { done <- serveConn(context.Background(), theirs, b, time.Minute) }()
	go func() {
		defer func() { _ = ours.CloseWrite() }()
		for _, p := range pieces {
			var oob []byte
			if p.fds > 0 {
				oob = unix.UnixRights(choices[p.fds]...)
			}
			n, _, err := ours.WriteMsgUnix(p.bytes, oob, nil)
			if err == nil && n < len(p.bytes) {
				_, err = ours.Write(p.bytes[n:])
			}
			if err != nil {
				return
			}
		}
	}()
	_ = ours.SetDeadline(time.Now().Add(20 * time.Second))
	c := &client{t: t, conn: ours}
	for {
		h, _, err := c.tryReceive()
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			break
		}
		if err != nil {
			t.Fatalf("receive: %v", err)
		}
		if (h.Flags != 1 || h.Errno != 0) && (h.Flags != 0x21 || h.Errno == 0 || h.Size != headerSize) {
			t.Fatalf("malformed reply %+v", h)
		}
	}
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("the server does not end")
	}
	_ = ours.Close()
	if n := b.mem.Len(); n != 0 {
		t.Fatalf("%d ranges stay mapped", n)
	}
	events, _ := b.rec.Events()
	for _, e := range events {
		if e.Kind == TracePanic {
			t.Fatal(e.Text)
		}
	}
	if after := openFDs(t); after != before {
		t.Fatalf("%d descriptors before, %d after", before, after)
	}
}

// pinger sends one request and reads its reply, again and again, without allocating.
type pinger struct {
	conn           *net.UnixConn
	request, reply []byte
}

func (p *pinger) ping() error {
	if _, err := p.conn.Write(p.request); err != nil {
		return err
	}
	return readFull(p.conn, p.reply)
}

// registerReader is a pinger that reads a 4-byte register of a served device.
func registerReader(t testing.TB, dev Device) *pinger {
	c := newClient(t, dev)
	_ = c.conn.SetDeadline(time.Time{})
	request := append(encoded(&Header{ID: 1, Command: CmdRegionRead, Size: 32}, headerSize), access(0, 0, 4)...)
	return &pinger{conn: c.conn, request: request, reply: make([]byte, 36)}
}

// echoer is a pinger whose bytes come back as they are.
func echoer(t testing.TB) *pinger {
	ours, theirs := socketPair(t, unix.SOCK_STREAM)
	go func() {
		buf := make([]byte, initialBuffer)
		for {
			n, err := theirs.Read(buf)
			if err != nil {
				_ = theirs.Close()
				return
			}
			if _, err := theirs.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { _ = ours.Close() })
	return &pinger{conn: ours, request: make([]byte, 36), reply: make([]byte, 36)}
}

// TestNoAllocations: in the steady state neither reads nor writes of a register, posted or not, allocate, in the server or in this client. It is not parallel.
func TestNoAllocations(t *testing.T) {
	b := newBoard()
	read := registerReader(t, b)
	write := &pinger{conn: read.conn, reply: make([]byte, 32),
		request: append(encoded(&Header{ID: 2, Command: CmdRegionWrite, Size: 36}, headerSize), access(0, 0, 4, 1, 2, 3, 4)...)}
	posted := append(encoded(&Header{ID: 3, Command: CmdRegionWrite, Size: 36, Flags: flagNoReply}, headerSize), access(0, 0, 4, 1, 2, 3, 4)...)
	for name, do := range map[string]func() error{
		"read":  read.ping,
		"write": write.ping,
		"posted write, then read": func() error {
			if _, err := read.conn.Write(posted); err != nil {
				return err
			}
			return read.ping()
		},
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
		var err error
		// An average below one in ten messages is the runtime's own doing.
		if n := testing.AllocsPerRun(1000, func() { err = errors.Join(err, do()) }); n > 0.1 || err != nil {
			t.Errorf("%s: %v allocations per message, %v", name, n, err)
		}
	}
}

func benchmark(b *testing.B, p *pinger) {
	b.ReportAllocs()
	for b.Loop() {
		if err := p.ping(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEcho is the floor: a bare echo over the same kind of socket, with the same client.
func BenchmarkEcho(b *testing.B) { benchmark(b, echoer(b)) }

// BenchmarkRegisterRead is a register read, and how many echoes it takes: the ratio is measured in turns of a hundred, so that both see the same machine.
func BenchmarkRegisterRead(b *testing.B) {
	read, echo := registerReader(b, newBoard()), echoer(b)
	turn := func(p *pinger, n int) time.Duration {
		start := time.Now()
		for range n {
			if err := p.ping(); err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(start)
	}
	var reads, echoes time.Duration
	b.ReportAllocs()
	for left := b.N; left > 0; left -= 100 {
		n := min(left, 100)
		reads += turn(read, n)
		b.StopTimer()
		echoes += turn(echo, n)
		b.StartTimer()
	}
	b.ReportMetric(float64(reads)/float64(echoes), "echoes")
}
