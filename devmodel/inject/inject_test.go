package inject_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/devmodel/trace"
)

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		rule inject.Rule
		want string // "": valid
	}{
		{inject.Rule{Step: "request:QUERY_DEV_CONFIG", Action: inject.Hold}, ""},
		{inject.Rule{Step: "request:0x20001", Action: inject.Hold, Nth: 3, Times: -1}, ""},
		{inject.Rule{Step: "response:any", Action: inject.Delay, For: time.Minute}, ""},
		{inject.Rule{Step: "smc:establish", Action: inject.Status, Status: 255}, ""},
		{inject.Rule{Step: "smc:establish", Action: inject.Alter, Field: "answer"}, ""},
		{inject.Rule{Step: "event:completion", Action: inject.Alter, Field: "owner", Value: 3}, ""},
		{inject.Rule{Step: "event:0xb0", Action: inject.Drop}, ""},
		{inject.Rule{Step: "completion:send", Action: inject.Duplicate}, ""},
		{inject.Rule{Step: "completion:fence", Action: inject.Alter, Offset: 60, Size: 4, Value: 0xffffffff}, ""},
		{inject.Rule{Step: "vector:2047", Action: inject.Drop}, ""},
		{inject.Rule{Step: "vector:any", Action: inject.Add, Vector: 3}, ""},
		{inject.Rule{Step: "register-read", Action: inject.Delay, For: inject.MaxReadDelay}, ""},
		{inject.Rule{Step: "register-read@0x18", Action: inject.Alter, Field: "value", Value: ^uint64(0)}, ""},
		{inject.Rule{Step: "register-write@0x44", Action: inject.Hold}, ""},
		{inject.Rule{Step: "config-write@0x4", Action: inject.Drop}, ""},

		{inject.Rule{Step: "vector:1", Action: inject.Drop, From: inject.FromLab}, ""},
		{inject.Rule{Step: "vector:1", Action: inject.Drop, From: "guest"}, "there are device and lab"},
		{inject.Rule{Step: "request:any", Action: inject.Drop, From: inject.FromDevice}, "only a vector is fired"},
		{inject.Rule{Step: "", Action: inject.Hold}, "no such step"},
		{inject.Rule{Step: "request", Action: inject.Hold}, "want KIND:NAME"},
		{inject.Rule{Step: "request:", Action: inject.Hold}, "neither a name"},
		{inject.Rule{Step: "request:QUERY_NOTHING", Action: inject.Hold}, "neither a name on the trace nor a number"},
		{inject.Rule{Step: "request@0x20001", Action: inject.Hold}, "want KIND:NAME"},
		{inject.Rule{Step: "request:0x100000000", Action: inject.Hold}, "neither a name"},
		{inject.Rule{Step: "answer:QUERY_DEV_CONFIG", Action: inject.Hold}, "irqlab list steps"},
		{inject.Rule{Step: "smc:create", Action: inject.Hold}, "establish, destroy, timeout"},
		{inject.Rule{Step: "event:0x100", Action: inject.Hold}, "not below 0x100"},
		{inject.Rule{Step: "vector:2048", Action: inject.Hold}, "not below 0x800"},
		{inject.Rule{Step: "vector:-1", Action: inject.Hold}, "neither a name"},
		{inject.Rule{Step: "register-read:any", Action: inject.Delay}, "want KIND:NAME"},
		{inject.Rule{Step: "register-read@", Action: inject.Delay}, "neither a name"},
		{inject.Rule{Step: "register-read", Action: inject.Hold}, "hold an smc:, request: or response: step instead"},
		{inject.Rule{Step: "config-read", Action: inject.Drop}, "gives up on the device after 5 s"},
		{inject.Rule{Step: "register-read", Action: inject.Delay, For: 3 * time.Second}, "at most 2s"},
		{inject.Rule{Step: "register-read", Action: inject.Duplicate}, "there are delay, alter, add-interrupt"},
		{inject.Rule{Step: "vector:1", Action: inject.Alter, Size: 1}, "alter is not possible at vector:1"},
		{inject.Rule{Step: "event:test", Action: inject.Status}, "status is not possible"},
		{inject.Rule{Step: "smc:destroy", Action: inject.Duplicate}, "duplicate is not possible"},
		{inject.Rule{Step: "smc:destroy", Action: inject.Status, Status: 256}, "8 bits"},
		{inject.Rule{Step: "request:any", Action: "stop"}, `unknown action "stop"; there are hold, delay`},
		{inject.Rule{Step: "request:any", Action: inject.Hold, Nth: -1}, "count from 1"},
		{inject.Rule{Step: "request:any", Action: inject.Hold, Times: -2}, "-1 for ever"},
		{inject.Rule{Step: "request:any", Action: inject.Delay}, "want more than nothing"},
		{inject.Rule{Step: "request:any", Action: inject.Add, Vector: 2048}, "0 to 2047"},
		{inject.Rule{Step: "request:any", Action: inject.Alter}, "none of 1, 2, 4 and 8; fields of request:any are code"},
		{inject.Rule{Step: "request:any", Action: inject.Alter, Field: "vports"}, `no field "vports"`},
		{inject.Rule{Step: "response:QUERY_DEV_CONFIG", Action: inject.Alter, Field: "vports", Size: 2}, "not both"},
		{inject.Rule{Step: "event:test", Action: inject.Alter, Offset: 13, Size: 4}, "at most 16"},
		{inject.Rule{Step: "event:test", Action: inject.Alter, Offset: -1, Size: 4}, "at most 16"},
		{inject.Rule{Step: "event:test", Action: inject.Alter, Offset: 1, Size: 1, Value: 256}, "does not fit in 1 bytes"},
	} {
		c.rule.Name = "r"
		err := c.rule.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s at %s: %v, want %q", c.rule.Action, c.rule.Step, err, c.want)
		}
		if added := inject.New().Add(c.rule); (added == nil) != (err == nil) {
			t.Errorf("%s at %s: Validate says %v, Add %v", c.rule.Action, c.rule.Step, err, added)
		}
	}
	if err := (inject.Rule{Step: "vector:1", Action: inject.Drop}).Validate(); err == nil {
		t.Error("a rule without a name")
	}
	if err := (inject.Rule{Name: "r", Step: "nowhere", Action: inject.Drop}).Validate(); !errors.Is(err, inject.ErrStep) {
		t.Errorf("%v is not ErrStep", err)
	}
}

