// Package labtest runs irqlab's scenarios as Go tests: one line, a sub-test for each case.
//
// It turns outcomes into what package testing knows, and does nothing else: cases come from scenarios, results from lab/runner, their looks from lab/report.
package labtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"irqlab/images"
	"irqlab/lab"
	"irqlab/lab/report"
	"irqlab/lab/runner"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// RequireVariable makes, set to anything, a failure of every skip for want of something: for CI, where a suite that skips itself looks like one that passes.
const RequireVariable = "IRQLAB_REQUIRE"

// grace is what a test keeps of the time that -timeout leaves it, to end its VMs and to tell what came of them: package testing ends the process without a word of either.
const grace = 15 * time.Second

// running has room for one run: each takes as many cores and as much memory as this machine has, and knows nothing of another.
var running = make(chan struct{}, 1)

// RunScenario runs a scenario: one that is shipped, by its name, or a YAML file, by its path. Each case is a parallel sub-test, and -run and -skip choose among them as ever. It returns
// before they have run: they do when the test that called it has returned, as parallel sub-tests do.
//
//   - pass: the sub-test passes.
//   - fail: the sub-test fails, with the reasons and the table. So it does where the scenario marks the failure as known.
//   - error, the lab could not tell: the sub-test fails, too, and says that it is the lab's. A test that was to find something out and did not has not passed, nor was it left out.
//   - observed, where the case expects nothing or an option took away what it expects: the sub-test is skipped. Say what you expect: Expect.
//
// The test is skipped, with the reason, under -short, and where no VM can be had: no Go toolchain, no sources of the guest's agent, neither a QEMU or kernel nor a way to fetch one.
// The variable IRQLAB_REQUIRE makes failures of the latter. A mistake in the scenario or an option is a failure.
//
// The test's ArtifactDir has the results of all cases as JSON, text and Markdown, and for each case its console, trace and timeline.
//
// The VMs end with t.Context. As many run at a time as this machine has cores and memory for; the scenarios of one process run one after another.
func RunScenario(t *testing.T, scenario string, options ...Option) {
	t.Helper()
	if testing.Short() {
		t.Skip("irqlab: boots virtual machines (-short)")
	}
	var r request
	for _, o := range options {
		o(&r)
	}
	cases, notes, err := r.cases(scenario)
	if err != nil {
		t.Fatalf("irqlab: %s: %v", scenario, err)
	}
	for _, n := range notes {
		t.Logf("irqlab: %s: %s", scenario, n)
	}
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatalf("irqlab: %v", err)
	}
	cache.Warn = func(message string) { t.Logf("irqlab: warning: %s", message) }
	if err := obtain(t.Context(), cache); err != nil {
		missing(t, err)
	}

	kernels := map[string]error{}
	var chosen []*waiting
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			if _, asked := kernels[c.Kernel]; !asked {
				_, kernels[c.Kernel] = cache.Kernel(t.Context(), c.Kernel, nil)
			}
			if err := kernels[c.Kernel]; err != nil {
				missing(t, err)
			}
			w := &waiting{c: c, done: make(chan struct{})}
			chosen = append(chosen, w)
			t.Parallel() // stands until the calling test returns: by then it is known which cases were chosen
			<-w.done
			w.tell(t)
		})
	}
	if len(chosen) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	if end, ok := t.Deadline(); ok {
		cancel() // the other will do
		ctx, cancel = context.WithDeadlineCause(t.Context(), end.Add(-grace), errors.New("the time of the test is over (go test -timeout)"))
	}
	dir, kept := t.ArtifactDir(), make(chan error, 1)
	t.Cleanup(func() {
		cancel()
		if err := <-kept; err != nil {
			t.Errorf("irqlab: the results were not kept: %v", err)
		}
	})
	go func() {
		kept <- all(ctx, chosen, runner.Options{Cache: cache, Start: lab.StartAuto, Jobs: r.jobs, Timeout: r.timeout, Out: dir})
	}()
}

// obtain finds or fetches what every VM takes.
func obtain(ctx context.Context, cache *images.Cache) error {
	if err := cache.CheckGuest(ctx); err != nil {
		return err
	}
	_, err := cache.QEMU(ctx, "", nil)
	return err
}

// missing ends a test that lacks something: it is skipped if that cannot be had here.
func missing(t *testing.T, err error) {
	t.Helper()
	if images.Unobtainable(err) && os.Getenv(RequireVariable) == "" {
		t.Skipf("irqlab: no VM can be had here: %v", err)
	}
	t.Fatalf("irqlab: %v", err)
}

// waiting is a sub-test that waits for its case's result.
type waiting struct {
	c      scenarios.Case
	done   chan struct{} // closed once there is one of the others
	result *result.Case
	err    error // that ended the run before there was a result
}

// all runs the cases of those that wait, tells each its own as soon as there is one, and keeps the results.
func all(ctx context.Context, chosen []*waiting, o runner.Options) error {
	cases := make([]scenarios.Case, len(chosen))
	whose := map[*scenarios.Case]*waiting{}
	for i, w := range chosen {
		cases[i] = w.c
		whose[&cases[i]] = w
	}
	o.Status = func(s runner.Status) {
		if w := whose[s.Case]; s.Done != nil {
			w.result = s.Done
			close(w.done)
		}
	}
	rep, err := alone(ctx, cases, o)
	for _, w := range chosen {
		if w.result == nil {
			w.err = err
			close(w.done)
		}
	}
	return keep(o.Out, rep)
}

// alone runs the cases once no other run is under way in this process.
func alone(ctx context.Context, cases []scenarios.Case, o runner.Options) (result.Report, error) {
	select {
	case running <- struct{}{}:
		defer func() { <-running }()
	case <-ctx.Done():
		return result.Report{}, context.Cause(ctx)
	}
	rep, err := runner.Run(ctx, cases, o)
	if ctx.Err() != nil {
		err = context.Cause(ctx) // which says whose time was over
	}
	return rep, err
}

// keep writes the results next to what the cases left.
func keep(dir string, rep result.Report) error {
	for name, render := range map[string]func(io.Writer, result.Report) error{"results.json": report.JSON[result.Report], "results.txt": report.Table, "results.md": report.Markdown} {
		var b bytes.Buffer
		if err := render(&b, rep); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// tell makes the outcome the sub-test's.
func (w *waiting) tell(t *testing.T) {
	t.Helper()
	if w.result == nil {
		t.Fatalf("irqlab: the lab could not tell: %v", w.err)
	}
	c := w.result
	var table bytes.Buffer
	if err := report.Table(&table, result.Report{Cases: []result.Case{*c}}); err != nil {
		t.Fatalf("irqlab: %v", err)
	}
	reasons := strings.Join(c.Reasons, "\n")
	switch c.Outcome {
	case result.Pass:
		t.Logf("\n%s", &table)
	case result.Observed:
		t.Skipf("irqlab: observed only: the case expects nothing, or an option took away what it expects (labtest.Expect says what you do)\n%s", &table)
	case result.Fail:
		t.Errorf("%s\n%s", reasons, &table)
	default:
		t.Errorf("irqlab: the lab could not tell: %s\n%s", reasons, &table)
	}
}
