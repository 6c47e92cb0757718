package scenarios

import (
	"maps"
	"slices"
	"testing"

	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/strategy"
	"irqlab/scenarios/result"
)

// allocator is the x86 vector allocator as mana-protocol.md section 6.3 describes it, to reason about pressure without booting a kernel.
type allocator struct {
	used   map[int]int // device vectors by CPU
	node   cpulist.List
	online cpulist.List
}

// pick takes the CPU with the most free vectors in mask, the lowest number on a tie.
func (a *allocator) pick(mask cpulist.List) int {
	best := mask[0]
	for _, c := range mask {
		if a.used[c] < a.used[best] {
			best = c
		}
	}
	a.used[best]++
	return best
}

func (a *allocator) request() int {
	if len(a.node) > 0 {
		return a.pick(a.node)
	}
	return a.pick(a.online)
}

// setMask leaves a vector whose CPU is in the mask; another moves, and its old CPU keeps the vector until the next interrupt.
func (a *allocator) setMask(cpu int, mask cpulist.List) int {
	if mask == nil || mask.Has(cpu) {
		return cpu
	}
	return a.pick(mask)
}

func (a *allocator) raise(levels map[int]int) {
	for cpu, level := range levels {
		a.used[cpu] = max(a.used[cpu], level)
	}
}

// place plays a case through the model and returns what would be observed.
func place(t *testing.T, c Case) result.Case {
	t.Helper()
	if c.Driver == DriverMana {
		// The driver takes one vector for each online CPU and one for the HWC (mana-protocol.md, section 6.2), and has the linear branch since 7.2.
		c.Strategy = map[string]string{"debian:6.1": strategy.LocalSpread, "debian:6.12": strategy.NUMAAware, "debian:6.18": strategy.NUMAAware, "debian:7.3": strategy.Mana72}[c.Kernel]
		c.Vectors = min(c.Vectors, len(c.Online())+1)
	}
	topo := c.Shape.Topology(c.Offline)
	a := &allocator{used: map[int]int{}, online: topo.Online, node: c.Shape.NodeCPUs(c.DeviceNode).And(topo.Online)}
	def := a.online
	if len(a.node) > 0 {
		def = a.node
	}
	plan, err := strategy.Compute(c.Strategy, topo, c.DeviceNode, c.Vectors, c.Queues())
	if err != nil {
		t.Fatal(err)
	}
	requested := func(mask cpulist.List) cpulist.List {
		if mask == nil {
			return def
		}
		return mask
	}
	a.raise(c.Pressure.Levels(BeforeHWC))
	vectors := []result.Vector{{Role: result.RoleHWC, Affinity: requested(plan.HWC), Effective: cpulist.List{a.setMask(a.request(), plan.HWC)}}}
	a.raise(c.Pressure.Levels(BeforeQueues))
	at := make([]int, c.Queues())
	for k := range at {
		at[k] = a.request()
	}
	for k, mask := range plan.Queues {
		vectors = append(vectors, result.Vector{
			Index: k + 1, Role: result.RoleQueue, Affinity: requested(mask), Hint: mask, Effective: cpulist.List{a.setMask(at[k], mask)},
		})
	}
	return result.Case{Strategy: c.Strategy, Branch: plan.Branch, Observations: []result.Observation{result.Observe(LabelSettled, topo.Online, vectors)}}
}

