package try

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"irqlab/lab/foreign"
	"irqlab/lab/layout"
	"irqlab/lab/report"
	"irqlab/scenarios/result"
	"irqlab/scenarios/shape"
)

const mailWidth = 72 // of a line of a mail to a list

// page is a text being written.
type page struct {
	strings.Builder
	width int
}

// item writes text behind a mark.
func (p *page) item(mark, text string) { p.WriteString(layout.Item(mark, foreign.Text(text), p.width)) }

func (p *page) gap() { p.WriteByte('\n') }

// command writes a shell's command behind a mark, broken so that it can be copied as it is.
func (p *page) command(mark, words string) {
	indent := strings.Repeat(" ", layout.Width(mark))
	words = layout.Commands(foreign.Line(words), p.width-len(indent))
	p.WriteString(mark + strings.ReplaceAll(words, "\n", "\n"+indent) + "\n")
}

// table writes rows under a header.
func (p *page) table(indent string, header []string, rows [][]string) {
	t := layout.Table{Rules: true, Indent: indent, Header: header, Rows: rows}
	p.WriteString(t.Render(p.width))
}

// Table writes a trial for people, as wide as what it goes to.
func Table(w io.Writer, t Trial) error {
	p := &page{width: layout.Columns(w)}
	p.heading(t)
	p.hunks(t)
	p.build(t)
	if len(t.Cases) > 0 {
		p.gap()
		p.overview(t)
		for i := range t.Cases {
			if c := &t.Cases[i]; c.Change != Unchanged {
				p.gap()
				before, after := t.sides()
				p.inFull(before, after, c)
			}
		}
		p.gap()
	}
	p.verdict(t)
	_, err := io.WriteString(w, p.String())
	return err
}

// heading says what is tried on what.
func (p *page) heading(t Trial) {
	for i, patch := range t.Patches {
		mark := "patch:   "
		if len(t.Patches) > 1 {
			mark = fmt.Sprintf("%-9s", fmt.Sprintf("patch %d:", i+1))
		}
		text := patch.Subject()
		if t.Reversed {
			text += ", taken out"
		}
		p.item(mark, text)
	}
	if t.ID != "" {
		p.item("id:      ", t.ID)
	}
	p.item("kernel:  ", t.Kernel.String())
	for _, n := range t.Notes {
		p.item("note:    ", n)
	}
	if len(t.Outside) > 0 {
		p.item("note:    ", "passed over, since nothing that boots is built of it: "+strings.Join(t.Outside, ", "))
	}
}

// hunks says how they fitted, and of those with fuzz where they went. Those that did not fit are report.Patch's to show.
func (p *page) hunks(t Trial) {
	if len(t.Hunks) == 0 {
		return
	}
	p.item("applies: ", t.Fit())
	for _, h := range t.Hunks {
		if h.Fuzz > 0 {
			p.item("  - ", fmt.Sprintf("%s: at line %d, with %s of its context not there; look whether it is meant for this place",
				h.Where, h.Line, report.Plural(h.Fuzz, "line", "lines")))
		}
	}
}

// Fit says how the hunks fitted: "6 hunks, 2 with fuzz".
func (t *Trial) Fit() string {
	misfits, fuzzy, moved := 0, 0, 0
	for _, h := range t.Hunks {
		switch {
		case h.Misfit != "":
			misfits++
		case h.Fuzz > 0:
			fuzzy++
		case h.Offset != 0:
			moved++
		}
	}
	how := "as they are"
	if len(t.Hunks) == 1 {
		how = "as it is"
	}
	switch {
	case misfits > 0:
		how = fmt.Sprintf("%d of them not", misfits)
	case fuzzy > 0:
		how = fmt.Sprintf("%d with fuzz", fuzzy)
	case moved > 0:
		how = fmt.Sprintf("%d at another line than the patch says", moved)
	}
	return report.Plural(len(t.Hunks), "hunk", "hunks") + ", " + how
}

