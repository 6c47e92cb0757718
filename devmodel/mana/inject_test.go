package mana

import (
	"slices"
	"strings"
	"testing"
	"time"

	"irqlab/devmodel/gdma"
	"irqlab/devmodel/gdma/gdmatest"
	"irqlab/devmodel/inject"
	"irqlab/devmodel/trace"
)

// TestStepsAreNamedAsOnTheTrace: the names of MANA's own requests and completions in inject are those declared here; gdma has the same test of its own.
func TestStepsAreNamedAsOnTheTrace(t *testing.T) {
	steps := map[string]inject.Step{}
	for _, s := range inject.Steps() {
		steps[s.Name] = s
	}
	mine := map[uint32]string{}
	for _, m := range messages() {
		mine[m.Code] = m.Name
		for step, fields := range map[string][]gdma.Field{"request:": m.Request, "response:": m.Response} {
			want := slices.Clone(steps[step+"any"].Fields)
			for _, f := range fields {
				want = append(want, f.Name)
			}
			s := steps[step+m.Name]
			if !slices.Equal(s.Fields, want) {
				t.Errorf("%s%s: inject has fields %q, mana %q", step, m.Name, s.Fields, want)
				continue
			}
			for i, f := range fields {
				if got := s.Bits[len(s.Bits)-len(fields)+i]; got != 8*f.Size {
					t.Errorf("%s%s: %s has %d bits in inject, %d bytes in mana", step, m.Name, f.Name, got, f.Size)
				}
			}
		}
	}
	for code := range uint32(1 << 16) {
		code |= 2 << 16
		name := strings.TrimPrefix(inject.Request(code).String(), "request:")
		if named := !strings.HasPrefix(name, "0x"); named != (mine[code] != "") || named && name != mine[code] {
			t.Errorf("code %#x: inject calls it %q, mana %q", code, name, mine[code])
		}
	}
	for _, c := range []*gdma.Completion{sent, fenced} {
		want := []string{"wq", "owner"} // of every completion
		for f := range c.Places {
			want = append(want, f)
		}
		slices.Sort(want)
		s := steps[c.Step.String()]
		if got := slices.Sorted(slices.Values(s.Fields)); !slices.Equal(got, want) {
			t.Errorf("%s: inject has fields %q, mana %q", c.Step, got, want)
		}
		for i, f := range s.Fields {
			if p, mine := c.Places[f]; mine && p.Width != s.Bits[i] {
				t.Errorf("%s: %s has %d bits in inject, %d in mana", c.Step, f, s.Bits[i], p.Width)
			}
		}
	}
}

// TestHeldTransmitCompletion: behind it the queue stands still, packets and all; another queue goes on.
func TestHeldTransmitCompletion(t *testing.T) {
	inj := under(t, inject.Rule{Name: "h", Step: "completion:send", Nth: 2, Action: inject.Hold})
	rec := trace.New(0)
	l := newLab(t, Config{Queues: 2, Inject: inj}, 3, rec)
	d := dialects[4]
	l.probe(t, d, 0)
	p := l.ports[0]
	l.up(t, d, p, 2, 1)
	a, b := p.send[0], p.send[1]
	packet := func(size uint32) []gdma.SGE { return []gdma.SGE{{Addr: 0x3000, Size: size}} }
	for i := range uint32(5) {
		a.Post(l.M, gdma.AppendWQE(nil, oob(a, p), packet(60+i), 0, 0))
	}
	l.R.Doorbell(gdma.DoorbellSQ, gdma.ProducerDoorbell(a.ID, a.Tail, 0))
	if typ := l.completed(t, a); typ != uint8(cqeTXOK) {
		t.Errorf("completion type %d", typ)
	}
	if err := inj.AwaitHeld(l.ctx, "h"); err != nil {
		t.Fatal(err)
	}
	l.transmit(b, gdma.AppendWQE(nil, oob(b, p), packet(60), 0, 0))
	if typ := l.completed(t, b); typ != uint8(cqeTXOK) {
		t.Errorf("completion type %d of the other queue", typ)
	}
	if n := l.f.Ports()[0].Packets; n != 3 {
		t.Errorf("%d packets were sent, want one, the one that is held, and the other queue's", n)
	}
	if err := inj.Release("h"); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if typ := l.completed(t, a); typ != uint8(cqeTXOK) {
			t.Errorf("completion type %d", typ)
		}
	}
	l.down(t, d, p)
	l.remove(t, d)
	events, _ := rec.Events()
	for _, e := range events {
		if k := e.Kind.Name(); k == "gdma-anomaly" || k == "doorbell-ignored" {
			t.Errorf("%v", e)
		}
	}
}

