package inject

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"irqlab/devmodel/trace"
)

// traceInject is a rule at work on the timeline.
var traceInject = trace.NewKind("inject")

// Errors of Release, AwaitHeld, AwaitLetGo and End.
var (
	ErrUnknown  = errors.New("there is no such rule")
	ErrNotHeld  = errors.New("nothing is held")
	ErrReleased = errors.New("it has been released before")
	ErrDropped  = errors.New("what it held was dropped by a reset")
	ErrInForce  = errors.New("a rule of that name is in force")
	ErrOver     = errors.New("it is over already")
)

const (
	maxSparse = 4096 // registers and unknown codes counted one by one: they are the guest's choice
	maxRecent = 8
)

// Controller has the rules of one function. The nil Controller has none and can have none; Pass costs it nothing. Methods may be called from any goroutine.
type Controller struct {
	mu      sync.Mutex
	rec     *trace.Recorder
	rules   []*rule // all there have been
	live    [kinds][]*rule
	counts  Counts
	recent  [maxRecent]occurrence // the last steps, a ring; no accesses, since a driver polls, and repeated ones once
	passed  int                   // how many ever went into it
	waiters []*waiter
	changed chan struct{} // closed when a rule's state has changed
}

type rule struct {
	Rule
	at       pattern
	seen     int
	hits     int
	parked   []*Hit
	released bool
	dropped  bool
	removed  bool
}

// over says whether the rule is for no occurrence any more.
func (r *rule) over() bool { return r.removed || r.Times >= 0 && r.seen >= r.Nth+r.Times-1 }

// occurrence is the n-th time a step was reached.
type occurrence struct {
	Point
	n int
}

type waiter struct {
	at   pattern
	left int
	done chan struct{}
}

// Counts are how often each step was reached, up to a moment.
type Counts struct {
	dense  [kinds][]int
	sparse map[Point]int
	totals [kinds]int
}

// Of is how often a step has been reached, 0 for a step there is not. Of registers and of unknown codes the first few thousand are counted.
func (c Counts) Of(step string) int {
	at, err := parse(step)
	if err != nil || c.sparse == nil {
		return 0
	}
	if at.any {
		return c.totals[at.kind]
	}
	if i, ok := at.place(); ok {
		return c.dense[at.kind][i]
	}
	return c.sparse[at.Point]
}

// New makes a controller without rules.
func New() *Controller {
	c := &Controller{counts: Counts{sparse: map[Point]int{}}, changed: make(chan struct{})}
	for k, n := range denseSizes {
		c.counts.dense[k] = make([]int, n)
	}
	return c
}

// Attach says where rules at work are recorded. The device calls it.
func (c *Controller) Attach(rec *trace.Recorder) {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.rec = rec
	c.mu.Unlock()
}

// Add puts a rule in force. Occurrences count from now.
func (c *Controller) Add(r Rule) error {
	if err := r.Validate(); err != nil {
		return err
	}
	at, _ := parse(r.Step)
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.rule(r.Name); old != nil && (!old.over() || len(old.parked) > 0) {
		return fmt.Errorf("rule %q: %w, at %s", r.Name, ErrInForce, old.Step)
	}
	r.Nth = max(r.Nth, 1)
	if r.Times == 0 {
		r.Times = 1
	}
	n := &rule{Rule: r, at: at}
	c.rules = append(c.rules, n)
	c.live[at.kind] = append(c.live[at.kind], n)
	return nil
}

