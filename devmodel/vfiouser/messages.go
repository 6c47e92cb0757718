package vfiouser

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// The wire is host-endian, which on every host this runs on is little-endian.
var le = binary.LittleEndian

// Command is a message's operation.
type Command uint16

// The commands of the protocol. Client to server unless noted.
const (
	CmdVersion          Command = 1
	CmdDMAMap           Command = 2
	CmdDMAUnmap         Command = 3
	CmdGetInfo          Command = 4
	CmdGetRegionInfo    Command = 5
	CmdGetRegionIOFDs   Command = 6
	CmdGetIRQInfo       Command = 7
	CmdSetIRQs          Command = 8
	CmdRegionRead       Command = 9
	CmdRegionWrite      Command = 10
	CmdDMARead          Command = 11 // server to client
	CmdDMAWrite         Command = 12 // server to client
	CmdReset            Command = 13
	CmdRegionWriteMulti Command = 15
	CmdDeviceFeature    Command = 16
)

// String is the command's name in the specification, or its number.
func (c Command) String() string {
	if int(c) < len(operations) && operations[c].name != "" {
		return operations[c].name
	}
	return fmt.Sprintf("command %d", uint16(c))
}

// Bits of Header.Flags.
const (
	flagTypeMask    = 0xf
	flagTypeCommand = 0
	flagTypeReply   = 1
	flagNoReply     = 1 << 4
	flagError       = 1 << 5
)

// Sizes on the wire, in bytes.
const (
	headerSize       = 16
	versionSize      = 4 // and JSON
	dmaMapSize       = 32
	dmaUnmapSize     = 24
	getInfoSize      = 16
	regionInfoSize   = 32
	irqInfoSize      = 16
	setIRQsSize      = 20 // and one byte per interrupt for data type BOOL
	regionAccessSize = 16 // and the data
)

// Limits of this server.
const (
	// MaxTransfer is the most bytes one region access may carry, the max_data_xfer_size offered in the version reply.
	MaxTransfer = 1 << 20
	// MaxDescriptors is the most descriptors one message may carry, the max_msg_fds offered in the version reply.
	MaxDescriptors = 16
	// MaxMaps is the most guest memory ranges mapped at once, the protocol's default max_dma_maps.
	MaxMaps = 65535

	maxMessage = headerSize + regionAccessSize + MaxTransfer
)

// Header starts every message (section 1.1).
type Header struct {
	ID      uint16
	Command Command
	// Size counts the whole message, header included.
	Size  uint32
	Flags uint32
	// Errno is a positive error number, valid with the error flag.
	Errno uint32
}

func (h *Header) decode(b []byte) {
	_ = b[headerSize-1]
	h.ID = le.Uint16(b[0:])
	h.Command = Command(le.Uint16(b[2:]))
	h.Size = le.Uint32(b[4:])
	h.Flags = le.Uint32(b[8:])
	h.Errno = le.Uint32(b[12:])
}

func (h *Header) encode(b []byte) {
	_ = b[headerSize-1]
	le.PutUint16(b[0:], h.ID)
	le.PutUint16(b[2:], uint16(h.Command))
	le.PutUint32(b[4:], h.Size)
	le.PutUint32(b[8:], h.Flags)
	le.PutUint32(b[12:], h.Errno)
}

// Version is the fixed part of a VERSION message (section 1.4); NUL-terminated JSON follows.
type Version struct{ Major, Minor uint16 }

func (m *Version) decode(b []byte) {
	m.Major, m.Minor = le.Uint16(b[0:]), le.Uint16(b[2:])
}

func (m *Version) encode(b []byte) {
	le.PutUint16(b[0:], m.Major)
	le.PutUint16(b[2:], m.Minor)
}

// Bits of DMAMap.Flags.
const (
	DMARead  = 1 << 0
	DMAWrite = 1 << 1
)

// DMAMap is a DMA_MAP request (section 2.1): [IOVA, IOVA+Size) of the device's address space is the descriptor's bytes from Offset on.
type DMAMap struct {
	ArgSize, Flags     uint32
	Offset, IOVA, Size uint64
}

func (m *DMAMap) decode(b []byte) {
	_ = b[dmaMapSize-1]
	m.ArgSize, m.Flags = le.Uint32(b[0:]), le.Uint32(b[4:])
	m.Offset, m.IOVA, m.Size = le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])
}

func (m *DMAMap) encode(b []byte) {
	_ = b[dmaMapSize-1]
	le.PutUint32(b[0:], m.ArgSize)
	le.PutUint32(b[4:], m.Flags)
	le.PutUint64(b[8:], m.Offset)
	le.PutUint64(b[16:], m.IOVA)
	le.PutUint64(b[24:], m.Size)
}

// DMAUnmapAll in DMAUnmap.Flags removes every range; address and size are ignored.
const DMAUnmapAll = 1 << 1

// DMAUnmap is a DMA_UNMAP request and its reply (section 2.1).
type DMAUnmap struct {
	ArgSize, Flags uint32
	IOVA, Size     uint64
}

func (m *DMAUnmap) decode(b []byte) {
	_ = b[dmaUnmapSize-1]
	m.ArgSize, m.Flags = le.Uint32(b[0:]), le.Uint32(b[4:])
	m.IOVA, m.Size = le.Uint64(b[8:]), le.Uint64(b[16:])
}

func (m *DMAUnmap) encode(b []byte) {
	_ = b[dmaUnmapSize-1]
	le.PutUint32(b[0:], m.ArgSize)
	le.PutUint32(b[4:], m.Flags)
	le.PutUint64(b[8:], m.IOVA)
	le.PutUint64(b[16:], m.Size)
}

// Bits of DeviceInfo.Flags.
const (
	DeviceReset = 1 << 0
	DevicePCI   = 1 << 1
)

