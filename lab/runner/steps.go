package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"irqlab/devmodel/gdma"
	"irqlab/devmodel/inject"
	"irqlab/devmodel/mana"
	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/lab"
	"irqlab/lab/guestlog"
	"irqlab/lab/machine"
	"irqlab/lab/qemu"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

const (
	// driverTime is how long a step may sit in the kernel's driver, which waits 30 s for each of the device's answers, up to 2 min for packets that were not sent, and looks at
	// the SMC 20 000 times with a sleep of a millisecond or two in between, which on a busy host takes minutes.
	driverTime = 5 * time.Minute
	cpuTime    = time.Minute      // for a CPU to leave or come; also for what takes no time
	stormTime  = 5 * time.Second  // for a CPU to leave or come in a storm, where many do
	fireTime   = time.Second      // for all vectors to be handled once
	devicePoll = time.Millisecond // asking our own device costs nothing
	stepTail   = 10               // console lines in an error
)

// labelRefused names the observation of the vectors that there are when the kernel has refused one, which ended the case.
const labelRefused = "after-refusal"

// builtin is the experiment of a case that has no steps of its own.
func builtin(driver string) []scenarios.Step {
	verbs := []string{scenarios.VerbProbe, scenarios.VerbVectors, scenarios.VerbSettle, scenarios.VerbObserve}
	if driver == scenarios.DriverMana {
		verbs = []string{scenarios.VerbProbe, scenarios.VerbUp, scenarios.VerbSettle, scenarios.VerbObserve, scenarios.VerbDown, scenarios.VerbUnload}
	}
	steps := make([]scenarios.Step, len(verbs))
	for i, v := range verbs {
		steps[i] = scenarios.Step{Verb: v, Label: scenarios.LabelSettled}
	}
	return steps
}

// eachStep calls f with every step, those side by side included.
func eachStep(steps []scenarios.Step, f func(*scenarios.Step)) {
	for i := range steps {
		f(&steps[i])
		for _, branch := range steps[i].Together {
			eachStep(branch, f)
		}
	}
}

// stepLimit is how long a step may take.
func stepLimit(s *scenarios.Step) time.Duration {
	switch s.Verb {
	case scenarios.VerbWaitFor:
		return s.WaitFor.Limit()
	case scenarios.VerbSleep:
		return s.Sleep + cpuTime
	case scenarios.VerbRun:
		return s.Run.Limit() + cpuTime
	case scenarios.VerbOffline, scenarios.VerbOnline, scenarios.VerbUnplug, scenarios.VerbReplug:
		return time.Duration(len(s.CPUs)) * 2 * cpuTime // by ACPI the guest has a minute for its answer
	case scenarios.VerbStorm:
		return cpuTime + time.Duration(int(s.Storm.Rounds)*len(s.Storm.Offline)*2)*stormTime
	case scenarios.VerbSuspend:
		return s.Suspend.Asleep() + s.Suspend.Patience()
	case scenarios.VerbFire:
		return cpuTime + time.Duration(s.Fire.Times())*fireTime
	case scenarios.VerbTogether: // each branch has its steps' limits
		var longest time.Duration
		for _, b := range s.Together {
			longest = max(longest, stepsTime(b))
		}
		return longest
	}
	return driverTime
}

// stepsTime is the longest that steps may take one after the other.
func stepsTime(steps []scenarios.Step) time.Duration {
	var sum time.Duration
	for i := range steps {
		sum += stepLimit(&steps[i])
	}
	return sum
}

// planned is how much longer than another a case takes whose steps wait on purpose.
func planned(steps []scenarios.Step) time.Duration {
	var sum time.Duration
	eachStep(steps, func(s *scenarios.Step) {
		switch s.Verb {
		case scenarios.VerbWaitFor, scenarios.VerbSleep, scenarios.VerbStorm, scenarios.VerbFire, scenarios.VerbRun, scenarios.VerbSuspend:
			sum += stepLimit(s)
		}
	})
	return sum
}

// replugs is how often the steps plug a CPU in.
func replugs(steps []scenarios.Step) int {
	n := 0
	eachStep(steps, func(s *scenarios.Step) {
		if s.Verb == scenarios.VerbReplug {
			n += len(s.CPUs)
		}
	})
	return n
}

