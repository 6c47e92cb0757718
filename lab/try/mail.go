package try

import (
	"fmt"
	"io"
	"strings"

	"irqlab/lab/report"
	"irqlab/scenarios/result"
)

// Mail writes a trial as plain text to be pasted into a mail: what was tried on what, the command that does it again, and for each case that is not as it was both tables.
func Mail(w io.Writer, t Trial) error {
	p := &page{width: mailWidth}
	before, after := "without the patch", "with the patch"
	if t.Reversed {
		before, after = "with the patch, as the kernel is", "without the patch"
	}
	for _, patch := range t.Patches {
		text := patch.Subject()
		if t.Reversed {
			text += ", taken out"
		}
		p.item("Patch:   ", text)
	}
	p.item("Id:      ", t.ID)
	p.item("Kernel:  ", t.Kernel.String())
	if m := t.Module; m != nil {
		text := fmt.Sprintf("only %s was rebuilt", m.Name)
		if t.Kernel.Compiler != "" {
			text += ", by " + t.Kernel.Compiler
		}
		switch {
		case m.Identical:
			text += "; unpatched it has the distribution's code"
		case m.Unchecked == "":
			text += fmt.Sprintf("; unpatched it differs from the distribution's in %s", report.Plural(len(m.Differ), "function", "functions"))
		}
		p.item("Module:  ", text)
	}
	p.mailKernels(t)
	for _, h := range t.Hunks {
		if h.Fuzz > 0 {
			p.item("Applied: ", fmt.Sprintf("%s with fuzz %d", h.Where, h.Fuzz))
		}
	}
	p.command("Again:   ", t.Command)
	p.item("Result:  ", t.verdict())
	var same []string
	for i := range t.Cases {
		c := &t.Cases[i]
		if c.Change == Unchanged {
			same = append(same, c.Case)
			continue
		}
		p.gap()
		p.item("", fmt.Sprintf("%s, %s: %s", c.Case, c.Change, machine(c.With)))
		for _, words := range [][]string{c.Worse, c.Better, c.Changed} {
			for _, w := range words {
				p.item("- ", w)
			}
		}
		p.gap()
		p.mailTable(before, c.Without)
		p.gap()
		p.mailTable(after, c.With)
	}
	if len(same) > 0 {
		p.gap()
		p.item("Unchanged: ", strings.Join(same, ", "))
	}
	if t.IRQLab != "" {
		p.gap()
		p.item("", fmt.Sprintf("(irqlab %s, a modelled function under QEMU: where vectors land, not how fast they are)", t.IRQLab))
	}
	_, err := io.WriteString(w, p.String())
	return err
}

// mailTable is one side of a case: each vector's name and effective CPU, at the last reading.
func (p *page) mailTable(title string, c *result.Case) {
	p.item("", fmt.Sprintf("%s (%s)", title, c.Outcome))
	for _, r := range c.Reasons {
		p.item("  ", firstLine(r))
	}
	var rows [][]string
	queues := report.DiskQueues(c)
	for _, name := range report.DiskNames(c, c) {
		q := queues[name]
		rows = append(rows, []string{name, q.Queue.Affinity.String(), q.Where(), report.RequestsOf(q.Disk, q.Queue.Index)})
	}
	if rows != nil {
		p.table("", []string{"", "mask", "effective vCPU", "requests"}, rows)
	}
	for _, o := range c.Observations {
		if len(c.Observations) > 1 {
			p.item("", fmt.Sprintf("%s, CPUs %s online", o.Label, o.Online))
		}
		var rows [][]string
		for _, v := range o.Vectors {
			rows = append(rows, []string{fmt.Sprintf("IRQ%d", v.Index), irqName(v), v.Affinity.String(), v.Effective.String()})
		}
		p.table("", []string{"IRQ", "name", "requested", "effective vCPU"}, rows)
	}
}
