package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"irqlab/devmodel/inject"
	"irqlab/guestagent/strategy"
	"irqlab/images"
	"irqlab/lab/foreign"
	"irqlab/lab/layout"
	"irqlab/scenarios"
	"irqlab/scenarios/nearest"
	"irqlab/scenarios/shape"
)

func newList(s Streams) *cobra.Command {
	var refresh bool
	topics := []string{"scenarios", "faults", "strategies", "kernels", "shapes", "steps"}
	topic := map[string]func(cmd *cobra.Command) error{
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
				f := topic[args[0]]
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
				failed = errors.Join(failed, topic[t](cmd))
			}
			return failed
		},
	}
	cmd.Flags().BoolVar(&refresh, "refresh", false, "kernels: ask the package mirror anew")
	return cmd
}

// listed is a table without lines, with a header as kubectl's.
func listed(header ...string) layout.Table {
	for i, h := range header {
		header[i] = strings.ToUpper(h)
	}
	return layout.Table{Header: header, Gap: 3}
}

// show writes a table as wide as the output is.
func show(w io.Writer, t layout.Table) { fmt.Fprint(w, t.Render(layout.Columns(w))) }

// entry writes what is too long for a table: a line, and indented under it what there is to say of it.
func entry(w io.Writer, head, text string) {
	fmt.Fprintf(w, "%s\n%s\n", layout.Wrap(head, layout.Columns(w), "  "), layout.Wrap("    "+text, layout.Prose(w), "    "))
}

func listScenarios(w io.Writer, names []string) error {
	t := listed("name", "question")
	for _, name := range names {
		sc, err := scenarios.Get(name)
		if err != nil {
			return err
		}
		t.Rows = append(t.Rows, []string{name, sc.Question})
	}
	show(w, t)
	return nil
}

func listStrategies(w io.Writer) error {
	t := listed("name", "masks, in the order vectors are added")
	for _, name := range strategy.Names() {
		t.Rows = append(t.Rows, []string{name, strategy.Describe(name)})
	}
	t.Rows = append(t.Rows, []string{scenarios.MasksForm, "the masks given, a CPU list for each queue vector; in a file strategy: {masks: [CPUS, CPUS, …]}"})
	show(w, t)
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
	writeKernels(s.Out, kernels)
	return nil
}

func writeKernels(w io.Writer, kernels []images.KernelInfo) {
	flavour := commonEnd(kernels)
	t := listed("spec", "release", "state", "suite")
	var incomplete strings.Builder
	for _, k := range kernels {
		t.Rows = append(t.Rows, []string{k.Spec, strings.TrimSuffix(k.Release, flavour), string(k.State), k.Suite})
		if k.Reason != "" {
			fmt.Fprintf(&incomplete, "  %s: %s\n", k.Spec, foreign.Line(k.Reason))
		}
	}
	show(w, t)
	if flavour != "" {
		fmt.Fprintf(w, "\nEach release ends in %s, which is left out here.\n", flavour)
	}
	if incomplete.Len() > 0 {
		fmt.Fprint(w, "\nIncomplete:\n"+layout.Wrap(incomplete.String(), layout.Columns(w), "    "))
	}
}

// commonEnd is what the releases of several kernels all end with from a hyphen on, such as "-cloud-amd64".
func commonEnd(kernels []images.KernelInfo) string {
	if len(kernels) < 2 {
		return ""
	}
	end := kernels[0].Release
	for _, k := range kernels[1:] {
		for !strings.HasSuffix(k.Release, end) {
			end = end[1:]
		}
	}
	if i := strings.IndexByte(end, '-'); i >= 0 {
		return end[i:]
	}
	return ""
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
	for _, sh := range order {
		entry(w, fmt.Sprintf("%s: %d CPUs", sh, sh.CPUs()), strings.Join(users[sh], ", "))
	}
	return nil
}

// listSteps shows the verbs of scenarios' steps, and the steps of the protocol that they can be about.
func listSteps(w io.Writer) error {
	fmt.Fprintln(w, "Verbs of a scenario's steps (those for one driver only say which):")
	for _, v := range scenarios.Verbs() {
		head := v.Form
		if v.Driver != "" {
			head += "   (" + v.Driver + ")"
		}
		entry(w, head, v.Text)
	}
	var t layout.Table
	steps := inject.Steps()
	for i, s := range steps {
		what, code, coded := strings.Cut(s.Text, " (code ") // of the many requests and answers, all that differs
		said := s.Text
		if coded {
			said = "code " + strings.TrimSuffix(code, ")")
		}
		t.Rows = append(t.Rows, []string{"  " + s.Name, said})
		if i+1 < len(steps) {
			next, _, nextCoded := strings.Cut(steps[i+1].Text, " (code ")
			if slices.Equal(steps[i+1].Actions, s.Actions) && coded == nextCoded && (!coded || what == next) {
				continue
			}
		}
		actions := make([]string, len(s.Actions))
		for k, a := range s.Actions {
			actions[k] = string(a)
		}
		head := "Steps of the protocol"
		if coded {
			head += ": " + what
		}
		head += "; possible there: " + strings.Join(actions, ", ")
		fmt.Fprintln(w, "\n"+layout.Wrap(head, layout.Columns(w), "  "))
		show(w, t)
		t.Rows = nil
	}
	return nil
}
