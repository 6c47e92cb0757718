package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"irqlab/lab"
	"irqlab/lab/qemu"
	"irqlab/lab/qemu/klog"
	"irqlab/scenarios"
)

func TestOneThread(t *testing.T) {
	step := func(verb string) scenarios.Step { return scenarios.Step{Verb: verb} }
	storm, unplug, offline := step(scenarios.VerbStorm), step(scenarios.VerbUnplug), step(scenarios.VerbOffline)
	beside := scenarios.Step{Verb: scenarios.VerbTogether, Together: [][]scenarios.Step{{offline}, {storm}}}
	for name, tt := range map[string]struct {
		steps []scenarios.Step
		want  bool
	}{
		"no steps":                 {nil, false},
		"CPUs that leave once":     {[]scenarios.Step{offline}, false},
		"a storm":                  {[]scenarios.Step{offline, storm}, true},
		"a storm beside something": {[]scenarios.Step{beside}, true},
		"a storm and an unplug":    {[]scenarios.Step{storm, unplug}, false},
		"a re-plug, too":           {[]scenarios.Step{step(scenarios.VerbReplug), beside}, false},
	} {
		if got := oneThread(&scenarios.Case{Steps: tt.steps}); got != tt.want {
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
			if blamesGuest(got, []string{stale.Text}) {
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
