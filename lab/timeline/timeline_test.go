package timeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"irqlab/devmodel/trace"
	"irqlab/devmodel/vfiouser"
	"irqlab/guestagent/agentapi"
	"irqlab/lab"
)

func read(t *testing.T, content string) *Timeline {
	t.Helper()
	tl, cut, err := Read("test", strings.NewReader(content))
	if err != nil || cut {
		t.Fatalf("cut %v, error %v", cut, err)
	}
	return tl
}

func small(t *testing.T) *Timeline {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "small.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return read(t, string(b))
}

func text(t *testing.T, tl *Timeline, f Filter, each bool) string {
	t.Helper()
	var out bytes.Buffer
	if err := tl.Text(t.Context(), &out, f, each); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// The text of a small case that has one of everything, by hand.
func TestText(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile(filepath.Join("testdata", "small.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), text(t, small(t), Filter{}, false)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	tl := small(t)
	for _, tc := range []struct {
		what string
		f    Filter
		each bool
		want []string // the times and sources of the rows
	}{
		{"CPUs, whoever tells", Filter{Sources: []string{SourceCPU}}, false, []string{"1.600000 guest-log", "1.605000 cpu"}},
		{"a vector", Filter{Vectors: []int{1}}, false, []string{"0.700000 vector", "1.000000 observation", "1.100100 vector", "1.200000 observation", "2.200100 vector"}},
		{"a CPU and what it handled", Filter{CPUs: []int{3}}, false, []string{"1.100100 vector", "1.200000 observation", "1.600000 guest-log", "1.605000 cpu"}},
		{"what lasts into the window", Filter{From: Time(1450 * time.Millisecond), To: Time(1500 * time.Millisecond)}, false, []string{"1.400000 step", "1.410000 inject"}},
		{"each firing", Filter{Vectors: []int{0}, Sources: []string{SourceVector}}, true, []string{"1.100000 vector", "2.200000 vector", "2.200200 vector", "2.200400 vector"}},
		{"nothing", Filter{Vectors: []int{9}}, false, nil},
	} {
		var got []string
		rows, err := rows(t.Context(), tl.items(tc.f), tc.each)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			got = append(got, r.T.String()+" "+r.Source)
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s: (-want +got)\n%s", tc.what, d)
		}
	}
}

func TestWriteThenRead(t *testing.T) {
	t.Parallel()
	tl := small(t)
	var out bytes.Buffer
	if err := tl.Write(&out); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(tl, read(t, out.String())); d != "" {
		t.Errorf("(-written +read)\n%s", d)
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	const header = `{"irqlab":"timeline","schema":1}` + "\n"
	for content, want := range map[string]string{
		"":                               "it is empty",
		"\n\n":                           "it is empty",
		`{"irqlab":"timeline","sch`:      "no whole line",
		"[    0.000000] Linux\n":         "test:1: not a line of a timeline: want one JSON object",
		`{"schema":1,"cases":[]}` + "\n": "run --out leaves as timeline.jsonl or trace.jsonl",
		`{"irqlab":"timeline","schema":9}` + "\n":                             "it has schema 9",
		`{"irqlab":"timeline","schema":1,"cpus":-1}` + "\n":                   "-1 CPUs",
		header + `{"t":1,"source":"step"}` + "\n":                             "test:2: not a line of a timeline: it has no source or no kind",
		header + `{"source":"step","kind":"step"}` + "\n":                     "it has no t",
		header + `{"t":1e300,"source":"step","kind":"step"}` + "\n":           "want seconds",
		header + `{"t":1,"source":"vector","kind":"x","vector":-1}` + "\n":    "vector -1",
		header + `{"t":1,"source":"cpu","kind":"x","cpu":100000}` + "\n":      "CPU 100000",
		header + `{"t":1,"source":"step","kind":"step","for":-1}` + "\n":      "out of range",
		header + `{"t":1,"source":"step","kind":"step"} {}` + "\n":            "something follows",
		header + `{"t":1,"kind":"` + strings.Repeat("x", trace.MaxLine) + `"`: "longer than",
	} {
		tl, _, err := Read("test", strings.NewReader(content))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, error %v; want %q", content, tl, err, want)
		}
	}
	tl, cut, err := Read("test", strings.NewReader(header+`{"t":1,"source":"step","kind":"step"}`+"\n"+`{"t":2,"sou`))
	if err != nil || !cut || len(tl.Events) != 1 {
		t.Errorf("a file cut short: %v, cut %v, error %v", tl, cut, err)
	}
}

// A plain trace is a timeline without a guest.
func TestReadTrace(t *testing.T) {
	t.Parallel()
	tl := read(t, `{"t":1000000,"kind":"step","text":"loading mana"}
{"t":2000000,"kind":"hwc-request","code":1,"text":"QUERY_DEV_CONFIG"}
{"t":3000000,"kind":"vector-fire","vector":2,"fired":1,"delivered":0}
{"t":5000000,"kind":"agent-call","microseconds":4000,"failed":0,"text":"module.load"}
`)
	want := `A function's trace: what the guest logged is not in it.

 seconds           +  source  event
0.001000              step    loading mana
0.001000    0.000000  agent   module.load, 4ms
0.002000    0.001000  device  hwc-request  QUERY_DEV_CONFIG  (code=1)
0.003000    0.001000  vector  vector 2 fired; it waits until the vector is enabled
`
	if d := cmp.Diff(want, text(t, tl, Filter{}, false)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if step := tl.Events[0]; step.For != Time(2*time.Millisecond) {
		t.Errorf("the last step lasts %s", step.For)
	}
}

func ms(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

func TestAlign(t *testing.T) {
	t.Parallel()
	at := func(host, rtt, guest float64) Pair { return Pair{ms(host - rtt/2), ms(host + rtt/2), ms(guest)} }
	for _, tc := range []struct {
		what       string
		start, end []Pair
		guest      float64 // in milliseconds …
		host       float64 // … and where that is
		err        float64 // and within what
		ppm        float64
		excess     float64
	}{
		{"one reading", []Pair{at(100, 4, 5000)}, nil, 6000, 1100, 2 + 5, 0, 0},
		{"only at the end", nil, []Pair{at(100, 4, 5000)}, 5000, 100, 2, 0, 0},
		{"the shortest way counts", []Pair{at(90, 40, 4985), at(100, 4, 5000)}, nil, 5000, 100, 2, 0, 0},
		{"between two", []Pair{at(100, 2, 5000)}, []Pair{at(1100, 6, 6010)}, 5505, 600, 3, 10000, 0},
		{"before the first", []Pair{at(100, 2, 5000)}, []Pair{at(1100, 6, 6010)}, 3990, -900, 3 + 4/1.01, 10000, 0},
		{"after the last", []Pair{at(100, 2, 5000)}, []Pair{at(1100, 6, 6010)}, 7020, 2100, 3 + 4/1.01, 10000, 0},
		{"beyond two that tell no rate", []Pair{at(100, 2, 5000)}, []Pair{at(200, 6, 5101)}, 4000, -900, 3 + 5, 10000, 0},
		{"a reading that contradicts the line", []Pair{at(100, 2, 5000), at(110, 4, 5015)}, []Pair{at(1100, 2, 6000)}, 5500, 600, 1 + 3, 0, 3},
		{"one that does not", []Pair{at(100, 2, 5000), at(110, 14, 5015)}, []Pair{at(1100, 2, 6000)}, 5500, 600, 1, 0, 0},
	} {
		c, err := Align(tc.start, tc.end)
		if err != nil {
			t.Errorf("%s: %v", tc.what, err)
			continue
		}
		near := func(a Time, b float64) bool {
			return max(time.Duration(a)-ms(b), ms(b)-time.Duration(a)) < time.Microsecond
		}
		host := c.Host(Time(ms(tc.guest)))
		if !near(host, tc.host) || !near(c.ErrorAt(host), tc.err) || !near(c.Excess, tc.excess) || max(c.PPM()-tc.ppm, tc.ppm-c.PPM()) > 1 {
			t.Errorf("%s: %g ms is at %s, within %s, residual %s, %g ppm; clock %+v", tc.what, tc.guest, host, c.ErrorAt(host), c.Excess, c.PPM(), c)
		}
	}
	for what, pairs := range map[string][2][]Pair{
		"no reading":          {},
		"a clock that stands": {{at(100, 2, 5000)}, {at(200, 2, 5000)}},
		"one that goes back":  {{at(100, 2, 5000)}, {at(200, 2, 4000)}},
	} {
		if c, err := Align(pairs[0], pairs[1]); err == nil {
			t.Errorf("%s: %+v", what, c)
		}
	}
}

// slowGuest answers after the given ways there and back, and then no more.
type slowGuest struct {
	now   time.Duration
	ways  []time.Duration
	asked []string
}

func (g *slowGuest) Mark(_ context.Context, text string) (agentapi.LogRecord, error) {
	if len(g.ways) == 0 {
		return agentapi.LogRecord{}, errors.New("gone")
	}
	if slices.Contains(g.asked, text) {
		return agentapi.LogRecord{}, errors.New("the same mark again")
	}
	g.asked = append(g.asked, text)
	g.now += g.ways[0]
	g.ways = g.ways[1:]
	return agentapi.LogRecord{Seconds: 7.000001, Text: text}, nil
}

func TestMeasure(t *testing.T) {
	t.Parallel()
	quick, slow := ms(4), ms(40)
	for what, tc := range map[string]struct {
		ways []time.Duration
		want int // readings
		err  bool
	}{
		"a quick guest":               {[]time.Duration{quick, quick, quick, quick}, 3, false},
		"a busy host":                 {[]time.Duration{slow, slow, slow, slow, quick, quick}, 5, false},
		"one that stays so":           {slices.Repeat([]time.Duration{slow}, 20), mostReadings, false},
		"a guest that dies meanwhile": {[]time.Duration{quick, slow}, 2, true},
	} {
		g := &slowGuest{now: ms(10), ways: tc.ways}
		pairs, err := Measure(t.Context(), g, func() time.Duration { return g.now }, 3)
		if len(pairs) != tc.want || (err != nil) != tc.err {
			t.Errorf("%s: %d readings, error %v", what, len(pairs), err)
		} else if want := (Pair{ms(10), ms(10) + tc.ways[0], 7000001 * time.Microsecond}); pairs[0] != want {
			t.Errorf("%s: %v, want %v", what, pairs[0], want)
		}
	}
}

// Build leaves out the log of the boot that the snapshot saved, and the lab's own marks; it knows CPUs by the kernel's lines, and gives holds their length.
func TestBuild(t *testing.T) {
	t.Parallel()
	rec := trace.New(0)
	step, inject := trace.NewKind("step"), trace.NewKind("inject")
	rec.Note(step, "starting")
	rec.Note(inject, "query: hold request:QUERY_DEV_CONFIG (occurrence 1)")
	rec.Record(vfiouser.TraceFire, 3, 1, 1)
	rec.Note(lab.TraceCPU, "sysfs", 2, 0)
	rec.Note(inject, "query: released")
	rec.Note(lab.TraceCall, "cpu.set", 1)
	events, _ := rec.Events()
	clock, err := Align([]Pair{{ms(500), ms(502), ms(9000)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	log := []agentapi.LogRecord{
		{Seconds: 8.0, Level: 6, Text: "saved"},
		{Seconds: 9.0, Level: 7, Text: "irqlab: clock mark 0"},
		{Seconds: 9.25, Level: 6, Text: "smpboot: CPU 2 is now offline"},
		{Seconds: 9.5, Level: 6, Text: "smpboot: Booting Node 0 Processor 2 APIC 0x2"},
	}
	tl := Build(Header{Guest: Time(ms(300)), End: Time(ms(2000))}, events, log, clock)
	var got []string
	for _, e := range tl.Events {
		s := e.Source + " " + e.Kind
		if e.Vector != nil {
			s += " vector"
		}
		if e.CPU != nil {
			s += " cpu"
		}
		got = append(got, s)
	}
	slices.Sort(got) // the call begins before the others, by as little as they are apart
	want := []string{"agent agent-call", "cpu cpu cpu", "guest-log cpu-offline cpu", "guest-log cpu-online cpu", "inject inject", "inject inject", "step step", "vector vector-fire vector"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	for _, e := range tl.Events {
		switch {
		case e.Kind == KindOffline && e.T != Time(ms(751)):
			t.Errorf("the offline line is at %s", e.T)
		case e.Kind == "step" && e.For != Time(ms(2000))-e.T:
			t.Errorf("the step lasts %s", e.For)
		case strings.Contains(e.Text, "hold") && e.For != Time(events[4].T-events[1].T):
			t.Errorf("the hold lasts %s of %s", e.For, events[4].T-events[1].T)
		}
	}
}

// What a firing's CPU is said to be follows from counts alone.
func TestHandlers(t *testing.T) {
	t.Parallel()
	seen := func(t, vector, irq, cpu, handled string) string {
		return `{"t":` + t + `,"source":"observation","kind":"vector-read","vector":` + vector + `,"cpu":` + cpu + `,"fields":{"irq":` + irq + `,"handled":` + handled + `,"effective":1}}` + "\n"
	}
	fire := func(t, vector string) string {
		return `{"t":` + t + `,"source":"vector","kind":"vector-fire","vector":` + vector + `,"fields":{"delivered":1}}` + "\n"
	}
	const call = `{"t":1.5,"source":"agent","kind":"agent-call","text":"x"}` + "\n"
	for what, tc := range map[string]struct {
		events string
		want   map[int]int
	}{
		"one CPU's count rose":      {seen("1", "0", "30", "2", "5") + fire("2", "0") + seen("3", "0", "30", "2", "6"), map[int]int{1: 2}},
		"it moved to another":       {seen("1", "0", "30", "2", "0") + fire("2", "0") + seen("3", "0", "30", "2", "0") + seen("3", "0", "30", "3", "1"), map[int]int{1: 3}},
		"two CPUs' rose":            {seen("1", "0", "30", "2", "5") + fire("2", "0") + seen("3", "0", "30", "1", "1") + seen("3", "0", "30", "2", "6"), map[int]int{}},
		"none did":                  {seen("1", "0", "30", "2", "5") + fire("2", "0") + seen("3", "0", "30", "2", "5"), map[int]int{}},
		"another IRQ":               {seen("1", "0", "30", "2", "5") + fire("2", "0") + seen("3", "0", "31", "2", "6"), map[int]int{}},
		"a count that fell":         {seen("1", "0", "30", "2", "5") + fire("2", "0") + seen("3", "0", "30", "1", "1") + seen("3", "0", "30", "2", "4"), map[int]int{}},
		"another vector's":          {seen("1", "1", "30", "2", "5") + fire("2", "0") + seen("3", "1", "30", "2", "6"), map[int]int{}},
		"not observed before":       {fire("2", "0") + seen("3", "0", "30", "2", "6"), map[int]int{}},
		"nor after":                 {seen("1", "0", "30", "2", "5") + fire("2", "0"), map[int]int{}},
		"two readings of two CPUs":  {seen("1", "0", "30", "2", "5") + call + seen("1.6", "0", "30", "3", "5") + fire("2", "0") + seen("3", "0", "30", "3", "6"), map[int]int{3: 3}},
		"the same reading is twice": {seen("1", "0", "30", "2", "5") + seen("1", "0", "30", "2", "5") + fire("2", "0") + seen("3", "0", "30", "2", "6"), map[int]int{2: 2}},
	} {
		tl := read(t, `{"irqlab":"timeline","schema":1}`+"\n"+tc.events)
		if d := cmp.Diff(tc.want, handlers(tl.Events)); d != "" {
			t.Errorf("%s: (-want +got)\n%s", what, d)
		}
	}
}

func htmlPage(t testing.TB, tl *Timeline, f Filter) string {
	t.Helper()
	var out bytes.Buffer
	if err := tl.HTML(t.Context(), &out, f, false); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// elements counts the page's elements by name, and fails at attributes that could run or fetch anything.
func elements(t *testing.T, page string) map[string]int {
	t.Helper()
	root, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for e := range root.Descendants() {
		if e.Type != html.ElementNode {
			continue
		}
		n[e.Data]++
		for _, a := range e.Attr {
			if strings.HasPrefix(a.Key, "on") || a.Key == "src" || a.Key == "href" || a.Key == "style" {
				t.Errorf("<%s> has %s=%q", e.Data, a.Key, a.Val)
			}
		}
	}
	return n
}

func TestHTML(t *testing.T) {
	t.Parallel()
	tl := small(t)
	page := htmlPage(t, tl, Filter{})
	n := elements(t, page)
	if n["script"] != 1 || n["style"] != 1 || n["link"] != 0 || n["img"] != 0 {
		t.Errorf("elements %v", n)
	}
	for _, want := range []string{">CPU 3</div>", ">vector 1</div>", ">rules</div>", "vector 1 seen on CPU 3 at 1.200000", "vector 1 is not known where: CPU 3", "CPU 3 online, 0.300000 to 1.600000", "query: hold request", "1.100100  vector 1<"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q on the page", want)
		}
	}
	// A window in time keeps the state that began before it.
	window := htmlPage(t, tl, Filter{From: Time(ms(1700)), To: Time(ms(2000)), CPUs: []int{0, 3}})
	for want, there := range map[string]bool{"CPU 0 online, 0.300000 to 2.000000": true, ">CPU 1</div>": false, "loading mana": false, ">vector 1</div>": true} {
		if strings.Contains(window, want) != there {
			t.Errorf("%q on the page of a window: want %v", want, there)
		}
	}
}

// A vector is known to be where two observations in a row find it; else that is not known until the next one, and it is nowhere while it is disabled.
func TestVectorLane(t *testing.T) {
	t.Parallel()
	seen := func(at, cpu string) string {
		return `{"t":` + at + `,"source":"observation","kind":"vector-read","vector":0,"cpu":` + cpu + `,"fields":{"irq":30,"handled":1,"effective":1}}` + "\n" +
			`{"t":` + at + `,"source":"agent","kind":"agent-call"}` + "\n"
	}
	moved := func(at, cpu, online string) string {
		return `{"t":` + at + `,"source":"cpu","kind":"cpu","cpu":` + cpu + `,"fields":{"online":` + online + `}}` + "\n"
	}
	const assign, deassign = `{"t":1,"source":"vector","kind":"vector-assign","vector":0}` + "\n", `{"t":5,"source":"vector","kind":"vector-deassign","vector":0}` + "\n"
	for what, tc := range map[string]struct {
		events string
		want   []string
	}{
		"disabled, and enabled again": {
			assign + seen("2", "1") + seen("4", "1") + deassign + strings.Replace(assign, "1", "6", 1) + seen("8", "1") + seen("9", "2"),
			[]string{"enabled 1 to 5", "unseen 1 to 2", "enabled 6 to 10", "unseen 6 to 8", "routed 2 to 4", "maybe 4 to 5", "maybe 8 to 9", "maybe 9 to 10"},
		},
		"its CPU leaves": {
			assign + seen("2", "1") + seen("4", "1") + moved("6", "1", "0") + seen("8", "2") + seen("10", "2"),
			[]string{"enabled 1 to 10", "unseen 1 to 2", "routed 2 to 4", "maybe 4 to 6", "nowhere 6 to 8", "routed 8 to 10"},
		},
		"its CPU leaves and comes back in between": {
			assign + seen("2", "1") + moved("4", "1", "0") + moved("5", "1", "1") + seen("8", "1"),
			[]string{"enabled 1 to 10", "unseen 1 to 2", "maybe 2 to 4", "nowhere 4 to 8", "maybe 8 to 10"},
		},
		"another CPU leaves": {
			assign + seen("2", "1") + moved("4", "3", "0") + seen("8", "1"),
			[]string{"enabled 1 to 10", "unseen 1 to 2", "routed 2 to 8", "maybe 8 to 10"},
		},
	} {
		tl := read(t, `{"irqlab":"timeline","schema":1,"end":10}`+"\n"+tc.events)
		c := chart{span: span{to: tl.Header.End}, slots: 100}
		var got []string
		for _, m := range vectorLane(c.story(tl.items(Filter{})), c, 0, readings(tl.Events)[0]).Marks {
			got = append(got, fmt.Sprintf("%s %g to %g", m.Class, m.left/10, (m.left+m.width)/10))
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s: (-want +got)\n%s", what, d)
		}
	}
}

// A CPU's absence is on its own lane, across all of them, and named.
func TestAbsence(t *testing.T) {
	t.Parallel()
	tl := read(t, `{"irqlab":"timeline","schema":1,"end":10,"cpus":2}
{"t":2,"source":"guest-log","kind":"cpu-offline","cpu":1,"level":6,"text":"smpboot: CPU 1 is now offline"}
{"t":2.1,"source":"cpu","kind":"cpu","cpu":1,"fields":{"online":0},"text":"sysfs"}
{"t":4,"source":"cpu","kind":"cpu","cpu":1,"fields":{"online":1},"text":"sysfs"}
{"t":9,"source":"cpu","kind":"cpu","cpu":1,"fields":{"online":0},"text":"sysfs"}
`)
	c := chart{span: span{to: tl.Header.End}, slots: 100}
	s := c.story(tl.items(Filter{}))
	bands, names := c.bands([]int{0, 1}, s)
	show := func(marks []mark) (got []string) {
		for _, m := range marks {
			got = append(got, fmt.Sprintf("%s %g to %g %s", m.Class, m.left/10, (m.left+m.width)/10, m.Label))
		}
		return got
	}
	want := []string{"away 2 to 4 CPU 1, 2s", "away 9 to 10 CPU 1, 1s"}
	if d := cmp.Diff(want, show(bands)); d != "" {
		t.Errorf("bands: (-want +got)\n%s", d)
	}
	if d := cmp.Diff(want, show(names.Marks)); d != "" {
		t.Errorf("names: (-want +got)\n%s", d)
	}
	want = []string{"online 0 to 2 ", "gone 2 to 4 offline", "online 4 to 9 ", "gone 9 to 10 offline"}
	if d := cmp.Diff(want, show(cpuLane(s, c, 1, 0).Marks)[:4]); d != "" {
		t.Errorf("lane: (-want +got)\n%s", d)
	}
}

// Long idle time is folded, the longest first, and what is left is drawn to scale.
func TestFold(t *testing.T) {
	t.Parallel()
	s := func(n float64) Time { return Time(ms(1000 * n)) }
	for what, tc := range map[string]struct {
		moments []Time
		want    []span
	}{
		"all the same":                    {[]Time{s(0), s(2), s(4), s(6), s(8), s(10), s(12), s(14), s(16), s(18)}, nil},
		"three pauses":                    {[]Time{s(1), s(1.1), s(19), s(19.1), s(19.3)}, []span{{s(0.025), s(0.975)}, {s(1.125), s(18.975)}, {s(19.325), s(19.975)}}},
		"nothing at all":                  {nil, []span{{s(0.025), s(19.975)}}},
		"what is short stays as it is":    {[]Time{s(0.1), s(0.2), s(0.3), s(19.9)}, []span{{s(0.325), s(19.875)}}},
		"moments that are not on a chart": {[]Time{s(-5), s(0.1), s(19.9), s(30)}, []span{{s(0.125), s(19.875)}}},
	} {
		got := fold(span{0, s(20)}, tc.moments)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", what, got, tc.want)
		}
		c := chart{span: span{0, s(20)}, folds: got}
		last := -1.0
		for at := Time(0); at <= s(20); at += s(0.05) {
			x := c.percent(at)
			if x < last || x < 0 || x > 100.000001 {
				t.Fatalf("%s: %s is at %g %%, after %g %%", what, at, x, last)
			}
			last = x
		}
		if c.percent(0) != 0 || last < 99.9999 {
			t.Errorf("%s: from %g to %g %%", what, c.percent(0), last)
		}
		for _, f := range got {
			if width := c.percent(f.to) - c.percent(f.from); width < foldWidth-1e-6 || width > foldWidth+1e-6 {
				t.Errorf("%s: a fold of %g %%", what, width)
			}
		}
	}
}

func TestFoldName(t *testing.T) {
	t.Parallel()
	for n, want := range map[float64]string{0.2571: "0.26 s", 1.74: "1.7 s", 9.96: "10 s", 29.4: "29 s", 131: "131 s"} {
		if got := foldName(span{0, Time(ms(1000 * n))}); got != want {
			t.Errorf("%g: %q, want %q", n, got, want)
		}
	}
}

// What a driver asks again and again, the noise of a device and the boot before the first step do not keep time from being folded.
func TestMoments(t *testing.T) {
	t.Parallel()
	tl := read(t, `{"irqlab":"timeline","schema":1,"end":40}
{"t":1,"source":"guest-log","kind":"log","level":6,"text":"of the boot"}
{"t":2,"for":3,"source":"step","kind":"step","fields":{"number":1},"step":"0","text":"probe"}
{"t":3,"source":"device","kind":"hwc-request","text":"LIST_DEVICES a"}
{"t":10,"source":"device","kind":"hwc-request","text":"QUERY_GF_STAT a"}
{"t":10,"source":"vector","kind":"vector-fire","vector":0}
{"t":12,"source":"device","kind":"hwc-request","text":"QUERY_GF_STAT b"}
{"t":13,"source":"device","kind":"doorbell-rq"}
{"t":14,"source":"device","kind":"eqe"}
{"t":15,"source":"agent","kind":"agent-call"}
{"t":16,"source":"guest-log","kind":"log","level":7,"text":"a detail"}
{"t":17,"source":"vector","kind":"vector-fire","vector":1}
{"t":18,"source":"guest-log","kind":"log","level":6,"text":"a notice"}
`)
	var got []float64
	for _, at := range moments(tl.items(Filter{})) {
		got = append(got, at.seconds())
	}
	if d := cmp.Diff([]float64{2, 5, 3, 10, 17, 18}, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// A file with very many kinds still makes a page: the rarest go with their source.
func TestKinds(t *testing.T) {
	t.Parallel()
	tl := &Timeline{Header: Header{IRQLab: "timeline", Schema: 1}}
	for i := range 5 * maxKinds {
		for range i + 1 {
			tl.Events = append(tl.Events, Event{Source: SourceDevice, Kind: fmt.Sprintf("kind-%d", i)})
		}
	}
	sources, class := kindsOf(tl.items(Filter{}))
	if len(sources) != 1 || len(sources[0].Kinds) != maxKinds || sources[0].Kinds[0].Name != fmt.Sprintf("kind-%d", 5*maxKinds-1) {
		t.Errorf("%d sources, the first %+v", len(sources), sources[0])
	}
	if first, last := class(tl.items(Filter{})[0]), class(tl.items(Filter{})[len(tl.Events)-1]); first != "" || last != "k0" {
		t.Errorf("classes %q and %q", first, last)
	}
}

// Labels never cover each other, bars stay where they are, and what has no room loses its label and not its mark.
func TestPack(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct {
		marks []mark
		lines int
		bare  bool
		want  []string // line, label, and where that is
	}{
		"side by side": {[]mark{{left: 0, width: 20, Label: "a"}, {left: 20, width: 20, Label: "b"}}, 2, false, []string{"0 a 0+20", "0 b 20+80"}},
		"short bars":   {[]mark{{left: 0, width: 1, Label: "aaaaaaaa"}, {left: 1, width: 1, Label: "b"}, {left: 50, Label: "c"}}, 2, false, []string{"0 aaaaaaaa 0+50", "1 b 1+99", "0 c 50+50"}},
		"no room":      {[]mark{{left: 0, width: 9, Label: "aaaaaaaa"}, {left: 1, width: 1, Label: "b"}}, 1, false, []string{"0 aaaaaaaa 0+100", "0  1+0"}},
		"at the edge":  {[]mark{{left: 98, Label: "aaaa"}}, 1, false, []string{"0 aaaa 93.8+4.2 end"}},
		"bare ones":    {[]mark{{left: 0}, {left: 1, Label: "a"}, {left: 2}}, 2, true, []string{"0  0+0", "1 a 1+99", "0  2+0"}},
		"bare bars":    {[]mark{{left: 0, width: 5}, {left: 1, width: 5}}, 2, true, []string{"0  0+0", "0  1+0"}},
	} {
		marks, used := pack(tc.marks, tc.lines, tc.bare)
		var got []string
		for _, m := range marks {
			s := fmt.Sprintf("%d %s %.4g+%.4g", m.line, m.Label, m.box, m.room)
			if m.End && m.Label != "" {
				s += " end"
			}
			got = append(got, s)
			if m.line >= used {
				t.Errorf("%s: line %d of %d", what, m.line, used)
			}
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s: (-want +got)\n%s", what, d)
		}
	}
}

// branched is a trace of steps side by side, one of which was refused, and one that did not end.
const branched = `{"t":0,"kind":"step","number":0,"text":"starting"}
{"t":1000000000,"kind":"step","number":1,"text":"together"}
{"t":1000000000,"kind":"step","number":2,"text":"offline 3"}
{"t":1000000000,"kind":"step","number":3,"text":"fire"}
{"t":1500000000,"kind":"step","number":0,"text":"bringing eth0 up"}
{"t":1900000000,"kind":"step-end","number":2,"text":"0.0.0 done"}
{"t":2000000000,"kind":"step","number":4,"text":"online 3"}
{"t":4000000000,"kind":"step-end","number":3,"text":"0.1.0 refused: no"}
{"t":4500000000,"kind":"step-end","number":4,"text":"0.0.1 done"}
{"t":4500000000,"kind":"step-end","number":1,"text":"0 done"}
{"t":4500000000,"kind":"step","number":5,"text":"settle"}
{"t":5000000000,"kind":"client-disconnect","client":1}
`

// A step with a number lasts until its own end, whatever begins meanwhile, and is on the lane of its branch.
func TestBranches(t *testing.T) {
	t.Parallel()
	tl := read(t, branched)
	want := `A function's trace: what the guest logged is not in it.

 seconds           +  source  event
0.000000              step    starting
1.000000    1.000000  step    0 together, 3.5s
1.000000    0.000000  step    0.0.0 offline 3, 900ms
1.000000    0.000000  step    0.1.0 fire, 3s
1.500000    0.500000  step    bringing eth0 up
1.900000    0.400000  step    0.0.0 done
2.000000    0.100000  step    0.0.1 online 3, 2.5s
4.000000    2.000000  step    0.1.0 refused: no
4.500000    0.500000  step    0.0.1 done
4.500000    0.000000  step    settle
5.000000    0.500000  device  client-disconnect  client=1
`
	if d := cmp.Diff(want, text(t, tl, Filter{}, false)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if e := tl.Events[4]; e.For != Time(ms(400)) {
		t.Errorf("%s lasts %s; it ends when a step does", e.Text, e.For)
	}
	c := chart{span: span{to: tl.Header.End}, slots: 100}
	var got []string
	for _, l := range sourceLanes(tl.items(Filter{}), c, func(item) string { return "" }) {
		for _, m := range l.Marks {
			got = append(got, fmt.Sprintf("%s: %s %s %g to %g", l.Name, m.Class, m.Label, m.left/20, (m.left+m.width)/20))
		}
	}
	lanes := []string{
		"steps: step starting 0 to 1", "steps: step together 1 to 4.5", "steps: step open settle 4.5 to 5",
		"branch 0.0: step offline 3 1 to 1.9", "branch 0.0: step online 3 2 to 4.5",
		"branch 0.1: step fire 1 to 4", "branch 0.1: warn 0.1.0 refused: no 4 to 4",
		"device: device   5 to 5",
	}
	if d := cmp.Diff(lanes, got); d != "" {
		t.Errorf("lanes: (-want +got)\n%s", d)
	}
}

// What was dropped is a moment with its name, and what was held has its length.
func TestRules(t *testing.T) {
	t.Parallel()
	tl := read(t, `{"irqlab":"timeline","schema":1,"end":10}
{"t":1,"source":"inject","kind":"inject","text":"d: drop vector:1 (occurrence 1)"}
{"t":2,"for":3,"source":"inject","kind":"inject","text":"h: hold request:REGISTER_DEVICE (occurrence 2)"}
{"t":5,"source":"inject","kind":"inject","text":"h: released"}
{"t":6,"source":"inject","kind":"inject","text":"d: ended"}
{"t":7,"source":"guest-log","kind":"log","level":4,"text":"WARNING: odd"}
{"t":8,"source":"guest-log","kind":"log","level":6,"text":"even"}
`)
	var got []string
	for _, l := range sourceLanes(tl.items(Filter{}), chart{span: span{to: tl.Header.End}, slots: 100}, func(item) string { return "" }) {
		for _, m := range l.Marks {
			got = append(got, strings.Join(strings.Fields(fmt.Sprintf("%s: %s %s %g to %g", l.Name, m.Class, m.Label, m.left/10, (m.left+m.width)/10)), " "))
		}
	}
	want := []string{"rules: fault drop vector:1 1 to 1", "rules: inject hold request:REGISTER_DEVICE, 3s 2 to 5", "guest log: warn WARNING: odd 7 to 7", "guest log: guest-log 8 to 8"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// Requests that are rare have their names on the device's lane, each once in a row.
func TestRequests(t *testing.T) {
	t.Parallel()
	content := `{"irqlab":"timeline","schema":1,"end":100}` + "\n"
	for i, name := range []string{"A", "B", "B", "C", "D", "C", "D", "C", "D", "C", "D", "C", "D"} {
		content += fmt.Sprintf(`{"t":%d,"source":"device","kind":"hwc-request","text":"%s x=1"}`+"\n", 7*i, name)
	}
	tl := read(t, content)
	var got []string
	for _, m := range sourceLanes(tl.items(Filter{}), chart{span: span{to: tl.Header.End}, slots: 100}, func(item) string { return "" })[0].Marks {
		got = append(got, m.Label)
	}
	if d := cmp.Diff([]string{"A", "B", "", "", "", "", "", "", "", "", "", "", ""}, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// Every kind can be hidden without a script, doorbells and the agent's calls are at first, and the top of the page has the question, the verdict and the last observation.
func TestPage(t *testing.T) {
	t.Parallel()
	tl := read(t, `{"irqlab":"timeline","schema":1,"scenario":"s","case":"c","outcome":"fail","end":3,"question":"Why?","driver":"mana","reasons":["because"],"known":"for long","final":{"label":"after","online":"0-1","vectors":[`+
		`{"index":1,"role":"queue","irq":31,"action":"mana_q0","asked":"2","requested":"0-1","effective":"2","pending":true},{"index":2,"role":"queue","irq":32,"asked":"1","requested":"1","effective":"1"}]}}
{"t":1,"source":"device","kind":"doorbell-cq","fields":{"id":1}}
{"t":1,"source":"device","kind":"hwc-request","text":"REGISTER_DEVICE"}
{"t":1,"source":"agent","kind":"agent-call","text":"x"}
{"t":2,"source":"guest-log","kind":"log","level":7,"text":"a detail"}
{"t":2,"source":"guest-log","kind":"log","level":3,"text":"an error"}
`)
	page := htmlPage(t, tl, Filter{})
	root, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	attr := func(e *html.Node, key string) (string, bool) {
		n := slices.IndexFunc(e.Attr, func(a html.Attribute) bool { return a.Key == key })
		if n < 0 {
			return "", false
		}
		return e.Attr[n].Val, true
	}
	off := map[string]bool{} // by the label's first word
	for e := range root.Descendants() {
		if kind, _ := attr(e, "type"); e.Data != "input" || kind != "checkbox" {
			continue
		}
		id, _ := attr(e, "id")
		if rule := fmt.Sprintf("body:has(#%[1]s:not(:checked)) .%[1]s { display: none; }", id); !strings.Contains(page, rule) {
			t.Errorf("no rule %q", rule)
		}
		_, on := attr(e, "checked")
		off[strings.TrimSpace(e.NextSibling.Data)] = !on
	}
	want := map[string]bool{"device": false, "doorbell-cq": true, "hwc-request": false, "agent": true, "guest-log": false, "debug": true, "warnings": false}
	if d := cmp.Diff(want, off); d != "" {
		t.Errorf("hidden at first: (-want +got)\n%s", d)
	}
	for _, want := range []string{`<span class="verdict fail">fail</span>`, "Why?", "because", "Known on this kernel: for long", "“after”: CPUs 0-1 online", "mana_q0", "CPU 2 is offline, not as asked, not yet moved", `<td class="odd">0-1</td>`} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q on the page", want)
		}
	}
	if strings.Count(page, `class="odd"`) != 1 {
		t.Error("a vector that is as it was asked is told to be odd")
	}
}

// What the guest wrote stays text, wherever it shows.
func TestHTMLEscapes(t *testing.T) {
	t.Parallel()
	const evil = `</title></text></svg><script>alert(1)</script><img src=x onerror=alert(2)>"'&`
	tl := &Timeline{Header: Header{
		IRQLab: "timeline", Schema: 1, Case: evil, Notes: []string{evil}, Outcome: evil, Question: evil, Driver: evil, Strategy: evil, Reasons: []string{evil}, Known: evil,
		Final: &Final{Label: evil, Vectors: []Vector{{Role: evil, Action: evil}}},
	}, Events: []Event{
		{Source: SourceLog, Kind: KindLog, Text: evil, Level: 3}, {Source: SourceStep, Kind: "step", Text: evil, For: 5}, {Source: SourceDevice, Kind: evil},
		{Source: SourceInject, Kind: "inject", Text: evil, For: 7}, {Source: SourceStep, Kind: "step-end", Text: evil, Step: evil},
		{Source: SourceDevice, Kind: "hwc-request", Text: evil}, {Source: evil, Kind: evil, Text: evil},
	}}
	page := htmlPage(t, tl, Filter{})
	n := elements(t, page)
	if n["script"] != 1 || n["img"] != 0 {
		t.Errorf("elements %v", n)
	}
	if strings.Contains(page, `class="verdict`) {
		t.Error("an outcome that there is not became a class")
	}
}

// A page of very many events is still one a browser shows.
func TestHTMLOfManyEvents(t *testing.T) {
	t.Parallel()
	rec := trace.New(1 << 17)
	for i := range uint64(50000) {
		rec.Record(vfiouser.TraceFire, i%65, i, 1)
		if i%1000 == 0 {
			for v := range uint64(65) {
				rec.Record(lab.TraceRead, v, 30+v, v%16, i, 1, 0)
			}
		}
	}
	events, _ := rec.Events()
	for i := range events {
		events[i].T = time.Duration(i) * 100 * time.Microsecond
	}
	page := htmlPage(t, Build(Header{CPUs: 16, End: Time(6 * time.Second)}, events, nil, nil), Filter{})
	n := elements(t, page)
	if n["rect"] > 2*maxMarks || n["tr"] > maxRows || len(page) > 16<<20 {
		t.Errorf("%d marks, %d rows, %d bytes", n["rect"], n["tr"], len(page))
	}
	if n["rect"] < 1000 {
		t.Errorf("%d marks", n["rect"])
	}
}

func FuzzRead(f *testing.F) {
	b, err := os.ReadFile(filepath.Join("testdata", "small.jsonl"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	for _, s := range []string{"", "{", `{"irqlab":"timeline","schema":1}`, `{"t":1,"kind":"vector-fire","vector":1}`, `{"t":-9e18,"kind":"agent-call","microseconds":18446744073709551615}`,
		`{"t":5,"kind":"vector-read","vector":1,"cpu":4,"effective":1}` + "\n" + `{"t":6,"kind":"cpu","cpu":4,"online":0}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		tl, _, err := Read("fuzz", bytes.NewReader(b))
		if err != nil {
			return
		}
		var out, plain bytes.Buffer
		if err := tl.Write(&out); err != nil {
			t.Fatal(err)
		}
		again, cut, err := Read("again", &out)
		if err != nil || cut || len(again.Events) != len(tl.Events) {
			t.Fatalf("%d events read back as %v, cut %v: %v", len(tl.Events), again, cut, err)
		}
		if err := tl.Text(t.Context(), &plain, Filter{}, true); err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(plain.Bytes(), []byte("\n")); lines < len(tl.Events) {
			t.Errorf("%d events in %d lines", len(tl.Events), lines)
		}
		if _, err := html.Parse(strings.NewReader(htmlPage(t, tl, Filter{}))); err != nil {
			t.Error(err)
		}
	})
}
