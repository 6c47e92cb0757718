package machine

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"irqlab/scenarios/shape"
)

func base() Machine {
	return Machine{
		Shape: DefaultShape, Accel: TCG, Irqchip: MSI, Kernel: "/k/vmlinux", Initramfs: "/k/initramfs",
		Slots:    []Slot{{ID: "function", Node: 0}},
		Channels: Channels{QMPFD: 3, ConsoleFD: 4, AgentFD: 5, SSHSocket: "/run/vm/ssh.sock"},
	}
}

// The whole vector once, in order; the other tests look at what they change.
func TestArgsWhole(t *testing.T) {
	m := base()
	m.Neighbours = []Neighbour{{Kind: NVMe, Queues: 4, Node: NoNode}}
	m.Cmdline = []string{"dyndbg=+p"}
	got, err := m.Args()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-machine", "q35,sata=off,smbus=off,usb=off,i8042=off,vmport=off",
		"-accel", "tcg,thread=multi",
		"-cpu", "qemu64,vendor=GenuineIntel,family=6,model=23,+x2apic,+rdrand",
		"-smp", "cpus=4,maxcpus=4,sockets=1,cores=2,threads=2",
		"-m", "512M",
		"-object", "memory-backend-memfd,id=ram0,size=512M,share=on",
		"-numa", "node,nodeid=0,cpus=0-3,memdev=ram0",
		"-chardev", "socket,id=qmp,fd=3",
		"-qmp", "chardev:qmp",
		"-chardev", "socket,id=console,fd=4",
		"-serial", "chardev:console",
		"-chardev", "socket,id=agent,fd=5",
		"-chardev", "socket,id=ssh,path=/run/vm/ssh.sock,server=on,wait=off",
		"-device", "intel-iommu,caching-mode=on,intremap=off",
		"-device", "pxb-pcie,id=node0,bus=pcie.0,bus_nr=128,numa_node=0",
		"-device", "virtio-serial-pci,id=serial,bus=pcie.0,max_ports=3,vectors=2",
		"-device", "virtserialport,bus=serial.0,nr=1,chardev=agent,name=irqlab.agent",
		"-device", "virtserialport,bus=serial.0,nr=2,chardev=ssh,name=irqlab.ssh",
		"-device", "pcie-root-port,id=port-function,bus=node0,chassis=1,slot=1,io-reserve=0,mem-reserve=2M,pref64-reserve=2M,power_controller_present=off",
		"-blockdev", "null-co,node-name=neighbour0-disk,size=16777216,read-zeroes=on",
		"-device", "nvme,id=neighbour0,bus=pcie.0,drive=neighbour0-disk,serial=irqlab0,max_ioqpairs=4,msix_qsize=5",
		"-kernel", "/k/vmlinux", "-initrd", "/k/initramfs",
		"-append", "console=ttyS0 earlycon=uart8250,io,0x3f8 panic=-1 unknown_nmi_panic panic_print=0x40 cryptomgr.notests=1 intel_iommu=on iommu=pt " +
			"vfio_iommu_type1.allow_unsafe_interrupts=1 tsc=reliable mitigations=off nokaslr no_timer_check psi=0 cgroup_disable=memory damon_stat.enabled=0 loglevel=5 dyndbg=+p",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("arguments (-want +got):\n%s", d)
	}
}

