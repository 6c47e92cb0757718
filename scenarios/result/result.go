// Package result holds what a run found, in the exact form of irqlab's JSON output, schema 2.
//
// It is pure: values only. It must not know how a result is obtained (lab/runner), judged (scenarios) or rendered (lab/report).
package result

import (
	"encoding/json"
	"maps"
	"slices"

	"irqlab/guestagent/cpulist"
	"irqlab/scenarios/shape"
)

// Schema is the version of the JSON form. Fields are only ever added to it.
const Schema = 2

// Outcome is how a case ended.
type Outcome string

// The outcomes.
const (
	Pass     Outcome = "pass"
	Observed Outcome = "observed" // nothing went wrong, but nothing, or not all that the scenario expects, was expected
	Fail     Outcome = "fail"     // the kernel or driver did not do what was expected, or crashed
	Error    Outcome = "error"    // the lab itself could not tell
)

// Roles of a vector.
const (
	RoleHWC    = "hwc"
	RoleQueue  = "queue"
	RoleUnused = "unused" // the kernel's driver has it, but no event queue signals on it
)

// Report is one run of irqlab.
type Report struct {
	Schema  int       `json:"schema"`
	IRQLab  string    `json:"irqlab,omitempty"` // the version that made it
	Host    Host      `json:"host"`
	Seconds float64   `json:"seconds,omitempty"` // elapsed until the last case had ended, fetching not included
	Cases   []Case    `json:"cases"`
	NotRun  int       `json:"not_run,omitempty"` // cases that had not ended when the run was interrupted, or when this was written
	Pending []Pending `json:"pending,omitempty"` // those
}

// Pending is a case that had not ended.
type Pending struct {
	Scenario string `json:"scenario"`
	Name     string `json:"case"`
	Command  string `json:"command,omitempty"` // that runs it
}

// Host is the machine the lab ran on.
type Host struct {
	QEMU        string `json:"qemu"`                   // version
	Accel       string `json:"accel"`                  // kvm or tcg
	AccelReason string `json:"accel_reason,omitempty"` // why not the other
	CPUs        int    `json:"cpus"`
}

// Case is one concrete run: one kernel, shape, strategy and so on.
type Case struct {
	Scenario string   `json:"scenario"`
	Name     string   `json:"case"`
	Outcome  Outcome  `json:"outcome"`
	Reasons  []string `json:"reasons"`           // why not pass, one sentence each
	Known    string   `json:"known,omitempty"`   // of a fail that is known on this kernel: why, and where it is told of
	Command  string   `json:"command,omitempty"` // that runs it again
	Notes    []string `json:"notes,omitempty"`   // what a reader must know to judge the outcome, e.g. dropped expectations

	Kernel     string      `json:"kernel"`                // the release the guest reports
	KernelSpec string      `json:"kernel_spec,omitempty"` // what was asked for
	Modules    []Module    `json:"modules,omitempty"`     // that took the place of the kernel's own
	Packages   []Package   `json:"packages,omitempty"`    // that the guest has, those that were asked for
	Driver     string      `json:"driver"`
	Strategy   string      `json:"strategy"`         // empty when the kernel's driver places the vectors itself
	Branch     string      `json:"branch,omitempty"` // which way the strategy went, e.g. "numa-aware, first group skipped"
	Irqchip    string      `json:"irqchip"`
	Cmdline    string      `json:"cmdline,omitempty"` // words added to the guest kernel's command line
	Shape      shape.Shape `json:"shape"`
	DeviceNode *int        `json:"device_node"` // null: none
	Vectors    int         `json:"vectors"`     // of the function, HWC included
	Pressure   []string    `json:"pressure"`    // in effect, as the --pressure flag spells it

	Online  cpulist.List `json:"online"` // when the vectors were spread
	Start   string       `json:"start"`  // cold or warm
	Seconds Seconds      `json:"seconds"`

	Script       *Program      `json:"script,omitempty"` // that is the strategy
	Steps        []Step        `json:"steps,omitempty"`  // in the order they began
	Rules        []Rule        `json:"rules,omitempty"`  // in the order they were armed
	Observations []Observation `json:"observations"`
	Evidence     *Evidence     `json:"evidence,omitempty"` // of a fail or error that came to a guest
	KernelLog    KernelLog     `json:"kernel_log"`
	Artifacts    Artifacts     `json:"artifacts"`
}

