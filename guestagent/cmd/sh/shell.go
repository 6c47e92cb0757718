//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// Statuses of a command that could not be run, as in other shells.
const (
	statusNotExecutable = 126
	statusNotFound      = 127
	statusSignal        = 128 // plus the signal's number
)

type shell struct {
	runner *interp.Runner
	errs   io.Writer

	mu        sync.Mutex
	functions map[string]bool // names that the text run so far gives to functions
}

func newShell(in, out, errs *os.File) (*shell, error) {
	s := &shell{errs: errs, functions: map[string]bool{}}
	var err error
	s.runner, err = interp.New(
		interp.Interactive(true), // for aliases
		interp.StdIO(in, &output{file: out}, &output{file: errs}),
		interp.OpenHandler(open),
		interp.CallHandler(s.call),
		interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc { return execute }),
	)
	return s, err
}

// end runs what the script wants done at its end, and returns the status of its last command.
func (s *shell) end(ctx context.Context, status int) int {
	if last := s.run(ctx, &syntax.File{}); s.runner.Exited() {
		return last
	}
	return status
}

// run runs a statement, or a whole script, and returns its status.
func (s *shell) run(ctx context.Context, code syntax.Node) int {
	syntax.Walk(code, func(n syntax.Node) bool {
		if f, ok := n.(*syntax.FuncDecl); ok && f.Name != nil {
			s.mu.Lock()
			s.functions[f.Name.Value] = true
			s.mu.Unlock()
		}
		return true
	})
	err := s.runner.Run(ctx, code)
	var status interp.ExitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case ctx.Err() != nil:
		return statusSignal + int(unix.SIGINT)
	}
	fmt.Fprintln(s.errs, "sh:", err)
	return 1
}

// checked, as the first word of a call, has execute run the builtin that follows and look at what becomes of its output. No command has such a name.
const checked = "\x00checked"

// printing are the builtins that print and neither run other commands nor wait for anything.
var printing = []string{"alias", "cd", "dirs", "echo", "hash", "help", "popd", "printf", "pushd", "pwd", "set", "shopt", "times", "trap", "type"}

// oldCount is how many lines people ask head and tail for, whatever these take: head -2.
var oldCount = regexp.MustCompile(`^-[0-9]+$`)

// call sends the builtins that print through execute.
func (s *shell) call(ctx context.Context, args []string) ([]string, error) {
	s.mu.Lock()
	function := s.functions[args[0]]
	s.mu.Unlock()
	if function {
		return args, nil
	}
	inner := args
	for len(inner) > 1 && (inner[0] == "command" || inner[0] == "builtin") && inner[1] != "-v" {
		inner = inner[1:]
	}
	switch name := inner[0]; {
	case name == "command" || slices.Contains(printing, name):
		return append([]string{checked}, inner...), nil
	case (name == "head" || name == "tail") && len(inner) > 1 && oldCount.MatchString(inner[1]):
		return slices.Concat([]string{name, "-n", inner[1][1:]}, inner[2:]), nil
	case name == "kill": // to the interpreter a builtin, which it does not have
		hc := interp.HandlerCtx(ctx)
		if path, err := interp.LookPathDir(hc.Dir, hc.Env, name); err == nil {
			return append([]string{path}, inner[1:]...), nil
		}
	}
	return args, nil
}

// execute runs what is no function: a program, or a builtin that prints.
func execute(ctx context.Context, args []string) error {
	hc := interp.HandlerCtx(ctx)
	if args[0] != checked {
		return program(ctx, hc, args)
	}
	args = args[1:]
	if args[0] == "echo" || args[0] == "printf" { // to a pipe, too, in one piece: who reads there may pass on to the kernel what comes at once
		text, err := printed(args)
		if err != nil {
			fmt.Fprintf(hc.Stderr, "%s: %v\n", args[0], err)
			return interp.ExitStatus(1)
		}
		if text == "" {
			return nil
		}
		_, err = io.WriteString(hc.Stdout, text)
		return refused(hc, args[0], err)
	}
	out, ok := hc.Stdout.(*output)
	if !ok {
		return hc.Builtin(ctx, args)
	}
	out.hold()
	status := hc.Builtin(ctx, args)
	if err := refused(hc, args[0], out.release()); err != nil {
		return err
	}
	return status
}

// refused says that a builtin's output did not get where it should, and is its status.
func refused(hc interp.HandlerContext, name string, err error) error {
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EPIPE) { // who reads a pipe may have had enough
		fmt.Fprintf(hc.Stderr, "%s: %v\n", name, err)
	}
	return interp.ExitStatus(1)
}

