package result

import (
	"slices"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
)

// StepOutcome is how a step of an experiment ended.
type StepOutcome string

// The outcomes of a step. One that never began has no Step.
const (
	StepDone    StepOutcome = "done"
	StepRefused StepOutcome = "refused" // by the guest's kernel or the lab: Refusal says in which words
	StepFailed  StepOutcome = "failed"  // neither: it is what ended the experiment
)

// Step is one step of an experiment as it was carried out.
type Step struct {
	At      string      `json:"at"`    // its place in the scenario, from 0: "3", or "5.1.0" for the first step of the second branch of step 5
	Text    string      `json:"step"`  // as the scenario has it, e.g. "offline 2-3"
	Line    int         `json:"line"`  // in the scenario file
	Start   float64     `json:"start"` // seconds since the first step began
	End     float64     `json:"end"`
	Outcome StepOutcome `json:"outcome"`
	Refusal string      `json:"refusal,omitempty"`

	Log      []LogMatch     `json:"log,omitempty"`     // expect: for each regular expression, those that must match first
	Counted  []Count        `json:"counted,omitempty"` // expect: for each count
	Storm    *Storm         `json:"storm,omitempty"`   // storm
	Disks    []Disk         `json:"disks,omitempty"`   // read-disks: by number
	Run      *Program       `json:"run,omitempty"`
	Topology []agentapi.CPU `json:"topology,omitempty"` // online: of all CPUs that are online now, where one came back that had been unplugged
	Slept    float64        `json:"slept,omitempty"`    // suspend, hibernate: seconds from the order to the guest's going on, by its clock that goes on while it sleeps
}

// LogMatch is the first line of the kernel's log that matched a regular expression; Line is empty when none did.
type LogMatch struct {
	Pattern string `json:"pattern"`
	Line    string `json:"line,omitempty"`
}

// Count is how often a step of the protocol had occurred.
type Count struct {
	Step string `json:"step"`
	N    int    `json:"n"`
}

// Storm is what became of the interrupts that fired while CPUs left and came back.
type Storm struct {
	Rounds  int           `json:"rounds"`
	Vectors []StormVector `json:"vectors"` // ascending index
}

// StormVector counts one vector's interrupts from the beginning of a storm until all of them had time to be handled.
type StormVector struct {
	Index   int    `json:"index"`
	Fired   uint64 `json:"fired"`
	Handled uint64 `json:"handled"`
	// Own are those of Fired that the device signalled by itself, as it does when the driver talks to it. The lab cannot hold them back until the one before is handled,
	// and two signals that are pending at once are one interrupt: so many may be missing from Handled.
	Own uint64 `json:"own,omitempty"`
	// Ahead is by how many Handled was ahead of Fired at the worst moment. At the end a lost interrupt may have made up for one that was handled and never fired; here it cannot.
	Ahead uint64 `json:"ahead,omitempty"`
}

// Disk is a disk of the pressure that was read from.
type Disk struct {
	Name   string      `json:"name"`   // nvme0n1
	Node   *int        `json:"node"`   // null: none
	Queues []DiskQueue `json:"queues"` // request queues that have an interrupt, ascending index
	Served []Served    `json:"served"` // by the CPU that read
}

// DiskQueue is a request queue's interrupt, after the disk was read from.
type DiskQueue struct {
	Index     int          `json:"index"` // from 0, queues for administration not counted
	IRQ       int          `json:"irq"`
	Name      string       `json:"name"`      // the handler's, in /proc/interrupts
	Managed   bool         `json:"managed"`   // the kernel lets nobody set its mask
	Affinity  cpulist.List `json:"affinity"`  // the mask
	Effective cpulist.List `json:"effective"` // where the kernel says that the interrupt is routed
	Node      *int         `json:"node"`      // of the effective CPU; null: the CPUs are not on one
}

// Served tells where the interrupt of what one CPU had read was handled.
type Served struct {
	CPU     int          `json:"cpu"`     // that submitted the requests
	Queue   *int         `json:"queue"`   // null: no queue's interrupt was handled
	Handled cpulist.List `json:"handled"` // on which CPUs it was
}

// OnNode reports whether every queue's interrupt is routed to the disk's node; not of a disk that has none.
func (d *Disk) OnNode() bool {
	return d.Node != nil && !slices.ContainsFunc(d.Queues, func(q DiskQueue) bool { return q.Node == nil || *q.Node != *d.Node })
}

// Meets are the CPUs that handled the interrupts of what they had submitted, and no other CPU did.
func (d *Disk) Meets() cpulist.List {
	var met, elsewhere cpulist.List
	for _, s := range d.Served {
		if own := (cpulist.List{s.CPU}); slices.Equal(s.Handled, own) {
			met = met.Or(own)
		} else {
			elsewhere = elsewhere.Or(own)
		}
	}
	return met.Minus(elsewhere)
}

// Lost is how many interrupts are missing from Handled for certain.
func (v StormVector) Lost() uint64 { return max(v.Fired, v.Handled+v.Own) - v.Handled - v.Own }

// Ahead is by how many the handled interrupts exceed the fired ones.
func Ahead(fired, handled uint64) uint64 { return max(fired, handled) - fired }

// Rule is a hold or a fault, and what became of it.
type Rule struct {
	Name  string `json:"name"`
	Text  string `json:"rule"`            // as the scenario has it, e.g. "hold at request:QUERY_DEV_CONFIG"
	Hits  int    `json:"hits"`            // how often it took effect
	Tells string `json:"tells,omitempty"` // for a rule that was never hit: how far the driver got
}
