package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/foreign"
	"irqlab/lab/layout"
	"irqlab/scenarios/result"
)

const (
	maxCPUColumns = 16 // with more CPUs, interrupt counts share a column
	maxListLength = 24 // a longer list of idle or clustered CPUs is counted instead
	maxPlacement  = 48 // a longer list of queues' CPUs is shortened
	briefLines    = 2  // of a reason, in a summary
)

// FileColumns is the width of a report that goes into a file: it does not depend on the terminal that it was made in.
const FileColumns = 100

// Table writes the report for people, as wide as what it goes to: one line per case first, then each case in full. Colour is used on a terminal only, unless NO_COLOR is set.
func Table(w io.Writer, r result.Report) error { return output(w, r, (*page).everything) }

// Summary writes one line per case, why those that did not pass did not, and the total.
func Summary(w io.Writer, r result.Report) error { return output(w, r, (*page).briefly) }

// File writes what Table does for a file.
func File(w io.Writer, r result.Report) error {
	return render(w, r, &page{columns: FileColumns}, (*page).everything)
}

func output(w io.Writer, r result.Report, content func(*page, result.Report)) error {
	return render(w, r, &page{columns: layout.Columns(w), colour: layout.Colour(w)}, content)
}

// page is a report being written.
type page struct {
	bytes.Buffer
	columns int
	colour  bool
}

func render(w io.Writer, r result.Report, p *page, content func(*page, result.Report)) error {
	content(p, r)
	_, err := w.Write(p.Bytes())
	return err
}

func (p *page) everything(r result.Report) {
	for _, group := range groups(r.Cases) {
		p.summary(group)
		p.matrix(group)
	}
	for i := range r.Cases {
		p.caseInFull(&r.Cases[i])
	}
	p.total(r)
}

func (p *page) briefly(r result.Report) {
	for _, group := range groups(r.Cases) {
		p.summary(group)
	}
	for i := range r.Cases {
		if c := &r.Cases[i]; c.Outcome != result.Pass && c.Outcome != result.Observed {
			p.caseInBrief(c)
		}
	}
	p.total(r)
}

// caseInBrief is why a case did not pass, in a few lines, and where there is more.
func (p *page) caseInBrief(c *result.Case) {
	p.linef("%s: %s", title(c), p.judged(c))
	for _, reason := range c.Reasons {
		reason, _, more := strings.Cut(strings.TrimSpace(reason), "\n")
		if more {
			reason = strings.TrimSuffix(reason, ":") + " …"
		}
		lines := strings.Split(layout.Wrap("  - "+foreign.Line(reason), p.columns, "    "), "\n")
		if len(lines) > briefLines {
			lines = lines[:briefLines]
			last := &lines[briefLines-1]
			if i := strings.LastIndexByte(*last, ' '); layout.Width(*last) > p.columns-2 && i > 0 {
				*last = (*last)[:i]
			}
			*last += " …"
		}
		p.WriteString(strings.Join(lines, "\n") + "\n")
	}
	if at := cmp.Or(c.Artifacts.Timeline, c.Artifacts.Trace, c.Artifacts.Console); at != "" {
		p.linef("  evidence: %s", foreign.Line(at))
	}
	p.again(c)
	p.linef("")
}

// again is what runs the case again.
func (p *page) again(c *result.Case) {
	if c.Command != "" {
		p.WriteString(layout.Commands("  again: "+foreign.Line(c.Command), p.columns) + "\n")
	}
}

func title(c *result.Case) string { return foreign.Line(c.Scenario) + "/" + foreign.Line(c.Name) }

// groups splits the cases by scenario, both in the order of the report. Scenarios that have no vectors to show, as most faults, are one group where they follow each other.
func groups(cases []result.Case) [][]result.Case {
	var out [][]result.Case
	at := map[string]int{}
	for _, c := range cases {
		i, ok := at[c.Scenario]
		if !ok {
			i = len(out)
			at[c.Scenario] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], c)
	}
	for i := len(out) - 1; i > 0; i-- {
		if !placed(out[i]) && !placed(out[i-1]) {
			out[i-1] = slices.Concat(out[i-1], out[i])
			out = slices.Delete(out, i, i+1)
		}
	}
	return out
}

