package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"irqlab/images"
	"irqlab/lab"
	"irqlab/lab/bisect"
	"irqlab/lab/build"
	"irqlab/lab/build/patch/gitrange"
	"irqlab/lab/report"
	"irqlab/lab/try"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// What a bisection leaves in --out beside a directory for each commit that was run.
const (
	bisectFile = "bisect.json"
	bisectText = "bisect.txt"
	bisectLog  = "bisect.log"
)

// modulePaths are the folders of a tree that the driver's module is built of.
var modulePaths = []string{try.ModuleDir, "include/net/mana"}

// treeFlags are those of bisect.
type treeFlags struct {
	scenarioFlags
	runFlags
	kernel, tree, good, bad, log string
	whole                        bool
}

func (f *treeFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.good, "good", "", "commit (`REV`) that is good")
	fs.StringVar(&f.bad, "bad", "HEAD", "commit (`REV`) that is bad")
	fs.StringVar(&f.tree, "tree", ".", "the kernel's git tree (`DIR`); it is only read")
	fs.StringVar(&f.kernel, "kernel", lab.DefaultKernel, "kernel `SPEC` that runs each commit's module, one of Debian's: debian:6.18, debian:7.3.4")
	fs.BoolVar(&f.whole, "whole", false, "build each commit's whole kernel, not the driver's module alone for --kernel")
	fs.StringVar(&f.log, "log", "", "`FILE` for what git bisect replay does again")
	fs.StringArrayVar(&f.cases, "case", nil, "case (`NAME`) of the scenario to run; may be repeated")
	fs.StringArrayVar(&f.expect, "expect", nil, "expect this, too (`KEY=VALUE`), as in run; may be repeated")
	f.registerMachine(fs)
	f.runFlags.register(fs)
	fs.Lookup("out").Usage = "new or empty `directory` for each commit's results, the bisection as JSON and text, and its log"
}

func (f *treeFlags) validate() error {
	if err := f.runFlags.validate(); err != nil {
		return err
	}
	switch {
	case f.whole && f.given("kernel"):
		return errors.New("--kernel: with --whole each commit is the kernel")
	case f.good == "":
		return errors.New("--good: name a commit that is good, as in --good v7.2")
	case f.log == "" && f.given("log"):
		return errors.New("--log: it is empty; give a file")
	}
	if st, err := os.Stat(f.log); err == nil && !st.Mode().IsRegular() { // it is replaced each time
		return fmt.Errorf("--log: %s is no file", f.log)
	}
	return checkSource(f.kernel, ", or have each commit's own built by --whole")
}

func newTreeBisect(s Streams) *cobra.Command {
	var f treeFlags
	cmd := &cobra.Command{
		Use:   "bisect --good A --bad B --tree DIR [SCENARIO]",
		Short: "Find the commit of a tree whose change of the driver, or of the kernel, made a scenario fail",
		Long: `bisect has git choose commits between a good one and a bad one, builds the mana
driver's module as each has it for a stock kernel, runs the scenario's cases
with it on forks of one machine, and tells git what came of it: good, every case
passed; bad, one failed; skip, it cannot be told, since it does not build for
this kernel or the lab failed. Both ends are judged first. It ends with the
first bad commit, or with those that it may be where what would tell was
skipped, and with what changed from the last good commit to it.

Only commits that change ` + try.ModuleDir + ` or
include/net/mana are judged, by what they have there: the rest of the kernel is
--kernel's for all of them. So choose one whose interfaces the range's driver
was written for, and expect commits far from it not to build. How many commits
change something else is said; what they do is not seen.

The scenario is ` + try.AnyMachine + ` unless another is named. Of shipped ones that hold
each version of the driver to what it is known for only what any version owes is
asked.

The tree may be bare, a worktree, or a shallow clone that has the range. It is
only read: no file, reference or bisection of its own is touched, and nothing
that it brings along is run, but for its Makefiles in the build's sandbox.

Exit status: 0 the first bad commit was found; 1 the ends are not what they were
said to be; 2 bad usage, or no such range; 125 it cannot be told; 130
interrupted: what was judged is shown, and git bisect replay goes on from the
file of --log.`,
		Example: `  irqlab bisect --good v7.1 --bad v7.2 --tree ~/linux
  irqlab bisect --good HEAD~20 --kernel debian:7.3 --case 1x4x2
  irqlab bisect --good v6.17 --bad v6.18 --tree ~/linux.git \
      --kernel debian:6.18 changed-driver --case neighbour --log bisect.log
  irqlab bisect --whole --good v7.3-rc1 --bad v7.3-rc2 --tree ~/linux`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.validate(); err != nil {
				return usageError(err)
			}
			if err := f.output(&s); err != nil {
				return err
			}
			t := &treeBisect{treeFlags: &f, s: s, began: time.Now(), found: bisect.New(f.tree, f.kernel, f.whole), judged: map[string]int{}}
			t.found.IRQLab, t.found.Command = lab.Version(), again(cmd, args, nil, "kernel")
			if f.whole {
				t.found.Command = again(cmd, args, nil)
			}
			return t.run(cmd.Context(), args)
		},
	}
	f.register(cmd.Flags())
	return cmd
}

