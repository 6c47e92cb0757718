package timeline

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"irqlab/devmodel/trace"
	"irqlab/guestagent/cpulist"
	"irqlab/lab/foreign"
)

// Filter says which events are wanted; its zero value, all.
type Filter struct {
	Sources  []string // none: all. SourceCPU is every coming and going of a CPU, whoever tells
	From, To Time     // To 0: to the end. What began before From and lasts beyond it is in
	Vectors  []int    // none: all; else the events of these vectors only
	CPUs     []int    // likewise; a firing belongs to the CPU that handled it, where that is known
}

// item is an event with what only the whole timeline tells of it.
type item struct {
	*Event
	on    int // of a firing, the CPU that handled it, -1 where that is not known
	round int // the same for the events of one observation
}

// items are the wanted events.
func (tl *Timeline) items(f Filter) []item {
	on := handlers(tl.Events)
	var items []item
	round := 0
	for i := range tl.Events {
		e := item{&tl.Events[i], -1, round}
		if cpu, ok := on[i]; ok {
			e.on = cpu
		}
		if e.Kind != kindRead {
			round++
		}
		_, moves := e.transition()
		switch {
		case f.Sources != nil && !slices.Contains(f.Sources, e.Source) && !(moves && slices.Contains(f.Sources, SourceCPU)),
			e.T+e.For < f.From, f.To > 0 && e.T > f.To,
			f.Vectors != nil && (e.Vector == nil || !slices.Contains(f.Vectors, *e.Vector)),
			f.CPUs != nil && !(e.CPU != nil && slices.Contains(f.CPUs, *e.CPU)) && !slices.Contains(f.CPUs, e.on):
			continue
		}
		items = append(items, e)
	}
	return items
}

// Row is what a person reads of one event, or of several that are much the same.
type Row struct {
	T      Time
	Source string
	Level  int // of a log line
	What   string
	first  item
}

// rows are the events for a person. Unless each is wanted, the firings in a run of frequent events become one row for a vector, and so do calls and doorbells that repeat,
// and an observation of all vectors is one row.
func rows(ctx context.Context, items []item, each bool) ([]Row, error) {
	var rows []Row
	for len(items) > 0 {
		if ctx.Err() != nil { // of a huge file there are seconds of this
			return nil, context.Cause(ctx)
		}
		first, n := items[0], 1
		switch {
		case each:
			rows = append(rows, Row{first.T, first.Source, first.Level, first.words(), first})
		case first.Kind == kindRead:
			n = runLength(items, func(e item) bool { return e.Kind == kindRead && e.round == first.round })
			rows = append(rows, observation(items[:n]))
		case first.Kind == kindMasks && first.number("differ") == 0: // the observation says it
		case first.Kind == kindStepEnd && first.Text == stepDone && branch(first.Step) == "": // the next step does
		case frequent(first):
			n = runLength(items, frequent)
			rows = append(rows, repeated(items[:n])...)
		default:
			rows = append(rows, Row{first.T, first.Source, first.Level, first.words(), first})
		}
		items = items[n:]
	}
	return rows, nil
}

func runLength(items []item, in func(item) bool) int {
	if n := slices.IndexFunc(items, func(e item) bool { return !in(e) }); n >= 0 {
		return n
	}
	return len(items)
}

// frequent tells the events of which there are many, and of which one is much as the other.
func frequent(e item) bool {
	return e.Kind == kindFire && e.Vector != nil || e.Kind == kindCall && e.number("failed") == 0 || strings.HasPrefix(e.Kind, "doorbell-")
}

// repeated makes rows of a run of frequent events: one for each vector, method or queue, where its first event is.
func repeated(items []item) []Row {
	type group struct {
		first, last item
		n           int
		cpus        cpulist.List
	}
	groups := map[string]*group{}
	var order []*group
	for _, e := range items {
		key := e.Kind + " " + e.Text + " " + e.Fields["id"].String()
		if e.Vector != nil {
			key += fmt.Sprint(*e.Vector)
		}
		g := groups[key]
		if g == nil {
			g = &group{first: e}
			groups[key], order = g, append(order, g)
		}
		g.last, g.n = e, g.n+1
		if e.on >= 0 && !g.cpus.Has(e.on) {
			g.cpus = cpulist.New(append(g.cpus, e.on)...)
		}
	}
	var rows []Row
	for _, g := range order {
		e := g.first
		until := fmt.Sprintf(" %d times until %s", g.n, g.last.T)
		what := e.words()
		switch {
		case g.n == 1:
		case e.Kind == kindFire:
			what = fmt.Sprintf("vector %d fired%s", *e.Vector, until)
			if g.cpus != nil {
				what += fmt.Sprintf(", handled on %s", g.cpus.Words())
			}
		case e.Kind == kindCall:
			what = foreign.Line(e.Text) + until
		default:
			what = foreign.Line(fmt.Sprintf("%s of queue %s", e.Kind, e.Fields["id"])) + until
		}
		rows = append(rows, Row{e.T, e.Source, 0, what, e})
	}
	return rows
}

// observation is what the last reading of each vector says: which vectors each CPU has.
func observation(items []item) Row {
	on := map[int]cpulist.List{} // vectors, by CPU
	var pending cpulist.List
	events := make([]Event, len(items))
	for i, e := range items {
		events[i] = *e.Event
	}
	all := readings(events)
	for _, v := range slices.Sorted(maps.Keys(all)) {
		r := all[v][len(all[v])-1]
		for _, cpu := range r.effective {
			on[cpu] = append(on[cpu], v)
		}
		if r.pending {
			pending = append(pending, v)
		}
	}
	var words []string
	for _, cpu := range slices.Sorted(maps.Keys(on)) {
		words = append(words, fmt.Sprintf("CPU %d: vector %s", cpu, on[cpu]))
	}
	if pending != nil {
		words = append(words, fmt.Sprintf("not yet where it was asked to be: vector %s", pending))
	}
	return Row{items[0].T, SourceObservation, 0, strings.Join(words, "; "), items[0]}
}

