package truth

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"irqlab/guestagent/cpulist"
)

// Outcomes.
const (
	pass   = "pass"
	fail   = "fail"
	failed = "error" // of the lab's
	// observed: nothing is wrong, and nothing was expected.
	observed = "observed"
)

// withheld begins a reason not to blame the guest though something is wrong: the machine stood still, or what was booted is damaged. No fact of the guest tells of that.
const withheld = "nobody can be blamed: "

// Class is why a case does not pass.
type Class string

// The classes. Those that end a case hide what else was wrong with it.
const (
	classLab       Class = "the lab could not tell"    // ends
	classLost      Class = "an interrupt was lost"     // ends
	classRoom      Class = "no room for a vector"      // ends, in steps
	classRefused   Class = "a step was refused"        // ends
	classDriver    Class = "the driver's probe failed" // ends
	classAllowed   Class = "a step was not refused"
	classWarning   Class = "a warning in the log"
	classDropped   Class = "a mask was not kept"
	classKept      Class = "a mask was kept" // that was to be dropped
	classPending   Class = "outside of its mask"
	classElsewhere Class = "handled elsewhere"
	classUnsettled Class = "handled nowhere"
	classOffline   Class = "routed to an offline CPU"
	classStorm     Class = "a storm's counts"
	classUnreached Class = "a rule that never was hit"
	classLeft      Class = "the driver left things"
	classOnline    Class = "expected other CPUs online"
	classVectors   Class = "expected other vectors"
	classWithin    Class = "expected within"
	classClustered Class = "expected clustered"
	classIdle      Class = "expected idle CPUs"
	classOwn       Class = "expected own CPUs"
	classHWC       Class = "expected the HWC elsewhere"
	classQueues    Class = "expected the queues elsewhere"
)

// Verdict is an outcome with its reasons.
type Verdict struct {
	Outcome string
	Why     map[Class][]string
	ended   Class    // what ended the case before its time
	Odd     []string // what contradicts itself, or the definition, whatever the outcome
}

func (v *Verdict) say(c Class, format string, args ...any) {
	v.Why[c] = append(v.Why[c], fmt.Sprintf(format, args...))
}

func (v *Verdict) odd(format string, args ...any) {
	v.Odd = append(v.Odd, fmt.Sprintf(format, args...))
}

// judge goes through a case once more.
type judge struct {
	Verdict
	c     *Case
	f     *Facts
	claim *Claim
	first map[int]Vector // of the kernel's driver: the reading that showed first what is requested now, by vector
}

// Judge says what the outcome ought to be, from the facts. The claim is only held against what was found, never believed.
func Judge(c *Case, f *Facts, claim *Claim) Verdict {
	j := &judge{Verdict{Why: map[Class][]string{}}, c, f, claim, map[int]Vector{}}
	j.calls()
	j.log()
	j.observations()
	j.storms()
	j.rules()
	j.device()
	j.claimed()
	switch {
	case len(j.Why[classLab]) > 0:
		j.Outcome = failed
	case len(j.Why) > 0:
		j.Outcome = fail
	case c.states():
		j.Outcome = pass
	default:
		j.Outcome = observed
	}
	return j.Verdict
}

// states reports whether the case expects anything.
func (c *Case) states() bool {
	stated := c.LogAny || len(c.Want.keys()) > 0
	each(c.Steps, func(s *Step) {
		stated = stated || s.Refused != "" || s.Want != nil || s.Verb == "storm" || s.Verb == "wait-for"
	})
	return stated
}

// end notes what ended the case.
func (j *judge) end(c Class, format string, args ...any) {
	if j.ended == "" {
		j.ended = c
		j.say(c, format, args...)
	}
}

// each goes through steps, those side by side included.
func each(steps []Step, f func(*Step)) {
	for i := range steps {
		f(&steps[i])
		for _, b := range steps[i].Together {
			each(b, f)
		}
	}
}

