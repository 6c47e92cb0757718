package scenarios

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"irqlab/devmodel/inject"
	"irqlab/guestagent/cpulist"
	"irqlab/scenarios/nearest"
)

// MaxSteps bounds a case's steps, those side by side counted one by one.
const MaxSteps = 200

// keyRefused goes beside any verb but together.
const keyRefused = "refused"

// Verb describes a verb of the step language, for people.
type Verb struct {
	Name   string
	Form   string // how it is written, e.g. "offline: LIST"
	Text   string // what it does
	Driver string // with which driver only; "": with any
}

// verb is a verb and where its argument goes.
type verb struct {
	Verb
	arg  func(*Step) any // a pointer to fill; nil: the verb takes no argument
	bare bool            // the argument may be left out
}

// verbs are all of them, in the order people read them.
var verbs []verb

// Step refers to verbs by way of its branches, so the table is filled when the program starts.
func init() {
	rule := func(a inject.Action, form, text string, arg func() any) verb {
		return verb{Verb{string(a), string(a) + ": " + form, text, ""}, func(*Step) any { return arg() }, false}
	}
	cpus := func(s *Step) any { return &s.CPUs }
	verbs = []verb{
		{Verb{VerbProbe, "probe | probe: {wait: false}", "mana: load the driver and wait for its link; vfio: open the function and add the HWC vector. With wait: false the next step begins at once", ""},
			func(s *Step) any { return &s.Probe }, true},
		{Verb{VerbUp, "up", "bring the driver's link up with as many channels as there are queue vectors", DriverMana}, nil, true},
		{Verb{VerbDown, "down", "take the driver's link down", DriverMana}, nil, true},
		{Verb{VerbSetChannels, "set-channels: N", "change the link's number of channels, as ethtool -L does", DriverMana}, func(s *Step) any { return (*count)(&s.Channels) }, false},
		{Verb{VerbLoad, "load", "load the driver's module, and do not wait for its link", DriverMana}, nil, true},
		{Verb{VerbUnload, "unload", "unload the driver's module", DriverMana}, nil, true},
		{Verb{VerbBind, "bind", "bind the function to the driver", DriverMana}, nil, true},
		{Verb{VerbUnbind, "unbind", "unbind the function from the driver", DriverMana}, nil, true},
		{Verb{VerbVectors, "vectors", "add the queue vectors and apply the strategy", DriverVFIO}, nil, true},
		rule(inject.Hold, "{at: STEP, nth: N, as: NAME}", "hold the device at the n-th occurrence of a protocol step from here on, until released", func() any { return &holdRule{} }),
		{Verb{VerbRelease, "release: NAME", "let the device go on", ""}, func(s *Step) any { return &s.Release }, false},
		{Verb{VerbEnd, "end: NAME", "end a hold or fault before it is over by itself, and let the device go on", ""}, func(s *Step) any { return &s.End }, false},
		rule(inject.Delay, "{at: STEP, nth: N, times: N | always, for: DURATION, as: NAME}", "let the device wait at a step", func() any { return &delayRule{} }),
		rule(inject.Drop, "{at: STEP, nth: N, times: N | always, from: device | lab, as: NAME}", "leave a step out: the request is not seen, the answer, entry or interrupt not sent; from: of a vector, only what the device fires for its queues, or only what settle, fire and storm do", func() any { return &plainRule{} }),
		rule(inject.Duplicate, "{at: STEP, nth: N, times: N | always, as: NAME}", "do a step twice", func() any { return &plainRule{} }),
		rule(inject.Status, "{at: STEP, nth: N, times: N | always, status: CODE, as: NAME}", "answer with a status", func() any { return &statusRule{} }),
		rule(inject.Alter, "{at: STEP, nth: N, times: N | always, field: NAME, value: N, as: NAME}", "change a field of a message, or size bytes at an offset", func() any { return &alterRule{} }),
		rule(inject.Add, "{at: STEP, nth: N, times: N | always, vector: N, as: NAME}", "fire a vector for no reason at a step", func() any { return &addRule{} }),
		{Verb{VerbPost, "post: EVENT", "let the device post an event: " + strings.Join(Events(), ", "), DriverMana}, func(s *Step) any { return &s.Post }, false},
		{Verb{VerbResetService, "reset-service", "let the device ask for a reset service (post: reset-request); the next step does not wait for its end", DriverMana}, nil, true},
		{Verb{VerbReset, "reset", "have the kernel reset the function (FLR): the device forgets everything, and the driver is not told", DriverMana}, nil, true},
		{Verb{VerbOffline, "offline: LIST", "take CPUs offline through sysfs, one after the other", ""}, cpus, false},
		{Verb{VerbOnline, "online: LIST", "bring CPUs online through sysfs, one after the other", ""}, cpus, false},
		{Verb{VerbUnplug, "unplug: LIST", "take CPUs out of the machine by ACPI, and wait for the guest to let go of them", ""}, cpus, false},
		{Verb{VerbReplug, "replug: LIST", "put unplugged CPUs back by ACPI, and wait for the guest to see them; they come back offline", ""}, cpus, false},
		{Verb{VerbRemove, "remove", "have the kernel remove the function (sysfs), with whatever drives it; the machine keeps it", ""}, nil, true},
		{Verb{VerbRescan, "rescan", "have the kernel look for PCI functions (sysfs), as after remove; a driver that is loaded probes what is found: wait for it with probe", ""}, nil, true},
		{Verb{VerbSuspend, "suspend | suspend: {mode: freeze | mem, for: DURATION, within: DURATION}", "put the guest to sleep (to idle, or to RAM), wake it after a while (2 s), and wait until it goes on", ""},
			func(s *Step) any { return &s.Suspend }, true},
		{Verb{VerbHibernate, "hibernate", "have the guest write itself to a disk that it gets for that, and go on from there in the same machine (the kernel's test_resume)", ""}, nil, true},
		{Verb{VerbAffinity, "affinity: {vector: N, cpus: LIST}", "write a mask to a vector's interrupt, as an administrator would; with driver mana, too", ""},
			func(s *Step) any { s.Affinity = &Affinity{}; return s.Affinity }, false},
		{Verb{VerbFire, "fire | fire: {vectors: LIST, rounds: N}", "fire vectors, and wait until the guest has handled them", ""}, func(s *Step) any { return &s.Fire }, true},
		{Verb{VerbSettle, "settle", "fire every vector until it has moved to its requested mask", ""}, nil, true},
		{Verb{VerbObserve, "observe: LABEL", "read every vector's masks, CPUs and counts", ""}, func(s *Step) any { return &s.Label }, false},
		{Verb{VerbStorm, "storm: {offline: LIST, rounds: N}", "take CPUs offline and online again while all vectors fire, then wait: as many must be handled as fired, vector by vector", ""},
			func(s *Step) any { return &s.Storm }, false},
		{Verb{VerbReadDisks, "read-disks | read-disks: {reads: N}", "read from each disk of the pressure, from each online CPU in turn (8 times), and take down where its request queues' interrupts are, and where they were handled", ""},
			func(s *Step) any { return &s.Disks }, true},
		{Verb{VerbRun, "run: COMMAND | run: {script: FILE, args: WORDS, within: DURATION, status: N | any, output: REGEXP}",
			"run a command line, or a script beside the scenario, in the guest; IRQLAB_DEVICE, IRQLAB_LINK and IRQLAB_IRQS tell it what it is about. Its status and output are judged", ""},
			func(s *Step) any { s.Run = &Program{}; return s.Run }, false},
		{Verb{VerbExpect, "expect: {…}", "what must hold: of the newest observation, in the kernel's log, of the steps counted", ""}, func(s *Step) any { s.Expect = &StepExpect{}; return s.Expect }, false},
		{Verb{VerbWaitFor, "wait-for: {held: NAME | step: STEP | log: REGEXP | link: STATE | online: LIST, within: DURATION}", "wait until something has happened", ""},
			func(s *Step) any { s.WaitFor = &WaitFor{}; return s.WaitFor }, false},
		{Verb{VerbTogether, "together: [[STEPS], [STEPS]]", "run lists of steps side by side, and wait for all of them", ""}, nil, false},
		{Verb{VerbSleep, "sleep: DURATION", "do nothing", ""}, func(s *Step) any { return (*duration)(&s.Sleep) }, false},
	}
}

