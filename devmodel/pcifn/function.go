package pcifn

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/devmodel/trace"
	"irqlab/devmodel/vfiouser"
)

// Kinds of events about the function.
var (
	TraceReset    = trace.NewKind("reset", "reason")
	TraceCommand  = trace.NewKind("config-command", "value")
	TraceMSIXCtrl = trace.NewKind("config-msix", "enabled", "masked")
	TraceNoVector = trace.NewKind("vector-invalid", "vector")
	// TraceLostWrite: too many writes waited for one that a rule held.
	TraceLostWrite = trace.NewKind("write-lost", "offset")
)

// Identity of the MANA virtual function and defaults (shared/reference/mana-protocol.md section 1).
const (
	DefaultVendorID = 0x1414
	DefaultDeviceID = 0x00ba
	DefaultClass    = 0x020000
	DefaultRevision = 1
	DefaultVectors  = 16
	DefaultBAR0Size = 64 << 10

	// MaxVectors is the most an MSI-X table can have.
	MaxVectors = 2048
	// MinBAR0Size and MaxBAR0Size bound BAR 0: a page, and what fits a root port's window without asking for a larger one.
	MinBAR0Size = 4 << 10
	MaxBAR0Size = 16 << 20
)

// Config is what a function looks like. Zero fields take the defaults above; use DefaultConfig to start from them and change what matters.
type Config struct {
	VendorID, DeviceID             uint16
	SubsystemVendorID, SubsystemID uint16
	// Class is base class, subclass and programming interface, 0x020000 for Ethernet.
	Class    uint32
	Revision uint8
	// Vectors is the size of the MSI-X table, 1 to 2048; vector 0 included.
	Vectors int
	// BAR0Size is in bytes, a power of two.
	BAR0Size int
	// Trace receives the timeline; nil makes a new recorder of default size.
	Trace *trace.Recorder
	// Inject makes accesses and interrupts stand still or go wrong; nil: never.
	Inject *inject.Controller
}

// DefaultConfig is the MANA virtual function with 16 vectors.
func DefaultConfig() Config {
	return Config{
		VendorID: DefaultVendorID, DeviceID: DefaultDeviceID, Class: DefaultClass, Revision: DefaultRevision, Vectors: DefaultVectors, BAR0Size: DefaultBAR0Size,
	}
}

// validate fills in defaults and refuses what QEMU would abort or crash on: some of these faults take the VM down when the function is hot-added.
func (c *Config) validate() error {
	d := DefaultConfig()
	if c.VendorID == 0 && c.DeviceID == 0 {
		c.VendorID, c.DeviceID, c.Revision = d.VendorID, d.DeviceID, d.Revision
	}
	if c.Class == 0 {
		c.Class = d.Class
	}
	if c.Vectors == 0 {
		c.Vectors = d.Vectors
	}
	if c.BAR0Size == 0 {
		c.BAR0Size = d.BAR0Size
	}
	if c.Trace == nil {
		c.Trace = trace.New(0)
	}
	switch {
	case c.VendorID == 0 || c.VendorID == 0xffff:
		return fmt.Errorf("vendor id %#04x: no function has it; the MANA function's is %#04x", c.VendorID, d.VendorID)
	case c.Class > 0xffffff:
		return fmt.Errorf("class %#x: want base class, subclass and interface in 24 bits, such as %#06x", c.Class, d.Class)
	case c.Vectors < 1 || c.Vectors > MaxVectors:
		return fmt.Errorf("%d vectors: an MSI-X table has 1 to %d", c.Vectors, MaxVectors)
	case c.BAR0Size < MinBAR0Size || c.BAR0Size > MaxBAR0Size || bits.OnesCount(uint(c.BAR0Size)) != 1:
		return fmt.Errorf("BAR 0 of %d bytes: want a power of two from %d to %d", c.BAR0Size, MinBAR0Size, MaxBAR0Size)
	}
	return nil
}

// Function is a PCI function ready to be served. It implements vfiouser.Device; the methods that are not part of that may be called from any goroutine.
type Function struct {
	cfg       Config
	behaviour Behaviour
	rec       *trace.Recorder
	msix      msixLayout
	vectors   *vfiouser.Interrupts
	fired     []atomic.Uint64 // by Fire, as far as it came to a signal
	memory    *vfiouser.Memory

	mu     sync.Mutex // everything below, and calls of the behaviour: a held write goes on on another goroutine than the one that answers the client
	config *configSpace
	bay    inject.Bay
	held   map[int]int // firings by vector that wait for a rule
	// Writes stay in order, as on a bus: behind one that is held the later ones of its region wait. Reads do not.
	configWrites, barWrites inject.Lane
}

var _ vfiouser.Device = (*Function)(nil)

