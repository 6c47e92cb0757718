package mana

import (
	"fmt"

	"irqlab/devmodel/gdma"
	"irqlab/devmodel/pcifn"
)

// Function is a MANA function behind BAR 0 of a PCI function.
type Function struct {
	cfg  Config
	regs [registersSize]byte
	dev  *gdma.Device

	// halves keeps the first of two four-byte writes to a doorbell register, by page and register. Only the answering goroutine uses it.
	halves [][5]uint32

	// Guarded by the device.
	ports      []*port
	objects    map[uint64]*object
	nextObject uint64
	stats      [statCount]uint64
	cqe        [gdma.CQESize - 4]byte
	mac        [6]byte
}

var _ pcifn.Behaviour = (*Function)(nil)

// New makes a function in its reset state, or says what is wrong with cfg.
func New(cfg Config) (*Function, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	pages := (cfg.BAR0Size - doorbellOffset) / DoorbellPageSize
	f := &Function{cfg: cfg, regs: registers(), halves: make([][5]uint32, pages), objects: map[uint64]*object{}}
	queues := cfg.VPorts * cfg.Queues
	f.dev, err = gdma.New(gdma.Config{
		SQs: queues, RQs: queues, CQs: 2 * queues, EQs: queues,
		MaxMSIX: cfg.MaxMSIX, Capabilities: cfg.Capabilities, HWCTimeout: cfg.HWCTimeout, DoorbellPages: pages, Inject: cfg.Inject,
	}, (*client)(f))
	if err != nil {
		return nil, fmt.Errorf("mana: %w", err)
	}
	for i := range cfg.VPorts {
		f.ports = append(f.ports, &port{index: i})
	}
	return f, nil
}

// Attach implements pcifn.Behaviour. It starts the device's goroutine; Close ends it.
func (f *Function) Attach(bus pcifn.Bus) {
	f.dev.Attach(bus)
}

// Close ends the device's goroutine. The function does nothing afterwards.
func (f *Function) Close() error {
	f.dev.Close()
	return nil
}

// ReadBAR implements pcifn.Behaviour. Bytes that belong to no register read as zero.
func (f *Function) ReadBAR(off uint64, p []byte) {
	clear(p)
	if off < registersSize {
		copy(p, f.regs[off:])
	}
	if at, b := overlap(off, p, smcOffset, gdma.SMCSize); b != nil {
		f.dev.ReadSMC(at, b)
	}
}

// WriteBAR implements pcifn.Behaviour. Writes to what is no writable register are ignored.
func (f *Function) WriteBAR(off uint64, p []byte) {
	if off >= doorbellOffset {
		f.doorbell(off-doorbellOffset, p)
	} else if at, b := overlap(off, p, smcOffset, gdma.SMCSize); b != nil {
		f.dev.WriteSMC(at, b)
	}
}

// overlap is the part of p, which lies at off, that falls into the window of size bytes at start, and where in the window it begins.
func overlap(off uint64, p []byte, start, size uint64) (at int, part []byte) {
	from, to := max(off, start), min(off+uint64(len(p)), start+size)
	if from >= to {
		return 0, nil
	}
	return int(from - start), p[from-off : to-off]
}

// doorbell takes a write to the doorbell area: eight bytes, or two halves of four with the upper one last. Which page it is on does not matter: kind and id name the queue.
func (f *Function) doorbell(off uint64, p []byte) {
	page, reg := off/DoorbellPageSize, off%DoorbellPageSize
	if page >= uint64(len(f.halves)) {
		return
	}
	switch len(p) {
	case 8:
		if k, ok := gdma.DoorbellAt(reg); ok {
			f.dev.Doorbell(k, gdma.DoorbellValue(le.Uint64(p)))
		}
	case 4:
		if k, ok := gdma.DoorbellAt(reg &^ 4); !ok {
			return
		} else if low := &f.halves[page][k]; reg&4 == 0 {
			*low = le.Uint32(p)
		} else {
			f.dev.Doorbell(k, gdma.DoorbellValue(le.Uint32(p))<<32|gdma.DoorbellValue(*low))
		}
	}
}

// Reset implements pcifn.Behaviour.
func (f *Function) Reset(kind pcifn.ResetKind) {
	clear(f.halves)
	f.dev.Reset("reset: " + kind.String())
}

