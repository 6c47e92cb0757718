package try

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/qemu/klog"
	"irqlab/lab/report"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// Change is what a patch made of a case.
type Change string

// The changes.
const (
	Unchanged Change = "unchanged"
	Changed   Change = "changed" // neither for the better nor for the worse
	Better    Change = "better"
	Worse     Change = "worse" // whatever is better beside
	Unknown   Change = "unknown"
)

// Compared is one case without and with the patch.
type Compared struct {
	Scenario string   `json:"scenario"`
	Case     string   `json:"case"`
	Change   Change   `json:"change"`
	Better   []string `json:"better"` // what is, one sentence each
	Worse    []string `json:"worse"`
	Changed  []string `json:"changed"`         // what is neither, such as the masks that are asked for
	Fails    string   `json:"fails,omitempty"` // with the patch: why, the first reason; "" if it does not, or is known to on this kernel and did without, too

	Without *result.Case `json:"-"`
	With    *result.Case `json:"-"`
}

// Compare compares the cases of both sides, which are the same in the same order. A case that is missing on one side is left out.
func Compare(without, with result.Report) []Compared {
	var out []Compared
	for i := range min(len(without.Cases), len(with.Cases)) {
		out = append(out, compare(&without.Cases[i], &with.Cases[i]))
	}
	return out
}

// oldWarnings reports whether the case fails with the patch by nothing but warnings that the kernel logs without it, too.
func (c *Compared) oldWarnings() bool {
	return len(c.With.Reasons) > 0 && len(c.With.Reasons) == len(c.With.KernelLog.Warnings) && len(others(c.With.KernelLog.Warnings, c.Without.KernelLog.Warnings)) == 0 &&
		!slices.ContainsFunc(c.With.Reasons, func(r string) bool { return !strings.HasPrefix(r, scenarios.WarningReason) })
}

// facts are what is found when both sides of a case are compared.
type facts struct{ better, worse, changed []string }

// sides says of one thing that each side either has or has not, and that nobody wants, for whom that is good.
func (f *facts) sides(without, with bool, worse, better string) {
	switch {
	case with && !without:
		f.worse = append(f.worse, worse)
	case without && !with:
		f.better = append(f.better, better)
	}
}

func compare(a, b *result.Case) Compared {
	name, _ := strings.CutSuffix(b.Name, "/with")
	c := Compared{Scenario: b.Scenario, Case: name, Without: a, With: b, Better: []string{}, Worse: []string{}, Changed: []string{}}
	mute := func(c *result.Case) bool { return c.Outcome == result.Fail && c.Kernel == "" && c.Observations == nil }
	if a.Outcome == result.Error || b.Outcome == result.Error || mute(a) && mute(b) { // nothing is known of a patch to a kernel that does not boot
		c.Change = Unknown
		return c
	}
	var f facts
	failed := func(c *result.Case) bool { return c.Outcome == result.Fail }
	f.sides(failed(a), failed(b), "it fails, and did not before: "+firstReason(b), "it does not fail, and did before: "+firstReason(a))
	for _, w := range others(b.KernelLog.Warnings, a.KernelLog.Warnings) {
		f.worse = append(f.worse, w.said("the kernel's log has a new warning: "))
	}
	for _, w := range others(a.KernelLog.Warnings, b.KernelLog.Warnings) {
		f.better = append(f.better, w.said("the kernel's log no longer has the warning: "))
	}
	labels := result.Labels(a, b)
	for _, label := range labels {
		f.observation(label, len(labels) > 1, a.Find(label), b.Find(label))
	}
	f.disks(a, b)
	if a.Branch != b.Branch && a.Branch != "" && b.Branch != "" {
		f.changed = append(f.changed, fmt.Sprintf("the driver's way: %s, before %s", b.Branch, a.Branch))
	}
	c.Better, c.Worse, c.Changed = append(c.Better, f.better...), append(c.Worse, f.worse...), append(c.Changed, f.changed...)
	switch {
	case len(c.Worse) > 0:
		c.Change = Worse
	case len(c.Better) > 0:
		c.Change = Better
	case len(c.Changed) > 0 || len(report.Compare(result.Report{Cases: []result.Case{*a}}, result.Report{Cases: []result.Case{*b}}).Differences) > 0:
		c.Change = Changed
	default:
		c.Change = Unchanged
	}
	if failed(b) && !(failed(a) && b.Known != "") {
		c.Fails = firstReason(b)
	}
	return c
}

