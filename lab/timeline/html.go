package timeline

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/foreign"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

const (
	// A lane has at most so many slots for events without a length, of which those in one slot become one mark, and all lanes together have not many more than maxMarks: a
	// page of any case stays a few megabytes and scrolls.
	maxSlots, minSlots = 2400, 100
	maxMarks           = 40000
	maxRows            = 4000 // lines below the lanes
	maxTitle           = 8    // lines in what a mark shows when pointed at
)

// mark is something drawn on a lane: at Left, of the given Width, both percentages of the page's width.
type mark struct {
	Left, Width string
	Class       string
	Hue         int    // of a CPU's colour, for the classes that have one
	Title       string // shown when pointed at
	Label       string // written on it
}

type lane struct {
	Name, Group string
	Marks       []mark
}

// pageData is what the template sees.
type pageData struct {
	Title   string
	Summary []string
	Ticks   []mark
	Lanes   []lane
	Rows    []Row
	Omitted int // rows
	Span    string
}

// chart lays events out between two moments.
type chart struct {
	from, to Time
	slots    int
}

func (c chart) percent(t Time) float64 {
	t = min(max(t, c.from), c.to)
	return 100 * float64(t-c.from) / float64(c.to-c.from)
}

func (c chart) span(from, to Time, m mark) mark {
	left := c.percent(from)
	m.Left, m.Width = fmt.Sprintf("%.4f%%", left), fmt.Sprintf("%.4f%%", max(0, c.percent(to)-left))
	return m
}

// ticks makes marks of moments: those that fall into one slot, of the same class, become one.
type ticks struct {
	chart
	marks []mark
	slot  map[string]*slot
	order []*slot
}

type slot struct {
	at     Time
	class  string
	hue, n int
	title  []string
}

func (t *ticks) add(at Time, class string, hue int, title string) {
	if at < t.from || at > t.to {
		return
	}
	key := fmt.Sprintf("%d %s %d", int(t.percent(at)*float64(t.slots)/100), class, hue)
	s := t.slot[key]
	if s == nil {
		s = &slot{at: at, class: class, hue: hue}
		if t.slot == nil {
			t.slot = map[string]*slot{}
		}
		t.slot[key] = s
		t.order = append(t.order, s)
	}
	s.n++
	if s.n <= maxTitle {
		s.title = append(s.title, at.String()+"  "+title)
	}
}

func (t *ticks) done() []mark {
	for _, s := range t.order {
		if s.n > maxTitle {
			s.title = append(s.title, fmt.Sprintf("and %d more", s.n-maxTitle))
		}
		t.marks = append(t.marks, mark{Left: fmt.Sprintf("%.4f%%", t.percent(s.at)), Class: s.class, Hue: s.hue, Title: strings.Join(s.title, "\n")})
	}
	return t.marks
}

// hue is a CPU's colour: neighbours differ.
func hue(cpu int) int { return cpu * 137 % 360 }

// HTML writes a page with a lane for the steps, the rules' holds, the device, the log, each CPU and each vector, and the text below. It needs no other file, and what a
// guest wrote is text on it and nothing else.
func (tl *Timeline) HTML(ctx context.Context, w io.Writer, f Filter, each bool) error {
	all, shown := tl.items(Filter{}), tl.items(f)
	c := chart{from: f.From, to: f.To}
	if f.From == 0 && len(shown) > 0 {
		c.from = min(0, shown[0].T)
	}
	if f.To == 0 {
		c.to = tl.Header.End
		for _, e := range shown {
			c.to = max(c.to, e.T+e.For)
		}
	}
	if c.to <= c.from {
		c.to = c.from + 1
	}
	vectors, cpus := tl.lanes(f)
	c.slots = min(maxSlots, max(minSlots, maxMarks/(5+len(vectors)+len(cpus))))

	rows, err := rows(ctx, shown, each)
	if err != nil {
		return err
	}
	d := pageData{Title: tl.Header.Title(), Summary: tl.Header.Summary(), Rows: rows, Span: fmt.Sprintf("%s to %s seconds", c.from, c.to)}
	if d.Title == "" {
		d.Title = "a function's trace"
	}
	for _, t := range scale(c.from, c.to) {
		d.Ticks = append(d.Ticks, c.span(t, t, mark{Label: strings.TrimRight(strings.TrimRight(t.String(), "0"), ".")}))
	}
	d.Omitted = max(0, len(d.Rows)-maxRows)
	d.Rows = d.Rows[:len(d.Rows)-d.Omitted]
	d.Lanes = append(d.Lanes, sourceLanes(shown, c)...)
	// What lasts is drawn from all events: a window in time has its beginning before it.
	for _, cpu := range cpus {
		if ctx.Err() != nil { // each lane looks at all events
			return context.Cause(ctx)
		}
		d.Lanes = append(d.Lanes, cpuLane(all, c, cpu, tl.Header.Guest))
	}
	seen := readings(tl.Events)
	for _, v := range vectors {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		d.Lanes = append(d.Lanes, vectorLane(all, c, v, seen[v]))
	}
	out := bufio.NewWriter(w)
	if err := page.Execute(out, d); err != nil {
		return fmt.Errorf("timeline page: %w", err)
	}
	return out.Flush()
}

// lanes are the vectors and CPUs that have one: those of the events, and all CPUs of the machine.
func (tl *Timeline) lanes(f Filter) (vectors, cpus []int) {
	v, c := map[int]bool{}, map[int]bool{}
	for cpu := range tl.Header.CPUs {
		c[cpu] = true
	}
	for i := range tl.Events {
		e := &tl.Events[i]
		if e.Vector != nil && (e.Source == SourceVector || e.Source == SourceObservation) {
			v[*e.Vector] = true
		}
		if e.CPU != nil {
			c[*e.CPU] = true
		}
	}
	only := func(have map[int]bool, want []int) []int {
		return slices.Sorted(func(yield func(int) bool) {
			for n := range maps.Keys(have) {
				if (want == nil || slices.Contains(want, n)) && !yield(n) {
					return
				}
			}
		})
	}
	return only(v, f.Vectors), only(c, f.CPUs)
}

