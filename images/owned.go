package images

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// RunOwned runs a command that dies with this process and with ctx, children included: it shares a process group with a shell that outlives this process just long
// enough to kill the group. The command's ExtraFiles are its own: they are closed here as soon as it has them, and also if it never runs, so that whoever reads their
// other ends sees the end in any case.
func RunOwned(ctx context.Context, cmd *exec.Cmd) error {
	handOver := func() {
		for _, f := range cmd.ExtraFiles {
			_ = f.Close()
		}
	}
	defer handOver()
	guard := exec.Command("/bin/sh", "-c", "read -r word; kill -KILL 0") // the end of its input is the end of this process
	guard.Dir = "/"
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cord, err := guard.StdinPipe()
	if err == nil {
		err = guard.Start()
	}
	if err != nil {
		return startRemedy(fmt.Errorf("the process that ends %s should irqlab die: %w", cmd.Path, err))
	}
	group := guard.Process.Pid
	defer func() {
		_ = syscall.Kill(-group, syscall.SIGKILL) // and with the guard whatever the command has left
		_ = cord.Close()
		_ = guard.Wait()
	}()
	// The guard may die, too. The death signal is bound to the thread that started the command, so the thread must outlive it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: group, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-group, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return startRemedy(err)
	}
	handOver()
	return cmd.Wait()
}

// startRemedy adds the way out to a failure to start a process that comes from the user's limits.
func startRemedy(err error) error {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return fmt.Errorf("%w (this process may open no more files: raise the limit, ulimit -n)", err)
	case errors.Is(err, syscall.ENFILE):
		return fmt.Errorf("%w (this machine may open no more files: raise fs.file-max)", err)
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("%w (this user may start no more processes: end some, or raise the limit, ulimit -u)", err)
	}
	return err
}