// New makes a function of cfg with b behind BAR 0 and attaches b. Whatever is wrong with cfg is reported here, before any socket listens.
func New(cfg Config, b Behaviour) (*Function, error) {
	if b == nil {
		return nil, errors.New("pci function: no behaviour for BAR 0")
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("pci function: %w", err)
	}
	f := &Function{
		cfg: cfg, behaviour: b, rec: cfg.Trace, msix: layoutMSIX(cfg.Vectors),
		vectors: vfiouser.NewInterrupts(cfg.Vectors, cfg.Trace), fired: make([]atomic.Uint64, cfg.Vectors), held: map[int]int{}, memory: vfiouser.NewMemory(cfg.Trace),
	}
	f.config = newConfigSpace(&f.cfg, f.msix)
	f.bay.Lock = &f.mu
	cfg.Inject.Attach(cfg.Trace)
	b.Attach(bus{f})
	return f, nil
}

// Config is what the function was made of, defaults filled in.
func (f *Function) Config() Config { return f.cfg }

// VectorState is what one vector looks like now.
type VectorState = vfiouser.VectorState

// VectorStates is the state of every vector, by index.
func (f *Function) VectorStates() []VectorState { return f.vectors.States() }

// Fire signals a vector for the lab, which wants to see where it goes. Without an eventfd the signal is remembered, once, and delivered when one is assigned.
func (f *Function) Fire(vector int) error {
	if vector < 0 || vector >= f.cfg.Vectors {
		return fmt.Errorf("fire vector %d: the function has vectors 0 to %d", vector, f.cfg.Vectors-1)
	}
	h := f.cfg.Inject.Pass(inject.LabVector(vector))
	if h.Waits() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.held[vector]++
		f.bay.Park(h, nil, func() {
			f.held[vector]--
			f.raise(h, vector)
		}, nil)
		return nil
	}
	f.raise(h, vector)
	return nil
}

// Holds tells whether what Fire was to signal still waits for a rule to let it go.
func (f *Function) Holds(vector int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held[vector] > 0
}

// Fired is how often Fire has signalled a vector: not where a rule dropped it, or still holds it. What the device signals by itself does not count.
func (f *Function) Fired(vector int) uint64 {
	if vector < 0 || vector >= len(f.fired) {
		return 0
	}
	return f.fired[vector].Load()
}

func (f *Function) raise(h *inject.Hit, vector int) {
	for range h.Copies() {
		f.fired[vector].Add(1) // first: the guest may have handled it before the next line, and who waits for that asks
		f.vectors.Raise(vector)
	}
	f.raiseToo(h)
}

// raiseToo signals what a rule adds at the step that h is of.
func (f *Function) raiseToo(h *inject.Hit) {
	for _, v := range h.Vectors() {
		f.vectors.Raise(v)
	}
}

// Trace is the function's timeline.
func (f *Function) Trace() *trace.Recorder { return f.rec }

// Region describes a region to the client. None can be mapped: one that could would make QEMU wait for every write to a BAR.
func (f *Function) Region(index uint32) vfiouser.RegionInfo {
	const rw = vfiouser.RegionRead | vfiouser.RegionWrite
	switch index {
	case vfiouser.RegionBAR0:
		return vfiouser.RegionInfo{Flags: rw, Size: uint64(f.cfg.BAR0Size)}
	case msixBAR:
		return vfiouser.RegionInfo{Flags: rw, Size: f.msix.size}
	case vfiouser.RegionConfig:
		return vfiouser.RegionInfo{Flags: rw, Size: configSize}
	}
	return vfiouser.RegionInfo{}
}

// IRQs is the MSI-X vectors at their index, nothing at the others. The error interrupt is refused: QEMU would stop the VM for good when it fires.
func (f *Function) IRQs(index uint32) (*vfiouser.Interrupts, bool) {
	switch index {
	case vfiouser.IRQMSIX:
		return f.vectors, true
	case vfiouser.IRQErr:
		return nil, false
	}
	return nil, true
}

// Memory is the guest's memory.
func (f *Function) Memory() *vfiouser.Memory { return f.memory }

// ReadRegion answers a read of configuration space or a BAR.
func (f *Function) ReadRegion(index uint32, off uint64, p []byte) error {
	switch index {
	case vfiouser.RegionBAR0:
		patience := inject.MaxReadDelay // for all chunks together
		for len(p) > 0 {
			n := chunk(off, len(p))
			patience = f.read(inject.RegisterRead(off), p[:n], patience, func() { f.behaviour.ReadBAR(off, p[:n]) })
			off, p = off+uint64(n), p[n:]
		}
	case msixBAR:
		f.readMSIX(off, p)
	case vfiouser.RegionConfig:
		f.read(inject.ConfigRead(off), p, inject.MaxReadDelay, func() { f.config.read(off, p) })
	}
	return nil
}

// read is one access: it is delayed, done by do, altered, as the rules want. The client waits, so nothing is parked; what is left of its patience is returned.
func (f *Function) read(step inject.Point, p []byte, patience time.Duration, do func()) time.Duration {
	h := f.cfg.Inject.Pass(step)
	patience = h.Sleep(patience)
	f.mu.Lock()
	do()
	f.mu.Unlock()
	if h != nil {
		h.Alter(p, value(p))
		f.raiseToo(h)
	}
	return patience
}

