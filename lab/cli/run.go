package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"mvdan.cc/sh/v3/syntax"

	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/strategy"
	"irqlab/lab"
	"irqlab/lab/foreign"
	"irqlab/lab/report"
	"irqlab/lab/runner"
	"irqlab/lab/timeline"
	"irqlab/scenarios"
	"irqlab/scenarios/nearest"
	"irqlab/scenarios/result"
	"irqlab/scenarios/shape"
)

// scenarioFlags are the flags that override what a scenario says.
type scenarioFlags struct {
	kernels, shapes, strategies, drivers, vectors, deviceNodes, irqchips, pressures, cmdlines, offlines []string

	modules  []string // in place of the kernel's own
	packages []string // beside the cases' own
	cases    []string // to be run, of those there are then
	expect   []string // beside what the scenario says

	unnamed bool // the commands of cases leave out the kernel, which is only built then
	bare    bool // only the machine counts, not what is done there and expected
	implied bool // drivers are nobody's wish
}

func (f *scenarioFlags) register(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.kernels, "kernel", nil, "kernel `SPEC`: debian:7.3 (newest complete match), debian:6.18.15, a bzImage or vmlinux, a kernel build tree, .deb files joined by commas, or git:DIR@REV, a commit of a git tree, whose kernel is built with a small configuration (git:DIR@A..B: both ends)")
	fs.StringArrayVar(&f.strategies, "strategy", nil, "affinity strategy `NAME`, one of "+strings.Join(strategy.Names(), ", ")+"; or "+scenarios.AllStrategies+
		"; or masks of your own, "+scenarios.MasksForm+", as in masks:0/1/2-3: one for each queue vector, in order, each a CPU list; or a script of your own, "+scenarios.ScriptForm+", as in script:./set_irq_affinity.sh, run in the guest once the vectors are there (its argument is the driver's link unless you give others)")
	fs.StringArrayVar(&f.drivers, "driver", nil, "who drives the function: `vfio` (the guest agent) or mana (the kernel's driver)")
	fs.StringArrayVar(&f.modules, "module", nil, "module to put in place of the kernel's own (`NAME=FILE`, mana=drivers/…/mana.ko), built for that kernel. It is sent to the "+
		"running guest and costs no boot; may be repeated, once for each name")
	fs.StringArrayVar(&f.packages, "package", nil, "Debian package (`NAME`) that the guest has, with what it depends on, beside those of the scenario: irqbalance, ethtool, bash … It is fetched once, without root; may be repeated")
	f.registerMachine(fs)
}

// registerMachine registers the flags that say what the kernel's own driver finds.
func (f *scenarioFlags) registerMachine(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.shapes, "shape", nil, "machine `SHAPE`, e.g. "+shape.Default().String())
	fs.StringArrayVar(&f.vectors, "vectors", nil, "MSI-X vectors of the function, HWC included (`N`), or online, online+N, online-N: relative to the online CPUs")
	fs.StringArrayVar(&f.deviceNodes, "device-node", nil, "NUMA node of the function (`N`), or none")
	fs.StringArrayVar(&f.irqchips, "irqchip", nil, "`msi`, or remapped (interrupt remapping: affinity changes take effect at once)")
	fs.StringArrayVar(&f.pressures, "pressure", nil, "other devices' interrupts (`SPEC`): nvme:queues=4, virtio-blk:queues=2,node=1, vectors:before=queues,cpu0=12,cpu1-3=8 (cpu1=full: no vector of it is left), or none. Several are one profile; "+
		"NAME=SPEC makes an alternative of each name: --pressure quiet=none --pressure busy=nvme:queues=4")
	fs.StringArrayVar(&f.cmdlines, "cmdline", nil, "words (`WORDS`) added to the guest kernel's command line, e.g. nosmt, or 'isolcpus=managed_irq,domain,2-3 irqaffinity=0-1'; none for none")
	fs.StringArrayVar(&f.offlines, "offline", nil, "CPUs (`LIST`, e.g. 2-3) taken offline before the vectors are spread; \"\" for none")
}