// BranchUnknown is the branch of a driver whose masks are not those of any strategy, as after CPUs have left.
const BranchUnknown = "unknown"

// Program is what became of a program that was run in the guest.
type Program struct {
	Status  int     `json:"status"`
	Signal  string  `json:"signal,omitempty"` // that killed it, without SIG
	Late    bool    `json:"late,omitempty"`   // it did not end in time, and was killed
	Output  string  `json:"output"`           // standard error included; of a long one the beginning and the end
	Size    int64   `json:"size"`             // of all it wrote, in bytes
	Seconds float64 `json:"seconds"`
}

// Evidence is what the lab and the device did last before what made a case fail.
type Evidence struct {
	Until   float64  `json:"until"`             // when it failed, or was last observed: seconds since the case began, the timeline's clock
	Events  []Event  `json:"events"`            // by time
	Held    []string `json:"held,omitempty"`    // rules that held the device then
	Awaited []string `json:"awaited,omitempty"` // what had begun and not ended
}

// Event is something the lab or the device did.
type Event struct {
	T      float64 `json:"t"`      // as Until
	Source string  `json:"source"` // as in the timeline: step, inject, device, vector, …
	What   string  `json:"what"`
}

// Package is a Debian package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"` // empty if it came to no guest
}

// Module is a kernel module that was put in the place of the kernel's own.
type Module struct {
	Name   string `json:"name"`
	File   string `json:"file"`             // as it was given
	SHA256 string `json:"sha256,omitempty"` // of the file, in hexadecimal; empty if it came to no guest
}

// Seconds is where the time went.
type Seconds struct {
	Start float64 `json:"start"` // until the guest agent answered
	Run   float64 `json:"run"`   // from there to the last observation
	Total float64 `json:"total"`
}

// Observation is one reading of every vector.
type Observation struct {
	Label     string       `json:"label"`
	Online    cpulist.List `json:"online"`
	Vectors   []Vector     `json:"vectors"` // ascending index
	Clustered bool         `json:"clustered"`
	IdleCPUs  cpulist.List `json:"idle_cpus"`
}

// Vector is what was asked for one vector, and what the kernel says and does about it.
type Vector struct {
	Index     int            `json:"index"`
	Role      string         `json:"role"`
	IRQ       int            `json:"irq"`
	Asked     cpulist.List   `json:"asked"`               // by the strategy, a step or the driver; empty: nothing was
	Affinity  cpulist.List   `json:"affinity"`            // what the kernel says is requested now
	Hint      cpulist.List   `json:"hint"`                // empty: none
	Effective cpulist.List   `json:"effective"`           // where the kernel says that the interrupt is routed
	Handled   cpulist.List   `json:"handled"`             // where what was fired last was handled; empty: not known
	Dropped   bool           `json:"dropped"`             // asked and not kept, though CPUs of the mask were there all the time
	Refused   string         `json:"refused,omitempty"`   // of what was dropped: the kernel's words, where it said no
	Pending   bool           `json:"pending"`             // not yet moved to the requested mask
	Unsettled bool           `json:"unsettled,omitempty"` // settling gave the vector up
	Counts    map[int]uint64 `json:"counts"`              // interrupts handled, by CPU; CPUs without any are left out
	Queues    []Queue        `json:"queues,omitempty"`    // whose events come by it, as the device knows; driver mana only
	Chip      string         `json:"chip,omitempty"`
	Action    string         `json:"action,omitempty"` // the handler's name in /proc/interrupts
}

// Otherwise reports whether something else was asked for the vector than the kernel says is requested.
func (v Vector) Otherwise() bool { return len(v.Asked) > 0 && !slices.Equal(v.Asked, v.Affinity) }

// Queue is a queue pair of a function's vPort, both counted from 0.
type Queue struct {
	VPort int `json:"vport"`
	Index int `json:"index"`
}

// KernelLog is what the guest's kernel complained about.
type KernelLog struct {
	Warnings []string `json:"warnings"` // WARN, BUG, oops, lockdep, hung task, soft lockup, RCU stall; the text kept
}

// Artifacts are files kept from the run, relative to --out.
type Artifacts struct {
	Console string `json:"console,omitempty"`
	Trace   string `json:"trace,omitempty"`
	// Timeline is the trace together with what the guest logged, on one clock.
	Timeline string `json:"timeline,omitempty"`
}

