package runner

import (
	"context"

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

// suspend puts the guest to sleep and wakes it. To sleep in RAM it takes all CPUs but the first offline, and with them what masks they are in.
func (s *stepper) suspend(ctx context.Context, how scenarios.Suspend, facts *result.Step) error {
	if _, err := s.probed(ctx); err != nil {
		return err
	}
	stay := func() {}
	if how.State() == scenarios.SuspendMem {
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
	s.stage("suspending to " + how.State())
	slept, err := s.vm.Suspend(ctx, how.State(), how.Asleep())
	if err != nil && refusal(err) {
		s.mu.Lock()
		stay()
		s.mu.Unlock()
	}
	if err != nil {
		return s.refused(ctx, "the guest did not suspend to "+how.State(), err)
	}
	facts.Slept = slept.Seconds
	return nil
}
