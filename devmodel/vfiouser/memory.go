package vfiouser

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"irqlab/devmodel/trace"
)

// Kinds of events about guest memory.
var (
	TraceDMAMap   = trace.NewKind("dma-map", "iova", "size", "flags", "offset", "fd")
	TraceDMAUnmap = trace.NewKind("dma-unmap", "iova", "size", "removed")
	TraceDMAError = trace.NewKind("dma-error", "iova", "size")
)

// Errors of a DMA access; every one comes inside a *DMAError.
var (
	// ErrDMADisabled: the function may not master the bus.
	ErrDMADisabled = errors.New("bus mastering is off")
	// ErrUnmapped: some byte of the range lies in no mapped range.
	ErrUnmapped = errors.New("not mapped")
	// ErrNoDescriptor: the client told of the range but gave no descriptor for it.
	ErrNoDescriptor = errors.New("mapped without a descriptor: give QEMU's guest RAM a memory-backend-memfd with share=on")
	// ErrAccess: the range is mapped without the direction asked for.
	ErrAccess = errors.New("mapped without this access")
	// ErrMisaligned: an atomic access needs an aligned address.
	ErrMisaligned = errors.New("address is not a multiple of 4")
	// ErrFault: the memory behind the mapping is gone (the client shrank its file).
	ErrFault = errors.New("the memory behind the mapping is gone")
)

// DMAError is a failed access to guest memory. errors.Is finds its cause.
type DMAError struct {
	Op   string // "read" or "write"
	IOVA uint64
	Len  int
	Err  error
}

func (e *DMAError) Error() string {
	return fmt.Sprintf("dma %s of %d bytes at %#x: %v", e.Op, e.Len, e.IOVA, e.Err)
}

func (e *DMAError) Unwrap() error { return e.Err }

// dmaPage is the granularity of DMA_MAP whatever the page size of the host or of its huge pages.
const dmaPage = 4096

// mapping is one range of the device's address space. last is inclusive, so that a range may end at 2^64.
type mapping struct {
	iova, last uint64
	flags      uint32
	offset     uint64
	dev, ino   uint64
	mem        []byte // the range's bytes; nil without a descriptor
	mapped     []byte // what munmap wants back: mem, widened to huge page boundaries
}

func (n *mapping) release() {
	if n.mapped != nil {
		_ = unix.Munmap(n.mapped)
		n.mapped, n.mem = nil, nil
	}
}

// Memory is guest memory as the client mapped it. Accesses run concurrently; Unmap returns only when none is in flight in what it removed.
type Memory struct {
	rec *trace.Recorder

	mu      sync.RWMutex
	enabled bool
	maps    []*mapping // sorted by iova, disjoint
	mmaps   int        // how many have a descriptor behind them
	bytes   uint64     // how much address space those take
}

// maxMapped bounds the address space that a client can make this process use; the Go runtime needs the rest.
const maxMapped = 1 << 44

// NewMemory makes an empty map with access disabled.
func NewMemory(rec *trace.Recorder) *Memory { return &Memory{rec: rec} }

// mmapLimit keeps a client from using up the process's map count, which would kill the Go runtime at its next heap growth.
var mmapLimit = sync.OnceValue(func() int {
	const reserve = 4096
	limit := 65530 // the kernel's default vm.max_map_count
	if b, err := os.ReadFile("/proc/sys/vm/max_map_count"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			limit = n
		}
	}
	return max(min(limit-reserve, MaxMaps), 16)
})

// SetEnabled opens or closes the gate in front of all accesses (PCI bus mastering). After SetEnabled(false) returns no access is in flight.
func (m *Memory) SetEnabled(on bool) {
	m.mu.Lock()
	m.enabled = on
	m.mu.Unlock()
}

// Enabled tells whether the gate is open.
func (m *Memory) Enabled() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.enabled
}

// Len is how many ranges are mapped.
func (m *Memory) Len() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.maps)
}

// lastOf is the last address of a range, or false when the range is empty or runs past 2^64.
func lastOf(iova, size uint64) (uint64, bool) {
	if size == 0 || size-1 > math.MaxUint64-iova {
		return 0, false
	}
	return iova + size - 1, true
}

