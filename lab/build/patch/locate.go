package patch

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
)

// A side is the lines of a hunk's old or new side, each with its newline if it has one, and where in the hunk its
// context ends and begins again.
type side struct {
	start          int // 0-based, in the file
	lines          []string
	prefix, suffix int // lines of context at either end
}

// sides takes a hunk apart.
func (h *Hunk) sides() (old, new side) {
	for _, l := range h.Lines {
		text := l.Text
		if !l.NoEOL {
			text += "\n"
		}
		if l.Op != '+' {
			old.lines = append(old.lines, text)
		}
		if l.Op != '-' {
			new.lines = append(new.lines, text)
		}
	}
	first := slices.IndexFunc(h.Lines, func(l Line) bool { return l.Op != ' ' })
	last := len(h.Lines) - 1
	for last >= 0 && h.Lines[last].Op == ' ' {
		last--
	}
	if first < 0 { // nothing but context: Read gives no such hunk, a caller might
		first, last = len(h.Lines), len(h.Lines)-1
	}
	old.prefix, old.suffix = first, len(h.Lines)-1-last
	new.prefix, new.suffix = old.prefix, old.suffix
	old.start, new.start = h.OldStart, h.NewStart
	if h.OldLines > 0 { // with no lines, the number is that of the line before
		old.start--
	}
	if h.NewLines > 0 {
		new.start--
	}
	return old, new
}

// fits says whether s, without the dropped lines at its ends, stands in the file with its (undropped) first line at i.
func (s *side) fits(file []string, i, dropPrefix, dropSuffix int) bool {
	from, to := i+dropPrefix, i+len(s.lines)-dropSuffix
	if i < 0 || to > len(file) {
		return false
	}
	return slices.Equal(file[from:to], s.lines[dropPrefix:len(s.lines)-dropSuffix])
}

// drops says how many lines of context are dropped from either end at a fuzz, by GNU patch's rule: from the end with more
// context first, so that what has less of it, as at a file's start or end, stays there.
func (s *side) drops(fuzz int) (prefix, suffix int, ok bool) {
	context := max(s.prefix, s.suffix)
	return fuzz + s.prefix - context, fuzz + s.suffix - context, fuzz <= context
}

// places are all places at which s fits at a fuzz, none before line least.
func (s *side) places(file []string, least, fuzz int) (at []int, dropPrefix, dropSuffix int) {
	p, q, ok := s.drops(fuzz)
	if !ok {
		return nil, 0, 0
	}
	dropPrefix, dropSuffix = max(p, 0), max(q, 0)
	lo, hi := least, len(file)-len(s.lines)+dropSuffix
	if p < 0 && s.start <= 0 { // can only be the file's start
		hi = min(hi, 0)
	}
	if q < 0 { // can only be the file's end
		lo = max(lo, len(file)-len(s.lines))
	}
	pattern := s.lines[dropPrefix : len(s.lines)-dropSuffix]
	if lo > hi || len(pattern) == 0 {
		return nil, dropPrefix, dropSuffix
	}
	for _, i := range occurrences(file[lo+dropPrefix:hi+len(s.lines)-dropSuffix], pattern) {
		at = append(at, lo+i)
	}
	return at, dropPrefix, dropSuffix
}

// occurrences are all places of pattern in text, found in time linear in both, whoever chose them.
func occurrences(text, pattern []string) []int {
	back := make([]int, len(pattern)) // Knuth, Morris, Pratt
	for i, k := 1, 0; i < len(pattern); i++ {
		for k > 0 && pattern[i] != pattern[k] {
			k = back[k-1]
		}
		if pattern[i] == pattern[k] {
			k++
		}
		back[i] = k
	}
	var at []int
	for i, k := 0, 0; i < len(text); i++ {
		for k > 0 && text[i] != pattern[k] {
			k = back[k-1]
		}
		if text[i] == pattern[k] {
			k++
		}
		if k == len(pattern) {
			at = append(at, i+1-k)
			k = back[k-1]
		}
	}
	return at
}