// build says what was built, and how much what runs without the patch is the distribution's.
func (p *page) build(t Trial) {
	for i, e := range t.Errors {
		if i == 0 {
			p.item("", "errors:")
		}
		p.item("  - ", e.String())
	}
	p.kernels(t)
	m := t.Module
	if m == nil {
		return
	}
	took := fmt.Sprintf(" in %.1f s", t.Seconds.Build)
	if m.Cached {
		took = " before, of the same source"
	}
	p.item("module:  ", fmt.Sprintf("%s, built%s%s", m.Name, took, report.Hash(m.SHA256)))
	for _, w := range m.Warnings {
		p.item("  - ", "new warning: "+w.String())
	}
	switch {
	case m.Unchecked != "":
		p.item("check:   ", "the unpatched module could not be compared with the distribution's: "+m.Unchecked)
	case m.Identical:
		p.item("check:   ", fmt.Sprintf("the unpatched module, built the same way, has the distribution's code (%s)", report.Plural(m.Functions, "function", "functions")))
	default:
		p.item("check:   ", fmt.Sprintf("the unpatched module, built the same way, differs from the distribution's in %s: %s", report.Plural(len(m.Differ), "function", "functions"), someOf(m.Differ)))
	}
	if m.Without != "" {
		p.item("without: ", m.Without)
	}
}

const maxNamed = 8

func someOf(names []string) string {
	if len(names) > maxNamed {
		return strings.Join(names[:maxNamed], ", ") + fmt.Sprintf(" and %d more", len(names)-maxNamed)
	}
	return strings.Join(names, ", ")
}

// overview is a line for each case, or for each reading of one that has several.
func (p *page) overview(t Trial) {
	before, after := t.sides()
	several := slices.ContainsFunc(t.Cases, func(c Compared) bool { return c.Scenario != t.Cases[0].Scenario })
	table := func(sep string) layout.Table {
		o := layout.Table{Rules: true, Header: []string{"case", before, after, "result"}}
		for _, c := range t.Cases {
			name := foreign.Line(c.Case)
			if several {
				name = foreign.Line(c.Scenario) + "/" + name
			}
			labels := result.Labels(c.Without, c.With)
			if len(labels) < 2 {
				label := strings.Join(labels, "")
				o.Rows = append(o.Rows, []string{name, side(c.Without, label, sep), side(c.With, label, sep), string(c.Change)})
				continue
			}
			o.Rows = append(o.Rows, []string{name, "", "", string(c.Change)})
			for _, l := range labels {
				o.Rows = append(o.Rows, []string{"  " + foreign.Line(l), side(c.Without, l, sep), side(c.With, l, sep), ""})
			}
		}
		return o
	}
	o := table(" ")
	if o.Width() > p.width {
		o = table("\n")
	}
	p.item("", "effective CPU of the HWC vector; of each queue vector")
	if slices.ContainsFunc(t.Cases, func(c Compared) bool { return len(report.DiskNames(c.Without, c.With)) > 0 }) {
		p.item("", "of a case that reads from disks: of each request queue")
	}
	p.WriteString(o.Render(p.width))
}

// side is one side of a case in the overview: where its vectors are, and behind sep what of that is no good.
func side(c *result.Case, label, sep string) string {
	o := c.Find(label)
	failed := report.Failed(c)
	if o == nil {
		return strings.TrimPrefix(strings.TrimSuffix(diskPlaces(c)+sep+failed, sep), sep)
	}
	if o.Clustered {
		failed = strings.TrimPrefix(failed+", clustered", ", ")
	}
	return strings.TrimSuffix(report.Placement(c, o)+sep+failed, sep)
}

// diskPlaces is where the request queues of a case's disks are, "-" if it reads from none and does not fail.
func diskPlaces(c *result.Case) string {
	var words []string
	queues := report.DiskQueues(c)
	for _, name := range report.DiskNames(c, c) {
		words = append(words, queues[name].Where())
	}
	if words == nil && report.Failed(c) == "" {
		return "-"
	}
	return strings.Join(words, "; ")
}

