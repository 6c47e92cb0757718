package runner

import (
	"testing"

	"irqlab/guestagent/agentapi"
	"irqlab/lab"
)

// What was asked is kept, and held against what the kernel says of it afterwards.
func TestAsks(t *testing.T) {
	reading := func(irq int, affinity, hint string) lab.Reading {
		state := agentapi.IRQ{Affinity: list(t, affinity), Hint: list(t, hint)}
		return lab.Reading{Vectors: []lab.VectorReading{{Vector: agentapi.Vector{Index: 1, IRQ: irq}, State: state}}}
	}
	set := func(mask, refused string) func(*asks) {
		return func(a *asks) {
			m := agentapi.AppliedMask{Index: 1, IRQ: 30, Refused: refused}
			if mask != "" {
				m.Mask = list(t, mask)
			}
			a.set([]agentapi.AppliedMask{m})
		}
	}
	own := func(mask, hint string) func(*asks) {
		return func(a *asks) { a.own(agentapi.Vector{Index: 1, IRQ: 30}, list(t, mask), list(t, hint)) }
	}
	leave := func(cpu int) func(*asks) { return func(a *asks) { a.leave(cpu) } }
	refused := func(cpu int) func(*asks) { return func(a *asks) { a.leave(cpu)() } }
	learn := func(irq int, affinity, hint string) func(*asks) {
		return func(a *asks) { a.learn(reading(irq, affinity, hint)) }
	}
	program := func(a *asks) { a.programs = true }
	heed := func(affinity string) func(*asks) {
		return func(a *asks) {
			a.heed(reading(30, affinity, "1"))
			a.learn(reading(30, affinity, "1"))
		}
	}
	for _, tc := range []struct {
		what     string
		before   []func(*asks)
		affinity string
		asked    string
		dropped  bool
		refused  string
	}{
		{"kept", []func(*asks){set("1", "")}, "1", "1", false, ""},
		{"the old mask came back", []func(*asks){set("1", "")}, "0-1", "1", true, ""},
		{"refused", []func(*asks){set("1", "no space")}, "0-1", "1", true, "no space"},
		{"refused, and so already", []func(*asks){set("1", "no space")}, "1", "1", false, ""},
		{"nothing asked", []func(*asks){set("", "")}, "0-3", "", false, ""},
		{"nothing known", nil, "0-3", "", false, ""},
		{"its only CPU left", []func(*asks){set("3", ""), leave(3)}, "0-2", "3", false, ""},
		{"and came back", []func(*asks){set("3", ""), leave(3)}, "0-3", "3", false, ""},
		{"one of its CPUs left", []func(*asks){set("2-3", ""), leave(3)}, "2", "2-3", false, ""},
		{"one left, the other was dropped", []func(*asks){set("2-3", ""), leave(3)}, "0-1", "2-3", true, ""},
		{"another CPU left", []func(*asks){set("1", ""), leave(3)}, "0,2", "1", true, ""},
		{"asked again after its CPU was back", []func(*asks){set("3", ""), leave(3), set("3", "")}, "0-2", "3", true, ""},
		{"its CPU was told to leave and stayed", []func(*asks){set("1", ""), refused(1)}, "0,2-3", "1", true, ""},
		{"it had left before that, and come back", []func(*asks){set("1", ""), leave(1), refused(1)}, "0,2-3", "1", false, ""},
		{"a CPU of the hint had been told to leave and stayed", []func(*asks){refused(1), learn(30, "0,2-3", "1")}, "0,2-3", "1", true, ""},
		{"the driver's hint", []func(*asks){learn(30, "1", "1")}, "1", "1", false, ""},
		{"the driver's hint, dropped", []func(*asks){learn(30, "0-1", "1")}, "0-1", "1", true, ""},
		{"a CPU of the hint had left before it was seen", []func(*asks){leave(1), learn(30, "0,2-3", "1")}, "0,2-3", "1", false, ""},
		{"no hint: the first mask seen", []func(*asks){learn(30, "0-1", "")}, "0-1", "0-1", false, ""},
		{"no hint, and the mask changed", []func(*asks){learn(30, "0-1", ""), learn(30, "2", "")}, "2", "0-1", true, ""},
		{"a program wrote another mask", []func(*asks){set("1", ""), program, heed("3")}, "3", "3", false, ""},
		{"no program did", []func(*asks){learn(30, "1", "1"), heed("3")}, "3", "1", true, ""},
		{"a program wrote it, whatever the hint says later", []func(*asks){learn(30, "1", "1"), program, heed("3"), heed("3")}, "3", "3", false, ""},
		{"a program wrote the hint", []func(*asks){learn(30, "1", "1"), program, heed("1")}, "1", "1", false, ""},
		{"another hint", []func(*asks){learn(30, "1", "1"), learn(30, "2", "2")}, "2", "2", false, ""},
		{"the hint went: set up anew", []func(*asks){learn(30, "1", "1"), learn(30, "0-3", "")}, "0-3", "0-3", false, ""},
		{"another IRQ: set up anew", []func(*asks){learn(29, "1", ""), learn(30, "0-3", "")}, "0-3", "0-3", false, ""},
		{"of another IRQ nothing is known", []func(*asks){learn(29, "1", "")}, "0-3", "", false, ""},
		{"a step's own", []func(*asks){set("1", ""), own("2-3", "")}, "2-3", "2-3", false, ""},
		{"a step's own, dropped", []func(*asks){set("1", ""), own("2-3", "")}, "1", "2-3", true, ""},
		{"a step's own, on top of the hint", []func(*asks){learn(30, "1", "1"), own("2", "1"), learn(30, "2", "1")}, "2", "2", false, ""},
		{"a step's own, and the hint came back", []func(*asks){learn(30, "1", "1"), own("2", "1"), learn(30, "1", "1")}, "1", "2", true, ""},
		{"a step's own before the hint was seen", []func(*asks){own("2", "1"), learn(30, "2", "1")}, "2", "2", false, ""},
		{"the driver asked for something else since", []func(*asks){own("2", "1"), learn(30, "3", "3")}, "3", "3", false, ""},
		{"the driver gave up its hint since", []func(*asks){own("2", "1"), learn(30, "0-3", "")}, "0-3", "0-3", false, ""},
		{"the driver may have asked again", []func(*asks){own("2", "1"), (*asks).disown, learn(30, "1", "1")}, "1", "", false, ""},
		{"a CPU of a step's own left", []func(*asks){own("2-3", ""), leave(3)}, "2", "2-3", false, ""},
		{"a CPU of a step's own had left before", []func(*asks){leave(3), own("2-3", "")}, "2", "2-3", true, ""},
		{"given up", []func(*asks){set("1", ""), (*asks).forget}, "0-3", "", false, ""},
	} {
		var a asks
		for _, f := range tc.before {
			f(&a)
		}
		asked, dropped, refused := a.about(reading(30, tc.affinity, "").Vectors[0])
		if asked.String() != tc.asked || dropped != tc.dropped || refused != tc.refused {
			t.Errorf("%s: asked %q, dropped %v, refused %q; want %q, %v, %q", tc.what, asked, dropped, refused, tc.asked, tc.dropped, tc.refused)
		}
	}
}

