package strategy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
)

// machine builds the topology QEMU gives: threads of a core are neighbours, nodes are equal runs of CPUs. Offline CPUs vanish from it.
func machine(cpus, threads, nodes int, offline string) agentapi.Topology {
	off, err := cpulist.Parse(offline)
	if err != nil {
		panic(err)
	}
	all := cpulist.Range(0, cpus-1)
	t := agentapi.Topology{Online: all.Minus(off), Present: all, Possible: all}
	for _, c := range t.Online {
		core := c / threads
		t.CPUs = append(t.CPUs, agentapi.CPU{ID: c, Node: c * nodes / cpus, Core: core, Siblings: cpulist.Range(core*threads, core*threads+threads-1).Minus(off)})
	}
	for n := range nodes {
		node := agentapi.Node{ID: n}
		for _, c := range t.Online {
			if c*nodes/cpus == n {
				node.CPUs = append(node.CPUs, c)
			}
		}
		for m := range nodes {
			node.Distances = append(node.Distances, 10+10*max(n-m, m-n))
		}
		t.Nodes = append(t.Nodes, node)
	}
	return t
}

// caches is a machine whose CPUs share a cache by so many.
func caches(cpus, threads, shared int) agentapi.Topology {
	t := machine(cpus, threads, 1, "")
	for i := range t.CPUs {
		first := i / shared * shared
		t.CPUs[i].L3 = cpulist.Range(first, min(first+shared, cpus)-1)
	}
	return t
}

// packages is a machine of packages of so many CPUs, whose kernel tells of no cache.
func packages(cpus, each int) agentapi.Topology {
	t := machine(cpus, 1, 1, "")
	for i := range t.CPUs {
		t.CPUs[i].Package = i / each
	}
	return t
}

// backwards is a machine whose last CPU is its first core.
func backwards(cpus int) agentapi.Topology {
	t := machine(cpus, 1, 1, "")
	for i := range t.CPUs {
		t.CPUs[i].Core = cpus - 1 - i
	}
	return t
}

func show(p Plan) string {
	q := make([]string, len(p.Queues))
	for i, m := range p.Queues {
		q[i] = mask(m)
	}
	return mask(p.HWC) + "; " + strings.Join(q, " ")
}

func mask(l cpulist.List) string {
	if l == nil {
		return "."
	}
	return l.String()
}

