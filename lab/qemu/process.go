package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/digitalocean/go-qemu/qmp"
	"golang.org/x/sys/unix"

	"irqlab/lab/machine"
)

const (
	exitGrace = 5 * time.Second // from the end of QEMU's channels to its exit
	tailLines = 30              // console lines in an error
	stderrMax = 32 << 10

	firstRAMFD = 6 // descriptors as QEMU sees them: after the channels, memory, and then the saved state of the devices
)

// ErrClosed is the answer of a Process that was closed.
var ErrClosed = errors.New("QEMU was closed")

// Config says what to start.
type Config struct {
	Name        string          // names the run directory and the VM to others; empty: made up
	Command     []string        // QEMU and leading arguments, such as a loader's
	Env         []string        // added to the lab's own environment, KEY=VALUE
	Machine     machine.Machine // Channels are set by Start
	RunDir      *RunDir         // nil: Start makes one. The Process owns it from Start's success on
	ConsoleFile string          // empty: console.log in the run directory
	Keep        bool            // keep the run directory after Close
	QMPTimeout  time.Duration   // deadline of an ordinary QMP call; 0: 30 s
	SharedRAM   bool            // the guest's memory is the lab's too, as Save needs it
	Snapshot    *Snapshot       // restored instead of booting Machine, which must be described as the saved one was; may be closed when Start has returned

	arguments func([]string) []string // lets a test start QEMU without a kernel
}

// Process is a running QEMU. Its methods may be called from several goroutines.
type Process struct {
	machine    machine.Machine
	run        *RunDir
	qmpTimeout time.Duration
	args       []string
	cmd        *exec.Cmd
	stderr     *tailBuffer
	wire       *wire
	console    *Console
	agent      net.Conn
	ram        ram // nil: QEMU's own
	done       chan struct{}
	pulse      pulse

	closeOnce sync.Once
	closeErr  error

	mu        sync.Mutex
	closed    bool // Close has ended QEMU
	attached  bool // a function was, or may have been
	cause     error
	shutdown  string
	events    []qmp.Event
	forgotten int // events before events[0]
	eventCame chan struct{}

	hotplug sync.Mutex // one CPU comes or goes at a time
	replugs int        // CPUs plugged in so far
}

// Start checks the machine, makes the run directory and its channels, starts QEMU and greets it. The guest runs when Start returns, unless it was restored from a
// snapshot: then Resume lets it run.
//
// A description that makes no guest is a *machine.FieldError, returned before anything has a side effect; a QEMU that does not come up is a *DeadError, and a
// snapshot that does not fit a *RestoreError.
func Start(ctx context.Context, cfg Config) (_ *Process, err error) {
	if err := cfg.Machine.Validate(); err != nil {
		return nil, err
	}
	if len(cfg.Command) == 0 {
		return nil, errors.New("QEMU: no command to start it with")
	}
	if err := context.Cause(ctx); err != nil {
		return nil, &NotStartedError{err}
	}
	run := cfg.RunDir
	if run == nil {
		if run, err = NewRunDir(cfg.Name); err != nil {
			return nil, err
		}
	}
	p := &Process{machine: cfg.Machine, run: run, qmpTimeout: cfg.QMPTimeout, stderr: &tailBuffer{max: stderrMax}, done: make(chan struct{}), eventCame: make(chan struct{})}
	if p.qmpTimeout == 0 {
		p.qmpTimeout = qmpTimeout
	}
	started := false
	defer func() {
		if err == nil {
			return
		}
		if started {
			err = errors.Join(err, p.close(cfg.RunDir == nil))
		} else if cfg.RunDir == nil {
			err = errors.Join(err, run.Close())
		}
	}()
	if cfg.Keep {
		if err := run.Keep(); err != nil {
			return nil, err
		}
	}
	if cfg.SharedRAM || cfg.Snapshot != nil {
		if p.ram, err = newRAM(p.machine); err != nil {
			return nil, err
		}
	}
	filled := make(chan error, 1)
	if s := cfg.Snapshot; s != nil {
		copying, cancel := context.WithCancel(ctx)
		finished := make(chan struct{})
		go func() { // while QEMU starts, which touches no memory before the state comes
			defer close(finished)
			filled <- s.fill(copying, p.ram)
		}()
		defer func() { // the snapshot and the memory are not ours after Start
			cancel()
			<-finished
		}()
	}
	greeting, err := p.launch(cfg)
	if err != nil {
		_ = p.ram.Close()
		return nil, err
	}
	started = true
	if err := p.wire.greet(ctx, greeting, p.qmpTimeout); err != nil {
		return nil, p.qmpError("qmp_capabilities", err)
	}
	if cfg.Snapshot != nil {
		if err := p.restore(ctx, filled, fmt.Sprintf("/proc/self/fd/%d", firstRAMFD+len(p.ram))); err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			return nil, &RestoreError{err}
		}
	}
	if err := run.publish(p.cmd.Process.Pid); err != nil {
		return nil, err
	}
	return p, nil
}

