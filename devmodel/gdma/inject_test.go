package gdma_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"irqlab/devmodel/gdma"
	"irqlab/devmodel/gdma/gdmatest"
	"irqlab/devmodel/inject"
	"irqlab/devmodel/trace"
)

func resources() []byte {
	return gdmatest.Request(gdma.CodeMaxResources, gdma.DeviceID{}, 40, 72, 1)
}

// called sends a request and hands back its answer when it is there.
func (b *bench) called(req []byte) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := b.drv.OK(b.ctx, req)
		done <- err
	}()
	return done
}

func (b *bench) held(t testing.TB, name string) {
	t.Helper()
	if err := b.inj.AwaitHeld(b.ctx, name); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) release(t testing.TB, name string) {
	t.Helper()
	if err := b.inj.Release(name); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) add(t testing.TB, r inject.Rule) {
	t.Helper()
	if err := b.inj.Add(r); err != nil {
		t.Fatal(err)
	}
}

// TestHeldOnTheWay: wherever on its way through the channel a request is held, the device answers accesses, its goroutine is free for the other queues, and the
// request goes through when it is released.
func TestHeldOnTheWay(t *testing.T) {
	for _, step := range []string{"request:QUERY_MAX_RESOURCES", "response:0x2", "completion:hwc-send", "completion:hwc-receive", "event:completion", "vector:0"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			rec := trace.New(0)
			b := newBench(t, rec)
			q := b.openEQ(t)
			b.add(t, inject.Rule{Name: "h", Step: step, Action: inject.Hold})
			done := b.called(resources())
			b.held(t, "h")
			var p [4]byte
			b.dev.ReadSMC(28, p[:])
			if u := b.dev.Usage(); u.EQs != 2 {
				t.Errorf("%+v", u)
			}
			before := b.m.Interrupts(1)
			if err := b.dev.Event(q.ID, gdma.EventHWC, [3]uint32{}); err != nil {
				t.Error(err)
			}
			if b.m.Interrupts(1) != before+1 {
				t.Error("another event queue stands still as well")
			}
			select {
			case err := <-done:
				t.Fatalf("the request went through while it was held: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			b.release(t, "h")
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			b.sync(t)
			events, _ := rec.Events()
			for _, e := range events {
				if k := e.Kind.Name(); k == "gdma-anomaly" || k == "doorbell-ignored" {
					t.Errorf("%v", e)
				}
			}
		})
	}
}

// TestHeldSMC: the window stays the device's until the release.
func TestHeldSMC(t *testing.T) {
	b := newBench(t, nil, inject.Rule{Name: "h", Step: "smc:establish", Action: inject.Hold})
	done := make(chan error, 1)
	go func() { done <- b.drv.Open(b.ctx) }()
	b.held(t, "h")
	var h [4]byte
	if b.dev.ReadSMC(28, h[:]); le.Uint32(h[:])>>31 != 1 {
		t.Errorf("window %#x: not the device's", h)
	}
	b.release(t, "h")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.sync(t)
}

// TestEventsStayInOrder: behind a held event those of its queue wait, however many, and none is lost that there was room for.
func TestEventsStayInOrder(t *testing.T) {
	b := newBench(t, nil)
	q := b.openEQ(t)
	b.add(t, inject.Rule{Name: "h", Step: "event:hwc", Nth: 3, Action: inject.Hold})
	b.add(t, inject.Rule{Name: "h2", Step: "event:hwc", Nth: 5, Action: inject.Hold})
	for i := range 256 {
		if err := b.dev.Event(q.ID, gdma.EventHWC, [3]uint32{uint32(i)}); err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
	}
	if err := b.dev.Event(q.ID, gdma.EventHWC, [3]uint32{}); err == nil {
		t.Error("more events wait than the queue holds")
	}
	for _, c := range []struct {
		release string
		want    int
	}{{"", 2}, {"h", 4}, {"h2", 256}} {
		if c.release != "" {
			b.release(t, c.release)
		}
		if err := b.drv.Poll(); err != nil {
			t.Fatal(err)
		}
		e := b.drv.Events[q.ID]
		if len(e) != c.want {
			t.Fatalf("after %q: %d events, want %d", c.release, len(e), c.want)
		}
		for i := range e {
			if e[i].Details[0] != uint32(i) {
				t.Fatalf("event %d is %d", i, e[i].Details[0])
			}
		}
	}
}

