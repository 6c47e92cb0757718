package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/devmodel/vfiouser"
	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/images"
	"irqlab/lab"
	"irqlab/lab/machine"
	"irqlab/lab/qemu"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// party is whose an error is. Only what is the guest's is a fail; the rest is an error, since the lab could not tell. The larger one counts where there are several.
type party int

const (
	guests party = iota // the kernel or its driver did not do what it was to do
	cases               // the scenario asks for what cannot be, or keeps itself from it
	labs                // irqlab, QEMU, the host; and whatever nobody knows
)

func (p party) String() string { return [...]string{"the guest's", "the case's", "the lab's"}[p] }

// hungCall is how long the guest's kernel may sit in one call of its agent, which answers others meanwhile, before it counts as hung: what the kernel itself gives a task
// (hung_task_timeout_secs), and the driver its last packets.
const hungCall = 2 * time.Minute

// bootPatience is what a guest is given for its boot at least before it can have failed to: a limit that is shorter says nothing about it.
const bootPatience = time.Minute

// judge knows what error texts do not tell.
type judge struct {
	asked bool // the guest's agent was asked again, and QEMU runs
	mute  bool // it was, and does not answer
}

// blameRule tells whose an error of one type is; false: the error is of another.
type blameRule func(j judge, err error) (party, bool)

// of is the rule for errors of a type by what is in them.
func of[E error](whose func(j judge, e E) party) blameRule {
	return func(j judge, err error) (party, bool) {
		e, ok := err.(E) //nolint:errorlint // the node itself: what it wraps has its own rule
		if !ok {
			return labs, false
		}
		return whose(j, e), true
	}
}

// always is the rule for errors of a type that is always one party's.
func always[E error](p party) blameRule { return of(func(judge, E) party { return p }) }

// blameTable has a rule for each type of error that says whose it is. An error that has none is as its cause; one that has no cause is the lab's.
// It is filled by init, since its rules come back to it for what an error wraps.
var blameTable []blameRule

func init() {
	blameTable = []blameRule{
		always[*PanicError](labs),
		always[*EmulatorError](labs),
		always[*setupError](labs),
		always[*images.BusyError](labs),
		always[*qemu.NotStartedError](labs),
		always[*qemu.FrozenError](labs),
		always[*qemu.TimeoutError](labs),

		always[*images.BadKernelError](cases),
		always[*images.BadModuleError](cases),
		always[*images.BadPackagesError](cases),
		always[*UnloadableError](cases),
		always[*machine.FieldError](cases),
		always[*machine.HotplugError](cases),
		always[*refusedError](cases),
		always[*scriptError](cases),

		always[*DriverError](guests),
		always[*lab.LostError](guests),
		always[*lab.UnsettledError](guests),
		always[*lab.PresentError](guests),
		always[*qemu.CPURefusedError](guests),
		always[*qemu.SilentCPUError](guests),
		always[*lateError](guests),

		of(judge.boot), of(judge.dead), of(judge.step), of(judge.limit), of(judge.call), of(judge.refused), of(judge.unanswered), of(judge.explained), injected,
	}
}

// whose looks an error up.
func (j judge) whose(err error) party {
	for _, rule := range blameTable {
		if p, ok := rule(j, err); ok {
			return p
		}
	}
	switch e := err.(type) { //nolint:errorlint // the tree is walked node by node
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return j.whose(inner)
		}
	case interface{ Unwrap() []error }:
		worst := guests
		for _, part := range e.Unwrap() {
			worst = max(worst, j.whose(part))
		}
		if len(e.Unwrap()) > 0 {
			return worst
		}
	}
	return labs
}

// boot: a guest that panicked, ended QEMU or had its time and did not come up. It had its time if it ran for half of the limit at least, what goes before it may take some, and for a minute.
func (j judge) boot(e *qemu.BootError) party {
	var frozen *qemu.FrozenError
	var dead *qemu.DeadError
	var limit *limitError
	switch {
	case e.Stood.Matters():
		return labs
	case e.Panic != nil:
		return guests
	case errors.As(e.Err, &frozen):
		return labs
	case errors.As(e.Err, &dead):
		return j.dead(dead)
	case errors.As(e.Err, &limit):
		if e.After >= max(limit.after/2, bootPatience) {
			return guests
		}
	}
	return labs
}

// dead: a kernel resets its machine. To power it off in order is the doing of the lab's own agent, when it cannot go on.
func (judge) dead(e *qemu.DeadError) party {
	if e.Guest() && e.Reason != "guest-shutdown" {
		return guests
	}
	return labs
}

// step: what the case itself held back did not come, and is the case's; what it waited for in so many words may as well not have come, which is the finding.
func (j judge) step(e *StepError) party {
	switch {
	case e.deadlock():
		return cases
	case e.Limit && j.mute:
		return guests
	case e.Late && !e.Limit && e.Step.Verb == scenarios.VerbWaitFor:
		return guests
	}
	return j.whose(e.Err)
}