func TestCompute(t *testing.T) {
	lowVCPU := machine(4, 2, 1, "")
	cpuless := machine(4, 2, 1, "")
	cpuless.Nodes = append(cpuless.Nodes, agentapi.Node{ID: 1, Distances: []int{20, 10}})
	cpuless.Nodes[0].Distances = []int{10, 20}
	nodeless := machine(4, 2, 1, "")
	nodeless.Nodes = nil
	for _, tc := range []struct {
		what     string
		strategy string
		topo     agentapi.Topology
		node     int
		total    int
		branch   string
		want     string // HWC; queues, "." for nil
	}{
		// mana-protocol.md section 6.4.
		{"6.4 row A", LocalSpread, lowVCPU, 0, 5, BranchLocalSpread, "0; 1 2 3 0"},
		{"6.4 row C", NUMAAware, lowVCPU, 0, 5, BranchNUMAAware, "0-1; 0-1 2-3 0-1 2-3"},
		{"6.4 row C, no node", NUMAAware, lowVCPU, NoNode, 5, BranchNUMAAware, "0-1; 0-1 2-3 0-1 2-3"},
		{"6.4 row D", Mana72, lowVCPU, 0, 5, BranchLinear, "0-1; 0 1 2 3"},
		{"6.4 four vectors, C", NUMAAware, lowVCPU, 0, 4, BranchNUMAAwareSkip, "0-1; 2-3 0-1 2-3"},
		{"6.4 four vectors, D", Mana72, lowVCPU, 0, 4, BranchNUMAAwareSkip, "0-1; 2-3 0-1 2-3"},

		{"three vectors", Mana72, lowVCPU, 0, 3, BranchNUMAAwareSkip, "0-1; 2-3 0-1"},
		{"six vectors", Mana72, lowVCPU, 0, 6, BranchLinear, "0-1; 0 1 2 3 ."},
		{"six vectors, numa-aware: one pass per thread, then nothing", NUMAAware, lowVCPU, 0, 6, BranchNUMAAware, "0-1; 0-1 2-3 0-1 2-3 ."},
		{"linear", Linear, lowVCPU, 0, 5, BranchLinear, "0-1; 0 1 2 3"},
		{"linear below the boundary", Linear, lowVCPU, 0, 3, BranchLinear, "0-1; 0 1"},
		{"unset", Unset, lowVCPU, 0, 5, BranchUnset, ".; . . . ."},
		{"all-online", AllOnline, lowVCPU, 0, 3, BranchAllOnline, "0-3; 0-3 0-3"},
		{"siblings", Siblings, lowVCPU, 0, 7, BranchSiblings, "0-1; 0-1 0-1 2-3 2-3 . ."},
		{"node", Node, machine(8, 2, 2, ""), 1, 3, BranchNode, "4-7; 4-7 4-7"},
		{"node none", Node, machine(8, 2, 2, ""), NoNode, 3, BranchNodeNone, "0-7; 0-7 0-7"},
		{"HWC only", Mana72, lowVCPU, 0, 1, BranchNUMAAwareSkip, "0-1; "},

		// Odd machines.
		{"one CPU", NUMAAware, machine(1, 1, 1, ""), 0, 3, BranchNUMAAware, "0; 0 ."},
		{"one CPU, one vector: the skipped group is all there is", NUMAAware, machine(1, 1, 1, ""), 0, 1, BranchNUMAAwareSkip, "0; "},
		{"one CPU, linear", Linear, machine(1, 1, 1, ""), 0, 3, BranchLinear, "0; 0 ."},
		{"one CPU, local", LocalSpread, machine(1, 1, 1, ""), 0, 3, BranchLocalSpread, "0; 0 0"},
		{"no SMT", NUMAAware, machine(4, 1, 1, ""), 0, 4, BranchNUMAAwareSkip, "0; 1 2 3"},
		{"no SMT, more vectors", NUMAAware, machine(4, 1, 1, ""), 0, 5, BranchNUMAAware, "0; 0 1 2 3"},
		{"1x4x2, one thread of each of three cores off", NUMAAware, machine(8, 2, 1, "3,5,7"), 0, 6, BranchNUMAAware, "0-1; 0-1 2 4 6 0-1"},
		{"the same, linear", Linear, machine(8, 2, 1, "3,5,7"), 0, 7, BranchLinear, "0-1; 0 1 2 4 6 ."},
		{"a pass over uneven groups overshoots its budget", NUMAAware, machine(4, 2, 1, "1"), 0, 7, BranchNUMAAware, "0; 0 2-3 0 2-3 . ."},
		{"whole core off", NUMAAware, machine(8, 2, 1, "2-3"), 0, 6, BranchNUMAAwareSkip, "0-1; 4-5 6-7 0-1 4-5 6-7"},
		{"spill to the second node", NUMAAware, machine(8, 2, 2, ""), 1, 9, BranchNUMAAware, "4-5; 4-5 6-7 4-5 6-7 0-1 2-3 0-1 2-3"},
		{"skip counts against the node's budget", NUMAAware, machine(8, 2, 2, ""), 1, 6, BranchNUMAAwareSkip, "4-5; 6-7 4-5 6-7 0-1 2-3"},
		{"no node ignores distance", NUMAAware, machine(8, 2, 2, ""), NoNode, 4, BranchNUMAAwareSkip, "0-1; 2-3 4-5 6-7"},
		{"three nodes in a row, from the end", NUMAAware, machine(6, 1, 3, ""), 2, 6, BranchNUMAAwareSkip, "4; 5 2 3 0 1"},
		{"three nodes in a row, from the middle: both neighbours are one hop", NUMAAware, machine(6, 1, 3, ""), 1, 6, BranchNUMAAwareSkip, "2; 3 0 1 4 5"},
		{"local-spread from node 1", LocalSpread, machine(4, 1, 2, ""), 1, 6, BranchLocalSpread, "2; 3 0 1 2 3"},
		{"CPU-less node: no hop masks", NUMAAware, cpuless, 1, 5, BranchNUMAAware, ".; . . . ."},
		{"CPU-less node: node's mask would be empty", Node, cpuless, 1, 3, BranchNode, ".; . ."},
		{"CPU-less node, linear is not concerned but for the HWC", Linear, cpuless, 1, 3, BranchLinear, ".; 0 1"},
		{"CPU-less node, local order", LocalSpread, cpuless, 1, 3, BranchLocalSpread, "0; 1 2"},
		{"node all offline", NUMAAware, machine(4, 1, 2, "2-3"), 1, 3, BranchNUMAAware, ".; . ."},
		{"topology without nodes", NUMAAware, nodeless, NoNode, 5, BranchNUMAAware, "0-1; 0-1 2-3 0-1 2-3"},
		{"topology without nodes, device with one", NUMAAware, nodeless, 0, 5, BranchNUMAAware, ".; . . . ."},
		{"unknown siblings", NUMAAware, agentapi.Topology{Online: cpulist.Range(0, 1)}, NoNode, 3, BranchNUMAAware, "0; 0 1"},

		// systemd's policies. Two sockets of eight cores, then cache domains within a package; threads of a core are neighbours.
		{"single", Single, lowVCPU, 0, 4, BranchSingle, "0; 0 0 0"},
		{"spread, one domain: first threads only, again and again", Spread, lowVCPU, 0, 6, BranchSpread, "0; 2 0 2 0 2"},
		{"spread, eight cores", Spread, machine(8, 1, 1, ""), 0, 10, BranchSpread, "0; 4 2 6 1 5 3 7 0 4"},
		{"spread, five cores", Spread, machine(5, 1, 1, ""), 0, 6, BranchSpread, "0; 3 2 4 1 0"},
		{"spread, two domains in turn", Spread, caches(8, 1, 4), 1, 9, BranchSpread, "0; 4 2 6 1 5 3 7 0"},
		{"spread, four domains of two: domains far apart first", Spread, caches(8, 1, 2), 1, 9, BranchSpread, "0; 4 2 6 1 5 3 7 0"},
		{"spread, two domains of four threads", Spread, caches(8, 2, 4), 0, 6, BranchSpread, "0; 4 2 6 0 4"},
		{"spread, uneven domains: the larger one goes on alone", Spread, caches(5, 1, 3), 0, 7, BranchSpread, "0; 3 2 4 1 0 3"},
		{"spread, no cache told: packages", Spread, packages(8, 4), 0, 5, BranchSpread, "0; 4 2 6 1"},
		{"spread, a first thread offline: the other is the first", Spread, machine(4, 2, 1, "2"), 0, 3, BranchSpread, "0; 3 0"},
		{"spread, cores numbered the other way", Spread, backwards(4), 0, 5, BranchSpread, "3; 1 2 0 3"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			p, err := Compute(tc.strategy, tc.topo, tc.node, tc.total, tc.total-1)
			if err != nil {
				t.Fatal(err)
			}
			if got := show(p); got != tc.want {
				t.Errorf("masks %q, want %q", got, tc.want)
			}
			if p.Branch != tc.branch {
				t.Errorf("branch %q, want %q", p.Branch, tc.branch)
			}
			if !slices.Contains(Branches(tc.strategy), p.Branch) {
				t.Errorf("branch %q is not among those %s declares", p.Branch, tc.strategy)
			}
		})
	}
}

