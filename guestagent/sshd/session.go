package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/creack/pty"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"irqlab/guestagent/child"
)

// Payloads of RFC 4254 section 6, in wire order.
type (
	ptyRequest struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	windowChange  struct{ Columns, Rows, Width, Height uint32 }
	envRequest    struct{ Name, Value string }
	stringRequest struct{ Value string } // exec: command; subsystem: name; signal: name without SIG
	exitStatus    struct{ Status uint32 }
	exitSignal    struct {
		Signal     string
		CoreDumped bool
		Message    string
		Language   string
	}
)

// signals are those RFC 4254 section 6.10 names.
var signals = map[string]unix.Signal{
	"ABRT": unix.SIGABRT, "ALRM": unix.SIGALRM, "FPE": unix.SIGFPE, "HUP": unix.SIGHUP, "ILL": unix.SIGILL, "INT": unix.SIGINT,
	"KILL": unix.SIGKILL, "PIPE": unix.SIGPIPE, "QUIT": unix.SIGQUIT, "SEGV": unix.SIGSEGV, "TERM": unix.SIGTERM,
	"USR1": unix.SIGUSR1, "USR2": unix.SIGUSR2,
}

const (
	maxEnv     = 256
	hangUpWait = time.Second            // from hang-up to kill, when the client has gone
	drain      = 200 * time.Millisecond // a shell's last output, when a background process keeps it open
	pipeSize   = 64 << 10               // what of it can still be on its way (pipe(7)); a terminal holds less
)

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// session is one channel: first settings, then exactly one of shell, exec and subsystem.
type session struct {
	server  *Server
	channel ssh.Channel
	reqs    <-chan *ssh.Request
	env     []string
	master  *os.File // with the slave, the session's terminal if it has one
	slave   *os.File

	mu   sync.Mutex
	proc *child.Process
}

func newSession(s *Server, ch ssh.Channel, reqs <-chan *ssh.Request) *session {
	return &session{server: s, channel: ch, reqs: reqs}
}

// serve handles requests until the channel closes, then ends what runs in it.
func (s *session) serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer func() {
		cancel()
		s.channel.Close()
		running.Wait()
		if s.slave != nil {
			s.slave.Close()
		}
		if s.master != nil {
			s.master.Close()
		}
	}()
	started := false
	for req := range s.reqs {
		work, err := s.handle(req, started)
		if req.WantReply {
			_ = req.Reply(err == nil, nil)
		}
		if err != nil {
			s.server.cfg.Log("SSH session: %s: %v", req.Type, err)
			if work == nil && (req.Type == "shell" || req.Type == "exec") {
				fmt.Fprintf(s.channel.Stderr(), "irqlab: %v\r\n", err)
				return
			}
			continue
		}
		if work == nil {
			continue
		}
		started = true
		running.Go(func() {
			defer s.server.guard("SSH " + req.Type)
			defer s.channel.Close()
			work(ctx)
		})
	}
}

// handle does one request; for those that start something it returns what then runs beside the requests.
func (s *session) handle(req *ssh.Request, started bool) (func(context.Context), error) {
	switch req.Type {
	case "pty-req", "env", "shell", "exec", "subsystem":
		if started {
			return nil, errors.New("the session has already started")
		}
	}
	switch req.Type {
	case "pty-req":
		var p ptyRequest
		if err := ssh.Unmarshal(req.Payload, &p); err != nil {
			return nil, err
		}
		return nil, s.openTerminal(p)
	case "window-change":
		var p windowChange
		if err := ssh.Unmarshal(req.Payload, &p); err != nil {
			return nil, err
		}
		return nil, s.resize(p)
	case "env":
		var p envRequest
		if err := ssh.Unmarshal(req.Payload, &p); err != nil {
			return nil, err
		}
		if !envName.MatchString(p.Name) || strings.ContainsRune(p.Value, 0) || len(s.env) >= maxEnv {
			return nil, fmt.Errorf("variable %q is refused", p.Name)
		}
		s.env = append(s.env, p.Name+"="+p.Value)
		return nil, nil
	case "signal":
		var p stringRequest
		if err := ssh.Unmarshal(req.Payload, &p); err != nil {
			return nil, err
		}
		sig, ok := signals[p.Value]
		if !ok {
			return nil, fmt.Errorf("signal %q is unknown", p.Value)
		}
		s.signal(sig)
		return nil, nil
	case "shell":
		return s.start(nil)
	case "exec":
		var p stringRequest
		if err := ssh.Unmarshal(req.Payload, &p); err != nil {
			return nil, err
		}
		return s.start([]string{"-c", p.Value})
	}
	return nil, fmt.Errorf("unknown request")
}

func (s *session) openTerminal(p ptyRequest) error {
	if s.master != nil {
		return errors.New("the session already has a terminal")
	}
	master, slave, err := pty.Open()
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	s.master, s.slave = master, slave
	if p.Term != "" && !strings.ContainsRune(p.Term, 0) {
		s.env = append(s.env, "TERM="+p.Term)
	}
	if p.Columns == 0 || p.Rows == 0 { // a client without a terminal of its own; programs fail oddly on a screen without room
		p.Columns, p.Rows = 80, 24
	}
	return s.resize(windowChange{p.Columns, p.Rows, p.Width, p.Height})
}

func (s *session) resize(w windowChange) error {
	if s.master == nil {
		return errors.New("the session has no terminal")
	}
	return pty.Setsize(s.master, &pty.Winsize{Cols: uint16(w.Columns), Rows: uint16(w.Rows), X: uint16(w.Width), Y: uint16(w.Height)})
}

