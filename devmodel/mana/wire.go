package mana

import (
	"encoding/binary"

	"irqlab/devmodel/gdma"
	"irqlab/devmodel/inject"
)

var le = binary.LittleEndian

// MANA request codes (section 5.1).
const (
	codeQueryDevConfig = 0x20001
	codeQueryStats     = 0x20002
	codeConfigTX       = 0x20003
	codeCreateWQ       = 0x20004
	codeDestroyWQ      = 0x20005
	codeFenceRQ        = 0x20006
	codeConfigRX       = 0x20007
	codeQueryVPort     = 0x20008
	codeQueryLink      = 0x2000a
	codeSetBandwidth   = 0x2000b
	codeQueryPHY       = 0x2000c
	objectSQ           = 1
	objectRQ           = 2
	noObject           = ^uint64(0)
	rxUnchanged        = ^uint32(0)
	statsMask          = 1<<statCount - 1
)

// field keeps the declarations below to one line each.
func field(name string, off, size int) gdma.Field {
	return gdma.Field{Name: name, Off: off, Size: size}
}

// Fields of the requests and, from 0x20, of the answers.
var (
	devProtoMajor = field("proto_major", 0x48, 4)
	devProtoMinor = field("proto_minor", 0x4c, 4)
	devProtoMicro = field("proto_micro", 0x50, 4)
	devCaps       = field("caps", 0x20, 8)
	devVPorts     = field("vports", 0x40, 2)
	devBareMetal  = field("bare_metal", 0x42, 1) // version 3
	devMaxEQs     = field("max_eqs", 0x44, 4)
	devMTU        = field("mtu", 0x48, 2)        // version 2
	devLinkSpeed  = field("link_speed", 0x4c, 4) // version 4

	statsAsked    = field("mask", 0x28, 8)
	statsReported = field("mask", 0x20, 8)

	txVPort    = field("vport", 0x28, 8)
	txPD       = field("pd", 0x30, 4)
	txDoorbell = field("doorbell", 0x34, 4)
	txOffset   = field("vport_offset", 0x20, 2)
	txShort    = field("short_form", 0x22, 1)

	wqVPort       = field("vport", 0x28, 8)
	wqType        = field("type", 0x30, 4)
	wqRegion      = field("wq_region", 0x38, 8)
	wqCQRegion    = field("cq_region", 0x40, 8)
	wqBytes       = field("wq_bytes", 0x48, 4)
	wqCQBytes     = field("cq_bytes", 0x4c, 4)
	wqEQ          = field("eq", 0x54, 4)
	wqID          = field("wq", 0x20, 4)
	wqCQ          = field("cq", 0x24, 4)
	wqObject      = field("object", 0x28, 8)
	destroyType   = field("type", 0x28, 4)
	destroyObject = field("object", 0x30, 8)
	fenceObject   = field("object", 0x28, 8)

	rxVPort         = field("vport", 0x28, 8)
	rxEntries       = field("entries", 0x30, 2)
	rxTableOffset   = field("table_offset", 0x32, 2)
	rxEnable        = field("rx_enable", 0x34, 4)
	rxRSS           = field("rss_enable", 0x38, 4)
	rxUpdateDefault = field("update_default", 0x3c, 1)
	rxUpdateKey     = field("update_key", 0x3d, 1)
	rxUpdateTable   = field("update_table", 0x3e, 1)
	rxDefault       = field("default_object", 0x40, 8)

	vportIndex       = field("index", 0x28, 4)
	vportMaxSQ       = field("max_sq", 0x20, 4)
	vportMaxRQ       = field("max_rq", 0x24, 4)
	vportIndirection = field("indirection", 0x28, 4)
	vportHandle      = field("vport", 0x38, 8)

	linkVPort        = field("vport", 0x28, 8)
	linkQoS          = field("qos_mbps", 0x20, 4)
	linkUnconfigured = field("qos_unconfigured", 0x24, 1)
	linkSpeed        = field("link_mbps", 0x28, 4)
	clampVPort       = field("vport", 0x28, 8)
	clampEnable      = field("enable", 0x30, 4)
	clampMbps        = field("mbps", 0x34, 4)
	clampUnset       = field("qos_unconfigured", 0x20, 1)
)

