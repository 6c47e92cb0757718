package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/devmodel/mana"
	"irqlab/devmodel/trace"
	"irqlab/guestagent/agentapi"
	"irqlab/lab"
	"irqlab/lab/guestlog"
	"irqlab/lab/machine"
	"irqlab/lab/qemu"
	"irqlab/lab/qemu/klog"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

const (
	hotPlug     = 10 * time.Second // for a plugged function to appear in the guest
	diagnosis   = 20 * time.Second // for what a hung guest still tells
	explanation = 45 * time.Second // for that, and for finding out that its agent is mute
)

// experiment is one case on its way to a result.
type experiment struct {
	opts Options
	c    *scenarios.Case
	out  result.Case

	began   time.Time
	booted  time.Time
	vm      *lab.VM
	fn      *lab.Function
	trace   *trace.Recorder // of the function, from the case's begin
	guest   guestClock
	inject  *inject.Controller // of a case with steps, or a driver to be kept waiting; nil: the device is never in the way
	left    []string           // what the driver left behind, one sentence each
	replugs int                // for so many CPUs plugged in again there must be room, whatever the steps

	takes []string // files the VM was started from
	place string   // below Options.Out, where its files go; "": the case's own

	fallen time.Duration // when a step ended the experiment, on the trace's clock; 0: none did
	held   []string      // the rules that held the device then

	started func() // called once the VM answers; may be nil
}

func newResult(c *scenarios.Case) result.Case {
	r := result.Case{
		Scenario: c.Scenario, Name: c.Name, Command: c.Command, Notes: c.Notes,
		KernelSpec: c.Kernel, Driver: c.Driver, Strategy: c.Strategy, Irqchip: c.Irqchip, Cmdline: c.Cmdline.String(), Shape: c.Shape,
		Vectors: c.Vectors, Pressure: c.Pressure.Strings(), Start: lab.StartCold,
	}
	if c.DeviceNode != scenarios.NoNode {
		node := c.DeviceNode
		r.DeviceNode = &node
	}
	for _, m := range c.Modules {
		r.Modules = append(r.Modules, result.Module{Name: m.Name, File: m.File})
	}
	for _, name := range c.Packages {
		r.Packages = append(r.Packages, result.Package{Name: name})
	}
	return r
}

// runCase boots a VM for one case, runs its experiment, and judges the result. started is called once the VM answers.
func runCase(ctx context.Context, c *scenarios.Case, o Options, started func()) result.Case {
	limit := o.Timeout
	if limit == 0 {
		limit = DefaultTimeout(c.Shape.CPUs()) + planned(c.Steps)
	}
	e := &experiment{opts: o, c: c, out: newResult(c), began: time.Now(), trace: trace.New(0), started: started}
	if o.Out != "" {
		e.trace = trace.New(keptEvents)
	}
	if c.Steps != nil || c.Driver == scenarios.DriverMana && c.Pressure.Levels(scenarios.BeforeQueues) != nil {
		e.inject = inject.New()
	}
	err := contain(func() error { return e.run(ctx, limit) })
	if err != nil && e.vm != nil && ctx.Err() == nil {
		err = e.explain(ctx, err)
	}
	if bad := contain(func() error { e.finish(ctx, err); return nil }); bad != nil {
		if e.vm != nil {
			bad = errors.Join(bad, e.vm.Close())
		}
		e.out.Outcome, e.out.Reasons = result.Error, []string{bad.Error()}
	}
	return e.out
}

// PanicError is a defect of irqlab's that one case has run into; the other cases go on.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("irqlab: a defect of its own: panic: %v\n%s", e.Value, e.Stack)
}

// contain makes an error of a panic.
func contain(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{v, debug.Stack()}
		}
	}()
	return f()
}

func (e *experiment) stage(s string, number ...uint64) {
	e.opts.status(Status{Case: e.c, Stage: s})
	e.trace.Note(kindStep, s, number...)
}

// queues is the number of queue pairs the function offers the kernel's driver: one for each queue vector.
func (e *experiment) queues() int { return min(max(1, e.c.Queues()), mana.MaxQueues) }

