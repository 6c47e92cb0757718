package machine

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"irqlab/scenarios/shape"
)

// Shape is the guest's CPU and NUMA shape and its memory.
type Shape = shape.Shape

// DefaultShape is the shape of the published low-vCPU results.
var DefaultShape = shape.Default()

// Accel is what executes the guest's instructions.
type Accel string

// The accelerators.
const (
	KVM Accel = "kvm"
	TCG Accel = "tcg"
)

// Irqchip is how a device's message reaches a CPU.
type Irqchip string

// The interrupt chips. With plain MSI a new affinity takes effect at the vector's next interrupt; with remapping it takes effect at once
// (reference, qemu-facts, "Interrupts").
const (
	MSI      Irqchip = "msi"
	Remapped Irqchip = "remapped"
)

// Kinds of neighbour.
const (
	NVMe      = "nvme"       // managed interrupts: one admin vector and one per queue
	VirtioBlk = "virtio-blk" // managed interrupts: one for configuration and one per queue; its driver is a module
)

// NoNode says that a device has no NUMA node: it sits on pcie.0 and the guest reads -1.
const NoNode = -1

// Limits of what Validate accepts.
const (
	MaxDevices  = 16   // slots and neighbours together
	maxCmdline  = 2047 // the kernel's COMMAND_LINE_SIZE on x86, less the final NUL
	maxThreaded = 8    // above, TCG's vCPU threads cost more in waiting for each other than they gain (docs/dev/performance.md, "Many CPUs")
)

// Slot is a place for a function that is hot-plugged once the guest runs: an empty root port of its own.
type Slot struct {
	ID   string // letters, digits, '-', '_', '.'; starts with a letter
	Node int    // NUMA node of the function, or NoNode
}

// Bus is the name of the slot's bus, as device_add wants it.
func (s Slot) Bus() string { return "port-" + s.ID }

// Neighbour is another device with interrupt vectors of its own, present from boot. Its storage has no file behind it.
type Neighbour struct {
	Kind   string // NVMe or VirtioBlk
	Queues int
	Node   int // NUMA node, or NoNode
}

// Channels are the ends of QEMU's character devices that lie in the process that starts it. Descriptors are numbered as QEMU sees them.
type Channels struct {
	QMPFD     int    // connected stream socket
	ConsoleFD int    // connected stream socket: the serial console
	AgentFD   int    // connected stream socket: virtio-serial port agentapi.AgentPort
	SSHSocket string // path of the listening socket QEMU makes: virtio-serial port agentapi.SSHPort
	RAMFDs    []int  // one file for each node's memory, of the sizes NodeMemory tells; nil: QEMU makes its own, and the state cannot be saved
}

// Machine describes one guest.
type Machine struct {
	Shape        Shape
	SpareSockets int     // sockets that are empty at boot; under TCG every re-plug of a CPU uses up one CPU of this headroom
	Distances    [][]int // node distances by source and destination; nil: 10 to itself, 20 to any other
	Accel        Accel
	OneThread    bool // under TCG all vCPUs take turns on one host thread, as those of a large guest always do (docs/hotplug.md, "Stale code")
	Irqchip      Irqchip
	Slots        []Slot
	Neighbours   []Neighbour
	Kernel       string   // path of a bzImage, or of an uncompressed vmlinux, which starts at its PVH entry
	Initramfs    string   // path; empty: none
	Cmdline      []string // added after, and so overriding, the command line every guest gets
	Verbose      bool     // all kernel messages on the console, not only warnings and worse
	Incoming     bool     // nothing is booted: QEMU waits for the saved state of a machine described alike; takes Channels.RAMFDs
	Channels     Channels
}

// FieldError is a description that makes no guest, and the field at fault.
type FieldError struct {
	Field string // such as Shape.Nodes, Slots[1].Node
	Err   error
}

func (e *FieldError) Error() string { return "machine: " + e.Field + ": " + e.Err.Error() }
func (e *FieldError) Unwrap() error { return e.Err }

func fieldErrorf(field, format string, args ...any) error {
	return &FieldError{Field: field, Err: fmt.Errorf(format, args...)}
}

var idPattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]{0,30}$`)

// Validate checks everything but Channels, which exist only once the guest is about to be started. The error is a *FieldError.
func (m Machine) Validate() error {
	for _, check := range []func(Machine) error{checkShape, checkChips, checkDistances, checkSlots, checkNeighbours, checkKernel} {
		if err := check(m); err != nil {
			return err
		}
	}
	return nil
}

func checkShape(m Machine) error {
	s := m.Shape
	if err := s.Validate(); err != nil {
		return fieldErrorf("Shape", "%w", err)
	}
	if m.SpareSockets < 0 || m.SpareSockets > shape.MaxAPICID {
		return fieldErrorf("SpareSockets", "%d is not between 0 and %d", m.SpareSockets, shape.MaxAPICID)
	}
	s.Sockets += m.SpareSockets
	if err := s.CheckAPICIDs(); err != nil {
		return fieldErrorf("SpareSockets", "%w", err)
	}
	return nil
}

func checkChips(m Machine) error {
	if m.Accel != KVM && m.Accel != TCG {
		return fieldErrorf("Accel", "%q is neither %q nor %q", m.Accel, KVM, TCG)
	}
	if m.Irqchip != MSI && m.Irqchip != Remapped {
		return fieldErrorf("Irqchip", "%q is neither %q nor %q", m.Irqchip, MSI, Remapped)
	}
	return nil
}

func checkDistances(m Machine) error {
	if m.Distances == nil {
		return nil
	}
	if len(m.Distances) != m.Shape.Nodes {
		return fieldErrorf("Distances", "%d rows for %d nodes", len(m.Distances), m.Shape.Nodes)
	}
	for i, row := range m.Distances {
		if len(row) != m.Shape.Nodes {
			return fieldErrorf(fmt.Sprintf("Distances[%d]", i), "%d columns for %d nodes", len(row), m.Shape.Nodes)
		}
		for j, d := range row {
			// ACPI's SLIT: 10 is the node itself, 255 unreachable.
			if i == j && d != 10 || i != j && (d < 11 || d > 254) {
				return fieldErrorf(fmt.Sprintf("Distances[%d][%d]", i, j), "%d: a node is 10 from itself and 11 to 254 from another", d)
			}
		}
	}
	return nil
}

func checkNode(m Machine, field string, node int) error {
	if node == NoNode || node >= 0 && node < m.Shape.Nodes {
		return nil
	}
	return fieldErrorf(field, "node %d does not exist: the shape has nodes 0 to %d (%d: none)", node, m.Shape.Nodes-1, NoNode)
}

func checkSlots(m Machine) error {
	seen := map[string]bool{}
	for i, s := range m.Slots {
		field := fmt.Sprintf("Slots[%d]", i)
		if !idPattern.MatchString(s.ID) {
			return fieldErrorf(field+".ID", "%q: give up to 31 letters, digits, '-', '_' or '.', a letter first", s.ID)
		}
		if seen[s.ID] {
			return fieldErrorf(field+".ID", "%q is taken by another slot", s.ID)
		}
		seen[s.ID] = true
		if err := checkNode(m, field+".Node", s.Node); err != nil {
			return err
		}
	}
	return nil
}

func checkNeighbours(m Machine) error {
	for i, n := range m.Neighbours {
		field := fmt.Sprintf("Neighbours[%d]", i)
		most, ok := map[string]int{NVMe: 2047, VirtioBlk: 1023}[n.Kind]
		if !ok {
			return fieldErrorf(field+".Kind", "%q is neither %q nor %q", n.Kind, NVMe, VirtioBlk)
		}
		if n.Queues < 1 || n.Queues > most {
			return fieldErrorf(field+".Queues", "%d is not between 1 and %d", n.Queues, most)
		}
		if err := checkNode(m, field+".Node", n.Node); err != nil {
			return err
		}
	}
	if devices := len(m.Slots) + len(m.Neighbours); devices > MaxDevices {
		return fieldErrorf("Neighbours", "%d slots and neighbours are more than the %d there is room for", devices, MaxDevices)
	}
	return nil
}

func checkKernel(m Machine) error {
	if m.Kernel == "" {
		return fieldErrorf("Kernel", "no kernel image")
	}
	for _, p := range []struct{ field, path string }{{"Kernel", m.Kernel}, {"Initramfs", m.Initramfs}} {
		if strings.ContainsAny(p.path, "\x00\n") {
			return fieldErrorf(p.field, "%q is not a path", p.path)
		}
	}
	for i, word := range m.Cmdline {
		if word == "" || strings.ContainsAny(word, "\x00\n") {
			return fieldErrorf(fmt.Sprintf("Cmdline[%d]", i), "%q is not a command line parameter", word)
		}
	}
	if n := len(m.KernelCommandLine()); n > maxCmdline {
		return fieldErrorf("Cmdline", "the command line is %d bytes; a kernel takes %d", n, maxCmdline)
	}
	return nil
}

func checkChannels(m Machine) error {
	c := m.Channels
	fds := map[string]int{"QMPFD": c.QMPFD, "ConsoleFD": c.ConsoleFD, "AgentFD": c.AgentFD}
	for n, fd := range c.RAMFDs {
		fds[fmt.Sprintf("RAMFDs[%d]", n)] = fd
	}
	seen := map[int]bool{}
	for _, name := range slices.Sorted(maps.Keys(fds)) {
		if fds[name] < 3 {
			return fieldErrorf("Channels."+name, "descriptor %d is not one that can be handed down", fds[name])
		}
		if seen[fds[name]] {
			return fieldErrorf("Channels", "descriptors %v are not distinct", fds)
		}
		seen[fds[name]] = true
	}
	switch {
	case c.RAMFDs == nil && m.Incoming:
		return fieldErrorf("Channels.RAMFDs", "no memory to go with the saved state")
	case c.RAMFDs != nil && len(c.RAMFDs) != m.Shape.Nodes:
		return fieldErrorf("Channels.RAMFDs", "%d files for %d nodes", len(c.RAMFDs), m.Shape.Nodes)
	}
	if c.SSHSocket == "" || strings.ContainsAny(c.SSHSocket, "\x00\n") {
		return fieldErrorf("Channels.SSHSocket", "%q is not a path", c.SSHSocket)
	}
	return nil
}

// NodeMemory is each node's memory in bytes.
func (m Machine) NodeMemory() []int64 {
	var sizes []int64
	for _, mib := range split(m.Shape.MemoryMiB, m.Shape.Nodes) {
		sizes = append(sizes, int64(mib)<<20)
	}
	return sizes
}

// Threaded reports whether every vCPU has a host thread of its own. TCG shares one thread between all vCPUs of a large guest, and of one that asks for it.
func (m Machine) Threaded() bool {
	return m.Accel == KVM || !m.OneThread && m.Shape.CPUs() <= maxThreaded
}

// HotplugError tells why a CPU cannot be unplugged or plugged in, found before QEMU was asked.
type HotplugError struct {
	CPU int
	Why string
}

func (e *HotplugError) Error() string { return fmt.Sprintf("CPU %d: %s", e.CPU, e.Why) }

func hotplugErrorf(cpu int, format string, args ...any) error {
	return &HotplugError{CPU: cpu, Why: fmt.Sprintf(format, args...)}
}

// CheckUnplug returns nil if a CPU of this machine can be unplugged through QMP's device_del, else why not, before it would abort QEMU or come to nothing.
// Taking a CPU offline inside the guest works in every machine.
func (m Machine) CheckUnplug(cpu int) error {
	switch last := m.Shape.CPUs() - 1; {
	case cpu < 0 || cpu > last:
		return hotplugErrorf(cpu, "the machine has CPUs 0 to %d", last)
	case cpu == 0 && last == 0:
		return hotplugErrorf(cpu, "the machine's only CPU cannot be unplugged")
	case cpu == 0:
		return hotplugErrorf(cpu, "no x86 kernel lets the boot CPU go: unplug one of 1 to %d", last)
	case !m.Threaded() && last < maxThreaded:
		return hotplugErrorf(cpu, "the vCPUs share one TCG thread, as was asked for, and QEMU aborts when such a vCPU is unplugged: use KVM, or take the CPU offline in the guest")
	case !m.Threaded():
		return hotplugErrorf(cpu, "%d vCPUs share one TCG thread, and QEMU aborts when such a vCPU is unplugged: use at most %d vCPUs, or KVM, or take the CPU offline in the guest",
			last+1, maxThreaded)
	}
	return nil
}

// Replugs is how often the machine's headroom lets a CPU be plugged in again. QEMU aborts when a vCPU would take more TCG contexts than the machine may ever have
// CPUs, and the context of a CPU that was unplugged does not come back. KVM has no such limit, nor needs headroom.
func (m Machine) Replugs() int {
	if m.Accel == KVM {
		return math.MaxInt
	}
	return m.SpareSockets * m.Shape.Cores * m.Shape.Threads
}

// CheckReplug returns nil if a CPU that was unplugged can be plugged in again after so many others have been, else why not.
func (m Machine) CheckReplug(cpu, done int) error {
	if err := m.CheckUnplug(cpu); err != nil {
		return err
	}
	if most := m.Replugs(); done >= most {
		return hotplugErrorf(cpu, "the machine has headroom to plug in %d CPUs, and %d were: QEMU aborts at one more; plan for it before the start (a case's replug steps do, as does lab.Config.Replugs)",
			most, done)
	}
	return nil
}

// SpareFor is the number of spare sockets that let CPUs be plugged in again so many times.
func (m Machine) SpareFor(replugs int) int {
	if m.Accel == KVM {
		return 0
	}
	perSocket := m.Shape.Cores * m.Shape.Threads
	return (replugs + perSocket - 1) / perSocket
}
