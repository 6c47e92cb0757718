// Package runner turns cases into jobs and jobs into results: it starts a VM for each case, walks it through the experiment, and judges what was seen.
//
// It knows scenarios and lab; it does not know how results look or where the cases came from.
package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"irqlab/images"
	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// Options are what all cases of a run share.
type Options struct {
	Cache    *images.Cache
	QEMU     string        // path; "": found or fetched
	Accel    string        // lab.AccelAuto, …
	Start    string        // lab.StartAuto, …; "": cold
	Jobs     int           // VMs at a time; 0: DefaultJobs
	Timeout  time.Duration // of one case, fetching not included; 0: DefaultTimeout of its shape
	Out      string        // directory for consoles and traces, which must exist; "": none are kept
	Keep     bool          // keep run directories
	Cmdline  []string      // added to the guests' kernel command line
	Progress images.Progress
	Status   func(Status) // told of every change of a case's stage; may be nil; called by several goroutines
}

// Status is where a case is.
type Status struct {
	Case  *scenarios.Case
	Stage string
	Done  *result.Case // set once it has ended
}

// DefaultJobs is how many VMs run at a time unless told otherwise: emulated CPUs are busy ones, so a VM for every two cores.
func DefaultJobs() int { return max(1, runtime.NumCPU()/2) }

// DefaultTimeout is how long a case may take before its guest counts as hung: under TCG boot time grows faster than the number of CPUs.
func DefaultTimeout(cpus int) time.Duration {
	return 2*time.Minute + time.Duration(cpus)*5*time.Second
}

// BadKernelError tells that a kernel SPEC is a mistake of the user's, not a failure of the lab: no such kernel, no such file, or no kernel at all.
type BadKernelError struct{ Err error }

func (e *BadKernelError) Error() string { return e.Err.Error() }
func (e *BadKernelError) Unwrap() error { return e.Err }

// Run runs the cases and returns their results in the same order. The error is one that kept all of them from running, or the context's: then the cases that
// had not ended are missing from the report.
func Run(ctx context.Context, cases []scenarios.Case, o Options) (result.Report, error) {
	report := result.Report{Schema: result.Schema, Host: result.Host{CPUs: runtime.NumCPU()}}
	q, err := o.Cache.QEMU(ctx, o.QEMU, o.Progress)
	if err != nil {
		return report, fmt.Errorf("QEMU: %w", err)
	}
	accel, reason, err := lab.ChooseAccel(o.Accel)
	if err != nil {
		return report, err
	}
	report.Host.QEMU, report.Host.Accel, report.Host.AccelReason = q.Version, string(accel), reason
	unusable, err := prepare(ctx, cases, o)
	if err != nil {
		return report, err
	}

	results := make([]*result.Case, len(cases))
	seats := make(chan struct{}, max(1, cmp.Or(o.Jobs, DefaultJobs())))
	var wg sync.WaitGroup
	for i := range cases {
		c := &cases[i]
		if err := unusable[c.Kernel]; err != nil {
			r := newResult(c)
			r.Outcome, r.Reasons = result.Error, []string{err.Error()}
			results[i] = &r
			o.status(Status{Case: c, Done: &r})
			continue
		}
		select {
		case seats <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-seats }()
			r := runCase(ctx, c, o)
			if ctx.Err() == nil {
				results[i] = &r
				o.status(Status{Case: c, Done: &r})
			}
		})
	}
	wg.Wait()
	for _, r := range results {
		if r != nil {
			report.Cases = append(report.Cases, *r)
		}
	}
	return report, context.Cause(ctx)
}

func (o Options) status(s Status) {
	if o.Status != nil {
		o.Status(s)
	}
}

// prepare brings every kernel and its initramfs into the cache before the first VM starts, so that fetching is not timed as running. A kernel that cannot be had
// is an error of its cases only, unless the SPEC itself is wrong.
func prepare(ctx context.Context, cases []scenarios.Case, o Options) (unusable map[string]error, err error) {
	unusable = map[string]error{}
	var done []string
	for _, c := range cases {
		if slices.Contains(done, c.Kernel) {
			continue
		}
		done = append(done, c.Kernel)
		k, err := o.Cache.Kernel(ctx, c.Kernel, o.Progress)
		if err == nil {
			_, err = o.Cache.Initramfs(ctx, k, o.Progress)
		}
		var spec *images.SpecError
		var unknown *images.UnknownKernelError
		var incomplete *images.IncompleteKernelError
		var no *images.NotAKernelError
		var noGo *images.NoGoError
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.As(err, &incomplete) && !strings.HasPrefix(c.Kernel, "debian:"): // the packages given, not those of a mirror
			return nil, &BadKernelError{err}
		case errors.As(err, &spec), errors.As(err, &unknown), errors.As(err, &no), errors.Is(err, os.ErrNotExist) && !errors.As(err, &noGo):
			return nil, &BadKernelError{err}
		case err != nil:
			unusable[c.Kernel] = err
		}
	}
	return unusable, nil
}

// Failed is the report of a run that err kept from running any of its cases.
func Failed(cases []scenarios.Case, err error) result.Report {
	report := result.Report{Schema: result.Schema, Host: result.Host{CPUs: runtime.NumCPU()}}
	for i := range cases {
		r := newResult(&cases[i])
		r.Outcome, r.Reasons = result.Error, []string{err.Error()}
		report.Cases = append(report.Cases, r)
	}
	return report
}

// dir is where a case's files go, relative to Options.Out.
func dir(c *scenarios.Case) string { return filepath.Join(c.Scenario, c.Slug()) }
