package lab

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"irqlab/devmodel/inject"
	"irqlab/devmodel/pcifn"
	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
)

// A reading belongs to its vector, whatever the order of the IRQs; what cannot be tied to one is no reading.
func TestRead(t *testing.T) {
	// Two functions opened in turn: the IRQs do not ascend with the vectors.
	vectors := []agentapi.Vector{{Index: 0, IRQ: 40}, {Index: 2, IRQ: 24}, {Index: 1, IRQ: 31}}
	seen := agentapi.Observation{Online: cpulist.Range(0, 3), IRQs: map[int]agentapi.IRQ{24: {Action: "two"}, 31: {Action: "one"}, 40: {Action: "zero"}}}
	r, err := read(vectors, seen)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range r.Vectors {
		got = append(got, v.State.Action)
	}
	if d := cmp.Diff([]string{"zero", "one", "two"}, got); d != "" {
		t.Error(d)
	}
	if v, ok := r.Of(2); !ok || v.IRQ != 24 || v.State.Action != "two" {
		t.Errorf("vector 2: %+v, %v", v, ok)
	}
	if v, ok := r.Of(3); ok {
		t.Errorf("vector 3: %+v", v)
	}
	for _, tc := range []struct {
		what    string
		vectors []agentapi.Vector
		irqs    map[int]agentapi.IRQ
		want    string
	}{
		{"silence about one", []agentapi.Vector{{Index: 0, IRQ: 24}, {Index: 1, IRQ: 25}}, map[int]agentapi.IRQ{24: {}}, "vector 1: the guest was asked for IRQ 25 and told nothing of it"},
		{"one nobody asked for", []agentapi.Vector{{Index: 0, IRQ: 24}}, map[int]agentapi.IRQ{24: {}, 25: {}}, "asked for 1 IRQs and answered for 2"},
		{"one IRQ for two", []agentapi.Vector{{Index: 0, IRQ: 24}, {Index: 1, IRQ: 24}}, map[int]agentapi.IRQ{24: {}}, "vectors 0 and 1: the guest says that both have IRQ 24"},
	} {
		if _, err := read(tc.vectors, agentapi.Observation{IRQs: tc.irqs}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.what, err, tc.want)
		}
	}
}

func TestCompare(t *testing.T) {
	for _, tc := range []struct {
		what      string
		before    map[int]uint64
		after     map[int]uint64
		requested string
		effective string
		handled   string
		unsettled bool
	}{
		{"where it should be", map[int]uint64{0: 1}, map[int]uint64{0: 2}, "0-1", "0", "0", false},
		{"the interrupt that moved it", map[int]uint64{0: 1}, map[int]uint64{0: 2}, "1", "1", "0", true},
		{"not moved", map[int]uint64{0: 1}, map[int]uint64{0: 2}, "1", "0", "0", true},
		{"an effective mask that lies", map[int]uint64{1: 1}, map[int]uint64{1: 2}, "3", "3", "1", true},
		{"on two CPUs", map[int]uint64{1: 1}, map[int]uint64{1: 2, 3: 1}, "1", "1", "1,3", true},
		{"on a CPU that left", map[int]uint64{0: 1, 1: 1}, map[int]uint64{0: 1}, "0", "0", "", true},
		{"routed to two", map[int]uint64{}, map[int]uint64{2: 1}, "2-3", "2-3", "2", false},
	} {
		at := func(counts map[int]uint64) Reading {
			state := agentapi.IRQ{Affinity: parse(t, tc.requested), Effective: parse(t, tc.effective), Counts: counts}
			return Reading{Vectors: []VectorReading{{Vector: agentapi.Vector{Index: 1, IRQ: 30}, State: state}}}
		}
		after := at(tc.after)
		compare(at(tc.before), &after)
		v := after.Vectors[0]
		if v.Handled.String() != tc.handled || v.Unsettled != tc.unsettled || len(after.unsettled()) > 0 != tc.unsettled {
			t.Errorf("%s: handled on %q, unsettled %v; want %q, %v", tc.what, v.Handled, v.Unsettled, tc.handled, tc.unsettled)
		}
	}
	e := &UnsettledError{[]VectorReading{{Vector: agentapi.Vector{Index: 1}, State: agentapi.IRQ{Affinity: cpulist.New(3), Effective: cpulist.New(3)}, Handled: cpulist.Range(0, 2)}}}
	if want := "not settled after 5 rounds: vector 1: requested 3, effective 3, handled on 0-2"; e.Error() != want {
		t.Errorf("got %q, want %q", e, want)
	}
}

func parse(t *testing.T, s string) cpulist.List {
	t.Helper()
	l, err := cpulist.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// still is a behaviour of a device that does nothing.
type still struct{}

func (still) Attach(pcifn.Bus)        {}
func (still) ReadBAR(uint64, []byte)  {}
func (still) WriteBAR(uint64, []byte) {}
func (still) Reset(pcifn.ResetKind)   {}

// What a rule lets go at this very moment was not kept from being fired; what it dropped was, and what a reset dropped.
func TestVolley(t *testing.T) {
	rules := inject.New()
	cfg := pcifn.DefaultConfig()
	cfg.Inject = rules
	pci, err := pcifn.New(cfg, still{})
	if err != nil {
		t.Fatal(err)
	}
	f := &Function{PCI: pci}
	volley := func(rule inject.Rule, meanwhile func()) error {
		t.Helper()
		if err := rules.Add(rule); err != nil {
			t.Fatal(err)
		}
		out, err := f.Volley([]agentapi.Vector{{Index: 0}, {Index: 1}})
		if err != nil {
			t.Fatal(err)
		}
		var ended sync.WaitGroup
		ended.Go(meanwhile)
		defer ended.Wait()
		return out(t.Context())
	}
	for i := range 1000 {
		name := fmt.Sprint("h", i)
		if err := volley(inject.Rule{Name: name, Step: "vector:1", Action: inject.Hold}, func() { _ = rules.End(name) }); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
	var lost *LostError
	if err := volley(inject.Rule{Name: "drop", Step: "vector:1", Action: inject.Drop}, func() {}); !errors.As(err, &lost) {
		t.Errorf("dropped by a rule: %v", err)
	}
	if err := volley(inject.Rule{Name: "reset", Step: "vector:1", Action: inject.Hold}, pci.Reset); !errors.As(err, &lost) {
		t.Errorf("dropped by a reset: %v", err)
	}
}
