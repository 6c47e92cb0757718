package scenarios

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"irqlab/devmodel/inject"
	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/scenarios/nearest"
)

// validateSteps finds what is impossible about a case's steps: what no kernel and no device could do, and what would wait for itself.
func (c *Case) validateSteps() []problem {
	_, missing := c.Cmdline.asleep(c.Shape)
	w := &walk{c: c, rules: map[string]*Step{}, holds: map[string]*hold{}, observed: map[string]bool{}, present: cpulist.Range(0, c.Shape.CPUs()-1).Minus(missing), online: c.Online()}
	for s := range allSteps(c.Steps) {
		w.arm(s)
	}
	for i := range c.Steps {
		w.step(&c.Steps[i], nil)
	}
	for s := range allSteps(c.Steps) {
		if h := w.holds[holdName(s)]; h != nil && h.step == s && h.releases == 0 {
			w.say(s, "%q is never released; add release: %s where the device may go on", s.Rule.Name, s.Rule.Name)
		}
	}
	return w.problems
}

// hold is a hold of the case, and how far the walk has come with it.
type hold struct {
	step     *Step
	armed    bool
	releases int
	stalls   *Step // what was started in the background and cannot end before the release
}

// walk goes through the steps as the runner will, and keeps what is certain at each.
type walk struct {
	c        *Case
	problems []problem

	rules    map[string]*Step
	holds    map[string]*hold
	armed    []*hold // and not released, in the order of arming
	observed map[string]bool
	present  cpulist.List
	online   cpulist.List
	started  bool // the driver has been started by some step
	up       bool // queue vectors exist: a link was brought up, or vectors were added
	linkUp   bool // the driver's link is
	channels int  // that were set by a step since the link came up; 0: none
	read     bool // the disks have been read from
	counted  int  // CPUs that were online when the driver was started
	loaded   bool // the kernel's driver is
	removed  bool // the function is, from the kernel
	again    bool // a rescan has had the driver probe, which probe may wait for
}

func (w *walk) say(s *Step, format string, args ...any) { w.sayAt(s, "", format, args...) }

// sayAt reports a problem at a key below the step.
func (w *walk) sayAt(s *Step, key, format string, args ...any) {
	w.problems = append(w.problems, problem{strings.TrimSuffix("steps."+s.key()+"."+key, "."), fmt.Sprintf(format, args...)})
}

func holdName(s *Step) string {
	if s.Verb == VerbHold && s.Rule != nil {
		return s.Rule.Name
	}
	return ""
}

func (w *walk) holdNames() []string {
	var names []string
	for s := range allSteps(w.c.Steps) {
		if n := holdName(s); n != "" {
			names = append(names, n)
		}
	}
	return names
}

// arm checks a rule by itself, and remembers a hold before the walk, so that a step may be told from one that comes too early.
func (w *walk) arm(s *Step) {
	if s.Rule == nil {
		return
	}
	at := s.Verb + ".at"
	if w.c.Driver == DriverVFIO && ofProtocol(s.Rule.Step) {
		w.sayAt(s, at, "driver vfio speaks no MANA to the device, so it never comes to %s; allowed with it: vector:N, config-read, config-write, register-read, register-write",
			s.Rule.Step)
	} else if err := s.Rule.Validate(); err != nil {
		if errors.Is(err, inject.ErrWide) {
			at = s.Verb + ".value"
		}
		w.sayAt(s, at, "%v%s", errors.Unwrap(err), stepHint(err, s.Rule.Step))
	} else if v, ok := vectorOf(s.Rule.Step); ok && v >= w.c.Vectors {
		w.sayAt(s, at, "vector %d is not the function's, which has %s", v, cpulist.Range(0, w.c.Vectors-1))
	}
	if s.Rule.Action == inject.Add && s.Rule.Vector >= w.c.Vectors {
		w.say(s, "vector %d is not the function's, which has %s", s.Rule.Vector, cpulist.Range(0, w.c.Vectors-1))
	}
	if other := w.rules[s.Rule.Name]; other != nil {
		w.say(s, "the name %q is taken by the %s of line %d", s.Rule.Name, other.Verb, other.Line)
		return
	}
	w.rules[s.Rule.Name] = s
	if s.Verb == VerbHold {
		w.holds[s.Rule.Name] = &hold{step: s}
	}
}

