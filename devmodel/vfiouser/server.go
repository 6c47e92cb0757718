package vfiouser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"irqlab/devmodel/trace"
)

// Kinds of events about clients.
var (
	TraceConnect    = trace.NewKind("client-connect", "client")
	TraceDisconnect = trace.NewKind("client-disconnect", "client")
	// TraceRefuse: a client came while another was being served.
	TraceRefuse = trace.NewKind("client-refused")
	// TraceError is a request answered with an error, or that would have been had the client wanted a reply.
	TraceError = trace.NewKind("request-error", "command", "errno")
	// TracePanic: a Device panicked; the text has the stack. It is a defect of the Device.
	TracePanic = trace.NewKind("device-panic", "command")
)

// Device is what the server serves. Its methods are called from one goroutine per client, one client after the other, and must return well within a second.
type Device interface {
	// Region describes a region; the zero value is an absent one. It must not change while serving. Index is below NumRegions.
	Region(index uint32) RegionInfo
	// IRQs is the interrupts of an index below NumIRQs: nil for an index without any, false for an index to be refused. It must not change while serving.
	IRQs(index uint32) (*Interrupts, bool)
	// Memory is where the client's guest memory is mapped.
	Memory() *Memory
	// ReadRegion fills p from off. The range lies inside a readable region. An error is sent to the client as its errno, or EIO.
	ReadRegion(index uint32, off uint64, p []byte) error
	// WriteRegion stores p at off. The range lies inside a writable region; p is only valid during the call.
	WriteRegion(index uint32, off uint64, p []byte) error
	// Reset is the client's DEVICE_RESET.
	Reset()
	// ClientGone follows the end of a client, after its memory is unmapped and its eventfds are closed.
	ClientGone()
	// Trace is the timeline; may be nil.
	Trace() *trace.Recorder
}

// replyLimit is how long after a request arrived a reply may still be sent. QEMU waits five seconds and takes a later one for garbage, which ends the device.
const replyLimit = 3500 * time.Millisecond

// refuseAfter is how long a second client waits for the first to go.
const refuseAfter = time.Second

// Errors that end a connection.
var (
	// ErrLate: a reply was not ready in time; the connection was closed in its place.
	ErrLate = errors.New("request not answered in time: connection closed, since a late reply would be read as garbage")
	// ErrProtocol: the client sent what is no message, or what no server may be sent.
	ErrProtocol = errors.New("protocol violation")
)

// Serve accepts clients from l, one at a time, and serves dev to each until it leaves. A second client waits a second for the first to leave and is then refused
// with EBUSY. It returns when ctx ends or l fails; then it has closed l. The error is nil when ctx ended.
func Serve(ctx context.Context, l *net.UnixListener, dev Device) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	defer l.Close()

	clients := make(chan *net.UnixConn)
	failed := make(chan error, 1)
	go accept(ctx, l, clients, failed, dev.Trace())
	for {
		select {
		case conn := <-clients:
			// How a client ended is on the trace; it is no reason to stop serving.
			_ = ServeConn(ctx, conn, dev)
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("vfio-user: accept on %s: %w", l.Addr(), err)
		}
	}
}

// accept hands clients to the serving goroutine, or refuses them when it stays busy.
func accept(ctx context.Context, l *net.UnixListener, clients chan<- *net.UnixConn, failed chan<- error, rec *trace.Recorder) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() == nil && (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED)) {
				// The client waiting may be the one that closes what we lack; try again rather than die, since a dead server can take the VM along.
				select {
				case <-time.After(100 * time.Millisecond):
					continue
				case <-ctx.Done():
				}
			}
			failed <- err
			return
		}
		wait := time.NewTimer(refuseAfter)
		select {
		case clients <- conn:
		case <-wait.C:
			rec.Record(TraceRefuse)
			refuse(conn)
		case <-ctx.Done():
			_ = conn.Close()
		}
		wait.Stop()
	}
}

// refuse answers a client's first request with EBUSY, so that it fails at once and with a reason, and closes.
func refuse(conn *net.UnixConn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(refuseAfter))
	var b [headerSize]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return
	}
	var h Header
	h.decode(b[:])
	if h.Flags&(flagTypeMask|flagNoReply) != flagTypeCommand {
		return
	}
	h.Size, h.Flags, h.Errno = headerSize, flagTypeReply|flagError, uint32(unix.EBUSY)
	h.encode(b[:])
	_, _ = conn.Write(b[:])
	// Closing with unread bytes would reset the connection and could take the reply along.
	_, _ = io.CopyN(io.Discard, conn, maxMessage)
}

var clientCount atomic.Uint64

