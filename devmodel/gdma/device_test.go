package gdma_test

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"irqlab/devmodel/gdma"
	"irqlab/devmodel/gdma/gdmatest"
	"irqlab/devmodel/inject"
	"irqlab/devmodel/trace"
)

var le = binary.LittleEndian

// nobody is a device behind the channel that has no requests of its own.
type nobody struct{}

func (nobody) Messages() []*gdma.Message           { return nil }
func (nobody) Request(r *gdma.Request) gdma.Status { return gdma.StatusUnsupported }
func (nobody) Leaks() []gdma.Leak                  { return nil }
func (nobody) Drop()                               {}

type bench struct {
	ctx context.Context
	dev *gdma.Device
	m   *gdmatest.Memory
	drv *gdmatest.Driver
	inj *inject.Controller
}

// newBench is a device on 8 MiB of memory with 9 vectors under rules, and a driver that has not spoken yet.
func newBench(t testing.TB, rec *trace.Recorder, rules ...inject.Rule) *bench {
	t.Helper()
	// A deadline so that a device that falls silent fails the test with what was awaited.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	inj := inject.New()
	for _, r := range rules {
		if err := inj.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	dev, err := gdma.New(gdma.Config{SQs: 8, RQs: 8, CQs: 16, EQs: 8, HWCTimeout: 30000, DoorbellPages: 15, Inject: inj}, nobody{})
	if err != nil {
		t.Fatal(err)
	}
	m := gdmatest.NewMemory(8<<20, 9, rec)
	dev.Attach(m)
	t.Cleanup(dev.Close)
	return &bench{ctx, dev, m, gdmatest.NewDriver(m, dev), inj}
}

func (b *bench) open(t testing.TB) {
	t.Helper()
	if err := b.drv.Open(b.ctx); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) register(t testing.TB) {
	t.Helper()
	if _, err := b.drv.OK(b.ctx, gdmatest.Request(gdma.CodeRegisterDevice, gdma.DeviceMANA, 40, 44, 1)); err != nil {
		t.Fatal(err)
	}
}

func TestEstablish(t *testing.T) {
	b := newBench(t, nil)
	b.open(t)
	d := b.drv
	for kind, want := range map[uint32]uint32{4: 1, 5: 4096, 6: 4096, 8: 0, 9: 0} {
		if got, ok := d.Init[kind]; !ok || got != want {
			t.Errorf("init data %d is %d, want %d", kind, got, want)
		}
	}
	if b.m.Interrupts(0) == 0 {
		t.Error("no interrupt")
	}
	if err := d.Close(b.ctx); err != nil {
		t.Error(err)
	}
	// A second life, and a third without a goodbye.
	for range 2 {
		b.drv = gdmatest.NewDriver(b.m, b.dev)
		b.open(t)
	}
	causes := []string{}
	audits, _ := b.dev.Audits(0)
	for _, a := range audits {
		causes = append(causes, a.Cause)
		if len(a.Leaks) > 0 {
			t.Errorf("%s: %v", a.Cause, a.Leaks)
		}
	}
	if want := []string{"SMC destroy", "establish over an active channel"}; !slices.Equal(causes, want) {
		t.Errorf("audits %q, want %q", causes, want)
	}
}

func TestEstablishRefusesAVectorThatIsNotThere(t *testing.T) {
	b := newBench(t, nil)
	if h, err := b.drv.SMC(b.ctx, gdmatest.EstablishMessage(0x1000, 0x2000, 0x3000, 0x4000, 9)); err != nil || h != 0x181 {
		t.Errorf("answer %#x, %v; want 0x181", h, err)
	}
}

func TestSMCUnknownMessages(t *testing.T) {
	b := newBench(t, nil)
	for _, c := range []struct{ header, want uint32 }{
		{0x00000000, 0x00000180},
		{0x00000003, 0x00000183},
		{0x00000007, 0x00000187},
		{0x00000009, 0x00000189}, // establish, version 1
		{0x0000000c, 0x0000008c}, // a timeout report
		{0x80000002, 0x00000082}, // destroy with the owner bit already set
	} {
		var w [gdma.SMCSize]byte
		le.PutUint32(w[28:], c.header)
		if h, err := b.drv.SMC(b.ctx, w); err != nil || h != c.want {
			t.Errorf("header %#x: answer %#x, %v; want %#x", c.header, h, err, c.want)
		}
	}
}

func TestRequests(t *testing.T) {
	b := newBench(t, nil)
	b.open(t)
	verify := gdmatest.Request(gdma.CodeVerifyVersion, gdma.DeviceID{}, 640, 72, 1, gdmatest.U64(0x28, 1), gdmatest.U64(0x30, 1), gdmatest.U64(0x38, 0x527e686d))
	copy(verify[0x80:], "Linux")
	copy(verify[0x100:], "7.3.4\x01\n")
	r, err := b.drv.OK(b.ctx, verify)
	if err != nil {
		t.Fatal(err)
	}
	if v := le.Uint64(r[0x20:]); v != 1 || len(r) != 72 {
		t.Errorf("protocol %d in %d bytes", v, len(r))
	}
	if got, want := b.dev.Driver(), (gdma.Driver{Capabilities: 0x527e686d, Release: "Linux 7.3.4"}); got != want {
		t.Errorf("driver %+v, want %+v", got, want)
	}
	r, err = b.drv.OK(b.ctx, gdmatest.Request(gdma.CodeMaxResources, gdma.DeviceID{}, 40, 72, 1))
	if err != nil {
		t.Fatal(err)
	}
	for off, want := range map[int]uint32{0x24: 8, 0x28: 8, 0x2c: 16, 0x30: 8, 0x34: 15, 0x44: 9} {
		if got := le.Uint32(r[off:]); got != want {
			t.Errorf("resources at %#x: %d, want %d", off, got, want)
		}
	}
	r, err = b.drv.OK(b.ctx, gdmatest.Request(gdma.CodeListDevices, gdma.DeviceID{}, 40, 296, 1))
	if err != nil {
		t.Fatal(err)
	}
	if want := []byte{2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0}; !slices.Equal(r[0x20:0x34], want) || len(r) != 296 {
		t.Errorf("devices % x in %d bytes", r[0x20:0x34], len(r))
	}
	r, err = b.drv.OK(b.ctx, gdmatest.Request(gdma.CodeQueryHWCTimeout, gdma.DeviceID{}, 48, 40, 1, gdmatest.U32(0x28, 30000)))
	if err != nil || le.Uint32(r[0x20:]) != 30000 {
		t.Errorf("timeout %v, %v", r, err)
	}
	// An answer the driver wants shorter than its fields is cut, not refused.
	r, err = b.drv.OK(b.ctx, gdmatest.Request(gdma.CodeMaxResources, gdma.DeviceID{}, 40, 40, 1))
	if err != nil || len(r) != 40 || le.Uint32(r[0x24:]) != 8 {
		t.Errorf("short answer % x, %v", r, err)
	}
	// Unknown requests are refused in a header of 32 bytes.
	for _, code := range []uint32{0, 11, 22, 31, 81, 97, 0x2ffff, 0x30001, 0xffffffff} {
		r, err := b.drv.Call(b.ctx, gdmatest.Request(code, gdma.DeviceID{}, 40, 100, 1))
		if err != nil || gdmatest.Status(r) != gdma.StatusUnsupported || len(r) != 32 {
			t.Errorf("code %#x: % x, %v", code, r, err)
		}
	}
}

// TestHostileRequests: every one gets a status and leaves the channel working.
func TestHostileRequests(t *testing.T) {
	b := newBench(t, nil)
	b.open(t)
	b.register(t)
	mana := gdma.DeviceMANA
	u32, u64 := gdmatest.U32, gdmatest.U64
	region, _, err := b.drv.Region(b.ctx, 8192, false)
	if err != nil {
		t.Fatal(err)
	}
	claims := gdmatest.Request(gdma.CodeMaxResources, gdma.DeviceID{}, 40, 72, 1, u32(0x0c, 4096))
	tiny := gdmatest.Request(gdma.CodeMaxResources, gdma.DeviceID{}, 40, 72, 1, u32(0x0c, 8))
	create := func(n ...gdmatest.Num) []byte {
		return gdmatest.Request(gdma.CodeCreateQueue, mana, 96, 36, 1, append([]gdmatest.Num{u32(0x28, 4), u64(0x38, region), u32(0x44, 4096), u32(0x4c, 1)}, n...)...)
	}
	pages := func(length uint64, total, here uint64, n ...gdmatest.Num) []byte {
		return gdmatest.Request(gdma.CodeCreateRegion, mana, 64+16, 40, 1, append([]gdmatest.Num{u64(0x28, length), u32(0x38, total), u32(0x3c, here), u64(0x40, 0x1000),
			u64(0x48, 0x2000)}, n...)...)
	}
	for _, c := range []struct {
		name string
		req  []byte
		want gdma.Status
	}{
		{"claims more than was sent", claims, gdma.StatusMalformed},
		{"claims less than a header", tiny, gdma.StatusMalformed},
		{"shorter than its fields", gdmatest.Request(gdma.CodeCreateQueue, mana, 64, 36, 1), gdma.StatusMalformed},
		{"asks for a huge answer", gdmatest.Request(gdma.CodeMaxResources, mana, 40, 1<<30, 1), gdma.StatusMalformed},
		{"protocol from the future", gdmatest.Request(gdma.CodeVerifyVersion, mana, 640, 72, 1, u64(0x28, 2), u64(0x30, 3)), gdma.StatusInvalid},
		{"register twice", gdmatest.Request(gdma.CodeRegisterDevice, mana, 40, 44, 1), gdma.StatusExists},
		{"register a stranger", gdmatest.Request(gdma.CodeRegisterDevice, gdma.DeviceID{Type: 3}, 40, 44, 1), gdma.StatusNotFound},
		{"deregister a stranger", gdmatest.Request(gdma.CodeDeregister, gdma.DeviceID{Type: 3}, 40, 32, 1), gdma.StatusNotFound},
		{"test event on no queue", gdmatest.Request(gdma.CodeTestEQE, mana, 44, 32, 1, u32(0x28, 31)), gdma.StatusNotFound},
		{"test event on another device's queue", gdmatest.Request(gdma.CodeTestEQE, mana, 44, 32, 1, u32(0x28, uint64(b.drv.EQ.ID))), gdma.StatusNotFound},
		{"disable the channel's event queue", gdmatest.Request(gdma.CodeDisableQueue, gdma.DeviceHWC, 52, 32, 1, u32(0x28, 4), u32(0x2c, uint64(b.drv.EQ.ID))), gdma.StatusNotFound},
		{"disable no queue", gdmatest.Request(gdma.CodeDisableQueue, mana, 52, 32, 1, u32(0x28, 4), u32(0x2c, 0xffffffff)), gdma.StatusNotFound},
		{"disable a send queue", gdmatest.Request(gdma.CodeDisableQueue, mana, 52, 32, 1, u32(0x28, 1)), gdma.StatusInvalid},
		{"create a send queue", create(u32(0x28, 1)), gdma.StatusUnsupported},
		{"create for a stranger", gdmatest.Request(gdma.CodeCreateQueue, gdma.DeviceHWC, 96, 36, 1, u32(0x28, 4), u64(0x38, region), u32(0x44, 4096)), gdma.StatusNotFound},
		{"create on no region", create(u64(0x38, 0)), gdma.StatusNotFound},
		{"create on a vector that is not there", create(u32(0x4c, 9)), gdma.StatusInvalid},
		{"create larger than its region", create(u32(0x44, 16384)), gdma.StatusInvalid},
		{"create smaller than a page", create(u32(0x44, 2048)), gdma.StatusInvalid},
		{"create no power of two", create(u32(0x44, 4096+32)), gdma.StatusInvalid},
		{"create of nothing", create(u32(0x44, 0)), gdma.StatusInvalid},
		{"region of nothing", pages(0, 2, 2), gdma.StatusInvalid},
		{"region with no page", pages(4096, 0, 0), gdma.StatusInvalid},
		{"region longer than its pages", pages(8193, 2, 2), gdma.StatusInvalid},
		{"region as long as its pages but not from their start", pages(8192, 2, 2, u32(0x30, 8)), gdma.StatusInvalid},
		{"region that starts beyond its page", pages(4096, 2, 2, u32(0x30, 4096)), gdma.StatusInvalid},
		{"region of huge pages", pages(4096, 2, 2, u32(0x34, 9)), gdma.StatusInvalid},
		{"region of misaligned pages", pages(8192, 2, 2, u64(0x48, 0x2008)), gdma.StatusInvalid},
		{"region with more pages than it has", pages(4096, 1, 2), gdma.StatusInvalid},
		{"region with more pages than were sent", pages(8192, 200, 200), gdma.StatusMalformed},
		{"region of 2^32 pages", pages(8192, 0xffffffff, 2), gdma.StatusInvalid},
		{"region of 2^64 bytes", pages(1<<64-1, 2, 2), gdma.StatusInvalid},
		{"pages for no region", gdmatest.Request(gdma.CodeAddPages, mana, 64, 32, 1, u64(0x28, 999), u32(0x30, 1)), gdma.StatusNotFound},
		{"pages for a complete region", gdmatest.Request(gdma.CodeAddPages, mana, 64, 32, 1, u64(0x28, region), u32(0x30, 1)), gdma.StatusInvalid},
		{"destroy no region", gdmatest.Request(gdma.CodeDestroyRegion, mana, 48, 32, 1, u64(0x28, 999)), gdma.StatusNotFound},
		{"and it still works", create(), gdma.StatusOK},
		{"the region is the queue's now", create(), gdma.StatusNotFound},
	} {
		r, err := b.drv.Call(b.ctx, c.req)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if gdmatest.Status(r) != c.want {
			t.Errorf("%s: status %v, want %v", c.name, gdmatest.Status(r), c.want)
		}
	}
}

func TestEventQueues(t *testing.T) {
	for _, scattered := range []bool{false, true} {
		rec := trace.New(0)
		b := newBench(t, rec)
		b.open(t)
		b.register(t)
		var ids []uint32
		for v := range uint32(8) {
			q, err := b.drv.NewEQ(b.ctx, 32768, v%4+1, scattered)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, q.ID)
			before := b.m.Interrupts(int(v%4 + 1))
			if _, err := b.drv.OK(b.ctx, gdmatest.Request(gdma.CodeTestEQE, gdma.DeviceMANA, 44, 32, 1, gdmatest.U32(0x28, uint64(q.ID)))); err != nil {
				t.Fatal(err)
			}
			if err := b.drv.Poll(); err != nil {
				t.Fatal(err)
			}
			if e := b.drv.Events[q.ID]; len(e) != 1 || e[0].Type != gdma.EventTest {
				t.Errorf("events of queue %d: %v", q.ID, e)
			}
			if b.m.Interrupts(int(v%4+1)) != before+1 {
				t.Errorf("queue %d did not signal vector %d once", q.ID, v%4+1)
			}
		}
		if _, err := b.drv.NewEQ(b.ctx, 4096, 1, false); err == nil {
			t.Error("one event queue more than the device has")
		}
		// One is taken down; the rest, and the region of the failed one, are left behind.
		if _, err := b.drv.OK(b.ctx, gdmatest.Request(gdma.CodeDisableQueue, gdma.DeviceMANA, 52, 32, 1, gdmatest.U32(0x28, 4), gdmatest.U32(0x2c, uint64(ids[0])))); err != nil {
			t.Fatal(err)
		}
		if _, err := b.drv.OK(b.ctx, gdmatest.Request(gdma.CodeDeregister, gdma.DeviceMANA, 40, 32, 1)); err != nil {
			t.Fatal(err)
		}
		a, _ := b.dev.Audits(0)
		kinds := map[string]int{}
		for _, l := range a[len(a)-1].Leaks {
			kinds[l.Kind]++
		}
		if len(a) != 1 || kinds["eq"] != 7 || kinds["region"] != 1 || len(kinds) != 2 {
			t.Errorf("audit %+v", a)
		}
	}
}