// Places of what is no number.
const (
	statsCounters = 0x28
	vportMAC      = 0x30
	rxKey         = 0x48
	rxKeySize     = 40
)

// messages declares what MANA answers. Bare-metal (PF) requests are not among them: this is a VF.
func messages() []*gdma.Message {
	type fs = []gdma.Field
	return []*gdma.Message{
		{Code: codeQueryDevConfig, Name: "QUERY_DEV_CONFIG", MaxVersion: 4,
			Request: fs{devProtoMajor, devProtoMinor, devProtoMicro}, Response: fs{devCaps, devVPorts, devBareMetal, devMaxEQs, devMTU, devLinkSpeed}},
		{Code: codeQueryStats, Name: "QUERY_GF_STAT", MinRequest: 0x30, Request: fs{statsAsked}, Response: fs{statsReported}},
		{Code: codeConfigTX, Name: "CONFIG_VPORT_TX", MinRequest: 0x38, Request: fs{txVPort, txPD, txDoorbell}, Response: fs{txOffset, txShort}},
		{Code: codeCreateWQ, Name: "CREATE_WQ_OBJ", MinRequest: 0x58, MaxVersion: 3,
			Request: fs{wqVPort, wqType, wqRegion, wqCQRegion, wqBytes, wqCQBytes, wqEQ}, Response: fs{wqID, wqCQ, wqObject}},
		{Code: codeDestroyWQ, Name: "DESTROY_WQ_OBJ", MinRequest: 0x38, Request: fs{destroyType, destroyObject}},
		{Code: codeFenceRQ, Name: "FENCE_RQ", MinRequest: 0x30, Request: fs{fenceObject}},
		{Code: codeConfigRX, Name: "CONFIG_VPORT_RX", MinRequest: 0x70,
			Request: fs{rxVPort, rxEntries, rxEnable, rxRSS, rxUpdateDefault, rxUpdateKey, rxUpdateTable, rxDefault}},
		{Code: codeQueryVPort, Name: "QUERY_VPORT_CONFIG", MinRequest: 0x2c, Request: fs{vportIndex}, Response: fs{vportMaxSQ, vportMaxRQ, vportIndirection, vportHandle}},
		{Code: codeQueryLink, Name: "QUERY_LINK_CONFIG", MinRequest: 0x30, Request: fs{linkVPort}, Response: fs{linkQoS, linkUnconfigured, linkSpeed}},
		{Code: codeSetBandwidth, Name: "SET_BW_CLAMP", MinRequest: 0x38, Request: fs{clampVPort, clampEnable, clampMbps}, Response: fs{clampUnset}},
		{Code: codeQueryPHY, Name: "QUERY_PHY_STAT"},
	}
}

// stat is a counter of QUERY_GF_STAT, by its place there.
type stat int

const (
	statRXNoWQE stat = iota
	statRXDisabled
	statRXBytes
	statRXUnicast
	statRXUnicastBytes
	statRXBroadcast
	statRXBroadcastBytes
	statRXMulticast
	statRXMulticastBytes
	statTXGFDisabled
	statTXDisabled
	statTXBadOffset
	statTXVLAN
	statTXEtherType
	statTXSA
	statTXSQPDID
	statTXCQPDID
	statTXMTU
	statTXBadOOB
	statTXBytes
	statTXUnicast
	statTXUnicastBytes
	statTXBroadcast
	statTXBroadcastBytes
	statTXMulticast
	statTXMulticastBytes
	statTXGDMAError
	statCount
)

// cqeType is the type of a data completion (sections 5.3 and 5.4).
type cqeType uint8

