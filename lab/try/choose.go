package try

import (
	"slices"
	"strings"

	"irqlab/lab/build"
	"irqlab/scenarios"
)

// ModuleDir holds the one module whose changes can be tried: what the guest inserts at the moment that a case says. Its directory in the kernel's tree.
const ModuleDir = "drivers/net/ethernet/microsoft/mana"

// Scenario is what a changed driver is tried with, unless other scenarios are named.
const Scenario = "changed-driver"

// AnyMachine is the scenario that any version of the driver must meet, whatever the machine.
const AnyMachine = "spread"

// ManagedIRQs is the scenario of the interrupts that the kernel itself places for disks.
const ManagedIRQs = "managed-irq-numa"

// usual are the cases of Scenario that are run unless more are asked for: on 2 to 8 CPUs, with and without SMT, on two nodes, and with and without a neighbour. They are few, so
// that both sides of all of them take some ten seconds on two cores, from snapshots.
var usual = []string{besideDisk, "two-cores", "eight", "boundary", "node-1", "offline"}

// besideDisk is the one of them with a disk's interrupts beside the function's.
const besideDisk = "neighbour"

// managed are the cases of ManagedIRQs that are run beside usual where a whole kernel is.
var managed = []string{"nvme-node-0", "nvme-node-1", "virtio-node-0", "virtio-node-1"}

// more are the scenarios whose cases of the kernel's driver are run with --all, beside Scenario and the fault catalogue.
var more = []string{AnyMachine, "vector-boundary", "device-node", "offline-before", "unplug-during-probe", "unplug-during-reset", "unplug-after", "unplug-storm", "remove", "suspend", "hibernate"}

// disks are the folders of the kernel that only have to do with the interrupts of disks.
var disks = []string{"block/", "drivers/block/", "drivers/nvme/", "drivers/virtio/"}

// Choice says which cases are to be run.
type Choice struct {
	Scenarios []string // by name or file, as in run; none: those that the patch calls for
	Cases     []string // of these; none: the usual ones, or all of the scenarios that are named
	All       bool     // all that has to do with the driver
}

// Names are the scenarios to load for a patch, and the cases of them to run; no cases: all.
func (c Choice) Names(t Touched) (names, cases []string) {
	switch {
	case len(t.Beyond) == 0:
		names, cases = []string{Scenario}, usual
	case len(t.Own) == 0 && !slices.ContainsFunc(t.Beyond, func(path string) bool { return !below(path, disks) }):
		names, cases = []string{Scenario, ManagedIRQs}, append([]string{besideDisk}, managed...)
	default:
		names, cases = []string{Scenario, ManagedIRQs}, slices.Concat(usual, managed)
	}
	switch {
	case c.All:
		return slices.Concat(names, more, scenarios.Faults(), c.Scenarios), c.Cases
	case len(c.Scenarios) > 0:
		return c.Scenarios, c.Cases
	case len(c.Cases) > 0:
		return names, c.Cases
	}
	return names, cases
}

func below(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(path, dir) })
}

// Ask takes from planned cases what tells nothing of a change: those that run what another does, and, unless the whole kernel is changed, those that the kernel's driver has no part
// in. Shipped scenarios hold a driver and a kernel to their version's own behaviour: of these only what any version owes is left, but for Scenario and AnyMachine, which ask for no
// more, and for faults, which are not about placement.
func Ask(cases []scenarios.Case, whole bool) []scenarios.Case {
	var out []scenarios.Case
	seen := map[string]bool{}
	shipped := scenarios.Shipped()
	for _, c := range cases {
		if !whole && c.Driver != scenarios.DriverMana {
			continue
		}
		_, what, _ := strings.Cut(c.Setup(), "|") // behind the scenario's name
		if seen[what] {
			continue
		}
		seen[what] = true
		if slices.Contains(shipped, c.Scenario) && c.Scenario != Scenario && c.Scenario != AnyMachine {
			c.AskAnyVersion()
		}
		out = append(out, c)
	}
	return out
}

// Touched sorts the paths of a patch.
type Touched struct {
	Own     []string // the module's own
	Nothing []string // that are built into nothing: documentation and the like
	Beyond  []string // that need a whole kernel to be built
}

// Touch sorts the paths that a patch changes.
func Touch(paths []string) (t Touched) {
	for _, p := range paths {
		switch {
		case build.Owns(ModuleDir, p):
			t.Own = append(t.Own, p)
		case Outside(p):
			t.Nothing = append(t.Nothing, p)
		default:
			t.Beyond = append(t.Beyond, p)
		}
	}
	return t
}

// What lies here is built into nothing that boots.
var (
	outsideDirs  = []string{"Documentation", "tools/testing", "LICENSES", "samples"}
	outsideFiles = []string{"MAINTAINERS", "CREDITS", ".mailmap", ".gitignore", "README", "COPYING"}
)

// OutsidePaths are the folders and files of the kernel's tree of which Outside is true.
func OutsidePaths() []string { return slices.Concat(outsideDirs, outsideFiles) }

// Outside tells whether a file of the kernel's tree is built into nothing that boots.
func Outside(path string) bool {
	return slices.Contains(outsideFiles, path) || slices.ContainsFunc(outsideDirs, func(dir string) bool { return strings.HasPrefix(path, dir+"/") })
}
