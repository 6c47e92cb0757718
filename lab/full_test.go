package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"irqlab/images"
	"irqlab/lab/qemu"
)

// On a full disk there is no snapshot: the error names the cache, what is free and what is needed; --start auto boots instead, and nothing is left of the try. Without room
// for any snapshot nothing is booted for one, nor once it is known what this one takes.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=48m,mode=0700"); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	small, err := images.OpenCache(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := prepare(testContext(t), Config{Start: StartAuto, Cmdline: []string{fmt.Sprintf("irqlab.test=full-%d", time.Now().UnixNano())}})
	if err != nil {
		t.Fatal(err)
	}
	booted := 0
	b.cfg.Cache = small
	b.cfg.Progress = func(what string, _, _ int64) {
		if strings.Contains(what, "to fork it") {
			booted++
		}
	}
	vm, err := b.warm(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := vm.Close(); err != nil {
		t.Error(err)
	}
	if vm.Start != StartCold || len(vm.Notes) != 1 || !strings.Contains(vm.Notes[0], "no space left for the cache "+dir) || !strings.Contains(vm.Notes[0], " MiB needed") {
		t.Errorf("started %s with notes %q", vm.Start, vm.Notes)
	}
	left, err := filepath.Glob(filepath.Join(dir, "tmp", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	b.cfg.Start = StartWarm
	var full *images.NoSpaceError
	if err := b.snapshot(testContext(t), t.TempDir()); !errors.As(err, &full) || full.Dir != dir || full.Need < 50<<20 || full.Free < 40<<20 || full.Free >= 48<<20 {
		t.Errorf("once it is known what it takes: %v, %+v", err, full)
	}
	if _, err := b.warm(testContext(t)); err == nil || !strings.Contains(err.Error(), "warm start: no snapshot: no space left for the cache "+dir) || !strings.Contains(err.Error(), "start cold, or auto") {
		t.Errorf("warm: %v", err)
	}
	b.machine.Cmdline = append(b.machine.Cmdline, "irqlab.test2=1") // another snapshot
	if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 30<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.snapshot(testContext(t), t.TempDir()); !errors.As(err, &full) || full.Need != leastSnapshot {
		t.Errorf("no room for any: %v", err)
	}
	if booted != 1 {
		t.Errorf("booted %d times for a snapshot, want once", booted)
	}
	// What is full need not be a whole disk: a user's share of it, which the system tells apart by its number only.
	for _, errno := range []error{unix.ENOSPC, unix.EDQUOT} {
		if err := small.Room(1<<20, &qemu.NoRoomError{Need: 1 << 20, Err: errno}); !errors.As(err, &full) || !errors.Is(err, errno) {
			t.Errorf("%v: %v", errno, err)
		}
	}
}
