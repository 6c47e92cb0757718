// Package cli is the irqlab command: flags in, exit status out. It holds no logic of its own beyond turning words into calls of the packages below it;
// results go to standard output, everything else to standard error.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"irqlab/docs"
	"irqlab/images"
	"irqlab/lab"
	"irqlab/lab/foreign"
	"irqlab/lab/layout"
	"irqlab/scenarios/nearest"
)

// Exit statuses, the same of every command.
const (
	ExitPass        = 0
	ExitFail        = 1   // what was looked at is not as it ought to be: a case, an entry of the cache, this machine
	ExitUsage       = 2   // bad usage or input
	ExitError       = 125 // irqlab could not tell, or could not do it
	ExitInterrupted = 130
)

// Streams are the command's standard streams.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// say tells the user something that is no result. Only a terminal's lines are broken: a log is searched for what it says.
func (s Streams) say(format string, args ...any) {
	text := foreign.Text("irqlab: " + fmt.Sprintf(format, args...))
	if layout.IsTerminal(s.Err) {
		text = layout.Wrap(text, layout.Columns(s.Err), "  ")
	}
	fmt.Fprintln(s.Err, text)
}

// exitError carries an exit status with the error to print; a nil err prints nothing.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usageError(err error) error { return &exitError{ExitUsage, err} }

// labError is the end of what took a kernel: bad input if it is the SPEC that is wrong, or a module or package that was given with it, else the lab's own failure.
func labError(err error) error {
	var bad *images.BadKernelError
	var module *images.BadModuleError
	var packages *images.BadPackagesError
	if errors.As(err, &bad) || errors.As(err, &module) || errors.As(err, &packages) {
		return usageError(err)
	}
	return &exitError{ExitError, err}
}

// Main runs the command with the process's arguments and streams and returns its exit status. Interrupt and SIGTERM cancel what is under way, which then cleans up;
// a second one kills at once.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	// A write to a pipe whose reader has gone is to fail, not to end the process where it stands. What is started from here does not inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return Run(ctx, os.Args[1:], Streams{os.Stdin, standardOutput(os.Stdout), os.Stderr})
}

// Run runs the command with the given arguments.
func Run(ctx context.Context, args []string, s Streams) int {
	out := &checkedWriter{Writer: s.Out}
	s.Out = out
	root := newRoot(s)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var exit *exitError
	if out.err != nil && ctx.Err() == nil { // whatever else there is to say, it was not told
		switch told := errors.Is(err, out.err); {
		case !told:
			err = outputError(errors.Join(out.err, err))
		case !errors.As(err, &exit):
			err = outputError(err)
		}
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		s.say("interrupted")
		return ExitInterrupted
	case !errors.As(err, &exit):
		s.say("%s", err)
	case exit.err != nil:
		s.say("%s", exit.err)
	}
	if bisecting(args) {
		return bisectStatus(err)
	}
	return exitStatus(err)
}

// exitStatus is the status that a command's error ends it with. An error that nobody gave one is the lab's: to fail is a verdict, which is never reached by chance.
func exitStatus(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return ExitPass
	case errors.As(err, &exit):
		return exit.status
	}
	return ExitError
}

func newRoot(s Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "irqlab",
		Short: "See on which CPU each interrupt vector of a network function effectively lands",
		Long: `irqlab boots a Linux kernel under QEMU in an exact CPU and NUMA shape, gives it a MANA network function that irqlab models in user space, applies an
interrupt affinity strategy, and reports on which CPU each of the function's MSI-X vectors effectively lands.

Nothing is installed and no root is needed. QEMU and kernels are fetched on first use into a cache ($IRQLAB_CACHE, else irqlab in your cache directory).

Exit status: 0 all is well; 1 what was looked at is not as it ought to be; 2 bad usage or input; 125 irqlab could not tell, or could not do it; 130 interrupted
(irqlab help exit-status).`,
		Example: `  irqlab run                                        # the default scenario: three strategies on 4 vCPUs
  irqlab run low-vcpu --strategy linear --format json
  irqlab run vector-boundary --kernel ~/linux       # a kernel build tree
  irqlab doctor                                     # can this machine do it?`,
		Version:                    lab.Version(),
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
		Args:                       cobra.NoArgs,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { fmt.Fprint(s.Out, helpText(cmd, layout.Prose(s.Out))) })
	root.SetFlagErrorFunc(suggestFlag)
	root.AddCommand(
		newRun(s), newList(s), newDoctor(s), newFetch(s), newCache(s), newShell(s), newSSH(s), newExec(s), newProxy(s), newDevice(s), newTrace(s), newTimeline(s), newCompare(s), newTry(s), newTreeBisect(s), newBench(s),
		&cobra.Command{Use: "exit-status", Short: "What each exit status means: to a shell, to CI, to git bisect", Long: strings.TrimSpace(docs.ExitStatus)},
	)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "help" {
			cmd.RunE, cmd.Run = help, nil
			continue
		}
		checkUsage(cmd)
	}
	root.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return usageError(nearest.Unknown("command", args[0], names(cmd.Commands())))
	}
	return root
}

// checkUsage gives a command's and its children's complaints about arguments the status of bad usage.
func checkUsage(cmd *cobra.Command) {
	if cmd.IsAdditionalHelpTopicCommand() {
		return
	}
	if !cmd.Runnable() { // of which cobra would show the help before it looks at the arguments
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	if args := cmd.Args; args != nil {
		cmd.Args = func(cmd *cobra.Command, a []string) error {
			if err := args(cmd, a); err != nil {
				return usageError(fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath()))
			}
			return nil
		}
	}
	for _, child := range cmd.Commands() {
		checkUsage(child)
	}
}

// help is cobra's own, but for a topic that there is not being bad usage.
func help(cmd *cobra.Command, args []string) error {
	topic, rest, err := cmd.Root().Find(args)
	if err != nil || topic == nil {
		return usageError(nearest.Unknown("command", strings.Join(args, " "), names(cmd.Root().Commands())))
	}
	if len(rest) > 0 && topic.HasSubCommands() {
		return usageError(nearest.Unknown("command", strings.Join(args, " "), paths(topic)))
	}
	topic.InitDefaultHelpFlag()
	return topic.Help()
}

// paths are the words that name a command's children, its own included.
func paths(cmd *cobra.Command) []string {
	l := names(cmd.Commands())
	for i, name := range l {
		l[i] = strings.TrimPrefix(cmd.CommandPath()+" "+name, cmd.Root().Name()+" ")
	}
	return l
}

func names(cmds []*cobra.Command) []string {
	var l []string
	for _, c := range cmds {
		if c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand() {
			l = append(l, c.Name())
		}
	}
	return l
}

// suggestFlag makes bad usage of pflag's complaint, and adds the nearest flag's name to one about an unknown flag.
func suggestFlag(cmd *cobra.Command, err error) error {
	word, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !ok {
		return usageError(fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath()))
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
	err = nearest.Unknown("flag", "--"+word, flags)
	if nearest.Name("--"+word, flags) == bisectFlag { // the slip must not make a verdict of bad usage
		return &exitError{ExitStop, err}
	}
	return usageError(err)
}

// openCache opens the image cache; what it warns of goes to standard error.
func openCache(s Streams) (*images.Cache, error) {
	c, err := images.OpenCache("")
	if err != nil {
		return nil, &exitError{ExitError, err}
	}
	c.Warn = func(warning string) { s.say("warning: %s", warning) }
	c.Build = newKernelBuilder(c, s, false).build
	return c, nil
}