var (
	probeFailed  = regexp.MustCompile(`mana .*probe with driver mana failed with error|mana: probe of .* failed with error`)
	kernelsWords = regexp.MustCompile(`no space left on device|device or resource busy|protocol error|invalid argument|input/output error|connection timed out|operation not permitted|cannot allocate memory|resource temporarily unavailable`)
)

// mayFail tells the calls to the guest that ask it for something it may refuse.
func mayFail(text string) string {
	for _, method := range []string{"cpu.set", "cpu.storm", "link.set", "module.load", "module.unload"} {
		if strings.HasPrefix(text, method+": ") {
			return method
		}
	}
	return ""
}

// calls goes through what the lab asked of the guest, and finds out what ended the case, if anything did.
func (j *judge) calls() {
	refusable := map[string]string{"up": "link.set", "down": "link.set", "unload": "module.unload", "offline": "cpu.set", "online": "cpu.set"}
	allowed := map[string]int{} // refusals that the case wants, by method
	refused := map[string]int{}
	probe := false // may fail
	each(j.c.Steps, func(s *Step) {
		switch {
		case s.Refused == "":
		case s.Verb == "probe":
			probe = true
		case s.Verb != "vectors":
			allowed[refusable[s.Verb]]++
		}
	})
	for _, e := range j.f.Trace {
		if e.Kind != "agent-call" || e.Failed == 0 {
			continue
		}
		method := mayFail(e.Text)
		switch {
		case strings.HasPrefix(e.Text, "pressure.occupy: "):
			j.end(classLab, "the pressure could not be brought up: %s", e.Text)
		case strings.HasPrefix(e.Text, "irq.await") && strings.Contains(e.Text, "no new interrupt within"):
			j.end(classLost, "%s", e.Text)
		case method != "" && refused[method] < allowed[method]:
			refused[method]++
		case method == "link.set" && strings.Contains(e.Text, "channels"):
			// more than the driver has: then it is the driver's number that counts
		case method != "" && kernelsWords.MatchString(e.Text):
			j.end(classRefused, "%s", e.Text)
		default:
			j.end(classLab, "a call failed: %s", e.Text)
		}
	}
	failedProbe := slices.ContainsFunc(j.f.Log, probeFailed.MatchString)
	switch {
	case failedProbe && !probe:
		j.end(classDriver, "the driver's probe failed")
	case !failedProbe && probe && j.ended == "":
		j.say(classAllowed, "probe")
	}
	for method, n := range allowed {
		if refused[method] < n && j.ended == "" {
			j.say(classAllowed, "%s: refused %d times, expected %d", method, refused[method], n)
		}
	}
	j.room()
}

// room compares the vectors that came to be with those that the case wants.
func (j *judge) room() {
	if j.c.Driver != "vfio" {
		return
	}
	began, want := false, false
	each(j.c.Steps, func(s *Step) { want = want || s.Verb == "vectors" && s.Refused != "" })
	there := map[int]bool{}
	for _, e := range j.f.Trace {
		switch {
		case e.Kind == "vector-assign":
			there[e.Vector] = true
		case e.Kind == "step" && e.Text == "adding the queue vectors":
			began = true
		case e.Kind == "step" && e.Text == "adding the HWC vector":
			began = began || j.ended == "" // so it must come through, or something says why not
		}
	}
	switch {
	case !began:
		if j.ended == "" {
			j.end(classLab, "the lab never came to add vectors")
		}
	case len(there) < j.c.Vectors && want:
	case len(there) < j.c.Vectors && j.c.Steps == nil && len(there) > 0:
		j.say(classRoom, "%d vectors of %d", len(there), j.c.Vectors)
	case len(there) < j.c.Vectors:
		j.end(classRoom, "%d vectors of %d", len(there), j.c.Vectors)
	case want && j.ended == "":
		j.say(classAllowed, "all %d vectors came to be", j.c.Vectors)
	}
}

