package mana

import "encoding/binary"

// The read-only registers of the VF map (reference, section 1.3).
const (
	regVersion      = 0x00 // u16 micro, u8 minor, u8 major
	regDoorbellOff  = 0x08 // u64
	regDoorbellSize = 0x10 // low 16 bits used by Linux
	regSMCOff       = 0x18 // u64
	regSMCSize      = 0x20 // u16
	registersSize   = 0x28
)

const (
	smcOffset      = registersSize
	doorbellOffset = 0x1000
	// DoorbellPageSize is fixed: Linux insists on at least 4096 and reads only 16 bits, so larger pages buy nothing.
	DoorbellPageSize = 0x1000
)

// registers is the register file below the SMC window.
func registers() (r [registersSize]byte) {
	binary.LittleEndian.PutUint16(r[regVersion:], 1)
	r[regVersion+3] = 1
	binary.LittleEndian.PutUint64(r[regDoorbellOff:], doorbellOffset)
	binary.LittleEndian.PutUint32(r[regDoorbellSize:], DoorbellPageSize)
	binary.LittleEndian.PutUint64(r[regSMCOff:], smcOffset)
	binary.LittleEndian.PutUint16(r[regSMCSize:], 32)
	return r
}
