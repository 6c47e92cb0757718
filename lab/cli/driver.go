package cli

import (
	"context"
	"fmt"
	"strings"

	"irqlab/images"
	"irqlab/lab"
	"irqlab/lab/build"
	"irqlab/lab/foreign"
	"irqlab/lab/try"
	"irqlab/scenarios"
)

// This is what try and bisect share: both run cases with modules, or kernels, that are built for them.

// anyMachine has the cases expect, where the flags give them another machine than the scenario's, what holds on any if there is a queue for each CPU.
func (f *scenarioFlags) anyMachine() {
	if len(f.shapes)+len(f.deviceNodes)+len(f.cmdlines)+len(f.offlines) > 0 && len(f.vectors)+len(f.expect) == 0 {
		f.expect = []string{"clustered=false"}
	}
}

// planDriver lists the cases of the scenarios that a change of the kernel's driver, or of the whole kernel, may tell in; alike says what it would mean if there were none. Its errors
// are of usage.
func (f *scenarioFlags) planDriver(ctx context.Context, names []string, alike string, whole bool, s Streams) ([]scenarios.Case, error) {
	cases, err := f.plan(ctx, names, s)
	if err != nil {
		return nil, err
	}
	asked := try.Ask(cases, whole)
	if len(asked) == 0 {
		return nil, usageError(fmt.Errorf("no case of %s has to do with the kernel's driver, so that %s; scenarios that have: %s, %s, %s",
			strings.Join(names, ", "), alike, try.Scenario, try.AnyMachine, compareDefault))
	}
	return asked, nil
}

// checkSource refuses a kernel whose source nobody can find.
func checkSource(kernel, otherwise string) error {
	if strings.HasPrefix(kernel, "debian:") {
		return nil
	}
	return fmt.Errorf("--kernel: %s: where its source is cannot be told: give one of Debian's, such as %s%s", foreign.Line(kernel), lab.DefaultKernel, otherwise)
}

// driverSource finds or fetches the kernel that k.Spec names, the source of its driver and the toolchain, and takes down in k what they are.
func driverSource(ctx context.Context, cache *images.Cache, k *try.Kernel, p *progress) (*build.Source, error) {
	kernel, err := cache.Kernel(ctx, k.Spec, p.report)
	if err != nil {
		return nil, labError(images.AsBadKernel(k.Spec, err))
	}
	k.Release = kernel.Release
	src, err := build.New(cache, p.report).Source(ctx, kernel, try.ModuleDir)
	if err == nil {
		k.Source, k.Compiler = src.Origin, src.Compiler
	}
	return src, err
}

// withModule has the case run with a module in place of the kernel's own.
func withModule(c *scenarios.Case, name, file string) {
	c.Modules = []scenarios.Module{{Name: name, File: file}}
	c.Command += " --module " + quoted([]string{name + "=" + file})
}