// ServeConn serves dev to one client until the client leaves (then the error is nil), ctx ends, or the client breaks the protocol. It closes conn, every
// descriptor received and every mapping made, and tells dev that the client is gone.
func ServeConn(ctx context.Context, conn *net.UnixConn, dev Device) error {
	return serveConn(ctx, conn, dev, replyLimit)
}

func serveConn(ctx context.Context, conn *net.UnixConn, dev Device, limit time.Duration) error {
	rec := dev.Trace()
	client := clientCount.Add(1)
	rec.Record(TraceConnect, client)
	s := &session{
		link: link{conn: conn, buf: make([]byte, initialBuffer)}, dev: dev, mem: dev.Memory(), rec: rec, out: make([]byte, initialBuffer), limit: limit,
	}

	stopClose := context.AfterFunc(ctx, func() { _ = conn.Close() })
	done := make(chan struct{})
	go s.watch(done)

	err := s.run()

	close(done)
	stopClose()
	_ = conn.Close()
	s.closeFDs()
	s.mem.Clear()
	for index := range uint32(NumIRQs) {
		if v, _ := dev.IRQs(index); v != nil {
			v.Release()
		}
	}
	s.guard(0, func() { dev.ClientGone() })
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case s.late.Load():
		err = ErrLate
	case errors.Is(err, io.EOF):
		err = nil
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	rec.Note(TraceDisconnect, text, client)
	if err != nil {
		return fmt.Errorf("vfio-user client: %w", err)
	}
	return nil
}

// session is one client.
type session struct {
	link
	dev        Device
	mem        *Memory
	rec        *trace.Recorder
	negotiated bool
	limit      time.Duration
	out        []byte // the reply being built: header, then body

	// turn counts up when a request is taken up and again when it is done with: odd while one is in hand.
	turn atomic.Uint64
	late atomic.Bool
}

// watch closes the connection when one request stays in hand for longer than the limit, be it in the device, in a body that does not come, or in a reply that is
// not read. It looks at a counter instead of arming a timer, so that it costs the requests nothing.
func (s *session) watch(done <-chan struct{}) {
	interval := s.limit / 14
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var seen uint64
	var since time.Time
	for {
		select {
		case <-done:
			return
		case now := <-tick.C:
			turn := s.turn.Load()
			if turn != seen || turn%2 == 0 {
				seen, since = turn, now
			} else if now.Sub(since) > s.limit-interval {
				s.late.Store(true)
				_ = s.conn.Close()
				return
			}
		}
	}
}

// run answers requests until the connection ends.
func (s *session) run() error {
	for {
		h, body, fds, err := s.next(&s.turn)
		if err != nil {
			return err
		}
		err = s.answer(h, body, fds)
		closeAll(fds)
		s.turn.Add(1)
		if err != nil {
			return err
		}
	}
}

// answer carries out one request and sends its one reply, if the client wants one.
func (s *session) answer(h Header, body []byte, fds []int) error {
	if h.Flags&flagTypeMask == flagTypeReply {
		return fmt.Errorf("%w: a reply (id %d, %v) to a request never sent", ErrProtocol, h.ID, h.Command)
	}
	n, err := s.dispatch(&h, body, fds)
	errno := errnoOf(err)
	if errno != 0 {
		s.rec.Record(TraceError, uint64(h.Command), uint64(errno))
	}
	if h.Flags&flagNoReply != 0 {
		return nil
	}
	if time.Since(s.arrived) > s.limit {
		s.late.Store(true)
		return ErrLate
	}
	h.Size, h.Flags, h.Errno = uint32(headerSize+n), flagTypeReply, 0
	if errno != 0 {
		n = 0
		h.Size, h.Flags, h.Errno = headerSize, flagTypeReply|flagError, uint32(errno)
	}
	h.encode(s.out)
	// One write: QEMU takes a header that arrives in pieces for a broken one.
	if _, err := s.conn.Write(s.out[:headerSize+n]); err != nil {
		return fmt.Errorf("send reply: %w", err)
	}
	return nil
}

// errnoOf is the positive error number to send for err.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && errno > 0 {
		return errno
	}
	return unix.EIO
}

// operation is one row of the table of commands.
type operation struct {
	name string
	// minBody is the least size of the body; maxFDs the most descriptors it may carry.
	minBody, maxFDs int
	// handle reads the body, leaves the reply's body in s.out after the header, and returns its size. It may take descriptors by setting their element to -1.
	handle func(s *session, body []byte, fds []int) (int, error)
}

// operations is indexed by Command. A row without handle is a command this server does not know.
var operations [CmdDeviceFeature + 1]operation

