package runner

import (
	"context"
	"fmt"
	"slices"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/scenarios"
)

// affinity has the guest write a mask to a vector's interrupt, and takes down that it was asked.
func (s *stepper) affinity(ctx context.Context, a *scenarios.Affinity) error {
	vectors, err := s.vectors(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(vectors, func(v agentapi.Vector) bool { return v.Index == int(a.Vector) })
	if i < 0 {
		var there cpulist.List
		for _, v := range vectors {
			there = append(there, v.Index)
		}
		return refusef("vector %d: nobody handles its interrupts; those handled are %s", a.Vector, there)
	}
	v := vectors[i]
	before, err := s.vm.Agent.Observe(ctx, vectors[i:i+1])
	if err != nil {
		return err
	}
	if err := s.vm.Agent.SetAffinity(ctx, []agentapi.AppliedMask{{Index: v.Index, IRQ: v.IRQ, Mask: a.CPUs}}); err != nil {
		if !refusal(err) {
			return err
		}
		info, ierr := s.vm.Agent.Info(ctx)
		if ierr != nil {
			return ierr
		}
		return fmt.Errorf("the kernel does not take CPUs %s for vector %d%s: %w", a.CPUs, v.Index, unusable(a.CPUs, info.CPUs), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asks.own(v, a.CPUs, before.Vectors[0].State.Hint)
	return nil
}

// unusable says why a kernel would refuse a mask, "" where its CPUs give no reason.
func unusable(mask cpulist.List, topo agentapi.Topology) string {
	switch absent := mask.Minus(topo.Present); {
	case len(mask.And(topo.Online)) > 0 && len(absent) == 0:
		return ""
	case len(absent) > 0:
		return fmt.Sprintf(", of which %s not there (present: %s)", absent.Are("is", "are"), topo.Present)
	}
	return fmt.Sprintf(", none of which is online (online: %s)", topo.Online)
}
