// Package nearest finds the known name a mistyped one most likely stands for. It is pure and knows nothing of what the names mean.
package nearest

import (
	"fmt"
	"strings"

	"github.com/lithammer/fuzzysearch/fuzzy"
)

// Name returns the known name closest to word, "" when none is close enough to be a likely slip: more than a third of its letters differ.
func Name(word string, known []string) string {
	const longest = 64 // a longer word is no slip of a name, and the distance costs the product of the lengths
	if len(word) > longest {
		return ""
	}
	best, bestDistance := "", 0
	for _, k := range known {
		d := fuzzy.LevenshteinDistance(strings.ToLower(word), strings.ToLower(k))
		if d <= max(1, (len(k)+2)/3) && (best == "" || d < bestDistance) {
			best, bestDistance = k, d
		}
	}
	return best
}

// Hint is `; did you mean "name"?` for the closest known name, "" when there is none. It is meant to end an error message.
func Hint(word string, known []string) string {
	if n := Name(word, known); n != "" {
		return fmt.Sprintf("; did you mean %q?", n)
	}
	return ""
}

// Unknown is the error for a word outside a closed set: what it should name, what is allowed, and which of that was likely meant.
func Unknown(what, word string, allowed []string) error {
	return fmt.Errorf("unknown %s %q; allowed: %s%s", what, word, strings.Join(allowed, ", "), Hint(word, allowed))
}