// The table is filled here and not where it is declared because Command.String, which handlers reach through errors, reads it.
func init() {
	operations = [...]operation{
		CmdVersion:          {"VERSION", versionSize, 0, (*session).version},
		CmdDMAMap:           {"DMA_MAP", dmaMapSize, 1, (*session).dmaMap},
		CmdDMAUnmap:         {"DMA_UNMAP", dmaUnmapSize, 0, (*session).dmaUnmap},
		CmdGetInfo:          {"DEVICE_GET_INFO", getInfoSize, 0, (*session).getInfo},
		CmdGetRegionInfo:    {"DEVICE_GET_REGION_INFO", regionInfoSize, 0, (*session).getRegionInfo},
		CmdGetRegionIOFDs:   {name: "DEVICE_GET_REGION_IO_FDS"},
		CmdGetIRQInfo:       {"DEVICE_GET_IRQ_INFO", irqInfoSize, 0, (*session).getIRQInfo},
		CmdSetIRQs:          {"DEVICE_SET_IRQS", setIRQsSize, MaxDescriptors, (*session).setIRQs},
		CmdRegionRead:       {"REGION_READ", regionAccessSize, 0, (*session).regionRead},
		CmdRegionWrite:      {"REGION_WRITE", regionAccessSize, 0, (*session).regionWrite},
		CmdDMARead:          {name: "DMA_READ"},
		CmdDMAWrite:         {name: "DMA_WRITE"},
		CmdReset:            {"DEVICE_RESET", 0, 0, (*session).reset},
		CmdRegionWriteMulti: {name: "REGION_WRITE_MULTI"},
		CmdDeviceFeature:    {name: "DEVICE_FEATURE"},
	}
}

// dispatch looks the request up and carries it out.
func (s *session) dispatch(h *Header, body []byte, fds []int) (n int, err error) {
	if h.Flags&^uint32(flagNoReply) != flagTypeCommand || s.truncated {
		s.noteLost(h, body)
		return 0, unix.EINVAL
	}
	if int(h.Command) >= len(operations) || operations[h.Command].handle == nil {
		return 0, unix.ENOSYS
	}
	op := &operations[h.Command]
	if len(body) < op.minBody || len(fds) > op.maxFDs || s.negotiated == (h.Command == CmdVersion) {
		return 0, unix.EINVAL
	}
	defer s.recoverPanic(h.Command, &err)
	return op.handle(s, body, fds)
}

// noteLost takes note of the vectors whose eventfds a message has lost: the client may go on as if it had them.
func (s *session) noteLost(h *Header, body []byte) {
	if !s.truncated || h.Command != CmdSetIRQs || len(body) < setIRQsSize {
		return
	}
	var m SetIRQs
	m.decode(body)
	s.rec.Record(TraceLost, uint64(m.Index), uint64(m.Start), uint64(m.Count))
	if m.Index >= NumIRQs {
		return
	}
	if v, _ := s.dev.IRQs(m.Index); v != nil {
		v.lost(m)
	}
}

// recoverPanic keeps the connection when the device panics: a dead socket makes QEMU abort at its next change of memory layout.
func (s *session) recoverPanic(c Command, err *error) {
	if r := recover(); r != nil {
		s.rec.Note(TracePanic, fmt.Sprintf("%v\n%s", r, debug.Stack()), uint64(c))
		*err = unix.EIO
	}
}

func (s *session) guard(c Command, f func()) {
	var err error
	defer s.recoverPanic(c, &err)
	f()
}

// versionReply stays below QEMU's limit of 194 bytes with its NUL. It leaves write_multiple out, so that a write is always one message.
var versionReply = []byte(fmt.Sprintf(`{"capabilities":{"max_msg_fds":%d,"max_data_xfer_size":%d}}`+"\x00", MaxDescriptors, MaxTransfer))

func (s *session) version(body []byte, _ []int) (int, error) {
	var v Version
	v.decode(body)
	text := body[versionSize:]
	var offered struct {
		Capabilities map[string]json.RawMessage `json:"capabilities"`
	}
	if v.Major != 0 || len(text) == 0 || text[len(text)-1] != 0 {
		return 0, unix.EINVAL
	}
	if err := json.Unmarshal(text[:len(text)-1], &offered); err != nil {
		return 0, unix.EINVAL
	}
	s.negotiated = true
	reply := versionReply
	if len(reply) > len(text) {
		// A client may have no room for more than it sent; all that is offered has defaults a client can live with.
		reply = []byte("{}\x00")
	}
	out := s.out[headerSize:]
	(&Version{Major: 0, Minor: 0}).encode(out)
	return versionSize + copy(out[versionSize:], reply), nil
}

