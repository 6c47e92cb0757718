package timeline

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"irqlab/devmodel/trace"
	"irqlab/devmodel/vfiouser"
	"irqlab/guestagent/agentapi"
	"irqlab/lab"
)

// Names of traced kinds that mean more here than a line of text.
var (
	kindFire     = vfiouser.TraceFire.Name()
	kindAssign   = vfiouser.TraceAssign.Name()
	kindDeassign = vfiouser.TraceDeassign.Name()
	kindCall     = lab.TraceCall.Name()
	kindCPU      = lab.TraceCPU.Name()
	kindRead     = lab.TraceRead.Name()
	kindMasks    = lab.TraceMasks.Name()
	kindSetIRQs  = vfiouser.TraceSetIRQs.Name()
)

const (
	kindStep    = "step"        // of lab/runner
	kindStepEnd = "step-end"    // likewise
	kindInject  = "inject"      // of devmodel/inject
	kindRequest = "hwc-request" // of devmodel/gdma
	kindSMC     = "smc-request" // likewise

	stepDone = "done" // the text of the end of a step that did what it should
)

// source says who records events of a kind.
func source(kind string) string {
	switch {
	case kind == kindStep, kind == kindStepEnd:
		return SourceStep
	case kind == kindInject:
		return SourceInject
	case kind == kindCall:
		return SourceAgent
	case kind == kindCPU:
		return SourceCPU
	case kind == kindRead, kind == kindMasks:
		return SourceObservation
	case strings.HasPrefix(kind, "vector-"), kind == kindSetIRQs:
		return SourceVector
	}
	return SourceDevice
}

// Build makes a case's timeline of what was traced and what the guest logged. The header is completed: with the clock the log was aligned by, and notes on what is
// missing. Lines from before the guest began to run are those of the boot that its snapshot saved, and not of this case; a guest without a snapshot began with its first
// line. A nil clock keeps the log out.
func Build(h Header, events []trace.Event, log []agentapi.LogRecord, clock *Clock) *Timeline {
	tl := &Timeline{Header: h}
	for _, e := range events {
		l := trace.Line{T: e.T, Kind: e.Kind.Name(), Text: e.Text}
		for _, name := range e.Kind.Fields() {
			n, _ := e.Field(name)
			l.Fields = append(l.Fields, trace.Field{Name: name, Value: strconv.FormatUint(n, 10)})
		}
		tl.Events = append(tl.Events, fromTrace(l))
	}
	if clock != nil {
		tl.Header.Clock = clock
		if h.Guest == 0 && len(log) > 0 {
			tl.Header.Guest = max(0, clock.Host(Time(stamp(log[0]))))
		}
		for _, r := range log {
			if e := fromLog(r, clock); !strings.HasPrefix(r.Text, markText) && e.T+clock.ErrorAt(e.T) >= h.Guest {
				tl.Events = append(tl.Events, e)
			}
		}
	}
	order(tl.Events)
	lengths(tl.Events, h.End)
	return tl
}

// placed is the text of a step's end.
var placed = regexp.MustCompile(`^(\d[\d.]{0,30}) (.*)`)

// lengths gives each step its length: until it ends, with the place it then tells, or, of what has no number, until the next one begins or one ends, or the case does. Each
// hold and delay lasts until the rule's next word.
func lengths(events []Event, end Time) {
	step := end
	over := map[string]Time{}   // by rule
	ends := map[string]*Event{} // by the step's number
	for i := len(events) - 1; i >= 0; i-- {
		e := &events[i]
		number := e.Fields["number"].String()
		switch e.Kind {
		case kindStepEnd:
			if m := placed.FindStringSubmatch(e.Text); m != nil {
				e.Step, e.Text = m[1], m[2]
			}
			ends[number], step = e, e.T
		case kindStep:
			until := step
			if e.number("number") > 0 {
				until = end
				if last := ends[number]; last != nil {
					until, e.Step = last.T, last.Step
				}
			}
			e.For, step = max(0, until-e.T), e.T
		case kindInject:
			rule, what, _ := strings.Cut(e.Text, ": ")
			until, ok := over[rule]
			if !ok {
				until = end
			}
			if strings.HasPrefix(what, "hold ") || strings.HasPrefix(what, "delay ") {
				e.For = max(0, until-e.T)
			}
			over[rule] = e.T
		}
	}
}

