package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

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

Each line has the seconds since the device was made, those since the line before, the event's kind, its text and its numbers. --format json gives the lines of the
kinds asked for as they are in the file.`,
		Example: `  irqlab trace results/low-vcpu-driver/fixed/trace.jsonl
  irqlab trace trace.jsonl --kind hwc-request --kind hwc-response
  irqlab trace trace.jsonl --kind vector-fire --format json | jq .vector`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if format != "table" && format != "json" {
				return usageError(fmt.Errorf("--format: %w", nearest.Unknown("format", format, []string{"table", "json"})))
			}
			in := s.In
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return usageError(err)
				}
				defer f.Close()
				in = f
			}
			events, cut, err := readTrace(args[0], in)
			if err != nil {
				return usageError(err)
			}
			if cut {
				fmt.Fprintf(s.Err, "irqlab: %s: the last line is cut short and left out\n", args[0])
			}
			if events, err = ofKinds(events, kinds); err != nil {
				return usageError(fmt.Errorf("--kind: %w", err))
			}
			print := traceTable
			if format == "json" {
				print = traceLines
			}
			if err := print(s.Out, events); err != nil {
				return &exitError{ExitError, fmt.Errorf("standard output: %w", err)}
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
	at     time.Duration
	kind   string
	text   string
	fields []traceField // in the order of the line
	line   []byte       // as it is, without its newline
}

type traceField struct{ name, value string }

// readTrace reads a timeline. A damaged line is an error that names it, but for a last one that lacks its end, which a writer that was killed leaves: that is cut.
func readTrace(name string, r io.Reader) (events []traceEvent, cut bool, err error) {
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, false, fmt.Errorf("%s: %w", name, err)
		}
		whole := err == nil
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		if len(bytes.TrimSpace(line)) > 0 {
			e, perr := parseTraceLine(line)
			switch {
			case perr == nil:
				events = append(events, e)
			case whole:
				return nil, false, fmt.Errorf("%s:%d: not a line of a timeline: %w", name, n, perr)
			default:
				return events, true, nil
			}
		}
		if !whole {
			return events, false, nil
		}
	}
}

// parseTraceLine reads one JSON object of a timeline and keeps the order of its fields.
func parseTraceLine(line []byte) (traceEvent, error) {
	e := traceEvent{line: line}
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return e, orElse(err, errors.New("want one JSON object"))
	}
	timed := false
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return e, err
		}
		key := t.(string) // an object's keys are strings, or Token fails
		value, err := d.Token()
		if err != nil {
			return e, err
		}
		number, isNumber := value.(json.Number)
		text, isText := value.(string)
		switch {
		case key == "t" && isNumber:
			ns, err := number.Int64()
			if err != nil {
				return e, fmt.Errorf("t: %w", err)
			}
			e.at, timed = time.Duration(ns), true
		case key == "kind" && isText && text != "":
			e.kind = text
		case key == "text" && isText:
			e.text = text
		case key == "t" || key == "kind" || key == "text":
			return e, fmt.Errorf("%s: %v is not what belongs there", key, value)
		case isNumber:
			e.fields = append(e.fields, traceField{key, readable(key, number.String())})
		case isText:
			e.fields = append(e.fields, traceField{key, strconv.Quote(text)})
		default:
			return e, fmt.Errorf("%s: want a number or a string", key)
		}
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return e, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return e, errors.New("something follows the object")
	}
	if !timed || e.kind == "" {
		return e, errors.New("it has no t or no kind")
	}
	return e, nil
}

func orElse(err, other error) error {
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return other
}

// hexFields are numbers that are addresses, sizes of memory or registers.
var hexFields = []string{"details", "header", "iova", "offset", "register", "size", "value"}

func readable(name, number string) string {
	if n, err := strconv.ParseUint(number, 10, 64); err == nil && n > 9 && slices.Contains(hexFields, name) {
		return "0x" + strconv.FormatUint(n, 16)
	}
	return number
}

// ofKinds keeps the events of some kinds; none named: of all.
func ofKinds(events []traceEvent, kinds []string) ([]traceEvent, error) {
	if len(kinds) == 0 {
		return events, nil
	}
	have := map[string]bool{}
	for _, e := range events {
		have[e.kind] = true
	}
	for _, k := range kinds {
		if !have[k] {
			return nil, nearest.Unknown("kind in this timeline", k, slices.Sorted(maps.Keys(have)))
		}
	}
	return slices.DeleteFunc(events, func(e traceEvent) bool { return !slices.Contains(kinds, e.kind) }), nil
}

func traceTable(w io.Writer, events []traceEvent) error {
	at, kind := len("seconds"), len("kind")
	for _, e := range events {
		at = max(at, len(seconds(e.at)))
		kind = max(kind, len(e.kind))
	}
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "%*s  %12s  %-*s  %s\n", at, "seconds", "+", kind, "kind", "event")
	for i, e := range events {
		since := ""
		if i > 0 {
			since = seconds(e.at - events[i-1].at)
		}
		fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("%*s  %12s  %-*s  %s", at, seconds(e.at), since, kind, printable(e.kind), e.describe()), " "))
	}
	return out.Flush()
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 6, 64) }

// describe is the event's text, then its numbers.
func (e *traceEvent) describe() string {
	var words []string
	if e.text != "" {
		words = append(words, e.text)
	}
	var numbers []string
	for _, f := range e.fields {
		numbers = append(numbers, f.name+"="+f.value)
	}
	if len(numbers) > 0 {
		all := strings.Join(numbers, " ")
		if e.text != "" {
			all = "(" + all + ")"
		}
		words = append(words, all)
	}
	return printable(strings.Join(words, "  "))
}

// printable keeps what a guest wrote from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}

// traceLines writes the events as they are in the file.
func traceLines(w io.Writer, events []traceEvent) error {
	out := bufio.NewWriter(w)
	for _, e := range events {
		out.Write(e.line) // an error stays with the writer until Flush
		out.WriteByte('\n')
	}
	return out.Flush()
}
