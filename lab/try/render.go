package try

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"irqlab/lab/foreign"
	"irqlab/scenarios/result"
	"irqlab/scenarios/shape"
)

const (
	tableWidth = 80
	mailWidth  = 72 // of a line of a mail to a list
	maxCell    = 24 // of the CPUs of one side
)

// page is a text being written.
type page struct {
	strings.Builder
	width int
}

func (p *page) linef(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// item writes text behind a mark, wrapped, each line of it by itself.
func (p *page) item(mark, text string) {
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		for _, part := range wrap(foreign.Line(line), p.width-utf8.RuneCountInString(mark)) {
			p.linef("%s", strings.TrimRight(mark+part, " "))
			mark = strings.Repeat(" ", utf8.RuneCountInString(mark))
		}
	}
}

// wrap breaks text at spaces, and behind commas where a word is longer than a line.
func wrap(text string, columns int) []string {
	var out []string
	line := ""
	add := func(word string) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= columns:
			line += " " + word
		default:
			out = append(out, line)
			line = word
		}
	}
	for word := range strings.FieldsSeq(text) {
		for utf8.RuneCountInString(word) > columns {
			i := strings.LastIndexByte(string([]rune(word)[:columns]), ',')
			if i < 1 {
				break
			}
			add(word[:i+1])
			word = word[i+1:]
		}
		add(word)
	}
	return append(out, line)
}

// command writes a shell's command, broken between words so that it can be copied as it is.
func (p *page) command(mark, words string) {
	columns := p.width - utf8.RuneCountInString(mark) - len(" \\")
	var lines []string
	line := ""
	for _, word := range shellWords(foreign.Line(words)) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line+" "+word) <= columns:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	lines = append(lines, line)
	for i, line := range lines {
		if i < len(lines)-1 {
			line += " \\"
		}
		p.linef("%s", mark+line)
		mark = strings.Repeat(" ", utf8.RuneCountInString(mark))
	}
}

// shellWords splits a command that quotes words as a shell does, and leaves them quoted.
func shellWords(command string) []string {
	var words []string
	open := false
	for part := range strings.SplitSeq(command, " ") {
		if open {
			words[len(words)-1] += " " + part
		} else {
			words = append(words, part)
		}
		if strings.Count(part, "'")%2 == 1 {
			open = !open
		}
	}
	return words
}

// columns writes rows under each other, two spaces apart; cells of several lines take several lines. The first row is the header.
func (p *page) columns(indent string, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			for line := range strings.SplitSeq(cell, "\n") {
				widths[i] = max(widths[i], utf8.RuneCountInString(line))
			}
		}
	}
	total := -2
	for _, w := range widths {
		total += w + 2
	}
	for n, row := range rows {
		lines := 1
		cells := make([][]string, len(row))
		for i, cell := range row {
			cells[i] = strings.Split(cell, "\n")
			lines = max(lines, len(cells[i]))
		}
		for l := range lines {
			var b strings.Builder
			for i := range row {
				text := ""
				if l < len(cells[i]) {
					text = cells[i][l]
				}
				b.WriteString(text + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+2))
			}
			p.linef("%s", strings.TrimRight(indent+b.String(), " "))
		}
		if n == 0 {
			p.linef("%s", indent+strings.Repeat("-", total))
		}
	}
}

