package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"irqlab/images"
	"irqlab/lab"
	"irqlab/lab/build"
	"irqlab/lab/build/patch"
	"irqlab/lab/build/patch/gitrange"
	"irqlab/lab/foreign"
	"irqlab/lab/layout"
	"irqlab/lab/report"
	"irqlab/lab/try"
	"irqlab/scenarios"
	"irqlab/scenarios/nearest"
	"irqlab/scenarios/result"
)

// What try leaves in --out beside the run's results.
const (
	trialFile = "try.json"
	trialText = "try.txt"
	trialMail = "mail.txt"
)

const formatMail = "mail"

// tryFlags are those of try.
type tryFlags struct {
	scenarioFlags
	runFlags
	kernel               string
	choice               try.Choice
	debug                []string
	revert, check, whole bool
}

func (f *tryFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.kernel, "kernel", lab.DefaultKernel, "kernel `SPEC` that is changed, one of Debian's (debian:6.18, debian:7.3.4) or a commit of a git tree (git:DIR@REV)")
	fs.BoolVar(&f.whole, "whole", false, "build two whole kernels, even if the patch only changes the driver's module")
	fs.StringSliceVar(&f.debug, "debug", nil, "build two whole kernels with debugging `OPTIONS`: "+strings.Join(build.DebugOptions(), ", "))
	fs.BoolVar(&f.revert, "revert", false, "take the patch out of a kernel that has it")
	fs.BoolVar(&f.check, "check", false, "only say how each hunk applies")
	fs.StringArrayVar(&f.choice.Scenarios, "scenario", nil, "scenario (`NAME` or file) to run instead of the usual cases; may be repeated")
	fs.StringArrayVar(&f.choice.Cases, "case", nil, "case (`NAME`) of the scenarios to run; may be repeated")
	fs.BoolVar(&f.choice.All, "all", false, "run all cases that have to do with the driver, the fault catalogue included (many minutes)")
	f.registerMachine(fs)
	f.runFlags.register(fs)
	fs.Lookup("format").Usage = "`table`, json, or mail: plain text to be pasted into a mail to the list"
	fs.Lookup("out").Usage = "new or empty `directory` for the results of both sides, the verdict as JSON and text, and the text for a mail"
}

func (f *tryFlags) validate() error {
	if f.format != formatMail {
		if err := checkFormat(f.format); err != nil {
			return fmt.Errorf("--format: %w", nearest.Unknown("format", f.format, []string{"table", "json", formatMail}))
		}
	}
	table := f.runFlags
	table.format = "table"
	if err := table.validate(); err != nil {
		return err
	}
	if err := (build.KernelOptions{Debug: f.debug}).Check(); err != nil {
		return fmt.Errorf("--debug: %w", err)
	}
	if spec, ok := strings.CutPrefix(f.kernel, images.GitPrefix); ok {
		if _, _, err := gitrange.Place(spec); err != nil {
			return fmt.Errorf("--kernel: %s: %w", foreign.Line(f.kernel), err)
		}
	} else if err := checkSource(f.kernel, ", or a commit of a git tree: git:DIR@REV"); err != nil {
		return err
	}
	if f.check && f.out != "" {
		return errors.New("--out: --check runs nothing that could be kept there")
	}
	return nil
}

