package lab

import "testing"

func TestProbeFailed(t *testing.T) {
	for line, want := range map[string]bool{
		"mana 0000:01:00.0: probe with driver mana failed with error -28":     true,
		"mana: probe of 0000:01:00.0 failed with error -110":                  true,
		"nvme nvme0: probe with driver nvme failed with error -5":             false,
		"mana 0000:01:00.0: gdma probe failed: err = -28":                     false,
		"mana 0000:01:00.0: Microsoft Azure Network Adapter protocol version": false,
	} {
		if got := ProbeFailed("mana", line); got != want {
			t.Errorf("%q: %v", line, got)
		}
	}
}
