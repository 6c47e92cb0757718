package timeline

import (
	"bufio"
	"cmp"
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

var page = template.Must(template.New("page").Funcs(template.FuncMap{"hue": hue}).Parse(pageText))

const (
	maxRows  = 4000 // lines below the lanes
	maxKinds = 48   // that the page can hide; the others go with their source
)

// pageData is what the template sees.
type pageData struct {
	*Header
	Title   string
	Meta    string
	Verdict string // the outcome, for its colour
	Summary []string
	Ticks   []mark
	Folds   []mark
	Bands   []mark
	Lanes   []lane
	Sources []shownSource
	Kinds   []shownKind
	Rows    []pageRow
	Omitted int // rows
	Span    string
}

// shownSource and shownKind are what can be hidden. Off: it is at first.
type shownSource struct {
	Name  string
	Kinds []shownKind
	Off   bool
}

type shownKind struct {
	Class, Name string
	N           int
	Off         bool
}

type pageRow struct {
	Row
	Class string
}

// HTML writes a page with the verdict and the last observation, a lane for the steps, the rules' holds, the device, the log, each CPU and each vector, and the text below. It
// needs no other file, and what a guest wrote is text on it and nothing else.
func (tl *Timeline) HTML(ctx context.Context, w io.Writer, f Filter, each bool) error {
	all, shown := tl.items(Filter{}), tl.items(f)
	c := chart{span: span{f.From, f.To}}
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
	c.folds = fold(c.span, moments(shown))
	vectors, cpus := tl.lanes(f)
	c.slots = min(maxSlots, max(minSlots, maxMarks/(5+len(vectors)+len(cpus))))

	kinds, class := kindsOf(shown)
	d := pageData{
		Header: &tl.Header, Title: cmp.Or(tl.Header.Title(), "a function's trace"), Meta: tl.Header.meta(), Summary: tl.Header.about(), Sources: kinds,
		Ticks: c.scale(), Span: fmt.Sprintf("%s to %s seconds", c.from, c.to),
	}
	switch tl.Header.Outcome {
	case "pass", "observed", "fail", "error":
		d.Verdict = tl.Header.Outcome
	}
	for _, s := range kinds {
		d.Kinds = append(d.Kinds, s.Kinds...)
	}
	for _, s := range c.folds {
		d.Folds = append(d.Folds, c.over(s.from, s.to, mark{Label: foldName(s), Title: fmt.Sprintf("%s to %s is folded: nothing in it is part of the story", s.from, s.to)}))
	}
	var err error
	if d.Rows, err = pageRows(ctx, shown, each, class); err != nil {
		return err
	}
	d.Omitted = max(0, len(d.Rows)-maxRows)
	d.Rows = d.Rows[:len(d.Rows)-d.Omitted]
	d.Lanes = sourceLanes(shown, c, class)
	// What lasts is drawn from all events: a window in time has its beginning before it.
	s := c.story(all)
	bands, names := c.bands(cpus, s)
	if d.Bands = bands; bands != nil {
		d.Lanes = append(d.Lanes, names)
	}
	for _, cpu := range cpus {
		d.Lanes = append(d.Lanes, cpuLane(s, c, cpu, tl.Header.Guest))
	}
	seen := readings(tl.Events)
	for _, v := range vectors {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		d.Lanes = append(d.Lanes, vectorLane(s, c, v, seen[v]))
	}
	out := bufio.NewWriter(w)
	if err := page.Execute(out, d); err != nil {
		return fmt.Errorf("timeline page: %w", err)
	}
	return out.Flush()
}

// foldName is the length of a fold, as short as its width.
func foldName(s span) string {
	if n := s.length().seconds(); n < 9.95 {
		return fmt.Sprintf("%.2g s", n)
	}
	return fmt.Sprintf("%.0f s", s.length().seconds())
}

// moments are those of what a reader would miss. What a machine does until the scenario's first step is not part of it, nor is a request that repeats, with the interrupt of
// the hardware channel, vector 0, that answers it.
func moments(items []item) []Time {
	var all []Time
	first := slices.IndexFunc(items, func(e item) bool { return e.Kind == kindStep && e.number("number") > 0 })
	again := repeats(items)
	for i, e := range items {
		fire := e.Kind == kindFire && e.Vector != nil && *e.Vector > 0
		if i < first && e.Kind != kindStep || noise(e) && !fire || again[i] {
			continue
		}
		all = append(all, e.T)
		if e.For > 0 {
			all = append(all, e.T+e.For)
		}
	}
	return all
}

// pageRows are the rows of what shows at first and of what does not, each counted by itself, in the order of their times.
func pageRows(ctx context.Context, items []item, each bool, class func(item) string) ([]pageRow, error) {
	loud, quiet := []item{}, []item{}
	for _, e := range items {
		if noise(e) {
			quiet = append(quiet, e)
		} else {
			loud = append(loud, e)
		}
	}
	var all []pageRow
	for _, lot := range [][]item{loud, quiet} {
		rows, err := rows(ctx, lot, each)
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			all = append(all, pageRow{r, rowClass(r, class)})
		}
	}
	slices.SortStableFunc(all, func(a, b pageRow) int { return cmp.Compare(a.T, b.T) })
	return all, nil
}

