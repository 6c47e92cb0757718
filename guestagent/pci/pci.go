// Package pci finds PCI functions in sysfs, gives them to a driver and lists the MSI interrupts a driver holds. It knows no driver's ways.
package pci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
)

const pollEvery = 5 * time.Millisecond

const bus = "sys/bus/pci"

// MSIXIndexMask picks the MSI-X table index from the number the PCI-MSI chip shows: since 6.2 that number is the index, before it was the
// index in the low 11 bits below the function's address (pci_msi_domain_calc_hwirq).
const MSIXIndexMask = 1<<11 - 1

var addressForm = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

var driverForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// ValidAddress reports whether s is a function's address in full, 0000:81:00.0.
func ValidAddress(s string) bool { return addressForm.MatchString(s) }

func dir(address string) string { return bus + "/devices/" + address }

// Match picks a function by address, or by vendor and device where Address is empty.
type Match struct {
	Vendor, Device uint16
	Address        string
	Skip           func(address string) bool // functions not to take, nil: take any
}

func (m Match) String() string {
	if m.Address != "" {
		return m.Address
	}
	return fmt.Sprintf("%04x:%04x", m.Vendor, m.Device)
}

// Find returns the lowest address that matches, or an error that is fs.ErrNotExist.
func Find(r kfile.Root, m Match) (string, error) { return find(r, m, map[string]bool{}) }

// find leaves out the addresses known to be no match, and adds to them: reading every function's ids again and again slows down the very plugging it waits for.
func find(r kfile.Root, m Match, known map[string]bool) (string, error) {
	if m.Address != "" {
		if !ValidAddress(m.Address) {
			return "", fault.New(agentapi.CodeInvalid, "%q is not a PCI address such as 0000:81:00.0", m.Address)
		}
		if !r.Has(dir(m.Address)) {
			return "", fmt.Errorf("PCI function %s: %w", m, fs.ErrNotExist)
		}
		return m.Address, nil
	}
	addresses, err := r.Names(bus, "devices")
	if err != nil {
		return "", err
	}
	for _, address := range addresses {
		if known[address] {
			continue
		}
		vendor, err1 := r.Int(dir(address), "vendor")
		device, err2 := r.Int(dir(address), "device")
		if err1 != nil || err2 != nil {
			continue // it is just vanishing
		}
		if vendor != int(m.Vendor) || device != int(m.Device) {
			known[address] = true
			continue
		}
		if m.Skip == nil || !m.Skip(address) {
			return address, nil
		}
	}
	return "", fmt.Errorf("PCI function %s: %w", m, fs.ErrNotExist)
}

// WaitFor is Find, repeated until a hot-plugged function has appeared or ctx ends.
func WaitFor(ctx context.Context, r kfile.Root, m Match) (string, error) {
	start := time.Now()
	known := map[string]bool{}
	for {
		address, err := find(r, m, known)
		if !errors.Is(err, fs.ErrNotExist) {
			return address, err
		}
		select {
		case <-ctx.Done():
			return "", fault.New(agentapi.CodeNotFound, "no PCI function %s within %s; there are %s",
				m, time.Since(start).Round(time.Millisecond), Names(r))
		case <-time.After(pollEvery):
		}
	}
}

// Rescan has the kernel look for functions behind the ports that have none. It returns when what is found can be bound.
func Rescan(r kfile.Root) error {
	functions, err := r.Names(bus, "devices")
	if err != nil {
		return err
	}
	buses, err := r.Names("sys/class/pci_bus")
	if err != nil {
		return err
	}
	for _, b := range buses {
		if slices.ContainsFunc(functions, func(f string) bool { return strings.HasPrefix(f, b+":") }) {
			continue
		}
		if err := r.Write("1", "sys/class/pci_bus", b, "rescan"); err != nil {
			return fmt.Errorf("PCI bus %s: %w", b, err)
		}
	}
	return nil
}

// Names lists the functions there are, "0000:00:00.0 8086:29c0", for error messages.
func Names(r kfile.Root) []string {
	var out []string
	addresses, _ := r.Names(bus, "devices")
	for _, address := range addresses {
		vendor, _ := r.Int(dir(address), "vendor")
		device, _ := r.Int(dir(address), "device")
		out = append(out, fmt.Sprintf("%s %04x:%04x", address, vendor, device))
	}
	return out
}

// Driver names the driver a function is bound to, "" for none.
func Driver(r kfile.Root, address string) string {
	name, err := r.LinkName(dir(address), "driver")
	if err != nil {
		return ""
	}
	return name
}

// Node returns the function's NUMA node, -1 for none.
func Node(r kfile.Root, address string) (int, error) {
	n, err := r.Int(dir(address), "numa_node")
	if errors.Is(err, fs.ErrNotExist) {
		return -1, nil
	}
	return n, err
}

// IOMMUGroup returns the number of the function's IOMMU group.
func IOMMUGroup(r kfile.Root, address string) (string, error) {
	group, err := r.LinkName(dir(address), "iommu_group")
	if err != nil {
		return "", fault.New(agentapi.CodeUnsupported,
			"function %s is in no IOMMU group: start the VM with -device intel-iommu first and the kernel with intel_iommu=on: %w", address, err)
	}
	return group, nil
}

