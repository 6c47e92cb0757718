package qemu

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"irqlab/lab/machine"
)

// scribble fills memory the way a guest does: some pages full, some with a byte at their end, most of them never touched, some cleared again.
func scribble(t *testing.T, f *os.File, size int64) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	write := func(b []byte, at int64) {
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
	full := make([]byte, 3*page)
	for i := range full {
		full[i] = byte(r.Uint32())
	}
	for range 300 {
		at := r.Int64N(size/page-4) * page
		switch r.IntN(3) {
		case 0:
			write(full[:(1+r.IntN(3))*page], at)
		case 1:
			write([]byte{1}, at+page-1)
		case 2:
			write(make([]byte, page), at)
		}
	}
	write([]byte("first"), 0)
	write([]byte("last"), size-4)
}

func content(t *testing.T, f *os.File) []byte {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPack(t *testing.T) {
	t.Parallel()
	m := testMachine()
	m.Shape = machine.Shape{Sockets: 1, Cores: 1, Threads: 1, Nodes: 1, MemoryMiB: 64}
	size := m.NodeMemory()[0]
	for name, fill := range map[string]func(*os.File){
		"empty":    func(*os.File) {},
		"scribble": func(f *os.File) { scribble(t, f, size) },
		"full": func(f *os.File) {
			if _, err := f.WriteAt(bytes.Repeat([]byte{7}, int(size)), 0); err != nil {
				t.Fatal(err)
			}
		},
	} {
		from, err := newRAM(m)
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		fill(from[0])
		var saved bytes.Buffer
		extents, err := pack(&saved, from[0], size)
		if err != nil {
			t.Fatal(err)
		}
		total, err := checkExtents(extents, size)
		if err != nil || total != int64(saved.Len()) {
			t.Errorf("%s: extents of %d bytes, %d saved: %v", name, total, saved.Len(), err)
		}
		if name == "scribble" && total > 4<<20 {
			t.Errorf("%d bytes saved of a memory that is mostly empty", total)
		}
		to, err := newRAM(m)
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		if err := unpack(to[0], saved.Bytes(), extents); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(content(t, from[0]), content(t, to[0])) {
			t.Errorf("%s: memory differs after it was saved and restored", name)
		}
	}
}

// saved makes a snapshot of an idle machine with something in its memory, and returns the memory too.
func saved(t *testing.T, m machine.Machine) (dir string, memory [][]byte) {
	t.Helper()
	dir = t.TempDir()
	cfg := testConfig(t)
	cfg.Machine, cfg.SharedRAM = m, true
	p := start(t, cfg)
	for n, size := range m.NodeMemory() {
		scribble(t, p.ram[n], size)
	}
	if err := p.Save(testContext(t), dir); err != nil {
		t.Fatal(err)
	}
	for n := range m.NodeMemory() {
		memory = append(memory, content(t, p.ram[n]))
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, memory
}

func twoNodes() machine.Machine {
	m := testMachine()
	m.Shape = machine.Shape{Sockets: 1, Cores: 2, Threads: 2, Nodes: 2, MemoryMiB: 129}
	m.Neighbours = []machine.Neighbour{{Kind: machine.NVMe, Queues: 2, Node: 1}, {Kind: machine.VirtioBlk, Queues: 2, Node: machine.NoNode}}
	return m
}

// A machine with every kind of device is saved, and restored twice at once; the memory of each is the saved one, and its own.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	m := twoNodes()
	dir, memory := saved(t, m)
	s, err := OpenSnapshot(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil { // as a cache that is cleaned might
		t.Fatal(err)
	}
	var forks []*Process
	for range 2 {
		cfg := testConfig(t)
		cfg.Machine, cfg.Snapshot = m, s
		forks = append(forks, start(t, cfg))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for i, p := range forks {
		for n := range m.NodeMemory() {
			if !bytes.Equal(content(t, p.ram[n]), memory[n]) {
				t.Errorf("fork %d: memory of node %d is not what was saved", i, n)
			}
		}
		if _, err := p.ram[0].WriteAt([]byte{1, 2, 3}, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range forks {
		if err := p.Resume(testContext(t)); err != nil {
			t.Error(err)
		}
		var status struct{ Status string }
		if err := p.QMP(testContext(t), "query-status", nil, &status); err != nil || status.Status != "running" {
			t.Errorf("a resumed guest is %q, %v", status.Status, err)
		}
	}
}

// What does not fit is refused: it must never become a guest that is subtly wrong.
func TestSnapshotRefused(t *testing.T) {
	t.Parallel()
	m := twoNodes()
	dir, _ := saved(t, m)
	restore := func(t *testing.T, change func(*Config)) error {
		s, err := OpenSnapshot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		cfg := testConfig(t)
		cfg.Machine, cfg.Snapshot = m, s
		change(&cfg)
		p, err := Start(testContext(t), cfg)
		if err == nil {
			_ = p.Close()
		}
		return err
	}
	var e *RestoreError
	for name, change := range map[string]func(*Config){
		"memory size": func(c *Config) { c.Machine.Shape.MemoryMiB++ },
		"nodes":       func(c *Config) { c.Machine.Shape.Nodes = 1; c.Machine.Neighbours = nil },
		"devices":     func(c *Config) { c.Machine.Neighbours = nil },
		"CPUs":        func(c *Config) { c.Machine.Shape.Cores = 4 },
	} {
		if err := restore(t, change); !errors.As(err, &e) {
			t.Errorf("%s changed: %v; want a *RestoreError", name, err)
		}
	}
	devices := filepath.Join(dir, deviceFile)
	b, err := os.ReadFile(devices)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(devices, b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := restore(t, func(*Config) {}); !errors.As(err, &e) {
		t.Errorf("half a state: %v; want a *RestoreError", err)
	}
	memory := filepath.Join(dir, memoryFile)
	if err := os.Truncate(memory, 8*page); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSnapshot(dir); err == nil || !strings.Contains(err.Error(), "node") {
		t.Errorf("memory cut short: %v", err)
	}
}

func TestSaveRefused(t *testing.T) {
	t.Parallel()
	p := start(t, testConfig(t))
	if err := p.Save(testContext(t), t.TempDir()); !errors.Is(err, ErrPrivateRAM) {
		t.Errorf("save without shared memory: %v", err)
	}
	cfg := testConfig(t)
	cfg.SharedRAM = true
	p = start(t, cfg)
	if err := p.AttachFunction(testContext(t), "function", "/no/socket"); err == nil {
		t.Error("a function without a server was attached")
	}
	dir := t.TempDir()
	if err := p.Save(testContext(t), dir); !errors.Is(err, ErrAttached) {
		t.Errorf("save after a function may have been attached: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("a refused save left %v", left)
	}
}

// A disk that is full is told as that, and not taken for a machine that cannot be saved: that would be remembered.
func TestSaveOnFullDisk(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"devices": 64 << 10, "memory": 2 << 20} {
		dir := smallDisk(t, size)
		cfg := testConfig(t)
		cfg.SharedRAM = true
		p := start(t, cfg)
		if _, err := p.ram[0].WriteAt(bytes.Repeat([]byte{1}, size), 0); err != nil {
			t.Fatal(err)
		}
		err := p.Save(testContext(t), dir)
		var unsavable *UnsavableError
		if err == nil || errors.As(err, &unsavable) || !strings.Contains(strings.ToLower(err.Error()), "no space left on device") {
			t.Errorf("no room for the %s: %v", name, err)
		}
	}
}

// smallDisk is a file system of so many bytes.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// An index is the disk's word: whatever it says, it is refused or its extents stay inside the memory.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"format":1,"nodes":[{"size":8192,"extents":[{"Offset":0,"Length":4096}]}]}`), int64(4096))
	f.Add([]byte(`{"format":1,"nodes":[{"size":8192,"extents":[{"Offset":4096,"Length":9223372036854771712}]}]}`), int64(4096))
	f.Add([]byte(`{"format":1,"nodes":[{"size":-1,"extents":[]},{"size":4096,"extents":null}]}`), int64(0))
	f.Add([]byte(`{"format":2}`), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		x, err := parseIndex(b, size)
		if err != nil {
			return
		}
		var total int64
		for _, n := range x.Nodes {
			for _, e := range n.Extents {
				if e.Offset < 0 || e.Length < 0 || e.Offset+e.Length > n.Size {
					t.Fatalf("extent %+v in a memory of %d", e, n.Size)
				}
				total += e.Length
			}
		}
		if total != size {
			t.Fatalf("extents of %d bytes for a file of %d", total, size)
		}
	})
}

func BenchmarkFill(b *testing.B) {
	m := testMachine()
	size := m.NodeMemory()[0]
	s := &Snapshot{index: snapshotIndex{Nodes: []savedNode{{Size: size}}}, memory: bytes.Repeat([]byte{1}, 64<<20)}
	for at := int64(0); at < 64<<20; at += 64 << 10 { // a thousand runs of 64 KiB
		s.index.Nodes[0].Extents = append(s.index.Nodes[0].Extents, extent{4 * at, 64 << 10})
	}
	b.ReportAllocs()
	b.SetBytes(64 << 20)
	for b.Loop() {
		r, err := newRAM(m)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.fill(b.Context(), r); err != nil {
			b.Fatal(err)
		}
		_ = r.Close()
	}
}
