// Package runner turns cases into jobs and jobs into results: it starts a VM for each case, walks it through the experiment, and judges what was seen.
//
// It knows scenarios and lab; it does not know how results look or where the cases came from.
package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"irqlab/images"
	"irqlab/lab"
	"irqlab/lab/machine"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
	"irqlab/scenarios/shape"
)

// Options are what all cases of a run share.
type Options struct {
	Cache    *images.Cache
	QEMU     string        // path; "": found or fetched
	Accel    string        // lab.AccelAuto, …
	Start    string        // lab.StartAuto, …; "": cold
	Jobs     int           // VMs at a time; 0: as many as this machine's cores and memory allow
	Timeout  time.Duration // of one case's start, fetching not included, and again of its run; 0: DefaultTimeout of its shape
	Out      string        // directory for consoles and traces, which must exist; "": none are kept
	Keep     bool          // keep run directories
	Cmdline  []string      // added to the guests' kernel command line
	Progress images.Progress
	Status   func(Status) // told of every change of a case's stage; may be nil; called by several goroutines
	// Partial is given the report of what has ended so far whenever a case does, one call at a time; may be nil.
	Partial func(result.Report)
}

// Status is where a case is, and how far the run.
type Status struct {
	Case         *scenarios.Case
	Stage        string
	Done         *result.Case // set once it has ended
	Ended, Total int          // cases of the run
	Left         Left
}

// DefaultJobs is how many VMs of a shape run at a time unless told otherwise.
func DefaultJobs(s shape.Shape) int {
	c, n := hostCapacity(0), needOf(s, false, machine.Machine{Accel: machine.TCG, Shape: s}.Threaded())
	running := map[int]need{}
	for c.admits(running, n) {
		running[len(running)] = n
	}
	return len(running)
}

// DefaultTimeout is how long a case's start, and its run, may each take before its guest counts as hung: under TCG boot time grows faster than the number of CPUs.
func DefaultTimeout(cpus int) time.Duration {
	return 2*time.Minute + time.Duration(cpus)*5*time.Second
}

// Run runs the cases and returns their results in the same order. The error is one that kept all of them from running, or the context's: then the cases that
// had not ended are missing from the report, which counts them.
//
// A case has no part in another's fate: a guest that hangs takes its own time, and a panic is an error of the case that ran into it.
func Run(ctx context.Context, cases []scenarios.Case, o Options) (result.Report, error) {
	r := &run{opts: o, cases: cases, results: make([]*result.Case, len(cases)), since: map[int]time.Time{}, boots: map[int]bool{}, wake: make(chan struct{}, 1)}
	r.report = result.Report{Schema: result.Schema, IRQLab: lab.Version(), Host: result.Host{CPUs: runtime.NumCPU()}, NotRun: len(cases)}
	tooBig, err := withoutFiles(cases, o)
	if err != nil {
		return r.report, err
	}
	if err := o.Cache.CheckGuest(ctx); err != nil {
		return r.report, err
	}
	q, err := o.Cache.QEMU(ctx, o.QEMU, o.Progress)
	if err != nil {
		return r.report, err // names QEMU
	}
	accel, reason, err := lab.ChooseAccel(o.Accel)
	if err != nil {
		return r.report, err
	}
	r.report.Host.QEMU, r.report.Host.Accel, r.report.Host.AccelReason = q.Version, string(accel), reason
	unusable, err := prepare(ctx, cases, o)
	if err != nil {
		return r.report, err
	}
	hopeless := func(i int) error { return cmp.Or(tooBig[i], unusable[cases[i].Kernel]) }
	todo, err := tasks(ctx, cases, o, accel, func(i int) bool { return hopeless(i) != nil })
	if err != nil {
		return r.report, err
	}
	r.queue = newQueue(hostCapacity(o.Jobs), todo)
	r.estimator.began = time.Now()
	for i := range cases {
		if err := hopeless(i); err != nil {
			c := newResult(&cases[i])
			c.Outcome, c.Reasons = result.Error, []string{err.Error()}
			r.ended(i, &c)
		}
	}
	r.all(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sofar(), context.Cause(ctx)
}

// run is a Run under way.
type run struct {
	opts  Options
	cases []scenarios.Case
	wake  chan struct{} // something has changed that another case may have waited for
	jobs  sync.WaitGroup

	mu        sync.Mutex
	report    result.Report // but for its cases
	results   []*result.Case
	queue     *queue
	estimator estimator
	since     map[int]time.Time // when each case that is under way began
	boots     map[int]bool      // whether it began with making the snapshot
}

// all runs the cases, until they have ended or the context has.
func (r *run) all(ctx context.Context) {
	defer r.jobs.Wait()
	for {
		r.mu.Lock()
		for ctx.Err() == nil {
			i, ok := r.queue.next()
			if !ok {
				break
			}
			r.since[i], r.boots[i] = time.Now(), r.queue.makes(i)
			r.jobs.Go(func() { r.one(ctx, i) })
		}
		done := r.queue.empty()
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return
		}
	}
}

// one runs a case.
func (r *run) one(ctx context.Context, i int) {
	opts := r.opts
	opts.Status = func(s Status) { r.tell(i, s) }
	c := runCase(ctx, &r.cases[i], opts, func() {
		r.mu.Lock()
		r.queue.started(i)
		r.mu.Unlock()
		r.changed()
	})
	r.mu.Lock()
	r.queue.ended(i)
	delete(r.since, i)
	r.mu.Unlock()
	if ctx.Err() == nil {
		r.ended(i, &c)
	}
	r.changed()
}