// ofProtocol reports whether only a MANA driver makes a device come to a step.
func ofProtocol(step string) bool {
	kind, _, _ := strings.Cut(step, ":")
	return slices.Contains([]string{"smc", "request", "response", "event", "completion"}, kind)
}

// vectorOf is the vector whose firing a step is; false where it is another step, or any vector's.
func vectorOf(step string) (int, bool) {
	n, err := strconv.ParseUint(strings.TrimPrefix(step, "vector:"), 0, 16)
	return int(n), err == nil
}

func stepNames() []string {
	var names []string
	for _, s := range inject.Steps() {
		names = append(names, s.Name)
	}
	return names
}

// stepHint ends a message about a protocol step that there is not with the one that was likely meant.
func stepHint(err error, step string) string {
	if !errors.Is(err, inject.ErrStep) {
		return ""
	}
	return nearest.Hint(step, stepNames())
}

// checkStep reports a protocol step that is waited for or counted, and is none.
func (w *walk) checkStep(s *Step, step string) {
	if w.c.Driver == DriverVFIO && ofProtocol(step) {
		w.say(s, "driver vfio speaks no MANA to the device, so it never comes to %s", step)
	} else if err := (inject.Rule{Name: s.Verb, Step: step, Action: inject.Add}).Validate(); errors.Is(err, inject.ErrStep) {
		w.say(s, "%v%s", errors.Unwrap(err), stepHint(err, step))
	}
}

// step takes one step. beside are the branches that run at the same time, nil outside together.
func (w *walk) step(s *Step, beside [][]Step) {
	if v := verbNamed(s.Verb); v.Driver != "" && v.Driver != w.c.Driver {
		w.say(s, "%s needs driver %s, and the case has driver %s", s.Verb, v.Driver, w.c.Driver)
		return
	}
	if s.Refused == "" {
		w.stuck(s, beside)
	}
	switch s.Verb {
	case VerbProbe, VerbLoad, VerbBind:
		if s.Verb == VerbProbe && w.started && !w.again && s.Refused == "" {
			w.say(s, "the driver has been started before; unload it first, or use bind")
		}
		w.needs(s, !w.removed || s.Verb == VerbLoad, "the function has been removed; rescan first")
		w.started, w.again, w.loaded = !w.removed, false, w.c.Driver == DriverMana
		if s.Verb == VerbProbe && !s.Probe.Waits() {
			for _, h := range w.armed {
				if w.passes(s, h.step.Rule) {
					h.stalls = s
				}
			}
		}
	case VerbUnload, VerbUnbind:
		w.needs(s, w.started, "the driver has not been started; begin with probe")
		w.started, w.up, w.again = false, false, false
		w.loaded = w.loaded && s.Verb == VerbUnbind
	case VerbUp, VerbVectors, VerbDown, VerbSetChannels:
		w.needs(s, w.started, "the driver has not been started; begin with probe")
		if s.Verb == VerbVectors {
			w.needs(s, !w.up, "the queue vectors have been added before")
			w.needs(s, w.c.Queues() > 0, "the function has no queue vectors: vectors is 1")
		}
		if s.Verb == VerbSetChannels {
			w.needs(s, s.Channels <= w.c.Queues(), fmt.Sprintf("%d channels need as many queue vectors, and the function has %d", s.Channels, w.c.Queues()))
		}
		w.up = w.up || s.Verb == VerbUp || s.Verb == VerbVectors
	case VerbRemove, VerbRescan, VerbSuspend:
		w.power(s)
	case VerbReset:
		w.needs(s, w.started, "the function has nothing to forget before the driver is started; begin with probe")
	case VerbPost, VerbResetService:
		w.needs(s, w.started, "the device has no event queue before the driver made one; begin with probe")
	case VerbFire, VerbSettle, VerbStorm, VerbObserve, VerbAffinity:
		w.needs(s, w.started, "no vector is set up before the driver is started; begin with probe")
	}
	if s.Refused == "" {
		w.links(s)
	}
	switch s.Verb {
	case VerbHold:
		h := w.holds[s.Rule.Name]
		if h != nil && h.step == s {
			h.armed = true
			w.armed = append(w.armed, h)
		}
	case VerbRelease:
		w.release(s, beside)
	case VerbEnd:
		w.end(s, beside)
	case VerbOffline, VerbOnline, VerbUnplug, VerbReplug:
		w.cpus(s, s.CPUs)
	case VerbStorm:
		w.storm(s)
	case VerbAffinity:
		w.affinity(s, beside)
	case VerbFire:
		all := cpulist.Range(0, w.c.Vectors-1)
		if gone := cpulist.List(s.Fire.Vectors).Minus(all); len(gone) > 0 {
			w.say(s, "vector %s is not the function's, which has %s", gone, all)
		}
	case VerbObserve:
		switch {
		case !validName(s.Label):
			w.say(s, "%q is %s", s.Label, nameProblem)
		case w.observed[s.Label]:
			w.say(s, "the label %q is used before; each observation needs one of its own", s.Label)
		}
		w.observed[s.Label] = true
	case VerbReadDisks:
		w.needs(s, w.disks() > 0, "the case has no disk; give one by pressure, as in "+pressureExample(PressureNVMe))
		w.needs(s, s.Disks.Times() <= agentapi.MaxDiskReads, fmt.Sprintf("%d reads; allowed: 1 to %d", s.Disks.Times(), agentapi.MaxDiskReads))
		w.read = true
	case VerbExpect:
		w.expect(s)
		w.expectDisks(s)
	case VerbWaitFor:
		w.wait(s, beside)
	case VerbTogether:
		w.together(s)
	}
}