// TestShippedAgainstModel: what the shipped scenarios expect must follow from their own pressure by the three rules of the allocator.
func TestShippedAgainstModel(t *testing.T) {
	for _, name := range Shipped() {
		cases, _, err := mustGet(t, name).Plan(Overrides{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cases {
			if len(c.Cmdline) > 0 {
				continue // the model knows no command line
			}
			if c.Steps != nil {
				continue // CPUs come and go: the model is of a machine that stays as it is
			}
			if slices.ContainsFunc(c.Pressure, func(p Pressure) bool { return slices.Contains(slices.Collect(maps.Values(p.Levels)), PressureFull) }) {
				continue // its CPUs have room without end
			}
			if len(c.Pressure.Neighbours()) > 0 {
				c.drop("neighbours' vectors are not in the model", aspectPlacement)
			}
			for _, reason := range c.Expect.Check(place(t, c)) {
				t.Errorf("%s, %s: %s", name, c.Name, reason)
			}
		}
	}
}

// TestPublishedRows holds low-vcpu to data/published-results.yaml, low_vcpu_affinity.
func TestPublishedRows(t *testing.T) {
	want := map[string][]string{"numa-aware": {"0", "0", "2", "0", "3"}, "linear": {"0", "0", "1", "2", "3"}, "unset": {"0", "2", "3", "2", "3"}}
	cases, _, err := mustGet(t, "low-vcpu").Plan(Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) != len(want) {
		t.Fatalf("%d cases", len(cases))
	}
	for _, c := range cases {
		e := c.Expect.Settled
		got := []string{e.HWC.String()}
		for _, q := range e.Queues {
			got = append(got, q.String())
		}
		if !slices.Equal(got, want[c.Name]) {
			t.Errorf("%s expects %v, published %v", c.Name, got, want[c.Name])
		}
	}
}

// TestPublishedCores holds ht-core-spread to data/published-results.yaml, ht_core_spread, whose irq n is vector n-1, and what it states for 64 queue vectors to every
// smaller number of them.
func TestPublishedCores(t *testing.T) {
	published := map[string]map[int]string{
		"old": {1: "0", 2: "1", 3: "2", 4: "3", 5: "4", 25: "24", 32: "31", 33: "32", 64: "63"},
		"new": {1: "0-1", 2: "2-3", 3: "4-5", 4: "6-7", 5: "8-9", 25: "48-49", 32: "62-63", 33: "0-1", 64: "62-63"},
	}
	cases, _, err := mustGet(t, "ht-core-spread").Plan(Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		e := c.Expect.Settled
		masks := append([]cpulist.List{*e.HWCMask}, e.QueueMasks...)
		if len(masks) != c.Vectors {
			t.Errorf("%s states %d rows for %d vectors", c.Name, len(masks), c.Vectors)
		}
		for irq, want := range published[c.Name] {
			if got := masks[irq-1].String(); got != want {
				t.Errorf("%s, irq %d: %s, published %s", c.Name, irq, got, want)
			}
		}
		for queues := 1; published[c.Name] != nil && queues <= 64; queues++ {
			p, err := strategy.Compute(c.Strategy, c.Shape.Topology(nil), c.DeviceNode, 1+queues, queues)
			if err != nil {
				t.Fatal(err)
			}
			if got := append([]cpulist.List{p.HWC}, p.Queues...); !slices.EqualFunc(got, masks[:1+queues], slices.Equal[cpulist.List]) || p.Branch != *c.Expect.Branch {
				t.Errorf("%s with %d queue vectors, %s: %v, want the first rows of %v", c.Name, queues, p.Branch, got, masks)
			}
		}
	}
	if len(cases) < len(published) {
		t.Errorf("%d cases", len(cases))
	}
}

// TestWrongKernelFails: a kernel that spreads by another strategy must not pass.
func TestWrongKernelFails(t *testing.T) {
	cases, _, err := mustGet(t, "low-vcpu").Plan(Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		for _, other := range cases {
			if wrong := c; c.Name != other.Name {
				wrong.Strategy = other.Strategy
				if len(c.Expect.Check(place(t, wrong))) == 0 {
					t.Errorf("case %s passes with the masks of %s", c.Name, other.Strategy)
				}
			}
		}
	}
	// Nor does one without the pressure: the published row is its doing.
	for _, c := range cases {
		bare := c
		bare.Pressure = nil
		if reasons := c.Expect.Check(place(t, bare)); (len(reasons) == 0) != (c.Name == "linear") {
			t.Errorf("case %s without pressure: %q", c.Name, reasons)
		}
	}
}
