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
