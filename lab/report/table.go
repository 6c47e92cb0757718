package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/foreign"
	"irqlab/scenarios/result"
)

const (
	maxCPUColumns = 16 // with more CPUs, interrupt counts share a column
	maxListWidth  = 72 // long rows of CPUs wrap
	maxListLength = 24 // a longer list of idle or clustered CPUs is counted instead
)

// Table writes the report for people: one line per case first, then each case in full. Colour is used on a terminal only, unless NO_COLOR is set.
func Table(w io.Writer, r result.Report) error {
	f, ok := w.(*os.File)
	return render(w, r, ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "")
}

// page is a report being written.
type page struct {
	bytes.Buffer
	colour bool
}

func render(w io.Writer, r result.Report, colour bool) error {
	p := &page{colour: colour}
	for _, group := range groups(r.Cases) {
		p.summary(group)
		p.matrix(group)
	}
	for i := range r.Cases {
		p.caseInFull(&r.Cases[i])
	}
	p.total(r)
	_, err := w.Write(p.Bytes())
	return err
}

// groups splits the cases by scenario, both in the order of the report.
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
	return out
}

// summary is one line per case.
func (p *page) summary(cases []result.Case) {
	p.linef("%s: effective CPU of the HWC vector; of each queue vector", foreign.Line(cases[0].Scenario))
	p.table(p.summaryTable(cases), "")
	p.linef("")
}

func (p *page) summaryTable(cases []result.Case) table.Writer {
	t := newTable("case", "outcome", "HWC; queues", "clustered", "idle", "kernel", "seconds")
	t.SetColumnConfigs([]table.ColumnConfig{
		{Name: "HWC; queues", WidthMax: maxListWidth, WidthMaxEnforcer: text.WrapSoft},
		{Name: "seconds", Align: text.AlignRight, AlignHeader: text.AlignRight},
	})
	for _, c := range cases {
		row := table.Row{foreign.Line(c.Name), p.judged(&c), "-", "-", "-", foreign.Line(cmp.Or(c.Kernel, c.KernelSpec, "-")), fmt.Sprintf("%.1f", c.Seconds.Total)}
		if o := last(&c); o != nil {
			row[2], row[3], row[4] = placement(o), p.alarm(listOrCount(result.ClusteredCPUs(o.Online, o.Vectors))), listOrCount(o.IdleCPUs)
		}
		t.AppendRow(row)
	}
	return t
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
	header := []string{"HWC; queues"}
	var configs []table.ColumnConfig
	for i, c := range columns {
		header = append(header, foreign.Line(c))
		configs = append(configs, table.ColumnConfig{Number: i + 2, WidthMax: maxListWidth / 2, WidthMaxEnforcer: text.WrapSoft})
	}
	t := newTable(header...)
	t.SetColumnConfigs(configs)
	for _, r := range rows {
		row := table.Row{foreign.Line(r)}
		for _, column := range columns {
			cell := "-"
			c := cells[[2]string{r, column}]
			if o := last(c); o != nil {
				cell = placement(o)
				if o.Clustered {
					cell = p.alarm(cell + " clustered")
				}
			}
			if c.Outcome != result.Pass && c.Outcome != result.Observed {
				cell += " " + p.judged(c)
			}
			row = append(row, cell)
		}
		t.AppendRow(row)
	}
	p.table(t, "")
	p.linef("")
}

