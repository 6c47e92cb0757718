package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"irqlab/guestagent/agentapi"
)

// AsleepError tells that a guest which was put to sleep did not go on.
type AsleepError struct {
	Mode  string
	Slept bool // it is known to have fallen asleep: of to idle nobody tells
	Woken bool // it was to be woken
	Err   error
}

func (e *AsleepError) Error() string {
	switch {
	case e.Woken && e.Slept:
		return fmt.Sprintf("the guest, suspended to %s, was woken and did not go on: %v", e.Mode, e.Err)
	case e.Woken:
		return fmt.Sprintf("the guest was told to suspend to %s, and later to wake up, and did not go on: %v", e.Mode, e.Err)
	}
	return fmt.Sprintf("the guest was told to suspend to %s, and neither fell asleep nor said no: %v", e.Mode, e.Err)
}

func (e *AsleepError) Unwrap() error { return e.Err }

// wakeAgain is how long after a byte on the console the next one follows, should the first have come before the guest slept.
const wakeAgain = time.Second

// Suspend puts the guest to sleep, wakes it after a while, and waits until it goes on. Meanwhile calls to the agent wait. To idle (agentapi.SuspendFreeze) it is woken by a byte
// on its console; from RAM (agentapi.SuspendMem) by QEMU, which resets all devices, functions included. A guest that does not go on before ctx ends is an *AsleepError; one
// that will not sleep an *agentapi.Error.
func (vm *VM) Suspend(ctx context.Context, mode string, asleep time.Duration) (agentapi.Suspended, error) {
	wake := vm.Agent.hush()
	defer wake()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	since := vm.process.EventCount()
	type answer struct {
		agentapi.Suspended
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		s, err := call[agentapi.Suspended](whileAsleep(ctx), vm.Agent, agentapi.MethodSuspend, agentapi.SuspendParams{Mode: mode})
		answered <- answer{s, err}
	}()
	slept := make(chan error, 1)
	if mode == agentapi.SuspendMem {
		go func() { slept <- vm.process.AwaitSuspend(ctx, since) }()
	} else {
		slept <- nil
	}
	e := &AsleepError{Mode: mode}
	var next <-chan time.Time
	for {
		select {
		case a := <-answered:
			if a.err != nil && ctx.Err() != nil && !errors.As(a.err, new(*agentapi.Error)) {
				e.Err = a.err
				return a.Suspended, e
			}
			return a.Suspended, a.err
		case err := <-slept:
			if err != nil && ctx.Err() == nil {
				return agentapi.Suspended{}, err
			}
			if err == nil {
				e.Slept = mode == agentapi.SuspendMem
				next = time.After(asleep)
			}
			slept = nil
		case <-next:
			e.Woken, next = true, nil
			err := error(nil)
			if mode == agentapi.SuspendMem {
				err = vm.process.WakeUp(ctx)
			} else {
				err = vm.process.TypeOnConsole("\n")
				next = time.After(wakeAgain)
			}
			if err != nil {
				return agentapi.Suspended{}, err
			}
		}
	}
}

// silence keeps calls back while the guest sleeps: what it is sent would wait in its buffers, which sleep empties.
type silence struct {
	mu   sync.Mutex
	over chan struct{} // closed when it is; nil: there is none
}

// hush begins a silence, which the returned function ends. Only one at a time lasts.
func (a *Agent) hush() (end func()) {
	over := make(chan struct{})
	for {
		a.silence.mu.Lock()
		before := a.silence.over
		if before == nil {
			a.silence.over = over
			a.silence.mu.Unlock()
			break
		}
		a.silence.mu.Unlock()
		<-before
	}
	return func() {
		a.silence.mu.Lock()
		a.silence.over = nil
		a.silence.mu.Unlock()
		close(over)
	}
}

type asleepKey struct{}

// whileAsleep marks the one call that no silence keeps back.
func whileAsleep(ctx context.Context) context.Context {
	return context.WithValue(ctx, asleepKey{}, true)
}

// await waits for the end of a silence.
func (s *silence) await(ctx context.Context) error {
	if ctx.Value(asleepKey{}) != nil {
		return nil
	}
	for {
		s.mu.Lock()
		over := s.over
		s.mu.Unlock()
		if over == nil {
			return nil
		}
		select {
		case <-over:
		case <-ctx.Done():
			return fmt.Errorf("the guest sleeps: %w", context.Cause(ctx))
		}
	}
}

// Remove has the guest's kernel forget a function, whoever drives it. The machine keeps it.
func (a *Agent) Remove(ctx context.Context, address string) error {
	_, err := call[agentapi.Empty](ctx, a, agentapi.MethodRemove, agentapi.FunctionParams{Address: address})
	return err
}

// Rescan has the guest's kernel look for functions on all buses. A driver that is loaded has probed what was found when it returns, well or not.
func (a *Agent) Rescan(ctx context.Context) error {
	_, err := call[agentapi.Empty](ctx, a, agentapi.MethodRescanAll, agentapi.Empty{})
	return err
}
