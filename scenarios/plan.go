package scenarios

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/strategy"
	"irqlab/scenarios/shape"
)

func strategyNames() []string { return strategy.Names() }

// AllStrategies stands for every strategy in Overrides.Strategies.
const AllStrategies = "all"

// Overrides are the run command's flags that replace what a scenario says. The values of one are alternatives, each of which makes cases of its own; none: not given.
type Overrides struct {
	Kernels     []string
	Shapes      []shape.Shape
	Strategies  []string // AllStrategies: each there is
	Drivers     []string
	Vectors     []VectorCount
	DeviceNodes []int // NoNode: none
	Irqchips    []string
	Pressures   []NamedProfile
	Cmdlines    []Cmdline
	Offlines    []cpulist.List

	Bare          bool // cases are wanted for their machine alone: they have no steps and no expectations
	DriverImplied bool // Drivers is not what anybody asked for: what it takes away from a case is not told
}

// matrix tells whether some flag has alternatives, so that one of them may not go with one of another.
func (o Overrides) matrix() bool {
	return max(len(o.Kernels), len(o.Shapes), len(o.Strategies), len(o.Drivers), len(o.Vectors), len(o.DeviceNodes), len(o.Irqchips), len(o.Pressures), len(o.Cmdlines), len(o.Offlines)) > 1
}

// Plan lists the concrete cases of a run.
//
// An overriding value selects the cases that have it already, and they keep all they expect; when no case has it, all cases take it, those that
// have become equal are run once, and what they expect loses the parts the override makes meaningless. Several values do so one after the other, and several overrides
// multiply; combinations that are impossible are left out, unless that leaves none. Notes say so; they are also in the
// cases they concern. Kernels replace without loss: an expectation is what a kernel is held to. Where cases differ in nothing but their kernel, so that
// each says what its kernel does, another kernel is held to what the last of them expects. An error is one of usage.
func (s *Scenario) Plan(o Overrides) ([]Case, []string, error) {
	if slices.Contains(o.Strategies, AllStrategies) {
		o.Strategies = strategyNames()
	}
	cases := slices.Clone(s.cases)
	for i := range cases {
		cases[i].Notes = nil
		if o.Bare {
			cases[i].Steps, cases[i].Expect, cases[i].Labels = nil, Expect{}, nil
		}
	}
	p := &planner{cases: cases}
	if err := p.apply(o); err != nil {
		return nil, nil, fmt.Errorf("scenario %s: %w", s.Name, err)
	}
	Disambiguate(p.cases)
	var possible []Case
	var first error
	why := map[string][]string{}
	for i := range p.cases {
		c := &p.cases[i]
		problems := slices.Concat(c.validate(), c.Expect.validate(c))
		if len(problems) == 0 {
			possible = append(possible, *c)
			continue
		}
		problem := problems[0]
		remedy := ""
		if o.Shapes != nil && slices.Contains([]string{"offline", "device-node", "pressure"}, problem.key) {
			remedy = fmt.Sprintf("; with --shape, give --%s, too", problem.key)
		}
		if first == nil {
			first = fmt.Errorf("scenario %s: case %s: %s: %s%s", s.Name, c.Name, problem.key, problem.text, remedy)
		}
		text := fmt.Sprintf("left out, since it is impossible: %s: %s%s", problem.key, problem.text, remedy)
		why[text] = append(why[text], c.Name)
	}
	if first != nil && (len(possible) == 0 || !o.matrix()) {
		return nil, nil, first
	}
	notes := casesNotes(possible)
	for _, text := range slices.Sorted(maps.Keys(why)) {
		notes = append(notes, someOf(why[text], len(p.cases))+": "+text)
	}
	return possible, notes, nil
}

type planner struct{ cases []Case }

func (p *planner) apply(o Overrides) error {
	for _, list := range []struct {
		flag           string
		words, allowed []string
	}{{"driver", o.Drivers, Drivers()}, {"irqchip", o.Irqchips, Irqchips()}} {
		for _, w := range list.words {
			if !slices.Contains(list.allowed, w) {
				return fmt.Errorf("--%s: %w", list.flag, unknown(list.flag, w, list.allowed))
			}
		}
	}
	for _, text := range o.Strategies {
		if err := ParseStrategy(text); err != nil {
			return fmt.Errorf("--strategy: %w", err)
		}
	}
	for _, s := range o.Shapes {
		if err := s.Validate(); err != nil {
			return fmt.Errorf("--shape: %w", err)
		}
	}
	if slices.Equal(o.Drivers, []string{DriverMana}) && slices.ContainsFunc(o.Strategies, func(s string) bool { return !IsScript(s) }) {
		return fmt.Errorf("--strategy: driver mana spreads its vectors itself; leave --strategy out, or use --driver vfio")
	}
	for _, step := range []func(Overrides) error{p.shapes, p.cmdlines, p.offlines, p.drivers, p.strategies, p.vectors, p.deviceNodes, p.irqchips, p.pressures, p.kernels} {
		if err := step(o); err != nil {
			return err
		}
		if len(p.cases) > MaxCases {
			return fmt.Errorf("the alternatives multiply to more than %d cases", MaxCases)
		}
	}
	return nil
}

