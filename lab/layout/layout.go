// Package layout fits words and tables to a number of columns: those of the terminal that they are for.
//
// It knows nothing of what the words say. What machines read does not come by here.
package layout

import (
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
)

const (
	Default   = 80 // columns of what is no terminal
	narrowest = 40 // a narrower terminal is taken to have so many
	widest    = 120
)

// Columns is how many columns a line written to w may take: of a terminal COLUMNS, or else its size; of anything else
// Default.
func Columns(w io.Writer) int {
	fd, ok := terminal(w)
	if !ok {
		return Default
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return max(n, narrowest)
	}
	if n, _, err := term.GetSize(fd); err == nil && n > 0 {
		return max(n, narrowest)
	}
	return Default
}

// Prose is how many columns a text to be read takes: as Columns, but no more than an eye finds its way back from.
func Prose(w io.Writer) int { return min(Columns(w), widest) }

// IsTerminal tells whether w is a terminal, or wraps one that its method Unwrap gives.
func IsTerminal(w any) bool {
	_, ok := terminal(w)
	return ok
}

// Colour tells whether w is a terminal whose user wants colours.
func Colour(w io.Writer) bool { return IsTerminal(w) && os.Getenv("NO_COLOR") == "" }

func terminal(w any) (fd int, ok bool) {
	for {
		switch x := w.(type) {
		case *os.File:
			fd := int(x.Fd())
			return fd, term.IsTerminal(fd)
		case interface{ Unwrap() io.Writer }:
			w = x.Unwrap()
		default:
			return 0, false
		}
	}
}

// Width is how many columns the longest line of a text takes; colours take none.
func Width(s string) int { return text.LongestLineLen(s) }

// Snip cuts one line to a width.
func Snip(s string, columns int) string { return text.Snip(s, columns, "…") }

// Wrap breaks each line that is longer than columns, between words where it can. What is broken off goes on after hang;
// what the line begins with stays.
func Wrap(s string, columns int, hang string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if Width(line) <= columns {
			continue
		}
		body := strings.TrimLeft(line, " ")
		lead := line[:len(line)-len(body)]
		first, rest := max(columns-len(lead), 1), max(columns-Width(hang), 1)
		broken := strings.Split(fold(body, min(first, rest)), "\n")
		if first > rest && !slices.ContainsFunc(strings.Fields(body), func(w string) bool { return Width(w) > rest }) {
			broken = strings.Split(fold(body, first), "\n") // whose first line may be longer
			if len(broken) > 1 {
				broken = append(broken[:1], strings.Split(fold(strings.Join(broken[1:], " "), rest), "\n")...)
			}
		}
		lines[i] = lead + strings.Join(broken, "\n"+hang)
	}
	return strings.Join(lines, "\n")
}

// Hang breaks each line as Wrap does; what is broken off goes on two columns further in than its line.
func Hang(s string, columns int) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		line = strings.TrimSuffix(line, "\n")
		hang := min(len(indent(line))+2, columns/2)
		b.WriteString(Wrap(line, columns, strings.Repeat(" ", hang)) + "\n")
	}
	return b.String()
}

// Item writes a text behind a mark, each line of it as Wrap does; what follows goes on below the text.
func Item(mark, s string, columns int) string {
	var b strings.Builder
	hang := strings.Repeat(" ", Width(mark))
	for line := range strings.SplitSeq(strings.TrimRight(s, "\n"), "\n") {
		b.WriteString(strings.TrimRight(Wrap(mark+line, columns, hang), " ") + "\n")
		mark = hang
	}
	return b.String()
}

// Quote writes what somebody else said: each line behind a bar, and what is broken off, too.
func Quote(s string, columns int) string {
	const bar = "  | "
	var b strings.Builder
	for line := range strings.SplitSeq(strings.TrimRight(s, "\n"), "\n") {
		b.WriteString(strings.TrimRight(Wrap(bar+line, columns, bar+"  "), " ") + "\n")
	}
	return b.String()
}

// fold breaks one line. A word that is too long for a line of its own, such as a list or a path, is broken after a
// comma, slash or colon if it has any.
func fold(line string, width int) string {
	line = wideGaps.ReplaceAllStringFunc(line, func(gap string) string { return strings.Repeat(keptSpace, len(gap)) })
	words := strings.Split(line, " ")
	for i, w := range words {
		if Width(w) > width && !strings.Contains(w, text.EscapeStart) {
			words[i] = strings.Join(chunks(w, width), " ")
		}
	}
	return strings.ReplaceAll(trimmed(text.WrapSoft(strings.Join(words, " "), width)), keptSpace, " ")
}