// first is the index of the first mapping that ends at or after iova. The caller holds mu.
func (m *Memory) first(iova uint64) int {
	return sort.Search(len(m.maps), func(i int) bool { return m.maps[i].last >= iova })
}

// Map adds a range. fd < 0 means the client gave none: the range is known but cannot be accessed. The descriptor stays the caller's to close. Mapping exactly
// what is mapped already succeeds and changes nothing; any other overlap is EEXIST.
func (m *Memory) Map(req DMAMap, fd int) error {
	last, ok := lastOf(req.IOVA, req.Size)
	switch {
	case req.ArgSize < dmaMapSize, req.Flags&^(DMARead|DMAWrite) != 0, !ok, (req.IOVA|req.Size|req.Offset)%dmaPage != 0:
		return unix.EINVAL
	}
	n := &mapping{iova: req.IOVA, last: last, flags: req.Flags, offset: req.Offset}
	var stat unix.Stat_t
	if fd >= 0 {
		if err := unix.Fstat(fd, &stat); err != nil {
			return err
		}
		// Only a file has bytes that stay put; a device or a pipe could block or fault in ways no guard covers.
		end := req.Offset + req.Size
		if stat.Mode&unix.S_IFMT != unix.S_IFREG || end < req.Offset || end > uint64(max(stat.Size, 0)) {
			return unix.EINVAL
		}
		n.dev, n.ino = stat.Dev, stat.Ino
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.first(req.IOVA)
	if i < len(m.maps) && m.maps[i].iova <= last {
		o := m.maps[i]
		if o.iova == n.iova && o.last == n.last && o.flags == n.flags && o.offset == n.offset && o.dev == n.dev && o.ino == n.ino && (o.mem != nil) == (fd >= 0) {
			return nil
		}
		return unix.EEXIST
	}
	if len(m.maps) >= MaxMaps {
		return unix.ENOSPC
	}
	if fd >= 0 {
		if m.mmaps >= mmapLimit() || req.Size > maxMapped-m.bytes {
			return unix.ENOSPC
		}
		if err := n.mmap(fd, req.Size); err != nil {
			return err
		}
		m.mmaps++
		m.bytes += req.Size
	}
	m.maps = append(m.maps, nil)
	copy(m.maps[i+1:], m.maps[i:])
	m.maps[i] = n
	hasFD := uint64(0)
	if fd >= 0 {
		hasFD = 1
	}
	m.rec.Record(TraceDMAMap, req.IOVA, req.Size, uint64(req.Flags), req.Offset, hasFD)
	return nil
}

// mmap maps the descriptor's [n.offset, n.offset+size), shared, with the access the client granted.
func (n *mapping) mmap(fd int, size uint64) error {
	align := uint64(os.Getpagesize())
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if fs.Type == unix.HUGETLBFS_MAGIC && fs.Bsize > 0 {
		align = uint64(fs.Bsize)
	}
	lead := n.offset % align
	start := n.offset - lead
	length := lead + size
	if rest := length % align; rest != 0 {
		length += align - rest
	}
	if length < size || length > math.MaxInt64 || start > math.MaxInt64 {
		return unix.EINVAL
	}
	prot := unix.PROT_READ
	if n.flags&DMAWrite != 0 {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(fd, int64(start), int(length), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	n.mapped, n.mem = b, b[lead:lead+size:lead+size]
	return nil
}

// Unmap removes every range inside [IOVA, IOVA+Size), or all of them with DMAUnmapAll; nothing there is fine, since QEMU's virtual IOMMU unmaps without looking.
// A range that would be cut in two is EINVAL and nothing is removed.
func (m *Memory) Unmap(req DMAUnmap) error {
	last, ok := lastOf(req.IOVA, req.Size)
	all := req.Flags&DMAUnmapAll != 0
	if req.ArgSize < dmaUnmapSize || req.Flags&^DMAUnmapAll != 0 || (!all && !ok) {
		return unix.EINVAL
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	from, to := 0, len(m.maps)
	if !all {
		from = m.first(req.IOVA)
		to = from + sort.Search(len(m.maps)-from, func(i int) bool { return m.maps[from+i].iova > last })
		if from < to && (m.maps[from].iova < req.IOVA || m.maps[to-1].last > last) {
			return unix.EINVAL
		}
	}
	m.remove(from, to)
	m.rec.Record(TraceDMAUnmap, req.IOVA, req.Size, uint64(to-from))
	return nil
}

// Clear removes everything and closes the gate: the client is gone.
func (m *Memory) Clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.enabled = false
	m.remove(0, len(m.maps))
	m.maps = nil
}

// remove drops maps[from:to]. The caller holds mu for writing, so no access is in flight.
func (m *Memory) remove(from, to int) {
	for _, o := range m.maps[from:to] {
		if o.mapped != nil {
			m.mmaps--
			m.bytes -= uint64(len(o.mem))
		}
		o.release()
	}
	n := copy(m.maps[from:], m.maps[to:])
	clear(m.maps[from+n:])
	m.maps = m.maps[:from+n]
}

// Read fills p from iova on. On error p is undefined.
func (m *Memory) Read(iova uint64, p []byte) error {
	if err := m.access(iova, p, DMARead); err != nil {
		return m.fail("read", iova, len(p), err)
	}
	return nil
}

// Write stores p from iova on. On an error other than ErrFault nothing was stored.
func (m *Memory) Write(iova uint64, p []byte) error {
	if err := m.access(iova, p, DMAWrite); err != nil {
		return m.fail("write", iova, len(p), err)
	}
	return nil
}

func (m *Memory) fail(op string, iova uint64, size int, err error) error {
	m.rec.Note(TraceDMAError, err.Error(), iova, uint64(size))
	return &DMAError{Op: op, IOVA: iova, Len: size, Err: err}
}

// check finds the mapping of iova and makes sure that all of [iova, iova+size) is accessible. The caller holds mu.
func (m *Memory) check(iova uint64, size int, need uint32) (int, error) {
	if !m.enabled {
		return 0, ErrDMADisabled
	}
	last, ok := lastOf(iova, uint64(size))
	if !ok {
		return 0, ErrUnmapped
	}
	at := m.first(iova)
	for i, next := at, iova; ; i++ {
		if i == len(m.maps) || m.maps[i].iova > next {
			return 0, ErrUnmapped
		}
		o := m.maps[i]
		if o.flags&need == 0 {
			return 0, ErrAccess
		}
		if o.mem == nil {
			return 0, ErrNoDescriptor
		}
		if o.last >= last {
			return at, nil
		}
		next = o.last + 1
	}
}

func (m *Memory) access(iova uint64, p []byte, need uint32) (err error) {
	if len(p) == 0 {
		return nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	i, err := m.check(iova, len(p), need)
	if err != nil {
		return err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer catchFault(&err)
	for len(p) > 0 {
		o := m.maps[i]
		part := o.mem[iova-o.iova:]
		var n int
		if need == DMAWrite {
			n = copy(part, p)
		} else {
			n = copy(p, part)
		}
		p, iova, i = p[n:], iova+uint64(n), i+1
	}
	return nil
}

// catchFault turns a memory fault into ErrFault: a client can shrink its file under us at any time. Any other panic goes on.
func catchFault(err *error) {
	switch r := recover().(type) {
	case nil:
	case interface {
		error
		Addr() uintptr
	}:
		*err = ErrFault
	default:
		panic(r)
	}
}

// StoreRelease32 stores v, little-endian, at iova in one access, after everything this goroutine stored before.
func (m *Memory) StoreRelease32(iova uint64, v uint32) error {
	if err := m.store32(iova, v); err != nil {
		return m.fail("write", iova, 4, err)
	}
	return nil
}

func (m *Memory) store32(iova uint64, v uint32) (err error) {
	if iova%4 != 0 {
		return ErrMisaligned
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	i, err := m.check(iova, 4, DMAWrite)
	if err != nil {
		return err
	}
	o := m.maps[i]
	word := (*uint32)(unsafe.Pointer(&o.mem[iova-o.iova]))
	var b [4]byte
	le.PutUint32(b[:], v)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer catchFault(&err)
	atomic.StoreUint32(word, *(*uint32)(unsafe.Pointer(&b)))
	return nil
}
