package truth

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"irqlab/guestagent/cpulist"
)

// Machine is what a boot is made of: cases that share one share its snapshot.
type Machine struct {
	Kernel                         string
	Sockets, Cores, Threads, Nodes int
	Memory                         string
	Irqchip                        string
	Node                           int      // of the function
	Neighbours                     []string // pressure entries
	Levels                         bool     // a function is there for pressure by levels; driver vfio only
	Mana, VFIO                     bool     // drivers it is used with
	Weight                         int
}

// machines are all that cases are drawn from, few, since each costs a boot. The first two are those that other tests boot, too.
var machines = []Machine{
	{"debian:7.3", 1, 2, 2, 1, "512M", "msi", 0, nil, true, false, true, 18},
	{"debian:7.3", 1, 2, 2, 1, "512M", "msi", 0, nil, false, true, true, 20},
	{"debian:7.3", 1, 1, 2, 1, "512M", "msi", 0, nil, true, false, true, 12},
	{"debian:7.3", 1, 1, 2, 1, "512M", "remapped", 0, nil, true, false, true, 8},
	{"debian:7.3", 1, 2, 2, 1, "512M", "remapped", 0, nil, false, true, true, 14},
	{"debian:7.3", 2, 2, 1, 2, "512M", "msi", 1, nil, true, false, true, 8},
	{"debian:7.3", 2, 2, 2, 2, "512M", "msi", 0, nil, false, true, true, 4},
	{"debian:7.3", 1, 1, 1, 1, "512M", "msi", 0, nil, false, true, true, 4},
	{"debian:6.18", 1, 2, 2, 1, "512M", "msi", 0, []string{"nvme:queues=4"}, false, true, true, 10},
	{"debian:6.18", 1, 2, 2, 1, "512M", "msi", 0, nil, true, false, true, 8},
	{"debian:6.18", 1, 1, 2, 1, "512M", "remapped", 0, nil, false, true, true, 8},
	{"debian:6.12", 1, 2, 2, 1, "512M", "msi", 0, nil, false, true, true, 3},
	{"debian:6.1", 1, 2, 2, 1, "512M", "msi", 0, nil, false, true, false, 3}, // its VFIO cannot add vectors one at a time
}

// common is how many of the machines others boot anyway.
const common = 2

func (m *Machine) cpus() int { return m.Sockets * m.Cores * m.Threads }

func (m *Machine) all() cpulist.List { return cpulist.Range(0, m.cpus()-1) }

// siblings are the threads of a CPU's core.
func (m *Machine) siblings(cpu int) cpulist.List {
	first := cpu / m.Threads * m.Threads
	return cpulist.Range(first, first+m.Threads-1)
}

// near are the CPUs of the function's node.
func (m *Machine) near() cpulist.List {
	n := m.cpus() / m.Nodes
	return cpulist.Range(m.Node*n, m.Node*n+n-1)
}

// Case is a random case, and what the checker has to know of it.
type Case struct {
	Seed     uint64
	Number   int
	Machine  Machine
	Driver   string
	Strategy string
	Vectors  int
	Pressure []string // levels
	Offline  cpulist.List
	Steps    []Step // none: the usual experiment
	Want     Want   // of the usual experiment's observation
	LogAny   bool
}

// Step is a step of an experiment.
type Step struct {
	Verb     string
	CPUs     cpulist.List // offline, online, storm
	Vectors  cpulist.List // fire; nil: all
	Rounds   int          // fire, storm
	Name     string       // observe: the label; release, wait-for: the hold
	Rule     *Rule
	Refused  string
	Want     *Want // expect
	Together [][]Step
}

// Rule is a hold or a fault.
type Rule struct {
	At         string
	Nth, Times int
	Name       string
	Extra      string // the rest of its keys
}

// Want is what an observation must show; the zero value wants nothing.
type Want struct {
	Within, Online cpulist.List
	Vectors        int
	Clustered, Own *bool
	Idle, HWC      *cpulist.List
	Queues         []cpulist.List
	PendingAny     bool
	OfflineAny     bool
	Dropped        cpulist.List
}