func (p *planner) shapes(o Overrides) error {
	override(p, o.Shapes, false, func(c *Case, v shape.Shape) bool { return c.Shape == v }, func(c *Case, v shape.Shape) {
		same := c.Shape
		same.MemoryMiB = v.MemoryMiB
		c.rebuild(o, func() { c.Shape = v })
		if same != v { // memory alone moves no vector
			c.drop("shape", aspectCounts, aspectMasks, aspectPlacement)
		}
	}, shapeWord)
	return nil
}

// rebuild changes the machine, and tells when its vectors, which nobody named, no longer mean what they did.
func (c *Case) rebuild(o Overrides, change func()) {
	meant := c.Vectors > len(c.Online())
	change()
	c.resolve()
	if n := len(c.Online()); o.Vectors == nil && meant != (c.Vectors > n) {
		c.note("%d vectors on %d CPUs: what depends on more vectors than CPUs goes the other way; --vectors online+1 gives each CPU a queue", c.Vectors, n)
	}
}

// cmdlines comes before what follows from the CPUs that are online.
func (p *planner) cmdlines(o Overrides) error {
	override(p, o.Cmdlines, false, func(c *Case, v Cmdline) bool { return slices.Equal(c.Cmdline, v) }, func(c *Case, v Cmdline) {
		c.rebuild(o, func() { c.Cmdline = v })
		c.drop("cmdline", aspectCounts, aspectMasks, aspectPlacement)
	}, cmdlineWord)
	return nil
}

func (p *planner) offlines(o Overrides) error {
	override(p, o.Offlines, false, func(c *Case, v cpulist.List) bool { return slices.Equal(c.Offline, v) }, func(c *Case, v cpulist.List) {
		c.Offline = v
		c.drop("offline", aspectCounts, aspectMasks, aspectPlacement)
	}, offlineWord)
	for i := range p.cases {
		p.cases[i].resolve()
	}
	return nil
}

func (p *planner) drivers(o Overrides) error {
	override(p, o.Drivers, false, func(c *Case, v string) bool { return c.Driver == v }, func(c *Case, v string) {
		c.Driver = v
		if told := c.Notes; o.DriverImplied {
			defer func() { c.Notes = told }()
		}
		if v == DriverMana {
			if c.Name == c.Strategy {
				c.Name = v
			}
			c.spreadBy("")
			if o.DriverImplied { // what was to be seen of the strategies is of no use to it
				c.Pressure = c.Pressure.Neighbours()
			}
		} else if len(o.Strategies) == 0 {
			c.spreadBy(strategy.Mana72) // what the newest driver does
			c.note("strategy is %s because --driver overrides", c.Strategy)
		}
		c.drop("driver", aspectMasks, aspectPlacement)
	}, func(v string) string { return v })
	return nil
}

// strategies leaves the cases out that do without one, unless their driver was asked for.
func (p *planner) strategies(o Overrides) error {
	if len(o.Strategies) == 0 {
		return nil
	}
	if !slices.ContainsFunc(o.Strategies, func(s string) bool { return !IsScript(s) }) { // whoever spreads, it has the last word
		override(p, o.Strategies, true, func(c *Case, v string) bool { return c.Strategy == v }, (*Case).spreadAnew, strategyWord)
		return nil
	}
	var own []Case
	if slices.Contains(o.Drivers, DriverMana) {
		own = slices.DeleteFunc(slices.Clone(p.cases), func(c Case) bool { return c.Driver != DriverMana })
	}
	vfio := slices.DeleteFunc(slices.Clone(p.cases), func(c Case) bool { return c.Driver == DriverMana })
	if len(vfio) == 0 {
		return fmt.Errorf("--strategy: case %s leaves the spreading to the kernel's driver; add --driver vfio", p.cases[0].Name)
	}
	p.cases = vfio
	override(p, o.Strategies, true, func(c *Case, v string) bool { return c.Strategy == v }, (*Case).spreadAnew, strategyWord)
	p.cases = append(p.cases, own...)
	return nil
}

// spreadAnew has the case spread by a --strategy.
func (c *Case) spreadAnew(strategy string) {
	c.spreadBy(strategy)
	c.ours = true
	c.drop("strategy", aspectMasks, aspectPlacement)
}