func (r *run) changed() {
	select {
	case r.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// ended takes note of a case's result.
func (r *run) ended(i int, c *result.Case) {
	r.mu.Lock()
	r.results[i] = c
	r.report.NotRun--
	if c.Seconds.Run > 0 { // there was a guest
		took := func(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
		r.estimator.busy += took(c.Seconds.Total)
		if r.boots[i] {
			r.estimator.measured(kind{boots: true, cpus: c.Shape.CPUs()}, took(c.Seconds.Start))
			r.estimator.measured(r.kind(i), took(c.Seconds.Total-c.Seconds.Start))
		} else {
			r.estimator.measured(r.kind(i), took(c.Seconds.Total))
		}
	}
	if r.opts.Partial != nil {
		r.opts.Partial(r.sofar())
	}
	r.mu.Unlock()
	r.tell(i, Status{Case: &r.cases[i], Done: c})
}

// kind is the work that a case is, but for a boot that makes its snapshot.
func (r *run) kind(i int) kind {
	c := &r.cases[i]
	return kind{cold: r.opts.Start == "" || r.opts.Start == lab.StartCold, mana: c.Driver == scenarios.DriverMana, cpus: c.Shape.CPUs()}
}

// tell passes on what a case is about, with how far the run is.
func (r *run) tell(i int, s Status) {
	if r.opts.Status == nil {
		return
	}
	r.mu.Lock()
	s.Total, s.Ended, s.Left = len(r.cases), len(r.cases)-r.report.NotRun, r.left(time.Now())
	r.mu.Unlock()
	r.opts.Status(s)
}

// left estimates what the run still takes.
func (r *run) left(now time.Time) Left {
	var todo []work
	for i, since := range r.since {
		w := work{kinds: []kind{r.kind(i)}, elapsed: now.Sub(since)}
		if r.boots[i] {
			w.kinds = append(w.kinds, kind{boots: true, cpus: r.cases[i].Shape.CPUs()})
		}
		todo = append(todo, w)
	}
	for _, g := range r.queue.groups {
		for n, i := range g.waiting {
			w := work{kinds: []kind{r.kind(i)}}
			if n == 0 && !g.made && g.maker == none {
				w.kinds = append(w.kinds, kind{boots: true, cpus: r.cases[i].Shape.CPUs()})
			}
			todo = append(todo, w)
		}
	}
	return r.estimator.left(now, todo)
}

// sofar is the report of the cases that have ended.
func (r *run) sofar() result.Report {
	report := r.report
	if !r.estimator.began.IsZero() {
		report.Seconds = time.Since(r.estimator.began).Seconds()
	}
	for i, c := range r.results {
		if c != nil {
			report.Cases = append(report.Cases, *c)
			continue
		}
		of := &r.cases[i]
		report.Pending = append(report.Pending, result.Pending{Scenario: of.Scenario, Name: of.Name, Command: of.Command})
	}
	return report
}

func (o Options) status(s Status) {
	if o.Status != nil {
		o.Status(s)
	}
}

// prepare brings every kernel and its initramfs into the cache before the first VM starts, with the packages that guests are to have, so that fetching is not timed as running, and looks at the
// modules that are to be replaced. A kernel that cannot be had is an error of its cases only, unless the SPEC itself is wrong.
func prepare(ctx context.Context, cases []scenarios.Case, o Options) (unusable map[string]error, err error) {
	unusable = map[string]error{}
	var done []string
	for _, c := range cases {
		what := fmt.Sprint(c.Kernel, c.Modules, c.Packages, c.Shape.MemoryMiB)
		if slices.Contains(done, what) {
			continue
		}
		done = append(done, what)
		k, err := o.Cache.Kernel(ctx, c.Kernel, o.Progress)
		if err == nil {
			var i images.Initramfs
			if i, err = o.Cache.Initramfs(ctx, k, o.Progress); err == nil {
				_, _, err = lab.WithPackages(ctx, o.Cache, i, c.Packages, c.Shape.MemoryMiB, o.Progress)
			}
		}
		for _, m := range c.Modules {
			if err == nil {
				_, err = o.Cache.Replacement(ctx, k, m.Name, m.File)
			}
		}
		var bad *images.BadKernelError
		var module *images.BadModuleError
		var packages *images.BadPackagesError
		if !errors.As(err, &module) && !errors.As(err, &packages) {
			err = images.AsBadKernel(c.Kernel, err)
		}
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.As(err, &packages), errors.As(err, &module), errors.As(err, &bad):
			return nil, err
		case err != nil:
			unusable[c.Kernel] = err
		}
	}
	return unusable, nil
}

// withoutFiles are the cases whose VM takes more open files than a process may have here; an error if that is so of all of them. It is looked at before anything is fetched.
func withoutFiles(cases []scenarios.Case, o Options) (map[int]error, error) {
	bad := map[int]error{}
	var last error
	for i := range cases {
		e := &experiment{opts: o, c: &cases[i]}
		if _, err := lab.Files(e.config(), e.functions()); err != nil {
			bad[i], last = err, err
		}
	}
	if len(bad) < len(cases) {
		last = nil
	}
	return bad, last
}

// Failed is the report of a run that err kept from running any of its cases.
func Failed(cases []scenarios.Case, err error) result.Report {
	report := result.Report{Schema: result.Schema, IRQLab: lab.Version(), Host: result.Host{CPUs: runtime.NumCPU()}}
	for i := range cases {
		r := newResult(&cases[i])
		r.Outcome, r.Reasons = result.Error, []string{err.Error()}
		report.Cases = append(report.Cases, r)
	}
	return report
}

// dir is where a case's files go, relative to Options.Out.
func dir(c *scenarios.Case) string { return filepath.Join(c.Scenario, c.Slug()) }
