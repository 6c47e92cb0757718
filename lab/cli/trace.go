package cli

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"irqlab/devmodel/trace"
	"irqlab/lab/foreign"
	"irqlab/scenarios/nearest"
)

func newTrace(s Streams) *cobra.Command {
	var kinds []string
	var format string
	cmd := &cobra.Command{
		Use:   "trace FILE",
		Short: "Print a function's timeline readably",
		Long: `trace prints the timeline that run --out leaves as trace.jsonl and device --trace writes: what the driver wrote and asked, what the device answered, posted and
fired, and the lab's own steps. FILE may be - for standard input.

Each line has the seconds since the case began (of device --trace: since the device was made), those since the line before, the event's kind, its text and its
numbers. --format json gives the lines of the kinds asked for as they are in the file. irqlab timeline shows the same together with what the guest logged.`,
		Example: `  irqlab trace results/low-vcpu-driver/fixed/trace.jsonl
  irqlab trace trace.jsonl --kind hwc-request --kind hwc-response
  irqlab trace trace.jsonl --kind vector-fire --format json | jq .vector`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return usageError(err)
			}
			in := s.In
			if args[0] != "-" {
				f, err := openInput(cmd.Context(), args[0])
				if err != nil {
					return usageError(err)
				}
				defer f.Close()
				in = f
			}
			events, cut, err := readTrace(args[0], untilDone(cmd.Context(), in))
			if err != nil {
				return usageError(err)
			}
			if cut {
				s.say("%s: the last line is cut short and left out", args[0])
			}
			if events, err = ofKinds(events, kinds); err != nil {
				return usageError(fmt.Errorf("--kind: %w", err))
			}
			if len(events) == 0 && len(kinds) > 0 {
				s.say("%s: no event of kind %s", args[0], strings.Join(kinds, ", "))
			}
			print := traceTable
			if format == "json" {
				print = traceLines
			}
			if err := print(cmd.Context(), s.Out, events); err != nil {
				return outputError(err)
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&kinds, "kind", nil, "show events of this `KIND` only; may be repeated")
	cmd.Flags().StringVar(&format, "format", "table", "`table` or json (one object a line)")
	return cmd
}

// traceEvent is one line of a timeline.
type traceEvent struct {
	trace.Line
	line []byte // as it is, without its newline
}

func readTrace(name string, r io.Reader) (events []traceEvent, cut bool, err error) {
	cut, err = trace.ReadLines(name, r, func(line []byte) error {
		l, err := trace.ParseLine(line)
		if err == nil {
			events = append(events, traceEvent{l, bytes.Clone(line)})
		}
		return err
	})
	return events, cut, err
}

// ofKinds keeps the events of some kinds; none named: of all. A kind is known that this program declares or that the timeline has, be it another version's.
func ofKinds(events []traceEvent, kinds []string) ([]traceEvent, error) {
	if len(kinds) == 0 {
		return events, nil
	}
	known := map[string]bool{}
	for _, k := range trace.Kinds() {
		known[k.Name()] = true
	}
	for _, e := range events {
		known[e.Kind] = true
	}
	for _, k := range kinds {
		if !known[k] {
			return nil, nearest.Unknown("kind", k, slices.Sorted(maps.Keys(known)))
		}
	}
	return slices.DeleteFunc(events, func(e traceEvent) bool { return !slices.Contains(kinds, e.Kind) }), nil
}

func traceTable(ctx context.Context, w io.Writer, events []traceEvent) error {
	at, kind := len("seconds"), len("kind")
	for _, e := range events {
		at = max(at, len(seconds(e.T)))
		kind = max(kind, len(e.Kind))
	}
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "%*s  %12s  %-*s  %s\n", at, "seconds", "+", kind, "kind", "event")
	for i, e := range events {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		since := ""
		if i > 0 {
			since = seconds(e.T - events[i-1].T)
		}
		fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("%*s  %12s  %-*s  %s", at, seconds(e.T), since, kind, foreign.Line(e.Kind), e.describe()), " "))
	}
	return out.Flush()
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 6, 64) }

func (e *traceEvent) describe() string { return foreign.Line(trace.Describe(e.Text, e.Fields)) }

// traceLines writes the events as they are in the file.
func traceLines(ctx context.Context, w io.Writer, events []traceEvent) error {
	out := bufio.NewWriter(w)
	for _, e := range events {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		out.Write(e.line) // an error stays with the writer until Flush
		out.WriteByte('\n')
	}
	return out.Flush()
}
