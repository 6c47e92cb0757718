// Package gotest shows how a driver developer's own test uses irqlab. Copy it, change the question, run `go test`.
package gotest

import (
	"context"
	"testing"
	"time"

	"irqlab/guestagent/agentapi"
	"irqlab/lab"
	"irqlab/lab/machine"
)

// With interrupt remapping an affinity takes effect at once. Does every strategy keep its vectors inside the masks it asks for, and does linear give each queue a CPU
// of its own? One VM answers for all strategies: closing the function frees its vectors.
func TestStrategiesUnderRemapping(t *testing.T) {
	t.Parallel() // VMs are independent
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()

	vm, err := lab.Start(ctx, lab.Config{Irqchip: machine.Remapped})
	if err != nil {
		t.Fatal(err)
	}
	defer vm.Close()
	const total = 5 // HWC and four queues on four CPUs
	function, err := vm.Attach(ctx, lab.FunctionConfig{Vectors: total})
	if err != nil {
		t.Fatal(err)
	}

	for _, strategy := range []string{"numa-aware", "linear", "siblings", "all-online"} {
		t.Run(strategy, func(t *testing.T) {
			fn, err := vm.Agent.OpenFunction(ctx, agentapi.OpenFunctionParams{Vendor: lab.VendorID, Device: lab.ManaID, WaitMS: 10_000})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := vm.Agent.CloseFunction(ctx, fn.Address); err != nil {
					t.Error(err)
				}
			}()
			vectors, err := vm.Agent.AddVectors(ctx, fn.Address, 0, total)
			if err != nil {
				t.Fatal(err)
			}
			applied, err := vm.Agent.Apply(ctx, agentapi.ApplyParams{Strategy: strategy, Node: fn.Node, Total: total, HWC: &vectors[0], Queues: vectors[1:]})
			if err != nil {
				t.Fatal(err)
			}
			seen, err := function.Settle(ctx, vm.Agent, vectors)
			if err != nil {
				t.Fatal(err)
			}
			used := map[string]int{}
			for i, v := range seen.Vectors {
				irq := v.State
				if got, want := irq.Affinity.String(), applied.Masks[i].Mask.String(); got != want {
					t.Errorf("vector %d: mask %s, want %s", i, got, want)
				}
				if irq.Pending() {
					t.Errorf("vector %d: effective CPU %s is outside its mask %s", i, irq.Effective, irq.Affinity)
				}
				if i > 0 {
					used[irq.Effective.String()]++
				}
			}
			if strategy == "linear" && len(used) != total-1 {
				t.Errorf("queues per CPU: %v, want one each", used)
			}
		})
	}
}
