// Package shape describes a guest machine's CPUs, NUMA nodes and memory: how many there are and which CPU belongs to which core and node.
//
// It is pure. It must not know how a shape becomes a virtual machine; that is lab/machine's.
package shape

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/scenarios/nearest"
)

// Limits of a shape. Machines of both of the first two were booted and measured (docs/dev/performance.md, "Many CPUs").
const (
	MaxCPUs          = 255       // as many as there are 8-bit APIC ids that a device's message reaches: 0 to 254
	MaxNodes         = 64        // as many as were tried
	MaxAPICID        = 254       // 255 is the broadcast address
	MinMemoryMiB     = 128       // below it a distribution kernel does not unpack its initramfs
	MinNodeMemoryMiB = 64        // the kernel drops a node with next to no memory
	MaxMemoryMiB     = 256 << 10 // 256 GiB
)

// Shape is a machine. CPUs are numbered thread by thread, core by core, socket by socket.
type Shape struct {
	Sockets   int // in the machine
	Cores     int // per socket
	Threads   int // per core
	Nodes     int // NUMA nodes in the machine; each holds whole cores, as evenly as they divide
	MemoryMiB int // in the machine, divided among the nodes
}

// Default is the machine of the published low-vCPU results: 4 CPUs, 2 cores x 2 threads.
func Default() Shape { return Shape{Sockets: 1, Cores: 2, Threads: 2, Nodes: 1, MemoryMiB: 512} }

// Keys are the words of the text form, in the order String writes them, which leaves out cpus.
func Keys() []string { return []string{"sockets", "cores", "threads", "nodes", "memory", "cpus"} }

// ParseShape reads "sockets=1,cores=2,threads=2,nodes=1,memory=512M". What is left out is as in Default, or follows from "cpus=8", the CPUs of the machine: its cores, with
// two threads each where the number is even, or its threads where the cores are given. Memory takes the suffixes M and G (MiB, GiB). The result is valid.
func ParseShape(text string) (Shape, error) {
	s := Default()
	cpus := 0
	fields := map[string]*int{"sockets": &s.Sockets, "cores": &s.Cores, "threads": &s.Threads, "nodes": &s.Nodes, "memory": &s.MemoryMiB, "cpus": &cpus}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case !ok:
			return Shape{}, fmt.Errorf("shape %q: %q is not KEY=VALUE; allowed: %s", text, part, strings.Join(Keys(), ", "))
		case fields[key] == nil:
			return Shape{}, fmt.Errorf("shape %q: unknown key %q; allowed: %s%s", text, key, strings.Join(Keys(), ", "), nearest.Hint(key, Keys()))
		case seen[key]:
			return Shape{}, fmt.Errorf("shape %q: %s is given twice", text, key)
		}
		seen[key] = true
		var err error
		if key == "memory" {
			*fields[key], err = parseMemory(value)
		} else {
			*fields[key], err = parseCount(value)
		}
		if err != nil {
			return Shape{}, fmt.Errorf("shape %q: %s: %w", text, key, err)
		}
	}
	if seen["cpus"] {
		if !seen["threads"] && !seen["cores"] && cpus%(s.Sockets*2) != 0 {
			s.Threads = 1
		}
		switch {
		case !seen["cores"]:
			s.Cores = cpus / (s.Sockets * s.Threads)
		case !seen["threads"]:
			s.Threads = cpus / (s.Sockets * s.Cores)
		}
		if s.CPUs() != cpus {
			return Shape{}, fmt.Errorf("shape %q: cpus=%d does not come out with whole cores; %s are %d CPUs", text, cpus, s.product(), s.CPUs())
		}
	}
	if err := s.Validate(); err != nil {
		return Shape{}, fmt.Errorf("shape %q: %w", text, err)
	}
	return s, nil
}

// product is how the CPUs come about, in words.
func (s Shape) product() string {
	return fmt.Sprintf("%d sockets x %d cores x %d threads", s.Sockets, s.Cores, s.Threads)
}

func parseCount(value string) (int, error) {
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a number of 1 or more", value)
	}
	return int(n), nil
}

func parseMemory(value string) (int, error) {
	unit := 0
	digits := strings.TrimSuffix(value, "iB")
	switch {
	case strings.HasSuffix(digits, "M"):
		unit = 1
	case strings.HasSuffix(digits, "G"):
		unit = 1 << 10
	default:
		return 0, fmt.Errorf("%q needs a unit, as in 512M or 2G", value)
	}
	n, err := strconv.ParseUint(digits[:len(digits)-1], 10, 31)
	if err != nil || n > MaxMemoryMiB {
		return 0, fmt.Errorf("%q is not a size of at most %dG", value, MaxMemoryMiB>>10)
	}
	return int(n) * unit, nil
}