// diskTable sets the request queues of both sides against each other.
func (p *page) diskTable(before, after string, c *Compared) {
	x, y := report.DiskQueues(c.Without), report.DiskQueues(c.With)
	var rows [][]string
	for _, name := range report.DiskNames(c.Without, c.With) {
		cell := func(q report.DiskQueue, f func(report.DiskQueue) string) string {
			if q.Queue == nil {
				return "-"
			}
			return f(q)
		}
		for _, fact := range []struct {
			what string
			of   func(report.DiskQueue) string
		}{
			{name + ": mask", func(q report.DiskQueue) string { return cmp.Or(q.Queue.Affinity.String(), "-") }},
			{"  effective", report.DiskQueue.Where},
			{"  requests", func(q report.DiskQueue) string { return report.RequestsOf(q.Disk, q.Queue.Index) }},
		} {
			rows = append(rows, []string{fact.what, cell(x[name], fact.of), cell(y[name], fact.of)})
		}
	}
	if rows != nil {
		p.gap()
		p.table("  ", []string{"", before, after}, rows)
	}
}

// Sides writes one case for people: what of it is not as it was, and both sides of each vector, under their names.
func Sides(w io.Writer, before, after string, c *Compared) error {
	p := &page{width: layout.Columns(w)}
	p.inFull(before, after, c)
	_, err := io.WriteString(w, p.String())
	return err
}

// inFull is a case that is not as it was: why, and both sides of each vector.
func (p *page) inFull(before, after string, c *Compared) {
	p.item("", fmt.Sprintf("%s/%s: %s", c.Scenario, c.Case, c.Change))
	p.item("  ", machine(c.With))
	for _, list := range []struct {
		mark  string
		words []string
	}{{"  - worse: ", c.Worse}, {"  - better: ", c.Better}, {"  - changed: ", c.Changed}} {
		for _, w := range list.words {
			p.item(list.mark, w)
		}
	}
	if c.Change == Unknown {
		for _, r := range append(prefixed(before+": ", c.Without.Reasons), prefixed(after+": ", c.With.Reasons)...) {
			p.item("  - ", r)
		}
	}
	if c.Change == Worse && c.Fails != "" {
		p.evidence(c.With)
	}
	for _, label := range result.Labels(c.Without, c.With) {
		p.gap()
		p.vectors(label, before, c.Without.Find(label), after, c.With.Find(label))
	}
	p.diskTable(before, after, c)
	if command := c.With.Command; command != "" {
		p.command("  again: ", command)
	}
}

// maxEvidence is how many lines are shown of why a case fails; the results that --out keeps have them all.
const maxEvidence = 16

// evidence is why a case fails, in the words that it fails with.
func (p *page) evidence(c *result.Case) {
	lines := strings.Split(strings.Join(c.Reasons, "\n"), "\n")
	p.WriteString(layout.Quote(foreign.Text(strings.Join(lines[:min(len(lines), maxEvidence)], "\n")), p.width))
	if more := len(lines) - maxEvidence; more > 0 {
		p.WriteString(layout.Quote("… and "+report.Plural(more, "more line", "more lines"), p.width))
	}
	if c.Artifacts.Console != "" {
		p.item("  console: ", c.Artifacts.Console)
	}
}

func prefixed(mark string, words []string) []string {
	var out []string
	for _, w := range words {
		out = append(out, mark+firstLine(w))
	}
	return out
}

