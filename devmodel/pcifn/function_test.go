package pcifn

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"irqlab/devmodel/inject"
	"irqlab/devmodel/vfiouser"
)

// page is a behaviour whose BAR is memory and that notes what it is asked.
type page struct {
	t      testing.TB
	bus    Bus
	size   uint64
	bytes  []byte
	resets []ResetKind
	sizes  []int // of accesses
}

func newPage(t testing.TB, size int) *page {
	return &page{t: t, size: uint64(size), bytes: make([]byte, size)}
}

func (p *page) Attach(bus Bus) { p.bus = bus }

// check holds the function to what Behaviour promises.
func (p *page) check(off uint64, b []byte) {
	n := uint64(len(b))
	if (n != 1 && n != 2 && n != 4 && n != 8) || off%n != 0 || off+n > p.size {
		p.t.Errorf("an access of %d bytes at %#x reached the behaviour", n, off)
	}
	p.sizes = append(p.sizes, len(b))
}

func (p *page) ReadBAR(off uint64, b []byte)  { p.check(off, b); copy(b, p.bytes[off:]) }
func (p *page) WriteBAR(off uint64, b []byte) { p.check(off, b); copy(p.bytes[off:], b) }
func (p *page) Reset(kind ResetKind)          { p.resets = append(p.resets, kind) }

func newTestFunction(t testing.TB, cfg Config) (*Function, *page) {
	t.Helper()
	if cfg.BAR0Size == 0 {
		cfg.BAR0Size = DefaultBAR0Size
	}
	p := newPage(t, cfg.BAR0Size)
	f, err := New(cfg, p)
	if err != nil {
		t.Fatal(err)
	}
	if p.bus == nil {
		t.Fatal("the behaviour was not attached")
	}
	return f, p
}

func (f *Function) cfg16(t testing.TB, off uint64) uint16 {
	t.Helper()
	var p [2]byte
	if err := f.ReadRegion(vfiouser.RegionConfig, off, p[:]); err != nil {
		t.Fatal(err)
	}
	return le.Uint16(p[:])
}

func (f *Function) setCfg(t testing.TB, off uint64, p ...byte) {
	t.Helper()
	if err := f.WriteRegion(vfiouser.RegionConfig, off, p); err != nil {
		t.Fatal(err)
	}
}

// TestGoldenConfigSpace pins the image: the header, the MSI-X capability and the PCI Express capability, byte by byte from the PCI Express Base Specification,
// section 7.5.1 (header), 7.7.2 (MSI-X) and 7.5.3 (PCI Express), and zeros after them.
func TestGoldenConfigSpace(t *testing.T) {
	t.Parallel()
	f, _ := newTestFunction(t, Config{Vectors: 5, SubsystemVendorID: 0x1af4, SubsystemID: 0x1100})
	want := make([]byte, configSize)
	for off, s := range map[int]string{
		0x00: "1414 ba00 0000 1000 01 000002 00000000",
		0x10: "0c000000 00000000 00000000 00000000 0c000000 00000000 00000000 f41a 0011",
		0x30: "00000000 40000000 00000000 00 00 00 00",
		0x40: "11 50 0400 04000000 04080000 00000000",
		0x50: "10 00 0200 00800010 1020 0000 03010000 0000 0301",
		0x7c: "0e000000 0300 0000",
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		copy(want[off:], b)
	}
	got := make([]byte, configSize)
	if err := f.ReadRegion(vfiouser.RegionConfig, 0, got); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < configSize; i += 16 {
		if !bytes.Equal(got[i:i+16], want[i:i+16]) {
			t.Errorf("%#03x: %x, want %x", i, got[i:i+16], want[i:i+16])
		}
	}
}

