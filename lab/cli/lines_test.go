package cli

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
)

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