func (p *page) caseInFull(c *result.Case) {
	p.linef("%s/%s: %s", foreign.Line(c.Scenario), foreign.Line(c.Name), p.judged(c))
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
	for _, m := range c.Modules {
		p.linef("  module %s of %s%s", foreign.Line(m.Name), foreign.Line(m.File), foreign.Line(hashOf(m)))
	}
	p.linef("  %s; CPUs online: %s; function on %s, %d vectors", c.Shape, cmp.Or(c.Online.String(), "unknown"), node, c.Vectors)
	pressure := "none"
	if len(c.Pressure) > 0 {
		pressure = strings.Join(c.Pressure, " ")
	}
	p.linef("  pressure: %s", foreign.Line(pressure))
	for _, n := range c.Notes {
		p.bullet("  note: ", n)
	}
	p.steps(c)
	for i := range c.Observations {
		p.observation(&c.Observations[i])
	}
	if n := len(c.KernelLog.Warnings); n > 0 {
		p.linef("  %s", p.alarm(plural(n, "warning", "warnings")+" in the kernel log:"))
		for _, w := range c.KernelLog.Warnings {
			p.bullet("  | ", w)
		}
	}
	for _, a := range []struct{ what, path string }{{"console", c.Artifacts.Console}, {"trace", c.Artifacts.Trace}, {"timeline", c.Artifacts.Timeline}, {"again", c.Command}} {
		if a.path != "" {
			p.linef("  %s: %s", a.what, foreign.Line(a.path))
		}
	}
	p.linef("")
}

// hashOf is the beginning of a module's hash, as much as tells modules apart.
func hashOf(m result.Module) string {
	if m.SHA256 == "" {
		return ""
	}
	return ", sha256 " + m.SHA256[:min(len(m.SHA256), 12)] + "…"
}