func TestConfigWrites(t *testing.T) {
	t.Parallel()
	f, _ := newTestFunction(t, Config{Vectors: 5})
	before := make([]byte, configSize)
	_ = f.ReadRegion(vfiouser.RegionConfig, 0, before)
	// Ones everywhere but in the reset bit: only the bits that are a driver's may change.
	ones := bytes.Repeat([]byte{0xff}, configSize)
	ones[expDevCtl+1] = 0x7f
	f.setCfg(t, 0, ones...)
	after := make([]byte, configSize)
	_ = f.ReadRegion(vfiouser.RegionConfig, 0, after)
	changed := map[int]byte{}
	for i := range after {
		if d := after[i] ^ before[i]; d != 0 {
			changed[i] = d
		}
	}
	want := map[int]byte{
		0x04: 0x46, 0x05: 0x05, // COMMAND: memory, master, parity, SERR, no INTx
		0x3c: 0xff,             // interrupt line
		0x43: 0xc0,             // MSI-X enable and mask
		0x58: 0xef, 0x59: 0x5f, // device control, bits that were 0
		0x60: 0xcb, 0x61: 0x01, // link control
		0x78: 0x1f, // device control 2
		0x80: 0x0c, // link control 2, target speed
	}
	for i := range configSize {
		if changed[i] != want[i] {
			t.Errorf("byte %#x: bits %#x changed, want %#x", i, changed[i], want[i])
		}
	}
	if !f.Memory().Enabled() {
		t.Error("bus mastering is off")
	}
	var traced []string
	events, _ := f.Trace().Events()
	for _, e := range events {
		traced = append(traced, e.String()[strings.IndexByte(e.String(), ' ')+1:])
	}
	if got := strings.Join(traced, "; "); got != "config-msix enabled=1 masked=1; config-command value=1350" {
		t.Errorf("the timeline has %s", got)
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		do       func(*Function)
		kind     ResetKind
		keepMSIX bool
	}{
		{"FLR as a word", func(f *Function) { f.setCfg(t, expDevCtl, 0x10, 0xa0) }, ResetFLR, true},
		{"FLR as a byte", func(f *Function) { f.setCfg(t, expDevCtl+1, 0x80) }, ResetFLR, true},
		{"FLR as a dword", func(f *Function) { f.setCfg(t, expDevCtl, 0x00, 0x80, 0, 0) }, ResetFLR, true},
		{"device", (*Function).Reset, ResetDevice, false},
		{"client gone", (*Function).ClientGone, ResetClientGone, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, p := newTestFunction(t, Config{Vectors: 4})
			f.setCfg(t, cfgCommand, 0x06, 0)
			f.setCfg(t, msixCtrl+1, 0x80)
			f.setCfg(t, cfgIntLine, 11)
			if err := f.Fire(2); err != nil {
				t.Fatal(err)
			}
			c.do(f)
			if len(p.resets) != 1 || p.resets[0] != c.kind {
				t.Errorf("the behaviour saw %v", p.resets)
			}
			if got := f.cfg16(t, cfgCommand); got != 0 || f.Memory().Enabled() {
				t.Errorf("COMMAND %#x, bus mastering %v", got, f.Memory().Enabled())
			}
			if got := f.cfg16(t, expDevCtl); got != devCtlDefault {
				t.Errorf("device control %#x", got)
			}
			if got := f.cfg16(t, cfgIntLine); got != 0 {
				t.Errorf("interrupt line %#x", got)
			}
			if got := f.cfg16(t, msixCtrl)&msixEnable != 0; got != c.keepMSIX {
				t.Errorf("MSI-X enabled: %v", got)
			}
			if st := f.VectorStates()[2]; st.Pending || st.Fired != 1 {
				t.Errorf("vector 2: %+v", st)
			}
		})
	}
}