func newTry(s Streams) *cobra.Command {
	var f tryFlags
	cmd := &cobra.Command{
		Use:   "try PATCH…",
		Short: "Apply a patch to a kernel, build what it touches, run what matters without and with it, and judge",
		Long: `try applies the patch to the kernel's source, builds what it touches, and runs the same cases without it and with it: where every vector landed, what is better, what is worse, and a
verdict. Where the patch only changes the mana driver, its module is built, and both sides fork one machine; the unpatched module is built the same way and compared with the
distribution's. A patch that changes more, --whole, --debug and a commit of a git tree take two whole kernels, both built of the same source with a small configuration. The first
of a source takes 7 to 10 minutes on two cores, and stays in the cache; what a patch changes is then built in about a minute.

PATCH is a mail, a mailbox or a series (b4, git format-patch), a diff, a page saved from an archive, - for standard input, git:DIR for what is not committed in a tree, or
git:DIR@A..B for commits. Several are applied in order. What does not apply is shown hunk by hunk, with the text that stands there; fuzz is always told.

The usual cases place the driver's vectors on 2 to 8 CPUs, with and without SMT, on two nodes, beside a neighbour and with CPUs offline (irqlab run ` + try.Scenario + ` runs them for any
driver); with whole kernels, unless only the driver is changed, ` + try.ManagedIRQs + ` comes beside, whose disks' interrupts the kernel itself places. --scenario, --case and --all choose others; with another machine (--shape, …) the scenario is ` + try.AnyMachine + `. Shipped scenarios hold each version of the driver to what it is known for:
here they only ask what any version owes.

A kernel whose source the archive does not serve is told so (125), and so are changed files that the small configuration does not compile: what they do is not seen.

Worse is: a case fails that did not, queues are clustered that were not, more CPUs have no queue, a mask is not kept that was, a reading is not come to that was, the kernel's
log has a new warning. To be slower is not.

Exit status: 0 no case fails with the patch, and nothing is worse; 1 something is worse, or a case fails with the patch as it did without (other than is known of the kernel); 2 bad usage
or input; 125 it could not be told: the patch does not apply or build, or the lab failed; 130 interrupted.`,
		Example: `  irqlab try mana-linear-v5.mbox --kernel debian:6.18
  irqlab try --revert mana-linear-v5.mbox --kernel debian:7.3 --format mail
  git format-patch --stdout origin | irqlab try -
  irqlab try git:~/linux --scenario spread --case 1x4x1
  irqlab try genirq.mbox --kernel debian:7.3
  irqlab try fix.diff --kernel git:~/linux@v7.2 --debug kasan,lockdep
  irqlab try --check fix.diff`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.validate(); err != nil {
				return usageError(err)
			}
			if err := f.output(&s); err != nil {
				return err
			}
			t := &trying{tryFlags: &f, s: s, began: time.Now(), trial: try.New(f.kernel)}
			t.trial.IRQLab = lab.Version()
			t.trial.Command = again(cmd, args, "kernel")
			return t.run(cmd.Context(), args)
		},
	}
	f.register(cmd.Flags())
	return cmd
}

// again is the command with the flags that decide on what is tried. Those named always are given even where their defaults held, which another version may have otherwise.
func again(cmd *cobra.Command, args []string, always ...string) string {
	words := append([]string{"irqlab", cmd.Name()}, args...)
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Changed && !slices.Contains(always, flag.Name) || slices.Contains([]string{"format", "out", "log", "verbose", "keep", "jobs"}, flag.Name) {
			return
		}
		for _, v := range valuesOf(flag) {
			words = append(words, "--"+flag.Name)
			if flag.Value.Type() != "bool" {
				words = append(words, v)
			}
		}
	})
	return quoted(words)
}

// valuesOf are what a flag was given: of one that may be repeated, each.
func valuesOf(flag *pflag.Flag) []string {
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		return list.GetSlice()
	}
	return []string{flag.Value.String()}
}

// trying is a patch being tried.
type trying struct {
	*tryFlags
	s     Streams
	began time.Time
	trial try.Trial

	series  patch.Series
	applied *patch.Result // nil: not come to
	driver  bool          // the patch changes it
}

// run takes the patch as far as it goes, and shows what came of it.
func (t *trying) run(ctx context.Context, args []string) error {
	series, err := readPatches(ctx, args, t.s.In)
	if err != nil {
		return usageError(err)
	}
	t.series = series
	if t.revert {
		t.series = series.Reverse()
	}
	t.describe(series)
	touched := try.Touch(series.Paths())
	t.trial.Outside, t.trial.Beyond, t.driver = touched.Nothing, touched.Beyond, len(touched.Own) > 0
	if len(touched.Own)+len(touched.Beyond) == 0 {
		t.trial.Verdict = try.Verdict{Word: try.WordUnknown, Status: report.ExitError, Reasons: []string{
			"it changes nothing that boots: " + strings.Join(touched.Nothing, ", ")}}
		return t.end(ctx, nil)
	}
	t.whole = t.whole || len(t.debug) > 0 || len(touched.Beyond) > 0 || isCommit(t.kernel)
	var cases []scenarios.Case
	if !t.check {
		if cases, err = t.plan(ctx, touched); err != nil {
			return err
		}
	}
	cache, err := openCache(t.s)
	if err != nil {
		return err
	}
	build := t.build
	if t.whole {
		build = t.buildWhole
	}
	without, with, err := build(ctx, cache)
	if err != nil || t.trial.Verdict.Word != "" {
		return t.end(ctx, err)
	}
	return t.end(ctx, t.compare(ctx, cases, without, with))
}

// describe takes down what the patch says of itself.
func (t *trying) describe(series patch.Series) {
	t.trial.Reversed, t.trial.ID = t.revert, series.ID()
	for _, p := range series {
		t.trial.Patches = append(t.trial.Patches, try.Patch{Title: p.Title, Author: p.Author, MessageID: p.MessageID, Version: p.Version, Tags: p.Tags, ID: p.ID(), Source: p.Source})
	}
	t.trial.Notes = series.Notes()
}

