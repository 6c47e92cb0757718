package runner

import (
	"os"
	"testing"

	"irqlab/lab/timeline"
	"irqlab/scenarios/result"
)

// testTimeline checks that both sides of a case are on its timeline, the guest's within the case.
func testTimeline(t *testing.T, c result.Case, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Errorf("%s/%s: %v", c.Scenario, c.Name, err)
		return
	}
	defer f.Close()
	tl, cut, err := timeline.Read(path, f)
	if err != nil || cut {
		t.Errorf("%s/%s: cut %v, error %v", c.Scenario, c.Name, cut, err)
		return
	}
	h := tl.Header
	if h.Scenario != c.Scenario || h.Case != c.Name || h.Start != c.Start || h.CPUs != c.Shape.CPUs() || h.Guest <= 0 || h.End <= h.Guest || h.Clock == nil || h.Notes != nil {
		t.Errorf("%s/%s: header %+v", c.Scenario, c.Name, h)
		return
	}
	if k := h.Clock; k.To <= k.From || k.Error <= 0 {
		t.Errorf("%s/%s: clock %+v", c.Scenario, c.Name, k)
	}
	seen := map[string]int{}
	for _, e := range tl.Events {
		seen[e.Source]++
		if off := h.Clock.ErrorAt(e.T); e.Source == timeline.SourceLog && (e.T+off < h.Guest || e.T-off > h.End) {
			t.Errorf("%s/%s: the guest ran from %s to %s, and logged at %s: %s", c.Scenario, c.Name, h.Guest, h.End, e.T, e.Text)
		}
	}
	for _, s := range []string{timeline.SourceStep, timeline.SourceAgent, timeline.SourceDevice, timeline.SourceVector, timeline.SourceLog, timeline.SourceObservation} {
		if seen[s] == 0 {
			t.Errorf("%s/%s: nothing from source %s: %v", c.Scenario, c.Name, s, seen)
		}
	}
}
