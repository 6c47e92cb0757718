package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/foreign"
	"irqlab/lab/layout"
	"irqlab/scenarios/result"
)

const (
	maxCPUColumns  = 16 // with more CPUs, interrupt counts share a column
	maxListLength  = 24 // a longer list of idle or clustered CPUs is counted instead
	maxPlacement   = 48 // a longer list of queues' CPUs is shortened
	briefLines     = 4  // of a reason, in a summary
	maxOutputLines = 20 // of a program's, from its end
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

// again is what runs the case again.
func (p *page) again(c *result.Case) {
	if c.Command != "" {
		p.WriteString(layout.Commands("  again: "+foreign.Line(c.Command), p.columns) + "\n")
	}
}

func title(c *result.Case) string { return foreign.Line(c.Scenario) + "/" + foreign.Line(c.Name) }

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
	kind, _, _ := strings.Cut(c.Strategy, ":") // of masks:0/1
	switch c.Branch {
	case "", c.Strategy, kind:
	case result.BranchUnknown:
		what += " (its masks are no strategy's)"
	default:
		what += " (took: " + foreign.Line(c.Branch) + ")"
	}
	node := "no node"
	if c.DeviceNode != nil {
		node = "node " + strconv.Itoa(*c.DeviceNode)
	}
	p.linef("  kernel %s, %s, irqchip %s", foreign.Line(cmp.Or(c.Kernel, c.KernelSpec, "unknown")), what, foreign.Line(c.Irqchip))
	if c.Cmdline != "" {
		p.bullet("  command line: ", foreign.Line(c.Cmdline))
	}
	for _, m := range c.Modules {
		p.linef("  module %s of %s%s", foreign.Line(m.Name), foreign.Line(m.File), foreign.Line(Hash(m.SHA256)))
	}
	for _, k := range c.Packages {
		p.linef("  package %s", foreign.Line(strings.TrimSpace(k.Name+" "+k.Version)))
	}
	p.linef("  %s; CPUs online: %s", c.Shape, cmp.Or(c.Online.String(), "unknown"))
	pressure := "none"
	if len(c.Pressure) > 0 {
		pressure = strings.Join(c.Pressure, " ")
	}
	p.linef("  function on %s, %s", node, Plural(c.Vectors, "vector", "vectors"))
	p.linef("  pressure: %s", foreign.Line(pressure))
	for _, n := range c.Notes {
		p.bullet("  note: ", n)
	}
	p.programOutput("the script", c.Script)
	p.steps(c)
	for i := range c.Observations {
		p.observation(&c.Observations[i], seats(c))
	}
	p.evidence(c.Evidence)
	if n := len(c.KernelLog.Warnings); n > 0 {
		p.linef("  %s", p.alarm(Plural(n, "warning", "warnings")+" in the kernel log:"))
		for _, w := range c.KernelLog.Warnings {
			p.WriteString(layout.Quote(foreign.Text(w), p.columns))
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

// Hash goes on with the beginning of a module's hash, as much as tells modules apart; with nothing if it is not known.
func Hash(sha256 string) string {
	if sha256 == "" {
		return ""
	}
	return ", sha256 " + sha256[:min(len(sha256), 12)] + "…"
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
	for i := range c.Steps {
		p.programOutput(fmt.Sprintf("step %s", foreign.Line(c.Steps[i].At)), c.Steps[i].Run)
		for j := range c.Steps[i].Disks {
			p.disk(&c.Steps[i], &c.Steps[i].Disks[j])
		}
	}
	for _, r := range c.Rules {
		hits := p.alarm("never reached")
		if r.Hits > 0 {
			hits = Plural(r.Hits, "time", "times")
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
	if s.Run != nil {
		words = append(words, ran(s.Run))
	}
	if s.Storm != nil {
		words = append(words, "handled of fired, by vector: "+p.storm(s.Storm))
	}
	return strings.Join(words, "; ")
}

// ran is how a program ended.
func ran(r *result.Program) string {
	switch {
	case r.Late:
		return "killed: it did not end in time"
	case r.Signal != "":
		return "killed by SIG" + foreign.Line(r.Signal)
	}
	return fmt.Sprintf("status %d", r.Status)
}

// programOutput shows what a program wrote, its end if it is much.
func (p *page) programOutput(what string, r *result.Program) {
	if r == nil || strings.TrimSpace(r.Output) == "" {
		return
	}
	lines := strings.Split(strings.TrimRight(r.Output, "\n"), "\n")
	kept := lines[max(0, len(lines)-maxOutputLines):]
	p.linef("")
	if len(kept) < len(lines) {
		p.linef("  %s wrote %d bytes; the last lines (all that is kept is in the JSON):", what, r.Size)
	} else {
		p.linef("  %s wrote:", what)
	}
	p.WriteString(layout.Quote(foreign.Text(strings.Join(kept, "\n")), p.columns))
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
		host += ", " + Plural(r.Host.CPUs, "host CPU", "host CPUs")
	}
	failed := fmt.Sprintf("%d failed", count[result.Fail])
	if known > 0 {
		failed += fmt.Sprintf(" (%d as known)", known)
	}
	outcomes := []string{fmt.Sprintf("%d passed", count[result.Pass])}
	if n := count[result.Observed]; n > 0 {
		outcomes = append(outcomes, fmt.Sprintf("%d observed", n))
	}
	outcomes = append(outcomes, failed, Plural(count[result.Error], "error", "errors"))
	p.linef("%s: %s; %s%s", Plural(len(r.Cases), "case", "cases"), strings.Join(outcomes, ", "), took(r, seconds), host)
	if r.NotRun > 0 {
		p.linef("%s", p.alarm("interrupted: "+Plural(r.NotRun, "case was", "cases were")+" not run to the end"))
	}
}

// took says how long the run lasted, and the cases by themselves where they ran side by side.
func took(r result.Report, cases float64) string {
	if r.Seconds == 0 || len(r.Cases) < 2 { // unknown, or the same
		return fmt.Sprintf("%.1f s", cases)
	}
	return fmt.Sprintf("%.1f s elapsed, %.1f s a case", r.Seconds, cases/float64(len(r.Cases)))
}

func listOrDash(l cpulist.List) string { return cmp.Or(l.String(), "-") }

// listOrCount fits a list into a column.
func listOrCount(l cpulist.List) string {
	if s := listOrDash(l); len(s) <= maxListLength {
		return s
	}
	return Plural(len(l), "CPU", "CPUs")
}

// Plural is a number of things, such as "1 vector" or "2 vectors".
func Plural(n int, one, many string) string {
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
	p.WriteString(layout.Item(mark, foreign.Text(text), p.columns))
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
