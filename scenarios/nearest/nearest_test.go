package nearest

import (
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	known := []string{"numa-aware", "linear", "mana-7.2", "unset", "node"}
	for word, want := range map[string]string{
		"linaer":                 "linear",
		"Linear":                 "linear",
		"numaaware":              "numa-aware",
		"mana7.2":                "mana-7.2",
		"nod":                    "node",
		"unsett":                 "unset",
		"round-robin":            "",
		"":                       "",
		"xy":                     "",
		strings.Repeat("a", 999): "",
	} {
		if got := Name(word, known); got != want {
			t.Errorf("Name(%q) = %q, want %q", word, got, want)
		}
	}
	if got := Hint("linaer", known); got != `; did you mean "linear"?` {
		t.Errorf("Hint = %q", got)
	}
	if got := Hint("round-robin", known); got != "" {
		t.Errorf("Hint of a stranger = %q", got)
	}
}
