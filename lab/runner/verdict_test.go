package runner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"irqlab/guestagent/cpulist"
	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

const verdictHead = "name: verdict\nkernel: debian:7.3\nshape: sockets=1,cores=1,threads=2,nodes=1,memory=512M\ndriver: vfio\n"

// Where CPUs are full, vectors and masks that the kernel refuses or drops are its answer, however the case is written, and what did come to be is observed.
func TestFullCPUs(t *testing.T) {
	t.Parallel()
	const (
		full    = "pressure: [\"vectors:before=queues,cpu0=100,cpu1=190\"]\n"
		fuller  = "pressure: [\"vectors:before=queues,cpu0=185,cpu1=190\"]\n"
		linear  = "strategy: linear\nvectors: 5\n"
		crowded = "strategy: linear\nvectors: 40\n"
		steps   = "steps:\n  - probe\n  - vectors\n  - settle\n  - observe: settled\n"
		refused = "steps:\n  - probe\n  - vectors:\n    refused: no space left on device\n  - settle\n  - observe: settled\n  - expect: {pending: none"
	)
	for _, tc := range []struct {
		what, text string
		outcome    result.Outcome
		reason     string // that is among them
		vectors    int    // observed at least, and one of them dropped
		dropped    bool
	}{
		{"enough", "strategy: unset\nvectors: 5\n" + full, result.Observed, "", 5, false},
		{"levels that are all 0", "strategy: linear\nvectors: 3\npressure: [\"vectors:before=hwc,cpu0=0\"]\nexpect: {settled: {queues-within: 0-1}}\n", result.Pass, "", 3, false},
		{"dropped", "strategy: local-spread\nvectors: 25\n" + full, result.Fail, "settled: vector 1: asked for 1, the kernel kept 0-1.", 25, true},
		{"dropped, as expected", "strategy: local-spread\nvectors: 25\n" + full + "expect: {settled: {dropped: 1}}\n", result.Pass, "", 25, true},
		{"exhausted", crowded + fuller, result.Fail, "the kernel refused vector", 2, true},
		{"exhausted, remapped", "irqchip: remapped\n" + crowded + fuller, result.Fail, "the kernel refused vector", 2, true},
		{"exhausted, in steps", crowded + fuller + steps, result.Fail, "the kernel refused vector", 2, true},
		{"exhausted, as expected", "strategy: unset\nvectors: 40\n" + fuller + refused + "}\n", result.Pass, "", 2, false},
	} {
		t.Run(tc.what, func(t *testing.T) {
			sc, err := scenarios.Load("verdict.yaml", []byte(verdictHead+tc.text))
			c := runCases(t, plan(t, sc, err, scenarios.Overrides{}), Options{Start: lab.StartAuto}).Cases[0]
			if c.Outcome != tc.outcome || !strings.Contains(strings.Join(c.Reasons, "\n"), tc.reason) {
				t.Fatalf("%s: %s\nwant %s, %q", c.Outcome, strings.Join(c.Reasons, "\n"), tc.outcome, tc.reason)
			}
			if len(c.Observations) == 0 {
				t.Fatal("nothing was observed")
			}
			o := c.Observations[len(c.Observations)-1]
			dropped := 0
			for _, v := range o.Vectors {
				if v.Dropped {
					dropped++
				}
			}
			if len(o.Vectors) < tc.vectors || dropped > 0 != tc.dropped {
				t.Errorf("%d vectors, %d dropped", len(o.Vectors), dropped)
			}
		})
	}
}

// What the kernel says of a vector is held against where it handled the vector's interrupts: a file over effective_affinity_list convinces nobody.
func TestLyingEffectiveMask(t *testing.T) {
	t.Parallel()
	sc, err := scenarios.Load("verdict.yaml", []byte(verdictHead+"strategy: linear\nvectors: 3\nexpect: {settled: {queues: [1, 1]}}\n"))
	c := plan(t, sc, err, scenarios.Overrides{})[0]
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	s, err := Open(ctx, &c, Options{Start: lab.StartAuto}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	do := func(step scenarios.Step) {
		t.Helper()
		if _, err := s.Do(step); err != nil {
			t.Fatal(err)
		}
	}
	do(scenarios.Step{Verb: scenarios.VerbProbe})
	do(scenarios.Step{Verb: scenarios.VerbVectors})
	do(scenarios.Step{Verb: scenarios.VerbObserve, Label: "honest"})
	client, err := s.VM().Access().Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	sh, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	script := "echo 1 > /lie"
	for _, v := range s.Observation("honest").Vectors[1:] {
		script += fmt.Sprintf("; mount -t none -o bind /lie /proc/irq/%d/effective_affinity_list", v.IRQ)
	}
	if out, err := sh.CombinedOutput(script); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	do(scenarios.Step{Verb: scenarios.VerbFire}) // which moves it to CPU 0
	do(scenarios.Step{Verb: scenarios.VerbFire})
	do(scenarios.Step{Verb: scenarios.VerbObserve, Label: "fired"})
	if v := s.Observation("fired").Vectors[1]; v.Effective.String() != "1" || v.Handled.String() != "0" { // settling moved it
		t.Errorf("after firing: vector 1 effective %s, handled on %s; the lie is 1, and it is on 0", v.Effective, v.Handled)
	}
	do(scenarios.Step{Verb: scenarios.VerbSettle})
	do(scenarios.Step{Verb: scenarios.VerbObserve, Label: scenarios.LabelSettled})
	o := s.Observation(scenarios.LabelSettled)
	for _, v := range o.Vectors[1:] {
		if want := cpulist.New(v.Index - 1); v.Effective.String() != "1" || v.Handled.String() != want.String() {
			t.Errorf("vector %d: effective %s, handled on %s; the lie is 1, and it is on %s", v.Index, v.Effective, v.Handled, want)
		}
	}
	reasons := c.Expect.Check(s.e.out)
	want := []string{
		"settled: vector 1: the kernel says that it is routed to CPU 1, and handled what was fired last on CPU 0.",
		"settled: vector 1 is on CPU 1 and has not moved to its mask 0, expected every vector to have settled.",
	}
	if !slices.Equal(reasons, want) { // for vector 2 it is no lie
		t.Errorf("reasons %q, want %q", reasons, want)
	}
}