func (p *planner) vectors(o Overrides) error {
	override(p, o.Vectors, false, func(c *Case, v VectorCount) bool { return c.Vectors == v.Of(len(c.Online())) }, func(c *Case, v VectorCount) {
		c.count = v
		c.resolve()
		c.drop("vectors", aspectCounts, aspectMasks, aspectPlacement)
	}, vectorsWord)
	return nil
}

func (p *planner) deviceNodes(o Overrides) error {
	override(p, o.DeviceNodes, false, func(c *Case, v int) bool { return c.DeviceNode == v }, func(c *Case, v int) {
		c.DeviceNode = v
		c.drop("device-node", aspectMasks, aspectPlacement)
	}, nodeWord)
	return nil
}

func (p *planner) irqchips(o Overrides) error {
	override(p, o.Irqchips, false, func(c *Case, v string) bool { return c.Irqchip == v }, func(c *Case, v string) {
		c.Irqchip = v
		c.drop("irqchip", aspectPlacement)
	}, func(v string) string { return v })
	return nil
}

func (p *planner) pressures(o Overrides) error {
	override(p, o.Pressures, false, func(c *Case, v NamedProfile) bool { return slices.Equal(c.Pressure.Strings(), v.Entries.Strings()) }, func(c *Case, v NamedProfile) {
		c.Pressure = v.Entries
		c.drop("pressure", aspectPlacement)
	}, func(v NamedProfile) string { return v.Name })
	if o.Pressures == nil && (o.Shapes != nil || o.Cmdlines != nil || o.Offlines != nil) {
		for i := range p.cases { // pressure on a CPU that a changed shape, command line or offline list took away is no mistake of the user's
			p.cases[i].trimLevels()
		}
	}
	return nil
}

func (p *planner) kernels(o Overrides) error {
	var out []Case
	for _, k := range o.Kernels {
		if err := new(kernelSpec).UnmarshalText([]byte(k)); err != nil {
			return fmt.Errorf("--kernel: %w", err)
		}
		for _, c := range p.heldTo(k) {
			words := strings.Split(c.Name, "/")
			if i := slices.Index(words, kernelWord(c.Kernel)); i >= 0 { // the file lists several, and the name says which
				words[i] = kernelWord(k)
				c.Name = strings.Join(words, "/")
			} else if len(o.Kernels) > 1 {
				c.addWord(kernelWord(k))
			}
			c.Kernel = k
			if c.ReadsDisks() && !strings.HasPrefix(k, "debian:") { // where managed interrupts go is what one would know of such a kernel
				c.drop("kernel", aspectPlacement)
			}
			out = append(out, c)
		}
	}
	if len(o.Kernels) > 0 {
		p.cases = unique(out)
	}
	return nil
}

// override applies a flag's values: cases that have one already are kept as they are, else every case takes it. What several values of another flag have set apart is not
// chosen from: each of them is there with each of these. The value's word joins the name of the cases it stands for where there are several, or if one that is taken is to be named.
func override[T any](p *planner, values []T, nameTaken bool, has func(*Case, T) bool, set func(*Case, T), word func(T) string) {
	if len(values) == 0 {
		return
	}
	var lines []string
	for _, c := range p.cases {
		if !slices.Contains(lines, c.line) {
			lines = append(lines, c.line)
		}
	}
	var out []Case
	for _, v := range values {
		for _, line := range lines {
			var have, take []Case
			for _, c := range p.cases {
				if c.line != line {
					continue
				}
				kept := has(&c, v)
				if !kept {
					c.Notes = slices.Clone(c.Notes) // the case's own: it may be taken once for each value
					set(&c, v)
				}
				if len(values) > 1 {
					c.line += "/" + word(v)
				}
				if len(values) > 1 || nameTaken && !kept {
					c.addWord(word(v))
				}
				if kept {
					have = append(have, c)
				} else {
					take = append(take, c)
				}
			}
			if len(have) > 0 {
				take = have
			}
			out = append(out, take...)
		}
	}
	p.cases = unique(out)
}

// addWord adds a word to the case's name that it does not have yet.
func (c *Case) addWord(word string) {
	if !slices.Contains(strings.Split(c.Name, "/"), word) {
		c.Name += "/" + word
	}
}

// heldTo are the cases whose expectations a kernel is held to: of those that differ only in their kernel, the ones that have this kernel, else the ones that have the
// last of their kernels. Of cases bound to their kernels, it is those that have it, else those that have the newest.
func (p *planner) heldTo(kernel string) []Case {
	last := map[string]string{}
	own := map[string]bool{}
	bound, newest := false, ""
	for i := range p.cases {
		c := &p.cases[i]
		same := sameKernel(c.Kernel, kernel)
		last[c.Setup()] = c.Kernel
		own[c.Setup()] = own[c.Setup()] || same
		if c.bound {
			bound = bound || same
			newest = newer(newest, c.Kernel)
		}
	}
	var out []Case
	for _, c := range p.cases {
		s := c.Setup()
		same := sameKernel(c.Kernel, kernel)
		switch {
		case c.bound && (same || !bound && c.Kernel == newest), !c.bound && (own[s] && same || !own[s] && c.Kernel == last[s]):
			out = append(out, c)
		}
	}
	return out
}