// trouble is what no kernel says that is well.
var trouble = regexp.MustCompile(`\bWARNING: |\bBUG: |kernel BUG at|Oops: |general protection fault|Kernel panic|INFO: task .* blocked for more than|rcu.*detected.*stall|nobody cared|No irq handler for vector|` +
	`UBSAN: |Unable to handle|hard LOCKUP|DEBUG_LOCKS_WARN_ON|int3: |Hardware Error`)

// ownNMI is how a guest ends that the lab has sent an NMI, to have it say where it hangs: no trouble of the kernel's.
const ownNMI = "Kernel panic - not syncing: NMI: Not continuing"

func (j *judge) log() {
	for _, line := range j.f.Log {
		if trouble.MatchString(line) && !strings.Contains(line, ownNMI) && !j.c.LogAny {
			j.say(classWarning, "%s", line)
		}
	}
}

// looked is an observation that the case makes.
type looked struct {
	label   string
	settled bool
	want    Want
	online  cpulist.List
	left    cpulist.List // CPUs that left after the queues' masks were asked for
	leftHWC cpulist.List // after the HWC's was
	storms  bool         // or anything else after which handled need not be fired
	moved   bool         // CPUs left or came in the steps before
}

// plan walks through the case's steps and says what it looks at, and how things stand then.
func (j *judge) plan() []looked {
	online := j.c.Machine.all().Minus(j.c.Offline)
	if j.c.Steps == nil {
		return []looked{{label: "settled", settled: true, want: j.c.Want, online: online}}
	}
	var out []looked
	var left, leftHWC cpulist.List
	settled, probed, asked, storms, moved := false, j.c.Driver == "mana", j.c.Driver == "mana", false, false
	each(j.c.Steps, func(s *Step) {
		was := settled
		settled = false
		switch s.Verb {
		case "probe":
			probed = true
		case "vectors":
			asked = true
		case "offline":
			online = online.Minus(s.CPUs)
			moved = true
			if probed {
				leftHWC = leftHWC.Or(s.CPUs)
			}
			if asked {
				left = left.Or(s.CPUs)
			}
		case "online":
			online = online.Or(s.CPUs)
			moved = true
		case "storm", "duplicate", "add-interrupt":
			storms = true
		case "settle":
			settled = true
		case "observe":
			out = append(out, looked{s.Name, was, Want{}, online, left, leftHWC, storms, moved})
		case "expect":
			out[len(out)-1].want = *s.Want
		}
	})
	return out
}

func (j *judge) observations() {
	planned := j.plan()
	seen := j.f.Observations
	if n := len(seen); n > 0 && seen[n-1].Label == "after-refusal" {
		seen = seen[:n-1]
	}
	if len(seen) > len(planned) {
		j.odd("%d observations, and the case makes %d", len(seen), len(planned))
		return
	}
	if len(seen) < len(planned) && j.ended == "" {
		j.odd("%d observations, and the case makes %d, and nothing ended it", len(seen), len(planned))
	}
	from := 0
	for i := range seen {
		o, p := &seen[i], planned[i]
		if o.Label != p.label {
			j.odd("observation %d is %q, not %q", i, o.Label, p.label)
		}
		from = j.observation(i, p, from)
	}
}

// assigned is how many of its vectors the device had been given somebody to signal for at a place in the trace.
func (j *judge) assigned(before int) int {
	there := map[int]bool{}
	for _, e := range j.f.Trace[:before] {
		switch e.Kind {
		case "vector-assign":
			there[e.Vector] = true
		case "vector-deassign":
			delete(there, e.Vector)
		}
	}
	return len(there)
}