func TestArgsOfOddMachines(t *testing.T) {
	const many = "console=ttyS0 earlycon=uart8250,io,0x3f8 panic=-1 unknown_nmi_panic panic_print=0x40 cryptomgr.notests=1 intel_iommu=on iommu=pt" +
		" vfio_iommu_type1.allow_unsafe_interrupts=1 tsc=reliable mitigations=off nokaslr no_timer_check psi=0 cgroup_disable=memory damon_stat.enabled=0 rcupdate.rcu_cpu_stall_timeout=120 watchdog_thresh=60"
	sh := func(sockets, cores, threads, nodes, mib int) Shape {
		return Shape{Sockets: sockets, Cores: cores, Threads: threads, Nodes: nodes, MemoryMiB: mib}
	}
	tests := []struct {
		name   string
		change func(*Machine)
		has    []string // "flag value"
		lacks  []string // text in no argument
	}{
		{
			name:   "one CPU",
			change: func(m *Machine) { m.Shape = sh(1, 1, 1, 1, 256) },
			has:    []string{"-smp cpus=1,maxcpus=1,sockets=1,cores=1,threads=1", "-numa node,nodeid=0,cpus=0,memdev=ram0"},
			lacks:  []string{"dist,"},
		},
		{
			name:   "a node per socket",
			change: func(m *Machine) { m.Shape = sh(2, 2, 2, 2, 1024) },
			has: []string{
				"-cpu qemu64,vendor=GenuineIntel,family=6,model=23,+x2apic,+rdrand",
				"-object memory-backend-memfd,id=ram1,size=512M,share=on",
				"-numa node,nodeid=0,cpus=0-3,memdev=ram0", "-numa node,nodeid=1,cpus=4-7,memdev=ram1",
				"-numa dist,src=0,dst=0,val=10", "-numa dist,src=0,dst=1,val=20", "-numa dist,src=1,dst=0,val=20", "-numa dist,src=1,dst=1,val=10",
			},
		},
		{
			name:   "uneven nodes hold whole cores and the memory's remainder",
			change: func(m *Machine) { m.Shape = sh(1, 3, 2, 2, 515) },
			has: []string{
				"-cpu qemu64,vendor=GenuineIntel,family=6,model=23,+x2apic,+rdrand,l3-cache=off",
				"-numa node,nodeid=0,cpus=0-1,memdev=ram0", "-numa node,nodeid=1,cpus=2-5,memdev=ram1",
				"-object memory-backend-memfd,id=ram0,size=258M,share=on", "-object memory-backend-memfd,id=ram1,size=257M,share=on",
			},
		},
		{
			name:   "more nodes than sockets",
			change: func(m *Machine) { m.Shape = sh(1, 4, 1, 4, 512) },
			has:    []string{"-cpu qemu64,vendor=GenuineIntel,family=6,model=23,+x2apic,+rdrand,l3-cache=off", "-numa node,nodeid=3,cpus=3,memdev=ram3", "-numa dist,src=3,dst=0,val=20"},
		},
		{
			name:   "own distances",
			change: func(m *Machine) { m.Shape, m.Distances = sh(2, 1, 1, 2, 512), [][]int{{10, 31}, {41, 10}} },
			has:    []string{"-numa dist,src=0,dst=1,val=31", "-numa dist,src=1,dst=0,val=41"},
		},
		{
			name:   "8 CPUs are the most that get a thread each",
			change: func(m *Machine) { m.Shape = sh(1, 4, 2, 1, 1024) },
			has:    []string{"-accel tcg,thread=multi"},
			lacks:  []string{"rcu_cpu_stall_timeout", "maxcpus=1 "},
		},
		{
			name:   "4 CPUs that take turns",
			change: func(m *Machine) { m.OneThread = true },
			has: []string{"-machine q35,sata=off,smbus=off,usb=off,i8042=off,vmport=off,smm=off", "-accel tcg,thread=single", "-smp cpus=4,maxcpus=4,sockets=1,cores=2,threads=2",
				"-append " + many + " maxcpus=1 irqlab.online loglevel=5"},
		},
		{
			name:   "KVM has no thread to share",
			change: func(m *Machine) { m.OneThread, m.Accel = true, KVM },
			has:    []string{"-accel kvm"},
			lacks:  []string{"smm=off", "maxcpus=1 "},
		},
		{
			name:   "128 CPUs",
			change: func(m *Machine) { m.Shape = sh(2, 32, 2, 2, 2048) },
			has:    []string{"-machine q35,sata=off,smbus=off,usb=off,i8042=off,vmport=off,smm=off", "-accel tcg,thread=single", "-numa node,nodeid=1,cpus=64-127,memdev=ram1", "-append " + many + " maxcpus=1 irqlab.online loglevel=5"},
		},
		{
			name:   "128 CPUs, the number to boot on given",
			change: func(m *Machine) { m.Shape, m.Cmdline = sh(2, 32, 2, 2, 2048), []string{"maxcpus=4"} },
			has:    []string{"-append " + many + " loglevel=5 maxcpus=4"},
		},
		{
			name:   "room to plug CPUs again",
			change: func(m *Machine) { m.SpareSockets = 1 },
			has:    []string{"-smp cpus=4,maxcpus=8,sockets=2,cores=2,threads=2", "-numa node,nodeid=0,cpus=0-7,memdev=ram0"},
		},
		{
			name:   "function on no node",
			change: func(m *Machine) { m.Slots[0].Node = NoNode },
			has:    []string{"-device pcie-root-port,id=port-function,bus=pcie.0,chassis=1,slot=1,io-reserve=0,mem-reserve=2M,pref64-reserve=2M,power_controller_present=off"},
			lacks:  []string{"pxb"},
		},
		{
			name: "functions and neighbours share their node's bridge",
			change: func(m *Machine) {
				m.Shape = sh(2, 2, 2, 2, 1024)
				m.Slots = []Slot{{"a", 1}, {"b", 0}, {"c", 1}}
				m.Neighbours = []Neighbour{{VirtioBlk, 2, 1}, {NVMe, 1, NoNode}}
			},
			has: []string{
				"-device pxb-pcie,id=node0,bus=pcie.0,bus_nr=128,numa_node=0", "-device pxb-pcie,id=node1,bus=pcie.0,bus_nr=160,numa_node=1",
				"-device pcie-root-port,id=port-a,bus=node1,chassis=1,slot=1,io-reserve=0,mem-reserve=2M,pref64-reserve=2M,power_controller_present=off",
				"-device pcie-root-port,id=port-b,bus=node0,chassis=2,slot=2,io-reserve=0,mem-reserve=2M,pref64-reserve=2M,power_controller_present=off",
				"-device pcie-root-port,id=port-c,bus=node1,chassis=3,slot=3,io-reserve=0,mem-reserve=2M,pref64-reserve=2M,power_controller_present=off",
				"-device pcie-root-port,id=port-neighbour0,bus=node1,chassis=4,slot=4,io-reserve=0,mem-reserve=2M,pref64-reserve=2M,power_controller_present=off",
				"-device virtio-blk-pci,id=neighbour0,bus=port-neighbour0,drive=neighbour0-disk,serial=irqlab0,num-queues=2,vectors=3",
				"-device nvme,id=neighbour1,bus=pcie.0,drive=neighbour1-disk,serial=irqlab1,max_ioqpairs=1,msix_qsize=2",
			},
		},
		{
			name: "more than four bridges share the buses",
			change: func(m *Machine) {
				m.Shape = sh(8, 1, 1, 8, 1024)
				m.Slots = nil
				for n := range 8 {
					m.Slots = append(m.Slots, Slot{fmt.Sprintf("f%d", n), n})
				}
			},
			has: []string{"-device pxb-pcie,id=node1,bus=pcie.0,bus_nr=144,numa_node=1", "-device pxb-pcie,id=node7,bus=pcie.0,bus_nr=240,numa_node=7"},
		},
		{
			name:   "remapped",
			change: func(m *Machine) { m.Irqchip = Remapped },
			has:    []string{"-device intel-iommu,caching-mode=on,intremap=on"},
			lacks:  []string{"allow_unsafe_interrupts", "kernel-irqchip"},
		},
		{
			name:   "KVM",
			change: func(m *Machine) { m.Accel = KVM },
			has:    []string{"-accel kvm", "-cpu host", "-machine q35,sata=off,smbus=off,usb=off,i8042=off,vmport=off"},
			lacks:  []string{"tcg", "tsc=reliable"},
		},
		{
			name:   "KVM remapped",
			change: func(m *Machine) { m.Accel, m.Irqchip = KVM, Remapped },
			has:    []string{"-machine q35,sata=off,smbus=off,usb=off,i8042=off,vmport=off,kernel-irqchip=split", "-device intel-iommu,caching-mode=on,intremap=on"},
		},
		{
			name:   "no initramfs, all messages",
			change: func(m *Machine) { m.Initramfs, m.Verbose = "", true },
			lacks:  []string{"-initrd", "loglevel=5"},
		},
		{
			name: "memory of the lab's",
			change: func(m *Machine) {
				m.Shape, m.Channels.RAMFDs = Shape{Sockets: 1, Cores: 2, Threads: 2, Nodes: 2, MemoryMiB: 513}, []int{6, 7}
			},
			has: []string{"-object memory-backend-file,id=ram0,size=257M,share=on,mem-path=/proc/self/fd/6",
				"-object memory-backend-file,id=ram1,size=256M,share=on,mem-path=/proc/self/fd/7", "-kernel /k/vmlinux"},
			lacks: []string{"memfd", "-incoming"},
		},
		{
			name:   "a saved state to come",
			change: func(m *Machine) { m.Incoming, m.Channels.RAMFDs = true, []int{6} },
			has:    []string{"-incoming defer", "-object memory-backend-file,id=ram0,size=512M,share=on,mem-path=/proc/self/fd/6"},
			lacks:  []string{"-kernel", "-initrd", "-append"},
		},
		{
			name:   "a comma in the socket's path",
			change: func(m *Machine) { m.Channels.SSHSocket = "/run/a,b/ssh.sock" },
			has:    []string{"-chardev socket,id=ssh,path=/run/a,,b/ssh.sock,server=on,wait=off"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := base()
			tt.change(&m)
			args, err := m.Args()
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tt.has {
				if !hasOption(args, want) {
					t.Errorf("no %q in\n%s", want, strings.Join(args, "\n"))
				}
			}
			for _, text := range tt.lacks {
				if slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, text) }) {
					t.Errorf("%q in\n%s", text, strings.Join(args, "\n"))
				}
			}
		})
	}
}

