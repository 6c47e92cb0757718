// Package strategy holds the rules that give each interrupt vector of a function a CPU mask: topology in, masks out.
//
// It is pure: the guest agent uses it to apply a strategy to the CPUs it finds, the host uses it to explain one. It must not know how a
// mask is written, nor where the topology came from. The algorithms are those of shared reference mana-protocol.md, section 6.3.
package strategy

import (
	"fmt"
	"slices"
	"strings"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
)

// NoNode is the node of a function that belongs to none.
const NoNode = -1

// Names of the strategies.
const (
	NUMAAware   = "numa-aware"
	Linear      = "linear"
	Mana72      = "mana-7.2"
	Unset       = "unset"
	AllOnline   = "all-online"
	LocalSpread = "local-spread"
	Siblings    = "siblings"
	Node        = "node"
	Spread      = "spread"
	Single      = "single"
	Masks       = "masks" // that the user gives: Given, which no topology has a part in
)

// Branches a strategy can take; Plan.Branch is one of them. Every strategy that has only one is its own branch.
const (
	BranchNUMAAware     = "numa-aware"                      // vectors exceed the online CPUs: the spread starts at the first sibling group
	BranchNUMAAwareSkip = "numa-aware, first group skipped" // the HWC sits in the first group
	BranchLinear        = "linear"
	BranchUnset         = "unset"
	BranchAllOnline     = "all-online"
	BranchLocalSpread   = "local-spread"
	BranchSiblings      = "siblings"
	BranchNode          = "node"
	BranchNodeNone      = "node, the function has none: all online"
	BranchSpread        = "spread"
	BranchSingle        = "single"
	BranchMasks         = "masks"
)

// Plan is what a strategy asks for. A nil mask means that the vector is left alone.
type Plan struct {
	Branch string
	HWC    cpulist.List
	Queues []cpulist.List // one per queue vector, in the order they were added
}

type rule struct {
	name, text string
	branches   []string
	plan       func(*spreader, int) Plan
}

// rules are in the order of the contract, and then those that came later.
var rules = []rule{
	{NUMAAware, "sibling groups by NUMA distance (kernels 6.9 to 7.1); the first group is skipped when vectors <= online CPUs",
		[]string{BranchNUMAAware, BranchNUMAAwareSkip}, (*spreader).numaAware},
	{Linear, "the k-th queue vector to the k-th online CPU; surplus vectors keep the default", []string{BranchLinear}, (*spreader).linear},
	{Mana72, "numa-aware when vectors <= online CPUs, else linear (the driver since 7.2)",
		[]string{BranchNUMAAwareSkip, BranchLinear}, (*spreader).mana72},
	{Unset, "nothing is set: affinity and hint NULL", []string{BranchUnset},
		func(_ *spreader, n int) Plan { return Plan{Branch: BranchUnset, Queues: make([]cpulist.List, n)} }},
	{AllOnline, "every vector to all online CPUs", []string{BranchAllOnline},
		func(s *spreader, n int) Plan { return every(BranchAllOnline, s.online, n) }},
	{LocalSpread, "one CPU per vector, the device's node first (kernels up to 6.8)", []string{BranchLocalSpread}, (*spreader).localSpread},
	{Siblings, "the k-th queue vector to the sibling group of the k-th online CPU; surplus vectors keep the default",
		[]string{BranchSiblings}, (*spreader).siblingMasks},
	{Node, "every vector to all CPUs of the device's node; to all online CPUs when it has none", []string{BranchNode, BranchNodeNone}, (*spreader).nodeMasks},
	{Spread, "systemd's IRQAffinityPolicy=spread: one CPU per vector, the first thread of each core, L3 domains in turn and far apart; then from the start",
		[]string{BranchSpread}, (*spreader).spreadPolicy},
	{Single, "systemd's IRQAffinityPolicy=single: every vector to the first CPU", []string{BranchSingle}, (*spreader).single},
}

// Names lists the strategies in the contract's order.
func Names() []string {
	names := make([]string, len(rules))
	for i, r := range rules {
		names[i] = r.name
	}
	return names
}

// Describe says in one line what a strategy does, "" for an unknown one.
func Describe(name string) string {
	if r := find(name); r != nil {
		return r.text
	}
	return ""
}

// Branches lists the branches a strategy can take, nil for an unknown one.
func Branches(name string) []string {
	if r := find(name); r != nil {
		return slices.Clone(r.branches)
	}
	return nil
}