// steps shows the experiment: what each step was, how long it took, and what is to be told of it; then what became of the holds and faults.
func (p *page) steps(c *result.Case) {
	if len(c.Steps) == 0 {
		return
	}
	p.linef("")
	t := newTable("step", "seconds", "what", "result")
	t.SetColumnConfigs([]table.ColumnConfig{
		{Name: "seconds", Align: text.AlignRight, AlignHeader: text.AlignRight},
		{Name: "what", WidthMax: maxListWidth, WidthMaxEnforcer: text.WrapSoft},
		{Name: "result", WidthMax: maxListWidth, WidthMaxEnforcer: text.WrapSoft},
	})
	for i := range c.Steps {
		s := &c.Steps[i]
		t.AppendRow(table.Row{foreign.Line(s.At), fmt.Sprintf("%.1f", s.End-s.Start), foreign.Line(s.Text), p.became(s)})
	}
	p.table(t, "  ")
	for _, r := range c.Rules {
		hits := p.alarm("never reached")
		if r.Hits > 0 {
			hits = plural(r.Hits, "time", "times")
		}
		p.linef("  %s, %s: %s", foreign.Line(r.Name), foreign.Line(r.Text), hits)
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
	var p page
	p.observation(o)
	_, err := w.Write(p.Bytes())
	return err
}

func (p *page) observation(o *result.Observation) {
	p.linef("")
	p.linef("  %s, CPUs %s online, interrupts handled per CPU:", foreign.Line(o.Label), listOrDash(o.Online))
	columns := cpusOf(o)
	split := len(columns) <= maxCPUColumns
	header := []string{"vector", "role", "irq", "requested", "hint", "effective"}
	configs := []table.ColumnConfig{
		{Name: "vector", Align: text.AlignRight}, {Name: "irq", Align: text.AlignRight},
		{Name: "asked", WidthMax: maxListWidth, WidthMaxEnforcer: text.WrapSoft},
		{Name: "requested", WidthMax: maxListWidth, WidthMaxEnforcer: text.WrapSoft},
	}
	asked := slices.ContainsFunc(o.Vectors, func(v result.Vector) bool { return v.Dropped || v.Otherwise() })
	if asked {
		header = slices.Insert(header, 3, "asked")
	}
	if split {
		for _, cpu := range columns {
			name := "CPU" + strconv.Itoa(cpu)
			header = append(header, name)
			configs = append(configs, table.ColumnConfig{Name: name, Align: text.AlignRight, AlignHeader: text.AlignRight, AlignFooter: text.AlignRight})
		}
	} else {
		header = append(header, "counts")
	}
	t := newTable(header...)
	t.SetColumnConfigs(configs)
	total := map[int]uint64{}
	clustered := result.ClusteredCPUs(o.Online, o.Vectors)
	for _, v := range o.Vectors {
		effective := listOrDash(v.Effective)
		if v.Role == result.RoleQueue && len(v.Effective.And(clustered)) > 0 {
			effective = p.alarm(effective)
		}
		if v.Pending {
			effective += p.alarm(" pending")
		}
		if !v.Handled.Within(v.Effective) {
			effective += p.alarm(fmt.Sprintf(" (handled on %s)", v.Handled))
		}
		row := table.Row{v.Index, foreign.Line(v.Role), v.IRQ, listOrDash(v.Affinity), listOrDash(v.Hint), effective}
		if asked {
			mask := listOrDash(v.Asked)
			if v.Dropped {
				mask += p.alarm(" dropped")
			}
			row = slices.Insert(row, 3, any(mask))
		}
		for cpu, n := range v.Counts {
			total[cpu] += n
		}
		t.AppendRow(appendCounts(row, v.Counts, columns, split))
	}
	footer := table.Row{"total"}
	for range header[1 : slices.Index(header, "effective")+1] {
		footer = append(footer, "")
	}
	if split {
		footer = appendCounts(footer, total, columns, split)
	} else {
		var all uint64
		for _, n := range total {
			all += n
		}
		footer = append(footer, all)
	}
	t.AppendFooter(footer)
	p.table(t, "  ")
	p.callOut(o, clustered)
}

// callOut says in words what the table shows about the spread of the queue vectors.
func (p *page) callOut(o *result.Observation, clustered cpulist.List) {
	per := result.QueuesPerCPU(o.Vectors)
	switch {
	case len(clustered) > 0:
		var words []string
		for _, cpu := range clustered {
			words = append(words, fmt.Sprintf("CPU %d has %d queues", cpu, per[cpu]))
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

func appendCounts(row table.Row, counts map[int]uint64, columns cpulist.List, split bool) table.Row {
	if split {
		for _, cpu := range columns {
			row = append(row, counts[cpu])
		}
		return row
	}
	var words []string
	for _, cpu := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%d:%d", cpu, counts[cpu]))
	}
	return append(row, strings.Join(words, " "))
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

func last(c *result.Case) *result.Observation {
	if n := len(c.Observations); n > 0 {
		return &c.Observations[n-1]
	}
	return nil
}

// placement is the published form: "0; 0,2,0,3". A vector on several CPUs or none is in brackets.
func placement(o *result.Observation) string {
	hwc, queues := o.Placement()
	words := make([]string, len(queues))
	for i, q := range queues {
		words[i] = q.String()
		if len(q) != 1 {
			words[i] = "[" + words[i] + "]"
		}
	}
	// A space after every eighth lets a long row wrap.
	var b strings.Builder
	b.WriteString(listOrDash(hwc) + "; ")
	for i, w := range words {
		b.WriteString(w)
		if i < len(words)-1 {
			b.WriteByte(',')
			if i%8 == 7 {
				b.WriteByte(' ')
			}
		}
	}
	return strings.TrimSuffix(b.String(), "; ")
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

func newTable(header ...string) table.Writer {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.Options{SeparateHeader: true, SeparateFooter: true}
	style.Format = table.FormatOptions{}
	style.Box.PaddingLeft = ""
	style.Box.PaddingRight = "  "
	t.SetStyle(style)
	row := make(table.Row, len(header))
	for i, h := range header {
		row[i] = h
	}
	t.AppendHeader(row)
	return t
}

func (p *page) table(t table.Writer, indent string) {
	for line := range strings.SplitSeq(t.Render(), "\n") {
		p.WriteString(strings.TrimRight(indent+line, " ") + "\n")
	}
}

func (p *page) linef(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// bullet writes text of several lines under one mark.
func (p *page) bullet(mark, text string) {
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		p.linef("%s%s", mark, foreign.Line(line))
		if mark != "  | " {
			mark = strings.Repeat(" ", len(mark))
		}
	}
}

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
