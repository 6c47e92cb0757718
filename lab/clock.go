package lab

import (
	"context"
	"fmt"
	"time"
)

const (
	clockSpan = time.Second // for which a guest's clock is watched at least
	clockOff  = 0.05        // by which part of it the clock may be off; /proc/uptime tells hundredths of a second
)

// clockError tells that a guest's clock does not keep time. A kernel calibrates its TSC by another timer while it boots; on a host whose load keeps the emulated CPU from
// running at the wrong moment, the result can be off by any factor (6.3 was seen), and with it every timeout of the kernel's drivers.
type clockError struct {
	guest    time.Duration // by the guest's clock
	from, to time.Duration // by the host's, between which it lies
}

func (e *clockError) Error() string {
	return fmt.Sprintf("the guest's clock went on by %.2f s while %.2f to %.2f s passed: the host was too busy while its kernel calibrated it; try again with less load", e.guest.Seconds(),
		e.from.Seconds(), e.to.Seconds())
}

// clockReading is the guest's uptime at some moment between two of the host's.
type clockReading struct {
	after, before time.Time
	uptime        time.Duration
}

func readClock(ctx context.Context, a *Agent) (clockReading, error) {
	r := clockReading{after: time.Now()}
	info, err := a.Info(ctx)
	r.before = time.Now()
	r.uptime = time.Duration(info.UptimeS * float64(time.Second))
	return r, err
}

// checkClock compares how the guest's clock and the host's went on since a first reading, at least for clockSpan. The error is a *clockError if the guest's is wrong.
func checkClock(ctx context.Context, a *Agent, first clockReading) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(time.Until(first.before.Add(clockSpan))):
	}
	second, err := readClock(ctx, a)
	if err != nil {
		return err
	}
	return first.compare(second)
}

func (r clockReading) compare(later clockReading) error {
	e := &clockError{guest: later.uptime - r.uptime, from: later.after.Sub(r.before), to: later.before.Sub(r.after)}
	if e.guest.Seconds() < e.from.Seconds()*(1-clockOff) || e.guest.Seconds() > e.to.Seconds()*(1+clockOff) {
		return e
	}
	return nil
}