func find(name string) *rule {
	for i := range rules {
		if rules[i].name == name {
			return &rules[i]
		}
	}
	return nil
}

// Compute applies the strategy called name to the online CPUs of topo, for a function on node (NoNode: none).
//
// total counts all vectors the function has or will have, the HWC included (what the driver calls usable); it alone decides the branch.
// queues is the number of queue vectors to give masks to, at most total-1. A function on a node that has no online CPU gets no masks from
// the strategies that walk the node's neighbourhood, as in the kernel, whose hop masks are missing for such a node.
func Compute(name string, topo agentapi.Topology, node, total, queues int) (Plan, error) {
	r := find(name)
	switch {
	case r == nil:
		return Plan{}, fmt.Errorf("strategy %q is unknown; the strategies are %s", name, strings.Join(Names(), ", "))
	case len(topo.Online) == 0:
		return Plan{}, fmt.Errorf("strategy %s: the topology has no online CPU", name)
	case node < NoNode:
		return Plan{}, fmt.Errorf("strategy %s: node %d: want a node number, or %d for none", name, node, NoNode)
	case total < 1 || queues < 0 || queues > total-1:
		return Plan{}, fmt.Errorf("strategy %s: %d queue vectors out of %d in all: the HWC needs one of its own", name, queues, total)
	}
	return r.plan(newSpreader(topo, node, total), queues), nil
}

// Given is the plan of masks that the user gives, the first for the first queue vector. The HWC is left alone. There may be fewer queue vectors than masks: a kernel that
// refuses a vector leaves the ones before it.
func Given(masks []cpulist.List, queues int) (Plan, error) {
	if queues > len(masks) {
		return Plan{}, fmt.Errorf("strategy %s: %d masks for %d queue vectors", Masks, len(masks), queues)
	}
	for i, m := range masks {
		if len(m) == 0 {
			return Plan{}, fmt.Errorf("strategy %s: mask %d names no CPU", Masks, i)
		}
	}
	return Plan{Branch: BranchMasks, Queues: slices.Clone(masks[:queues])}, nil
}

// spreader is a topology prepared for one function.
type spreader struct {
	online   cpulist.List
	siblings map[int]cpulist.List
	cpus     map[int]agentapi.CPU
	nodes    []agentapi.Node
	node     int
	total    int
}

func newSpreader(topo agentapi.Topology, node, total int) *spreader {
	s := &spreader{online: topo.Online, siblings: make(map[int]cpulist.List, len(topo.CPUs)), cpus: make(map[int]agentapi.CPU, len(topo.CPUs)), node: node, total: total}
	for _, c := range topo.CPUs {
		s.siblings[c.ID] = c.Siblings.And(s.online)
		s.cpus[c.ID] = c
	}
	s.nodes = slices.Clone(topo.Nodes)
	slices.SortFunc(s.nodes, func(a, b agentapi.Node) int { return a.ID - b.ID })
	return s
}

// group is the sibling group of an online CPU; a CPU whose siblings are unknown is alone.
func (s *spreader) group(cpu int) cpulist.List {
	if g := s.siblings[cpu]; g.Has(cpu) {
		return g
	}
	return cpulist.List{cpu}
}

// numaAware is algorithm C of the reference: HWC alone first, then the queue vectors, skipping the group the HWC sits in.
func (s *spreader) numaAware(queues int) Plan {
	p := Plan{Branch: BranchNUMAAware, HWC: s.hwc()}
	skip := s.total <= len(s.online)
	if skip {
		p.Branch = BranchNUMAAwareSkip
	}
	p.Queues = s.spread(queues, skip)
	return p
}

func (s *spreader) linear(queues int) Plan {
	p := Plan{Branch: BranchLinear, HWC: s.hwc(), Queues: make([]cpulist.List, queues)}
	for k := range min(queues, len(s.online)) {
		p.Queues[k] = cpulist.List{s.online[k]}
	}
	return p
}

// mana72 is algorithm D of the reference.
func (s *spreader) mana72(queues int) Plan {
	if s.total <= len(s.online) {
		return s.numaAware(queues)
	}
	return s.linear(queues)
}

func (s *spreader) localSpread(queues int) Plan {
	order := s.localOrder()
	p := Plan{Branch: BranchLocalSpread, HWC: cpulist.List{order[0]}, Queues: make([]cpulist.List, queues)}
	for k := range p.Queues {
		p.Queues[k] = cpulist.List{order[(k+1)%len(order)]} // the HWC is vector 0 of the same series
	}
	return p
}

