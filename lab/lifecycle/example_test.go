package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"irqlab/lab"
	"irqlab/lab/lifecycle"
)

// A patched driver is to survive a hundred lives on a function with two ports.
func Example() {
	ctx := context.Background()
	vm, err := lab.Start(ctx, lab.Config{Kernel: "/home/me/linux"})
	if err != nil {
		log.Fatal(err)
	}
	defer vm.Close()
	cfg := lab.FunctionConfig{Vectors: 9}
	cfg.MANA.VPorts = 2
	f, err := vm.Attach(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	report, err := lifecycle.Run(ctx, vm, f, lifecycle.Config{Cycles: 100})
	var wrong *lifecycle.Error
	if errors.As(err, &wrong) {
		fmt.Printf("life %d ended at %s: %v\n", wrong.Cycle, wrong.Step, wrong.Err)
	} else if err != nil {
		log.Fatal(err) // the lab's own trouble
	}
	fmt.Println(report.Cycles, "lives,", report.Resets, "resets")
}
