package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"irqlab/lab/runner"
)

func newShell(s Streams) *cobra.Command {
	var sf scenarioFlags
	var mf machineFlags
	cmd := &cobra.Command{
		Use:   "shell [SCENARIO]",
		Short: "Boot a scenario's VM with the function attached and give a terminal in it",
		Long: `shell boots the VM of the scenario's first case (default low-vcpu), attaches the function, and gives a terminal in it: root on a u-root system. The function is
not opened and no strategy applied: look around, load a driver, write affinities. When the shell ends, so does the VM.

Other terminals may reach it meanwhile: irqlab ssh NAME.`,
		Example: "  irqlab shell\n  irqlab shell device-node --device-node 1 --kernel debian:6.18",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := mf.validate(); err != nil {
				return usageError(err)
			}
			cases, err := sf.plan(args, s)
			if err != nil {
				return err
			}
			cache, err := openCache(s)
			if err != nil {
				return err
			}
			p := newProgress(s.Err)
			vm, err := runner.Boot(cmd.Context(), &cases[0], runner.Options{
				Cache: cache, QEMU: mf.qemu, Accel: mf.accel, Start: mf.start, Keep: mf.keep, Progress: p.report,
			})
			p.close()
			if err != nil {
				return &exitError{ExitError, err}
			}
			fmt.Fprintf(s.Err, "%s, case %s: VM %s with kernel %s; from another terminal: irqlab ssh %s\n",
				cases[0].Scenario, cases[0].Name, vm.Process().Name(), vm.Kernel.Release, vm.Process().Name())
			client, err := vm.Access().Dial(cmd.Context())
			if err == nil {
				err = session(cmd.Context(), client, s, "")
			}
			if context.Cause(cmd.Context()) != nil {
				err = context.Cause(cmd.Context())
			}
			return errors.Join(err, vm.Close())
		},
	}
	sf.register(cmd.Flags())
	mf.register(cmd.Flags())
	return cmd
}