// Bind gives the function to the named driver, taking it from another if need be. It tries until ctx ends: a function that has just been plugged in is in
// sysfs a moment before the kernel lets any driver match it (pci_bus_add_device).
func Bind(ctx context.Context, r kfile.Root, address, driver string) error {
	if Driver(r, address) == driver {
		return nil
	}
	if err := r.Write(driver, dir(address), "driver_override"); err != nil {
		return fmt.Errorf("function %s: driver_override: %w", address, err)
	}
	if old := Driver(r, address); old != "" {
		if err := r.Write(address, dir(address), "driver/unbind"); err != nil {
			return fmt.Errorf("function %s: unbinding %s: %w", address, old, err)
		}
	}
	for {
		if err := r.Write(address, bus, "drivers_probe"); err != nil {
			return fmt.Errorf("function %s: probing with %s: %w", address, driver, err)
		}
		got := Driver(r, address)
		if got == driver {
			return nil
		}
		select {
		case <-ctx.Done():
			return fault.New(agentapi.CodeRefused, "function %s: %s did not take it (bound to %q); the kernel log tells why", address, driver, got)
		case <-time.After(pollEvery):
		}
	}
}

// SetReset lets the kernel reset the function, as it does by default, or not: it waits a tenth of a second each time (pcie_flr in drivers/pci/pci.c). A kernel before 5.15
// has no such file, and resets.
func SetReset(r kfile.Root, address string, allowed bool) error {
	err := r.Write(map[bool]string{true: "default", false: "\n"}[allowed], dir(address), "reset_method")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("function %s: reset methods: %w", address, err)
	}
	return nil
}

// Unbind takes the function from its driver and lets any driver have it again later.
func Unbind(r kfile.Root, address string) error {
	var errs []error
	if d := Driver(r, address); d != "" {
		if err := r.Write(address, dir(address), "driver/unbind"); err != nil {
			errs = append(errs, fmt.Errorf("function %s: unbinding %s: %w", address, d, err))
		}
	}
	// A newline clears the override.
	if err := r.Write("\n", dir(address), "driver_override"); err != nil {
		errs = append(errs, fmt.Errorf("function %s: clearing driver_override: %w", address, err))
	}
	return errors.Join(errs...)
}

// Attach has one of the kernel's drivers probe the function, which is to have no driver, and returns what its probe did.
func Attach(r kfile.Root, address, driver string) error {
	switch old := Driver(r, address); {
	case !driverForm.MatchString(driver):
		return fault.New(agentapi.CodeInvalid, "%.64q is not a driver's name", driver)
	case old != "":
		return fault.New(agentapi.CodeInvalid, "function %s: bound to %s: unbind it first", address, old)
	case !r.Has(bus, "drivers", driver):
		return fault.New(agentapi.CodeNotFound, "function %s: there is no PCI driver %s: load its module first", address, driver)
	}
	if err := r.Write(address, bus, "drivers", driver, "bind"); err != nil {
		return fmt.Errorf("function %s: probing with %s: %w", address, driver, err)
	}
	if got := Driver(r, address); got != driver {
		return fault.New(agentapi.CodeRefused, "function %s: %s did not take it (bound to %q); the kernel log tells why", address, driver, got)
	}
	return nil
}

// Detach takes the function from its driver.
func Detach(r kfile.Root, address string) error {
	d := Driver(r, address)
	if d == "" {
		return fault.New(agentapi.CodeInvalid, "function %s: has no driver", address)
	}
	if err := r.Write(address, bus, "drivers", d, "unbind"); err != nil {
		return fmt.Errorf("function %s: unbinding %s: %w", address, d, err)
	}
	return nil
}

// Reset has the kernel reset the function by the best method it knows of, with a driver or without: a function-level reset where the function has one.
// A driver without a reset handler is not told, and finds its device gone.
func Reset(r kfile.Root, address string) error {
	if !r.Has(dir(address), "reset") {
		return fault.New(agentapi.CodeUnsupported, "function %s: the kernel knows no way to reset it", address)
	}
	if err := r.Write("1", dir(address), "reset"); err != nil {
		return fmt.Errorf("function %s: resetting it: %w", address, err)
	}
	return nil
}

// MSIs lists the IRQ numbers of the function's allocated MSI or MSI-X interrupts, ascending.
func MSIs(r kfile.Root, address string) ([]int, error) {
	if !ValidAddress(address) {
		return nil, fault.New(agentapi.CodeInvalid, "%q is not a PCI address such as 0000:81:00.0", address)
	}
	if !r.Has(dir(address)) {
		return nil, fmt.Errorf("PCI function %s: %w", address, fs.ErrNotExist)
	}
	names, err := r.Names(dir(address), "msi_irqs")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no MSI enabled
	}
	if err != nil {
		return nil, err
	}
	var out []int
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil {
			return nil, fmt.Errorf("function %s: msi_irqs holds %q, not an IRQ number", address, name)
		}
		out = append(out, n)
	}
	slices.Sort(out)
	return out, nil
}
