package patch

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// misfit finds out why a hunk does not fit.
func misfit(p *Patch, h *Hunk, file []string, x index, least, shift int, tried fit) *Misfit {
	old, new := h.sides()
	m := &Misfit{Want: trimmed(old.lines)}
	guess := old.start + shift
	show := func(at, lines int) {
		at = max(min(at, len(file)), 0)
		m.Line, m.Found = at+1, trimmed(file[at:min(at+lines, len(file))])
	}
	if done, ok := locateDone(file, &new, h, least, shift); ok {
		m.Reason = p.done()
		if p.Reversed {
			m.Text = fmt.Sprintf("is not in this tree, so it cannot be taken out: line %d has the text without it. Leave out --revert to apply it", done+1)
		} else {
			m.Text = fmt.Sprintf("already applied, or the patch is reversed: line %d has the text with it. Use --revert to take it out", done+1)
		}
		show(done, len(new.lines))
		return m
	}
	if len(tried.ambiguous) > 0 {
		m.Reason = Ambiguous
		for _, i := range tried.ambiguous[:min(len(tried.ambiguous), 20)] {
			m.Places = append(m.Places, i+1)
		}
		m.Text = fmt.Sprintf("fits in %d places%s, and which one is meant is not guessed: rebase it by hand, or make it with more context",
			len(tried.ambiguous), withFuzz(tried.fuzz))
		show(tried.ambiguous[0], len(old.lines))
		return m
	}
	if len(old.lines) == 0 {
		m.Reason = Ambiguous
		m.Text = "has no context, so where it belongs cannot be told: make the patch with context (git diff -U3)"
		if len(file) > 0 {
			show(guess, 3)
		}
		return m
	}
	if at := occurrences(file, old.lines); len(at) > 0 && at[0] < least {
		m.Reason = Different
		m.Text = fmt.Sprintf("what it expects stands at line %d, but before the hunk that comes first: put the hunks in the order of their lines", at[0]+1)
		show(at[0], len(old.lines))
		return m
	} else if len(at) > 0 {
		end := "begin"
		if p, _, _ := old.drops(0); p >= 0 || old.start > 0 {
			end = "end"
		}
		m.Reason = Different
		m.Text = fmt.Sprintf("what it expects stands at line %d, but by the hunk's context it should %s the file: rebase it by hand", at[0]+1, end)
		show(at[0], len(old.lines))
		return m
	}
	if at, ok := whitespaceOnly(file, &old, least, guess); ok {
		m.Reason = Whitespace
		m.Text = fmt.Sprintf("would fit at line %d but for spaces and tabs, which a mail program has changed, or copying from a page or a terminal has. Take the mail itself, or the lines of the file", at+1)
		show(at, len(old.lines))
		return m
	}
	at, same := x.nearest(old.lines, guess)
	if same > 0 {
		show(at, len(old.lines))
	}
	m.Reason, m.Text = Different, "nothing like it is in this file: the patch is against another kernel or driver, or needs another patch before it"
	if same > 0 {
		m.Text = fmt.Sprintf("%d of the %d lines that it expects stand near line %d, the others differ: rebase it by hand", same, len(old.lines), at+1)
	}
	if in, of := foreignShare(p, h, x); of >= 3 && 2*in >= of && in < of || in == of && of >= 3 {
		m.Reason = OtherVersion
		m.Text = fmt.Sprintf("another version of the patch seems to be in this tree: %d of the %d lines that it adds are there", in, of)
	}
	return m
}

func withFuzz(fuzz int) string {
	if fuzz == 0 {
		return ""
	}
	return fmt.Sprintf(" with fuzz %d", fuzz)
}

// locateDone looks for the text that the hunk would make.
func locateDone(file []string, new *side, h *Hunk, least, shift int) (int, bool) {
	if len(new.lines) == 0 || !tells(new.lines) {
		return 0, false
	}
	// Of a hunk that only removes, the rest is what there is to see; it must be where it should, or say much.
	at, _, _ := new.places(file, least, 0)
	switch {
	case len(at) == 1:
		return at[0], true
	case len(at) == 0:
		return 0, false
	}
	// More than one: the nearest, if the hunk adds something by which it can be known.
	if !slices.ContainsFunc(h.Lines, func(l Line) bool { return l.Op == '+' && tells([]string{l.Text}) }) {
		return 0, false
	}
	guess := new.start + shift
	return slices.MinFunc(at, func(a, b int) int { return abs(a-guess) - abs(b-guess) }), true
}

// whitespaceOnly looks for the old side with other white space.
func whitespaceOnly(file []string, old *side, least, guess int) (int, bool) {
	squeezed := side{start: old.start, prefix: old.prefix, suffix: old.suffix, lines: squeeze(old.lines)}
	if !tells(squeezed.lines) {
		return 0, false
	}
	at := occurrences(squeeze(file[min(least, len(file)):]), squeezed.lines)
	if len(at) == 0 {
		return 0, false
	}
	return least + slices.MinFunc(at, func(a, b int) int { return abs(least+a-guess) - abs(least+b-guess) }), true
}

func squeeze(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = strings.Map(func(r rune) rune {
			if unicode.IsSpace(r) {
				return -1
			}
			return r
		}, l)
	}
	return out
}

// foreignShare counts the telling lines that the patch itself brings, and how many of them the file has.
func foreignShare(p *Patch, h *Hunk, x index) (in, of int) {
	brings, other := byte('+'), byte('-')
	if p.Reversed {
		brings, other = other, brings
	}
	const telling = 12 // characters: shorter lines stand everywhere
	for _, l := range h.Lines {
		if l.Op != brings || len(strings.TrimSpace(l.Text)) < telling || !tells([]string{l.Text}) {
			continue
		}
		if slices.ContainsFunc(h.Lines, func(o Line) bool { return o.Op != brings && o.Text == l.Text }) {
			continue
		}
		of++
		if len(x[l.Text+"\n"]) > 0 {
			in++
		}
	}
	return in, of
}

// trimmed is lines without their newlines.
func trimmed(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = strings.TrimSuffix(l, "\n")
	}
	return out
}

// explain says once what all misfits say together.
func (e *ApplyError) explain() {
	count := map[Reason]int{}
	for _, h := range e.Misfits {
		count[h.Misfit.Reason]++
	}
	if len(e.Misfits) < e.Total {
		return
	}
	switch {
	case count[AlreadyApplied] == e.Total:
		e.Notes = append(e.Notes, "All of it is in this tree already, or the patch is a reversed one: --revert takes it out.")
	case count[NotApplied] == e.Total:
		e.Notes = append(e.Notes, "None of it is in this tree: without --revert it would apply.")
	case count[FileMissing] == e.Total:
		e.Notes = append(e.Notes, "None of its files is in this tree: is the patch one for the kernel?")
	}
}
