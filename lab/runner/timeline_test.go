package runner

import (
	"os"
	"slices"
	"testing"
	"time"

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
	if len(c.Observations) > 0 {
		last := c.Observations[len(c.Observations)-1]
		if h.Final == nil || h.Final.Label != last.Label || len(h.Final.Vectors) != len(last.Vectors) || h.Final.Vectors[0].Effective.String() != last.Vectors[0].Effective.String() {
			t.Errorf("%s/%s: the last observation is %+v, and on the timeline %+v", c.Scenario, c.Name, last, h.Final)
		}
	}
	if h.Question == "" || h.Driver != c.Driver || !slices.Equal(h.Reasons, c.Reasons) {
		t.Errorf("%s/%s: question %q, driver %q, reasons %q", c.Scenario, c.Name, h.Question, h.Driver, h.Reasons)
	}
	for _, s := range c.Steps {
		n := slices.IndexFunc(tl.Events, func(e timeline.Event) bool { return e.Kind == "step" && e.Step == s.At && e.Text == s.Text })
		if n < 0 {
			t.Errorf("%s/%s: step %s %s is not on the timeline", c.Scenario, c.Name, s.At, s.Text)
		} else if took := time.Duration(tl.Events[n].For).Seconds(); took < s.End-s.Start-0.5 || took > s.End-s.Start+0.5 {
			t.Errorf("%s/%s: step %s %s took %g s, and %g s on the timeline", c.Scenario, c.Name, s.At, s.Text, s.End-s.Start, took)
		}
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