// placed tells whether any of the cases has vectors to show.
func placed(cases []result.Case) bool {
	return slices.ContainsFunc(cases, func(c result.Case) bool { return last(&c) != nil })
}

// summary is one line per case.
func (p *page) summary(cases []result.Case) {
	head, t := p.summaryTable(cases)
	p.linef("%s", head)
	p.WriteString(t.Render(p.columns) + "\n")
}

// summaryTable has a row for each case; a column that says nothing is left out.
func (p *page) summaryTable(cases []result.Case) (head string, t layout.Table) {
	kernels := map[string]string{} // by what was asked for
	for _, c := range cases {
		spec := cmp.Or(c.KernelSpec, c.Kernel)
		kernels[spec] = cmp.Or(kernels[spec], c.Kernel)
	}
	t = layout.Table{Rules: true, Header: []string{"case", "outcome"}}
	head = foreign.Line(cases[0].Scenario)
	several := slices.ContainsFunc(cases, func(c result.Case) bool { return c.Scenario != cases[0].Scenario })
	if several {
		head = "cases without vectors to show"
	}
	if len(kernels) == 1 {
		for spec, release := range kernels {
			if release = cmp.Or(release, spec); release != "" {
				head += " on " + foreign.Line(release)
			}
		}
	}
	vectors := placed(cases)
	if vectors {
		head += ": effective CPU of each vector"
		t.Header = append(t.Header, "HWC; queues", "clustered", "idle")
	}
	if len(kernels) > 1 {
		t.Header = append(t.Header, "kernel")
	}
	t.Header = append(t.Header, "seconds")
	t.Right = []int{len(t.Header) - 1}
	for _, c := range cases {
		name := foreign.Line(c.Name)
		if several {
			name = title(&c)
		}
		row := []string{name, p.judged(&c)}
		if o := last(&c); o != nil {
			row = append(row, placement(o, seats(&c), maxPlacement), p.alarm(listOrCount(result.ClusteredCPUs(o.Online, o.Vectors))), listOrCount(o.IdleCPUs))
		} else if vectors {
			row = append(row, "-", "-", "-")
		}
		if len(kernels) > 1 {
			row = append(row, foreign.Line(cmp.Or(c.Kernel, c.KernelSpec, "-")))
		}
		t.Rows = append(t.Rows, append(row, fmt.Sprintf("%.1f", c.Seconds.Total)))
	}
	if len(kernels) > 1 && t.Width() > p.columns {
		p.withoutKernels(&t, cases)
	}
	if i := slices.Index(t.Header, "clustered"); i >= 0 && t.Width() > p.columns && !slices.ContainsFunc(t.Rows, func(row []string) bool { return row[i] != "-" }) {
		dropColumn(&t, i)
	}
	return head, t
}

// withoutKernels leaves of the kernels' releases what cases need to be told apart: what goes before a plus, or nothing where the cases' names end with what was asked for. The
// cases in full have the rest.
func (p *page) withoutKernels(t *layout.Table, cases []result.Case) {
	i := slices.Index(t.Header, "kernel")
	for _, row := range t.Rows {
		row[i], _, _ = strings.Cut(row[i], "+")
	}
	if t.Width() > p.columns && !slices.ContainsFunc(cases, func(c result.Case) bool { return !strings.HasSuffix(c.Name, "/"+c.KernelSpec) }) {
		dropColumn(t, i)
	}
}

func dropColumn(t *layout.Table, i int) {
	t.Header = slices.Delete(t.Header, i, i+1)
	for k := range t.Rows {
		t.Rows[k] = slices.Delete(t.Rows[k], i, i+1)
	}
	t.Right = []int{len(t.Header) - 1}
}

