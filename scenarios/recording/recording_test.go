package recording

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"irqlab/guestagent/cpulist"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
	"irqlab/scenarios/shape"
)

// recorded makes a recording of a script, a line for each thing that happened, half a second apart:
//
//	STEP           was done; "STEP ~ WORDS" was refused, "STEP ! WORDS" failed
//	> STEP         began, and goes on
//	< VERB         the one of that verb ended; "< VERB ! WORDS" failed
//	met NAME       a rule was applied, which it is once anyway unless the script says when, or never
//	held NAME      the device came to stand at a hold
//	stat N N N up  the device has destroyed, established and configured so often; up: its link runs
//	never NAME     the rule was never applied
func recorded(t *testing.T, driver string, script []string) *Recording {
	t.Helper()
	r := &Recording{Case: scenarios.Case{Scenario: "case", Driver: driver, Kernel: "debian:7.3", Shape: shape.Default(), Vectors: 5, Irqchip: scenarios.IrqchipMSI}, Hits: map[string]int{}}
	if driver == scenarios.DriverVFIO {
		r.Case.Strategy = "linear"
	}
	moment, held := 0, map[string]bool{}
	var device Device
	for i, line := range script {
		moment++
		word, rest, _ := strings.Cut(line, " ")
		begin := func(text string) *Entry {
			step, err := scenarios.ParseStep(text)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if step.Rule != nil {
				r.Hits[step.Rule.Name] = 1
			}
			delete(held, step.Release)
			r.Entries = append(r.Entries, Entry{Step: step, Began: moment, After: time.Duration(i) * 500 * time.Millisecond, Before: device})
			return &r.Entries[len(r.Entries)-1]
		}
		switch word {
		case ">":
			begin(rest)
		case "<":
			verb, failed, _ := strings.Cut(rest, " ! ")
			for i := range r.Entries {
				if e := &r.Entries[i]; e.Step.Verb == verb {
					e.Ended, e.Left, e.Failed = moment, device, failed
				}
			}
		case "met":
			for i := range r.Entries {
				if e := &r.Entries[i]; e.Ended == 0 {
					e.Hits = map[string]int{rest: 1}
				}
			}
		case "held":
			r.Held = append(r.Held, Held{rest, moment})
			held[rest] = true
		case "stat":
			n := strings.Fields(rest)
			device = Device{int(n[0][0] - '0'), int(n[1][0] - '0'), int(n[2][0] - '0'), len(n) > 3}
		case "never":
			r.Hits[rest] = 0
		default:
			text, refused, _ := strings.Cut(line, " ~ ")
			text, failed, _ := strings.Cut(text, " ! ")
			e := begin(text)
			e.Refused, e.Failed = refused, failed
			if e.Step.Verb == scenarios.VerbObserve {
				e.Saw = &result.Observation{Online: cpulist.Range(0, 1), Vectors: []result.Vector{{Role: result.RoleHWC}}}
				for i := range 4 {
					mask := cpulist.List{i % 2}
					e.Saw.Vectors = append(e.Saw.Vectors, result.Vector{Index: i + 1, Role: result.RoleQueue, Affinity: mask, Effective: mask})
				}
			}
			moment++
			e.Ended, e.Left = moment, device
		}
	}
	for name := range held {
		r.Standing = append(r.Standing, name)
	}
	slices.Sort(r.Standing)
	return r
}

