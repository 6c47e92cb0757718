package scenarios

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/strategy"
	"irqlab/scenarios/result"
)

// LabelSettled names the observation made once every vector has fired since its affinity was set.
const LabelSettled = "settled"

// Rules that hold unless an expectation lifts them with "any".
const (
	ruleAny    = "any"
	ruleClean  = "clean"
	ruleNone   = "none"
	ruleUnused = "unused"
)

// Expect is what a case must show. What is not stated (nil) is not checked, but for the rules, which hold unless they are lifted.
type Expect struct {
	Branch  *string   `json:"branch,omitempty" jsonschema_description:"which way the strategy goes, e.g. \"numa-aware, first group skipped\""`
	Log     *logRule  `json:"log,omitempty" jsonschema_description:"clean (the default): no WARN, BUG, oops, lockdep, hung task, lockup or stall in the kernel log; any: not checked"`
	Settled *Observed `json:"settled,omitempty" jsonschema_description:"the observation once every vector has fired since its affinity was set"`

	steps []Step // of the case, with what they expect where they stand
}

// states reports whether anything is expected, beside the rules that always hold.
func (e Expect) states() bool {
	stated := e.Branch != nil || e.Log != nil || e.Settled != nil && !e.Settled.empty()
	for s := range allSteps(e.steps) {
		stated = stated || s.Refused != "" || s.Expect != nil || s.Verb == VerbStorm || s.Verb == VerbWaitFor || s.Run != nil
	}
	return stated
}

// Observed is what one observation must show. CPUs are in the kernel's list format throughout.
type Observed struct {
	Online        *cpulist.List  `json:"online,omitempty" jsonschema_description:"online CPUs"`
	Vectors       *VectorCount   `json:"vectors,omitempty" jsonschema_description:"number of vectors, HWC included"`
	HWC           *cpulist.List  `json:"hwc,omitempty" jsonschema_description:"effective CPU of the HWC vector"`
	Queues        []cpulist.List `json:"queues,omitempty" jsonschema_description:"effective CPU of each queue vector, in order"`
	HWCMask       *cpulist.List  `json:"hwc-mask,omitempty" jsonschema_description:"requested mask of the HWC vector"`
	QueueMasks    []cpulist.List `json:"queue-masks,omitempty" jsonschema_description:"requested mask of each queue vector, in order"`
	QueueHints    []cpulist.List `json:"queue-hints,omitempty" jsonschema_description:"affinity hint of each queue vector, in order; empty: none"`
	Clustered     *bool          `json:"clustered,omitempty" jsonschema_description:"whether some CPU has two or more queue vectors while another online CPU has none"`
	IdleCPUs      *cpulist.List  `json:"idle-cpus,omitempty" jsonschema_description:"online CPUs with no queue vector"`
	Unused        *int           `json:"unused,omitempty" jsonschema_description:"number of vectors the kernel's driver has but signals nothing on; driver mana only" jsonschema:"minimum=0"`
	OneQueueOnCPU *bool          `json:"own-cpu,omitempty" jsonschema_description:"true: no two queue vectors share a CPU"`
	QueuesWithin  *cpulist.List  `json:"queues-within,omitempty" jsonschema_description:"CPUs that no queue vector may leave"`
	Pending       *pendingRule   `json:"pending,omitempty" jsonschema_description:"none (the default): every vector has moved to its requested mask; any: not checked"`
	Dropped       *cpulist.List  `json:"dropped,omitempty" jsonschema_description:"vectors whose mask the kernel refuses or drops, and no others; none unless stated"`
	OfflineCPUs   *offlineRule   `json:"offline-cpus,omitempty" jsonschema_description:"unused (the default): no vector is routed to an offline CPU; any: not checked"`
}

type logRule string

func (r *logRule) UnmarshalText(b []byte) error {
	return oneOf((*string)(r), b, "rule", []string{ruleClean, ruleAny})
}

type pendingRule string

func (r *pendingRule) UnmarshalText(b []byte) error {
	return oneOf((*string)(r), b, "rule", []string{ruleNone, ruleAny})
}

type offlineRule string