// TestHeldTransmitCompletionOfAQueueThatGoes: nothing is written to the memory of a queue that is no more.
func TestHeldTransmitCompletionOfAQueueThatGoes(t *testing.T) {
	inj := under(t, inject.Rule{Name: "h", Step: "completion:send", Action: inject.Hold})
	l := newLab(t, Config{Queues: 1, Inject: inj}, 2, nil)
	d := dialects[3]
	l.probe(t, d, 0)
	p := l.ports[0]
	l.up(t, d, p, 1, 1)
	q := p.send[0]
	for range 3 {
		q.Post(l.M, gdma.AppendWQE(nil, oob(q, p), []gdma.SGE{{Addr: 0x3000, Size: 60}}, 0, 0))
	}
	l.R.Doorbell(gdma.DoorbellSQ, gdma.ProducerDoorbell(q.ID, q.Tail, 0))
	if err := inj.AwaitHeld(l.ctx, "h"); err != nil {
		t.Fatal(err)
	}
	l.down(t, d, p)
	if err := inj.Release("h"); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := l.Completion(&q.CQ); ok || err != nil {
		t.Errorf("a completion in the memory of a queue that is gone: %v", err)
	}
	l.remove(t, d)
}

// TestExtraCompletion: the driver has one completion too many.
func TestExtraCompletion(t *testing.T) {
	inj := under(t, inject.Rule{Name: "x", Step: "completion:send", Action: inject.Duplicate}, inject.Rule{Name: "f", Step: "completion:fence", Nth: 2, Action: inject.Duplicate})
	l := newLab(t, Config{Queues: 1, Inject: inj}, 2, nil)
	d := dialects[4]
	l.probe(t, d, 0)
	p := l.ports[0]
	l.up(t, d, p, 1, 1)
	q := p.send[0]
	l.transmit(q, gdma.AppendWQE(nil, oob(q, p), []gdma.SGE{{Addr: 0x3000, Size: 60}}, 0, 0))
	for i := range 2 {
		if typ := l.completed(t, q); typ != uint8(cqeTXOK) {
			t.Errorf("completion %d has type %d", i, typ)
		}
	}
	l.fence(t, p)
	if c, ok, err := l.Completion(&p.recv[0].CQ); !ok || err != nil || c.Data[0] != 0x43 {
		t.Errorf("second fence: % x, %v, %v", c.Data[:4], ok, err)
	}
}

// TestHeldFences: more than one fence may wait behind a held one, since the requests for them are answered.
func TestHeldFences(t *testing.T) {
	inj := under(t)
	l := newLab(t, Config{Queues: 1, Inject: inj}, 2, nil)
	d := dialects[4]
	l.probe(t, d, 0)
	p := l.ports[0]
	l.up(t, d, p, 1, 1)
	if err := inj.Add(inject.Rule{Name: "h", Step: "completion:fence", Action: inject.Hold}); err != nil {
		t.Fatal(err)
	}
	cq := &p.recv[0].CQ
	for range 3 {
		l.request(t, codeFenceRQ, 48, 32, 1, gdmatest.U64(0x28, p.recv[0].Object))
	}
	if _, ok, err := l.Completion(cq); ok || err != nil {
		t.Errorf("a fence's completion while it is held: %v", err)
	}
	if err := inj.Release("h"); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if c, ok, err := l.Completion(cq); !ok || err != nil || c.Data[0] != 0x43 {
			t.Errorf("fence %d: % x, %v, %v", i, c.Data[:4], ok, err)
		}
	}
}

// TestLifeUnderDelays: a whole life passes though everything comes late.
func TestLifeUnderDelays(t *testing.T) {
	t.Parallel()
	late := func(step string) inject.Rule {
		return inject.Rule{Step: step, Times: -1, Action: inject.Delay, For: 100 * time.Microsecond}
	}
	l := newLab(t, Config{VPorts: 2, Queues: 8, Inject: under(t, late("smc:establish"), late("request:any"), late("response:any"), late("completion:hwc-receive"), late("completion:send"),
		late("event:any"), late("vector:any"))}, 17, trace.New(0))
	l.life(t, dialects[3])
}
