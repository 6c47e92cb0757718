package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Command is a program to run.
type Command struct {
	Root    string   // directory that becomes /, read-only; it has the directories dev, proc and tmp, and those that are mounted on
	Mounts  []Mount  // in this order
	Args    []string // the program by its path in Root, and its arguments
	Env     []string // all of its environment
	Dir     string   // in Root, where it starts
	Output  io.Writer
	MaxFile int64 // bytes that a file may grow to; 0: no limit
}

// Mount makes a directory or file of the host visible.
type Mount struct {
	From  string // on the host
	To    string // in Root, where something of the same sort is already
	Write bool

	// With Over the directory From lies over these, the first one uppermost: what it does not have shows through, and they stay as they are whatever is written.
	Over    []string
	Scratch string   // an empty directory on From's file system, for the kernel's own use
	Remove  []string // files below To that are not to show
}

// OverlayError tells that this machine does not lay directories over each other, or not these. Nothing was run.
type OverlayError struct{ Err error }

func (e *OverlayError) Error() string {
	return fmt.Sprintf("directories cannot be laid over each other here: %v", e.Err)
}

func (e *OverlayError) Unwrap() error { return e.Err }

// RefusedError tells that this machine does not allow the namespaces.
type RefusedError struct {
	Step string // what was refused
	Err  error
	Way  string // out of it
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("programs cannot be run in namespaces of their own here: %s: %v (%s)", e.Step, e.Err, e.Way)
}

func (e *RefusedError) Unwrap() error { return e.Err }

const (
	helperName = "irqlab-sandbox"
	orderFD    = 3 // the helper reads the order from it
	troubleFD  = 4 // and writes to it what went wrong
)

// order is what the helper is told.
type order struct {
	Root    string
	Mounts  []Mount
	Args    []string
	Env     []string
	Dir     string
	MaxFile int64
}

// trouble is what the helper tells if it fails.
type trouble struct {
	Step    string
	Errno   syscall.Errno
	Refused bool // the machine's doing
	Overlay bool // an OverlayError
}

// Run runs the program until it ends, and all that it started with it; the end of ctx, or of this process, ends them at once. A program that ran and failed is an
// *exec.ExitError; a machine that does not allow any of it is a *RefusedError.
func (c Command) Run(ctx context.Context) error {
	err := c.run(ctx, true)
	var refused *RefusedError
	if errors.As(err, &refused) && os.Geteuid() == 0 && ctx.Err() == nil {
		if plain := c.run(ctx, false); !errors.As(plain, new(*RefusedError)) {
			return plain
		}
	}
	return err
}

func (c Command) run(ctx context.Context, userNamespace bool) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	orderRead, orderWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	defer orderRead.Close()
	defer orderWrite.Close()
	troubleRead, troubleWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	defer troubleRead.Close()
	defer troubleWrite.Close()

	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{helperName}
	cmd.Env = []string{} // not even the helper's own start depends on the user's
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = c.Output, c.Output
	cmd.ExtraFiles = []*os.File{orderRead, troubleWrite}
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL, // of the first process of its PID namespace: all of it goes
		Setsid:     true,            // no terminal, and Ctrl-C is ours to pass on
	}
	if userNamespace {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	// The death signal is bound to the thread that started the command, so the thread must outlive it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return refusedStart(err)
	}
	orderRead.Close()
	troubleWrite.Close()
	sendErr := json.NewEncoder(orderWrite).Encode(order{Root: c.Root, Mounts: c.Mounts, Args: c.Args, Env: c.Env, Dir: c.Dir, MaxFile: c.MaxFile})
	orderWrite.Close()
	said, _ := io.ReadAll(io.LimitReader(troubleRead, 64<<10)) // ends when the helper has become the program
	err = cmd.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var t trouble
	if len(said) > 0 && json.Unmarshal(said, &t) == nil {
		switch {
		case t.Overlay:
			return &OverlayError{Err: t.Errno}
		case t.Refused:
			return &RefusedError{Step: t.Step, Err: t.Errno, Way: wayOut(t.Errno)}
		}
		return fmt.Errorf("sandbox: %s: %w", t.Step, t.Errno)
	}
	if err == nil && sendErr != nil {
		err = fmt.Errorf("sandbox: %w", sendErr)
	}
	return err
}

// refusedStart tells the machine's refusal to make namespaces from other reasons why nothing starts.
func refusedStart(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		switch errno {
		case syscall.EPERM, syscall.EACCES, syscall.ENOSPC, syscall.EUSERS, syscall.EINVAL, syscall.ENOSYS:
			return &RefusedError{Step: "new namespaces", Err: errno, Way: wayOut(errno)}
		}
	}
	return fmt.Errorf("sandbox: %w", err)
}

func wayOut(errno syscall.Errno) string {
	const otherwise = "or run irqlab as root, or in a container that allows it, such as podman's or one with --privileged"
	switch errno {
	case syscall.ENOSPC, syscall.EUSERS:
		return "user namespaces are used up or switched off: raise user.max_user_namespaces, as with `sysctl user.max_user_namespaces=10000`, " + otherwise
	case syscall.EINVAL, syscall.ENOSYS:
		return "its kernel has no user namespaces: " + otherwise[len("or "):]
	}
	return "user namespaces are restricted: `sysctl kernel.unprivileged_userns_clone=1` on older Debian, `sysctl kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu, " + otherwise
}