func (r *offlineRule) UnmarshalText(b []byte) error {
	return oneOf((*string)(r), b, "rule", []string{ruleUnused, ruleAny})
}

// labelled ties an observation's label to what is expected of it.
type labelled struct {
	label string
	want  Observed
}

// observations are those the case makes, in time order. What an expect step says is about the newest observation at its place.
func (e Expect) observations() []labelled {
	var out []labelled
	if e.steps == nil {
		out = []labelled{{label: LabelSettled}}
	}
	for s := range allSteps(e.steps) {
		switch {
		case s.Verb == VerbObserve:
			out = append(out, labelled{label: s.Label})
		case s.Expect != nil && len(out) > 0:
			overlay(reflect.ValueOf(&out[len(out)-1].want).Elem(), reflect.ValueOf(s.Expect.Observed))
		}
	}
	for i := range out {
		if l := &out[i]; l.label == LabelSettled && e.Settled != nil {
			want := *e.Settled
			overlay(reflect.ValueOf(&want).Elem(), reflect.ValueOf(l.want))
			l.want = want
		}
	}
	return out
}

// labels are the observations' labels.
func (e Expect) labels() []string {
	var out []string
	for _, l := range e.observations() {
		out = append(out, l.label)
	}
	return out
}

// WarningReason begins the reason for which a warning in the kernel's log makes a case fail.
const WarningReason = "The kernel log has a warning, expected none: "

// CleanLog reports whether a warning in the kernel's log is a failure.
func (e Expect) CleanLog() bool { return e.Log == nil || *e.Log != ruleAny }

// Check compares a result with the expectation. Each reason is one sentence that names what was expected and what came; none: passed.
func (e Expect) Check(c result.Case) []string {
	var reasons []string
	say := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	if e.Branch != nil && c.Branch != *e.Branch {
		who := "Strategy " + c.Strategy
		if c.Strategy == "" {
			who = "The driver"
		}
		say("%s took the branch %q, expected %q.", who, c.Branch, *e.Branch)
	}
	if e.CleanLog() {
		for _, w := range c.KernelLog.Warnings {
			say(WarningReason+"%s", sentence(firstLine(w)))
		}
	}
	for _, l := range e.observations() {
		o := c.Find(l.label)
		if o == nil {
			say("There is no observation %q, expected one.", l.label)
			continue
		}
		for _, r := range l.want.check(o) {
			say("%s: %s", l.label, r)
		}
	}
	return append(reasons, checkSteps(e.steps, c)...)
}

