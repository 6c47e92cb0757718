package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/guestagent/agentapi"
	"irqlab/lab"
	"irqlab/lab/machine"
	"irqlab/lab/qemu"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

const stepsHead = "name: steps\nkernel: debian:7.3\nshape: sockets=1,cores=2,threads=2,nodes=1,memory=512M\nvectors: 3\n"

func stepCases(t *testing.T, text string) []scenarios.Case {
	t.Helper()
	sc, err := scenarios.Load("steps.yaml", []byte(stepsHead+text))
	return plan(t, sc, err, scenarios.Overrides{})
}

// CPUs leave by both roads and come back, interrupts fire meanwhile, and what is impossible is refused: each step does what it says, and the result tells.
func TestStepsUserSpace(t *testing.T) {
	t.Parallel()
	c := runCases(t, stepCases(t, `
driver: vfio
strategy: linear
steps:
  - probe
  - vectors
  - storm: {offline: 2-3, rounds: 3}
  - unplug: 3
  - unplug: 3
    refused: "CPU 3: unplugged already"
  - together:
      - - offline: 2
        - online: 2
      - - fire: {vectors: 1-2, rounds: 3}
  - wait-for: {online: 0-2}
  - replug: 3
  - online: 3
  - unplug: 0
    refused: "CPU 0: no x86 kernel lets the boot CPU go"
  - offline: 0
    refused: "CPU 0 cannot go offline"
  - settle
  - observe: after
  - expect: {online: 0-3, queues: [0, 1], counted: {step: "vector:1", at-least: 6}, no-log: "no such line"}
`), Options{Start: lab.StartAuto}).Cases[0]
	if c.Outcome != result.Pass {
		t.Fatalf("%s: %s", c.Outcome, strings.Join(c.Reasons, "\n"))
	}
	storm := c.Step("2").Storm
	if storm == nil || len(storm.Vectors) != 3 {
		t.Fatalf("storm %+v", storm)
	}
	for _, v := range storm.Vectors {
		if v.Fired == 0 || v.Fired != v.Handled {
			t.Errorf("%+v", v)
		}
	}
	if back := c.Step("8"); len(back.Topology) != 4 {
		t.Errorf("the step that brings the plugged CPU online tells the topology as %+v", back.Topology)
	}
	for at, want := range map[string]result.StepOutcome{"4": result.StepRefused, "5.1.0": result.StepDone, "10": result.StepRefused, "13": result.StepDone} {
		if s := c.Step(at); s == nil || s.Outcome != want || s.End < s.Start {
			t.Errorf("step %s: %+v, want %s", at, s, want)
		}
	}
}

