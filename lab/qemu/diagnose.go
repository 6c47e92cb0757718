package qemu

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/digitalocean/go-qemu/qmp/raw"
)

const (
	diagnoseTime = 20 * time.Second
	nmiTime      = 5 * time.Second // for the guest to print its stacks
	maxRegisters = 16              // CPUs whose registers are shown
)

// Diagnose asks a guest that hangs for all it can still tell: QEMU's view of it, the registers of its CPUs, its last console lines, and the stacks its kernel
// prints on an NMI. It takes 20 s at most, or until ctx ends. The guest panics from the NMI (that is how it prints the stacks) and is of no more use.
//
// The error says why QEMU told nothing: a *FrozenError, or a *DeadError.
func (p *Process) Diagnose(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, diagnoseTime)
	defer cancel()
	var b strings.Builder
	section := func(title, text string) { fmt.Fprintf(&b, "%s:\n%s\n", title, indent(text)) }
	section("last console lines", p.console.Tail(tailLines))

	q := raw.NewMonitor(typed{ctx, p})
	status, err := q.QueryStatus()
	if err != nil {
		section("QEMU", err.Error())
		var dead *DeadError
		if !errors.As(err, &dead) && ctx.Err() != nil {
			err = &FrozenError{err}
		}
		return strings.TrimRight(b.String(), "\n"), err
	}
	section("QEMU", fmt.Sprintf("status %s, running %t", status.Status, status.Running))
	if status.Status == raw.RunStatePaused { // by a stop command: no guest comes to that by itself
		return strings.TrimRight(b.String(), "\n"), &FrozenError{errors.New("somebody has paused its guest")}
	}
	for cpu := range int64(min(p.machine.Shape.CPUs(), maxRegisters)) {
		text, err := q.HumanMonitorCommand("info registers", &cpu)
		if err != nil {
			section(fmt.Sprintf("registers of CPU %d", cpu), err.Error())
			break
		}
		section(fmt.Sprintf("registers of CPU %d", cpu), generalRegisters(text))
	}
	if n := p.machine.Shape.CPUs(); n > maxRegisters {
		fmt.Fprintf(&b, "registers of CPUs %d to %d are not shown\n", maxRegisters, n-1)
	}
	if text, err := p.backtrace(ctx, q); err != nil {
		section("backtrace", err.Error())
	} else {
		section("backtrace", text)
	}
	return strings.TrimRight(b.String(), "\n"), nil
}

// generalRegisters leaves out the floating point and vector registers, which fill a screen per CPU and have yet to explain a hang.
func generalRegisters(text string) string {
	text = strings.ReplaceAll(strings.TrimSpace(text), "\r", "")
	if i := strings.Index(text, "\nFCW="); i >= 0 {
		text = text[:i]
	}
	return text
}

// backtrace injects an NMI, which a guest started with machine's command line answers with a panic that shows all its CPUs' stacks.
func (p *Process) backtrace(ctx context.Context, q *raw.Monitor) (string, error) {
	provoked := p.console.provoke()
	if err := q.InjectNmi(); err != nil {
		return "", err
	}
	timeout := time.NewTimer(nmiTime)
	defer timeout.Stop()
	select {
	case <-p.done:
	case <-timeout.C:
	case <-ctx.Done():
	}
	var texts []string
	for _, f := range provoked() {
		texts = append(texts, f.Text)
	}
	if len(texts) == 0 {
		return "", fmt.Errorf("the guest did not answer an NMI within %s: its interrupts are masked, it is not far enough, or it does not run", nmiTime)
	}
	return strings.Join(texts, ""), nil
}