func (w *Observed) check(o *result.Observation) []string {
	var reasons []string
	say := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	hwc, queues := o.Placement()
	if w.Online != nil && !slices.Equal(*w.Online, o.Online) {
		say("CPUs %s are online, expected %s.", cpus(o.Online), cpus(*w.Online))
	}
	if w.Vectors != nil {
		if want := w.Vectors.Of(len(o.Online)); len(o.Vectors) != want {
			say("the function has %d vectors, expected %d.", len(o.Vectors), want)
		}
	}
	if w.HWC != nil && !slices.Equal(*w.HWC, hwc) {
		say("the HWC vector is on %s, expected %s.", hwc.Words(), cpus(*w.HWC))
	}
	if w.Queues != nil && !equal(w.Queues, queues) {
		say("the queue vectors are on CPUs %s, expected %s.", Row(queues), Row(w.Queues))
	}
	if w.HWCMask != nil {
		for _, v := range o.Vectors {
			if v.Role == result.RoleHWC && !slices.Equal(v.Affinity, *w.HWCMask) {
				say("the HWC vector's requested mask is %s, expected %s.", cpus(v.Affinity), cpus(*w.HWCMask))
			}
		}
	}
	if masks := each(o, func(v result.Vector) cpulist.List { return v.Affinity }); w.QueueMasks != nil && !equal(w.QueueMasks, masks) {
		say("the queue vectors' requested masks are %s, expected %s.", Row(masks), Row(w.QueueMasks))
	}
	if hints := each(o, func(v result.Vector) cpulist.List { return v.Hint }); w.QueueHints != nil && !equal(w.QueueHints, hints) {
		say("the queue vectors' affinity hints are %s, expected %s.", Row(hints), Row(w.QueueHints))
	}
	if w.Clustered != nil && *w.Clustered != o.Clustered {
		if o.Clustered {
			say("queue vectors are clustered on %s while %s none, expected no cluster.", result.ClusteredCPUs(o.Online, o.Vectors).Words(), o.IdleCPUs.Are("has", "have"))
		} else {
			say("no queue vectors are clustered, expected a cluster.")
		}
	}
	if w.IdleCPUs != nil && !slices.Equal(*w.IdleCPUs, o.IdleCPUs) {
		say("the CPUs without a queue vector are %s, expected %s.", cpus(o.IdleCPUs), cpus(*w.IdleCPUs))
	}
	if w.Unused != nil {
		n := 0
		for _, v := range o.Vectors {
			if v.Role == result.RoleUnused {
				n++
			}
		}
		if n != *w.Unused {
			say("the number of unused vectors is %d, expected %d.", n, *w.Unused)
		}
	}
	if w.OneQueueOnCPU != nil {
		var shared []int
		for c, n := range result.QueuesPerCPU(o.Vectors) {
			if n > 1 {
				shared = append(shared, c)
			}
		}
		switch l := cpulist.New(shared...); {
		case *w.OneQueueOnCPU && len(l) > 0:
			say("%s more than one queue vector, expected a CPU for each.", l.Are("has", "have"))
		case !*w.OneQueueOnCPU && len(l) == 0:
			say("each queue vector has a CPU of its own, expected some to share one.")
		}
	}
	if w.Dropped != nil {
		var there cpulist.List
		for _, v := range o.Vectors {
			there = append(there, v.Index)
		}
		if gone := w.Dropped.Minus(there); len(gone) > 0 {
			say("vector %s is not there, expected its mask dropped.", gone)
		}
	}
	for _, v := range o.Vectors {
		if outside := v.Effective; w.QueuesWithin != nil && v.Role == result.RoleQueue && !outside.Within(*w.QueuesWithin) {
			say("queue vector %d is on %s, expected it within %s.", v.Index, outside.Words(), cpus(*w.QueuesWithin))
		}
		switch expected := w.Dropped != nil && w.Dropped.Has(v.Index); {
		case v.Dropped && !expected && v.Refused != "":
			say("vector %d: asked for %s, the kernel refused it (%s) and kept %s.", v.Index, cpus(v.Asked), strings.TrimRight(v.Refused, "."), cpus(v.Affinity))
		case v.Dropped && !expected:
			say("vector %d: asked for %s, the kernel kept %s.", v.Index, cpus(v.Asked), cpus(v.Affinity))
		case expected && !v.Dropped:
			say("vector %d: the kernel has %s as it was asked for, expected it dropped.", v.Index, cpus(v.Affinity))
		}
		if !v.Handled.Within(v.Effective) {
			say("vector %d: the kernel says that it is routed to %s, and handled what was fired last on %s.", v.Index, v.Effective.Words(), v.Handled.Words())
		} else if v.Unsettled && !v.Pending {
			say("vector %d did not settle: on none of the CPUs online did its count rise when it was handled.", v.Index)
		}
		if v.Pending && (w.Pending == nil || *w.Pending != ruleAny) {
			say("vector %d is on %s and has not moved to its mask %s, expected every vector to have settled.", v.Index, v.Effective.Words(), cpus(v.Affinity))
		}
		if off := v.Effective.Minus(o.Online); len(off) > 0 && (w.OfflineCPUs == nil || *w.OfflineCPUs != ruleAny) {
			say("vector %d is on %s, which is offline, expected only %s.", v.Index, off.Words(), cpus(o.Online))
		}
	}
	return reasons
}

func each(o *result.Observation, get func(result.Vector) cpulist.List) []cpulist.List {
	out := []cpulist.List{}
	for _, v := range o.Vectors {
		if v.Role == result.RoleQueue {
			out = append(out, get(v))
		}
	}
	return out
}