// Verbs lists the verbs of the step language.
func Verbs() []Verb {
	out := make([]Verb, len(verbs))
	for i, v := range verbs {
		out[i] = v.Verb
	}
	return out
}

func verbNames() []string {
	out := make([]string, len(verbs))
	for i, v := range verbs {
		out[i] = v.Name
	}
	return out
}

// The rules' arguments.
type (
	rulePoint struct {
		At   string `json:"at" jsonschema_description:"the protocol step, as irqlab list steps shows them, e.g. request:QUERY_DEV_CONFIG"`
		Nth  *count `json:"nth,omitempty" jsonschema_description:"at which occurrence from here on; default 1"`
		From origin `json:"from,omitempty" jsonschema_description:"at a vector: only what the device fires for its queues, or only what the lab fires (settle, fire, storm); default both"`
	}
	holdRule struct {
		rulePoint
		As ruleName `json:"as" jsonschema_description:"the hold's name, for release and wait-for"`
	}
	plainRule struct {
		rulePoint
		Times *times   `json:"times,omitempty" jsonschema_description:"at how many occurrences from the n-th on, or always; default 1"`
		As    ruleName `json:"as,omitempty" jsonschema_description:"the rule's name in the report"`
	}
	delayRule struct {
		plainRule
		For duration `json:"for" jsonschema_description:"how long, e.g. 500ms"`
	}
	statusRule struct {
		plainRule
		Status status32 `json:"status" jsonschema_description:"the status to answer with, e.g. 0xc0000001"`
	}
	alterRule struct {
		plainRule
		Field  string  `json:"field,omitempty" jsonschema_description:"the field to change, by the name it has on the timeline"`
		Offset *offset `json:"offset,omitempty" jsonschema_description:"instead of field: the first byte to change"`
		Size   *offset `json:"size,omitempty" jsonschema_description:"with offset: how many bytes, 1, 2, 4 or 8; default 4"`
		Value  numeral `json:"value" jsonschema_description:"the value it gets, e.g. 0x10"`
	}
	addRule struct {
		plainRule
		Vector offset `json:"vector" jsonschema_description:"the vector to fire"`
	}
)

