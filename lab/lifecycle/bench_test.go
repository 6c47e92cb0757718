package lifecycle_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"irqlab/devmodel/mana"
	"irqlab/guestagent/agentapi"
	"irqlab/lab"
	"irqlab/lab/machine"
)

// bench is a guest of a shape whose driver is to be timed; these benchmarks boot virtual machines, and -short leaves them out.
func bench(b *testing.B, shape machine.Shape, vectors int) (context.Context, *lab.VM) {
	if testing.Short() {
		b.Skip("boots a virtual machine")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	b.Cleanup(cancel)
	vm, err := lab.Start(ctx, lab.Config{Shape: shape, Accel: lab.AccelTCG})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = vm.Close() })
	if _, err := vm.Attach(ctx, lab.FunctionConfig{Vectors: vectors, MANA: mana.Config{}}); err != nil {
		b.Fatal(err)
	}
	return ctx, vm
}

// guestTime is how long f took by the guest's clock, two round trips to its agent included.
func guestTime(ctx context.Context, b *testing.B, vm *lab.VM, f func() error) float64 {
	b.Helper()
	before, err := vm.Agent.Info(ctx)
	if err != nil {
		b.Fatal(err)
	}
	if err := f(); err != nil {
		b.Fatal(err)
	}
	after, err := vm.Agent.Info(ctx)
	if err != nil {
		b.Fatal(err)
	}
	return after.UptimeS - before.UptimeS
}

func reportMedian(b *testing.B, seconds []float64) {
	slices.Sort(seconds)
	b.ReportMetric(seconds[len(seconds)/2], "guest-s/median")
}

// load inserts the driver and waits for its link.
func load(ctx context.Context, b *testing.B, vm *lab.VM) (link agentapi.Link) {
	b.Helper()
	if _, err := vm.Agent.LoadModule(ctx, "mana", ""); err != nil {
		b.Fatal(err)
	}
	for {
		links, err := vm.Agent.Links(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if i := slices.IndexFunc(links, func(l agentapi.Link) bool { return l.Driver == "mana" }); i >= 0 {
			return links[i]
		}
		time.Sleep(time.Millisecond)
	}
}

// BenchmarkDriverLoad is the driver's module from its insertion to a registered link, on 4 vCPUs.
func BenchmarkDriverLoad(b *testing.B) {
	ctx, vm := bench(b, machine.DefaultShape, 5)
	load(ctx, b, vm) // once unmeasured: the function is in the guest when it is back
	var took []float64
	for b.Loop() {
		b.StopTimer()
		if err := vm.Agent.UnloadModule(ctx, "mana"); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		took = append(took, guestTime(ctx, b, vm, func() error { load(ctx, b, vm); return nil }))
	}
	reportMedian(b, took)
}

// BenchmarkUp64Queues is a vPort with 64 queues brought up, on 64 vCPUs.
func BenchmarkUp64Queues(b *testing.B) {
	const queues = 64
	ctx, vm := bench(b, machine.Shape{Sockets: 1, Cores: queues / 2, Threads: 2, Nodes: 1, MemoryMiB: 2048}, queues+1)
	link := load(ctx, b, vm)
	on, off := true, false
	if link, err := vm.Agent.SetLink(ctx, agentapi.SetLinkParams{Name: link.Name, Combined: queues}); err != nil || link.Combined != queues {
		b.Fatalf("%+v, %v", link, err)
	}
	var took []float64
	for b.Loop() {
		took = append(took, guestTime(ctx, b, vm, func() error {
			_, err := vm.Agent.SetLink(ctx, agentapi.SetLinkParams{Name: link.Name, Up: &on})
			return err
		}))
		b.StopTimer()
		if _, err := vm.Agent.SetLink(ctx, agentapi.SetLinkParams{Name: link.Name, Up: &off}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	reportMedian(b, took)
}
