// Package trace is the device's timeline: what happened to the function and to its vectors, in order, each event stamped with one monotonic clock.
//
// Recording a fixed-field event takes a mutex and copies a few words: no allocation, no I/O, so it may sit on the path that answers a register read. Memory is bounded: the
// newest events are kept and the number of forgotten ones is known. Writing events out (Stream) happens on the reader's goroutine and never holds up the device.
//
// The package knows nothing of PCI, of vfio-user or of what the events mean; every package that records declares its own kinds.
package trace

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// MaxFields is how many numbers one event can carry.
const MaxFields = 6

// DefaultCapacity is how many events a Recorder keeps when New is given 0.
const DefaultCapacity = 1 << 15

// Kind is one sort of event: its name and the names of the numbers it carries. Declare kinds as package variables; a Recorder keeps the pointer.
type Kind struct {
	name   string
	fields []string
}

// declared are all kinds of the program, by name.
var declared struct {
	sync.Mutex
	kinds map[string]*Kind
}

// NewKind declares a kind. It panics when the declaration itself is wrong (no name, more than MaxFields fields, a field named twice or named like one of the
// keys every event has, a name that is declared with other fields), because that is a mistake in the source, not in any input.
func NewKind(name string, fields ...string) *Kind {
	if name == "" || len(fields) > MaxFields {
		panic(fmt.Sprintf("trace: kind %q with %d fields: want a name and at most %d fields", name, len(fields), MaxFields))
	}
	for i, f := range fields {
		if f == "" || f == "t" || f == "kind" || f == "text" || slices.Contains(fields[:i], f) {
			panic(fmt.Sprintf("trace: kind %q: field %q is empty, reserved or repeated", name, f))
		}
	}
	k := &Kind{name: name, fields: slices.Clone(fields)}
	declared.Lock()
	defer declared.Unlock()
	if other := declared.kinds[name]; other != nil && !slices.Equal(other.fields, fields) {
		panic(fmt.Sprintf("trace: kind %q is declared with fields %q and with %q", name, other.fields, fields))
	}
	if declared.kinds == nil {
		declared.kinds = map[string]*Kind{}
	}
	declared.kinds[name] = k
	return k
}

// Kinds are the kinds that the packages of this program declare, by ascending name.
func Kinds() []*Kind {
	declared.Lock()
	defer declared.Unlock()
	return slices.SortedFunc(maps.Values(declared.kinds), func(a, b *Kind) int { return strings.Compare(a.name, b.name) })
}

// Name is the kind's name, as in the JSON "kind".
func (k *Kind) Name() string { return k.name }

// Fields are the names of its numbers, in the order Record takes them.
func (k *Kind) Fields() []string { return slices.Clone(k.fields) }

// Lost is recorded by nobody: Stream writes it in place of events that were overwritten before they could be written out.
var Lost = NewKind("trace-lost", "count")

// Event is one point on the timeline.
type Event struct {
	// T is the time since the recorder was made.
	T    time.Duration
	Kind *Kind
	// Text is free text, empty for fixed-field events.
	Text string
	args [MaxFields]uint64
}

// Field is the event's number of that name; false when its kind has none.
func (e *Event) Field(name string) (uint64, bool) {
	if i := slices.Index(e.Kind.fields, name); i >= 0 {
		return e.args[i], true
	}
	return 0, false
}

// AppendJSON appends the event as one JSON object without a newline: {"t":nanoseconds,"kind":"…",fields…,"text":"…"}.
func (e *Event) AppendJSON(b []byte) []byte {
	b = append(b, `{"t":`...)
	b = strconv.AppendInt(b, int64(e.T), 10)
	b = append(b, `,"kind":`...)
	b = appendString(b, e.Kind.name)
	for i, f := range e.Kind.fields {
		b = append(b, ',')
		b = appendString(b, f)
		b = append(b, ':')
		b = strconv.AppendUint(b, e.args[i], 10)
	}
	if e.Text != "" {
		b = append(b, `,"text":`...)
		b = appendString(b, e.Text)
	}
	return append(b, '}')
}

func appendString(b []byte, s string) []byte {
	q, err := json.Marshal(s)
	if err != nil { // a string always marshals
		return append(b, `""`...)
	}
	return append(b, q...)
}

// MarshalJSON is AppendJSON for encoding/json.
func (e Event) MarshalJSON() ([]byte, error) { return e.AppendJSON(nil), nil }