// tells says whether lines are evidence of a place: not just blank ones and braces.
func tells(lines []string) bool {
	return slices.ContainsFunc(lines, func(l string) bool {
		return strings.ContainsFunc(l, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) })
	})
}

// A fit is where a hunk goes.
type fit struct {
	at                     int // 0-based, of the hunk's first line, dropped or not
	fuzz                   int
	dropPrefix, dropSuffix int
	others                 []int // places that would do, too, but for the function's name
	ambiguous              []int // set instead of all else
}

// locate finds the one place for old. Without fuzz the place that the patch and the hunks before say is taken; failing that
// it must be the only one, or the only one in the function that the hunk names. With fuzz it must be the only one.
func locate(file []string, old *side, section string, least, shift, maxFuzz int) (fit, bool) {
	if guess := old.start + shift; guess >= least && len(old.lines) > 0 {
		if p, q, _ := old.drops(0); (p >= 0 || old.start > 0 || guess == 0) && (q >= 0 || guess+len(old.lines) == len(file)) && old.fits(file, guess, 0, 0) {
			return fit{at: guess}, true
		}
	}
	for fuzz := 0; fuzz <= maxFuzz; fuzz++ {
		at, p, q := old.places(file, least, fuzz)
		if fuzz > 0 && (fuzz > max(old.prefix, old.suffix) || !tells(old.lines[p:len(old.lines)-q])) {
			return fit{}, false
		}
		switch {
		case len(at) == 1:
			return fit{at: at[0], fuzz: fuzz, dropPrefix: p, dropSuffix: q}, true
		case len(at) > 1 && fuzz == 0:
			if i, ok := inFunction(file, at, section); ok {
				return fit{at: at[i], others: slices.Delete(slices.Clone(at), i, i+1)}, true
			}
			return fit{ambiguous: at}, false
		case len(at) > 1:
			return fit{ambiguous: at, fuzz: fuzz}, false
		}
	}
	return fit{}, false
}

// inFunction says which one of the places lies in the function that a hunk's header names. As in a diff, a function's first
// line is the last one before that begins with a letter and is no label.
func inFunction(file []string, at []int, section string) (int, bool) {
	const most = 1000
	if section == "" || len(at) > most {
		return 0, false
	}
	found := -1
	for n, i := range at {
		for i--; i >= 0; i-- {
			if l := file[i]; heads(l) {
				if strings.HasPrefix(l, section) {
					if found >= 0 {
						return 0, false
					}
					found = n
				}
				break
			}
		}
	}
	return found, found >= 0
}

func heads(l string) bool {
	if l == "" || !(l[0] == '_' || l[0] == '$' || l[0] >= 'a' && l[0] <= 'z' || l[0] >= 'A' && l[0] <= 'Z') {
		return false
	}
	return !strings.HasSuffix(strings.TrimSpace(l), ":")
}

// An index has the places of each line of a file.
type index map[string][]int

func indexOf(file []string) index {
	x := make(index, len(file))
	for i, l := range file {
		x[l] = append(x[l], i)
	}
	return x
}

// nearest is where most of the lines stand as they should be to each other, and how many do. A line that the file has often
// says little, so rare ones weigh more.
func (x index) nearest(lines []string, guess int) (at, same int) {
	const often = 200 // as many blank lines and braces say nothing
	votes := map[int]float64{}
	for i, l := range lines {
		places := x[l]
		if len(places) > often {
			continue
		}
		for _, p := range places {
			votes[p-i] += 1 / float64(len(places))
		}
	}
	if len(votes) == 0 {
		return 0, 0
	}
	type vote struct {
		at     int
		weight float64
	}
	var best vote
	first := true
	for at, w := range votes {
		v := vote{at, w}
		if first || cmp.Or(cmp.Compare(v.weight, best.weight), cmp.Compare(abs(best.at-guess), abs(v.at-guess)), cmp.Compare(best.at, v.at)) > 0 {
			best, first = v, false
		}
	}
	for i, l := range lines {
		if _, ok := slices.BinarySearch(x[l], best.at+i); ok {
			same++
		}
	}
	return best.at, same
}

func abs(i int) int { return max(i, -i) }
