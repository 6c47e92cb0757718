package vfiouser

import (
	"bytes"
	"errors"
	"math"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"irqlab/devmodel/trace"
)

func mapBody(iova, size, offset uint64, flags uint32) []byte {
	return encoded(&DMAMap{ArgSize: 32, Flags: flags, Offset: offset, IOVA: iova, Size: size}, dmaMapSize)
}

func unmapBody(iova, size uint64, flags uint32) []byte {
	return encoded(&DMAUnmap{ArgSize: 24, Flags: flags, IOVA: iova, Size: size}, dmaUnmapSize)
}

func TestDMAMap(t *testing.T) {
	t.Parallel()
	b := newBoard()
	c := newClient(t, b)
	fd := memfd(t, 64*dmaPage)

	// Two ranges of one file, next to each other in the device's space but swapped in the file.
	c.ok(CmdDMAMap, mapBody(0x10000, dmaPage, 5*dmaPage, 3), fd)
	c.ok(CmdDMAMap, mapBody(0x11000, dmaPage, 2*dmaPage, 3), fd)
	p := make([]byte, 4)
	if err := b.mem.Read(0x10ffe, p); !errors.Is(err, ErrDMADisabled) {
		t.Errorf("read with the gate closed: %v", err)
	}
	b.mem.SetEnabled(true)
	if err := b.mem.Read(0x10ffe, p); err != nil || !bytes.Equal(p, []byte{6, 6, 3, 3}) {
		t.Errorf("read across two ranges: %v, %v", p, err)
	}
	if err := b.mem.Write(0x10ffe, []byte{0xa, 0xb, 0xc, 0xd}); err != nil {
		t.Error(err)
	}
	for _, w := range []struct {
		off  int64
		want []byte
	}{{6*dmaPage - 2, []byte{0xa, 0xb}}, {2 * dmaPage, []byte{0xc, 0xd}}} {
		got := make([]byte, 2)
		if _, err := unix.Pread(fd, got, w.off); err != nil || !bytes.Equal(got, w.want) {
			t.Errorf("the file has %x at %#x, want %x", got, w.off, w.want)
		}
	}
	if err := b.mem.StoreRelease32(0x10004, 0x11223344); err != nil {
		t.Error(err)
	}
	if err := b.mem.Read(0x10004, p); err != nil || !bytes.Equal(p, []byte{0x44, 0x33, 0x22, 0x11}) {
		t.Errorf("a release store leaves %x, %v", p, err)
	}

	// Read-only, write-only, and without a descriptor.
	c.ok(CmdDMAMap, mapBody(0x20000, dmaPage, 0, DMARead), fd)
	c.ok(CmdDMAMap, mapBody(0x30000, dmaPage, 0, DMAWrite), fd)
	c.ok(CmdDMAMap, mapBody(0x40000, dmaPage, 0, DMARead|DMAWrite))
	c.ok(CmdDMAMap, mapBody(math.MaxUint64-dmaPage+1, dmaPage, 0, DMARead|DMAWrite), fd) // up to 2^64
	for _, a := range []struct {
		iova        uint64
		n           int
		read, write error
	}{
		{0x20000, 4, nil, ErrAccess},
		{0x30000, 4, ErrAccess, nil},
		{0x40000, 4, ErrNoDescriptor, ErrNoDescriptor},
		{0x11ffe, 4, ErrUnmapped, ErrUnmapped}, // runs out of its range
		{0xfffe, 4, ErrUnmapped, ErrUnmapped},  // starts before it
		{0x50000, 1, ErrUnmapped, ErrUnmapped},
		{math.MaxUint64 - 3, 4, nil, nil},
		{math.MaxUint64 - 3, 5, ErrUnmapped, ErrUnmapped}, // past the end of everything
		{0x50000, 0, nil, nil},
	} {
		p := make([]byte, a.n)
		if err := b.mem.Read(a.iova, p); !errors.Is(err, a.read) {
			t.Errorf("read %d at %#x: %v, want %v", a.n, a.iova, err, a.read)
		}
		if err := b.mem.Write(a.iova, p); !errors.Is(err, a.write) {
			t.Errorf("write %d at %#x: %v, want %v", a.n, a.iova, err, a.write)
		}
	}
	if err := b.mem.StoreRelease32(0x10002, 1); !errors.Is(err, ErrMisaligned) {
		t.Errorf("a misaligned release store: %v", err)
	}
	if err := b.mem.StoreRelease32(0x20000, 1); !errors.Is(err, ErrAccess) {
		t.Errorf("a release store to read-only memory: %v", err)
	}
	var de *DMAError
	if err := b.mem.Read(0x50000, p); !errors.As(err, &de) || de.IOVA != 0x50000 || de.Len != 4 || de.Op != "read" {
		t.Errorf("error %#v", err)
	}

	// Exactly the same again is fine; anything else that overlaps is not.
	before := b.mem.Len()
	c.ok(CmdDMAMap, mapBody(0x10000, dmaPage, 5*dmaPage, 3), fd)
	c.ok(CmdDMAMap, mapBody(0x40000, dmaPage, 0, 3))
	c.fails(unix.EEXIST, CmdDMAMap, mapBody(0x10000, dmaPage, 6*dmaPage, 3), fd)
	c.fails(unix.EEXIST, CmdDMAMap, mapBody(0x10000, dmaPage, 5*dmaPage, 1), fd)
	c.fails(unix.EEXIST, CmdDMAMap, mapBody(0x10000, dmaPage, 5*dmaPage, 3))
	c.fails(unix.EEXIST, CmdDMAMap, mapBody(0xf000, 2*dmaPage, 0, 3), fd)
	c.fails(unix.EEXIST, CmdDMAMap, mapBody(0, 1<<40, 0, 3))
	c.fails(unix.EEXIST, CmdDMAMap, mapBody(0x11000, 2*dmaPage, 0, 3))

	pipe := make([]int, 2)
	if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	for _, bad := range []struct {
		body []byte
		fds  []int
	}{
		{mapBody(0x100800, dmaPage, 0, 3), nil},
		{mapBody(0x100000, 100, 0, 3), nil},
		{mapBody(0x100000, dmaPage, 0x800, 3), []int{fd}},
		{mapBody(0x100000, 0, 0, 3), nil},
		{mapBody(math.MaxUint64-dmaPage+1, 2*dmaPage, 0, 3), nil},
		{mapBody(0x100000, dmaPage, 0, 1<<5|3), nil},
		{mapBody(0x100000, dmaPage, 64*dmaPage, 3), []int{fd}}, // past the file's end
		{mapBody(0x100000, 2*dmaPage, math.MaxUint64-dmaPage+1, 3), []int{fd}},
		{mapBody(0x100000, dmaPage, 0, 3), []int{pipe[0]}},
		{mapBody(0x100000, dmaPage, 0, 3), []int{fd, fd}},
		{encoded(&DMAMap{ArgSize: 16, Flags: 3, IOVA: 0x100000, Size: dmaPage}, dmaMapSize), nil},
	} {
		c.fails(unix.EINVAL, CmdDMAMap, bad.body, bad.fds...)
	}
	if got := b.mem.Len(); got != before {
		t.Errorf("%d ranges after refusals, want %d", got, before)
	}
}

