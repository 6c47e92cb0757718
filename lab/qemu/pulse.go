package qemu

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pulseEvery = 250 * time.Millisecond
	// standstillMin is the least standstill that can be to blame for a wait in vain: the guest and QEMU give each other 5 s and more.
	standstillMin = 2 * time.Second
)

// Standstill is how long, at a stretch, somebody did not run while QEMU lived: stopped by a signal, asleep with the machine, or starved by it. Whatever was awaited
// meanwhile may have been in vain, by the clocks of either side.
type Standstill struct {
	Lab  time.Duration // this process
	QEMU time.Duration
}

// Matters tells whether it can have been the reason for anything.
func (s Standstill) Matters() bool { return s.Spoils(0) }

// Spoils tells whether it can have been the reason for a wait in vain that lasted so long; 0: of any of the usual waits. What is short beside the wait cannot.
func (s Standstill) Spoils(wait time.Duration) bool {
	least := standstillMin
	if wait > 0 {
		least = min(least, max(wait/4, pulseEvery))
	}
	return max(s.Lab, s.QEMU) >= least
}

func (s Standstill) String() string {
	switch {
	case s.QEMU > s.Lab:
		return fmt.Sprintf("QEMU did not run for %.1f s", s.QEMU.Seconds())
	default:
		return fmt.Sprintf("irqlab did not run for %.1f s", s.Lab.Seconds())
	}
}

// Standstill tells the longest so far.
func (p *Process) Standstill() Standstill { return p.pulse.beat() }

// pulse notices that this process, or its child QEMU, does not run. It beats regularly: a beat that comes late tells of the lab, by the clock that goes on while the machine
// sleeps; what the kernel tells a parent about its child's being stopped and continued tells of QEMU, also when the lab was stopped as well.
type pulse struct {
	mu      sync.Mutex
	pid     int
	last    time.Duration // beat, since the machine was started
	stopped time.Duration // since when QEMU is; 0: it runs
	longest Standstill
	over    bool // QEMU has ended, and nothing is awaited of it any more
}

func bootTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // which every kernel that runs Go has
	return time.Duration(ts.Nano())
}

func (p *pulse) begin(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pid, p.last = pid, bootTime()
}

func (p *pulse) watch(done <-chan struct{}) {
	tick := time.NewTicker(pulseEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			p.beat()
			p.end()
			return
		case <-tick.C:
			p.beat()
		}
	}
}

func (p *pulse) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
}

// beat looks at both.
func (p *pulse) beat() Standstill {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.pid == 0 {
		return p.longest
	}
	now := bootTime()
	p.longest.Lab = max(p.longest.Lab, now-p.last-pulseEvery)
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, p.pid, &info, unix.WSTOPPED|unix.WCONTINUED|unix.WNOHANG, nil)
		if err == unix.EINTR { //nolint:errorlint // a bare errno
			continue
		}
		if err != nil || info.Signo == 0 { // gone, or nothing new
			break
		}
		if info.Code == cldContinued {
			from := p.stopped
			if from == 0 {
				from = p.last // both happened since
			}
			p.longest.QEMU = max(p.longest.QEMU, now-from)
			p.stopped = 0
		} else if p.stopped == 0 {
			p.stopped = max(p.last, 1)
		}
	}
	if p.stopped != 0 {
		p.longest.QEMU = max(p.longest.QEMU, now-p.stopped)
	}
	p.last = now
	return p.longest
}

// cldContinued is the si_code of a child that goes on (waitid(2)); the others are of one that stands.
const cldContinued = 6
