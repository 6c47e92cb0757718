package lab

import (
	"context"
	"fmt"
	"time"
)

// CallError is a failure that the guest reports of a call, an *agentapi.Error.
type CallError struct {
	Method string
	Err    error // which names the method
}

func (e *CallError) Error() string { return e.Err.Error() }
func (e *CallError) Unwrap() error { return e.Err }

// UnansweredError tells that the time for a call to the guest's agent was over before the answer came. Whose fault that is depends on what the guest still does: see
// VM.Explain.
type UnansweredError struct {
	Method string
	After  time.Duration
	Err    error // whose time was over
}

func (e *UnansweredError) Error() string {
	return fmt.Sprintf("%v (unanswered for %s)", e.Err, e.After.Round(time.Millisecond))
}

func (e *UnansweredError) Unwrap() error { return e.Err }

// ExplainedError is an error with what guest and QEMU told when they were asked about it.
type ExplainedError struct {
	Err     error
	Cause   error  // QEMU's end (*qemu.DeadError), or why it told nothing (*qemu.FrozenError); nil: it runs and answers
	Answers bool   // the guest's agent answers
	Text    string // what there is to show, the output of the lab's own NMI included
}

func (e *ExplainedError) Error() string {
	s := e.Err.Error()
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	if e.Text != "" {
		s += "\n" + e.Text
	}
	return s
}

func (e *ExplainedError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// PresentError tells that the guest's kernel has a CPU present, or not, against what it answered by ACPI.
type PresentError struct {
	CPU int
	Got string
}

func (e *PresentError) Error() string { return fmt.Sprintf("CPU %d: %s", e.CPU, e.Got) }

// answerTime is how long a guest that is to be explained may take to answer the simplest question: one that works takes milliseconds.
const answerTime = 10 * time.Second

// answers tells whether the guest's agent still answers.
func (vm *VM) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	_, err := vm.Agent.Info(ctx)
	return err == nil
}