// ruler is a rule's argument.
type ruler interface{ rule() inject.Rule }

func (r *rulePoint) rule() inject.Rule {
	return inject.Rule{Step: r.At, Nth: r.Nth.or(1), From: inject.Origin(r.From)}
}

func (r *holdRule) rule() inject.Rule {
	out := r.rulePoint.rule()
	out.Name = string(r.As)
	return out
}

func (r *plainRule) rule() inject.Rule {
	out := r.rulePoint.rule()
	out.Name, out.Times = string(r.As), 1
	if r.Times != nil {
		out.Times = int(*r.Times)
	}
	return out
}

func (r *delayRule) rule() inject.Rule {
	out := r.plainRule.rule()
	out.For = r.For.span()
	return out
}

func (r *statusRule) rule() inject.Rule {
	out := r.plainRule.rule()
	out.Status = uint32(r.Status)
	return out
}

func (r *alterRule) rule() inject.Rule {
	out := r.plainRule.rule()
	out.Field, out.Value = r.Field, uint64(r.Value)
	if r.Offset != nil {
		out.Offset, out.Size = int(*r.Offset), 4
	}
	if r.Size != nil { // without an offset, too: then Validate says what goes with what
		out.Size = int(*r.Size)
	}
	return out
}

func (r *addRule) rule() inject.Rule {
	out := r.plainRule.rule()
	out.Vector = int(r.Vector)
	return out
}

// ruleName is what a rule is called.
type ruleName string

func (r *ruleName) UnmarshalText(b []byte) error {
	if !validName(string(b)) {
		return fmt.Errorf("%q is %s", b, nameProblem)
	}
	*r = ruleName(b)
	return nil
}

