package scenarios

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/scenarios/nearest"
)

// Kinds of pressure: interrupt vectors of others that sit on the CPUs before the function's own vectors are placed.
const (
	PressureNVMe      = "nvme"       // a real neighbour; its queues' interrupts are placed by its driver at boot
	PressureVirtioBlk = "virtio-blk" // the same
	PressureVectors   = "vectors"    // vectors the guest agent owns and pins to a CPU
)

// Moments before which vectors pressure is brought up.
const (
	BeforeHWC    = "hwc"    // before the function's vector 0 is requested
	BeforeQueues = "queues" // after vector 0 was requested and placed, before the first queue vector is
)

// Limits of pressure.
const (
	MaxPressureQueues = 64  // of one neighbour
	MaxPressureLevel  = 190 // an x86 CPU has about 200 device vectors
	PressureFull      = -1  // the level of a CPU that is to have no vector left
)

// Room is the number of vectors that a level can take at most.
func Room(level int) int {
	if level == PressureFull {
		return agentapi.MaxLevel
	}
	return level
}

// Pressure is one entry: a neighbour, or levels of agent-owned vectors.
type Pressure struct {
	Kind   string
	Queues int         // neighbours: request queues, each with an interrupt vector
	Node   int         // neighbours: NUMA node, -1 none
	Before string      // vectors: BeforeHWC or BeforeQueues
	Levels map[int]int // vectors: by CPU, how many device interrupt vectors must at least sit on it at that moment
}

// Profile is the pressure of one case.
type Profile []Pressure

func pressureKinds() []string   { return []string{PressureNVMe, PressureVirtioBlk, PressureVectors} }
func pressureMoments() []string { return []string{BeforeHWC, BeforeQueues} }

// ParsePressure reads one entry in the spelling that the --pressure flag and the YAML files share:
//
//	nvme:queues=4                      an NVMe controller with 4 I/O queues
//	virtio-blk:queues=2,node=1         a virtio disk with 2 request queues on node 1
//	vectors:before=hwc,cpu0-3=8        before the HWC vector is requested, at least 8 device vectors sit on each of CPUs 0 to 3
//	vectors:before=queues,cpu0=12,…    the same before the first queue vector is requested
//	vectors:before=queues,cpu1=full    no vector of CPU 1 is left
func ParsePressure(text string) (Pressure, error) {
	p, err := parsePressure(strings.TrimSpace(text))
	if err != nil {
		return Pressure{}, fmt.Errorf("pressure %q: %w", text, err)
	}
	return p, nil
}

func parsePressure(text string) (Pressure, error) {
	kind, rest, _ := strings.Cut(text, ":")
	if !slices.Contains(pressureKinds(), kind) {
		return Pressure{}, unknown("kind", kind, pressureKinds())
	}
	p := Pressure{Kind: kind, Node: NoNode}
	var keys []string
	for part := range strings.SplitSeq(rest, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok {
			return Pressure{}, fmt.Errorf("%q is not KEY=VALUE; as in %s", part, pressureExample(kind))
		}
		if slices.Contains(keys, key) {
			return Pressure{}, fmt.Errorf("%s is given twice", key)
		}
		keys = append(keys, key)
		set := p.setNeighbour
		if kind == PressureVectors {
			set = p.setVectors
		}
		if err := set(key, value); err != nil {
			return Pressure{}, err
		}
	}
	switch {
	case kind == PressureVectors && p.Before == "":
		return Pressure{}, fmt.Errorf("before is missing; allowed: before=%s", strings.Join(pressureMoments(), " or before="))
	case kind == PressureVectors && len(p.Levels) == 0:
		return Pressure{}, fmt.Errorf("no CPU has a level; as in %s", pressureExample(kind))
	case kind != PressureVectors && p.Queues == 0:
		return Pressure{}, fmt.Errorf("queues is missing; as in %s", pressureExample(kind))
	}
	return p, nil
}

// pressureFull is how PressureFull is written.
const pressureFull = "full"

func pressureExample(kind string) string {
	if kind == PressureVectors {
		return "vectors:before=queues,cpu0=12,cpu1-3=8"
	}
	return kind + ":queues=4,node=0"
}

func (p *Pressure) setNeighbour(key, value string) (err error) {
	switch key {
	case "queues":
		p.Queues, err = number(key, value, 1, MaxPressureQueues)
	case "node":
		p.Node, err = parseNode(value)
	default:
		err = unknown("key", key, []string{"queues", "node"})
	}
	return err
}

func (p *Pressure) setVectors(key, value string) error {
	if key == "before" {
		if !slices.Contains(pressureMoments(), value) {
			return fmt.Errorf("before: %w", unknown("moment", value, pressureMoments()))
		}
		p.Before = value
		return nil
	}
	list, ok := strings.CutPrefix(key, "cpu")
	if !ok {
		return unknown("key", key, []string{"before", "cpuN", "cpuN-M"})
	}
	cpus, err := cpulist.Parse(list)
	if err != nil || len(cpus) == 0 {
		return fmt.Errorf("key %q names no CPU; as in cpu0 or cpu0-3", key)
	}
	level := PressureFull
	if value != pressureFull {
		if level, err = number(key, value, 0, MaxPressureLevel); err != nil {
			return fmt.Errorf("%w; or %s", err, pressureFull)
		}
	}
	if p.Levels == nil {
		p.Levels = map[int]int{}
	}
	for _, c := range cpus {
		if _, twice := p.Levels[c]; twice {
			return fmt.Errorf("CPU %d is given twice", c)
		}
		p.Levels[c] = level
	}
	return nil
}

