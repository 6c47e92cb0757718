package machine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
)

// Args returns QEMU's arguments, program name not included. It refuses what Validate refuses, and Channels that are not set up.
func (m Machine) Args() ([]string, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if err := checkChannels(m); err != nil {
		return nil, err
	}
	var a args
	a.add("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none")
	m.platform(&a)
	m.memory(&a)
	m.channels(&a)
	m.devices(&a)
	if m.Incoming { // the kernel is in the saved memory; loading it once more would cost time and memory for nothing
		a.add("-incoming", "defer")
		return a, nil
	}
	a.add("-kernel", m.Kernel)
	if m.Initramfs != "" {
		a.add("-initrd", m.Initramfs)
	}
	a.add("-append", m.KernelCommandLine())
	return a, nil
}

type args []string

func (a *args) add(words ...string) { *a = append(*a, words...) }

// opt adds a flag whose value is a comma-separated option list.
func (a *args) opt(flag string, options ...string) { a.add(flag, strings.Join(options, ",")) }

// escape makes a value safe in an option list, where a comma is written twice.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }

func (m Machine) platform(a *args) {
	// The legacy devices left out cost boot time and, in the case of AHCI, an interrupt vector.
	q35 := []string{"q35", "sata=off", "smbus=off", "usb=off", "i8042=off", "vmport=off"}
	if !m.Threaded() {
		q35 = append(q35, "smm=off") // no one enters system management, for which each CPU has a second address space: a third of the time that QEMU takes to make 128
	}
	if m.Accel == KVM {
		if m.Irqchip == Remapped {
			q35 = append(q35, "kernel-irqchip=split") // KVM's own I/O APIC cannot be remapped
		}
		a.opt("-machine", q35...)
		a.opt("-accel", "kvm")
	} else {
		a.opt("-machine", q35...)
		thread := "multi"
		if !m.Threaded() {
			thread = "single"
		}
		a.opt("-accel", "tcg", "thread="+thread)
	}
	a.opt("-cpu", m.CPUModel())
	s := m.Shape
	a.opt("-smp", fmt.Sprintf("cpus=%d", s.CPUs()), fmt.Sprintf("maxcpus=%d", (s.Sockets+m.SpareSockets)*s.Cores*s.Threads),
		fmt.Sprintf("sockets=%d", s.Sockets+m.SpareSockets), fmt.Sprintf("cores=%d", s.Cores), fmt.Sprintf("threads=%d", s.Threads))
}

// CPUModel is what QEMU's option -cpu takes.
func (m Machine) CPUModel() string {
	if m.Accel == KVM {
		return "host"
	}
	// qemu64 is the x86-64 baseline, all that a kernel and Go binaries need, and the cheapest to emulate. x2APIC saves an exit per interrupt;
	// RDRAND seeds the guest's random numbers at boot, so that the agent's first key exchange does not wait and no device is needed for it.
	// Of an Intel CPU every kernel asks which threads and caches are shared; of an AMD one this old, 6.1 takes every thread for a core.
	// Of this model the kernel knows that its TSC is constant, and times the delay loop once instead of once per CPU. Saying so by +invtsc would
	// forbid to save the state.
	model := "qemu64,vendor=GenuineIntel,family=6,model=23,+x2apic,+rdrand"
	if m.nodesCutSockets() {
		model += ",l3-cache=off" // the kernel warns of a cache that spans nodes
	}
	return model
}

func (m Machine) memory(a *args) {
	nodes := m.Shape.Nodes
	sizes := split(m.Shape.MemoryMiB, nodes)
	a.add("-m", fmt.Sprintf("%dM", m.Shape.MemoryMiB))
	for n, cpus := range m.nodeCPUs() {
		// Shared, so that a device model in another process can map it.
		id, size := fmt.Sprintf("id=ram%d", n), fmt.Sprintf("size=%dM", sizes[n])
		if m.Channels.RAMFDs == nil {
			a.opt("-object", "memory-backend-memfd", id, size, "share=on")
		} else { // only memory with a file name is left out of a saved state, so the descriptor goes by one
			a.opt("-object", "memory-backend-file", id, size, "share=on", fmt.Sprintf("mem-path=/proc/self/fd/%d", m.Channels.RAMFDs[n]))
		}
		a.opt("-numa", "node", fmt.Sprintf("nodeid=%d", n), "cpus="+cpus.String(), fmt.Sprintf("memdev=ram%d", n))
	}
	if nodes == 1 {
		return
	}
	for i := range nodes {
		for j := range nodes {
			a.opt("-numa", "dist", fmt.Sprintf("src=%d", i), fmt.Sprintf("dst=%d", j), fmt.Sprintf("val=%d", m.distance(i, j)))
		}
	}
}

