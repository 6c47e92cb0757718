package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/devmodel/trace"
	"irqlab/guestagent/agentapi"
	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/recording"
	"irqlab/scenarios/result"
)

// sessionReplugs is for how many CPUs plugged in again a session's machine has room: every one takes some.
const sessionReplugs = 4

// Session is an experiment that a person leads: the VM of a case, its functions attached, and steps as they come to mind, of which a record is kept. Its methods may be called
// from several goroutines, since a step can take until another lets the device go on.
type Session struct {
	e       *experiment
	s       *stepper
	ctx     context.Context
	cancel  context.CancelCauseFunc
	running sync.WaitGroup
	held    func(name string, dropped bool)

	mu     sync.Mutex
	closed bool          // no step begins any more
	since  inject.Counts // when the newest step began
	record recording.Recording
	moment int              // the last one of the record
	before []map[string]int // by entry: how often each rule had been applied when it began
}

var errSessionEnded = errors.New("the session has ended")

// Open starts the VM of a case and attaches its functions. The case's own steps are left out. held, which may be nil, is told each time that the device comes to stand at a hold,
// and once more, with dropped, if a reset ends that.
func Open(ctx context.Context, c *scenarios.Case, o Options, held func(name string, dropped bool)) (*Session, error) {
	led := *c
	led.Question = "A session that somebody led, on the machine of this case."
	led.Steps = []scenarios.Step{} // some, unlike none: they are recorded
	kept := 0
	if o.Out != "" {
		kept = keptEvents
	}
	e := &experiment{opts: o, c: &led, out: newResult(&led), began: time.Now(), trace: trace.New(kept), inject: inject.New(), replugs: sessionReplugs, place: "."}
	if err := e.open(ctx); err != nil {
		return nil, err
	}
	session := &Session{e: e, held: held, record: recording.Recording{Case: led}}
	session.ctx, session.cancel = context.WithCancelCause(ctx)
	session.s = &stepper{experiment: e, began: time.Now(), over: session.ctx, fail: session.cancel}
	if err := session.s.start(ctx); err != nil {
		return nil, errors.Join(err, session.Close())
	}
	return session, nil
}

// VM is the session's.
func (s *Session) VM() *lab.VM { return s.e.vm }

// Named is a step that puts a rule in force, under a name that no rule of the session has had; any other step is as it was.
func (s *Session) Named(step scenarios.Step) scenarios.Step {
	rules := s.Rules()
	return recording.Rule(step, func(name string) bool {
		return slices.ContainsFunc(rules, func(r inject.RuleState) bool { return r.Name == name })
	})
}

// Do carries out a step, and returns once it is done, with what became of it. That it fails, or is refused, does not end the session.
func (s *Session) Do(step scenarios.Step) (result.Step, error) {
	step.Probe = scenarios.Probe{} // who calls Do decides what waits for it
	n, before, ok := s.enter(&step)
	if !ok {
		return result.Step{}, errSessionEnded
	}
	defer s.running.Done()
	from, err := s.s.mark(s.ctx, &step)
	if step.WaitFor != nil {
		from.count = before.Of(step.WaitFor.Step) // as in a scenario
	}
	if err == nil {
		err = contain(func() error { return s.s.step(s.ctx, &step, from) })
	}
	if err == nil && step.Verb == scenarios.VerbHold {
		s.running.Go(func() { s.watch(step.Rule.Name) })
	}
	s.leave(n, err)
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	if did := s.e.out.Step(step.At); did != nil {
		return *did, err
	}
	return result.Step{}, err
}

// enter begins a step in the record, and says which, and how far the device had come when the one before it began.
func (s *Session) enter(step *scenarios.Step) (n int, before inject.Counts, ok bool) {
	device := s.device()
	rules := s.Rules()
	now := s.e.inject.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, before, false
	}
	before, s.since = s.since, now
	for _, r := range rules { // what is so before the step begins is told before it
		if r.Held {
			s.stood(r.Name)
		}
	}
	s.running.Add(1)
	n = len(s.record.Entries)
	s.before = append(s.before, hits(rules))
	step.At = strconv.Itoa(n)
	s.moment++
	s.record.Entries = append(s.record.Entries, recording.Entry{Step: *step, Began: s.moment, After: time.Since(s.s.began), Before: device})
	return n, before, true
}

