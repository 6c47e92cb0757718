package try

import (
	"fmt"
	"strings"

	"irqlab/lab/report"
	"irqlab/scenarios"
)

// Word is a verdict in a word.
type Word string

// The verdicts: first those on what was run, then those where nothing was.
const (
	WordBetter    Word = "better"    // something is better, nothing is worse, and no case fails
	WordChanged   Word = "changed"   // something is otherwise, nothing is better or worse, and no case fails
	WordUnchanged Word = "unchanged" // nothing that is looked at differs, and no case fails
	WordWorse     Word = "worse"     // something is
	WordFails     Word = "fails"     // nothing is worse, but a case fails with the patch as it did without
	WordUnknown   Word = "unknown"   // the lab could not tell of some case

	WordApplies      Word = "applies"        // and no more was asked
	WordDoesNotApply Word = "does-not-apply" // some hunk does not
	WordDoesNotBuild Word = "does-not-build" // the compiler says why
)

// Verdict is what is to be thought of a patch.
type Verdict struct {
	Word    Word     `json:"word"`
	Status  int      `json:"status"` // of the command: 0, 1 or 125
	Reasons []string `json:"reasons"`
}

// Judge is the verdict on what was run. driver: the patch changes the driver, so that a case that the driver fails without it is there to be mended; else such a case is only told
// of. notRun: so many cases had not ended.
func Judge(cases []Compared, driver bool, notRun int) Verdict {
	of := map[Change][]string{}
	var fails []string
	v := Verdict{Reasons: []string{}}
	for _, c := range cases {
		name := c.Scenario + "/" + c.Case
		of[c.Change] = append(of[c.Change], name)
		for _, w := range c.Worse {
			v.Reasons = append(v.Reasons, name+": "+w)
		}
		if c.Change == Unknown {
			for _, side := range []struct {
				what    string
				reasons []string
			}{{"without", c.Without.Reasons}, {"with", c.With.Reasons}} {
				for _, r := range side.reasons {
					v.Reasons = append(v.Reasons, fmt.Sprintf("%s, %s the patch: %s", name, side.what, firstLine(r)))
				}
			}
		}
		switch {
		case c.Fails == "" || c.Change == Worse:
		case c.oldWarnings():
			v.Reasons = append(v.Reasons, name+" fails as it did, by what the kernel logs without the patch, too: "+c.Fails)
		case driver || c.With.Driver != scenarios.DriverMana:
			fails = append(fails, name)
			v.Reasons = append(v.Reasons, name+" still fails: "+c.Fails)
		default:
			v.Reasons = append(v.Reasons, name+" fails as it did, by the driver, which the patch does not change: "+c.Fails)
		}
	}
	if notRun > 0 {
		v.Reasons = append(v.Reasons, fmt.Sprintf("%d runs had not ended", notRun))
	}
	switch {
	case len(of[Unknown]) > 0 || notRun > 0 || len(cases) == 0:
		v.Word, v.Status = WordUnknown, report.ExitError
	case len(of[Worse]) > 0:
		v.Word, v.Status = WordWorse, report.ExitFail
	case len(fails) > 0:
		v.Word, v.Status = WordFails, report.ExitFail
	case len(of[Better]) > 0:
		v.Word = WordBetter
	case len(of[Changed]) > 0:
		v.Word = WordChanged
	default:
		v.Word = WordUnchanged
	}
	return v
}

// count is "1 better, 6 unchanged".
func count(cases []Compared) string {
	n := map[Change]int{}
	for _, c := range cases {
		n[c.Change]++
	}
	var words []string
	for _, change := range []Change{Better, Worse, Changed, Unchanged, Unknown} {
		if n[change] > 0 {
			words = append(words, fmt.Sprintf("%d %s", n[change], change))
		}
	}
	return strings.Join(words, ", ")
}
