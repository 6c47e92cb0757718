package layout

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
)

func TestWrap(t *testing.T) {
	for name, tc := range map[string]struct {
		in, hang string
		columns  int
		want     string
	}{
		"short":                {"a b", "  ", 10, "a b"},
		"between words":        {"one two three", "", 8, "one two\nthree"},
		"hanging":              {"  - one two three", "    ", 12, "  - one two\n    three"},
		"each line by itself":  {"a\none two three\nb", "", 8, "a\none two\nthree\nb"},
		"a list without space": {"CPU 0,2,4,6,8,10", "  ", 10, "CPU\n  0,2,4,6,\n  8,10"},
		"aligned":              {"| [    1.5] one two", "|   ", 14, "| [    1.5]\n|   one two"},
		"a path":               {"at results/low-vcpu/linear x", "  ", 14, "at results/\n  low-vcpu/\n  linear x"},
		"a word that is wider": {"x abcdefghij", "", 4, "x\nabcd\nefgh\nij"},
		"spaces of a colour":   {"\x1b[31mone two\x1b[0m", "", 5, "\x1b[31mone\x1b[0m\n\x1b[31mtwo\x1b[0m"},
		"colours take none":    {"\x1b[31mone two\x1b[0m", "", 7, "\x1b[31mone two\x1b[0m"},
	} {
		if got := Wrap(tc.in, tc.columns, tc.hang); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestReflow(t *testing.T) {
	in := "one two\nthree four\n\n    $ kept as it is\nfive\n* six\n  is\n* seven\n"
	if got, want := Reflow(in, 14), "one two three\nfour\n\n    $ kept as\n      it is\nfive\n* six\n  is\n* seven"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestCommands(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"short":               {"  go run   # this", "  go run   # this"},
		"a remark goes first": {"  go run --a 1     # this and that", "  # this and that\n  go run --a 1"},
		"continued":           {"  go run --alpha 1 --beta 2 --gamma", "  go run --alpha 1 \\\n      --beta 2 --gamma"},
		"a value stays":       {"again: x --pressure 'a b' --shape cpus=8", "again: x --pressure 'a b' \\\n    --shape cpus=8"},
		"a script is left":    {"a very long script | of several parts && x", "a very long script | of several parts && x"},
		"but a quoted sign":   {"run --expect 'log=a|b' --case one-of-these", "run --expect 'log=a|b' \\\n    --case one-of-these"},
		"two lines":           {"a\nb", "a\nb"},
	} {
		if got := Commands(tc.in, 28); got != tc.want {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, tc.want)
		}
	}
}

func TestTable(t *testing.T) {
	table := Table{
		Header: []string{
			"case",
			"what it is",
			"n",
		}, Rows: [][]string{{"one", "some words that are long", "5"}, {"two-of-them", "a\nb", "12"}}, Footer: []string{"", "", "17"},
		Right: []int{2}, Rules: true, Indent: " ",
	}
	wide := ` case         what it is                 n
 -----------------------------------------
 one          some words that are long   5
 two-of-them  a                         12
              b
 -----------------------------------------
                                        17
`
	if got := table.Render(80); got != wide || table.Width() != 42 {
		t.Errorf("width %d:\n%s\nwant:\n%s", table.Width(), got, wide)
	}
	narrow := ` case         what it is     n
 -----------------------------
 one          some words     5
              that are
              long
 two-of-them  a             12
              b
 -----------------------------
                            17
`
	if got := table.Render(30); got != narrow {
		t.Errorf("%s\nwant:\n%s", got, narrow)
	}
	for columns := 23; columns < 50; columns++ { // words are broken before the table gets too wide
		for line := range strings.Lines(table.Render(columns)) {
			if w := Width(strings.TrimSuffix(line, "\n")); w > columns {
				t.Errorf("%d columns: %d in %q", columns, w, line)
			}
		}
	}
}

// wrapped is a writer around another one, as commands have them.
type wrapped struct{ io.Writer }

func (w wrapped) Unwrap() io.Writer { return w.Writer }

func TestColumns(t *testing.T) {
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ptmx.Close()
	defer tty.Close()
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 24, Cols: 132}); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, tc := range map[string]struct {
		w       io.Writer
		columns string // in the environment
		want    int
		prose   int
	}{
		"a terminal":         {tty, "", 132, 120},
		"one that is told":   {tty, "100", 100, 100},
		"told nonsense":      {tty, "wide", 132, 120},
		"too narrow":         {tty, "3", 40, 40},
		"wrapped":            {wrapped{wrapped{tty}}, "", 132, 120},
		"a file":             {file, "", 80, 80},
		"a file, though set": {file, "132", 80, 80},
		"memory":             {&bytes.Buffer{}, "132", 80, 80},
	} {
		t.Setenv("COLUMNS", tc.columns)
		if got, prose := Columns(tc.w), Prose(tc.w); got != tc.want || prose != tc.prose {
			t.Errorf("%s: %d and %d columns, want %d and %d", name, got, prose, tc.want, tc.prose)
		}
	}
	t.Setenv("NO_COLOR", "")
	if !Colour(wrapped{tty}) || Colour(file) {
		t.Error("a terminal has colours, a file none")
	}
	t.Setenv("NO_COLOR", "1")
	if Colour(tty) {
		t.Error("NO_COLOR is not heeded")
	}
}

// What is wrapped fits, loses no word, and goes on further in.
func TestHang(t *testing.T) {
	for _, tc := range []struct {
		text  string
		width int
		want  string
	}{
		{"", 10, ""},
		{"short", 10, "short\n"},
		{"0123456789", 10, "0123456789\n"},
		{"01234567 x y", 10, "01234567 x\n  y\n"},
		{"one two three\nfour\n", 9, "one two\n  three\nfour\n"},
		{"    a b c d e f", 10, "    a b c\n     d e f\n"},
		{"a 0123456789abcdef b", 10, "a\n  01234567\n  89abcdef\n  b\n"},
		{"ÄÖÜ ÄÖÜ ÄÖÜ", 8, "ÄÖÜ ÄÖÜ\n  ÄÖÜ\n"},
		{"one\n\ntwo", 9, "one\n\ntwo\n"},
	} {
		if got := Hang(tc.text, tc.width); got != tc.want {
			t.Errorf("%q in %d columns:\n%swant\n%s", tc.text, tc.width, got, tc.want)
		}
	}
}

func TestItemAndQuote(t *testing.T) {
	for _, tc := range []struct{ text, item, quote string }{
		{"", "  -\n", "  |\n"},
		{"a\n", "  - a\n", "  | a\n"},
		{"one two three\n\n  four\n", "  - one two\n    three\n\n      four\n", "  | one two\n  |   three\n  |\n  |   four\n"},
	} {
		if got := Item("  - ", tc.text, 12); got != tc.item {
			t.Errorf("item %q: %q, want %q", tc.text, got, tc.item)
		}
		if got := Quote(tc.text, 12); got != tc.quote {
			t.Errorf("quote %q: %q, want %q", tc.text, got, tc.quote)
		}
	}
}
