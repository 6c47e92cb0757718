package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/layout"
	"irqlab/lab/timeline"
	"irqlab/scenarios/nearest"
)

func newTimeline(s Streams) *cobra.Command {
	var f struct {
		sources             []string
		from, to            string
		vectors, cpus, html string
		each                bool
	}
	cmd := &cobra.Command{
		Use:   "timeline FILE",
		Short: "Show a case on one clock: steps, device, vectors, CPUs, guest log",
		Long: `timeline shows what run --out leaves as timeline.jsonl: the lab's steps and calls, what the device saw and did, its vectors, CPUs that come and go, and the lines of
the guest's log, in the order they happened and on the host's clock. It says how far a log line may be off. A trace.jsonl does as well; it has no log. FILE may be -
for standard input.

Each line has the seconds since the case began, those since the line before, who tells, and what. Firings, calls and doorbells that repeat are counted on one line
unless --each is given. --html writes a page with a lane for each CPU and each vector instead; it needs nothing but a browser.`,
		Example: `  irqlab timeline results/low-vcpu-driver/fixed/timeline.jsonl --html timeline.html
  irqlab timeline timeline.jsonl --from 0.9 --to 1.2
  irqlab timeline timeline.jsonl --source step --source cpu --source guest-log
  irqlab timeline timeline.jsonl --vector 2 --each`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.html == "" && cmd.Flags().Changed("html") {
				return usageError(errors.New("--html: it is empty; give the page's FILE"))
			}
			var filter timeline.Filter
			var err error
			for _, word := range f.sources {
				if !slices.Contains(timeline.Sources, word) {
					return usageError(fmt.Errorf("--source: %w", nearest.Unknown("source", word, timeline.Sources)))
				}
			}
			filter.Sources = f.sources
			if filter.From, err = moment(f.from); err != nil {
				return usageError(fmt.Errorf("--from: %w", err))
			}
			if filter.To, err = moment(f.to); err != nil {
				return usageError(fmt.Errorf("--to: %w", err))
			}
			if f.to != "" && filter.To <= filter.From {
				return usageError(fmt.Errorf("--to %s: must be after --from %s", f.to, cmp.Or(f.from, "0")))
			}
			if filter.Vectors, err = numbers(f.vectors); err != nil {
				return usageError(fmt.Errorf("--vector: %w", err))
			}
			if filter.CPUs, err = numbers(f.cpus); err != nil {
				return usageError(fmt.Errorf("--cpu: %w", err))
			}
			in := s.In
			if args[0] != "-" {
				file, err := openInput(cmd.Context(), args[0])
				if err != nil {
					return usageError(err)
				}
				defer file.Close()
				in = file
			}
			tl, cut, err := timeline.Read(args[0], untilDone(cmd.Context(), in))
			if err != nil {
				return usageError(err)
			}
			if cut {
				s.say("%s: the last line is cut short and left out", args[0])
			}
			if f.html == "" {
				text := timelineText
				if !layout.IsTerminal(s.Out) { // where it is searched
					text = plainTimeline
				}
				if err := text(cmd.Context(), s.Out, tl, filter, f.each); err != nil {
					return outputError(err)
				}
				return nil
			}
			if err := writePage(cmd.Context(), f.html, func(w io.Writer) error { return tl.HTML(cmd.Context(), w, filter, f.each) }); err != nil {
				return &exitError{ExitError, fmt.Errorf("--html %s: %w", f.html, err)}
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&f.sources, "source", nil, "show what this `SOURCE` tells only: step, inject, device, agent, guest-log, cpu, vector or observation; may be repeated")
	cmd.Flags().StringVar(&f.from, "from", "", "leave out what was before `TIME`, in seconds (1.25) or with a unit (1250ms)")
	cmd.Flags().StringVar(&f.to, "to", "", "leave out what was after `TIME`")
	cmd.Flags().StringVar(&f.vectors, "vector", "", "show the events of these vectors only, a `LIST` such as 0,2-4")
	cmd.Flags().StringVar(&f.cpus, "cpu", "", "show the events of these CPUs only, a `LIST`: they come and go, and interrupts they are known to have handled")
	cmd.Flags().BoolVar(&f.each, "each", false, "show each of the events that repeat")
	cmd.Flags().StringVar(&f.html, "html", "", "write a page with lanes to `FILE`")
	return cmd
}

// timelineText writes a timeline as text whose lines are broken under what happened.
func timelineText(ctx context.Context, w io.Writer, tl *timeline.Timeline, f timeline.Filter, each bool) error {
	var b bytes.Buffer
	if err := tl.Text(ctx, &b, f, each); err != nil {
		return err
	}
	hang := ""
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSuffix(line, "\n")
		if event, ok := strings.CutSuffix(line, "event"); ok && hang == "" && strings.HasSuffix(event, "  ") {
			hang = strings.Repeat(" ", len(event))
		}
		if _, err := fmt.Fprintln(w, layout.Wrap(line, layout.Columns(w), hang)); err != nil {
			return err
		}
	}
	return nil
}

func plainTimeline(ctx context.Context, w io.Writer, tl *timeline.Timeline, f timeline.Filter, each bool) error {
	return tl.Text(ctx, w, f, each)
}

// writePage writes a file that is there once it is whole. What is no file, such as /dev/stdout, is written to: a file must not take its place.
func writePage(ctx context.Context, path string, write func(io.Writer) error) (err error) {
	defer func() { // of a temporary file's name nobody knows anything
		var file *fs.PathError
		var link *os.LinkError
		switch {
		case errors.As(err, &file):
			err = file.Err
		case errors.As(err, &link):
			err = link.Err
		}
	}()
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := waitOpen(ctx, path, os.O_WRONLY)
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { f.Close() })() // nobody may be reading
		return errors.Join(write(f), f.Close())
	}
	if target, err := filepath.EvalSymlinks(path); err == nil { // else the link would be replaced
		path = target
	}
	page, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o644))
	if err != nil {
		return err
	}
	defer func() { _ = page.Cleanup() }() // of nothing, once it has its name
	if err := write(page); err != nil {
		return err
	}
	return page.CloseAtomicallyReplace()
}

// moment reads seconds, or a duration with its unit; "" is 0.
func moment(word string) (timeline.Time, error) {
	if word == "" {
		return 0, nil
	}
	span := word
	if _, err := strconv.ParseFloat(word, 64); err == nil {
		span += "s"
	}
	d, err := time.ParseDuration(span)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is no time since the case began: want seconds such as 1.25, or 1250ms", word)
	}
	return timeline.Time(d), nil
}

// numbers reads a list of numbers; "" is nil.
func numbers(word string) ([]int, error) {
	if word == "" {
		return nil, nil
	}
	l, err := cpulist.Parse(word)
	if err == nil && len(l) == 0 {
		err = errors.New("it is empty")
	}
	return l, err
}
