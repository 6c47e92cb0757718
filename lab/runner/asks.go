package runner

import (
	"slices"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/lab"
)

// asks remembers which mask was asked for each vector, and by what the kernel may have been kept from keeping it. What the kernel says is requested is no substitute: a move
// that finds no free vector puts the old mask back.
type asks struct {
	left cpulist.List // CPUs that have left since the experiment began
	of   map[int]ask  // by vector

	programs bool // programs have been run in the guest, which may go on there and write masks of their own
}

// ask is the mask that was last asked for a vector.
type ask struct {
	irq     int
	mask    cpulist.List // nil: nothing was asked
	refused string       // the kernel's words, if it said no
	hinted  bool         // the driver's hint says so
	given   bool         // a step or a program of the case has asked, and not the driver
	hint    cpulist.List // of the driver's, when that was
	left    cpulist.List // CPUs that have left since: the kernel takes them out of the mask, and the mask away if none is left
}

// set takes note of masks that the lab has asked for.
func (a *asks) set(masks []agentapi.AppliedMask) {
	for _, m := range masks {
		a.put(m.Index, ask{irq: m.IRQ, mask: m.Mask, refused: m.Refused})
	}
}

func (a *asks) put(vector int, k ask) {
	if a.of == nil {
		a.of = map[int]ask{}
	}
	a.of[vector] = k
}

// leave takes note of a CPU before it is told to leave. stay takes that back, for one that has not.
func (a *asks) leave(cpu int) (stay func()) {
	var undo []func()
	note := func(left cpulist.List) (cpulist.List, bool) { return left.Or(cpulist.New(cpu)), !left.Has(cpu) }
	var fresh bool
	if a.left, fresh = note(a.left); fresh {
		undo = append(undo, func() { a.left = a.left.Minus(cpulist.New(cpu)) })
	}
	for v, k := range a.of {
		if k.left, fresh = note(k.left); fresh {
			undo = append(undo, func() {
				k := a.of[v]
				k.left = k.left.Minus(cpulist.New(cpu))
				a.of[v] = k
			})
		}
		a.of[v] = k
	}
	return func() {
		for _, f := range undo {
			f()
		}
	}
}

// own takes note of a mask that the case has asked for a vector, on top of whatever the driver has.
func (a *asks) own(v agentapi.Vector, mask, hint cpulist.List) {
	a.put(v.Index, ask{irq: v.IRQ, mask: mask, given: true, hint: hint})
}

// disown is for when a driver is about to do something in which it may ask again, in the words it used before, so that nobody can tell whose mask a vector has then: what
// the case has asked counts no longer, and nothing is known until the driver is seen to ask for something else.
func (a *asks) disown() {
	for v, k := range a.of {
		if k.given {
			k.mask = nil
			a.of[v] = k
		}
	}
}

// forget is for when the vectors are given up.
func (a *asks) forget() { a.of = nil }

// heed takes a mask that is another than was asked for as what a program has asked for, once one was run: who wrote it, the kernel does not tell.
func (a *asks) heed(r lab.Reading) {
	for _, v := range r.Vectors {
		if k := a.of[v.Index]; a.programs && !slices.Equal(v.State.Affinity, k.mask) {
			a.put(v.Index, ask{irq: v.IRQ, mask: v.State.Affinity, given: true, hint: v.State.Hint, left: a.left})
		}
	}
}

// learn takes what the kernel's driver has asked from a reading: its hint, or where it gives none the first mask that was seen. When the driver asked is not known, so any
// CPU that has ever left may have done so since.
func (a *asks) learn(r lab.Reading) {
	for _, v := range r.Vectors {
		k, known := a.of[v.Index]
		hint := v.State.Hint
		switch {
		case known && k.given && k.irq == v.IRQ && slices.Equal(k.hint, hint): // the driver has not asked since
		case len(hint) > 0 && !(known && k.irq == v.IRQ && k.hinted && slices.Equal(k.mask, hint)):
			a.put(v.Index, ask{irq: v.IRQ, mask: hint, hinted: true, left: a.left})
		case len(hint) == 0 && (!known || k.irq != v.IRQ || k.hinted || k.given):
			a.put(v.Index, ask{irq: v.IRQ, mask: v.State.Affinity, left: a.left})
		}
	}
}

// about says what was asked for a vector, and, if the kernel did not keep it though a CPU of it was there all the time, that it was dropped.
func (a *asks) about(v lab.VectorReading) (asked cpulist.List, dropped bool, refused string) {
	k, known := a.of[v.Index]
	if !known || k.irq != v.IRQ {
		return nil, false, ""
	}
	lasting := k.mask.Minus(k.left)
	if len(lasting) > 0 && !slices.Equal(v.State.Affinity.Minus(k.left), lasting) {
		return k.mask, true, k.refused
	}
	return k.mask, false, ""
}