// Event is something that happens to the device and that its driver is told of.
type Event struct {
	Type    gdma.EventType
	Details [3]uint32
	// EQ is the event queue's id; 0: the hardware channel's.
	EQ uint32
}

// Events of section 8.2.

// ResetRequest asks the driver to tear the device down and set it up again: it suspends, waits 10 s and resumes (6.17+; earlier kernels ignore it).
func ResetRequest() Event { return Event{Type: gdma.EventResetRequest} }

// FPGAReconfig asks the driver to remove the bridge above the device and to rescan after 10 s (6.17+).
func FPGAReconfig() Event { return Event{Type: gdma.EventFPGAReconfig} }

// LinkState tells of the link of all vPorts (7.0+).
func LinkState(up bool) Event {
	kind := uint32(3)
	if up {
		kind = 2
	}
	return Event{Type: gdma.EventHWC, Details: [3]uint32{kind << 24}}
}

// ChannelTimeout changes how long the driver waits for answers, in milliseconds below 2^24 (7.0+).
func ChannelTimeout(ms uint32) Event {
	return Event{Type: gdma.EventHWC, Details: [3]uint32{1<<24 | ms&0xffffff}}
}

// SOCService tells the driver to suspend or resume RDMA (6.17+, and only with an RDMA device).
func SOCService(resume bool) Event {
	kind := uint32(1)
	if resume {
		kind = 2
	}
	return Event{Type: gdma.EventSOCService, Details: [3]uint32{kind << 28}}
}

// PostEvent posts an event. It fails when the driver has set up no channel, when the queue named does not exist or is full, or when the guest's memory is gone.
func (f *Function) PostEvent(e Event) error { return f.dev.Event(e.EQ, e.Type, e.Details) }

// Role is what a vector does, as the device knows it.
type Role struct {
	Vector int
	EQ     uint32
	// HWC: the hardware channel's. It may share its vector with queue EQs where the driver ran out of vectors.
	HWC bool
	// Ordinal counts the driver's queue EQs in the order it created them, from 0 after it had none; with one vPort, queue k's EQ is the k-th.
	Ordinal int
	// Queues are the queues whose completions go to the EQ; none before an interface is up.
	Queues []QueueRef
}

// QueueRef is queue k of vPort p, both from 0.
type QueueRef struct{ VPort, Queue int }

// Roles says which event queue signals on which vector, and for which queues: the hardware channel's first, then in the order of EQ ids. A vector can appear more than
// once: event queues share vectors from 6.8 on.
func (f *Function) Roles() []Role {
	var roles []Role
	at := map[uint32]int{}
	f.dev.Queues(func(eq *gdma.EQ, hwc bool) {
		at[eq.ID] = len(roles)
		roles = append(roles, Role{Vector: int(eq.Vector), EQ: eq.ID, HWC: hwc, Ordinal: eq.Ordinal})
	})
	f.dev.Do(func() {
		for _, p := range f.ports {
			for i, o := range p.send {
				if k, ok := at[o.q.CQ.EQ.ID]; ok {
					roles[k].Queues = append(roles[k].Queues, QueueRef{p.index, i})
				}
			}
		}
	})
	return roles
}

// Audits report what drivers left behind: one for each DEREGISTER_DEVICE, each end of the hardware channel and each reset of a device in use, oldest first.
func (f *Function) Audits(after uint64) (audits []gdma.Audit, missed uint64) {
	return f.dev.Audits(after)
}

// Usage counts the queues, regions and registrations the device holds.
func (f *Function) Usage() gdma.Usage { return f.dev.Usage() }

// Driver is what the guest's driver said of itself when it was last probed.
func (f *Function) Driver() gdma.Driver { return f.dev.Driver() }

// PortState is a vPort as the driver has set it up.
type PortState struct {
	TX, RX         bool // configured; enabled
	SendQueues     int
	ReceiveQueues  int
	Packets, Bytes uint64 // sent since the function was made
}

// Ports is the state of every vPort.
func (f *Function) Ports() []PortState {
	s := make([]PortState, len(f.ports))
	f.dev.Do(func() {
		for i, p := range f.ports {
			s[i] = PortState{p.tx, p.rx, len(p.send), len(p.recv), p.packets, p.bytes}
		}
	})
	return s
}
