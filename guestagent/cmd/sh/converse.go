//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/term"
	"mvdan.cc/sh/v3/syntax"
)

const prompt, more = "# ", "> "

// converse is the shell on a terminal. Each line is edited in raw mode; what it runs has the terminal as it was.
func (s *shell) converse(ctx context.Context, in, out *os.File) int {
	keys := &keyboard{r: in}
	line := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{keys, out}, "")
	line.History = &past{}
	line.AutoCompleteCallback = func(text string, at int, key rune) (string, int, bool) {
		if key != '\t' {
			return "", 0, false
		}
		return complete(line, s.runner.Dir, text, at)
	}
	// The shell outlives what its user interrupts.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)

	status, text := 0, ""
	for {
		line.SetPrompt(prompt)
		if text != "" {
			line.SetPrompt(more)
		}
		read, err := readLine(line, in)
		if keys.interrupted() {
			text = ""
			continue
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintln(s.errs, "sh:", err)
			}
			return s.end(ctx, status)
		}
		text += read + "\n"
		file, err := syntax.NewParser().Parse(strings.NewReader(text), "")
		if syntax.IsIncomplete(err) {
			continue
		}
		text = ""
		if err != nil {
			fmt.Fprintln(s.errs, "sh:", err)
			status = statusUsage
			continue
		}
		for _, stmt := range file.Stmts {
			var interrupted bool
			if status, interrupted = s.interruptible(ctx, stmt, interrupts); interrupted {
				fmt.Fprintln(out) // the terminal echoed the key
				break             // to the interpreter, it has exited
			}
			if s.runner.Exited() {
				return status
			}
		}
	}
}

// interruptible runs a statement, loops and all, until it ends or its user has had enough.
func (s *shell) interruptible(ctx context.Context, stmt *syntax.Stmt, interrupts <-chan os.Signal) (status int, interrupted bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case <-interrupts: // of a former statement
	default:
	}
	go func() {
		select {
		case <-interrupts:
			cancel()
		case <-ctx.Done():
		}
	}()
	status = s.run(ctx, stmt)
	return status, ctx.Err() != nil
}

func readLine(line *term.Terminal, in *os.File) (string, error) {
	fd := int(in.Fd())
	if w, h, err := term.GetSize(fd); err == nil && w > 0 && h > 0 {
		_ = line.SetSize(w, h)
	}
	was, err := term.MakeRaw(fd)
	if err != nil {
		return "", err
	}
	defer func() { _ = term.Restore(fd, was) }()
	text, err := line.ReadLine()
	if errors.Is(err, term.ErrPasteIndicator) {
		err = nil
	}
	return text, err
}

// keyboard reads key by key, so that what is typed ahead is there for the program that a line starts. It takes the interrupt key, of which the line editor would
// make an end of input, for giving up the line.
type keyboard struct {
	r       io.Reader
	pending []byte
	gaveUp  bool
}

const (
	keyInterrupt = 0x03
	giveUp       = "\x05\x15\r" // to the end of the line, delete it, enter
)

func (k *keyboard) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(k.pending) == 0 {
		var b [1]byte
		n, err := k.r.Read(b[:])
		if n == 0 || err != nil {
			return 0, err
		}
		k.pending = b[:]
		if b[0] == keyInterrupt {
			k.gaveUp, k.pending = true, []byte(giveUp)
		}
	}
	p[0] = k.pending[0]
	k.pending = k.pending[1:]
	return 1, nil
}

func (k *keyboard) interrupted() bool {
	was := k.gaveUp
	k.gaveUp = false
	return was
}

// past is the session's lines, the newest last.
type past struct{ lines []string }

func (h *past) Add(line string) {
	if strings.TrimSpace(line) != "" && (len(h.lines) == 0 || h.lines[len(h.lines)-1] != line) {
		h.lines = append(h.lines, line)
	}
}
func (h *past) Len() int        { return len(h.lines) }
func (h *past) At(i int) string { return h.lines[len(h.lines)-1-i] }

// complete extends the word before the cursor as far as there is one way to, and lists the ways where there are more.
func complete(w io.Writer, wd, text string, at int) (string, int, bool) {
	before := text[:at]
	start := strings.LastIndexAny(before, " \t;|&<>('\"=") + 1
	word := before[start:]
	first := strings.TrimSpace(before[:start])
	var found []string
	if !strings.Contains(word, "/") && (first == "" || strings.ContainsAny(first[len(first)-1:], ";|&(")) {
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			found = append(found, named(dir, "", word)...)
		}
	} else {
		prefix, base := filepath.Split(word)
		dir := prefix
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(wd, dir)
		}
		if found = named(dir, prefix, base); len(found) == 1 {
			if st, err := os.Stat(filepath.Join(dir, filepath.Base(found[0]))); err == nil && st.IsDir() {
				found[0] += "/"
			}
		}
	}
	slices.Sort(found)
	found = slices.Compact(found)
	switch len(found) {
	case 0:
		return text, at, true
	case 1:
		if !strings.HasSuffix(found[0], "/") {
			found[0] += " "
		}
	}
	common := found[0]
	for _, f := range found {
		for !strings.HasPrefix(f, common) {
			common = common[:len(common)-1]
		}
	}
	if common == word {
		fmt.Fprintln(w, strings.Join(found, "  "))
	}
	return before[:start] + common + text[at:], start + len(common), true
}

// named are the entries of a directory whose name begins so, each with prefix before it.
func named(dir, prefix, beginning string) []string {
	entries, _ := os.ReadDir(dir) // what cannot be read completes nothing
	var found []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), beginning) {
			found = append(found, prefix+e.Name())
		}
	}
	return found
}
