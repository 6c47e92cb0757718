package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/foreign"
)

const (
	// A lane has at most so many slots for events without a length, of which those in one slot become one mark, and all lanes together have not many more than maxMarks: a
	// page of any case stays a few megabytes and scrolls.
	maxSlots, minSlots = 2400, 100
	maxMarks           = 40000
	maxTitle           = 8 // lines in what a mark shows when pointed at

	lineHeight = 18
	letter     = 0.85 // width of one in a label, in percent of a narrow page's width
	maxLabel   = 48   // letters

	fewRequests = 4 // of a name: each is labelled
)

// mark is something drawn on a lane: left and width are percentages of the page's width.
type mark struct {
	left, width float64
	Class       string
	Hue         int    // of a CPU's colour, for the classes that have one
	Title       string // shown when pointed at
	Label       string // written on it, or beside it where it is short
	End         bool   // the label ends where the mark begins
	line        int
	box, room   float64 // where the label is, and how wide that is
}

// What the page's template needs of a mark.
func (m mark) Left() string  { return percents(m.left) }
func (m mark) Width() string { return percents(m.width) }
func (m mark) Box() string   { return percents(m.box) }
func (m mark) Room() string  { return percents(m.room) }
func (m mark) Alarm() bool   { return strings.HasPrefix(m.Class, "warn") || m.Class == "fault" }
func (m mark) Top() int      { return m.line * lineHeight }

type lane struct {
	Name, Source string
	Height       int
	Marks        []mark
}

// pack gives marks with labels lines of their own where these would cover each other, up to so many; a label for which there is still no room is left out, and its mark
// stays. If bare, the first line is for the marks without. They come in the order of their beginnings.
func pack(marks []mark, lines int, bare bool) (packed []mark, used int) {
	slices.SortStableFunc(marks, func(a, b mark) int { return cmp.Compare(a.left, b.left) })
	ends := make([]float64, lines) // of labels and bars
	last := make([]*mark, lines)   // with a label, in the line
	bars := make([]float64, lines) // ends of the bars alone
	find := func(ends []float64, from float64) int {
		return slices.IndexFunc(ends, func(end float64) bool { return end <= from })
	}
	if bare {
		ends[0] = 101
	}
	for i := range marks {
		m := &marks[i]
		if cut := []rune(m.Label); len(cut) > maxLabel {
			m.Label = string(cut[:maxLabel-1]) + "…"
		}
		need := letter*float64(len([]rune(m.Label))) + 0.8
		m.box = m.left
		if m.End = m.left+need > 100; m.End { // it is written to the left of its mark
			m.box = max(0, m.left-need)
			m.room = m.left - m.box
		}
		n := -1
		if m.Label != "" {
			n = find(ends, m.box)
		}
		if n < 0 {
			m.Label = ""
			if n = find(bars, m.left); n < 0 {
				n = slices.Index(bars, slices.Min(bars))
			}
			if bare {
				n = 0
			}
		} else {
			if last[n] != nil {
				last[n].room = min(last[n].room, m.box-last[n].box)
			}
			if last[n] = m; !m.End {
				m.room = 100 - m.box
			}
			ends[n] = max(ends[n], m.box+need)
		}
		m.line = n
		used = max(used, n+1)
		bars[n] = max(bars[n], m.left+m.width)
		ends[n] = max(ends[n], m.left+m.width)
	}
	return marks, max(1, used)
}

// packed is a lane of labelled marks.
func packed(name, source string, marks []mark, lines int) lane {
	bare := false
	for _, m := range marks {
		bare = bare || m.Label == "" && m.width == 0
	}
	marks, used := pack(marks, lines, bare && lines > 1)
	return lane{Name: name, Source: source, Height: used*lineHeight + 4, Marks: marks}
}

// ticks makes marks of moments: those that fall into one slot, of the same class, become one.
type ticks struct {
	chart
	slot  map[string]*slot
	order []*slot
}

type slot struct {
	at     Time
	class  string
	label  string
	hue, n int
	title  []string
}

