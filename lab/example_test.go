package lab_test

import (
	"context"
	"fmt"
	"log"

	"irqlab/guestagent/agentapi"
	"irqlab/lab"
)

// Both threads of the first core may take the first two queue vectors. Ask a real kernel whether it put them there.
func Example() {
	ctx := context.Background()
	vm, err := lab.Start(ctx, lab.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer vm.Close()

	function, err := vm.Attach(ctx, lab.FunctionConfig{Vectors: 3})
	if err != nil {
		log.Fatal(err)
	}
	opened, err := vm.Agent.OpenFunction(ctx, agentapi.OpenFunctionParams{Vendor: lab.VendorID, Device: lab.ManaID, WaitMS: 10_000})
	if err != nil {
		log.Fatal(err)
	}
	vectors, err := vm.Agent.AddVectors(ctx, opened.Address, 0, 3)
	if err != nil {
		log.Fatal(err)
	}
	plan := agentapi.ApplyParams{Strategy: "siblings", Node: opened.Node, Total: 3, HWC: &vectors[0], Queues: vectors[1:]}
	if _, err := vm.Agent.Apply(ctx, plan); err != nil {
		log.Fatal(err)
	}
	seen, err := function.Settle(ctx, vm.Agent, vectors)
	if err != nil {
		log.Fatal(err)
	}
	for _, v := range seen.Vectors {
		fmt.Printf("vector %d: requested %s, settled %t\n", v.Index, v.State.Affinity, !v.State.Pending())
	}
	// Output:
	// vector 0: requested 0-1, settled true
	// vector 1: requested 0-1, settled true
	// vector 2: requested 0-1, settled true
}
