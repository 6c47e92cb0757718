package qemu

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"irqlab/lab/qemu/klog"
)

// BootError tells that the guest did not get where it was expected: it hung, it panicked, or it ended QEMU. That is the guest's failure, not the lab's.
type BootError struct {
	Awaited   string         // the console text that did not come
	After     time.Duration  // how long it was awaited
	Err       error          // why the wait ended: the context's error, or a *DeadError
	Panic     *klog.Finding  // the guest's panic, if it had one
	Trouble   []klog.Finding // all that the console tells of, the panic included; the first is mostly the cause
	Tail      string         // the console's last lines
	Diagnosis string         // of a guest that hung: see Process.Diagnose
	Stood     Standstill     // how long lab and QEMU did not run meanwhile
}

func (e *BootError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "guest: %q did not appear on the console within %s", e.Awaited, e.After.Round(time.Millisecond))
	switch {
	case e.Panic != nil:
		fmt.Fprintf(&b, ": %s", e.Panic.Title)
		if first := e.Trouble[0]; first.Kind != klog.Panic {
			fmt.Fprintf(&b, "\nwhat came first:\n%s", indent(firstLines(first.Text, tailLines)))
		}
		fmt.Fprintf(&b, "\nthe guest panicked:\n%s", indent(firstLines(e.Panic.Text, tailLines)))
	case e.Err != nil:
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	var dead *DeadError // which shows the console itself
	switch {
	case e.Panic != nil || errors.As(e.Err, &dead) || e.Diagnosis != "":
	case e.Tail == "":
		b.WriteString("\nthe console is empty: the kernel did not start")
	default:
		fmt.Fprintf(&b, "\nlast console lines:\n%s", indent(e.Tail))
	}
	if e.Diagnosis != "" {
		b.WriteString("\n" + e.Diagnosis)
	}
	return b.String()
}

func (e *BootError) Unwrap() error { return e.Err }

// DeadError tells that QEMU has ended though nobody closed it.
type DeadError struct {
	Command string         // the QMP command under way, if any
	Status  int            // exit status; -1 if killed by Signal
	Signal  syscall.Signal // 0: none
	Reason  string         // QEMU's word for a shutdown it announced, such as guest-shutdown or guest-reset; else empty
	Cause   error          // why the lab killed it, if it did: a *TimeoutError
	Stderr  string         // what QEMU wrote there, its end if it was much
	Tail    string         // the console's last lines
}

// Guest reports whether the guest ended QEMU: it powered off, or rebooted after a panic or a triple fault.
func (e *DeadError) Guest() bool {
	return e.Cause == nil && e.Signal == 0 && e.Status == 0 && strings.HasPrefix(e.Reason, "guest-")
}

// Killed reports whether somebody else ended QEMU, as a host does that runs out of memory. That tells nothing about what QEMU was about.
func (e *DeadError) Killed() bool {
	return e.Cause == nil && (e.Signal == syscall.SIGKILL || e.Reason == "host-signal")
}

func (e *DeadError) Error() string {
	var b strings.Builder
	b.WriteString("QEMU has ended")
	switch {
	case e.Cause != nil:
		fmt.Fprintf(&b, ": the lab killed it: %v", e.Cause)
	case e.Signal != 0:
		fmt.Fprintf(&b, ": killed by signal %d (%s)", e.Signal, e.Signal)
	case e.Reason != "":
		fmt.Fprintf(&b, " with status %d: %s", e.Status, e.Reason)
	default:
		fmt.Fprintf(&b, " with status %d", e.Status)
	}
	if e.Command != "" && e.Cause == nil {
		fmt.Fprintf(&b, ", during QMP %s", e.Command)
	}
	if e.Stderr != "" {
		fmt.Fprintf(&b, "\nQEMU wrote:\n%s", indent(e.Stderr))
	}
	if e.Tail != "" {
		fmt.Fprintf(&b, "\nlast console lines:\n%s", indent(e.Tail))
	}
	return b.String()
}

func (e *DeadError) Unwrap() error { return e.Cause }

// TimeoutError tells that QEMU did not answer a QMP command in time, or did not offer QMP at all (Command is then qmp_capabilities).
type TimeoutError struct {
	Command string
	After   time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("no answer to QMP %s within %s", e.Command, e.After)
}

// NotStartedError tells that the context had ended before QEMU could be started.
type NotStartedError struct{ Err error }

func (e *NotStartedError) Error() string { return fmt.Sprintf("QEMU was not started: %v", e.Err) }

func (e *NotStartedError) Unwrap() error { return e.Err }

// SilentCPUError tells that the guest neither agreed nor refused when ACPI asked it to eject or to take a CPU.
type SilentCPUError struct {
	CPU   int
	Eject bool
	After time.Duration
}

func (e *SilentCPUError) Error() string {
	did := "take"
	if e.Eject {
		did = "eject"
	}
	return fmt.Sprintf("CPU %d: the guest neither agreed nor refused to %s it within %s (does it handle ACPI CPU hotplug?)", e.CPU, did, e.After)
}

func (e *SilentCPUError) Unwrap() error { return context.DeadlineExceeded }

// FrozenError tells that QEMU itself does not answer: it is stopped, or the host gives it no time. Whatever its guest then fails to do is not the guest's failure.
type FrozenError struct {
	Err error
}

func (e *FrozenError) Error() string {
	return fmt.Sprintf("QEMU itself does not answer (it is stopped, or the host is too busy): %v", e.Err)
}

func (e *FrozenError) Unwrap() error { return e.Err }

// CommandError is QEMU's refusal of a QMP command.
type CommandError struct {
	Command string
	Class   string // QEMU's error class, mostly GenericError
	Desc    string
}

func (e *CommandError) Error() string { return "QMP " + e.Command + ": " + e.Desc }

func firstLines(text string, n int) string {
	lines := strings.SplitAfterN(text, "\n", n+1)
	if len(lines) > n {
		lines = append(lines[:n], "…")
	}
	return strings.Join(lines, "")
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  ")
}