// run takes the case from nothing to the end of its experiment. Its start and what follows may each take up to limit: the first case of a machine waits until that
// was booted for a snapshot, and no guest is to blame for what is left of its time then.
func (e *experiment) run(ctx context.Context, limit time.Duration) error {
	within := func(what string, f func(context.Context) error) error {
		timed, cancel := context.WithTimeoutCause(ctx, limit, &limitError{what, limit})
		defer cancel()
		return f(timed)
	}
	if err := within("start", e.boot); err != nil {
		if errors.Is(err, context.DeadlineExceeded) && !errors.As(err, new(*limitError)) { // as before there is a guest
			err = fmt.Errorf("%w: %w", &limitError{"start", limit}, err)
		}
		return err
	}
	return within("run", func(ctx context.Context) error {
		if err := e.attach(ctx); err != nil {
			return err
		}
		return e.runSteps(ctx)
	})
}

// functions are what the case plugs into the guest. Nothing allocates a vector of theirs before the experiment says so.
func (e *experiment) functions() []lab.FunctionConfig {
	cfg := lab.FunctionConfig{Slot: lab.FunctionSlot, Vectors: e.c.Vectors, Trace: e.trace, Inject: e.inject}
	if e.c.Driver == scenarios.DriverMana {
		cfg.MANA.Queues = e.queues()
	}
	list := []lab.FunctionConfig{cfg}
	if e.hasLevels() {
		list = append(list, lab.FunctionConfig{Slot: pressureSlot, DeviceID: lab.PressureID, Vectors: e.mostPressure()})
	}
	return list
}

// attach takes the case's CPUs offline, and gives the guest its functions if it has not had them from the start: in a moment when the kernel adds one, it may refuse to
// let a CPU go.
func (e *experiment) attach(ctx context.Context) error {
	info := e.vm.Info
	e.out.Kernel = info.Release
	e.out.Online = info.CPUs.Online
	if spare := info.CPUs.Possible.Minus(info.CPUs.Present); replugs(e.c.Steps) > 0 && len(spare) > 0 {
		e.out.Notes = append(e.out.Notes, fmt.Sprintf("for CPUs to be plugged in again the machine has room for more, and this kernel counts %s as possible: managed interrupts are spread over them, too", spare.Words()))
	}
	if booted := e.c.Booted(); len(e.c.Cmdline) > 0 && !slices.Equal(info.CPUs.Online, booted) {
		e.out.Notes = append(e.out.Notes, fmt.Sprintf("with this command line the kernel brought up %s, and not %s as the scenario was planned for", info.CPUs.Online.Words(), booted.Words()))
	}
	for _, cpu := range e.c.Offline {
		e.stage(fmt.Sprintf("taking CPU %d offline", cpu))
		var err error
		if e.out.Online, err = e.vm.Agent.SetCPU(ctx, cpu, false); err != nil {
			return &setupError{err}
		}
	}
	if len(e.c.Offline) == 0 {
		return nil
	}
	e.stage("attaching the function")
	for _, cfg := range e.functions() {
		if _, err := e.vm.Attach(ctx, cfg); err != nil {
			return err
		}
	}
	e.fn = e.vm.Function(lab.FunctionSlot)
	return nil
}

// Boot starts the VM of a case, attaches its functions and takes its CPUs offline, and leaves the rest to the caller.
func Boot(ctx context.Context, c *scenarios.Case, o Options) (*lab.VM, error) {
	e := &experiment{opts: o, c: c, out: newResult(c)}
	err := e.open(ctx) // which sets the VM
	return e.vm, err
}

// open starts the VM, attaches its functions and takes the case's CPUs offline; what fails leaves no VM.
func (e *experiment) open(ctx context.Context) error {
	err := e.boot(ctx)
	if err == nil {
		err = e.attach(ctx)
	}
	if err != nil && e.vm != nil {
		err = errors.Join(err, e.vm.Close())
	}
	return err
}

// config describes the case's VM, but for where its console goes.
func (e *experiment) config() lab.Config {
	cfg := lab.Config{
		Progress:  e.opts.Progress,
		Name:      vmName(e.c),
		Shape:     e.c.Shape,
		Kernel:    e.c.Kernel,
		Irqchip:   machine.Irqchip(e.c.Irqchip),
		Accel:     e.opts.Accel,
		Start:     e.opts.Start,
		QEMU:      e.opts.QEMU,
		Cache:     e.opts.Cache,
		Cmdline:   slices.Concat(e.opts.Cmdline, e.c.Cmdline),
		Keep:      e.opts.Keep,
		Replugs:   max(e.replugs, replugs(e.c.Steps)),
		OneThread: oneThread(e.c),
		Slots:     []machine.Slot{{ID: lab.FunctionSlot, Node: e.c.DeviceNode}},
	}
	if len(e.c.Offline) == 0 {
		cfg.Functions = e.functions()
	}
	if e.hasLevels() {
		cfg.Slots = append(cfg.Slots, machine.Slot{ID: pressureSlot, Node: machine.NoNode})
	}
	if hibernates(e.c.Steps) {
		cfg.Slots = append(cfg.Slots, machine.Slot{ID: lab.DiskSlot, Node: machine.NoNode})
	}
	for _, m := range e.c.Modules {
		cfg.Modules = append(cfg.Modules, lab.Module(m))
	}
	cfg.Packages = e.c.Packages
	for _, n := range e.c.Pressure.Neighbours() {
		cfg.Neighbours = append(cfg.Neighbours, machine.Neighbour{Kind: n.Kind, Queues: n.Queues, Node: n.Node})
	}
	return cfg
}

