// Package bisect takes down what was found of each commit of a bisection, says what that comes to, and writes it.
//
// It is pure: it reads results, and writes to the writer that it is given. Which commit is next is git's to say (lab/build/patch/gitrange); how its module is built and its cases
// are run, somebody else's to know.
package bisect

import (
	"fmt"
	"slices"
	"strings"

	"irqlab/lab/build/patch/gitrange"
	"irqlab/lab/report"
	"irqlab/lab/try"
	"irqlab/scenarios/result"
)

// Bisection is a range of a tree's commits, and what came of each that was judged. What was not come to is empty.
type Bisection struct {
	Schema   int        `json:"schema"`
	IRQLab   string     `json:"irqlab,omitempty"`
	Command  string     `json:"command"` // that does it again
	Tree     string     `json:"tree"`
	Whole    bool       `json:"whole,omitempty"` // each commit's kernel is built, not the driver's module alone
	Kernel   try.Kernel `json:"kernel"`          // that the modules are built for, and run in; of whole kernels, what they are built of
	Range    Range      `json:"range"`
	Notes    []string   `json:"notes,omitempty"`
	Steps    []Step     `json:"steps"` // in the order they were judged: both ends first
	FirstBad *Commit    `json:"first_bad,omitempty"`
	Suspects []Commit   `json:"suspects,omitempty"` // of which one is the first bad commit: what would tell was skipped
	// The last commit that was found good, and the first bad one, or the earliest that was found bad.
	Cases      []try.Compared     `json:"cases"`
	Comparison *report.Comparison `json:"comparison,omitempty"`
	Verdict    Verdict            `json:"verdict"`
	Log        string             `json:"log,omitempty"` // for git bisect replay
	Seconds    float64            `json:"seconds"`
}

// Range is what is bisected.
type Range struct {
	Good      Commit `json:"good"`
	Bad       Commit `json:"bad"`
	Commits   int    `json:"commits"`
	OfModule  int    `json:"of_module"` // that change the module, or of whole kernels something that may be built
	Elsewhere int    `json:"elsewhere"` // that change something else which could matter
}

// Commit is one of the tree's.
type Commit struct {
	Name    string `json:"commit"`
	Subject string `json:"subject"`
}

// Step is one commit judged.
type Step struct {
	Commit
	Verdict gitrange.Term    `json:"verdict"`
	SameAs  string           `json:"same_as,omitempty"` // a commit judged before that has the same module, whose verdict it is
	Reasons []string         `json:"reasons"`           // why it is bad, or cannot be told
	Errors  []try.Diagnostic `json:"errors,omitempty"`  // of the compiler, if it does not build
	Module  string           `json:"module,omitempty"`  // the file
	Kernel  string           `json:"kernel,omitempty"`  // in its place, as --kernel takes it
	Landed  []Landed         `json:"landed"`
	Seconds Seconds          `json:"seconds"`

	Results []result.Case `json:"-"`
}

// Landed is where a case's vectors are at its last reading.
type Landed struct {
	Scenario string         `json:"scenario"`
	Case     string         `json:"case"`
	Outcome  result.Outcome `json:"outcome"`
	Vectors  string         `json:"vectors"` // "0; 0,2,0,3": of the HWC vector; of each queue vector
}

// Seconds is where a step's time went.
type Seconds struct {
	Build float64 `json:"build"`
	Cases float64 `json:"cases"`
}

// Word is the end of a bisection in a word.
type Word string

// The ends.
const (
	WordFound     Word = "found"
	WordSuspects  Word = "suspects"   // what is left was skipped
	WordGoodFails Word = "good-fails" // the good end
	WordBadPasses Word = "bad-passes" // the bad end
	WordUnknown   Word = "unknown"    // an end cannot be told, or the lab failed
)

// Verdict is what the bisection comes to.
type Verdict struct {
	Word    Word     `json:"word"`
	Status  int      `json:"status"` // of the command: 0, 1 or 125
	Reasons []string `json:"reasons"`
}

// New is a Bisection that nothing has come of yet: of the modules for the kernel that spec names, or of whole kernels.
func New(tree, spec string, whole bool) Bisection {
	b := Bisection{Schema: result.Schema, Tree: tree, Whole: whole, Steps: []Step{}, Cases: []try.Compared{}}
	if !whole {
		b.Kernel.Spec = spec
	}
	return b
}

