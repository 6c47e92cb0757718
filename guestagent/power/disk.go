package power

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
)

const (
	blocks = "sys/block"
	// restoreAtOnce has the kernel restore the image that it has just written, instead of switching the machine off.
	restoreAtOnce = "test_resume"

	diskWait = 5 * time.Second // for a disk that has just been plugged in
	lookFor  = 10 * time.Millisecond
)

// useDisk has the kernel hibernate to the disk that is there for it.
func useDisk(ctx context.Context, r kfile.Root) error {
	ways, err := words(r, "disk")
	if err != nil {
		return err
	}
	if !slices.Contains(ways, restoreAtOnce) {
		return fault.New(agentapi.CodeUnsupported, "hibernating: this kernel does not know %s, only: %s", restoreAtOnce, strings.Join(ways, " "))
	}
	name, err := swapDisk(ctx, r)
	if err != nil {
		return err
	}
	if err := swapOn(r.Path("dev", name)); err != nil && !errors.Is(err, unix.EBUSY) { // it is in use from the time before
		return fmt.Errorf("hibernating: swap on %s: %w", name, err)
	}
	number, err := r.String(blocks, name, "dev")
	if err != nil {
		return err
	}
	if err := r.Write(number, dir, "resume"); err != nil { // where no image is yet
		return fmt.Errorf("hibernating: disk %s: %w", name, err)
	}
	return r.Write(restoreAtOnce, dir, "disk")
}

// swapDisk waits for the disk to hibernate to, and names it.
func swapDisk(ctx context.Context, r kfile.Root) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, diskWait)
	defer cancel()
	for {
		names, _ := r.Names(blocks)
		for _, n := range names {
			if serial, err := r.String(blocks, n, "device/serial"); err == nil && strings.TrimSpace(serial) == agentapi.SwapSerial && r.Has("dev", n) {
				return n, nil
			}
		}
		select {
		case <-ctx.Done():
			return "", fault.New(agentapi.CodeNotFound, "hibernating: no disk with the serial number %s; there are: %s", agentapi.SwapSerial, strings.Join(names, " "))
		case <-time.After(lookFor):
		}
	}
}

func swapOn(path string) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(p)), 0, 0); errno != 0 {
		return errno
	}
	return nil
}
