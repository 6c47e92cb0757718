package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// stormBatch is how many rounds the guest does before it answers: enough that asking costs nothing, few enough that a storm whose step has failed is soon over.
const stormBatch = 10

// volley fires vectors again and again such that every interrupt can be counted: signals of one vector merge when the next comes before QEMU and the guest have taken
// the last, so a vector is fired again only after the guest has counted the former interrupt.
type volley struct {
	s       *stepper
	vectors []agentapi.Vector
	before  lab.Reading
	fired   map[int]uint64 // by the device, by vector, when the volley began
	rounds  uint64         // done
	above   map[int]uint64 // handled so far, by IRQ
	ahead   map[int]uint64 // by vector: result.StormVector.Ahead
}

// quietTries is how often a volley looks for a moment in which nothing fires.
const quietTries = 10

// volley begins one, in a moment when everything that has fired is handled: what the device had signalled by itself just before would be counted on one side only.
func (s *stepper) volley(ctx context.Context, vectors []agentapi.Vector) (*volley, error) {
	v := &volley{s: s, vectors: vectors, ahead: map[int]uint64{}}
	for range quietTries {
		fired := s.firedBy(vectors)
		seen, err := s.vm.Agent.Observe(ctx, vectors)
		if err != nil {
			return nil, err
		}
		above := seen.Totals()
		quiet := maps.Equal(fired, v.fired) && maps.Equal(above, v.above)
		v.fired, v.before, v.above = fired, seen, above
		if quiet {
			break
		}
	}
	return v, nil
}

// firedBy is how often the device has fired each of the vectors so far.
func (s *stepper) firedBy(vectors []agentapi.Vector) map[int]uint64 {
	states := s.fn.PCI.VectorStates()
	fired := map[int]uint64{}
	for _, v := range vectors {
		fired[v.Index] = states[v.Index].Fired
	}
	return fired
}

// round fires every vector once and waits until each is handled. An interrupt that is not is a *lab.LostError.
func (v *volley) round(ctx context.Context) error {
	out, err := v.s.fn.Volley(v.vectors)
	if err != nil {
		return err
	}
	seen, err := v.s.vm.Agent.AwaitTotals(ctx, v.above, handleTime)
	if err == nil {
		err = out(ctx)
	}
	if err != nil {
		return lab.AsLost(err)
	}
	v.above = seen
	v.rounds++
	v.compare(seen)
	return nil
}

// compare takes note of the vectors of which more has been handled than fired: totals is what the guest has counted, by IRQ, read before this.
func (v *volley) compare(totals map[int]uint64) {
	fired := v.s.firedBy(v.vectors)
	for _, was := range v.before.Vectors {
		v.ahead[was.Index] = max(v.ahead[was.Index], result.Ahead(fired[was.Index]-v.fired[was.Index], totals[was.IRQ]-was.State.Total))
	}
}

// count compares, vector by vector, what the device has fired since the volley began with what the guest has handled.
func (v *volley) count(ctx context.Context) ([]result.StormVector, error) {
	after, err := v.s.vm.Agent.Observe(ctx, v.vectors)
	if err != nil {
		return nil, err
	}
	v.compare(after.Totals())
	fired := v.s.firedBy(v.vectors)
	var counts []result.StormVector
	for _, now := range after.Vectors {
		was, _ := v.before.Of(now.Index)
		n := fired[now.Index] - v.fired[now.Index]
		counts = append(counts, result.StormVector{Index: now.Index, Fired: n, Own: n - v.rounds, Handled: now.State.Total - was.State.Total, Ahead: v.ahead[now.Index]})
	}
	return counts, nil
}

// fire fires vectors so many times, each time after the guest has handled the last.
func (s *stepper) fire(ctx context.Context, f scenarios.Fire) error {
	vectors, err := s.vectors(ctx)
	if err != nil {
		return err
	}
	if f.Vectors != nil {
		var there cpulist.List
		for _, v := range vectors {
			there = append(there, v.Index)
		}
		if gone := cpulist.List(f.Vectors).Minus(there); len(gone) > 0 {
			return refusef("vectors %s: nobody handles their interrupts; those handled are %s", gone, there)
		}
		vectors = slices.DeleteFunc(vectors, func(v agentapi.Vector) bool { return !cpulist.List(f.Vectors).Has(v.Index) })
	}
	v, err := s.volley(ctx, vectors)
	for range f.Times() - 1 {
		if err == nil {
			err = v.round(ctx)
		}
	}
	if err != nil {
		return err
	}
	return v.last(ctx)
}

