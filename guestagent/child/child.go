// Package child starts processes and collects every exit status, as PID 1 must: its own children's and those of orphans it inherits.
// In a program that uses it nothing else may wait for children.
package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Reaper starts children and hands each its exit status.
type Reaper struct {
	// mu is held over fork and registration on one side, wait and hand-over on the other, so that no status arrives for a child not yet known.
	mu      sync.Mutex
	waiting map[int]*Process
}

// Process is a started child.
type Process struct {
	PID    int
	reaper *Reaper
	done   chan struct{}
	status unix.WaitStatus
}

// NewReaper returns a Reaper; Run makes it work.
func NewReaper() *Reaper { return &Reaper{waiting: map[int]*Process{}} }

// Run collects exit statuses until ctx ends.
func (r *Reaper) Run(ctx context.Context) {
	sig := make(chan os.Signal, 1) // one pending signal is enough: collect takes all there is
	signal.Notify(sig, unix.SIGCHLD)
	defer signal.Stop(sig)
	for {
		r.collect()
		select {
		case <-ctx.Done():
			return
		case <-sig:
		}
	}
}

func (r *Reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if p := r.waiting[pid]; p != nil {
			delete(r.waiting, pid)
			p.status = status
			close(p.done)
		}
	}
}

// Spec says what to start.
type Spec struct {
	Path  string // absolute
	Args  []string
	Env   []string
	Dir   string
	Files []*os.File // descriptors 0, 1, 2
	TTY   bool       // file 0 becomes the controlling terminal
}

// Start starts a process in a session of its own, so that Signal reaches all it starts in turn.
func (r *Reaper) Start(s Spec) (*Process, error) {
	attr := &os.ProcAttr{Dir: s.Dir, Env: s.Env, Files: s.Files, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: s.TTY, Ctty: 0}}
	r.mu.Lock()
	defer r.mu.Unlock()
	osp, err := os.StartProcess(s.Path, s.Args, attr)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", s.Path, err)
	}
	p := &Process{PID: osp.Pid, reaper: r, done: make(chan struct{})}
	_ = osp.Release() // the reaper waits for it
	r.waiting[p.PID] = p
	return p, nil
}

// Done is closed once the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status is how the process ended; valid once Done is closed.
func (p *Process) Status() unix.WaitStatus { return p.status }

// Signal sends a signal to the process's group; nothing happens to a process that has ended.
func (p *Process) Signal(s unix.Signal) {
	p.reaper.mu.Lock() // while it is held the number cannot become another's
	defer p.reaper.mu.Unlock()
	select {
	case <-p.done:
	default:
		_ = unix.Kill(-p.PID, s)
	}
}