// command is what runs one case of a scenario again.
func (f *scenarioFlags) command(scenario, name string) string {
	words := []string{"irqlab", "run", scenario, "--case", name}
	kernels := f.kernels
	if f.unnamed {
		kernels = nil
	}
	for _, flag := range []struct {
		name   string
		values []string
	}{{"kernel", kernels}, {"shape", f.shapes}, {"strategy", f.strategies}, {"driver", f.drivers}, {"vectors", f.vectors}, {"device-node", f.deviceNodes}, {"irqchip", f.irqchips},
		{"pressure", f.pressures}, {"cmdline", f.cmdlines}, {"offline", f.offlines}, {"module", f.modules}, {"package", f.packages}, {"expect", f.expect}} {
		for _, v := range flag.values {
			words = append(words, "--"+flag.name, v)
		}
	}
	return quoted(words)
}

// quoted writes words so that a shell reads them as they are.
func quoted(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = w
		if q, err := syntax.Quote(w, syntax.LangPOSIX); err == nil {
			out[i] = q
		}
	}
	return strings.Join(out, " ")
}

// overrides turns the flags that were given into Overrides.
func (f *scenarioFlags) overrides() (o scenarios.Overrides, err error) {
	o = scenarios.Overrides{Kernels: f.kernels, Strategies: f.strategies, Drivers: f.drivers, Irqchips: f.irqchips, Bare: f.bare, DriverImplied: f.implied}
	if o.Shapes, err = parseAll("shape", f.shapes, shape.ParseShape); err != nil {
		return o, err
	}
	if o.Vectors, err = parseAll("vectors", f.vectors, scenarios.ParseVectorCount); err != nil {
		return o, err
	}
	if o.DeviceNodes, err = parseAll("device-node", f.deviceNodes, scenarios.ParseDeviceNode); err != nil {
		return o, err
	}
	if o.Pressures, err = scenarios.ParseProfiles(f.pressures); err != nil {
		return o, fmt.Errorf("--pressure: %w", err)
	}
	if o.Cmdlines, err = parseAll("cmdline", f.cmdlines, scenarios.ParseCmdline); err != nil {
		return o, err
	}
	o.Offlines, err = parseAll("offline", f.offlines, cpulist.Parse)
	return o, err
}

// parseAll reads the values of a flag.
func parseAll[T any](flag string, texts []string, parse func(string) (T, error)) ([]T, error) {
	var out []T
	for _, text := range texts {
		v, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		out = append(out, v)
	}
	return out, nil
}

// machineFlags say what the guests run on.
type machineFlags struct {
	accel      string
	qemu       string
	start      string
	keep       bool
	buildTrees bool
}

func (f *machineFlags) register(fs *pflag.FlagSet) {
	f.registerQEMU(fs)
	fs.StringVar(&f.start, "start", lab.StartAuto, "`auto` (warm where that works), cold (boot each VM) or warm (boot each machine once, and fork it)")
	fs.BoolVar(&f.keep, "keep", false, "keep the VMs' run directories, and name them")
}

// registerBuild registers the flag of who runs the user's own kernels as they are.
func (f *machineFlags) registerBuild(fs *pflag.FlagSet) {
	fs.BoolVar(&f.buildTrees, "build", false, "first run make (bzImage and modules) in the kernel trees that --kernel names, with their own configuration and this machine's tools")
}

// registerQEMU registers the flags that say what executes a guest.
func (f *machineFlags) registerQEMU(fs *pflag.FlagSet) {
	fs.StringVar(&f.accel, "accel", lab.AccelAuto, "`auto` (KVM where it works, else TCG), kvm or tcg")
	fs.StringVar(&f.qemu, "qemu", "", "`path` of the QEMU binary to use instead of finding one")
}

func (f *machineFlags) validate() error {
	if f.accel != lab.AccelAuto && f.accel != lab.AccelKVM && f.accel != lab.AccelTCG {
		return fmt.Errorf("--accel: %w", nearest.Unknown("accelerator", f.accel, []string{lab.AccelAuto, lab.AccelKVM, lab.AccelTCG}))
	}
	if f.start == lab.StartAuto || f.start == lab.StartCold || f.start == lab.StartWarm {
		return nil
	}
	return fmt.Errorf("--start: %w", nearest.Unknown("start", f.start, []string{lab.StartAuto, lab.StartCold, lab.StartWarm}))
}

