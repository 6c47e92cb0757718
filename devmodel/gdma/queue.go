package gdma

import (
	"bytes"
	"errors"

	"irqlab/devmodel/inject"
)

// EQ is an event queue: completions of queues and events of the device, each signalled on one vector.
type EQ struct {
	ID     uint32
	Vector uint32
	Device DeviceID // on whose behalf it was created
	// Ordinal counts the EQs its device has created since it last had none, from 0.
	Ordinal int
	arming
}

// CQ is a completion queue.
type CQ struct {
	ID uint32
	EQ *EQ
	// Moderation is the last one asked for by doorbell.
	Moderation Moderation
	arming
}

// arming is what a CQ and an EQ have in common: a ring that the guest consumes, and the arming protocol (section 3.3). Their entries are posted in order: one that is held
// keeps the later ones waiting.
type arming struct {
	ring  ring
	n     uint32 // entries
	t     uint32 // running index of the next entry; starts at n
	seen  uint32 // the guest's consumer position in terms of t
	armed bool
	lane  inject.Lane
	gone  bool
}

func newArming(r ring, entry uint32) arming {
	n := r.size / entry
	return arming{ring: r, n: n, t: n, seen: n, armed: true}
}

// rung takes a doorbell and says whether the consumer is to be notified now.
func (c *arming) rung(v DoorbellValue) (notify, valid bool) {
	behind := (c.t - v.Index()) & (ownerLaps*c.n - 1)
	if behind > c.n {
		return false, false
	}
	c.seen = c.t - behind
	c.armed = v.Arm() && behind == 0
	return v.Arm() && behind != 0, true
}

// full says whether the guest has read none of the last n entries, those that wait to be posted included.
func (c *arming) full() bool { return c.t-c.seen+uint32(c.lane.Waiting()) >= c.n }

// WQ is a send or a receive queue.
type WQ struct {
	ID       uint32
	Send     bool
	CQ       *CQ
	consume  Consumer
	ring     ring
	head     uint32 // bytes consumed
	tail     uint32 // bytes produced, as last rung
	dead     bool   // its ring made no sense: nothing more is read from it
	Consumed uint64 // entries
}

func (q *WQ) kind() DoorbellKind {
	if q.Send {
		return DoorbellSQ
	}
	return DoorbellRQ
}

// Posted is how many bytes of entries are posted and not consumed.
func (q *WQ) Posted() uint32 { return q.tail - q.head }

// A Consumer takes the entries of a send queue, one at a time and in order. w is valid during the call.
type Consumer interface {
	// Ready says whether the consumer can take an entry now. One that cannot calls Device.Kick when it can again.
	Ready(q *WQ) bool
	Consume(q *WQ, w *WQE)
}

// table gives out ids of one kind of queue. Ids are not reused at once, so that a stale one is recognised.
type table[T any] struct {
	slots []*T
	next  int
	used  int
}

// firstID is where queue ids start, as on the device this models (section 3.2).
const firstID = 24

func newTable[T any](n int) table[T] { return table[T]{slots: make([]*T, n)} }

func (t *table[T]) get(id uint32) *T {
	if i := id - firstID; i < uint32(len(t.slots)) {
		return t.slots[i]
	}
	return nil
}

// add stores q under a free id, or says there is none.
func (t *table[T]) add(q *T) (id uint32, ok bool) {
	if t.used == len(t.slots) {
		return 0, false
	}
	for t.slots[t.next] != nil {
		t.next = (t.next + 1) % len(t.slots)
	}
	i := t.next
	t.slots[i] = q
	t.next = (i + 1) % len(t.slots)
	t.used++
	return firstID + uint32(i), true
}

func (t *table[T]) remove(id uint32) {
	if t.get(id) != nil {
		t.slots[id-firstID] = nil
		t.used--
	}
}

func (t *table[T]) reset() {
	clear(t.slots)
	t.next, t.used = 0, 0
}

func (t *table[T]) all(yield func(*T) bool) {
	for _, q := range t.slots {
		if q != nil && !yield(q) {
			return
		}
	}
}

// Why an event was not posted. They are values, because a guest can bring them about at will on the hot path.
var (
	errNoEQ = errors.New("there is no such event queue")
	errFull = errors.New("the event queue is full: the guest has read none of its entries")
)

// postEvent appends an event; a full queue drops it, because the entry it would overwrite is one the guest has not read.
func (d *Device) postEvent(eq *EQ, typ EventType, d0, d1, d2 uint32) error {
	if eq == nil || eq.gone {
		d.trace.Note(kindAnomaly, "event for a queue that has no event queue any more", uint64(typ))
		return errNoEQ
	}
	if eq.full() {
		d.trace.Record(kindOverflow, uint64(eq.ID), uint64(typ))
		return errFull
	}
	if eq.lane.Busy() {
		eq.lane.Wait(func() { _ = d.postEvent(eq, typ, d0, d1, d2) })
		return nil
	}
	h := d.cfg.Inject.Pass(inject.Event(uint8(typ)))
	if h.Waits() {
		d.bay.Park(h, &eq.lane, func() { _ = d.putEvent(h, eq, typ, d0, d1, d2) }, nil)
		return nil
	}
	return d.putEvent(h, eq, typ, d0, d1, d2)
}

