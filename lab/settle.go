package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"irqlab/guestagent/agentapi"
)

const (
	settleRound  = 10 * time.Second // how long the guest may take to handle what was fired
	settleRounds = 5                // how often a vector is fired before it counts as stuck
)

// LostError tells that the guest did not handle vectors that were fired: a lost interrupt.
type LostError struct {
	Err error // the guest's words, naming the IRQs
}

func (e *LostError) Error() string { return "fired vectors were not handled: " + e.Err.Error() }
func (e *LostError) Unwrap() error { return e.Err }

// AsLost makes a *LostError of what the guest says when vectors that were fired have not been handled in time; any other error stays what it is.
func AsLost(err error) error {
	var guest *agentapi.Error
	if errors.As(err, &guest) && guest.Code == agentapi.CodeTimeout {
		return &LostError{err}
	}
	return err
}

// IRQs are the guest's numbers for vectors, in their order.
func IRQs(vectors []agentapi.Vector) []int {
	irqs := make([]int, len(vectors))
	for i, v := range vectors {
		irqs[i] = v.IRQ
	}
	return irqs
}

// Settle fires every vector until its effective CPUs lie in its requested mask and it is on them that the kernel has handled the last interrupt, and returns the
// last reading.
//
// With plain PCI-MSI the kernel moves a vector in the handler of its next interrupt, so nothing read before this means much, and the interrupt that moves it is still
// counted on the old CPU. A vector that is still pending after several rounds is no error: the reading says so. A vector that is fired and not handled is a *LostError.
func (f *Function) Settle(ctx context.Context, a *Agent, vectors []agentapi.Vector) (agentapi.Observation, error) {
	seen, err := a.Observe(ctx, IRQs(vectors))
	if err != nil {
		return seen, err
	}
	f.Seen(vectors, seen)
	for range settleRounds {
		above := map[int]uint64{}
		for i, v := range vectors {
			above[v.IRQ] = seen.IRQs[i].Total
			if err := f.PCI.Fire(v.Index); err != nil {
				return seen, fmt.Errorf("vector %d: %w", v.Index, err)
			}
		}
		before := seen
		seen, err = a.Await(ctx, above, settleRound)
		if err = AsLost(err); err == nil {
			f.Seen(vectors, seen)
		}
		if err != nil || settled(before, seen) {
			return seen, err
		}
	}
	return seen, nil
}

// Seen puts a reading of the function's vectors on its timeline.
func (f *Function) Seen(vectors []agentapi.Vector, seen agentapi.Observation) {
	flag := map[bool]uint64{true: 1}
	for i, v := range vectors {
		irq := seen.IRQs[i]
		cpus := slices.Compact(slices.Sorted(slices.Values(slices.Concat(irq.Effective, slices.Collect(maps.Keys(irq.Counts))))))
		for _, cpu := range cpus {
			f.Trace.Record(TraceRead, uint64(v.Index), uint64(v.IRQ), uint64(cpu), irq.Counts[cpu], flag[irq.Effective.Has(cpu)], flag[irq.Pending()])
		}
	}
}

// settled reports whether no vector is pending and all that was handled between two readings was handled on the effective CPUs.
func settled(before, after agentapi.Observation) bool {
	for i, irq := range after.IRQs {
		if irq.Pending() {
			return false
		}
		for cpu, n := range irq.Counts {
			if n > before.IRQs[i].Counts[cpu] && !irq.Effective.Has(cpu) {
				return false
			}
		}
	}
	return true
}