// plan lists the cases. Its errors are of usage.
func (t *trying) plan(ctx context.Context, touched try.Touched) ([]scenarios.Case, error) {
	f := t.scenarioFlags
	f.kernels, f.unnamed = []string{t.kernel}, t.whole
	choice := t.choice
	machine := len(f.shapes)+len(f.vectors)+len(f.deviceNodes)+len(f.cmdlines)+len(f.offlines) > 0
	if machine && !choice.All && len(choice.Scenarios) == 0 {
		choice.Scenarios = []string{try.AnyMachine}
		f.anyMachine()
	}
	names, chosen := choice.Names(touched)
	f.cases = chosen
	return f.planDriver(ctx, names, "a patch to it would change nothing", t.whole, t.s)
}

// readPatches reads all that the arguments name.
func readPatches(ctx context.Context, args []string, stdin io.Reader) (patch.Series, error) {
	var series patch.Series
	var inputs []patch.Input
	var files []io.Closer
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	flush := func() error {
		if len(inputs) == 0 {
			return nil
		}
		more, err := patch.Read(inputs...)
		series, inputs = append(series, more...), nil
		return err
	}
	stdinTaken := false
	for _, arg := range args {
		if spec, ok := strings.CutPrefix(arg, "git:"); ok {
			if err := flush(); err != nil {
				return nil, err
			}
			more, err := gitrange.Read(ctx, spec)
			if err != nil {
				return nil, err
			}
			series = append(series, more...)
			continue
		}
		if arg == "-" {
			if stdinTaken {
				return nil, errors.New("standard input (-) is given twice")
			}
			stdinTaken = true
			inputs = append(inputs, patch.Input{Name: "standard input", R: untilDone(ctx, stdin)})
			continue
		}
		f, err := openInput(ctx, arg)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
		inputs = append(inputs, patch.Input{Name: arg, R: f})
	}
	if err := flush(); err != nil {
		return nil, err
	}
	if len(series) == 0 {
		return nil, fmt.Errorf("%s: no patch in it", strings.Join(args, ", "))
	}
	return series, nil
}

// A side is what the cases of one side run with.
type side func(*scenarios.Case)

// build applies the patch and builds the module. A patch that does not apply or build has its verdict then, and no error.
func (t *trying) build(ctx context.Context, cache *images.Cache) (without, with side, err error) {
	p := newProgress(t.s.Err)
	defer p.close()
	began := time.Now()
	src, err := driverSource(ctx, cache, &t.trial.Kernel, p)
	if err != nil {
		return nil, nil, err
	}
	changed, err := t.apply(p, began, src.FS(), src.Notes)
	if changed == nil {
		return nil, nil, err
	}
	b := build.New(cache, p.report)
	began = time.Now()
	module, err := b.Module(ctx, src, changed)
	t.trial.Seconds.Build = time.Since(began).Seconds()
	if err != nil {
		return nil, nil, t.unbuilt(err)
	}
	t.trial.Module = &try.Module{Name: module.Name, Cached: module.Cached, Warnings: diagnostics(module.Added),
		Identical: module.Comparison.Identical, Functions: module.Comparison.Functions, Differ: module.Comparison.Differ, Unchecked: module.Comparison.Reason,
		Without: "the distribution's own module"}
	p.result(t.s.Err, "irqlab: built %s (%.1f s)", module.Name, t.trial.Seconds.Build)
	without = func(*scenarios.Case) {}
	if !module.Comparison.Identical { // what differs without the patch must differ with it, too
		unpatched, err := b.Module(ctx, src, nil)
		if err != nil {
			return nil, nil, err
		}
		without = func(c *scenarios.Case) { withModule(c, unpatched.Name, unpatched.Path) }
		t.trial.Module.Without = "the unpatched module, built the same way"
	}
	return without, func(c *scenarios.Case) { withModule(c, module.Name, module.Path) }, nil
}

