package scenarios

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/guestagent/cpulist"
)

// The verbs of the step language. Those of the rules are the actions of package inject.
const (
	VerbProbe        = "probe"
	VerbUp           = "up"
	VerbDown         = "down"
	VerbSetChannels  = "set-channels"
	VerbLoad         = "load"
	VerbUnload       = "unload"
	VerbBind         = "bind"
	VerbUnbind       = "unbind"
	VerbVectors      = "vectors"
	VerbHold         = string(inject.Hold)
	VerbRelease      = "release"
	VerbEnd          = "end"
	VerbDelay        = string(inject.Delay)
	VerbDrop         = string(inject.Drop)
	VerbDuplicate    = string(inject.Duplicate)
	VerbStatus       = string(inject.Status)
	VerbAlter        = string(inject.Alter)
	VerbAddInterrupt = string(inject.Add)
	VerbPost         = "post"
	VerbResetService = "reset-service"
	VerbReset        = "reset"
	VerbOffline      = "offline"
	VerbOnline       = "online"
	VerbUnplug       = "unplug"
	VerbReplug       = "replug"
	VerbFire         = "fire"
	VerbSettle       = "settle"
	VerbObserve      = "observe"
	VerbStorm        = "storm"
	VerbExpect       = "expect"
	VerbWaitFor      = "wait-for"
	VerbTogether     = "together"
	VerbReadDisks    = "read-disks"
	VerbSleep        = "sleep"
	VerbRun          = "run"
	VerbRemove       = "remove"
	VerbRescan       = "rescan"
	VerbSuspend      = "suspend"
	VerbHibernate    = "hibernate"
)

// Step is one thing an experiment does: a verb and, by the verb, what it is done to. A case's steps run in order, each once the one before it is done.
type Step struct {
	Verb    string
	At      string // its place among the case's steps, from 0: "3", or "5.1.0" for the first step of the second branch of step 5; result.Step.At is the same
	Line    int    // in the scenario file
	Refused string // a regular expression: the guest's kernel, or the lab, must refuse the step, and say so; "": it must succeed

	Probe    Probe        // probe
	Channels int          // set-channels: at least 1
	Rule     *inject.Rule // hold, delay, drop, duplicate, status, alter, add-interrupt: valid, and with a name that is unique in the case
	Release  string       // release: the name of a hold
	End      string       // end: the name of a rule
	Post     Post         // post; reset-service, where it is a reset request
	CPUs     cpulist.List // offline, online, unplug, replug
	Fire     Fire         // fire
	Label    string       // observe
	Storm    Storm        // storm
	Affinity *Affinity    // affinity
	Expect   *StepExpect  // expect
	WaitFor  *WaitFor     // wait-for
	Together [][]Step     // together: branches that run side by side; the step is done when all of them are
	Disks    ReadDisks    // read-disks
	Sleep    time.Duration
	Run      *Program // run
	Suspend  Suspend  // suspend
}

// ReadDisks is how much is read from each disk of the pressure.
type ReadDisks struct {
	Reads *count `json:"reads,omitempty" jsonschema_description:"how often each online CPU reads from each disk; default 8"`
}

// Times is how often each CPU reads.
func (r ReadDisks) Times() int { return r.Reads.or(8) }

// DiskExpect is what one disk must show.
type DiskExpect struct {
	Masks  []cpulist.List `json:"masks,omitempty" jsonschema_description:"mask of each request queue's interrupt, in order"`
	Queues []cpulist.List `json:"queues,omitempty" jsonschema_description:"effective CPU of each request queue's interrupt, in order"`
	OnNode *bool          `json:"on-node,omitempty" jsonschema_description:"whether every request queue's interrupt is on the disk's node"`
	Meets  *cpulist.List  `json:"meets,omitempty" jsonschema_description:"CPUs whose requests' interrupts were handled on themselves"`
}

// Probe is how the driver is started.
type Probe struct {
	Wait *bool `json:"wait,omitempty" jsonschema_description:"false: the next step does not wait for the end of the probe; default true"`
}

// Waits reports whether the step lasts until the driver is ready.
func (p Probe) Waits() bool { return p.Wait == nil || *p.Wait }

// Fire is which interrupts are fired, and how often.
type Fire struct {
	Vectors VectorSet `json:"vectors,omitempty" jsonschema_description:"vectors to fire, in the kernel's list format, or all, the default"`
	Rounds  *count    `json:"rounds,omitempty" jsonschema_description:"how often each of them fires; default 1"`
}

// Times is how often each vector fires.
func (f Fire) Times() int { return f.Rounds.or(1) }

