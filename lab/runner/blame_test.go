package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/devmodel/vfiouser"
	"irqlab/guestagent/agentapi"
	"irqlab/images"
	"irqlab/lab"
	"irqlab/lab/machine"
	"irqlab/lab/qemu"
	"irqlab/lab/qemu/klog"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// TestBlame has a row for each type of error and for each situation it comes up in.
func TestBlame(t *testing.T) {
	limit := &limitError{"run", time.Minute}
	late := &lateError{after: 5 * time.Minute}
	refused := &agentapi.Error{Code: agentapi.CodeRefused, Message: "no", Errno: int(syscall.ENOSPC)}
	called := func(method string, err error) error {
		return &lab.CallError{Method: method, Err: fmt.Errorf("%s: %w", method, err)}
	}
	unanswered := func(after time.Duration, err error) error {
		return &lab.UnansweredError{Method: agentapi.MethodSetLink, After: after, Err: fmt.Errorf("guest agent: %w", err)}
	}
	explained := func(err, cause error, answers bool) error {
		return &lab.ExplainedError{Err: err, Cause: cause, Answers: answers}
	}
	reset := &qemu.DeadError{Reason: "guest-reset"}
	killed := &qemu.DeadError{Signal: syscall.SIGKILL, Status: -1}
	boot := func(after time.Duration, err error) *qemu.BootError {
		return &qemu.BootError{Awaited: "ready", After: after, Err: err}
	}
	frozen := &qemu.FrozenError{Err: context.DeadlineExceeded}
	up := scenarios.Step{Verb: scenarios.VerbUp}
	waiting := scenarios.Step{Verb: scenarios.VerbWaitFor, WaitFor: &scenarios.WaitFor{Held: "h"}}
	offline := scenarios.Step{Verb: scenarios.VerbOffline, CPUs: []int{3}}
	held := []string{"h (hold at request:X)"}
	for _, tc := range []struct {
		what string
		err  error
		want party
	}{
		{"an error of no type", errors.New("boom"), labs},
		{"the same, wrapped", fmt.Errorf("x: %w", errors.New("boom")), labs},
		{"the channel is gone, and QEMU runs", explained(fmt.Errorf("guest agent: %w", io.EOF), nil, false), labs},
		{"a deadline of nobody knows what, as before there is a guest", fmt.Errorf("QEMU: %w", context.DeadlineExceeded), labs},
		{"an interrupt", context.Canceled, labs},
		{"a file of --out", &os.PathError{Op: "write", Path: "trace.jsonl", Err: syscall.ENOSPC}, labs},
		{"a defect of irqlab's", &PanicError{Value: "x"}, labs},
		{"another irqlab at work", &images.BusyError{Err: context.DeadlineExceeded}, labs},
		{"a full cache", &images.NoSpaceError{}, labs},
		{"a kernel that is none", &images.BadKernelError{Err: errors.New("no such file")}, cases},
		{"a module of another kernel", fmt.Errorf("x: %w", &images.BadModuleError{Err: errors.New("for 6.18")}), cases},
		{"a module that the kernel cannot link", &UnloadableError{Err: &DriverError{What: "x", Err: agentapi.Errorf(agentapi.CodeFailed, "no symbol")}}, cases},
		{"a guest without room for a module", called(agentapi.MethodReplaceModule, refused), labs},
		{"a machine that cannot be", &machine.FieldError{}, cases},

		{"no time to start QEMU", &qemu.NotStartedError{Err: limit}, labs},
		{"a boot that took all the time there was", boot(time.Minute, limit), guests},
		{"a boot that had a moment", boot(20*time.Second, limit), labs},
		{"a boot whose deadline is another's", boot(time.Minute, context.DeadlineExceeded), labs},
		{"a boot that panicked", &qemu.BootError{Panic: &klog.Finding{}, Trouble: []klog.Finding{{}}}, guests},
		{"a boot whose limit is too short for any", boot(1800*time.Millisecond, &limitError{"start", 2 * time.Second}), labs},
		{"a boot that had half of its limit, and a minute", boot(70*time.Second, &limitError{"start", 2 * time.Minute}), guests},
		{"a boot beside which the lab was stopped", &qemu.BootError{Panic: &klog.Finding{}, Trouble: []klog.Finding{{}}, Stood: qemu.Standstill{Lab: 12 * time.Second}}, labs},
		{"a boot in a QEMU that stands still", boot(time.Minute, fmt.Errorf("%w: %w", limit, frozen)), labs},
		{"a boot whose QEMU was killed", boot(time.Second, killed), labs},
		{"a boot with a triple fault", boot(time.Second, reset), guests},
		{"a boot that was interrupted", boot(time.Second, context.Canceled), labs},

		{"QEMU ended by its guest", reset, guests},
		{"QEMU ended by the guest's agent", &qemu.DeadError{Reason: "guest-shutdown"}, labs},
		{"QEMU killed", killed, labs},
		{"QEMU ended by the lab", &qemu.DeadError{Cause: &qemu.TimeoutError{Command: "cont"}}, labs},
		{"QEMU that does not start", &qemu.DeadError{Status: 1}, labs},
		{"QMP unanswered", &qemu.TimeoutError{}, labs},
		{"QMP refused", &qemu.CommandError{Command: "device_add"}, labs},
		{"the channel is gone with the guest", explained(fmt.Errorf("guest agent: %w", io.EOF), reset, false), guests},
		{"the channel is gone with a killed QEMU", explained(fmt.Errorf("guest agent: %w", io.EOF), killed, false), labs},

		{"a call unanswered when time was over, and the guest is mute", explained(unanswered(3*time.Second, limit), nil, false), guests},
		{"the same, whoever's the deadline is", explained(unanswered(3*time.Second, context.DeadlineExceeded), nil, false), guests},
		{"the same, QEMU standing still", explained(unanswered(3*time.Second, limit), frozen, false), labs},
		{"the same, and the guest answers: it was not done in time", explained(unanswered(3*time.Second, limit), nil, true), labs},
		{"the kernel sits in a call, and the guest answers others", explained(unanswered(hungCall, limit), nil, true), guests},
		{"a start that took too long in a call, and nobody looked after it", unanswered(hungCall, limit), labs},
		{"time is over in a pause, and the guest is mute", explained(limit, nil, false), guests},
		{"time is over in a pause, and the guest answers", explained(limit, nil, true), labs},
		{"a step's time is over in a call", unanswered(time.Second, late), guests},
		{"a guest that does not wake", &lab.AsleepError{Mode: "freeze", Woken: true, Err: unanswered(time.Second, late)}, guests},
		{"a guest that oopsed in a call, which nobody waits for any longer", fmt.Errorf("guest agent: %w", &lateError{after: time.Second, oops: "Oops: general"}), guests},

		{"a kernel that says no", called(agentapi.MethodAddVectors, refused), guests},
		{"a kernel that says no to what the lab needs", called(agentapi.MethodOpenFunction, refused), labs},
		{"a kernel without room for other devices' vectors", called(agentapi.MethodOccupy, refused), cases},
		{"a CPU that cannot go while the machine is set up", &setupError{called(agentapi.MethodSetCPU, refused)}, labs},
		{"an agent without descriptors", called(agentapi.MethodAddVectors, &agentapi.Error{Code: agentapi.CodeRefused, Errno: int(syscall.EMFILE)}), labs},
		{"what this kernel cannot", called(agentapi.MethodOpenFunction, agentapi.Errorf(agentapi.CodeUnsupported, "x")), labs},
		{"a kernel without the driver", called(agentapi.MethodLoadModule, agentapi.Errorf(agentapi.CodeNotFound, "x")), labs},
		{"a function that did not appear", called(agentapi.MethodOpenFunction, agentapi.Errorf(agentapi.CodeTimeout, "x")), labs},
		{"an agent that failed", called(agentapi.MethodObserve, agentapi.Errorf(agentapi.CodeFailed, "x")), labs},

		{"a driver that does not come up", &DriverError{What: "no link", Err: refused}, guests},
		{"vectors that do not settle", &lab.UnsettledError{}, guests},
		{"a vector that the kernel has no room for", fmt.Errorf("x: %w", refusedVector(3, &lab.CallError{Method: agentapi.MethodAddVectors, Err: &agentapi.Error{Code: agentapi.CodeRefused, Errno: int(syscall.ENOSPC)}})), guests},
		{"a vector that the agent has no descriptor for", refusedVector(3, &lab.CallError{Method: agentapi.MethodAddVectors, Err: &agentapi.Error{Code: agentapi.CodeRefused, Errno: int(syscall.EMFILE)}}), labs},
		{"a lost interrupt", &lab.LostError{Err: agentapi.Errorf(agentapi.CodeTimeout, "IRQ 29")}, guests},
		{"a CPU that the guest will not eject", &qemu.CPURefusedError{CPU: 3}, guests},
		{"a CPU that the guest says nothing of", &qemu.SilentCPUError{CPU: 3}, guests},
		{"a CPU that was ejected and is there", &lab.PresentError{CPU: 3}, guests},
		{"a CPU that no guest can eject", &machine.HotplugError{CPU: 0}, cases},
		{"no vector anybody handles", refusef("no vector"), cases},
		{"a hold that is none", fmt.Errorf("rule: %w", inject.ErrUnknown), cases},
		{"a hold released twice", fmt.Errorf("rule: %w", inject.ErrReleased), cases},

		{"a step that took too long", &StepError{Step: offline, Err: late, Late: true}, guests},
		{"a step that waits for what the case holds", &StepError{Step: offline, Err: late, Late: true, Holds: held}, cases},
		{"a driver that gave up what the case held", &StepError{Step: up, Err: &DriverError{What: "x"}, Refused: true, Holds: held}, cases},
		{"a driver that says no, and nothing is held", &StepError{Step: up, Err: &DriverError{What: "x"}, Refused: true}, guests},
		{"a CPU refused while the device is held", &StepError{Step: offline, Err: called(agentapi.MethodSetCPU, refused), Refused: true, Holds: held}, guests},
		{"what was awaited in so many words did not come", &StepError{Step: waiting, Err: late, Late: true, Holds: held}, guests},
		{"the same, cut short by the limit of the case", &StepError{Step: waiting, Err: limit, Late: true, Limit: true}, labs},
		{"the same, and the guest is mute", explained(&StepError{Step: waiting, Err: context.DeadlineExceeded, Late: true, Limit: true}, nil, false), guests},
		{"a step of the lab's own trouble", &StepError{Step: offline, Err: killed}, labs},

		{"the guest's and the lab's, side by side", errors.Join(&DriverError{What: "x"}, errors.New("disk full")), labs},
		{"the guest's and the case's, side by side", errors.Join(&DriverError{What: "x"}, inject.ErrUnknown), cases},
		{"the guest's alone, joined", errors.Join(&DriverError{What: "x"}, nil), guests},
		{"nothing, joined", &emptyJoin{}, labs},
	} {
		if got := (judge{}).whose(tc.err); got != tc.want {
			t.Errorf("%s (%v): %s, want %s", tc.what, tc.err, got, tc.want)
		}
	}
}

