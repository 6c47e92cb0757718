package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// runsVariable is how many times in a row each race is run (`task races`).
const runsVariable = "IRQLAB_RUNS"

// raceJobs is how many VMs run side by side: a reset service sleeps for most of its time, and guests that wait for each other's cores shift every race.
const raceJobs = 4

// races lists the cases in which CPUs leave at an exact step, without the storms, which repeat themselves.
func races(t *testing.T) []scenarios.Case {
	t.Helper()
	var cases []scenarios.Case
	for _, name := range []string{"unplug-during-reset", "unplug-during-probe", "unplug-after"} {
		sc, err := scenarios.Get(name)
		cases = append(cases, plan(t, sc, err, scenarios.Overrides{Kernels: []string{lab.DefaultKernel}})...)
	}
	return cases
}

// A CPU that leaves at an exact step leads to the same end every time, however the machine's load shifts what runs beside it. The evidence of a round that fails stays
// in the test's artifacts (go test -artifacts).
func TestRaces(t *testing.T) {
	runs, err := strconv.Atoi(os.Getenv(runsVariable))
	if err != nil {
		t.Skipf("set %s to the number of rounds", runsVariable)
	}
	cases := races(t)
	passed := map[string]int{}
	for round := range runs {
		out := filepath.Join(t.ArtifactDir(), fmt.Sprintf("round-%d", round))
		failed := false
		for _, c := range runCases(t, slices.Clone(cases), Options{Start: lab.StartAuto, Jobs: raceJobs, Out: out}).Cases {
			name := c.Scenario + "/" + c.Name
			if c.Outcome == result.Pass {
				passed[name]++
				continue
			}
			failed = true
			t.Errorf("round %d, %s: %s: %s", round, name, c.Outcome, strings.Join(c.Reasons, "\n"))
		}
		if !failed {
			if err := os.RemoveAll(out); err != nil {
				t.Error(err)
			}
		}
	}
	for _, c := range cases {
		name := c.Scenario + "/" + c.Name
		t.Logf("%s: %d of %d rounds passed", name, passed[name], runs)
	}
}