// runFlags say how cases are run and how their results are shown.
type runFlags struct {
	machineFlags
	format, out string
	jobs        int
	timeout     time.Duration
	verbose     bool
	timeline    bool
	passing     bool // out is to go when the command ends
	quiet       bool // that a case failed is somebody else's to tell, unless verbose asks for every step
	given       func(flag string) bool
}

func (f *runFlags) register(fs *pflag.FlagSet) {
	f.machineFlags.register(fs)
	f.given = fs.Changed
	fs.IntVar(&f.jobs, "jobs", 0, fmt.Sprintf("VMs at a time (`N`), as far as the limit of open files allows; 0: what this machine's cores and memory allow, now %d of the default shape", runner.DefaultJobs(shape.Default())))
	fs.DurationVar(&f.timeout, "timeout", 0, "how long the start of a case, and its run, may each take; 0: 2m and 5s for each CPU. A guest that does not answer then has failed (1); one that works and was not done, or had not begun, is an error (125)")
	fs.StringVar(&f.format, "format", "table", "`table` or json")
	fs.StringVar(&f.out, "out", "", "new or empty `directory` for results (JSON, text of 100 columns, Markdown), consoles, traces and timelines")
	fs.BoolVarP(&f.verbose, "verbose", "v", false, "tell every step of every case on standard error")
}

// checkFormat checks the value of --format, which several commands have.
func checkFormat(format string) error {
	if format == "table" || format == "json" {
		return nil
	}
	return fmt.Errorf("--format: %w", nearest.Unknown("format", format, []string{"table", "json"}))
}

func (f *runFlags) validate() error {
	if err := checkFormat(f.format); err != nil {
		return err
	}
	if err := f.machineFlags.validate(); err != nil {
		return err
	}
	if f.jobs < 0 {
		return fmt.Errorf("--jobs: %d is out of range; allowed: 1 or more, or 0 for this machine's own", f.jobs)
	}
	if f.timeout < 0 {
		return fmt.Errorf("--timeout: %s is negative", f.timeout)
	}
	if f.out == "" && f.given("out") { // a variable that is not set: the results would be lost
		return errors.New("--out: it is empty; give a new or empty directory")
	}
	return nil
}

// output refuses a standard output that would lose the results. A closed one loses nothing that --out keeps.
func (f *runFlags) output(s *Streams) error {
	err := writable(s.Out)
	if f.out != "" && errors.Is(err, errClosed) {
		s.Out = io.Discard
		return nil
	}
	if err != nil {
		return outputError(err)
	}
	return nil
}

// run runs the cases and leaves what --out asks for. An interrupted run has an error that is context.Canceled, and a report of the cases that ended.
func (f *runFlags) run(ctx context.Context, cases []scenarios.Case, s Streams) (rep result.Report, err error) {
	if err := f.checkBuild(cases); err != nil {
		return rep, err
	}
	cache, err := f.openCache(s)
	if err != nil {
		return rep, err
	}
	if f.out != "" {
		release, err := claim(f.out)
		if err != nil {
			return rep, err
		}
		defer release()
	}
	p := newProgress(s.Err)
	told := s
	if f.quiet && !f.verbose {
		told.Err = io.Discard
	}
	opts := runner.Options{
		Cache: cache, QEMU: f.qemu, Accel: f.accel, Start: f.start, Jobs: f.jobs, Timeout: f.timeout, Out: f.out, Keep: f.keep,
		Progress: p.report, Status: follow(p, told, f.verbose),
	}
	results := resultsWriter{path: filepath.Join(f.out, resultsFile)}
	if f.out != "" {
		opts.Partial = results.partial
	}
	rep, err = runner.Run(ctx, cases, opts)
	p.close()
	switch {
	case err != nil && !errors.Is(err, context.Canceled):
		return rep, labError(err)
	case f.out == "":
		return rep, err
	}
	werr := results.write(rep)
	for _, file := range []struct {
		name   string
		render func(io.Writer, result.Report) error
	}{{tableFile, report.File}, {markdownFile, report.Markdown}} {
		werr = errors.Join(werr, replaceFile(filepath.Join(f.out, file.name), func(w io.Writer) error { return file.render(w, rep) }))
	}
	if werr != nil {
		return rep, &exitError{ExitError, fmt.Errorf("--out: %w", werr)}
	}
	if !f.passing {
		s.say("%s holds %s, %s, %s, and each case's console, trace and timeline", f.out, resultsFile, tableFile, markdownFile)
	}
	return rep, err
}

