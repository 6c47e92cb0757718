package bisect

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/build/patch/gitrange"
	"irqlab/lab/report"
	"irqlab/lab/try"
	"irqlab/scenarios/result"
	"irqlab/scenarios/shape"
)

// ran is a case of that outcome with a queue on each of the CPUs.
func ran(name string, o result.Outcome, cpus ...int) result.Case {
	vectors := []result.Vector{{Index: 0, Role: result.RoleHWC, Affinity: cpulist.New(0), Effective: cpulist.New(0)}}
	for i, cpu := range cpus {
		vectors = append(vectors, result.Vector{Index: i + 1, Role: result.RoleQueue, Affinity: cpulist.New(cpu), Effective: cpulist.New(cpu)})
	}
	c := result.Case{Scenario: "spread", Name: name, Outcome: o, Shape: shape.Default(), Vectors: len(vectors)}
	if len(cpus) > 0 {
		c.Observations = []result.Observation{result.Observe("settled", cpulist.New(0, 1, 2, 3), vectors)}
	}
	if o == result.Fail || o == result.Error {
		c.Reasons = []string{"it is " + string(o) + "\nwith more"}
	}
	return c
}

func rep(cases ...result.Case) result.Report { return result.Report{Cases: cases} }

func commit(i int) Commit {
	return Commit{strings.Repeat(strconv.Itoa(i), 40), fmt.Sprintf("mana: change %d", i)}
}

func TestRan(t *testing.T) {
	pass, fail, lab, observed := ran("a", result.Pass, 0, 1), ran("b", result.Fail, 0, 0), ran("c", result.Error), ran("d", result.Observed, 1, 1)
	unfinished := rep(pass)
	unfinished.NotRun = 1
	for _, tt := range []struct {
		rep     result.Report
		want    gitrange.Term
		reasons string
	}{
		{rep(pass), gitrange.Good, ""},
		{rep(observed), gitrange.Good, ""},
		{rep(pass, fail), gitrange.Bad, "b: it is fail"},
		{rep(fail, lab), gitrange.Skip, "c: it is error"},
		{rep(lab), gitrange.Skip, "c: it is error"},
		{rep(), gitrange.Skip, ""},
		{unfinished, gitrange.Skip, ""},
	} {
		s := Ran(commit(1), tt.rep)
		if s.Verdict != tt.want || strings.Join(s.Reasons, "; ") != tt.reasons || len(s.Landed) != len(tt.rep.Cases) || s.Name != commit(1).Name {
			t.Errorf("%+v: %+v", tt.rep.Cases, s)
		}
	}
}

func TestEnds(t *testing.T) {
	good, bad := Ran(commit(1), rep(ran("a", result.Pass, 0, 1))), Ran(commit(2), rep(ran("a", result.Fail, 0, 0)))
	broken := Untold(commit(3), []string{"it does not build"}, []try.Diagnostic{{File: "x.c", Line: 3, Text: "no"}})
	for _, tt := range []struct {
		good, bad Step
		word      Word
		status    int
		reasons   string
		shown     string // the commit whose cases are
	}{
		{good, bad, "", 0, "", ""},
		{bad, bad, WordGoodFails, report.ExitFail, "the good end is bad, so that there is nothing to look for between the two; a: it is fail", bad.Name},
		{bad, good, WordGoodFails, report.ExitFail, "the good end is bad, so that there is nothing to look for between the two; a: it is fail", bad.Name},
		{good, Ran(commit(4), rep(ran("a", result.Pass, 1, 0))), WordBadPasses, report.ExitFail, "the bad end is good: what was seen there is not seen by these cases on this kernel", commit(4).Name},
		{good, good.Same(commit(4)), WordBadPasses, report.ExitFail, "the bad end is good: both ends are built of the same", good.Name},
		{broken, bad, WordUnknown, report.ExitError, "the good end cannot be told; it does not build; x.c:3: no", ""},
		{good, broken, WordUnknown, report.ExitError, "the bad end cannot be told; it does not build; x.c:3: no", ""},
		{bad, broken, WordGoodFails, report.ExitFail, "the good end is bad, so that there is nothing to look for between the two; a: it is fail", bad.Name},
	} {
		b := New("t", "debian:7.3", false)
		b.Steps = []Step{tt.good, tt.bad}
		ok := b.Ends()
		if v := b.Verdict; ok != (tt.word == "") || v.Word != tt.word || v.Status != tt.status || strings.Join(v.Reasons, "; ") != tt.reasons {
			t.Errorf("%s, %s: %+v", tt.good.Verdict, tt.bad.Verdict, v)
		}
		if cases := b.EndCases(); (len(cases) > 0) != (tt.shown != "") {
			t.Errorf("%s, %s: shown %v", tt.good.Verdict, tt.bad.Verdict, cases)
		}
	}
}