// String is the event for a person: seconds, kind, name=value pairs, text.
func (e Event) String() string {
	b := fmt.Appendf(nil, "%.6f %s", e.T.Seconds(), e.Kind.name)
	for i, f := range e.Kind.fields {
		b = fmt.Appendf(b, " %s=%d", f, e.args[i])
	}
	if e.Text != "" {
		b = fmt.Appendf(b, " %q", e.Text)
	}
	return string(b)
}

// Recorder keeps the newest events. All methods may be called from any goroutine. The nil Recorder drops everything.
type Recorder struct {
	start time.Time

	mu        sync.Mutex
	more      sync.Cond // for followers: an event was added, or a follower's context ended
	followers int
	ring      []Event
	total     uint64 // events ever recorded; the next one goes to ring[total % len(ring)]
}

// New makes a recorder whose clock starts now and that keeps at most capacity events (0: DefaultCapacity).
func New(capacity int) *Recorder {
	if capacity <= 0 {
		capacity = DefaultCapacity
	}
	r := &Recorder{start: time.Now(), ring: make([]Event, capacity)}
	r.more.L = &r.mu
	return r
}

// Start is when the recorder was made: its clock's zero.
func (r *Recorder) Start() time.Time {
	if r == nil {
		return time.Time{}
	}
	return r.start
}

// Now is the recorder's clock: the monotonic time since it was made.
func (r *Recorder) Now() time.Duration {
	if r == nil {
		return 0
	}
	return time.Since(r.start)
}

// Record adds an event of kind k with its numbers in the order k declares them; missing ones are 0, surplus ones are dropped. It does not allocate.
func (r *Recorder) Record(k *Kind, args ...uint64) { r.add(k, "", args) }

// Note is Record with free text.
func (r *Recorder) Note(k *Kind, text string, args ...uint64) { r.add(k, text, args) }

func (r *Recorder) add(k *Kind, text string, args []uint64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	// The clock is read under the lock, so that the order of events is the order of their times.
	e := &r.ring[r.total%uint64(len(r.ring))]
	e.T, e.Kind, e.Text, e.args = time.Since(r.start), k, text, [MaxFields]uint64{}
	copy(e.args[:len(k.fields)], args)
	r.total++
	if r.followers > 0 {
		r.more.Broadcast()
	}
	r.mu.Unlock()
}

// Events is a copy of the events still held, oldest first, and how many older ones were forgotten.
func (r *Recorder) Events() (events []Event, forgotten uint64) {
	if r == nil {
		return nil, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	events, next := r.since(nil, 0)
	return events, next - uint64(len(events))
}

// since appends the held events numbered from and up, and returns the number of the next event. The caller holds mu.
func (r *Recorder) since(buf []Event, from uint64) ([]Event, uint64) {
	size := uint64(len(r.ring))
	for n := max(from, r.total-min(r.total, size)); n < r.total; n++ {
		buf = append(buf, r.ring[n%size])
	}
	return buf, r.total
}

// Stream writes every event held now and every later one to w as JSON lines, until ctx ends (then what is already recorded is still written and the error is nil)
// or a write fails. A writer too slow for the device loses events and says so with a "trace-lost" line; the device is never held up.
func (r *Recorder) Stream(ctx context.Context, w io.Writer) error {
	if r == nil {
		<-ctx.Done()
		return nil
	}
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		r.more.Broadcast()
		r.mu.Unlock()
	})
	defer stop()
	var (
		next  uint64
		batch []Event
		line  []byte
	)
	r.mu.Lock()
	r.followers++
	defer func() {
		r.followers--
		r.mu.Unlock()
	}()
	for {
		for r.total == next && ctx.Err() == nil {
			r.more.Wait()
		}
		if r.total == next {
			return nil
		}
		from := next
		batch, next = r.since(batch[:0], from)
		r.mu.Unlock()
		line = line[:0]
		if lost := next - from - uint64(len(batch)); lost > 0 {
			e := Event{T: batch[0].T, Kind: Lost, args: [MaxFields]uint64{lost}}
			line = append(e.AppendJSON(line), '\n')
		}
		for i := range batch {
			line = append(batch[i].AppendJSON(line), '\n')
		}
		_, err := w.Write(line)
		r.mu.Lock()
		if err != nil {
			return fmt.Errorf("trace: write events: %w", err)
		}
	}
}
