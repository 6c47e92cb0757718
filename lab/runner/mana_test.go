package runner

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"irqlab/images"
	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// caseTime bounds one VM's whole life on a busy machine without KVM.
const caseTime = 5 * time.Minute

// drive runs the one case of low-vcpu-driver that kernel selects.
func drive(t *testing.T, o scenarios.Overrides) (result.Case, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*caseTime)
	defer cancel()
	sc, err := scenarios.Get("low-vcpu-driver")
	if err != nil {
		t.Fatal(err)
	}
	cases, _, err := sc.Plan(o)
	if err != nil || len(cases) != 1 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	rep, err := Run(ctx, cases, Options{Cache: cache, Out: out, Timeout: caseTime, Start: lab.StartAuto})
	if err != nil || len(rep.Cases) != 1 {
		t.Fatalf("%d results: %v", len(rep.Cases), err)
	}
	return rep.Cases[0], out
}

// The unmodified driver, before and after its fix: the published cluster under an NVMe disk's pressure, and one queue per CPU.
func TestMana618(t *testing.T) { testMana(t, "debian:6.18", "numa-aware", true) }
func TestMana73(t *testing.T)  { testMana(t, "debian:7.3", "linear", false) }

func testMana(t *testing.T, kernel, branch string, clustered bool) {
	t.Parallel()
	c, out := drive(t, scenarios.Overrides{Kernels: []string{kernel}})
	if c.Outcome != result.Pass {
		t.Fatalf("%s: %s", c.Outcome, strings.Join(c.Reasons, "\n"))
	}
	o := c.Find(scenarios.LabelSettled)
	if c.Branch != branch || o.Clustered != clustered || len(o.Vectors) != 5 {
		t.Errorf("branch %q, clustered %v, %d vectors; want %q, %v, 5", c.Branch, o.Clustered, len(o.Vectors), branch, clustered)
	}
	for i, v := range o.Vectors {
		want := result.Vector{Role: result.RoleHWC}
		if i > 0 {
			want = result.Vector{Role: result.RoleQueue, Queues: []result.Queue{{Index: i - 1}}}
		}
		if v.Role != want.Role || len(v.Queues) != len(want.Queues) || len(v.Queues) > 0 && v.Queues[0] != want.Queues[0] {
			t.Errorf("vector %d is %s for queues %v, want %s for %v", i, v.Role, v.Queues, want.Role, want.Queues)
		}
	}
	kinds := traceKinds(t, filepath.Join(out, c.Artifacts.Trace))
	for _, k := range []string{"step", "smc-request", "hwc-request", "hwc-response", "eqe", "vector-assign", "vector-fire", "audit"} {
		if kinds[k] == 0 {
			t.Errorf("the timeline has no %s", k)
		}
	}
	if kinds["leak"] > 0 {
		t.Errorf("the timeline has %d leaks", kinds["leak"])
	}
}

// A driver that cannot come up fails its case, with its own words: one vector leaves none for a queue.
func TestManaGivesUp(t *testing.T) {
	t.Parallel()
	c, _ := drive(t, scenarios.Overrides{Kernels: []string{"debian:7.3"}, Vectors: []scenarios.VectorCount{{N: 1}}})
	if c.Outcome != result.Fail || len(c.Reasons) == 0 || !strings.Contains(c.Reasons[0], "the driver's probe failed") || !strings.Contains(c.Reasons[0], "error -28") {
		t.Errorf("%s: %q; want a failed probe with error -28", c.Outcome, c.Reasons)
	}
}

func traceKinds(t *testing.T, path string) map[string]int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	kinds := map[string]int{}
	for d := json.NewDecoder(f); d.More(); {
		var e struct{ Kind string }
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		kinds[e.Kind]++
	}
	return kinds
}
