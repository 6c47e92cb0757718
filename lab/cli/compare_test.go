package cli

import (
	"testing"

	"irqlab/scenarios"
)

// TestPairUp: every case meets the one that runs the same under the other kernel, whatever the scenario calls them. Only a case that the other kernel does not have is left out.
func TestPairUp(t *testing.T) {
	for _, name := range scenarios.Shipped() {
		sc, err := scenarios.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		all, _, err := sc.Plan(scenarios.Overrides{Kernels: []string{"debian:6.18", "debian:7.3"}})
		if err != nil {
			t.Fatal(err)
		}
		cases := pairUp(all, "debian:6.18", "debian:7.3")
		setups := map[string]map[string]int{}
		for _, c := range all {
			if setups[c.Setup()] == nil {
				setups[c.Setup()] = map[string]int{}
			}
			setups[c.Setup()][c.Kernel]++
		}
		want := 0
		for _, n := range setups {
			want += 2 * min(n["debian:6.18"], n["debian:7.3"])
		}
		if len(cases) == 0 || len(cases) != want {
			t.Errorf("%s: %d of %d cases were paired, want %d", name, len(cases), len(all), want)
		}
		half := len(cases) / 2
		for i := range half {
			a, b := cases[i], cases[half+i]
			if a.Kernel != "debian:6.18" || b.Kernel != "debian:7.3" || a.Setup() != b.Setup() {
				t.Errorf("%s: %s (%s) was paired with %s (%s)", name, a.Name, a.Kernel, b.Name, b.Kernel)
			}
		}
	}
}

func TestPairUpLeavesOutTheUnpaired(t *testing.T) {
	cases := pairUp([]scenarios.Case{{Kernel: "a", Name: "1"}, {Kernel: "a", Name: "2", Vectors: 3}, {Kernel: "b", Name: "3"}}, "a", "b")
	if len(cases) != 2 || cases[0].Name != "1" || cases[1].Name != "3" {
		t.Errorf("got %+v", cases)
	}
}
