package pcifn

import "irqlab/devmodel/trace"

// ResetKind says what reset the function.
type ResetKind int

const (
	// ResetFLR is a function level reset: the guest wrote bit 15 of the PCI Express device control register. MSI-X assignments survive it.
	ResetFLR ResetKind = iota
	// ResetDevice is the client's reset of the whole device: machine reset, guest reboot, or a secondary bus reset.
	ResetDevice
	// ResetClientGone follows the end of a client: its memory and its interrupts are gone, and the next client must find the function as new.
	ResetClientGone
)

// String is the kind's name on the trace.
func (k ResetKind) String() string {
	switch k {
	case ResetFLR:
		return "flr"
	case ResetDevice:
		return "device"
	case ResetClientGone:
		return "client-gone"
	}
	return "unknown"
}

// Behaviour is what lies behind BAR 0. Apart from Attach all methods are called one at a time, in the order in which the client's messages arrived (a write
// that a rule holds comes later, and those after it with it), and must not block: QEMU holds its big lock while it waits for the answer, and gives up on the device for good after five seconds.
type Behaviour interface {
	// Attach hands over the bus, once, before anything is served.
	Attach(bus Bus)
	// ReadBAR fills p with the bytes at off. off+len(p) lies inside the BAR; len(p) is 1, 2, 4 or 8 and off a multiple of it.
	ReadBAR(off uint64, p []byte)
	// WriteBAR stores p at off, with the same promises. p is only valid during the call.
	WriteBAR(off uint64, p []byte)
	// Reset returns the behaviour to its state after Attach. Bus mastering is off and the next access may follow at once.
	Reset(kind ResetKind)
}

// Bus is what a behaviour may do to the outside. It is safe from any goroutine, before, during and after a client's stay.
type Bus interface {
	// ReadDMA fills p from guest memory at iova. It fails, having read nothing useful, when bus mastering is off or when any byte is not mapped readable.
	ReadDMA(iova uint64, p []byte) error
	// WriteDMA stores p to guest memory at iova, with the same conditions for writing.
	WriteDMA(iova uint64, p []byte) error
	// StoreRelease32 stores v, little-endian, at iova (a multiple of 4) in one access that no earlier WriteDMA of this goroutine can be seen to follow.
	StoreRelease32(iova uint64, v uint32) error
	// Raise signals a vector. A vector without an eventfd remembers one signal and delivers it on assignment. An index outside the table is ignored and traced.
	Raise(vector int)
	// Vectors is the size of the MSI-X table.
	Vectors() int
	// Trace is the timeline; never nil, though it may be a recorder that drops everything.
	Trace() *trace.Recorder
}
