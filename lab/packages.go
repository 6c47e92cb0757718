package lab

import (
	"context"
	"fmt"

	"irqlab/images"
)

// WithPackages puts packages into an initramfs, if there are any. The error is an *images.BadPackagesError where a guest of that memory cannot have them.
func WithPackages(ctx context.Context, c *images.Cache, i images.Initramfs, names []string, memoryMiB int, p images.Progress) (
	images.Initramfs, images.GuestPackages, error) {
	if len(names) == 0 {
		return i, images.GuestPackages{}, nil
	}
	g, err := c.GuestPackages(ctx, names, p)
	if err == nil {
		err = fits(g, i.Size(), memoryMiB)
	}
	if err == nil {
		i, err = c.AddPackages(ctx, i, g)
	}
	return i, g, err
}

// The kernel unpacks the archive, while it is in memory, into a file system that may take half of what is left.
const (
	copiesAtBoot  = 3
	memoryOfGuest = 128 << 20 // what kernel, agent and the programs' own work take beside
)

// fits says which memory the guest would need if its packages do not fit.
func fits(g images.GuestPackages, initramfs int64, memoryMiB int) error {
	const mib, step = 1 << 20, 256
	need := int(copiesAtBoot*(g.Size+initramfs)+memoryOfGuest)/mib + 1
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
