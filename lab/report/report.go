// Package report renders what a run found, for people (Table) and machines (JSON), and turns it into the exit status.
//
// It writes to an io.Writer and does nothing else. It must not know how results come about, nor judge them: the outcome is in the result.
package report

import (
	"encoding/json"
	"io"

	"irqlab/scenarios/result"
)

// Exit statuses of a run; those of usage errors and interrupts are the command's own.
const (
	ExitPass  = 0
	ExitFail  = 1
	ExitError = 125 // the lab could not tell; git bisect run skips the commit
)

// ExitStatus is the status of a run: 125 when the lab could not tell of some case, else 1 when a case failed, else 0: every case passed or was observed. A report without cases
// tells nothing: 125.
func ExitStatus(r result.Report) int {
	status := ExitPass
	if len(r.Cases) == 0 {
		status = ExitError
	}
	for _, c := range r.Cases {
		switch c.Outcome {
		case result.Pass, result.Observed:
		case result.Fail:
			status = max(status, ExitFail)
		default:
			status = ExitError
		}
	}
	return status
}

// JSON writes what a command found, such as a result.Report or a Comparison, as one indented object.
func JSON[T any](w io.Writer, found T) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(found)
}