func hasOption(args []string, want string) bool {
	flag, value, _ := strings.Cut(want, " ")
	for i := range args[:len(args)-1] {
		if args[i] == flag && args[i+1] == value {
			return true
		}
	}
	return false
}

// Every device comes after the IOMMU, or it would not be behind it.
func TestIOMMUFirst(t *testing.T) {
	m := base()
	m.Neighbours = []Neighbour{{NVMe, 1, 0}}
	args, err := m.Args()
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.Index(args, "-device"); i < 0 || !strings.HasPrefix(args[i+1], "intel-iommu,") {
		t.Errorf("first device: %v", args[i:i+2])
	}
}

// Nodes' CPUs cover all CPUs once, in whole cores, for every small shape.
func TestNodesCoverCPUs(t *testing.T) {
	for sockets := 1; sockets <= 4; sockets++ {
		for cores := 1; cores <= 4; cores++ {
			for threads := 1; threads <= 2; threads++ {
				for nodes := 1; nodes <= sockets*cores; nodes++ {
					for spare := range 2 {
						m := Machine{Shape: Shape{Sockets: sockets, Cores: cores, Threads: threads, Nodes: nodes, MemoryMiB: 64 * nodes}, SpareSockets: spare}
						next := 0
						for n, cpus := range m.nodeCPUs() {
							if len(cpus) == 0 || len(cpus)%threads != 0 {
								t.Errorf("%v: node %d has CPUs %v", m.Shape, n, cpus)
							}
							for _, c := range cpus {
								if c != next {
									t.Fatalf("%v: CPU %d follows CPU %d", m.Shape, c, next-1)
								}
								next++
							}
						}
						if want := (sockets + spare) * cores * threads; next != want {
							t.Errorf("%v: nodes hold %d of %d CPUs", m.Shape, next, want)
						}
					}
				}
			}
		}
	}
}

