package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"irqlab/devmodel/inject"
	"irqlab/guestagent/strategy"
	"irqlab/images"
	"irqlab/lab/foreign"
	"irqlab/scenarios"
	"irqlab/scenarios/nearest"
	"irqlab/scenarios/shape"
)

func newList(s Streams) *cobra.Command {
	var refresh bool
	topics := []string{"scenarios", "faults", "strategies", "kernels", "shapes", "steps"}
	show := map[string]func(cmd *cobra.Command) error{
		"scenarios":  func(*cobra.Command) error { return listScenarios(s.Out, scenarios.Shipped()) },
		"faults":     func(*cobra.Command) error { return listScenarios(s.Out, scenarios.Faults()) },
		"strategies": func(*cobra.Command) error { return listStrategies(s.Out) },
		"kernels":    func(cmd *cobra.Command) error { return listKernels(cmd, s, refresh) },
		"shapes":     func(*cobra.Command) error { return listShapes(s.Out) },
		"steps":      func(*cobra.Command) error { return listSteps(s.Out) },
	}
	cmd := &cobra.Command{
		Use:   "list [scenarios|faults|strategies|kernels|shapes|steps]",
		Short: "List what there is",
		Long: `list shows the shipped scenarios, the scenarios of the fault catalogue, the affinity strategies, the kernels, the machine shapes the scenarios use, and the steps
of experiments: the verbs a scenario is written in, and the steps of the protocol at which the device can be held or made to err. Without an argument it shows all of them.

A kernel is cached, fetchable, or incomplete: then the reason says what the mirror lacks. The list of fetchable kernels is the one of the last fetch or run;
--refresh asks the mirror.`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: topics,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				f := show[args[0]]
				if f == nil {
					return usageError(nearest.Unknown("list", args[0], topics))
				}
				return f(cmd)
			}
			var failed error // of one topic, which does not keep the others back
			for i, t := range topics {
				if i > 0 {
					fmt.Fprintln(s.Out)
				}
				fmt.Fprintln(s.Out, t+":")
				failed = errors.Join(failed, show[t](cmd))
			}
			return failed
		},
	}
	cmd.Flags().BoolVar(&refresh, "refresh", false, "kernels: ask the package mirror anew")
	return cmd
}

// plainTable is a table without lines, as kubectl prints them.
func plainTable(w io.Writer, header table.Row) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft = ""
	style.Box.PaddingRight = "   "
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	t.AppendHeader(header)
	return t
}

func listScenarios(w io.Writer, names []string) error {
	t := plainTable(w, table.Row{"name", "question"})
	for _, name := range names {
		sc, err := scenarios.Get(name)
		if err != nil {
			return err
		}
		t.AppendRow(table.Row{name, sc.Question})
	}
	t.Render()
	return nil
}

func listStrategies(w io.Writer) error {
	t := plainTable(w, table.Row{"name", "masks, in the order vectors are added"})
	for _, name := range strategy.Names() {
		t.AppendRow(table.Row{name, strategy.Describe(name)})
	}
	t.Render()
	return nil
}

func listKernels(cmd *cobra.Command, s Streams, refresh bool) error {
	cache, err := openCache(s)
	if err != nil {
		return err
	}
	p := newProgress(s.Err)
	defer p.close()
	if refresh {
		p.report("asking the package mirror", 0, 0)
	}
	kernels, err := cache.Kernels(cmd.Context(), refresh)
	p.pause()
	if errors.Is(err, images.ErrNoIndex) {
		fmt.Fprintln(s.Err, foreign.Text(err.Error()))
		return nil
	}
	if err != nil {
		return err
	}
	t := plainTable(s.Out, table.Row{"spec", "release", "suite", "state", "reason"})
	for _, k := range kernels {
		t.AppendRow(table.Row{k.Spec, k.Release, k.Suite, k.State, k.Reason})
	}
	t.Render()
	return nil
}

// listShapes shows the shapes that the shipped scenarios use; any other may be given to --shape.
func listShapes(w io.Writer) error {
	users := map[shape.Shape][]string{}
	var order []shape.Shape
	for _, name := range scenarios.Shipped() {
		sc, err := scenarios.Get(name)
		if err != nil {
			return err
		}
		cases, _, err := sc.Plan(scenarios.Overrides{})
		if err != nil {
			return err
		}
		for _, c := range cases {
			if users[c.Shape] == nil {
				order = append(order, c.Shape)
			}
			if u := users[c.Shape]; len(u) == 0 || u[len(u)-1] != name {
				users[c.Shape] = append(u, name)
			}
		}
	}
	t := plainTable(w, table.Row{"shape", "cpus", "used by"})
	for _, sh := range order {
		t.AppendRow(table.Row{sh, sh.CPUs(), strings.Join(users[sh], ", ")})
	}
	t.Render()
	return nil
}

// listSteps shows the verbs of scenarios' steps, and the steps of the protocol that they can be about.
func listSteps(w io.Writer) error {
	verbs := plainTable(w, table.Row{"verb", "driver", "what it does"})
	for _, v := range scenarios.Verbs() {
		verbs.AppendRow(table.Row{v.Form, cmp.Or(v.Driver, "any"), v.Text})
	}
	verbs.Render()
	fmt.Fprintln(w)
	steps := plainTable(w, table.Row{"protocol step", "what it is", "what can be done there"})
	for _, s := range inject.Steps() {
		actions := make([]string, len(s.Actions))
		for i, a := range s.Actions {
			actions[i] = string(a)
		}
		steps.AppendRow(table.Row{s.Name, s.Text, strings.Join(actions, " ")})
	}
	steps.Render()
	return nil
}
