package lab

import (
	"context"
	"fmt"

	"irqlab/images"
)

// addPackages puts the packages that are asked for into the initramfs.
func (b *boot) addPackages(ctx context.Context) (err error) {
	if len(b.cfg.Packages) == 0 {
		return nil
	}
	if b.packages, err = b.cfg.Cache.GuestPackages(ctx, b.cfg.Packages, b.cfg.Progress); err != nil {
		return err
	}
	if err := fits(b.packages, b.initramfs, b.cfg.Shape.MemoryMiB); err != nil {
		return err
	}
	b.initramfs, err = b.cfg.Cache.AddPackages(ctx, b.initramfs, b.packages)
	return err
}

// A guest holds the archive, and what the kernel has unpacked of it into a file system of its own, which takes no more than half of the memory.
const (
	copiesAtBoot  = 2
	memoryOfGuest = 160 << 20 // what kernel, agent and the programs' own work take beside
)

// fits says which memory the guest would need if its packages do not fit.
func fits(g images.GuestPackages, i images.Initramfs, memoryMiB int) error {
	const mib, step = 1 << 20, 256
	need := int(copiesAtBoot*(g.Size+i.Size())+memoryOfGuest)/mib + 1
	if need <= memoryMiB {
		return nil
	}
	var names []string
	for _, p := range g.Asked {
		names = append(names, p.Name)
	}
	return &images.BadPackagesError{Names: names, Err: fmt.Errorf("with what they depend on they are %d packages of %d MiB, too much for a guest of %d MiB; give it %d MiB, as in "+
		"--shape memory=%[4]dM with the scenario's other numbers", g.All, g.Size/mib, memoryMiB, (need+step-1)/step*step)}
}