// vectors sets those of both sides against each other: where each is, and of which mask.
func (p *page) vectors(label, before string, a *result.Observation, after string, b *result.Observation) {
	header := []string{"IRQ name", before + ": effective", "of", after + ": effective", "of"}
	if label != "settled" {
		header[0] = foreign.Line(label)
	}
	var rows [][]string
	cells := func(o *result.Observation, index int) (name, effective, mask string) {
		if o == nil {
			return "", "-", "-"
		}
		for _, v := range o.Vectors {
			if v.Index == index {
				mask := cmp.Or(v.Affinity.String(), "-")
				if v.Dropped {
					mask = fmt.Sprintf("%s (%s dropped)", mask, v.Asked)
				}
				return irqName(v), cmp.Or(v.Effective.String(), "-"), mask
			}
		}
		return "", "-", "-"
	}
	most := -1
	for _, o := range []*result.Observation{a, b} {
		if o != nil && len(o.Vectors) > 0 {
			most = max(most, o.Vectors[len(o.Vectors)-1].Index)
		}
	}
	for i := range most + 1 {
		x, xe, xm := cells(a, i)
		y, ye, ym := cells(b, i)
		rows = append(rows, []string{cmp.Or(y, x), xe, xm, ye, ym})
	}
	p.table("  ", header, rows)
}

// irqName is the interrupt's name, or what the vector is for.
func irqName(v result.Vector) string { return cmp.Or(report.IRQName(v), foreign.Line(v.Role)) }

// machine is a case's machine in words.
func machine(c *result.Case) string {
	text := fmt.Sprintf("%s, %s (1 HWC + %s)", cpus(c.Shape), report.Plural(c.Vectors, "vector", "vectors"), report.Plural(c.Vectors-1, "queue", "queues"))
	if c.Shape.Nodes > 1 {
		node := "no node"
		if c.DeviceNode != nil {
			node = fmt.Sprintf("node %d", *c.DeviceNode)
		}
		text += ", function on " + node
	}
	if n := c.Shape.CPUs(); len(c.Online) > 0 && len(c.Online) < n {
		text += fmt.Sprintf(", CPUs %s online", c.Online)
	}
	if len(c.Pressure) > 0 {
		text += ", beside " + strings.Join(c.Pressure, " ")
	}
	return text
}

// cpus is "4 vCPUs (2 cores x 2 threads)".
func cpus(s shape.Shape) string {
	words := []string{report.Plural(s.Cores, "core", "cores"), report.Plural(s.Threads, "thread", "threads")}
	if s.Sockets > 1 {
		words = append([]string{report.Plural(s.Sockets, "socket", "sockets")}, words...)
	}
	text := fmt.Sprintf("%d vCPUs (%s", s.CPUs(), strings.Join(words, " x "))
	if s.Nodes > 1 {
		text += fmt.Sprintf(", %d nodes", s.Nodes)
	}
	return text + ")"
}

// verdict ends it.
func (p *page) verdict(t Trial) {
	p.item("verdict: ", t.verdict())
	if len(t.Cases) == 0 || t.Verdict.Word == WordFails || t.Verdict.Word == WordUnknown {
		for _, r := range t.Verdict.Reasons {
			p.item("  - ", r)
		}
	}
}

// text is the verdict in words.
func (t *Trial) verdict() string {
	n := ""
	if len(t.Cases) > 0 {
		n = " (" + count(t.Cases) + ")"
	}
	what := "the patch"
	if t.Reversed {
		what = "taking the patch out"
	}
	switch t.Verdict.Word {
	case WordBetter:
		return "better: " + what + " makes something better, and nothing worse" + n
	case WordChanged:
		return "changed: nothing is better or worse" + n
	case WordUnchanged:
		return "unchanged: nothing that was looked at differs" + n
	case WordWorse:
		return "worse: " + what + " makes something worse" + n
	case WordFails:
		return "fails: " + what + " makes nothing worse, and does not mend what fails" + n
	case WordApplies:
		return "it applies; nothing was built or run"
	case WordDoesNotApply:
		return "not known: it does not apply to this kernel"
	case WordDoesNotBuild:
		return "not known: it does not build"
	}
	return "not known: the lab could not tell" + n
}
