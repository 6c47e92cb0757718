package gdma

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"irqlab/devmodel/inject"
	"irqlab/devmodel/trace"
)

// What the device puts on the timeline.
var (
	kindSMC        = trace.NewKind("smc-request", "type", "version", "header")
	kindSMCAnswer  = trace.NewKind("smc-response", "header", "status")
	kindRequest    = trace.NewKind("hwc-request", "code", "message", "version", "size", "asked", "activity")
	kindResponse   = trace.NewKind("hwc-response", "code", "message", "status", "size", "queued")
	kindSQ         = trace.NewKind("doorbell-sq", "id", "tail", "entries", "writes")
	kindRQ         = trace.NewKind("doorbell-rq", "id", "tail", "posted", "writes")
	kindCQ         = trace.NewKind("doorbell-cq", "id", "index", "arm", "notified", "writes")
	kindEQ         = trace.NewKind("doorbell-eq", "id", "index", "arm", "notified", "writes")
	kindDIM        = trace.NewKind("doorbell-dim", "id", "microseconds", "completions")
	kindNoQueue    = trace.NewKind("doorbell-ignored", "register", "value")
	kindEQE        = trace.NewKind("eqe", "eq", "type", "details", "vector")
	kindOverflow   = trace.NewKind("eq-full", "eq", "type")
	kindAnomaly    = trace.NewKind("gdma-anomaly", "id")
	kindLifecycle  = trace.NewKind("gdma-state")
	kindAudit      = trace.NewKind("audit", "leaks")
	kindAuditEntry = trace.NewKind("leak", "id")
)

// Bus is what the device may do to the outside; pcifn.Bus has it. All of it is safe from any goroutine.
type Bus interface {
	ReadDMA(iova uint64, p []byte) error
	WriteDMA(iova uint64, p []byte) error
	StoreRelease32(iova uint64, v uint32) error
	Raise(vector int)
	Vectors() int
	Trace() *trace.Recorder
}

// DeviceID names a device behind the hardware channel.
type DeviceID struct{ Type, Instance uint16 }

// The hardware channel's own device. Type 2 is MANA, type 3 MANA RDMA.
var (
	DeviceHWC  = DeviceID{1, 0}
	DeviceMANA = DeviceID{2, 1}
)

// Config is a device's size and what it says of itself.
type Config struct {
	SQs, RQs, CQs, EQs int // queues the driver may create, besides the HWC's
	MaxMSIX            int // 0: the table size
	Capabilities       uint64
	HWCTimeout         uint32 // milliseconds
	DoorbellPages      int
	// Inject makes the device stand still or misbehave at chosen steps; nil: never.
	Inject *inject.Controller
}

// Client is what stands behind the channel and is not GDMA's: the requests of the device it serves, and the state those leave behind. Its methods are called on the device's
// goroutine with the device locked.
type Client interface {
	// Messages declares the requests Request is to be given.
	Messages() []*Message
	// Request answers r; the answer's body is written with r.Put. Fields of r up to its message's MinRequest are there.
	Request(r *Request) Status
	// Leaks reports what is still set up.
	Leaks() []Leak
	// Drop forgets everything set up through requests. The queues are destroyed by the device.
	Drop()
}

// errReset ends work whose state a reset has taken away.
var errReset = errors.New("gdma: the device was reset")

// Device is a GDMA device. Doorbell, the SMC methods and Reset may be called from the goroutine that answers the guest: they do not block.
type Device struct {
	cfg    Config
	client Client
	bus    Bus
	trace  *trace.Recorder
	msgs   map[uint32]*Message

	front
	wake chan struct{}
	stop chan struct{}
	done chan struct{}
	gen  atomic.Uint64 // resets asked for

	mu      sync.Mutex // everything below; held for one piece of work at a time
	unit    uint64     // the generation the state belongs to
	hwc     *channel
	eqs     table[EQ]
	cqs     table[CQ]
	sqs     table[WQ]
	rqs     table[WQ]
	regions map[uint64]*region
	pages   int // in all regions, taken or not
	nextRgn uint64
	devices map[DeviceID]*registration
	driver  Driver
	audits  []Audit
	audited uint64 // audits made, the forgotten ones included
	bay     inject.Bay

	wqe  WQE
	eqe  [EQESize]byte
	cqe  [CQESize]byte
	req  [maxMessage]byte
	resp [maxMessage]byte
}