func (w *Want) keys() []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if w.Within != nil {
		say("queues-within: %q", w.Within)
	}
	if w.Online != nil {
		say("online: %q", w.Online)
	}
	if w.Vectors > 0 {
		say("vectors: %d", w.Vectors)
	}
	if w.Clustered != nil {
		say("clustered: %t", *w.Clustered)
	}
	if w.Own != nil {
		say("own-cpu: %t", *w.Own)
	}
	if w.Idle != nil {
		say("idle-cpus: %q", *w.Idle)
	}
	if w.HWC != nil {
		say("hwc: %q", *w.HWC)
	}
	if w.Queues != nil {
		words := make([]string, len(w.Queues))
		for i, q := range w.Queues {
			words[i] = fmt.Sprintf("%q", q)
		}
		say("queues: [%s]", strings.Join(words, ", "))
	}
	if w.PendingAny {
		say("pending: any")
	}
	if w.OfflineAny {
		say("offline-cpus: any")
	}
	if w.Dropped != nil {
		say("dropped: %q", w.Dropped)
	}
	return out
}

// ID is the case's name.
func (c *Case) ID() string { return fmt.Sprintf("truth-%d-%d", c.Seed, c.Number) }

// YAML is the case as a scenario file.
func (c *Case) YAML() string {
	var b strings.Builder
	m := &c.Machine
	fmt.Fprintf(&b, "name: %s\nkernel: %s\nshape: sockets=%d,cores=%d,threads=%d,nodes=%d,memory=%s\nirqchip: %s\ndevice-node: %d\ndriver: %s\nvectors: %d\n",
		c.ID(), m.Kernel, m.Sockets, m.Cores, m.Threads, m.Nodes, m.Memory, m.Irqchip, m.Node, c.Driver, c.Vectors)
	if c.Strategy != "" {
		fmt.Fprintf(&b, "strategy: %s\n", c.Strategy)
	}
	if len(c.Offline) > 0 {
		fmt.Fprintf(&b, "offline: %q\n", c.Offline)
	}
	if p := slices.Concat(m.Neighbours, c.Pressure); len(p) > 0 {
		b.WriteString("pressure:\n")
		for _, e := range p {
			fmt.Fprintf(&b, "  - %s\n", e)
		}
	}
	keys := c.Want.keys()
	if c.LogAny || len(keys) > 0 {
		b.WriteString("expect:\n")
		if c.LogAny {
			b.WriteString("  log: any\n")
		}
		if len(keys) > 0 {
			fmt.Fprintf(&b, "  settled: {%s}\n", strings.Join(keys, ", "))
		}
	}
	if c.Steps != nil {
		b.WriteString("steps:\n")
		writeSteps(&b, "  ", c.Steps)
	}
	return b.String()
}

func writeSteps(b *strings.Builder, indent string, steps []Step) {
	for i := range steps {
		s := &steps[i]
		if s.Together != nil {
			fmt.Fprintf(b, "%s- together:\n", indent)
			for _, branch := range s.Together {
				var inner strings.Builder
				writeSteps(&inner, indent+"      ", branch)
				text := inner.String()
				fmt.Fprintf(b, "%s    - %s", indent, text[len(indent)+6:])
			}
			continue
		}
		fmt.Fprintf(b, "%s- %s\n", indent, s.line())
		if s.Refused != "" {
			fmt.Fprintf(b, "%s  refused: %q\n", indent, s.Refused)
		}
	}
}

// line is a step's verb with its argument.
func (s *Step) line() string {
	bare := ""
	if s.Refused != "" {
		bare = ":"
	}
	switch {
	case s.Rule != nil:
		r := s.Rule
		keys := []string{fmt.Sprintf("at: %q", r.At), "as: " + r.Name}
		if r.Nth > 1 {
			keys = append(keys, fmt.Sprintf("nth: %d", r.Nth))
		}
		if r.Times > 1 {
			keys = append(keys, fmt.Sprintf("times: %d", r.Times))
		}
		if r.Extra != "" {
			keys = append(keys, r.Extra)
		}
		return fmt.Sprintf("%s: {%s}", s.Verb, strings.Join(keys, ", "))
	case s.Want != nil:
		return fmt.Sprintf("expect: {%s}", strings.Join(s.Want.keys(), ", "))
	}
	switch s.Verb {
	case "offline", "online":
		return fmt.Sprintf("%s: %q", s.Verb, s.CPUs)
	case "storm":
		return fmt.Sprintf("storm: {offline: %q, rounds: %d}", s.CPUs, s.Rounds)
	case "fire":
		if s.Vectors != nil {
			return fmt.Sprintf("fire: {vectors: %q, rounds: %d}", s.Vectors, s.Rounds)
		}
		return fmt.Sprintf("fire: {rounds: %d}", s.Rounds)
	case "observe", "release":
		return s.Verb + ": " + s.Name
	case "wait-for":
		return fmt.Sprintf("wait-for: {held: %s}", s.Name)
	}
	return s.Verb + bare
}

