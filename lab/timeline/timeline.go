// Package timeline puts all that is known of a case on one clock: the lab's steps and calls, what the device saw and did, its vectors, CPUs that come and go, and the
// guest's log.
//
// It is pure but for Measure, which asks a guest: traces, log records and clock readings in, a file, text or a page out.
package timeline

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"irqlab/devmodel/trace"
	"irqlab/guestagent/cpulist"
)

// Schema is the version of the file's form. Fields are only ever added to it.
const Schema = 1

// Sources of events: who tells.
const (
	SourceStep        = "step"        // the lab, of the case's steps
	SourceAgent       = "agent"       // the lab, of its calls to the guest's agent
	SourceCPU         = "cpu"         // the lab, of CPUs it took on- and offline
	SourceObservation = "observation" // the guest's kernel, asked by the lab, of one vector and one CPU
	SourceInject      = "inject"      // the device, of rules that met a step of the protocol
	SourceVector      = "vector"      // the device, of its vectors
	SourceDevice      = "device"      // the device, of everything else
	SourceLog         = "guest-log"   // the guest's kernel log
)

// Sources are all sources, in the order of a page's lanes.
var Sources = []string{SourceStep, SourceInject, SourceDevice, SourceAgent, SourceLog, SourceCPU, SourceVector, SourceObservation}

// Kinds of events that no trace has: what the guest's log says.
const (
	KindLog     = "log"
	KindOffline = "cpu-offline" // a log line that tells of a CPU that went
	KindOnline  = "cpu-online"
)

// Bounds on what Read takes.
const (
	maxEvents = 1 << 20
	maxVector = 1 << 12 // an MSI-X table has 2048
	maxCPU    = 1 << 13 // NR_CPUS of any kernel
	maxTime   = Time(1000 * 24 * time.Hour)
)

// Time is a moment, or a length of time, in a file: a duration there in seconds, with six digits after the point.
type Time time.Duration

func (t Time) seconds() float64 { return time.Duration(t).Seconds() }

func (t Time) String() string { return strconv.FormatFloat(time.Duration(t).Seconds(), 'f', 6, 64) }

// MarshalJSON writes seconds.
func (t Time) MarshalJSON() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalJSON reads seconds.
func (t *Time) UnmarshalJSON(b []byte) error {
	s, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.Abs(s) > time.Duration(maxTime).Seconds() {
		return fmt.Errorf("time %.40q: want seconds", b)
	}
	*t = Time(math.Round(s * float64(time.Second)))
	return nil
}

// Header is a file's first line.
type Header struct {
	IRQLab    string   `json:"irqlab"` // "timeline"
	Schema    int      `json:"schema"`
	Scenario  string   `json:"scenario,omitempty"`
	Case      string   `json:"case,omitempty"`
	Outcome   string   `json:"outcome,omitempty"`
	Kernel    string   `json:"kernel,omitempty"`
	Start     string   `json:"start,omitempty"`     // cold or warm
	CPUs      int      `json:"cpus,omitempty"`      // of the machine, all of them online at first; 0: not known
	Guest     Time     `json:"guest,omitempty"`     // when the guest began to run
	End       Time     `json:"end,omitempty"`       // of the case
	Forgotten uint64   `json:"forgotten,omitempty"` // events older than the first one that were not kept
	Clock     *Clock   `json:"clock,omitempty"`     // of the guest's log; absent: nothing of the log is here
	Notes     []string `json:"notes,omitempty"`     // what is missing, and why

	// For a page that explains itself.
	Question string   `json:"question,omitempty"` // what the scenario asks
	Driver   string   `json:"driver,omitempty"`
	Strategy string   `json:"strategy,omitempty"`
	Reasons  []string `json:"reasons,omitempty"` // why the outcome is not pass
	Known    string   `json:"known,omitempty"`   // of a fail that is known on this kernel, why
	Final    *Final   `json:"final,omitempty"`   // the last observation; absent: there was none
}

// Final is a case's last observation of its vectors.
type Final struct {
	Label   string       `json:"label"`
	Online  cpulist.List `json:"online"`
	Vectors []Vector     `json:"vectors"`
}

// Vector is what the last observation says of one vector; empty lists are left out.
type Vector struct {
	Index     int          `json:"index"`
	Role      string       `json:"role"`
	IRQ       int          `json:"irq"`
	Action    string       `json:"action,omitempty"`    // the kernel's name for the handler
	Asked     cpulist.List `json:"asked,omitempty"`     // by the strategy, a step or the driver
	Requested cpulist.List `json:"requested,omitempty"` // what the kernel says is asked of it
	Effective cpulist.List `json:"effective,omitempty"` // where the kernel says that it is routed
	Handled   cpulist.List `json:"handled,omitempty"`   // where what was fired last, in settling, was handled
	Dropped   bool         `json:"dropped,omitempty"`   // asked and not kept, though CPUs of the mask were there all the time
	Pending   bool         `json:"pending,omitempty"`   // not yet moved
	Unsettled bool         `json:"unsettled,omitempty"` // settling gave the vector up
}