// observation judges the n-th; from is where in the trace to look for it on, and what is returned where to look for the next.
func (j *judge) observation(n int, p looked, from int) int {
	o, said := &j.f.Observations[n], &j.claim.Observations[n]
	if !slices.Equal(o.Online, p.online) {
		j.odd("%s: CPUs %s are online, and by the steps it ought to be %s", o.Label, o.Online, p.online)
	}
	w := &p.want
	at, next := map[int]int{}, from
	for i := from; i < len(j.f.Trace) && len(at) < len(o.Vectors); i++ {
		if e := &j.f.Trace[i]; e.Kind == "vector-masks" {
			if _, twice := at[e.Vector]; twice {
				break
			}
			at[e.Vector], next = i, i+1
		}
	}
	if there := j.assigned(next); len(o.Vectors) > there || j.c.Driver == "vfio" && len(o.Vectors) < there {
		j.odd("%s: %d vectors, and the device has %d", o.Label, len(o.Vectors), there)
	}
	if w.Online != nil && !slices.Equal(o.Online, w.Online) {
		j.say(classOnline, "%s: %s, not %s", o.Label, o.Online, w.Online)
	}
	if w.Vectors > 0 && len(o.Vectors) != w.Vectors {
		j.say(classVectors, "%s: %d, not %d", o.Label, len(o.Vectors), w.Vectors)
	}
	load := map[int]int{} // queue vectors by CPU
	var queues []cpulist.List
	for k, v := range o.Vectors {
		switch v.Role {
		case "queue":
			queues = append(queues, v.Effective)
			for _, c := range v.Effective {
				load[c]++
			}
			if w.Within != nil && len(v.Effective.Minus(w.Within)) > 0 {
				j.say(classWithin, "%s: vector %d on %s, not within %s", o.Label, v.Index, v.Effective, w.Within)
			}
		case "hwc":
			if w.HWC != nil && !slices.Equal(v.Effective, *w.HWC) {
				j.say(classHWC, "%s: on %s, not %s", o.Label, v.Effective, w.HWC)
			}
		}
		if out := v.Effective.Minus(o.Online); len(out) > 0 && !w.OfflineAny {
			j.say(classOffline, "%s: vector %d on %s", o.Label, v.Index, out)
		}
		pending := len(v.Effective.Minus(v.Requested)) > 0
		if pending != said.Vectors[k].Pending {
			j.odd("%s: vector %d pending %t; it is %t", o.Label, v.Index, said.Vectors[k].Pending, pending)
		}
		if pending && !w.PendingAny {
			j.say(classPending, "%s: vector %d requested %s, effective %s", o.Label, v.Index, v.Requested, v.Effective)
		}
		if dropped := j.kept(o, &v, p); dropped != said.Vectors[k].Dropped {
			j.odd("%s: vector %d dropped %t; it is %t", o.Label, v.Index, said.Vectors[k].Dropped, dropped)
		}
		i, ok := at[v.Index]
		if !ok {
			j.odd("%s: vector %d is not in the trace", o.Label, v.Index)
			continue
		}
		handled := j.traced(o, &v, p, i)
		claimed := said.Vectors[k].Handled
		if !p.settled { // after fire and storm it is the lab's word, which the counts must bear out
			for _, c := range claimed {
				if v.Counts[c] == 0 {
					j.odd("%s: vector %d handled on %q, and CPU %d has counted none", o.Label, v.Index, claimed, c)
				}
			}
			if len(claimed.Minus(v.Effective)) > 0 {
				j.say(classElsewhere, "%s: vector %d effective on %s, handled on %s", o.Label, v.Index, v.Effective, claimed)
			}
			handled = claimed
		}
		if claimed.String() != handled.String() {
			j.odd("%s: vector %d handled on %q; it is %q", o.Label, v.Index, claimed, handled)
		}
	}
	if w.Queues != nil && fmt.Sprint(queues) != fmt.Sprint(w.Queues) {
		j.say(classQueues, "%s: %v, not %v", o.Label, queues, w.Queues)
	}
	idle, doubled := cpulist.List{}, false
	for _, c := range o.Online {
		if load[c] == 0 {
			idle = append(idle, c)
		}
	}
	for _, n := range load {
		doubled = doubled || n > 1
	}
	clustered := doubled && len(idle) > 0
	if w.Clustered != nil && *w.Clustered != clustered {
		j.say(classClustered, "%s: %t", o.Label, clustered)
	}
	if w.Idle != nil && w.Idle.String() != idle.String() {
		j.say(classIdle, "%s: %s, not %s", o.Label, idle, *w.Idle)
	}
	if w.Own != nil && *w.Own == doubled {
		j.say(classOwn, "%s: shared %t", o.Label, doubled)
	}
	if said.Clustered != clustered || said.Idle.String() != idle.String() {
		j.odd("%s: clustered %t, idle %q; it is %t, %q", o.Label, said.Clustered, said.Idle, clustered, idle)
	}
	return next
}

