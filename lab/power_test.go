package lab

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"irqlab/guestagent/agentapi"
)

// Calls wait while the guest sleeps, but for the one that put it to sleep; one whose time is over meanwhile says what kept it.
func TestSilence(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	a := newAgent(ours)
	defer a.close()
	wake := a.hush()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := a.Info(ctx); err == nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the guest sleeps") {
		t.Errorf("while the guest sleeps: %v", err)
	}
	sent := make(chan string, 2)
	go func() {
		line := make([]byte, 512)
		for {
			n, err := theirs.Read(line)
			if err != nil {
				return
			}
			sent <- string(line[:n])
		}
	}()
	go func() { _, _ = a.Info(t.Context()) }()
	go func() {
		_, _ = call[agentapi.Suspended](whileAsleep(t.Context()), a, agentapi.MethodSuspend, agentapi.SuspendParams{Mode: agentapi.SuspendFreeze})
	}()
	if first := <-sent; !strings.Contains(first, agentapi.MethodSuspend) {
		t.Errorf("the guest was sent %s", first)
	}
	second := make(chan func())
	go func() { second <- a.hush() }()
	select {
	case <-second:
		t.Error("two silences at once")
	case more := <-sent:
		t.Errorf("a sleeping guest was sent %s", more)
	case <-time.After(5 * time.Millisecond):
	}
	wake()
	(<-second)()
	if next := <-sent; !strings.Contains(next, agentapi.MethodInfo) {
		t.Errorf("the guest was sent %s", next)
	}
}

func TestAsleepError(t *testing.T) {
	why := errors.New("not done within 1m")
	for want, e := range map[string]*AsleepError{
		"neither fell asleep nor said no: not done":                       {Mode: "mem", Err: why},
		"the guest, suspended to mem, was woken and did not go on":        {Mode: "mem", Slept: true, Woken: true, Err: why},
		"to suspend to freeze, and later to wake up, and did not go on: ": {Mode: "freeze", Woken: true, Err: why},
	} {
		if !strings.Contains(e.Error(), want) || !errors.Is(e, why) {
			t.Errorf("%q is not in %q", want, e)
		}
	}
}