// wideGaps are spaces that somebody aligned something by, as the kernel does the times of its log: they stay. keptSpace
// stands for one meanwhile, a character that no text has.
var wideGaps = regexp.MustCompile(` {2,}`)

const keptSpace = "\ue000"

// chunks are as long as they fit, so that no two of them come into one line.
func chunks(word string, width int) (list []string) {
	for _, p := range pieces(word) {
		if n := len(list); n > 0 && Width(list[n-1])+Width(p) <= width {
			list[n-1] += p
		} else {
			list = append(list, p)
		}
	}
	return list
}

// pieces are what a word can be broken into.
func pieces(word string) []string {
	var list []string
	for {
		i := strings.IndexAny(word, ",/:") + 1
		if i == 0 || i == len(word) {
			return append(list, word)
		}
		list, word = append(list, word[:i]), word[i:]
	}
}

// padding are the spaces at a line's end, be it before a colour ends.
var padding = regexp.MustCompile(`(?m) +(\x1b\[0m)?$`)

func trimmed(s string) string { return padding.ReplaceAllString(s, "$1") }

// Reflow fills paragraphs, which empty lines part, to a number of columns. Lines that are indented stay lines, and so do
// items of a list.
func Reflow(s string, columns int) string {
	var out []string
	var paragraph []string
	flush := func() {
		if paragraph != nil {
			out = append(out, Wrap(strings.Join(paragraph, " "), columns, ""))
		}
		paragraph = nil
	}
	for line := range strings.SplitSeq(strings.Trim(s, "\n"), "\n") {
		line = strings.TrimRight(strings.ReplaceAll(line, "\t", "    "), " ")
		if strings.HasPrefix(line, "* ") { // an item of a list, whose further lines are indented
			flush()
		} else if line != "" && line[0] != ' ' {
			paragraph = append(paragraph, line)
			continue
		}
		flush()
		out = append(out, Wrap(line, columns, indent(line)+"  "))
	}
	flush()
	return strings.Join(out, "\n")
}

func indent(line string) string { return line[:len(line)-len(strings.TrimLeft(line, " "))] }

// commented is a command with something said of it.
var commented = regexp.MustCompile(`^(.*\S)\s+(# .*)$`)

// Commands fits lines for a shell, each of which stays what it is to the shell: a remark goes before its command, and a
// command is continued after a backslash.
func Commands(s string, columns int) string {
	var out []string
	for line := range strings.SplitSeq(s, "\n") {
		line = strings.TrimRight(line, " ")
		if m := commented.FindStringSubmatch(line); Width(line) > columns && m != nil {
			out = append(out, Wrap(indent(line)+m[2], columns, indent(line)+"# "))
			line = m[1]
		}
		out = append(out, command(line, columns))
	}
	return strings.Join(out, "\n")
}

// argument is a word for a shell, with what is quoted in it.
var argument = regexp.MustCompile(`(?:'[^']*'|"(?:[^"\\]|\\.)*"|\\.|[^\s'"\\])+`)

// command continues a command on further lines if it must. A flag stays with its value.
func command(line string, columns int) string {
	words := argument.FindAllString(line, -1)
	script := slices.ContainsFunc(
		words,
		func(w string) bool { return !strings.ContainsAny(w, `'"`) && strings.ContainsAny(w, "|;&<>") },
	)
	if Width(line) <= columns || script { // of which less is known than of a command
		return line
	}
	lead := indent(line)
	var b strings.Builder
	b.WriteString(lead)
	at := len(lead)
	for i := 0; i < len(words); {
		piece := words[i]
		i++
		if strings.HasPrefix(piece, "-") && !strings.Contains(piece, "=") && i < len(words) &&
			!strings.HasPrefix(words[i], "-") {
			piece += " " + words[i]
			i++
		}
		switch {
		case at == len(lead):
		case at+1+Width(piece)+len(` \`) > columns:
			lead = indent(line) + "    "
			b.WriteString(" \\\n" + lead)
			at = len(lead)
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(piece)
		at += Width(piece)
	}
	return b.String()
}