// scale is about ten round moments.
func scale(from, to Time) []Time {
	step := Time(10)
	for i := 0; (to-from)/step > 10; i++ { // 10, 20, 50, 100, …
		step *= 2
		if i%3 == 1 {
			step = step * 5 / 4
		}
	}
	var list []Time
	for t := (from + step - 1) / step * step; t <= to; t += step {
		list = append(list, t)
	}
	return list
}

// sourceLanes are those of the steps, the rules, the device, the agent and the log.
func sourceLanes(items []item, c chart) []lane {
	byName := map[string]*ticks{}
	for _, s := range []string{SourceStep, SourceInject, SourceDevice, SourceAgent, SourceLog} {
		byName[s] = &ticks{chart: c}
	}
	for _, e := range items {
		t := byName[e.Source]
		if t == nil {
			continue
		}
		title := e.words()
		switch {
		case e.Kind == kindStep || e.Kind == kindInject && e.For > 0:
			t.marks = append(t.marks, c.span(e.T, e.T+e.For, mark{Class: e.Kind, Title: fmt.Sprintf("%s to %s  %s", e.T, e.T+e.For, title), Label: foreign.Line(e.Text)}))
		case e.Source == SourceLog && e.Level <= 4: // warnings and worse
			t.add(e.T, "warn", 0, title)
		default:
			t.add(e.T, e.Source, 0, title)
		}
	}
	var lanes []lane
	for _, s := range []string{SourceStep, SourceInject, SourceDevice, SourceAgent, SourceLog} {
		if marks := byName[s].done(); marks != nil {
			lanes = append(lanes, lane{Name: map[string]string{SourceStep: "steps", SourceInject: "rules", SourceLog: "guest log"}[s], Group: s, Marks: marks})
			if l := &lanes[len(lanes)-1]; l.Name == "" {
				l.Name = s
			}
		}
	}
	return lanes
}

// cpuLane shows when a CPU is online, which it is since the guest runs, and the interrupts it is known to have handled.
func cpuLane(items []item, c chart, cpu int, since Time) lane {
	t := ticks{chart: c}
	online := true
	bar := func(until Time) {
		if online && until >= since {
			t.marks = append(t.marks, c.span(since, until, mark{Class: "online", Hue: hue(cpu), Title: fmt.Sprintf("CPU %d online, %s to %s", cpu, since, until)}))
		}
	}
	for _, e := range items {
		if now, ok := e.transition(); ok && *e.CPU == cpu {
			if now != online {
				bar(e.T)
				since, online = e.T, now
			}
			t.add(e.T, "move", 0, e.words())
		}
		if e.on == cpu {
			t.add(e.T, "fire", hue(cpu), fmt.Sprintf("vector %d", *e.Vector))
		}
	}
	bar(c.to)
	return lane{Name: fmt.Sprintf("CPU %d", cpu), Group: "cpu", Marks: t.done()}
}

// vectorLane shows when a vector is enabled, the CPUs it is routed to as observed, and its firings, coloured by the CPU that handled them where that is known.
func vectorLane(items []item, c chart, v int, seen []reading) lane {
	t := ticks{chart: c}
	since := Time(-1)
	bar := func(until Time) {
		if since >= 0 {
			t.marks = append(t.marks, c.span(since, until, mark{Class: "enabled", Title: fmt.Sprintf("vector %d enabled, %s to %s", v, since, until)}))
		}
		since = -1
	}
	fires := ticks{chart: c}
	var gone []Time // when it was disabled: it is routed nowhere from then on
	for _, e := range items {
		if e.Vector == nil || *e.Vector != v || e.Source != SourceVector && !(e.Kind == kindMasks && e.number("differ") > 0) {
			continue
		}
		switch {
		case e.Kind == kindAssign && since < 0:
			since = e.T
		case e.Kind == kindDeassign:
			bar(e.T)
			gone = append(gone, e.T)
		case e.Kind == kindFire && e.on >= 0:
			fires.add(e.T, "fire", hue(e.on), e.words())
		case e.Kind == kindFire:
			fires.add(e.T, "unknown", 0, e.words())
		case e.Kind != kindAssign:
			fires.add(e.T, "move", 0, e.words())
		}
	}
	bar(c.to)
	for i := 0; i < len(seen); {
		until := c.to
		if n, _ := slices.BinarySearch(gone, seen[i].at); n < len(gone) {
			until = min(until, gone[n])
		}
		k := i + 1
		for k < len(seen) && seen[k].at < until && slices.Equal(seen[k].effective, seen[i].effective) {
			k++
		}
		if k < len(seen) {
			until = min(until, seen[k].at)
		}
		if cpus := cpulist.List(seen[i].effective); len(cpus) > 0 && until >= c.from && seen[i].at <= c.to {
			title := fmt.Sprintf("vector %d routed to CPU %s, seen from %s to %s", v, cpus, seen[i].at, seen[k-1].at)
			t.marks = append(t.marks, c.span(seen[i].at, until, mark{Class: "routed", Hue: hue(cpus[0]), Title: title, Label: "CPU " + cpus.String()}))
		}
		i = k
	}
	return lane{Name: fmt.Sprintf("vector %d", v), Group: "vector", Marks: append(t.done(), fires.done()...)}
}
