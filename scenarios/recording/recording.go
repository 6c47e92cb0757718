// Package recording makes a scenario of what somebody did to a VM step by step, with what went on beside what. It is pure, and knows nothing of VMs or prompts.
package recording

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// Recording is a session so far. Its moments are numbers that count up from 1; no two things have the same.
type Recording struct {
	Case     scenarios.Case // whose machine it is
	Entries  []Entry        // in the order they began
	Held     []Held
	Hits     map[string]int // how often each rule was applied, by name
	Standing []string       // holds that hold the device now
}

// Entry is a step that was done, or tried.
type Entry struct {
	Step    scenarios.Step
	Began   int
	Ended   int           // 0: it goes on
	After   time.Duration // of the session, when it began
	Refused string        // the words of the guest's kernel or the lab that refused it; "": nobody did
	Failed  string        // why it came to nothing otherwise; "": it did not
	Saw     *result.Observation
	Hits    map[string]int // how often each rule was applied meanwhile, by name
	Before  Device         // when it began
	Left    Device         // when it ended
}

// Held is the moment when the device came to stand at a hold.
type Held struct {
	Name string
	At   int
}

// Device is how often the device came to what a driver does by itself when it sets up again.
type Device struct {
	Destroyed   int // smc:destroy
	Established int // smc:establish
	Configured  int // response:CONFIG_VPORT_RX, the last one of a link that comes up, and among those of one that goes
	Running     bool
}

// The steps that Device counts.
const (
	Destroy   = "smc:destroy"
	Establish = "smc:establish"
	Configure = "response:CONFIG_VPORT_RX"
)

// node is a step of the scenario to be, or only a remark.
type node struct {
	step     scenarios.Step
	remark   string
	branches [][]*node
}

// Scenario is the session as a scenario file of that name, which Load takes. What no scenario can do stays in it as a remark; leftOut tells of it.
func (r *Recording) Scenario(name string, remarks ...string) (file []byte, leftOut []string, err error) {
	c := r.Case
	c.Scenario, c.Question = name, ""
	list := r.nodes()
	for {
		file = scenarios.Write(&c, remarks, lines(list))
		_, err := scenarios.Load(name, file)
		if err == nil {
			break
		}
		var bad *scenarios.Error
		if !errors.As(err, &bad) {
			return nil, nil, err
		}
		n := at(list, bad.Key)
		if n == nil {
			return nil, nil, fmt.Errorf("the session makes no scenario: %s: %s", bad.Key, bad.Problem)
		}
		n.leave(bad.Problem)
	}
	var walk func([]*node)
	walk = func(list []*node) {
		for _, n := range list {
			if n.step.Verb == "" && n.remark != "" {
				leftOut = append(leftOut, n.remark)
			}
			for _, b := range n.branches {
				walk(b)
			}
		}
	}
	walk(list)
	return file, leftOut, nil
}

// leave makes a remark of a step.
func (n *node) leave(why string) {
	n.remark = fmt.Sprintf("%s: left out: %s", n.step, why)
	n.step, n.branches = scenarios.Step{}, nil
}

// lines are the nodes as they are written. A branch without a step is none, and a single one is no together.
func lines(list []*node) []scenarios.Line {
	var out []scenarios.Line
	for _, n := range list {
		l := scenarios.Line{Step: n.step, Remark: n.remark}
		if n.branches != nil {
			for _, b := range n.branches {
				if branch := lines(b); slices.ContainsFunc(branch, func(l scenarios.Line) bool { return l.Step.Verb != "" }) {
					l.Branches = append(l.Branches, branch)
				} else {
					out = append(out, branch...)
				}
			}
			if len(l.Branches) < 2 {
				out = append(out, slices.Concat(l.Branches...)...)
				continue
			}
		}
		out = append(out, l)
	}
	return out
}

// at finds the node that a key of the written file is about, such as steps.3.together.0.1.offline.
func at(list []*node, key string) *node {
	words := strings.Split(key, ".")
	if len(words) < 2 || words[0] != "steps" {
		return nil
	}
	// The file has the nodes that are steps, with a together of fewer than two branches taken apart: as lines does it.
	var steps []*node
	for _, n := range list {
		if n.branches == nil {
			steps = append(steps, n)
			continue
		}
		if live := liveBranches(n); len(live) < 2 {
			steps = append(steps, slices.Concat(live...)...)
		} else {
			steps = append(steps, n)
		}
	}
	n := stepAt(steps, words[1])
	if n == nil || n.branches == nil || len(words) < 5 || words[2] != scenarios.VerbTogether {
		return n
	}
	b, err := strconv.Atoi(words[3])
	if live := liveBranches(n); err == nil && b < len(live) {
		return stepAt(live[b], words[4])
	}
	return nil
}

