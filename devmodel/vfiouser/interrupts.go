package vfiouser

import (
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"irqlab/devmodel/trace"
)

// Kinds of events about interrupts.
var (
	// TraceSetIRQs is a SET_IRQS message as it was received, before it is carried out.
	TraceSetIRQs = trace.NewKind("set-irqs", "index", "flags", "start", "count", "fds")
	// TraceAssign: the vector has a (new) eventfd.
	TraceAssign = trace.NewKind("vector-assign", "vector", "assignments")
	// TraceDeassign: the vector lost its eventfd.
	TraceDeassign = trace.NewKind("vector-deassign", "vector")
	// TraceFire: the function signalled the vector. delivered 1: its eventfd was written; 0: it has none, the signal waits in the latch.
	TraceFire = trace.NewKind("vector-fire", "vector", "fired", "delivered")
	// TraceLatched: a signal that had waited in the latch was delivered.
	TraceLatched = trace.NewKind("vector-latched", "vector")
	// TraceLost: the vectors' eventfds were sent, and did not arrive.
	TraceLost = trace.NewKind("vector-fds-lost", "index", "start", "count")
	// TraceTrigger: the client asked for the vector to be signalled.
	TraceTrigger = trace.NewKind("vector-trigger", "vector", "delivered")
)

// VectorState is what one vector looks like now.
type VectorState struct {
	Index int
	// Assigned: an eventfd is there. Pending: a signal waits for one.
	Assigned, Pending bool
	// Assignments counts eventfds received, Fired signals asked for by the function, Delivered eventfd writes of either origin.
	Assignments, Fired, Delivered uint64
	// Lost counts eventfds that the client sent for the vector and that did not arrive: this process had no room for their descriptors.
	Lost uint64
}

// vector is one interrupt. Its lock is held while its eventfd is written, so that an eventfd is never closed (and its number reused) under a writer.
type vector struct {
	mu       sync.Mutex
	fd       int
	blocking bool // the client left O_NONBLOCK off
	masked   bool
	state    VectorState
}

// Interrupts are the vectors of one interrupt index. Signals are never lost: one that finds no eventfd is remembered and delivered when one arrives.
type Interrupts struct {
	rec     *trace.Recorder
	vectors []vector
}

// NewInterrupts makes n vectors, none assigned.
func NewInterrupts(n int, rec *trace.Recorder) *Interrupts {
	v := &Interrupts{rec: rec, vectors: make([]vector, n)}
	for i := range v.vectors {
		v.vectors[i].fd = -1
		v.vectors[i].state.Index = i
	}
	return v
}

// Len is the number of vectors.
func (v *Interrupts) Len() int { return len(v.vectors) }

// one is what a signal writes: the eventfd's counter grows by 1.
var one = [8]byte{1}

// signal writes the vector's eventfd. The caller holds the lock and knows that fd is there.
func (x *vector) signal() {
	if x.blocking {
		// A saturated counter would block the write; it also means that the client has not looked yet, so nothing is lost by not adding to it.
		p := []unix.PollFd{{Fd: int32(x.fd), Events: unix.POLLOUT}}
		if n, err := unix.Poll(p, 0); err != nil || n == 0 {
			return
		}
	}
	for {
		if _, err := unix.Write(x.fd, one[:]); err != unix.EINTR {
			break // EAGAIN: saturated, as above
		}
	}
	x.state.Delivered++
}

// Raise signals vector i, or latches the signal. False: there is no such vector.
func (v *Interrupts) Raise(i int) bool {
	if i < 0 || i >= len(v.vectors) {
		return false
	}
	x := &v.vectors[i]
	x.mu.Lock()
	defer x.mu.Unlock()
	x.state.Fired++
	if x.fd < 0 || x.masked {
		x.state.Pending = true
		v.rec.Record(TraceFire, uint64(i), x.state.Fired, 0)
		return true
	}
	// Recorded first: the client may act on the signal before this goroutine runs again, and the timeline should show the cause before the effect.
	v.rec.Record(TraceFire, uint64(i), x.state.Fired, 1)
	x.signal()
	return true
}

// deliverLatched sends a waiting signal if it can be sent now. The caller holds the lock.
func (v *Interrupts) deliverLatched(x *vector) {
	if x.state.Pending && x.fd >= 0 && !x.masked {
		x.state.Pending = false
		v.rec.Record(TraceLatched, uint64(x.state.Index))
		x.signal()
	}
}

// assign puts fd (or none, -1) in place of the vector's eventfd. It owns fd from here on.
func (v *Interrupts) assign(i, fd int) {
	blocking := false
	if fd >= 0 {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
			blocking = true
		}
	}
	x := &v.vectors[i]
	x.mu.Lock()
	old := x.fd
	x.fd, x.blocking, x.state.Assigned = fd, blocking, fd >= 0
	switch {
	case fd >= 0:
		x.state.Assignments++
		v.rec.Record(TraceAssign, uint64(i), x.state.Assignments)
		v.deliverLatched(x)
	case old >= 0:
		v.rec.Record(TraceDeassign, uint64(i))
	}
	x.mu.Unlock()
	if old >= 0 {
		_ = unix.Close(old)
	}
}

