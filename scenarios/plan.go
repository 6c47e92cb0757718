package scenarios

import (
	"fmt"
	"slices"
	"strings"

	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/strategy"
	"irqlab/scenarios/shape"
)

func strategyNames() []string { return strategy.Names() }

// Overrides are the run command's flags that replace what a scenario says; zero values: not given.
type Overrides struct {
	Kernels    []string
	Shape      *shape.Shape
	Strategies []string
	Driver     string
	Vectors    int
	DeviceNode *int // NoNode: none
	Irqchip    string
	Pressure   Profile // nil: not given; empty: none
	Offline    *cpulist.List
}

// Plan lists the concrete cases of a run.
//
// An overriding value selects the cases that have it already, and they keep all they expect; when no case has it, all cases take it, those that
// have become equal are run once, and what they expect loses the parts the override makes meaningless. Notes say so; they are also in the
// cases they concern. Kernels replace without loss: an expectation is what a kernel is held to. Where cases differ in nothing but their kernel, so that
// each says what its kernel does, another kernel is held to what the last of them expects. An error is one of usage.
func (s *Scenario) Plan(o Overrides) ([]Case, []string, error) {
	cases := slices.Clone(s.cases)
	for i := range cases {
		cases[i].Notes = nil
	}
	p := &planner{cases: cases}
	if err := p.apply(o); err != nil {
		return nil, nil, fmt.Errorf("scenario %s: %w", s.Name, err)
	}
	Disambiguate(p.cases)
	for i := range p.cases {
		c := &p.cases[i]
		for _, problem := range slices.Concat(c.validate(), c.Expect.validate(c)) {
			remedy := ""
			if o.Shape != nil && slices.Contains([]string{"offline", "device-node", "pressure"}, problem.key) {
				remedy = fmt.Sprintf("; with --shape, give --%s, too", problem.key)
			}
			return nil, nil, fmt.Errorf("scenario %s: case %s: %s: %s%s", s.Name, c.Name, problem.key, problem.text, remedy)
		}
	}
	return p.cases, p.notes(), nil
}

type planner struct{ cases []Case }

func (p *planner) apply(o Overrides) error {
	for _, name := range o.Strategies {
		if !slices.Contains(strategyNames(), name) {
			return fmt.Errorf("--strategy: %w", unknown("strategy", name, strategyNames()))
		}
	}
	if o.Driver != "" && !slices.Contains(Drivers(), o.Driver) {
		return fmt.Errorf("--driver: %w", unknown("driver", o.Driver, Drivers()))
	}
	if o.Irqchip != "" && !slices.Contains(Irqchips(), o.Irqchip) {
		return fmt.Errorf("--irqchip: %w", unknown("irqchip", o.Irqchip, Irqchips()))
	}
	if o.Vectors < 0 || o.Vectors > MaxVectors {
		return fmt.Errorf("--vectors: %d is out of range; allowed: 1 to %d", o.Vectors, MaxVectors)
	}
	if o.Driver == DriverMana && len(o.Strategies) > 0 {
		return fmt.Errorf("--strategy: driver mana spreads its vectors itself; leave --strategy out, or use --driver vfio")
	}
	if o.Shape != nil {
		if err := o.Shape.Validate(); err != nil {
			return fmt.Errorf("--shape: %w", err)
		}
		override(p, "shape", []shape.Shape{*o.Shape}, func(c *Case) shape.Shape { return c.Shape }, func(c *Case, v shape.Shape) {
			same := c.Shape
			same.MemoryMiB = v.MemoryMiB
			c.Shape = v
			if same != v { // memory alone moves no vector
				c.drop("shape", aspectCounts, aspectMasks, aspectPlacement)
			}
		}, shapeWord)
	}
	if o.Offline != nil {
		override(p, "offline", []string{o.Offline.String()}, func(c *Case) string { return c.Offline.String() }, func(c *Case, _ string) {
			c.Offline = *o.Offline
			c.drop("offline", aspectCounts, aspectMasks, aspectPlacement)
		}, func(string) string { return offlineWord(*o.Offline) })
	}
	for i := range p.cases {
		p.cases[i].resolve()
	}
	if o.Driver != "" {
		override(p, "driver", []string{o.Driver}, func(c *Case) string { return c.Driver }, func(c *Case, v string) {
			c.Driver = v
			if v == DriverMana {
				if c.Name == c.Strategy {
					c.Name = v
				}
				c.Strategy = ""
				c.trim("driver", func(p Pressure) bool { return p.Kind != PressureVectors })
			} else if len(o.Strategies) == 0 {
				c.Strategy = strategy.Mana72 // what the newest driver does
				c.note("strategy is %s because --driver overrides", c.Strategy)
			}
			c.drop("driver", aspectMasks, aspectPlacement)
		}, func(v string) string { return v })
	}
	if len(o.Strategies) > 0 {
		vfio := slices.DeleteFunc(slices.Clone(p.cases), func(c Case) bool { return c.Driver == DriverMana })
		if len(vfio) == 0 {
			return fmt.Errorf("--strategy: case %s leaves the spreading to the kernel's driver; add --driver vfio", p.cases[0].Name)
		}
		p.cases = vfio
		override(p, "strategy", o.Strategies, func(c *Case) string { return c.Strategy }, func(c *Case, v string) {
			c.Strategy = v
			c.drop("strategy", aspectMasks, aspectPlacement)
		}, func(v string) string { return v })
	}
	if o.Vectors > 0 {
		override(p, "vectors", []int{o.Vectors}, func(c *Case) int { return c.Vectors }, func(c *Case, v int) {
			c.count = VectorCount{N: v}
			c.Vectors = v
			c.drop("vectors", aspectCounts, aspectMasks, aspectPlacement)
		}, func(v int) string { return fmt.Sprintf("%d-vectors", v) })
	}
	if o.DeviceNode != nil {
		override(p, "device-node", []int{*o.DeviceNode}, func(c *Case) int { return c.DeviceNode }, func(c *Case, v int) {
			c.DeviceNode = v
			c.drop("device-node", aspectMasks, aspectPlacement)
		}, func(v int) string { return "node-" + formatNode(v) })
	}
	if o.Irqchip != "" {
		override(p, "irqchip", []string{o.Irqchip}, func(c *Case) string { return c.Irqchip }, func(c *Case, v string) {
			c.Irqchip = v
			c.drop("irqchip", aspectPlacement)
		}, func(v string) string { return v })
	}
	if o.Pressure != nil {
		word := "no-pressure"
		if len(o.Pressure) > 0 {
			word = "pressure"
		}
		override(p, "pressure", []string{strings.Join(o.Pressure.Strings(), " ")}, func(c *Case) string { return strings.Join(c.Pressure.Strings(), " ") }, func(c *Case, _ string) {
			c.Pressure = o.Pressure
			c.drop("pressure", aspectPlacement)
		}, func(string) string { return word })
	}
	// Pressure on a CPU that a changed shape or offline list took away is no mistake of the user's.
	for i := range p.cases {
		c := &p.cases[i]
		if o.Pressure == nil && (o.Shape != nil || o.Offline != nil) {
			c.trimLevels()
		}
	}
	if len(o.Kernels) > 0 {
		var out []Case
		for _, k := range o.Kernels {
			if err := new(kernelSpec).UnmarshalText([]byte(k)); err != nil {
				return fmt.Errorf("--kernel: %w", err)
			}
			for _, c := range p.heldTo(k) {
				c.Kernel = k
				if len(o.Kernels) > 1 {
					c.Name += "/" + kernelWord(k)
				}
				out = append(out, c)
			}
		}
		p.cases = unique(out)
	}
	return nil
}

