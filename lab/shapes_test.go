package lab

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"irqlab/lab/machine"
)

// A guest above the size that QEMU emulates on threads of their own boots on one CPU and brings up the others; it must end up in the shape it was given, node by node
// and thread by thread. It is forked, since on a busy host a boot's clock may come out wrong, which a snapshot's is checked for. With IRQLAB_ALL set (`task agreement`) so do the largest.
func TestManyCPUs(t *testing.T) {
	t.Parallel()
	shapes := []machine.Shape{{Sockets: 4, Cores: 3, Threads: 2, Nodes: 8, MemoryMiB: 1024}} // as many nodes as there may be, and no power of two of cores
	if os.Getenv("IRQLAB_ALL") != "" {
		shapes = append(shapes,
			machine.Shape{Sockets: 2, Cores: 32, Threads: 2, Nodes: 2, MemoryMiB: 2048},
			machine.Shape{Sockets: 8, Cores: 8, Threads: 2, Nodes: 8, MemoryMiB: 2048})
	}
	for _, shape := range shapes {
		t.Run(shape.String(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute+time.Duration(shape.CPUs())*10*time.Second) // on a busy machine
			defer cancel()
			vm, err := Start(ctx, Config{Shape: shape, Start: StartWarm})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := vm.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}()
			info, err := vm.Agent.Info(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(shape.Topology(nil), info.CPUs); d != "" {
				t.Errorf("(-shape +guest)\n%s", d)
			}
			if f := vm.Console().Scan(); len(f) > 0 {
				t.Errorf("the kernel complained: %v", f)
			}
		})
	}
}