// Validate says why no machine can have this shape, nil when one can.
func (s Shape) Validate() error {
	for _, f := range []struct {
		name string
		n    int
	}{{"sockets", s.Sockets}, {"cores", s.Cores}, {"threads", s.Threads}, {"nodes", s.Nodes}} {
		// The bound keeps the product below in range.
		if f.n < 1 || f.n > MaxCPUs {
			return fmt.Errorf("%s=%d is impossible; allowed: 1 to %d", f.name, f.n, MaxCPUs)
		}
	}
	switch cores := s.Sockets * s.Cores; {
	case s.CPUs() > MaxCPUs:
		return fmt.Errorf("%s are %d CPUs; allowed: 1 to %d", s.product(), s.CPUs(), MaxCPUs)
	case s.Nodes > MaxNodes:
		return fmt.Errorf("nodes=%d is impossible; allowed: 1 to %d", s.Nodes, MaxNodes)
	case s.Nodes > cores:
		return fmt.Errorf("nodes=%d is impossible with %d cores: a node holds at least one whole core; allowed: 1 to %d", s.Nodes, cores, min(cores, MaxNodes))
	case s.MemoryMiB < MinMemoryMiB || s.MemoryMiB > MaxMemoryMiB:
		return fmt.Errorf("memory=%dM is impossible; allowed: %dM to %dG", s.MemoryMiB, MinMemoryMiB, MaxMemoryMiB>>10)
	case s.MemoryMiB < s.Nodes*MinNodeMemoryMiB:
		return fmt.Errorf("memory=%dM is too little for %d nodes; each needs %dM: give memory=%dM", s.MemoryMiB, s.Nodes, MinNodeMemoryMiB, s.Nodes*MinNodeMemoryMiB)
	}
	return s.CheckAPICIDs()
}

// CheckAPICIDs says why interrupts would not reach every CPU, nil when they do.
func (s Shape) CheckAPICIDs() error {
	if top := s.highestAPICID(); top > MaxAPICID {
		return fmt.Errorf("%d sockets x %d cores x %d threads need APIC id %d; interrupts reach ids up to %d: use fewer CPUs, or core and thread counts that are powers of two",
			s.Sockets, s.Cores, s.Threads, top, MaxAPICID)
	}
	return nil
}

// highestAPICID packs thread, core and socket numbers into bit fields the way the architecture does: counts are rounded up to powers of two.
func (s Shape) highestAPICID() int {
	threadBits, coreBits := fieldWidth(s.Threads), fieldWidth(s.Cores)
	return (s.Sockets-1)<<(threadBits+coreBits) | (s.Cores-1)<<threadBits | (s.Threads - 1)
}

func fieldWidth(count int) int {
	bits := 0
	for 1<<bits < count {
		bits++
	}
	return bits
}

// CPUs is the number of CPUs.
func (s Shape) CPUs() int { return s.Sockets * s.Cores * s.Threads }

// String writes the text form in full.
func (s Shape) String() string {
	memory := strconv.Itoa(s.MemoryMiB) + "M"
	if s.MemoryMiB > 0 && s.MemoryMiB%1024 == 0 {
		memory = strconv.Itoa(s.MemoryMiB/1024) + "G"
	}
	return fmt.Sprintf("sockets=%d,cores=%d,threads=%d,nodes=%d,memory=%s", s.Sockets, s.Cores, s.Threads, s.Nodes, memory)
}

// NodeCPUs are the CPUs of a node: whole cores in one run, the runs as even as the cores divide. Nil for a node the shape does not have.
func (s Shape) NodeCPUs(node int) cpulist.List {
	if node < 0 || node >= s.Nodes {
		return nil
	}
	cores := s.Sockets * s.Cores
	return cpulist.Range(node*cores/s.Nodes*s.Threads, (node+1)*cores/s.Nodes*s.Threads-1)
}

// Node is the node of a CPU, -1 for a CPU the shape does not have.
func (s Shape) Node(cpu int) int {
	for n := range s.Nodes {
		if s.NodeCPUs(n).Has(cpu) {
			return n
		}
	}
	return -1
}

// Topology is what a kernel booted in this shape reports once the CPUs in offline are gone, with the ACPI default distances of 10 and 20.
func (s Shape) Topology(offline cpulist.List) agentapi.Topology {
	all := cpulist.Range(0, s.CPUs()-1)
	t := agentapi.Topology{Online: all.Minus(offline), Present: all, Possible: all}
	for n := range s.Nodes {
		node := agentapi.Node{ID: n, CPUs: s.NodeCPUs(n).Minus(offline)}
		for m := range s.Nodes {
			if m == n {
				node.Distances = append(node.Distances, 10)
			} else {
				node.Distances = append(node.Distances, 20)
			}
		}
		t.Nodes = append(t.Nodes, node)
		for _, c := range node.CPUs {
			core := c / s.Threads
			t.CPUs = append(t.CPUs, agentapi.CPU{
				ID: c, Node: n, Core: core % s.Cores, Package: core / s.Cores,
				Siblings: cpulist.Range(core*s.Threads, core*s.Threads+s.Threads-1).Minus(offline),
			})
		}
	}
	return t
}

// jsonShape is the contract's form: the text form's numbers, the CPUs counted, and the unit in the name.
type jsonShape struct {
	Sockets   int `json:"sockets"`
	Cores     int `json:"cores"`
	Threads   int `json:"threads"`
	Nodes     int `json:"nodes"`
	CPUs      int `json:"cpus"`
	MemoryMiB int `json:"memory_mib"`
}

// MarshalJSON writes the contract's form.
func (s Shape) MarshalJSON() ([]byte, error) {
	return json.Marshal(jsonShape{s.Sockets, s.Cores, s.Threads, s.Nodes, s.CPUs(), s.MemoryMiB})
}

// UnmarshalJSON reads the contract's form; "cpus" may be left out but must not contradict the rest.
func (s *Shape) UnmarshalJSON(b []byte) error {
	var j jsonShape
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("shape: %w", err)
	}
	v := Shape{j.Sockets, j.Cores, j.Threads, j.Nodes, j.MemoryMiB}
	if err := v.Validate(); err != nil {
		return fmt.Errorf("shape: %w", err)
	}
	if j.CPUs != 0 && j.CPUs != v.CPUs() {
		return errors.New("shape: cpus is not sockets x cores x threads")
	}
	*s = v
	return nil
}