// treeBisect is a bisection under way.
type treeBisect struct {
	*treeFlags
	s     Streams
	began time.Time
	found bisect.Bisection

	git    *gitrange.Bisection
	cases  []scenarios.Case
	cache  *images.Cache
	maker  commitMaker
	judged map[string]int // by what a commit's files are: the step
	begun  bool           // the ends were shown
}

// A commitMaker makes of a commit's files what it is judged with.
type commitMaker interface {
	// files are what has to be changed in what is built to have what the commit has. key is the same for commits that have the same. A *gitrange.FilesError tells that it cannot be built.
	files(ctx context.Context, commit string) (changed map[string][]byte, key string, err error)
	make(ctx context.Context, b *build.Builder, changed map[string][]byte) (made, error)
}

// made is what a commit is judged with.
type made struct {
	run            side
	module, kernel string   // the file, of one of both
	notes          []string // on what all are built of
}

// run bisects, and shows what came of it, however far it came.
func (t *treeBisect) run(ctx context.Context, args []string) error {
	var err error
	if t.cases, err = t.plan(ctx, args); err != nil {
		return err
	}
	paths := modulePaths
	if t.whole {
		paths = nil
	}
	if t.git, err = gitrange.StartBisection(ctx, t.tree, t.good, t.bad, paths, try.OutsidePaths()); err != nil {
		var none *gitrange.NoRangeError
		if errors.As(err, &none) && none.Untouched && !t.whole {
			err = fmt.Errorf("%w: --whole judges commits by all that they change", err)
		}
		return usageError(err)
	}
	defer func() {
		if err := t.git.Close(); err != nil {
			t.s.say("warning: %v", err)
		}
	}()
	g := t.git
	t.found.Range = bisect.Range{Good: bisect.Commit{Name: g.Good.Name, Subject: g.Good.Subject}, Bad: bisect.Commit{Name: g.Bad.Name, Subject: g.Bad.Subject},
		Commits: g.Commits, OfModule: g.Touching, Elsewhere: g.Elsewhere}
	if g.Elsewhere > 0 {
		t.found.Notes = append(t.found.Notes, fmt.Sprintf("commits that change other files of the kernel: %d of %d; these are not built, and what they do is not seen (--whole builds them)", g.Elsewhere, g.Commits))
	}
	if t.out != "" {
		release, err := claim(t.out)
		if err != nil {
			return err
		}
		defer release()
	}
	if err := t.writeLog(ctx); err != nil { // before anything is built
		return usageError(err)
	}
	return t.end(ctx, t.judge(ctx))
}

// plan lists the cases. Its errors are of usage.
func (t *treeBisect) plan(ctx context.Context, names []string) ([]scenarios.Case, error) {
	f := t.scenarioFlags
	f.kernels, f.unnamed = []string{t.kernel}, t.whole
	if len(names) == 0 {
		names = []string{try.AnyMachine}
		f.anyMachine()
	}
	cases, err := f.planDriver(ctx, names, "all commits would be alike", t.whole, t.s)
	if err != nil {
		return nil, err
	}
	if err := judged(cases); err != nil {
		return nil, usageError(err)
	}
	return cases, nil
}