// rule is the newest rule of a name. The caller holds mu.
func (c *Controller) rule(name string) *rule {
	for _, r := range slices.Backward(c.rules) {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// change wakes those that wait for a rule's state. The caller holds mu.
func (c *Controller) change() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Controller) note(r *rule, format string, args ...any) {
	c.rec.Note(traceInject, r.Name+": "+fmt.Sprintf(format, args...))
}

// Pass says that the device has come to a step, and tells what the rules make of it: nil where none applies, which is the usual case and allocates nothing. A device calls it
// once for each occurrence and in their order.
func (c *Controller) Pass(p Point) *Hit {
	if c == nil {
		return nil
	}
	return c.pass(p)
}

func (c *Controller) pass(p Point) (h *Hit) {
	c.mu.Lock()
	n := c.count(p)
	if !p.kind.access() {
		if c.passed == 0 || c.recent[(c.passed-1)%maxRecent].Point != p {
			c.passed++
		}
		c.recent[(c.passed-1)%maxRecent] = occurrence{p, n}
	}
	if len(c.waiters) > 0 {
		c.waiters = slices.DeleteFunc(c.waiters, func(w *waiter) bool {
			if !w.at.matches(p) {
				return false
			}
			if w.left--; w.left == 0 {
				close(w.done)
			}
			return w.left == 0
		})
	}
	if len(c.live[p.kind]) > 0 {
		h = c.apply(p)
	}
	c.mu.Unlock()
	return h
}

// place is where in dense a step is counted; false for those that are rare, or the guest's choice, and are counted in a map.
func (p Point) place() (int, bool) {
	n := int(p.n)
	if p.kind == kindRequest || p.kind == kindResponse {
		switch n >> 8 { // MANA's codes follow GDMA's
		case 0:
		case 0x200:
			n = n&0xff | 0x100
		default:
			return 0, false
		}
	}
	return n, n < denseSizes[p.kind]
}

var denseSizes = [kinds]int{kindSMC: 8, kindRequest: 0x200, kindResponse: 0x200, kindEvent: 256, kindCompletion: 8, kindVector: 2048}

// count counts a step, and says which occurrence this is. The caller holds mu.
func (c *Controller) count(p Point) int {
	c.counts.totals[p.kind]++
	if i, ok := p.place(); ok {
		c.counts.dense[p.kind][i]++
		return c.counts.dense[p.kind][i]
	}
	n, ok := c.counts.sparse[p]
	if ok || len(c.counts.sparse) < maxSparse {
		c.counts.sparse[p] = n + 1
	}
	return n + 1
}

// apply asks the rules. The caller holds mu.
func (c *Controller) apply(p Point) (h *Hit) {
	over := false
	for _, r := range c.live[p.kind] {
		if !r.at.matches(p) || r.From != "" && (r.From == FromLab) != p.lab {
			continue
		}
		if r.seen++; r.seen < r.Nth {
			continue
		}
		r.hits++
		over = over || r.over()
		c.note(r, "%s %s (occurrence %d)", r.Action, p, r.seen)
		if h == nil {
			h = &Hit{c: c, copies: 1}
		}
		switch r.Action {
		case Hold, Delay:
			h.waits = append(h.waits, r)
		case Drop:
			h.dropped = true
		case Duplicate:
			h.copies++
		default:
			h.rules = append(h.rules, r)
		}
	}
	if over {
		c.live[p.kind] = slices.DeleteFunc(c.live[p.kind], (*rule).over)
	}
	if h != nil {
		c.change()
	}
	return h
}

// AwaitHeld waits until a rule holds something. Its error says how far the device got.
func (c *Controller) AwaitHeld(ctx context.Context, name string) error {
	start := time.Now()
	return c.await(ctx, name, func(r *rule) (bool, error) {
		switch {
		case len(r.parked) > 0 && r.Action == Hold:
			return true, nil
		case r.Action != Hold:
			return false, fmt.Errorf("%w: its action is %s", ErrNotHeld, r.Action)
		case r.over() && r.dropped:
			return false, ErrDropped
		case r.over() && r.released:
			return false, ErrReleased
		case r.removed:
			return false, fmt.Errorf("%w: it was taken out of force", ErrNotHeld)
		case ctx.Err() != nil:
			return false, fmt.Errorf("hold at %s (occurrence %d) not reached in %s, %d passed: %w; %s",
				r.Step, r.Nth, time.Since(start).Round(time.Millisecond), r.seen, ctx.Err(), c.progress())
		}
		return false, nil
	})
}

// AwaitLetGo waits until a rule no longer holds anything. Its error is ErrDropped if that was a reset's doing.
func (c *Controller) AwaitLetGo(ctx context.Context, name string) error {
	return c.await(ctx, name, func(r *rule) (bool, error) {
		switch {
		case len(r.parked) > 0:
			return false, ctx.Err()
		case r.dropped && !r.released:
			return false, ErrDropped
		}
		return true, nil
	})
}

// await looks at a rule, with mu held, whenever one's state has changed, until look is done or ctx is, which is look's to tell.
func (c *Controller) await(ctx context.Context, name string, look func(*rule) (done bool, err error)) error {
	if c == nil {
		return fmt.Errorf("rule %q: %w", name, ErrUnknown)
	}
	for {
		c.mu.Lock()
		r, changed := c.rule(name), c.changed
		done, err := false, ErrUnknown
		if r != nil {
			done, err = look(r)
		}
		c.mu.Unlock()
		switch {
		case err != nil:
			return fmt.Errorf("rule %q: %w", name, err)
		case done:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// Release lets go all that a rule holds: the device goes on from there before Release returns.
func (c *Controller) Release(name string) error {
	if c == nil {
		return fmt.Errorf("rule %q: %w", name, ErrUnknown)
	}
	c.mu.Lock()
	r := c.rule(name)
	var err error
	switch {
	case r == nil:
		err = ErrUnknown
	case r.Action != Hold:
		err = fmt.Errorf("%w: its action is %s", ErrNotHeld, r.Action)
	case len(r.parked) > 0:
	case r.dropped:
		err = ErrDropped
	case r.released && r.over():
		err = ErrReleased
	case r.removed:
		err = fmt.Errorf("%w: it was taken out of force", ErrNotHeld)
	default:
		err = fmt.Errorf("%w at %s (occurrence %d), %d passed; %s", ErrNotHeld, r.Step, r.Nth, r.seen, c.progress())
	}
	if err != nil {
		c.mu.Unlock()
		return fmt.Errorf("release rule %q: %w", name, err)
	}
	c.release(r)
	return nil
}

// release takes mu and gives it back: what goes on asks the controller itself.
func (c *Controller) release(r *rule) {
	parked := r.parked
	r.parked, r.released = nil, true
	c.note(r, "released")
	c.change()
	c.mu.Unlock()
	for _, h := range parked {
		h.arrive()
	}
}

// End takes a rule out of force, and lets go what it holds or delays: the device goes on from there before End returns.
func (c *Controller) End(name string) error {
	if c == nil {
		return fmt.Errorf("rule %q: %w", name, ErrUnknown)
	}
	c.mu.Lock()
	r := c.rule(name)
	switch {
	case r == nil:
		c.mu.Unlock()
		return fmt.Errorf("end rule %q: %w", name, ErrUnknown)
	case r.over() && len(r.parked) == 0:
		c.mu.Unlock()
		return fmt.Errorf("end rule %q: %w: %s", name, ErrOver, r.ended())
	}
	r.removed = true
	c.live[r.at.kind] = slices.DeleteFunc(c.live[r.at.kind], (*rule).over)
	if len(r.parked) > 0 {
		for _, h := range r.parked {
			for _, t := range h.timers {
				t.Stop()
			}
		}
		c.release(r)
		return nil
	}
	c.note(r, "ended")
	c.change()
	c.mu.Unlock()
	return nil
}

// ended says how a rule came to be over.
func (r *rule) ended() string {
	switch {
	case r.dropped:
		return "a reset has dropped what it held"
	case r.released:
		return "what it held was released"
	case r.removed:
		return "it was ended before"
	}
	return "it was applied at " + r.Step + " as often as it was to be"
}

// Clear takes every rule out of force and lets go what they hold.
func (c *Controller) Clear() {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.live = [kinds][]*rule{}
	all := slices.Clone(c.rules)
	for _, r := range all {
		r.removed = true
	}
	c.change()
	c.mu.Unlock()
	for _, r := range all {
		if c.mu.Lock(); len(r.parked) > 0 {
			c.release(r)
		} else {
			c.mu.Unlock()
		}
	}
}

// Await waits until a step has been reached n times from now.
func (c *Controller) Await(ctx context.Context, step string, n int) error {
	at, err := parse(step)
	if err != nil || n < 1 {
		return err
	}
	if c == nil {
		return fmt.Errorf("step %s: the device has no controller", step)
	}
	w := &waiter{at, n, make(chan struct{})}
	start := time.Now()
	c.mu.Lock()
	c.waiters = append(c.waiters, w)
	c.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.left == 0 {
		return nil
	}
	c.waiters = slices.DeleteFunc(c.waiters, func(x *waiter) bool { return x == w })
	return fmt.Errorf("step %s: reached %d of %d times in %s: %w; %s", step, n-w.left, n, time.Since(start).Round(time.Millisecond), ctx.Err(), c.progress())
}

// Count is how often a step has been reached since the controller was made; see Counts.Of.
func (c *Controller) Count(step string) int {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts.Of(step)
}

// Now is what has been counted up to now.
func (c *Controller) Now() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := Counts{sparse: maps.Clone(c.counts.sparse), totals: c.counts.totals}
	for k := range c.counts.dense {
		now.dense[k] = slices.Clone(c.counts.dense[k])
	}
	return now
}

// Progress is the last steps the device has reached, with how often each has been so far; accesses are left out, since a driver polls.
func (c *Controller) Progress() string {
	if c == nil {
		return "last: unknown, the device has no controller"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.progress()
}

func (c *Controller) progress() string {
	if c.passed == 0 {
		return fmt.Sprintf("last: none; the guest made %d accesses to configuration space and %d to registers",
			c.counts.totals[kindConfigRead]+c.counts.totals[kindConfigWrite], c.counts.totals[kindRegisterRead]+c.counts.totals[kindRegisterWrite])
	}
	var s []string
	for i := max(0, c.passed-maxRecent); i < c.passed; i++ {
		s = append(s, fmt.Sprintf("%s (%d)", c.recent[i%maxRecent].Point, c.recent[i%maxRecent].n))
	}
	return "last: " + strings.Join(s, ", ")
}

// RuleState is a rule and what has become of it.
type RuleState struct {
	Rule
	Reached  bool // its step's Nth occurrence has come
	Hits     int  // occurrences it was applied to
	Held     bool // it holds something now
	Waits    bool // something waits for it now, be it to be released or for the time to pass
	Released bool // what it held was let go
	Dropped  bool // what it held was dropped by a reset
}

// States are all rules there have been, in the order in which they were added.
func (c *Controller) States() []RuleState {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var s []RuleState
	for _, r := range c.rules {
		s = append(s, RuleState{r.Rule, r.hits > 0, r.hits, r.Action == Hold && len(r.parked) > 0, len(r.parked) > 0, r.Action == Hold && r.released, r.dropped})
	}
	return s
}
