package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
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

// What is typed after a reader has gone is the next one's, though the read under way was begun by the first.
func TestKeyboardTurns(t *testing.T) {
	keys, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	defer tty.Close()
	if _, err := term.MakeRaw(int(tty.Fd())); err != nil {
		t.Fatal(err)
	}
	k := newKeyboard(tty)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := k.until(ctx).Read(make([]byte, 10))
		gone <- err
	}()
	for begun := false; !begun; { // its read is under way
		if begun = !k.mu.TryLock(); !begun {
			k.mu.Unlock()
			time.Sleep(time.Millisecond)
		}
	}
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := keys.WriteString("status\r"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 7)
	if _, err := io.ReadFull(k.until(t.Context()), got); err != nil || string(got) != "status\r" {
		t.Errorf("%q, %v", got, err)
	}
}