func TestDMAUnmap(t *testing.T) {
	t.Parallel()
	b := newBoard()
	c := newClient(t, b)
	fd := memfd(t, 16*dmaPage)
	fill := func() {
		for i := range uint64(8) {
			c.ok(CmdDMAMap, mapBody(0x100000+i*0x10000, 2*dmaPage, i*2*dmaPage, 3), fd)
		}
		c.ok(CmdDMAMap, mapBody(math.MaxUint64-dmaPage+1, dmaPage, 0, 3), fd)
	}
	for _, step := range []struct {
		name string
		body []byte
		left int
	}{
		{"exactly one", unmapBody(0x100000, 2*dmaPage, 0), 8},
		{"again, nothing there", unmapBody(0x100000, 2*dmaPage, 0), 8},
		{"a range that encloses three", unmapBody(0x110000, 0x30000, 0), 5},
		{"far away", unmapBody(0x800000000000, 0x800000000000, 0), 5},
		{"up to 2^64", unmapBody(0xfef00000, 0xffffffff01100000, 0), 4},
		{"all", unmapBody(1, 2, DMAUnmapAll), 0},
		{"all of nothing", unmapBody(0, 0, DMAUnmapAll), 0},
	} {
		if step.name == "exactly one" {
			fill()
		}
		if reply := c.ok(CmdDMAUnmap, step.body); !bytes.Equal(reply, step.body) {
			t.Errorf("%s: reply %x, want the request's %x", step.name, reply, step.body)
		}
		if got := b.mem.Len(); got != step.left {
			t.Errorf("%s: %d ranges left, want %d", step.name, got, step.left)
		}
	}
	fill()
	for _, bad := range [][]byte{
		unmapBody(0x101000, dmaPage, 0), // half of a range
		unmapBody(0x100000, dmaPage, 0), // the other half
		unmapBody(0x101000, 0x20000, 0), // cuts the first
		unmapBody(0x100000, 0x11000, 0), // cuts the last
		unmapBody(0x100000, 0, 0),       // nothing
		unmapBody(2, math.MaxUint64, 0), // past 2^64
		unmapBody(0, 0, 1),              // dirty bitmap
		encoded(&DMAUnmap{ArgSize: 8, IOVA: 0x100000, Size: 2 * dmaPage}, dmaUnmapSize),
	} {
		c.fails(unix.EINVAL, CmdDMAUnmap, bad)
	}
	if got := b.mem.Len(); got != 9 {
		t.Errorf("%d ranges after refusals, want 9", got)
	}
	if err := c.leave(); err != nil {
		t.Error(err)
	}
	if got := b.mem.Len(); got != 0 {
		t.Errorf("%d ranges after the client left", got)
	}
}