// last is a round after which it is known where its interrupts were handled, of the vectors that did not move meanwhile.
func (v *volley) last(ctx context.Context) error {
	before, err := v.s.vm.Agent.Observe(ctx, v.vectors)
	if err == nil {
		err = v.round(ctx)
	}
	if err != nil {
		return err
	}
	after, err := v.s.vm.Agent.Observe(ctx, v.vectors)
	if err != nil {
		return err
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	v.s.handled.learn(before, after)
	return nil
}

// handlers are the CPUs that have handled what was fired last, by vector.
type handlers map[int]lab.VectorReading

// learn takes them from readings before and after, of the vectors that both find routed to the same CPUs; of others it forgets what it knew.
func (h *handlers) learn(before, after lab.Reading) {
	if *h == nil {
		*h = handlers{}
	}
	for _, v := range after.Vectors {
		was, _ := before.Of(v.Index)
		if v.Handled = v.HandledSince(was); was.IRQ == v.IRQ && slices.Equal(was.State.Effective, v.State.Effective) {
			(*h)[v.Index] = v
		} else {
			delete(*h, v.Index)
		}
	}
}

// tell completes a reading by them, where it still finds the vector as it was.
func (h handlers) tell(r *lab.Reading) {
	for i := range r.Vectors {
		v := &r.Vectors[i]
		if k, ok := h[v.Index]; ok && k.IRQ == v.IRQ && slices.Equal(k.State.Effective, v.State.Effective) {
			v.Handled = k.Handled
		}
	}
}

// storm takes CPUs offline and online again, round after round, while a volley goes on from before the first round to after the last. A CPU that leaves takes itself out of
// the masks of the vectors it had, so each round gives the masks back: else nothing would have to move after the first.
func (s *stepper) storm(ctx context.Context, p scenarios.Storm, facts *result.Step) error {
	vectors, err := s.vectors(ctx)
	if err != nil {
		return err
	}
	v, err := s.volley(ctx, vectors)
	if err != nil {
		return err
	}
	var masks []agentapi.AppliedMask
	for _, x := range v.before.Vectors {
		masks = append(masks, agentapi.AppliedMask{Index: x.Index, IRQ: x.IRQ, Mask: x.State.Affinity})
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := make(chan struct{})
	fired := make(chan error, 1)
	go func() {
		fired <- contain(func() error {
			for {
				if err := v.round(ctx); err != nil {
					cancel(err)
					return err
				}
				select {
				case <-over:
					return nil
				default:
				}
			}
		})
	}()
	err = s.stormRounds(ctx, p, masks)
	close(over)
	if err != nil {
		cancel(err)
	}
	if lost := <-fired; err == nil || errors.As(lost, new(*lab.LostError)) {
		err = lost
	}
	if err != nil {
		return fmt.Errorf("after %d volleys: %w", v.rounds, err)
	}
	if err := v.last(ctx); err != nil {
		return err
	}
	counts, err := v.count(ctx)
	facts.Storm = &result.Storm{Rounds: int(p.Rounds), Vectors: counts}
	return err
}

// stormRounds has the guest do the rounds, some at a time.
func (s *stepper) stormRounds(ctx context.Context, p scenarios.Storm, masks []agentapi.AppliedMask) error {
	for done := 0; done < int(p.Rounds); {
		n := min(stormBatch, int(p.Rounds)-done)
		s.opts.status(Status{Case: s.c, Stage: fmt.Sprintf("storm, round %d of %d", done+1, p.Rounds)})
		if err := s.vm.Agent.Storm(ctx, p.Offline, n, masks); err != nil {
			return fmt.Errorf("in rounds %d to %d: %w", done+1, done+n, err)
		}
		done += n
	}
	return nil
}
