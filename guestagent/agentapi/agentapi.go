// Package agentapi holds the types that cross the channel between the lab and the guest agent, and the client the lab speaks with.
//
// The channel is the virtio-serial port AgentPort: one JSON object per line in each direction, a Request answered by exactly one Response with the same ID, as soon
// as it is done, so that several may be under way. Everything here comes from or goes to a guest, so the host treats it as foreign:
// no field names a host path, and lengths are bounded by the reader (MaxLine).
package agentapi

import (
	"encoding/json"
	"fmt"

	"irqlab/guestagent/cpulist"
)

// Version is the protocol's version; both sides refuse another.
const Version = 2

// Names of the virtio-serial ports, as /sys/class/virtio-ports/*/name shows them.
const (
	AgentPort = "irqlab.agent" // the lab's own: Requests and Responses
	SSHPort   = "irqlab.ssh"   // a person's SSH connection (irqlab ssh, irqlab proxy)
)

// User is the only user name the agent's SSH server accepts.
const User = "root"

// OnlineWord on the kernel's command line has the agent bring up every CPU that is present, before it does anything else.
const OnlineWord = "irqlab.online"

// ReadyMessage is what the agent prints on the console once it serves.
const ReadyMessage = "irqlab: agent ready"

// MaxLine bounds one JSON line in either direction, in bytes.
const MaxLine = 8 << 20

// Method names.
const (
	MethodInfo          = "info"             // InfoParams -> Info
	MethodLoadModule    = "module.load"      // LoadModuleParams -> LoadModuleResult
	MethodUnloadModule  = "module.unload"    // UnloadModuleParams -> Empty
	MethodReplaceModule = "module.replace"   // ReplaceModuleParams -> Empty: a part of a module that is inserted from now on in place of the image's own
	MethodFindFunction  = "function.find"    // FindFunctionParams -> FunctionInfo, without its vectors
	MethodRescan        = "pci.rescan"       // Empty -> Empty: a function behind a port that had none is found
	MethodOpenFunction  = "function.open"    // OpenFunctionParams -> FunctionInfo: bind to vfio-pci and open; no vector yet
	MethodAddVectors    = "function.vectors" // AddVectorsParams -> AddVectorsResult: enable vectors one at a time
	MethodCloseFunction = "function.close"   // CloseFunctionParams -> Empty: all vectors freed
	MethodReadRegister  = "function.read"    // ReadRegisterParams -> ReadRegisterResult
	MethodFunctionIRQs  = "function.irqs"    // FunctionIRQsParams -> AddVectorsResult: the IRQs of any driver's function, index by index where known
	MethodBind          = "function.bind"    // BindParams -> Empty: the driver's probe
	MethodUnbind        = "function.unbind"  // FunctionParams -> Empty: the driver's remove
	MethodReset         = "function.reset"   // FunctionParams -> Empty: the kernel resets the function (FLR where it has one)
	MethodRemove        = "function.remove"  // FunctionParams -> Empty: the kernel forgets the function, whoever drives it
	MethodRescanAll     = "pci.rescan-all"   // Empty -> Empty: what was removed is found, and probed by a driver that is loaded
	MethodSuspend       = "power.suspend"    // SuspendParams -> Suspended, once somebody has woken the guest
	MethodApply         = "affinity.apply"   // ApplyParams -> ApplyResult
	MethodSetAffinity   = "affinity.set"     // SetAffinityParams -> Empty
	MethodOccupy        = "pressure.occupy"  // OccupyParams -> OccupyResult
	MethodSetCPU        = "cpu.set"          // SetCPUParams -> SetCPUResult
	MethodStorm         = "cpu.storm"        // StormParams -> Empty
	MethodObserve       = "irq.observe"      // ObserveParams -> Observation
	MethodAwait         = "irq.await"        // AwaitParams -> Observation
	MethodAwaitTotals   = "irq.await-totals" // AwaitParams -> TotalsResult
	MethodLog           = "log.read"         // LogParams -> LogResult
	MethodMark          = "log.mark"         // MarkParams -> LogRecord: a line for the kernel log
	MethodLinks         = "link.list"        // Empty -> LinksResult (netlink)
	MethodSetLink       = "link.set"         // SetLinkParams -> Link
	MethodReadDisks     = "disk.read"        // ReadDisksParams -> DisksResult
	MethodRefresh       = "fork.refresh"     // RefreshParams -> Empty: of a guest restored from a snapshot
	MethodPowerOff      = "power.off"        // Empty -> Empty, then the guest powers off
)

