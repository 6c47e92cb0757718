package cli

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
)

// What is wrapped fits, loses no word, and goes on further in.
func TestWrap(t *testing.T) {
	for _, tc := range []struct {
		text  string
		width int
		want  string
	}{
		{"", 10, ""},
		{"short", 10, "short\n"},
		{"0123456789", 10, "0123456789\n"},
		{"0123456789 x", 10, "0123456789\n  x\n"},
		{"one two three\nfour\n", 9, "one two\n  three\nfour\n"},
		{"    a b c d e f", 10, "    a b c\n     d e f\n"},
		{"a 0123456789abcdef b", 10, "a\n  01234567\n  89abcdef\n  b\n"},
		{"ÄÖÜ ÄÖÜ ÄÖÜ", 8, "ÄÖÜ ÄÖÜ\n  ÄÖÜ\n"},
		{"one\n\ntwo", 9, "one\n\ntwo\n"},
	} {
		if got := wrap(tc.text, tc.width); got != tc.want {
			t.Errorf("%q in %d columns:\n%swant\n%s", tc.text, tc.width, got, tc.want)
		}
	}
	if got := wrap("                    deep word", 10); !strings.HasSuffix(got, "deep\n     word\n") { // indented by more than there is room for
		t.Errorf("%q", got)
	}
}

// At a terminal Ctrl-C is told from the end of the input, and neither leaves it raw or the next line behind the prompt.
func TestTypedLines(t *testing.T) {
	for _, tc := range []struct {
		keys, line string
		err        error
	}{
		{"status\r", "status", nil},
		{"stat\x7fe\r", "stae", nil},
		{"\x04", "", io.EOF},
		{"\x03", "", errKey},
		{"off\x03", "", errKey},
	} {
		keyboard, tty, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer keyboard.Close()
		defer tty.Close()
		if err := pty.Setsize(keyboard, &pty.Winsize{Rows: 24, Cols: 100}); err != nil {
			t.Fatal(err)
		}
		screen, shown, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		l := newLines(Streams{In: tty, Out: shown})
		if w := l.width(); w != 100 {
			t.Errorf("width %d", w)
		}
		type typed struct {
			line string
			err  error
		}
		read := make(chan typed, 1)
		go func() {
			line, err := l.read("prompt> ")
			read <- typed{line, err}
		}()
		prompt := make([]byte, len("prompt> "))
		if _, err := io.ReadFull(screen, prompt); err != nil || string(prompt) != "prompt> " { // the terminal is raw from then on
			t.Fatalf("%q, %v", prompt, err)
		}
		if _, err := keyboard.WriteString(tc.keys); err != nil {
			t.Fatal(err)
		}
		got := <-read
		line, err := got.line, got.err
		if line != tc.line || !errors.Is(err, tc.err) {
			t.Errorf("%q: %q, %v; want %q, %v", tc.keys, line, err, tc.line, tc.err)
		}
		shown.Close()
		text, err := io.ReadAll(screen)
		if err != nil || !strings.HasSuffix(string(text), "\r\n") {
			t.Errorf("%q: the screen shows %q, %v", tc.keys, text, err)
		}
	}
}