// TestLargeMachine is mana-protocol.md section 6.5 and the published ht_core_spread rows: 128 CPUs, 2 nodes x 32 cores x 2 threads.
func TestLargeMachine(t *testing.T) {
	topo := machine(128, 2, 2, "")
	core := func(k int) string { return fmt.Sprintf("%d-%d", 2*k, 2*k+1) }
	for _, tc := range []struct {
		strategy string
		node     int
		total    int
		want     map[int]string // vector -> mask; 0 is the HWC
	}{
		{NUMAAware, 0, 33, map[int]string{0: core(0), 1: core(1), 31: core(31), 32: core(0)}},
		{Mana72, 0, 33, map[int]string{0: core(0), 1: core(1), 31: core(31), 32: core(0)}},
		{NUMAAware, NoNode, 33, map[int]string{0: core(0), 31: core(31), 32: core(32)}},
		{NUMAAware, 1, 33, map[int]string{0: core(32), 1: core(33), 31: core(63), 32: core(32)}},
		{NUMAAware, 0, 64, map[int]string{1: core(1), 31: core(31), 32: core(0), 63: core(31)}},
		{NUMAAware, 0, 65, map[int]string{63: core(31), 64: core(32)}},
		{Mana72, 0, 129, map[int]string{0: core(0), 1: "0", 64: "63", 128: "127"}},
		{LocalSpread, 0, 33, map[int]string{0: "0", 1: "1", 31: "31", 32: "32"}},
		{LocalSpread, 1, 66, map[int]string{0: "64", 63: "127", 64: "0"}},
		// Published ht_core_spread: its irq n is vector n-1; the new design's cpu column.
		{NUMAAware, 0, 64, map[int]string{0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7", 4: "8-9", 24: "48-49", 31: "62-63", 32: "0-1", 63: "62-63"}},
	} {
		p, err := Compute(tc.strategy, topo, tc.node, tc.total, tc.total-1)
		if err != nil {
			t.Fatal(err)
		}
		for v, want := range tc.want {
			got := p.HWC
			if v > 0 {
				got = p.Queues[v-1]
			}
			if got.String() != want {
				t.Errorf("%s node %d, %d vectors: vector %d has %s, want %s", tc.strategy, tc.node, tc.total, v, got, want)
			}
		}
	}
}

func TestComputeErrors(t *testing.T) {
	topo := machine(4, 2, 1, "")
	for _, tc := range []struct {
		name                string
		topo                agentapi.Topology
		node, total, queues int
		err                 string
	}{
		{"linaer", topo, 0, 5, 4, "numa-aware, linear"},
		{Linear, agentapi.Topology{}, 0, 5, 4, "no online CPU"},
		{Linear, topo, -2, 5, 4, "node -2"},
		{Linear, topo, 0, 0, 0, "0 in all"},
		{Linear, topo, 0, 5, 5, "5 queue vectors out of 5"},
		{Linear, topo, 0, 5, -1, "-1 queue vectors"},
	} {
		if _, err := Compute(tc.name, tc.topo, tc.node, tc.total, tc.queues); err == nil || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("Compute(%s, %d, %d, %d): error %v, want one with %q", tc.name, tc.node, tc.total, tc.queues, err, tc.err)
		}
	}
}

func TestNames(t *testing.T) {
	want := "numa-aware linear mana-7.2 unset all-online local-spread siblings node spread single"
	if got := strings.Join(Names(), " "); got != want {
		t.Errorf("Names() = %s, want the contract's %s", got, want)
	}
	for _, n := range Names() {
		if Describe(n) == "" || len(Branches(n)) == 0 {
			t.Errorf("%s has no description or no branch", n)
		}
	}
	if Describe("nope") != "" || Branches("nope") != nil {
		t.Error("an unknown strategy is described")
	}
}

// FuzzCompute checks what must hold of every topology a guest can report: no panic, no mask outside the online CPUs, and no empty mask.
func FuzzCompute(f *testing.F) {
	f.Add(uint8(4), uint8(2), uint8(1), uint64(0), int8(0), uint8(5))
	f.Add(uint8(1), uint8(1), uint8(1), uint64(0), int8(-1), uint8(1))
	f.Add(uint8(8), uint8(2), uint8(2), uint64(0b11101000), int8(1), uint8(9))
	f.Fuzz(func(t *testing.T, cpus, threads, nodes uint8, offline uint64, node int8, total uint8) {
		if cpus == 0 || threads == 0 || nodes == 0 || nodes > cpus {
			return
		}
		var off cpulist.List
		for c := 1; c < min(int(cpus), 64); c++ {
			if offline>>c&1 == 1 {
				off = append(off, c)
			}
		}
		topo := machine(int(cpus), int(threads), int(nodes), off.String())
		for _, name := range Names() {
			p, err := Compute(name, topo, int(node), int(total), int(total)-1)
			if err != nil {
				if node >= NoNode && total > 0 {
					t.Fatalf("%s: %v", name, err)
				}
				continue
			}
			if len(p.Queues) != int(total)-1 {
				t.Fatalf("%s: %d queue masks for %d vectors", name, len(p.Queues), total)
			}
			for _, m := range append(p.Queues, p.HWC) {
				if m != nil && (len(m) == 0 || !m.Within(topo.Online)) {
					t.Fatalf("%s: mask %q on online %s", name, m, topo.Online)
				}
			}
		}
	})
}

func BenchmarkCompute(b *testing.B) {
	topo := machine(128, 2, 2, "")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Compute(Mana72, topo, 0, 65, 64); err != nil {
			b.Fatal(err)
		}
	}
}