func TestRegions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		vectors   int
		pba, size uint64
	}{{1, 0x800, 0x1000}, {128, 0x800, 0x1000}, {129, 0x1000, 0x2000}, {1024, 0x4000, 0x8000}, {2047, 0x8000, 0x10000}, {2048, 0x8000, 0x10000}} {
		f, _ := newTestFunction(t, Config{Vectors: c.vectors, BAR0Size: 8 << 10})
		for index := range uint32(vfiouser.NumRegions) {
			want := map[uint32]uint64{0: 8 << 10, 4: c.size, 7: 4096}[index]
			r := f.Region(index)
			if r.Size != want || (r.Size > 0) != (r.Flags == 3) {
				t.Errorf("%d vectors, region %d: %+v, want size %#x", c.vectors, index, r, want)
			}
		}
		if got := f.cfg16(t, msixPBA); uint64(got&^7) != c.pba || got&7 != 4 {
			t.Errorf("%d vectors: pending bits at %#x, want %#x in BAR 4", c.vectors, got, c.pba)
		}
		if uint64(c.vectors)*16 > c.pba || uint64(c.vectors+7)/8 > c.size-c.pba {
			t.Errorf("%d vectors: table and pending bits do not fit", c.vectors)
		}
		last := c.vectors - 1
		if err := f.Fire(last); err != nil {
			t.Error(err)
		}
		p := make([]byte, 8)
		if err := f.ReadRegion(4, c.pba+uint64(last/64*8), p); err != nil || le.Uint64(p) != 1<<(last%64) {
			t.Errorf("%d vectors: pending bits %x, %v", c.vectors, p, err)
		}
		// A read from the table into the pending bits: zeros, then bits. Writes change nothing.
		if err := f.WriteRegion(4, 0, bytes.Repeat([]byte{0xff}, int(c.size))); err != nil {
			t.Error(err)
		}
		whole := make([]byte, c.size)
		if err := f.ReadRegion(4, 0, whole); err != nil || bytes.Count(whole, []byte{0}) != len(whole)-1 {
			t.Errorf("%d vectors: the MSI-X BAR has %d bytes that are not 0", c.vectors, len(whole)-bytes.Count(whole, []byte{0}))
		}
	}
	for index, want := range map[uint32]bool{0: true, 1: true, 2: true, 3: false, 4: true} {
		f, _ := newTestFunction(t, Config{Vectors: 7})
		v, ok := f.IRQs(index)
		if ok != want || (v != nil) != (index == 2) || v != nil && v.Len() != 7 {
			t.Errorf("interrupts %d: %v, %v", index, v, ok)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Vectors: -1}, "-1 vectors"},
		{Config{Vectors: 2049}, "1 to 2048"},
		{Config{BAR0Size: 3000}, "power of two"},
		{Config{BAR0Size: 2048}, "BAR 0 of 2048 bytes"},
		{Config{BAR0Size: -4096}, "power of two"},
		{Config{BAR0Size: 1 << 30}, "power of two"},
		{Config{VendorID: 0xffff, DeviceID: 1}, "vendor id 0xffff"},
		{Config{DeviceID: 1}, "vendor id"},
		{Config{Class: 1 << 24}, "24 bits"},
	} {
		if _, err := New(c.cfg, newPage(t, 4096)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
	if _, err := New(Config{}, nil); err == nil {
		t.Error("a function without a behaviour")
	}
	f, err := New(Config{}, newPage(t, DefaultBAR0Size))
	if err != nil {
		t.Fatal(err)
	}
	got, want := f.Config(), DefaultConfig()
	want.Trace = f.Trace()
	if got != want || got.Trace == nil {
		t.Errorf("the zero Config became %+v", got)
	}
}

func TestBARAccessSplits(t *testing.T) {
	t.Parallel()
	f, p := newTestFunction(t, Config{BAR0Size: 4096})
	in := []byte("abcdefghijklmnopqrstuvwxyz")
	if err := f.WriteRegion(0, 0x21, in); err != nil {
		t.Fatal(err)
	}
	if want := []int{1, 2, 4, 8, 8, 2, 1}; len(p.sizes) != len(want) {
		t.Errorf("accesses of %v bytes, want %v", p.sizes, want)
	}
	out := make([]byte, len(in))
	if err := f.ReadRegion(0, 0x21, out); err != nil || !bytes.Equal(in, out) {
		t.Errorf("read %q", out)
	}
}

func TestBus(t *testing.T) {
	t.Parallel()
	f, p := newTestFunction(t, Config{Vectors: 3})
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 8192); err != nil {
		t.Fatal(err)
	}
	if err := f.Memory().Map(vfiouser.DMAMap{ArgSize: 32, Flags: 3, IOVA: 0x10000, Size: 8192}, fd); err != nil {
		t.Fatal(err)
	}
	defer f.Memory().Clear()
	b := make([]byte, 4)
	if err := p.bus.WriteDMA(0x10000, b); !errors.Is(err, vfiouser.ErrDMADisabled) {
		t.Errorf("DMA before bus mastering: %v", err)
	}
	f.setCfg(t, cfgCommand, 0x04)
	if err := p.bus.WriteDMA(0x10ffe, []byte{1, 2, 3, 4}); err != nil {
		t.Error(err)
	}
	if err := p.bus.ReadDMA(0x10ffe, b); err != nil || !bytes.Equal(b, []byte{1, 2, 3, 4}) {
		t.Errorf("DMA read %x, %v", b, err)
	}
	if err := p.bus.StoreRelease32(0x10ffe&^3, 9); err != nil {
		t.Error(err)
	}
	f.setCfg(t, cfgCommand, 0x00)
	if err := p.bus.StoreRelease32(0x10000, 9); !errors.Is(err, vfiouser.ErrDMADisabled) {
		t.Errorf("DMA after bus mastering: %v", err)
	}

	if p.bus.Vectors() != 3 || p.bus.Trace() != f.Trace() {
		t.Error("the bus is another function's")
	}
	for _, v := range []int{-1, 0, 2, 3} {
		p.bus.Raise(v)
	}
	for i, want := range []bool{true, false, true} {
		if st := f.VectorStates()[i]; st.Pending != want || st.Index != i {
			t.Errorf("vector %d: %+v", i, st)
		}
	}
	for _, v := range []int{-1, 3, 1 << 30} {
		if err := f.Fire(v); err == nil || !strings.Contains(err.Error(), "vectors 0 to 2") {
			t.Errorf("fire %d: %v", v, err)
		}
	}
}

