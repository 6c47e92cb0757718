package lab

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/lab/machine"
	"irqlab/scenarios/shape"
)

// CPUs leave a restored guest through ACPI and come back where the shape has them, a function attached; what would abort QEMU is refused before, by name.
func TestHotplug(t *testing.T) {
	t.Parallel()
	s, err := shape.ParseShape("sockets=1,cores=4,threads=1,nodes=2")
	if err != nil {
		t.Fatal(err)
	}
	vm := startWarm(t, Config{Start: StartWarm, Shape: s, Replugs: 3, Functions: []FunctionConfig{{Vectors: 3}}})
	ctx := testContext(t)
	a := vm.Agent
	fn, err := a.OpenFunction(ctx, agentapi.OpenFunctionParams{Vendor: VendorID, Device: ManaID, WaitMS: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	vectors, err := a.AddVectors(ctx, fn.Address, 0, 3)
	if err != nil {
		t.Fatal(err)
	}
	present := func() string {
		t.Helper()
		info, err := a.Info(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return info.CPUs.Present.String() + " " + info.CPUs.Online.String()
	}
	refused := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	refused(vm.UnplugCPU(ctx, 0), "CPU 0: no x86 kernel lets the boot CPU go")
	refused(vm.UnplugCPU(ctx, 4), "CPU 4: the machine has CPUs 0 to 3")
	refused(vm.PlugCPU(ctx, 3), "CPU 3: not unplugged")
	for _, cpu := range []int{3, 2} {
		if err := vm.UnplugCPU(ctx, cpu); err != nil {
			t.Fatal(err)
		}
	}
	if got := present(); got != "0-1 0-1" {
		t.Errorf("present and online are %s", got)
	}
	refused(vm.UnplugCPU(ctx, 3), "CPU 3: unplugged already")
	seen, err := vm.Function(FunctionSlot).Settle(ctx, a, vectors)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range seen.Vectors {
		if !v.State.Effective.Within(cpulist.New(0, 1)) {
			t.Errorf("IRQ %d is on CPU %s, which left", v.IRQ, v.State.Effective)
		}
	}
	for _, cpu := range []int{2, 3} {
		if err := vm.PlugCPU(ctx, cpu); err != nil {
			t.Fatal(err)
		}
	}
	if got := present(); got != "0-3 0-1" {
		t.Errorf("present and online are %s", got)
	}
	for _, cpu := range []int{2, 3} {
		if _, err := a.SetCPU(ctx, cpu, true); err != nil {
			t.Fatal(err)
		}
		info, err := a.Info(ctx)
		if err == nil {
			err = vm.CheckPlace(info.CPUs, cpu)
		}
		if err != nil {
			t.Error(err)
		}
	}
	if got := present(); got != "0-3 0-3" {
		t.Errorf("present and online are %s", got)
	}
	// The headroom comes in whole sockets: 4 CPUs.
	for range 2 {
		if err := errors.Join(vm.UnplugCPU(ctx, 3), vm.PlugCPU(ctx, 3)); err != nil {
			t.Fatal(err)
		}
	}
	if err := vm.UnplugCPU(ctx, 3); err != nil {
		t.Fatal(err)
	}
	refused(vm.PlugCPU(ctx, 3), "headroom to plug in 4 CPUs, and 4 were")
	if warnings := vm.Console().Scan(); len(warnings) > 0 {
		t.Errorf("the kernel complained: %s", warnings[0].Text)
	}
}

func TestCheckPlace(t *testing.T) {
	s := machine.Shape{Sockets: 2, Cores: 2, Threads: 2, Nodes: 2, MemoryMiB: 512}
	for name, tt := range map[string]struct {
		change func(*agentapi.Topology)
		cpu    int
		want   []string // nil: as the shape has it
	}{
		"as meant":         {cpu: 6},
		"others offline":   {cpu: 6, change: func(t *agentapi.Topology) { *t = s.Topology(cpulist.New(1, 7)) }},
		"packages by APIC": {cpu: 6, change: func(t *agentapi.Topology) { t.CPUs = renumber(t.CPUs, 4) }},
		"offline":          {cpu: 6, change: func(t *agentapi.Topology) { *t = s.Topology(cpulist.New(6)) }, want: []string{"CPU 6 is not online", "0-5,7"}},
		"other node":       {cpu: 6, change: func(t *agentapi.Topology) { t.CPUs[6].Node = 0 }, want: []string{"node 0, not 1"}},
		"other siblings":   {cpu: 6, change: func(t *agentapi.Topology) { t.CPUs[6].Siblings = cpulist.New(6) }, want: []string{"siblings 6, not 6-7"}},
		"other package":    {cpu: 6, change: func(t *agentapi.Topology) { t.CPUs[6].Package = 2 }, want: []string{"package with CPUs 6, not 4-7"}},
		"not of the shape": {cpu: 8, change: func(t *agentapi.Topology) { t.CPUs = append(t.CPUs, agentapi.CPU{ID: 8}) }, want: []string{"CPU 8 is not one of the shape's"}},
	} {
		topo := s.Topology(nil)
		if tt.change != nil {
			tt.change(&topo)
		}
		err := checkPlace(s, topo, tt.cpu)
		if (err == nil) != (tt.want == nil) || slices.ContainsFunc(tt.want, func(w string) bool { return !strings.Contains(err.Error(), w) }) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func renumber(cpus []agentapi.CPU, factor int) []agentapi.CPU {
	for i := range cpus {
		cpus[i].Package *= factor
	}
	return cpus
}