// VectorSet is a list of vectors; nil: all there are.
type VectorSet cpulist.List

// UnmarshalText reads "all" or a list such as "1-4".
func (v *VectorSet) UnmarshalText(b []byte) error {
	if string(b) == "all" {
		*v = nil
		return nil
	}
	l, err := cpulist.Parse(string(b))
	if err != nil || len(l) == 0 {
		return fmt.Errorf("%q is no list of vectors; allowed: all, or numbers as in 0,2-4", b)
	}
	*v = VectorSet(l)
	return nil
}

// Storm takes CPUs offline and online again, round after round, while every vector fires, and then waits until the guest has handled all of it.
type Storm struct {
	Offline cpulist.List `json:"offline" jsonschema_description:"CPUs that leave and come back, all of them in every round"`
	Rounds  count        `json:"rounds" jsonschema_description:"how often they leave and come back"`
}

// Events the device can be told to post.
const (
	EventResetRequest   = "reset-request"   // EQE 135
	EventFPGAReconfig   = "fpga-reconfig"   // EQE 132
	EventLinkUp         = "link-up"         // EQE 133 kind 2
	EventLinkDown       = "link-down"       // EQE 133 kind 3
	EventChannelTimeout = "channel-timeout" // EQE 133 kind 1; value: milliseconds
	EventSoCSuspend     = "soc-suspend"     // EQE 134
	EventSoCResume      = "soc-resume"      // EQE 134
	EventUnknown        = "unknown"         // value: the type, one that no driver knows
)

var events = []struct {
	name string
	most uint64 // of its value; 0: it takes none
}{
	{EventResetRequest, 0}, {EventFPGAReconfig, 0}, {EventLinkUp, 0}, {EventLinkDown, 0}, {EventChannelTimeout, 1<<24 - 1}, {EventSoCSuspend, 0}, {EventSoCResume, 0}, {EventUnknown, 255},
}

// Events are the events allowed, those with a value with a word for it.
func Events() []string {
	return []string{EventResetRequest, EventFPGAReconfig, EventLinkUp, EventLinkDown, EventChannelTimeout + "=MS", EventSoCSuspend, EventSoCResume, EventUnknown + "=TYPE"}
}

// Post is an event-queue entry that the device posts of its own accord.
type Post struct {
	Event string // one of the Event constants
	Value int    // of channel-timeout and unknown
}

// UnmarshalText reads "reset-request" or "channel-timeout=5000".
func (p *Post) UnmarshalText(b []byte) error {
	name, value, valued := strings.Cut(string(b), "=")
	for _, e := range events {
		if e.name != name {
			continue
		}
		if e.most == 0 {
			if valued {
				return fmt.Errorf("event %s takes no value", name)
			}
			*p = Post{Event: name}
			return nil
		}
		n, err := strconv.ParseUint(value, 0, 32)
		if err != nil || n > e.most {
			return fmt.Errorf("event %s needs a value from 0 to %d, as in %s=%d", name, e.most, name, min(e.most, 200))
		}
		*p = Post{Event: name, Value: int(n)}
		return nil
	}
	return unknown("event", string(b), Events())
}

// String writes what UnmarshalText reads.
func (p Post) String() string {
	if p.Event == EventChannelTimeout || p.Event == EventUnknown {
		return fmt.Sprintf("%s=%d", p.Event, p.Value)
	}
	return p.Event
}

// StepExpect is what must hold when the step is reached. Observed is about the newest observation. The runner notes the facts (result.Step.Log, Counted), and
// Expect.Check judges them.
type StepExpect struct {
	Observed
	Log     many[Pattern] `json:"log,omitempty" jsonschema_description:"regular expressions, each of which some line that the kernel has logged since the case began must match"`
	NoLog   many[Pattern] `json:"no-log,omitempty" jsonschema_description:"regular expressions that no such line may match"`
	Counted many[Counted] `json:"counted,omitempty" jsonschema_description:"how often a step of the protocol has occurred since the case began"`
	Disks   []DiskExpect  `json:"disks,omitempty" jsonschema_description:"of the newest read-disks, each disk of the pressure in order"`
}

// Patterns are the expressions whose first match in the kernel's log the runner notes, in the order of result.Step.Log.
func (e *StepExpect) Patterns() []Pattern { return slices.Concat(e.Log, e.NoLog) }

// maxParts bounds a regular expression. A file has room for thousands that come to a hundred thousand parts each, which would take seconds and most of a gigabyte to compile.
const maxParts = 1000