type registration struct {
	eqs  int // created since there was none
	live int
}

// front is what the answering goroutine and the device's own share.
type front struct {
	fmu       sync.Mutex
	smc       [SMCSize]byte
	smcBusy   bool
	bells     [doorbellKinds][]bell
	queue     []work // a ring that holds every bell once, and the SMC
	qhead     int
	qlen      int
	resetting bool
	cause     string
	closed    bool
}

// bell is the newest value of one queue's doorbell. Only the newest counts: positions grow, and arming replaces arming.
type bell struct {
	value   DoorbellValue
	writes  uint32
	pending bool
}

type work struct {
	kind DoorbellKind // doorbellKinds: the SMC
	slot int32
}

// New makes a device in its reset state.
func New(cfg Config, client Client) (*Device, error) {
	for _, n := range []int{cfg.SQs, cfg.RQs, cfg.CQs, cfg.EQs} {
		if n < 1 || n > 1<<15 {
			return nil, fmt.Errorf("gdma: %d queues of one kind: want 1 to %d", n, 1<<15)
		}
	}
	d := &Device{
		cfg: cfg, client: client, msgs: map[uint32]*Message{},
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		// One more of each kind: the hardware channel's.
		eqs: newTable[EQ](cfg.EQs + 1), cqs: newTable[CQ](cfg.CQs + 1), sqs: newTable[WQ](cfg.SQs + 1), rqs: newTable[WQ](cfg.RQs + 1),
		regions: map[uint64]*region{}, devices: map[DeviceID]*registration{},
	}
	for _, m := range append(gdmaMessages(), client.Messages()...) {
		d.msgs[m.Code] = m
	}
	total := 1
	for k, n := range [doorbellKinds]int{len(d.sqs.slots), len(d.rqs.slots), len(d.cqs.slots), len(d.eqs.slots), len(d.cqs.slots)} {
		d.bells[k] = make([]bell, n)
		total += n
	}
	d.queue = make([]work, total)
	d.bay.Lock = &d.mu
	close(d.done)
	return d, nil
}

// Attach gives the device its bus and starts its goroutine. Once, before anything else.
func (d *Device) Attach(bus Bus) {
	d.bus, d.trace = bus, bus.Trace()
	d.cfg.Inject.Attach(d.trace)
	if d.cfg.MaxMSIX == 0 {
		d.cfg.MaxMSIX = bus.Vectors()
	}
	d.done = make(chan struct{})
	go d.run()
}

// Close ends the device's goroutine and waits for it. The device does nothing afterwards.
func (d *Device) Close() {
	d.fmu.Lock()
	closed := d.closed
	d.closed = true
	d.fmu.Unlock()
	d.gen.Add(1)
	if !closed {
		close(d.stop)
	}
	<-d.done
	d.Do(func() { d.bay.Clear(d.cfg.Inject) })
}

// Doorbell takes a write to a doorbell register. It does not block and does not allocate.
func (d *Device) Doorbell(k DoorbellKind, v DoorbellValue) {
	slot := v.ID(k) - firstID
	if slot >= uint32(len(d.bells[k])) {
		d.trace.Record(kindNoQueue, k.Offset(), uint64(v))
		return
	}
	d.fmu.Lock()
	b := &d.bells[k][slot]
	b.value = v
	b.writes++
	if !b.pending {
		b.pending = true
		d.push(work{k, int32(slot)})
	}
	d.fmu.Unlock()
	d.poke()
}

// push queues work. The caller holds fmu, and queues nothing that is queued already.
func (d *Device) push(w work) {
	d.queue[(d.qhead+d.qlen)%len(d.queue)] = w
	d.qlen++
}

func (d *Device) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Kick makes the device look at a send queue again whose consumer was not ready.
func (d *Device) Kick(q *WQ) {
	slot := q.ID - firstID
	d.fmu.Lock()
	if b := &d.bells[DoorbellSQ][slot]; !b.pending {
		b.pending = true
		b.value = ProducerDoorbell(q.ID, q.tail, 0)
		d.push(work{DoorbellSQ, int32(slot)})
	}
	d.fmu.Unlock()
	d.poke()
}