// leave ends a step in the record.
func (s *Session) leave(n int, err error) {
	device := s.device()
	during := hits(s.Rules())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed { // which has ended it
		return
	}
	s.moment++
	for name, was := range s.before[n] {
		during[name] -= was
	}
	e := &s.record.Entries[n]
	e.Ended, e.Left, e.Hits = s.moment, device, during
	var step *StepError
	switch {
	case err == nil && e.Step.Verb == scenarios.VerbObserve:
		e.Saw = s.Observation(e.Step.Label)
	case errors.As(err, &step) && step.Refused:
		e.Refused = step.Err.Error()
	case err != nil:
		e.Failed = err.Error()
		if step != nil {
			e.Failed = step.Err.Error()
		}
	}
}

// watch takes down when the device comes to stand at a hold, and tells of that and of its end.
func (s *Session) watch(name string) {
	if s.e.inject.AwaitHeld(s.ctx, name) != nil {
		return
	}
	s.mu.Lock()
	s.stood(name)
	s.mu.Unlock()
	if s.held == nil {
		return
	}
	s.held(name, false)
	if errors.Is(s.e.inject.AwaitLetGo(s.ctx, name), inject.ErrDropped) {
		s.held(name, true)
	}
}

// stood takes down, once, that the device has come to a hold. s.mu is held.
func (s *Session) stood(name string) {
	if !slices.ContainsFunc(s.record.Held, func(h recording.Held) bool { return h.Name == name }) {
		s.moment++
		s.record.Held = append(s.record.Held, recording.Held{Name: name, At: s.moment})
	}
}

// hits is how often each rule was applied.
func hits(rules []inject.RuleState) map[string]int {
	n := map[string]int{}
	for _, r := range rules {
		n[r.Name] = r.Hits
	}
	return n
}

// device is how far the device has got in what a driver does by itself.
func (s *Session) device() recording.Device {
	count := s.e.inject.Count
	d := recording.Device{Destroyed: count(recording.Destroy), Established: count(recording.Establish), Configured: count(recording.Configure)}
	d.Running = s.e.c.Driver == scenarios.DriverMana && s.s.running()
	return d
}

// Scenario is what has been done so far as a scenario file of that name, and what of it no scenario can do.
func (s *Session) Scenario(name string, remarks ...string) (file []byte, leftOut []string, err error) {
	rules := s.Rules()
	s.mu.Lock()
	r := s.record
	r.Entries, r.Held = slices.Clone(r.Entries), slices.Clone(r.Held)
	s.mu.Unlock()
	r.Hits = hits(rules)
	for _, rule := range rules {
		if rule.Held {
			r.Standing = append(r.Standing, rule.Name)
		}
	}
	return r.Scenario(name, remarks...)
}

// AwaitHeld waits until the device stands at a hold. The error says how far it got.
func (s *Session) AwaitHeld(ctx context.Context, name string) error {
	return s.e.inject.AwaitHeld(ctx, name)
}

// Links are those of the kernel's driver.
func (s *Session) Links(ctx context.Context) ([]agentapi.Link, error) {
	links, err := s.e.vm.Agent.Links(ctx)
	return slices.DeleteFunc(links, func(l agentapi.Link) bool { return l.Driver != manaModule }), err
}

// Settled is what settling has read of each vector, nil once something else was done.
func (s *Session) Settled() []result.Vector {
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	if s.s.fresh == nil {
		return nil
	}
	return s.s.rows(*s.s.fresh)
}

// Rules are those in force, and those that were.
func (s *Session) Rules() []inject.RuleState { return s.e.inject.States() }

// Progress is how far the device got, in words.
func (s *Session) Progress() string { return s.e.inject.Progress() }

// Observation is the one of a label, nil where there is none.
func (s *Session) Observation(label string) *result.Observation {
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	if o := s.e.out.Find(label); o != nil {
		seen := *o
		return &seen
	}
	return nil
}

// Log returns the kernel's log since the session began.
func (s *Session) Log(ctx context.Context) ([]agentapi.LogRecord, error) {
	log, err := s.e.guestLog(ctx, s.s.first)
	return log.Records, err
}

// Close lets the device go on and ends the VM; steps under way end with it. What Options.Out asks for is left there, and Artifacts names it.
func (s *Session) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(errSessionEnded)
	s.e.inject.Clear()
	s.e.askGuest(context.Background()) // which has a time of its own
	err := s.e.vm.Close()
	s.running.Wait()
	s.s.background.Wait()
	if s.e.opts.Out == "" {
		return err
	}
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	s.e.out.Outcome = result.Observed
	if kerr := errors.Join(s.e.keptConsole(), s.e.keepTrace(), s.e.keepTimeline()); kerr != nil {
		err = errors.Join(err, fmt.Errorf("--out: %w", kerr))
	}
	return err
}

// Artifacts are the files that Close has left, relative to Options.Out.
func (s *Session) Artifacts() result.Artifacts { return s.e.out.Artifacts }
