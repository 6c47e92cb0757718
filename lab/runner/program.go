package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"mvdan.cc/sh/v3/syntax"

	"irqlab/guestagent/agentapi"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// Bounds of what a program in the guest may say and be.
const (
	maxScript   = 16 << 20 // of a script or program that is sent to the guest
	outputHead  = 48 << 10 // of its output, kept
	outputTail  = 16 << 10
	hangTime    = 5 * time.Second // for what a killed program has started to let go of its output
	packageHint = "packages (--package) bring programs of Debian's"
)

// CheckPrograms finds files that cases are to run and that cannot be read, before anything is started for them.
func CheckPrograms(cases []scenarios.Case) error {
	for i := range cases {
		if _, err := hostFiles(&cases[i]); err != nil {
			return fmt.Errorf("case %s: files: %w", cases[i].Name, err)
		}
		for _, p := range cases[i].Programs() {
			if p.Script == "" {
				continue
			}
			if _, err := readScript(cases[i].File(p)); err != nil {
				return fmt.Errorf("case %s: script: %w", cases[i].Name, err)
			}
		}
	}
	return nil
}

func readScript(file string) ([]byte, error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a file", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxScript+1))
	if err == nil && len(data) > maxScript {
		err = fmt.Errorf("%s: more than %d MiB", file, maxScript>>20)
	}
	if err == nil && len(data) == 0 {
		err = fmt.Errorf("%s: it is empty", file)
	}
	return data, err
}

// interpreter is what a script's first line says runs it, "" where it has none.
func interpreter(script []byte) string {
	line, _, _ := bytes.Cut(script, []byte("\n"))
	rest, ok := bytes.CutPrefix(line, []byte("#!"))
	words := strings.Fields(string(rest))
	switch {
	case !ok || len(words) == 0:
		return ""
	case path.Base(words[0]) == "env" && len(words) > 1:
		return words[len(words)-1]
	}
	return words[0]
}

// programs is the way to the guest for those that are run there: one connection, made when it is first needed.
type programs struct {
	mu     sync.Mutex
	client *ssh.Client
}

func (s *stepper) ssh(ctx context.Context) (*ssh.Client, error) {
	s.programs.mu.Lock()
	defer s.programs.mu.Unlock()
	if s.programs.client == nil {
		client, err := s.vm.Access().Dial(ctx)
		if err != nil {
			return nil, err
		}
		s.programs.client = client
		context.AfterFunc(s.over, func() { client.Close() })
	}
	return s.programs.client, nil
}

// program runs one in the guest, and tells what became of it. That it fails is no error.
func (s *stepper) program(ctx context.Context, p *scenarios.Program) (*result.Program, error) {
	client, err := s.ssh(ctx)
	if err != nil {
		return nil, err
	}
	env, err := s.programEnv(ctx)
	if err != nil {
		return nil, err
	}
	command := p.Command
	if p.Script != "" {
		if command, err = s.send(ctx, client, s.c.File(p)); err != nil {
			return nil, err
		}
		command = strings.TrimSpace(command + " " + p.Args)
	}
	return execute(ctx, client, command, env, nil, p.Limit())
}

// send puts a script into the guest, and returns what runs it.
func (s *stepper) send(ctx context.Context, client *ssh.Client, file string) (command string, err error) {
	data, err := readScript(file)
	if err != nil {
		return "", &scriptError{err}
	}
	there := path.Join(scenarios.GuestDir, path.Base(file))
	quoted, err := syntax.Quote(there, syntax.LangPOSIX)
	if err != nil {
		return "", &scriptError{fmt.Errorf("%s: %w", file, err)}
	}
	by := interpreter(data)
	if by != "" {
		name, err := syntax.Quote(by, syntax.LangPOSIX)
		if err != nil {
			return "", &scriptError{fmt.Errorf("%s: its interpreter %q: %w", file, by, err)}
		}
		got, err := execute(ctx, client, "command -v "+name, nil, nil, scenarios.ProgramDefault)
		if err != nil {
			return "", err
		}
		if got.Status != 0 {
			return "", &scriptError{fmt.Errorf("%s is run by %s, which the guest does not have; %s", file, by, packageHint)}
		}
	}
	if err := put(ctx, client, there, data, 0o755); err != nil {
		return "", fmt.Errorf("sending %s to the guest: %w", file, err)
	}
	if by == "" && !bytes.HasPrefix(data, []byte("\x7fELF")) {
		return "sh " + quoted, nil
	}
	return quoted, nil
}

