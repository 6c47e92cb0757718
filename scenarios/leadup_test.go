package scenarios

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"irqlab/scenarios/shape"
)

// Each step is led up to by what the language itself wants before it.
func TestLeadUp(t *testing.T) {
	small := shape.Default()
	small.Cores, small.Threads = 1, 1
	for _, tc := range []struct {
		line, driver string
		vectors      int
		want         string // steps, or the error
	}{
		{"probe", DriverMana, 5, "probe"},
		{"up", DriverMana, 5, "probe; up"},
		{"down", DriverMana, 5, "probe; up; down"},
		{"set-channels", DriverMana, 5, "probe; up; set-channels 2"},
		{"set-channels", DriverMana, 4, "probe; up; set-channels 1"},
		{"set-channels", DriverMana, 64, "probe; up; set-channels 2"}, // the driver has as many as CPUs
		{"set-channels=3", DriverMana, 5, "probe; up; set-channels 3"},
		{"set-channels 3", DriverMana, 5, "probe; up; set-channels 3"},
		{"set-channels: 3", DriverMana, 5, "probe; up; set-channels 3"},
		{"set-channels=9", DriverMana, 5, "set-channels: 9 channels need as many queue vectors, and the function has 4"},
		{"set-channels=x", DriverMana, 5, `set-channels: "x" is no count`},
		{"set-channels", DriverMana, 2, "set-channels: the link has 1 channel, and another number"},
		{"unload", DriverMana, 5, "probe; up; unload"},
		{"unbind", DriverMana, 5, "probe; up; unbind"},
		{"bind", DriverMana, 5, "probe; unbind; bind"},
		{"load", DriverMana, 5, "load"},
		{"reset-service", DriverMana, 5, "probe; up; reset-service"},
		{"post fpga-reconfig", DriverMana, 5, "probe; up; post fpga-reconfig"},
		{"post=unknown=9", DriverMana, 5, "probe; up; post unknown=9"},
		{"post", DriverMana, 5, "post: needs an argument"},
		{"settle", DriverMana, 5, "probe; up; settle"},
		{"fire vectors=1 rounds=2", DriverMana, 5, "probe; up; fire vectors 1, 2 rounds"},
		{"storm offline=3 rounds=2", DriverVFIO, 5, "probe; vectors; storm on CPUs 3, 2 rounds"},
		{"storm offline=9 rounds=2", DriverVFIO, 5, "storm: CPU 9 is not in the shape"},
		{"vectors", DriverVFIO, 5, "probe; vectors"},
		{"settle", DriverVFIO, 5, "probe; vectors; settle"},
		{"up", DriverVFIO, 5, "up needs driver mana, and the case has driver vfio; allowed: probe, vectors, reset, remove, rescan, suspend, hibernate, fire, settle, storm"},
		{"vectors", DriverMana, 5, "vectors needs driver vfio"},
		{"offline 3", DriverMana, 5, "offline makes the device do nothing; allowed: probe, load"},
		{"unlaod", DriverMana, 5, `did you mean "unload"?`},
	} {
		c := Case{Driver: tc.driver, Vectors: tc.vectors, Shape: shape.Default()}
		step, before, err := LeadUp(tc.line, &c)
		var words []string
		for _, s := range append(before, step) {
			words = append(words, s.String())
		}
		if got := strings.Join(words, "; "); err == nil && got != tc.want || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s with %s: %q, %v; want %q", tc.line, tc.driver, got, err, tc.want)
		}
	}
	if _, _, err := LeadUp("set-channels", &Case{Driver: DriverMana, Vectors: 5, Shape: small}); err == nil {
		t.Error("one CPU: there is another number of channels")
	}
}

// Every verb that speaks with the device can lead to a hold, in a scenario that is valid.
func TestLeadUpsComplete(t *testing.T) {
	args := map[string]string{VerbPost: " link-up", VerbStorm: " offline=3 rounds=1"}
	quiet := []string{VerbHold, VerbRelease, VerbEnd, VerbDelay, VerbDrop, VerbDuplicate, VerbStatus, VerbAlter, VerbAddInterrupt, VerbOffline, VerbOnline, VerbUnplug, VerbReplug,
		VerbObserve, VerbReadDisks, VerbRun, VerbAffinity, VerbExpect, VerbWaitFor, VerbTogether, VerbSleep}
	for _, v := range Verbs() {
		for _, driver := range Drivers() {
			if v.Driver != "" && v.Driver != driver || slices.Contains(quiet, v.Name) || driver == DriverVFIO && slices.Contains([]string{VerbLoad, VerbBind}, v.Name) {
				continue
			}
			c := Case{Scenario: "x", Driver: driver, Strategy: map[string]string{DriverVFIO: "linear"}[driver], Kernel: "debian:7.3", Vectors: 5, Shape: shape.Default(), Irqchip: IrqchipMSI}
			step, before, err := LeadUp(v.Name+args[v.Name], &c)
			if err != nil {
				t.Errorf("%s with %s: %v", v.Name, driver, err)
				continue
			}
			lines := []Line{}
			for _, s := range append(before, step) {
				lines = append(lines, Line{Step: s})
			}
			if _, err := Load("x", Write(&c, nil, lines)); err != nil {
				t.Error(fmt.Errorf("%s with %s: %w", v.Name, driver, err))
			}
		}
	}
}