func (s *session) signal(sig unix.Signal) {
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	if p != nil {
		p.Signal(sig)
	}
}

// start runs the shell with args, on the terminal if the session has one, else on three pipes.
func (s *session) start(args []string) (func(context.Context), error) {
	shell, err := s.server.shell()
	if err != nil {
		return nil, err
	}
	spec := child.Spec{Path: shell, Args: append([]string{shell}, args...), Env: mergeEnv(s.server.cfg.Env, s.env), Dir: "/"}
	if s.master != nil {
		return s.startOnTerminal(spec)
	}
	return s.startOnPipes(spec, len(args) == 0)
}

// mergeEnv overlays later settings on earlier ones, since shells differ in which of two they take.
func mergeEnv(base, over []string) []string {
	var out []string
	at := map[string]int{}
	for _, kv := range slices.Concat(base, over) {
		name, _, _ := strings.Cut(kv, "=")
		if i, ok := at[name]; ok {
			out[i] = kv
			continue
		}
		at[name] = len(out)
		out = append(out, kv)
	}
	return out
}

func (s *session) launch(spec child.Spec) (*child.Process, error) {
	p, err := s.server.cfg.Reaper.Start(spec)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
	return p, nil
}

func (s *session) startOnTerminal(spec child.Spec) (func(context.Context), error) {
	spec.Files, spec.TTY = []*os.File{s.slave, s.slave, s.slave}, true
	p, err := s.launch(spec)
	if err != nil {
		return nil, err
	}
	s.slave.Close() // so that the last process to leave the terminal ends its output
	s.slave = nil
	return func(ctx context.Context) {
		go func() { _, _ = io.Copy(s.master, s.channel) }() // ends when the channel does
		output := relayTo(s.channel, s.master)
		s.await(ctx, p)
		output.end()
		s.report(p)
	}, nil
}

// startOnPipes waits for a command's background processes, too, whose output is wanted for as long as the client stays,
// as OpenSSH does. A shell that reads a script ends with it, as on a terminal: else what a script forgot in the
// background would hold its client, and a VM that lives as long as its shell.
func (s *session) startOnPipes(spec child.Spec, script bool) (func(context.Context), error) {
	var ours, theirs [3]*os.File
	closeAll := func(fs [3]*os.File) {
		for _, f := range fs {
			if f != nil {
				f.Close()
			}
		}
	}
	for i := range ours {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(ours)
			closeAll(theirs)
			return nil, fmt.Errorf("pipe: %w", err)
		}
		ours[i], theirs[i] = r, w
		if i == 0 {
			ours[i], theirs[i] = w, r
		}
	}
	spec.Files = theirs[:]
	p, err := s.launch(spec)
	closeAll(theirs)
	if err != nil {
		closeAll(ours)
		return nil, err
	}
	return func(ctx context.Context) {
		defer closeAll(ours)
		go func() {
			_, _ = io.Copy(ours[0], s.channel)
			ours[0].Close() // the client's EOF becomes the command's
		}()
		outputs := []*relay{relayTo(s.channel, ours[1]), relayTo(s.channel.Stderr(), ours[2])}
		defer context.AfterFunc(ctx, func() { ours[1].Close(); ours[2].Close() })()
		s.await(ctx, p)
		for _, o := range outputs {
			if script {
				o.end()
			}
			<-o.done
		}
		s.report(p)
	}, nil
}

// relay copies what a program and its children say.
type relay struct {
	to    io.Writer
	from  *os.File
	ended atomic.Bool // the program did; what its children keep open may stay so for ever
	done  chan struct{}
}

func relayTo(to io.Writer, from *os.File) *relay {
	r := &relay{to: to, from: from, done: make(chan struct{})}
	go r.run()
	return r
}

func (r *relay) run() {
	defer close(r.done)
	buf := make([]byte, 32<<10)
	for left := pipeSize; left > 0; {
		last := r.ended.Load()
		if last {
			_ = r.from.SetReadDeadline(time.Now().Add(drain))
		}
		n, err := r.from.Read(buf)
		if last {
			left -= n
		}
		if _, err := r.to.Write(buf[:n]); err != nil {
			return
		}
		if err != nil && (last || !errors.Is(err, os.ErrDeadlineExceeded)) {
			return
		}
	}
}

// end lets the relay end, however slow its reader is, with all that the program said before it ended.
func (r *relay) end() {
	_ = r.from.SetReadDeadline(time.Now()) // before ended, which moves it: a read under way is to begin anew
	r.ended.Store(true)
	<-r.done
}

// await returns when the process has ended; if ctx ends first the process is hung up, then killed.
func (s *session) await(ctx context.Context, p *child.Process) {
	select {
	case <-p.Done():
		return
	case <-ctx.Done():
	}
	p.Signal(unix.SIGHUP)
	p.Signal(unix.SIGCONT) // a stopped job would never see the hang-up
	select {
	case <-p.Done():
	case <-time.After(hangUpWait):
		p.Signal(unix.SIGKILL)
		<-p.Done()
	}
}

func (s *session) report(p *child.Process) {
	_ = s.channel.CloseWrite()
	st := p.Status()
	if st.Signaled() {
		name := strings.TrimPrefix(unix.SignalName(st.Signal()), "SIG")
		_, _ = s.channel.SendRequest("exit-signal", false, ssh.Marshal(exitSignal{Signal: name, CoreDumped: st.CoreDump(), Message: st.Signal().String()}))
		return
	}
	_, _ = s.channel.SendRequest("exit-status", false, ssh.Marshal(exitStatus{uint32(st.ExitStatus())}))
}