// Request asks for one method.
type Request struct {
	ID     uint64          `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// Response answers the Request with the same ID; exactly one of Result and Error is set.
type Response struct {
	ID     uint64          `json:"id"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *Error          `json:"error,omitempty"`
}

// Error codes.
const (
	CodeInvalid     = "invalid"     // the request makes no sense
	CodeUnsupported = "unsupported" // this kernel or image cannot do it
	CodeNotFound    = "not-found"   // no such device, CPU, IRQ, module
	CodeRefused     = "refused"     // the kernel said no; Errno says how (EBUSY, EPERM…)
	CodeTimeout     = "timeout"     // what was awaited did not happen
	CodeFailed      = "failed"      // anything else
)

// Error is a failure the guest reports.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Errno   int    `json:"errno,omitempty"` // Linux errno where the kernel gave one
}

func (e *Error) Error() string { return "guest: " + e.Message }

// Errorf makes an Error.
func Errorf(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Empty is the params or result of methods that have none.
type Empty struct{}

// InfoParams tells the agent which protocol version the lab speaks.
type InfoParams struct {
	Version int `json:"version"`
}

// Info describes the guest.
type Info struct {
	Version int      `json:"version"` // the agent's protocol version
	Release string   `json:"release"` // uname -r
	Cmdline string   `json:"cmdline"`
	UptimeS float64  `json:"uptime_seconds"`
	CPUs    Topology `json:"cpus"`
}

// RefreshParams is what tells a guest restored from a snapshot apart from others restored from the same one.
type RefreshParams struct {
	UnixNS      int64  `json:"unix_ns"`       // the wall clock: the guest's stood still since the snapshot
	Entropy     []byte `json:"entropy"`       // EntropySize random bytes for the kernel's generator, which is in the snapshot's state
	HostKeySeed []byte `json:"host_key_seed"` // ed25519 seed (RFC 8032), 32 bytes, of the host key that later SSH connections get
}

// EntropySize is the length of RefreshParams.Entropy in bytes.
const EntropySize = 64

// Topology is the guest's CPUs and nodes as its kernel sees them.
type Topology struct {
	Online   cpulist.List `json:"online"`
	Present  cpulist.List `json:"present"`
	Possible cpulist.List `json:"possible"`
	CPUs     []CPU        `json:"cpus"`  // online CPUs only (an offline one has no topology), ascending
	Nodes    []Node       `json:"nodes"` // ascending id
}

// CPU is one online CPU.
type CPU struct {
	ID       int          `json:"id"`
	Node     int          `json:"node"`
	Core     int          `json:"core"`
	Package  int          `json:"package"`
	Siblings cpulist.List `json:"siblings"`     // online hardware threads of the same core, itself included
	L3       cpulist.List `json:"l3,omitempty"` // online CPUs that share its level 3 cache, itself included; nil: the kernel does not tell
}

// Node is one NUMA node.
type Node struct {
	ID        int          `json:"id"`
	CPUs      cpulist.List `json:"cpus"`      // online CPUs of the node
	Distances []int        `json:"distances"` // to each online node, ascending id, as /sys/devices/system/node/nodeN/distance
}

// LoadModuleParams names a module; what it depends on is loaded first. Loading a loaded module is no error.
type LoadModuleParams struct {
	Name   string `json:"name"`
	Params string `json:"params,omitempty"` // as insmod takes them
}

// LoadModuleResult tells what was inserted, in order.
type LoadModuleResult struct {
	Loaded []string `json:"loaded"`
}

// UnloadModuleParams names a module.
type UnloadModuleParams struct {
	Name string `json:"name"`
}

// ReplaceModuleParams is a part of a module's file. The parts of a file come in order, one call after the other; the call that brings the last one puts the file in
// place of the one in the image. Neither may the module be loaded then, nor may it be one that the image does not have.
type ReplaceModuleParams struct {
	Name   string `json:"name"`
	Size   int    `json:"size"`   // of the whole file, in bytes: 1 to MaxModule
	SHA256 string `json:"sha256"` // of the whole file, in hexadecimal
	Offset int    `json:"offset"` // of the part; at 0 a file begins anew
	Data   []byte `json:"data"`   // at most ModulePart bytes
}

// Bounds on a module's file and on the part of it that one call brings, in bytes. A part takes a third more in JSON.
const (
	MaxModule  = 32 << 20
	ModulePart = 1 << 20
)

// FindFunctionParams names a function by what it is. It must be there.
type FindFunctionParams struct {
	Vendor uint16 `json:"vendor"`
	Device uint16 `json:"device"`
}

// OpenFunctionParams picks a PCI function by vendor and device id, or by address when Address is set.
type OpenFunctionParams struct {
	Vendor  uint16 `json:"vendor,omitempty"`
	Device  uint16 `json:"device,omitempty"`
	Address string `json:"address,omitempty"` // 0000:81:00.0
	WaitMS  int    `json:"wait_ms,omitempty"` // how long the function may take to appear (hot-plug)
}

// FunctionInfo describes a function.
type FunctionInfo struct {
	Address string `json:"address"` // names the function in later calls
	Node    int    `json:"node"`    // -1: none
	Vectors int    `json:"vectors"` // MSI-X table size
	Driver  string `json:"driver"`  // "": none
}

// AddVectorsParams asks for MSI-X vectors First..First+Count-1, enabled one by one.
type AddVectorsParams struct {
	Address string `json:"address"`
	First   int    `json:"first"`
	Count   int    `json:"count"`
}

// Vector ties an MSI-X table index to the guest's IRQ number.
type Vector struct {
	Index int    `json:"index"`
	IRQ   int    `json:"irq"`
	Name  string `json:"name,omitempty"` // as /proc/interrupts shows its action
}

// AddVectorsResult lists all enabled vectors of the function, ascending index.
type AddVectorsResult struct {
	Vectors []Vector `json:"vectors"`
	// Refused is the kernel's answer to the first vector that it did not enable; nil: all that were asked for are there.
	Refused *Error `json:"refused,omitempty"`
}

// ReadRegisterParams reads a register of BAR 0 of an opened function, over and over.
type ReadRegisterParams struct {
	Address string `json:"address"`
	Offset  uint64 `json:"offset"` // a multiple of Size
	Size    int    `json:"size"`   // bytes: 1, 2, 4 or 8
	Times   int    `json:"times"`  // 1 to MaxReads
}

// MaxReads is the largest ReadRegisterParams.Times: each is a round trip to the device.
const MaxReads = 10000

// ReadRegisterResult is what was read last, and the time that all reads took by the guest's clock.
type ReadRegisterResult struct {
	Value       uint64 `json:"value"`
	Nanoseconds int64  `json:"nanoseconds"`
}

// CloseFunctionParams names an opened function.
type CloseFunctionParams struct {
	Address string `json:"address"`
}

// FunctionIRQsParams names a function bound to any driver.
type FunctionIRQsParams struct {
	Address string `json:"address"`
}

// FunctionParams names a function that the agent has not opened.
type FunctionParams struct {
	Address string `json:"address"`
}

// BindParams gives a function to a driver of the kernel. A function that is bound already is refused: it has to be unbound first.
type BindParams struct {
	Address string `json:"address"`
	Driver  string `json:"driver"`
}

// Sleep states of SuspendParams.
const (
	SuspendFreeze = "freeze" // to idle; a byte on the console wakes the guest
	SuspendMem    = "mem"    // to RAM (S3); the machine wakes it
	SuspendDisk   = "disk"   // to the disk with the serial number SwapSerial, from which it goes on at once, in the same machine
)

// SwapSerial is the serial number of the disk that a guest hibernates to. It bears the signature of a swap area.
const SwapSerial = "hibernation"

// SuspendParams puts the guest to sleep.
type SuspendParams struct {
	Mode string `json:"mode"`
}

// Suspended tells of a sleep that is over.
type Suspended struct {
	Seconds float64 `json:"seconds"` // from the order to its end, by the clock that goes on while the guest sleeps
}

// ApplyParams asks the agent to compute a strategy's masks on its own topology and write them.
type ApplyParams struct {
	Strategy string         `json:"strategy"`
	Masks    []cpulist.List `json:"masks,omitempty"`  // of the queue vectors, in order, instead of a strategy that is computed
	Node     int            `json:"node"`             // the function's node; -1 none
	Total    int            `json:"total"`            // vectors the function has or will have in all, HWC included: what decides the branch
	HWC      *Vector        `json:"hwc,omitempty"`    // set to spread the HWC vector
	Queues   []Vector       `json:"queues,omitempty"` // queue vectors in the order they were added
}

// AppliedMask is what was written for one vector. Mask nil: left alone.
type AppliedMask struct {
	Index   int          `json:"index"`
	IRQ     int          `json:"irq"`
	Mask    cpulist.List `json:"mask"`
	Refused string       `json:"refused,omitempty"` // the kernel's words where it did not take the mask; "": it did
}

// ApplyResult tells which branch the strategy took and what was written.
type ApplyResult struct {
	Branch string        `json:"branch"` // e.g. "numa-aware, first group skipped", "linear"
	Masks  []AppliedMask `json:"masks"`
}

// OccupyParams raises the number of device interrupt vectors that sit on each CPU to at least Levels[cpu], with vectors of the
// function at Address (opened before), which the agent owns and pins. It never lowers a level.
type OccupyParams struct {
	Address string       `json:"address"`
	Levels  map[int]int  `json:"levels"`
	Full    cpulist.List `json:"full,omitempty"` // CPUs that are to have no vector left
}

// MaxLevel is the room one CPU's vector space has for devices: 256 less the exceptions' and the system's.
const MaxLevel = 204

// OccupyResult tells the vectors per CPU before and after; a CPU already above its level is in Above.
type OccupyResult struct {
	Before map[int]int  `json:"before"`
	After  map[int]int  `json:"after"`
	Above  cpulist.List `json:"above"`
	Added  []Vector     `json:"added"`
}

// SetCPUParams takes a CPU on- or offline through sysfs.
type SetCPUParams struct {
	CPU    int  `json:"cpu"`
	Online bool `json:"online"`
}

// SetCPUResult is the online list afterwards.
type SetCPUResult struct {
	Online cpulist.List `json:"online"`
}

// StormParams takes CPUs offline and online again through sysfs, one after the other, Rounds times. Masks are written at the end of each round.
type StormParams struct {
	CPUs   cpulist.List  `json:"cpus"`
	Rounds int           `json:"rounds"`
	Masks  []AppliedMask `json:"masks,omitempty"`
}

// ObserveParams lists the IRQs to read.
type ObserveParams struct {
	IRQs []int `json:"irqs"`
}

// IRQ is what the kernel says about one interrupt.
type IRQ struct {
	Affinity  cpulist.List   `json:"affinity"`  // requested: smp_affinity_list
	Hint      cpulist.List   `json:"hint"`      // affinity_hint; nil where none was set
	Effective cpulist.List   `json:"effective"` // effective_affinity_list
	Node      int            `json:"node"`
	Chip      string         `json:"chip"`   // e.g. PCI-MSIX-0000:81:00.0, IR-PCI-MSIX-…
	Action    string         `json:"action"` // handler's name
	Counts    map[int]uint64 `json:"counts"` // interrupts handled per online CPU; CPUs with 0 are left out
	Total     uint64         `json:"total"`  // interrupts handled since the IRQ was set up, on all CPUs, those that have left included
}

// Pending reports whether the kernel has not yet moved the interrupt into its requested mask.
func (i IRQ) Pending() bool { return !i.Effective.Within(i.Affinity) }

// Observation is one reading of a set of IRQs.
type Observation struct {
	Online cpulist.List `json:"online"`
	IRQs   map[int]IRQ  `json:"irqs"` // by number: each that was asked for
}

// SetAffinityParams asks for masks to be written as they are, in order.
type SetAffinityParams struct {
	Masks []AppliedMask `json:"masks"`
}

// AwaitParams waits until each IRQ's total count has risen above Above[irq].
type AwaitParams struct {
	Above     map[int]uint64 `json:"above"`
	TimeoutMS int            `json:"timeout_ms"`
}

// TotalsResult is IRQ.Total of each IRQ that was awaited.
type TotalsResult struct {
	Totals map[int]uint64 `json:"totals"`
}

// DiskSerial begins the serial number of each disk that the lab puts into the machine; the disk's number follows, from 0.
const DiskSerial = "irqlab"

// ReadDisksParams asks for each of the lab's disks to be read from, Reads times from each online CPU in turn.
type ReadDisksParams struct {
	Reads int `json:"reads"` // 1 to MaxDiskReads
}

// MaxDiskReads is the largest ReadDisksParams.Reads.
const MaxDiskReads = 1000

// DisksResult tells of each disk, by its number.
type DisksResult struct {
	Online cpulist.List `json:"online"`
	Disks  []Disk       `json:"disks"`
}

// Disk is one of the lab's disks.
type Disk struct {
	Name    string      `json:"name"`    // nvme0n1
	Address string      `json:"address"` // of its PCI function
	Node    int         `json:"node"`    // -1: none
	Queues  []DiskQueue `json:"queues"`  // that have an interrupt, ascending index
	Served  []Served    `json:"served"`  // by the CPU that read
}

// DiskQueue is a request queue's interrupt.
type DiskQueue struct {
	Index   int  `json:"index"` // from 0, queues for administration not counted
	IRQ     int  `json:"irq"`
	Managed bool `json:"managed"` // the kernel lets nobody set its mask
	State   IRQ  `json:"state"`
}

// Served tells where the interrupt of what a CPU had read was handled.
type Served struct {
	CPU   int          `json:"cpu"`
	Queue int          `json:"queue"` // -1: no queue's interrupt was
	On    cpulist.List `json:"on"`
}

// LogParams asks for kernel log records with a sequence number above After (0: all), and of those only the ones more severe than level Below (0: all).
type LogParams struct {
	After uint64 `json:"after"`
	Below int    `json:"below,omitempty"`
}

// LogRecord is one /dev/kmsg record.
type LogRecord struct {
	Seq     uint64  `json:"seq"`
	Seconds float64 `json:"seconds"` // kernel's monotonic time
	Level   int     `json:"level"`
	Text    string  `json:"text"`
}

// LogResult lists records in order. Lost: the ring overran and records in between are missing.
type LogResult struct {
	Records []LogRecord `json:"records"`
	Lost    bool        `json:"lost"`
}

// MarkParams is a line to add to the kernel log; its record tells the time on the log's clock.
type MarkParams struct {
	Text  string `json:"text"`            // one line, 1 to MaxMark bytes
	Shown bool   `json:"shown,omitempty"` // at level warning, which the console shows; else at level debug, which it does not
}

// MaxMark bounds MarkParams.Text, in bytes.
const MaxMark = 200

// Link is a network interface.
type Link struct {
	Name   string `json:"name"`
	Index  int    `json:"index"`
	MAC    string `json:"mac"`
	MTU    int    `json:"mtu"`
	Up     bool   `json:"up"`
	Driver string `json:"driver"`
	PCI    string `json:"pci"` // address of the function behind it, if any
	// Combined and MaxCombined are ethtool's combined channels; 0 where the link has none.
	Combined    int `json:"combined,omitempty"`
	MaxCombined int `json:"max_combined,omitempty"`
}

// LinksResult lists the links.
type LinksResult struct {
	Links []Link `json:"links"`
}

// SetLinkParams changes a link.
type SetLinkParams struct {
	Name     string `json:"name"`
	Up       *bool  `json:"up,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	Combined int    `json:"combined,omitempty"` // ethtool channels (netlink)
}