// TestHeldEventOfAQueueThatGoes: the event is lost and nothing else is.
func TestHeldEventOfAQueueThatGoes(t *testing.T) {
	b := newBench(t, nil, inject.Rule{Name: "h", Step: "event:hwc", Action: inject.Hold})
	q := b.openEQ(t)
	for range 3 {
		if err := b.dev.Event(q.ID, gdma.EventHWC, [3]uint32{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.drv.OK(b.ctx, gdmatest.Request(gdma.CodeDisableQueue, gdma.DeviceMANA, 52, 32, 1, gdmatest.U32(0x28, 4), gdmatest.U32(0x2c, uint64(q.ID)))); err != nil {
		t.Fatal(err)
	}
	b.release(t, "h")
	b.sync(t)
}

func TestResetWhileHeld(t *testing.T) {
	for _, step := range []string{"smc:establish", "request:any", "response:any", "completion:hwc-send", "event:completion", "vector:0"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, nil)
			if step == "smc:establish" {
				b.add(t, inject.Rule{Name: "h", Step: step, Action: inject.Hold})
				go func() {
					ctx, cancel := context.WithTimeout(b.ctx, 50*time.Millisecond)
					defer cancel()
					_ = gdmatest.NewDriver(b.m, b.dev).Open(ctx)
				}()
			} else {
				b.open(t)
				b.add(t, inject.Rule{Name: "h", Step: step, Action: inject.Hold})
				b.drv.Send(resources())
			}
			b.held(t, "h")
			b.dev.Reset("reset: test")
			for !b.inj.States()[0].Dropped { // the bookkeeping follows the reset
				time.Sleep(time.Millisecond)
			}
			if err := b.inj.Release("h"); !errors.Is(err, inject.ErrDropped) {
				t.Error(err)
			}
			time.Sleep(60 * time.Millisecond) // the driver that polled has given up
			b.drv = gdmatest.NewDriver(b.m, b.dev)
			b.open(t)
			b.sync(t)
		})
	}
}

// signalled is how often a vector fires for one event of a new event queue.
func (b *bench) signalled(t testing.TB, vector int) uint64 {
	t.Helper()
	b.register(t)
	q, err := b.drv.NewEQ(b.ctx, 4096, uint32(vector), false)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.dev.Event(q.ID, gdma.EventHWC, [3]uint32{}); err != nil {
		t.Fatal(err)
	}
	return b.m.Interrupts(vector)
}

