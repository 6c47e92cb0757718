package lab

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
)

// Reading is what the guest's kernel said of vectors at one moment.
type Reading struct {
	Online  cpulist.List
	Vectors []VectorReading // ascending index
}

// VectorReading is one vector's part of a Reading: the vector, with what was said of the very IRQ that it has.
type VectorReading struct {
	agentapi.Vector
	State agentapi.IRQ
	// Handled are the CPUs that handled what was fired last, as Settle tells; nil where that is not known.
	Handled cpulist.List
	// Unsettled: Settle gave the vector up.
	Unsettled bool
}

// HandledSince are the CPUs whose count of the vector's interrupts is higher than in a reading before.
func (v *VectorReading) HandledSince(was VectorReading) (cpus cpulist.List) {
	for _, cpu := range slices.Sorted(maps.Keys(v.State.Counts)) {
		if v.State.Counts[cpu] > was.State.Counts[cpu] {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// Of returns what the reading says of a vector.
func (r *Reading) Of(index int) (VectorReading, bool) {
	i, ok := slices.BinarySearchFunc(r.Vectors, index, func(v VectorReading, index int) int { return v.Index - index })
	if !ok {
		return VectorReading{}, false
	}
	return r.Vectors[i], true
}

// read ties vectors to the answers about their IRQs. An answer that is missing, or about an IRQ that nobody asked for, is no reading.
func read(vectors []agentapi.Vector, seen agentapi.Observation) (Reading, error) {
	r := Reading{Online: seen.Online}
	of := map[int]int{} // IRQ -> vector
	for _, v := range vectors {
		state, ok := seen.IRQs[v.IRQ]
		if !ok {
			return Reading{}, fmt.Errorf("vector %d: the guest was asked for IRQ %d and told nothing of it", v.Index, v.IRQ)
		}
		if other, taken := of[v.IRQ]; taken {
			return Reading{}, fmt.Errorf("vectors %d and %d: the guest says that both have IRQ %d", other, v.Index, v.IRQ)
		}
		of[v.IRQ] = v.Index
		r.Vectors = append(r.Vectors, VectorReading{Vector: v, State: state})
	}
	if len(seen.IRQs) != len(vectors) {
		return Reading{}, fmt.Errorf("the guest was asked for %d IRQs and answered for %d", len(vectors), len(seen.IRQs))
	}
	slices.SortFunc(r.Vectors, func(a, b VectorReading) int { return a.Index - b.Index })
	return r, nil
}

// irqs are the guest's numbers for vectors.
func irqs(vectors []agentapi.Vector) []int {
	irqs := make([]int, len(vectors))
	for i, v := range vectors {
		irqs[i] = v.IRQ
	}
	return irqs
}

// Observe reads what the kernel says of vectors.
func (a *Agent) Observe(ctx context.Context, vectors []agentapi.Vector) (Reading, error) {
	seen, err := call[agentapi.Observation](ctx, a, agentapi.MethodObserve, agentapi.ObserveParams{IRQs: irqs(vectors)})
	if err != nil {
		return Reading{}, err
	}
	return read(vectors, seen)
}

// Await waits until each vector of a reading has been handled once more, and reads them again.
func (a *Agent) Await(ctx context.Context, before Reading, timeout time.Duration) (Reading, error) {
	p := agentapi.AwaitParams{Above: before.Totals(), TimeoutMS: int(timeout.Milliseconds())}
	seen, err := call[agentapi.Observation](ctx, a, agentapi.MethodAwait, p)
	if err != nil {
		return Reading{}, err
	}
	vectors := make([]agentapi.Vector, len(before.Vectors))
	for i, v := range before.Vectors {
		vectors[i] = v.Vector
	}
	return read(vectors, seen)
}

// Totals are how many interrupts of each vector have been handled, by IRQ.
func (r *Reading) Totals() map[int]uint64 {
	totals := map[int]uint64{}
	for _, v := range r.Vectors {
		totals[v.IRQ] = v.State.Total
	}
	return totals
}
