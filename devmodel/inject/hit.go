package inject

import (
	"slices"
	"sync"
	"time"
)

// Hit is what the rules make of one occurrence of a step. The device first parks the work if it Waits, and does the rest when it goes on. The nil Hit is an occurrence that no
// rule is for.
type Hit struct {
	c       *Controller
	waits   []*rule
	rules   []*rule // Status, Alter, Add
	copies  int
	dropped bool

	left   int // waits that are not over
	bay    *Bay
	resume func()
	timers []*time.Timer
}

// Waits says whether the device is to stand still: then the work is to be parked.
func (h *Hit) Waits() bool { return h != nil && len(h.waits) > 0 }

// Copies is how often the thing is to be done: not at all when it is dropped.
func (h *Hit) Copies() int {
	switch {
	case h == nil:
		return 1
	case h.dropped:
		return 0
	}
	return h.copies
}

// Status is the status to answer with.
func (h *Hit) Status() (status uint32, ok bool) {
	h.each(Status, func(r *rule) { status, ok = r.Rule.Status, true })
	return status, ok
}

// Vectors are the interrupts to fire as well.
func (h *Hit) Vectors() (v []int) {
	h.each(Add, func(r *rule) { v = append(v, r.Vector) })
	return v
}

// Value is what a field is to become that is no place in the bytes.
func (h *Hit) Value(field string) (v uint64, ok bool) {
	h.each(Alter, func(r *rule) {
		if r.Field == field {
			v, ok = r.Value, true
		}
	})
	return v, ok
}

// Place is a field: Width bits from bit Bit of little-endian bytes.
type Place struct{ Bit, Width int }

// Bytes is the place of size bytes at off.
func Bytes(off, size int) Place { return Place{8 * off, 8 * size} }

// Alter changes b as the rules want; place says where a field is, and false for one that is not there. What does not fit in b is left out.
func (h *Hit) Alter(b []byte, place func(field string) (Place, bool)) {
	h.each(Alter, func(r *rule) {
		at, ok := Bytes(r.Offset, r.Size), true
		if r.Field != "" {
			at, ok = place(r.Field)
		}
		for i := 0; ok && i < min(at.Width, 64) && (at.Bit+i)/8 < len(b); i++ {
			bit := byte(1) << ((at.Bit + i) % 8)
			if b[(at.Bit+i)/8] &^= bit; r.Rule.Value>>i&1 != 0 {
				b[(at.Bit+i)/8] |= bit
			}
		}
	})
}

func (h *Hit) each(a Action, f func(*rule)) {
	if h == nil {
		return
	}
	for _, r := range h.rules {
		if r.Action == a {
			f(r)
		}
	}
}

// Sleep is for reads, whose answer is waited for: it takes the place of parking, lasts no longer than limit, and returns what is left of that.
func (h *Hit) Sleep(limit time.Duration) time.Duration {
	if !h.Waits() {
		return limit
	}
	var d time.Duration
	for _, r := range h.waits {
		d += r.For
	}
	d = min(d, limit)
	time.Sleep(d)
	return limit - d
}

// arrive ends one of the waits.
func (h *Hit) arrive() {
	h.c.mu.Lock()
	h.left--
	over := h.left == 0
	h.c.mu.Unlock()
	if over {
		h.resume()
	}
}

// Bay is where a device parks work. Its methods are called with Lock held, and work goes on under it.
type Bay struct {
	Lock  sync.Locker
	epoch int
}

// Park keeps work at the step h is of, in a lane if its order matters, and returns at once. When the rules let go, resume does the rest of it, then the work that waits in the
// lane is done, and then idle is called unless something in the lane has been parked again; idle may be nil.
func (b *Bay) Park(h *Hit, lane *Lane, resume, idle func()) {
	epoch := b.epoch
	if lane != nil {
		lane.parked = true
	}
	h.bay, h.left = b, len(h.waits)
	h.resume = func() {
		b.Lock.Lock()
		defer b.Lock.Unlock()
		if b.epoch != epoch {
			return
		}
		if lane == nil {
			resume()
			return
		}
		lane.parked = false
		lane.do(resume)
		lane.run()
		if idle != nil && b.epoch == epoch && !lane.Busy() {
			idle()
		}
	}
	c := h.c
	c.mu.Lock()
	for _, r := range h.waits {
		r.parked = append(r.parked, h)
		switch {
		case r.removed: // since the step was reached
			time.AfterFunc(0, func() { c.expire(r, h) })
		case r.Action == Delay:
			h.timers = append(h.timers, time.AfterFunc(r.For, func() { c.expire(r, h) }))
		}
	}
	c.change()
	c.mu.Unlock()
}

// expire ends a delay.
func (c *Controller) expire(r *rule, h *Hit) {
	c.mu.Lock()
	i := slices.Index(r.parked, h)
	if i >= 0 {
		r.parked = slices.Delete(r.parked, i, i+1)
		c.note(r, "over")
	}
	c.mu.Unlock()
	if i >= 0 {
		h.arrive()
	}
}

// Clear drops everything parked, since a reset has taken away what it belongs to. Lanes that outlive it are the device's to empty.
func (b *Bay) Clear(c *Controller) {
	b.epoch++
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.rules {
		n := len(r.parked)
		r.parked = slices.DeleteFunc(r.parked, func(h *Hit) bool {
			if h.bay != b {
				return false
			}
			for _, t := range h.timers {
				t.Stop()
			}
			return true
		})
		if len(r.parked) < n {
			r.dropped = true
			c.note(r, "dropped by a reset")
		}
	}
	c.change()
}

// maxWaiting bounds the work behind something parked: a guest can make any amount of it.
const maxWaiting = 1 << 16

// Lane is work whose order matters: nothing overtakes what is parked in it. It is guarded by its device.
type Lane struct {
	parked  bool
	waiting []func()
}

// Busy says whether work has to wait its turn.
func (l *Lane) Busy() bool { return l.parked }

// Waiting is how much work is in the lane, what is parked included.
func (l *Lane) Waiting() int {
	if !l.parked {
		return 0
	}
	return 1 + len(l.waiting)
}

// Wait queues work behind what is parked; false when there is too much.
func (l *Lane) Wait(work func()) bool {
	if len(l.waiting) == maxWaiting {
		return false
	}
	l.waiting = append(l.waiting, work)
	return true
}

func (l *Lane) run() {
	for len(l.waiting) > 0 && !l.parked {
		work := l.waiting[0]
		l.waiting = l.waiting[1:]
		l.do(work)
	}
}

// do does one piece of work. What that itself leaves waiting comes before what waited already.
func (l *Lane) do(work func()) {
	rest := l.waiting
	l.waiting = nil
	if work(); len(l.waiting) == 0 { // mostly: there may be thousands behind
		l.waiting = rest
		return
	}
	l.waiting = append(l.waiting, rest...)
}