// origin is who fires a vector.
type origin string

func (o *origin) UnmarshalText(b []byte) error {
	return oneOf((*string)(o), b, "origin", []string{string(inject.FromDevice), string(inject.FromLab)})
}

// times is how many occurrences a fault is for.
type times int

func (t *times) UnmarshalText(b []byte) error {
	if string(b) == "always" {
		*t = -1
		return nil
	}
	var c count
	if err := c.UnmarshalText(b); err != nil {
		return fmt.Errorf("%w, or always", err)
	}
	*t = times(c)
	return nil
}

// numeral is a value of the device's, decimal or hexadecimal.
type numeral uint64

func (n *numeral) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 0, 64)
	if err != nil {
		return fmt.Errorf("%q is no number; as in 22 or 0x16", b)
	}
	*n = numeral(v)
	return nil
}

// status32 is a status as messages have room for it.
type status32 uint32

func (s *status32) UnmarshalText(b []byte) error {
	var n numeral
	if err := n.UnmarshalText(b); err != nil {
		return err
	}
	if n > math.MaxUint32 {
		return fmt.Errorf("%q is no status; allowed: 0 to 0xffffffff", b)
	}
	*s = status32(n)
	return nil
}

// offset is a small number, from 0.
type offset int

func (o *offset) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 0, 16)
	if err != nil {
		return fmt.Errorf("%q is no number from 0 to 65535", b)
	}
	*o = offset(v)
	return nil
}

// stepList is the steps of a scenario or case; nil: not stated.
type stepList []Step

func (l *stepList) decodeNode(d *decoder, n ast.Node, path string) {
	items, ok := d.items(n, path)
	if !ok {
		return
	}
	if len(items) == 0 {
		d.fail(path, "the list is empty; leave the key out for the usual experiment")
	}
	for i, item := range items {
		at := strconv.Itoa(i)
		*l = append(*l, d.step(item, join(path, at), at, true))
	}
	count := 0
	for range allSteps(*l) {
		count++
	}
	if count > MaxSteps {
		d.fail(path, "%d steps; allowed: %d", count, MaxSteps)
	}
	nameRules(*l)
}

// items are the nodes of a list.
func (d *decoder) items(n ast.Node, path string) ([]ast.Node, bool) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.fail(path, "want a list of steps, got %s", kind(n))
		return nil, false
	}
	return seq.Values, true
}

// step reads one item of a list of steps. nest: it may run others together.
func (d *decoder) step(n ast.Node, path, at string, nest bool) Step {
	s := Step{At: at}
	d.at[path] = n.GetToken().Position
	before := len(d.errs)
	var pairs []pair
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		pairs, _ = d.pairs(n, path)
		if len(pairs) > 0 { // a mapping's own token is that of its first colon
			d.at[path] = pairs[0].pos
		}
	default:
		word, ok := d.scalar(n, path)
		if !ok {
			return s
		}
		pairs = []pair{{key: word, pos: d.at[path]}}
	}
	s.Line = d.at[path].Line
	var v *verb
	for _, p := range pairs {
		if p.key == keyRefused {
			continue
		}
		i := slices.IndexFunc(verbs, func(v verb) bool { return v.Name == p.key })
		switch {
		case i < 0:
			d.failAt(p.pos, path, nearest.Unknown("verb", p.key, verbNames()).Error())
			return s
		case v != nil:
			d.failAt(p.pos, path, fmt.Sprintf("two verbs in one step, %s and %s; begin another step with a dash", v.Name, p.key))
			return s
		}
		v = &verbs[i]
		s.Verb = v.Name
	}
	if v == nil {
		if len(d.errs) == before { // else what should have been the verb has been reported
			d.fail(path, "no verb; allowed: %s", strings.Join(verbNames(), ", "))
		}
		return s
	}
	for _, p := range pairs {
		if p.key == keyRefused && v.Name == VerbTogether {
			d.failAt(p.pos, path, "a together step is not refused, but a step in it; put refused beside that one")
			continue
		}
		if p.key == keyRefused {
			var re Pattern
			d.value(p.value, join(path, keyRefused), reflect.ValueOf(&re).Elem())
			if re.Regexp != nil {
				s.Refused = re.String()
			}
			continue
		}
		d.argument(p.value, path, v, &s, nest)
	}
	return s
}