// judge judges both ends, then what git asks for.
func (t *treeBisect) judge(ctx context.Context) error {
	if err := t.prepare(ctx); err != nil {
		return err
	}
	for _, end := range []gitrange.Commit{t.git.Good, t.git.Bad} {
		if err := t.step(ctx, end); err != nil {
			return err
		}
	}
	ok := t.found.Ends()
	t.begun = true
	if err := t.show(t.found.Head() + "\n" + t.found.Columns() + t.found.Line(&t.found.Steps[0]) + t.found.Line(&t.found.Steps[1])); err != nil || !ok {
		return err
	}
	told := context.WithoutCancel(ctx) // what was judged is in the log, whenever it is interrupted
	if err := t.git.Begin(told); err != nil {
		return err
	}
	for {
		if err := t.writeLog(told); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		c, ok, err := t.git.Next(ctx)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if err := t.step(ctx, c); err != nil {
			return err
		}
		s := &t.found.Steps[len(t.found.Steps)-1]
		if err := t.show(t.found.Line(s)); err != nil {
			return err
		}
		if err := t.git.Judge(told, c.Name, s.Verdict); err != nil {
			return err
		}
	}
	first, suspects := t.git.Found()
	named := make([]bisect.Commit, len(suspects))
	for i, name := range suspects {
		c, err := t.git.Commit(ctx, name)
		if err != nil {
			return err
		}
		named[i] = bisect.Commit(c)
	}
	if first == "" {
		t.found.Found(nil, named)
		return nil
	}
	c, err := t.git.Commit(ctx, first)
	if err == nil {
		t.found.Found((*bisect.Commit)(&c), nil)
	}
	return err
}

// prepare finds or fetches what all commits are built of, and the toolchain.
func (t *treeBisect) prepare(ctx context.Context) (err error) {
	if t.cache, err = openCache(t.s); err != nil {
		return err
	}
	p := newProgress(t.s.Err)
	defer p.close()
	var notes []string
	if t.whole {
		m := &kernelMaker{dir: t.tree}
		b := build.New(t.cache, p.report)
		if m.good, err = gitrange.OpenTree(ctx, t.tree, t.git.Good.Name); err != nil {
			return err
		}
		if m.tree, err = b.GitTree(ctx, t.tree, t.git.Good.Name, build.KernelOptions{}); err != nil {
			return err
		}
		t.found.Kernel.Source, t.found.Kernel.Compiler = m.tree.Origin, m.tree.Compiler
		sayFirst(b, m.tree, func(format string, args ...any) { p.result(t.s.Err, "irqlab: "+format, args...) })
		t.maker, notes = m, m.tree.Notes
	} else {
		src, err := driverSource(ctx, t.cache, &t.found.Kernel, p)
		if err != nil {
			return err
		}
		t.maker, notes = &moduleMaker{source: src, git: t.git}, src.Notes
	}
	t.found.Notes = append(t.found.Notes, notes...)
	return nil
}

// step judges one commit. Its errors are the lab's, which would come of every commit.
func (t *treeBisect) step(ctx context.Context, c gitrange.Commit) error {
	s, err := t.try(ctx, bisect.Commit(c))
	if err == nil {
		t.found.Steps = append(t.found.Steps, s)
	}
	return err
}