// matrix sets cases named row/column against each other, such as strategies against pressure, when the names fill a rectangle.
func (p *page) matrix(cases []result.Case) {
	var rows, columns []string
	cells := map[[2]string]*result.Case{}
	for i := range cases {
		c := &cases[i]
		row, column, ok := strings.Cut(c.Name, "/")
		if !ok || strings.Contains(column, "/") {
			return
		}
		if !slices.Contains(rows, row) {
			rows = append(rows, row)
		}
		if !slices.Contains(columns, column) {
			columns = append(columns, column)
		}
		cells[[2]string{row, column}] = c
	}
	if len(columns) < 2 || len(rows) < 2 || len(cells) != len(rows)*len(columns) || len(cells) != len(cases) {
		return
	}
	t := layout.Table{Rules: true, Header: []string{"HWC; queues"}}
	for _, c := range columns {
		t.Header = append(t.Header, foreign.Line(c))
	}
	for _, r := range rows {
		row := []string{foreign.Line(r)}
		for _, column := range columns {
			cell := "-"
			c := cells[[2]string{r, column}]
			if o := last(c); o != nil {
				cell = placement(o, seats(c), maxPlacement)
				if o.Clustered {
					cell = p.alarm(cell + " clustered")
				}
			}
			if c.Outcome != result.Pass && c.Outcome != result.Observed {
				cell += " " + p.judged(c)
			}
			row = append(row, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	p.WriteString(t.Render(p.columns) + "\n")
}

func (p *page) caseInFull(c *result.Case) {
	p.linef("%s: %s", title(c), p.judged(c))
	for _, r := range c.Reasons {
		p.bullet("  - ", r)
	}
	if c.Known != "" {
		p.bullet("  known: ", c.Known)
	}
	what := "driver " + foreign.Line(c.Driver)
	if c.Strategy != "" {
		what += ", strategy " + foreign.Line(c.Strategy)
	}
	if c.Branch != "" && c.Branch != c.Strategy {
		what += " (took: " + foreign.Line(c.Branch) + ")"
	}
	node := "no node"
	if c.DeviceNode != nil {
		node = "node " + strconv.Itoa(*c.DeviceNode)
	}
	p.linef("  kernel %s, %s, irqchip %s", foreign.Line(cmp.Or(c.Kernel, c.KernelSpec, "unknown")), what, foreign.Line(c.Irqchip))
	p.linef("  %s; CPUs online: %s", c.Shape, cmp.Or(c.Online.String(), "unknown"))
	pressure := "none"
	if len(c.Pressure) > 0 {
		pressure = strings.Join(c.Pressure, " ")
	}
	p.linef("  function on %s, %d vectors", node, c.Vectors)
	p.linef("  pressure: %s", foreign.Line(pressure))
	for _, n := range c.Notes {
		p.bullet("  note: ", n)
	}
	p.steps(c)
	for i := range c.Observations {
		p.observation(&c.Observations[i], seats(c))
	}
	p.evidence(c.Evidence)
	if n := len(c.KernelLog.Warnings); n > 0 {
		p.linef("  %s", p.alarm(plural(n, "warning", "warnings")+" in the kernel log:"))
		for _, w := range c.KernelLog.Warnings {
			p.bullet(quoted, w)
		}
	}
	for _, a := range []struct{ what, path string }{{"console", c.Artifacts.Console}, {"trace", c.Artifacts.Trace}, {"timeline", c.Artifacts.Timeline}} {
		if a.path != "" {
			p.linef("  %s: %s", a.what, foreign.Line(a.path))
		}
	}
	p.again(c)
	p.linef("")
}

// evidence is what the lab and the device did last, on the timeline's clock.
func (p *page) evidence(e *result.Evidence) {
	if e == nil || len(e.Events) == 0 {
		return
	}
	p.linef("")
	p.linef("  what the lab and the device did last before %.3f s of the case:", e.Until)
	t := layout.Table{Indent: "  ", Right: []int{0}}
	for _, x := range e.Events {
		t.Rows = append(t.Rows, []string{fmt.Sprintf("%.6f", x.T), foreign.Line(x.Source), foreign.Line(x.What)})
	}
	p.WriteString(t.Render(p.columns))
	for _, h := range e.Held {
		p.bullet("  held: ", h)
	}
	for _, a := range e.Awaited {
		p.bullet("  awaited: ", a)
	}
}

// steps shows the experiment: what each step was, how long it took, and what is to be told of it; then what became of the holds and faults.
func (p *page) steps(c *result.Case) {
	if len(c.Steps) == 0 {
		return
	}
	p.linef("")
	t := layout.Table{Rules: true, Indent: "  ", Header: []string{"step", "seconds", "what", "result"}, Right: []int{1}}
	for i := range c.Steps {
		s := &c.Steps[i]
		t.Rows = append(t.Rows, []string{foreign.Line(s.At), fmt.Sprintf("%.1f", s.End-s.Start), foreign.Line(s.Text), p.became(s)})
	}
	p.WriteString(t.Render(p.columns))
	for _, r := range c.Rules {
		hits := p.alarm("never reached")
		if r.Hits > 0 {
			hits = plural(r.Hits, "time", "times")
		}
		rule := foreign.Line(r.Text)
		if !strings.HasPrefix(r.Text, strings.Replace(r.Name, " ", " at ", 1)) { // which is what a rule is called that was given no name
			rule = foreign.Line(r.Name) + ", " + rule
		}
		p.linef("  %s: %s", rule, hits)
	}
}

// became is what is to be told of a step: nothing of one that was done as asked.
func (p *page) became(s *result.Step) string {
	var words []string
	switch s.Outcome {
	case result.StepRefused:
		line, _, _ := strings.Cut(s.Refusal, "\n")
		words = append(words, "refused: "+foreign.Line(line))
	case result.StepFailed:
		words = append(words, p.alarm("failed"))
	}
	for _, m := range s.Log {
		if m.Line != "" {
			words = append(words, "log: "+foreign.Line(m.Line))
		}
	}
	for _, n := range s.Counted {
		words = append(words, fmt.Sprintf("%s: %d", foreign.Line(n.Step), n.N))
	}
	if s.Storm != nil {
		words = append(words, "handled of fired, by vector: "+p.storm(s.Storm))
	}
	return strings.Join(words, "; ")
}

// storm counts each vector's interrupts: "0: 5/5, 1: 6/7 (2 own)".
func (p *page) storm(s *result.Storm) string {
	words := make([]string, len(s.Vectors))
	for i, v := range s.Vectors {
		words[i] = fmt.Sprintf("%d: %d/%d", v.Index, v.Handled, v.Fired)
		if v.Own > 0 {
			words[i] += fmt.Sprintf(" (%d own)", v.Own)
		}
		if v.Lost() > 0 || v.Handled > v.Fired {
			words[i] = p.alarm(words[i])
		}
	}
	return strings.Join(words, ", ")
}

// Observation writes one reading as the table shows it.
func Observation(w io.Writer, o *result.Observation) error {
	p := page{columns: layout.Columns(w)}
	p.observation(o, nil)
	_, err := w.Write(p.Bytes())
	return err
}

// seat is where a CPU sits.
type seat struct{ core, node int }

// seats are those of a case's CPUs where they tell more than the CPUs' numbers do: on a machine of several nodes, or of many CPUs that share cores. Where CPUs were plugged in
// again, the shape does not say where they came to sit: nil.
func seats(c *result.Case) map[int]seat {
	sh := c.Shape
	again := slices.ContainsFunc(c.Steps, func(s result.Step) bool { return s.Topology != nil })
	if again || sh.Nodes < 2 && (sh.Threads < 2 || sh.CPUs() <= manyCPUs) {
		return nil
	}
	m := map[int]seat{}
	for node := range sh.Nodes {
		for _, cpu := range sh.NodeCPUs(node) {
			m[cpu] = seat{cpu / sh.Threads, node}
		}
	}
	return m
}

// manyCPUs is how many CPUs a reader still tells the cores of.
const manyCPUs = 8

// cores and nodes are those of some CPUs.
func cores(cpus cpulist.List, s map[int]seat) (cores, nodes cpulist.List) {
	for _, cpu := range cpus {
		if at, ok := s[cpu]; ok {
			cores, nodes = append(cores, at.core), append(nodes, at.node)
		}
	}
	return cpulist.New(cores...), cpulist.New(nodes...)
}

// name is the kernel's for a vector's interrupt, without the device that all of them are of. A name that only repeats the vector's number is none: vfio's.
func name(v result.Vector) string {
	name, _, _ := strings.Cut(v.Action, "@")
	if strings.HasPrefix(name, "vfio-") {
		return ""
	}
	return foreign.Line(name)
}

// form is one of the forms that the table of an observation can have.
type form struct {
	hints bool // a column of them
	gap   int  // between a column for each CPU; 0: one column of "CPU:count"
	tight bool // the name stands for the role
}

func (p *page) observation(o *result.Observation, at map[int]seat) {
	p.linef("")
	if len(o.Vectors) == 0 {
		p.linef("  %s, CPUs %s online: no vectors", foreign.Line(o.Label), listOrDash(o.Online))
		return
	}
	p.linef("  %s, CPUs %s online, interrupts handled per CPU:", foreign.Line(o.Label), listOrDash(o.Online))
	clustered := result.ClusteredCPUs(o.Online, o.Vectors)
	wide := []form{{hints: true, gap: 2}, {hints: true, gap: 1}}
	hints, same := aboutHints(o)
	if same {
		wide = append(wide, form{gap: 2}, form{gap: 1})
	}
	forms := append(wide, form{hints: true}, form{}, form{tight: true})
	if len(cpusOf(o)) > maxCPUColumns {
		forms = slices.DeleteFunc(forms, func(f form) bool { return f.gap > 0 })
	}
	var t layout.Table
	var f form
	for _, f = range forms { // the first that fits, else the narrowest
		if t = p.vectors(o, at, clustered, f); t.Width() <= p.columns {
			break
		}
	}
	p.WriteString(t.Render(p.columns))
	p.callOut(o, clustered)
	if !f.hints {
		p.linef("  %s", hints)
	}
}

// aboutHints says in a sentence what a table without a column of hints leaves out, and whether that holds for each vector.
func aboutHints(o *result.Observation) (text string, same bool) {
	switch {
	case !slices.ContainsFunc(o.Vectors, func(v result.Vector) bool { return len(v.Hint) > 0 }):
		return "no vector has a hint", true
	case !slices.ContainsFunc(o.Vectors, odd):
		return "each hint is the requested mask", true
	}
	return "each hint is the requested mask, unless another is shown", false
}

// odd tells a vector whose hint is not the requested mask.
func odd(v result.Vector) bool { return !slices.Equal(v.Hint, v.Affinity) }

// vectors is the table of an observation in one of its forms.
func (p *page) vectors(o *result.Observation, at map[int]seat, clustered cpulist.List, f form) layout.Table {
	asked := slices.ContainsFunc(o.Vectors, func(v result.Vector) bool { return v.Dropped || v.Otherwise() })
	named := slices.ContainsFunc(o.Vectors, func(v result.Vector) bool { return name(v) != "" })
	f.tight = f.tight && named
	_, same := aboutHints(o)
	cpus := cpusOf(o)
	total := map[int]uint64{}
	for _, v := range o.Vectors {
		for cpu, n := range v.Counts {
			total[cpu] += n
		}
	}
	_, nodes := cores(cpus, at)
	type column struct {
		head string
		in   bool
		cell func(v result.Vector) string
		foot string
	}
	columns := []column{
		{"vector", true, func(v result.Vector) string { return strconv.Itoa(v.Index) }, "total"},
		{"role", !f.tight, func(v result.Vector) string { return foreign.Line(v.Role) }, ""},
		{"name", named, func(v result.Vector) string {
			if f.tight && v.Role == result.RoleUnused {
				return cmp.Or(name(v), "-") + " " + v.Role
			}
			return cmp.Or(name(v), "-")
		}, ""},
		{"irq", true, func(v result.Vector) string { return strconv.Itoa(v.IRQ) }, ""},
		{"asked", asked, func(v result.Vector) string {
			if v.Dropped {
				return listOrDash(v.Asked) + p.alarm(" dropped")
			}
			return listOrDash(v.Asked)
		}, ""},
		{"requested", true, func(v result.Vector) string {
			if !f.hints && !same && odd(v) {
				return listOrDash(v.Affinity) + " (hint " + listOrDash(v.Hint) + ")"
			}
			return listOrDash(v.Affinity)
		}, ""},
		{"hint", f.hints, func(v result.Vector) string { return listOrDash(v.Hint) }, ""},
		{"effective", true, func(v result.Vector) string { return p.effective(v, clustered) }, ""},
		{"core", at != nil, func(v result.Vector) string { c, _ := cores(v.Effective, at); return listOrDash(c) }, ""},
		{"node", len(nodes) > 1, func(v result.Vector) string { _, n := cores(v.Effective, at); return listOrDash(n) }, ""},
	}
	if f.gap > 0 {
		cells := perCPU(cpus, total, f.gap)
		columns = append(columns, column{cells(nil), true, func(v result.Vector) string { return cells(v.Counts) }, cells(total)})
	} else {
		var all uint64
		for _, n := range total {
			all += n
		}
		columns = append(columns, column{"counts", true, func(v result.Vector) string { return counts(v.Counts) }, strconv.FormatUint(all, 10)})
	}
	t := layout.Table{Rules: true, Indent: "  "}
	columns = slices.DeleteFunc(columns, func(c column) bool { return !c.in })
	for i, c := range columns {
		t.Header, t.Footer = append(t.Header, c.head), append(t.Footer, c.foot)
		if c.head == "vector" || c.head == "irq" {
			t.Right = append(t.Right, i)
		}
	}
	for _, v := range o.Vectors {
		var row []string
		for _, c := range columns {
			row = append(row, c.cell(v))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// effective is where a vector is routed, and what is odd about that.
func (p *page) effective(v result.Vector, clustered cpulist.List) string {
	s := listOrDash(v.Effective)
	if v.Role == result.RoleQueue && len(v.Effective.And(clustered)) > 0 {
		s = p.alarm(s)
	}
	if v.Pending {
		s += p.alarm(" pending")
	}
	if !v.Handled.Within(v.Effective) {
		s += p.alarm(fmt.Sprintf(" (handled on %s)", v.Handled))
	}
	return s
}

// perCPU writes counts as columns of their own within one cell; nil writes their heads.
func perCPU(cpus cpulist.List, total map[int]uint64, gap int) func(counts map[int]uint64) string {
	return func(counts map[int]uint64) string {
		var words []string
		for _, cpu := range cpus {
			head := "CPU" + strconv.Itoa(cpu)
			word := head
			if counts != nil {
				word = strconv.FormatUint(counts[cpu], 10)
			}
			words = append(words, fmt.Sprintf("%*s", max(len(head), len(strconv.FormatUint(total[cpu], 10))), word))
		}
		return strings.Join(words, strings.Repeat(" ", gap))
	}
}

// counts is "0:3 2:1"; CPUs that follow each other with one count are "4-7:2".
func counts(counts map[int]uint64) string {
	var words []string
	var run cpulist.List
	cpus := slices.Sorted(maps.Keys(counts))
	for i, cpu := range cpus {
		run = append(run, cpu)
		if i+1 == len(cpus) || cpus[i+1] != cpu+1 || counts[cpus[i+1]] != counts[cpu] {
			words = append(words, fmt.Sprintf("%s:%d", run, counts[cpu]))
			run = nil
		}
	}
	return strings.Join(words, " ")
}

// callOut says in words what the table shows about the spread of the queue vectors.
func (p *page) callOut(o *result.Observation, clustered cpulist.List) {
	per := result.QueuesPerCPU(o.Vectors)
	switch {
	case len(clustered) > 0:
		with := map[int]cpulist.List{} // CPUs, by their number of queues
		for _, cpu := range clustered {
			with[per[cpu]] = append(with[per[cpu]], cpu)
		}
		var words []string
		for _, n := range slices.Sorted(maps.Keys(with)) {
			if cpus := with[n]; len(cpus) == 1 {
				words = append(words, fmt.Sprintf("CPU %s has %d queues", cpus, n))
			} else {
				words = append(words, fmt.Sprintf("CPUs %s have %d queues each", cpus, n))
			}
		}
		p.linef("  %s", p.alarm(fmt.Sprintf("clustered: %s; none on CPU %s", strings.Join(words, ", "), o.IdleCPUs)))
	case len(o.IdleCPUs) > 0:
		p.linef("  not clustered; no queue on CPU %s", o.IdleCPUs)
	default:
		p.linef("  not clustered; no CPU is idle")
	}
}

func (p *page) total(r result.Report) {
	count := map[result.Outcome]int{}
	known := 0
	seconds := 0.0
	for _, c := range r.Cases {
		count[c.Outcome]++
		if c.Known != "" {
			known++
		}
		seconds += c.Seconds.Total
	}
	host := ""
	if r.Host.QEMU != "" { // unknown when a run ends before it looked
		host = fmt.Sprintf("; QEMU %s, %s", foreign.Line(r.Host.QEMU), foreign.Line(r.Host.Accel))
		if r.Host.AccelReason != "" {
			host += " (" + foreign.Line(r.Host.AccelReason) + ")"
		}
		host += ", " + plural(r.Host.CPUs, "host CPU", "host CPUs")
	}
	failed := fmt.Sprintf("%d failed", count[result.Fail])
	if known > 0 {
		failed += fmt.Sprintf(" (%d as known)", known)
	}
	outcomes := []string{fmt.Sprintf("%d passed", count[result.Pass])}
	if n := count[result.Observed]; n > 0 {
		outcomes = append(outcomes, fmt.Sprintf("%d observed", n))
	}
	outcomes = append(outcomes, failed, plural(count[result.Error], "error", "errors"))
	p.linef("%s: %s; %s%s", plural(len(r.Cases), "case", "cases"), strings.Join(outcomes, ", "), took(r, seconds), host)
	if r.NotRun > 0 {
		p.linef("%s", p.alarm("interrupted: "+plural(r.NotRun, "case was", "cases were")+" not run to the end"))
	}
}

// took says how long the run lasted, and the cases by themselves where they ran side by side.
func took(r result.Report, cases float64) string {
	if r.Seconds == 0 || len(r.Cases) < 2 { // unknown, or the same
		return fmt.Sprintf("%.1f s", cases)
	}
	return fmt.Sprintf("%.1f s elapsed, %.1f s a case", r.Seconds, cases/float64(len(r.Cases)))
}

// cpusOf are the CPUs that get a column: those online, and those that handled an interrupt before they left.
func cpusOf(o *result.Observation) cpulist.List {
	cpus := slices.Clone(o.Online)
	for _, v := range o.Vectors {
		for cpu := range v.Counts {
			cpus = append(cpus, cpu)
		}
	}
	return cpulist.New(cpus...)
}

// last is the newest observation that has vectors.
func last(c *result.Case) *result.Observation {
	for i := len(c.Observations) - 1; i >= 0; i-- {
		if o := &c.Observations[i]; len(o.Vectors) > 0 {
			return o
		}
	}
	return nil
}

// placement is the published form: "0; 0,2,0,3". A vector on several CPUs or none is in brackets. What is longer than limit has its runs as "1..32", and if that does not do,
// only says how many queues are on which CPUs, and cores.
func placement(o *result.Observation, at map[int]seat, limit int) string {
	hwc, queues := o.Placement()
	words := make([]string, len(queues))
	var all cpulist.List
	for i, q := range queues {
		words[i] = q.String()
		if len(q) != 1 {
			words[i] = "[" + words[i] + "]"
		}
		all = all.Or(q)
	}
	s := strings.Join(words, ",")
	if len(s) > limit {
		s = strings.Join(runs(queues, words), ",")
	}
	if len(s) > limit {
		s = fmt.Sprintf("%d queues on %s", len(queues), plural(len(all), "CPU", "CPUs"))
		if len(all) > 0 {
			s += fmt.Sprintf(" from %d to %d", all[0], all[len(all)-1])
		}
		if c, nodes := cores(all, at); at != nil {
			s += fmt.Sprintf(": %s of node %s", plural(len(c), "core", "cores"), nodes)
		}
	}
	return strings.TrimSuffix(listOrDash(hwc)+"; "+s, "; ")
}

// runs joins four or more queues on CPUs that follow each other.
func runs(queues []cpulist.List, words []string) []string {
	var out []string
	for i := 0; i < len(queues); {
		k := i + 1
		for ; k < len(queues) && len(queues[k]) == 1 && len(queues[k-1]) == 1 && queues[k][0] == queues[k-1][0]+1; k++ {
		}
		if k-i >= 4 {
			out = append(out, words[i]+".."+words[k-1])
		} else {
			out = append(out, words[i:k]...)
		}
		i = k
	}
	return out
}

func listOrDash(l cpulist.List) string { return cmp.Or(l.String(), "-") }

// listOrCount fits a list into a column.
func listOrCount(l cpulist.List) string {
	if s := listOrDash(l); len(s) <= maxListLength {
		return s
	}
	return plural(len(l), "CPU", "CPUs")
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// linef writes lines of words, which are broken where they are too long.
func (p *page) linef(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	lead := line[:len(line)-len(strings.TrimLeft(line, " "))]
	p.WriteString(layout.Wrap(line, p.columns, lead+"  ") + "\n")
}

// bullet writes text of several lines under one mark.
func (p *page) bullet(mark, text string) {
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		hang := strings.Repeat(" ", len(mark))
		if mark == quoted {
			hang = quoted + "  "
		}
		p.WriteString(layout.Wrap(mark+foreign.Line(line), p.columns, hang) + "\n")
		if mark != quoted {
			mark = hang
		}
	}
}

// quoted marks the guest's words.
const quoted = "  | "

// ANSI colours.
const (
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	cyan   = "\x1b[36m"
	reset  = "\x1b[0m"
)

func (p *page) paint(colour, s string) string {
	if !p.colour || s == "" || s == "-" {
		return s
	}
	return colour + s + reset
}

func (p *page) alarm(s string) string { return p.paint(red, s) }

// judged is a case's outcome, and whether it is known to fail so.
func (p *page) judged(c *result.Case) string {
	if c.Known != "" {
		return p.outcome(c.Outcome) + ", known"
	}
	return p.outcome(c.Outcome)
}

func (p *page) outcome(o result.Outcome) string {
	switch o {
	case result.Pass:
		return p.paint(green, string(o))
	case result.Observed:
		return p.paint(cyan, string(o))
	case result.Fail:
		return p.paint(red, string(o))
	}
	return p.paint(yellow, foreign.Line(string(o)))
}
