package bisect

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"irqlab/lab/build/patch/gitrange"
	"irqlab/lab/foreign"
	"irqlab/lab/layout"
	"irqlab/lab/try"
	"irqlab/scenarios/result"
)

const (
	width     = layout.Default // git's names leave little to be gained of a wider one
	nameWidth = 12
)

// Head says what is bisected on what.
func (b *Bisection) Head() string {
	var s strings.Builder
	line := func(what, text string) { fmt.Fprintf(&s, "%-9s%s\n", what, layout.Snip(foreign.Line(text), width-9)) }
	line("tree:", b.Tree)
	for _, end := range []struct {
		what string
		c    Commit
	}{{"good:", b.Range.Good}, {"bad:", b.Range.Bad}} {
		line(end.what, fmt.Sprintf("%.*s %s", nameWidth, end.c.Name, end.c.Subject))
	}
	if b.Whole {
		line("commits:", fmt.Sprintf("%d, %d of them may change what is built", b.Range.Commits, b.Range.OfModule))
		line("kernel:", "of each commit, whole, with a small configuration")
	} else {
		line("commits:", fmt.Sprintf("%d, %d of them change the module", b.Range.Commits, b.Range.OfModule))
		line("kernel:", b.Kernel.String())
	}
	for _, n := range b.Notes {
		s.WriteString(item("note:    ", n))
	}
	return s.String()
}

// Columns is the header of the lines.
func (b *Bisection) Columns() string {
	_, name := b.witness()
	text := "effective CPU of the HWC vector; of each queue vector"
	if name != "" {
		text += ", in case " + foreign.Line(name)
	}
	return layout.Snip(text, width) + "\n" + strings.Repeat("-", width) + "\n"
}

// Line is one step in a line; of what cannot be told, and of a case that fails beside the one that the lines tell of, the reason follows.
func (b *Bisection) Line(s *Step) string {
	scenario, name := b.witness()
	landed, beside := "-", ""
	failing := false
	for _, l := range s.Landed {
		switch {
		case l.Scenario == scenario && l.Case == name:
			landed, failing = cmp.Or(l.Vectors, "-"), failing || counts(l.Outcome, s.Verdict)
		case beside == "" && counts(l.Outcome, s.Verdict):
			beside = fmt.Sprintf("%s of case %s: %s", l.Outcome, l.Case, cmp.Or(l.Vectors, "-"))
		}
	}
	subject := s.Subject
	if s.SameAs != "" {
		subject = fmt.Sprintf("(as %.*s) %s", nameWidth, s.SameAs, subject)
	}
	text := fmt.Sprintf("%-4s  %.*s  %-18s  %s", s.Verdict, nameWidth, s.Name, layout.Snip(foreign.Line(landed), 32), foreign.Line(subject))
	text = strings.TrimRight(layout.Snip(text, width), " ") + "\n"
	switch {
	case s.SameAs != "":
	case s.Verdict == gitrange.Bad && !failing && beside != "":
		text += item("      ", beside)
	case s.Verdict == gitrange.Skip:
		for _, w := range s.why() {
			text += item("      ", w)
		}
	}
	return text
}

// Tail says what it comes to, with both sides of what changed.
func (b *Bisection) Tail(w io.Writer) error {
	var s strings.Builder
	s.WriteString("\n")
	switch {
	case b.FirstBad != nil:
		const mark = "first bad commit: "
		s.WriteString(mark + b.FirstBad.Name + "\n" + item(strings.Repeat(" ", len(mark)), b.FirstBad.Subject))
	case len(b.Suspects) > 0:
		fmt.Fprintf(&s, "the first bad commit is one of these %d, since what would tell was skipped:\n", len(b.Suspects))
		for _, c := range b.Suspects {
			s.WriteString(layout.Snip(fmt.Sprintf("  %.*s %s", nameWidth, c.Name, foreign.Line(c.Subject)), width) + "\n")
		}
	default:
		for _, r := range b.Verdict.Reasons {
			s.WriteString(item("", r))
		}
		s.WriteString(b.soFar())
	}
	if _, err := io.WriteString(w, s.String()); err != nil || len(b.Cases) == 0 {
		return err
	}
	good, bad := b.nearest()
	before, after := "last good", "first bad"
	if b.FirstBad == nil {
		after = "bad"
	}
	if _, err := fmt.Fprintf(w, "%-10s %.*s %s\n", before+":", nameWidth, good.Name, layout.Snip(foreign.Line(good.Subject), width-24)); err != nil {
		return err
	}
	if b.FirstBad == nil {
		if _, err := fmt.Fprintf(w, "%-10s %.*s %s\n", after+":", nameWidth, bad.Name, layout.Snip(foreign.Line(bad.Subject), width-24)); err != nil {
			return err
		}
	}
	for i := range b.Cases {
		if b.Cases[i].Change == try.Unchanged {
			continue
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		if err := try.Sides(w, before, after, &b.Cases[i]); err != nil {
			return err
		}
	}
	return nil
}

// soFar is how near the ends had come when it was ended.
func (b *Bisection) soFar() string {
	good, bad := b.nearest()
	if b.Verdict.Word != WordUnknown || good == nil || bad == nil {
		return ""
	}
	return layout.Snip(fmt.Sprintf("last good: %.*s %s", nameWidth, good.Name, foreign.Line(good.Subject)), width) + "\n" +
		layout.Snip(fmt.Sprintf("first bad: %.*s %s, so far", nameWidth, bad.Name, foreign.Line(bad.Subject)), width) + "\n"
}

// Table writes all of it for people, 80 columns wide.
func (b *Bisection) Table(w io.Writer) error {
	text := b.Head()
	if len(b.Steps) > 0 {
		text += "\n" + b.Columns()
	}
	for i := range b.Steps {
		text += b.Line(&b.Steps[i])
	}
	if _, err := io.WriteString(w, text); err != nil {
		return err
	}
	return b.Tail(w)
}

// EndCases are those of the end that is not what it was said to be, to be shown in full; none if both are.
func (b *Bisection) EndCases() []result.Case {
	switch {
	case b.Verdict.Word == WordGoodFails:
		return b.Steps[0].Results
	case b.Verdict.Word == WordBadPasses:
		return b.Steps[1].Results
	}
	return nil
}

func item(mark, text string) string { return layout.Item(mark, foreign.Line(text), width) }
