package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/crypto/ssh"

	"irqlab/lab/foreign"
	"irqlab/lab/layout"
	"irqlab/lab/runner"
	"irqlab/scenarios"
)

func newShell(s Streams) *cobra.Command {
	var sf scenarioFlags
	var mf machineFlags
	var hold, during, out string
	cmd := &cobra.Command{
		Use:   "shell [SCENARIO]",
		Short: "Boot a scenario's VM with the function attached and give a terminal in it, or hold the device and give a prompt",
		Long: `shell boots the VM of the scenario's first case (default low-vcpu), attaches the function, and gives a terminal in it: root on a u-root system. The function is
not opened and no strategy applied: look around, load a driver (modprobe mana), write affinities, set channels (ethtool -L eth0 combined 2), pin a program (taskset).
What the kernel refuses to be written is said, and gives status 1. Commands may be piped in; the exit status is that of the last one. When the shell ends, so does the VM.

The guest has ethtool (-i, -S, -l, -L), modprobe, taskset, and cat, cp, dd, dmesg, find, grep, head, ip, kill, ls, lspci, lsmod, ps, sleep, sort, tail, tee, tr, uniq,
wc, xargs and the like: ls /bin shows all. It has no sed, awk or compiler: --package sed --package mawk brings them, or the host's edit what is printed
(echo cat /proc/interrupts | irqlab shell | awk …).

While it lasts, irqlab ssh NAME gives more shells and runs commands in the same VM, by the name that is shown here, as many as you like.

With --hold the kernel's driver is started and the device stands still at a step of the protocol (irqlab list steps; nth=N for another than its first occurrence), while the driver
is probed or does what --during says: any step that makes the device do something (up, down, set-channels, unload, reset-service …; what it needs before is done before). A prompt
lets you take CPUs offline, unplug them, look around and release the device; help tells what it takes. save FILE.yaml writes what you did as a scenario for irqlab run; --out DIR
leaves that, the timeline as a file and as a page, and the console. Lines may be piped in, one step each: they are shown before their answers, and the status tells only that the
prompt came to its end (irqlab help exit-status).`,
		Example: "  irqlab shell\n  irqlab shell device-node --device-node 1 --kernel debian:6.18\n  irqlab shell --hold request:QUERY_DEV_CONFIG --during reset-service\n" +
			"  irqlab shell --hold request:DESTROY_WQ_OBJ --during set-channels=2 --out held",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := mf.validate(); err != nil {
				return usageError(err)
			}
			held := cmd.Flags().Changed("hold")
			switch {
			case !held && cmd.Flags().Changed("during"):
				return usageError(errors.New("--during: says what leads to a hold; give --hold STEP, too"))
			case !held && cmd.Flags().Changed("out"):
				return usageError(errors.New("--out: keeps what is done at a hold's prompt; give --hold STEP, too"))
			case held && hold == "":
				return usageError(errors.New("--hold: it is empty; give a STEP (irqlab list steps)"))
			case out == "" && cmd.Flags().Changed("out"):
				return usageError(errors.New("--out: it is empty; give a new or empty directory"))
			}
			var at scenarios.Step
			if held {
				var err error
				if at, err = scenarios.ParseStep(scenarios.VerbHold + " " + hold); err != nil {
					return usageError(fmt.Errorf("--hold: %w", err))
				}
				if len(sf.drivers) == 0 {
					sf.drivers, sf.implied = []string{scenarios.DriverMana}, true // who else speaks the protocol?
				}
			}
			sf.bare = true
			cases, err := sf.plan(cmd.Context(), args, s)
			if err != nil {
				return err
			}
			c := &cases[0]
			trigger, before, err := scenarios.LeadUp(during, c)
			if held && err != nil {
				return usageError(fmt.Errorf("--during: %w", err))
			}
			if held {
				if err := scenarios.Reachable(at, c); err != nil {
					return usageError(fmt.Errorf("--hold: %w", err))
				}
			}
			if err := mf.checkBuild(cases[:1]); err != nil {
				return err
			}
			cache, err := mf.openCache(s)
			if err != nil {
				return err
			}
			p := newProgress(s.Err)
			o := runner.Options{Cache: cache, QEMU: mf.qemu, Accel: mf.accel, Start: mf.start, Keep: mf.keep, Progress: p.report}
			if held {
				h := &holdSession{s: s, driver: c.Driver, lines: newLines(s), first: at.Rule.Name}
				h.remarks = []string{"What somebody did in a session of irqlab shell, to be run again: irqlab run FILE", "It began with: " + shellCommand(cmd, args)}
				c.Kernel = absolute(c.Kernel)
				return h.run(cmd.Context(), c, o, p, out, at, trigger, before)
			}
			vm, err := runner.Boot(cmd.Context(), c, o)
			p.close()
			if err != nil {
				return labError(err)
			}
			fmt.Fprintf(s.Err, "%s, case %s: VM %s with kernel %s\n", foreign.Line(c.Scenario), foreign.Line(c.Name), vm.Process().Name(), foreign.Line(vm.Kernel.Release))
			err = vm.Share(cmd.Context())
			var client *ssh.Client
			if err == nil {
				client, err = vm.Access().Dial(cmd.Context())
			}
			if err == nil {
				err = session(cmd.Context(), client, s, "")
			}
			if context.Cause(cmd.Context()) != nil {
				err = context.Cause(cmd.Context())
			}
			return closing(vm, err)
		},
	}
	sf.register(cmd.Flags())
	mf.register(cmd.Flags())
	mf.registerBuild(cmd.Flags())
	cmd.Flags().StringVar(&hold, "hold", "", "hold the device at this `STEP` of the protocol, and give a prompt")
	cmd.Flags().StringVar(&during, "during", scenarios.VerbProbe, "what leads to the hold, a `STEP` of the experiment: probe, up, down, set-channels=2, unload, reset-service …")
	cmd.Flags().StringVar(&out, "out", "", "with --hold: new or empty `directory` for the session as a scenario, its timeline, page and console")
	return cmd
}