// override applies a flag's values: cases that have one already are kept as they are, else every case takes it.
func override[T comparable](p *planner, flag string, values []T, get func(*Case) T, set func(*Case, T), word func(T) string) {
	var out []Case
	for _, v := range values {
		var have, take []Case
		for _, c := range p.cases {
			if get(&c) == v {
				have = append(have, c)
				continue
			}
			// The case's own copies: it may be taken once for each value.
			c.Notes = slices.Clone(c.Notes)
			set(&c, v)
			if w := word(v); len(values) > 1 || flag == "strategy" {
				c.Name += "/" + w
			}
			take = append(take, c)
		}
		if len(have) > 0 {
			out = append(out, have...)
		} else {
			out = append(out, take...)
		}
	}
	p.cases = unique(out)
}

// heldTo are the cases whose expectations a kernel is held to: of those that differ only in their kernel, the ones that have this kernel, else the ones that have the
// last of their kernels.
func (p *planner) heldTo(kernel string) []Case {
	last := map[string]string{}
	own := map[string]bool{}
	for i := range p.cases {
		c := &p.cases[i]
		last[c.Setup()] = c.Kernel
		own[c.Setup()] = own[c.Setup()] || sameKernel(c.Kernel, kernel)
	}
	var out []Case
	for _, c := range p.cases {
		if s := c.Setup(); own[s] && sameKernel(c.Kernel, kernel) || !own[s] && c.Kernel == last[s] {
			out = append(out, c)
		}
	}
	return out
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
	return fmt.Sprint(c.Scenario, "|", c.Shape, "|", c.Strategy, "|", c.Driver, "|", c.Vectors, "|", c.DeviceNode, "|", c.Irqchip, "|", c.Pressure.Strings(), "|", c.Offline)
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
	c.Expect = kept
	if len(dropped) == 0 {
		return
	}
	words := make([]string, len(dropped))
	for i, a := range dropped {
		words[i] = string(a)
	}
	c.note("expectations on %s dropped because --%s overrides", strings.Join(words, ", "), flag)
}

// trim takes away the pressure entries that no longer make sense.
func (c *Case) trim(flag string, keep func(Pressure) bool) {
	kept := Profile{}
	for _, p := range c.Pressure {
		if keep(p) {
			kept = append(kept, p)
		} else {
			c.note("pressure %q dropped because --%s overrides", p, flag)
		}
	}
	c.Pressure = kept
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
		c.note("pressure on CPU %s dropped because it is not online", dropped)
	}
}

// notes are the cases' notes, each with the cases it concerns.
func (p *planner) notes() []string {
	var order []string
	of := map[string][]string{}
	for _, c := range p.cases {
		for _, n := range c.Notes {
			if of[n] == nil {
				order = append(order, n)
			}
			of[n] = append(of[n], c.Name)
		}
	}
	var out []string
	for _, n := range order {
		if len(of[n]) == len(p.cases) {
			out = append(out, n)
		} else {
			out = append(out, strings.Join(of[n], ", ")+": "+n)
		}
	}
	return out
}