func rowClass(r Row, class func(item) string) string {
	c := "s-" + sourceClass(r.Source) + " " + class(r.first)
	switch {
	case r.first.alarm(), r.first.Kind == kindStepEnd && r.first.Text != stepDone:
		c += " alarm"
	case r.first.Source == SourceStep, r.first.Source == SourceInject, r.first.Source == SourceCPU:
		c += " mark"
	}
	return c
}

// sourceClass is a source that the page knows; a foreign file may have others.
func sourceClass(s string) string {
	if slices.Contains(Sources, s) {
		return s
	}
	return "other"
}

// noise tells what the page does not show in its list at first.
func noise(e item) bool {
	switch e.Source {
	case SourceAgent:
		return true
	case SourceLog:
		return e.Level >= 7
	case SourceVector:
		return e.Kind == kindFire || e.Kind == kindSetIRQs
	case SourceDevice:
		return slices.ContainsFunc([]string{"doorbell-", "dma-", "config-", "eqe", "hwc-response"}, func(p string) bool { return strings.HasPrefix(e.Kind, p) })
	}
	return false
}

// kindName is what the page calls an event's kind: those of the log are by their levels.
func kindName(e item) string {
	switch {
	case e.Source != SourceLog:
		return e.Kind
	case e.Kind != KindLog:
		return e.Kind
	case e.alarm():
		return "warnings"
	case e.Level >= 7:
		return "debug"
	}
	return "notices"
}

// kindsOf are the sources and kinds there are, and which class those of an event have on the page.
func kindsOf(items []item) (sources []shownSource, class func(item) string) {
	type key struct{ source, name string }
	n := map[key]*shownKind{}
	var order []key
	keyOf := func(e item) key { return key{sourceClass(e.Source), kindName(e)} }
	for _, e := range items {
		k := keyOf(e)
		if n[k] == nil {
			n[k] = &shownKind{Name: foreign.Line(k.name), Off: noise(e) && e.Source != SourceAgent}
			order = append(order, k)
		}
		n[k].N++
	}
	slices.SortStableFunc(order, func(a, b key) int { return cmp.Compare(n[b].N, n[a].N) })
	for i, k := range order[:min(len(order), maxKinds)] {
		n[k].Class = fmt.Sprintf("k%d", i)
	}
	for _, s := range append(slices.Clone(Sources), "other") {
		shown := shownSource{Name: s, Off: s == SourceAgent}
		there := false
		for _, k := range order {
			if k.source != s {
				continue
			}
			there = true
			if n[k].Class != "" {
				shown.Kinds = append(shown.Kinds, *n[k])
			}
		}
		if len(shown.Kinds) == 1 && !shown.Kinds[0].Off {
			shown.Kinds = nil // it is the source
		}
		if there {
			sources = append(sources, shown)
		}
	}
	return sources, func(e item) string {
		if k := n[keyOf(e)]; k != nil {
			return k.Class
		}
		return ""
	}
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

// Odd reports whether the kernel has another mask for the vector than was asked for.
func (v Vector) Odd() bool { return len(v.Asked) > 0 && !slices.Equal(v.Asked, v.Requested) }

// Trouble says what is not as it was asked for with a vector, "" when all is.
func (v Vector) Trouble(online cpulist.List) string {
	var words []string
	if lost := v.Effective.Minus(online); len(lost) > 0 {
		words = append(words, lost.Are("is", "are")+" offline")
	}
	if v.Dropped {
		words = append(words, "asked and not kept")
	} else if v.Odd() {
		words = append(words, "not as asked")
	}
	if v.Pending {
		words = append(words, "not yet moved")
	}
	if v.Unsettled {
		words = append(words, "did not settle")
	}
	return strings.Join(words, ", ")
}