func (e *experiment) boot(ctx context.Context) error {
	e.stage("starting")
	cfg := e.config()
	cfg.Takes = func(files ...string) { e.takes = append(e.takes, files...) }
	if e.opts.Out != "" {
		if err := os.MkdirAll(filepath.Join(e.opts.Out, e.dir()), 0o755); err != nil {
			return err
		}
		e.out.Artifacts.Console = filepath.Join(e.dir(), "console.log")
		cfg.ConsoleFile = filepath.Join(e.opts.Out, e.out.Artifacts.Console)
	}
	var err error
	e.vm, err = lab.Start(ctx, cfg)
	e.booted = time.Now()
	if err == nil {
		e.fn = e.vm.Function(lab.FunctionSlot)
		e.out.Start, e.out.Notes = e.vm.Start, append(e.out.Notes, e.vm.Notes...)
		for i, m := range e.vm.Modules {
			e.out.Modules[i].SHA256 = m.SHA256
			if m.Name == manaModule && e.c.Driver != scenarios.DriverMana {
				e.out.Notes = append(e.out.Notes, fmt.Sprintf("module %s was replaced, but not loaded: the case's driver is %s", m.Name, e.c.Driver))
			}
		}
		for i, p := range e.vm.Packages.Asked {
			e.out.Packages[i].Version = p.Version
		}
		e.startTimeline(ctx)
		if e.started != nil {
			e.started()
		}
	}
	return err
}

// notInName is what a case's path may have and a VM's name may not.
var notInName = regexp.MustCompile(`[^a-zA-Z0-9._-]+`)

// vmName is short enough for a run directory, whose path must leave room for sockets; the lab keeps VMs apart that share one.
func vmName(c *scenarios.Case) string {
	name := c.Scenario + "-" + notInName.ReplaceAllString(c.Slug(), "_")
	return strings.TrimRight(name[:min(len(name), qemu.MaxName)], "-_.")
}

// rows are a reading's vectors, with what was asked of them.
func (s *stepper) rows(seen lab.Reading) []result.Vector {
	rows := make([]result.Vector, len(seen.Vectors))
	for i, v := range seen.Vectors {
		row := result.Vector{
			Index: v.Index, Role: result.RoleQueue, IRQ: v.IRQ,
			Affinity: v.State.Affinity, Hint: v.State.Hint, Effective: v.State.Effective, Pending: v.State.Pending(),
			Handled: v.Handled, Unsettled: v.Unsettled, Counts: v.State.Counts, Chip: v.State.Chip, Action: v.State.Action,
		}
		row.Asked, row.Dropped, row.Refused = s.asks.about(v)
		if v.Index == 0 {
			row.Role = result.RoleHWC
		}
		rows[i] = row
	}
	if s.c.Driver == scenarios.DriverMana {
		assignRoles(rows, s.fn.MANA.Roles())
	}
	return rows
}

// observe takes down a reading.
func (s *stepper) observe(label string, seen lab.Reading) {
	rows := s.rows(seen)
	s.fn.Seen(seen)
	for _, v := range rows {
		differ := uint64(0)
		if v.Otherwise() {
			differ = 1
		}
		s.fn.Trace.Note(lab.TraceMasks, masks(v), uint64(v.Index), uint64(v.IRQ), differ)
	}
	s.out.Observations = append(s.out.Observations, result.Observe(label, seen.Online, rows))
}

// masks are a vector's three facts in words.
func masks(v result.Vector) string {
	asked := "nothing"
	if v.Asked != nil {
		asked = v.Asked.String()
	}
	return fmt.Sprintf("asked %s, requested %s, effective %s", asked, v.Affinity, v.Effective)
}