// ReadSMC fills p from the SMC window at off.
func (d *Device) ReadSMC(off int, p []byte) {
	d.fmu.Lock()
	copy(p, d.smc[off:])
	d.fmu.Unlock()
}

// WriteSMC stores p in the SMC window at off. Writing the last byte of the header hands the message over; until it is answered the window is the device's.
func (d *Device) WriteSMC(off int, p []byte) {
	d.fmu.Lock()
	defer d.fmu.Unlock()
	if d.smcBusy {
		return
	}
	n := copy(d.smc[off:], p)
	if off+n < SMCSize {
		return
	}
	d.smcBusy = true
	le.PutUint32(d.smc[smcHeader:], le.Uint32(d.smc[smcHeader:])|smcOwner)
	d.push(work{kind: doorbellKinds})
	d.poke()
}

// Reset returns the device to its initial state. State and memory access end with the call, save for one access already under way; the bookkeeping follows.
func (d *Device) Reset(cause string) {
	d.fmu.Lock()
	d.gen.Add(1)
	clear(d.smc[:])
	d.smcBusy = false
	for d.qlen > 0 {
		d.pop()
	}
	d.resetting, d.cause = true, cause
	d.fmu.Unlock()
	d.poke()
}

// pop takes the oldest work, with the value its doorbell has by now. The caller holds fmu.
func (d *Device) pop() (w work, v DoorbellValue, writes uint32) {
	w = d.queue[d.qhead]
	d.qhead = (d.qhead + 1) % len(d.queue)
	d.qlen--
	if w.kind < doorbellKinds {
		b := &d.bells[w.kind][w.slot]
		v, writes = b.value, b.writes
		*b = bell{}
	}
	return w, v, writes
}

// run is the device's goroutine.
func (d *Device) run() {
	defer close(d.done)
	for {
		if !d.step() {
			select {
			case <-d.wake:
			case <-d.stop:
				return
			}
		}
	}
}

// step does one piece of work and says whether there was any.
func (d *Device) step() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fmu.Lock()
	switch {
	case d.closed || !d.resetting && d.qlen == 0:
		d.fmu.Unlock()
		return false
	case d.resetting:
		d.resetting = false
		d.unit = d.gen.Load()
		cause := d.cause
		d.fmu.Unlock()
		d.destroy(cause)
	default:
		w, v, writes := d.pop()
		smc := d.smc
		d.fmu.Unlock()
		if w.kind == doorbellKinds {
			d.arrived(&smc)
		} else {
			d.ring(w.kind, v, writes)
		}
	}
	return true
}

// batch bounds the entries one piece of work takes from a send queue, so that one busy queue does not keep the others waiting.
const batch = 64