// strategies are all there are.
var strategies = []string{"numa-aware", "linear", "mana-7.2", "unset", "all-online", "local-spread", "siblings", "node"}

// dice are throws that depend on seed and number alone.
type dice struct{ *rand.Rand }

func (d dice) chance(percent int) bool { return d.IntN(100) < percent }

// some picks up to n of a list, one at least.
func (d dice) some(l cpulist.List, n int) cpulist.List {
	picked := slices.Clone(l)
	d.Shuffle(len(picked), func(i, j int) { picked[i], picked[j] = picked[j], picked[i] })
	return cpulist.New(picked[:min(len(picked), 1+d.IntN(max(1, n)))]...)
}

// pick picks one.
func pick[T any](d dice, list ...T) T { return list[d.IntN(len(list))] }

// Generate makes the case of a seed and a number. few: on machines that are booted for others anyway, and nothing that takes a while.
func Generate(seed uint64, number int, few bool) Case {
	d := dice{rand.New(rand.NewPCG(seed, uint64(number)))}
	c := Case{Seed: seed, Number: number}
	pool := machines
	if few {
		pool = machines[:common]
	}
	total := 0
	for i := range pool {
		total += pool[i].Weight
	}
	for at, i := d.IntN(total), 0; ; i++ {
		if at -= pool[i].Weight; at < 0 {
			c.Machine = pool[i]
			break
		}
	}
	m := &c.Machine
	others := m.all()[1:]
	if len(others) > 0 && d.chance(20) {
		c.Offline = d.some(others, len(others))
	}
	online := m.all().Minus(c.Offline)
	if c.Driver = "vfio"; m.Mana && (!m.VFIO || d.chance(45)) {
		c.Driver = "mana"
	}
	if c.Driver == "mana" {
		c.Vectors = 1 + 1 + d.IntN(m.cpus()+1)
		if d.chance(15) {
			c.Vectors = 2 + d.IntN(14)
		}
		c.mana(d, online)
		return c
	}
	c.Strategy = pick(d, strategies...)
	switch d.IntN(4) {
	case 0:
		c.Vectors = 1 + d.IntN(40)
	default:
		c.Vectors = 1 + d.IntN(2*len(online)+2)
	}
	if m.Levels {
		full := m.cpus() <= 2 && d.chance(45) // filling a CPU takes a while, so only on small machines
		if full {
			c.Vectors = 2 + d.IntN(39)
		}
		c.levels(d, online, full)
	}
	c.vfio(d, online, few)
	return c
}

// levels are those of other devices' vectors; full: up to all there is room for on some CPU, or on each.
func (c *Case) levels(d dice, online cpulist.List, full bool) {
	each := d.chance(50)
	for _, moment := range []string{"hwc", "queues"} {
		fill := full && (moment == "queues" || d.chance(20))
		if !fill && !d.chance(60) {
			continue
		}
		entry := "vectors:before=" + moment
		for i, cpu := range online {
			level := d.IntN(24)
			switch {
			case fill && (each || i == len(online)-1):
				level = pick(d, 180, 185, 188, 190, 190)
			case fill:
				level = 40 + d.IntN(100)
			}
			entry += fmt.Sprintf(",cpu%d=%d", cpu, level)
		}
		c.Pressure = append(c.Pressure, entry)
	}
}

// want is an expectation: what follows from the definitions alone, or something that may well be wrong.
func (c *Case) want(d dice, online cpulist.List) Want {
	w := Want{}
	switch d.IntN(12) {
	case 0:
		w.Within = online
	case 1:
		w.Online = online
	case 2:
		if c.Driver == "vfio" {
			w.Vectors = c.Vectors
		}
	case 3: // can be wrong
		w.Within = d.some(online, len(online))
	case 4:
		yes := d.chance(50)
		w.Clustered = &yes
	case 5:
		yes := d.chance(50)
		w.Own = &yes
	case 6:
		idle := cpulist.List{}
		if d.chance(60) {
			idle = d.some(online, len(online))
		}
		w.Idle = &idle
	case 7:
		w.Online = c.Machine.all()
	case 8:
		w.Vectors = 1 + d.IntN(c.Vectors+1)
	case 9:
		hwc := cpulist.New(online[d.IntN(len(online))])
		w.HWC = &hwc
	case 10:
		if c.Driver == "vfio" {
			for range c.Vectors - 1 {
				w.Queues = append(w.Queues, cpulist.New(online[d.IntN(len(online))]))
			}
		}
	}
	if c.Driver == "vfio" && c.Pressure != nil && d.chance(10) {
		w.Dropped = cpulist.New(d.IntN(c.Vectors))
	}
	w.PendingAny = d.chance(8)
	w.OfflineAny = d.chance(4)
	return w
}