// limit: the time of the case was over. That is the guest's only if it does not answer any more.
func (j judge) limit(*limitError) party {
	if j.mute {
		return guests
	}
	return labs
}

// call: the kernel's no is its own, but for what the lab needs before there is an experiment, and for the vectors of other devices, which the case asks for.
func (j judge) call(e *lab.CallError) party {
	switch e.Method {
	case agentapi.MethodOpenFunction, agentapi.MethodRescan, agentapi.MethodRefresh, agentapi.MethodInfo, agentapi.MethodLog, agentapi.MethodMark,
		agentapi.MethodReplaceModule:
		return labs
	case agentapi.MethodOccupy:
		return max(cases, j.whose(e.Err))
	}
	return j.whose(e.Err)
}

// refused: the agent running out of descriptors is not the kernel's fault.
func (judge) refused(e *agentapi.Error) party {
	if e.Code == agentapi.CodeRefused && !slices.Contains([]syscall.Errno{syscall.EMFILE, syscall.ENFILE}, syscall.Errno(e.Errno)) {
		return guests
	}
	return labs
}

// unanswered: a guest that is mute hangs, and so does a kernel that keeps one call for long; else, and where nobody looked after it, it is whose time was over.
func (j judge) unanswered(e *lab.UnansweredError) party {
	if j.mute || j.asked && e.After >= hungCall {
		return guests
	}
	return j.whose(e.Err)
}

// explained: QEMU's end, or its silence, explains whatever came before it.
func (j judge) explained(e *lab.ExplainedError) party {
	if e.Cause != nil {
		return j.whose(e.Cause)
	}
	j.asked, j.mute = true, !e.Answers
	return j.whose(e.Err)
}

// injected: a rule that the case names wrongly, or too late.
func injected(_ judge, err error) (party, bool) {
	return cases, slices.Contains([]error{inject.ErrUnknown, inject.ErrNotHeld, inject.ErrReleased, inject.ErrDropped, inject.ErrInForce}, err)
}

// setupError is what went wrong with the machine that the case describes, before its experiment.
type setupError struct{ err error }

func (e *setupError) Error() string { return e.err.Error() }
func (e *setupError) Unwrap() error { return e.err }

// limitError is the cause of a context whose time, that of --timeout, is over.
type limitError struct {
	what  string
	after time.Duration
}

func (e *limitError) Error() string {
	return fmt.Sprintf("the %s of the case was not done after %s (--timeout)", e.what, e.after)
}
func (e *limitError) Unwrap() error { return context.DeadlineExceeded }

// verdict is the outcome of a case, and why it is no pass: err is what ended it, unmet what was expected and is not so. Nothing is blamed on a guest as long as there is a
// doubt; doubts is asked only then.
func verdict(err error, unmet []string, doubts func() []string) (result.Outcome, []string) {
	reasons := unmet
	if err != nil {
		reasons = []string{err.Error()}
	}
	switch {
	case len(reasons) == 0:
		return result.Pass, nil
	case err != nil && (judge{}).whose(err) != guests:
		return result.Error, reasons
	}
	if d := doubts(); len(d) > 0 {
		return result.Error, append(slices.Clip(reasons), d...)
	}
	return result.Fail, reasons
}

// conditions are what may have kept a guest from doing what it was to do.
type conditions struct {
	stood   qemu.Standstill
	wait    time.Duration // the deadline of the step that was not done in time; 0: none
	unwired cpulist.List  // vectors that were fired and that QEMU has not given an eventfd for
	handled bool          // no interrupt is missing
	damaged []error       // what was booted is not what it was
}

// doubts are the reasons not to blame the guest, one sentence each.
func (c conditions) doubts() []string {
	var d []string
	if c.stood.Spoils(c.wait) {
		d = append(d, fmt.Sprintf("nobody can be blamed: %s while the case ran (stopped, asleep with the machine, or starved by it), and what failed may come from that; run it again", c.stood))
	}
	if !c.handled && len(c.unwired) > 0 {
		d = append(d, fmt.Sprintf("nobody can be blamed: vectors %s were fired, and QEMU never gave the device their eventfds, so that no interrupt could reach the guest", c.unwired))
	}
	for _, err := range c.damaged {
		if text := "nobody can be blamed: " + err.Error(); !slices.Contains(d, text) { // several files may be of one entry
			d = append(d, text)
		}
	}
	return d
}

// wires takes note of the vectors that no interrupt can come by.
func (c *conditions) wires(states []vfiouser.VectorState) {
	for _, v := range states {
		if v.Pending && !v.Assigned {
			c.unwired = append(c.unwired, v.Index)
		}
	}
}
