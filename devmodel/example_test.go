package devmodel_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"irqlab/devmodel"
	"irqlab/devmodel/pcifn"
)

// magic is a behaviour with one register: it reads 0x42 wherever it is read.
type magic struct{}

func (magic) Attach(pcifn.Bus) {}
func (magic) ReadBAR(_ uint64, p []byte) {
	clear(p)
	p[0] = 0x42
}
func (magic) WriteBAR(uint64, []byte) {}
func (magic) Reset(pcifn.ResetKind)   {}

// A function is made, listens, is served to whichever QEMU attaches it, and fires a vector that nobody has enabled yet.
func Example() {
	dir, err := os.MkdirTemp("", "irqlab")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	cfg := pcifn.DefaultConfig()
	cfg.Vectors = 4
	fn, err := pcifn.New(cfg, magic{})
	if err != nil {
		log.Fatal(err)
	}
	dev, err := devmodel.Listen(filepath.Join(dir, "fn.sock"), fn)
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- dev.Serve(context.Background()) }()

	if err := fn.Fire(2); err != nil {
		log.Fatal(err)
	}
	v := fn.VectorStates()[2]
	fmt.Printf("vector %d: assigned %v, fired %d, pending %v\n", v.Index, v.Assigned, v.Fired, v.Pending)
	fmt.Println(fn.Fire(4))

	if err := dev.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("served:", <-served)
	// Output:
	// vector 2: assigned false, fired 1, pending true
	// fire vector 4: the function has vectors 0 to 3
	// served: <nil>
}
