package labtest

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"irqlab/scenarios"
	"irqlab/scenarios/shape"
)

// Option changes what is run, as the flag of the same name does: a value overrides the scenario's, several are alternatives, and those of several options multiply.
type Option func(*request)

// request is what is asked for, as it was written.
type request struct {
	overrides       scenarios.Overrides
	shapes, vectors []string
	names, expect   []string
	jobs            int
	timeout         time.Duration
}

// Kernel runs the cases on these kernels: debian:7.3, a bzImage or vmlinux, a build tree, or .deb files joined by commas.
func Kernel(specs ...string) Option {
	return func(r *request) { r.overrides.Kernels = append(r.overrides.Kernels, specs...) }
}

// Shape runs them in these shapes: "cpus=8", "sockets=2,cores=2,nodes=2".
func Shape(shapes ...string) Option {
	return func(r *request) { r.shapes = append(r.shapes, shapes...) }
}

// Strategy runs them under these strategies: linear, or all.
func Strategy(names ...string) Option {
	return func(r *request) { r.overrides.Strategies = append(r.overrides.Strategies, names...) }
}

// Driver has the function driven by vfio, in user space, or mana, the kernel's driver.
func Driver(names ...string) Option {
	return func(r *request) { r.overrides.Drivers = append(r.overrides.Drivers, names...) }
}

// Vectors gives the function so many vectors: "5", "online+1".
func Vectors(counts ...string) Option {
	return func(r *request) { r.vectors = append(r.vectors, counts...) }
}

// Case runs these cases only, and what options and lists make of them.
func Case(names ...string) Option {
	return func(r *request) { r.names = append(r.names, names...) }
}

// Expect expects this, too, of every case: "clustered=false", "queues-within=0-1".
func Expect(keyValues ...string) Option {
	return func(r *request) { r.expect = append(r.expect, keyValues...) }
}

// Jobs runs so many VMs at a time; 0: what this machine's cores and memory allow.
func Jobs(n int) Option { return func(r *request) { r.jobs = n } }

// Timeout is how long the start of a case, and its run, may each take; 0: as irqlab run --timeout has it.
func Timeout(d time.Duration) Option { return func(r *request) { r.timeout = d } }

// cases lists what is to be run, with what to know of it.
func (r *request) cases(name string) (cases []scenarios.Case, notes []string, err error) {
	sc, err := load(name)
	if err != nil {
		return nil, nil, err
	}
	if r.overrides.Shapes, err = each(r.shapes, shape.ParseShape); err != nil {
		return nil, nil, err
	}
	if r.overrides.Vectors, err = each(r.vectors, scenarios.ParseVectorCount); err != nil {
		return nil, nil, err
	}
	given, err := each(r.expect, scenarios.ParseExpectation)
	if err != nil {
		return nil, nil, err
	}
	if cases, notes, err = sc.Plan(r.overrides); err != nil {
		return nil, nil, err
	}
	if cases, err = scenarios.Select(cases, r.names); err != nil {
		return nil, nil, err
	}
	if err := scenarios.AddExpectations(cases, given); err != nil {
		return nil, nil, err
	}
	return cases, notes, nil
}

// load reads a file where the name is one of YAML, else what is shipped.
func load(name string) (*scenarios.Scenario, error) {
	if ext := filepath.Ext(name); ext != ".yaml" && ext != ".yml" {
		return scenarios.Get(name)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return scenarios.Load(name, data)
}

func each[T any](texts []string, parse func(string) (T, error)) (out []T, err error) {
	for _, text := range texts {
		v, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		out = append(out, v)
	}
	return out, nil
}