func fromTrace(l trace.Line) Event {
	e := Event{T: Time(l.T), Source: source(l.Kind), Kind: l.Kind, Text: l.Text}
	for _, f := range l.Fields {
		index, err := strconv.Atoi(f.Value)
		switch {
		case f.Name == "vector" && err == nil:
			e.Vector = &index
		case f.Name == "cpu" && err == nil:
			e.CPU = &index
		case strings.HasPrefix(f.Value, `"`): // no recorder writes one
			e.Text = strings.TrimSpace(e.Text + " " + f.Name + "=" + f.Value)
		default:
			if e.Fields == nil {
				e.Fields = map[string]json.Number{}
			}
			e.Fields[f.Name] = json.Number(f.Value)
		}
	}
	if e.Kind == kindCall {
		// It is traced when it has ended.
		e.For = Time(min(e.number("microseconds"), uint64(maxTime)/1e3)) * Time(time.Microsecond)
		e.T -= e.For
	}
	return e
}

// What kernels from 6.1 to 7.3 log when a CPU goes, and when one comes.
var (
	offlineLine = regexp.MustCompile(`^smpboot: CPU (\d{1,4}) is now offline`)
	onlineLine  = regexp.MustCompile(`^smpboot: Booting Node \d+ Processor (\d{1,4}) APIC`)
)

func fromLog(r agentapi.LogRecord, clock *Clock) Event {
	e := Event{T: clock.Host(Time(stamp(r))), Source: SourceLog, Kind: KindLog, Level: r.Level, Text: r.Text}
	for kind, line := range map[string]*regexp.Regexp{KindOffline: offlineLine, KindOnline: onlineLine} {
		if m := line.FindStringSubmatch(r.Text); m != nil {
			cpu, _ := strconv.Atoi(m[1])
			e.Kind, e.CPU = kind, &cpu
		}
	}
	return e
}

// transition tells whether an event is a CPU's coming or going.
func (e *Event) transition() (online, ok bool) {
	switch {
	case e.CPU == nil:
	case e.Kind == kindCPU:
		return e.number("online") > 0, true
	case e.Kind == KindOffline, e.Kind == KindOnline:
		return e.Kind == KindOnline, true
	}
	return false, false
}

// reading is what one observation says of one vector.
type reading struct {
	at        Time
	irq       uint64
	handled   map[int]uint64 // by CPU
	effective []int
	pending   bool
}

// readings groups a vector's observations, which are one event for each CPU, ascending and in a row.
func readings(events []Event) map[int][]reading {
	all := map[int][]reading{}
	last := map[int]int{} // CPU of the event before, while the row lasts
	for i := range events {
		e := &events[i]
		if e.Kind != kindRead || e.Vector == nil || e.CPU == nil {
			clear(last)
			continue
		}
		v := *e.Vector
		if before, ok := last[v]; !ok || *e.CPU <= before {
			all[v] = append(all[v], reading{at: e.T, irq: e.number("irq"), handled: map[int]uint64{}})
		}
		last[v] = *e.CPU
		r := &all[v][len(all[v])-1]
		r.handled[*e.CPU] = e.number("handled")
		r.pending = e.number("pending") > 0
		if e.number("effective") > 0 {
			r.effective = append(r.effective, *e.CPU)
		}
	}
	return all
}

// handlers tells which CPU handled each firing, by the event's index: known where, between the observations before and after it, only one CPU handled any of the vector's
// interrupts.
func handlers(events []Event) map[int]int {
	all := readings(events)
	on := map[int]int{}
	for i := range events {
		e := &events[i]
		if e.Kind != kindFire || e.Vector == nil {
			continue
		}
		list := all[*e.Vector]
		after, _ := slices.BinarySearchFunc(list, e.T, func(r reading, t Time) int {
			if r.at <= t {
				return -1
			}
			return 1
		})
		if after == 0 || after == len(list) {
			continue
		}
		if cpu, ok := onlyRise(list[after-1], list[after]); ok {
			on[i] = cpu
		}
	}
	return on
}

func onlyRise(a, b reading) (cpu int, ok bool) {
	for c, n := range b.handled {
		switch before := a.handled[c]; {
		case a.irq != b.irq, n < before, n > before && ok:
			return 0, false
		case n > before:
			cpu, ok = c, true
		}
	}
	return cpu, ok
}
