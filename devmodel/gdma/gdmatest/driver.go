package gdmatest

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"irqlab/devmodel/gdma"
)

// Registers is how a guest reaches a device.
type Registers interface {
	Doorbell(k gdma.DoorbellKind, v gdma.DoorbellValue)
	ReadSMC(off int, p []byte)
	WriteSMC(off int, p []byte)
}

// Ring is a CQ or EQ as its guest consumes it.
type Ring struct {
	ID     uint32
	Vector uint32   // an EQ's
	base   []uint64 // pages
	n      uint32
	entry  uint32
	c      uint32
}

// Index is the consumer index to put in a doorbell.
func (r *Ring) Index() uint32 { return r.c & (8*r.n - 1) }

func (r *Ring) slot() uint64 {
	off := r.c % r.n * r.entry
	return r.base[off/4096] + uint64(off%4096)
}

// next reads the next entry into p; false when there is none.
func (r *Ring) next(m *Memory, p []byte) (bool, error) {
	m.Read(r.slot(), p[:r.entry])
	own := le.Uint32(p[r.entry-4:]) >> 29
	switch now := r.c / r.n & 7; own {
	case (now - 1) & 7:
		return false, nil
	case now:
		r.c++
		return true, nil
	default:
		return false, fmt.Errorf("ring %d: entry %d has owner %d in lap %d: overflow", r.ID, r.c, own, now)
	}
}

// EQE is an event.
type EQE struct {
	Type    gdma.EventType
	Details [3]uint32
}

// CQE is a completion.
type CQE struct {
	Data [60]byte
	WQ   uint32
	Send bool
}

// WQ is a work queue as its guest produces it, with its completion queue.
type WQ struct {
	ID     uint32
	CQ     Ring
	Object uint64
	base   []uint64
	size   uint32
	Tail   uint32
}

// Post stores an entry at the tail, wrapping, and moves the tail. The doorbell is the caller's.
func (q *WQ) Post(m *Memory, wqe []byte) {
	for i := 0; i < len(wqe); i += gdma.BasicUnit {
		off := q.Tail & (q.size - 1)
		m.Write(q.base[off/4096]+uint64(off%4096), wqe[i:i+gdma.BasicUnit])
		q.Tail += gdma.BasicUnit
	}
}

// Driver is the guest's side of a device: the hardware channel and what is made through it.
type Driver struct {
	M   *Memory
	R   Registers
	EQ  Ring // the hardware channel's
	HWC WQ   // its send queue and completion queue
	RQ  WQ   // its receive queue
	// Events are those of every EQ, by id, in order; completions are not among them.
	Events map[uint32][]EQE
	// Init holds the init data by kind.
	Init     map[uint32]uint32
	EQs      map[uint32]*Ring
	done     bool
	reqAddr  uint64
	respAddr uint64
	posted   bool
	resp     []byte
	// Lazy leaves it to the next call to post the receive buffer again, after the request: the order of the drivers of 6.2 and 6.5.
	Lazy bool
}

// EstablishMessage is the SMC message for rings at four page-aligned addresses.
func EstablishMessage(eq, cq, rq, sq uint64, vector uint16) (w [gdma.SMCSize]byte) {
	var high uint16
	for i, a := range []uint64{eq, cq, rq, sq} {
		pfn := a / 4096
		le.PutUint32(w[6*i:], uint32(pfn))
		le.PutUint16(w[6*i+4:], uint16(pfn>>32))
		high |= uint16(pfn>>48&0xf) << (4 * i)
	}
	le.PutUint16(w[24:], high)
	le.PutUint16(w[26:], vector)
	le.PutUint32(w[28:], 1)
	return w
}

// NewDriver makes a driver that has spoken to nobody yet.
func NewDriver(m *Memory, r Registers) *Driver {
	return &Driver{M: m, R: r, Events: map[uint32][]EQE{}, Init: map[uint32]uint32{}, EQs: map[uint32]*Ring{}}
}

// SMC writes a message to the window, dword by dword, and waits for its answer's header.
func (d *Driver) SMC(ctx context.Context, w [gdma.SMCSize]byte) (uint32, error) {
	for i := 0; i < len(w); i += 4 {
		d.R.WriteSMC(i, w[i:i+4])
	}
	for {
		var h [4]byte
		d.R.ReadSMC(28, h[:])
		if v := le.Uint32(h[:]); v>>31 == 0 {
			return v, nil
		}
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("SMC answer: %w", err)
		}
		runtime.Gosched()
	}
}