// What a case gets wrong, and what its driver does, are told apart, and the reason says what was awaited and how far the device got.
func TestStepsThatFail(t *testing.T) {
	t.Parallel()
	cases := stepCases(t, `
driver: mana
cases:
  never-reached:
    steps:
      - hold: {at: "request:0x7fff", as: nothing}
      - probe
      - wait-for: {held: nothing, within: 1s}
      - release: nothing
  probe-fails:
    steps:
      - status: {at: "request:QUERY_DEV_CONFIG", status: 5, as: bad}
      - probe: {wait: false}
      - wait-for: {link: there}
  probe-is-to-fail:
    steps:
      - status: {at: "request:QUERY_DEV_CONFIG", status: 5, as: bad}
      - probe: {}
        refused: "failed with error -71"
      - expect: {log: "status: 0x5", counted: {step: "request:QUERY_DEV_CONFIG", is: 1}}
  deadlock:
    driver: vfio
    strategy: linear
    steps:
      - probe
      - vectors
      - hold: {at: "vector:1", nth: 2, as: second}
      - fire: {vectors: 1, rounds: 2}
      - release: second
  never-wakes:
    steps:
      - probe
      - drop: {at: "smc:establish", as: unheard}
      - suspend: {for: 1s, within: 4s}
`)
	want := []struct {
		outcome result.Outcome
		reasons []string
		notes   string
	}{
		{result.Fail, []string{"step 2 (wait for held nothing, line", "not reached in", "response:QUERY_"}, ""},
		{result.Fail, []string{"step 1 (probe, without waiting, line", "failed with error -71", "request:QUERY_DEV_CONFIG (1)"}, ""},
		{result.Pass, nil, ""},
		{result.Error, []string{"step 3 (fire vectors 1, 2 rounds, line", "were not handled", "second (hold at vector:1, occurrence 2)", "release it before"}, `"second" still held the device`},
		{result.Fail, []string{"step 2 (suspend freeze for 1s, line", "told to suspend to freeze, and later to wake up, and did not go on", "not done within 5s", "smc:destroy (1), smc:establish (2)"}, ""},
	}
	rep := runCases(t, cases, Options{Start: lab.StartAuto})
	for i, c := range rep.Cases {
		w := want[i]
		reasons := strings.Join(c.Reasons, "\n")
		if c.Outcome != w.outcome || (len(c.Reasons) == 0) != (w.reasons == nil) || !strings.Contains(strings.Join(c.Notes, "\n"), w.notes) {
			t.Errorf("%s: %s: %s\nnotes %q", c.Name, c.Outcome, reasons, c.Notes)
		}
		for _, r := range w.reasons {
			if !strings.Contains(reasons, r) {
				t.Errorf("%s: %q is not in: %s", c.Name, r, reasons)
			}
		}
	}
	for i, want := range []struct{ what, held, awaited string }{
		{"wait for held nothing", "", "the end of step 2 (wait for held nothing, line"},
		{"request QUERY_DEV_CONFIG: status 0x5", "", ""},
		{},
		{"vector 1 fired", "second (hold at vector:1, occurrence 2)", "the end of step 3 (fire vectors 1, 2 rounds, line"},
		{"SMC destroy: ok", "", "the end of step 2 (suspend freeze for 1s, line"},
	} {
		c := &rep.Cases[i]
		if c.Outcome == result.Pass || c.Evidence == nil {
			if c.Evidence != nil || c.Outcome != result.Pass {
				t.Errorf("%s: %s, evidence %+v", c.Name, c.Outcome, c.Evidence)
			}
			continue
		}
		held, awaited := strings.Join(c.Evidence.Held, "\n"), strings.Join(c.Evidence.Awaited, "\n")
		if what := fmt.Sprint(c.Evidence.Events); !strings.Contains(what, want.what) || len(c.Evidence.Events) > evidenceRows {
			t.Errorf("%s: no %q in at most %d events: %s", c.Name, want.what, evidenceRows, what)
		}
		if (held == "") != (want.held == "") || !strings.Contains(held, want.held) || !strings.Contains(awaited, want.awaited) {
			t.Errorf("%s: held %q, want %q; awaited %q, want %q", c.Name, held, want.held, awaited, want.awaited)
		}
	}
	if r := rep.Cases[0].Rules; len(r) != 1 || r[0].Hits != 0 || !strings.Contains(r[0].Tells, "QUERY_") {
		t.Errorf("a rule that was never reached: %+v", r)
	}
}

func TestRefusal(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("x: %w", err) }
	for _, tc := range []struct {
		err    error
		want   bool
		blames bool // as what a step ended with
	}{
		{agentapi.Errorf(agentapi.CodeRefused, "busy"), true, true},
		{agentapi.Errorf(agentapi.CodeUnsupported, "CPU 0"), true, false},
		{agentapi.Errorf(agentapi.CodeTimeout, "late"), false, false},
		{agentapi.Errorf(agentapi.CodeFailed, "panic"), false, false},
		{&qemu.CPURefusedError{CPU: 3, Eject: true, Status: 0x82}, true, true},
		{&machine.HotplugError{CPU: 0, Why: "no"}, true, false},
		{&DriverError{What: "the driver's probe failed"}, true, true},
		{inject.ErrReleased, true, false},
		{refusef("no vector"), true, false},
		{&lab.LostError{Err: errors.New("IRQ 29")}, false, true},
		{errors.New("the channel is gone"), false, false},
		{&lateError{after: time.Second}, false, true},
		{&qemu.DeadError{Signal: 9}, false, false},
	} {
		if got := refusal(wrap(tc.err)); got != tc.want {
			t.Errorf("%v: a refusal: %t, want %t", tc.err, got, tc.want)
		}
		step := &StepError{Err: wrap(tc.err), Refused: tc.want}
		if got := (judge{}).whose(step) == guests; got != tc.blames {
			t.Errorf("a step ended by %v: blamed on the guest: %t, want %t", tc.err, got, tc.blames)
		}
	}
}

