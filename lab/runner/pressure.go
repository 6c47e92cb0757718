package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/lab"
	"irqlab/scenarios"
)

const (
	pressureSlot = "pressure"
	// beforeQueues is the rule of the lab's own that keeps the kernel's driver between its HWC vector and its queue vectors. No rule of a case can have this name.
	beforeQueues = "pressure before queues"
	// resourcesTime is how long a driver whose start has returned may take to ask for its resources.
	resourcesTime = 10 * time.Second
)

func (e *experiment) hasLevels() bool {
	return e.c.Pressure.Levels(scenarios.BeforeHWC) != nil || e.c.Pressure.Levels(scenarios.BeforeQueues) != nil
}

// openPressure opens the function whose vectors are the agent's to place, if the case needs it, and returns what brings the levels of a moment about.
func (s *stepper) openPressure(ctx context.Context) (press func(ctx context.Context, before string) error, err error) {
	if !s.hasLevels() {
		return func(context.Context, string) error { return nil }, nil
	}
	open := agentapi.OpenFunctionParams{Vendor: lab.VendorID, Device: lab.PressureID, WaitMS: int(hotPlug.Milliseconds())}
	fn, err := s.vm.Agent.OpenFunction(ctx, open)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, before string) error {
		occupy := agentapi.OccupyParams{Address: fn.Address, Levels: map[int]int{}}
		for cpu, level := range s.c.Pressure.Levels(before) {
			if level == scenarios.PressureFull {
				occupy.Full = occupy.Full.Or(cpulist.List{cpu})
			} else {
				occupy.Levels[cpu] = level
			}
		}
		if len(occupy.Levels)+len(occupy.Full) == 0 {
			return nil
		}
		s.stage("pressure before " + before)
		r, err := s.vm.Agent.Occupy(ctx, occupy)
		if err == nil && len(r.Above) > 0 {
			s.note("pressure before %s: %s more vectors than its level already", before, r.Above.Are("had", "had"))
		}
		return err
	}, nil
}

// mostPressure is the number of vectors the levels could need on CPUs that have none; one at least, since no function has less.
func (e *experiment) mostPressure() int {
	sum := 0
	for cpu := range e.c.Shape.CPUs() {
		sum += max(scenarios.Room(e.c.Pressure.Levels(scenarios.BeforeHWC)[cpu]), scenarios.Room(e.c.Pressure.Levels(scenarios.BeforeQueues)[cpu]))
	}
	return max(1, min(sum, scenarios.MaxVectors))
}

// underPressure has the kernel's driver start under the pressure of the case, if it is the first time: what is there before the HWC's vector is there before the start, and what comes before
// the queues' is brought up while the device withholds its answer on the resources that there are, which a driver wants to know before it allocates those vectors. The error is the pressure's; how the start
// went, start itself takes down.
func (s *stepper) underPressure(ctx context.Context, start func() error) error {
	s.mu.Lock()
	first := !s.pressed
	s.pressed = true
	s.mu.Unlock()
	if !first || !s.hasLevels() {
		_ = start()
		return nil
	}
	press, err := s.openPressure(ctx)
	if err == nil {
		err = press(ctx, scenarios.BeforeHWC)
	}
	if err != nil {
		return err
	}
	if s.c.Pressure.Levels(scenarios.BeforeQueues) == nil {
		_ = start()
		return nil
	}
	rule := inject.Rule{Name: beforeQueues, Step: "response:QUERY_MAX_RESOURCES", Action: inject.Hold}
	if err := s.inject.Add(rule); err != nil {
		return err
	}
	waits, late := context.WithCancelCause(ctx)
	defer late(nil)
	pressed := make(chan error, 1)
	go func() { pressed <- s.pressHeld(waits, press) }()
	err = start()
	timer := time.AfterFunc(resourcesTime, func() { late(errNoResources) })
	defer timer.Stop()
	if err != nil {
		late(errNoResources)
	}
	err = <-pressed
	if errors.Is(err, errNoResources) {
		s.note("the driver did not ask for its resources, so the pressure before its queue vectors was not brought up")
		return nil
	}
	return err
}

var errNoResources = errors.New("the driver did not ask for its resources")

// pressHeld brings the pressure up once the driver waits for the answer, and gives it.
func (s *stepper) pressHeld(ctx context.Context, press func(context.Context, string) error) error {
	defer func() { _ = s.inject.End(beforeQueues) }() // unless it is over
	if err := s.inject.AwaitHeld(ctx, beforeQueues); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	address, err := s.address(ctx)
	if err != nil {
		return err
	}
	vectors, err := s.vm.Agent.FunctionIRQs(ctx, address)
	if err != nil {
		return err
	}
	for _, v := range vectors {
		if v.Index > 0 && v.Name != "" {
			s.note("this kernel's driver requests its queue vectors before it knows what resources there are: the pressure before queues came after them")
			break
		}
	}
	if err := press(ctx, scenarios.BeforeQueues); err != nil {
		return fmt.Errorf("pressure before queues: %w", err)
	}
	return nil
}
