package gdma

// Bounds on what a guest can make the device remember.
const (
	maxRegionPages = 1 << 14 // 64 MiB in one region
	maxTotalPages  = 1 << 20 // 8 MiB of addresses in all
	maxRegions     = 1 << 13
)

// A region is a DMA region: guest memory by pages, a ring once a queue has taken it. With no page list it is one run from base (the HWC's rings).
type region struct {
	handle uint64
	base   uint64   // when contiguous
	pages  []uint64 // every page's address, dropped once known to be one run
	first  uint32   // offset of the region in its first page
	length uint64
	want   int // pages it will have when complete
	have   int
}

func (r *region) complete() bool { return r.have == r.want }

// seal drops the page list of a complete region that is one run, which is most of them: address arithmetic instead of a list walk.
func (r *region) seal() {
	for i, p := range r.pages {
		if p != r.pages[0]+uint64(i)*PageSize {
			return
		}
	}
	r.base, r.pages = r.pages[0], nil
}

// addr is the DMA address of the region's byte off, and how many bytes follow it in one run.
func (r *region) addr(off uint32) (addr uint64, run uint32) {
	at := uint64(r.first) + uint64(off)
	if r.pages == nil {
		return r.base + at, uint32(r.length) - off
	}
	return r.pages[at/PageSize] + at%PageSize, uint32(PageSize - at%PageSize)
}

// A ring is a queue's memory: a power-of-two prefix of a region.
type ring struct {
	*region
	size uint32 // bytes
}

// at is the DMA address of monotonic byte position pos, and the bytes that follow in one run before a page of a scattered ring or the ring ends.
func (r ring) at(pos uint32) (addr uint64, run uint32) {
	off := pos & (r.size - 1)
	addr, run = r.addr(off)
	return addr, min(run, r.size-off)
}

// read fills p from monotonic byte position pos, wrapping at the end of the ring.
func (r ring) read(d *Device, pos uint32, p []byte) error {
	for len(p) > 0 {
		addr, run := r.at(pos)
		n := min(int(run), len(p))
		if err := d.Read(addr, p[:n]); err != nil {
			return err
		}
		p, pos = p[n:], pos+uint32(n)
	}
	return nil
}

// validRing says whether size bytes can be a ring of a region.
func (r *region) validRing(size uint32) bool {
	return size >= minRing && size <= maxRing && size&(size-1) == 0 && uint64(size) <= r.length && r.complete() && r.first%CQESize == 0
}