// disks is how many the pressure has.
func (w *walk) disks() int { return len(w.c.Pressure.Neighbours()) }

// expectDisks checks what is expected of disks: as many as there are, read from before, and no more queues and CPUs than they have.
func (w *walk) expectDisks(s *Step) {
	list := s.Expect.Disks
	if list == nil {
		return
	}
	key := VerbExpect + ".disks"
	if !w.read {
		w.sayAt(s, key, "no disk was read from before; put read-disks before it")
	}
	if len(list) != w.disks() {
		w.sayAt(s, key, "%d disks are listed, but the pressure has %d", len(list), w.disks())
		return
	}
	all := cpulist.Range(0, w.c.Shape.CPUs()-1)
	for i, d := range list {
		for what, cpus := range map[string][]cpulist.List{"masks": d.Masks, "queues": d.Queues} {
			if most := w.c.Pressure.Neighbours()[i].Queues; len(cpus) > most {
				w.sayAt(s, fmt.Sprintf("%s.%d.%s", key, i, what), "%d are listed, but the disk has %d request queues", len(cpus), most)
			}
			for _, l := range cpus {
				if gone := l.Minus(all); len(gone) > 0 {
					w.sayAt(s, fmt.Sprintf("%s.%d.%s", key, i, what), "%s not in the shape; allowed: %s", gone.Are("is", "are"), all)
				}
			}
		}
		if d.Meets != nil && len(d.Meets.Minus(all)) > 0 {
			w.sayAt(s, fmt.Sprintf("%s.%d.meets", key, i), "%s not in the shape; allowed: %s", d.Meets.Minus(all).Are("is", "are"), all)
		}
	}
}

func verbNamed(name string) *verb {
	return &verbs[slices.IndexFunc(verbs, func(v verb) bool { return v.Name == name })]
}

// needs reports a condition that does not hold, unless the step is there to be refused.
func (w *walk) needs(s *Step, ok bool, problem string) {
	if !ok && s.Refused == "" {
		w.say(s, "%s", problem)
	}
}