// Ran is a step of which the cases were run. It is good if every case passed, or was only observed, as git bisect run would have it of irqlab run.
func Ran(c Commit, rep result.Report) Step {
	s := Step{Commit: c, Reasons: []string{}, Results: rep.Cases, Landed: []Landed{}}
	switch report.ExitStatus(rep) {
	case report.ExitPass:
		s.Verdict = gitrange.Good
	case report.ExitFail:
		s.Verdict = gitrange.Bad
	default:
		s.Verdict = gitrange.Skip
	}
	if rep.NotRun > 0 {
		s.Verdict = gitrange.Skip
	}
	for i := range rep.Cases {
		c := &rep.Cases[i]
		l := Landed{Scenario: c.Scenario, Case: c.Name, Outcome: c.Outcome}
		if n := len(c.Observations); n > 0 {
			l.Vectors = report.Placement(c, &c.Observations[n-1])
		}
		s.Landed = append(s.Landed, l)
		if counts(c.Outcome, s.Verdict) {
			for _, r := range c.Reasons {
				line, _, _ := strings.Cut(strings.TrimSpace(r), "\n")
				s.Reasons = append(s.Reasons, c.Name+": "+line)
			}
		}
	}
	return s
}

// counts tells whether a case of that outcome is why a commit has its verdict.
func counts(o result.Outcome, t gitrange.Term) bool {
	return t == gitrange.Bad && o == result.Fail || t == gitrange.Skip && o == result.Error
}

// Untold is a step that there is nothing to run of.
func Untold(c Commit, reasons []string, errors []try.Diagnostic) Step {
	return Step{Commit: c, Verdict: gitrange.Skip, Reasons: reasons, Errors: errors, Landed: []Landed{}}
}

// Same is a step with the verdict of another, whose module it has.
func (s Step) Same(c Commit) Step {
	if s.SameAs == "" {
		s.SameAs = s.Name
	}
	s.Commit, s.Seconds = c, Seconds{}
	return s
}

// Ends looks at the first two steps, the good end and the bad one: false if they are not what they were said to be, and the verdict says so.
func (b *Bisection) Ends() bool {
	good, bad := &b.Steps[0], &b.Steps[1]
	for _, end := range []struct {
		step *Step
		name string
		is   gitrange.Term
	}{{good, "good", gitrange.Good}, {bad, "bad", gitrange.Bad}} {
		switch {
		case end.step.Verdict == end.is:
			continue
		case end.step.Verdict == gitrange.Skip:
			b.Verdict = Verdict{WordUnknown, report.ExitError, append([]string{fmt.Sprintf("the %s end cannot be told", end.name)}, end.step.why()...)}
		case end.is == gitrange.Good:
			b.Verdict = Verdict{WordGoodFails, report.ExitFail, append([]string{"the good end is bad, so that there is nothing to look for between the two"}, end.step.why()...)}
		case good.SameAs != "" || bad.SameAs != "":
			b.Verdict = Verdict{WordBadPasses, report.ExitFail, []string{"the bad end is good: both ends are built of the same"}}
		default:
			b.Verdict = Verdict{WordBadPasses, report.ExitFail, []string{"the bad end is good: what was seen there is not seen by these cases on this kernel"}}
		}
		return false
	}
	return true
}

// Failed is the end by an error of the lab's.
func (b *Bisection) Failed(err error) {
	b.Verdict = Verdict{WordUnknown, report.ExitError, []string{err.Error()}}
}

// Found is the end: git's first bad commit, or those that it may be.
func (b *Bisection) Found(first *Commit, suspects []Commit) {
	b.FirstBad, b.Suspects = first, suspects
	if first != nil {
		b.Verdict = Verdict{WordFound, report.ExitPass, []string{}}
	} else {
		b.Verdict = Verdict{WordSuspects, report.ExitError, []string{"what would tell which of them it is was skipped"}}
	}
	good, bad := b.nearest()
	x, y := result.Report{Cases: good.Results}, result.Report{Cases: bad.Results}
	b.Cases = try.Compare(x, y)
	c := report.Compare(x, y)
	b.Comparison = &c
}

// nearest are the last commit found good and the first found bad. As a bisection goes on the ends only come nearer, so each is the one that was judged last.
func (b *Bisection) nearest() (good, bad *Step) {
	for i := range b.Steps {
		switch s := &b.Steps[i]; s.Verdict {
		case gitrange.Good:
			good = s
		case gitrange.Bad:
			bad = s
		}
	}
	return good, bad
}

// witness is the case that the lines tell of: the first that fails at the bad end, or else the last.
func (b *Bisection) witness() (scenario, name string) {
	for _, s := range b.Steps[:min(2, len(b.Steps))] {
		if i := slices.IndexFunc(s.Landed, func(l Landed) bool { return s.Verdict == gitrange.Bad && l.Outcome == result.Fail }); i >= 0 {
			return s.Landed[i].Scenario, s.Landed[i].Case
		}
		if n := len(s.Landed); n > 0 {
			scenario, name = s.Landed[n-1].Scenario, s.Landed[n-1].Case
		}
	}
	return scenario, name
}

// why are the reasons, the compiler's among them.
func (s *Step) why() []string {
	out := slices.Clone(s.Reasons)
	for _, e := range s.Errors {
		out = append(out, e.String())
	}
	return out
}
