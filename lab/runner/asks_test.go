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
	leave := func(cpus string) func(*asks) { return func(a *asks) { a.leave(list(t, cpus)) } }
	learn := func(irq int, affinity, hint string) func(*asks) {
		return func(a *asks) { a.learn(reading(irq, affinity, hint)) }
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
		{"its only CPU left", []func(*asks){set("3", ""), leave("3")}, "0-2", "3", false, ""},
		{"and came back", []func(*asks){set("3", ""), leave("3")}, "0-3", "3", false, ""},
		{"one of its CPUs left", []func(*asks){set("2-3", ""), leave("3")}, "2", "2-3", false, ""},
		{"one left, the other was dropped", []func(*asks){set("2-3", ""), leave("3")}, "0-1", "2-3", true, ""},
		{"another CPU left", []func(*asks){set("1", ""), leave("3")}, "0,2", "1", true, ""},
		{"asked again after its CPU was back", []func(*asks){set("3", ""), leave("3"), set("3", "")}, "0-2", "3", true, ""},
		{"the driver's hint", []func(*asks){learn(30, "1", "1")}, "1", "1", false, ""},
		{"the driver's hint, dropped", []func(*asks){learn(30, "0-1", "1")}, "0-1", "1", true, ""},
		{"a CPU of the hint had left before it was seen", []func(*asks){leave("1"), learn(30, "0,2-3", "1")}, "0,2-3", "1", false, ""},
		{"no hint: the first mask seen", []func(*asks){learn(30, "0-1", "")}, "0-1", "0-1", false, ""},
		{"no hint, and the mask changed", []func(*asks){learn(30, "0-1", ""), learn(30, "2", "")}, "2", "0-1", true, ""},
		{"another hint", []func(*asks){learn(30, "1", "1"), learn(30, "2", "2")}, "2", "2", false, ""},
		{"the hint went: set up anew", []func(*asks){learn(30, "1", "1"), learn(30, "0-3", "")}, "0-3", "0-3", false, ""},
		{"another IRQ: set up anew", []func(*asks){learn(29, "1", ""), learn(30, "0-3", "")}, "0-3", "0-3", false, ""},
		{"of another IRQ nothing is known", []func(*asks){learn(29, "1", "")}, "0-3", "", false, ""},
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