// bisection is one that has come to its end: two cases, of which the first fails at the bad end, a commit that does not build, one of the same module as another.
func bisection() Bisection {
	b := New("~/linux", "debian:7.3", false)
	b.Kernel.Release = "7.3.4"
	b.Range = Range{Good: commit(1), Bad: commit(9), Commits: 8, OfModule: 7, Elsewhere: 1}
	b.Notes = []string{strings.Repeat("long words ", 20)}
	good := rep(ran("one", result.Pass, 0, 1, 2, 3), ran("two", result.Pass, 0, 1))
	bad := Ran(commit(9), rep(ran("one", result.Fail, 0, 0, 0, 0), ran("two", result.Pass, 0, 1)))
	b.Steps = []Step{
		Ran(commit(1), good), bad,
		Untold(Commit{commit(5).Name, "mana: " + strings.Repeat("a long subject ", 9)}, []string{"it does not build for this kernel"}, []try.Diagnostic{{File: "drivers/x.c", Line: 7, Text: "'x' \x1b[31mundeclared"}}),
		bad.Same(commit(8)),
		Ran(commit(6), rep(ran("one", result.Pass, 0, 1, 2, 3), ran("two", result.Fail, 1, 1))),
		Ran(commit(4), good),
	}
	return b
}

func TestTable(t *testing.T) {
	b := bisection()
	first := commit(6)
	b.Found(&first, nil)
	if b.Verdict.Word != WordFound || b.Verdict.Status != report.ExitPass || b.FirstBad.Name != first.Name || b.Comparison == nil || len(b.Cases) != 2 {
		t.Errorf("%+v", b.Verdict)
	}
	if b.Cases[0].Change != try.Unchanged || b.Cases[1].Change != try.Worse {
		t.Errorf("%+v", b.Cases)
	}
	var out bytes.Buffer
	if err := b.Table(&out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for line := range strings.Lines(text) {
		if utf8.RuneCountInString(line) > width+1 || strings.ContainsRune(line, '\x1b') {
			t.Errorf("%q", line)
		}
	}
	for _, want := range []string{
		"tree:    ~/linux\n", "good:    111111111111 mana: change 1\n", "commits: 8, 7 of them change the module\n", "kernel:  7.3.4 (debian:7.3)\n", "note:    long words",
		"effective CPU of the HWC vector; of each queue vector, in case one\n",
		"good  111111111111  0; 0,1,2,3          mana: change 1\n", "bad   999999999999  0; 0,0,0,0          mana: change 9\n",
		"skip  555555555555  -                   mana: a long subject a long subject a l…\n      it does not build for this kernel\n      drivers/x.c:7: 'x' ",
		"bad   888888888888  0; 0,0,0,0          (as 999999999999) mana: change 8\n",
		"bad   666666666666  0; 0,1,2,3          mana: change 6\n      fail of case two: 0; 1,1\n", // what the lines tell of passes
		"first bad commit: " + first.Name + "\n                  mana: change 6\nlast good: 444444444444 mana: change 4\n", "spread/two: worse", "last good: effective",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "spread/one:") {
		t.Error("a case that is unchanged is shown")
	}
}

func TestSuspectsAndFailures(t *testing.T) {
	render := func(b Bisection) string {
		var out bytes.Buffer
		if err := b.Table(&out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	b := bisection()
	b.Found(nil, []Commit{commit(5), commit(6)})
	if b.Verdict.Word != WordSuspects || b.Verdict.Status != report.ExitError || b.FirstBad != nil || len(b.Cases) != 2 {
		t.Errorf("%+v", b.Verdict)
	}
	for _, want := range []string{"is one of these 2, since", "\n  555555555555 mana: change 5\n  666666666666 mana: change 6\nlast good: 444444444444 mana: change 4\nbad:       666666666666 mana: change 6\n"} {
		if text := render(b); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	b = bisection()
	b.Failed(errors.New("no space"))
	if text, want := render(b), "\nno space\nlast good: 444444444444 mana: change 4\nfirst bad: 666666666666 mana: change 6, so far\n"; !strings.HasSuffix(text, want) || b.Verdict.Status != report.ExitError {
		t.Errorf("no %q in\n%s", want, text)
	}
	b = New("t", "debian:7.3", false)
	b.Failed(errors.New("no space"))
	if text := render(b); !strings.HasSuffix(text, "\nno space\n") || strings.Contains(text, "---") {
		t.Error(text)
	}
}

// Of a chain of the same modules the first is named, whose verdict it is.
func TestSame(t *testing.T) {
	s := Ran(commit(1), rep(ran("a", result.Pass, 0)))
	s.Seconds.Build = 3
	again := s.Same(commit(2)).Same(commit(3))
	if again.SameAs != commit(1).Name || again.Commit != commit(3) || again.Verdict != gitrange.Good || again.Seconds != (Seconds{}) || !slices.Equal(again.Landed, s.Landed) {
		t.Errorf("%+v", again)
	}
}
