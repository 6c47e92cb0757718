//go:build linux

// Command sh is the guest's shell: the interpreter of mvdan.cc/sh, in which a write that the kernel refuses is an error.
//
// The interpreter's own builtins ignore what becomes of their output, and echo writes its line in several pieces. In /proc and /sys each write is a request of its
// own: here a builtin writes once, and what is refused is said and gives status 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

const usage = "usage: sh [-eux] [-c COMMAND | FILE] [ARGUMENT…]"

const statusUsage = 2 // of a usage or syntax error, as in other shells

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the shell from its arguments to its status.
func run(ctx context.Context, args []string, in, out, errs *os.File) int {
	options, args, command, err := parseArgs(args)
	if err != nil {
		fmt.Fprintf(errs, "sh: %v\n%s\n", err, usage)
		return statusUsage
	}
	s, err := newShell(in, out, errs)
	if err == nil && (command || len(args) > 1) {
		options = append(append(options, "--"), args[min(1, len(args)):]...)
	}
	if err == nil && len(options) > 0 {
		err = interp.Params(options...)(s.runner)
	}
	if err != nil {
		fmt.Fprintln(errs, "sh:", err)
		return statusUsage
	}
	switch {
	case command:
		return s.script(ctx, strings.NewReader(args[0]), "")
	case len(args) > 0:
		f, err := os.Open(args[0])
		if err != nil {
			fmt.Fprintln(errs, "sh:", err)
			return 127
		}
		defer f.Close()
		return s.script(ctx, f, args[0])
	case term.IsTerminal(int(in.Fd())):
		return s.converse(ctx, in, out)
	}
	return s.stream(ctx, in)
}

// parseArgs takes the options off: those of set stay in options, and those that say how a shell is used are dropped.
func parseArgs(args []string) (options, rest []string, command bool, _ error) {
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		word := args[0][1:]
		args = args[1:]
		if word == "-" {
			break
		}
		for _, letter := range word {
			switch {
			case letter == 'c':
				command = true
			case strings.ContainsRune("eux", letter):
				options = append(options, "-"+string(letter))
			case !strings.ContainsRune("ils", letter):
				return nil, nil, false, fmt.Errorf("-%c: unknown option", letter)
			}
		}
	}
	if command && len(args) == 0 {
		return nil, nil, false, errors.New("-c: takes a command")
	}
	if command && len(args) > 1 { // the word after the command is $0, which the interpreter does not take
		args = append(args[:1:1], args[2:]...)
	}
	return options, args, command, nil
}

// byByte reads no further than it must: what a script on standard input leaves unread is its commands' input.
type byByte struct{ io.Reader }

func (b *byByte) Read(p []byte) (int, error) { return b.Reader.Read(p[:min(1, len(p))]) }

// script runs a script that is there as a whole.
func (s *shell) script(ctx context.Context, r io.Reader, name string) int {
	file, err := syntax.NewParser().Parse(r, name)
	if err != nil {
		fmt.Fprintln(s.errs, "sh:", err)
		return statusUsage
	}
	return s.run(ctx, file)
}

// stream runs a script that comes line by line, and each line as soon as it is there.
func (s *shell) stream(ctx context.Context, r io.Reader) int {
	status := 0
	parser := syntax.NewParser()
	for stmts, err := range parser.InteractiveSeq(io.MultiReader(&byByte{r}, strings.NewReader("\n"))) { // what lacks its end is a line nevertheless
		if err != nil {
			fmt.Fprintln(s.errs, "sh:", err)
			return statusUsage
		}
		if parser.Incomplete() { // all of the line comes again when its last statement has ended
			continue
		}
		for _, stmt := range stmts {
			if status = s.run(ctx, stmt); s.runner.Exited() {
				return status
			}
		}
	}
	return s.end(ctx, status)
}
