package runner

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"irqlab/images"
	"irqlab/lab"
	"irqlab/lab/qemu"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// A defect that one case runs into is that case's error, with its stack; the cases beside it come out as ever, and no VM is left.
func TestPanicIsOneCasesError(t *testing.T) {
	t.Parallel()
	sc, err := scenarios.Get(scenarios.Default)
	cases := plan(t, sc, err, scenarios.Overrides{})
	cases[1].Scenario = "defective"
	// The only way in from outside is what the runner calls while a VM runs.
	status := func(s Status) {
		if s.Case.Name == "linear" && s.Stage == "settling" {
			panic("a defect of the test's")
		}
	}
	rep := runCases(t, cases, Options{Start: lab.StartAuto, Jobs: 2, Status: status})
	for _, c := range rep.Cases {
		reasons := strings.Join(c.Reasons, "\n")
		switch c.Name {
		case "linear":
			if c.Outcome != result.Error || !strings.Contains(reasons, "a defect of the test's") || !strings.Contains(reasons, "isolation_test.go") {
				t.Errorf("%s: %s: %s; want an error with the stack", c.Name, c.Outcome, reasons)
			}
		default:
			if c.Outcome != result.Pass {
				t.Errorf("%s: %s: %s", c.Name, c.Outcome, reasons)
			}
		}
	}
	if n := vmsOf("defective"); n > 0 {
		t.Errorf("%d VMs of that case are left", n)
	}
}

// vmsOf counts the running VMs whose name begins so.
func vmsOf(prefix string) (n int) {
	for _, vm := range qemu.List() {
		if strings.HasPrefix(vm.Name, prefix) {
			n++
		}
	}
	return n
}

// A guest that hangs costs its own case's time and nothing else; what an interrupted run has seen by then is kept, and it says how much is missing.
func TestHangAndInterrupt(t *testing.T) {
	t.Parallel()
	sc, err := scenarios.Get(scenarios.Default)
	cases := plan(t, sc, err, scenarios.Overrides{})
	hanging := cases[0]
	hanging.Scenario, hanging.Name = "hanging", "hanging"
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	o := Options{Cache: cache, Start: lab.StartAuto, Jobs: 2, Timeout: 8 * time.Minute}
	var partial []result.Report
	o.Partial = func(r result.Report) { partial = append(partial, r) }
	// The first case stands still as soon as its VM runs, for as long as its context lets it: a job that hangs. When another has ended, the run is interrupted.
	o.Status = func(s Status) {
		switch {
		case s.Case.Name == "hanging" && s.Stage == "settling":
			<-ctx.Done()
		case s.Done != nil:
			interrupt()
		}
	}
	rep, err := Run(ctx, append([]scenarios.Case{hanging}, cases[1:]...), o)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted run: %v", err)
	}
	if len(rep.Cases) != 1 || rep.Cases[0].Outcome != result.Pass || rep.NotRun != 2 || len(rep.Pending) != 2 || rep.Pending[1].Name == "" {
		t.Errorf("%d cases ended and %d did not; want 1, passed, and 2", len(rep.Cases), rep.NotRun)
	}
	if len(partial) != 1 || len(partial[0].Cases) != 1 || partial[0].NotRun != 2 {
		t.Errorf("partial reports: %+v", partial)
	}
	if n := vmsOf("hanging"); n > 0 {
		t.Errorf("%d VMs of the hanging case are left", n)
	}
}