// buildWhole applies the patch and builds the kernel without and with it. A patch that does not apply or build, or of which nothing is compiled, has its verdict then, and no error.
func (t *trying) buildWhole(ctx context.Context, cache *images.Cache) (without, with side, err error) {
	p := newProgress(t.s.Err)
	defer p.close()
	began := time.Now()
	b := build.New(cache, p.report)
	tree, err := kernelTree(ctx, cache, b, t.kernel, build.KernelOptions{Debug: t.debug}, p.report)
	if err != nil {
		return nil, nil, err
	}
	t.trial.Kernel.Source, t.trial.Kernel.Compiler = tree.Origin, tree.Compiler
	changed, err := t.apply(p, began, tree.FS(), tree.Notes)
	if changed == nil {
		return nil, nil, err
	}
	began = time.Now()
	sayFirst(b, tree, func(format string, args ...any) { p.result(t.s.Err, "irqlab: "+format, args...) })
	base, err := b.Kernel(ctx, tree, nil)
	t.trial.Seconds.Base = time.Since(began).Seconds()
	if err != nil {
		return nil, nil, err
	}
	t.trial.Kernel.Release = base.Release
	t.trial.Notes = append(t.trial.Notes, base.Notes...)
	began = time.Now()
	built, err := b.Kernel(ctx, tree, changed)
	t.trial.Seconds.Build = time.Since(began).Seconds()
	if err != nil {
		return nil, nil, t.unbuilt(err)
	}
	t.trial.Kernels = &try.Kernels{Without: try.Built{Release: base.Release, Path: base.Path, Cached: base.Cached}, With: try.Built{Release: built.Release, Path: built.Path, Cached: built.Cached},
		Debug: t.debug, Warnings: diagnostics(built.Added), Unused: built.Unused}
	p.result(t.s.Err, "irqlab: built %s with the patch (%.1f s)", built.Release, t.trial.Seconds.Build)
	if len(changed) > 0 && len(built.Unused) == len(changed) {
		t.trial.Verdict = try.NotCompiled(built.Unused)
		return nil, nil, nil
	}
	return func(c *scenarios.Case) { onKernel(c, base.Path) }, func(c *scenarios.Case) { onKernel(c, built.Path) }, nil
}

// unbuilt is the verdict on a patch that does not build; any other error is passed on.
func (t *trying) unbuilt(err error) error {
	var broken *build.CompileError
	if !errors.As(err, &broken) {
		return err
	}
	t.trial.Errors = diagnostics(broken.Errors)
	t.trial.Verdict = try.Verdict{Word: try.WordDoesNotBuild, Status: report.ExitError, Reasons: []string{}}
	if broken.More > 0 {
		t.trial.Verdict.Reasons = append(t.trial.Verdict.Reasons, report.Plural(broken.More, "more error", "more errors"))
	}
	return nil
}

// diagnostics are what a compiler said.
func diagnostics[D build.Diagnostic | build.Warning](list []D) []try.Diagnostic {
	out := []try.Diagnostic{}
	for _, d := range list {
		out = append(out, try.Diagnostic(d))
	}
	return out
}

// apply applies the patch to a source that was found since began, in memory; nil if there is an error, or a verdict already.
func (t *trying) apply(p *progress, began time.Time, source fs.FS, notes []string) (map[string][]byte, error) {
	t.trial.Notes = append(t.trial.Notes, notes...)
	t.trial.Seconds.Source = time.Since(began).Seconds()
	p.result(t.s.Err, "irqlab: source and compiler: %s; %s (%.1f s)", t.trial.Kernel.Source, t.trial.Kernel.Compiler, t.trial.Seconds.Source)
	var err error
	t.applied, err = patch.Apply(source, t.series, patch.Options{MaxFuzz: patch.DefaultFuzz, Outside: try.Outside})
	var misfit *patch.ApplyError
	if err != nil && !errors.As(err, &misfit) {
		return nil, err
	}
	for _, h := range t.applied.Hunks {
		hunk := try.Hunk{Path: h.Path, Where: h.Where(), Line: h.Line, Offset: h.Offset, Fuzz: h.Fuzz}
		if h.Misfit != nil {
			hunk.Misfit, hunk.Reason, hunk.Want, hunk.Found, hunk.FoundLine = h.Misfit.Text, string(h.Misfit.Reason), h.Misfit.Want, h.Misfit.Found, h.Misfit.Line
		}
		t.trial.Hunks = append(t.trial.Hunks, hunk)
	}
	switch {
	case misfit != nil:
		t.trial.Verdict = try.Verdict{Word: try.WordDoesNotApply, Status: report.ExitError, Reasons: []string{t.remedy(misfit)}}
		return nil, nil
	case t.check:
		t.trial.Verdict = try.Verdict{Word: try.WordApplies, Status: report.ExitPass, Reasons: []string{}}
		return nil, nil
	}
	changed := map[string][]byte{}
	for _, f := range t.applied.Files {
		changed[f.Path] = f.Content
		if f.Removed {
			changed[f.Path] = nil
		}
	}
	p.result(t.s.Err, "irqlab: applied: %s", t.trial.Fit())
	return changed, nil
}