func liveBranches(n *node) [][]*node {
	return slices.DeleteFunc(slices.Clone(n.branches), func(b []*node) bool {
		return !slices.ContainsFunc(b, func(n *node) bool { return n.step.Verb != "" })
	})
}

func stepAt(list []*node, word string) *node {
	i, err := strconv.Atoi(word)
	for _, n := range list {
		if n.step.Verb == "" {
			continue
		}
		if i == 0 && err == nil {
			return n
		}
		i--
	}
	return nil
}

// never is a moment after all others.
const never = int(^uint(0) >> 1)

// entry is an Entry on its way into the scenario.
type entry struct {
	Entry
	out string // why it cannot be repeated; "": it can
}

func (e *entry) end() int { return cmp.Or(e.Ended, never) }

// entries are the session's, with what each has to be in a scenario, and what lets the device go at the end.
func (r *Recording) entries() []entry {
	var out []entry
	last := 0
	for _, e := range r.Entries {
		x := entry{Entry: e}
		last = max(last, e.Began, e.Ended)
		own := e.Step.Rule != nil || slices.Contains([]string{scenarios.VerbRelease, scenarios.VerbEnd, scenarios.VerbWaitFor}, e.Step.Verb)
		switch {
		case e.Failed != "":
			x.out = firstLine(e.Failed)
		case e.Refused != "" && own:
			x.out = firstLine(e.Refused)
		case e.Refused != "":
			x.Step.Refused = refusedWords(e.Refused)
		case e.Step.Rule != nil && r.Hits[e.Step.Rule.Name] == 0:
			x.out = "the device never came to " + e.Step.Rule.Step
		}
		out = append(out, x)
	}
	lost := r.lost(out)
	for i := range out {
		if s := &out[i].Step; out[i].out == "" && lost[ruleOf(s)] {
			out[i].out = "the device came to it in a step that is left out"
		}
	}
	for _, h := range r.Held {
		last = max(last, h.At)
	}
	for _, name := range r.Standing {
		if lost[name] {
			continue
		}
		x := entry{Entry: Entry{Step: scenarios.Step{Verb: scenarios.VerbRelease, Release: name}, Began: last + 1, Ended: last + 2}}
		if n := len(out); n > 0 {
			x.After, x.Before, x.Left = out[n-1].After, out[n-1].Left, out[n-1].Left
		}
		last += 2
		out = append(out, x)
	}
	return out
}

// lost are the rules that were applied in steps that are left out, and in no other: nobody comes to them when the rest is done again.
func (r *Recording) lost(all []entry) map[string]bool {
	lost := map[string]bool{}
	for name, hits := range r.Hits {
		var out, kept int
		for _, e := range all {
			if e.out != "" {
				out += e.Hits[name]
			} else {
				kept += e.Hits[name]
			}
		}
		lost[name] = hits > 0 && kept == 0 && out >= hits
	}
	return lost
}

// ruleOf is the rule that a step is about, "" if it is about none.
func ruleOf(s *scenarios.Step) string {
	switch {
	case s.Rule != nil:
		return s.Rule.Name
	case s.WaitFor != nil:
		return s.WaitFor.Held
	}
	return cmp.Or(s.Release, s.End)
}