// lateError is the cause of a context whose step has taken too long.
type lateError struct {
	after time.Duration
	oops  string // for which it was not awaited any longer
}

func (e *lateError) Error() string {
	if e.oops != "" {
		return fmt.Sprintf("not done within %s, nor %s after the kernel's %q", e.after.Round(time.Second), oopsGrace, e.oops)
	}
	return fmt.Sprintf("not done within %s", e.after)
}
func (e *lateError) Unwrap() error { return context.DeadlineExceeded }

// StepError tells which step of a case ended it, and how things stood then.
type StepError struct {
	Step     scenarios.Step
	Err      error
	Late     bool     // what it waited for did not come, and it was given up
	Limit    bool     // because the time of the whole case was over
	Refused  bool     // the guest's kernel or the lab refused it
	Holds    []string // that held the device, or did until the driver gave up: "NAME (hold at STEP)"
	Ate      []string // rules that have kept interrupts from being fired, if some were not handled
	Progress string   // the last steps of the protocol; "" where the case has no rules
	Tail     string   // of the console, if the step was late
}

func (e *StepError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "step %s (%s, line %d): %v", e.Step.At, e.Step, e.Step.Line, e.Err)
	if len(e.Holds) > 0 {
		fmt.Fprintf(&b, "\nthe device was held: %s", strings.Join(e.Holds, ", "))
		if e.deadlock() {
			b.WriteString("; if the step waits for what only the device can do from there on, release it before, or beside in a together step")
		}
	}
	if len(e.Ate) > 0 {
		fmt.Fprintf(&b, "\ndropped by a rule of the case: %s", strings.Join(e.Ate, ", "))
	}
	if e.Progress != "" {
		fmt.Fprintf(&b, "\nhow far the device got: %s", strings.TrimPrefix(e.Progress, "last: "))
	}
	if e.Tail != "" {
		fmt.Fprintf(&b, "\nlast console lines:\n%s", e.Tail)
	}
	return b.String()
}

func (e *StepError) Unwrap() error { return e.Err }

// deadlock reports whether it is the case itself that kept the step from its end: in a wait, or until the driver gave up the device that was held before it. What a case waits
// for in so many words may as well not have come.
func (e *StepError) deadlock() bool {
	return len(e.Holds) > 0 && e.Step.Verb != scenarios.VerbWaitFor && (e.Late || e.Refused && drives(e.Step.Verb))
}

// drives reports whether a step has the kernel's driver speak with the device.
func drives(verb string) bool {
	return slices.Contains([]string{scenarios.VerbProbe, scenarios.VerbLoad, scenarios.VerbBind, scenarios.VerbUp, scenarios.VerbDown, scenarios.VerbSetChannels,
		scenarios.VerbUnload, scenarios.VerbUnbind, scenarios.VerbRemove, scenarios.VerbSuspend, scenarios.VerbHibernate}, verb)
}

// explained reports whether nothing more can be learned from the guest, which is well: it was the wait that was in vain.
func (e *StepError) explained() bool {
	return e.Refused || e.deadlock() || len(e.Ate) > 0 || e.Late && !e.Limit && e.Step.Verb == scenarios.VerbWaitFor
}

// refusedError is a step that the lab finds impossible as things are.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

func refusef(format string, args ...any) error { return &refusedError{fmt.Errorf(format, args...)} }