func (s *spreader) siblingMasks(queues int) Plan {
	p := Plan{Branch: BranchSiblings, HWC: s.hwc(), Queues: make([]cpulist.List, queues)}
	for k := range min(queues, len(s.online)) {
		p.Queues[k] = s.group(s.online[k])
	}
	return p
}

// nodeMasks gives a function without a node all online CPUs, as the kernel's cpumask_of_node does.
func (s *spreader) nodeMasks(queues int) Plan {
	if s.node == NoNode {
		return every(BranchNodeNone, s.online, queues)
	}
	for _, n := range s.nodes {
		if cpus := n.CPUs.And(s.online); n.ID == s.node && len(cpus) > 0 {
			return every(BranchNode, cpus, queues)
		}
	}
	return Plan{Branch: BranchNode, Queues: make([]cpulist.List, queues)}
}

func every(branch string, mask cpulist.List, queues int) Plan {
	p := Plan{Branch: branch, HWC: mask, Queues: make([]cpulist.List, queues)}
	for k := range p.Queues {
		p.Queues[k] = mask
	}
	return p
}

// hwc is the mask the driver gives the HWC vector when it spreads it alone.
func (s *spreader) hwc() cpulist.List { return s.spread(1, false)[0] }

// spread hands out sibling groups, hop by hop; vectors left when every hop's budget is used up keep a nil mask.
func (s *spreader) spread(vectors int, skipFirst bool) []cpulist.List {
	masks := make([]cpulist.List, vectors)
	next := 0
	var seen cpulist.List
	for _, hop := range s.hops() {
		fresh := hop.Minus(seen)
		for budget := len(fresh); budget > 0; {
			// One pass serves every group once, so that the second thread of a core is used only after all cores were.
			for todo := fresh; len(todo) > 0; budget-- {
				g := s.group(todo[0])
				todo = todo[1:].Minus(g)
				if skipFirst {
					skipFirst = false
					continue
				}
				if next == vectors {
					return masks
				}
				masks[next] = g
				next++
			}
		}
		seen = hop
	}
	return masks
}

// hops are the growing masks of CPUs around the function's node, as the scheduler's NUMA masks give them: one mask of all online CPUs
// without a node, none for a node that is unknown or has no online CPU.
func (s *spreader) hops() []cpulist.List {
	if s.node == NoNode {
		return []cpulist.List{s.online}
	}
	rings := s.rings()
	if rings == nil {
		return nil
	}
	var hops []cpulist.List
	var mask cpulist.List
	for _, ring := range rings {
		mask = mask.Or(ring)
		hops = append(hops, mask)
	}
	return hops
}

// localOrder is the order of single CPUs around the function's node: nearest first, then whatever the nodes do not name.
func (s *spreader) localOrder() cpulist.List {
	var order cpulist.List
	for _, ring := range s.rings() {
		order = append(order, ring...)
	}
	return append(order, s.online.Minus(cpulist.New(order...))...)
}

// rings are the online CPUs at each distance from the function's node, nearest first; nil where the node is unknown or has no online CPU.
func (s *spreader) rings() []cpulist.List {
	at := slices.IndexFunc(s.nodes, func(n agentapi.Node) bool { return n.ID == s.node })
	if s.node == NoNode || at < 0 || len(s.nodes[at].CPUs.And(s.online)) == 0 {
		return nil
	}
	byDistance := map[int]cpulist.List{}
	for i, n := range s.nodes {
		if cpus := n.CPUs.And(s.online); len(cpus) > 0 {
			d := s.distance(at, i)
			byDistance[d] = byDistance[d].Or(cpus)
		}
	}
	var distances []int
	for d := range byDistance {
		distances = append(distances, d)
	}
	slices.Sort(distances)
	var rings []cpulist.List
	for _, d := range distances {
		rings = append(rings, byDistance[d])
	}
	return rings
}

// Distances of the ACPI SLIT's defaults, for a topology that lacks a row.
const (
	localDistance  = 10
	remoteDistance = 20
)

func (s *spreader) distance(from, to int) int {
	if d := s.nodes[from].Distances; len(d) == len(s.nodes) {
		return d[to]
	}
	if from == to {
		return localDistance
	}
	return remoteDistance
}