// channel makes a connected pair: the lab's end, and the one to hand to QEMU.
func channel(name string) (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("%s channel: %w", name, err)
	}
	near, far := os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name)
	conn, err := net.FileConn(near) // duplicates the descriptor
	if err := errors.Join(err, near.Close()); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s channel: %w", name, err), far.Close())
	}
	return conn, far, nil
}

// launch starts QEMU and everything that follows it, and returns the greeting to await. On failure nothing is left.
func (p *Process) launch(cfg Config) (greeting *pending, err error) {
	var undo []io.Closer
	defer func() {
		if err != nil {
			for _, c := range undo {
				_ = c.Close()
			}
		}
	}()
	path := cfg.ConsoleFile
	if path == "" {
		path = filepath.Join(p.run.Path, consoleFile)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o666) // the run directory is private anyway
	if err != nil {
		return nil, fmt.Errorf("console file: %w", err)
	}
	undo = append(undo, file)
	console, consoleChild, err := channel("console")
	if err != nil {
		return nil, err
	}
	undo = append(undo, console)
	defer consoleChild.Close()
	agent, agentChild, err := channel("agent")
	if err != nil {
		return nil, err
	}
	undo = append(undo, agent)
	defer agentChild.Close()
	control, controlChild, err := channel("QMP")
	if err != nil {
		return nil, err
	}
	undo = append(undo, control)
	defer controlChild.Close()

	m := cfg.Machine
	m.Incoming = cfg.Snapshot != nil
	m.Channels = machine.Channels{QMPFD: 3, ConsoleFD: 4, AgentFD: 5, SSHSocket: filepath.Join(p.run.Path, sshSocket)}
	files := []*os.File{controlChild, consoleChild, agentChild}
	for n, f := range p.ram {
		m.Channels.RAMFDs = append(m.Channels.RAMFDs, firstRAMFD+n)
		files = append(files, f)
	}
	if cfg.Snapshot != nil {
		files = append(files, cfg.Snapshot.devices)
	}
	if p.args, err = m.Args(); err != nil {
		return nil, err
	}
	if cfg.arguments != nil {
		p.args = cfg.arguments(p.args)
	}
	p.cmd = exec.Command(cfg.Command[0], append(cfg.Command[1:len(cfg.Command):len(cfg.Command)], p.args...)...)
	p.cmd.Env = append(os.Environ(), cfg.Env...)
	p.cmd.Dir = p.run.Path
	p.cmd.Stdout, p.cmd.Stderr = p.stderr, p.stderr
	p.cmd.ExtraFiles = files
	p.cmd.WaitDelay = exitGrace
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:    true,            // a Ctrl-C is for the lab, which then ends QEMU in order
		Pdeathsig: syscall.SIGKILL, // QEMU never outlives the lab
	}
	p.console = newConsole(path)
	p.console.diagnose, p.console.death, p.console.stood = p.Diagnose, p.death, p.Standstill
	if cfg.Snapshot != nil { // what the guest said before it was saved is its story too
		p.console.take(cfg.Snapshot.console, file)
		p.console.Begin()
	}
	p.agent = agent
	p.wire = newWire(control, p.onEvent, func(e *TimeoutError) { p.kill(e) })

	launched := make(chan error)
	go p.own(launched, console, file)
	if err := <-launched; err != nil {
		return nil, fmt.Errorf("start QEMU (%s): %w", cfg.Command[0], err)
	}
	greeting = p.wire.expect(greetingID, "qmp_capabilities", p.qmpTimeout)
	go p.wire.read()
	return greeting, nil
}

// own starts QEMU and stays until it has ended. The parent-death signal is bound to the thread that starts a process, so this goroutine keeps its thread.
func (p *Process) own(launched chan<- error, console net.Conn, file *os.File) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		launched <- err
		return
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.console.run(console, file)
	}()
	p.pulse.begin(p.cmd.Process.Pid)
	launched <- nil
	go p.pulse.watch(p.done)
	_ = p.cmd.Wait() // how it ended is in ProcessState
	// What QEMU wrote is still in the channels; should something else hold their other ends, it is not awaited.
	_ = console.SetReadDeadline(time.Now().Add(exitGrace))
	_ = p.wire.conn.SetReadDeadline(time.Now().Add(exitGrace))
	<-read
	_ = console.Close()
	<-p.wire.ended // with it the last events
	close(p.done)
}

