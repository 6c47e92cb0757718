package pcifn

import "encoding/binary"

var le = binary.LittleEndian

// configSize is the PCI Express configuration space; less would make QEMU treat the function as conventional PCI.
const configSize = 4096

// Offsets of the type 0 configuration header.
const (
	cfgVendor    = 0x00
	cfgDevice    = 0x02
	cfgCommand   = 0x04
	cfgStatus    = 0x06
	cfgRevision  = 0x08
	cfgClass     = 0x09
	cfgBAR0      = 0x10
	cfgBAR4      = 0x20
	cfgSubVendor = 0x2c
	cfgSubsystem = 0x2e
	cfgCapPtr    = 0x34
	cfgIntLine   = 0x3c
)

// Bits of the COMMAND and STATUS registers.
const (
	cmdMemory    = 1 << 1
	cmdMaster    = 1 << 2
	cmdParity    = 1 << 6
	cmdSERR      = 1 << 8
	cmdNoINTx    = 1 << 10
	statusCaps   = 1 << 4
	barMemory64  = 2 << 1
	barPrefetch  = 1 << 3
	barTypeFlags = barMemory64 | barPrefetch
)

// The capability list: MSI-X, then PCI Express. There is no power management capability, because a guest that puts the function to sleep would gain nothing and
// could lose BAR accesses; and no extended capability, so the dword at 0x100 reads 0.
const (
	capMSIX    = 0x40
	capIDMSIX  = 0x11
	msixCtrl   = capMSIX + 2
	msixTable  = capMSIX + 4
	msixPBA    = capMSIX + 8
	msixEnable = 1 << 15
	msixMask   = 1 << 14

	capExpress    = 0x50
	capIDExpress  = 0x10
	expFlags      = capExpress + 0x02
	expDevCap     = capExpress + 0x04
	expDevCtl     = capExpress + 0x08
	expLnkCap     = capExpress + 0x0c
	expLnkCtl     = capExpress + 0x10
	expLnkSta     = capExpress + 0x12
	expDevCtl2    = capExpress + 0x28
	expLnkCap2    = capExpress + 0x2c
	expLnkCtl2    = capExpress + 0x30
	devCapRBER    = 1 << 15
	devCapFLR     = 1 << 28
	devCtlFLR     = 1 << 15
	devCtlDefault = 1<<4 | 2<<12 // relaxed ordering on; 512-byte read requests
	linkGen3x16   = 3 | 16<<4
)

// configSpace is the function's own copy of configuration space. Of what a guest reads, QEMU answers the BARs, the capability list's links and the MSI-X
// capability itself and asks the server for the rest; of what it writes the server is told everything.
type configSpace struct {
	bytes    [configSize]byte
	writable [configSize]byte // which bits a write changes
	initial  [configSize]byte
}

// newConfigSpace builds the image. cfg is valid and msix laid out.
func newConfigSpace(cfg *Config, msix msixLayout) *configSpace {
	c := new(configSpace)
	b, w := c.bytes[:], c.writable[:]
	le.PutUint16(b[cfgVendor:], cfg.VendorID)
	le.PutUint16(b[cfgDevice:], cfg.DeviceID)
	le.PutUint16(b[cfgStatus:], statusCaps)
	b[cfgRevision] = cfg.Revision
	b[cfgClass], b[cfgClass+1], b[cfgClass+2] = byte(cfg.Class), byte(cfg.Class>>8), byte(cfg.Class>>16)
	le.PutUint32(b[cfgBAR0:], barTypeFlags)
	le.PutUint32(b[cfgBAR4:], barTypeFlags)
	le.PutUint16(b[cfgSubVendor:], cfg.SubsystemVendorID)
	le.PutUint16(b[cfgSubsystem:], cfg.SubsystemID)
	b[cfgCapPtr] = capMSIX
	le.PutUint16(w[cfgCommand:], cmdMemory|cmdMaster|cmdParity|cmdSERR|cmdNoINTx)
	w[cfgIntLine] = 0xff

	b[capMSIX], b[capMSIX+1] = capIDMSIX, capExpress
	le.PutUint16(b[msixCtrl:], uint16(cfg.Vectors-1))
	le.PutUint32(b[msixTable:], msixBAR)
	le.PutUint32(b[msixPBA:], msixBAR|uint32(msix.pba))
	le.PutUint16(w[msixCtrl:], msixEnable|msixMask)

	b[capExpress] = capIDExpress
	le.PutUint16(b[expFlags:], 2) // capability version 2, endpoint
	le.PutUint32(b[expDevCap:], devCapRBER|devCapFLR)
	le.PutUint16(b[expDevCtl:], devCtlDefault)
	le.PutUint16(w[expDevCtl:], 0x7fff)
	le.PutUint32(b[expLnkCap:], linkGen3x16)
	le.PutUint16(w[expLnkCtl:], 0x01cb)
	le.PutUint16(b[expLnkSta:], linkGen3x16)
	le.PutUint16(w[expDevCtl2:], 0x001f)
	le.PutUint32(b[expLnkCap2:], 0x0e) // 2.5, 5 and 8 GT/s
	le.PutUint16(b[expLnkCtl2:], 3)
	le.PutUint16(w[expLnkCtl2:], 0x000f)
	c.initial = c.bytes
	return c
}

// read fills p from off; the range lies inside the space.
func (c *configSpace) read(off uint64, p []byte) { copy(p, c.bytes[off:]) }

// write stores p at off through the masks and tells whether it asked for a function level reset.
func (c *configSpace) write(off uint64, p []byte) (flr bool) {
	for i, v := range p {
		at := off + uint64(i)
		m := c.writable[at]
		c.bytes[at] = c.bytes[at]&^m | v&m
		if at == expDevCtl+1 && v&(devCtlFLR>>8) != 0 {
			flr = true
		}
	}
	return flr
}

func (c *configSpace) command() uint16  { return le.Uint16(c.bytes[cfgCommand:]) }
func (c *configSpace) msixCtrl() uint16 { return le.Uint16(c.bytes[msixCtrl:]) }

// reset returns every register to its initial value. After a function level reset QEMU still shows the guest its own MSI-X control word, so keepMSIX keeps ours in step.
func (c *configSpace) reset(keepMSIX bool) {
	ctrl := c.msixCtrl()
	c.bytes = c.initial
	if keepMSIX {
		le.PutUint16(c.bytes[msixCtrl:], ctrl)
	}
}

// msixBAR is the BAR that holds the MSI-X table and its pending bits, and nothing else.
const msixBAR = 4

// msixLayout says where in that BAR they are.
type msixLayout struct{ table, pba, size uint64 }

// layoutMSIX places the table at 0 and the pending bits in the second half of a BAR that is a power of two and at least a page.
func layoutMSIX(vectors int) msixLayout {
	const entry = 16
	half := uint64(0x800)
	for half < uint64(vectors)*entry {
		half *= 2
	}
	return msixLayout{table: 0, pba: half, size: 2 * half}
}
