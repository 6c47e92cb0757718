package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/lab/machine"
)

// UnplugCPU takes a CPU out of the machine through ACPI, and waits until the guest has let it go: it is then neither online nor present.
//
// What would abort QEMU, and what no guest can grant (CPU 0, so the last one, too), is a *machine.HotplugError before QEMU is asked. A guest that says no, as one does
// while it probes PCI drivers, is a *qemu.CPURefusedError.
func (vm *VM) UnplugCPU(ctx context.Context, cpu int) error {
	if err := vm.process.UnplugCPU(ctx, cpu); err != nil {
		return fmt.Errorf("unplug: %w", err)
	}
	vm.Agent.Trace.Note(TraceCPU, "ACPI", uint64(cpu), 0)
	info, err := vm.Agent.Info(ctx)
	if err != nil {
		return fmt.Errorf("unplug: CPU %d: %w", cpu, err)
	}
	if info.CPUs.Present.Has(cpu) {
		return fmt.Errorf("unplug: %w", &PresentError{cpu, fmt.Sprintf("the guest ejected it, and still has CPUs %s present (online %s)", info.CPUs.Present, info.CPUs.Online)})
	}
	return nil
}

// PlugCPU puts a CPU back that was unplugged, and waits until the guest has taken it: it is then present, and offline until Agent.SetCPU brings it online. Under TCG the
// machine needs headroom for that: Config.Replugs.
func (vm *VM) PlugCPU(ctx context.Context, cpu int) error {
	if err := vm.process.PlugCPU(ctx, cpu); err != nil {
		return fmt.Errorf("plug: %w", err)
	}
	info, err := vm.Agent.Info(ctx)
	if err != nil {
		return fmt.Errorf("plug: CPU %d: %w", cpu, err)
	}
	if !info.CPUs.Present.Has(cpu) {
		return fmt.Errorf("plug: %w", &PresentError{cpu, fmt.Sprintf("the guest took it, and has CPUs %s present (online %s)", info.CPUs.Present, info.CPUs.Online)})
	}
	return nil
}

// CheckPlace returns nil if an online CPU is where the shape has it, and a *MisplacedError if one that was plugged in again came back elsewhere.
func (vm *VM) CheckPlace(seen agentapi.Topology, cpu int) error {
	return checkPlace(vm.shape, seen, cpu)
}

// checkPlace compares where the guest has a CPU, its node, package and siblings, with where the shape has it. Package numbers are the guest's own, so it is who shares
// one that must agree.
func checkPlace(shape machine.Shape, seen agentapi.Topology, cpu int) error {
	find := func(t agentapi.Topology, id int) (agentapi.CPU, bool) {
		i := slices.IndexFunc(t.CPUs, func(c agentapi.CPU) bool { return c.ID == id })
		if i < 0 {
			return agentapi.CPU{}, false
		}
		return t.CPUs[i], true
	}
	packageOf := func(t agentapi.Topology, of int) (list cpulist.List) {
		for _, c := range t.CPUs {
			if c.Package == of {
				list = append(list, c.ID)
			}
		}
		return list
	}
	got, ok := find(seen, cpu)
	if !ok {
		return fmt.Errorf("CPU %d is not online: online are %s, present %s", cpu, seen.Online, seen.Present)
	}
	meant := shape.Topology(cpulist.Range(0, shape.CPUs()-1).Minus(seen.Online))
	want, ok := find(meant, cpu)
	if !ok {
		return fmt.Errorf("CPU %d is not one of the shape's", cpu)
	}
	var wrong []string
	if got.Node != want.Node {
		wrong = append(wrong, fmt.Sprintf("node %d, not %d", got.Node, want.Node))
	}
	if !slices.Equal(got.Siblings, want.Siblings) {
		wrong = append(wrong, fmt.Sprintf("siblings %s, not %s", got.Siblings, want.Siblings))
	}
	if g, w := packageOf(seen, got.Package), packageOf(meant, want.Package); !slices.Equal(g, w) {
		wrong = append(wrong, fmt.Sprintf("package with CPUs %s, not %s", g, w))
	}
	if wrong != nil {
		return &MisplacedError{CPU: cpu, Got: strings.Join(wrong, "; ")}
	}
	return nil
}

// MisplacedError tells that the guest has a CPU that was plugged in again elsewhere than the shape has it.
type MisplacedError struct {
	CPU int
	Got string
}

func (e *MisplacedError) Error() string {
	return fmt.Sprintf("CPU %d came back elsewhere than the shape has it: %s", e.CPU, e.Got)
}
