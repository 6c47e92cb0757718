package report

import (
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

// Observation writes one reading as the table shows it.
func Observation(w io.Writer, o *result.Observation) error {
	p := page{columns: layout.Columns(w)}
	p.observation(o, nil)
	_, err := w.Write(p.Bytes())
	return err
}

// seat is where a CPU sits.
type seat struct{ core, node int }

// seats are those of a case's CPUs where they tell more than the CPUs' numbers do: on a machine of several nodes, or of
// many CPUs that share cores. Where CPUs were plugged in again, the shape does not say where they came to sit: nil.
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

// IRQName is the kernel's for a vector's interrupt, without the device that all of them are of. A name that only repeats
// the vector's number is none: vfio's.
func IRQName(v result.Vector) string {
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

// aboutHints says in a sentence what a table without a column of hints leaves out, and whether that holds for each
// vector.
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
	named := slices.ContainsFunc(o.Vectors, func(v result.Vector) bool { return IRQName(v) != "" })
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
				return cmp.Or(IRQName(v), "-") + " " + v.Role
			}
			return cmp.Or(IRQName(v), "-")
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
		{
			"node",
			len(nodes) > 1,
			func(v result.Vector) string { _, n := cores(v.Effective, at); return listOrDash(n) },
			"",
		},
	}
	if f.gap > 0 {
		cells := perCPU(cpus, total, f.gap)
		columns = append(
			columns,
			column{cells(nil), true, func(v result.Vector) string { return cells(v.Counts) }, cells(total)},
		)
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
	switch {
	case len(clustered) > 0:
		p.linef("  %s", p.alarm("clustered: "+Cluster(o)))
	case len(o.IdleCPUs) > 0:
		p.linef("  not clustered; no queue on %s", o.IdleCPUs.Words())
	default:
		p.linef("  not clustered; no CPU is idle")
	}
}

// Cluster says of a clustered reading which CPUs have several queues: "CPU 0 has 2 queues; none on CPU 1".
func Cluster(o *result.Observation) string {
	per := result.QueuesPerCPU(o.Vectors)
	with := map[int]cpulist.List{} // CPUs, by their number of queues
	for _, cpu := range result.ClusteredCPUs(o.Online, o.Vectors) {
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
	return fmt.Sprintf("%s; none on %s", strings.Join(words, ", "), o.IdleCPUs.Words())
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
