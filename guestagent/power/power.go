// Package power puts the guest to sleep. It knows the kernel's interface for that, not who wakes the guest, nor what becomes of any device.
package power

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
)

const (
	dir = "sys/power"
	tty = "sys/class/tty"

	keepConsole = "sys/module/printk/parameters/console_suspend"

	deep = "deep" // what mem is to mean: ACPI's S3, and not suspend to idle under another name
)

// words are those of a file such as "s2idle [deep]", the chosen one's brackets taken off.
func words(r kfile.Root, file string) ([]string, error) {
	text, err := r.String(dir, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(text)), err
}

// Prepare checks that the kernel knows the sleep state, and sees to it that it is what its name says and that something can wake the guest from it.
func Prepare(ctx context.Context, r kfile.Root, mode string) error {
	if !slices.Contains([]string{agentapi.SuspendFreeze, agentapi.SuspendMem, agentapi.SuspendDisk}, mode) {
		return fault.New(agentapi.CodeInvalid, "sleep state %.20q: there are %s, %s and %s", mode, agentapi.SuspendFreeze, agentapi.SuspendMem, agentapi.SuspendDisk)
	}
	states, err := words(r, "state")
	if err != nil {
		return err
	}
	if !slices.Contains(states, mode) {
		return fault.New(agentapi.CodeUnsupported, "suspending to %s: this kernel knows only: %s", mode, strings.Join(states, " "))
	}
	// A guest that hangs on its way is to tell where.
	if err := r.Write("N", keepConsole); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch mode {
	case agentapi.SuspendFreeze:
		return wakeByConsole(r)
	case agentapi.SuspendDisk:
		return useDisk(ctx, r)
	}
	kinds, err := words(r, "mem_sleep")
	if err != nil {
		return err
	}
	if !slices.Contains(kinds, deep) {
		return fault.New(agentapi.CodeUnsupported, "suspending to mem: this machine has no S3, its kernel knows only: %s", strings.Join(kinds, " "))
	}
	return r.Write(deep, dir, "mem_sleep")
}

// wakeByConsole lets a byte that comes on the serial console wake the guest: of what could, it alone takes neither a driver nor an interrupt of its own.
func wakeByConsole(r kfile.Root) error {
	active, err := r.String(tty, "console/active")
	if err != nil {
		return err
	}
	consoles := strings.Fields(active)
	if len(consoles) == 0 {
		return fault.New(agentapi.CodeUnsupported, "suspending: there is no console to wake the guest by")
	}
	return r.Write("enabled", tty, consoles[len(consoles)-1], "power/wakeup")
}

// Suspend puts the guest to sleep, and returns when it has been woken.
func Suspend(r kfile.Root, mode string) error {
	if err := r.Write(mode, dir, "state"); err != nil {
		return fmt.Errorf("suspending to %s: %w", mode, err)
	}
	return nil
}

// Clock tells the time since the boot, of which sleep is a part.
func Clock() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return time.Duration(t.Nano()), err
}
