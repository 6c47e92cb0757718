package runner

import (
	"context"
	"errors"
	"sync"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/devmodel/trace"
	"irqlab/guestagent/agentapi"
	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// sessionReplugs is for how many CPUs plugged in again a session's machine has room: every one takes some.
const sessionReplugs = 4

// Session is an experiment that a person leads: the VM of a case, its functions attached, and steps as they come to mind. Its methods may be called from several
// goroutines, since a step can take until another lets the device go on.
type Session struct {
	e       *experiment
	s       *stepper
	ctx     context.Context
	cancel  context.CancelCauseFunc
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool // no step begins any more
}

var errSessionEnded = errors.New("the session has ended")

// Open starts the VM of a case and attaches its functions. The case's own steps are left out.
func Open(ctx context.Context, c *scenarios.Case, o Options) (*Session, error) {
	led := *c
	led.Steps = []scenarios.Step{} // some, unlike none: they are recorded
	e := &experiment{opts: o, c: &led, out: newResult(&led), began: time.Now(), trace: trace.New(0), inject: inject.New(), replugs: sessionReplugs}
	if err := e.open(ctx); err != nil {
		return nil, err
	}
	session := &Session{e: e}
	session.ctx, session.cancel = context.WithCancelCause(ctx)
	session.s = &stepper{experiment: e, began: time.Now(), fail: session.cancel}
	if err := session.s.start(ctx); err != nil {
		return nil, errors.Join(err, session.Close())
	}
	return session, nil
}

// VM is the session's.
func (s *Session) VM() *lab.VM { return s.e.vm }

// Do carries out a step, and returns once it is done. That it fails, or is refused, does not end the session.
func (s *Session) Do(step scenarios.Step) error {
	step.Probe = scenarios.Probe{} // who calls Do decides what waits for it
	if !s.enter() {
		return errSessionEnded
	}
	defer s.running.Done()
	from, err := s.s.mark(s.ctx, &step)
	if err != nil {
		return err
	}
	return contain(func() error { return s.s.step(s.ctx, &step, from) })
}

func (s *Session) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

// AwaitHeld waits until the device stands at a hold. The error says how far it got.
func (s *Session) AwaitHeld(ctx context.Context, name string) error {
	return s.e.inject.AwaitHeld(ctx, name)
}

// Rules are those in force, and those that were.
func (s *Session) Rules() []inject.RuleState { return s.e.inject.States() }

// Progress is how far the device got, in words.
func (s *Session) Progress() string { return s.e.inject.Progress() }

// Observation is the newest, nil before there is one.
func (s *Session) Observation() *result.Observation {
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	if n := len(s.e.out.Observations); n > 0 {
		o := s.e.out.Observations[n-1]
		return &o
	}
	return nil
}

// Log returns the kernel's log since the session began.
func (s *Session) Log(ctx context.Context) ([]agentapi.LogRecord, error) {
	log, err := s.e.guestLog(ctx, s.s.first)
	return log.Records, err
}

// Close lets the device go on and ends the VM; steps under way end with it.
func (s *Session) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(errSessionEnded)
	s.e.inject.Clear()
	err := s.e.vm.Close()
	s.running.Wait()
	s.s.background.Wait()
	return err
}