func verb(name string) Step { return Step{Verb: name} }

// look settles and observes, and sometimes expects.
func (c *Case) look(d dice, online cpulist.List, label string) []Step {
	s := []Step{verb("settle"), {Verb: "observe", Name: label}}
	if w := c.want(d, online); d.chance(40) && len(w.keys()) > 0 {
		s = append(s, Step{Verb: "expect", Want: &w})
	}
	return s
}

// rounds are what happens to a function that is up: CPUs leave and come back, vectors fire.
func (c *Case) rounds(d dice, online cpulist.List) []Step {
	var s []Step
	n := 1 + d.IntN(3)
	for i := range n {
		leave := online.Minus(cpulist.New(0))
		gone := c.Machine.all().Minus(online)
		label := fmt.Sprintf("look-%d", i+1)
		switch k := d.IntN(10); {
		case k < 3 && len(leave) > 0:
			cpus := d.some(leave, len(leave))
			online = online.Minus(cpus)
			s = append(s, Step{Verb: "offline", CPUs: cpus})
		case k < 5 && len(gone) > 0:
			cpus := d.some(gone, len(gone))
			online = online.Or(cpus)
			s = append(s, Step{Verb: "online", CPUs: cpus})
		case k == 5 && len(leave) > 0 && c.Machine.cpus() <= 4:
			s = append(s, Step{Verb: "storm", CPUs: d.some(leave, 2), Rounds: 1 + d.IntN(3)})
		case k == 6:
			w := Want{PendingAny: d.chance(70)}
			s = append(s, Step{Verb: "observe", Name: label + "-moving"})
			if w.PendingAny {
				s = append(s, Step{Verb: "expect", Want: &w})
			}
		default:
			f := Step{Verb: "fire", Rounds: 1 + d.IntN(12)}
			if c.Driver == "vfio" && d.chance(30) && !slices.ContainsFunc(c.Pressure, func(p string) bool { return strings.Contains(p, "=1") }) {
				f.Vectors = d.some(cpulist.Range(0, c.Vectors-1), c.Vectors)
			}
			s = append(s, f)
		}
		s = append(s, c.look(d, online, label)...)
	}
	return s
}

func (c *Case) vfio(d dice, online cpulist.List, few bool) {
	if d.chance(45) {
		if d.chance(60) {
			c.Want = c.want(d, online)
		}
		return
	}
	vectors := verb("vectors")
	if c.Pressure != nil && d.chance(15) {
		vectors.Refused = "no space left on device"
	}
	c.Vectors = max(c.Vectors, 2)
	c.Steps = []Step{verb("probe")}
	if d.chance(10) {
		if leave := online.Minus(cpulist.New(0)); len(leave) > 0 && !slices.ContainsFunc(c.Pressure, func(p string) bool { return strings.Contains(p, "before=queues") }) {
			cpus := d.some(leave, len(leave))
			online = online.Minus(cpus)
			c.Steps = append(c.Steps, Step{Verb: "offline", CPUs: cpus})
		}
	}
	c.Steps = append(c.Steps, vectors)
	if d.chance(30) {
		c.fault(d, few)
	}
	if d.chance(60) {
		c.Steps = append(c.Steps, c.look(d, online, "first")...)
	}
	c.Steps = append(c.Steps, c.rounds(d, online)...)
}

