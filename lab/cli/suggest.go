package cli

import (
	"fmt"
	"strings"

	"irqlab/scenarios/nearest"
)

// unknown is the error for a word outside a closed set.
func unknown(what, word string, allowed []string) error {
	return fmt.Errorf("unknown %s %q; allowed: %s%s", what, word, strings.Join(allowed, ", "), nearest.Hint(word, allowed))
}