func TestRefused(t *testing.T) {
	tests := []struct {
		field  string
		change func(*Machine)
	}{
		{"Shape", func(m *Machine) { m.Shape.Threads = 0 }},
		{"Shape", func(m *Machine) { m.Shape = Shape{} }},
		{"Shape", func(m *Machine) { m.Shape.Nodes = 3 }}, // two cores
		{"Shape", func(m *Machine) { m.Shape.MemoryMiB = 16 }},
		{"Shape", func(m *Machine) { m.Shape = Shape{Sockets: 1, Cores: 256, Threads: 1, Nodes: 1, MemoryMiB: 512} }},
		{"Shape", func(m *Machine) { m.Shape = Shape{Sockets: 40, Cores: 5, Threads: 1, Nodes: 1, MemoryMiB: 512} }}, // 200 CPUs, but APIC ids up to 316
		{"SpareSockets", func(m *Machine) { m.SpareSockets = 64 }},
		{"SpareSockets", func(m *Machine) { m.SpareSockets = -1 }},
		{"Distances", func(m *Machine) { m.Distances = [][]int{{10, 20}, {20, 10}} }},
		{"Distances[0]", func(m *Machine) { m.Distances = [][]int{{}} }},
		{"Distances[0][0]", func(m *Machine) { m.Distances = [][]int{{11}} }},
		{"Distances[1][0]", func(m *Machine) { m.Shape.Nodes, m.Distances = 2, [][]int{{10, 20}, {255, 10}} }},
		{"Accel", func(m *Machine) { m.Accel = "" }},
		{"Accel", func(m *Machine) { m.Accel = "auto" }},
		{"Irqchip", func(m *Machine) { m.Irqchip = "pic" }},
		{"Slots[0].ID", func(m *Machine) { m.Slots[0].ID = "" }},
		{"Slots[0].ID", func(m *Machine) { m.Slots[0].ID = "a,addr=1f" }},
		{"Slots[1].ID", func(m *Machine) { m.Slots = append(m.Slots, m.Slots[0]) }},
		{"Slots[0].Node", func(m *Machine) { m.Slots[0].Node = 1 }},
		{"Slots[0].Node", func(m *Machine) { m.Slots[0].Node = -2 }},
		{"Neighbours[0].Kind", func(m *Machine) { m.Neighbours = []Neighbour{{"e1000", 1, 0}} }},
		{"Neighbours[1].Queues", func(m *Machine) { m.Neighbours = []Neighbour{{NVMe, 1, 0}, {NVMe, 0, 0}} }},
		{"Neighbours[0].Queues", func(m *Machine) { m.Neighbours = []Neighbour{{VirtioBlk, 2000, 0}} }},
		{"Neighbours[0].Node", func(m *Machine) { m.Neighbours = []Neighbour{{NVMe, 1, 7}} }},
		{"Neighbours", func(m *Machine) { m.Neighbours = slices.Repeat([]Neighbour{{NVMe, 1, NoNode}}, MaxDevices) }},
		{"Kernel", func(m *Machine) { m.Kernel = "" }},
		{"Initramfs", func(m *Machine) { m.Initramfs = "a\x00b" }},
		{"Cmdline[1]", func(m *Machine) { m.Cmdline = []string{"a", "b\nc"} }},
		{"Cmdline[0]", func(m *Machine) { m.Cmdline = []string{""} }},
		{"Cmdline", func(m *Machine) { m.Cmdline = []string{strings.Repeat("x", 2048)} }},
		{"Channels.QMPFD", func(m *Machine) { m.Channels.QMPFD = 0 }},
		{"Channels.ConsoleFD", func(m *Machine) { m.Channels.ConsoleFD = 2 }},
		{"Channels.AgentFD", func(m *Machine) { m.Channels.AgentFD = -1 }},
		{"Channels", func(m *Machine) { m.Channels.AgentFD = m.Channels.QMPFD }},
		{"Channels.SSHSocket", func(m *Machine) { m.Channels.SSHSocket = "" }},
		{"Channels.RAMFDs", func(m *Machine) { m.Channels.RAMFDs = []int{6, 7} }},
		{"Channels.RAMFDs[0]", func(m *Machine) { m.Channels.RAMFDs = []int{1} }},
		{"Channels", func(m *Machine) { m.Channels.RAMFDs = []int{5} }},
		{"Channels.RAMFDs", func(m *Machine) { m.Incoming = true }},
	}
	for _, tt := range tests {
		m := base()
		tt.change(&m)
		args, err := m.Args()
		fe, ok := err.(*FieldError)
		if !ok || fe.Field != tt.field || args != nil {
			t.Errorf("want %s refused, got error %v, %d arguments", tt.field, err, len(args))
		}
	}
}