// isEventfd tells whether a received descriptor is an eventfd: a write to anything else could block for good or go astray.
func isEventfd(fd int) bool {
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	return err == nil && name == "anon_inode:[eventfd]"
}

// Set carries out a SET_IRQS request on this index: data are the bytes after its fixed part, fds its descriptors. It takes those it keeps by setting their
// element to -1; the rest stay the caller's to close.
func (v *Interrupts) Set(req SetIRQs, data []byte, fds []int) error {
	dataType := req.Flags & (IRQDataNone | IRQDataBool | IRQDataEventfd)
	action := req.Flags & (IRQActionMask | IRQActionUnmask | IRQActionTrigger)
	n := uint64(len(v.vectors))
	start, end := uint64(req.Start), uint64(req.Start)+uint64(req.Count)
	if req.ArgSize < setIRQsSize || dataType|action != req.Flags || end > n {
		return unix.EINVAL
	}
	if dataType != IRQDataEventfd && len(fds) > 0 {
		return unix.EINVAL
	}

	switch dataType {
	case IRQDataEventfd:
		if action != IRQActionTrigger || req.Count == 0 || (len(fds) != 0 && len(fds) != int(req.Count)) {
			return unix.EINVAL
		}
		for _, fd := range fds {
			if !isEventfd(fd) {
				return unix.EINVAL
			}
		}
		for i := start; i < end; i++ {
			fd := -1
			if len(fds) > 0 {
				fd, fds[i-start] = fds[i-start], -1
			}
			v.assign(int(i), fd)
		}
		return nil

	case IRQDataNone:
		if req.Count == 0 {
			if action != IRQActionTrigger {
				return unix.EINVAL
			}
			v.disable()
			return nil
		}
		data = nil

	case IRQDataBool:
		if uint64(len(data)) < uint64(req.Count) {
			return unix.EINVAL
		}

	default:
		return unix.EINVAL
	}

	switch action {
	case IRQActionTrigger, IRQActionMask, IRQActionUnmask:
	default:
		return unix.EINVAL
	}
	for i := start; i < end; i++ {
		if data != nil && data[i-start] == 0 {
			continue
		}
		v.act(int(i), action)
	}
	return nil
}

// lost takes note of eventfds that were sent and did not arrive.
func (v *Interrupts) lost(req SetIRQs) {
	end := min(uint64(req.Start)+uint64(req.Count), uint64(len(v.vectors)))
	for i := uint64(req.Start); i < end; i++ {
		x := &v.vectors[i]
		x.mu.Lock()
		x.state.Lost++
		x.mu.Unlock()
	}
}

// act does one action of the client on one vector.
func (v *Interrupts) act(i int, action uint32) {
	x := &v.vectors[i]
	x.mu.Lock()
	defer x.mu.Unlock()
	switch action {
	case IRQActionTrigger:
		// A test of the wiring: without a wire there is nothing to test and nothing to remember.
		if x.fd < 0 {
			v.rec.Record(TraceTrigger, uint64(i), 0)
			return
		}
		v.rec.Record(TraceTrigger, uint64(i), 1)
		x.signal()
	case IRQActionMask:
		x.masked = true
	case IRQActionUnmask:
		x.masked = false
		v.deliverLatched(x)
	}
}

// disable takes every vector's eventfd away. Latched signals stay: the index may be enabled again in a moment.
func (v *Interrupts) disable() {
	for i := range v.vectors {
		v.assign(i, -1)
		x := &v.vectors[i]
		x.mu.Lock()
		x.masked = false
		x.mu.Unlock()
	}
}

// ClearPending forgets latched signals: the function was reset. Eventfds stay.
func (v *Interrupts) ClearPending() {
	for i := range v.vectors {
		x := &v.vectors[i]
		x.mu.Lock()
		x.state.Pending = false
		x.mu.Unlock()
	}
}

// Release closes every eventfd and forgets latched signals: the client is gone.
func (v *Interrupts) Release() {
	v.disable()
	v.ClearPending()
}

// States is the state of every vector, each consistent in itself.
func (v *Interrupts) States() []VectorState {
	out := make([]VectorState, len(v.vectors))
	for i := range v.vectors {
		x := &v.vectors[i]
		x.mu.Lock()
		out[i] = x.state
		x.mu.Unlock()
	}
	return out
}

// ReadPending fills p with the pending bit array from byte off on: bit n of the array is vector n.
func (v *Interrupts) ReadPending(off uint64, p []byte) {
	clear(p)
	for k := range p {
		for bit := range uint64(8) {
			i := (off+uint64(k))*8 + bit
			if i >= uint64(len(v.vectors)) {
				return
			}
			x := &v.vectors[i]
			x.mu.Lock()
			if x.state.Pending {
				p[k] |= 1 << bit
			}
			x.mu.Unlock()
		}
	}
}