// TestSteps: every step listed can be written in a rule with every action it is said to take, and with every field.
func TestSteps(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range inject.Steps() {
		if s.Text == "" || len(s.Actions) == 0 || seen[s.Name] {
			t.Errorf("%+v: empty or listed twice", s)
		}
		seen[s.Name] = true
		for _, a := range s.Actions {
			r := inject.Rule{Name: "r", Step: s.Name, Action: a, For: time.Second}
			if a == inject.Alter {
				r.Offset, r.Size = 0, 1
			}
			if err := r.Validate(); err != nil {
				t.Error(err)
			}
		}
		for i, f := range s.Fields {
			r := inject.Rule{Name: "r", Step: s.Name, Action: inject.Alter, Field: f, Value: 1<<s.Bits[i] - 1}
			if s.Bits[i] < 1 || s.Bits[i] > 64 {
				t.Errorf("%s: field %s has %d bits", s.Name, f, s.Bits[i])
			}
			if f == "length" && strings.HasPrefix(s.Name, "response:") { // of a message, which has a bound of its own
				r.Value = 4096
			}
			if err := r.Validate(); err != nil {
				t.Error(err)
			}
			if r.Value++; r.Value != 0 { // else it has all bits there are
				if err := inject.New().Add(r); !errors.Is(err, inject.ErrWide) {
					t.Errorf("%s: %s = %#x: %v; want a word on its width", s.Name, f, r.Value, err)
				}
			}
			if n := slices.Index(s.Fields, f); slices.Contains(s.Fields[n+1:], f) {
				t.Errorf("%s: field %s twice", s.Name, f)
			}
		}
		if (len(s.Fields) > 0) != slices.Contains(s.Actions, inject.Alter) {
			t.Errorf("%s: fields %v, actions %v", s.Name, s.Fields, s.Actions)
		}
	}
	for _, name := range []string{"smc:establish", "request:QUERY_DEV_CONFIG", "response:FENCE_RQ", "event:reset-request", "completion:send", "vector:any", "config-read", "register-write"} {
		if !seen[name] {
			t.Errorf("%s is not listed", name)
		}
	}
}