func (t *ticks) add(at Time, class string, hue int, title, label string) {
	if at < t.from || at > t.to {
		return
	}
	key := fmt.Sprintf("%d %s %d", int(t.percent(at)*float64(t.slots)/100), class, hue)
	s := t.slot[key]
	if s == nil {
		s = &slot{at: at, class: class, hue: hue, label: label}
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

func (t *ticks) marks() []mark {
	var marks []mark
	for _, s := range t.order {
		if s.n > maxTitle {
			s.title = append(s.title, fmt.Sprintf("and %d more", s.n-maxTitle))
		}
		marks = append(marks, mark{left: t.percent(s.at), Class: s.class, Hue: s.hue, Title: strings.Join(s.title, "\n"), Label: s.label})
	}
	return marks
}

// hue is a CPU's colour: neighbours differ, and none is the red or orange of what went wrong.
func hue(cpu int) int { return 40 + (170+179*cpu)%290 }

// story gathers what the lanes of CPUs and vectors are drawn from, in one pass over all events.
type story struct {
	vectors map[int][]item
	fires   map[int][]item // by the CPU that handled them
	moves   map[int][]item // by CPU
	away    map[int][]span // by CPU: it was offline
}

func (c chart) story(all []item) *story {
	s := &story{map[int][]item{}, map[int][]item{}, map[int][]item{}, map[int][]span{}}
	for _, e := range all {
		if now, ok := e.transition(); ok {
			s.moves[*e.CPU] = append(s.moves[*e.CPU], e)
			away := s.away[*e.CPU]
			open := len(away) > 0 && away[len(away)-1].to == maxTime
			switch {
			case !now && !open:
				s.away[*e.CPU] = append(away, span{e.T, maxTime})
			case now && open:
				away[len(away)-1].to = e.T
			}
		}
		if e.on >= 0 {
			s.fires[e.on] = append(s.fires[e.on], e)
		}
		if e.Vector != nil && (e.Source == SourceVector || e.Kind == kindMasks && e.number("differ") > 0) {
			s.vectors[*e.Vector] = append(s.vectors[*e.Vector], e)
		}
	}
	return s
}

// visible is the part of a piece of time that is on the chart.
func (c chart) visible(s span) (span, bool) {
	s = span{max(s.from, c.from), min(s.to, c.to)}
	return s, s.from <= s.to && s.from < c.to
}

// bands are a chart's times in which CPUs were away: across all lanes, and as a lane that names them.
func (c chart) bands(cpus []int, s *story) (bands []mark, names lane) {
	var marks []mark
	seen := map[string]bool{}
	for _, cpu := range cpus {
		for _, away := range s.away[cpu] {
			part, ok := c.visible(away)
			if !ok {
				continue
			}
			m := c.over(part.from, part.to, mark{Class: "away", Label: fmt.Sprintf("CPU %d, %s", cpu, brief(part.length()))})
			m.Title = fmt.Sprintf("CPU %d offline, %s to %s", cpu, away.from, part.to)
			if away.to == maxTime {
				m.Title += ", the end"
			}
			marks = append(marks, m)
			if key := fmt.Sprintf("%.1f %.1f", m.left, m.width); !seen[key] || m.width > 0.2 { // of a storm's very many, those that can be told apart
				seen[key] = true
				bands = append(bands, m)
			}
		}
	}
	return bands[:min(len(bands), maxSlots)], packed("offline", SourceCPU, marks[:min(len(marks), maxSlots)], 6)
}

// sourceLanes are those of the steps and their branches, the rules, the device, the agent and the log.
func sourceLanes(items []item, c chart, class func(item) string) []lane {
	bars := map[string][]mark{}
	var branches []string
	points := map[string]*ticks{}
	for _, s := range []string{SourceInject, SourceDevice, SourceAgent, SourceLog} {
		points[s] = &ticks{chart: c}
	}
	often := map[string]int{} // requests of a name
	again := repeats(items)
	for _, e := range items {
		if e.Kind == kindRequest {
			often[requested(e)]++
		}
	}
	covered := Time(-maxTime) // by a step of the scenario: what the lab does in it is in the list
	for i, e := range items {
		title := e.words()
		switch {
		case e.Kind == kindStep:
			if e.Step == "" && e.number("number") == 0 && e.T < covered || e.T > c.to || e.T+e.For < c.from {
				continue
			}
			branch := branch(e.Step)
			if branch == "" && e.number("number") > 0 {
				covered = max(covered, e.T+e.For)
			}
			if bars[branch] == nil {
				branches = append(branches, branch)
			}
			kind := "step"
			if e.number("number") > 0 && e.Step == "" {
				title, kind = title+"; it did not end", "step open"
			}
			bars[branch] = append(bars[branch], c.over(e.T, e.T+e.For, mark{Class: kind, Title: fmt.Sprintf("%s to %s  %s", e.T, e.T+e.For, title), Label: foreign.Line(e.Text)}))
		case e.Kind == kindStepEnd && e.Text != stepDone:
			bars[branch(e.Step)] = append(bars[branch(e.Step)], c.over(e.T, e.T, mark{Class: "warn", Title: e.T.String() + "  " + title, Label: title}))
		case e.Kind == kindInject && e.For > 0:
			if e.T <= c.to && e.T+e.For >= c.from {
				title = foreign.Line(ruled(e.Text) + ", " + brief(e.For))
				bars[SourceInject] = append(bars[SourceInject], c.over(e.T, e.T+e.For, mark{Class: "inject", Title: fmt.Sprintf("%s to %s  %s", e.T, e.T+e.For, e.words()), Label: title}))
			}
		case e.Kind == kindInject:
			label := foreign.Line(ruled(e.Text))
			if label == "released" || label == "ended" { // no fault; the end of a bar says it
				continue
			}
			points[SourceInject].add(e.T, "fault", 0, title, label)
		case points[e.Source] == nil:
		case e.alarm():
			points[SourceLog].add(e.T, "warn "+class(e), 0, title, foreign.Line(e.Text))
		case e.Kind == kindRequest || e.Kind == kindSMC:
			label := foreign.Line(requested(e))
			if often[label] > fewRequests || again[i] {
				label = ""
			}
			points[SourceDevice].add(e.T, "device "+class(e), 0, title, label)
		default:
			points[e.Source].add(e.T, e.Source+" "+class(e), 0, title, "")
		}
	}
	slices.SortFunc(branches, cmp.Compare[string])
	var lanes []lane
	for _, b := range branches {
		name := "steps"
		if b != "" {
			name = "branch " + b
		}
		lanes = append(lanes, packed(name, SourceStep, bars[b], 8))
	}
	for _, s := range []string{SourceInject, SourceLog, SourceDevice, SourceAgent} {
		if marks := append(bars[s], points[s].marks()...); marks != nil {
			name := map[string]string{SourceInject: "rules", SourceLog: "guest log"}[s]
			lanes = append(lanes, packed(cmp.Or(name, s), s, marks, map[string]int{SourceInject: 4, SourceLog: 5, SourceDevice: 4, SourceAgent: 1}[s]))
		}
	}
	return lanes
}

// repeats tells the requests that are as the one before, by their index: a driver that has nothing else to do asks for its statistics every two seconds.
func repeats(items []item) map[int]bool {
	again := map[int]bool{}
	last := ""
	for i, e := range items {
		if e.Kind == kindRequest {
			name := requested(e)
			again[i] = name == last
			last = name
		}
	}
	return again
}

// requested is the name of what the driver asks the device for.
func requested(e item) string {
	name, _, _ := strings.Cut(e.Text, " ")
	return name
}

// branch is where a step belongs: "4.0" of "4.0.2", and "" of one that has none beside it.
func branch(step string) string {
	if n := strings.LastIndexByte(step, '.'); n >= 0 {
		return step[:n]
	}
	return ""
}

// ruled is what a rule did.
func ruled(text string) string {
	_, what, ok := strings.Cut(text, ": ")
	if !ok {
		return text
	}
	what, _, _ = strings.Cut(what, " (occurrence")
	return what
}

// cpuLane shows when a CPU is online, which it is since the guest runs, when it is away, and the interrupts it is known to have handled.
func cpuLane(s *story, c chart, cpu int, since Time) lane {
	l := lane{Name: fmt.Sprintf("CPU %d", cpu), Source: SourceCPU, Height: lineHeight + 4}
	bar := func(part span, class, what, label string) {
		if on, ok := c.visible(part); ok {
			l.Marks = append(l.Marks, c.over(on.from, on.to, mark{Class: class, Hue: hue(cpu), Label: label, Title: fmt.Sprintf("CPU %d %s, %s to %s", cpu, what, part.from, on.to)}))
		}
	}
	for _, away := range s.away[cpu] {
		bar(span{since, away.from}, "online", "online", "")
		bar(away, "gone", "offline", "offline")
		since = away.to
	}
	if since < maxTime {
		bar(span{since, maxTime}, "online", "online", "")
	}
	l.clip()
	t := ticks{chart: c}
	for _, e := range s.moves[cpu] {
		t.add(e.T, "move", 0, e.words(), "")
	}
	for _, e := range s.fires[cpu] {
		t.add(e.T, "fire", hue(cpu), fmt.Sprintf("vector %d", *e.Vector), "")
	}
	l.Marks = append(l.Marks, t.marks()...)
	return l
}

// clip keeps the labels of bars within them.
func (l *lane) clip() {
	for i := range l.Marks {
		if m := &l.Marks[i]; m.width < letter*float64(len(m.Label)) {
			m.Label = ""
		} else {
			m.box, m.room = m.left, m.width
		}
	}
}

// vectorLane shows when a vector is enabled, the CPUs it is routed to as observed, and its firings, coloured by the CPU that handled them where that is known.
func vectorLane(s *story, c chart, v int, seen []reading) lane {
	l := lane{Name: fmt.Sprintf("vector %d", v), Source: SourceVector, Height: lineHeight + 6}
	since := Time(-1)
	bar := func(until Time) {
		if part, ok := c.visible(span{since, until}); ok && since >= 0 {
			l.Marks = append(l.Marks, c.over(part.from, part.to, mark{Class: "enabled", Title: fmt.Sprintf("vector %d enabled, %s to %s", v, since, until)}))
			first := until
			if n := slices.IndexFunc(seen, func(r reading) bool { return r.at >= since }); n >= 0 {
				first = min(first, seen[n].at)
			}
			if part, ok := c.visible(span{since, first}); ok && len(seen) > 0 {
				l.Marks = append(l.Marks, c.over(part.from, part.to, mark{Class: "unseen", Title: fmt.Sprintf("vector %d is enabled and not observed, %s to %s", v, since, first)}))
			}
		}
		since = -1
	}
	fires := ticks{chart: c}
	var gone []Time // when it was disabled: it is routed nowhere from then on
	for _, e := range s.vectors[v] {
		switch {
		case e.Kind == kindAssign && since < 0:
			since = e.T
		case e.Kind == kindDeassign:
			bar(e.T)
			gone = append(gone, e.T)
		case e.Kind == kindFire && e.on >= 0:
			fires.add(e.T, "fire", hue(e.on), e.words(), "")
		case e.Kind == kindFire:
			fires.add(e.T, "unknown", 0, e.words(), "")
		case e.Kind != kindAssign:
			fires.add(e.T, "move", 0, e.words(), "")
		}
	}
	bar(c.to)
	for _, r := range routes(seen, gone, s.away, c.to) {
		part, ok := c.visible(r.span)
		if !ok {
			continue
		}
		m := mark{Class: r.class, Title: fmt.Sprintf("vector %d %s, %s to %s", v, r.what, r.from, r.to), Label: "?"}
		if r.class != routeUnknown {
			m.Hue, m.Label = hue(r.cpus[0]), r.cpus.Words()
		}
		l.Marks = append(l.Marks, c.over(part.from, part.to, m))
	}
	l.clip()
	l.Marks = append(l.Marks, fires.marks()...)
	return l
}

// What is known of a vector's CPUs for a piece of time.
const (
	routeSeen    = "routed"  // it was there at the observations before and after
	routeLast    = "maybe"   // it was there at the observation before
	routeUnknown = "nowhere" // its CPU has left since the observation before
)

// route is a piece of time in a vector's life.
type route struct {
	span
	class string
	cpus  cpulist.List
	what  string
}

// routes tell where a vector is known to have been routed. Between two observations that find it at the same place, it was there; else that is not known until the next one,
// and at the latest when its CPU leaves it is not there any more.
func routes(seen []reading, gone []Time, away map[int][]span, end Time) []route {
	var all []route
	add := func(from, to Time, class string, cpus cpulist.List, what string) {
		if n := len(all) - 1; n >= 0 && all[n].class == class && slices.Equal(all[n].cpus, cpus) && all[n].to == from {
			all[n].to = to
			return
		}
		if to > from {
			all = append(all, route{span{from, to}, class, cpus, what})
		}
	}
	for i, r := range seen {
		cpus := cpulist.List(r.effective)
		if len(cpus) == 0 {
			continue
		}
		until, next := end, ""
		same := false
		if i+1 < len(seen) {
			until = min(end, seen[i+1].at)
			same = slices.Equal(seen[i+1].effective, r.effective)
			next = "; the next observation is at " + seen[i+1].at.String()
		}
		if n, _ := slices.BinarySearch(gone, r.at); n < len(gone) && gone[n] < until {
			until, same, next = gone[n], false, "; then it was disabled"
		}
		left := leaves(cpus, away, span{r.at, until})
		switch {
		case same && left == until:
			add(r.at, until, routeSeen, cpus, fmt.Sprintf("routed to %s, observed before and after", cpus.Words()))
		default:
			add(r.at, left, routeLast, cpus, fmt.Sprintf("seen on %s at %s%s", cpus.Words(), r.at, next))
			add(left, until, routeUnknown, nil, fmt.Sprintf("is not known where: %s, where it was seen at %s, has left%s", cpus.Words(), r.at, next))
		}
	}
	return all
}

// leaves is when the first of some CPUs is away in a piece of time, or its end.
func leaves(cpus cpulist.List, away map[int][]span, within span) Time {
	at := within.to
	for _, cpu := range cpus {
		for _, a := range away[cpu] {
			if a.from < at && a.to > within.from {
				at = max(within.from, a.from)
			}
		}
	}
	return at
}