func equal(a, b []cpulist.List) bool {
	return slices.EqualFunc(a, b, func(x, y cpulist.List) bool { return slices.Equal(x, y) })
}

// Row writes one CPU list per vector, "0, 2, 0, 3"; lists of several CPUs or none are bracketed.
func Row(lists []cpulist.List) string {
	if len(lists) == 0 {
		return "none"
	}
	words := make([]string, len(lists))
	for i, l := range lists {
		words[i] = l.String()
		if strings.Contains(words[i], ",") || words[i] == "" {
			words[i] = "[" + words[i] + "]"
		}
	}
	return strings.Join(words, ", ")
}

// cpus writes a list in a sentence.
func cpus(l cpulist.List) string {
	if len(l) == 0 {
		return "none"
	}
	return l.String()
}

func sentence(s string) string { return strings.TrimRight(s, ".") + "." }

// Aspects of an expectation: what an override can make meaningless.
type aspect string

const (
	aspectPlacement aspect = "placement" // where the allocator puts vectors
	aspectMasks     aspect = "masks"     // what the strategy asks for, and the branch it takes
	aspectCounts    aspect = "counts"    // how many CPUs and vectors there are
)

// without returns the expectation less some aspects; dropped says which of them had been stated.
func (e Expect) without(aspects ...aspect) (kept Expect, dropped []aspect) {
	kept = e
	drop := func(a aspect, field any) {
		v := reflect.ValueOf(field).Elem()
		if v.IsNil() || !slices.Contains(aspects, a) {
			return
		}
		v.SetZero()
		if !slices.Contains(dropped, a) {
			dropped = append(dropped, a)
		}
	}
	dropObserved := func(o *Observed) {
		for _, f := range []any{&o.HWC, &o.Queues, &o.Clustered, &o.IdleCPUs, &o.OneQueueOnCPU} {
			drop(aspectPlacement, f)
		}
		for _, f := range []any{&o.HWCMask, &o.QueueMasks, &o.QueueHints, &o.QueuesWithin, &o.Dropped} {
			drop(aspectMasks, f)
		}
		for _, f := range []any{&o.Online, &o.Vectors, &o.Unused} {
			drop(aspectCounts, f)
		}
	}
	drop(aspectMasks, &kept.Branch)
	if kept.Settled != nil {
		o := *kept.Settled
		kept.Settled = &o
		dropObserved(&o)
	}
	kept.steps = slices.Clone(kept.steps)
	for i := range kept.steps {
		s := &kept.steps[i]
		s.Together = slices.Clone(s.Together)
		for j := range s.Together {
			s.Together[j] = slices.Clone(s.Together[j])
		}
	}
	for s := range allSteps(kept.steps) {
		if s.Expect == nil {
			continue
		}
		want := *s.Expect
		s.Expect = &want
		dropObserved(&want.Observed)
		drop(aspectPlacement, &want.Disks)
		for _, f := range []any{&want.Log, &want.NoLog, &want.Counted} { // they speak of the machine and its vectors
			drop(aspectCounts, f)
		}
	}
	return kept, dropped
}

// over lays one expectation over another, field by field.
func (e *Expect) over(base *Expect) *Expect {
	if e == nil {
		return base
	}
	if base == nil {
		return e
	}
	out := *base
	overlay(reflect.ValueOf(&out).Elem(), reflect.ValueOf(*e))
	return &out
}

// overlay sets each field of dst that src states. A struct behind a pointer is laid over in a copy, so that dst's own stays as it was.
func overlay(dst, src reflect.Value) {
	for i := range src.NumField() {
		from, to := src.Field(i), dst.Field(i)
		switch {
		case from.IsNil():
		case from.Kind() == reflect.Pointer && from.Elem().Kind() == reflect.Struct && from.Type().Elem() == reflect.TypeFor[Observed]() && !to.IsNil():
			merged := reflect.New(to.Type().Elem())
			merged.Elem().Set(to.Elem())
			overlay(merged.Elem(), from.Elem())
			to.Set(merged)
		default:
			to.Set(from)
		}
	}
}

// problem is a contradiction between an expectation and its case, at a key below expect.
type problem struct{ key, text string }