// TestActions: what each action makes of a request on its way.
func TestActions(t *testing.T) {
	max := "QUERY_MAX_RESOURCES"
	for name, c := range map[string]struct {
		rules []inject.Rule
		check func(t *testing.T, b *bench)
	}{
		"request refused": {[]inject.Rule{{Step: "request:" + max, Action: inject.Status, Status: 77}}, func(t *testing.T, b *bench) {
			r, err := b.drv.Call(b.ctx, resources())
			if err != nil || gdmatest.Status(r) != 77 || len(r) != 32 {
				t.Errorf("% x, %v", r, err)
			}
		}},
		"refused before it acted": {[]inject.Rule{{Step: "request:REGISTER_DEVICE", Action: inject.Status, Status: 77}}, func(t *testing.T, b *bench) {
			req := gdmatest.Request(gdma.CodeRegisterDevice, gdma.DeviceMANA, 40, 44, 1)
			for _, want := range []gdma.Status{77, gdma.StatusOK} {
				if r, err := b.drv.Call(b.ctx, req); err != nil || gdmatest.Status(r) != want {
					t.Errorf("% x, %v; want status %v", r, err, want)
				}
			}
		}},
		"failed after it acted": {[]inject.Rule{{Step: "response:REGISTER_DEVICE", Action: inject.Status, Status: 77}}, func(t *testing.T, b *bench) {
			req := gdmatest.Request(gdma.CodeRegisterDevice, gdma.DeviceMANA, 40, 44, 1)
			for _, want := range []gdma.Status{77, gdma.StatusExists} {
				if r, err := b.drv.Call(b.ctx, req); err != nil || gdmatest.Status(r) != want {
					t.Errorf("% x, %v; want status %v", r, err, want)
				}
			}
		}},
		"field of an answer": {[]inject.Rule{{Step: "response:" + max, Action: inject.Alter, Field: "max_msix", Value: 1}}, func(t *testing.T, b *bench) {
			if r, err := b.drv.OK(b.ctx, resources()); err != nil || le.Uint32(r[0x44:]) != 1 {
				t.Errorf("% x, %v", r, err)
			}
		}},
		"bytes of an answer": {[]inject.Rule{{Step: "response:any", Action: inject.Alter, Offset: 0x24, Size: 2, Value: 0xbeef}}, func(t *testing.T, b *bench) {
			if r, err := b.drv.OK(b.ctx, resources()); err != nil || le.Uint32(r[0x24:]) != 0xbeef {
				t.Errorf("% x, %v", r, err)
			}
		}},
		"field of a request": {[]inject.Rule{{Step: "request:" + max, Action: inject.Alter, Field: "response_size", Value: 40}}, func(t *testing.T, b *bench) {
			if r, err := b.drv.OK(b.ctx, resources()); err != nil || len(r) != 40 {
				t.Errorf("% x, %v", r, err)
			}
		}},
		"request done twice": {[]inject.Rule{{Step: "request:REGISTER_DEVICE", Action: inject.Duplicate}}, func(t *testing.T, b *bench) {
			b.register(t)
			// The second answer took the next buffer, so it is met by the next request.
			if _, err := b.drv.Call(b.ctx, resources()); err == nil || !strings.Contains(err.Error(), "answer's header") {
				t.Error(err)
			}
			if n := b.inj.Count("response:REGISTER_DEVICE"); n != 2 {
				t.Errorf("%d answers", n)
			}
		}},
		"answer lost": {[]inject.Rule{{Step: "response:any", Action: inject.Drop}}, func(t *testing.T, b *bench) {
			ctx, cancel := context.WithTimeout(b.ctx, 50*time.Millisecond)
			defer cancel()
			if _, err := b.drv.Call(ctx, resources()); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			b.sync(t)
		}},
		"answer late": {[]inject.Rule{{Step: "response:any", Action: inject.Delay, For: 20 * time.Millisecond}}, func(t *testing.T, b *bench) {
			start := time.Now()
			if b.sync(t); time.Since(start) < 20*time.Millisecond {
				t.Error("it was not")
			}
		}},
		"event twice": {[]inject.Rule{{Step: "event:fpga-reconfig", Action: inject.Duplicate}}, func(t *testing.T, b *bench) {
			if err := b.dev.Event(0, gdma.EventFPGAReconfig, [3]uint32{5}); err != nil {
				t.Fatal(err)
			}
			if err := b.drv.Poll(); err != nil {
				t.Fatal(err)
			}
			want := []gdmatest.EQE{{Type: gdma.EventFPGAReconfig, Details: [3]uint32{5}}, {Type: gdma.EventFPGAReconfig, Details: [3]uint32{5}}}
			if got := b.drv.Events[b.drv.EQ.ID]; !slices.Equal(got, want) {
				t.Errorf("events %v", got)
			}
		}},
		"event of another type": {[]inject.Rule{{Step: "event:0x84", Action: inject.Alter, Field: "type", Value: 0xb0}, {Step: "event:any", Action: inject.Alter, Field: "details2", Value: 9}}, func(t *testing.T, b *bench) {
			if err := b.dev.Event(0, gdma.EventFPGAReconfig, [3]uint32{5}); err != nil {
				t.Fatal(err)
			}
			if err := b.drv.Poll(); err != nil {
				t.Fatal(err)
			}
			if got, want := b.drv.Events[b.drv.EQ.ID], []gdmatest.EQE{{Type: 0xb0, Details: [3]uint32{5, 0, 9}}}; !slices.Equal(got, want) {
				t.Errorf("events %v", got)
			}
		}},
		"interrupt more": {[]inject.Rule{{Step: "request:any", Action: inject.Add, Vector: 7}, {Step: "response:any", Action: inject.Add, Vector: 2000}}, func(t *testing.T, b *bench) {
			if b.sync(t); b.m.Interrupts(7) != 1 {
				t.Errorf("vector 7 fired %d times", b.m.Interrupts(7))
			}
		}},
		"interrupt twice": {[]inject.Rule{{Step: "vector:3", Action: inject.Duplicate}}, func(t *testing.T, b *bench) {
			if n := b.signalled(t, 3); n != 2 {
				t.Errorf("fired %d times", n)
			}
		}},
		"interrupt lost": {[]inject.Rule{{Step: "vector:3", Action: inject.Drop}}, func(t *testing.T, b *bench) {
			if n := b.signalled(t, 3); n != 0 {
				t.Errorf("fired %d times", n)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			b.open(t)
			for i, r := range c.rules {
				r.Name = string(rune('a' + i))
				b.add(t, r)
			}
			c.check(t, b)
			for _, s := range b.inj.States() {
				if !s.Reached || s.Hits != 1 {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

// runRules puts rules chosen by next in force and has a driver work, whatever becomes of its requests. Then all is let go, and a driver that begins anew is served.
func runRules(t *testing.T, steps int, next func(n int) int) {
	b := newBench(t, nil)
	all := inject.Steps()
	life := func() {
		ctx, cancel := context.WithTimeout(b.ctx, 3*time.Millisecond)
		defer cancel()
		b.drv = gdmatest.NewDriver(b.m, b.dev)
		if b.drv.Open(ctx) != nil {
			return
		}
		for _, req := range [][]byte{resources(), gdmatest.Request(gdma.CodeRegisterDevice, gdma.DeviceMANA, 40, 44, 1),
			gdmatest.Request(gdma.CodeTestEQE, gdma.DeviceHWC, 44, 32, 1, gdmatest.U32(0x28, uint64(b.drv.EQ.ID)))} {
			if _, err := b.drv.Call(ctx, req); err != nil {
				b.drv.Send(req) // as a driver that does not wait does
			}
		}
		if q, err := b.drv.NewEQ(ctx, 4096, uint32(next(9)), false); err == nil {
			_ = b.dev.Event(q.ID, gdma.EventHWC, [3]uint32{})
		}
	}
	base := b.m.Mark()
	for i := range steps {
		s := all[next(len(all))]
		r := inject.Rule{Name: string(rune('a' + i%26)), Step: s.Name, Nth: 1 + next(3), Times: next(4) - 1, Action: s.Actions[next(len(s.Actions))],
			For: time.Duration(1+next(1000)) * time.Microsecond, Status: uint32(next(4)), Value: uint64(next(1 << 16)), Vector: next(12)}
		if r.Action == inject.Alter {
			if n := next(len(s.Fields) + 1); n < len(s.Fields) {
				r.Field, r.Value = s.Fields[n], r.Value&(1<<s.Bits[n]-1)
				if r.Field == "length" {
					r.Value %= 4096
				}
			} else {
				r.Offset, r.Size, r.Value = next(8), 1, r.Value&0xff
			}
		}
		if err := b.inj.Add(r); err != nil && !errors.Is(err, inject.ErrInForce) {
			t.Fatal(err)
		}
		switch next(6) {
		case 0:
			_ = b.inj.Release(string(rune('a' + next(26))))
		case 1:
			b.dev.Reset("reset: test")
			b.m.FreeTo(base)
		default:
			if b.m.Mark() > 6<<20 {
				b.m.FreeTo(base)
			}
			life()
		}
	}
	b.inj.Clear()
	b.dev.Reset("reset: test") // a dropped SMC message leaves the window with the device
	b.m.FreeTo(base)
	b.drv = gdmatest.NewDriver(b.m, b.dev)
	b.open(t)
	b.sync(t)
	for _, s := range b.inj.States() {
		if s.Held {
			t.Errorf("still held: %+v", s)
		}
	}
	b.dev.Close()
}

func TestRandomRules(t *testing.T) {
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 5))
		runRules(t, 30, r.IntN)
	}
}

func FuzzRules(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
	f.Add([]byte{40, 0, 0, 0, 0, 9, 0, 3, 3, 40, 1, 0, 0, 1, 1, 5, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		runRules(t, min(len(b)/8, 20), func(max int) int {
			v := 0
			if n < len(b) {
				v = int(b[n]) * 257
			}
			n++
			return v % max
		})
	})
}