// resultsWriter keeps --out's results up to date while a run goes on, so that they are there whatever ends it.
type resultsWriter struct {
	path string
	last time.Time     // when the last writing ended
	took time.Duration // that took so long
}

// partial writes what has ended so far, unless the run would spend its time on that. An error will come again, and be told, when the whole is written.
func (w *resultsWriter) partial(rep result.Report) {
	if began := time.Now(); began.Sub(w.last) >= partialShare*w.took {
		_ = w.write(rep)
		w.last, w.took = time.Now(), time.Since(began)
	}
}

// partialShare of a run's time, at most, goes into writing parts of its results: one in so many.
const partialShare = 20

// write replaces the file by one with these results.
func (w *resultsWriter) write(rep result.Report) error {
	return replaceFile(w.path, func(f io.Writer) error { return report.JSON(f, rep) })
}

// replaceFile writes a file that appears whole or not at all.
func replaceFile(path string, write func(io.Writer) error) error {
	file, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o666))
	if err != nil {
		return err
	}
	defer func() { _ = file.Cleanup() }()
	if err := write(file); err != nil {
		return err
	}
	return file.CloseAtomicallyReplace()
}

func newRun(s Streams) *cobra.Command {
	var sf scenarioFlags
	var rf runFlags
	var summary, bisect bool
	cmd := &cobra.Command{
		Use:   "run [SCENARIO…]",
		Short: "Run scenarios and show where every vector landed",
		Long: `run boots a VM for each case of the scenarios, applies the case's affinity strategy, fires every vector until the kernel has settled it, and compares
what it sees with what the scenario expects. SCENARIO is the name of a shipped one (irqlab list scenarios, irqlab list faults), ` + scenarios.FaultsName + ` for all of the fault catalogue, or a YAML file; the default
is ` + scenarios.Default + `.

A flag overrides the scenario's value. Cases that have the value already are the ones that are run, with all they expect; if none has it, every case takes it, and
what it expects loses the parts that the override makes meaningless: the result says which. Only --kernel takes nothing away: a kernel is held to what is expected.

Every flag that overrides may be repeated: its values are alternatives, and those of several flags multiply. Combinations that are impossible, such as node 1 of a shape with one
node, are left out, and named. Driver mana has no strategy: with --driver vfio --driver mana, each --strategy is run by vfio, and mana once.

Cases run side by side as far as --jobs goes, forks of one machine's snapshot together; results come in the order of the cases. An interrupted run shows what has ended
and says how many cases did not; --out's results.json is kept up to date while the run goes on.

Exit status: 0 every case passed, or was observed: it expects nothing, or a flag took away what it expects; 1 a case failed; 2 bad usage or input; 125 the lab could
not tell (and if both happen); 130 interrupted. With --bisect it is what git bisect run takes them for: irqlab help exit-status has all of it.`,
		Example: `  irqlab run
  irqlab run low-vcpu --strategy linear --strategy unset --format json
  irqlab run vector-boundary --kernel ~/linux --out results
  irqlab run faults --kernel debian:7.3
  irqlab run unplug-during-reset --kernel debian:7.3 --case surplus-2 --timeline
  git bisect run sh -c 'make olddefconfig || exit 125
    irqlab run spread --kernel . --build --bisect'
  irqlab run my.yaml --shape sockets=2,cores=4,threads=2,nodes=2,memory=1G --device-node 1
  irqlab run alternatives --pressure none --kernel debian:6.18 --kernel debian:7.3 --shape cores=2 --shape cores=8   # 10 strategies x 2 kernels x 2 shapes`,
		ValidArgs: slices.Concat(scenarios.Shipped(), []string{scenarios.FaultsName}, scenarios.Faults()),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := rf.validate(); err != nil {
				return usageError(err)
			}
			if err := rf.output(&s); err != nil {
				return err
			}
			if rf.timeline && rf.format == "json" {
				return usageError(errors.New("--timeline: is for people; with --format json give --out DIR, which keeps each case's timeline.jsonl"))
			}
			if summary && rf.format == "json" {
				return usageError(errors.New("--summary: is for people; --format json gives the whole"))
			}
			cases, err := sf.plan(cmd.Context(), args, s)
			if err != nil {
				return err
			}
			if bisect {
				if err := judged(cases); err != nil {
					return usageError(err)
				}
			}
			warnOfKnown(s, cases)
			sayHowMany(s, cases)
			if rf.timeline && rf.out == "" {
				if rf.out, err = os.MkdirTemp("", "irqlab-run-"); err != nil {
					return &exitError{ExitError, err}
				}
				defer os.RemoveAll(rf.out)
				rf.passing = true
			}
			rep, err := rf.run(cmd.Context(), cases, s)
			var exit *exitError
			if errors.As(err, &exit) && exit.status == ExitError && len(rep.Cases) == 0 && rf.format == "json" {
				rep = runner.Failed(cases, err) // who asked for JSON gets it whatever happened
			}
			if err != nil && !errors.Is(err, context.Canceled) && len(rep.Cases) == 0 {
				return err
			}
			render := report.Table
			if summary {
				render = report.Summary
			}
			if rf.format == "json" {
				render = report.JSON
			}
			rerr := render(s.Out, rf.shown(rep))
			if rf.timeline && rerr == nil {
				show := cmd.Context()
				if show.Err() != nil { // the run was interrupted: what has ended is shown nevertheless
					show = context.WithoutCancel(show)
				}
				rerr = timelines(show, s.Out, rf.out, rep)
			}
			if rerr != nil {
				return outputError(errors.Join(rerr, err))
			}
			if err != nil {
				return err
			}
			return exitWith(report.ExitStatus(rep))
		},
	}
	sf.register(cmd.Flags())
	rf.register(cmd.Flags())
	rf.registerBuild(cmd.Flags())
	cmd.Flags().StringArrayVar(&sf.cases, "case", nil, "run this case of the scenario (`NAME`) only, and what flags and lists make of it; may be repeated")
	cmd.Flags().StringArrayVar(&sf.expect, "expect", nil, "expect this, too, of every case, as a scenario's expect would (`KEY=VALUE`): clustered=false, queues-within=0-1, log=any; may be repeated")
	cmd.Flags().BoolVar(&summary, "summary", false, "show one line for each case, and why those that did not pass did not; --out keeps the rest")
	cmd.Flags().BoolVar(&bisect, "bisect", false, "for git bisect run: 0 good, 1 bad, 125 where this commit tells nothing (no kernel, no driver, an error), 128 where no commit would (bad usage, this machine): git stops there (irqlab help exit-status)")
	cmd.Flags().BoolVar(&rf.timeline, "timeline", false, "show each case's timeline after the table; --out keeps them, for irqlab timeline --html")
	return cmd
}