// TestUnmapGivesBack looks at the process itself: what was unmapped, or left behind by a client, is mapped no longer.
func TestUnmapGivesBack(t *testing.T) {
	t.Parallel()
	const name = "gives-back"
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 8*dmaPage); err != nil {
		t.Fatal(err)
	}
	mapped := func() int {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(b, []byte("/memfd:"+name))
	}
	c := newClient(t, newBoard())
	for i := range uint64(4) {
		c.ok(CmdDMAMap, mapBody(i*0x10000, dmaPage, i*2*dmaPage, 3), fd)
	}
	if got := mapped(); got != 4 {
		t.Errorf("%d mappings, want 4", got)
	}
	c.ok(CmdDMAUnmap, unmapBody(0, 0x20000, 0))
	if got := mapped(); got != 2 {
		t.Errorf("%d mappings after unmapping two, want 2", got)
	}
	if err := c.leave(); err != nil {
		t.Error(err)
	}
	if got := mapped(); got != 0 {
		t.Errorf("%d mappings after the client left", got)
	}
}

// TestDMALimit maps as much as can be mapped: the bound holds, and what is mapped still works.
func TestDMALimit(t *testing.T) {
	t.Parallel()
	m := NewMemory(nil)
	defer m.Clear()
	for i := range uint64(MaxMaps) {
		if err := m.Map(DMAMap{ArgSize: 32, Flags: 3, IOVA: (i + 1) * 2 * dmaPage, Size: dmaPage}, -1); err != nil {
			t.Fatalf("map %d: %v", i, err)
		}
	}
	if err := m.Map(DMAMap{ArgSize: 32, Flags: 3, Size: dmaPage}, -1); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("one range too many: %v", err)
	}
	if err := m.Unmap(DMAUnmap{ArgSize: 24, IOVA: 0, Size: 1 << 40}); err != nil || m.Len() != 0 {
		t.Errorf("unmap: %v, %d left", err, m.Len())
	}

	huge := memfd(t, 1<<46)
	if err := m.Map(DMAMap{ArgSize: 32, Flags: 3, Size: 1 << 45}, huge); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a map larger than the address space to give away: %v", err)
	}
}

// TestShrunkFile has the client take the memory away under a map: an error, not a crash.
func TestShrunkFile(t *testing.T) {
	t.Parallel()
	m := NewMemory(nil)
	defer m.Clear()
	fd := memfd(t, 2*dmaPage)
	if err := m.Map(DMAMap{ArgSize: 32, Flags: 3, Size: 2 * dmaPage}, fd); err != nil {
		t.Fatal(err)
	}
	m.SetEnabled(true)
	if err := unix.Ftruncate(fd, dmaPage); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 8)
	for range 3 {
		if err := m.Read(dmaPage+8, p); !errors.Is(err, ErrFault) {
			t.Errorf("read: %v", err)
		}
		if err := m.Write(dmaPage-4, p); !errors.Is(err, ErrFault) {
			t.Errorf("write: %v", err)
		}
		if err := m.StoreRelease32(dmaPage, 1); !errors.Is(err, ErrFault) {
			t.Errorf("release store: %v", err)
		}
		if err := m.Read(8, p); err != nil {
			t.Errorf("what is left: %v", err)
		}
	}
}

