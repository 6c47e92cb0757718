package runner

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// TestVMName makes sure that every case's VM has a name that a run directory and SSH take.
func TestVMName(t *testing.T) {
	allowed := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$`)
	for name, want := range map[string]string{
		"linear":                               "s-linear",
		"linear/online+1-vectors":              "s-linear_online_1-vectors",
		"linear/debian:7.3.4+deb13-cloud":      "s-linear_debian_7.3.4_deb13-cloud",
		"x=1/../..":                            "s-x_1",
		"a/very/long/name/that/goes/on/and/on": "s-a_very_long_name_that_goes_on_and_on",
	} {
		got := vmName(&scenarios.Case{Scenario: "s", Name: name})
		if got != want || !allowed.MatchString(got) {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// TestConsoleNotKept: a result whose artifact could not be written is no pass.
func TestConsoleNotKept(t *testing.T) {
	t.Parallel()
	sc, err := scenarios.Get("low-vcpu")
	cases := plan(t, sc, err, scenarios.Overrides{Strategies: []string{"linear"}})
	out := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(out, dir(&cases[0])), 0o700), os.Symlink("/dev/full", filepath.Join(out, dir(&cases[0]), "console.log"))); err != nil {
		t.Fatal(err)
	}
	c := runCases(t, cases, Options{Out: out, Start: lab.StartAuto}).Cases[0]
	if c.Outcome != result.Error || !strings.Contains(strings.Join(c.Reasons, "\n"), "the console was not kept") || len(c.Observations) == 0 {
		t.Errorf("%s: %q, %d observations; want an error that says so, and what was seen", c.Outcome, c.Reasons, len(c.Observations))
	}
}
