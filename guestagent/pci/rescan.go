package pci

import (
	"fmt"

	"irqlab/guestagent/kfile"
)

// Remove has the kernel forget the function, after its driver has let it go. The machine still has it.
func Remove(r kfile.Root, address string) error {
	if _, err := Find(r, Match{Address: address}); err != nil {
		return err
	}
	if err := r.Write("1", dir(address), "remove"); err != nil {
		return fmt.Errorf("function %s: removing it: %w", address, err)
	}
	return nil
}

// RescanAll has the kernel look for functions on every bus. A driver that is loaded has probed what was found when it returns.
func RescanAll(r kfile.Root) error {
	if err := r.Write("1", bus, "rescan"); err != nil {
		return fmt.Errorf("PCI rescan: %w", err)
	}
	return nil
}
