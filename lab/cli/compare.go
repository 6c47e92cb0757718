package cli

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"irqlab/lab/report"
	"irqlab/scenarios"
)

// compareDefault is the scenario whose question is about two kernels.
const compareDefault = "low-vcpu-driver"

func newCompare(s Streams) *cobra.Command {
	var sf scenarioFlags
	var rf runFlags
	cmd := &cobra.Command{
		Use:   "compare --kernel A {--kernel B | --module NAME=FILE} [SCENARIO]",
		Short: "Run a scenario under two kernels, or with two builds of a module, and show what differs",
		Long: `compare runs every case of the scenario under both kernels, or under one as it is and with --module in place of its own, and sets the results side by side: where each vector was asked to be and where it came to be, the branch
the driver or strategy took, which CPUs have several queues and which have none, the outcome. The default scenario is ` + compareDefault + `.

Interrupt counts, IRQ numbers and durations are not compared: they differ from run to run. --format json gives both results and the list of differences.

Exit status: 0 every case ran on both sides, whatever differs and whatever was expected; 2 bad usage or input file; 125 a case could not be run; 130 interrupted.`,
		Example: `  irqlab compare --kernel debian:6.18 --kernel debian:7.3
  irqlab compare --kernel debian:6.18 --module mana=mana.ko
  irqlab compare --kernel git:~/linux@v6.18..v7.2
  irqlab compare --kernel debian:7.3 --kernel ~/linux --build vector-boundary --driver mana --format json`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: scenarios.Shipped(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := rf.validate(); err != nil {
				return usageError(err)
			}
			if err := rf.output(&s); err != nil {
				return err
			}
			var err error
			if sf.kernels, err = eachCommit(sf.kernels); err != nil {
				return err
			}
			modules := len(sf.modules) > 0 && len(sf.kernels) <= 1
			if !modules && (len(sf.kernels) != 2 || sf.kernels[0] == sf.kernels[1]) {
				return usageError(errors.New("two kernels are compared; name each with --kernel SPEC, or one, and what is to replace its own with --module"))
			}
			if len(args) == 0 {
				args = []string{compareDefault}
			}
			cases, err := sf.plan(cmd.Context(), args, s)
			if err != nil {
				return err
			}
			if modules {
				cases = withoutAndWith(cases)
			} else {
				paired := pairUp(cases, sf.kernels[0], sf.kernels[1])
				if len(paired) == 0 {
					return usageError(fmt.Errorf("no case of %s is for both kernels, so there is nothing to compare", args[0]))
				}
				if n := len(cases) - len(paired); n > 0 {
					s.say("%d cases are for one of the kernels only, and left out", n)
				}
				cases = paired
			}
			rep, err := rf.run(cmd.Context(), cases, s)
			if err != nil {
				return err
			}
			half := len(rep.Cases) / 2
			a, b := rep, rep
			a.Cases, b.Cases = rep.Cases[:half], rep.Cases[half:]
			c := report.Compare(a, b)
			render := report.CompareTable
			if rf.format == "json" {
				render = report.JSON
			}
			if err := render(s.Out, c); err != nil {
				return outputError(err)
			}
			return exitWith(report.CompareStatus(c))
		},
	}
	sf.register(cmd.Flags())
	rf.register(cmd.Flags())
	rf.registerBuild(cmd.Flags())
	return cmd
}

// withoutAndWith lists the cases twice: first as the kernels are, then in the same order with the modules that the cases name.
func withoutAndWith(cases []scenarios.Case) []scenarios.Case {
	without := slices.Clone(cases)
	with := slices.Clone(cases)
	for i := range cases {
		without[i].Name, without[i].Modules = without[i].Name+"/without", nil
		with[i].Name += "/with"
	}
	return append(without, with...)
}

// pairUp lists the cases that both kernels have, first all of a, then as many of b in the same order.
func pairUp(cases []scenarios.Case, a, b string) []scenarios.Case {
	var first, second []scenarios.Case
	taken := make([]bool, len(cases))
	for _, x := range cases {
		if x.Kernel != a {
			continue
		}
		i := slices.IndexFunc(cases, func(y scenarios.Case) bool { return y.Kernel == b && y.Setup() == x.Setup() })
		for ; i >= 0 && i < len(cases); i++ {
			if y := cases[i]; !taken[i] && y.Kernel == b && y.Setup() == x.Setup() {
				taken[i] = true
				first, second = append(first, x), append(second, y)
				break
			}
		}
	}
	return append(first, second...)
}
