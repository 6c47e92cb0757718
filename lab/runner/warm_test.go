package runner

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// seen is what a start must not change. IRQ numbers and counts are the kernel's own business: they depend on what it has done before.
type seen struct {
	Outcome, Branch, Online string
	Observations            []observed
}

type observed struct {
	Label, Online, Idle string
	Clustered           bool
	Vectors             []vector
}

type vector struct {
	Index                           int
	Role, Affinity, Hint, Effective string
	Pending                         bool
}

func see(c result.Case) seen {
	s := seen{Outcome: string(c.Outcome), Branch: c.Branch, Online: c.Online.String()}
	for _, o := range c.Observations {
		row := observed{Label: o.Label, Online: o.Online.String(), Idle: o.IdleCPUs.String(), Clustered: o.Clustered}
		for _, v := range o.Vectors {
			row.Vectors = append(row.Vectors, vector{v.Index, v.Role, v.Affinity.String(), v.Hint.String(), v.Effective.String(), v.Pending})
		}
		s.Observations = append(s.Observations, row)
	}
	return s
}

// A guest that was forked from a snapshot and one that was booted for the case put every vector on the same CPU, by the same masks.
func TestColdAndWarmAgree(t *testing.T) {
	t.Parallel()
	sc, err := scenarios.Get(scenarios.Default)
	cases := plan(t, sc, err, scenarios.Overrides{})
	cold, warm := runCases(t, cases, Options{Start: lab.StartCold}), runCases(t, cases, Options{Start: lab.StartWarm})
	for i, c := range cold.Cases {
		w := warm.Cases[i]
		if c.Start != lab.StartCold || w.Start != lab.StartWarm || len(w.Notes) > len(c.Notes) {
			t.Errorf("%s: started %s and %s, notes %q", c.Name, c.Start, w.Start, w.Notes)
		}
		if len(c.Observations) == 0 {
			t.Errorf("%s: nothing was observed: %s %q", c.Name, c.Outcome, c.Reasons)
		}
		if d := cmp.Diff(see(c), see(w)); d != "" {
			t.Errorf("%s: (-cold +warm)\n%s", c.Name, d)
		}
	}
}