// observation compares a reading.
func (f *facts) observation(label string, several bool, a, b *result.Observation) {
	at := ""
	if several {
		at = fmt.Sprintf("at %q ", label)
	}
	switch {
	case a == nil:
		f.better = append(f.better, fmt.Sprintf("it came as far as %q, and did not before", label))
		return
	case b == nil:
		f.worse = append(f.worse, fmt.Sprintf("it did not come as far as %q, and did before", label))
		return
	}
	f.sides(a.Clustered, b.Clustered, at+"clustered, and was not before: "+report.Cluster(b), at+"not clustered, and was before: "+report.Cluster(a))
	if slices.Equal(a.Online, b.Online) && len(a.IdleCPUs) != len(b.IdleCPUs) {
		f.sides(len(a.IdleCPUs) > len(b.IdleCPUs), len(b.IdleCPUs) > len(a.IdleCPUs),
			fmt.Sprintf("%smore CPUs without a queue: %s, before %s", at, list(b.IdleCPUs), list(a.IdleCPUs)),
			fmt.Sprintf("%sfewer CPUs without a queue: %s, before %s", at, list(b.IdleCPUs), list(a.IdleCPUs)))
	}
	var dropped, kept, asked, moved cpulist.List
	for _, v := range b.Vectors {
		i := slices.IndexFunc(a.Vectors, func(w result.Vector) bool { return w.Index == v.Index })
		if i < 0 {
			continue
		}
		w := a.Vectors[i]
		switch {
		case v.Dropped && !w.Dropped:
			dropped = append(dropped, v.Index)
		case w.Dropped && !v.Dropped:
			kept = append(kept, v.Index)
		}
		if !slices.Equal(v.Asked, w.Asked) {
			asked = append(asked, v.Index)
		}
		if !slices.Equal(v.Effective, w.Effective) {
			moved = append(moved, v.Index)
		}
	}
	if len(dropped) > 0 {
		f.worse = append(f.worse, fmt.Sprintf("%sthe kernel did not keep what was asked for vector %s, and did before", at, dropped))
	}
	if len(kept) > 0 {
		f.better = append(f.better, fmt.Sprintf("%sthe kernel kept what was asked for vector %s, and did not before", at, kept))
	}
	if x, y := len(a.Vectors), len(b.Vectors); x != y {
		f.changed = append(f.changed, fmt.Sprintf("%s%d vectors, before %d", at, y, x))
	}
	if len(asked) > 0 {
		f.changed = append(f.changed, fmt.Sprintf("%sother masks are asked for vector %s", at, asked))
	}
	if len(moved) > 0 {
		within := ""
		if len(asked.And(moved)) == 0 {
			within = ", within the same masks: the kernel's own choice"
		}
		f.changed = append(f.changed, fmt.Sprintf("%svector %s elsewhere%s", at, moved, within))
	}
}

// disks compares where the interrupts of request queues are: the disk's node is where they belong.
func (f *facts) disks(a, b *result.Case) {
	before, after := report.DiskQueues(a), report.DiskQueues(b)
	for _, name := range report.DiskNames(a, b) {
		was, is := before[name], after[name]
		if was.Queue == nil || is.Queue == nil { // it has fewer queues, or more
			f.changed = append(f.changed, fmt.Sprintf("%s: %s, before %s", name, cmp.Or(is.String(), "none"), cmp.Or(was.String(), "none")))
			continue
		}
		how := fmt.Sprintf("%s is on CPU %s, before on %s", name, is.Where(), was.Where())
		f.sides(!was.OnNode(), !is.OnNode(), "no longer on the disk's node: "+how, "on the disk's node: "+how)
		if was.OnNode() == is.OnNode() && was.String() != is.String() {
			f.changed = append(f.changed, fmt.Sprintf("%s: %s, before %s", name, is, was))
		}
	}
}

func list(l cpulist.List) string { return cmp.Or(l.String(), "none") }

func firstReason(c *result.Case) string {
	if len(c.Reasons) == 0 {
		return "no reason was given"
	}
	return firstLine(c.Reasons[0])
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// number is what is another one in each run: an address, a process, a count.
var number = regexp.MustCompile(`0x[0-9a-f]+|\b[0-9a-f]{8,}\b|[0-9]+`)

// warning is the first line of one, and how many there are like it.
type warning struct {
	text string
	n    int
}

func (w warning) said(what string) string {
	if w.n > 1 {
		return fmt.Sprintf("%s%s (%d like it)", what, w.text, w.n)
	}
	return what + w.text
}

// others are the warnings that have none like them among those, numbers aside; of several alike, as many as there are more.
func others(warnings, those []string) (out []warning) {
	bare := func(w string) string { return klog.Message(firstLine(w)) }
	like := func(w string) string { return number.ReplaceAllString(bare(w), "#") }
	n := map[string]int{}
	for _, w := range those {
		n[like(w)]++
	}
	at := map[string]int{}
	for _, w := range warnings {
		kind := like(w)
		if n[kind]--; n[kind] >= 0 {
			continue
		}
		i, known := at[kind]
		if !known {
			i = len(out)
			at[kind] = i
			out = append(out, warning{text: bare(w)})
		}
		out[i].n++
	}
	return out
}