// parts is how large an expression gets when it is compiled: each repetition is written out.
func parts(re *syntax.Regexp) int {
	n := 0
	for _, sub := range re.Sub {
		n += parts(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		return len(re.Rune)
	case syntax.OpRepeat:
		return n * max(re.Min, re.Max, 1)
	}
	return n + 1
}

// Pattern is a regular expression that is looked for in lines of the kernel's log.
type Pattern struct{ *regexp.Regexp }

// UnmarshalText reads an expression in Go's syntax.
func (p *Pattern) UnmarshalText(b []byte) error {
	form, err := syntax.Parse(string(b), syntax.Perl) // as regexp.Compile does: repetitions are not written out yet
	if err == nil {
		if n := parts(form); n > maxParts {
			return fmt.Errorf("the regular expression that begins with %.40q comes to %d characters and classes with its repetitions written out; allowed: %d, a line of the kernel's log is no longer", b, n, maxParts)
		}
	}
	re, err := regexp.Compile(string(b))
	if err != nil {
		return fmt.Errorf("%q is no regular expression: %s", b, strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	if len(b) == 0 {
		return errors.New("the regular expression is empty and would match any line")
	}
	p.Regexp = re
	return nil
}

// Counted is how often a step of the protocol has occurred since the case began.
type Counted struct {
	Step    string `json:"step" jsonschema_description:"a step of the protocol, as irqlab list steps shows them"`
	Is      *int   `json:"is,omitempty" jsonschema_description:"exactly so often" jsonschema:"minimum=0"`
	AtLeast *int   `json:"at-least,omitempty" jsonschema_description:"so often or more" jsonschema:"minimum=0"`
}

// Words for the state of the driver's link.
const (
	LinkUp    = "up"    // there, and up
	LinkDown  = "down"  // there, and down
	LinkThere = "there" // registered by the driver
	LinkGone  = "gone"  // not registered
)

// Links are the states of a link that may be waited for.
func Links() []string { return []string{LinkUp, LinkDown, LinkThere, LinkGone} }

// WithinDefault is how long a wait may last unless it says so itself. The driver waits 30 s for an answer, and a reset service begins with a sleep of 10 s.
const WithinDefault = time.Minute

// WaitFor is what a step waits for: one of its fields but Count and Within. What can be over in a moment, a step of the protocol or a line of the log, counts from when
// the step before this one began (the together step, for the first of a branch), so that nothing is missed in between.
type WaitFor struct {
	Held   string        `json:"held,omitempty" jsonschema_description:"until the hold of that name holds"`
	Step   string        `json:"step,omitempty" jsonschema_description:"until a step of the protocol has occurred since the step before this one began"`
	Log    *Pattern      `json:"log,omitempty" jsonschema_description:"until the kernel has logged a line that matches this regular expression since the step before this one began"`
	Link   linkState     `json:"link,omitempty" jsonschema_description:"until the driver's link is up, down, there (registered) or gone"`
	Online *cpulist.List `json:"online,omitempty" jsonschema_description:"until these CPUs, and no others, are online"`
	Count  *count        `json:"count,omitempty" jsonschema_description:"how many occurrences of the step, or lines of the log; default 1"`
	Within *duration     `json:"within,omitempty" jsonschema_description:"how long to wait at most, e.g. 30s; default 1m"`
}

// Times is how many occurrences or lines are waited for.
func (w *WaitFor) Times() int { return w.Count.or(1) }

// Limit is how long the wait may last.
func (w *WaitFor) Limit() time.Duration {
	if w.Within == nil {
		return WithinDefault
	}
	return time.Duration(*w.Within)
}

// count is a number of times, from 1.
type count int

const maxCount = 1_000_000

func (c *count) UnmarshalText(b []byte) error {
	n, err := strconv.Atoi(string(b))
	if err != nil || n < 1 || n > maxCount {
		return fmt.Errorf("%q is no count; allowed: 1 to %d", b, maxCount)
	}
	*c = count(n)
	return nil
}

func (c *count) or(unset int) int {
	if c == nil {
		return unset
	}
	return int(*c)
}

// duration is a time span as Go writes it.
type duration time.Duration

const maxDuration = 10 * time.Minute // a slip of the unit would stall a run

func (d *duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil || v <= 0 || v > maxDuration {
		return fmt.Errorf("%q is no duration; allowed: a number and its unit, as in 500ms, 30s or 2m, up to %s", b, maxDuration)
	}
	*d = duration(v)
	return nil
}

type linkState string

func (l *linkState) UnmarshalText(b []byte) error {
	return oneOf((*string)(l), b, "state of a link", Links())
}

func (d duration) span() time.Duration { return time.Duration(d) }