// fault is one at an interrupt, which needs no protocol.
func (c *Case) fault(d dice, few bool) {
	r := &Rule{At: fmt.Sprintf("vector:%d", d.IntN(c.Vectors)), Name: "fault", Nth: 1 + d.IntN(3), Times: 1}
	switch k := d.IntN(20); {
	case k < 2 && !few: // waited for in vain, 10 s long
		c.Steps = append(c.Steps, Step{Verb: "drop", Rule: r})
	case k < 4:
		r.Nth = 400 // never reached
		c.Steps = append(c.Steps, Step{Verb: "drop", Rule: r})
	case k < 8:
		r.Extra = fmt.Sprintf("for: %dms", 20+d.IntN(200))
		c.Steps = append(c.Steps, Step{Verb: "delay", Rule: r})
	case k < 12:
		c.Steps = append(c.Steps, Step{Verb: "duplicate", Rule: r})
	case k < 16:
		r.Extra = fmt.Sprintf("vector: %d", d.IntN(c.Vectors))
		r.Times = 1 + d.IntN(3)
		c.Steps = append(c.Steps, Step{Verb: "add-interrupt", Rule: r})
	default:
		r.Nth = 1
		c.Steps = append(c.Steps, Step{Verb: "hold", Rule: r}, Step{Together: [][]Step{
			{{Verb: "fire", Rounds: 1 + d.IntN(3)}},
			{{Verb: "wait-for", Name: r.Name}, {Verb: "release", Name: r.Name}},
		}})
	}
}

func (c *Case) mana(d dice, online cpulist.List) {
	if d.chance(35) {
		if d.chance(60) {
			c.Want = c.want(d, online)
		}
		return
	}
	newest := c.Machine.Kernel == "debian:7.3"
	up := []Step{verb("up")}
	c.Steps = []Step{verb("probe")}
	switch k := d.IntN(20); {
	case k < 3 && newest: // the device refuses what the link needs; what the older drivers make of it may lock the guest up
		r := &Rule{At: pick(d, "request:CREATE_WQ_OBJ", "request:CONFIG_VPORT_TX", "request:CREATE_DMA_REGION"), Name: "fault", Nth: 1, Times: 1, Extra: "status: 0x1234"}
		first := verb("up")
		if d.chance(70) {
			first.Refused = "(?i)error|invalid|memory|busy"
		}
		up = []Step{{Verb: "status", Rule: r}, first, verb("up")}
	case k < 6:
		r := &Rule{At: pick(d, "response:CREATE_WQ_OBJ", "response:CONFIG_VPORT_RX", "event:test", "response:any", "request:any"), Name: "fault", Nth: 1 + d.IntN(2), Times: 1 + d.IntN(2),
			Extra: fmt.Sprintf("for: %dms", 20+d.IntN(300))}
		if r.At == "event:test" || r.At == "response:CONFIG_VPORT_RX" {
			r.Nth, r.Times = 1, 1
		}
		up = []Step{{Verb: "delay", Rule: r}, verb("up")}
	case k < 9:
		r := &Rule{At: pick(d, "response:CREATE_WQ_OBJ", "request:CONFIG_VPORT_RX", "response:CONFIG_VPORT_TX"), Name: "fault", Nth: 1, Times: 1}
		beside := []Step{{Verb: "wait-for", Name: r.Name}}
		if leave := online.Minus(cpulist.New(0)); len(leave) > 0 && d.chance(60) {
			cpus := d.some(leave, len(leave))
			online = online.Minus(cpus)
			beside = append(beside, Step{Verb: "offline", CPUs: cpus})
		}
		beside = append(beside, Step{Verb: "release", Name: r.Name})
		up = []Step{{Verb: "hold", Rule: r}, {Together: [][]Step{{verb("up")}, beside}}}
	case k < 11:
		r := &Rule{At: "response:any", Name: "fault", Nth: 1, Times: 1 + d.IntN(20), Extra: "vector: 0"}
		up = []Step{{Verb: "add-interrupt", Rule: r}, verb("up")}
	case k < 12:
		r := &Rule{At: "vector:1", Name: "fault", Nth: 2000, Times: 1}
		up = []Step{{Verb: "drop", Rule: r}, verb("up")}
	case k < 13 && newest:
		first := verb("probe")
		if d.chance(60) {
			first.Refused = "probe"
		}
		rule, verb := &Rule{At: "response:QUERY_MAX_RESOURCES", Name: "fault", Nth: 1, Times: 1, Extra: "status: 0x1234"}, "status"
		if d.chance(50) {
			rule, verb = &Rule{At: "register-read@0x10", Name: "fault", Nth: 1, Times: 1, Extra: "field: value, value: 0x800"}, "alter"
		}
		c.Steps = []Step{{Verb: verb, Rule: rule}, first}
		return
	}
	c.Steps = append(c.Steps, up...)
	if d.chance(60) {
		c.Steps = append(c.Steps, c.look(d, online, "first")...)
	}
	c.Steps = append(c.Steps, c.rounds(d, online)...)
	if d.chance(50) {
		c.Steps = append(c.Steps, verb("down"))
		if d.chance(50) {
			c.Steps = append(c.Steps, verb("unload"))
		}
	}
}