// emptyJoin is a join of nothing.
type emptyJoin struct{}

func (*emptyJoin) Error() string   { return "none" }
func (*emptyJoin) Unwrap() []error { return nil }

// TestVerdict: nothing is a fail but what is the guest's beyond doubt.
func TestVerdict(t *testing.T) {
	driver := &DriverError{What: "x"}
	for _, tc := range []struct {
		what  string
		err   error
		unmet []string
		now   conditions
		want  result.Outcome
		asked bool // about doubts
	}{
		{"all is well", nil, nil, conditions{}, result.Pass, false},
		{"all is well though the lab was stopped", nil, nil, conditions{stood: qemu.Standstill{Lab: time.Minute}}, result.Pass, false},
		{"an expectation", nil, []string{"CPU 1, not 2"}, conditions{}, result.Fail, true},
		{"an expectation, and the lab was stopped", nil, []string{"a stall"}, conditions{stood: qemu.Standstill{Lab: 12 * time.Second}}, result.Error, true},
		{"an expectation, and QEMU was stopped", nil, []string{"a stall"}, conditions{stood: qemu.Standstill{QEMU: 12 * time.Second}}, result.Error, true},
		{"a short wait, and the lab was stopped as long", &lateError{after: time.Second}, nil, conditions{stood: qemu.Standstill{Lab: 1700 * time.Millisecond}, wait: time.Second}, result.Error, true},
		{"a long wait, and the lab was stopped for a moment", &lateError{after: time.Minute}, nil, conditions{stood: qemu.Standstill{Lab: 1700 * time.Millisecond}, wait: time.Minute}, result.Fail, true},
		{"an expectation, and the lab was busy for a moment", nil, []string{"a stall"}, conditions{stood: qemu.Standstill{Lab: time.Second}}, result.Fail, true},
		{"the guest's error", driver, nil, conditions{}, result.Fail, true},
		{"the lab's error", errors.New("x"), nil, conditions{}, result.Error, false},
		{"the case's error", inject.ErrUnknown, nil, conditions{}, result.Error, false},
		{"a lost interrupt of a vector without a wire", &lab.LostError{Err: errors.New("IRQ 29")}, nil, conditions{unwired: []int{3}}, result.Error, true},
		{"a vector without a wire, and no interrupt is missing", driver, nil, conditions{unwired: []int{3}, handled: true}, result.Fail, true},
		{"a damaged kernel", driver, nil, conditions{damaged: []error{errors.New("vmlinux: content changed")}}, result.Error, true},
	} {
		asked := false
		got, reasons := verdict(tc.err, tc.unmet, func() []string { asked = true; return tc.now.doubts() })
		if got != tc.want || asked != tc.asked || (len(reasons) == 0) != (got == result.Pass) {
			t.Errorf("%s: %s %q, doubts asked: %t; want %s, %t", tc.what, got, reasons, asked, tc.want, tc.asked)
		}
		if got == result.Error && asked && (len(reasons) < 2 || !strings.HasPrefix(reasons[1], "nobody can be blamed: ")) {
			t.Errorf("%s: the doubt is not told: %q", tc.what, reasons)
		}
	}
}

// TestWires: a signal that waits for an eventfd is one that no guest can have handled; one of a vector that was switched off in order waits for nothing.
func TestWires(t *testing.T) {
	var c conditions
	c.wires([]vfiouser.VectorState{{Index: 0, Assigned: true, Fired: 2}, {Index: 1, Pending: true, Fired: 1}, {Index: 2}, {Index: 3, Assigned: true, Pending: true, Fired: 1}})
	if !slices.Equal(c.unwired, []int{1}) {
		t.Errorf("without a wire are %v, want vector 1", c.unwired)
	}
}