// Event is something that happened.
type Event struct {
	T      Time                   `json:"t"`             // on the host's clock, since the case began
	For    Time                   `json:"for,omitempty"` // how long it took, of what has a length
	Source string                 `json:"source"`
	Kind   string                 `json:"kind"` // of a traced event, its kind there
	Vector *int                   `json:"vector,omitempty"`
	CPU    *int                   `json:"cpu,omitempty"`
	Level  int                    `json:"level,omitempty"` // of a log line: 0 (emergency) to 7 (debug)
	Fields map[string]json.Number `json:"fields,omitempty"`
	Text   string                 `json:"text,omitempty"`
	Step   string                 `json:"step,omitempty"` // of a step that has ended, and of its end: its place in the scenario, "4.0.2"
}

// number is a field's value, 0 when there is none.
func (e *Event) number(field string) uint64 {
	n, _ := strconv.ParseUint(e.Fields[field].String(), 10, 64)
	return n
}

// Timeline is a case's events in the order of their times.
type Timeline struct {
	Header Header
	Events []Event
}

// order sorts events by time; those of the same time stay as they are.
func order(events []Event) {
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.T, b.T) })
}

// Write writes the header and then the events, one JSON object a line.
func (tl *Timeline) Write(w io.Writer) error {
	out := bufio.NewWriter(w)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	h := tl.Header
	h.IRQLab, h.Schema = "timeline", Schema
	if err := lines.Encode(h); err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	for i := range tl.Events {
		if err := lines.Encode(&tl.Events[i]); err != nil {
			return fmt.Errorf("timeline: %w", err)
		}
	}
	return out.Flush()
}

var errNotOne = errors.New("a timeline is what irqlab run --out leaves as timeline.jsonl or trace.jsonl")

// Read reads what Write wrote, or a function's trace: then there is no header and nothing of the guest's log. A last line that is not whole is left out: cut.
func Read(name string, r io.Reader) (tl *Timeline, cut bool, err error) {
	tl = &Timeline{}
	var parse func([]byte) error
	event := func(line []byte) error {
		e, err := parseEvent(line)
		tl.Events = append(tl.Events, e)
		return err
	}
	traced := func(line []byte) error {
		l, err := trace.ParseLine(line)
		if err != nil {
			return err
		}
		e := fromTrace(l)
		tl.Events = append(tl.Events, e)
		return e.check()
	}
	cut, err = trace.ReadLines(name, r, func(line []byte) error {
		switch {
		case len(tl.Events) >= maxEvents:
			return fmt.Errorf("there are more than %d events", maxEvents)
		case parse != nil:
			n := len(tl.Events)
			err := parse(line)
			if err != nil {
				tl.Events = tl.Events[:n]
			}
			return err
		}
		if err := json.Unmarshal(line, &tl.Header); err == nil && tl.Header.IRQLab == "timeline" {
			parse = event
			return tl.Header.check()
		}
		tl.Header, parse = Header{}, traced
		if err := traced(line); err != nil {
			tl.Events = nil
			return fmt.Errorf("%w; %w", err, errNotOne)
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, false, err
	case cut && tl.Events == nil && tl.Header.Schema == 0:
		return nil, false, fmt.Errorf("%s: no whole line: %w", name, errNotOne)
	case parse == nil:
		return nil, false, fmt.Errorf("%s: it is empty: %w", name, errNotOne)
	}
	order(tl.Events)
	if tl.Header.Schema == 0 && len(tl.Events) > 0 {
		tl.Header.End = tl.Events[len(tl.Events)-1].T
		lengths(tl.Events, tl.Header.End)
	}
	return tl, cut, nil
}

func (h *Header) check() error {
	switch {
	case h.Schema > Schema:
		return fmt.Errorf("it has schema %d, and this irqlab knows up to %d: use the irqlab that wrote it", h.Schema, Schema)
	case h.Schema < 1:
		return fmt.Errorf("schema %d: there is none below 1", h.Schema)
	case h.CPUs < 0 || h.CPUs > maxCPU:
		return fmt.Errorf("%d CPUs: want 0 to %d", h.CPUs, maxCPU)
	}
	return nil
}

func parseEvent(line []byte) (Event, error) {
	var e struct {
		T *Time `json:"t"` // takes the place of Event's: there must be one
		Event
	}
	d := json.NewDecoder(bytes.NewReader(line))
	if err := d.Decode(&e); err != nil {
		return Event{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Event{}, errors.New("something follows the object")
	}
	if e.T == nil {
		return Event{}, errors.New("it has no t")
	}
	e.Event.T = *e.T
	return e.Event, e.check()
}

func (e *Event) check() error {
	switch {
	case e.Source == "" || e.Kind == "":
		return errors.New("it has no source or no kind")
	case e.Vector != nil && (*e.Vector < 0 || *e.Vector >= maxVector):
		return fmt.Errorf("vector %d: want 0 to %d", *e.Vector, maxVector-1)
	case e.CPU != nil && (*e.CPU < 0 || *e.CPU >= maxCPU):
		return fmt.Errorf("CPU %d: want 0 to %d", *e.CPU, maxCPU-1)
	case e.T < -maxTime || e.T > maxTime || e.For < 0:
		return fmt.Errorf("time %s for %s: out of range", e.T, e.For)
	}
	return nil
}

// Title names the case, "" when the timeline does not.
func (h *Header) Title() string {
	return strings.Trim(h.Scenario+"/"+h.Case, "/")
}