// kept holds what is requested against what was asked, but for CPUs that have left since.
func (j *judge) kept(o *Observation, v *Vector, p looked) (dropped bool) {
	left := p.left
	if v.Index == 0 {
		left = p.leftHWC
	}
	if want, known := j.asked(v.Index); known && !slices.Equal(want, v.Asked) {
		j.odd("%s: vector %d: asked for %q, and strategy %s asks for %q", o.Label, v.Index, v.Asked, j.c.Strategy, want)
	}
	if want := j.learned(v); j.c.Driver == "mana" && !slices.Equal(want, v.Asked) {
		j.odd("%s: vector %d: asked for %q, and its hint %q, or else the first mask, says %q", o.Label, v.Index, v.Asked, v.Hint, want)
	}
	lasting := v.Asked.Minus(left)
	dropped = len(lasting) > 0 && !slices.Equal(v.Requested.Minus(left), lasting)
	switch expected := p.want.Dropped.Has(v.Index); {
	case dropped && !expected:
		j.say(classDropped, "%s: vector %d asked for %s, requested is %s", o.Label, v.Index, v.Asked, v.Requested)
	case !dropped && expected:
		j.say(classKept, "%s: vector %d", o.Label, v.Index)
	}
	return dropped
}

// learned is what the kernel's driver has asked for a vector: its hint, or where it gives none the first mask that was seen.
func (j *judge) learned(v *Vector) cpulist.List {
	if first, known := j.first[v.Index]; !known || first.IRQ != v.IRQ || len(first.Hint) > 0 || len(v.Hint) > 0 {
		j.first[v.Index] = *v
	}
	if len(v.Hint) > 0 {
		return v.Hint
	}
	return j.first[v.Index].Requested
}

// asked is the mask that the strategy asks for a queue vector, where that takes no more than counting CPUs.
func (j *judge) asked(index int) (mask cpulist.List, known bool) {
	if index == 0 {
		return nil, false
	}
	online := j.c.Machine.all().Minus(j.c.Offline)
	for i := range j.c.Steps { // a CPU may leave before the vectors are there
		if j.c.Steps[i].Verb == "vectors" {
			break
		}
		if j.c.Steps[i].Verb == "offline" {
			online = online.Minus(j.c.Steps[i].CPUs)
		}
	}
	k := index - 1
	name := j.c.Strategy
	if name == "mana-7.2" && j.c.Vectors > len(online) {
		name = "linear"
	}
	switch name {
	case "unset":
		return nil, true
	case "all-online":
		return online, true
	case "linear", "siblings":
		if k >= len(online) {
			return nil, true
		}
		if name == "linear" {
			return online[k : k+1], true
		}
		return j.c.Machine.siblings(online[k]).And(online), true
	case "node":
		near := j.c.Machine.near().And(online)
		return near, len(near) > 0
	case "local-spread":
		near := j.c.Machine.near().And(online)
		order := slices.Concat(near, online.Minus(near))
		return order[index%len(order) : index%len(order)+1], len(near) > 0
	}
	return nil, false
}

// reading is what the trace says of a vector at one time.
type reading struct {
	at        int
	counts    map[int]uint64
	effective cpulist.List
}