// explain adds what the guest still tells to an error that a guest's answer does not explain by itself.
func (e *experiment) explain(ctx context.Context, err error) error {
	var guest *agentapi.Error
	var driver *DriverError
	var defect *PanicError
	var step *StepError
	var lost *guestlog.LostError
	var audits *LostAuditsError
	if errors.As(err, &lost) || errors.As(err, &audits) || errors.As(err, &guest) || errors.As(err, &driver) || errors.As(err, &defect) || errors.As(err, &step) && step.explained() {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, explanation)
	defer cancel()
	return e.vm.Explain(ctx, err)
}

// finish reads the log, ends the VM, keeps the artifacts and judges.
func (e *experiment) finish(ctx context.Context, err error) {
	ended := time.Now()
	if err != nil && e.fallen == 0 {
		e.fell()
	}
	var findings []klog.Finding
	now := conditions{handled: !errors.As(err, new(*lab.LostError))}
	var late *lateError
	if errors.As(err, &late) {
		now.wait = late.after
	}
	if e.vm != nil {
		findings = e.vm.Console().Scan()
		if err == nil {
			findings, err = e.kernelLog(ctx)
		}
		e.askGuest(ctx)
		now.stood = e.vm.Process().Standstill()
		if e.fn != nil {
			now.wires(e.fn.PCI.VectorStates())
		}
		err = errors.Join(err, e.vm.Close(), e.keptConsole(), e.keepTrace())
	}
	if _, bad := os.Stat(filepath.Join(e.opts.Out, e.out.Artifacts.Console)); bad != nil { // it came to no guest
		e.out.Artifacts.Console = ""
	}
	var boot *qemu.BootError
	if errors.As(err, &boot) {
		findings = append(findings, boot.Trouble...)
	}
	for _, f := range findings {
		e.out.KernelLog.Warnings = append(e.out.KernelLog.Warnings, f.Told())
	}
	err = emulatorFault(e.opts.Accel, findings, err)
	var unmet []string
	if err == nil {
		unmet = slices.Concat(e.c.Expect.Check(e.out), e.c.CheckScript(e.out), e.left)
	}
	doubts := func() []string {
		for _, file := range e.takes {
			if err := e.opts.Cache.Recheck(ctx, file); err != nil {
				now.damaged = append(now.damaged, err)
			}
		}
		return now.doubts()
	}
	e.out.Outcome, e.out.Reasons = verdict(err, unmet, doubts)
	if e.out.Outcome == result.Pass && now.stood.Matters() {
		e.out.Notes = append(e.out.Notes, fmt.Sprintf("%s while the case ran", now.stood))
	}
	if e.out.Outcome == result.Pass && !e.c.Judges() {
		e.out.Outcome = result.Observed
	}
	if e.out.Outcome == result.Fail {
		e.out.Known = e.c.KnownFailure()
	}
	if err := e.keepTimeline(); err != nil {
		e.out.Outcome, e.out.Reasons, e.out.Known = result.Error, append(e.out.Reasons, err.Error()), ""
	}
	if e.vm != nil && e.out.Outcome != result.Pass && e.out.Outcome != result.Observed {
		e.out.Evidence = e.evidence(err)
	}
	done := time.Now()
	e.out.Seconds.Total = done.Sub(e.began).Seconds()
	if !e.booted.IsZero() {
		e.out.Seconds.Start = e.booted.Sub(e.began).Seconds()
		e.out.Seconds.Run = ended.Sub(e.booted).Seconds()
	}
}

// dir is where the experiment's files go, below Options.Out.
func (e *experiment) dir() string { return cmp.Or(e.place, dir(e.c)) }

// keptConsole says what of the console is missing from the file that was asked for.
func (e *experiment) keptConsole() error {
	if err := e.vm.Console().FileError(); e.opts.Out != "" && err != nil {
		return fmt.Errorf("the console was not kept: %w", err)
	}
	return nil
}

// keepTrace writes the function's timeline next to the console.
func (e *experiment) keepTrace() error {
	if e.opts.Out == "" || e.fn == nil {
		return nil
	}
	e.out.Artifacts.Trace = filepath.Join(e.dir(), "trace.jsonl")
	f, err := os.Create(filepath.Join(e.opts.Out, e.out.Artifacts.Trace))
	if err != nil {
		return err
	}
	done, cancel := context.WithCancel(context.Background())
	cancel() // what is recorded, and no more
	return errors.Join(e.fn.Trace.Stream(done, f), f.Close())
}