// argument reads what stands beside a verb.
func (d *decoder) argument(n ast.Node, path string, v *verb, s *Step, nest bool) {
	given := n != nil && n.Type() != ast.NullType
	key := join(path, v.Name)
	switch {
	case v.Name == VerbTogether && !nest:
		d.fail(path, "together within together; a branch is a plain list of steps")
	case v.Name == VerbTogether && given:
		d.together(n, key, s)
	case !given && v.bare:
		if v.Name == VerbResetService {
			s.Post = Post{Event: EventResetRequest}
		}
	case !given:
		d.fail(path, "%s needs an argument: %s", v.Name, v.Form)
	case v.arg == nil:
		d.fail(key, "%s takes no argument; write it as a plain word", v.Name)
	default:
		dst := v.arg(s)
		before := len(d.errs)
		value := reflect.ValueOf(dst).Elem()
		d.value(n, key, value)
		if len(d.errs) > before {
			return
		}
		d.complete(key, value.Type())
		if r, ok := dst.(ruler); ok {
			rule := r.rule()
			rule.Action = inject.Action(v.Name)
			s.Rule = &rule
		}
	}
}

// complete reports the keys of a struct that must be there and are not: those without omitempty.
func (d *decoder) complete(path string, t reflect.Type) {
	if t.Kind() != reflect.Struct {
		return
	}
	for _, f := range reflect.VisibleFields(t) {
		if name, options, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && options == "" && d.at[join(path, name)] == nil {
			d.fail(path, "%s is missing", name)
		}
	}
}

func (d *decoder) together(n ast.Node, path string, s *Step) {
	branches, ok := d.items(n, path)
	if !ok {
		return
	}
	if len(branches) < 2 {
		d.fail(path, "want two lists of steps or more, to run side by side")
	}
	for i, b := range branches {
		at := join(path, strconv.Itoa(i))
		d.at[at] = b.GetToken().Position
		items, ok := d.items(b, at)
		if !ok {
			continue
		}
		if len(items) == 0 {
			d.fail(at, "the branch has no steps")
		}
		var branch []Step
		for j, item := range items {
			branch = append(branch, d.step(item, join(at, strconv.Itoa(j)), fmt.Sprintf("%s.%d.%d", s.At, i, j), false))
		}
		s.Together = append(s.Together, branch)
	}
}

// nameRules gives the rules that have no name one that says what they do, and that no other has.
func nameRules(steps []Step) {
	taken := map[string]bool{}
	each := func(f func(*inject.Rule)) {
		for s := range allSteps(steps) {
			if s.Rule != nil {
				f(s.Rule)
			}
		}
	}
	each(func(r *inject.Rule) { taken[r.Name] = true })
	each(func(r *inject.Rule) {
		base := fmt.Sprintf("%s %s", r.Action, r.Step)
		for n := 2; r.Name == ""; n++ {
			if !taken[base] {
				r.Name = base
				taken[base] = true
			}
			base = fmt.Sprintf("%s %s (%d)", r.Action, r.Step, n)
		}
	})
}

// allSteps walks the steps in the order of the file, those within together after it.
func allSteps(steps []Step) func(yield func(*Step) bool) {
	return func(yield func(*Step) bool) {
		for i := range steps {
			if !yield(&steps[i]) {
				return
			}
			for _, b := range steps[i].Together {
				for j := range b {
					if !yield(&b[j]) {
						return
					}
				}
			}
		}
	}
}

// key is where the step stands below steps in the file, e.g. "3" or "5.together.1.0".
func (s *Step) key() string {
	if parts := strings.Split(s.At, "."); len(parts) == 3 {
		return strings.Join([]string{parts[0], VerbTogether, parts[1], parts[2]}, ".")
	}
	return s.At
}