// warnOfKnown says before a run which status it will end with if the kernels are as they are known to be.
func warnOfKnown(s Streams, cases []scenarios.Case) {
	n := 0
	for i := range cases {
		if cases[i].KnownFailure() != "" {
			n++
		}
	}
	if n == 0 {
		return
	}
	who := fmt.Sprintf("%d of these %d cases are", n, len(cases))
	switch {
	case len(cases) == 1:
		who = "this case is"
	case n == 1:
		who = fmt.Sprintf("one of these %d cases is", len(cases))
	}
	s.say("%s known to fail on this kernel; the exit status will be 1", who)
}

// manyCases are so many that somebody may wish to know before they begin.
const manyCases = 20

// sayHowMany tells of a long run how much there is to do. How long that takes is known once some of it is done.
func sayHowMany(s Streams, cases []scenarios.Case) {
	if len(cases) < manyCases {
		return
	}
	boots := map[string]bool{}
	for i := range cases {
		c := &cases[i]
		boots[fmt.Sprint(c.Kernel, c.Shape, c.Irqchip, c.Cmdline, c.Packages, c.Pressure.Neighbours())] = true
	}
	s.say("%d cases on %s; how much time is left is told when some have ended", len(cases), report.Plural(len(boots), "machine", "different machines"))
}

