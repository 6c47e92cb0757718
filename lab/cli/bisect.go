package cli

import (
	"errors"
	"fmt"
	"strings"

	"irqlab/images"
	"irqlab/scenarios"
)

// bisectFlag is run's flag under which its status is what git bisect run is to take it for.
const bisectFlag = "--bisect"

// ExitStop is the status, under --bisect only, of what would come out the same at every commit: git bisect run ends at any from 128 on. It is git's own for what is fatal, and no
// signal's.
const ExitStop = 128

// bisecting reports whether the arguments ask for --bisect. They are looked at as they are, since a mistake in one keeps all from being parsed.
func bisecting(args []string) bool {
	for _, a := range args {
		if name, value, _ := strings.Cut(a, "="); name == bisectFlag && value != "false" {
			return true
		}
	}
	return false
}

// bisectStatus is the status under --bisect of a command that ended with err. Verdicts, and what the cases could not tell, are what they always are. What kept them from being run is
// either of this commit, as a tree in which no kernel lies, or it is not: then git would skip or blame one commit after another for it.
func bisectStatus(err error) int {
	var exit *exitError
	var kernel *images.BadKernelError
	var form *images.SpecError
	var unknown *images.UnknownKernelError
	switch {
	case err == nil:
		return ExitPass
	case errors.As(err, &exit) && exit.err == nil: // the cases were run
		return exit.status
	case errors.As(err, &form), errors.As(err, &unknown):
		return ExitStop
	case errors.As(err, &kernel):
		return ExitError
	}
	return ExitStop
}

// judged refuses cases that would only be observed: git would take each commit for good.
func judged(cases []scenarios.Case) error {
	for _, c := range cases {
		if !c.Judges() {
			return fmt.Errorf("case %s would only be observed, which is taken for good: it expects nothing, or a flag took away what it expects (say what makes a commit good with --expect KEY=VALUE, or choose other cases with --case)",
				c.Name)
		}
	}
	return nil
}
