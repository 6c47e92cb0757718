package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/foreign"
	"irqlab/lab/layout"
	"irqlab/scenarios/result"
)

// Comparison sets the same cases under two kernels against each other: case k of A is case k of B but for the kernel.
type Comparison struct {
	Schema      int           `json:"schema"`
	A           result.Report `json:"a"`
	B           result.Report `json:"b"`
	Differences []Difference  `json:"differences"`
}

// Difference is one thing that is not the same under both kernels. An empty value: there is none, as where only one kernel has the vector.
type Difference struct {
	Scenario string `json:"scenario"`
	Case     string `json:"case"`
	Label    string `json:"label,omitempty"`  // of the observation
	Vector   *int   `json:"vector,omitempty"` // its index
	What     string `json:"what"`             // as in the results: "branch", "idle_cpus", of a vector "affinity", "effective", …
	A        string `json:"a"`
	B        string `json:"b"`
}

// Compare finds what differs. Interrupt counts, IRQ numbers and durations are left out: they differ from run to run.
func Compare(a, b result.Report) Comparison {
	c := Comparison{Schema: result.Schema, A: a, B: b, Differences: []Difference{}}
	for i := range min(len(a.Cases), len(b.Cases)) {
		c.Differences = append(c.Differences, differences(&a.Cases[i], &b.Cases[i])...)
	}
	return c
}

// row is one line of a comparison, whether it differs or not.
type row struct{ what, a, b string }

// inWords are the names of what is compared where the result's own would not do in a sentence.
var inWords = map[string]string{
	"warnings": "kernel warnings", "online": "online CPUs", "clustered": "clustered CPUs", "idle_cpus": "idle CPUs", "asked": "asked mask", "dropped": "dropped mask", "affinity": "requested mask",
}

func words(what string) string { return cmp.Or(inWords[what], what) }

func (r row) differs() bool { return r.a != r.b }

func differences(a, b *result.Case) (out []Difference) {
	add := func(label string, vector *int, rows []row) {
		for _, r := range rows {
			if r.differs() {
				out = append(out, Difference{a.Scenario, pairName(a, b), label, vector, r.what, r.a, r.b})
			}
		}
	}
	add("", nil, caseRows(a, b))
	add("", nil, diskRows(a, b))
	for _, label := range result.Labels(a, b) {
		x, y := find(a, label), find(b, label)
		if missing := missingRow(x, y); missing.differs() {
			add(label, nil, []row{missing})
			continue
		}
		add(label, nil, observationRows(x, y))
		for _, v := range pairVectors(x, y) {
			add(label, &v.index, vectorRows(v))
		}
	}
	return out
}

// pairName is what the two cases are called, without the kernel that a run of several kernels puts last.
func pairName(a, b *result.Case) string {
	x, y := withoutKernel(a.Name), withoutKernel(b.Name)
	if x == y {
		return x
	}
	return x + ", " + y
}

func withoutKernel(name string) string {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i]
	}
	return name
}

func caseRows(a, b *result.Case) []row {
	return []row{
		{"outcome", string(a.Outcome), string(b.Outcome)},
		{"branch", a.Branch, b.Branch},
		{"warnings", strconv.Itoa(len(a.KernelLog.Warnings)), strconv.Itoa(len(b.KernelLog.Warnings))},
	}
}

// missingRow differs when only one kernel came as far as an observation.
func missingRow(a, b *result.Observation) row {
	made := func(o *result.Observation) string {
		if o.Label == "" {
			return ""
		}
		return "made"
	}
	return row{"observation", made(a), made(b)}
}

func observationRows(a, b *result.Observation) []row {
	return []row{
		{"online", a.Online.String(), b.Online.String()},
		{"vectors", strconv.Itoa(len(a.Vectors)), strconv.Itoa(len(b.Vectors))},
		{"clustered", result.ClusteredCPUs(a.Online, a.Vectors).String(), result.ClusteredCPUs(b.Online, b.Vectors).String()},
		{"idle_cpus", a.IdleCPUs.String(), b.IdleCPUs.String()},
	}
}

// vectorPair is a vector under both kernels; one that a kernel's driver does not have is empty there.
type vectorPair struct {
	index int
	a, b  result.Vector
}

func pairVectors(a, b *result.Observation) []vectorPair {
	at := map[int]*vectorPair{}
	pair := func(index int) *vectorPair {
		if at[index] == nil {
			at[index] = &vectorPair{index: index}
		}
		return at[index]
	}
	for _, v := range a.Vectors {
		pair(v.Index).a = v
	}
	for _, v := range b.Vectors {
		pair(v.Index).b = v
	}
	var out []vectorPair
	for _, p := range at {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(x, y vectorPair) int { return cmp.Compare(x.index, y.index) })
	return out
}

func vectorRows(p vectorPair) []row {
	if p.a.Role == "" || p.b.Role == "" {
		return []row{{"role", p.a.Role, p.b.Role}}
	}
	return []row{
		{"role", p.a.Role, p.b.Role},
		{"name", IRQName(p.a), IRQName(p.b)}, // which scripts go by
		{"asked", p.a.Asked.String(), p.b.Asked.String()},
		{"affinity", p.a.Affinity.String(), p.b.Affinity.String()},
		{"hint", p.a.Hint.String(), p.b.Hint.String()},
		{"effective", p.a.Effective.String(), p.b.Effective.String()},
		{"dropped", strconv.FormatBool(p.a.Dropped), strconv.FormatBool(p.b.Dropped)},
		{"pending", strconv.FormatBool(p.a.Pending), strconv.FormatBool(p.b.Pending)},
	}
}

func find(c *result.Case, label string) *result.Observation {
	if o := c.Find(label); o != nil {
		return o
	}
	return &result.Observation{}
}

