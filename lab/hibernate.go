package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"irqlab/guestagent/agentapi"
	"irqlab/lab/machine"
)

// DiskSlot is the id of the slot for the disk that a guest hibernates to: one that is to hibernate has it among Config.Slots, and nothing is attached to it before.
const DiskSlot = "disk"

const (
	page = 4096
	mib  = 1 << 20
)

// Hibernate has the guest write its memory to a disk and restore it from there, in the same machine, as the kernel does for a test: with all that it and its drivers do for
// a hibernation but the power-off. Meanwhile calls to the agent wait. A guest that does not go on before ctx ends is an *AsleepError.
func (vm *VM) Hibernate(ctx context.Context) (agentapi.Suspended, error) {
	if err := vm.plugDisk(ctx); err != nil {
		return agentapi.Suspended{}, err
	}
	wake := vm.Agent.hush()
	defer wake()
	s, err := call[agentapi.Suspended](whileAsleep(ctx), vm.Agent, agentapi.MethodSuspend, agentapi.SuspendParams{Mode: agentapi.SuspendDisk})
	if err != nil && ctx.Err() != nil && !errors.As(err, new(*agentapi.Error)) {
		err = &AsleepError{Mode: agentapi.SuspendDisk, Err: err}
	}
	return s, err
}

// NoDiskError tells that a machine was started without a place for the disk to hibernate to.
type NoDiskError struct{}

func (*NoDiskError) Error() string {
	return "the machine has no port for a disk to hibernate to: that takes a scenario with a hibernate step from its start"
}

// plugDisk plugs the disk in, once, and has the guest find it.
func (vm *VM) plugDisk(ctx context.Context) error {
	if !slices.ContainsFunc(vm.slots, func(s machine.Slot) bool { return s.ID == DiskSlot }) {
		return &NoDiskError{}
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.disk {
		return nil
	}
	file := filepath.Join(vm.Dir(), "hibernation.img")
	if err := swapFile(file, int64(vm.shape.MemoryMiB)*mib); err != nil {
		return fmt.Errorf("a disk to hibernate to: %w", err)
	}
	if err := vm.process.AttachDisk(ctx, DiskSlot, file, agentapi.SwapSerial); err != nil {
		return fmt.Errorf("a disk to hibernate to: %w", err)
	}
	vm.disk = true
	return vm.Agent.rescan(ctx)
}

// swapFile makes a file with the header of a swap area (version 1). It is sparse: it takes what the guest writes.
func swapFile(name string, size int64) error {
	header := make([]byte, page)
	binary.LittleEndian.PutUint32(header[1024:], 1)
	binary.LittleEndian.PutUint32(header[1028:], uint32(size/page-1)) // last page
	copy(header[page-10:], "SWAPSPACE2")
	if err := os.WriteFile(name, header, 0o600); err != nil {
		return err
	}
	return os.Truncate(name, size)
}