func (s *session) dmaMap(body []byte, fds []int) (int, error) {
	var m DMAMap
	m.decode(body)
	fd := -1
	if len(fds) > 0 {
		fd = fds[0] // closed by run: the mapping needs no descriptor
	}
	return 0, s.mem.Map(m, fd)
}

func (s *session) dmaUnmap(body []byte, _ []int) (int, error) {
	var m DMAUnmap
	m.decode(body)
	if err := s.mem.Unmap(m); err != nil {
		return 0, err
	}
	m.encode(s.out[headerSize:])
	return dmaUnmapSize, nil
}

func (s *session) getInfo(body []byte, _ []int) (int, error) {
	var m DeviceInfo
	m.decode(body)
	if m.ArgSize < getInfoSize {
		return 0, unix.EINVAL
	}
	m = DeviceInfo{ArgSize: getInfoSize, Flags: DeviceReset | DevicePCI, Regions: NumRegions, IRQs: NumIRQs}
	m.encode(s.out[headerSize:])
	return getInfoSize, nil
}

func (s *session) getRegionInfo(body []byte, _ []int) (int, error) {
	var m RegionInfo
	m.decode(body)
	if m.ArgSize < regionInfoSize || m.Index >= NumRegions {
		return 0, unix.EINVAL
	}
	r := s.dev.Region(m.Index)
	m = RegionInfo{ArgSize: regionInfoSize, Flags: r.Flags & (RegionRead | RegionWrite), Index: m.Index, Size: r.Size}
	m.encode(s.out[headerSize:])
	return regionInfoSize, nil
}

func (s *session) getIRQInfo(body []byte, _ []int) (int, error) {
	var m IRQInfo
	m.decode(body)
	if m.ArgSize < irqInfoSize || m.Index >= NumIRQs {
		return 0, unix.EINVAL
	}
	v, ok := s.dev.IRQs(m.Index)
	if !ok {
		return 0, unix.EINVAL
	}
	m = IRQInfo{ArgSize: irqInfoSize, Index: m.Index}
	if v != nil {
		m.Flags, m.Count = irqEventfd, uint32(v.Len())
	}
	m.encode(s.out[headerSize:])
	return irqInfoSize, nil
}

// noInterrupts stands for an index without any: only disabling it makes sense, and does nothing.
var noInterrupts = NewInterrupts(0, nil)

func (s *session) setIRQs(body []byte, fds []int) (int, error) {
	var m SetIRQs
	m.decode(body)
	s.rec.Record(TraceSetIRQs, uint64(m.Index), uint64(m.Flags), uint64(m.Start), uint64(m.Count), uint64(len(fds)))
	if m.Index >= NumIRQs {
		return 0, unix.EINVAL
	}
	v, ok := s.dev.IRQs(m.Index)
	if !ok {
		return 0, unix.EINVAL
	}
	if v == nil {
		v = noInterrupts
	}
	return 0, v.Set(m, body[setIRQsSize:], fds)
}

// region checks that an access lies inside a region that allows it.
func (s *session) region(a *RegionAccess, need uint32) error {
	if a.Region >= NumRegions {
		return unix.EINVAL
	}
	r := s.dev.Region(a.Region)
	if r.Flags&need == 0 || a.Offset > r.Size || uint64(a.Count) > r.Size-a.Offset {
		return unix.EINVAL
	}
	return nil
}

func (s *session) regionRead(body []byte, _ []int) (int, error) {
	var a RegionAccess
	a.decode(body)
	if a.Count > MaxTransfer {
		return 0, unix.E2BIG
	}
	if err := s.region(&a, RegionRead); err != nil {
		return 0, err
	}
	n := regionAccessSize + int(a.Count)
	if need := headerSize + n; need > len(s.out) {
		s.out = make([]byte, need)
	}
	out := s.out[headerSize : headerSize+n]
	a.encode(out)
	if err := s.dev.ReadRegion(a.Region, a.Offset, out[regionAccessSize:]); err != nil {
		return 0, err
	}
	return n, nil
}

func (s *session) regionWrite(body []byte, _ []int) (int, error) {
	var a RegionAccess
	a.decode(body)
	data := body[regionAccessSize:]
	if a.Count > MaxTransfer {
		return 0, unix.E2BIG
	}
	if uint64(a.Count) != uint64(len(data)) {
		return 0, unix.EINVAL
	}
	if err := s.region(&a, RegionWrite); err != nil {
		return 0, err
	}
	if err := s.dev.WriteRegion(a.Region, a.Offset, data); err != nil {
		return 0, err
	}
	a.encode(s.out[headerSize:])
	return regionAccessSize, nil
}

func (s *session) reset([]byte, []int) (int, error) {
	s.dev.Reset()
	return 0, nil
}