// newer is the later of two SPECs of Debian kernels; any other is earlier than those.
func newer(a, b string) string {
	version := func(spec string) (v []int) {
		number, _ := strings.CutPrefix(spec, "debian:")
		for _, part := range strings.Split(number, ".") {
			n, err := strconv.Atoi(part)
			if err != nil {
				return v
			}
			v = append(v, n)
		}
		return v
	}
	if slices.Compare(version(a), version(b)) > 0 {
		return a
	}
	return b
}

// sameKernel reports whether one SPEC is the other, or one of the versions the other stands for, as debian:6.18.15 is of debian:6.18.
func sameKernel(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return a == b || strings.HasPrefix(a, "debian:") && strings.HasPrefix(b, a+".")
}

// Setup tells what the case runs, but for the kernel: equal for two cases that a comparison of kernels sets against each other.
func (c *Case) Setup() string {
	return fmt.Sprint(c.Scenario, "|", c.Shape, "|", c.Strategy, "|", c.Driver, "|", c.Vectors, "|", c.DeviceNode, "|", c.Irqchip, "|", c.Pressure.Strings(), "|", c.Packages, "|", c.Cmdline, "|", c.Offline, "|", c.doing)
}

// unique keeps the first of the cases that would run the same thing and expect the same of it.
func unique(cases []Case) []Case {
	seen := map[string]bool{}
	var out []Case
	for _, c := range cases {
		stated, _ := c.Expect.without()
		key := fmt.Sprint(c.Kernel, "|", c.Setup(), "|", describe(stated))
		if !seen[key] {
			seen[key] = true
			out = append(out, c)
		}
	}
	return out
}

func (c *Case) note(format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
}

// drop takes away what an override makes meaningless.
func (c *Case) drop(flag string, aspects ...aspect) {
	kept, dropped := c.Expect.without(aspects...)
	c.Expect, c.Steps = kept, kept.steps
	if len(dropped) == 0 {
		return
	}
	c.taken = true
	words := make([]string, len(dropped))
	for i, a := range dropped {
		words[i] = string(a)
	}
	c.note("expectations on %s dropped because --%s overrides", strings.Join(words, ", "), flag)
}

// ReadsDisks reports whether the case looks at the pressure's disks, whose interrupts are the kernel's doing whatever the function's driver is.
func (c *Case) ReadsDisks() bool {
	for s := range allSteps(c.Steps) {
		if s.Verb == VerbReadDisks {
			return true
		}
	}
	return false
}

// AskAnyVersion takes from what the case expects what only some versions of a driver do: which masks it asks for, where its vectors come to lie, how many it takes, what it
// logs. The rules that always hold stay: no warnings, no lost interrupt, no vector on an offline CPU, and so do the answers that a step must get.
func (c *Case) AskAnyVersion() {
	kept, dropped := c.Expect.without(aspectCounts, aspectMasks, aspectPlacement)
	c.Expect, c.Steps = kept, kept.steps
	c.taken = c.taken || len(dropped) > 0
}

func (c *Case) trimLevels() {
	online := c.Online()
	kept := Profile{}
	var dropped cpulist.List
	for _, p := range c.Pressure {
		if gone := p.CPUs().Minus(online); len(gone) > 0 {
			levels := map[int]int{}
			for cpu, level := range p.Levels {
				if online.Has(cpu) {
					levels[cpu] = level
				}
			}
			p.Levels = levels
			dropped = dropped.Or(gone)
		}
		if p.Kind != PressureVectors || len(p.Levels) > 0 {
			kept = append(kept, p)
		}
	}
	c.Pressure = kept
	if len(dropped) > 0 {
		c.note("pressure on %s dropped: not online", dropped.Words())
	}
}

// casesNotes are the cases' notes, each with the cases it concerns.
func casesNotes(cases []Case) []string {
	var order []string
	of := map[string][]string{}
	for _, c := range cases {
		for _, n := range c.Notes {
			if of[n] == nil {
				order = append(order, n)
			}
			of[n] = append(of[n], c.Name)
		}
	}
	var out []string
	for _, n := range order {
		if len(of[n]) == len(cases) {
			out = append(out, n)
		} else {
			out = append(out, someOf(of[n], len(cases))+": "+n)
		}
	}
	return out
}

// someOf lists names, or counts them where there are many.
func someOf(names []string, all int) string {
	if len(names) <= maxNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%d of %d cases", len(names), all)
}

const maxNamed = 4 // in a note