// Observe completes an observation from its vectors.
func Observe(label string, online cpulist.List, vectors []Vector) Observation {
	return Observation{Label: label, Online: online, Vectors: vectors, Clustered: Clustered(online, vectors), IdleCPUs: IdleCPUs(online, vectors)}
}

// QueuesPerCPU counts the queue vectors on each CPU that has any, by effective CPU. A vector routed to several CPUs counts on each.
func QueuesPerCPU(vectors []Vector) map[int]int {
	n := map[int]int{}
	for _, v := range vectors {
		if v.Role != RoleQueue {
			continue
		}
		for _, c := range v.Effective {
			n[c]++
		}
	}
	return n
}

// IdleCPUs are the online CPUs with no queue vector.
func IdleCPUs(online cpulist.List, vectors []Vector) cpulist.List {
	busy := QueuesPerCPU(vectors)
	var idle cpulist.List
	for _, c := range online {
		if busy[c] == 0 {
			idle = append(idle, c)
		}
	}
	return idle
}

// ClusteredCPUs are the CPUs with two or more queue vectors while another online CPU has none; empty when no CPU is idle.
func ClusteredCPUs(online cpulist.List, vectors []Vector) cpulist.List {
	if len(IdleCPUs(online, vectors)) == 0 {
		return nil
	}
	per := QueuesPerCPU(vectors)
	maps.DeleteFunc(per, func(_, n int) bool { return n < 2 })
	var cpus []int
	for c := range per {
		cpus = append(cpus, c)
	}
	return cpulist.New(cpus...)
}

// Clustered reports whether some CPU has two or more queue vectors while another online CPU has none.
func Clustered(online cpulist.List, vectors []Vector) bool {
	return len(ClusteredCPUs(online, vectors)) > 0
}

// Find returns the last observation with the label, nil when there is none.
func (c *Case) Find(label string) *Observation {
	for i := len(c.Observations) - 1; i >= 0; i-- {
		if c.Observations[i].Label == label {
			return &c.Observations[i]
		}
	}
	return nil
}

// Labels are those of the cases' observations, each once, in time order.
func Labels(cases ...*Case) []string {
	var out []string
	for _, c := range cases {
		for _, o := range c.Observations {
			if !slices.Contains(out, o.Label) {
				out = append(out, o.Label)
			}
		}
	}
	return out
}

// Step returns the step that was at a place of the scenario, nil when it was not begun.
func (c *Case) Step(at string) *Step {
	for i := range c.Steps {
		if c.Steps[i].At == at {
			return &c.Steps[i]
		}
	}
	return nil
}

// Placement returns vector 0's effective CPUs, and the queue vectors' in ascending index.
func (o *Observation) Placement() (hwc cpulist.List, queues []cpulist.List) {
	for _, v := range o.Vectors {
		switch v.Role {
		case RoleQueue:
			queues = append(queues, v.Effective)
		case RoleHWC:
			hwc = v.Effective
		}
	}
	return hwc, queues
}

// The marshallers write empty arrays and objects where Go has nil, so that a reader need not tell null from empty.

// MarshalJSON writes schema 2.
func (r Report) MarshalJSON() ([]byte, error) {
	type plain Report
	r.Cases = some(r.Cases)
	return json.Marshal(plain(r))
}

// MarshalJSON writes schema 2.
func (c Case) MarshalJSON() ([]byte, error) {
	type plain Case
	c.Reasons, c.Pressure, c.Observations = some(c.Reasons), some(c.Pressure), some(c.Observations)
	return json.Marshal(plain(c))
}

// MarshalJSON writes schema 2.
func (o Observation) MarshalJSON() ([]byte, error) {
	type plain Observation
	o.Vectors = some(o.Vectors)
	return json.Marshal(plain(o))
}

// MarshalJSON writes schema 2.
func (v Vector) MarshalJSON() ([]byte, error) {
	type plain Vector
	if v.Counts == nil {
		v.Counts = map[int]uint64{}
	}
	return json.Marshal(plain(v))
}

// MarshalJSON writes schema 2.
func (l KernelLog) MarshalJSON() ([]byte, error) {
	type plain KernelLog
	l.Warnings = some(l.Warnings)
	return json.Marshal(plain(l))
}

func some[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