// words say what an event is.
func (e item) words() string {
	s := ""
	switch online, moves := e.transition(); {
	case e.Kind == kindStep && e.Step != "":
		s = fmt.Sprintf("%s %s, %s", e.Step, e.Text, brief(e.For))
	case e.Kind == kindStepEnd && e.Step != "":
		s = e.Step + " " + e.Text
	case e.Source == SourceLog, e.Kind == kindStep, e.Kind == kindInject && e.For == 0:
		s = e.Text
	case e.Kind == kindInject:
		s = fmt.Sprintf("%s, for %s", e.Text, brief(e.For))
	case e.Kind == kindCall:
		s = fmt.Sprintf("%s, %s", e.Text, brief(e.For))
		if e.number("failed") > 0 {
			s = "failed: " + s
		}
	case moves:
		s = fmt.Sprintf("CPU %d %s, by %s", *e.CPU, map[bool]string{true: "online", false: "offline"}[online], e.Text)
	case e.Kind == kindMasks && e.Vector != nil:
		s = fmt.Sprintf("vector %d: %s", *e.Vector, e.Text)
	case e.Kind == kindFire && e.Vector != nil && e.number("delivered") == 0:
		s = fmt.Sprintf("vector %d fired; it waits until the vector is enabled", *e.Vector)
	case e.Kind == kindFire && e.Vector != nil:
		s = fmt.Sprintf("vector %d fired", *e.Vector)
		if e.on >= 0 {
			s += fmt.Sprintf(", handled on CPU %d", e.on)
		}
	default:
		var numbers []trace.Field
		if e.Vector != nil {
			numbers = append(numbers, trace.Field{Name: "vector", Value: strconv.Itoa(*e.Vector)})
		}
		if e.CPU != nil {
			numbers = append(numbers, trace.Field{Name: "cpu", Value: strconv.Itoa(*e.CPU)})
		}
		for _, name := range slices.Sorted(maps.Keys(e.Fields)) {
			numbers = append(numbers, trace.Field{Name: name, Value: e.Fields[name].String()})
		}
		s = strings.TrimSpace(e.Kind + "  " + trace.Describe(e.Text, numbers))
	}
	return foreign.Line(s)
}

// alarm tells a line of the log that is a warning or worse.
func (e item) alarm() bool { return e.Source == SourceLog && e.Level <= 4 }

// brief is a length of time for people: three digits.
func brief(t Time) string {
	d := time.Duration(t)
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}

// Summary says what the timeline is of and how far its clocks can be trusted, a sentence a line.
func (h *Header) Summary() []string {
	who := "A function's trace: what the guest logged is not in it."
	if h.IRQLab != "" {
		who = strings.Join(slices.DeleteFunc([]string{h.Title(), h.Outcome, h.meta()}, func(w string) bool { return w == "" }), ", ")
	}
	return append([]string{foreign.Line(who)}, h.about()...)
}

// meta is what a case ran on and how long it took.
func (h *Header) meta() string {
	if h.IRQLab == "" {
		return "what the guest logged is not in it"
	}
	who := []string{h.Kernel}
	if h.CPUs > 0 {
		who = append(who, fmt.Sprintf("%d CPUs", h.CPUs))
	}
	who = append(who, h.Start, brief(h.End))
	return foreign.Line(strings.Join(slices.DeleteFunc(who, func(w string) bool { return w == "" }), ", "))
}

// about says how far the clocks can be trusted, and what is missing.
func (h *Header) about() []string {
	var s []string
	if c := h.Clock; c != nil {
		line := fmt.Sprintf("Guest log lines are within %s of their time on the host's clock", brief(c.Error))
		if c.To > c.From {
			line += fmt.Sprintf(" from %s to %s (the guest's clock runs %+.0f ppm)", c.From, c.To, c.PPM())
		} else {
			line += fmt.Sprintf(" at %s", c.From)
		}
		s = append(s, line+fmt.Sprintf("; before and after that, %.2g %% of the distance more.", c.Growth*100))
	}
	if h.Forgotten > 0 {
		s = append(s, fmt.Sprintf("%d events older than the first one here were not kept.", h.Forgotten))
	}
	for i := range s {
		s[i] = foreign.Line(s[i])
	}
	for _, n := range h.Notes {
		s = append(s, "Note: "+foreign.Line(n))
	}
	return s
}

// Text writes the wanted events as aligned columns: seconds since the case began, seconds since the row before, who tells, what. each keeps events that repeat apart.
func (tl *Timeline) Text(ctx context.Context, w io.Writer, f Filter, each bool) error {
	rows, err := rows(ctx, tl.items(f), each)
	if err != nil {
		return err
	}
	at, source := len("seconds"), len("source")
	for _, r := range rows {
		at, source = max(at, len(r.T.String())), max(source, len(r.Source))
	}
	out := bufio.NewWriter(w)
	for _, line := range tl.Header.Summary() {
		fmt.Fprintln(out, line)
	}
	fmt.Fprintf(out, "\n%*s  %10s  %-*s  %s\n", at, "seconds", "+", source, "source", "event")
	for i, r := range rows {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		since := ""
		if i > 0 {
			since = (r.T - rows[i-1].T).String()
		}
		fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("%*s  %10s  %-*s  %s", at, r.T, since, source, foreign.Line(r.Source), r.What), " "))
	}
	return out.Flush()
}
