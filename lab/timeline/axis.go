package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	maxFolds  = 6
	foldWidth = 3.0 // percent of the page's width that a fold keeps
	foldPart  = 8   // a gap is folded that is more than this part of the time that is left
	foldLeast = Time(250 * time.Millisecond)
)

// span is a piece of time.
type span struct{ from, to Time }

func (s span) length() Time { return s.to - s.from }

// chart lays events out between two moments. Time in which nothing happened is folded: it has a fixed width, however long it was.
type chart struct {
	span
	folds []span // ascending
	slots int
}

// fold finds the long pieces of time without a moment in them. The longest goes first: what is left is then compared with the next.
func fold(all span, moments []Time) []span {
	moments = append([]Time{all.from, all.to}, moments...)
	slices.Sort(moments)
	var gaps []span
	for i, t := range moments[1:] {
		if g := (span{moments[i], t}); g.from >= all.from && g.to <= all.to && g.length() >= foldLeast {
			gaps = append(gaps, g)
		}
	}
	slices.SortStableFunc(gaps, func(a, b span) int { return cmp.Compare(b.length(), a.length()) })
	var folds []span
	left := all.length()
	for _, g := range gaps {
		if len(folds) == maxFolds || g.length() < left/foldPart {
			break
		}
		left -= g.length()
		folds = append(folds, g)
	}
	for i := range folds { // what happened at its edges stays beside it
		edge := min(folds[i].length()/10, max(left/50, foldLeast/10))
		folds[i] = span{folds[i].from + edge, folds[i].to - edge}
	}
	slices.SortFunc(folds, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	return folds
}

// live is the time that is not folded, and scale the width of a unit of it.
func (c chart) live() Time {
	t := c.length()
	for _, f := range c.folds {
		t -= f.length()
	}
	return max(1, t)
}

func (c chart) percent(t Time) float64 {
	t = min(max(t, c.from), c.to)
	x, from := 0.0, c.from
	scale := (100 - foldWidth*float64(len(c.folds))) / float64(c.live())
	for _, f := range c.folds {
		if t <= f.from {
			break
		}
		x += float64(f.from-from) * scale
		if t < f.to {
			return x + foldWidth*float64(t-f.from)/float64(f.length())
		}
		x, from = x+foldWidth, f.to
	}
	return x + float64(t-from)*scale
}

func percents(x float64) string { return fmt.Sprintf("%.4f%%", x) }

// over draws a mark from one moment to another.
func (c chart) over(from, to Time, m mark) mark {
	m.left, m.width = c.percent(from), 0
	m.width = max(0, c.percent(to)-m.left)
	return m
}

const tickDistance = 6.5 // percent of the width: its label must have room

// scale is round moments where time is not folded, so far apart that their labels have room.
func (c chart) scale() []mark {
	step := Time(10)
	for i := 0; c.live()/step > 10; i++ { // 10, 20, 50, 100, …
		step *= 2
		if i%3 == 1 {
			step = step * 5 / 4
		}
	}
	var marks []mark
	last := -tickDistance
	tick := func(t Time) {
		if x := c.percent(t); x-last >= tickDistance && x <= 100-tickDistance/2 {
			marks = append(marks, c.over(t, t, mark{Label: short(t)}))
			last = x
		}
	}
	from := c.from
	for _, f := range append(slices.Clone(c.folds), span{c.to, c.to}) {
		first := (from + step - 1) / step * step
		for t := first; t <= f.from && len(marks) < 100; t += step {
			tick(t)
		}
		from = f.to
	}
	return marks
}

// short is a moment without the zeros at its end.
func short(t Time) string { return strings.TrimRight(strings.TrimRight(t.String(), "0"), ".") }