// Where interrupts were handled is known of vectors that did not move between two readings, and told as long as they have not moved since.
func TestHandlers(t *testing.T) {
	at := func(irq int, effective string, counts map[int]uint64) lab.Reading {
		state := agentapi.IRQ{Effective: list(t, effective), Counts: counts}
		return lab.Reading{Vectors: []lab.VectorReading{{Vector: agentapi.Vector{Index: 1, IRQ: irq}, State: state}}}
	}
	one, two := map[int]uint64{0: 1}, map[int]uint64{0: 2}
	for _, tc := range []struct {
		what                   string
		before, after, observe lab.Reading
		want                   string
	}{
		{"where it is", at(30, "0", one), at(30, "0", two), at(30, "0", two), "0"},
		{"a lie", at(30, "3", one), at(30, "3", two), at(30, "3", two), "0"},
		{"the interrupt that moved it", at(30, "0", one), at(30, "1", two), at(30, "1", two), ""},
		{"moved since", at(30, "0", one), at(30, "0", two), at(30, "1", two), ""},
		{"another IRQ since", at(30, "0", one), at(30, "0", two), at(31, "0", two), ""},
		{"another IRQ meanwhile", at(30, "0", one), at(31, "0", two), at(31, "0", two), ""},
	} {
		var h handlers
		h.learn(at(30, "2", one), at(30, "2", map[int]uint64{0: 1, 2: 1})) // is forgotten
		h.learn(tc.before, tc.after)
		r := tc.observe
		h.tell(&r)
		if got := r.Vectors[0].Handled.String(); got != tc.want {
			t.Errorf("%s: handled on %q, want %q", tc.what, got, tc.want)
		}
	}
}