// Table writes a trial for people, 80 columns wide.
func Table(w io.Writer, t Trial) error {
	p := &page{width: tableWidth}
	p.heading(t)
	p.hunks(t)
	p.build(t)
	if len(t.Cases) > 0 {
		p.linef("")
		p.overview(t)
		for i := range t.Cases {
			if c := &t.Cases[i]; c.Change != Unchanged {
				p.linef("")
				before, after := t.sides()
				p.inFull(before, after, c)
			}
		}
		p.linef("")
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
	kernel := cmp.Or(t.Kernel.Release, t.Kernel.Spec)
	if t.Kernel.Release != "" && t.Kernel.Release != t.Kernel.Spec {
		kernel += " (" + t.Kernel.Spec + ")"
	}
	p.item("kernel:  ", kernel)
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
	p.item("applies: ", plural(len(t.Hunks), "hunk", "hunks")+", "+how)
	for _, h := range t.Hunks {
		if h.Fuzz > 0 {
			p.item("  - ", fmt.Sprintf("%s: at line %d, with %s of its context not there; look whether it is meant for this place", h.Where, h.Line, plural(h.Fuzz, "line", "lines")))
		}
	}
}

// build says what was built, and how much what runs without the patch is the distribution's.
func (p *page) build(t Trial) {
	for i, e := range t.Errors {
		if i == 0 {
			p.linef("errors:")
		}
		p.item("  - ", e.String())
	}
	m := t.Module
	if m == nil {
		return
	}
	took := fmt.Sprintf(" in %.1f s", t.Seconds.Build)
	if m.Cached {
		took = " before, of the same source"
	}
	hash := ""
	if m.SHA256 != "" {
		hash = ", sha256 " + m.SHA256[:min(len(m.SHA256), 12)] + "…"
	}
	p.item("module:  ", fmt.Sprintf("%s, built%s%s", m.Name, took, hash))
	for _, w := range m.Warnings {
		p.item("  - ", "new warning: "+w.String())
	}
	switch {
	case m.Unchecked != "":
		p.item("check:   ", "the unpatched module could not be compared with the distribution's: "+m.Unchecked)
	case m.Identical:
		p.item("check:   ", fmt.Sprintf("the unpatched module, built the same way, has the distribution's code (%s)", plural(m.Functions, "function", "functions")))
	default:
		p.item("check:   ", fmt.Sprintf("the unpatched module, built the same way, differs from the distribution's in %s: %s", plural(len(m.Differ), "function", "functions"), someOf(m.Differ)))
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
	cases := t.Cases
	before, after := t.sides()
	p.linef("effective CPU of the HWC vector; of each queue vector")
	several := false
	for _, c := range cases {
		several = several || c.Scenario != cases[0].Scenario
	}
	rows := [][]string{{"case", before, after, "result"}}
	for _, c := range cases {
		name := foreign.Line(c.Case)
		if several {
			name = strings.Join(wrap(foreign.Line(c.Scenario)+"/ "+name, 20), "\n")
		}
		all := result.Labels(c.Without, c.With)
		if len(all) == 0 {
			rows = append(rows, []string{name, side(c.Without, ""), side(c.With, ""), string(c.Change)})
		}
		for i, l := range all {
			row := []string{name, side(c.Without, l), side(c.With, l), string(c.Change)}
			if i > 0 {
				row[0], row[3] = "", ""
			}
			if len(all) > 1 {
				row[0] = strings.TrimSuffix(row[0]+"\n  "+foreign.Line(l), "\n")
				row[1], row[2] = "\n"+row[1], "\n"+row[2]
				if i > 0 {
					row[0], row[1], row[2] = "  "+foreign.Line(l), strings.TrimPrefix(row[1], "\n"), strings.TrimPrefix(row[2], "\n")
				}
			}
			rows = append(rows, row)
		}
	}
	p.columns("", rows)
}

// side is one side of a case in the overview: where its vectors are, what of that is no good, and what came of the case.
func side(c *result.Case, label string) string {
	out := string(c.Outcome)
	if c.Outcome == result.Pass || c.Outcome == result.Observed {
		out = ""
	} else if c.Known != "" {
		out += ", known"
	}
	o := c.Find(label)
	if o == nil {
		return cmp.Or(out, "-")
	}
	if o.Clustered {
		out = strings.TrimPrefix(out+", clustered", ", ")
	}
	lines := wrap(Placement(o), maxCell)
	if last := &lines[len(lines)-1]; out != "" && utf8.RuneCountInString(*last+" "+out) <= maxCell {
		*last += " " + out
	} else if out != "" {
		lines = append(lines, out)
	}
	return strings.Join(lines, "\n")
}

// Placement is the published form: "0; 0,2,0,3". A vector on several CPUs or none is in brackets.
func Placement(o *result.Observation) string {
	hwc, queues := o.Placement()
	words := make([]string, len(queues))
	for i, q := range queues {
		words[i] = q.String()
		if len(q) != 1 {
			words[i] = "[" + words[i] + "]"
		}
	}
	return strings.TrimSuffix(cmp.Or(hwc.String(), "-")+"; "+strings.Join(words, ","), "; ")
}

// Sides writes one case for people: what of it is not as it was, and both sides of each vector, under their names.
func Sides(w io.Writer, before, after string, c *Compared) error {
	p := &page{width: tableWidth}
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
		p.linef("")
		p.vectors(label, before, c.Without.Find(label), after, c.With.Find(label))
	}
	if command := c.With.Command; command != "" {
		p.command("  again: ", command)
	}
}

// maxEvidence is how many lines are shown of why a case fails; the results that --out keeps have them all.
const maxEvidence = 16

// evidence is why a case fails, in the words that it fails with.
func (p *page) evidence(c *result.Case) {
	lines := strings.Split(strings.Join(c.Reasons, "\n"), "\n")
	for i, l := range lines {
		if i == maxEvidence {
			p.linef("  | … and %d more lines", len(lines)-i)
			break
		}
		p.item("  | ", l)
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
	rows := [][]string{{"IRQ name", before + ": effective", "of", after + ": effective", "of"}}
	if label != "settled" {
		rows[0][0] = foreign.Line(label)
	}
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
	p.columns("  ", rows)
}

// irqName is the name in /proc/interrupts without the function's address.
func irqName(v result.Vector) string {
	name, _, _ := strings.Cut(v.Action, "@")
	return foreign.Line(cmp.Or(name, v.Role))
}

// machine is a case's machine in words.
func machine(c *result.Case) string {
	text := fmt.Sprintf("%s, %s (1 HWC + %s)", cpus(c.Shape), plural(c.Vectors, "vector", "vectors"), plural(c.Vectors-1, "queue", "queues"))
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
	words := []string{plural(s.Cores, "core", "cores"), plural(s.Threads, "thread", "threads")}
	if s.Sockets > 1 {
		words = append([]string{plural(s.Sockets, "socket", "sockets")}, words...)
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
	case WordNeedsKernel:
		return "not known: it needs a whole kernel, which irqlab does not build yet"
	}
	return "not known: the lab could not tell" + n
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