// ring takes a doorbell off the queue.
func (d *Device) ring(k DoorbellKind, v DoorbellValue, writes uint32) {
	id := v.ID(k)
	switch k {
	case DoorbellSQ:
		if q := d.sqs.get(id); q != nil {
			d.produced(q, v.Tail())
			n := d.send(q)
			d.trace.Record(kindSQ, uint64(id), uint64(v.Tail()), uint64(n), uint64(writes))
			return
		}
	case DoorbellRQ:
		if q := d.rqs.get(id); q != nil {
			d.produced(q, v.Tail())
			d.trace.Record(kindRQ, uint64(id), uint64(v.Tail()), uint64(q.Posted()), uint64(writes))
			if d.hwc != nil && d.hwc.rq == q {
				d.flush()
			}
			return
		}
	case DoorbellCQ:
		if q := d.cqs.get(id); q != nil {
			notify, ok := q.rung(v)
			d.trace.Record(kindCQ, uint64(id), uint64(v.Index()), bit(v.Arm()), bit(notify), uint64(writes))
			if !ok {
				d.trace.Note(kindAnomaly, "completion queue doorbell ahead of the device or more than a lap behind", uint64(id))
			}
			if notify {
				d.postEvent(q.EQ, EventCompletion, q.ID, 0, 0)
			}
			return
		}
	case DoorbellEQ:
		if q := d.eqs.get(id); q != nil {
			notify, ok := q.rung(v)
			d.trace.Record(kindEQ, uint64(id), uint64(v.Index()), bit(v.Arm()), bit(notify), uint64(writes))
			if !ok {
				d.trace.Note(kindAnomaly, "event queue doorbell ahead of the device or more than a lap behind", uint64(id))
			}
			if notify {
				d.raise(q.Vector)
			}
			return
		}
	case DoorbellDIM:
		if q := d.cqs.get(id); q != nil {
			q.Moderation = v.Moderation()
			d.trace.Record(kindDIM, uint64(id), uint64(q.Moderation.Microseconds), uint64(q.Moderation.Completions))
			return
		}
	}
	d.trace.Record(kindNoQueue, k.Offset(), uint64(v))
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// produced takes a producer position. One that is not whole basic units, or that claims more than the ring holds, kills the queue.
func (d *Device) produced(q *WQ, tail uint32) {
	if q.dead {
		return
	}
	if tail%BasicUnit != 0 || tail-q.head > q.ring.size {
		if d.hwc != nil && q == d.hwc.sq && tail%BasicUnit == 0 {
			// 6.17's teardown posts requests without waiting for answers and may lap the ring: what was overwritten is lost, the channel is not.
			d.trace.Note(kindAnomaly, "hardware channel send queue was overrun: its entries are discarded", uint64(q.ID))
			q.head, q.tail = tail, tail
			return
		}
		q.dead = true
		d.trace.Note(kindAnomaly, fmt.Sprintf("%s doorbell at byte %d with %d consumed of a ring of %d: queue dropped", q.kind(), tail, q.head, q.ring.size), uint64(q.ID))
		return
	}
	q.tail = tail
}

// send gives posted entries of q to its consumer, and says how many. While a completion is held nothing that would complete behind it is begun.
func (d *Device) send(q *WQ) (n int) {
	for !q.dead && q.head != q.tail && !q.CQ.lane.Busy() && q.consume.Ready(q) {
		if n == batch {
			d.Kick(q)
			return n
		}
		if !d.next(q) {
			return n
		}
		n++
		q.consume.Consume(q, &d.wqe)
	}
	return n
}

// Read fills p from guest memory, unless the device was reset since the state at hand was set up.
func (d *Device) Read(addr uint64, p []byte) error {
	if d.gen.Load() != d.unit {
		return errReset
	}
	return d.bus.ReadDMA(addr, p)
}

func (d *Device) write(addr uint64, p []byte) error {
	if d.gen.Load() != d.unit {
		return errReset
	}
	return d.bus.WriteDMA(addr, p)
}

func (d *Device) store(addr uint64, v uint32) error {
	if d.gen.Load() != d.unit {
		return errReset
	}
	return d.bus.StoreRelease32(addr, v)
}

func (d *Device) raise(vector uint32) {
	if d.gen.Load() != d.unit {
		return
	}
	h := d.cfg.Inject.Pass(inject.Vector(int(vector)))
	if h.Waits() {
		d.bay.Park(h, nil, func() { d.fire(h, vector) }, nil)
		return
	}
	d.fire(h, vector)
}

func (d *Device) fire(h *inject.Hit, vector uint32) {
	for range h.Copies() {
		d.bus.Raise(int(vector))
	}
	d.fireToo(h)
}

// fireToo fires what a rule adds at the step that h is of.
func (d *Device) fireToo(h *inject.Hit) {
	for _, v := range h.Vectors() {
		if v < d.bus.Vectors() {
			d.bus.Raise(v)
		}
	}
}

// Do runs f with the device locked: no request is half done, and none starts. f may use the queues' fields.
func (d *Device) Do(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// destroy drops the hardware channel and everything set up through it, and records what was left.
func (d *Device) destroy(cause string) {
	if d.hwc != nil || len(d.devices) > 0 {
		d.audit(cause, DeviceID{})
	}
	d.bay.Clear(d.cfg.Inject)
	d.client.Drop()
	d.hwc = nil
	for eq := range d.eqs.all {
		eq.gone = true
	}
	d.eqs.reset()
	d.cqs.reset()
	d.sqs.reset()
	d.rqs.reset()
	clear(d.regions)
	clear(d.devices)
	d.pages = 0
	d.trace.Note(kindLifecycle, "everything dropped: "+cause)
}
