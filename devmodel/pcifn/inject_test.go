package pcifn

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/devmodel/vfiouser"
)

// ruled is a function under rules, which get names from a on.
func ruled(t testing.TB, rules ...inject.Rule) (*Function, *page, *inject.Controller) {
	t.Helper()
	c := inject.New()
	for i, r := range rules {
		r.Name = string(rune('a' + i))
		if err := c.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	f, p := newTestFunction(t, Config{Vectors: 5, Inject: c})
	return f, p, c
}

func (f *Function) bar(t testing.TB, off uint64, n int) []byte {
	t.Helper()
	p := make([]byte, n)
	if err := f.ReadRegion(vfiouser.RegionBAR0, off, p); err != nil {
		t.Fatal(err)
	}
	return p
}

func (f *Function) setBAR(t testing.TB, off uint64, p ...byte) {
	t.Helper()
	if err := f.WriteRegion(vfiouser.RegionBAR0, off, p); err != nil {
		t.Fatal(err)
	}
}

// TestHeldWrite: the client goes on at once, reads see the old value, later writes wait in their order, and configuration space is apart.
func TestHeldWrite(t *testing.T) {
	t.Parallel()
	f, _, c := ruled(t, inject.Rule{Step: "register-write@0x100", Nth: 2, Action: inject.Hold})
	f.setBAR(t, 0x100, 1, 0)
	f.setBAR(t, 0x100, 2, 0)
	if err := c.AwaitHeld(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	f.setBAR(t, 0x100, 3, 0)
	f.setBAR(t, 0x102, 4, 0)
	if got := f.bar(t, 0x100, 4); !bytes.Equal(got, []byte{1, 0, 0, 0}) {
		t.Errorf("while it is held: % x", got)
	}
	f.setCfg(t, cfgCommand, cmdMaster)
	if f.cfg16(t, cfgCommand) != cmdMaster {
		t.Error("configuration space stands still as well")
	}
	if n := c.Count("register-write@0x102"); n != 0 {
		t.Errorf("%d writes passed one that is held", n)
	}
	if err := c.Release("a"); err != nil {
		t.Fatal(err)
	}
	if got := f.bar(t, 0x100, 4); !bytes.Equal(got, []byte{3, 0, 4, 0}) {
		t.Errorf("afterwards: % x", got)
	}
	if err := c.Release("a"); !errors.Is(err, inject.ErrReleased) {
		t.Error(err)
	}
}

// TestManyWritesBehindAHeldOne: memory is bounded, what is lost is on the trace, and the rest goes on quickly.
func TestManyWritesBehindAHeldOne(t *testing.T) {
	t.Parallel()
	f, p, c := ruled(t, inject.Rule{Step: "register-write", Action: inject.Hold})
	const n = 1 << 16
	for i := range n + 10 {
		f.setBAR(t, 0x100, byte(i), byte(i>>8))
	}
	if err := c.Release("a"); err != nil {
		t.Fatal(err)
	}
	if got := int(le.Uint16(p.bytes[0x100:])); got != n&0xffff { // the held one is number 0, so number n is the last that had room
		t.Errorf("the last write has number %d, want %d", got, n&0xffff)
	}
	lost := 0
	events, _ := f.Trace().Events()
	for _, e := range events {
		if e.Kind == TraceLostWrite {
			lost++
		}
	}
	if lost != 9 {
		t.Errorf("%d writes lost, want 9", lost)
	}
}

func TestResetDropsHeldWrites(t *testing.T) {
	t.Parallel()
	f, p, c := ruled(t, inject.Rule{Step: "register-write@0x100", Action: inject.Hold}, inject.Rule{Step: "config-write@0x4", Action: inject.Hold},
		inject.Rule{Step: "vector:1", Action: inject.Hold})
	f.setBAR(t, 0x100, 1)
	f.setBAR(t, 0x101, 1)
	f.setCfg(t, cfgCommand, cmdMaster)
	f.setCfg(t, cfgIntLine, 7)
	if err := f.Fire(1); err != nil {
		t.Fatal(err)
	}
	f.Reset()
	for _, s := range c.States() {
		if !s.Dropped || s.Held {
			t.Errorf("%+v", s)
		}
	}
	c.Clear()
	if got := f.bar(t, 0x100, 2); !bytes.Equal(got, []byte{0, 0}) || f.cfg16(t, cfgCommand) != 0 || f.cfg16(t, cfgIntLine) != 0 || f.VectorStates()[1].Fired != 0 {
		t.Errorf("BAR % x, command %#x, %+v", got, f.cfg16(t, cfgCommand), f.VectorStates()[1])
	}
	f.setBAR(t, 0x100, 5)
	if p.bytes[0x100] != 5 {
		t.Error("a write does not get through any more")
	}
}

// TestHeldReset: the write that asks for a function level reset can be held, and resets when it is released.
func TestHeldReset(t *testing.T) {
	t.Parallel()
	f, p, c := ruled(t, inject.Rule{Step: "config-write", Nth: 2, Action: inject.Hold})
	f.setCfg(t, cfgCommand, cmdMaster)
	f.setCfg(t, expDevCtl, 0, devCtlFLR>>8)
	f.setCfg(t, cfgCommand, cmdMaster|cmdMemory) // came after the reset, and still does
	if len(p.resets) != 0 {
		t.Error("it was not held")
	}
	if err := c.Release("a"); err != nil {
		t.Fatal(err)
	}
	if len(p.resets) != 1 || f.cfg16(t, cfgCommand) != cmdMaster|cmdMemory {
		t.Errorf("resets %v, command %#x", p.resets, f.cfg16(t, cfgCommand))
	}
	f.setCfg(t, cfgCommand, cmdMaster)
	if f.cfg16(t, cfgCommand) != cmdMaster {
		t.Error("a write does not get through any more")
	}
}

func TestAccessActions(t *testing.T) {
	t.Parallel()
	f, p, _ := ruled(t,
		inject.Rule{Step: "register-read@0x18", Times: -1, Action: inject.Alter, Field: "value", Value: ^uint64(0)},
		inject.Rule{Step: "register-read@0x20", Action: inject.Alter, Offset: 1, Size: 1, Value: 0xab},
		inject.Rule{Step: "register-write@0x28", Action: inject.Alter, Field: "value", Value: 0x1234},
		inject.Rule{Step: "register-write@0x30", Action: inject.Drop},
		inject.Rule{Step: "config-read@0x0", Action: inject.Alter, Field: "value", Value: 0xffff},
		inject.Rule{Step: "register-read@0x40", Action: inject.Delay, For: 20 * time.Millisecond},
		inject.Rule{Step: "register-read@0x48", Action: inject.Add, Vector: 2},
		inject.Rule{Step: "vector:3", Action: inject.Drop},
		inject.Rule{Step: "vector:4", Action: inject.Duplicate},
		inject.Rule{Step: "vector:0", Action: inject.Delay, For: time.Millisecond})
	for range 2 {
		if got := f.bar(t, 0x18, 8); !bytes.Equal(got, bytes.Repeat([]byte{0xff}, 8)) {
			t.Errorf("read % x", got)
		}
	}
	if got := f.bar(t, 0x20, 4); !bytes.Equal(got, []byte{0, 0xab, 0, 0}) {
		t.Errorf("read % x", got)
	}
	f.setBAR(t, 0x28, 1, 2, 3, 4)
	f.setBAR(t, 0x30, 1, 2, 3, 4)
	if got := p.bytes[0x28:0x34]; !bytes.Equal(got, []byte{0x34, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("written % x", got)
	}
	if v := f.cfg16(t, cfgVendor); v != 0xffff {
		t.Errorf("vendor %#x", v)
	}
	if v := f.cfg16(t, cfgVendor); v != DefaultVendorID {
		t.Errorf("vendor %#x", v)
	}
	start := time.Now()
	if f.bar(t, 0x40, 4); time.Since(start) < 20*time.Millisecond {
		t.Error("the read was not delayed")
	}
	f.bar(t, 0x48, 4)
	for v := range 5 {
		if err := f.Fire(v); err != nil {
			t.Error(err)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); f.VectorStates()[0].Fired == 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	for v, want := range []uint64{1, 1, 2, 0, 2} {
		if got := f.VectorStates()[v].Fired; got != want {
			t.Errorf("vector %d fired %d times, want %d", v, got, want)
		}
	}
}

// TestReadsAreDelayedTogether: however many registers one message reads, QEMU gets its answer in time.
func TestReadsAreDelayedTogether(t *testing.T) {
	t.Parallel()
	f, _, _ := ruled(t, inject.Rule{Step: "register-read", Times: -1, Action: inject.Delay, For: 1500 * time.Millisecond})
	start := time.Now()
	if f.bar(t, 0, 64); time.Since(start) > inject.MaxReadDelay+time.Second {
		t.Errorf("answered after %s", time.Since(start))
	}
}

// TestWritesAndReleases is for the race detector: one side writes, reads and resets, the other holds and releases.
func TestWritesAndReleases(t *testing.T) {
	t.Parallel()
	f, p, c := ruled(t)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for i := range 500 {
			_ = c.Add(inject.Rule{Name: "h", Step: []string{"register-write", "config-write", "vector:any"}[i%3], Action: inject.Hold})
			_ = c.Release("h")
		}
		c.Clear()
	}()
	for i := range 2000 {
		f.setBAR(t, 0x100, byte(i))
		f.bar(t, 0x100, 4)
		f.setCfg(t, cfgCommand, cmdMaster)
		_ = f.Fire(i % 5)
		if i%300 == 299 {
			f.Reset()
		}
	}
	wg.Wait()
	c.Clear()
	f.setBAR(t, 0x100, 77)
	if p.bytes[0x100] != 77 {
		t.Error("a write does not get through any more")
	}
}
