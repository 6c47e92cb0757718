// Package foreign makes text fit for a terminal that somebody else wrote: a guest's kernel, its driver, QEMU, a file. What would steer the terminal, or show text other
// than it is, becomes a space: control characters (escape sequences begin with one, in seven bits or eight), and characters that change the direction of text or have no
// width. JSON needs none of this: it escapes by itself. A session in a guest passes bytes as they are.
package foreign

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxLine is how much of a line is shown, in characters.
const MaxLine = 4096

// Line cleans what is to be one line.
func Line(s string) string {
	if utf8.RuneCountInString(s) > MaxLine {
		s = string([]rune(s)[:MaxLine]) + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}

// Text cleans what may have several lines. A carriage return before a line's end is part of the end.
func Text(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = Line(strings.TrimSuffix(l, "\r"))
	}
	return strings.Join(lines, "\n")
}