// CompareStatus is the status of a comparison: 0 when every case ran under both kernels, whatever came of it, else 125.
func CompareStatus(c Comparison) int {
	cases := slices.Concat(c.A.Cases, c.B.Cases)
	if len(cases) == 0 || len(c.A.Cases) != len(c.B.Cases) || slices.ContainsFunc(cases, func(c result.Case) bool { return c.Outcome == result.Error }) {
		return ExitError
	}
	return ExitPass
}

// CompareTable writes the comparison for people: the two kernels side by side, and what differs.
func CompareTable(w io.Writer, c Comparison) error {
	return renderComparison(w, c, &page{columns: layout.Columns(w), colour: layout.Colour(w)})
}

const differsMark = "<>"

func renderComparison(w io.Writer, c Comparison, p *page) error {
	n := min(len(c.A.Cases), len(c.B.Cases))
	for i := range n {
		p.pair(&c.A.Cases[i], &c.B.Cases[i])
	}
	host := ""
	if c.A.Host.QEMU != "" {
		host = fmt.Sprintf("; QEMU %s, %s", foreign.Line(c.A.Host.QEMU), foreign.Line(c.A.Host.Accel))
	}
	p.linef("%s compared, %s%s", Plural(n, "case", "cases"), Plural(len(c.Differences), "difference", "differences"), host)
	_, err := w.Write(p.Bytes())
	return err
}

// pair is one case under both kernels.
func (p *page) pair(a, b *result.Case) {
	p.linef("%s/%s", foreign.Line(a.Scenario), foreign.Line(pairName(a, b)))
	x, y := foreign.Line(a.KernelSpec), foreign.Line(b.KernelSpec)
	if x == y { // it is modules that are compared
		x, y = modules(a), modules(b)
	}
	rows := append([]row{{"kernel", a.Kernel, b.Kernel}}, caseRows(a, b)...)
	t := sideBySide("", x, y)
	for i, r := range append(rows, diskRows(a, b)...) {
		p.side(&t, r, i > 0)
	}
	p.WriteString(t.Render(p.columns))
	for _, c := range []*result.Case{a, b} {
		for _, r := range c.Reasons {
			p.bullet("  "+foreign.Line(c.KernelSpec)+": ", r)
		}
	}
	for _, label := range result.Labels(a, b) {
		p.linef("")
		oa, ob := find(a, label), find(b, label)
		t := sideBySide(foreign.Line(label), x, y)
		for _, r := range append(observationRows(oa, ob), row{"HWC; queues", Placement(a, oa), Placement(b, ob)}) {
			p.side(&t, r, true)
		}
		for _, v := range pairVectors(oa, ob) {
			r := row{fmt.Sprintf("vector %d %s", v.index, foreign.Line(role(v))), requestedEffective(v.a), requestedEffective(v.b)}
			p.side(&t, r, true)
		}
		p.WriteString(t.Render(p.columns))
	}
	if d := differences(a, b); len(d) > 0 {
		p.linef("  %s", p.alarm("differs: "+summarize(d)))
	} else {
		p.linef("  nothing differs")
	}
	p.linef("")
}

// sideBySide is a table of what is the same and what is not under two kernels.
func sideBySide(what, a, b string) layout.Table {
	return layout.Table{Rules: true, Indent: "  ", Header: []string{what, a, b, ""}}
}

// modules names those that took the place of the kernel's own.
func modules(c *result.Case) string {
	var names []string
	for _, m := range c.Modules {
		names = append(names, m.Name)
	}
	if len(names) == 0 {
		return "as shipped"
	}
	return "with " + foreign.Line(strings.Join(names, ", "))
}

func (p *page) side(t *layout.Table, r row, mark bool) {
	sign := ""
	if mark && r.differs() {
		sign = p.alarm(differsMark)
	}
	t.Rows = append(t.Rows, []string{words(r.what), cmp.Or(foreign.Line(r.a), "-"), cmp.Or(foreign.Line(r.b), "-"), sign})
}

func role(v vectorPair) string {
	if v.a.Role == v.b.Role || v.b.Role == "" {
		return v.a.Role
	}
	if v.a.Role == "" {
		return v.b.Role
	}
	return v.a.Role + ", " + v.b.Role
}

// requestedEffective is "0-1 on 0": the mask asked for and the CPU it came to. A hint that differs from the mask is told.
func requestedEffective(v result.Vector) string {
	if v.Role == "" {
		return ""
	}
	s := listOrDash(v.Affinity) + " on " + listOrDash(v.Effective)
	if v.Pending {
		s += " pending"
	}
	if v.Dropped {
		s += " (" + listOrDash(v.Asked) + " dropped)"
	}
	if !slices.Equal(v.Hint, v.Affinity) {
		s += " (hint " + listOrDash(v.Hint) + ")"
	}
	return s
}

// summarize names what differs, the same of several vectors together: "branch; requested of vector 1-4".
func summarize(differences []Difference) string {
	var order []string
	vectors := map[string][]int{}
	renamed := ""
	for _, d := range differences {
		if d.What == "name" && renamed == "" {
			renamed = fmt.Sprintf(" (%s is %s)", d.A, d.B)
		}
		if d.Vector != nil {
			vectors[d.What] = append(vectors[d.What], *d.Vector)
		}
		if !slices.Contains(order, d.What) {
			order = append(order, d.What)
		}
	}
	for i, what := range order {
		order[i] = words(what)
		if v := vectors[what]; v != nil {
			order[i] += " of vector " + cpulist.New(v...).String()
		}
		if what == "name" {
			order[i] += renamed
		}
	}
	return strings.Join(order, "; ")
}