// TestEQLaps runs an event queue through its eight generations and beyond, with the consumer checking every owner.
func TestEQLaps(t *testing.T) {
	b := newBench(t, nil)
	q := b.openEQ(t)
	const n = 256 * 20
	for i := range n {
		if err := b.dev.Event(q.ID, gdma.EventHWC, [3]uint32{uint32(i)}); err != nil {
			t.Fatal(err)
		}
		if err := b.drv.Poll(); err != nil {
			t.Fatal(err)
		}
		if i%100 == 99 {
			b.sync(t) // the doorbells are taken up
		}
	}
	e := b.drv.Events[q.ID]
	if len(e) != n {
		t.Fatalf("%d events of %d", len(e), n)
	}
	for i := range e {
		if e[i].Details[0] != uint32(i) {
			t.Fatalf("event %d is %d", i, e[i].Details[0])
		}
	}
}

// openEQ sets the device up, registers, and makes an event queue of 256 entries on vector 1.
func (b *bench) openEQ(t testing.TB) *gdmatest.Ring {
	t.Helper()
	b.open(t)
	b.register(t)
	q, err := b.drv.NewEQ(b.ctx, 4096, 1, false)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// sync makes a round trip, so that everything rung before has been taken up.
func (b *bench) sync(t testing.TB) {
	t.Helper()
	if _, err := b.drv.OK(b.ctx, gdmatest.Request(gdma.CodeMaxResources, gdma.DeviceID{}, 40, 72, 1)); err != nil {
		t.Fatal(err)
	}
}

func TestFullEventQueueDropsNews(t *testing.T) {
	b := newBench(t, nil)
	q := b.openEQ(t)
	for i := range 256 {
		if err := b.dev.Event(q.ID, gdma.EventHWC, [3]uint32{uint32(i)}); err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
	}
	if err := b.dev.Event(q.ID, gdma.EventHWC, [3]uint32{}); err == nil {
		t.Error("an unread event was overwritten")
	}
	if err := b.drv.Poll(); err != nil {
		t.Fatal(err)
	}
	if n := len(b.drv.Events[q.ID]); n != 256 {
		t.Errorf("%d events", n)
	}
	if b.m.Interrupts(1) == 0 {
		t.Error("no interrupt")
	}
}

func TestAddPages(t *testing.T) {
	b := newBench(t, nil)
	b.open(t)
	b.register(t)
	req := gdmatest.Request(gdma.CodeCreateRegion, gdma.DeviceMANA, 72, 40, 1, gdmatest.U64(0x28, 4*4096), gdmatest.U32(0x38, 4), gdmatest.U32(0x3c, 1), gdmatest.U64(0x40, b.m.Alloc(4096)))
	r, err := b.drv.Call(b.ctx, req)
	if err != nil || gdmatest.Status(r) != gdma.StatusMoreEntries || len(r) != 40 {
		t.Fatalf("% x, %v", r, err)
	}
	h := le.Uint64(r[0x20:])
	eq := gdmatest.Request(gdma.CodeCreateQueue, gdma.DeviceMANA, 96, 36, 1, gdmatest.U32(0x28, 4), gdmatest.U64(0x38, h), gdmatest.U32(0x44, 16384), gdmatest.U32(0x4c, 1))
	for i, want := range []gdma.Status{gdma.StatusMoreEntries, gdma.StatusOK} {
		if r, err := b.drv.Call(b.ctx, eq); err != nil || gdmatest.Status(r) == gdma.StatusOK {
			t.Fatalf("a queue on an incomplete region: % x, %v", r, err)
		}
		n := uint64(i + 1)
		add := gdmatest.Request(gdma.CodeAddPages, gdma.DeviceMANA, 0x38+8*int(n), 32, 1, gdmatest.U64(0x28, h), gdmatest.U32(0x30, n))
		for k := range int(n) {
			le.PutUint64(add[0x38+8*k:], b.m.Alloc(4096))
		}
		if r, err := b.drv.Call(b.ctx, add); err != nil || gdmatest.Status(r) != want {
			t.Fatalf("pages %d: % x, %v", i, r, err)
		}
	}
	if _, err := b.drv.OK(b.ctx, eq); err != nil {
		t.Error(err)
	}
}

// TestAnswersWaitForBuffers is the order of the 6.2 and 6.5 drivers: the next request overtakes the receive buffer it needs.
func TestAnswersWaitForBuffers(t *testing.T) {
	b := newBench(t, nil)
	b.drv.Lazy = true
	b.open(t)
	for range 300 {
		b.sync(t)
	}
}

func TestTooManyUnansweredRequestsWaitInTheRing(t *testing.T) {
	b := newBench(t, nil)
	b.open(t)
	b.drv.Lazy = true
	b.sync(t) // its buffer is used up and not posted again
	// 60 requests of two basic units fit the ring of 128; only some of their answers may be kept.
	for range 60 {
		b.drv.HWC.Post(b.m, gdma.AppendWQE(nil, make([]byte, 24), []gdma.SGE{{Addr: 0x5000, Size: 40}}, 0, 0))
	}
	b.dev.Doorbell(gdma.DoorbellSQ, gdma.ProducerDoorbell(b.drv.HWC.ID, b.drv.HWC.Tail, 0))
	// Every buffer posted now gets one of the answers.
	b.drv.Lazy = false
	for range 61 {
		b.sync(t)
	}
}

func TestResetForgetsEverything(t *testing.T) {
	b := newBench(t, nil)
	b.open(t)
	b.register(t)
	q, err := b.drv.NewEQ(b.ctx, 4096, 3, false)
	if err != nil {
		t.Fatal(err)
	}
	b.dev.Reset("test")
	var h [4]byte
	if b.dev.ReadSMC(28, h[:]); le.Uint32(h[:]) != 0 {
		t.Errorf("window header %#x after a reset", le.Uint32(h[:]))
	}
	if b.dev.Event(0, gdma.EventResetRequest, [3]uint32{}) == nil {
		t.Error("an event was posted to the channel that was reset")
	}
	// Doorbells of the life before mean nothing in the next.
	b.dev.Doorbell(gdma.DoorbellEQ, gdma.ConsumerDoorbell(q.ID, 5, true))
	b.dev.Doorbell(gdma.DoorbellSQ, gdma.ProducerDoorbell(b.drv.HWC.ID, 64, 0))
	b.drv = gdmatest.NewDriver(b.m, b.dev)
	b.open(t)
	a, _ := b.dev.Audits(0)
	if len(a) != 1 || a[0].Cause != "test" || len(a[0].Leaks) != 2 {
		t.Errorf("audits %+v", a)
	}
}

func TestMemoryGoesAway(t *testing.T) {
	b := newBench(t, nil)
	b.open(t)
	b.register(t)
	q, err := b.drv.NewEQ(b.ctx, 4096, 3, false)
	if err != nil {
		t.Fatal(err)
	}
	_, pages, err := b.drv.Region(b.ctx, 4096, false)
	if err != nil {
		t.Fatal(err)
	}
	b.m.Unmap(pages[0]-4096, 4096) // the event queue's page comes just before
	if err := b.dev.Event(q.ID, gdma.EventHWC, [3]uint32{}); err == nil {
		t.Error("an event was posted to memory that is gone")
	}
	b.sync(t)
	b.m.Unmap(0, 8<<20)
	b.drv.Send(gdmatest.Request(gdma.CodeMaxResources, gdma.DeviceID{}, 40, 72, 1))
	if _, err := b.drv.SMC(b.ctx, [gdma.SMCSize]byte{28: 2}); err != nil {
		t.Fatal(err)
	}
	b.m.MapAll()
	b.drv = gdmatest.NewDriver(b.m, b.dev)
	b.open(t)
	b.sync(t)
}

func TestHostileDoorbells(t *testing.T) {
	b := newBench(t, nil)
	ring := func() {
		for k := gdma.DoorbellSQ; k <= gdma.DoorbellDIM; k++ {
			for _, v := range []gdma.DoorbellValue{0, 1, 24, 25, 33, 40, 0xffff, 0xffffff, 0xffffffffffffffff, 0x8000000000000018, 0x7fffffff00000018, 0x0000002100000018} {
				b.dev.Doorbell(k, v)
			}
		}
	}
	ring()
	b.open(t)
	ring() // kills the channel's queues
	if _, err := b.drv.SMC(b.ctx, [gdma.SMCSize]byte{28: 2}); err != nil {
		t.Fatal(err)
	}
	b.drv = gdmatest.NewDriver(b.m, b.dev)
	b.open(t)
	b.sync(t)
}

func TestHostileChannelEntries(t *testing.T) {
	for _, c := range []struct {
		name string
		wqe  []byte
	}{
		{"no buffer", gdma.AppendWQE(nil, make([]byte, 24), nil, 0, 0)},
		{"two buffers", gdma.AppendWQE(nil, make([]byte, 24), make([]gdma.SGE, 2), 0, 0)},
		{"shorter than a header", gdma.AppendWQE(nil, make([]byte, 24), []gdma.SGE{{Addr: 0x1000, Size: 39}}, 0, 0)},
		{"4 GiB", gdma.AppendWQE(nil, make([]byte, 24), []gdma.SGE{{Addr: 0x1000, Size: 0xffffffff}}, 0, 0)},
		{"nowhere", gdma.AppendWQE(nil, make([]byte, 24), []gdma.SGE{{Addr: 1 << 63, Size: 100}}, 0, 0)},
		{"end of the address space", gdma.AppendWQE(nil, make([]byte, 24), []gdma.SGE{{Addr: 1<<64 - 8, Size: 100}}, 0, 0)},
	} {
		b := newBench(t, nil)
		b.open(t)
		b.drv.HWC.Post(b.m, c.wqe)
		b.dev.Doorbell(gdma.DoorbellSQ, gdma.ProducerDoorbell(b.drv.HWC.ID, b.drv.HWC.Tail, 0))
		// There is nothing to answer; the next request is answered.
		b.sync(t)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add(gdmatest.Request(gdma.CodeVerifyVersion, gdma.DeviceID{}, 640, 72, 1, gdmatest.U64(0x28, 1), gdmatest.U64(0x30, 1)))
	f.Add(gdmatest.RegionRequest(8192, []uint64{0x1000, 0x3000}))
	f.Add(gdmatest.Request(gdma.CodeCreateQueue, gdma.DeviceMANA, 96, 36, 1, gdmatest.U32(0x28, 4), gdmatest.U64(0x38, 1), gdmatest.U32(0x44, 4096)))
	f.Add(gdmatest.Request(gdma.CodeAddPages, gdma.DeviceMANA, 64, 32, 1, gdmatest.U64(0x28, 1), gdmatest.U32(0x30, 1)))
	f.Fuzz(func(t *testing.T, req []byte) {
		if len(req) < gdma.RequestHeader || len(req) > 4096 {
			return
		}
		b := newBench(t, nil)
		b.open(t)
		b.register(t)
		if _, _, err := b.drv.Region(b.ctx, 4096, false); err != nil {
			t.Fatal(err)
		}
		if _, err := b.drv.Call(b.ctx, req); err != nil {
			t.Fatal(err)
		}
		b.sync(t)
		b.dev.Close()
	})
}

// FuzzSMC writes anything anywhere to the window; the device always answers in the end, and a proper establish then works.
func FuzzSMC(f *testing.F) {
	m := gdmatest.EstablishMessage(0x1000, 0x2000, 0x3000, 0x4000, 0)
	f.Add(m[:], uint8(0), uint8(4))
	f.Add([]byte{2, 0, 0, 0x80}, uint8(28), uint8(4))
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8}, uint8(24), uint8(1))
	f.Fuzz(func(t *testing.T, p []byte, off, width uint8) {
		b := newBench(t, nil)
		w := int(width%8) + 1
		at := int(off) % gdma.SMCSize
		for len(p) > 0 {
			n := min(w, len(p), gdma.SMCSize-at)
			b.dev.WriteSMC(at, p[:n])
			p, at = p[n:], (at+n)%gdma.SMCSize
		}
		if _, err := b.drv.SMC(b.ctx, [gdma.SMCSize]byte{28: 2}); err != nil {
			t.Fatal(err)
		}
		// Writes are ignored while the window is the device's, so that destroy may have met an older message; now it is the driver's.
		b.open(t)
		b.sync(t)
		b.dev.Close()
	})
}

