package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/term"

	"irqlab/lab/foreign"
	"irqlab/lab/layout"
)

// lines is where a prompt's commands come from and its messages go.
type lines interface {
	read(prompt string) (string, error)
	print(text string)
	reprompt(prompt string) // of the line that is being typed, once something is printed
	width() int
	leave() // for good: gives the terminal back although a line is still waited for
}

// errKey is the end of a line that Ctrl-C was typed in.
var errKey = errors.New("interrupted")

// keyboard is a terminal that several read in turn.
type keyboard struct {
	*os.File
	inTurn
}

func newKeyboard(f *os.File) *keyboard { return &keyboard{f, inTurn{from: f}} }

// typed are lines from a terminal, edited and with a history.
type typed struct {
	tty  *keyboard
	keys io.Reader // of tty
	term *term.Terminal
	out  io.Writer

	mu     sync.Mutex
	before *term.State // of the terminal, while a line is typed
	left   bool        // for good

	stopped atomic.Bool // Ctrl-C was among what was read
}

// Read reads keys, and takes note of a Ctrl-C, which the terminal's editor does not tell from the end of the input.
func (t *typed) Read(p []byte) (int, error) {
	n, err := t.keys.Read(p)
	if bytes.IndexByte(p[:n], 'C'-'@') >= 0 {
		t.stopped.Store(true)
	}
	return n, err
}

func newLines(s Streams) lines {
	if in, ok := s.In.(*os.File); ok && isTerminal(in) {
		tty := newKeyboard(in)
		t := &typed{tty: tty, keys: tty.until(context.Background()), out: s.Out}
		t.term = term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{t, s.Out}, "")
		return t
	}
	return &piped{in: bufio.NewScanner(s.In), out: s.Out}
}

// read has the terminal in raw mode only while a line is typed.
func (t *typed) read(prompt string) (string, error) {
	t.term.SetPrompt(prompt)
	if err := t.enter(); err != nil {
		return "", err
	}
	defer t.restore()
	line, err := t.term.ReadLine()
	if errors.Is(err, io.EOF) {
		_, _ = io.WriteString(t.out, "\r\n") // what comes next begins a line of its own
		if t.stopped.Load() {
			err = errKey
		}
	}
	return line, err
}

func (t *typed) enter() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left {
		return io.EOF
	}
	old, err := term.MakeRaw(int(t.tty.Fd()))
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	t.before = old
	if w, h, err := term.GetSize(int(t.tty.Fd())); err == nil && w > 0 {
		_ = t.term.SetSize(w, h)
	}
	return nil
}

func (t *typed) reprompt(prompt string) { t.term.SetPrompt(prompt) }

func (t *typed) width() int { return layout.Columns(t.tty.File) }

func (t *typed) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.before != nil {
		_ = term.Restore(int(t.tty.Fd()), t.before)
	}
	t.before = nil
}

func (t *typed) leave() {
	t.mu.Lock()
	t.left = true
	t.mu.Unlock()
	t.restore()
}

// print writes above the line that is being typed, if one is.
func (t *typed) print(text string) {
	text = foreign.Text(text)
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.out
	if t.before != nil {
		w = t.term
	}
	_, _ = io.WriteString(w, text)
}

// piped are lines from anything else.
type piped struct {
	in  *bufio.Scanner
	mu  sync.Mutex
	out io.Writer
}

// read shows the line, too, since nobody has seen it typed.
func (p *piped) read(prompt string) (string, error) {
	if p.in.Scan() {
		line := p.in.Text()
		if strings.TrimSpace(line) != "" {
			p.print(prompt + line + "\n")
		}
		return line, nil
	}
	if err := p.in.Err(); errors.Is(err, bufio.ErrTooLong) {
		return "", fmt.Errorf("standard input: a line of more than %d bytes is no step; one step on each line", bufio.MaxScanTokenSize)
	} else if err != nil {
		return "", fmt.Errorf("standard input: %w", err)
	}
	return "", io.EOF
}

func (p *piped) leave() {}

func (p *piped) reprompt(string) {}

func (p *piped) width() int { return layout.Default }

func (p *piped) print(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = io.WriteString(p.out, foreign.Text(text))
}