func (m Machine) distance(from, to int) int {
	switch {
	case m.Distances != nil:
		return m.Distances[from][to]
	case from == to:
		return 10
	}
	return 20
}

// nodeCPUs is each node's CPUs as the shape has them, and spare sockets' CPUs on the last node.
func (m Machine) nodeCPUs() []cpulist.List {
	s := m.Shape
	var nodes []cpulist.List
	for n := range s.Nodes {
		nodes = append(nodes, s.NodeCPUs(n))
	}
	last := len(nodes) - 1
	nodes[last] = append(nodes[last], cpulist.Range(s.CPUs(), s.CPUs()+m.SpareSockets*s.Cores*s.Threads-1)...)
	return nodes
}

// nodesCutSockets reports whether a socket has CPUs on two nodes.
func (m Machine) nodesCutSockets() bool {
	for _, cpus := range m.nodeCPUs() {
		if cpus[0]%(m.Shape.Cores*m.Shape.Threads) != 0 {
			return true
		}
	}
	return false
}

// split deals total out into parts as evenly as possible, the larger shares first.
func split(total, parts int) []int {
	shares := make([]int, parts)
	for i := range shares {
		shares[i] = total / parts
		if i < total%parts {
			shares[i]++
		}
	}
	return shares
}

func (m Machine) channels(a *args) {
	c := m.Channels
	a.opt("-chardev", "socket", "id=qmp", "fd="+strconv.Itoa(c.QMPFD))
	a.opt("-qmp", "chardev:qmp") // -mon is deprecated, and what replaces it is newer than the oldest QEMU that will do
	a.opt("-chardev", "socket", "id=console", "fd="+strconv.Itoa(c.ConsoleFD))
	a.opt("-serial", "chardev:console")
	a.opt("-chardev", "socket", "id=agent", "fd="+strconv.Itoa(c.AgentFD))
	a.opt("-chardev", "socket", "id=ssh", "path="+escape(c.SSHSocket), "server=on", "wait=off")
}

func (m Machine) devices(a *args) {
	remap := "off"
	if m.Irqchip == Remapped {
		remap = "on"
	}
	// Before all other devices, since those ask it for their address space; without caching-mode QEMU aborts when a vfio-user device is mapped.
	a.opt("-device", "intel-iommu", "caching-mode=on", "intremap="+remap)

	bridges := m.bridges()
	for _, b := range bridges {
		a.opt("-device", "pxb-pcie", "id="+b.id, "bus=pcie.0", fmt.Sprintf("bus_nr=%d", b.number), fmt.Sprintf("numa_node=%d", b.node))
	}
	// As few vectors as the driver gets by with: one for configuration and one for all queues. They too weigh on where later vectors land.
	a.opt("-device", "virtio-serial-pci", "id=serial", "bus=pcie.0", "max_ports=3", "vectors=2")
	a.opt("-device", "virtserialport", "bus=serial.0", "nr=1", "chardev=agent", "name="+agentapi.AgentPort)
	a.opt("-device", "virtserialport", "bus=serial.0", "nr=2", "chardev=ssh", "name="+agentapi.SSHPort)

	ports := 0
	port := func(id string, node int) {
		bus := "pcie.0"
		for _, b := range bridges {
			if b.node == node {
				bus = b.id
			}
		}
		ports++
		// The windows are fixed at boot, before the function is there: room for its registers and for the MSI-X table of 2048 vectors.
		a.opt("-device", "pcie-root-port", "id="+id, "bus="+bus, fmt.Sprintf("chassis=%d", ports), fmt.Sprintf("slot=%d", ports),
			"io-reserve=0", "mem-reserve=2M", "pref64-reserve=2M",
			"power_controller_present=off") // an empty slot has power all the same, so that a rescan finds what has been plugged in
	}
	for _, s := range m.Slots {
		port(s.Bus(), s.Node)
	}
	for i, n := range m.Neighbours {
		id, bus := fmt.Sprintf("neighbour%d", i), "pcie.0"
		if n.Node != NoNode {
			bus = "port-" + id
			port(bus, n.Node)
		}
		a.opt("-blockdev", "null-co", "node-name="+id+"-disk", "size=16777216", "read-zeroes=on")
		switch n.Kind {
		case NVMe:
			a.opt("-device", "nvme", "id="+id, "bus="+bus, "drive="+id+"-disk", fmt.Sprintf("serial=%s%d", agentapi.DiskSerial, i),
				fmt.Sprintf("max_ioqpairs=%d", n.Queues), fmt.Sprintf("msix_qsize=%d", n.Queues+1))
		case VirtioBlk:
			a.opt("-device", "virtio-blk-pci", "id="+id, "bus="+bus, "drive="+id+"-disk", fmt.Sprintf("serial=%s%d", agentapi.DiskSerial, i),
				fmt.Sprintf("num-queues=%d", n.Queues), fmt.Sprintf("vectors=%d", n.Queues+1))
		}
	}
}