// shown is the report with the names of files as a person needs them: from here, and none of those that will be gone. JSON has them relative to --out.
func (f *runFlags) shown(rep result.Report) result.Report {
	if !f.passing && (f.out == "" || f.format == "json") {
		return rep
	}
	rep.Cases = slices.Clone(rep.Cases)
	for i := range rep.Cases {
		a := &rep.Cases[i].Artifacts
		for _, path := range []*string{&a.Console, &a.Trace, &a.Timeline} {
			switch {
			case f.passing:
				*path = ""
			case *path != "":
				*path = filepath.Join(f.out, *path)
			}
		}
	}
	return rep
}

// timelines shows the cases on one clock each, without what only the device's developers look at.
func timelines(ctx context.Context, w io.Writer, out string, rep result.Report) error {
	filter := timeline.Filter{Sources: []string{timeline.SourceStep, timeline.SourceInject, timeline.SourceCPU, timeline.SourceLog, timeline.SourceObservation}}
	for _, c := range rep.Cases {
		if c.Artifacts.Timeline == "" {
			continue
		}
		file, err := os.Open(filepath.Join(out, c.Artifacts.Timeline))
		if err != nil {
			return err
		}
		tl, _, err := timeline.Read(c.Artifacts.Timeline, file)
		if err = errors.Join(err, file.Close()); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "\n%s/%s on one clock:\n", foreign.Line(c.Scenario), foreign.Line(c.Name)); err != nil {
			return err
		}
		if err := timelineText(ctx, w, tl, filter, false); err != nil {
			return err
		}
	}
	return nil
}

// exitWith ends the command with a status and nothing more to say.
func exitWith(status int) error {
	if status == ExitPass {
		return nil
	}
	return &exitError{status: status}
}

// plan loads the scenarios and lists their cases under the flags' overrides. Its errors are of usage.
func (f *scenarioFlags) plan(ctx context.Context, names []string, s Streams) ([]scenarios.Case, error) {
	var err error
	if f.kernels, err = eachCommit(f.kernels); err != nil {
		return nil, err
	}
	o, err := f.overrides()
	if err != nil {
		return nil, usageError(err)
	}
	if len(names) == 0 {
		names = []string{scenarios.Default}
	}
	if i := slices.Index(names, scenarios.FaultsName); i >= 0 {
		names = slices.Replace(slices.Clone(names), i, i+1, scenarios.Faults()...)
	}
	var cases []scenarios.Case
	for _, name := range names {
		sc, err := load(ctx, name)
		if err != nil {
			return nil, usageError(err)
		}
		more, notes, err := sc.Plan(o)
		if err != nil {
			return nil, usageError(err)
		}
		for _, n := range notes {
			s.say("%s: %s", foreign.Line(sc.Name), foreign.Line(n))
		}
		for i := range more {
			more[i].Dir = filepath.Dir(name)
			more[i].Command = f.command(name, more[i].Name)
		}
		cases = append(cases, more...)
	}
	if cases, err = scenarios.Select(cases, f.cases); err != nil {
		return nil, usageError(fmt.Errorf("--case: %w", err))
	}
	if err := runner.CheckPrograms(cases); err != nil {
		return nil, usageError(err)
	}
	if err := replaceModules(cases, f.modules); err != nil {
		return nil, usageError(err)
	}
	if err := scenarios.AddPackages(cases, f.packages); err != nil {
		return nil, usageError(fmt.Errorf("--package: %w", err))
	}
	given, err := parseAll("expect", f.expect, scenarios.ParseExpectation)
	if err != nil {
		return nil, usageError(err)
	}
	if err := scenarios.AddExpectations(cases, given); err != nil {
		return nil, usageError(fmt.Errorf("--expect: %w", err))
	}
	scenarios.Disambiguate(cases) // a scenario may be named twice, or two files may give theirs one name
	return cases, nil
}