// What would abort QEMU, or what no guest grants, is refused by name and with the way out.
func TestCheckHotplug(t *testing.T) {
	shared := Shape{Sockets: 1, Cores: 17, Threads: 1, Nodes: 1, MemoryMiB: 512}
	one := Shape{Sockets: 1, Cores: 1, Threads: 1, Nodes: 1, MemoryMiB: 512}
	for name, tt := range map[string]struct {
		change  func(*Machine)
		cpu     int
		done    int
		unplug  string // "": allowed
		replug  string
		replugs int
	}{
		"no headroom":   {cpu: 3, replug: "headroom to plug in 0 CPUs, and 0 were"},
		"headroom":      {change: func(m *Machine) { m.SpareSockets = 1 }, cpu: 1, done: 3, replugs: 4},
		"used up":       {change: func(m *Machine) { m.SpareSockets = 1 }, cpu: 1, done: 4, replug: "headroom to plug in 4 CPUs, and 4 were", replugs: 4},
		"KVM":           {change: func(m *Machine) { m.Accel = KVM }, cpu: 1, done: 1000, replugs: math.MaxInt},
		"boot CPU":      {cpu: 0, unplug: "CPU 0: no x86 kernel", replug: "CPU 0"},
		"only CPU":      {change: func(m *Machine) { m.Shape = one }, cpu: 0, unplug: "only CPU", replug: "only CPU"},
		"no such CPU":   {change: func(m *Machine) { m.SpareSockets = 1 }, cpu: 4, unplug: "CPU 4: the machine has CPUs 0 to 3", replug: "CPU 4", replugs: 4},
		"below 0":       {cpu: -1, unplug: "CPU -1", replug: "CPU -1"},
		"asked for":     {change: func(m *Machine) { m.OneThread = true }, cpu: 3, unplug: "CPU 3: the vCPUs share one TCG thread, as was asked for", replug: "as was asked for"},
		"shared thread": {change: func(m *Machine) { m.Shape = shared }, cpu: 3, unplug: "CPU 3: 17 vCPUs share one TCG thread", replug: "share one TCG thread"},
		"KVM, many":     {change: func(m *Machine) { m.Shape, m.Accel = shared, KVM }, cpu: 3, replugs: math.MaxInt},
	} {
		m := base()
		if tt.change != nil {
			tt.change(&m)
		}
		for what, c := range map[string]struct {
			err  error
			want string
		}{"unplug": {m.CheckUnplug(tt.cpu), tt.unplug}, "replug": {m.CheckReplug(tt.cpu, tt.done), tt.replug}} {
			if (c.err == nil) != (c.want == "") || c.err != nil && !strings.Contains(c.err.Error(), c.want) {
				t.Errorf("%s: %s: %v, want %q", name, what, c.err, c.want)
			}
		}
		if got := m.Replugs(); got != tt.replugs {
			t.Errorf("%s: %d re-plugs, want %d", name, got, tt.replugs)
		}
	}
	m := base()
	for replugs, want := range []int{0, 1, 1, 1, 1, 2} {
		if got := m.SpareFor(replugs); got != want {
			t.Errorf("%d re-plugs take %d spare sockets, want %d", replugs, got, want)
		}
	}
	if m.Accel = KVM; m.SpareFor(9) != 0 {
		t.Error("KVM was given headroom it does not need")
	}
}