// WriteRegion stores a write to configuration space or a BAR.
func (f *Function) WriteRegion(index uint32, off uint64, p []byte) error {
	switch index {
	case vfiouser.RegionBAR0:
		for len(p) > 0 {
			n := chunk(off, len(p))
			f.write(&f.barWrites, inject.RegisterWrite(off), off, p[:n], (*Function).writeBAR)
			off, p = off+uint64(n), p[n:]
		}
	case vfiouser.RegionConfig:
		f.write(&f.configWrites, inject.ConfigWrite(off), off, p, (*Function).writeConfig)
	}
	// The MSI-X BAR: QEMU keeps the table, and pending bits are read-only.
	return nil
}

// write is one access. The client is answered at once even when it is held.
func (f *Function) write(lane *inject.Lane, step inject.Point, off uint64, p []byte, do func(*Function, uint64, []byte)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if lane.Busy() {
		kept := bytes.Clone(p)
		if !lane.Wait(func() { f.writeNow(lane, step, off, kept, do) }) {
			f.rec.Record(TraceLostWrite, off)
		}
		return
	}
	f.writeNow(lane, step, off, p, do)
}

func (f *Function) writeNow(lane *inject.Lane, step inject.Point, off uint64, p []byte, do func(*Function, uint64, []byte)) {
	h := f.cfg.Inject.Pass(step)
	if h.Waits() {
		kept := bytes.Clone(p)
		f.bay.Park(h, lane, func() { f.writeAs(h, off, kept, do) }, nil)
		return
	}
	f.writeAs(h, off, p, do)
}

func (f *Function) writeAs(h *inject.Hit, off uint64, p []byte, do func(*Function, uint64, []byte)) {
	if h != nil {
		p = bytes.Clone(p)
		h.Alter(p, value(p))
	}
	for range h.Copies() {
		do(f, off, p)
	}
	f.raiseToo(h)
}

// value is the only field an access has.
func value(p []byte) func(string) (inject.Place, bool) {
	return func(string) (inject.Place, bool) { return inject.Bytes(0, len(p)), true }
}

// chunk is the largest naturally aligned access of at most 8 bytes that starts at off and takes no more than n.
func chunk(off uint64, n int) int {
	size := 8
	for size > n || off%uint64(size) != 0 {
		size /= 2
	}
	return size
}

// readMSIX answers reads of the MSI-X BAR: QEMU forwards only those of the pending bits.
func (f *Function) readMSIX(off uint64, p []byte) {
	clear(p)
	if end := off + uint64(len(p)); end > f.msix.pba {
		if off < f.msix.pba {
			p = p[f.msix.pba-off:]
			off = f.msix.pba
		}
		f.vectors.ReadPending(off-f.msix.pba, p)
	}
}

func (f *Function) writeBAR(off uint64, p []byte) { f.behaviour.WriteBAR(off, p) }

func (f *Function) writeConfig(off uint64, p []byte) {
	command, ctrl := f.config.command(), f.config.msixCtrl()
	flr := f.config.write(off, p)
	if now := f.config.msixCtrl(); now != ctrl {
		f.rec.Record(TraceMSIXCtrl, flag(now&msixEnable), flag(now&msixMask))
	}
	if flr {
		f.reset(ResetFLR)
		return
	}
	if now := f.config.command(); now != command {
		f.rec.Record(TraceCommand, uint64(now))
		f.memory.SetEnabled(now&cmdMaster != 0)
	}
}

func flag(bit uint16) uint64 {
	if bit != 0 {
		return 1
	}
	return 0
}

// Reset is the client's reset of the device. Eventfds and mapped memory stay; QEMU takes away itself what it wants back.
func (f *Function) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reset(ResetDevice)
}

// ClientGone follows the end of a client.
func (f *Function) ClientGone() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reset(ResetClientGone)
}

// reset drops held writes and interrupts too: they were meant for the function as it was.
func (f *Function) reset(kind ResetKind) {
	f.rec.Note(TraceReset, kind.String(), uint64(kind))
	f.bay.Clear(f.cfg.Inject)
	clear(f.held)
	f.configWrites, f.barWrites = inject.Lane{}, inject.Lane{}
	f.memory.SetEnabled(false)
	f.config.reset(kind == ResetFLR)
	f.vectors.ClearPending()
	f.behaviour.Reset(kind)
}

// bus is the function as its behaviour sees it.
type bus struct{ f *Function }

func (b bus) ReadDMA(iova uint64, p []byte) error  { return b.f.memory.Read(iova, p) }
func (b bus) WriteDMA(iova uint64, p []byte) error { return b.f.memory.Write(iova, p) }
func (b bus) StoreRelease32(iova uint64, v uint32) error {
	return b.f.memory.StoreRelease32(iova, v)
}
func (b bus) Raise(vector int) {
	if !b.f.vectors.Raise(vector) {
		b.f.rec.Record(TraceNoVector, uint64(vector))
	}
}
func (b bus) Vectors() int           { return b.f.cfg.Vectors }
func (b bus) Trace() *trace.Recorder { return b.f.rec }
