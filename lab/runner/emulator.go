package runner

import (
	"fmt"

	"irqlab/guestagent/cpulist"
	"irqlab/lab"
	"irqlab/lab/machine"
	"irqlab/lab/qemu/klog"
	"irqlab/scenarios"
)

// oneThread tells whether a case's vCPUs take turns on one thread under TCG: in a storm that leaves no core with two
// threads, the kernel's scheduler patches its own code in every round while all CPUs run it, and vCPUs with threads of
// their own can go on executing what it was before (klog.Finding.Stale). A vCPU that shares a thread cannot be
// unplugged. Other storms are better off with threads, which let CPUs meet in the middle of something.
func oneThread(c *scenarios.Case) bool {
	patches, unplugs := false, false
	eachStep(c.Steps, func(s *scenarios.Step) {
		patches = patches || s.Verb == scenarios.VerbStorm && !siblingsLeft(c, cpulist.List(s.Storm.Offline))
		unplugs = unplugs || s.Verb == scenarios.VerbUnplug || s.Verb == scenarios.VerbReplug
	})
	return patches && !unplugs
}

// siblingsLeft reports whether a core keeps two threads when the CPUs are away, or has never had two.
func siblingsLeft(c *scenarios.Case, away cpulist.List) bool {
	if c.Shape.Threads < 2 {
		return true
	}
	threads := map[int]int{}
	for cpu := range c.Shape.CPUs() {
		if !away.Has(cpu) && !c.Offline.Has(cpu) {
			if threads[cpu/c.Shape.Threads]++; threads[cpu/c.Shape.Threads] == 2 {
				return true
			}
		}
	}
	return false
}

// EmulatorError tells that the guest's kernel ran into a defect of QEMU's emulation: whatever came of it says nothing
// about the kernel.
type EmulatorError struct {
	Why string
	Err error // what came of it; nil: the case went on to its end
}

func (e *EmulatorError) Error() string {
	text := fmt.Sprintf("QEMU's emulation is at fault, not the kernel: %s. "+
		"Run the case again: it comes by chance, and never under KVM (docs/hotplug.md, \"Stale code\")", e.Why)
	if e.Err != nil {
		text += fmt.Sprintf("; what came of it: %v", e.Err)
	}
	return text
}

func (e *EmulatorError) Unwrap() error { return e.Err }

// emulatorFault makes an *EmulatorError of what a case ended with, be it nothing, if one of the kernel's complaints can
// only be the emulator's doing: whether more or less would have come of the case without it, nobody knows. A guest
// under KVM has no such excuse. accel is as Options has it.
func emulatorFault(accel string, complaints []klog.Finding, err error) error {
	for _, f := range complaints {
		why := f.Stale()
		if why == "" {
			continue
		}
		if used, _, _ := lab.ChooseAccel(accel); used != machine.TCG {
			return err
		}
		return &EmulatorError{why, err}
	}
	return err
}
