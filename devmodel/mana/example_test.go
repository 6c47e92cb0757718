package mana_test

import (
	"fmt"

	"irqlab/devmodel/mana"
	"irqlab/devmodel/pcifn"
)

// A function with four queues behind a table of five vectors, ready to be served on a socket (devmodel.Listen).
func Example() {
	f, err := mana.New(mana.Config{Vectors: 5, Queues: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	cfg := pcifn.DefaultConfig()
	cfg.Vectors = 5
	if _, err := pcifn.New(cfg, f); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(f.Roles()), "event queues before a driver comes")
	fmt.Println(f.PostEvent(mana.ResetRequest()))
	// Output:
	// 0 event queues before a driver comes
	// gdma: event 135: the driver has not set up the hardware channel
}

func ExampleNew_refuses() {
	_, err := mana.New(mana.Config{VPorts: 17})
	fmt.Println(err)
	// Output: mana: 17 vPorts: want 1 to 16
}