// kill ends QEMU for a reason, the first of which counts.
func (p *Process) kill(cause error) {
	p.mu.Lock()
	if p.cause == nil {
		p.cause = cause
	}
	p.mu.Unlock()
	_ = p.cmd.Process.Kill()
}

// Done is closed when QEMU has ended and all it has written has been read.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns nil while QEMU runs and after Close, else a *DeadError.
func (p *Process) Err() error {
	select {
	case <-p.done:
	default:
		return nil
	}
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return nil
	}
	return p.deadError("")
}

// deadError describes the end of QEMU, which has come.
func (p *Process) deadError(command string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		if command != "" {
			return fmt.Errorf("QMP %s: %w", command, ErrClosed)
		}
		return ErrClosed
	}
	e := &DeadError{Command: command, Status: p.cmd.ProcessState.ExitCode(), Reason: p.shutdown, Cause: p.cause, Stderr: p.stderr.String(), Tail: p.console.Tail(tailLines)}
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = ws.Signal()
	}
	return e
}

// death awaits the end of QEMU, whose console has ended, and describes it.
func (p *Process) death() error {
	select {
	case <-p.done:
		return p.deadError("")
	case <-time.After(2 * exitGrace):
		return errors.New("QEMU closed its console")
	}
}

// Close kills QEMU, waits for its end, and removes the run directory unless it is to be kept. It may be called again, and from several goroutines.
func (p *Process) Close() error { return p.close(true) }

func (p *Process) close(withRunDir bool) error {
	p.closeOnce.Do(func() {
		p.mu.Lock()
		select {
		case <-p.done: // it died by itself, and that stays the story
		default:
			p.closed = p.cause == nil
		}
		p.mu.Unlock()
		_ = p.cmd.Process.Kill()
		<-p.done
		_ = p.wire.conn.Close()
		_ = p.agent.Close()
		_ = p.ram.Close()
		if withRunDir {
			p.closeErr = p.run.Close()
		}
	})
	return p.closeErr
}

// Dir is the run directory: private to the user; the place for sockets of functions.
func (p *Process) Dir() string { return p.run.Path }

// Name is the VM's name, made up if Config had none.
func (p *Process) Name() string { return p.run.Name }

// Keep makes the run directory outlive Close.
func (p *Process) Keep() error { return p.run.Keep() }

// PID is QEMU's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// CommandLine is what QEMU was started with, program included.
func (p *Process) CommandLine() []string { return append([]string(nil), p.cmd.Args...) }

// Console is the guest's serial console.
func (p *Process) Console() *Console { return p.console }

// AgentConn is the lab's end of the virtio-serial port agentapi.AgentPort. What is written before the guest opens the port waits for it. There is one; Close closes it.
func (p *Process) AgentConn() net.Conn { return p.agent }

// SSHSocket is the path of the socket that leads to the virtio-serial port agentapi.SSHPort; one client at a time.
func (p *Process) SSHSocket() string { return filepath.Join(p.run.Path, sshSocket) }

// AttachFunction hot-plugs the function that a vfio-user server offers on a Unix socket into a slot of the machine. The server must be listening and answer
// promptly: QEMU waits for it with the whole VM.
//
// A function, once attached, stays: QEMU 11.1.3 aborts when a vfio-user function with MSI-X is unplugged (reference, vfio-user 5.2).
func (p *Process) AttachFunction(ctx context.Context, slot, socket string) error {
	for _, s := range p.machine.Slots {
		if s.ID != slot {
			continue
		}
		// The socket is an object, which is why this device cannot be described by an option list.
		p.mu.Lock()
		p.attached = true
		p.mu.Unlock()
		args := map[string]any{"driver": "vfio-user-pci", "id": "function-" + slot, "bus": s.Bus(), "socket": map[string]any{"type": "unix", "path": socket}}
		if err := p.qmp(ctx, attachTimeout, "device_add", args, nil); err != nil {
			return fmt.Errorf("attach the function at %s to slot %s: %w", socket, slot, err)
		}
		return nil
	}
	return fmt.Errorf("attach the function at %s: the machine has no slot %q", socket, slot)
}

// tailBuffer keeps the end of what is written to it.
type tailBuffer struct {
	max int
	mu  sync.Mutex
	buf []byte
	cut bool
}

func (b *tailBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf = append(b.buf, p...); len(b.buf) > 2*b.max {
		b.buf, b.cut = append(b.buf[:0], b.buf[len(b.buf)-b.max:]...), true
	}
	return len(p), nil
}

func (b *tailBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := string(bytes.TrimSpace(b.buf))
	if b.cut {
		s = "…" + s
	}
	return s
}
