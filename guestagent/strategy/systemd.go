package strategy

import (
	"cmp"
	"slices"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
)

// The policies that systemd's udev applies to the interrupts of a network device for IRQAffinityPolicy= in a .link file (systemd pull request 40304). They know no HWC: it is
// one interrupt among the others, the first in order. Without IRQAffinity= and IRQAffinityNUMA=, which they have none of here, the device's node has no part in either.

// single has every interrupt on the first CPU.
func (s *spreader) single(queues int) Plan { return every(BranchSingle, s.online[:1], queues) }

// spreadPolicy gives each interrupt one core's first thread, of the cache domains in turn, far apart in each; with more interrupts than cores it begins again, and never uses
// a core's other threads.
func (s *spreader) spreadPolicy(queues int) Plan {
	order := s.coresApart()
	p := Plan{Branch: BranchSpread, HWC: order[:1], Queues: make([]cpulist.List, queues)}
	for k := range p.Queues {
		p.Queues[k] = cpulist.List{order[(k+1)%len(order)]}
	}
	return p
}

// coresApart is every core's first thread: one of each cache domain in a round. Domains are in the order in which their first CPUs are found; a kernel that does not tell
// who shares a cache has its packages taken for them.
func (s *spreader) coresApart() cpulist.List {
	cpus := make([]agentapi.CPU, len(s.online))
	for i, id := range s.online { // one whose place is unknown is a core of its own
		cpus[i] = agentapi.CPU{ID: id, Core: id}
		if c, ok := s.cpus[id]; ok {
			cpus[i] = c
		}
	}
	domains := map[string]int{}
	of := func(c agentapi.CPU) int {
		if len(c.L3) == 0 {
			return c.Package
		}
		key := c.L3.String()
		if _, known := domains[key]; !known {
			domains[key] = len(domains)
		}
		return domains[key]
	}
	type core struct{ domain, id, cpu int }
	var cores []core
	for _, c := range cpus {
		domain := of(c) // of every CPU, in order: a domain counts even if no core's first thread is in it
		if s.group(c.ID)[0] == c.ID {
			cores = append(cores, core{domain, c.Core, c.ID})
		}
	}
	slices.SortFunc(cores, func(a, b core) int { return cmp.Or(a.domain-b.domain, a.id-b.id, a.cpu-b.cpu) })
	var rows [][]core // a domain's cores
	for _, c := range cores {
		if n := len(rows); n == 0 || rows[n-1][0].domain != c.domain {
			rows = append(rows, nil)
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], c)
	}
	for i := range rows {
		rows[i] = apart(rows[i])
	}
	var order cpulist.List
	rows = apart(rows)
	for round := 0; len(order) < len(cores); round++ {
		for _, row := range rows {
			if round < len(row) {
				order = append(order, row[round].cpu)
			}
		}
	}
	return order
}

// apart puts what was far from each other side by side: of a half each in turn, which are put in order so themselves. The first half has one more if the number is odd.
func apart[T any](in []T) []T {
	if len(in) < 3 {
		return in
	}
	middle := (len(in) + 1) / 2
	left, right := apart(in[:middle]), apart(in[middle:])
	out := make([]T, 0, len(in))
	for i := range left {
		out = append(out, left[i])
		if i < len(right) {
			out = append(out, right[i])
		}
	}
	return out
}
