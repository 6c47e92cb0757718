package qemu

import (
	"context"
	"fmt"

	"github.com/digitalocean/go-qemu/qmp"
)

// TypeOnConsole sends the guest's serial console what somebody at it would type.
func (p *Process) TypeOnConsole(text string) error {
	if _, err := p.serial.Write([]byte(text)); err != nil {
		return fmt.Errorf("console: %w", err)
	}
	return nil
}

// EventCount is how many events QEMU has sent: where AwaitSuspend begins to look.
func (p *Process) EventCount() int { return p.eventCount() }

// AwaitSuspend waits until the guest has put the machine to sleep (S3), by an event that followed the first since ones.
func (p *Process) AwaitSuspend(ctx context.Context, since int) error {
	_, err := p.waitEvent(ctx, since, func(e qmp.Event) bool { return e.Event == "SUSPEND" })
	return err
}

// WakeUp wakes a machine that sleeps. It resets its devices, functions included.
func (p *Process) WakeUp(ctx context.Context) error { return p.QMP(ctx, "system_wakeup", nil, nil) }

// AttachDisk plugs a disk into a slot of the machine. What is written to it lands in the file.
func (p *Process) AttachDisk(ctx context.Context, slot, file, serial string) error {
	for _, s := range p.machine.Slots {
		if s.ID != slot {
			continue
		}
		if err := p.QMP(ctx, "blockdev-add", map[string]any{"driver": "file", "node-name": "disk-" + slot, "filename": file}, nil); err != nil {
			return err
		}
		// As few vectors as a disk can do with.
		return p.QMP(ctx, "device_add", map[string]any{"driver": "nvme", "id": "drive-" + slot, "bus": s.Bus(), "drive": "disk-" + slot, "serial": serial, "max_ioqpairs": 1, "msix_qsize": 2}, nil)
	}
	return fmt.Errorf("the machine has no slot %q", slot)
}