// replaceModules has all cases take the modules that --module names.
func replaceModules(cases []scenarios.Case, words []string) error {
	var modules []scenarios.Module
	for _, w := range words {
		name, file, ok := strings.Cut(w, "=")
		name = strings.ReplaceAll(name, "-", "_")
		switch {
		case !ok || name == "" || file == "":
			return fmt.Errorf("--module: %q is not NAME=FILE, as in mana=drivers/net/ethernet/microsoft/mana/mana.ko", w)
		case slices.ContainsFunc(modules, func(m scenarios.Module) bool { return m.Name == name }):
			return fmt.Errorf("--module: %s is given twice", name)
		case name == scenarios.DriverMana && !slices.ContainsFunc(cases, func(c scenarios.Case) bool { return c.Driver == scenarios.DriverMana }):
			return fmt.Errorf("--module: no case loads %s, since all drive the function from user space; give --driver %[1]s, or a scenario of the kernel's driver, such as %s", name, compareDefault)
		}
		modules = append(modules, scenarios.Module{Name: name, File: file})
	}
	for i := range cases {
		cases[i].Modules = modules
	}
	return nil
}

// load reads a scenario: a file if the word looks like a path, else a shipped one.
func load(ctx context.Context, name string) (*scenarios.Scenario, error) {
	isPath := strings.ContainsRune(name, os.PathSeparator) && !strings.HasPrefix(name, scenarios.FaultsName+"/")
	if !isPath && filepath.Ext(name) != ".yaml" && filepath.Ext(name) != ".yml" {
		return scenarios.Get(name)
	}
	f, err := openInput(ctx, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, scenarios.MaxFile+1)) // one too many for Load to tell: the file may have no end
	if err != nil {
		return nil, err
	}
	return scenarios.Load(name, data)
}

// What a run leaves in --out, beside a directory for each case.
const (
	resultsFile  = "results.json" // its presence marks a directory as used
	tableFile    = "results.txt"
	markdownFile = "results.md"
)

// claim makes --out's directory this run's own.
func claim(out string) (release func(), err error) {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, usageError(fmt.Errorf("--out: %w", err))
	}
	lock := flock.New(filepath.Join(out, ".lock"))
	switch ok, err := lock.TryLock(); {
	case err != nil:
		return nil, usageError(fmt.Errorf("--out %s: %w", out, err))
	case !ok:
		return nil, usageError(fmt.Errorf("--out %s: another run is writing there; choose another directory", out))
	}
	release = func() {
		_ = os.Remove(lock.Path())
		_ = lock.Unlock()
	}
	entries, err := os.ReadDir(out)
	if err == nil && len(entries) > 1 {
		err = fmt.Errorf("it holds %s already; choose a new or empty directory", entries[len(entries)-1].Name())
	}
	if err != nil {
		release()
		return nil, usageError(fmt.Errorf("--out %s: %w", out, err))
	}
	return release, nil
}

// follow shows how a run comes on: how many cases have ended and what is left, each case's stage on the progress line, and with verbose a line for each.
func follow(p *progress, s Streams, verbose bool) func(runner.Status) {
	return func(st runner.Status) {
		p.overall(fmt.Sprintf("case %d of %d%s", min(st.Ended+1, st.Total), st.Total, left(st.Left)))
		name := st.Case.Scenario + "/" + st.Case.Name
		if st.Done != nil {
			if verbose || st.Done.Outcome == result.Fail || st.Done.Outcome == result.Error {
				p.result(s.Err, "%s: %s after %.1f s", name, st.Done.Outcome, st.Done.Seconds.Total)
			}
			return
		}
		if verbose {
			p.result(s.Err, "%s: %s", name, st.Stage)
		}
		p.report(name+": "+st.Stage, 0, 0)
	}
}

// left is an estimate in words, as exact as it deserves: nothing as long as nothing was measured.
func left(l runner.Left) string {
	if l.Time <= 0 {
		return ""
	}
	about := ", about "
	if l.AtLeast {
		about = ", more than "
	}
	switch t := l.Time; {
	case t < 5*time.Second:
		return about + "5 s left"
	case t < 100*time.Second:
		return about + fmt.Sprintf("%d s left", int(max(10*time.Second, t.Round(10*time.Second)).Seconds()))
	case t < 100*time.Minute:
		return about + fmt.Sprintf("%d min left", int(t.Round(time.Minute).Minutes()))
	default:
		return about + fmt.Sprintf("%d h left", int(t.Round(time.Hour).Hours()))
	}
}