// putEvent writes an event, as often as h says.
func (d *Device) putEvent(h *inject.Hit, eq *EQ, typ EventType, d0, d1, d2 uint32) error {
	for range h.Copies() {
		if eq.gone {
			return errNoEQ
		}
		if eq.full() { // by a copy
			d.trace.Record(kindOverflow, uint64(eq.ID), uint64(typ))
			return errFull
		}
		le.PutUint32(d.eqe[0:], d0)
		le.PutUint32(d.eqe[4:], d1)
		le.PutUint32(d.eqe[8:], d2)
		le.PutUint32(d.eqe[eqeLast:], eqeWord(typ, owner(eq.t, eq.n)))
		h.Alter(d.eqe[:], eqePlace)
		addr, _ := eq.ring.at(eq.t * EQESize)
		if err := d.write(addr, d.eqe[:eqeLast]); err != nil {
			return d.lost("event queue", eq.ID, err)
		}
		if err := d.store(addr+eqeLast, le.Uint32(d.eqe[eqeLast:])); err != nil {
			return d.lost("event queue", eq.ID, err)
		}
		eq.t++
		posted := EventType(d.eqe[eqeLast])
		d.trace.Note(kindEQE, posted.String(), uint64(eq.ID), uint64(posted), uint64(le.Uint32(d.eqe[:])), uint64(eq.Vector))
		if eq.armed {
			eq.armed = false
			d.raise(eq.Vector)
		}
	}
	d.fireToo(h)
	return nil
}

// complete appends a completion with client data (at most 60 bytes) for an entry of q, and if tell is set posts the completion event its consumer may have asked for. One
// event per arm bounds what an EQ has to hold.
func (d *Device) complete(kind *Completion, q *WQ, data []byte, tell bool) error {
	cq := q.CQ
	if cq.lane.Busy() {
		kept := bytes.Clone(data)
		if !cq.lane.Wait(func() { _ = d.complete(kind, q, kept, tell) }) {
			d.trace.Note(kindAnomaly, "too many completions wait for one that is held: dropped", uint64(cq.ID))
		}
		return nil
	}
	h := d.cfg.Inject.Pass(kind.Step)
	if h.Waits() {
		kept := bytes.Clone(data)
		d.bay.Park(h, &cq.lane, func() { _ = d.putCompletion(h, kind, q, kept, tell) }, func() { d.goOn(q) })
		return nil
	}
	return d.putCompletion(h, kind, q, data, tell)
}

// goOn takes up what has waited for a completion that was held.
func (d *Device) goOn(q *WQ) {
	if c := d.hwc; c != nil && q.CQ == c.cq {
		c.goOn()
	} else if q.Send && !q.CQ.gone {
		d.Kick(q)
	}
}

// putCompletion writes a completion, as often as h says.
func (d *Device) putCompletion(h *inject.Hit, kind *Completion, q *WQ, data []byte, tell bool) error {
	cq := q.CQ
	for range h.Copies() {
		if cq.gone {
			return nil
		}
		clear(d.cqe[copy(d.cqe[:cqeLast], data):cqeLast])
		le.PutUint32(d.cqe[cqeLast:], cqeWord(q.ID, q.Send, owner(cq.t, cq.n)))
		if h != nil {
			h.Alter(d.cqe[:], kind.place)
		}
		addr, _ := cq.ring.at(cq.t * CQESize)
		err := d.write(addr, d.cqe[:cqeLast])
		if err == nil {
			err = d.store(addr+cqeLast, le.Uint32(d.cqe[cqeLast:]))
		}
		if err != nil {
			return d.lost("completion queue", cq.ID, err)
		}
		cq.t++
		if tell && cq.armed {
			cq.armed = false
			d.postEvent(cq.EQ, EventCompletion, cq.ID, 0, 0)
		}
	}
	d.fireToo(h)
	return nil
}

// Complete appends one completion with client data (at most 60 bytes) for an entry of q, and notifies.
func (d *Device) Complete(kind *Completion, q *WQ, data []byte) { _ = d.complete(kind, q, data, true) }

func (d *Device) lost(what string, id uint32, err error) error {
	if err != errReset {
		d.trace.Note(kindAnomaly, what+": "+err.Error(), uint64(id))
	}
	return err
}

// next reads the entry at q's head into d.wqe. An entry that cannot be understood kills the queue: where the next one starts is unknown.
func (d *Device) next(q *WQ) bool {
	w, limit := &d.wqe, maxRecvWQE
	if q.Send {
		limit = maxSendWQE
	}
	limit = min(limit, int(q.Posted()))
	if err := q.ring.read(d, q.head, w.rawData[:BasicUnit]); err != nil {
		q.dead = true
		d.lost("work queue "+q.kind().String(), q.ID, err)
		return false
	}
	size, err := wqeSize(le.Uint32(w.rawData[4:]), limit)
	if err == nil {
		if size > BasicUnit {
			err = q.ring.read(d, q.head+BasicUnit, w.rawData[BasicUnit:size])
		}
		if err == nil {
			err = ParseWQE(w, w.rawData[:size], limit)
		}
	}
	if err != nil {
		q.dead = true
		d.lost("work queue "+q.kind().String(), q.ID, err)
		return false
	}
	w.Offset = q.head
	q.head += w.Size
	q.Consumed++
	return true
}
