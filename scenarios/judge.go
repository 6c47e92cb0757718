package scenarios

import (
	"fmt"
	"regexp"
	"slices"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/scenarios/result"
)

// checkSteps compares what became of the steps with what they are for: one sentence for each that is not as it should be.
func checkSteps(steps []Step, c result.Case) []string {
	var reasons []string
	say := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	var disks []result.Disk // of the newest read-disks
	for s := range allSteps(steps) {
		name := fmt.Sprintf("Step %s (%s, line %d)", s.At, s, s.Line)
		got := c.Step(s.At)
		if got == nil {
			say("%s was not reached.", name)
			break // nor were those after it
		}
		switch {
		case got.Outcome == result.StepFailed:
			say("%s failed: %s", name, sentence(got.Refusal))
			continue
		case s.Refused == "" && got.Outcome == result.StepRefused:
			say("%s was refused: %s", name, sentence(got.Refusal))
		case s.Refused != "" && got.Outcome != result.StepRefused:
			say("%s was carried out, expected it to be refused.", name)
		case s.Refused != "" && !regexp.MustCompile(s.Refused).MatchString(got.Refusal):
			say("%s was refused with %q, expected words that match %q.", name, got.Refusal, s.Refused)
		}
		if s.Verb == VerbReadDisks {
			disks = got.Disks
		}
		if s.Expect != nil {
			reasons = append(reasons, s.Expect.checkFacts(name, got)...)
			for i, want := range s.Expect.Disks {
				reasons = append(reasons, want.check(fmt.Sprintf("%s, disk %d", name, i), i, disks)...)
			}
		}
		if s.Run != nil {
			reasons = append(reasons, s.Run.check(name, got.Run)...)
		}
		if s.Verb == VerbStorm && got.Outcome == result.StepDone {
			reasons = append(reasons, checkStorm(name, s, got.Storm)...)
		}
		if got.Topology != nil {
			reasons = append(reasons, checkTopology(name, c, got)...)
		}
	}
	for _, r := range c.Rules {
		if r.Hits == 0 {
			say("The device was to %s (%s), which was never reached; %s", r.Text, r.Name, sentence(r.Tells))
		}
	}
	return reasons
}

// checkFacts judges what the runner noted of the kernel's log and of the steps counted.
func (e *StepExpect) checkFacts(name string, got *result.Step) []string {
	var reasons []string
	say := func(format string, args ...any) {
		reasons = append(reasons, name+": "+fmt.Sprintf(format, args...))
	}
	match := func(p Pattern) string {
		if i := slices.IndexFunc(got.Log, func(m result.LogMatch) bool { return m.Pattern == p.String() }); i >= 0 {
			return got.Log[i].Line
		}
		return ""
	}
	for _, p := range e.Log {
		if match(p) == "" {
			say("no line of the kernel log matches %q, expected one.", p)
		}
	}
	for _, p := range e.NoLog {
		if line := match(p); line != "" {
			say("the kernel log has %q, expected no line that matches %q.", line, p)
		}
	}
	for _, want := range e.Counted {
		i := slices.IndexFunc(got.Counted, func(n result.Count) bool { return n.Step == want.Step })
		switch {
		case i < 0:
			say("%s was not counted.", want.Step)
		case want.Is != nil && got.Counted[i].N != *want.Is:
			say("%s occurred %d times, expected %d.", want.Step, got.Counted[i].N, *want.Is)
		case want.AtLeast != nil && got.Counted[i].N < *want.AtLeast:
			say("%s occurred %d times, expected %d or more.", want.Step, got.Counted[i].N, *want.AtLeast)
		}
	}
	return reasons
}