// Open establishes the hardware channel and waits for its init events.
func (d *Driver) Open(ctx context.Context) error {
	eq, cq, rq, sq := d.M.Alloc(4096), d.M.Alloc(4096), d.M.Alloc(4096), d.M.Alloc(4096)
	d.reqAddr, d.respAddr = d.M.Alloc(4096), d.M.Alloc(4096)
	d.EQ = Ring{base: []uint64{eq}, n: 256, entry: gdma.EQESize, c: 256}
	d.HWC = WQ{base: []uint64{sq}, size: 4096, CQ: Ring{base: []uint64{cq}, n: 64, entry: gdma.CQESize, c: 64}}
	d.RQ = WQ{base: []uint64{rq}, size: 4096}
	h, err := d.SMC(ctx, EstablishMessage(eq, cq, rq, sq, 0))
	if err != nil {
		return err
	}
	if h != 0x81 {
		return fmt.Errorf("SMC establish answered %#x", h)
	}
	for !d.done {
		if err := d.Wait(ctx); err != nil {
			return fmt.Errorf("init events: %w", err)
		}
	}
	d.HWC.ID, d.RQ.ID, d.HWC.CQ.ID = d.Init[3], d.Init[2], d.Init[1]
	if d.HWC.CQ.ID >= d.Init[7] {
		return fmt.Errorf("CQ id %d of at most %d", d.HWC.CQ.ID, d.Init[7])
	}
	d.postReceive()
	return nil
}

// Close destroys the hardware channel.
func (d *Driver) Close(ctx context.Context) error {
	h, err := d.SMC(ctx, [gdma.SMCSize]byte{28: 2})
	if err == nil && h != 0x82 {
		err = fmt.Errorf("SMC destroy answered %#x", h)
	}
	return err
}

func (d *Driver) postReceive() {
	d.RQ.Post(d.M, gdma.AppendWQE(nil, make([]byte, 8), []gdma.SGE{{Addr: d.respAddr, Size: 4096}}, 0, 0))
	d.R.Doorbell(gdma.DoorbellRQ, gdma.ProducerDoorbell(d.RQ.ID, d.RQ.Tail, 0))
	d.posted = true
}