// run starts the case's VM, brings the driver to where the device stands still, and gives a prompt.
func (h *holdSession) run(ctx context.Context, c *scenarios.Case, o runner.Options, p *progress, out string, hold, trigger scenarios.Step, before []scenarios.Step) (err error) {
	defer p.close()
	if out != "" {
		release, err := claim(out)
		if err != nil {
			return err
		}
		defer release()
		o.Out = out
	}
	o.Status = func(st runner.Status) {
		if !h.led.Load() { // from then on the prompt tells
			p.report(st.Stage, 0, 0)
		}
	}
	se, err := runner.Open(ctx, c, o, h.stood)
	if err != nil {
		return labError(err)
	}
	h.se = se
	if err := se.VM().Share(ctx); err != nil {
		return closing(se, &exitError{ExitError, err})
	}
	p.report("waiting for the device to come to "+hold.Rule.Step, 0, 0)
	err = h.begin(ctx, hold, trigger, before)
	h.led.Store(true)
	p.pause()
	if err != nil {
		err = &exitError{ExitError, err}
	} else {
		h.say(fmt.Sprintf("kernel %s: %s has come to %s, and the device stands still. help tells what you can do.%s\n", foreign.Line(se.VM().Kernel.Release), trigger, hold.Rule.Step, h.hurry(hold.Rule.Step)))
		err = h.loop(ctx)
	}
	h.leaving.Store(true)
	if out == "" {
		return closing(se, err)
	}
	leftOut, kept := h.keep(out)
	if err = closing(se, err); exitStatus(err) == ExitError {
		return err
	}
	names, perr := page(context.WithoutCancel(ctx), out, se.Artifacts())
	if kept = errors.Join(kept, perr); kept != nil {
		return &exitError{ExitError, errors.Join(err, kept)}
	}
	text := fmt.Sprintf("irqlab: %s holds %s\n", foreign.Line(out), strings.Join(names, ", "))
	for _, what := range leftOut {
		text += fmt.Sprintf("irqlab: not in %s: %s\n", sessionFile, foreign.Line(what))
	}
	fmt.Fprint(h.s.Err, layout.Hang(text, h.lines.width()))
	return err
}

// shellCommand is how the session was begun, but for where its files went.
func shellCommand(cmd *cobra.Command, args []string) string {
	words := append([]string{"irqlab", "shell"}, args...)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		for _, v := range valuesOf(f) {
			if f.Name != "out" {
				words = append(words, "--"+f.Name+"="+v)
			}
		}
	})
	return strings.Join(words, " ")
}

// absolute is a kernel's SPEC that means the same in every directory.
func absolute(spec string) string {
	files := strings.Split(spec, ",")
	for i, file := range files {
		if _, err := os.Stat(file); err != nil {
			return spec
		}
		var err error
		if files[i], err = filepath.Abs(file); err != nil {
			return spec
		}
	}
	return strings.Join(files, ",")
}

// closing ends what a shell ran in. A VM that cannot be ended is the lab's error, whatever the shell's status was.
func closing(vm io.Closer, err error) error {
	if cerr := vm.Close(); cerr != nil {
		return &exitError{ExitError, errors.Join(err, fmt.Errorf("end of the VM: %w", cerr))}
	}
	return err
}
