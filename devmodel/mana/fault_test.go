package mana

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"irqlab/devmodel/gdma"
	"irqlab/devmodel/gdma/gdmatest"
	"irqlab/devmodel/inject"
	"irqlab/devmodel/trace"
)

// witness is a test that is expected to fail: it keeps what it failed with.
type witness struct {
	testing.TB
	failed string
}

func (w *witness) Helper() {}
func (w *witness) Fatal(args ...any) {
	w.failed = fmt.Sprint(args...)
	runtime.Goexit()
}
func (w *witness) Fatalf(format string, args ...any) { w.Fatal(fmt.Sprintf(format, args...)) }

// caught runs f to its end or to its first failure, which it returns.
func caught(t *testing.T, f func(testing.TB)) string {
	w := &witness{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(w)
	}()
	<-done
	return w.failed
}

// under is a controller with rules; those without a name get one.
func under(t testing.TB, rules ...inject.Rule) *inject.Controller {
	t.Helper()
	c := inject.New()
	for i, r := range rules {
		r.Name = cmp.Or(r.Name, fmt.Sprint("rule ", i+1))
		if err := c.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// TestWrongModelIsCaught seeds a fault into a right model, and expects a life cycle that passes without it to end at the fault.
func TestWrongModelIsCaught(t *testing.T) {
	t.Parallel()
	const silence = time.Second // how long the driver waits for what never comes, from the fault on
	type rules = []inject.Rule
	alter := func(step string, nth int, field string, v uint64) inject.Rule {
		return inject.Rule{Step: step, Nth: nth, Action: inject.Alter, Field: field, Value: v}
	}
	drop := func(step string, nth, times int) inject.Rule {
		return inject.Rule{Step: step, Nth: nth, Times: times, Action: inject.Drop}
	}
	for name, fault := range map[string]struct {
		rules rules
		want  string
	}{
		"none":                     {nil, ""},
		"lost EQE":                 {rules{drop("event:test", 3, 1)}, "test event of EQ"}, // after the hardware channel's and the first queue's
		"lost EQE of a completion": {rules{drop("event:completion", 3, 1)}, "request 0x"},
		"lost init event":          {rules{drop("event:init-done", 1, 1)}, "init events"},
		"lost request":             {rules{drop("request:CREATE_QUEUE", 2, 1)}, "request 0xc: context canceled"},
		"late response":            {rules{{Step: "response:CREATE_QUEUE", Action: inject.Hold}}, "request 0xc: context canceled"},
		"wrong status":             {rules{{Step: "response:CREATE_WQ_OBJ", Nth: 3, Action: inject.Status, Status: 7}}, "request 0x20004: status 7"},
		"refused":                  {rules{{Step: "request:REGISTER_DEVICE", Action: inject.Status, Status: 1}}, "request 0x4: status malformed"},
		"response too short":       {rules{alter("response:QUERY_VPORT_CONFIG", 1, "length", 48)}, "request 0x20008: answer's header"},
		"response of another size than asked for": {rules{alter("response:QUERY_VPORT_CONFIG", 1, "length", 72), alter("response:QUERY_VPORT_CONFIG", 1, "size", 72)},
			"72 bytes, asked for 64"},
		"length that is not the answer's":        {rules{alter("completion:hwc-receive", 4, "length", 48)}, "answer's header"},
		"another's answer":                       {rules{alter("response:any", 5, "message", 0x77)}, "answer's header"},
		"wrong place of an answer":               {rules{alter("completion:hwc-receive", 4, "wqe_offset", 0x4000)}, "receive completion of queue"},
		"completion of a queue there is not":     {rules{alter("completion:send", 2, "wq", 0xabc)}, "completion of queue 2748"},
		"missing transmit completion":            {rules{drop("completion:send", 2, 1)}, "transmit completion:context canceled"},
		"transmit error":                         {rules{alter("completion:send", 2, "type", 42)}, "completion type 42"},
		"missing fence":                          {rules{drop("completion:fence", 2, 1)}, "fence completion"},
		"missing vector":                         {rules{drop("vector:2", 1, -1)}, "on vector 2"},
		"missing vector of the hardware channel": {rules{drop("vector:0", 1, -1)}, "init events"},
		"wrong owner bits":                       {rules{alter("event:test", 3, "owner", 3)}, "overflow"},         // of lap 1
		"owner bits of the lap before":           {rules{alter("event:test", 3, "owner", 0)}, "test event of EQ"}, // the entry looks as if it had not been written yet
		"no answer to the SMC":                   {rules{drop("smc:establish", 1, 1)}, "SMC answer"},
		"SMC failure":                            {rules{{Step: "smc:establish", Action: inject.Status, Status: 2}}, "SMC establish answered 0x281"},
		"SMC answer that is none":                {rules{alter("smc:establish", 1, "answer", 0x7f)}, "SMC establish answered 0x7f"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inj := under(t, fault.rules...)
			l := newLab(t, Config{VPorts: 2, Queues: 8, Inject: inj}, 17, trace.New(0))
			ctx, cancel := context.WithCancel(l.ctx)
			defer cancel()
			l.ctx = ctx
			if len(fault.rules) > 0 {
				go func() {
					for ctx.Err() == nil && slices.ContainsFunc(inj.States(), func(r inject.RuleState) bool { return !r.Reached }) {
						time.Sleep(time.Millisecond)
					}
					time.AfterFunc(silence, cancel)
				}()
			}
			got := caught(t, func(w testing.TB) { l.life(w, dialects[4]) })
			if fault.want == "" && got != "" || !strings.Contains(got, fault.want) {
				t.Errorf("caught as %q, want %q", got, fault.want)
			}
		})
	}
}

// TestLateResponseIsTakenForTheNext: with one slot, an answer that comes after its request was given up completes the next one, and the driver has to see that it is another's.
func TestLateResponseIsTakenForTheNext(t *testing.T) {
	t.Parallel()
	inj := under(t, inject.Rule{Name: "late", Step: "response:LIST_DEVICES", Action: inject.Hold})
	l := newLab(t, Config{Inject: inj}, 2, nil)
	if err := l.Open(l.ctx); err != nil {
		t.Fatal(err)
	}
	l.Send(gdmatest.Request(gdma.CodeListDevices, gdma.DeviceID{}, 40, 296, 1))
	if err := inj.AwaitHeld(l.ctx, "late"); err != nil {
		t.Fatal(err)
	}
	if err := inj.Release("late"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Call(l.ctx, gdmatest.Request(gdma.CodeMaxResources, gdma.DeviceID{}, 40, 72, 1)); err == nil || !strings.Contains(err.Error(), "answer's header") {
		t.Errorf("the late answer went unnoticed: %v", err)
	}
}