// TestUnmapWaits unmaps and remaps under readers and writers. An access that outlived its mapping would fault, or reach a file that is no longer mapped.
func TestUnmapWaits(t *testing.T) {
	t.Parallel()
	m := NewMemory(nil)
	defer m.Clear()
	m.SetEnabled(true)
	const size = 16 * dmaPage
	fd := memfd(t, size)
	req := DMAMap{ArgSize: 32, Flags: 3, Size: size}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			p := make([]byte, size)
			for {
				select {
				case <-stop:
					return
				default:
				}
				var err error
				switch w {
				case 0:
					err = m.Read(0, p)
				case 1:
					err = m.Write(0, p)
				case 2:
					err = m.StoreRelease32(size-4, 7)
				}
				if err != nil && !errors.Is(err, ErrUnmapped) && !errors.Is(err, ErrDMADisabled) {
					t.Errorf("access: %v", err)
					return
				}
			}
		})
	}
	for i := range 300 {
		if err := m.Map(req, fd); err != nil {
			t.Error(err)
			break
		}
		m.SetEnabled(i%3 != 0)
		if err := m.Unmap(DMAUnmap{ArgSize: 24, Size: size}); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	wg.Wait()
}

// FuzzMemory runs maps, unmaps and accesses against a model of 64 pages.
func FuzzMemory(f *testing.F) {
	f.Add([]byte{0, 0, 8, 1, 2, 3, 3, 4, 4, 2, 1, 0})
	f.Add([]byte{0, 10, 20, 0, 30, 5, 1, 8, 40, 2, 12, 9, 3, 0, 63})
	f.Add([]byte{4, 1, 2, 0, 0, 63, 1, 4, 4, 1, 255, 255})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 600 {
			return
		}
		const pages = 64
		fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Ftruncate(fd, pages*dmaPage); err != nil {
			t.Fatal(err)
		}
		type page struct {
			id   int // of the map it belongs to; 0 none
			fd   bool
			prot uint32
		}
		var model [pages]page
		m := NewMemory(trace.New(16))
		defer m.Clear()
		m.SetEnabled(true)
		id := 0
		for ; len(ops) >= 3; ops = ops[3:] {
			op, at, n := ops[0], uint64(ops[1]%pages), uint64(ops[2]%pages)
			if at+n > pages {
				n = pages - at
			}
			part := model[at : at+n]
			switch op % 4 {
			case 0: // map
				prot := uint32(op>>2)%3 + 1
				withFD := op&0x80 == 0
				arg := -1
				if withFD {
					arg = fd
				}
				err := m.Map(DMAMap{ArgSize: 32, Flags: prot, IOVA: at * dmaPage, Size: n * dmaPage, Offset: at * dmaPage}, arg)
				free := n > 0
				for _, p := range part {
					free = free && p.id == 0
				}
				if free != (err == nil) {
					// The only map that may succeed over another is its exact double.
					same := err == nil && n > 0 && part[0].fd == withFD && part[0].prot == prot && (at == 0 || model[at-1].id != part[0].id)
					for i := range part {
						same = same && part[i].id == part[0].id
					}
					if !same {
						t.Fatalf("map %d pages at %d: %v, free %v", n, at, err, free)
					}
				} else if err == nil {
					id++
					for i := range part {
						part[i] = page{id, withFD, prot}
					}
				}
			case 1: // unmap
				err := m.Unmap(DMAUnmap{ArgSize: 24, IOVA: at * dmaPage, Size: n * dmaPage})
				cut := n == 0 ||
					at > 0 && part[0].id != 0 && model[at-1].id == part[0].id ||
					at+n < pages && part[n-1].id != 0 && model[at+n].id == part[n-1].id
				if cut != (err != nil) {
					t.Fatalf("unmap %d pages at %d: %v, cut %v", n, at, err, cut)
				}
				if err == nil {
					clear(part)
				}
			case 2, 3: // access
				need, do := uint32(DMARead), m.Read
				if op%4 == 3 {
					need, do = DMAWrite, m.Write
				}
				want := true
				for _, p := range part {
					want = want && p.id != 0 && p.fd && p.prot&need != 0
				}
				if err := do(at*dmaPage, make([]byte, n*dmaPage)); want != (err == nil) {
					t.Fatalf("access %d pages at %d: %v, want success %v", n, at, err, want)
				}
			}
		}
	})
}

func BenchmarkDMAWrite(b *testing.B) {
	m := NewMemory(nil)
	defer m.Clear()
	fd := memfd(b, 64*dmaPage)
	for i := range uint64(8) {
		if err := m.Map(DMAMap{ArgSize: 32, Flags: 3, IOVA: i * 8 * dmaPage, Size: 8 * dmaPage, Offset: i * 8 * dmaPage}, fd); err != nil {
			b.Fatal(err)
		}
	}
	m.SetEnabled(true)
	p := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if err := m.Write(5*dmaPage+64, p); err != nil {
			b.Fatal(err)
		}
	}
}