// TestNoAllocations is not parallel.
func TestNoAllocations(t *testing.T) {
	f, p, c := ruled(t, inject.Rule{Step: "register-read@0x28", Action: inject.Alter, Field: "value"}) // for another register
	b := make([]byte, 8)
	if n := testing.AllocsPerRun(200, func() {
		p.sizes = p.sizes[:0]
		_ = f.ReadRegion(0, 0x20, b)
		_ = f.WriteRegion(0, 0x1000, b)
		_ = f.ReadRegion(4, 0x800, b)
		_ = f.ReadRegion(7, 0, b)
		_ = f.WriteRegion(7, 4, b[:2])
		_ = f.Fire(1)
		p.bus.Raise(1)
		p.bus.Raise(99)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if c.Count("register-read") == 0 || c.States()[0].Reached {
		t.Errorf("%d reads, rule %+v", c.Count("register-read"), c.States()[0])
	}
}

// FuzzConfig makes any accesses to configuration space: what is read-only stays, resets bring the start back, and the bus-master gate follows COMMAND.
func FuzzConfig(f *testing.F) {
	f.Add([]byte{0x00, 0x04, 2, 6, 0, 0x00, 0x58, 2, 0x00, 0x80})
	f.Add([]byte{0x00, 0x00, 64, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18})
	f.Add([]byte{0x0f, 0xff, 9, 1, 0x00, 0x42, 2, 0xff, 0xff, 0x00, 0x59, 1, 0xff})
	f.Fuzz(func(t *testing.T, ops []byte) {
		fn, _ := newTestFunction(t, Config{Vectors: 9})
		for len(ops) >= 3 {
			off, n := uint64(ops[0])<<8|uint64(ops[1]), int(ops[2])
			ops = ops[3:]
			off %= configSize
			n = min(n, len(ops), int(configSize-off))
			fn.setCfg(t, off, ops[:n]...)
			p := make([]byte, n)
			if err := fn.ReadRegion(vfiouser.RegionConfig, off, p); err != nil {
				t.Fatal(err)
			}
			ops = ops[n:]
			if fn.cfg16(t, expDevCtl)&devCtlFLR != 0 {
				t.Fatal("the reset bit reads 1")
			}
			if got := fn.cfg16(t, cfgCommand)&cmdMaster != 0; got != fn.Memory().Enabled() {
				t.Fatalf("COMMAND says bus mastering %v", got)
			}
		}
		for i := range fn.config.bytes {
			if fixed := ^fn.config.writable[i]; (fn.config.bytes[i]^fn.config.initial[i])&fixed != 0 {
				t.Fatalf("byte %#x: a read-only bit changed", i)
			}
		}
		fn.Reset()
		if fn.config.bytes != fn.config.initial {
			t.Fatal("a reset leaves something behind")
		}
	})
}

// FuzzBAR makes any accesses to the BARs, of any size and place inside them, as the protocol allows a client to.
func FuzzBAR(f *testing.F) {
	f.Add([]byte{0, 0, 0, 8, 1, 0, 0x21, 30, 2, 8, 0, 8, 3, 7, 0xfe, 4})
	f.Add([]byte{1, 0xff, 0xff, 1, 3, 0xff, 0xff, 255})
	f.Fuzz(func(t *testing.T, ops []byte) {
		fn, p := newTestFunction(t, Config{Vectors: 200, BAR0Size: 4096})
		for ; len(ops) >= 4; ops = ops[4:] {
			region := uint32(ops[0]>>1&1) * 4
			size := fn.Region(region).Size
			off := (uint64(ops[1])<<8 | uint64(ops[2])) % size
			b := bytes.Repeat([]byte{ops[3]}, int(min(uint64(ops[3]), size-off)))
			p.sizes = p.sizes[:0]
			if ops[0]&1 == 0 {
				if err := fn.ReadRegion(region, off, b); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if err := fn.WriteRegion(region, off, b); err != nil {
				t.Fatal(err)
			}
			back := make([]byte, len(b))
			if err := fn.ReadRegion(region, off, back); err != nil {
				t.Fatal(err)
			}
			if region == 0 && !bytes.Equal(back, b) {
				t.Fatalf("wrote %x at %#x, read %x", b, off, back)
			}
			if region == 4 && bytes.Count(back, []byte{0}) != len(back) {
				t.Fatalf("a write to the MSI-X BAR at %#x shows: %x", off, back)
			}
		}
	})
}