// refusedWords is an expression for the words of a refusal that are the same each time: the last thing that was said.
func refusedWords(text string) string {
	text = firstLine(text)
	if i := strings.LastIndex(text, ": "); i >= 0 && len(text)-i > 4 {
		text = text[i+2:]
	}
	text, _, _ = strings.Cut(text, ";")
	return regexp.QuoteMeta(text)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// nodes lays the session out: what ended before the next thing began comes one after the other, the rest together, each time after what had happened by then.
func (r *Recording) nodes() []*node {
	all := r.entries()
	var list []*node
	waited := map[string]bool{}
	var before *entry // that began with the last thing written
	var ended Device  // when that was over
	for i := 0; i < len(all); {
		e := &all[i]
		if e.out != "" {
			list = append(list, e.remark())
			i++
			continue
		}
		end, j := e.end(), i+1
		for ; j < len(all) && all[j].Began < end; j++ {
			if all[j].out == "" {
				end = max(end, all[j].end())
			}
		}
		list = append(list, r.waits(all, e, waited, before, ended)...)
		real := 0
		for k := i; k < j; k++ {
			if all[k].out == "" {
				real++
				if all[k].Ended == 0 || all[k].end() == end {
					ended = all[k].Left
				}
			}
		}
		if real < 2 {
			list = append(list, e.nodes()...)
			for k := i + 1; k < j; k++ {
				list = append(list, all[k].remark())
			}
		} else {
			list = append(list, r.together(all, i, j, waited))
		}
		before = e
		i = j
	}
	return list
}

func (e *entry) remark() *node {
	n := &node{step: e.Step}
	n.leave(e.out)
	return n
}

// nodes are the step, and what it saw as an expectation.
func (e *entry) nodes() []*node {
	list := []*node{{step: e.Step}}
	if e.Saw != nil {
		list = append(list, &node{step: scenarios.Step{Verb: scenarios.VerbExpect, Expect: scenarios.Seen(e.Saw)}})
	}
	return list
}

// waits are for what had happened by the time that an entry began, without anything that was done waiting for it: the device had come to a hold, or the driver had set it up again.
func (r *Recording) waits(all []entry, e *entry, waited map[string]bool, before *entry, ended Device) []*node {
	var list []*node
	for _, h := range r.Held {
		if h.At < e.Began && !waited[h.Name] {
			waited[h.Name] = true
			if !released(all, h.Name, e.Began) && !leftOut(all, h.Name) && !(e.Step.WaitFor != nil && e.Step.WaitFor.Held == h.Name) {
				list = append(list, &node{step: scenarios.Step{Verb: scenarios.VerbWaitFor, WaitFor: &scenarios.WaitFor{Held: h.Name}}})
			}
		}
	}
	if before == nil || len(list) > 0 || e.Before == ended {
		return list
	}
	wait := func(step string, n int) []*node {
		return append(list, &node{step: scenarios.Step{Verb: scenarios.VerbWaitFor, WaitFor: scenarios.WaitForStep(step, n)}})
	}
	base, now := before.Before, e.Before
	switch {
	case now.Running && now.Configured > ended.Configured:
		return wait(Configure, now.Configured-base.Configured)
	case now.Established > ended.Established:
		return wait(Establish, now.Established-base.Established)
	case now.Destroyed > ended.Destroyed:
		return wait(Destroy, now.Destroyed-base.Destroyed)
	}
	return list
}

// released reports whether a hold was let go by something that began before a moment.
func released(all []entry, name string, moment int) bool {
	return slices.ContainsFunc(all, func(e entry) bool {
		return e.out == "" && e.Began < moment && (e.Step.Release == name || e.Step.End == name)
	})
}

// leftOut reports whether the step that put a rule in force is left out.
func leftOut(all []entry, name string) bool {
	return slices.ContainsFunc(all, func(e entry) bool { return e.out != "" && e.Step.Rule != nil && e.Step.Rule.Name == name })
}

// together lays entries i to j out side by side: each in a branch whose last one was over before it began.
func (r *Recording) together(all []entry, i, j int, waited map[string]bool) *node {
	n := &node{step: scenarios.Step{Verb: scenarios.VerbTogether}}
	var last []*entry // of each branch
	known := []map[string]bool{}
	first := &all[i]
	at := 0
	for k := i; k < j; k++ {
		e := &all[k]
		if e.out != "" {
			n.branches[at] = append(n.branches[at], e.remark())
			continue
		}
		at = slices.IndexFunc(last, func(l *entry) bool { return l.end() < e.Began })
		fresh := at < 0
		if fresh {
			at = len(last)
			last, n.branches = append(last, nil), append(n.branches, nil)
			inherited := map[string]bool{}
			for name := range waited {
				inherited[name] = true
			}
			known = append(known, inherited)
		}
		waits := r.waits(all, e, known[at], nil, Device{})
		if e != first && len(waits) == 0 && fresh && e.Step.WaitFor == nil {
			if pause := (e.After - first.After).Round(100 * time.Millisecond); pause > 0 {
				waits = []*node{{step: scenarios.Step{Verb: scenarios.VerbSleep, Sleep: min(pause, 10*time.Minute)}, remark: "the device gave nothing to wait for between these"}}
			}
		}
		n.branches[at] = append(append(n.branches[at], waits...), e.nodes()...)
		last[at] = e
	}
	for _, h := range r.Held {
		if h.At < last[len(last)-1].Began {
			waited[h.Name] = true
		}
	}
	return n
}

// Names makes a name that no rule had before, since a scenario's rules have names of their own.
func Names(name string, taken func(string) bool) string {
	unique := name
	for n := 2; taken(unique); n++ {
		if unique = fmt.Sprintf("%s-%d", name, n); strings.Contains(name, " ") { // one that says what the rule does
			unique = fmt.Sprintf("%s (%d)", name, n)
		}
	}
	return unique
}

// Rule is a step that puts a rule in force, under a name of its own.
func Rule(step scenarios.Step, taken func(string) bool) scenarios.Step {
	if step.Rule != nil {
		rule := inject.Rule(*step.Rule)
		rule.Name = Names(rule.Name, taken)
		step.Rule = &rule
	}
	return step
}