// readings of a vector before a place in the trace, oldest first.
func (j *judge) readings(vector, before int) []reading {
	var out []reading
	last := -1
	for i := range before {
		e := &j.f.Trace[i]
		if e.Kind != "vector-read" || e.Vector != vector {
			continue
		}
		if len(out) == 0 || e.CPU <= last || i != out[len(out)-1].at+1 {
			out = append(out, reading{counts: map[int]uint64{}})
		}
		r := &out[len(out)-1]
		r.at, last = i, e.CPU
		if e.Handled > 0 {
			r.counts[e.CPU] = e.Handled
		}
		if e.Effective > 0 {
			r.effective = append(r.effective, e.CPU)
		}
	}
	return out
}

// traced holds an observation of a vector against the trace, whose line i tells of it, and says where what was fired last in settling was handled.
func (j *judge) traced(o *Observation, v *Vector, p looked, i int) (on cpulist.List) {
	all := j.readings(v.Index, i)
	if len(all) == 0 {
		j.odd("%s: vector %d was never read", o.Label, v.Index)
		return nil
	}
	now := all[len(all)-1]
	positive := maps.Clone(v.Counts)
	maps.DeleteFunc(positive, func(_ int, n uint64) bool { return n == 0 })
	if !maps.Equal(now.counts, positive) || !slices.Equal(now.effective, v.Effective) {
		j.odd("%s: vector %d: counts %v, effective %s; the trace has %v, %s", o.Label, v.Index, v.Counts, v.Effective, now.counts, now.effective)
	}
	asked := "nothing"
	if len(v.Asked) > 0 {
		asked = v.Asked.String()
	}
	if want := fmt.Sprintf("asked %s, requested %s, effective %s", asked, v.Requested, v.Effective); j.f.Trace[i].Text != want {
		j.odd("%s: vector %d: %s; the trace has %s", o.Label, v.Index, want, j.f.Trace[i].Text)
	}
	j.fired(o, v, p, i, all)
	if !p.settled {
		return nil
	}
	if len(all) < 3 {
		j.odd("%s: vector %d was settled, and read %d times", o.Label, v.Index, len(all))
		return nil
	}
	// Settling put the reading into the trace when it made it, and observing once more.
	before, after := all[len(all)-3], all[len(all)-2]
	if !slices.ContainsFunc(j.f.Trace[before.at:after.at], func(e Event) bool { return e.Kind == "vector-fire" && e.Vector == v.Index }) {
		j.odd("%s: vector %d did not fire between its last readings", o.Label, v.Index)
	}
	for _, c := range slices.Sorted(maps.Keys(after.counts)) {
		if after.counts[c] > before.counts[c] {
			on = append(on, c)
		}
	}
	switch pending := len(v.Effective.Minus(v.Requested)) > 0; {
	case len(on.Minus(v.Effective)) > 0:
		j.say(classElsewhere, "%s: vector %d effective on %s, handled on %s", o.Label, v.Index, v.Effective, on)
	case len(on) == 0 && !pending:
		j.say(classUnsettled, "%s: vector %d", o.Label, v.Index)
	}
	return on
}

// fired compares how often the device signalled a vector with how often it was handled. What was handled on a CPU that is offline the kernel leaves out. With plain MSI it
// retriggers a vector that it moves when the new number is pending on the CPU it is on, be it another's: one interrupt more a move, which no device signalled.
func (j *judge) fired(o *Observation, v *Vector, p looked, before int, all []reading) {
	var fired, handled, moves uint64
	for _, e := range j.f.Trace[:before] {
		if e.Kind == "vector-fire" && e.Vector == v.Index {
			fired++
			if e.Fired != fired {
				j.odd("%s: vector %d: the device counts %d signals, the trace has %d", o.Label, v.Index, e.Fired, fired)
				return
			}
		}
	}
	for _, n := range v.Counts {
		handled += n
	}
	if j.c.Machine.Irqchip == "msi" {
		for i := range all[1:] {
			if !slices.Equal(all[i].effective, all[i+1].effective) {
				moves++
			}
		}
		if p.moved || j.c.Driver == "mana" { // moves between readings
			moves += 2
		}
		if len(all) > 0 && slices.ContainsFunc(j.f.Trace[:all[0].at], func(e Event) bool { return e.Kind == "vector-fire" && e.Vector == v.Index }) {
			moves++ // before the first one
		}
	}
	switch {
	case p.storms:
	case handled > fired+moves, j.c.Driver == "vfio" && !p.moved && handled < fired:
		j.odd("%s: vector %d fired %d times, moved %d times, and was handled %d times", o.Label, v.Index, fired, moves, handled)
	}
}

