package truth

import (
	"testing"

	"irqlab/scenarios"
)

// Every random case is one that the lab takes, and the same one each time.
func TestGenerate(t *testing.T) {
	seen := map[string]int{}
	for n := range 3000 {
		c := Generate(7, n, false)
		text := c.YAML()
		again := Generate(7, n, false)
		if again.YAML() != text {
			t.Fatalf("case %d differs from itself:\n%s\n%s", n, text, again.YAML())
		}
		cases, err := planned(&c)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if len(cases) != 1 {
			t.Fatalf("%d cases of\n%s", len(cases), text)
		}
		seen[c.Driver+" "+c.Machine.Irqchip]++
	}
	t.Log(seen)
	if len(seen) != 4 {
		t.Errorf("drivers and irqchips: %v", seen)
	}
}

// planned loads a case as its file would be.
func planned(c *Case) ([]scenarios.Case, error) {
	sc, err := scenarios.Load(c.ID()+".yaml", []byte(c.YAML()))
	if err != nil {
		return nil, err
	}
	list, _, err := sc.Plan(scenarios.Overrides{})
	return list, err
}