// Wait waits for an interrupt and handles the events of the EQs whose vector was raised, and of no other: an event without its interrupt stays unseen, as in Linux.
func (d *Driver) Wait(ctx context.Context) error {
	select {
	case <-d.M.raised:
		return d.interrupt()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *Driver) interrupt() error {
	taken := map[uint32]bool{}
	handle := func(q *Ring) error {
		if _, known := taken[q.Vector]; !known { // several EQs may share it
			taken[q.Vector] = d.M.pending[q.Vector].Swap(false)
		}
		if !taken[q.Vector] {
			return nil
		}
		return d.pollEQ(q)
	}
	if err := handle(&d.EQ); err != nil {
		return err
	}
	for _, q := range d.EQs {
		if err := handle(q); err != nil {
			return err
		}
	}
	return nil
}

// TestEQE asks for a test event on an EQ of dev and waits for it, as Linux does when it makes and when it drops one.
func (d *Driver) TestEQE(ctx context.Context, dev gdma.DeviceID, q *Ring) error {
	before := d.tested(q)
	if _, err := d.OK(ctx, Request(gdma.CodeTestEQE, dev, 44, 32, 1, U32(0x28, uint64(q.ID)))); err != nil {
		return err
	}
	for d.tested(q) == before {
		if err := d.Wait(ctx); err != nil {
			return fmt.Errorf("test event of EQ %d on vector %d: %w", q.ID, q.Vector, err)
		}
	}
	return nil
}

func (d *Driver) tested(q *Ring) (n int) {
	for _, e := range d.Events[q.ID] {
		if e.Type == gdma.EventTest {
			n++
		}
	}
	return n
}

// Poll handles the events of every EQ: in batches of at most five, ringing after each as Linux does.
func (d *Driver) Poll() error {
	if err := d.pollEQ(&d.EQ); err != nil {
		return err
	}
	for _, q := range d.EQs {
		if err := d.pollEQ(q); err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) pollEQ(q *Ring) error {
	var e [gdma.EQESize]byte
	for n := 0; ; {
		ok, err := q.next(d.M, e[:])
		if err != nil {
			return err
		}
		if ok {
			n++
			if err := d.event(q, EQE{gdma.EventType(e[12]), [3]uint32{le.Uint32(e[0:]), le.Uint32(e[4:]), le.Uint32(e[8:])}}); err != nil {
				return err
			}
		}
		if n == 5 || !ok && n > 0 {
			d.R.Doorbell(gdma.DoorbellEQ, gdma.ConsumerDoorbell(q.ID, q.Index(), true))
			n = 0
		}
		if !ok {
			return nil
		}
	}
}

func (d *Driver) event(q *Ring, e EQE) error {
	switch v := e.Details[0]; {
	case e.Type == gdma.EventInitEQ && q == &d.EQ:
		q.ID = v & 0xffff
	case e.Type == gdma.EventInitData && q == &d.EQ:
		d.Init[v>>24] = v & 0xffffff
	case e.Type == gdma.EventInitDone && q == &d.EQ:
		d.done = true
	case e.Type == gdma.EventCompletion && q == &d.EQ:
		return d.completions()
	default:
		if e.Type == gdma.EventCompletion {
			e.Details[0] &= 0xffffff
		}
		d.Events[q.ID] = append(d.Events[q.ID], e)
	}
	return nil
}

// completions drains the channel's CQ.
func (d *Driver) completions() error {
	n := 0
	for {
		c, ok, err := d.Completion(&d.HWC.CQ)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		n++
		if c.Send {
			if c.WQ != d.HWC.ID {
				return fmt.Errorf("send completion of queue %d, not %d", c.WQ, d.HWC.ID)
			}
			continue
		}
		off, size := le.Uint32(c.Data[12:]), le.Uint32(c.Data[24:])
		if c.WQ != d.RQ.ID || off+gdma.BasicUnit != d.RQ.Tail || size < 32 || size > 4096 {
			return fmt.Errorf("receive completion of queue %d at %#x, %d bytes", c.WQ, off, size)
		}
		d.resp = make([]byte, size)
		d.M.Read(d.respAddr, d.resp)
		d.posted = false
		if !d.Lazy {
			d.postReceive()
		}
	}
	if n == 0 {
		return errors.New("completion event for an empty queue")
	}
	d.R.Doorbell(gdma.DoorbellCQ, gdma.ConsumerDoorbell(d.HWC.CQ.ID, d.HWC.CQ.Index(), true))
	return nil
}

// Completion takes the next completion of a CQ.
func (d *Driver) Completion(r *Ring) (c CQE, ok bool, err error) {
	var e [gdma.CQESize]byte
	ok, err = r.next(d.M, e[:])
	copy(c.Data[:], e[:])
	w := le.Uint32(e[60:])
	c.WQ, c.Send = w&0xffffff, w>>24&1 != 0
	return c, ok, err
}

// Send posts a request without waiting.
func (d *Driver) Send(req []byte) {
	d.M.Write(d.reqAddr, req)
	d.HWC.Post(d.M, gdma.AppendWQE(nil, make([]byte, 24), []gdma.SGE{{Addr: d.reqAddr, Size: uint32(len(req))}}, 0, 0))
	d.R.Doorbell(gdma.DoorbellSQ, gdma.ProducerDoorbell(d.HWC.ID, d.HWC.Tail, 0))
	if !d.posted {
		d.postReceive()
	}
}

// Call sends a request and waits for its answer, whose header it checks.
func (d *Driver) Call(ctx context.Context, req []byte) ([]byte, error) {
	d.resp = nil
	d.Send(req)
	for d.resp == nil {
		if err := d.Wait(ctx); err != nil {
			return nil, fmt.Errorf("request %#x: %w", le.Uint32(req[4:]), err)
		}
	}
	r := d.resp
	if le.Uint32(r[4:]) != le.Uint32(req[4:]) || le.Uint16(r[0xa:]) != le.Uint16(req[0xa:]) || le.Uint32(r[0xc:]) != uint32(len(r)) ||
		le.Uint32(r[0x10:]) != le.Uint32(req[0x20:]) || le.Uint32(r[0x14:]) != le.Uint32(req[0x24:]) {
		return nil, fmt.Errorf("request %#x: answer's header % x", le.Uint32(req[4:]), r[:32])
	}
	return r, nil
}

// Request builds a request: code, device, size of the whole request and of the answer asked for, and numbers by offset.
func Request(code uint32, dev gdma.DeviceID, size, asked int, version uint16, body ...Num) []byte {
	b := make([]byte, size)
	le.PutUint32(b[4:], code)
	le.PutUint16(b[8:], version)
	le.PutUint32(b[0xc:], uint32(size))
	le.PutUint32(b[0x14:], code)
	le.PutUint16(b[0x18:], version)
	le.PutUint32(b[0x1c:], uint32(asked))
	le.PutUint16(b[0x20:], dev.Type)
	le.PutUint16(b[0x22:], dev.Instance)
	le.PutUint32(b[0x24:], 0x1234)
	for _, n := range body {
		switch n.Size {
		case 1:
			b[n.Off] = byte(n.Value)
		case 2:
			le.PutUint16(b[n.Off:], uint16(n.Value))
		case 4:
			le.PutUint32(b[n.Off:], uint32(n.Value))
		case 8:
			le.PutUint64(b[n.Off:], n.Value)
		}
	}
	return b
}

// Num is a number of Size bytes at an offset of a message.
type Num struct {
	Off, Size int
	Value     uint64
}

// U8 is a Num of one byte.
func U8(off int, v uint64) Num { return Num{off, 1, v} }

// U16 is a Num of two bytes.
func U16(off int, v uint64) Num { return Num{off, 2, v} }

// U32 is a Num of four bytes.
func U32(off int, v uint64) Num { return Num{off, 4, v} }

// U64 is a Num of eight bytes.
func U64(off int, v uint64) Num { return Num{off, 8, v} }

// Status is an answer's status.
func Status(resp []byte) gdma.Status { return gdma.Status(le.Uint32(resp[0x18:])) }

// OK calls and returns the answer, or an error for any status but ok.
func (d *Driver) OK(ctx context.Context, req []byte) ([]byte, error) {
	r, err := d.Call(ctx, req)
	if err == nil && Status(r) != gdma.StatusOK {
		err = fmt.Errorf("request %#x: status %v", le.Uint32(req[4:]), Status(r))
	}
	return r, err
}

// Region makes a DMA region of fresh pages, scattered when asked to, and returns its handle and pages.
func (d *Driver) Region(ctx context.Context, size int, scattered bool) (uint64, []uint64, error) {
	var pages []uint64
	for range size / 4096 {
		pages = append(pages, d.M.Alloc(4096))
	}
	if scattered {
		for i := range len(pages) / 2 {
			pages[i], pages[len(pages)-1-i] = pages[len(pages)-1-i], pages[i]
		}
	}
	r, err := d.OK(ctx, RegionRequest(uint64(size), pages))
	if err != nil {
		return 0, nil, err
	}
	return le.Uint64(r[0x20:]), pages, nil
}

// RegionRequest is CREATE_DMA_REGION with all its pages.
func RegionRequest(length uint64, pages []uint64) []byte {
	n := uint64(len(pages))
	req := Request(gdma.CodeCreateRegion, gdma.DeviceMANA, 64+8*len(pages), 40, 1, U64(0x28, length), U32(0x38, n), U32(0x3c, n))
	for i, p := range pages {
		le.PutUint64(req[0x40+8*i:], p)
	}
	return req
}

// NewEQ makes an event queue of size bytes on a vector.
func (d *Driver) NewEQ(ctx context.Context, size int, vector uint32, scattered bool) (*Ring, error) {
	h, pages, err := d.Region(ctx, size, scattered)
	if err != nil {
		return nil, err
	}
	r, err := d.OK(ctx, Request(gdma.CodeCreateQueue, gdma.DeviceMANA, 96, 36, 1, U32(0x28, 4), U64(0x38, h), U32(0x44, uint64(size)), U32(0x4c, uint64(vector))))
	if err != nil {
		return nil, err
	}
	n := uint32(size / gdma.EQESize)
	q := &Ring{ID: le.Uint32(r[0x20:]), Vector: vector, base: pages, n: n, entry: gdma.EQESize, c: n}
	d.EQs[q.ID] = q
	return q, nil
}

// NewQueue is a work queue with its completion queue in two fresh regions, and their handles. It exists on the device once it has been created there.
func (d *Driver) NewQueue(ctx context.Context, wqBytes, cqBytes int, scattered bool) (q *WQ, wq, cq uint64, err error) {
	wq, wqPages, err := d.Region(ctx, wqBytes, scattered)
	if err != nil {
		return nil, 0, 0, err
	}
	cq, cqPages, err := d.Region(ctx, cqBytes, scattered)
	n := uint32(cqBytes / gdma.CQESize)
	return &WQ{base: wqPages, size: uint32(wqBytes), CQ: Ring{base: cqPages, n: n, entry: gdma.CQESize, c: n}}, wq, cq, err
}