func ExampleCompute() {
	topo := machine(4, 2, 1, "") // 2 cores x 2 threads
	p, _ := Compute(Mana72, topo, 0, 4, 3)
	fmt.Println(p.Branch)
	fmt.Println(p.HWC, p.Queues)
	// Output:
	// numa-aware, first group skipped
	// 0-1 [2-3 0-1 2-3]
}

// Masks of the user's own go to the queue vectors in order, and to those alone.
func TestGiven(t *testing.T) {
	masks := []cpulist.List{{0}, {1, 5}, {2, 3}}
	for _, tc := range []struct {
		masks     []cpulist.List
		queues    int
		want, err string
	}{
		{masks, 3, ".; 0 1,5 2-3", ""},
		{masks, 2, ".; 0 1,5", ""}, // the kernel refused the third vector
		{masks, 0, ".; ", ""},      // the HWC's turn
		{masks, 4, "", "3 masks for 4 queue vectors"},
		{[]cpulist.List{{0}, {}}, 2, "", "mask 1 names no CPU"},
	} {
		p, err := Given(tc.masks, tc.queues)
		switch {
		case tc.err != "":
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%v for %d: error %v, want one with %q", tc.masks, tc.queues, err, tc.err)
			}
		case err != nil || show(p) != tc.want || p.Branch != BranchMasks:
			t.Errorf("%v for %d: %s, %v; want %s", tc.masks, tc.queues, show(p), err, tc.want)
		}
	}
}
