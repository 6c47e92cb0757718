package mana

import (
	"bytes"
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	"irqlab/devmodel/gdma"
	"irqlab/devmodel/gdma/gdmatest"
	"irqlab/devmodel/pcifn"
	"irqlab/devmodel/trace"
)

// registersOf reaches a function the way a guest does: through BAR 0.
type registersOf struct{ f *Function }

func (r registersOf) Doorbell(k gdma.DoorbellKind, v gdma.DoorbellValue) {
	var b [8]byte
	le.PutUint64(b[:], uint64(v))
	r.f.WriteBAR(doorbellOffset+k.Offset(), b[:])
}
func (r registersOf) ReadSMC(off int, p []byte)  { r.f.ReadBAR(uint64(smcOffset+off), p) }
func (r registersOf) WriteSMC(off int, p []byte) { r.f.WriteBAR(uint64(smcOffset+off), p) }

type lab struct {
	*gdmatest.Driver
	ctx   context.Context
	f     *Function
	ports []*guestPort
}

// guestPort is a vPort as its driver sees it.
type guestPort struct {
	handle     uint64
	offset     uint64
	eqs        []*gdmatest.Ring
	send, recv []*gdmatest.WQ
}

func newLab(t testing.TB, cfg Config, vectors int, rec *trace.Recorder) *lab {
	t.Helper()
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m := gdmatest.NewMemory(64<<20, vectors, rec)
	f.Attach(m)
	t.Cleanup(func() { _ = f.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return &lab{gdmatest.NewDriver(m, registersOf{f}), ctx, f, nil}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// dialect is how one family of kernels words its requests (sections 4.1 and 5.1).
type dialect struct {
	name                   string
	devConfig              uint16 // version
	devConfigSize          int
	createWQ, createWQResp int
	createWQVersion        uint16
	rxHeader, rxResp       int
	rxVersion              uint16
	scattered              bool
	eqsPerPort             bool
}

var dialects = []dialect{
	{"6.2", 1, 72, 88, 48, 1, 0x70, 32, 1, false, false},
	{"6.12", 2, 80, 88, 48, 1, 0x78, 32, 2, false, false},
	{"6.17", 3, 80, 88, 48, 1, 0x78, 32, 2, false, false},
	{"7.2", 3, 80, 88, 48, 1, 0x78, 40, 2, false, true},
	{"7.3", 3, 80, 96, 56, 3, 0x78, 40, 5, true, true},
}

func (l *lab) request(t testing.TB, code uint32, size, asked int, version uint16, body ...gdmatest.Num) []byte {
	t.Helper()
	r := must[[]byte](t)(l.OK(l.ctx, gdmatest.Request(code, gdma.DeviceMANA, size, asked, version, body...)))
	if len(r) != asked {
		t.Fatalf("request %#x: %d bytes, asked for %d", code, len(r), asked)
	}
	return r
}

// probe goes from nothing to a driver that knows its ports.
func (l *lab) probe(t testing.TB, d dialect, eqs int) {
	t.Helper()
	if err := l.Open(l.ctx); err != nil {
		t.Fatal(err)
	}
	if err := l.TestEQE(l.ctx, gdma.DeviceHWC, &l.EQ); err != nil {
		t.Fatal(err)
	}
	dev := gdmatest.Request(codeQueryDevConfig, gdma.DeviceMANA, 88, d.devConfigSize, d.devConfig, gdmatest.U32(0x50, 1))
	config := must[[]byte](t)(l.OK(l.ctx, dev)) // before registration, as 7.2 does
	if v := le.Uint16(config[8:]); v != d.devConfig || len(config) != d.devConfigSize {
		t.Fatalf("device configuration version %d in %d bytes", v, len(config))
	}
	l.request(t, gdma.CodeRegisterDevice, 40, 44, 1)
	l.ports = nil
	for i := range int(le.Uint16(config[0x40:])) {
		r := l.request(t, codeQueryVPort, 44, 64, 1, gdmatest.U32(0x28, uint64(i)))
		p := &guestPort{handle: le.Uint64(r[0x38:])}
		if r[0x30]&1 != 0 || bytes.Equal(r[0x30:0x36], make([]byte, 6)) {
			t.Fatalf("vPort %d has MAC % x", i, r[0x30:0x36])
		}
		l.ports = append(l.ports, p)
	}
	if !d.eqsPerPort {
		for v := range eqs {
			eq := l.newEQ(t, uint32(v+1), d.scattered)
			for _, p := range l.ports {
				p.eqs = append(p.eqs, eq)
			}
		}
	}
}

func (l *lab) newEQ(t testing.TB, vector uint32, scattered bool) *gdmatest.Ring {
	t.Helper()
	eq := must[*gdmatest.Ring](t)(l.NewEQ(l.ctx, 8192, vector, scattered))
	if err := l.TestEQE(l.ctx, gdma.DeviceMANA, eq); err != nil {
		t.Fatal(err)
	}
	return eq
}

// create makes a work queue object of port p on event queue eq.
func (l *lab) create(t testing.TB, d dialect, p *guestPort, kind uint64, eq *gdmatest.Ring) *gdmatest.WQ {
	t.Helper()
	q, wq, cq, err := l.NewQueue(l.ctx, 8192, 16384, d.scattered)
	if err != nil {
		t.Fatal(err)
	}
	r := l.request(t, codeCreateWQ, d.createWQ, d.createWQResp, d.createWQVersion, gdmatest.U64(0x28, p.handle), gdmatest.U32(0x30, kind), gdmatest.U64(0x38, wq),
		gdmatest.U64(0x40, cq), gdmatest.U32(0x48, 8192), gdmatest.U32(0x4c, 16384), gdmatest.U32(0x54, uint64(eq.ID)))
	q.ID, q.CQ.ID, q.Object = le.Uint32(r[0x20:]), le.Uint32(r[0x24:]), le.Uint64(r[0x28:])
	l.R.Doorbell(gdma.DoorbellCQ, gdma.ConsumerDoorbell(q.CQ.ID, q.CQ.Index(), true))
	return q
}

// up brings a port up with n queues on vectors from first.
func (l *lab) up(t testing.TB, d dialect, p *guestPort, n int, first uint32) {
	t.Helper()
	r := l.request(t, codeConfigTX, 56, 36, 1, gdmatest.U64(0x28, p.handle), gdmatest.U32(0x30, 1), gdmatest.U32(0x34, 1))
	p.offset = uint64(le.Uint16(r[0x20:]))
	if d.eqsPerPort {
		p.eqs = nil
		for i := range n {
			p.eqs = append(p.eqs, l.newEQ(t, first+uint32(i), d.scattered))
		}
	}
	for i := range n {
		p.send = append(p.send, l.create(t, d, p, objectSQ, p.eqs[i]))
	}
	for i := range n {
		q := l.create(t, d, p, objectRQ, p.eqs[i])
		for range 64 {
			q.Post(l.M, gdma.AppendWQE(nil, make([]byte, 8), []gdma.SGE{{Addr: 0x2000, Size: 1600}}, 0, 0))
		}
		l.R.Doorbell(gdma.DoorbellRQ, gdma.ProducerDoorbell(q.ID, q.Tail, 1))
		p.recv = append(p.recv, q)
	}
	l.steer(t, d, p, 1, true)
	l.fence(t, p)
}

func (l *lab) steer(t testing.TB, d dialect, p *guestPort, enable uint64, update bool) {
	t.Helper()
	const entries = 64
	req := gdmatest.Request(codeConfigRX, gdma.DeviceMANA, d.rxHeader+8*entries, d.rxResp, d.rxVersion, gdmatest.U64(0x28, p.handle), gdmatest.U16(0x30, entries),
		gdmatest.U16(0x32, uint64(d.rxHeader)), gdmatest.U32(0x34, enable), gdmatest.U32(0x38, 1), gdmatest.U64(0x40, p.recv[0].Object))
	if update {
		req[0x3c], req[0x3d], req[0x3e] = 1, 1, 1
		for i := range entries {
			le.PutUint64(req[d.rxHeader+8*i:], p.recv[i%len(p.recv)].Object)
		}
	}
	if r := must[[]byte](t)(l.OK(l.ctx, req)); len(r) != d.rxResp {
		t.Fatalf("CONFIG_VPORT_RX answered %d bytes", len(r))
	}
}

// fence fences every receive queue and expects the fence's completion on each.
func (l *lab) fence(t testing.TB, p *guestPort) {
	t.Helper()
	for _, q := range p.recv {
		l.request(t, codeFenceRQ, 48, 32, 1, gdmatest.U64(0x28, q.Object))
		c, ok, err := l.Completion(&q.CQ)
		if err != nil || !ok || c.Send || c.WQ != q.ID || c.Data[0] != 0x43 {
			t.Fatalf("fence completion % x of queue %d, %v, %v", c.Data[:4], c.WQ, ok, err)
		}
		l.R.Doorbell(gdma.DoorbellCQ, gdma.ConsumerDoorbell(q.CQ.ID, q.CQ.Index(), true))
	}
}

func (l *lab) down(t testing.TB, d dialect, p *guestPort) {
	t.Helper()
	l.steer(t, d, p, 0, false)
	l.fence(t, p)
	for _, q := range p.recv {
		l.request(t, codeDestroyWQ, 56, 32, 1, gdmatest.U32(0x28, objectRQ), gdmatest.U64(0x30, q.Object))
	}
	for _, q := range p.send {
		l.request(t, codeDestroyWQ, 56, 32, 1, gdmatest.U32(0x28, objectSQ), gdmatest.U64(0x30, q.Object))
	}
	if d.eqsPerPort {
		l.dropEQs(t, p.eqs)
		p.eqs = nil
	}
	p.send, p.recv = nil, nil
}

func (l *lab) dropEQs(t testing.TB, eqs []*gdmatest.Ring) {
	t.Helper()
	for _, eq := range eqs {
		if err := l.TestEQE(l.ctx, gdma.DeviceMANA, eq); err != nil {
			t.Fatal(err)
		}
		l.request(t, gdma.CodeDisableQueue, 52, 32, 1, gdmatest.U32(0x28, 4), gdmatest.U32(0x2c, uint64(eq.ID)), gdmatest.U32(0x30, 1))
		delete(l.EQs, eq.ID)
	}
}

func (l *lab) remove(t testing.TB, d dialect) {
	t.Helper()
	if !d.eqsPerPort {
		l.dropEQs(t, l.ports[0].eqs)
	}
	l.request(t, gdma.CodeDeregister, 40, 32, 1)
	if err := l.Close(l.ctx); err != nil {
		t.Fatal(err)
	}
}

// oob is a short OOB for queue q of port p.
func oob(q *gdmatest.WQ, p *guestPort) []byte {
	b := make([]byte, 8)
	le.PutUint32(b, q.CQ.ID<<8)
	le.PutUint32(b[4:], uint32(p.offset)<<24)
	return b
}

func (l *lab) transmit(q *gdmatest.WQ, wqe []byte) {
	q.Post(l.M, wqe)
	l.R.Doorbell(gdma.DoorbellSQ, gdma.ProducerDoorbell(q.ID, q.Tail, 0))
}

// completed waits for the next completion of q and returns its type.
func (l *lab) completed(t testing.TB, q *gdmatest.WQ) uint8 {
	t.Helper()
	for {
		c, ok, err := l.Completion(&q.CQ)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			l.R.Doorbell(gdma.DoorbellCQ, gdma.ConsumerDoorbell(q.CQ.ID, q.CQ.Index(), true))
			if !c.Send || c.WQ != q.ID || c.Data[0]>>6 != 1 {
				t.Fatalf("completion of queue %d, send %v, % x", c.WQ, c.Send, c.Data[:4])
			}
			return c.Data[0] & 0x3f
		}
		if err := l.Wait(l.ctx); err != nil {
			t.Fatal("transmit completion:", err)
		}
	}
}

// life is a driver's whole life on a function with eight queues for each vPort.
func (l *lab) life(t testing.TB, d dialect) {
	t.Helper()
	l.Driver = gdmatest.NewDriver(l.M, registersOf{l.f})
	l.probe(t, d, 8)
	for _, n := range []int{8, 1, 3} {
		for i, p := range l.ports {
			l.up(t, d, p, n, uint32(1+8*i))
			for k, q := range p.send {
				l.transmit(q, gdma.AppendWQE(nil, oob(q, p), []gdma.SGE{{Addr: 0x3000, Size: 60}, {Addr: 0x5000, Size: uint32(40 + k)}}, 0, 0))
				if typ := l.completed(t, q); typ != uint8(cqeTXOK) {
					t.Fatalf("completion type %d", typ)
				}
			}
		}
		for i, s := range l.f.Ports() {
			if !s.TX || !s.RX || s.SendQueues != n || s.ReceiveQueues != n {
				t.Fatalf("vPort %d with %d queues is %+v", i, n, s)
			}
		}
		for _, r := range l.f.Roles() {
			for _, q := range r.Queues {
				want := 1 + q.Queue
				if d.eqsPerPort {
					want += 8 * q.VPort
				}
				if r.Vector != want || r.HWC {
					t.Fatalf("queue %+v is on vector %d, want %d", q, r.Vector, want)
				}
			}
		}
		for _, p := range l.ports {
			l.down(t, d, p)
		}
	}
	l.remove(t, d)
	if u := l.f.Usage(); u != (gdma.Usage{}) {
		t.Fatalf("left in the device: %+v", u)
	}
}

// TestLifeCycle takes every dialect through probe, up, down, up, remove, several times, and expects nothing left.
func TestLifeCycle(t *testing.T) {
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, Config{VPorts: 2, Queues: 8}, 17, trace.New(0))
			for range 3 {
				mark := l.M.Mark()
				l.life(t, d)
				l.M.FreeTo(mark)
			}
			audits, _ := l.f.Audits(0)
			for _, a := range audits {
				if len(a.Leaks) > 0 {
					t.Errorf("%s: %v", a.Cause, a.Leaks)
				}
			}
			events, _ := l.M.Trace().Events()
			for _, e := range events {
				if k := e.Kind.Name(); k == "gdma-anomaly" || k == "doorbell-ignored" || k == "eq-full" {
					t.Errorf("%v", e)
				}
			}
		})
	}
}

