package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"irqlab/guestagent/agentapi"
	"irqlab/lab"
	"irqlab/lab/guestlog"
	"irqlab/lab/timeline"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

const (
	keptEvents    = 1 << 17 // of a case's trace that goes into a file, the newest ones: 10 MiB
	evidenceRows  = 12      // of what the lab and the device did last
	clockReadings = 3       // of the guest's clock, at least, at each end of a case: each costs an emulated guest some milliseconds
)

// guestClock is what the guest tells for the timeline.
type guestClock struct {
	start, end []timeline.Pair
	log        []agentapi.LogRecord
	notes      []string // why some of it is missing
}

func (g *guestClock) missing(what string, err error) {
	if err != nil {
		g.notes = append(g.notes, fmt.Sprintf("%s: %.300s", what, err))
	}
}

// startTimeline has the agent's calls traced and reads the guest's clock, if there will be a timeline.
func (e *experiment) startTimeline(ctx context.Context) {
	e.vm.Agent.Trace = e.trace
	if e.opts.Out == "" {
		return
	}
	var err error
	e.guest.start, err = timeline.Measure(ctx, e.vm.Agent, e.trace.Now, clockReadings)
	e.guest.missing("the clock at the start", err)
}

// askGuest reads the guest's log and its clock again before the VM ends. A guest that does not answer has shown on its console what there is to know.
func (e *experiment) askGuest(ctx context.Context) {
	if e.opts.Out == "" || e.vm.Agent == nil {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, diagnosis, fmt.Errorf("the guest did not answer within %s", diagnosis))
	defer cancel()
	var err error
	if e.guest.end, err = timeline.Measure(ctx, e.vm.Agent, e.trace.Now, clockReadings); err == nil {
		var log guestlog.Log
		log, err = e.guestLog(ctx, agentapi.LogRecord{})
		e.guest.log = log.Records
		if log.Why != "" {
			e.guest.notes = append(e.guest.notes, log.Why)
		}
	}
	if err == nil {
		return
	}
	e.guest.missing("the log is that of the console, without the lines it does not show", err)
	text, cut := e.vm.Console().Text()
	e.guest.log = guestlog.FromConsole(text).Records
	if cut != "" {
		e.guest.notes = append(e.guest.notes, cut)
	}
}

// final is the last observation, for the top of the timeline's page.
func final(all []result.Observation) *timeline.Final {
	if len(all) == 0 {
		return nil
	}
	last := all[len(all)-1]
	f := &timeline.Final{Label: last.Label, Online: last.Online}
	for _, v := range last.Vectors {
		f.Vectors = append(f.Vectors, timeline.Vector{
			Index: v.Index, Role: v.Role, IRQ: v.IRQ, Action: v.Action, Asked: v.Asked, Requested: v.Affinity, Effective: v.Effective, Handled: v.Handled,
			Dropped: v.Dropped, Pending: v.Pending, Unsettled: v.Unsettled,
		})
	}
	return f
}

// keepTimeline writes the case's timeline next to its trace.
func (e *experiment) keepTimeline() error {
	if e.opts.Out == "" || e.vm == nil {
		return nil
	}
	events, forgotten := e.trace.Events()
	h := timeline.Header{
		Scenario: e.c.Scenario, Case: e.c.Name, Outcome: string(e.out.Outcome), Kernel: e.out.Kernel, Start: e.out.Start, CPUs: e.c.Shape.CPUs(),
		End: timeline.Time(e.trace.Now()), Forgotten: forgotten,
	}
	if e.vm.Start == lab.StartWarm {
		h.Guest = timeline.Time(e.vm.Resumed.Sub(e.trace.Start()))
	}
	clock, err := timeline.Align(e.guest.start, e.guest.end)
	e.guest.missing("nothing of the guest's log", err)
	h.Notes = e.guest.notes
	h.Question, h.Driver, h.Strategy, h.Reasons, h.Known = e.c.Question, e.c.Driver, e.c.Strategy, e.out.Reasons, e.out.Known
	h.Final = final(e.out.Observations)
	e.out.Artifacts.Timeline = filepath.Join(e.dir(), "timeline.jsonl")
	f, err := os.Create(filepath.Join(e.opts.Out, e.out.Artifacts.Timeline))
	if err != nil {
		return fmt.Errorf("the timeline was not kept: %w", err)
	}
	if err := errors.Join(timeline.Build(h, events, e.guest.log, clock).Write(f), f.Close()); err != nil {
		return fmt.Errorf("the timeline was not kept: %w", err)
	}
	return nil
}

// fell takes down when the experiment ended before its time, and what held the device then.
func (e *experiment) fell() {
	e.fallen = e.trace.Now()
	for _, r := range e.inject.States() {
		if r.Held || r.Waits {
			e.held = append(e.held, fmt.Sprintf("%s (%s)", r.Name, scenarios.RuleText(r.Rule)))
		}
	}
}

// evidence is what the lab and the device did last before the experiment fell, or, where only what was seen is not as expected, before it was seen last.
func (e *experiment) evidence(err error) *result.Evidence {
	events, _ := e.trace.Events()
	tl := timeline.Build(timeline.Header{End: timeline.Time(e.trace.Now())}, events, nil, nil)
	until := tl.Header.End
	switch seen := tl.LastSeen(); {
	case e.fallen > 0:
		until = timeline.Time(e.fallen)
	case err == nil && len(e.left) == 0 && seen > 0:
		until = seen
	}
	tail := tl.Tail(until, evidenceRows)
	out := &result.Evidence{Until: time.Duration(until).Round(time.Microsecond).Seconds(), Held: e.held, Events: []result.Event{}}
	var step *StepError
	if errors.As(err, &step) && (step.Late || step.Limit) {
		out.Awaited = append(out.Awaited, fmt.Sprintf("the end of step %s (%s, line %d)", step.Step.At, step.Step, step.Step.Line))
	}
	if e.fallen > 0 {
		out.Awaited = append(out.Awaited, tail.Awaited...)
	}
	for _, r := range tail.Rows {
		out.Events = append(out.Events, result.Event{T: time.Duration(r.T).Round(time.Microsecond).Seconds(), Source: r.Source, What: r.What})
	}
	return out
}