// String writes the entry as ParsePressure reads it, runs of CPUs with one level joined.
func (p Pressure) String() string {
	if p.Kind != PressureVectors {
		s := fmt.Sprintf("%s:queues=%d", p.Kind, p.Queues)
		if p.Node != NoNode {
			s += fmt.Sprintf(",node=%d", p.Node)
		}
		return s
	}
	var b strings.Builder
	b.WriteString(PressureVectors + ":before=" + p.Before)
	cpus := p.CPUs()
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 && p.Levels[cpus[j+1]] == p.Levels[cpus[i]] {
			j++
		}
		level := pressureFull
		if n := p.Levels[cpus[i]]; n != PressureFull {
			level = strconv.Itoa(n)
		}
		fmt.Fprintf(&b, ",cpu%s=%s", cpulist.Range(cpus[i], cpus[j]), level)
		i = j + 1
	}
	return b.String()
}

// CPUs are those a vectors entry gives a level.
func (p Pressure) CPUs() cpulist.List {
	return slices.Sorted(maps.Keys(p.Levels))
}

// ParseProfile reads the entries of one case. The single entry "none" is the empty profile: it takes a scenario's own pressure away.
func ParseProfile(entries []string) (Profile, error) {
	if len(entries) == 1 && strings.TrimSpace(entries[0]) == "none" {
		return Profile{}, nil
	}
	p := Profile{}
	for _, e := range entries {
		entry, err := ParsePressure(e)
		if err != nil {
			return nil, err
		}
		if err := p.accept(entry); err != nil {
			return nil, err
		}
		p = append(p, entry)
	}
	return p, nil
}

// ParseProfiles reads what several --pressure flags say: entries of one profile, or each with the NAME= of its own, which makes an alternative of every name.
func ParseProfiles(texts []string) ([]NamedProfile, error) {
	var order []string
	entries := map[string][]string{}
	for _, text := range texts {
		name, entry, ok := strings.Cut(text, "=")
		if !ok || name == "" || strings.ContainsRune(name, ':') || slices.Contains(pressureKinds(), name) { // an entry's own =
			name, entry = "", text
		}
		if name != "" && !validName(name) {
			return nil, fmt.Errorf("pressure %q: %q is %s", text, name, nameProblem)
		}
		if entries[name] == nil {
			order = append(order, name)
		}
		entries[name] = append(entries[name], entry)
	}
	if len(order) > 1 && entries[""] != nil {
		return nil, fmt.Errorf("pressure %q has no name, but others have: name all of them, as in busy=%s, or none", entries[""][0], pressureExample(PressureNVMe))
	}
	var out []NamedProfile
	for _, name := range order {
		p, err := ParseProfile(entries[name])
		if err != nil {
			return nil, err
		}
		out = append(out, NamedProfile{name, p})
	}
	return out, nil
}

// accept says why an entry cannot join the profile.
func (p Profile) accept(entry Pressure) error {
	if entry.Kind == PressureVectors && p.Levels(entry.Before) != nil {
		return fmt.Errorf("pressure %q: there is an entry with before=%s already; put all CPUs into one", entry, entry.Before)
	}
	return nil
}

// Strings writes the entries.
func (p Profile) Strings() []string {
	s := make([]string, len(p))
	for i, e := range p {
		s[i] = e.String()
	}
	return s
}

// Levels are those that agent-owned vectors must reach before a moment, nil when there are none.
func (p Profile) Levels(before string) map[int]int {
	for _, e := range p {
		if e.Kind == PressureVectors && e.Before == before {
			return e.Levels
		}
	}
	return nil
}

// Neighbours are the entries that are devices.
func (p Profile) Neighbours() Profile {
	var n Profile
	for _, e := range p {
		if e.Kind != PressureVectors {
			n = append(n, e)
		}
	}
	return n
}

// ParseDeviceNode reads a --device-node: a node number, or "none", which is NoNode.
func ParseDeviceNode(text string) (int, error) {
	n, err := parseNode(text)
	if err != nil {
		return 0, fmt.Errorf("device node: %w", err)
	}
	return n, nil
}

func parseNode(text string) (int, error) {
	if text == "none" {
		return NoNode, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is no node; allowed: a node number, or none", text)
	}
	return int(n), nil
}

func formatNode(node int) string {
	if node == NoNode {
		return "none"
	}
	return strconv.Itoa(node)
}

func number(what, text string, low, high int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high || strings.HasPrefix(text, "+") {
		return 0, fmt.Errorf("%s=%s is out of range; allowed: %d to %d", what, text, low, high)
	}
	return n, nil
}

// unknown is the error for a word outside a closed set.
func unknown(what, word string, allowed []string) error {
	if word == "" {
		return fmt.Errorf("no %s is given; allowed: %s", what, strings.Join(allowed, ", "))
	}
	return nearest.Unknown(what, word, allowed)
}