func TestAuditNamesWhatIsLeft(t *testing.T) {
	d := dialects[3]
	l := newLab(t, Config{Queues: 2}, 3, nil)
	l.probe(t, d, 0)
	l.up(t, d, l.ports[0], 2, 1)
	if err := l.Close(l.ctx); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	audits, _ := l.f.Audits(0)
	for _, a := range audits {
		for _, k := range a.Leaks {
			kinds[k.Kind]++
		}
	}
	for k, want := range map[string]int{"eq": 2, "sq": 2, "rq": 2, "cq": 4, "registration": 1, "vport with receive enabled": 1} {
		if kinds[k] != want {
			t.Errorf("%s: %d left, want %d", k, kinds[k], want)
		}
	}
	if u := l.f.Usage(); u != (gdma.Usage{}) {
		t.Errorf("left in the device: %+v", u)
	}
}

func TestTransmitResults(t *testing.T) {
	d := dialects[4]
	l := newLab(t, Config{MTU: 1514}, 9, nil)
	l.probe(t, d, 0)
	p := l.ports[0]
	l.up(t, d, p, 1, 1)
	q := p.send[0]
	at := func(mac ...byte) uint64 {
		a := l.M.Alloc(4096)
		l.M.Write(a, mac)
		return a
	}
	uni, multi, broad := at(2, 0, 0, 0, 0, 9), at(0x33, 0x33, 0, 0, 0, 1), at(0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	sge := func(a uint64, n uint32) gdma.SGE { return gdma.SGE{Addr: a, Size: n} }
	with := func(b []byte, off int, v uint32) []byte {
		b = bytes.Clone(b)
		le.PutUint32(b[off:], v)
		return b
	}
	ok := oob(q, p)
	long := with(append(bytes.Clone(ok), make([]byte, 16)...), 0, q.CQ.ID<<8|1)
	for _, c := range []struct {
		name string
		wqe  []byte
		want cqeType
	}{
		{"unicast", gdma.AppendWQE(nil, ok, []gdma.SGE{sge(uni, 1514)}, 0, 0), cqeTXOK},
		{"multicast", gdma.AppendWQE(nil, ok, []gdma.SGE{sge(multi, 100)}, 0, 0), cqeTXOK},
		{"broadcast in crumbs", gdma.AppendWQE(nil, ok, []gdma.SGE{sge(broad, 3), sge(broad, 0), sge(broad, 57)}, 0, 0), cqeTXOK},
		{"VLAN tagged at the limit", gdma.AppendWQE(nil, long, []gdma.SGE{sge(uni, 1518)}, 0, 0), cqeTXOK},
		{"too long", gdma.AppendWQE(nil, ok, []gdma.SGE{sge(uni, 1519)}, 0, 0), cqeTXMTU},
		{"no header", gdma.AppendWQE(nil, ok, []gdma.SGE{sge(uni, 13)}, 0, 0), cqeTXHeader},
		{"nothing", gdma.AppendWQE(nil, ok, nil, 0, 0), cqeTXHeader},
		{"31 buffers", gdma.AppendWQE(nil, ok, slices.Repeat([]gdma.SGE{sge(uni, 40)}, 31), 0, 0), cqeTXOK},
		{"another completion queue", gdma.AppendWQE(nil, with(ok, 0, (q.CQ.ID+1)<<8), []gdma.SGE{sge(uni, 60)}, 0, 0), cqeTXBadOOB},
		{"unknown format", gdma.AppendWQE(nil, with(ok, 0, q.CQ.ID<<8|2), []gdma.SGE{sge(uni, 60)}, 0, 0), cqeTXBadOOB},
		{"long format in a short OOB", gdma.AppendWQE(nil, with(ok, 0, q.CQ.ID<<8|1), []gdma.SGE{sge(uni, 60)}, 0, 0), cqeTXBadOOB},
		{"another vPort", gdma.AppendWQE(nil, with(ok, 4, 7<<24), []gdma.SGE{sge(uni, 60)}, 0, 0), cqeTXVPortIndex},
		{"nowhere", gdma.AppendWQE(nil, ok, []gdma.SGE{sge(1<<40, 60)}, 0, 0), cqeTXGDMAError},
		{"segmented", gdma.AppendWQE(nil, ok, []gdma.SGE{sge(uni, 54), sge(uni, 3000)}, 1448, 54), cqeTXOK},
		{"segmented with no payload", gdma.AppendWQE(nil, ok, []gdma.SGE{sge(uni, 54)}, 1448, 54), cqeTXHeader},
		{"segments too long", gdma.AppendWQE(nil, ok, []gdma.SGE{sge(uni, 54), sge(uni, 3000)}, 1500, 54), cqeTXMTU},
		{"segmented, 124 GiB", gdma.AppendWQE(nil, ok, slices.Repeat([]gdma.SGE{sge(uni, 0xffffffff)}, 31), 1448, 54), cqeTXOK},
	} {
		l.transmit(q, c.wqe)
		if got := l.completed(t, q); got != uint8(c.want) {
			t.Errorf("%s: completion type %d, want %d", c.name, got, c.want)
		}
	}
	r := l.request(t, codeQueryStats, 48, 256, 1, gdmatest.U64(0x28, 0x7ffffff))
	for s, want := range map[stat]uint64{statTXMulticast: 1, statTXMulticastBytes: 100, statTXBroadcast: 1, statTXBroadcastBytes: 60, statTXBadOOB: 3, statTXMTU: 2, statTXBadOffset: 1,
		statTXGDMAError: 1} {
		if got := le.Uint64(r[0x28+8*s:]); got != want {
			t.Errorf("counter %d: %d, want %d", s, got, want)
		}
	}
	if le.Uint64(r[0x20:]) != 0x7ffffff {
		t.Errorf("reported mask %#x", le.Uint64(r[0x20:]))
	}
}

// TestTransmitManyLaps sends more packets than any counter of the rings holds in a lap, in bursts, and expects one completion each.
func TestTransmitManyLaps(t *testing.T) {
	for _, d := range []dialect{dialects[1], dialects[4]} {
		l := newLab(t, Config{}, 9, nil)
		l.probe(t, d, 1)
		p := l.ports[0]
		l.up(t, d, p, 1, 1)
		q := p.send[0]
		frame := l.M.Alloc(4096)
		l.M.Write(frame, []byte{2, 0, 0, 0, 0, 1})
		total := 0
		for burst := 1; total < 5000; burst = burst%73 + 1 {
			for i := range burst {
				// One to three basic units, so that entries straddle the ring's end and its pages.
				sgl := slices.Repeat([]gdma.SGE{{Addr: frame, Size: 60}}, 1+(total+i)%5)
				q.Post(l.M, gdma.AppendWQE(nil, oob(q, p), sgl, 0, 0))
			}
			l.R.Doorbell(gdma.DoorbellSQ, gdma.ProducerDoorbell(q.ID, q.Tail, 0))
			for range burst {
				if typ := l.completed(t, q); typ != uint8(cqeTXOK) {
					t.Fatalf("packet %d: completion type %d", total, typ)
				}
			}
			total += burst
		}
		if s := l.f.Ports()[0]; s.Packets != uint64(total) {
			t.Errorf("%d packets counted of %d", s.Packets, total)
		}
		if _, ok, err := l.Completion(&q.CQ); ok || err != nil {
			t.Errorf("one completion too many, %v", err)
		}
	}
}

// TestBrokenQueueIsAlone: a send queue whose entries make no sense stops; its neighbour and the channel do not.
func TestBrokenQueueIsAlone(t *testing.T) {
	d := dialects[3]
	l := newLab(t, Config{}, 9, nil)
	l.probe(t, d, 0)
	p := l.ports[0]
	l.up(t, d, p, 4, 1)
	bad := make([]byte, 32)
	le.PutUint32(bad[4:], 0xff)
	l.transmit(p.send[0], bad)
	l.R.Doorbell(gdma.DoorbellSQ, gdma.ProducerDoorbell(p.send[1].ID, 8192+32, 0)) // more than the ring
	l.R.Doorbell(gdma.DoorbellSQ, gdma.ProducerDoorbell(p.send[2].ID, 33, 0))      // no whole units
	l.request(t, codeQueryDevConfig, 88, 80, 3)                                    // only the newest value of a doorbell counts: let the bad ones be taken up
	frame := l.M.Alloc(4096)
	for i, q := range p.send {
		l.transmit(q, gdma.AppendWQE(nil, oob(q, p), []gdma.SGE{{Addr: frame, Size: 60}}, 0, 0))
		if i == 3 {
			if typ := l.completed(t, q); typ != uint8(cqeTXOK) {
				t.Errorf("completion type %d", typ)
			}
		}
	}
	if s := l.f.Ports()[0]; s.Packets != 1 {
		t.Errorf("%d packets, want the healthy queue's one", s.Packets)
	}
	l.down(t, d, p)
	l.remove(t, d)
	if u := l.f.Usage(); u != (gdma.Usage{}) {
		t.Errorf("left in the device: %+v", u)
	}
}

func TestHostileMANARequests(t *testing.T) {
	d := dialects[3]
	l := newLab(t, Config{VPorts: 2, Queues: 2}, 9, nil)
	if err := l.Open(l.ctx); err != nil {
		t.Fatal(err)
	}
	if r := must[[]byte](t)(l.Call(l.ctx, gdmatest.Request(codeConfigTX, gdma.DeviceMANA, 56, 36, 1, gdmatest.U64(0x28, firstPortHandle)))); gdmatest.Status(r) != gdma.StatusNotFound {
		t.Errorf("before registration: %v", gdmatest.Status(r))
	}
	l.Driver = gdmatest.NewDriver(l.M, l.R)
	l.probe(t, d, 0)
	p := l.ports[0]
	l.up(t, d, p, 1, 1)
	u8, u16, u32, u64 := gdmatest.U8, gdmatest.U16, gdmatest.U32, gdmatest.U64
	rq, sq := p.recv[0].Object, p.send[0].Object
	eq := uint64(p.eqs[0].ID)
	_, wq, cq, err := l.NewQueue(l.ctx, 8192, 8192, false)
	if err != nil {
		t.Fatal(err)
	}
	create := func(n ...gdmatest.Num) []byte {
		return gdmatest.Request(codeCreateWQ, gdma.DeviceMANA, 88, 48, 1, append([]gdmatest.Num{u64(0x28, p.handle), u32(0x30, 1), u64(0x38, wq), u64(0x40, cq), u32(0x48, 8192),
			u32(0x4c, 8192), u32(0x54, eq)}, n...)...)
	}
	steer := func(n ...gdmatest.Num) []byte {
		return gdmatest.Request(codeConfigRX, gdma.DeviceMANA, 0x78+16, 40, 2, append([]gdmatest.Num{u64(0x28, p.handle), u16(0x30, 2), u16(0x32, 0x78), u32(0x34, uint64(rxUnchanged)), u8(0x3e, 1),
			u64(0x78, rq), u64(0x80, rq)}, n...)...)
	}
	for _, c := range []struct {
		name string
		req  []byte
		want gdma.Status
	}{
		{"another device", gdmatest.Request(codeQueryDevConfig, gdma.DeviceID{Type: 2, Instance: 7}, 88, 80, 3), gdma.StatusNotFound},
		{"no such vPort", gdmatest.Request(codeQueryVPort, gdma.DeviceMANA, 44, 64, 1, u32(0x28, 2)), gdma.StatusNotFound},
		{"transmit on no vPort", gdmatest.Request(codeConfigTX, gdma.DeviceMANA, 56, 36, 1, u64(0x28, noObject)), gdma.StatusNotFound},
		{"create on no vPort", create(u64(0x28, 0)), gdma.StatusNotFound},
		{"create of no kind", create(u32(0x30, 3)), gdma.StatusInvalid},
		{"create on one region twice", create(u64(0x40, wq)), gdma.StatusInvalid},
		{"create on no region", create(u64(0x38, 12345)), gdma.StatusNotFound},
		{"create on no event queue", create(u32(0x54, 1)), gdma.StatusNotFound},
		{"create on the channel's event queue", create(u32(0x54, uint64(l.EQ.ID))), gdma.StatusNotFound},
		{"create larger than its region", create(u32(0x4c, 16384)), gdma.StatusInvalid},
		{"destroy as the other kind", gdmatest.Request(codeDestroyWQ, gdma.DeviceMANA, 56, 32, 1, u32(0x28, objectRQ), u64(0x30, sq)), gdma.StatusNotFound},
		{"destroy nothing", gdmatest.Request(codeDestroyWQ, gdma.DeviceMANA, 56, 32, 1, u32(0x28, objectRQ), u64(0x30, noObject)), gdma.StatusNotFound},
		{"fence a send queue", gdmatest.Request(codeFenceRQ, gdma.DeviceMANA, 48, 32, 1, u64(0x28, sq)), gdma.StatusNotFound},
		{"steer to a send queue", steer(u64(0x78, sq)), gdma.StatusNotFound},
		{"steer with a table beyond the message", steer(u16(0x32, 0x80)), gdma.StatusMalformed},
		{"steer with a table in the header", steer(u16(0x32, 8)), gdma.StatusMalformed},
		{"steer with 3 entries", steer(u16(0x30, 3)), gdma.StatusInvalid},
		{"steer with 65535 entries", steer(u16(0x30, 0xffff)), gdma.StatusInvalid},
		{"steer with more entries than sent", steer(u16(0x30, 512)), gdma.StatusMalformed},
		{"steer to a bad default", steer(u8(0x3c, 1), u64(0x40, 999)), gdma.StatusNotFound},
		{"steer", steer(), gdma.StatusOK},
		{"link", gdmatest.Request(codeQueryLink, gdma.DeviceMANA, 48, 48, 1, u64(0x28, p.handle)), gdma.StatusOK},
		{"link of no vPort", gdmatest.Request(codeQueryLink, gdma.DeviceMANA, 48, 48, 1, u64(0x28, 5)), gdma.StatusNotFound},
		{"clamp", gdmatest.Request(codeSetBandwidth, gdma.DeviceMANA, 56, 40, 1, u64(0x28, p.handle)), gdma.StatusOK},
		{"PHY", gdmatest.Request(codeQueryPHY, gdma.DeviceMANA, 48, 440, 1), gdma.StatusOK},
		{"bare metal's", gdmatest.Request(0x28003, gdma.DeviceMANA, 48, 40, 1), gdma.StatusUnsupported},
		{"create", create(), gdma.StatusOK},
		{"one queue too many", create(), gdma.StatusLimit},
	} {
		r, err := l.Call(l.ctx, c.req)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if gdmatest.Status(r) != c.want {
			t.Errorf("%s: status %v, want %v", c.name, gdmatest.Status(r), c.want)
		}
	}
	// The event queue goes away under its completion queues; then everything else does.
	l.dropEQs(t, p.eqs)
	l.transmit(p.send[0], gdma.AppendWQE(nil, oob(p.send[0], p), []gdma.SGE{{Addr: 0x3000, Size: 60}}, 0, 0))
	l.request(t, gdma.CodeDeregister, 40, 32, 1)
	if err := l.Close(l.ctx); err != nil {
		t.Fatal(err)
	}
	if u := l.f.Usage(); u != (gdma.Usage{}) {
		t.Errorf("left in the device: %+v", u)
	}
}

func TestEventsForTheDriver(t *testing.T) {
	l := newLab(t, Config{}, 2, nil)
	if err := l.f.PostEvent(ResetRequest()); err == nil {
		t.Error("an event without a channel")
	}
	if err := l.Open(l.ctx); err != nil {
		t.Fatal(err)
	}
	events := []Event{ResetRequest(), FPGAReconfig(), LinkState(true), LinkState(false), ChannelTimeout(7000), SOCService(true), SOCService(false)}
	for _, e := range events {
		if err := l.f.PostEvent(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Poll(); err != nil {
		t.Fatal(err)
	}
	want := []gdmatest.EQE{{Type: 135}, {Type: 132}, {Type: 133, Details: [3]uint32{2 << 24}}, {Type: 133, Details: [3]uint32{3 << 24}},
		{Type: 133, Details: [3]uint32{1<<24 | 7000}}, {Type: 134, Details: [3]uint32{2 << 28}}, {Type: 134, Details: [3]uint32{1 << 28}}}
	if got := l.Events[l.EQ.ID]; !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	if err := l.f.PostEvent(Event{Type: 3, EQ: 999}); err == nil {
		t.Error("an event on no queue")
	}
}

func TestResets(t *testing.T) {
	d := dialects[3]
	l := newLab(t, Config{Queues: 2}, 3, nil)
	for _, kind := range []pcifn.ResetKind{pcifn.ResetFLR, pcifn.ResetDevice, pcifn.ResetClientGone} {
		l.Driver = gdmatest.NewDriver(l.M, l.R)
		l.probe(t, d, 0)
		l.up(t, d, l.ports[0], 2, 1)
		l.f.Reset(kind)
		var b [8]byte
		if l.f.ReadBAR(regSMCOff, b[:]); le.Uint64(b[:]) != smcOffset {
			t.Error("registers are gone")
		}
		if l.f.ReadBAR(smcOffset+28, b[:4]); le.Uint32(b[:]) != 0 {
			t.Error("the window is not clear")
		}
	}
	l.Driver = gdmatest.NewDriver(l.M, l.R)
	if err := l.Open(l.ctx); err != nil {
		t.Fatal(err)
	}
	if u, want := l.f.Usage(), (gdma.Usage{EQs: 1, CQs: 1, SQs: 1, RQs: 1}); u != want {
		t.Errorf("device holds %+v, want the channel only", u)
	}
	if a, _ := l.f.Audits(0); len(a) != 3 || a[0].Cause != "reset: flr" || len(a[0].Leaks) == 0 {
		t.Errorf("audits %+v", a)
	}
}

// TestResetUnderLoad resets while packets are under way, again and again, and destroys the channel the same way; the race detector watches.
func TestResetUnderLoad(t *testing.T) {
	d := dialects[3]
	l := newLab(t, Config{Queues: 2}, 3, nil)
	base := l.M.Mark()
	for i := range 100 {
		l.Driver = gdmatest.NewDriver(l.M, l.R)
		l.probe(t, d, 0)
		p := l.ports[0]
		l.up(t, d, p, 2, 1)
		for range 100 {
			for _, q := range p.send {
				l.transmit(q, gdma.AppendWQE(nil, oob(q, p), []gdma.SGE{{Addr: 0x3000, Size: 60}}, 0, 0))
			}
		}
		switch i % 3 {
		case 0:
			l.f.Reset(pcifn.ResetFLR)
			l.f.Reset(pcifn.ResetDevice)
		case 1:
			if err := l.Close(l.ctx); err != nil {
				t.Fatal(err)
			}
		case 2: // the next life begins over this one, in memory of its own
			continue
		}
		l.M.FreeTo(base)
	}
	l.f.Reset(pcifn.ResetClientGone)
	l.Driver = gdmatest.NewDriver(l.M, l.R)
	if err := l.Open(l.ctx); err != nil {
		t.Fatal(err)
	}
}

func TestRegisters(t *testing.T) {
	l := newLab(t, Config{}, 2, nil)
	read := func(off uint64, n int) []byte {
		p := bytes.Repeat([]byte{0xee}, n)
		l.f.ReadBAR(off, p)
		return p
	}
	for _, c := range []struct {
		off  uint64
		want string
	}{
		{0x00, "01000001"}, // 1.0.1
		{0x08, "0010000000000000"},
		{0x10, "00100000"},
		{0x18, "2800000000000000"},
		{0x20, "2000"},
		{0x09, "10"},
		{0x28, "0000000000000000"},
		{0x44, "00000000"},
		{0x48, "0000000000000000"},
		{0x1000, "0000000000000000"},
		{0xfff8, "0000000000000000"},
	} {
		if got := hex.EncodeToString(read(c.off, len(c.want)/2)); got != c.want {
			t.Errorf("%#x: %s, want %s", c.off, got, c.want)
		}
	}
	// The window can be written in any width; registers cannot.
	l.f.WriteBAR(0x08, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	l.f.WriteBAR(smcOffset, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	l.f.WriteBAR(smcOffset+9, []byte{9})
	if got := hex.EncodeToString(read(0x08, 8)); got != "0010000000000000" {
		t.Errorf("a register was written: %s", got)
	}
	if got := hex.EncodeToString(read(smcOffset, 8)); got != "0102030405060708" {
		t.Errorf("window %s", got)
	}
	if got := read(smcOffset+9, 1); got[0] != 9 {
		t.Errorf("window byte %#x", got[0])
	}
}

// TestDoorbellHalves: a guest that cannot store eight bytes at once writes the lower half first.
func TestDoorbellHalves(t *testing.T) {
	rec := trace.New(0)
	l := newLab(t, Config{}, 2, rec)
	if err := l.Open(l.ctx); err != nil {
		t.Fatal(err)
	}
	v := uint64(gdma.ConsumerDoorbell(l.HWC.CQ.ID, 0x41, true))
	at := doorbellOffset + 3*DoorbellPageSize + gdma.DoorbellCQ.Offset()
	l.f.WriteBAR(at, le.AppendUint32(nil, uint32(v)))
	l.f.WriteBAR(at+4, le.AppendUint32(nil, uint32(v>>32)))
	l.f.WriteBAR(at, []byte{1})                       // a byte is no doorbell
	l.f.WriteBAR(at+0x10, make([]byte, 8))            // nor is a place between registers
	l.f.WriteBAR(0x0fff8, bytes.Repeat([]byte{1}, 8)) // the last register
	if _, err := l.OK(l.ctx, gdmatest.Request(gdma.CodeMaxResources, gdma.DeviceID{}, 40, 72, 1)); err != nil {
		t.Fatal(err)
	}
	n := 0
	events, _ := rec.Events()
	for _, e := range events {
		if i, _ := e.Field("index"); e.Kind.Name() == "doorbell-cq" && i == 0x41 {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d doorbells with index 0x41, want 1", n)
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		want string // part of the error, "" for none
	}{
		{"zero", Config{}, ""},
		{"everything", Config{BAR0Size: 8192, Vectors: 2048, MaxMSIX: 2048, VPorts: 16, Queues: 64, MTU: 9014, Indirection: 512, LinkSpeed: 1, Capabilities: 1<<3 | 1<<15}, ""},
		{"least", Config{Vectors: 2, MaxMSIX: 1, VPorts: 1, Queues: 1, MTU: 82, Indirection: 1}, ""},
		{"BAR too small", Config{BAR0Size: 4096}, "BAR 0"},
		{"BAR no power of two", Config{BAR0Size: 12288}, "BAR 0"},
		{"one vector", Config{Vectors: 1}, "1 vectors"},
		{"too many vectors", Config{Vectors: 2049}, "2049 vectors"},
		{"max_msix above the table", Config{Vectors: 8, MaxMSIX: 9}, "max_msix 9"},
		{"negative max_msix", Config{MaxMSIX: -1}, "max_msix -1"},
		{"too many vPorts", Config{VPorts: 17}, "17 vPorts"},
		{"negative vPorts", Config{VPorts: -1}, "-1 vPorts"},
		{"too many queues", Config{Queues: 65}, "65 queues"},
		{"MTU too small", Config{MTU: 81}, "MTU 81"},
		{"MTU too large", Config{MTU: 65536}, "MTU 65536"},
		{"indirection no power of two", Config{Indirection: 48}, "48 entries"},
		{"indirection too large", Config{Indirection: 1024}, "1024 entries"},
	} {
		_, err := New(c.cfg)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
	}
}

// The vectors are those of section 10.
func TestGolden(t *testing.T) {
	unhex := func(s string) []byte { return must[[]byte](t)(hex.DecodeString(strings.ReplaceAll(s, " ", ""))) }
	got, ok := parseTXOOB(unhex("24310000 22000005"))
	if want := (txOOB{ipv4: true, tcpChecksum: true, cq: 0x31, transport: 34, vport: 5}); !ok || got != want {
		t.Errorf("transmit OOB %+v, want %+v", got, want)
	}
	var b [60]byte
	rxCQE{kind: cqeRXOK, flags: rxHashTCP4 | rxIPGood | rxTCPGood, length: 1514, hash: 0xdeadbeef, offset: 0x20}.put(b[:])
	if want := unhex("41000000 0000020a ea050000 00000000 efbeadde"); !bytes.Equal(b[:20], want) || !bytes.Equal(b[56:], unhex("20000000")) {
		t.Errorf("receive completion % x", b)
	}
	if got := le.AppendUint32(nil, cqeHead(cqeTXOK)); !bytes.Equal(got, unhex("60000000")) {
		t.Errorf("transmit completion % x", got)
	}
	if got := le.AppendUint32(nil, cqeHead(cqeRXFence)); got[0] != 0x43 {
		t.Errorf("fence % x", got)
	}
}

func TestLongOOB(t *testing.T) {
	b := make([]byte, 24)
	le.PutUint32(b, 0x31<<8|1)
	le.PutUint32(b[8:], 1<<3|5<<16|1<<19|0x123<<20)
	le.PutUint32(b[12:], 0x301<<16)
	got, ok := parseTXOOB(b)
	if want := (txOOB{long: true, cq: 0x31, vport: 0x301, injectVLAN: true, vlan: 0x123, priority: 5, dei: 1}); !ok || got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
