package images

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// runOwned runs a command that dies with this process and with ctx, children included: it shares a process group with a shell that outlives this process just long
// enough to kill the group. started is called once the command runs.
func runOwned(ctx context.Context, cmd *exec.Cmd, started func()) error {
	guard := exec.Command("/bin/sh", "-c", "read -r word; kill -KILL 0") // the end of its input is the end of this process
	guard.Dir = "/"
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cord, err := guard.StdinPipe()
	if err == nil {
		err = guard.Start()
	}
	if err != nil {
		return fmt.Errorf("the process that ends %s should irqlab die: %w", cmd.Path, err)
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
	err = cmd.Start()
	if started != nil {
		started()
	}
	if err != nil {
		return err
	}
	return cmd.Wait()
}