// printed is the text of echo or printf.
func printed(args []string) (string, error) {
	name, args := args[0], args[1:]
	var b strings.Builder
	if name == "printf" {
		if len(args) == 0 {
			return "", errors.New("usage: printf FORMAT [ARGUMENT…]")
		}
		format, args := args[0], args[1:]
		for {
			text, used, err := expand.Format(nil, format, args)
			if err != nil {
				return "", err
			}
			b.WriteString(text)
			if args = args[used:]; used == 0 || len(args) == 0 {
				return b.String(), nil
			}
		}
	}
	end, escapes := "\n", false
	for ; len(args) > 0; args = args[1:] {
		option, ok := strings.CutPrefix(args[0], "-")
		if !ok || option == "" || strings.Trim(option, "neE") != "" {
			break
		}
		for _, letter := range option {
			switch letter {
			case 'n':
				end = ""
			case 'e':
				escapes = true
			case 'E':
				escapes = false
			}
		}
	}
	text := strings.Join(args, " ")
	if escapes {
		text, _, _ = expand.Format(nil, text, nil)
	}
	return text + end, nil
}

// program runs a program and waits for it.
func program(ctx context.Context, hc interp.HandlerContext, args []string) error {
	path, err := interp.LookPathDir(hc.Dir, hc.Env, args[0])
	if err != nil {
		fmt.Fprintf(hc.Stderr, "%s: not found\n", args[0])
		return interp.ExitStatus(statusNotFound)
	}
	request := asked(hc.Stdout)
	if request != nil {
		hc.Stdout = request
	}
	err = start(ctx, hc, path, args).Run()
	if errors.Is(err, unix.ENOEXEC) { // a script that does not name its interpreter
		err = start(ctx, hc, "/proc/self/exe", append([]string{"sh", path}, args[1:]...)).Run()
	}
	if said := request.send(); said != nil {
		return refused(hc, args[0], said)
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return interp.ExitStatus(statusSignal + int(status.Signal()))
		}
		return interp.ExitStatus(exit.ExitCode())
	}
	fmt.Fprintf(hc.Stderr, "%s: %v\n", args[0], err)
	return interp.ExitStatus(statusNotExecutable)
}

func start(ctx context.Context, hc interp.HandlerContext, path string, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path)
	cmd.Args, cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = args, hc.Dir, hc.Stdin, direct(hc.Stdout), direct(hc.Stderr)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = []string{} // not the shell's own, which nil would mean
	for name, v := range hc.Env.Each {
		if v.Exported && v.Kind == expand.String {
			cmd.Env = append(cmd.Env, name+"="+v.String())
		}
	}
	return cmd
}

// request is a program's output on its way to a file of the kernel's, where what is written at once is one request. Many programs do not look at what becomes of their writes.
type request struct {
	file *os.File
	text []byte
	err  error
}

// maxRequest is more than any such file takes at once.
const maxRequest = 64 << 10

// asked is the request that an output stands for; nil: it goes elsewhere.
func asked(w io.Writer) *request {
	if o, ok := w.(*output); ok && (strings.HasPrefix(o.file.Name(), "/proc/") || strings.HasPrefix(o.file.Name(), "/sys/")) {
		return &request{file: o.file}
	}
	return nil
}

func (r *request) Write(p []byte) (int, error) {
	if r.text = append(r.text, p...); len(r.text) > maxRequest {
		return len(p), r.send()
	}
	return len(p), r.err
}

// send writes what there is, and tells the first error.
func (r *request) send() error {
	if r == nil {
		return nil
	}
	if len(r.text) > 0 && r.err == nil {
		_, r.err = r.file.Write(r.text)
	}
	r.text = nil
	return r.err
}

// direct is what a program is to have as its output: the file itself, so that it learns what becomes of its writes.
func direct(w io.Writer) io.Writer {
	if o, ok := w.(*output); ok {
		return o.file
	}
	return w
}

// open opens a redirection's file.
func open(ctx context.Context, path string, flag int, perm os.FileMode) (io.ReadWriteCloser, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(interp.HandlerCtx(ctx).Dir, path)
	}
	f, err := os.OpenFile(path, flag, perm)
	if err != nil {
		return nil, err
	}
	if flag&(os.O_WRONLY|os.O_RDWR) == 0 {
		return f, nil // the interpreter wants a plain file to read from
	}
	return &output{file: f}, nil
}

// output is a file that the interpreter writes to. Between hold and release what is written is kept, to be written at once.
type output struct {
	file *os.File
	turn sync.Mutex // held by the builtin that prints

	mu   sync.Mutex
	held *bytes.Buffer // nil: nobody holds
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held != nil {
		return o.held.Write(p)
	}
	return o.file.Write(p)
}

func (o *output) Read(p []byte) (int, error) { return o.file.Read(p) }
func (o *output) Close() error               { return o.file.Close() }

func (o *output) hold() {
	o.turn.Lock()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = &bytes.Buffer{}
}

func (o *output) release() (err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held.Len() > 0 {
		_, err = o.file.Write(o.held.Bytes())
	}
	o.held = nil
	o.turn.Unlock()
	return err
}
