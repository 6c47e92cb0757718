package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"irqlab/guestagent/cpulist"
	"irqlab/lab"
	"irqlab/lab/qemu"
	"irqlab/lab/qemu/klog"
	"irqlab/scenarios"
	"irqlab/scenarios/shape"
)

func TestOneThread(t *testing.T) {
	step := func(verb string) scenarios.Step { return scenarios.Step{Verb: verb} }
	storm := func(cpus ...int) scenarios.Step {
		return scenarios.Step{Verb: scenarios.VerbStorm, Storm: scenarios.Storm{Offline: cpulist.New(cpus...), Rounds: 1}}
	}
	list := func(steps ...scenarios.Step) []scenarios.Step { return steps }
	two := shape.Shape{Sockets: 1, Cores: 2, Threads: 2, Nodes: 1, MemoryMiB: 512}
	single := shape.Shape{Sockets: 1, Cores: 4, Threads: 1, Nodes: 1, MemoryMiB: 512}
	for name, tt := range map[string]struct {
		shape   shape.Shape
		offline cpulist.List
		steps   []scenarios.Step
		want    bool
	}{
		"no steps":                           {two, nil, nil, false},
		"CPUs that leave once":               {two, nil, list(scenarios.Step{Verb: scenarios.VerbOffline, CPUs: cpulist.New(1, 2, 3)}), false},
		"a storm over all but CPU 0":         {two, nil, list(step(scenarios.VerbProbe), storm(1, 2, 3)), true},
		"one thread of each core":            {two, nil, list(storm(1, 3)), true},
		"a whole core":                       {two, nil, list(storm(2, 3)), false},
		"a thread of one core":               {two, nil, list(storm(3)), false},
		"the same, the other core is halved": {two, cpulist.New(1), list(storm(3)), true},
		"cores of one thread":                {single, nil, list(storm(1, 2, 3)), false},
		"beside something": {two, nil, list(scenarios.Step{Verb: scenarios.VerbTogether, Together: [][]scenarios.Step{{step(scenarios.VerbSettle)}, {storm(1, 2, 3)}}}),
			true},
		"the second of two storms": {two, nil, list(storm(2, 3), storm(1, 3)), true},
		"an unplug, too":           {two, nil, list(storm(1, 2, 3), step(scenarios.VerbUnplug)), false},
		"a re-plug, too":           {two, nil, list(step(scenarios.VerbReplug), storm(1, 2, 3)), false},
	} {
		if got := oneThread(&scenarios.Case{Shape: tt.shape, Offline: tt.offline, Steps: tt.steps}); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

func TestEmulatorFault(t *testing.T) {
	report := func(code string) klog.Finding {
		return klog.Finding{Kind: klog.Oops, Title: "Oops: int3: 0000 [#1] SMP NOPTI", Text: "Oops: int3: 0000 [#1] SMP NOPTI\nRIP: 0010:__schedule+0x9f/0x1080\nCode: 48 89 " + code + " 44 00\n"}
	}
	stale, real := report("0f <1f>"), report("cc <1f>")
	warning := klog.Finding{Kind: klog.Warning, Title: "WARNING: CPU: 0 PID: 1 at f+0x1/0x2"}
	panicked := &qemu.BootError{Awaited: "ready", Panic: &real, Trouble: []klog.Finding{real}}
	lost := fmt.Errorf("after 3 volleys: %w", &lab.LostError{Err: context.DeadlineExceeded})
	for name, tt := range map[string]struct {
		accel      string
		complaints []klog.Finding
		err        error
		emulators  bool
	}{
		"nothing":                                           {lab.AccelTCG, nil, nil, false},
		"a warning":                                         {lab.AccelTCG, []klog.Finding{warning}, nil, false},
		"a breakpoint of the kernel's":                      {lab.AccelTCG, []klog.Finding{real}, panicked, false},
		"stale code, and a panic":                           {lab.AccelTCG, []klog.Finding{stale}, &qemu.DeadError{Reason: "guest-reset"}, true},
		"stale code, and a failed boot":                     {lab.AccelTCG, []klog.Finding{stale}, panicked, true},
		"stale code, and lost interrupts":                   {lab.AccelTCG, []klog.Finding{warning, stale}, lost, true},
		"stale code of which nothing came, not even a fail": {lab.AccelTCG, []klog.Finding{stale}, nil, true},
		"on real hardware":                                  {lab.AccelKVM, []klog.Finding{stale}, lost, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := emulatorFault(tt.accel, tt.complaints, tt.err)
			var e *EmulatorError
			if errors.As(got, &e) != tt.emulators || tt.err != nil && !errors.Is(got, tt.err) {
				t.Fatalf("got %v", got)
			}
			if !tt.emulators {
				return
			}
			if (judge{}).whose(got) != labs {
				t.Errorf("blamed on the guest: %v", got)
			}
			for _, word := range []string{"QEMU's emulation", "__schedule+0x9f", "0x0f", "Run the case again"} {
				if !strings.Contains(got.Error(), word) {
					t.Errorf("no %q in %v", word, got)
				}
			}
			if tt.err != nil && !strings.Contains(got.Error(), tt.err.Error()) {
				t.Errorf("what came of it is not told: %v", got)
			}
		})
	}
}
