package mana

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"irqlab/devmodel/gdma"
	"irqlab/devmodel/gdma/gdmatest"
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

// nth is true at the n-th call, from 1.
func nth(n int) func() bool {
	return func() bool {
		n--
		return n == 0
	}
}

// TestWrongModelIsCaught seeds a fault into a right model, and expects a life cycle that passes without it to end at the fault.
func TestWrongModelIsCaught(t *testing.T) {
	t.Parallel()
	const silence = 2 * time.Second // how long the driver waits for what never comes
	for name, fault := range map[string]struct {
		taps func() gdma.Taps
		want string
	}{
		"none": {func() gdma.Taps { return gdma.Taps{} }, ""},
		"lost EQE": {func() gdma.Taps {
			third := nth(3) // after the hardware channel's and the first queue's
			return gdma.Taps{Event: func(e *gdma.Event) bool { return e.Type != gdma.EventTest || !third() }}
		}, "test event of EQ"},
		"lost EQE of a completion": {func() gdma.Taps {
			third := nth(3)
			return gdma.Taps{Event: func(e *gdma.Event) bool { return e.Type != gdma.EventCompletion || !third() }}
		}, "request 0x"},
		"lost init event": {func() gdma.Taps {
			return gdma.Taps{Event: func(e *gdma.Event) bool { return e.Type != gdma.EventInitDone }}
		}, "init events"},
		"late response": {func() gdma.Taps {
			return gdma.Taps{Response: func(r *gdma.Response) gdma.Verdict {
				if r.Code == gdma.CodeCreateQueue {
					return gdma.Hold
				}
				return gdma.Deliver
			}}
		}, "request 0xc: context deadline exceeded"},
		"response too short": {func() gdma.Taps {
			return gdma.Taps{Response: func(r *gdma.Response) gdma.Verdict {
				if r.Code == codeQueryVPort {
					r.Bytes = r.Bytes[:48]
				}
				return gdma.Deliver
			}}
		}, "request 0x20008: answer's header"},
		"response of another size than asked for": {func() gdma.Taps {
			return gdma.Taps{Response: func(r *gdma.Response) gdma.Verdict {
				if r.Code == codeQueryVPort {
					r.Bytes = append(r.Bytes[:64:64], make([]byte, 8)...)
					le.PutUint32(r.Bytes[0x0c:], uint32(len(r.Bytes)))
				}
				return gdma.Deliver
			}}
		}, "72 bytes, asked for 64"},
		"missing vector": {func() gdma.Taps {
			return gdma.Taps{Vector: func(v int) bool { return v != 2 }}
		}, "on vector 2"},
		"missing vector of the hardware channel": {func() gdma.Taps {
			return gdma.Taps{Vector: func(v int) bool { return v != 0 }}
		}, "init events"},
		"wrong owner bits": {func() gdma.Taps {
			third := nth(3)
			return gdma.Taps{Event: func(e *gdma.Event) bool {
				if e.Type == gdma.EventTest && third() {
					e.Owner = (e.Owner + 2) % 8
				}
				return true
			}}
		}, "overflow"},
		"owner bits of the lap before": {func() gdma.Taps { // the entry looks as if it had not been written yet
			third := nth(3)
			return gdma.Taps{Event: func(e *gdma.Event) bool {
				if e.Type == gdma.EventTest && third() {
					e.Owner = (e.Owner + 7) % 8
				}
				return true
			}}
		}, "test event of EQ"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, Config{VPorts: 2, Queues: 8, Taps: fault.taps()}, 17, trace.New(0))
			if fault.want != "" {
				ctx, cancel := context.WithTimeout(l.ctx, silence)
				defer cancel()
				l.ctx = ctx
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
	first := nth(1)
	l := newLab(t, Config{Taps: gdma.Taps{Response: func(*gdma.Response) gdma.Verdict {
		if first() {
			return gdma.Hold
		}
		return gdma.Deliver
	}}}, 2, nil)
	if err := l.Open(l.ctx); err != nil {
		t.Fatal(err)
	}
	l.Send(gdmatest.Request(gdma.CodeListDevices, gdma.DeviceID{}, 40, 296, 1))
	for l.f.Usage().Answers == 0 { // until it is held
		runtime.Gosched()
	}
	l.f.Release()
	if _, err := l.Call(l.ctx, gdmatest.Request(gdma.CodeMaxResources, gdma.DeviceID{}, 40, 72, 1)); err == nil || !strings.Contains(err.Error(), "answer's header") {
		t.Errorf("the late answer went unnoticed: %v", err)
	}
}