func (w *walk) release(s *Step, beside [][]Step) {
	h := w.holds[s.Release]
	if h == nil {
		if s.Refused == "" {
			w.say(s, "no hold is called %q; there are: %s%s", s.Release, orNone(w.holdNames()), nearest.Hint(s.Release, w.holdNames()))
		}
		return
	}
	switch {
	case s.Refused != "":
		return
	case h.releases > 0:
		w.say(s, "%q has been released before; a hold can be released once", s.Release)
	case !h.armed && !armsIn(beside, s.Release):
		w.say(s, "%q is released before it is armed, which is in line %d", s.Release, h.step.Line)
	}
	w.let(h)
}

// end takes a rule out of force.
func (w *walk) end(s *Step, beside [][]Step) {
	switch arm := w.rules[s.End]; {
	case s.Refused != "":
	case arm == nil:
		names := slices.Sorted(maps.Keys(w.rules))
		w.say(s, "no hold or fault is called %q; there are: %s%s", s.End, orNone(names), nearest.Hint(s.End, names))
	case arm.Line > s.Line:
		w.say(s, "%q is ended before it is armed, which is in line %d", s.End, arm.Line)
	case holdName(arm) != "":
		w.let(w.holds[s.End])
	}
}

// let is what becomes of a hold that ends.
func (w *walk) let(h *hold) {
	h.releases++
	h.stalls = nil
	w.armed = slices.DeleteFunc(w.armed, func(a *hold) bool { return a == h })
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func armsIn(branches [][]Step, name string) bool {
	return anyStep(branches, func(s *Step) bool { return holdName(s) == name })
}

func releasesIn(branches [][]Step, name string) bool {
	return anyStep(branches, func(s *Step) bool {
		return s.Verb == VerbRelease && s.Release == name || s.Verb == VerbEnd && s.End == name
	})
}

func anyStep(branches [][]Step, is func(*Step) bool) bool {
	for _, b := range branches {
		for s := range allSteps(b) {
			if is(s) {
				return true
			}
		}
	}
	return false
}

// cpus checks a change of CPUs, and makes it.
func (w *walk) cpus(s *Step, list cpulist.List) {
	all := cpulist.Range(0, w.c.Shape.CPUs()-1)
	if len(list) == 0 {
		w.say(s, "no CPU is named")
		return
	}
	if gone := list.Minus(all); len(gone) > 0 {
		w.say(s, "%s not in the shape, which has %s", gone.Are("is", "are"), all.Words())
		return
	}
	if s.Refused != "" {
		return // whatever it asks for must not happen
	}
	absent := list.Minus(w.present)
	leaves := s.Verb == VerbOffline || s.Verb == VerbUnplug
	switch {
	case leaves && len(w.online.Minus(list)) == 0:
		w.say(s, "no CPU would be left online; keep CPU 0")
		return
	case leaves && list.Has(0):
		w.say(s, "CPU 0 cannot leave; allowed: CPUs of %s; to show that it is refused, add refused: REGEXP", all.Minus(cpulist.List{0}))
		return
	case s.Verb == VerbReplug && len(list.And(w.present)) > 0:
		w.say(s, "%s not been unplugged", list.And(w.present).Are("has", "have"))
	case s.Verb == VerbUnplug && len(absent) > 0:
		w.say(s, "%s been unplugged before", absent.Are("has", "have"))
	case len(absent) > 0 && s.Verb != VerbReplug:
		w.say(s, "%s unplugged; replug it first", absent.Are("is", "are"))
	case s.Verb == VerbOffline && len(list.Minus(w.online)) > 0:
		w.say(s, "%s offline before", list.Minus(w.online).Are("is", "are"))
	case s.Verb == VerbOnline && len(list.And(w.online)) > 0:
		w.say(s, "%s online before", list.And(w.online).Are("is", "are"))
	}
	switch s.Verb {
	case VerbOffline:
		w.online = w.online.Minus(list)
	case VerbOnline:
		w.online = w.online.Or(list)
	case VerbUnplug:
		w.online, w.present = w.online.Minus(list), w.present.Minus(list)
	case VerbReplug:
		w.present = w.present.Or(list)
	}
}

func (w *walk) storm(s *Step) {
	off := *s
	off.Verb = VerbOffline
	before := w.online
	w.cpus(&off, s.Storm.Offline)
	w.online = before
}

func (w *walk) expect(s *Step) {
	e := s.Expect
	if !e.Observed.empty() && len(w.observed) == 0 {
		w.say(s, "nothing has been observed yet; put an observe: LABEL before it")
	}
	for _, p := range e.Observed.validate(w.c) {
		w.sayAt(s, VerbExpect+"."+p.key, "%s", p.text)
	}
	for _, n := range e.Counted {
		w.checkStep(s, n.Step)
		if (n.Is == nil) == (n.AtLeast == nil) {
			w.say(s, "counted: %s needs one of is and at-least", n.Step)
		}
	}
}

func (w *walk) wait(s *Step, beside [][]Step) {
	f := s.WaitFor
	n := 0
	for _, given := range []bool{f.Held != "", f.Step != "", f.Log != nil, f.Link != "", f.Online != nil} {
		if given {
			n++
		}
	}
	if n != 1 {
		w.say(s, "want exactly one of held, step, log, link and online to wait for")
		return
	}
	if f.Count != nil && f.Step == "" && f.Log == nil {
		w.say(s, "count goes with step or log only")
	}
	switch {
	case f.Held != "":
		h := w.holds[f.Held]
		switch {
		case h == nil:
			w.say(s, "no hold is called %q; there are: %s%s", f.Held, orNone(w.holdNames()), nearest.Hint(f.Held, w.holdNames()))
		case h.releases > 0 && !releasesIn(beside, f.Held):
			w.say(s, "%q has been released before", f.Held)
		case !h.armed && !armsIn(beside, f.Held):
			w.say(s, "%q is not armed yet; that is in line %d", f.Held, h.step.Line)
		case !w.started && ofProtocol(h.step.Rule.Step) && !anyStep(beside, starts):
			w.say(s, "the driver has not been started, so nothing brings the device to %s; start it before, as with probe: {wait: false}, or beside, in together", h.step.Rule.Step)
		}
	case f.Step != "":
		w.checkStep(s, f.Step)
		if v, ok := vectorOf(f.Step); ok && v >= w.c.Vectors {
			w.say(s, "vector %d is not the function's, which has %s", v, cpulist.Range(0, w.c.Vectors-1))
		}
	case f.Link != "" && w.c.Driver != DriverMana:
		w.say(s, "a link needs driver mana, and the case has driver %s", w.c.Driver)
	case f.Online != nil:
		all := cpulist.Range(0, w.c.Shape.CPUs()-1)
		if gone := f.Online.Minus(all); len(gone) > 0 || !f.Online.Has(0) {
			w.say(s, "CPUs %s can never be all that are online; allowed: CPU 0 and others of %s", cpus(*f.Online), all)
		}
	}
}

func starts(s *Step) bool { return s.Verb == VerbProbe || s.Verb == VerbLoad || s.Verb == VerbBind }

func (w *walk) together(s *Step) {
	before, after := w.started, w.started
	touched := make([]cpulist.List, len(s.Together))
	for i, branch := range s.Together {
		beside := slices.Concat(s.Together[:i], s.Together[i+1:])
		w.started = before || anyStep(beside, starts) // what another branch starts, this one has to wait for
		for j := range branch {
			if starts(&branch[j]) {
				w.started = before
			}
			w.step(&branch[j], beside)
			touched[i] = touched[i].Or(branch[j].CPUs).Or(branch[j].Storm.Offline)
		}
		after = after || w.started
		for _, other := range touched[:i] {
			if both := other.And(touched[i]); len(both) > 0 {
				w.say(s, "%s in two branches at once, in no certain order", both.Are("changes", "change"))
			}
		}
	}
	w.started = after
}