// bridge is a host bridge of its own, the only way to give a device a node.
type bridge struct {
	id     string
	node   int
	number int // its first bus; the devices behind its ports get the ones that follow
}

// bridges lists one bridge for each node that has a device, in ascending order. The upper half of the 256 buses is theirs.
func (m Machine) bridges() []bridge {
	used := map[int]bool{}
	for _, s := range m.Slots {
		used[s.Node] = true
	}
	for _, n := range m.Neighbours {
		used[n.Node] = true
	}
	delete(used, NoNode)
	spacing := 32
	if len(used) > 4 {
		spacing = 128 / len(used)
	}
	var list []bridge
	for node := range m.Shape.Nodes {
		if used[node] {
			list = append(list, bridge{id: fmt.Sprintf("node%d", node), node: node, number: 128 + spacing*len(list)})
		}
	}
	return list
}

// KernelCommandLine returns the guest kernel's command line: what every guest needs, then Cmdline.
func (m Machine) KernelCommandLine() string {
	words := []string{
		"console=ttyS0", "earlycon=uart8250,io,0x3f8", // a kernel that dies early still says why
		"panic=-1",                              // with -no-reboot: QEMU exits, and the lab knows at once
		"unknown_nmi_panic", "panic_print=0x40", // so that an injected NMI shows every CPU's stack
		"cryptomgr.notests=1", // the self-tests of ciphers nobody uses are a third of an emulated boot
		"intel_iommu=on", "iommu=pt",
	}
	if m.Irqchip == MSI {
		words = append(words, "vfio_iommu_type1.allow_unsafe_interrupts=1") // VFIO refuses a device whose interrupts are not isolated
	}
	if m.Accel == TCG {
		// Measured to halve the boot of an emulated guest (reference, qemu-facts, "Boot").
		words = append(words, "tsc=reliable", "mitigations=off", "nokaslr", "no_timer_check",
			"psi=0", "cgroup_disable=memory", "damon_stat.enabled=0") // bookkeeping that nobody reads; the last wakes a CPU every 5 ms
		if !m.Threaded() {
			// vCPUs that take turns are late by design; the detectors shall find hangs, not that.
			words = append(words, "rcupdate.rcu_cpu_stall_timeout=120", "watchdog_thresh=60")
			if !slices.ContainsFunc(m.Cmdline, func(word string) bool { return strings.HasPrefix(word, "maxcpus=") }) {
				// Until the kernel has chosen a clock source, near the end of its boot, every online CPU ticks 250 times a second, and a large guest does
				// little else (docs/dev/performance.md, "Many CPUs"). So it boots on one CPU, and the agent brings up the others before anything else.
				words = append(words, "maxcpus=1", agentapi.OnlineWord)
			}
		}
	}
	if m.Verbose {
		words = append(words, "loglevel=7")
	} else {
		words = append(words, "loglevel=5") // warnings and worse: each byte on the serial line is an exit
	}
	return strings.Join(append(words, m.Cmdline...), " ")
}