// A toy is a device of one lane that counts what it does.
type toy struct {
	sync.Mutex
	c    *inject.Controller
	bay  inject.Bay
	lane inject.Lane
	done []uint32
}

func newToy(t testing.TB, rules ...inject.Rule) *toy {
	d := &toy{c: inject.New()}
	d.bay.Lock = d
	for _, r := range rules {
		if err := d.c.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func (d *toy) event(n uint32, typ uint8) {
	d.Lock()
	defer d.Unlock()
	d.post(n, typ)
}

func (d *toy) post(n uint32, typ uint8) {
	if d.lane.Busy() {
		d.lane.Wait(func() { d.post(n, typ) })
		return
	}
	h := d.c.Pass(inject.Event(typ))
	put := func() {
		for range h.Copies() {
			d.done = append(d.done, n)
		}
	}
	if h.Waits() {
		d.bay.Park(h, &d.lane, put, nil)
		return
	}
	put()
}

func (d *toy) did() []uint32 {
	d.Lock()
	defer d.Unlock()
	return slices.Clone(d.done)
}

func (d *toy) reset() {
	d.Lock()
	d.bay.Clear(d.c)
	d.lane = inject.Lane{}
	d.Unlock()
}

func TestHoldAndRelease(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d := newToy(t, inject.Rule{Name: "h", Step: "event:test", Nth: 2, Action: inject.Hold})
	if err := d.c.Release("nobody"); !errors.Is(err, inject.ErrUnknown) {
		t.Error(err)
	}
	d.event(1, 64)
	if err := d.c.Release("h"); !errors.Is(err, inject.ErrNotHeld) || !strings.Contains(err.Error(), "last: event:test (1)") {
		t.Error(err)
	}
	if s := d.c.States()[0]; s.Reached || s.Held {
		t.Errorf("%+v", s)
	}
	d.event(2, 64)
	if err := d.c.AwaitHeld(ctx, "h"); err != nil {
		t.Fatal(err)
	}
	if err := d.c.Add(inject.Rule{Name: "h", Step: "event:test", Action: inject.Drop}); !errors.Is(err, inject.ErrInForce) {
		t.Error(err)
	}
	d.event(3, 64)
	d.event(4, 3)
	if got := d.did(); !slices.Equal(got, []uint32{1}) {
		t.Errorf("done while held: %v", got)
	}
	if n := d.c.Count("event:test"); n != 2 { // the third waits behind: it has not come to its step
		t.Errorf("%d test events", n)
	}
	ended := make(chan error)
	go func() { ended <- d.c.AwaitLetGo(ctx, "h") }()
	if err := d.c.Release("h"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := d.did(); !slices.Equal(got, []uint32{1, 2, 3, 4}) {
		t.Errorf("done: %v", got)
	}
	if err := d.c.Release("h"); !errors.Is(err, inject.ErrReleased) {
		t.Error(err)
	}
	if err := d.c.AwaitHeld(ctx, "h"); !errors.Is(err, inject.ErrReleased) {
		t.Error(err)
	}
	if s := d.c.States()[0]; !s.Reached || s.Hits != 1 || s.Held || !s.Released || s.Dropped {
		t.Errorf("%+v", s)
	}
	if got, want := d.c.Count("event:any"), 4; got != want {
		t.Errorf("%d events, want %d", got, want)
	}
	// The name is free again, and occurrences count anew.
	if err := d.c.Add(inject.Rule{Name: "h", Step: "event:test", Action: inject.Drop}); err != nil {
		t.Error(err)
	}
	d.event(5, 64)
	d.event(6, 64)
	if got := d.did(); !slices.Equal(got, []uint32{1, 2, 3, 4, 6}) {
		t.Errorf("done: %v", got)
	}
}

func TestResetDropsWhatIsHeld(t *testing.T) {
	rec := trace.New(0)
	d := newToy(t, inject.Rule{Name: "h", Step: "event:test", Action: inject.Hold}, inject.Rule{Name: "d", Step: "event:hwc", Action: inject.Delay, For: time.Hour})
	d.c.Attach(rec)
	d.event(1, 64)
	d.event(2, 133)
	over, end := context.WithCancel(t.Context())
	end()
	if err := d.c.AwaitLetGo(over, "h"); !errors.Is(err, context.Canceled) {
		t.Errorf("it is held still: %v", err)
	}
	d.reset()
	if err := d.c.AwaitLetGo(over, "h"); !errors.Is(err, inject.ErrDropped) {
		t.Error(err)
	}
	d.event(3, 133)
	d.reset()
	if err := d.c.Release("h"); !errors.Is(err, inject.ErrDropped) {
		t.Error(err)
	}
	if err := d.c.AwaitHeld(t.Context(), "h"); !errors.Is(err, inject.ErrDropped) {
		t.Error(err)
	}
	for _, s := range d.c.States() {
		if s.Held || !s.Dropped || s.Released {
			t.Errorf("%+v", s)
		}
	}
	d.event(4, 64)
	if got := d.did(); !slices.Equal(got, []uint32{4}) {
		t.Errorf("done: %v", got)
	}
	var texts []string
	events, _ := rec.Events()
	for _, e := range events {
		texts = append(texts, e.Kind.Name()+" "+e.Text)
	}
	want := []string{"inject h: hold event:test (occurrence 1)", "inject h: dropped by a reset", "inject d: delay event:hwc (occurrence 1)", "inject d: dropped by a reset"}
	if !slices.Equal(texts, want) {
		t.Errorf("trace %q, want %q", texts, want)
	}
}

func TestDelayDropDuplicate(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d := newToy(t,
		inject.Rule{Name: "late", Step: "event:test", Action: inject.Delay, For: time.Millisecond},
		inject.Rule{Name: "twice", Step: "event:any", Nth: 2, Times: 2, Action: inject.Duplicate},
		inject.Rule{Name: "lost", Step: "event:hwc", Times: -1, Action: inject.Drop})
	reached := make(chan error)
	go func() { reached <- d.c.Await(ctx, "event:any", 4) }()
	d.event(1, 64)
	for i, typ := range []uint8{133, 3, 133} {
		d.event(uint32(2+i), typ)
	}
	for waiting := true; waiting; { // Await may have begun only now
		select {
		case err := <-reached:
			if waiting = false; err != nil {
				t.Error(err)
			}
		default:
			d.event(9, 133)
			time.Sleep(time.Millisecond)
		}
	}
	for len(d.did()) < 3 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if got := d.did(); !slices.Equal(got, []uint32{1, 3, 3}) {
		t.Errorf("done: %v", got)
	}
	if err := d.c.Release("late"); !errors.Is(err, inject.ErrNotHeld) {
		t.Error(err)
	}
	if err := d.c.AwaitHeld(ctx, "lost"); !errors.Is(err, inject.ErrNotHeld) {
		t.Error(err)
	}
}

// A rule for one origin leaves the other's firings alone, and any rule can be ended.
func TestOriginAndEnd(t *testing.T) {
	c := inject.New()
	for _, r := range []inject.Rule{
		{Name: "device", Step: "vector:1", Action: inject.Drop, Times: -1, From: inject.FromDevice},
		{Name: "lab", Step: "vector:2", Action: inject.Drop, Times: -1, From: inject.FromLab},
	} {
		if err := c.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	copies := func() string {
		var out []string
		for _, p := range []inject.Point{inject.Vector(1), inject.LabVector(1), inject.Vector(2), inject.LabVector(2)} {
			out = append(out, fmt.Sprint(c.Pass(p).Copies()))
		}
		return strings.Join(out, " ")
	}
	if got := copies(); got != "0 1 1 0" {
		t.Errorf("copies %s; the device's of 1 and the lab's of 2 are to be dropped", got)
	}
	if err := c.End("device"); err != nil {
		t.Error(err)
	}
	if got := copies(); got != "1 1 1 0" {
		t.Errorf("after the end of one rule: copies %s", got)
	}
	if n := c.Count("vector:1"); n != 4 {
		t.Errorf("vector:1 was counted %d times, whoever fired it, want 4", n)
	}
	for name, want := range map[string]error{"device": inject.ErrOver, "nobody": inject.ErrUnknown} {
		if err := c.End(name); !errors.Is(err, want) || want == inject.ErrOver && !strings.Contains(err.Error(), "it was ended before") {
			t.Errorf("end %s: %v, want %v", name, err, want)
		}
	}
	if err := c.Add(inject.Rule{Name: "unmet", Step: "vector:7", Action: inject.Hold}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.End("unmet"), c.Release("unmet")); !errors.Is(err, inject.ErrNotHeld) || !strings.Contains(err.Error(), "taken out of force") {
		t.Errorf("release of a hold that was ended before anything came to it: %v", err)
	}
	if err := (*inject.Controller)(nil).End("x"); !errors.Is(err, inject.ErrUnknown) {
		t.Errorf("without a controller: %v", err)
	}
	// What a hold or a delay keeps goes on.
	var bay inject.Bay
	bay.Lock = new(sync.Mutex)
	for _, r := range []inject.Rule{{Name: "hold", Step: "vector:3", Action: inject.Hold}, {Name: "delay", Step: "vector:4", Action: inject.Delay, For: time.Hour}} {
		if err := c.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	went := make(chan int, 2)
	for _, v := range []int{3, 4} {
		h := c.Pass(inject.LabVector(v))
		bay.Lock.Lock()
		bay.Park(h, nil, func() { went <- v }, nil)
		bay.Lock.Unlock()
	}
	for v, name := range map[int]string{3: "hold", 4: "delay"} {
		if err := c.End(name); err != nil {
			t.Error(err)
		}
		if got := <-went; got != v {
			t.Errorf("after the end of %s vector %d went on", name, got)
		}
	}
}

func TestWhatIsAwaitedIsNamed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	d := newToy(t, inject.Rule{Name: "h", Step: "request:QUERY_DEV_CONFIG", Nth: 2, Action: inject.Hold})
	if p := d.c.Progress(); !strings.Contains(p, "last: none") {
		t.Error(p)
	}
	for range 9 {
		d.c.Pass(inject.Event(130))
	}
	d.c.Pass(inject.Request(0x20001))
	d.c.Pass(inject.RegisterRead(0x44))
	if p, want := d.c.Progress(), "last: event:init-data (9), request:QUERY_DEV_CONFIG (1)"; p != want {
		t.Errorf("progress %q, want %q", p, want)
	}
	err := d.c.AwaitHeld(ctx, "h")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "hold at request:QUERY_DEV_CONFIG (occurrence 2) not reached in") ||
		!strings.Contains(err.Error(), "1 passed") || !strings.Contains(err.Error(), "last: event:init-data (9)") {
		t.Error(err)
	}
	if err := d.c.Await(ctx, "vector:3", 2); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "step vector:3: reached 0 of 2 times") {
		t.Error(err)
	}
	if err := d.c.Await(ctx, "vector:many", 1); !errors.Is(err, inject.ErrStep) {
		t.Error(err)
	}
	if n := d.c.Count("register-read"); n != 1 {
		t.Errorf("%d reads", n)
	}
	if n := d.c.Count("register-read@0x44") + d.c.Count("register-read@0x40") + d.c.Count("nonsense"); n != 1 {
		t.Errorf("%d reads there", n)
	}
}

func TestNilController(t *testing.T) {
	var c *inject.Controller
	h := c.Pass(inject.Vector(1))
	if h.Waits() || h.Copies() != 1 || h.Vectors() != nil || h.Sleep(time.Second) != time.Second {
		t.Error("the nil controller does something")
	}
	c.Attach(nil)
	c.Clear()
	if c.Release("x") == nil || c.AwaitHeld(t.Context(), "x") == nil || c.Await(t.Context(), "vector:1", 1) == nil || c.Count("vector:1") != 0 || c.States() != nil || c.Progress() == "" {
		t.Error("the nil controller knows something")
	}
}

// TestConcurrentUse holds, releases, resets and clears from several goroutines; in the end everything is let go and the device works.
func TestConcurrentUse(t *testing.T) {
	d := newToy(t)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 120 {
				name := fmt.Sprint("r", g, i)
				_ = d.c.Add(inject.Rule{Name: name, Step: "event:any", Nth: 1 + i%3, Times: 1 + i%2, Action: []inject.Action{inject.Hold, inject.Delay, inject.Duplicate}[i%3], For: 10 * time.Microsecond})
				d.event(uint32(i), 64)
				_ = d.c.Release(name)
				switch i % 50 {
				case 20:
					d.reset()
				case 40:
					d.c.Clear()
				}
				_ = d.c.Progress()
				_ = d.c.States()
			}
		}()
	}
	wg.Wait()
	d.c.Clear()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for { // a delay that was under way ends by itself
		d.Lock()
		busy := d.lane.Busy()
		d.Unlock()
		if !busy {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("something is still held: %+v", d.c.States())
		}
		time.Sleep(time.Millisecond)
	}
	n := len(d.did())
	d.event(1, 64)
	if len(d.did()) != n+1 {
		t.Error("the device does nothing any more")
	}
	for _, s := range d.c.States() {
		if s.Held {
			t.Errorf("%+v", s)
		}
	}
}

