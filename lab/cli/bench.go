package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"irqlab/lab"
	"irqlab/lab/bench"
	"irqlab/lab/layout"
	"irqlab/lab/report"
	"irqlab/scenarios"
	"irqlab/scenarios/nearest"
)

func newBench(s Streams) *cobra.Command {
	var o bench.Options
	mf := machineFlags{start: lab.StartAuto}
	var format, cmdline string
	cmd := &cobra.Command{
		Use:   "bench [MEASURE…]",
		Short: "Measure boots, forks and whole runs on this machine, beside a bare QEMU boot",
		Long: `bench measures what irqlab costs on this machine: a cold boot, a snapshot, a fork, whole runs of the command, a matrix, memory, and round trips. In the same run it boots the
same kernel under QEMU with nothing of irqlab's, and has it power off at once: ratios between the two carry over to other machines, seconds do not.

MEASURE is one or more of ` + strings.Join(bench.Names(), ", ") + `; the default is all. What is measured together (bare boots and runs; all of a fork) stays together.

A warm run's snapshot is made before anything is timed. Leave the machine alone meanwhile: the table tells its load before and after.`,
		Example:   "  irqlab bench\n  irqlab bench run-vfio bare-boot --rounds 9 --format json",
		ValidArgs: bench.Names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return usageError(err)
			}
			if err := mf.validate(); err != nil {
				return usageError(err)
			}
			if err := writable(s.Out); err != nil {
				return outputError(err)
			}
			if o.Rounds < 1 {
				return usageError(fmt.Errorf("--rounds: %d is out of range; allowed: 1 or more", o.Rounds))
			}
			words, err := scenarios.ParseCmdline(cmdline)
			if err != nil {
				return usageError(fmt.Errorf("--cmdline: %w", err))
			}
			cache, err := openCache(s)
			if err != nil {
				return err
			}
			exe, err := os.Executable()
			if err != nil {
				return &exitError{ExitError, err}
			}
			p := newProgress(s.Err)
			o.Cache, o.Command, o.QEMU, o.Accel, o.Only, o.Cmdline, o.Progress = cache, []string{exe}, mf.qemu, mf.accel, args, words, p.report
			rep, err := bench.Run(cmd.Context(), o)
			p.close()
			var unknown *bench.UnknownError
			switch {
			case errors.As(err, &unknown):
				return usageError(nearest.Unknown("measure", unknown.Name, bench.Names()))
			case err != nil && len(rep.Measures) == 0:
				return labError(err)
			}
			render := benchTable
			if format == "json" {
				render = report.JSON
			}
			if rerr := render(s.Out, rep); rerr != nil {
				return outputError(errors.Join(rerr, err))
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				return &exitError{ExitError, err}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&o.Kernel, "kernel", "", "kernel `SPEC`, as for run")
	cmd.Flags().StringVar(&cmdline, "cmdline", "", "words (`WORDS`) added to every guest kernel's command line, the bare one's too")
	cmd.Flags().IntVar(&o.Rounds, "rounds", bench.DefaultRounds, "how often each thing is measured (`N`); medians are shown")
	cmd.Flags().StringVar(&format, "format", "table", "`table` or json")
	mf.registerQEMU(cmd.Flags())
	return cmd
}

func benchTable(w io.Writer, r bench.Report) error {
	var b strings.Builder
	columns := layout.Columns(w)
	b.WriteString(layout.Wrap(fmt.Sprintf("kernel %s, %s, %s, QEMU %s, %d host CPUs, load %.1f before and %.1f after", r.Kernel, r.Shape, r.Host.Accel, r.Host.QEMU,
		r.Host.CPUs, r.Host.LoadBefore, r.Host.LoadAfter), columns, "  ") + "\n\n")
	t := listed("measure", "median", "min", "max", "unit", "times", "what")
	t.Gap, t.Right = 2, []int{1, 2, 3, 5}
	for _, m := range r.Measures {
		t.Rows = append(t.Rows, []string{m.Name, figure(m.Median), figure(m.Min), figure(m.Max), m.Unit, strconv.Itoa(len(m.Values)), m.What})
	}
	b.WriteString(t.Render(columns))
	for _, x := range r.Ratios {
		fmt.Fprintf(&b, "\n%s / %s = %.2f (1/%.1f)", x.Of, x.To, x.Value, 1/x.Value)
	}
	b.WriteString("\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// figure is a number with three digits that count.
func figure(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