func (t *treeBisect) try(ctx context.Context, c bisect.Commit) (bisect.Step, error) {
	files, key, err := t.maker.files(ctx, c.Name)
	var unfit *gitrange.FilesError
	if errors.As(err, &unfit) {
		return bisect.Untold(c, []string{unfit.Error()}, nil), nil
	}
	if err != nil {
		return bisect.Step{}, err
	}
	if i, ok := t.judged[key]; ok {
		return t.found.Steps[i].Same(c), nil
	}
	began := time.Now()
	made, untold, err := t.make(ctx, c, files)
	if err != nil {
		return bisect.Step{}, err
	}
	seconds := bisect.Seconds{Build: time.Since(began).Seconds()}
	if made.run == nil {
		untold.Seconds = seconds
		t.judged[key] = len(t.found.Steps)
		return untold, nil
	}
	if len(t.found.Steps) == 0 {
		t.found.Notes = append(t.found.Notes, made.notes...)
	}
	cases := make([]scenarios.Case, len(t.cases))
	for i, x := range t.cases {
		made.run(&x)
		cases[i] = x
	}
	flags := t.runFlags
	flags.quiet = true
	dir := fmt.Sprintf("%02d-%.12s", len(t.found.Steps)+1, c.Name)
	if t.out != "" {
		flags.out, flags.passing = filepath.Join(t.out, dir), true
	}
	began = time.Now()
	rep, err := flags.run(ctx, cases, t.s)
	if err != nil {
		return bisect.Step{}, err
	}
	for i := range rep.Cases { // what they leave is named as it lies in --out
		a := &rep.Cases[i].Artifacts
		for _, name := range []*string{&a.Console, &a.Trace, &a.Timeline} {
			if *name != "" {
				*name = path.Join(dir, *name)
			}
		}
	}
	s := bisect.Ran(c, rep)
	seconds.Cases = time.Since(began).Seconds()
	s.Module, s.Kernel, s.Seconds = made.module, made.kernel, seconds
	if s.Verdict != gitrange.Skip { // what the lab could not tell may come out otherwise another time
		t.judged[key] = len(t.found.Steps)
	}
	return s, nil
}

// make makes what a commit is judged with; without it, why it cannot be told.
func (t *treeBisect) make(ctx context.Context, c bisect.Commit, changed map[string][]byte) (made, bisect.Step, error) {
	p := newProgress(t.s.Err)
	defer p.close()
	what := fmt.Sprintf("building %.12s", c.Name)
	if left := t.git.Left(); left != "" {
		what = left + ": " + what
	}
	p.report(what, 0, 0)
	m, err := t.maker.make(ctx, build.New(t.cache, func(_ string, done, total int64) { p.report(what, done, total) }), changed)
	var broken *build.CompileError
	var limit *build.LimitError
	switch {
	case errors.As(err, &broken):
		const most = 2 // of the compiler's errors: the first one is what has to do with it
		errs := diagnostics(broken.Errors[:min(most, len(broken.Errors))])
		reasons := []string{"it does not build for this kernel"}
		if t.whole {
			reasons[0] = "it does not build"
		}
		if n := len(broken.Errors) - len(errs) + broken.More; n > 0 {
			reasons[0] += fmt.Sprintf(" (%d errors)", n+len(errs))
		}
		return made{}, bisect.Untold(c, reasons, errs), nil
	case errors.As(err, &limit):
		return made{}, bisect.Untold(c, []string{limit.Error()}, nil), nil
	}
	return m, bisect.Step{}, err
}

// kernelMaker makes whole kernels, each of what that of the good end left.
type kernelMaker struct {
	dir  string
	good *gitrange.Tree
	tree *build.Tree
}

func (m *kernelMaker) files(ctx context.Context, commit string) (map[string][]byte, string, error) {
	t, err := gitrange.OpenTree(ctx, m.dir, commit)
	if err != nil {
		return nil, "", err
	}
	return t.Changes(ctx, m.good, try.Outside)
}

func (m *kernelMaker) make(ctx context.Context, b *build.Builder, changed map[string][]byte) (made, error) {
	k, err := b.Kernel(ctx, m.tree, changed)
	if err != nil {
		return made{}, err
	}
	return made{run: func(c *scenarios.Case) { onKernel(c, k.Path) }, kernel: k.Path, notes: k.Notes}, nil
}

// moduleMaker makes the driver's module for one kernel.
type moduleMaker struct {
	source *build.Source
	git    *gitrange.Bisection
}

func (m *moduleMaker) files(ctx context.Context, commit string) (map[string][]byte, string, error) {
	files, key, err := m.git.Files(ctx, commit)
	if err != nil {
		return nil, "", err
	}
	if files[path.Join(try.ModuleDir, "Makefile")] == nil {
		return nil, "", &gitrange.FilesError{Text: "it has no " + try.ModuleDir}
	}
	changed, err := m.whole(files)
	return changed, key, err
}