// refusal reports whether the guest's kernel, its driver or the lab said no to what was asked, as against a failure to ask or an answer that did not come.
func refusal(err error) bool {
	var guest *agentapi.Error
	var driver *DriverError
	var cpu *qemu.CPURefusedError
	var hotplug *machine.HotplugError
	var lab *refusedError
	switch {
	case errors.As(err, &guest):
		return guest.Code != agentapi.CodeTimeout && guest.Code != agentapi.CodeFailed
	case errors.As(err, &driver), errors.As(err, &cpu), errors.As(err, &hotplug), errors.As(err, &lab):
		return true
	}
	for _, e := range []error{inject.ErrUnknown, inject.ErrNotHeld, inject.ErrReleased, inject.ErrDropped, inject.ErrInForce, inject.ErrOver} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// since is a moment of the case, as far as the wait that begins there needs it.
type since struct {
	count int                // occurrences of the wait's protocol step
	log   agentapi.LogRecord // last one of the kernel log
}

// stepper is an experiment's steps under way. What several branches change is guarded by mu. Of the usual steps of a case that has none of its own only the observations
// are recorded.
type stepper struct {
	*experiment
	began time.Time
	first agentapi.LogRecord // the last one of the kernel log before the first step

	over     context.Context // done once the steps are
	programs programs

	background sync.WaitGroup
	fail       context.CancelCauseFunc // ends all steps

	mu       sync.Mutex
	driver   driver
	asks     asks
	handled  handlers
	fresh    *lab.Reading       // made by the step before
	seen     agentapi.LogRecord // the last one of the kernel log
	plugged  cpulist.List
	resets   []reset // asked for since the driver was last found complete
	pressed  bool    // the pressure for the kernel's driver is there, or under way
	audited  uint64  // number of the last of the device's audits that was seen
	fault    bool    // a rule may have made driver and device disagree
	returned []string
}

// reset is one that the device has asked for.
type reset struct {
	step     *scenarios.Step
	destroys int  // channels the driver had ended before
	running  bool // its link was
	over     bool // nobody need wait any more for the link that was running
}

// stepDestroy is how a driver begins to set the device up anew.
const stepDestroy = "smc:destroy"

// runSteps runs the case's experiment.
func (e *experiment) runSteps(ctx context.Context) error {
	s := &stepper{experiment: e, began: time.Now()}
	steps := e.c.Steps
	if steps == nil {
		steps = builtin(e.c.Driver)
	}
	ctx, s.fail = context.WithCancelCause(ctx)
	defer s.fail(nil)
	s.over = ctx
	err := s.start(ctx)
	if err == nil {
		err = s.copyFiles(ctx)
	}
	if err == nil {
		err = s.sequence(ctx, steps, since{log: s.first})
	}
	if err != nil {
		s.fell()
		s.fail(err)
	}
	s.background.Wait()
	if cause := context.Cause(ctx); err == nil || errors.As(cause, new(*StepError)) {
		err = cause // what others were ended for, too
	}
	if unknown := s.end(err); err == nil {
		err = unknown
	}
	return err
}

func (s *stepper) start(ctx context.Context) error {
	if s.c.Steps == nil {
		return nil
	}
	var err error
	s.first, err = s.logged(ctx)
	return err
}

// logged is the newest record of the kernel log.
func (s *stepper) logged(ctx context.Context) (agentapi.LogRecord, error) {
	s.mu.Lock()
	after := s.seen
	s.mu.Unlock()
	log, err := s.vm.Agent.Log(ctx, after.Seq)
	if err != nil {
		return agentapi.LogRecord{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(log.Records); n > 0 && log.Records[n-1].Seq > s.seen.Seq {
		s.seen = log.Records[n-1]
	}
	return s.seen, nil
}

// end lets the device go on, and says what became of the rules and of what was started in the background.
func (s *stepper) end(err error) error {
	for _, r := range s.inject.States() {
		if r.Name == beforeQueues {
			continue
		}
		out := result.Rule{Name: r.Name, Text: scenarios.RuleText(r.Rule), Hits: r.Hits}
		if r.Hits == 0 {
			out.Tells = s.inject.Progress()
		}
		s.out.Rules = append(s.out.Rules, out)
		if r.Held {
			s.note("%q still held the device when the experiment ended, and was released", r.Name)
		}
		refusal := r.Action == inject.Status && strings.HasPrefix(r.Step, "request:") // then the device has not acted, and the driver knows
		switch r.Action {
		case inject.Drop, inject.Status, inject.Alter, inject.Duplicate:
			s.fault = s.fault || r.Hits > 0 && !refusal
		}
	}
	s.inject.Clear()
	s.mu.Lock()
	s.unobserved()
	s.mu.Unlock()
	var unknown error
	if err == nil && s.c.Driver == scenarios.DriverMana {
		unknown = s.audit()
	}
	if s.fault { // then driver and device need not agree on what there is
		for _, what := range s.returned {
			s.note("%s", what)
		}
	} else {
		s.left = append(s.left, s.returned...)
	}
	return unknown
}

func (s *stepper) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.Notes = append(s.out.Notes, fmt.Sprintf(format, args...))
}

// sequence runs steps one after the other; from is when the step before the first one began.
func (s *stepper) sequence(ctx context.Context, steps []scenarios.Step, from since) error {
	for i := range steps {
		step := &steps[i]
		var next since
		if i+1 < len(steps) {
			var err error
			if next, err = s.mark(ctx, &steps[i+1]); err != nil {
				return err
			}
		}
		if err := s.step(ctx, step, from); err != nil {
			return err
		}
		from = next
	}
	return nil
}

// mark is now, for a step that may wait.
func (s *stepper) mark(ctx context.Context, step *scenarios.Step) (m since, err error) {
	if step.WaitFor == nil {
		return m, nil
	}
	if step.WaitFor.Log != nil {
		m.log, err = s.logged(ctx)
	}
	m.count = s.inject.Count(step.WaitFor.Step)
	return m, err
}

// step runs one step and takes down what became of it.
func (s *stepper) step(ctx context.Context, step *scenarios.Step, from since) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	if step.Verb != scenarios.VerbObserve {
		s.unobserved()
	}
	at := len(s.out.Steps)
	if s.c.Steps != nil {
		s.out.Steps = append(s.out.Steps, result.Step{At: step.At, Text: step.String(), Line: step.Line, Start: time.Since(s.began).Seconds()})
	}
	s.mu.Unlock()
	if s.c.Steps != nil {
		s.stage(step.String(), uint64(at+1))
	}
	limit, dropped := stepLimit(step), s.dropped()
	timed, cancel := context.WithTimeoutCause(ctx, limit, &lateError{after: limit})
	if s.c.Steps != nil && (drives(step.Verb) || step.Verb == scenarios.VerbRescan) {
		timed = s.untilOops(timed)
	}
	facts := &result.Step{}
	do := func() error {
		defer cancel()
		return s.done(ctx, step, at, facts, dropped, s.do(timed, step, from, facts))
	}
	if step.Verb != scenarios.VerbProbe || step.Probe.Waits() {
		return do()
	}
	s.mu.Lock()
	s.driver.probing = make(chan struct{})
	probing := s.driver.probing
	s.mu.Unlock()
	s.background.Go(func() {
		defer close(probing)
		if err := contain(do); err != nil {
			s.fail(err)
		}
	})
	return nil
}

// dropped are the holds whose work a reset has dropped, by name.
func (s *stepper) dropped() map[string]bool {
	names := map[string]bool{}
	for _, r := range s.inject.States() {
		names[r.Name] = r.Dropped
	}
	return names
}

// done takes down how a step ended, and makes an error of it if that is the end of the experiment. dropped are the holds that had lost their work before it.
func (s *stepper) done(ctx context.Context, step *scenarios.Step, at int, facts *result.Step, dropped map[string]bool, err error) error {
	var short *VectorRefusedError
	some := errors.As(err, &short) && short.Index > 0 // and what did get through is still to be observed
	if s.c.Steps == nil {
		if some {
			s.mu.Lock()
			s.left = append(s.left, fmt.Sprintf("Of %d vectors %d came to be: %v.", s.c.Vectors, short.Index, short))
			s.mu.Unlock()
			return nil
		}
		return err
	}
	var inner *StepError
	nested := errors.As(err, &inner) // in a branch of this one
	refused := err != nil && !nested && refusal(err)
	s.mu.Lock()
	r := &s.out.Steps[at]
	r.End, r.Outcome = time.Since(s.began).Seconds(), result.StepDone
	r.Log, r.Counted, r.Storm, r.Topology = facts.Log, facts.Counted, facts.Storm, facts.Topology
	r.Disks, r.Run, r.Slept = facts.Disks, facts.Run, facts.Slept
	switch {
	case refused:
		r.Outcome, r.Refusal = result.StepRefused, err.Error()
	case err != nil:
		r.Outcome, r.Refusal = result.StepFailed, err.Error()
	}
	end := stepEnd(r)
	s.mu.Unlock()
	s.trace.Note(kindStepEnd, end, uint64(at+1))
	switch {
	case err == nil, nested:
		return err
	case refused && step.Refused != "":
		s.opts.status(Status{Case: s.c, Stage: "refused: " + firstLine(err.Error())})
		return nil
	case context.Cause(ctx) != nil && !errors.As(context.Cause(ctx), new(*limitError)): // others ended it
		return err
	}
	e := &StepError{Step: *step, Err: err, Refused: refused, Late: errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(*lab.LostError)), Limit: context.Cause(ctx) != nil}
	for _, r := range s.inject.States() {
		if r.Held || r.Waits || r.Dropped && !dropped[r.Name] {
			e.Holds = append(e.Holds, fmt.Sprintf("%s (%s)", r.Name, scenarios.RuleText(r.Rule)))
		}
		if r.Action == inject.Drop && r.Hits > 0 && strings.HasPrefix(r.Step, "vector:") && errors.As(err, new(*lab.LostError)) {
			e.Ate = append(e.Ate, fmt.Sprintf("%s (%s), %d so far", r.Name, scenarios.RuleText(r.Rule), r.Hits))
		}
	}
	if p := s.inject.Progress(); len(s.inject.States()) > 0 && !strings.Contains(err.Error(), p) {
		e.Progress = p
	}
	if e.Late {
		e.Tail = s.vm.Console().Tail(stepTail)
	}
	if some {
		if err := s.settle(ctx); err != nil {
			return errors.Join(e, err)
		}
		return errors.Join(e, s.take(ctx, labelRefused))
	}
	return e
}