// scriptError is a mistake of who named the script.
type scriptError struct{ err error }

func (e *scriptError) Error() string { return "script: " + e.err.Error() }
func (e *scriptError) Unwrap() error { return e.err }

// programEnv tells a program what it is about, as far as that is there.
func (s *stepper) programEnv(ctx context.Context) (env map[string]string, err error) {
	env = map[string]string{}
	s.mu.Lock()
	d := s.driver
	s.mu.Unlock()
	address, err := s.address(ctx)
	var guest *agentapi.Error
	if errors.As(err, &guest) {
		return env, nil // the function is not there now
	}
	if err != nil {
		return nil, err
	}
	env["IRQLAB_DEVICE"] = address
	if d.link.Name != "" {
		env["IRQLAB_LINK"] = d.link.Name
	}
	vectors, err := s.vm.Agent.FunctionIRQs(ctx, address)
	if errors.As(err, &guest) {
		return env, nil
	}
	var irqs []string
	for _, v := range vectors {
		if v.Name != "" {
			irqs = append(irqs, fmt.Sprint(v.IRQ))
		}
	}
	env["IRQLAB_IRQS"], env["IRQLAB_VECTORS"] = strings.Join(irqs, " "), fmt.Sprint(len(irqs))
	return env, err
}

// execute runs a line in the guest's shell. The error is one of the way there; a program that does not end in time is killed with all that it has started.
func execute(ctx context.Context, client *ssh.Client, command string, env map[string]string, stdin []byte, limit time.Duration) (*result.Program, error) {
	sess, err := client.NewSession()
	if err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	defer sess.Close()
	for name, value := range env {
		if err := sess.Setenv(name, value); err != nil {
			return nil, fmt.Errorf("guest: %s: %w", name, err)
		}
	}
	out := &kept{}
	sess.Stdout, sess.Stderr = out, out
	sess.Stdin = bytes.NewReader(stdin)
	began := time.Now()
	if err := sess.Start(command); err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- sess.Wait() }()
	late := time.NewTimer(limit)
	defer late.Stop()
	got := &result.Program{}
	select {
	case err = <-ended:
	case <-ctx.Done():
		_ = sess.Signal(ssh.SIGKILL)
		return nil, context.Cause(ctx)
	case <-late.C:
		got.Late = true
		_ = sess.Signal(ssh.SIGKILL)
		select {
		case <-ended:
		case <-time.After(hangTime):
		}
		err = nil
	}
	got.Seconds = time.Since(began).Seconds()
	got.Output, got.Size = out.text()
	var exit *ssh.ExitError
	switch {
	case errors.As(err, &exit):
		got.Status, got.Signal = exit.ExitStatus(), exit.Signal()
		return got, nil
	case err != nil:
		return nil, fmt.Errorf("guest: %s: %w", command, err)
	}
	return got, nil
}

// kept is the beginning and the end of what a program writes.
type kept struct {
	mu         sync.Mutex
	head, tail []byte
	size       int64
}

func (k *kept) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.size += int64(len(p))
	n := min(len(p), outputHead-len(k.head))
	k.head = append(k.head, p[:n]...)
	k.tail = append(k.tail, p[n:]...)
	if len(k.tail) > 2*outputTail {
		k.tail = append(k.tail[:0], k.tail[len(k.tail)-outputTail:]...)
	}
	return len(p), nil
}

func (k *kept) text() (text string, size int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	tail := k.tail[max(0, len(k.tail)-outputTail):]
	gap := ""
	if left := k.size - int64(len(k.head)+len(tail)); left > 0 {
		gap = fmt.Sprintf("\n… %d bytes left out …\n", left)
	}
	return strings.ToValidUTF8(string(k.head)+gap+string(tail), "\ufffd"), k.size
}

// spreadByScript runs the script that is the case's strategy, and takes down what it has asked for: what is requested once it has ended.
func (s *stepper) spreadByScript(ctx context.Context) error {
	if s.c.Script == nil {
		return nil
	}
	s.stage("running " + s.c.Script.String())
	got, err := s.program(ctx, s.c.Script)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.out.Script = got
	s.mu.Unlock()
	vectors, err := s.vectors(ctx)
	if err != nil {
		return err
	}
	seen, err := s.vm.Agent.Observe(ctx, vectors)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range seen.Vectors {
		s.asks.own(v.Vector, v.State.Affinity, v.State.Hint)
	}
	return nil
}