// storms compares the counts of storms.
func (j *judge) storms() {
	var want []*Step
	each(j.c.Steps, func(s *Step) {
		if s.Verb == "storm" {
			want = append(want, s)
		}
	})
	if len(j.f.Storms) != len(want) && j.ended == "" {
		j.odd("%d storms, and the case has %d", len(j.f.Storms), len(want))
	}
	for i, s := range j.f.Storms {
		if i < len(want) && s.Rounds != want[i].Rounds {
			j.say(classStorm, "%d rounds of %d", s.Rounds, want[i].Rounds)
		}
		for _, v := range s.Vectors {
			if v.Fired == 0 || v.Ahead > 0 || v.Handled > v.Fired || v.Handled+v.Own < v.Fired {
				j.say(classStorm, "vector %d fired %d times, %d by itself, handled %d", v.Index, v.Fired, v.Own, v.Handled)
			}
		}
	}
}

// rules finds those that never were hit.
func (j *judge) rules() {
	hits := map[string]int{}
	for _, e := range j.f.Trace {
		if name, what, ok := strings.Cut(e.Text, ": "); ok && e.Kind == "inject" && strings.Contains(what, "(occurrence") {
			hits[name]++
		}
	}
	each(j.c.Steps, func(s *Step) {
		if s.Rule != nil && hits[s.Rule.Name] == 0 && j.ended == "" {
			j.say(classUnreached, "%s", s.Rule.Name)
		}
	})
}

// device looks at what the driver left behind. After a fault the two need not agree.
func (j *judge) device() {
	if j.c.Driver != "mana" {
		return
	}
	fault := false
	each(j.c.Steps, func(s *Step) {
		switch s.Verb {
		case "drop", "alter", "duplicate":
			fault = true
		case "status":
			fault = fault || !strings.HasPrefix(s.Rule.At, "request:")
		}
	})
	for _, e := range j.f.Trace {
		if e.Kind == "audit" && e.Leaks > 0 && !strings.HasPrefix(e.Text, "reset: ") && !fault {
			j.say(classLeft, "%d at %s", e.Leaks, e.Text)
		}
	}
}

// branches by strategy.
var branches = map[string]string{
	"numa-aware": `^numa-aware(, first group skipped)?$`, "linear": `^linear$`, "mana-7.2": `^(numa-aware, first group skipped|linear)$`, "unset": `^unset$`, "all-online": `^all-online$`,
	"local-spread": `^local-spread$`, "siblings": `^siblings$`, "node": `^node`,
}

// claimed holds the rest of the claim against what was found.
func (j *judge) claimed() {
	warned := len(j.Why[classWarning]) > 0
	if said := len(j.claim.KernelLog.Warnings) > 0; said != warned && !j.c.LogAny {
		j.odd("the lab found %d warnings in the log: %q; it has %q", len(j.claim.KernelLog.Warnings), j.claim.KernelLog.Warnings, j.Why[classWarning])
	}
	// Where no guest came to be, there is nothing but the console of the boot.
	if a := j.claim.Artifacts; a.Console == "" || len(j.f.Observations) > 0 && (a.Trace == "" || a.Timeline == "") {
		j.odd("artifacts are missing: %+v", a)
	}
	if want := branches[j.c.Strategy]; want != "" && j.ended == "" && !regexp.MustCompile(want).MatchString(j.claim.Branch) {
		j.odd("strategy %s took the branch %q", j.c.Strategy, j.claim.Branch)
	}
}

