package mana

import (
	"cmp"
	"fmt"
	"math/bits"

	"irqlab/devmodel/inject"
)

// Limits of a function (reference, sections 5.1 and 6.2).
const (
	MaxVPorts      = 16
	MaxQueues      = 64   // per vPort; the driver never asks for more
	MaxVectors     = 2048 // of an MSI-X table
	MaxIndirection = 512  // entries; the driver falls back to 64 above it
)

// Config chooses what the function tells its driver. The zero value of a field means the default named there; New refuses what the protocol cannot express or what no
// driver survives, so a function that exists is a valid one.
type Config struct {
	// BAR0Size in bytes, a power of two from 8 KiB; default 64 KiB. It must be the size the PCI function gives BAR 0.
	BAR0Size int
	// Vectors is the size of the MSI-X table, HWC included: 2 to 2048. 0: taken from the bus when attached.
	Vectors int
	// MaxMSIX is the vector limit the device reports (QUERY_MAX_RESOURCES), HWC included: 1 to Vectors. Default: the table size. 1 makes every driver give up (-ENOSPC).
	MaxMSIX int
	// VPorts is the number of network devices, 1 to 16; default 1.
	VPorts int
	// Queues is the number of queue pairs per vPort, 1 to 64; default 64.
	Queues int
	// MTU is the adapter MTU in bytes, the 14-byte Ethernet header included: 82 (7.2's lower bound) to 65535; default 1514.
	MTU int
	// Indirection is the number of entries of the receive indirection table, a power of two up to 512 and at least 1; default 64. Kernels 6.2 to 6.8 always use 64.
	Indirection int
	// LinkSpeed in Mbit/s; default 200000.
	LinkSpeed uint32
	// Capabilities are the device's capability bits, first word (reference, section 4.3): bit 3 makes the driver ask for the HWC timeout, bit 15 for interrupt moderation.
	Capabilities uint64
	// HWCTimeout in milliseconds answers QUERY_HWC_TIMEOUT, which drivers send when capability bit 3 is set; default 30000. 0 cannot be said: it would time out every request.
	HWCTimeout uint32
	// PortCapabilities is the first capability word of QUERY_DEV_CONFIG (7.3: bit 5 offers 8-packet completions).
	PortCapabilities uint64
	// Inject makes the function stand still or misbehave at chosen steps; nil: never. Accesses are steps of the PCI function (pcifn.Config).
	Inject *inject.Controller
}

// withDefaults is c with defaults filled in, or the first thing wrong with it.
func (c Config) withDefaults() (Config, error) {
	setDefault(&c.BAR0Size, 64<<10)
	setDefault(&c.VPorts, 1)
	setDefault(&c.Queues, MaxQueues)
	setDefault(&c.MTU, 1514)
	setDefault(&c.Indirection, 64)
	setDefault(&c.LinkSpeed, 200_000)
	setDefault(&c.HWCTimeout, 30_000)
	switch {
	case c.BAR0Size < doorbellOffset+DoorbellPageSize || bits.OnesCount(uint(c.BAR0Size)) != 1:
		return c, fmt.Errorf("mana: BAR 0 of %d bytes: want a power of two from %d, to hold registers and a doorbell page", c.BAR0Size, doorbellOffset+DoorbellPageSize)
	case c.Vectors != 0 && (c.Vectors < 2 || c.Vectors > MaxVectors):
		return c, fmt.Errorf("mana: %d vectors: want 2 to %d, the hardware channel's included", c.Vectors, MaxVectors)
	case c.MaxMSIX < 0 || c.MaxMSIX > MaxVectors || c.Vectors != 0 && c.MaxMSIX > c.Vectors:
		return c, fmt.Errorf("mana: max_msix %d: want 1 to the MSI-X table size (%d); kernel 6.17 fails its probe above it", c.MaxMSIX, cmp.Or(c.Vectors, MaxVectors))
	case c.VPorts < 1 || c.VPorts > MaxVPorts:
		return c, fmt.Errorf("mana: %d vPorts: want 1 to %d", c.VPorts, MaxVPorts)
	case c.Queues < 1 || c.Queues > MaxQueues:
		return c, fmt.Errorf("mana: %d queues per vPort: want 1 to %d", c.Queues, MaxQueues)
	case c.MTU < 82 || c.MTU > 0xffff:
		return c, fmt.Errorf("mana: adapter MTU %d: want 82 to 65535 bytes, the 14-byte Ethernet header included", c.MTU)
	case c.Indirection < 1 || c.Indirection > MaxIndirection || bits.OnesCount(uint(c.Indirection)) != 1:
		return c, fmt.Errorf("mana: indirection table of %d entries: want a power of two up to %d", c.Indirection, MaxIndirection)
	}
	return c, nil
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
