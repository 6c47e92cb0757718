package runner

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"

	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// kernelVariable is the kernel whose reaction to every fault is looked at (`task faults`).
const kernelVariable = "IRQLAB_KERNEL"

// faults lists the cases of the fault catalogue for a kernel; the plain suite has time for two that are over at once.
func faults(t *testing.T) []scenarios.Case {
	t.Helper()
	names := []string{"faults/max-msix", "faults/tx-error"}
	if all() {
		names = scenarios.Faults()
	}
	var cases []scenarios.Case
	for _, name := range names {
		sc, err := scenarios.Get(name)
		more := plan(t, sc, err, scenarios.Overrides{Kernels: []string{cmp.Or(os.Getenv(kernelVariable), "debian:7.3")}})
		if !all() {
			more = more[:1]
		}
		cases = append(cases, more...)
	}
	return cases
}

// Every fault has the reaction that its case expects, or fails in a way that is known. What the case expects can fail: each part of it, made wrong, fails the same result.
func TestFaults(t *testing.T) {
	t.Parallel()
	cases := faults(t)
	for i, c := range runCases(t, cases, Options{Start: lab.StartAuto}).Cases {
		name := c.Scenario + "/" + c.Name
		if c.Outcome == result.Fail && c.Known != "" {
			t.Logf("%s: fails, as is known: %s: %s", name, c.Known, strings.Join(c.Reasons, "\n"))
			continue
		}
		if c.Outcome != result.Pass {
			t.Errorf("%s: %s: %s\n%s", name, c.Outcome, strings.Join(c.Reasons, "\n"), strings.Join(c.KernelLog.Warnings, "\n"))
			continue
		}
		seeds := 0
		eachWrong(&cases[i], func(what string) {
			seeds++
			if cases[i].Expect.Check(c) == nil {
				t.Errorf("%s: passes with a wrong expectation: %s", name, what)
			}
		})
		if reasons := cases[i].Expect.Check(c); seeds == 0 || reasons != nil {
			t.Errorf("%s: %d wrong expectations; with all put right again: %q", name, seeds, reasons)
		}
		t.Logf("%s: %.0f s, %d wrong expectations seen to fail", name, c.Seconds.Total, seeds)
	}
}

// eachWrong makes the parts of what a case's steps expect wrong, one at a time, calls f, and puts it right again.
func eachWrong(c *scenarios.Case, f func(what string)) {
	eachStep(c.Steps, func(s *scenarios.Step) {
		if was := s.Refused; was != "" {
			s.Refused = "no kernel says so"
			f("refused in other words: " + s.String())
			s.Refused = ""
			f("carried out: " + s.String())
			s.Refused = was
		}
		e := s.Expect
		if e == nil {
			return
		}
		right := *e
		for i, p := range right.Log {
			e.Log, e.NoLog = slices.Delete(slices.Clone(right.Log), i, i+1), append(slices.Clone(right.NoLog), p)
			f("not logged: " + p.String())
			*e = right
		}
		for i, p := range right.NoLog {
			e.NoLog, e.Log = slices.Delete(slices.Clone(right.NoLog), i, i+1), append(slices.Clone(right.Log), p)
			f("logged: " + p.String())
			*e = right
		}
		for i, n := range right.Counted {
			e.Counted = slices.Clone(right.Counted)
			wrong := &e.Counted[i]
			if n.Is != nil {
				other := *n.Is + 1
				wrong.Is = &other
			} else {
				more := 1 << 30
				wrong.AtLeast = &more
			}
			f("counted: " + n.Step)
			*e = right
		}
		if right.Vectors != nil {
			e.Vectors = &scenarios.VectorCount{N: right.Vectors.N + 1, Online: right.Vectors.Online}
			f("vectors")
			*e = right
		}
		if right.Unused != nil {
			other := *right.Unused + 1
			e.Unused = &other
			f("unused")
			*e = right
		}
	})
}
