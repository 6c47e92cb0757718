package runner

import (
	"context"
	"errors"

	"irqlab/guestagent/agentapi"
	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// remove has the kernel forget the function, which ends its driver's use of it like an unbinding, or that of the guest's user space.
func (s *stepper) remove(ctx context.Context) error {
	if _, err := s.probed(ctx); err != nil {
		return err
	}
	address, err := s.address(ctx)
	if err != nil {
		return err
	}
	if err := s.depart(ctx, "the kernel did not remove the function", func() error { return s.vm.Agent.Remove(ctx, address) }); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pressure := s.driver.press
	if pressure == nil {
		pressure = s.driver.pressure
	}
	s.driver = driver{log: s.driver.log, loaded: s.driver.loaded, pressure: pressure}
	return nil
}

// rescan has the kernel find the function again, and a driver that is loaded probe it. What came of the probe, a probe step tells.
func (s *stepper) rescan(ctx context.Context) error {
	if err := s.beforeProbe(ctx); err != nil {
		return err
	}
	s.stage("scanning for PCI functions")
	return s.vm.Agent.Rescan(ctx)
}

// suspend puts the guest to sleep and wakes it.
func (s *stepper) suspend(ctx context.Context, how scenarios.Suspend, facts *result.Step) error {
	s.stage("suspending to " + how.State())
	return s.sleep(ctx, how.State() == scenarios.SuspendMem, "the guest did not suspend to "+how.State(), facts, func() (agentapi.Suspended, error) {
		return s.vm.Suspend(ctx, how.State(), how.Asleep())
	})
}

// hibernate has the guest write itself to a disk, and go on from there.
func (s *stepper) hibernate(ctx context.Context, facts *result.Step) error {
	s.stage("hibernating")
	err := s.sleep(ctx, true, "the guest did not hibernate", facts, func() (agentapi.Suspended, error) { return s.vm.Hibernate(ctx) })
	if errors.As(err, new(*lab.NoDiskError)) {
		return refusef("%w", err)
	}
	return err
}

// sleep carries out a sleep. For one that takes all CPUs but the first offline, alone, they have left, and with them the masks they are in.
func (s *stepper) sleep(ctx context.Context, alone bool, what string, facts *result.Step, do func() (agentapi.Suspended, error)) error {
	if _, err := s.probed(ctx); err != nil {
		return err
	}
	stay := func() {}
	if alone {
		info, err := s.vm.Agent.Info(ctx)
		if err != nil {
			return err
		}
		s.mu.Lock()
		var undo []func()
		for _, cpu := range info.CPUs.Online[1:] {
			undo = append(undo, s.asks.leave(cpu))
		}
		s.mu.Unlock()
		stay = func() {
			for _, f := range undo {
				f()
			}
		}
	}
	slept, err := do()
	if err != nil && refusal(err) { // the CPUs are where they were, and so are the masks
		s.mu.Lock()
		stay()
		s.mu.Unlock()
	}
	if err != nil {
		return s.refused(ctx, what, err)
	}
	facts.Slept = slept.Seconds
	return nil
}

// hibernates reports whether any of the steps has the guest hibernate.
func hibernates(steps []scenarios.Step) bool {
	found := false
	eachStep(steps, func(s *scenarios.Step) { found = found || s.Verb == scenarios.VerbHibernate })
	return found
}