// remedy says what to do about a patch that does not apply.
func (t *trying) remedy(misfit *patch.ApplyError) string {
	kernel := cmp.Or(t.trial.Kernel.Release, t.trial.Kernel.Spec)
	all := func(reason patch.Reason) bool {
		return !slices.ContainsFunc(misfit.Misfits, func(h patch.HunkReport) bool { return h.Misfit.Reason != reason })
	}
	switch {
	case all(patch.AlreadyApplied):
		return fmt.Sprintf("kernel %s has it already: take it out with --revert, or name a kernel without it with --kernel, such as debian:6.18", kernel)
	case all(patch.NotApplied):
		return fmt.Sprintf("kernel %s does not have it, so that it cannot be taken out: leave --revert out, or name a kernel that has it with --kernel", kernel)
	}
	return fmt.Sprintf("name the kernel that it was made for with --kernel, or rebase it to %s by hand and give what comes of that: a file, or git:DIR of a tree where it is done", kernel)
}

// compare runs the cases on both sides, and judges.
func (t *trying) compare(ctx context.Context, cases []scenarios.Case, without, with side) error {
	both := withoutAndWith(cases)
	for i := range cases {
		without(&both[i])
		with(&both[len(cases)+i])
	}
	began := time.Now()
	rep, err := t.runFlags.run(ctx, both, t.s)
	t.trial.Seconds.Cases = time.Since(began).Seconds()
	if err != nil {
		return err
	}
	a, b := rep, rep
	a.Cases, b.Cases = rep.Cases[:len(cases)], rep.Cases[len(cases):]
	t.trial.Cases = try.Compare(a, b)
	c := report.Compare(a, b)
	t.trial.Comparison = &c
	t.trial.Verdict = try.Judge(t.trial.Cases, t.driver, rep.NotRun)
	if t.trial.Module != nil {
		t.trial.Module.SHA256 = hashOf(b.Cases)
	}
	if t.trial.Kernels != nil {
		t.trial.Verdict = t.trial.Verdict.Unseen(t.trial.Kernels.Unused)
	}
	return nil
}

// hashOf is the hash of the module that cases ran with.
func hashOf(cases []result.Case) string {
	for _, c := range cases {
		for _, m := range c.Modules {
			if m.SHA256 != "" {
				return m.SHA256
			}
		}
	}
	return ""
}

// end shows the trial, and leaves it in --out. An error of the lab's is one of the verdict, too, for who asked for JSON.
func (t *trying) end(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var exit *exitError
	if err != nil {
		if errors.As(err, &exit) && exit.status != ExitError || t.format != "json" {
			return err
		}
		t.trial.Verdict = try.Verdict{Word: try.WordUnknown, Status: report.ExitError, Reasons: []string{err.Error()}}
	}
	t.trial.Seconds.Total = time.Since(t.began).Seconds()
	if t.out != "" {
		if err := t.keep(); err != nil {
			return &exitError{ExitError, fmt.Errorf("--out: %w", err)}
		}
	}
	if err := t.render(t.s.Out, t.format); err != nil {
		return outputError(err)
	}
	if err != nil {
		return err
	}
	return exitWith(t.trial.Verdict.Status)
}

// render writes the trial. Where there is no case to tell of, how the hunks fit is.
func (t *trying) render(w io.Writer, format string) error {
	switch {
	case format == "json":
		return report.JSON(w, t.trial)
	case t.applied != nil && (t.trial.Verdict.Word == try.WordDoesNotApply || t.trial.Verdict.Word == try.WordApplies):
		if err := report.Patch(w, t.series, t.applied); err != nil {
			return err
		}
		for _, r := range t.trial.Verdict.Reasons {
			if _, err := io.WriteString(w, layout.Item("", foreign.Text(r), layout.Columns(w))); err != nil {
				return err
			}
		}
		return nil
	case format == formatMail && len(t.trial.Cases) > 0:
		return try.Mail(w, t.trial)
	}
	return try.Table(w, t.trial)
}

// keep leaves the trial in --out, where a run may have left its results before.
func (t *trying) keep() error {
	if len(t.trial.Cases) == 0 {
		release, err := claim(t.out)
		if err != nil {
			return err
		}
		defer release()
	}
	var errs []error
	for _, file := range []struct{ name, format string }{{trialFile, "json"}, {trialText, "table"}, {trialMail, formatMail}} {
		if file.format == formatMail && len(t.trial.Cases) == 0 {
			continue
		}
		errs = append(errs, replaceFile(filepath.Join(t.out, file.name), func(w io.Writer) error { return t.render(w, file.format) }))
	}
	return errors.Join(errs...)
}
