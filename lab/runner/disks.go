package runner

import (
	"context"
	"fmt"
	"slices"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// readDisks reads from each disk of the pressure, and notes where its interrupts are, and were handled.
func (s *stepper) readDisks(ctx context.Context, r scenarios.ReadDisks, facts *result.Step) error {
	info, err := s.vm.Agent.Info(ctx)
	if err != nil {
		return err
	}
	s.stage("reading from disks")
	seen, err := s.vm.Agent.ReadDisks(ctx, r.Times())
	if err != nil {
		return err
	}
	if want := len(s.c.Pressure.Neighbours()); len(seen.Disks) != want {
		return fmt.Errorf("the guest has %d of the machine's disks, not %d: this kernel may lack their driver", len(seen.Disks), want)
	}
	for _, d := range seen.Disks {
		facts.Disks = append(facts.Disks, disk(d, info.CPUs))
	}
	return nil
}

// disk is what the agent told of a disk, with the nodes of its interrupts.
func disk(d agentapi.Disk, topo agentapi.Topology) result.Disk {
	out := result.Disk{Name: d.Name, Queues: []result.DiskQueue{}, Served: []result.Served{}}
	if d.Node >= 0 {
		out.Node = &d.Node
	}
	for _, q := range d.Queues {
		out.Queues = append(out.Queues, result.DiskQueue{Index: q.Index, IRQ: q.IRQ, Name: q.State.Action, Managed: q.Managed, Affinity: q.State.Affinity, Effective: q.State.Effective,
			Node: nodeOf(topo, q.State.Effective)})
	}
	for _, x := range d.Served {
		served := result.Served{CPU: x.CPU, Handled: x.On}
		if x.Queue >= 0 {
			served.Queue = &x.Queue
		}
		out.Served = append(out.Served, served)
	}
	return out
}

// nodeOf is the node that all these CPUs are on, nil if there is none.
func nodeOf(topo agentapi.Topology, cpus cpulist.List) *int {
	var node *int
	for _, cpu := range cpus {
		i := slices.IndexFunc(topo.CPUs, func(c agentapi.CPU) bool { return c.ID == cpu })
		if i < 0 || node != nil && *node != topo.CPUs[i].Node {
			return nil
		}
		node = &topo.CPUs[i].Node
	}
	return node
}
