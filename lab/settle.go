package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
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

// UnsettledError tells of vectors that were fired again and again and did not come to rest: still outside of their requested masks, or handled elsewhere than the kernel
// says that they are routed to.
type UnsettledError struct {
	Vectors []VectorReading
}

func (e *UnsettledError) Error() string {
	words := make([]string, len(e.Vectors))
	for i, v := range e.Vectors {
		words[i] = fmt.Sprintf("vector %d: requested %s, effective %s, handled on %s", v.Index, v.State.Affinity, v.State.Effective, v.Handled)
	}
	return fmt.Sprintf("not settled after %d rounds: %s", settleRounds, strings.Join(words, "; "))
}

// Settle fires every vector until its effective CPUs lie in its requested mask and it is on them that the kernel has handled the last interrupt, and returns the
// last reading.
//
// With plain PCI-MSI the kernel moves a vector in the handler of its next interrupt, so nothing read before this means much, and the interrupt that moves it is still
// counted on the old CPU. With vectors that do not settle in several rounds the reading is returned, too, and the error is an *UnsettledError. A vector that is fired and
// not handled is a *LostError.
func (f *Function) Settle(ctx context.Context, a *Agent, vectors []agentapi.Vector) (Reading, error) {
	seen, err := a.Observe(ctx, vectors)
	if err != nil {
		return seen, err
	}
	f.Seen(seen)
	for range settleRounds {
		out, err := f.Volley(vectors)
		if err != nil {
			return seen, err
		}
		after, err := a.Await(ctx, seen, settleRound)
		if err == nil {
			err = out(ctx)
		}
		if err != nil {
			return seen, AsLost(err)
		}
		f.Seen(after)
		compare(seen, &after)
		if seen = after; len(seen.unsettled()) == 0 {
			return seen, nil
		}
	}
	return seen, &UnsettledError{seen.unsettled()}
}

// Volley fires vectors. Once the guest has handled an interrupt of each, out says whether those were the ones fired: the device signals by itself, too, and a rule may have
// kept ours back. It is a *LostError if so. A rule that still holds one is waited for: it may be letting go just now.
func (f *Function) Volley(vectors []agentapi.Vector) (out func(context.Context) error, _ error) {
	before := map[int]uint64{}
	for _, v := range vectors {
		before[v.Index] = f.PCI.Fired(v.Index)
		if err := f.PCI.Fire(v.Index); err != nil {
			return nil, fmt.Errorf("vector %d: %w", v.Index, err)
		}
	}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, settleRound)
		defer cancel()
		for _, v := range vectors {
			for f.PCI.Holds(v.Index) && ctx.Err() == nil {
				select {
				case <-ctx.Done():
				case <-time.After(time.Millisecond):
				}
			}
			if f.PCI.Fired(v.Index) == before[v.Index] {
				return &LostError{fmt.Errorf("vector %d: the interrupt was kept from being fired; what the guest handled meanwhile the device signalled by itself", v.Index)}
			}
		}
		return nil
	}, nil
}

// compare says of each vector of a reading where it was handled since the reading before, and whether that is where the kernel says that it is.
func compare(before Reading, after *Reading) {
	for i := range after.Vectors {
		v := &after.Vectors[i]
		was, _ := before.Of(v.Index)
		v.Handled = v.HandledSince(was)
		v.Unsettled = v.State.Pending() || len(v.Handled) == 0 || !v.Handled.Within(v.State.Effective)
	}
}

func (r *Reading) unsettled() []VectorReading {
	return slices.DeleteFunc(slices.Clone(r.Vectors), func(v VectorReading) bool { return !v.Unsettled })
}

// Seen puts a reading of the function's vectors on its timeline.
func (f *Function) Seen(seen Reading) {
	flag := map[bool]uint64{true: 1}
	for _, v := range seen.Vectors {
		for _, cpu := range v.State.Effective.Or(cpulist.New(slices.Collect(maps.Keys(v.State.Counts))...)) {
			f.Trace.Record(TraceRead, uint64(v.Index), uint64(v.IRQ), uint64(cpu), v.State.Counts[cpu], flag[v.State.Effective.Has(cpu)], flag[v.State.Pending()])
		}
	}
}