func TestAlter(t *testing.T) {
	c := inject.New()
	for i, r := range []inject.Rule{
		{Field: "type", Value: 42},  // six bits of byte 0
		{Field: "owner", Value: 7},  // the upper three of byte 3
		{Field: "far", Value: 1},    // beyond the end
		{Field: "absent", Value: 1}, // nowhere
		{Offset: 1, Size: 2, Value: 0x1234},
	} {
		r.Name, r.Step, r.Action = fmt.Sprint(i), "completion:send", inject.Alter
		switch r.Field {
		case "far":
			r.Field = "wqe_offset"
		case "absent":
			r.Field = "wq"
		}
		if err := c.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	b := []byte{0x60, 0, 0, 1}
	c.Pass(inject.CompletionSend).Alter(b, func(f string) (inject.Place, bool) {
		p, ok := map[string]inject.Place{"type": {Width: 6}, "owner": {Bit: 29, Width: 3}, "wqe_offset": inject.Bytes(8, 4)}[f]
		return p, ok
	})
	if want := []byte{0x6a, 0x34, 0x12, 0xe1}; !slices.Equal(b, want) {
		t.Errorf("altered to % x, want % x", b, want)
	}
}

func BenchmarkPass(b *testing.B) {
	c, other := inject.New(), inject.New()
	if err := other.Add(inject.Rule{Name: "r", Step: "completion:fence", Action: inject.Hold}); err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]*inject.Controller{"nil": nil, "no rule": c, "rule for another step": other} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if c.Pass(inject.CompletionSend) != nil {
					b.Fatal("hit")
				}
			}
		})
	}
}