// words tell the class of a reason that the lab gives.
var words = []struct {
	class Class
	match *regexp.Regexp
}{
	{classWarning, regexp.MustCompile(`^The kernel log has a warning`)},
	{classDropped, regexp.MustCompile(`: asked for .* the kernel (kept|refused it)`)},
	{classKept, regexp.MustCompile(`as it was asked for, expected it dropped`)},
	{classPending, regexp.MustCompile(`has not moved to its mask`)},
	{classElsewhere, regexp.MustCompile(`is routed to .* and handled what was fired last on`)},
	{classUnsettled, regexp.MustCompile(`did not settle: on none of the CPUs`)},
	{classOffline, regexp.MustCompile(`which is offline, expected only`)},
	{classRoom, regexp.MustCompile(`the kernel refused vector \d+: `)},
	{classUnreached, regexp.MustCompile(`which was never reached`)},
	{classAllowed, regexp.MustCompile(`was carried out, expected it to be refused`)},
	{classStorm, regexp.MustCompile(`fired \d+ times.* handled \d+ times|did not fire|rounds were done`)},
	{classLost, regexp.MustCompile(`fired vectors were not handled`)},
	{classLeft, regexp.MustCompile(`^After the driver had left|The driver left behind`)},
	{classOnline, regexp.MustCompile(`: CPUs .* are online, expected`)},
	{classVectors, regexp.MustCompile(`the function has \d+ vectors, expected`)},
	{classWithin, regexp.MustCompile(`expected it within`)},
	{classClustered, regexp.MustCompile(`queue vectors are clustered`)},
	{classIdle, regexp.MustCompile(`the CPUs without a queue vector are`)},
	{classOwn, regexp.MustCompile(`more than one queue vector, expected|has a CPU of its own, expected`)},
	{classHWC, regexp.MustCompile(`the HWC vector is on`)},
	{classQueues, regexp.MustCompile(`the queue vectors are on CPUs`)},
	{classDriver, regexp.MustCompile(`the driver's probe failed|registered no link`)},
	{classRefused, regexp.MustCompile(`^step .*: `)},
}

// Disagreements compares the verdict with the claim: outcome and, class by class, reasons.
func (v *Verdict) Disagreements(claim *Claim) []string {
	out := slices.Clone(v.Odd)
	doubt := func(r string) bool { return strings.HasPrefix(r, withheld) }
	switch {
	case claim.Outcome == v.Outcome:
	case claim.Outcome == failed && v.Outcome == fail && slices.ContainsFunc(claim.Reasons, doubt):
		return out
	default:
		out = append(out, fmt.Sprintf("the lab says %s, and it is %s", claim.Outcome, v.Outcome))
	}
	said := map[Class]bool{}
	for _, r := range claim.Reasons {
		if claim.Outcome == failed {
			said[classLab] = true
			continue
		}
		i := slices.IndexFunc(words, func(w struct {
			class Class
			match *regexp.Regexp
		}) bool {
			return w.match.MatchString(r)
		})
		if i < 0 {
			out = append(out, "a reason of no known class: "+r)
			continue
		}
		said[words[i].class] = true
	}
	found := v.Why
	if v.ended != "" {
		found = map[Class][]string{v.ended: v.Why[v.ended]}
	}
	for c := range said {
		if found[c] == nil {
			out = append(out, fmt.Sprintf("the lab says: %s; nothing shows that", c))
		}
	}
	for c, why := range found {
		if !said[c] {
			out = append(out, fmt.Sprintf("the lab does not say: %s: %s", c, strings.Join(why, "; ")))
		}
	}
	slices.Sort(out)
	return out
}