// stepEnd is a step's place and what became of it, for the trace.
func stepEnd(r *result.Step) string {
	text := r.At + " " + string(r.Outcome)
	if r.Refusal != "" {
		text += ": " + firstLine(r.Refusal)
	}
	return text
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// do carries out a step.
func (s *stepper) do(ctx context.Context, step *scenarios.Step, from since, facts *result.Step) error {
	if drives(step.Verb) || slices.Contains([]string{scenarios.VerbPost, scenarios.VerbResetService}, step.Verb) {
		s.mu.Lock()
		s.asks.disown()
		s.mu.Unlock()
	}
	switch step.Verb {
	case scenarios.VerbProbe:
		return s.probe(ctx)
	case scenarios.VerbUp:
		return s.up(ctx)
	case scenarios.VerbDown:
		return s.down(ctx)
	case scenarios.VerbSetChannels:
		return s.setChannels(ctx, step.Channels)
	case scenarios.VerbLoad:
		return s.load(ctx)
	case scenarios.VerbUnload:
		return s.unload(ctx)
	case scenarios.VerbBind:
		return s.bind(ctx)
	case scenarios.VerbUnbind:
		return s.unbind(ctx)
	case scenarios.VerbVectors:
		return s.addQueues(ctx)
	case scenarios.VerbRelease:
		return s.inject.Release(step.Release)
	case scenarios.VerbEnd:
		return s.inject.End(step.End)
	case scenarios.VerbPost, scenarios.VerbResetService:
		return s.post(step)
	case scenarios.VerbReset:
		return s.reset(ctx)
	case scenarios.VerbOffline, scenarios.VerbOnline, scenarios.VerbUnplug, scenarios.VerbReplug:
		return s.changeCPUs(ctx, step, facts)
	case scenarios.VerbAffinity:
		return s.affinity(ctx, step.Affinity)
	case scenarios.VerbFire:
		return s.fire(ctx, step.Fire)
	case scenarios.VerbSettle:
		return s.settle(ctx)
	case scenarios.VerbObserve:
		return s.take(ctx, step.Label)
	case scenarios.VerbStorm:
		return s.storm(ctx, step.Storm, facts)
	case scenarios.VerbRun:
		s.mu.Lock()
		s.asks.programs = true
		s.mu.Unlock()
		var err error
		facts.Run, err = s.program(ctx, step.Run)
		return err
	case scenarios.VerbReadDisks:
		return s.readDisks(ctx, step.Disks, facts)
	case scenarios.VerbExpect:
		return s.gather(ctx, step.Expect, facts)
	case scenarios.VerbWaitFor:
		return s.waitFor(ctx, step.WaitFor, from)
	case scenarios.VerbTogether:
		return s.together(ctx, step)
	case scenarios.VerbSleep:
		return pause(ctx, step.Sleep)
	case scenarios.VerbRemove:
		return s.remove(ctx)
	case scenarios.VerbRescan:
		return s.rescan(ctx)
	case scenarios.VerbSuspend:
		return s.suspend(ctx, step.Suspend, facts)
	case scenarios.VerbHibernate:
		return s.hibernate(ctx, facts)
	}
	if step.Rule != nil {
		return s.inject.Add(*step.Rule)
	}
	return fmt.Errorf("no step %q", step.Verb)
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// together runs branches side by side. The first that fails ends the others.
func (s *stepper) together(ctx context.Context, step *scenarios.Step) error {
	from := make([]since, len(step.Together))
	for i, b := range step.Together {
		var err error
		if from[i], err = s.mark(ctx, &b[0]); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var branches sync.WaitGroup
	for i, b := range step.Together {
		branches.Go(func() {
			if err := contain(func() error { return s.sequence(ctx, b, from[i]) }); err != nil {
				cancel(err) // the first one counts
			}
		})
	}
	branches.Wait()
	return context.Cause(ctx)
}

// reset has the kernel reset the function.
func (s *stepper) reset(ctx context.Context) error {
	address, err := s.address(ctx)
	if err != nil {
		return err
	}
	return s.vm.Agent.ResetFunction(ctx, address)
}

// post has the device post an event.
func (s *stepper) post(step *scenarios.Step) error {
	p := step.Post
	event, ok := map[string]mana.Event{
		scenarios.EventResetRequest:   mana.ResetRequest(),
		scenarios.EventFPGAReconfig:   mana.FPGAReconfig(),
		scenarios.EventLinkUp:         mana.LinkState(true),
		scenarios.EventLinkDown:       mana.LinkState(false),
		scenarios.EventChannelTimeout: mana.ChannelTimeout(uint32(p.Value)),
		scenarios.EventSoCSuspend:     mana.SOCService(false),
		scenarios.EventSoCResume:      mana.SOCService(true),
		scenarios.EventUnknown:        {Type: gdma.EventType(p.Value)},
	}[p.Event]
	if !ok {
		return fmt.Errorf("no event %q", p.Event)
	}
	r := reset{step: step, destroys: s.inject.Count(stepDestroy), running: s.running()}
	if err := s.fn.MANA.PostEvent(event); err != nil {
		return refusef("posting %s: %w", p, err)
	}
	if p.Event == scenarios.EventResetRequest || p.Event == scenarios.EventFPGAReconfig {
		s.mu.Lock()
		s.resets = append(s.resets, r)
		s.mu.Unlock()
	}
	return nil
}

// resetTime is how long a driver may take from a reset, which begins with 10 s of sleep, to a link that runs.
const resetTime = 30 * time.Second

// afterReset waits for the link of a driver that the device has told to reset, unless a rule holds the device: till then there are some of its vectors, or none.
func (s *stepper) afterReset(ctx context.Context) error {
	deadline := time.Now().Add(resetTime)
	for s.resetting() {
		if time.Now().After(deadline) {
			s.note("the driver, told to reset, had not brought its link up again after %s; %s", resetTime, s.inject.Progress())
			s.leaveResets() // once is enough
		}
		if err := pause(ctx, poll); err != nil {
			return err
		}
	}
	return nil
}

func (s *stepper) resetting() bool {
	if slices.ContainsFunc(s.inject.States(), func(r inject.RuleState) bool { return r.Held || r.Waits }) {
		return false
	}
	running := s.running()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.resets {
		r := &s.resets[i]
		heeded := s.inject.Count(stepDestroy) > r.destroys
		r.over = r.over || heeded && running
		if r.running && !r.over && !running {
			return true
		}
	}
	return false
}

// leaveResets is told when the link is taken down on purpose: it is not waited for.
func (s *stepper) leaveResets() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.resets {
		s.resets[i].over = true
	}
}

// running reports whether the device has a link that is up.
func (s *stepper) running() bool {
	return slices.ContainsFunc(s.fn.MANA.Ports(), func(p mana.PortState) bool { return p.RX })
}

// changeCPUs takes CPUs away or brings them back, one after the other.
func (s *stepper) changeCPUs(ctx context.Context, step *scenarios.Step, facts *result.Step) error {
	back := false
	leaves := step.Verb == scenarios.VerbOffline || step.Verb == scenarios.VerbUnplug
	for _, cpu := range step.CPUs {
		var err error
		stay := func() {}
		if leaves {
			s.mu.Lock()
			stay = s.asks.leave(cpu)
			s.mu.Unlock()
		}
		switch step.Verb {
		case scenarios.VerbOffline:
			_, err = s.vm.Agent.SetCPU(ctx, cpu, false)
		case scenarios.VerbOnline:
			_, err = s.vm.Agent.SetCPU(ctx, cpu, true)
			s.mu.Lock()
			back = back || s.plugged.Has(cpu)
			s.mu.Unlock()
		case scenarios.VerbUnplug:
			err = s.vm.UnplugCPU(ctx, cpu)
		case scenarios.VerbReplug:
			if err = s.vm.PlugCPU(ctx, cpu); err == nil {
				s.mu.Lock()
				s.plugged = s.plugged.Or(cpulist.New(cpu))
				s.mu.Unlock()
			}
		}
		if err != nil {
			if leaves && refusal(err) { // it is where it was, and so are the masks
				s.mu.Lock()
				stay()
				s.mu.Unlock()
			}
			return err
		}
	}
	if !back {
		return nil
	}
	info, err := s.vm.Agent.Info(ctx)
	facts.Topology = info.CPUs.CPUs
	return err
}

// vectors are the ones whose interrupts somebody handles now; of a driver that is being started, or that the device has told to reset, once it is done.
func (s *stepper) vectors(ctx context.Context) ([]agentapi.Vector, error) {
	if _, err := s.probed(ctx); err != nil {
		return nil, err
	}
	if err := s.afterReset(ctx); err != nil {
		return nil, err
	}
	address, err := s.address(ctx)
	if err != nil {
		return nil, err
	}
	all, err := s.vm.Agent.FunctionIRQs(ctx, address)
	if err != nil {
		return nil, err
	}
	taken := slices.DeleteFunc(all, func(v agentapi.Vector) bool { return v.Name == "" })
	if len(taken) == 0 {
		return nil, refusef("the function has no vector whose interrupt anybody handles")
	}
	return taken, nil
}

// address is the function's in the guest.
func (s *stepper) address(ctx context.Context) (string, error) {
	s.mu.Lock()
	address := s.driver.address
	s.mu.Unlock()
	if address != "" {
		return address, nil
	}
	fn, err := s.vm.Agent.FindFunction(ctx, lab.VendorID, lab.ManaID)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.driver.address = fn.Address
	return fn.Address, nil
}

func (s *stepper) settle(ctx context.Context) error {
	vectors, err := s.vectors(ctx)
	if err != nil {
		return err
	}
	s.stage("settling")
	seen, err := s.fn.Settle(ctx, s.vm.Agent, vectors)
	if err != nil && !errors.As(err, new(*lab.UnsettledError)) { // of that the reading tells
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh = &seen
	return nil
}

// unobserved drops what settling has read, if nobody has observed it; vectors that did not settle are not lost with it. s.mu is held.
func (s *stepper) unobserved() {
	if s.fresh == nil {
		return
	}
	for _, v := range s.fresh.Vectors {
		if v.Unsettled {
			s.left = append(s.left, fmt.Sprintf("Vector %d did not settle: requested %s, effective %s, handled on %s.", v.Index, v.State.Affinity, v.State.Effective, v.Handled.Words()))
		}
	}
	s.fresh = nil
}

// take makes an observation, of what settling has just read if it has.
func (s *stepper) take(ctx context.Context, label string) error {
	s.mu.Lock()
	fresh := s.fresh
	s.mu.Unlock()
	if fresh == nil {
		vectors, err := s.vectors(ctx)
		if err != nil {
			return err
		}
		seen, err := s.vm.Agent.Observe(ctx, vectors)
		if err != nil {
			return err
		}
		fresh = &seen
	}
	var topo agentapi.Topology
	if s.c.Driver == scenarios.DriverMana {
		info, err := s.vm.Agent.Info(ctx)
		if err != nil {
			return err
		}
		topo = info.CPUs
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fresh == nil { // of a settled one that is known
		s.handled.tell(fresh)
	}
	s.asks.heed(*fresh)
	if s.c.Driver == scenarios.DriverMana {
		s.asks.learn(*fresh)
	}
	s.observe(label, *fresh)
	s.fresh = nil
	if o := s.out.Find(label); s.c.Driver == scenarios.DriverMana && s.c.Script == nil {
		s.out.Branch = cmp.Or(s.out.Branch, driverBranch(topo, s.c.DeviceNode, o.Vectors)) // the way it went at first
	}
	return nil
}

// gather notes the facts that an expectation is about.
func (s *stepper) gather(ctx context.Context, e *scenarios.StepExpect, facts *result.Step) error {
	for _, c := range e.Counted {
		facts.Counted = append(facts.Counted, result.Count{Step: c.Step, N: s.inject.Count(c.Step)})
	}
	patterns := e.Patterns()
	if len(patterns) == 0 {
		return nil
	}
	log, err := s.guestLog(ctx, s.first)
	if err != nil {
		return err
	}
	missed := false
	for _, p := range patterns {
		m := result.LogMatch{Pattern: p.String()}
		if i := slices.IndexFunc(log.Records, func(r agentapi.LogRecord) bool { return p.MatchString(r.Text) }); i >= 0 {
			m.Line = log.Records[i].Text
		}
		missed = missed || m.Line == ""
		facts.Log = append(facts.Log, m)
	}
	if missed { // a line that is there is there, whatever else is lost
		return log.Lost(guestlog.AllLevels)
	}
	return nil
}

// waitFor waits for what can be awaited.
func (s *stepper) waitFor(ctx context.Context, w *scenarios.WaitFor, from since) error {
	switch {
	case w.Held != "":
		return s.inject.AwaitHeld(ctx, w.Held)
	case w.Step != "":
		n := 0
		return until(ctx, devicePoll, func() (bool, error) {
			n = s.inject.Count(w.Step) - from.count
			return n >= w.Times(), nil
		}, func() string { return fmt.Sprintf("the device came to %s %d of %d times", w.Step, n, w.Times()) })
	case w.Log != nil:
		n, after := 0, from.log
		var lost error
		err := until(ctx, poll, func() (bool, error) {
			log, err := s.guestLog(ctx, after)
			if err == nil && lost == nil {
				lost = log.Lost(guestlog.AllLevels)
			}
			for _, r := range log.Records {
				if r.Seq > 0 {
					after = r
				}
				if w.Log.MatchString(r.Text) {
					n++
				}
			}
			return n >= w.Times(), err
		}, func() string {
			return fmt.Sprintf("the kernel logged %d of %d lines that match %q", n, w.Times(), w.Log)
		})
		if err != nil && lost != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) { // the line may have been among them
			return fmt.Errorf("%s; %w", firstLine(err.Error()), lost)
		}
		return err
	case w.Link != "":
		var got string
		return until(ctx, poll, func() (ok bool, err error) {
			ok, got, err = s.linkIs(ctx, string(w.Link))
			return ok, err
		}, func() string { return "the driver's link is " + got })
	case w.Online != nil:
		var online cpulist.List
		return until(ctx, poll, func() (bool, error) {
			info, err := s.vm.Agent.Info(ctx)
			online = info.CPUs.Online
			return slices.Equal(online, *w.Online), err
		}, func() string { return fmt.Sprintf("CPUs %s are online", online) })
	}
	return errors.New("nothing to wait for")
}

// until asks again and again; so far says how things stood when ctx ended.
func until(ctx context.Context, every time.Duration, ok func() (bool, error), soFar func() string) error {
	for {
		done, err := ok()
		if done && err == nil {
			return nil
		}
		if err == nil {
			err = pause(ctx, every)
		}
		if err != nil {
			if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				return fmt.Errorf("%s: %w", soFar(), err)
			}
			return err
		}
	}
}

// linkIs compares the driver's link with a state, and says which it is in. It is up when it is for the device, too: in a reset the kernel's own flag stays.
func (s *stepper) linkIs(ctx context.Context, state string) (ok bool, is string, err error) {
	links, err := s.vm.Agent.Links(ctx)
	if err != nil {
		return false, "not known", err
	}
	i := slices.IndexFunc(links, func(l agentapi.Link) bool { return l.Driver == manaModule })
	switch {
	case i < 0:
		is = scenarios.LinkGone
	case links[i].Up && s.running():
		is = scenarios.LinkUp
	case links[i].Up:
		is = "up, and its queues are not"
	default:
		is = scenarios.LinkDown
	}
	return is == state || state == scenarios.LinkThere && i >= 0, is, nil
}