func FuzzRule(f *testing.F) {
	f.Add("request:QUERY_DEV_CONFIG", "alter", "size", 1, 1, 0, 0, int64(0), uint64(5))
	f.Add("register-read@0x18", "delay", "", 1, -1, 0, 4, int64(5), uint64(0))
	f.Fuzz(func(t *testing.T, step, action, field string, nth, times, offset, size int, wait int64, value uint64) {
		r := inject.Rule{Name: "r", Step: step, Nth: nth, Times: times, Action: inject.Action(action), For: time.Duration(wait), Field: field, Offset: offset, Size: size, Value: value}
		err := r.Validate()
		if added := inject.New().Add(r); (added == nil) != (err == nil) {
			t.Errorf("Validate %v, Add %v", err, added)
		}
		if n := inject.New().Count(step); n != 0 {
			t.Errorf("%d occurrences of nothing", n)
		}
	})
}

// TestCountsDoNotMix: steps are counted apart although request codes are folded into one table.
func TestCountsDoNotMix(t *testing.T) {
	c := inject.New()
	for i, p := range []inject.Point{inject.Request(5), inject.Request(0x20005), inject.Request(0x105), inject.Request(0x1ff), inject.Request(0x30005), inject.Response(5), inject.RegisterWrite(5)} {
		for range i + 1 {
			c.Pass(p)
		}
	}
	for step, want := range map[string]int{"request:5": 1, "request:DEREGISTER_DEVICE": 1, "request:DESTROY_WQ_OBJ": 2, "request:0x105": 3, "request:0x1ff": 4, "request:0x30005": 5,
		"response:5": 6, "register-write@5": 7, "request:any": 15, "request:6": 0} {
		if n := c.Count(step); n != want {
			t.Errorf("%s: %d, want %d", step, n, want)
		}
	}
	for off := range uint64(10_000) { // a guest that writes everywhere
		c.Pass(inject.RegisterWrite(off))
	}
	if n := c.Count("register-write"); n != 10_007 {
		t.Errorf("%d writes", n)
	}
}