// validate finds what can never hold of the case.
func (e Expect) validate(c *Case) []problem {
	var out []problem
	say := func(key, format string, args ...any) { out = append(out, problem{key, fmt.Sprintf(format, args...)}) }
	if e.Branch != nil {
		switch allowed := branches(c); {
		case slices.Contains(allowed, *e.Branch):
		case c.Driver == DriverVFIO:
			say("branch", "strategy %s has no branch %q; allowed: %s", c.Strategy, *e.Branch, quoted(allowed))
		default:
			say("branch", "no driver has a branch %q; allowed: %s", *e.Branch, quoted(allowed))
		}
	}
	switch {
	case e.Settled == nil:
	case e.steps != nil && !slices.Contains(e.labels(), LabelSettled):
		say(LabelSettled, "no step observes %s; put what is expected into expect steps, or add observe: %s", LabelSettled, LabelSettled)
	default:
		for _, p := range e.Settled.validate(c) {
			say(LabelSettled+"."+p.key, "%s", p.text)
		}
	}
	return out
}

// validate finds what no observation of the case can show, in the order of the keys.
func (w *Observed) validate(c *Case) []problem {
	var out []problem
	say := func(key, format string, args ...any) { out = append(out, problem{key, fmt.Sprintf(format, args...)}) }
	all := cpulist.Range(0, c.Shape.CPUs()-1)
	for key, lists := range map[string][]cpulist.List{"queues": w.Queues, "queue-masks": w.QueueMasks, "queue-hints": w.QueueHints} {
		// The kernel's driver may take fewer vectors than there are.
		if n := len(lists); n > c.Vectors-1 || lists != nil && n < c.Vectors-1 && c.Driver != DriverMana {
			say(key, "%d queue vectors are listed, but %d vectors make %d of them beside the HWC", len(lists), c.Vectors, c.Vectors-1)
		}
		for i, cpus := range lists {
			if !cpus.Within(all) {
				say(fmt.Sprintf("%s.%d", key, i), "%s not in the shape; allowed: %s", cpus.Minus(all).Are("is", "are"), all)
			}
		}
	}
	for key, list := range map[string]*cpulist.List{"online": w.Online, "hwc": w.HWC, "hwc-mask": w.HWCMask, "idle-cpus": w.IdleCPUs, "queues-within": w.QueuesWithin} {
		if list != nil && !list.Within(all) {
			say(key, "%s not in the shape; allowed: %s", list.Minus(all).Are("is", "are"), all)
		}
	}
	if all := cpulist.Range(0, c.Vectors-1); w.Dropped != nil && !w.Dropped.Within(all) {
		say("dropped", "vector %s is not the function's, which has %s", w.Dropped.Minus(all), all)
	}
	slices.SortFunc(out, func(a, b problem) int { return strings.Compare(a.key, b.key) })
	return out
}

// branches are those the case can take.
func branches(c *Case) []string {
	if c.Masks != nil {
		return []string{strategy.BranchMasks}
	}
	if c.Driver == DriverVFIO {
		return strategy.Branches(c.Strategy)
	}
	return slices.Concat(strategy.Branches(strategy.NUMAAware), strategy.Branches(strategy.Linear), strategy.Branches(strategy.LocalSpread), strategy.Branches(strategy.Unset))
}

func quoted(words []string) string {
	q := make([]string, len(words))
	for i, w := range words {
		q[i] = fmt.Sprintf("%q", w)
	}
	return strings.Join(q, ", ")
}

// describe writes an expectation in full, to tell two apart.
func describe(e Expect) string {
	parts := []any{e}
	for s := range allSteps(e.steps) {
		if s.Expect != nil || s.Refused != "" {
			parts = append(parts, s.At, s.Refused, s.Expect)
		}
	}
	words := make([]string, len(parts))
	for i, p := range parts {
		b, err := json.Marshal(p)
		if err != nil {
			panic(err) // plain values marshal
		}
		words[i] = string(b)
	}
	return strings.Join(words, " ")
}

// empty reports whether nothing is stated.
func (w *Observed) empty() bool { return reflect.ValueOf(*w).IsZero() }