// DeviceInfo is a DEVICE_GET_INFO request and its reply (section 3.1).
type DeviceInfo struct{ ArgSize, Flags, Regions, IRQs uint32 }

func (m *DeviceInfo) decode(b []byte) {
	_ = b[getInfoSize-1]
	m.ArgSize, m.Flags, m.Regions, m.IRQs = le.Uint32(b[0:]), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])
}

func (m *DeviceInfo) encode(b []byte) {
	_ = b[getInfoSize-1]
	le.PutUint32(b[0:], m.ArgSize)
	le.PutUint32(b[4:], m.Flags)
	le.PutUint32(b[8:], m.Regions)
	le.PutUint32(b[12:], m.IRQs)
}

// Bits of RegionInfo.Flags. There is no mmap flag on purpose: one mappable region makes QEMU wait for every trapped write (section 3.5).
const (
	RegionRead  = 1 << 0
	RegionWrite = 1 << 1
)

// Region indices of a PCI device (section 3.2).
const (
	RegionBAR0   = 0
	RegionBAR5   = 5
	RegionROM    = 6
	RegionConfig = 7
	RegionVGA    = 8
	NumRegions   = 9
)

// RegionInfo is a DEVICE_GET_REGION_INFO request and its reply (section 3.2). No region has capabilities, so the reply always fits the request's argsz.
type RegionInfo struct {
	ArgSize, Flags, Index, CapOffset uint32
	Size, Offset                     uint64
}

func (m *RegionInfo) decode(b []byte) {
	_ = b[regionInfoSize-1]
	m.ArgSize, m.Flags, m.Index, m.CapOffset = le.Uint32(b[0:]), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])
	m.Size, m.Offset = le.Uint64(b[16:]), le.Uint64(b[24:])
}

func (m *RegionInfo) encode(b []byte) {
	_ = b[regionInfoSize-1]
	le.PutUint32(b[0:], m.ArgSize)
	le.PutUint32(b[4:], m.Flags)
	le.PutUint32(b[8:], m.Index)
	le.PutUint32(b[12:], m.CapOffset)
	le.PutUint64(b[16:], m.Size)
	le.PutUint64(b[24:], m.Offset)
}

// Interrupt indices of a PCI device (section 4.1).
const (
	IRQINTx = 0
	IRQMSI  = 1
	IRQMSIX = 2
	IRQErr  = 3
	IRQReq  = 4
	NumIRQs = 5
)

// irqEventfd in IRQInfo.Flags: interrupts of this index are signalled by eventfd. The NORESIZE bit (8) stays clear, so that growing by a vector is one message
// and never a moment in which all vectors are off (section 4.3).
const irqEventfd = 1 << 0

// IRQInfo is a DEVICE_GET_IRQ_INFO request and its reply (section 4.1).
type IRQInfo struct{ ArgSize, Flags, Index, Count uint32 }

func (m *IRQInfo) decode(b []byte) {
	_ = b[irqInfoSize-1]
	m.ArgSize, m.Flags, m.Index, m.Count = le.Uint32(b[0:]), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])
}

func (m *IRQInfo) encode(b []byte) {
	_ = b[irqInfoSize-1]
	le.PutUint32(b[0:], m.ArgSize)
	le.PutUint32(b[4:], m.Flags)
	le.PutUint32(b[8:], m.Index)
	le.PutUint32(b[12:], m.Count)
}

// Bits of SetIRQs.Flags: one data type and one action.
const (
	IRQDataNone      = 1 << 0
	IRQDataBool      = 1 << 1
	IRQDataEventfd   = 1 << 2
	IRQActionMask    = 1 << 3
	IRQActionUnmask  = 1 << 4
	IRQActionTrigger = 1 << 5
)

// SetIRQs is the fixed part of a DEVICE_SET_IRQS request (section 4.2).
type SetIRQs struct{ ArgSize, Flags, Index, Start, Count uint32 }

func (m *SetIRQs) decode(b []byte) {
	_ = b[setIRQsSize-1]
	m.ArgSize, m.Flags = le.Uint32(b[0:]), le.Uint32(b[4:])
	m.Index, m.Start, m.Count = le.Uint32(b[8:]), le.Uint32(b[12:]), le.Uint32(b[16:])
}

func (m *SetIRQs) encode(b []byte) {
	_ = b[setIRQsSize-1]
	le.PutUint32(b[0:], m.ArgSize)
	le.PutUint32(b[4:], m.Flags)
	le.PutUint32(b[8:], m.Index)
	le.PutUint32(b[12:], m.Start)
	le.PutUint32(b[16:], m.Count)
}

// RegionAccess is the fixed part of REGION_READ and REGION_WRITE, requests and replies (section 3.5).
type RegionAccess struct {
	Offset        uint64
	Region, Count uint32
}

func (m *RegionAccess) decode(b []byte) {
	_ = b[regionAccessSize-1]
	m.Offset, m.Region, m.Count = le.Uint64(b[0:]), le.Uint32(b[8:]), le.Uint32(b[12:])
}

func (m *RegionAccess) encode(b []byte) {
	_ = b[regionAccessSize-1]
	le.PutUint64(b[0:], m.Offset)
	le.PutUint32(b[8:], m.Region)
	le.PutUint32(b[12:], m.Count)
}

// FormatSetIRQs is flags of SET_IRQS for a person, such as "eventfd+trigger".
func FormatSetIRQs(flags uint32) string {
	var parts []string
	for i, name := range []string{"none", "bool", "eventfd", "mask", "unmask", "trigger"} {
		if flags&(1<<i) != 0 {
			parts = append(parts, name)
		}
	}
	return strings.Join(parts, "+")
}