// Whatever a shape's text says, the arguments either come out whole or are refused; and no value breaks out of its option.
func FuzzArgs(f *testing.F) {
	f.Add("sockets=1,cores=2,threads=2,nodes=1,memory=512M", "function", 0, "nvme", 4, "quiet", "/run/a,b")
	f.Add("sockets=2,cores=3,threads=2,nodes=4,memory=1G", "f.1", -1, "virtio-blk", 1, "a=b", "/x")
	f.Fuzz(func(t *testing.T, text, slot string, node int, kind string, queues int, word, socket string) {
		s, err := shape.ParseShape(text)
		if err != nil {
			return
		}
		m := base()
		m.Shape, m.Slots, m.Cmdline, m.Channels.SSHSocket = s, []Slot{{slot, node}}, []string{word}, socket
		m.Neighbours = []Neighbour{{kind, queues, node}}
		args, err := m.Args()
		if err != nil {
			return
		}
		for _, a := range args {
			if a == "" || strings.ContainsAny(a, "\x00\n") {
				t.Errorf("argument %q", a)
			}
		}
		if !hasOption(args, fmt.Sprintf("-smp cpus=%d,maxcpus=%d,sockets=%d,cores=%d,threads=%d", s.CPUs(), s.CPUs(), s.Sockets, s.Cores, s.Threads)) {
			t.Errorf("shape %v: %v", s, args)
		}
	})
}

func ExampleMachine_Args() {
	_, err := Machine{Shape: DefaultShape, Accel: TCG, Irqchip: MSI, Kernel: "vmlinux", Slots: []Slot{{ID: "function", Node: 1}}}.Args()
	fmt.Println(err)
	// Output: machine: Slots[0].Node: node 1 does not exist: the shape has nodes 0 to 0 (-1: none)
}
