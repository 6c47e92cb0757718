package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/foreign"
	"irqlab/lab/layout"
	"irqlab/scenarios/result"
)

func (p *page) briefly(r result.Report) {
	for _, group := range groups(r.Cases) {
		p.summary(group)
	}
	for i := range r.Cases {
		if c := &r.Cases[i]; !fine(c) {
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

// groups splits the cases by scenario, both in the order of the report. Scenarios that have no vectors to show, as most
// faults, are one group where they follow each other.
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
	disks := !vectors && slices.ContainsFunc(cases, func(c result.Case) bool { return len(DiskQueues(&c)) > 0 })
	if disks {
		head += ": effective CPU of each disk queue"
		t.Header = append(t.Header, "queues", "on the disk's node")
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
			row = append(
				row,
				Placement(&c, o),
				p.alarm(listOrCount(result.ClusteredCPUs(o.Online, o.Vectors))),
				listOrCount(o.IdleCPUs),
			)
		} else if vectors {
			row = append(row, "-", "-", "-")
		}
		if disks {
			row = append(row, p.diskCells(&c)...)
		}
		if len(kernels) > 1 {
			row = append(row, foreign.Line(cmp.Or(c.Kernel, c.KernelSpec, "-")))
		}
		t.Rows = append(t.Rows, append(row, fmt.Sprintf("%.1f", c.Seconds.Total)))
	}
	if len(kernels) > 1 && t.Width() > p.columns {
		p.withoutKernels(&t, cases)
	}
	if i := slices.Index(t.Header, "clustered"); i >= 0 && t.Width() > p.columns &&
		!slices.ContainsFunc(t.Rows, func(row []string) bool { return row[i] != "-" }) {
		dropColumn(&t, i)
	}
	return head, t
}

// withoutKernels leaves of the kernels' releases what cases need to be told apart: what goes before a plus, or nothing
// where the cases' names end with what was asked for. The cases in full have the rest.
func (p *page) withoutKernels(t *layout.Table, cases []result.Case) {
	i := slices.Index(t.Header, "kernel")
	for _, row := range t.Rows {
		row[i], _, _ = strings.Cut(row[i], "+")
	}
	if t.Width() > p.columns &&
		!slices.ContainsFunc(cases, func(c result.Case) bool { return !strings.HasSuffix(c.Name, "/"+c.KernelSpec) }) {
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

// matrix sets cases named row/column against each other, such as strategies against pressure, when the names fill a
// rectangle.
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
				cell = Placement(c, o)
				if o.Clustered {
					cell = p.alarm(cell + " clustered")
				}
			}
			if !fine(c) {
				cell += " " + p.judged(c)
			}
			row = append(row, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	p.WriteString(t.Render(p.columns) + "\n")
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

// fine tells that a case came to no harm.
func fine(c *result.Case) bool { return c.Outcome == result.Pass || c.Outcome == result.Observed }

// Failed is how a case failed in a word or two; "" if it did not.
func Failed(c *result.Case) string {
	if fine(c) {
		return ""
	}
	return new(page).judged(c)
}

// Placement is where a reading of a case has its vectors, in the published form: "0; 0,2,0,3".
func Placement(c *result.Case, o *result.Observation) string {
	return placement(o, seats(c), maxPlacement)
}

// placement is the published form: "0; 0,2,0,3". A vector on several CPUs or none is in brackets. What is longer than
// limit has its runs as "1..32", and if that does not do, only says how many queues are on which CPUs, and cores.
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
		s = fmt.Sprintf("%d queues on %s", len(queues), Plural(len(all), "CPU", "CPUs"))
		if len(all) > 0 {
			s += fmt.Sprintf(" from %d to %d", all[0], all[len(all)-1])
		}
		if c, nodes := cores(all, at); at != nil {
			s += fmt.Sprintf(": %s of node %s", Plural(len(c), "core", "cores"), nodes)
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