func BenchmarkRequest(b *testing.B) {
	x := newBench(b, trace.New(0))
	x.ctx = context.Background()
	x.open(b)
	req := gdmatest.Request(gdma.CodeMaxResources, gdma.DeviceID{}, 40, 72, 1)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.drv.OK(x.ctx, req); err != nil {
			b.Fatal(err)
		}
	}
}

// stopwatch is a bus that stops a clock when the device interrupts.
type stopwatch struct {
	*gdmatest.Memory
	stop chan time.Time
}

func (s stopwatch) Raise(v int) {
	select {
	case s.stop <- time.Now():
	default:
	}
	s.Memory.Raise(v)
}

// BenchmarkAnswer is the time from the doorbell of a request to the interrupt that announces its answer: the model's own part. The median is reported, because the host
// decides when a sleeping goroutine runs.
func BenchmarkAnswer(b *testing.B) {
	dev, err := gdma.New(gdma.Config{SQs: 8, RQs: 8, CQs: 16, EQs: 8, HWCTimeout: 30000, DoorbellPages: 15}, nobody{})
	if err != nil {
		b.Fatal(err)
	}
	defer dev.Close()
	s := stopwatch{gdmatest.NewMemory(1<<20, 2, trace.New(0)), make(chan time.Time, 1)}
	dev.Attach(s)
	drv := gdmatest.NewDriver(s.Memory, dev)
	if err := drv.Open(context.Background()); err != nil {
		b.Fatal(err)
	}
	req := gdmatest.Request(gdma.CodeMaxResources, gdma.DeviceID{}, 40, 72, 1)
	var took []time.Duration
	for b.Loop() {
		select {
		case <-s.stop: // the interrupt of the previous round's arming, if there was one
		default:
		}
		start := time.Now()
		drv.Send(req)
		took = append(took, (<-s.stop).Sub(start))
		if err := drv.Wait(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "ns/median")
}

// BenchmarkDoorbell is a doorbell from the write to the end of its effect: a completion queue is armed and found empty.
func BenchmarkDoorbell(b *testing.B) {
	x := newBench(b, trace.New(0))
	x.open(b)
	v := gdma.ConsumerDoorbell(x.drv.HWC.CQ.ID, x.drv.HWC.CQ.Index(), true)
	b.ReportAllocs()
	for b.Loop() {
		x.dev.Doorbell(gdma.DoorbellCQ, v)
	}
}