const (
	cqeRXOK          cqeType = 1
	cqeRXFence       cqeType = 3
	cqeTXOK          cqeType = 32
	cqeTXMTU         cqeType = 34
	cqeTXBadOOB      cqeType = 35
	cqeTXHeader      cqeType = 37
	cqeTXVPortIndex  cqeType = 39
	cqeTXVPortOff    cqeType = 40
	cqeTXGDMAError   cqeType = 42
	cqeClientMANA            = 1 << 6
	cqeTXWQEPosition         = 8
)

// cqeHead is the first dword of a data completion's client data.
func cqeHead(t cqeType) uint32 { return uint32(t) | cqeClientMANA }

// Data completions as rules know them. The type is six bits, beside the client's two.
var (
	sent   = &gdma.Completion{Step: inject.CompletionSend, Places: map[string]inject.Place{"type": {Width: 6}, "wqe_offset": inject.Bytes(cqeTXWQEPosition, 4)}}
	fenced = &gdma.Completion{Step: inject.CompletionFence, Places: map[string]inject.Place{"type": {Width: 6}}}
)

// rxCQE is the client data of a receive completion of one packet.
type rxCQE struct {
	kind   cqeType
	flags  uint32 // VLAN, checksum and hash verdicts
	length uint16
	hash   uint32
	offset uint32 // of the consumed entry
}

// Flags of a receive completion: dword 1.
const (
	rxHashTCP4    = 1 << (16 + 1)
	rxIPGood      = 1 << 25
	rxTCPGood     = 1 << 27
	rxLength      = 8
	rxHash        = 16
	rxWQEPosition = 56
)

// put writes the completion into 60 zeroed bytes.
func (c rxCQE) put(b []byte) {
	le.PutUint32(b, cqeHead(c.kind))
	le.PutUint32(b[4:], c.flags)
	le.PutUint16(b[rxLength:], c.length)
	le.PutUint32(b[rxHash:], c.hash)
	le.PutUint32(b[rxWQEPosition:], c.offset)
}

// txOOB is the out-of-band data of a packet to send. A short one leaves the second half zero.
type txOOB struct {
	long          bool
	suppress      bool // no completion wanted
	ipv4, ipv6    bool
	ipChecksum    bool
	tcpChecksum   bool
	udpChecksum   bool
	cq            uint32
	transport     uint16 // offset of the transport header, for TCP
	vsq           uint16
	vport         uint16 // vPort offset, the long one in a long OOB
	injectVLAN    bool
	vlan          uint16 // VLAN id
	priority, dei uint8
}

const (
	shortOOB = 8
	longOOB  = 24
)

// parseTXOOB decodes the OOB; false when its format and its size disagree.
func parseTXOOB(b []byte) (o txOOB, ok bool) {
	if len(b) < shortOOB {
		return o, false
	}
	d0, d1 := le.Uint32(b), le.Uint32(b[4:])
	o = txOOB{
		long: d0&3 == 1, ipv4: d0>>2&1 != 0, ipv6: d0>>3&1 != 0, ipChecksum: d0>>4&1 != 0, tcpChecksum: d0>>5&1 != 0, udpChecksum: d0>>6&1 != 0,
		suppress: d0>>7&1 != 0, cq: d0 >> 8, transport: uint16(d1 & 0x3ff), vsq: uint16(d1 >> 10 & 0x3fff), vport: uint16(d1 >> 24),
	}
	switch d0 & 3 {
	case 0:
		return o, true
	case 1:
		if len(b) < longOOB {
			return o, false
		}
		d2, d3 := le.Uint32(b[8:]), le.Uint32(b[12:])
		o.injectVLAN, o.priority, o.dei, o.vlan = d2>>3&1 != 0, uint8(d2>>16&7), uint8(d2>>19&1), uint16(d2>>20)
		o.vport = uint16(d3 >> 16 & 0xfff)
		return o, true
	}
	return o, false
}
