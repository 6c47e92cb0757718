// Package gdmatest is the other side of a GDMA device for tests: guest memory as a bus, and a driver of the hardware channel that checks what it reads as strictly as Linux
// does. It knows the wire from the guest's side only, and takes no short cut into the device.
package gdmatest

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"irqlab/devmodel/trace"
)

var le = binary.LittleEndian

// Memory is guest memory from address 0, and the interrupt controller. It is a bus for the device; all methods may be called from any goroutine.
type Memory struct {
	mu      sync.Mutex
	bytes   []byte
	holes   []hole
	vectors []atomic.Uint64
	pending []atomic.Bool // raised since the driver last took it
	raised  chan struct{}
	rec     *trace.Recorder
	next    uint64
}

type hole struct{ from, to uint64 }

// NewMemory makes size bytes of memory and a table of vectors.
func NewMemory(size, vectors int, rec *trace.Recorder) *Memory {
	return &Memory{
		bytes: make([]byte, size), vectors: make([]atomic.Uint64, vectors), pending: make([]atomic.Bool, vectors), raised: make(chan struct{}, 1),
		rec: rec, next: 0x1000,
	}
}

func (m *Memory) at(iova uint64, n int) ([]byte, error) {
	if iova > uint64(len(m.bytes)) || uint64(n) > uint64(len(m.bytes))-iova {
		return nil, fmt.Errorf("memory: %d bytes at %#x: not mapped", n, iova)
	}
	for _, h := range m.holes {
		if iova < h.to && iova+uint64(n) > h.from {
			return nil, fmt.Errorf("memory: %d bytes at %#x: unmapped", n, iova)
		}
	}
	return m.bytes[iova : iova+uint64(n)], nil
}

// ReadDMA is the device's read.
func (m *Memory) ReadDMA(iova uint64, p []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.at(iova, len(p))
	copy(p, b)
	return err
}

// WriteDMA is the device's write.
func (m *Memory) WriteDMA(iova uint64, p []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.at(iova, len(p))
	copy(b, p)
	return err
}

// StoreRelease32 is the device's last store of an entry.
func (m *Memory) StoreRelease32(iova uint64, v uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.at(iova, 4)
	if err == nil {
		le.PutUint32(b, v)
	}
	return err
}

// Raise counts an interrupt.
func (m *Memory) Raise(vector int) {
	m.vectors[vector].Add(1)
	m.pending[vector].Store(true)
	select {
	case m.raised <- struct{}{}:
	default:
	}
}

// Vectors is the size of the table.
func (m *Memory) Vectors() int { return len(m.vectors) }

// Trace is the timeline; nil drops everything.
func (m *Memory) Trace() *trace.Recorder { return m.rec }

// Interrupts is how often a vector was raised.
func (m *Memory) Interrupts(vector int) uint64 { return m.vectors[vector].Load() }

// Unmap takes a range away from the device; Read and Write still reach it.
func (m *Memory) Unmap(from, size uint64) {
	m.mu.Lock()
	m.holes = append(m.holes, hole{from, from + size})
	m.mu.Unlock()
}

// MapAll gives back what Unmap took.
func (m *Memory) MapAll() {
	m.mu.Lock()
	m.holes = nil
	m.mu.Unlock()
}

// Alloc is the address of n fresh, zeroed bytes, page aligned.
func (m *Memory) Alloc(n int) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.next
	m.next += uint64(n+4095) &^ 4095
	if m.next > uint64(len(m.bytes)) {
		panic(fmt.Sprintf("gdmatest: memory of %d bytes is used up", len(m.bytes)))
	}
	return a
}

// Mark and FreeTo return memory: everything allocated after the mark is zeroed and free again.
func (m *Memory) Mark() uint64 { m.mu.Lock(); defer m.mu.Unlock(); return m.next }

// FreeTo undoes the allocations after a Mark.
func (m *Memory) FreeTo(mark uint64) {
	m.mu.Lock()
	clear(m.bytes[mark:m.next])
	m.next = mark
	m.mu.Unlock()
}

// Write is the guest's own store.
func (m *Memory) Write(addr uint64, p []byte) {
	m.mu.Lock()
	copy(m.bytes[addr:], p)
	m.mu.Unlock()
}

// Read is the guest's own load.
func (m *Memory) Read(addr uint64, p []byte) {
	m.mu.Lock()
	copy(p, m.bytes[addr:])
	m.mu.Unlock()
}
