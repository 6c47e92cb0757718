package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"

	"github.com/spf13/cobra"

	"irqlab/lab/foreign"
	"irqlab/lab/runner"
	"irqlab/scenarios"
	"irqlab/scenarios/nearest"
)

func newShell(s Streams) *cobra.Command {
	var sf scenarioFlags
	var mf machineFlags
	var hold, during string
	cmd := &cobra.Command{
		Use:   "shell [SCENARIO]",
		Short: "Boot a scenario's VM with the function attached and give a terminal in it, or hold the device and give a prompt",
		Long: `shell boots the VM of the scenario's first case (default low-vcpu), attaches the function, and gives a terminal in it: root on a u-root system. The function is
not opened and no strategy applied: look around, load a driver (modprobe mana), write affinities, set channels (ethtool -L eth0 combined 2), pin a program (taskset).
What the kernel refuses to be written is said, and gives status 1. Commands may be piped in; the exit status is that of the last one. When the shell ends, so does the VM.

The guest has ethtool (-i, -S, -l, -L), modprobe, taskset, and cat, cp, dd, dmesg, find, grep, head, ip, kill, ls, lspci, lsmod, ps, sleep, sort, tail, tee, tr, uniq,
wc, xargs and the like: ls /bin shows all. It has no sed, awk or compiler: what is printed, the host's can edit (echo cat /proc/interrupts | irqlab shell | awk …).

A guest has one seat for people, which this shell takes: irqlab ssh waits for it. Run what is to go on beside it in the background (COMMAND &), or use --hold, which takes none.

With --hold the kernel's driver is started and the device stands still at a step of the protocol (irqlab list steps; nth=N for another than its first occurrence), while the driver
is probed or, with --during, brings its link up or is reset. A prompt lets you take CPUs offline, unplug them, look around and release the device; help tells what it takes.`,
		Example: "  irqlab shell\n  irqlab shell device-node --device-node 1 --kernel debian:6.18\n  irqlab shell --hold request:QUERY_DEV_CONFIG --during reset-service",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := mf.validate(); err != nil {
				return usageError(err)
			}
			switch held := cmd.Flags().Changed("hold"); {
			case !held && cmd.Flags().Changed("during"):
				return usageError(errors.New("--during: says what leads to a hold; give --hold STEP, too"))
			case !slices.Contains(durings, during):
				return usageError(fmt.Errorf("--during: %w", nearest.Unknown("word", during, durings)))
			case held && hold == "":
				return usageError(errors.New("--hold: it is empty; give a STEP (irqlab list steps)"))
			case held:
				if _, err := scenarios.ParseStep(scenarios.VerbHold + " " + hold); err != nil {
					return usageError(fmt.Errorf("--hold: %w", err))
				}
				if len(sf.drivers) == 0 {
					sf.drivers = []string{scenarios.DriverMana} // who else speaks the protocol?
				}
			}
			cases, err := sf.plan(cmd.Context(), args, s)
			if err != nil {
				return err
			}
			cache, err := openCache(s)
			if err != nil {
				return err
			}
			p := newProgress(s.Err)
			o := runner.Options{Cache: cache, QEMU: mf.qemu, Accel: mf.accel, Start: mf.start, Keep: mf.keep, Progress: p.report}
			if hold != "" {
				return holdAt(cmd.Context(), &cases[0], o, s, p, hold, during)
			}
			vm, err := runner.Boot(cmd.Context(), &cases[0], o)
			p.close()
			if err != nil {
				return labError(err)
			}
			fmt.Fprintf(s.Err, "%s, case %s: VM %s with kernel %s\n", foreign.Line(cases[0].Scenario), foreign.Line(cases[0].Name), vm.Process().Name(), foreign.Line(vm.Kernel.Release))
			client, err := vm.Access().Dial(cmd.Context())
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
	cmd.Flags().StringVar(&hold, "hold", "", "hold the device at this `STEP` of the protocol, and give a prompt")
	cmd.Flags().StringVar(&during, "during", scenarios.VerbProbe, "what leads to the hold: `probe`, up or reset-service")
	return cmd
}

// holdAt starts the case's VM, brings the driver to where the device stands still, and gives a prompt.
func holdAt(ctx context.Context, c *scenarios.Case, o runner.Options, s Streams, p *progress, hold, during string) error {
	var led atomic.Bool // from then on the prompt tells
	o.Status = func(st runner.Status) {
		if !led.Load() {
			p.report(st.Stage, 0, 0)
		}
	}
	se, err := runner.Open(ctx, c, o)
	if err != nil {
		p.close()
		return labError(err)
	}
	h := &holdSession{s: s, se: se, lines: newLines(s)}
	p.report("waiting for the device to come to "+hold, 0, 0)
	err = h.begin(ctx, hold, during)
	led.Store(true)
	p.close()
	if err != nil {
		err = &exitError{ExitError, err}
	} else {
		h.lines.print(fmt.Sprintf("kernel %s: %s has come to %s, and the device stands still. help tells what you can do.\n", se.VM().Kernel.Release, during, hold))
		err = h.loop(ctx)
	}
	return closing(se, err)
}

// closing ends what a shell ran in. A VM that cannot be ended is the lab's error, whatever the shell's status was.
func closing(vm io.Closer, err error) error {
	if cerr := vm.Close(); cerr != nil {
		return &exitError{ExitError, errors.Join(err, fmt.Errorf("end of the VM: %w", cerr))}
	}
	return err
}