// check compares what became of a disk with what is expected of it.
func (want *DiskExpect) check(name string, i int, disks []result.Disk) []string {
	var reasons []string
	say := func(format string, args ...any) {
		reasons = append(reasons, name+": "+fmt.Sprintf(format, args...))
	}
	if i >= len(disks) {
		say("the guest has no such disk.")
		return reasons
	}
	d := &disks[i]
	of := func(f func(result.DiskQueue) cpulist.List) (all []cpulist.List) {
		for _, q := range d.Queues {
			all = append(all, f(q))
		}
		return all
	}
	if masks := of(func(q result.DiskQueue) cpulist.List { return q.Affinity }); want.Masks != nil && !equal(want.Masks, masks) {
		say("the request queues' masks are %s, expected %s.", Row(masks), Row(want.Masks))
	}
	if on := of(func(q result.DiskQueue) cpulist.List { return q.Effective }); want.Queues != nil && !equal(want.Queues, on) {
		say("the request queues' interrupts are on CPUs %s, expected %s.", Row(on), Row(want.Queues))
	}
	if want.OnNode != nil && *want.OnNode != d.OnNode() {
		if *want.OnNode {
			say("not every request queue's interrupt is on the disk's node, expected that.")
		} else {
			say("every request queue's interrupt is on the disk's node, expected some to be elsewhere.")
		}
	}
	if met := d.Meets(); want.Meets != nil && !slices.Equal(*want.Meets, met) {
		say("the CPUs that handled what they had submitted are %s, expected %s.", cpus(met), cpus(*want.Meets))
	}
	return reasons
}

// checkStorm demands that every vector fired, and that each of its interrupts was handled, no more and no fewer, but for those that may have merged.
func checkStorm(name string, s *Step, got *result.Storm) []string {
	if got == nil || len(got.Vectors) == 0 {
		return []string{name + ": no vector was counted."}
	}
	var reasons []string
	if got.Rounds != int(s.Storm.Rounds) {
		reasons = append(reasons, fmt.Sprintf("%s: %d rounds were done, expected %d.", name, got.Rounds, s.Storm.Rounds))
	}
	for _, v := range got.Vectors {
		switch {
		case v.Fired == 0:
			reasons = append(reasons, fmt.Sprintf("%s: vector %d did not fire.", name, v.Index))
		case v.Lost() > 0 && v.Own > 0:
			reasons = append(reasons, fmt.Sprintf("%s: vector %d fired %d times, %d of them by itself, and was handled %d times.", name, v.Index, v.Fired, v.Own, v.Handled))
		case v.Ahead > 0, v.Handled > v.Fired:
			reasons = append(reasons, fmt.Sprintf("%s: vector %d fired %d times and was handled %d times, at one moment %d times more than it had fired: whether others were lost cannot be told "+
				"(docs/hotplug.md, \"Sent once more\").", name, v.Index, v.Fired, v.Handled, max(v.Ahead, result.Ahead(v.Fired, v.Handled))))
		case v.Lost() > 0:
			reasons = append(reasons, fmt.Sprintf("%s: vector %d fired %d times and was handled %d times.", name, v.Index, v.Fired, v.Handled))
		}
	}
	return reasons
}

// checkTopology holds the place of every online CPU against the shape: one that was put back must be where it was.
func checkTopology(name string, c result.Case, got *result.Step) []string {
	var online cpulist.List
	for _, cpu := range got.Topology {
		online = online.Or(cpulist.List{cpu.ID})
	}
	want := c.Shape.Topology(cpulist.Range(0, c.Shape.CPUs()-1).Minus(online)).CPUs
	var reasons []string
	for _, cpu := range got.Topology {
		i := slices.IndexFunc(want, func(w agentapi.CPU) bool { return w.ID == cpu.ID })
		switch {
		case i < 0:
			reasons = append(reasons, fmt.Sprintf("%s: CPU %d is online, which the shape does not have.", name, cpu.ID))
		case cpu.Node != want[i].Node:
			reasons = append(reasons, fmt.Sprintf("%s: CPU %d is on node %d, expected %d.", name, cpu.ID, cpu.Node, want[i].Node))
		case !slices.Equal(cpu.Siblings, want[i].Siblings):
			reasons = append(reasons, fmt.Sprintf("%s: CPU %d shares its core with %s, expected %s.", name, cpu.ID, cpus(cpu.Siblings), cpus(want[i].Siblings)))
		case cpu.Package != want[i].Package || cpu.Core != want[i].Core:
			reasons = append(reasons, fmt.Sprintf("%s: CPU %d is core %d of package %d, expected core %d of package %d.",
				name, cpu.ID, cpu.Core, cpu.Package, want[i].Core, want[i].Package))
		}
	}
	return reasons
}
