package trace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	kindFire = NewKind("fire", "vector", "delivered")
	kindNote = NewKind("note")
)

func TestRecord(t *testing.T) {
	t.Parallel()
	r := New(4)
	for i := range uint64(6) {
		r.Record(kindFire, i, 1)
	}
	r.Note(kindNote, `said "so"`)
	events, forgotten := r.Events()
	if forgotten != 3 || len(events) != 4 {
		t.Fatalf("%d events, %d forgotten; want 4 and 3", len(events), forgotten)
	}
	for i, e := range events[:3] {
		if v, ok := e.Field("vector"); e.Kind != kindFire || !ok || v != uint64(i+3) {
			t.Errorf("event %d: %v", i, e)
		}
		if i > 0 && e.T < events[i-1].T {
			t.Errorf("event %d is earlier than the one before", i)
		}
	}
	if _, ok := events[0].Field("colour"); ok {
		t.Error("a field nobody declared")
	}
	e := Event{T: 1500, Kind: kindFire, Text: "a\tb"}
	e.args[0], e.args[1] = 7, 1<<64-1
	const want = `{"t":1500,"kind":"fire","vector":7,"delivered":18446744073709551615,"text":"a\tb"}`
	if b, err := json.Marshal(e); err != nil || string(b) != want {
		t.Errorf("JSON %s, %v; want %s", b, err, want)
	}
	if got := e.String(); got != `0.000001 fire vector=7 delivered=18446744073709551615 "a\tb"` && got != `0.000002 fire vector=7 delivered=18446744073709551615 "a\tb"` {
		t.Errorf("text %s", got)
	}

	// Missing numbers are 0, surplus ones dropped.
	r = New(4)
	r.Record(kindFire, 1)
	r.Record(kindNote, 1, 2, 3)
	events, _ = r.Events()
	if v, _ := events[0].Field("delivered"); v != 0 || events[1].args != [MaxFields]uint64{} {
		t.Errorf("events %v", events)
	}

	var none *Recorder
	none.Record(kindFire, 1)
	if events, _ := none.Events(); events != nil || none.Now() != 0 {
		t.Error("the nil recorder recorded")
	}
}

func TestNewKindRefuses(t *testing.T) {
	t.Parallel()
	for name, fields := range map[string][]string{
		"": nil, "repeated": {"a", "a"}, "reserved": {"t"}, "kind": {"kind"}, "text": {"text"}, "empty": {""}, "many": {"a", "b", "c", "d", "e", "f", "g"},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("kind %q with fields %q was accepted", name, fields)
				}
			}()
			NewKind(name, fields...)
		}()
	}
}

func TestKinds(t *testing.T) {
	t.Parallel()
	kinds := Kinds()
	i := slices.Index(kinds, kindFire)
	if i < 0 || !slices.Contains(kinds, Lost) || !slices.Equal(kinds[i].Fields(), []string{"vector", "delivered"}) {
		t.Errorf("kinds %v", kinds)
	}
	if !slices.IsSortedFunc(kinds, func(a, b *Kind) int { return strings.Compare(a.Name(), b.Name()) }) {
		t.Error("not in order")
	}
	defer func() {
		if recover() == nil {
			t.Error("a kind was declared again, with other fields")
		}
	}()
	NewKind("fire", "vector")
}

// TestStream follows a recorder from before the first event to after the last; every line is JSON, none is lost, none comes twice.
func TestStream(t *testing.T) {
	t.Parallel()
	r := New(1 << 12)
	ctx, cancel := context.WithCancel(context.Background())
	var out bytes.Buffer
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Stream(ctx, &out); err != nil {
			t.Error(err)
		}
	})
	const n = 1000
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for i := range uint64(n) {
				r.Record(kindFire, i)
			}
		})
	}
	writers.Wait()
	cancel()
	wg.Wait()
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4*n {
		t.Errorf("%d lines, want %d", len(lines), 4*n)
	}
	last := int64(-1)
	for _, line := range lines {
		var e struct {
			T    int64
			Kind string
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Kind != "fire" || e.T < last {
			t.Fatalf("line %s: %v", line, err)
		}
		last = e.T
	}
}

// blockingWriter holds its first write until it is released.
type blockingWriter struct {
	entered, release chan struct{}
	once             sync.Once
	bytes.Buffer
}

func (w *blockingWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.entered); <-w.release })
	return w.Buffer.Write(p)
}

// TestStreamTooSlow: a writer that cannot keep up does not hold up the recorder, and is told what it missed.
func TestStreamTooSlow(t *testing.T) {
	t.Parallel()
	r := New(8)
	w := &blockingWriter{entered: make(chan struct{}), release: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	r.Record(kindFire, 0)
	go func() { done <- r.Stream(ctx, w) }()
	<-w.entered
	for i := range uint64(20) {
		r.Record(kindFire, i+1)
	}
	close(w.release)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(w.String()), "\n")
	if len(lines) != 1+1+8 || !strings.Contains(lines[1], `"kind":"trace-lost","count":12`) {
		t.Errorf("lines:\n%s", w.String())
	}
}

type brokenWriter struct{}

var errBroken = errors.New("disk full")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestStreamWriteError(t *testing.T) {
	t.Parallel()
	r := New(8)
	r.Record(kindNote)
	if err := r.Stream(context.Background(), brokenWriter{}); !errors.Is(err, errBroken) {
		t.Errorf("error %v", err)
	}
	r.Record(kindNote) // still works
}

// TestRecordAllocatesNothing is not parallel.
func TestRecordAllocatesNothing(t *testing.T) {
	r := New(64)
	if n := testing.AllocsPerRun(1000, func() { r.Record(kindFire, 1, 2) }); n != 0 {
		t.Errorf("%v allocations per event", n)
	}
}

func BenchmarkRecord(b *testing.B) {
	r := New(0)
	b.ReportAllocs()
	for b.Loop() {
		r.Record(kindFire, 3, 1)
	}
}
