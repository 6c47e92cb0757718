package gdma

import (
	"encoding/binary"
	"strconv"

	"irqlab/devmodel/inject"
)

var le = binary.LittleEndian

// PageSize is the DMA page, whatever the guest's page size.
const PageSize = 4096

// Geometry of rings (section 3.1).
const (
	BasicUnit  = 32 // bytes; work-queue entries are whole numbers of it
	EQESize    = 16
	CQESize    = 64
	minRing    = PageSize
	maxRing    = 16 << 20 // 512 times the largest ring any driver asks for
	ownerBits  = 3
	ownerLaps  = 1 << ownerBits
	ownerShift = 32 - ownerBits
)

// A DoorbellKind names one of the registers of a doorbell page.
type DoorbellKind uint8

// The doorbell registers (section 1.4).
const (
	DoorbellSQ  DoorbellKind = iota // producer position in bytes
	DoorbellRQ                      // producer position in bytes
	DoorbellCQ                      // consumer index and arm
	DoorbellEQ                      // consumer index and arm
	DoorbellDIM                     // completion queue moderation, 7.3 only
	doorbellKinds
)

// DoorbellAt is the doorbell register at an offset in its page; false for offsets that hold none or one whose writes mean nothing.
func DoorbellAt(off uint64) (DoorbellKind, bool) {
	switch off {
	case 0x000:
		return DoorbellSQ, true
	case 0x400:
		return DoorbellRQ, true
	case 0x800:
		return DoorbellCQ, true
	case 0x820:
		return DoorbellDIM, true
	case 0xff8:
		return DoorbellEQ, true
	}
	return 0, false
}

// Offset is the register's offset in a doorbell page.
func (k DoorbellKind) Offset() uint64 {
	return [...]uint64{DoorbellSQ: 0x000, DoorbellRQ: 0x400, DoorbellCQ: 0x800, DoorbellDIM: 0x820, DoorbellEQ: 0xff8}[k]
}

func (k DoorbellKind) String() string {
	return [...]string{DoorbellSQ: "sq", DoorbellRQ: "rq", DoorbellCQ: "cq", DoorbellDIM: "dim", DoorbellEQ: "eq"}[k]
}

// A DoorbellValue is the 64-bit word written to a doorbell register.
type DoorbellValue uint64

const doorbellArm = 1 << 63

// ID is the queue id: 16 bits for an EQ, 24 for the rest.
func (v DoorbellValue) ID(k DoorbellKind) uint32 {
	if k == DoorbellEQ {
		return uint32(v & 0xffff)
	}
	return uint32(v & 0xffffff)
}

// Tail is the producer position of an SQ or RQ: bytes, modulo 2^32.
func (v DoorbellValue) Tail() uint32 { return uint32(v >> 32) }

// Index is the consumer index of a CQ or EQ: entries, modulo 8 laps.
func (v DoorbellValue) Index() uint32 { return uint32(v>>32) & 0x7fffffff }

// Arm says whether the consumer wants to be told of the next entry.
func (v DoorbellValue) Arm() bool { return v&doorbellArm != 0 }

// Moderation is what a DIM doorbell asks for.
type Moderation struct {
	Microseconds, Completions uint16
	TimeValid, CountValid     bool
}

// Moderation decodes a DIM doorbell.
func (v DoorbellValue) Moderation() Moderation {
	return Moderation{uint16(v >> 32 & 0x3ff), uint16(v >> 48 & 0xff), v>>47&1 != 0, v>>63&1 != 0}
}

// ProducerDoorbell is the word a driver writes to an SQ or RQ doorbell. count is the RQ's advisory number of entries.
func ProducerDoorbell(id, tail uint32, count uint8) DoorbellValue {
	return DoorbellValue(tail)<<32 | DoorbellValue(count)<<24 | DoorbellValue(id&0xffffff)
}

// ConsumerDoorbell is the word a driver writes to a CQ or EQ doorbell.
func ConsumerDoorbell(id, index uint32, arm bool) DoorbellValue {
	v := DoorbellValue(index&0x7fffffff)<<32 | DoorbellValue(id)
	if arm {
		v |= doorbellArm
	}
	return v
}

// An EventType is the type of an event queue entry (sections 3.2 and 8.2).
type EventType uint8

// Event types.
const (
	EventCompletion   EventType = 3
	EventTest         EventType = 64
	EventInitEQ       EventType = 129
	EventInitData     EventType = 130
	EventInitDone     EventType = 131
	EventFPGAReconfig EventType = 132
	EventHWC          EventType = 133 // kind in details[0] bits 24-31: 1 timeout, 2 link up, 3 link down
	EventSOCService   EventType = 134
	EventResetRequest EventType = 135
)

func (t EventType) String() string {
	switch t {
	case EventCompletion:
		return "completion"
	case EventTest:
		return "test"
	case EventInitEQ:
		return "init-eq"
	case EventInitData:
		return "init-data"
	case EventInitDone:
		return "init-done"
	case EventFPGAReconfig:
		return "fpga-reconfig"
	case EventHWC:
		return "hwc"
	case EventSOCService:
		return "soc-service"
	case EventResetRequest:
		return "reset-request"
	}
	return strconv.Itoa(int(t))
}