func TestStepError(t *testing.T) {
	late := &lateError{after: time.Minute}
	offline := scenarios.Step{Verb: scenarios.VerbOffline, At: "3", Line: 12, CPUs: []int{2, 3}}
	held := []string{"h (hold at response:X)"}
	e := &StepError{Step: offline, Err: late, Late: true, Holds: held, Progress: "last: request:X (1)", Tail: "[1] hello"}
	for _, want := range []string{"step 3 (offline 2-3, line 12): not done within 1m0s", "held: h (hold at response:X); if the step waits", "how far the device got: request:X (1)", "\n[1] hello"} {
		if !strings.Contains(e.Error(), want) {
			t.Errorf("%q is not in %s", want, e)
		}
	}
	if !errors.Is(e, context.DeadlineExceeded) || !e.deadlock() || !e.explained() {
		t.Error("a deadlock of the case's own is not seen as one")
	}
	waiting := &StepError{Step: scenarios.Step{Verb: scenarios.VerbWaitFor, WaitFor: &scenarios.WaitFor{Held: "h"}}, Err: late, Late: true, Holds: held}
	if waiting.deadlock() || !waiting.explained() {
		t.Error("what was awaited in so many words did not come, and that is no finding")
	}
	if alone := (&StepError{Step: offline, Err: late, Late: true}); alone.deadlock() || alone.explained() {
		t.Error("a guest that hangs is not asked")
	}
}

func TestStepTimes(t *testing.T) {
	cases := stepCases(t, `
driver: vfio
strategy: linear
steps:
  - probe
  - wait-for: {online: 0-3, within: 5s}
  - together:
      - - sleep: 10s
        - unplug: 3
      - - sleep: 20s
  - replug: 3
  - unplug: 2-3
    refused: never
  - vectors
  - suspend: {for: 3s, within: 7s}
`)
	steps := cases[0].Steps
	for i, want := range []time.Duration{driverTime, 5 * time.Second, 10*time.Second + cpuTime + 2*cpuTime, 2 * cpuTime, 4 * cpuTime, driverTime, 10 * time.Second} {
		if got := stepLimit(&steps[i]); got != want {
			t.Errorf("%s may take %s, want %s", steps[i], got, want)
		}
	}
	if got, want := planned(steps), 45*time.Second+2*cpuTime; got != want {
		t.Errorf("the steps wait for %s on purpose, want %s", got, want)
	}
	if got := replugs(steps); got != 1 {
		t.Errorf("%d CPUs are plugged in, want 1", got)
	}
}

// A wait says how things stood when its time was over, and passes on what ended it before.
func TestUntil(t *testing.T) {
	n := 0
	tick := func() (bool, error) { n++; return n == 3, nil }
	state := func() string { return fmt.Sprintf("%d of 3", n) }
	if err := until(t.Context(), time.Microsecond, tick, state); err != nil || n != 3 {
		t.Errorf("%v after %d", err, n)
	}
	never := func() (bool, error) { return false, nil }
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, &lateError{after: time.Millisecond})
	defer cancel()
	if err := until(ctx, time.Microsecond, never, state); err == nil || err.Error() != "3 of 3: not done within 1ms" {
		t.Errorf("late: %v", err)
	}
	boom := errors.New("boom")
	ended, stop := context.WithCancelCause(t.Context())
	stop(boom)
	if err := until(ended, time.Microsecond, never, state); err != boom { //nolint:errorlint // as it is, without a word about the wait
		t.Errorf("ended by others: %v", err)
	}
	if err := until(t.Context(), time.Microsecond, func() (bool, error) { return true, boom }, state); !errors.Is(err, boom) {
		t.Errorf("failing: %v", err)
	}
}