func TestScenario(t *testing.T) {
	const hold = "hold request:QUERY_DEV_CONFIG as=w"
	for _, tc := range []struct {
		what   string
		driver string
		script []string
		want   string // the steps, each line without its first two columns
		left   []string
	}{
		{"one after the other", scenarios.DriverMana, []string{"probe", "up", "settle", "observe seen"}, `
- probe
- up
- settle
- observe: seen
- expect: {online: 0-1, queue-masks: [0, 1, 0, 1]}`, nil},
		{"in user space", scenarios.DriverVFIO, []string{"probe", "offline 3", "vectors", "observe seen"}, `
- probe
- offline: 3
- vectors
- observe: seen
- expect: {online: 0-1, queue-masks: [0, 1, 0, 1]}`, nil},
		{"a probe that was held", scenarios.DriverMana, []string{hold, "> probe", "held w", `offline 3 ~ cpu.set: guest: CPU 3: write /sys/x: device or resource busy`, "release w", "< probe", "up"}, `
- hold: {at: request:QUERY_DEV_CONFIG, as: w}
- together:
    -
      - probe
    -
      - wait-for: {held: w}
      - offline: 3
        refused: "device or resource busy"
      - release: w
- up`, nil},
		{"saved while it is held", scenarios.DriverMana, []string{hold, "> probe", "held w"}, `
- hold: {at: request:QUERY_DEV_CONFIG, as: w}
- together:
    -
      - probe
    -
      - wait-for: {held: w}
      - release: w`, nil},
		{"two that wait, and a look between", scenarios.DriverMana, []string{"probe", "up", "hold request:CONFIG_VPORT_RX as=w", "> down", "held w", "> unload", "release w", "< down", "< unload"}, `
- probe
- up
- hold: {at: request:CONFIG_VPORT_RX, as: w}
- together:
    -
      - down
    -
      - wait-for: {held: w}
      - unload
    -
      - wait-for: {held: w}
      - release: w`, nil},
		{"a reset service goes on by itself", scenarios.DriverMana, []string{"stat 0 1 1 up", "probe", "up", hold, "reset-service", "stat 1 2 2", "held w", "offline 2-3", "release w", "stat 1 2 3 up", "settle"}, `
- probe
- up
- hold: {at: request:QUERY_DEV_CONFIG, as: w}
- reset-service
- wait-for: {held: w}
- offline: 2-3
- release: w
- wait-for: {step: response:CONFIG_VPORT_RX}
- settle`, nil},
		{"a reset service without a hold, looked at when it was half done", scenarios.DriverMana, []string{"stat 0 1 1 up", "probe", "up", "reset-service", "stat 1 1 2", "offline 3", "stat 1 2 2", "online 3", "stat 1 2 4 up", "settle"}, `
- probe
- up
- reset-service
- wait-for: {step: smc:destroy}
- offline: 3
- wait-for: {step: smc:establish}
- online: 3
- wait-for: {step: response:CONFIG_VPORT_RX, count: 2}
- settle`, nil},
		{"what the driver does during a step counts from its begin", scenarios.DriverMana, []string{"stat 0 1 1 up", "probe", "up", "reset-service", "stat 1 2 2", "> offline 3", "stat 1 2 3", "< offline", "stat 1 2 4 up", "settle"}, `
- probe
- up
- reset-service
- wait-for: {step: smc:establish}
- offline: 3
- wait-for: {step: response:CONFIG_VPORT_RX, count: 2}
- settle`, nil},
		{"a hold that is over is not waited for", scenarios.DriverMana, []string{"probe", "up", "hold request:CONFIG_VPORT_RX as=w", "> down", "held w", "release w", "> unload", "> sleep 9s", "< down", "< unload", "< sleep"}, `
- probe
- up
- hold: {at: request:CONFIG_VPORT_RX, as: w}
- together:
    -
      - down
    -
      - wait-for: {held: w}
      - release: w
      - unload
    -
      # the device gave nothing to wait for between these
      - sleep: 2s
      - sleep: 9s`, nil},
		{"what was waited for in so many words is not waited for twice", scenarios.DriverMana, []string{hold, "> probe", "held w", "wait-for held=w", "release w", "< probe"}, `
- hold: {at: request:QUERY_DEV_CONFIG, as: w}
- together:
    -
      - probe
    -
      - wait-for: {held: w}
      - release: w`, nil},
		{"nothing to wait for beside a storm", scenarios.DriverVFIO, []string{"probe", "vectors", "> storm offline=2 rounds=9", "offline 3", "< storm"}, `
- probe
- vectors
- together:
    -
      - storm: {offline: 2, rounds: 9}
    -
      # the device gave nothing to wait for between these
      - sleep: 500ms
      - offline: 3`, nil},
		{"what came to nothing, or has no place", scenarios.DriverMana, []string{"probe", "hold smc:destroy as=no", "never no", "drop vector:1", "never drop vector:1", "release no ~ nothing is held; last: vector:0", "end no",
			"wait-for online=0 ! CPUs 0-3 are online: not done within 1m0s", "offline 3", "offline 3", "unplug 0 ~ CPU 0: it is the boot CPU", "settle"}, `
- probe
# hold at smc:destroy as no: left out: the device never came to smc:destroy
# drop at vector:1 as drop vector:1: left out: the device never came to vector:1
# release no: left out: nothing is held; last: vector:0
# end no: left out: no hold or fault is called "no"; there are: none
# wait for online 0: left out: CPUs 0-3 are online: not done within 1m0s
- offline: 3
# offline 3: left out: CPU 3 is offline before
- unplug: 0
  refused: "it is the boot CPU"
- settle`, []string{"hold at smc:destroy as no: left out: ", "drop at vector:1", "release no", "end no", "wait for online", "offline 3: left out: CPU 3 is offline before"}},
		{"what was only come to in a step that failed", scenarios.DriverMana, []string{"probe", "up", "hold vector:2 as=w", "drop vector:3", "> settle", "met w", "held w", "release w", "wait-for held=w",
			"< settle ! fired vectors were not handled", "offline 3"}, `
- probe
- up
# hold at vector:2 as w: left out: the device came to it in a step that is left out
- drop: {at: vector:3}
# settle: left out: fired vectors were not handled
# release w: left out: the device came to it in a step that is left out
# wait for held w: left out: the device came to it in a step that is left out
- offline: 3`, []string{"hold at vector:2 as w", "settle", "release w", "wait for held w"}},
		{"what was come to in a step that stays beside one that failed", scenarios.DriverMana, []string{"probe", "up", "hold vector:2 as=w", "> sleep 1s", "> settle", "met w", "held w", "< settle ! words", "release w", "< sleep"}, `
- probe
- up
- hold: {at: vector:2, as: w}
- together:
    -
      - sleep: 1s
      # settle: left out: words
    -
      - wait-for: {held: w}
      - release: w`, []string{"settle"}},
		{"what cannot be done leaves its branch, and a branch alone is none", scenarios.DriverMana, []string{hold, "> probe", "held w", "offline 0", "release w", "hold request:CONFIG_VPORT_RX as=x", "< probe", "> up", "online 3", "held x", "release x", "< up"}, `
- hold: {at: request:QUERY_DEV_CONFIG, as: w}
- together:
    -
      - probe
    -
      - wait-for: {held: w}
      # offline 0: left out: CPU 0 cannot leave; allowed: CPUs of 1-3; to show that it is refused, add refused: REGEXP
      - release: w
      - hold: {at: request:CONFIG_VPORT_RX, as: x}
- together:
    -
      - up
    -
      # the device gave nothing to wait for between these
      - sleep: 500ms
      # online 3: left out: CPU 3 is online before
      - wait-for: {held: x}
      - release: x`, []string{"offline 0", "online 3"}},
	} {
		r := recorded(t, tc.driver, tc.script)
		file, left, err := r.Scenario("written", "a remark")
		if err != nil {
			t.Errorf("%s: %v", tc.what, err)
			continue
		}
		head, steps, _ := strings.Cut(string(file), "steps:\n")
		if !strings.HasPrefix(head, "# a remark\nname: written\ndriver: "+tc.driver) {
			t.Errorf("%s: it begins %q", tc.what, head)
		}
		steps = strings.ReplaceAll("\n"+strings.TrimSuffix(steps, "\n"), "\n  ", "\n")
		if d := cmp.Diff(tc.want, steps); d != "" {
			t.Errorf("%s: -want +got\n%s", tc.what, d)
		}
		if !slices.EqualFunc(tc.left, left, func(want, got string) bool { return strings.HasPrefix(got, want) }) {
			t.Errorf("%s: left out %q, want %q", tc.what, left, tc.left)
		}
	}
}

// A session that is too long for a scenario says so.
func TestTooLong(t *testing.T) {
	script := []string{"probe"}
	for range scenarios.MaxSteps {
		script = append(script, "settle")
	}
	if _, _, err := recorded(t, scenarios.DriverMana, script).Scenario("long"); err == nil || !strings.Contains(err.Error(), "201 steps; allowed: 200") {
		t.Error(err)
	}
}

// Each rule of a session has a name of its own.
func TestNames(t *testing.T) {
	taken := map[string]bool{"w": true, "w-2": true, "drop vector:1": true}
	for line, want := range map[string]string{"hold smc:destroy as=w": "w-3", "drop vector:1": "drop vector:1 (2)", "drop vector:2": "drop vector:2", "settle": ""} {
		step, err := scenarios.ParseStep(line)
		if err != nil {
			t.Fatal(err)
		}
		before := step.Rule
		if got := Rule(step, func(name string) bool { return taken[name] }); got.Rule != nil && got.Rule.Name != want {
			t.Errorf("%s: %q, want %q", line, got.Rule.Name, want)
		} else if before != nil && before == got.Rule && want != before.Name {
			t.Errorf("%s: the step that was given has changed", line)
		}
	}
}