// Init data kinds (section 3.2): bits 24-31 of an EventInitData's first detail.
const (
	initCQ          = 1
	initRQ          = 2
	initSQ          = 3
	initDepth       = 4
	initMaxRequest  = 5
	initMaxResponse = 6
	initMaxCQs      = 7
	initPD          = 8
	initGPAKey      = 9
)

func initData(kind, value uint32) uint32 { return kind<<24 | value&0xffffff }

func initEQ(eq, doorbell uint32) uint32 { return doorbell<<16 | eq&0xffff }

// owner places the owner bits of the entry written at running index t of a ring of n entries.
func owner(t, n uint32) uint32 { return t / n % ownerLaps << ownerShift }

func eqeWord(t EventType, owner uint32) uint32 { return uint32(t) | owner }

// Where the last dword of an entry is, and its owner bits.
const (
	eqeLast = EQESize - 4
	cqeLast = CQESize - 4
)

var eqePlaces = map[string]inject.Place{
	"details0": inject.Bytes(0, 4), "details1": inject.Bytes(4, 4), "details2": inject.Bytes(8, 4), "type": inject.Bytes(eqeLast, 1),
	"owner": {Bit: 8*eqeLast + ownerShift, Width: ownerBits},
}

func eqePlace(field string) (p inject.Place, ok bool) {
	p, ok = eqePlaces[field]
	return p, ok
}

// A Completion is a kind of completion: the step of posting one, and the fields of its client data that rules know.
type Completion struct {
	Step   inject.Point
	Places map[string]inject.Place
}

// The hardware channel's completions.
var (
	hwcSent     = &Completion{Step: inject.CompletionHWCSend}
	hwcReceived = &Completion{inject.CompletionHWCReceive, map[string]inject.Place{"wqe_offset": inject.Bytes(rxoobOffset, 4), "length": inject.Bytes(rxoobLength, 4)}}
)

func (c *Completion) place(field string) (p inject.Place, ok bool) {
	switch field {
	case "wq":
		return inject.Place{Bit: 8 * cqeLast, Width: 24}, true
	case "owner":
		return inject.Place{Bit: 8*cqeLast + ownerShift, Width: ownerBits}, true
	}
	p, ok = c.Places[field]
	return p, ok
}

// cqeWord is the last dword of a CQE.
func cqeWord(wq uint32, send bool, owner uint32) uint32 {
	w := wq&0xffffff | owner
	if send {
		w |= 1 << 24
	}
	return w
}

// RXOOB offsets inside the client data of an HWC receive completion (section 3.6).
const (
	rxoobOffset = 12
	rxoobLength = 24
)

// putRXOOB writes the receive OOB of an HWC completion: where the consumed entry was posted and how long the response is.
func putRXOOB(b []byte, offset, length uint32) {
	le.PutUint32(b[rxoobOffset:], offset)
	le.PutUint32(b[rxoobLength:], length)
}

// SMC window (section 2).
const (
	SMCSize       = 32
	smcVector     = 26
	smcHeader     = 28
	smcEstablish  = 1
	smcDestroy    = 2
	smcTimeout    = 4
	smcResponse   = 1 << 7
	smcOwner      = 1 << 31
	smcStatusOK   = 0
	smcStatusFail = 1
)

// smcWord is the header dword of the SMC window.
type smcWord uint32

func (h smcWord) kind() uint32    { return uint32(h & 7) }
func (h smcWord) version() uint32 { return uint32(h >> 3 & 7) }

// known says whether the message is one the device understands.
func (h smcWord) known() bool {
	switch h.kind() {
	case smcEstablish, smcDestroy:
		return h.version() == 0
	case smcTimeout:
		return h.version() <= 1
	}
	return false
}

// smcPlace finds what rules know of a message; its answer is no part of it.
func smcPlace(field string) (inject.Place, bool) {
	switch field {
	case "vector":
		return inject.Bytes(smcVector, 2), true
	case "header":
		return inject.Bytes(smcHeader, 4), true
	}
	return inject.Place{}, false
}

// answer is the header that answers request h.
func (h smcWord) answer(status uint32) smcWord { return h&0x3f | smcResponse | smcWord(status)<<8 }

// establish is the message that creates the HWC: bases of the four rings, and the vector of the EQ.
type establish struct {
	eq, cq, rq, sq uint64 // DMA addresses
	vector         uint16
}

func parseEstablish(w *[SMCSize]byte) (m establish) {
	high := le.Uint16(w[24:])
	at := func(off, nibble int) uint64 {
		pfn := uint64(le.Uint32(w[off:])) | uint64(le.Uint16(w[off+4:]))<<32 | uint64(high>>nibble&0xf)<<48
		return pfn * PageSize
	}
	m.eq, m.cq, m.rq, m.sq = at(0, 0), at(6, 4), at(12, 8), at(18, 12)
	m.vector = le.Uint16(w[smcVector:])
	return m
}