// String writes the step in one line, much as it stands in the file.
func (s Step) String() string {
	text := s.Verb
	switch {
	case s.Verb == VerbProbe && !s.Probe.Waits():
		text += ", without waiting"
	case s.Channels > 0:
		text += fmt.Sprintf(" %d", s.Channels)
	case s.Rule != nil:
		text = RuleText(*s.Rule) + " as " + s.Rule.Name
	case s.Verb == VerbRelease:
		text += " " + s.Release
	case s.Verb == VerbEnd:
		text += " " + s.End
	case s.Verb == VerbPost:
		text += " " + s.Post.String()
	case s.CPUs != nil:
		text += " " + s.CPUs.String()
	case s.Affinity != nil:
		text += " " + s.Affinity.String()
	case s.Verb == VerbFire:
		text += " vectors " + cmp.Or(cpulist.List(s.Fire.Vectors).String(), "all")
		if n := s.Fire.Times(); n > 1 {
			text += fmt.Sprintf(", %d rounds", n)
		}
	case s.Verb == VerbObserve:
		text += " " + s.Label
	case s.Verb == VerbReadDisks && s.Disks.Reads != nil:
		text += fmt.Sprintf(", %d times from each CPU", s.Disks.Times())
	case s.Verb == VerbStorm:
		text += fmt.Sprintf(" on CPUs %s, %d rounds", s.Storm.Offline, s.Storm.Rounds)
	case s.WaitFor != nil:
		text = s.WaitFor.String()
	case s.Verb == VerbTogether:
		branches := make([]string, len(s.Together))
		for i, b := range s.Together {
			words := make([]string, len(b))
			for j := range b {
				words[j] = b[j].String()
			}
			branches[i] = strings.Join(words, "; ")
		}
		text += " [" + strings.Join(branches, "] [") + "]"
	case s.Verb == VerbSleep:
		text += " " + s.Sleep.String()
	case s.Run != nil:
		text += " " + s.Run.String()
	case s.Verb == VerbSuspend:
		text += " " + s.Suspend.String()
	}
	return text
}

// RuleText says in one line what a rule does.
func RuleText(r inject.Rule) string {
	text := fmt.Sprintf("%s at %s", r.Action, r.Step)
	if r.From != "" {
		text += fmt.Sprintf(" from the %s", r.From)
	}
	if r.Nth > 1 {
		text += fmt.Sprintf(", occurrence %d", r.Nth)
	}
	switch {
	case r.Times < 0:
		text += ", always"
	case r.Times > 1:
		text += fmt.Sprintf(", %d times", r.Times)
	}
	switch r.Action {
	case inject.Delay:
		text += fmt.Sprintf(" for %s", r.For)
	case inject.Status:
		text += fmt.Sprintf(": 0x%x", r.Status)
	case inject.Alter:
		what := r.Field
		if what == "" {
			what = fmt.Sprintf("%d bytes at 0x%x", r.Size, r.Offset)
		}
		text += fmt.Sprintf(": %s = 0x%x", what, r.Value)
	case inject.Add:
		text += fmt.Sprintf(": vector %d", r.Vector)
	}
	return text
}

// String says what is waited for.
func (w *WaitFor) String() string {
	var what string
	switch {
	case w.Held != "":
		what = "held " + w.Held
	case w.Step != "":
		what = "step " + w.Step
	case w.Log != nil:
		what = "log " + strconv.Quote(w.Log.String())
	case w.Link != "":
		what = "link " + string(w.Link)
	case w.Online != nil:
		what = "online " + w.Online.String()
	}
	if n := w.Times(); n > 1 {
		what += fmt.Sprintf(", %d times", n)
	}
	return "wait for " + what
}

// setup tells what steps do, and not what is expected of them nor where.
func setup(steps []Step) string {
	var lines []string
	for s := range allSteps(steps) {
		switch {
		case s.Verb == VerbExpect:
		case s.Verb == VerbTogether: // its branches follow
			lines = append(lines, VerbTogether)
		default:
			if parts := strings.Split(s.At, "."); len(parts) == 3 {
				lines = append(lines, "branch "+parts[1])
			}
			lines = append(lines, s.String())
		}
	}
	return strings.Join(lines, "; ")
}