func (m *moduleMaker) make(ctx context.Context, b *build.Builder, changed map[string][]byte) (made, error) {
	k, err := b.Module(ctx, m.source, changed)
	if err != nil {
		return made{}, err
	}
	out := made{run: func(c *scenarios.Case) { withModule(c, k.Name, k.Path) }, module: k.Path}
	if n := len(k.Comparison.Differ); n > 0 {
		out.notes = []string{fmt.Sprintf("the kernel's own module, built the same way, differs from the distribution's in %d functions", n)}
	}
	return out, nil
}

// whole makes of a commit's files all that the module is built of: what else the kernel's source has there is removed.
func (m *moduleMaker) whole(files map[string][]byte) (map[string][]byte, error) {
	changed := map[string][]byte{}
	for name, content := range files {
		if m.source.Builds(name) {
			changed[name] = content
		}
	}
	for _, dir := range modulePaths {
		err := fs.WalkDir(m.source.FS(), dir, func(name string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) && name == dir {
				return nil
			}
			if err != nil || d.IsDir() {
				return err
			}
			if _, ok := files[name]; !ok && m.source.Builds(name) {
				changed[name] = nil
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return changed, nil
}

// show writes what there is to say while the bisection goes on; JSON is one object, at the end.
func (t *treeBisect) show(text string) error {
	if t.format == "json" {
		return nil
	}
	if _, err := io.WriteString(t.s.Out, text); err != nil {
		return outputError(err)
	}
	return nil
}

// writeLog leaves git's log where it was asked for.
func (t *treeBisect) writeLog(ctx context.Context) error {
	t.found.Log = t.git.Log()
	write := func(w io.Writer) error {
		_, err := io.WriteString(w, t.found.Log)
		return err
	}
	if t.log != "" {
		if err := writePage(ctx, t.log, write); err != nil {
			return fmt.Errorf("--log: %w", err)
		}
	}
	if t.out != "" {
		if err := replaceFile(filepath.Join(t.out, bisectLog), write); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	return nil
}

// end shows what the bisection came to. What was judged is shown, and kept, whatever ended it.
func (t *treeBisect) end(ctx context.Context, err error) error {
	var exit *exitError
	if errors.As(err, &exit) && exit.status == ExitUsage || err != nil && len(t.found.Steps) == 0 && t.format != "json" {
		return err
	}
	switch {
	case ctx.Err() != nil:
		t.found.Failed(errors.New("interrupted"))
	case err != nil:
		t.found.Failed(err)
	}
	t.found.Seconds = time.Since(t.began).Seconds()
	kept := t.writeLog(context.WithoutCancel(ctx)) // an interrupt is no reason to lose it
	if t.out != "" {
		kept = errors.Join(kept, t.keep())
	}
	if kept != nil {
		kept = &exitError{ExitError, kept}
	}
	switch {
	case t.format == "json":
		if e := report.JSON(t.s.Out, t.found); e != nil {
			return outputError(e)
		}
	default:
		if e := t.tail(t.s.Out); e != nil {
			return outputError(e)
		}
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case kept != nil:
		return errors.Join(kept, err)
	case err != nil:
		return err
	}
	return exitWith(t.found.Verdict.Status)
}

// tail is what stands behind the steps: the end, and in full the cases of an end that is not as it was said to be. Before both ends were judged nothing was shown.
func (t *treeBisect) tail(w io.Writer) error {
	tail := t.found.Tail
	if !t.begun {
		tail = t.found.Table
	}
	if err := tail(w); err != nil {
		return err
	}
	cases := t.found.EndCases()
	if len(cases) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return report.Table(w, result.Report{Cases: cases})
}

// keep leaves the bisection in --out.
func (t *treeBisect) keep() error {
	return errors.Join(
		replaceFile(filepath.Join(t.out, bisectFile), func(w io.Writer) error { return report.JSON(w, t.found) }),
		replaceFile(filepath.Join(t.out, bisectText), t.found.Table))
}
