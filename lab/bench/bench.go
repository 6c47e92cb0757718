// Package bench measures irqlab on the machine at hand: what a boot, a snapshot, a fork and a whole run take, beside a bare QEMU boot of the same kernel in the same
// run, since only ratios carry over from one machine to another.
//
// It measures and does not judge, and knows nothing of how numbers are shown.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"irqlab/images"
	"irqlab/lab"
	"irqlab/lab/machine"
	"irqlab/lab/qemu"
)

// Schema is the version of the report's JSON form. Fields are only ever added to it.
const Schema = 1

// Options say what to measure with.
type Options struct {
	Cache    *images.Cache
	Command  []string // the irqlab command, as a user starts it: whole runs are measured from outside
	Kernel   string   // SPEC; "": lab.DefaultKernel
	Cmdline  []string // added to the command line of every guest, the bare one's too
	QEMU     string   // path; "": found or fetched
	Accel    string   // lab.AccelAuto, …
	Rounds   int      // how often each thing is measured; 0: DefaultRounds
	Only     []string // names of the measures to take; nil: all
	Progress images.Progress
}

// DefaultRounds is how often each thing is measured unless told otherwise.
const DefaultRounds = 5

// Report is what was measured.
type Report struct {
	Schema   int       `json:"schema"`
	Host     Host      `json:"host"`
	Kernel   string    `json:"kernel"`
	Shape    string    `json:"shape"`
	Measures []Measure `json:"measures"`
	Ratios   []Ratio   `json:"ratios"`
}

// Host is the machine, and what else it had to do: wall-clock times mean little without that.
type Host struct {
	CPUs       int     `json:"cpus"`
	Accel      string  `json:"accel"`
	QEMU       string  `json:"qemu"`
	LoadBefore float64 `json:"load_before"` // the one-minute average
	LoadAfter  float64 `json:"load_after"`
}

// Measure is one thing measured, several times.
type Measure struct {
	Name   string    `json:"name"`
	What   string    `json:"what"`
	Unit   string    `json:"unit"` // "s", "us", "MiB", "cases/min"
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Values []float64 `json:"values"` // in the order they were taken
}

// Ratio sets one measure's median against another's of the same run.
type Ratio struct {
	Of    string  `json:"of"`
	To    string  `json:"to"`
	Value float64 `json:"value"`
}

// summarize completes a measure from its values.
func summarize(m Measure) Measure {
	sorted := slices.Sorted(slices.Values(m.Values))
	n := len(sorted)
	if n == 0 {
		return m
	}
	m.Min, m.Max = sorted[0], sorted[n-1]
	m.Median = (sorted[(n-1)/2] + sorted[n/2]) / 2
	return m
}

// ratios are those a reader asks for first, as far as both sides were measured.
func ratios(measures []Measure) []Ratio {
	var out []Ratio
	for _, r := range [][2]string{{WarmVFIO, BareDefault}, {WarmMana, BareDefault}, {WarmVFIO, BareTuned}, {ColdBoot, BareTuned}, {Fork, ColdBoot}, {Try, ModuleAndBoot}, {TryOne, ModuleAndBoot}} {
		of, to := find(measures, r[0]), find(measures, r[1])
		if of != nil && to != nil && to.Median > 0 {
			out = append(out, Ratio{r[0], r[1], of.Median / to.Median})
		}
	}
	return out
}

func find(measures []Measure, name string) *Measure {
	i := slices.IndexFunc(measures, func(m Measure) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return &measures[i]
}

// Names of the measures.
const (
	BareDefault    = "bare-boot"
	BareTuned      = "bare-boot-tuned"
	ColdBoot       = "cold-boot"
	Snapshot       = "snapshot"
	Snapshot128    = "snapshot-128"
	Fork           = "fork"
	WarmVFIO       = "run-vfio"
	WarmMana       = "run-mana"
	Warm16         = "run-vfio-16"
	Warm128        = "run-vfio-128"
	Throughput     = "matrix"
	ResidentCold   = "resident-cold"
	ResidentWarm   = "resident-warm"
	HWCRoundTrip   = "hwc-round-trip"
	HWCDevice      = "hwc-device"
	RegisterRead   = "register-read"
	AgentRoundTrip = "agent-round-trip"
	FireToCounted  = "fire-to-counted"
	ModuleBuild    = "module-build"
	ModuleAndBoot  = "module-and-boot"
	Try            = "try"
	TryOne         = "try-one"
)

// Shapes beside the default one.
const (
	shape16  = "sockets=1,cores=8,threads=2,memory=1G"
	shape128 = "sockets=2,cores=32,threads=2,nodes=2,memory=2G"
)

// group takes some measures together; round is from 0.
type group struct {
	measures []Measure // name, what and unit
	rounds   int       // 0: Options.Rounds
	take     func(ctx context.Context, b *bench, round int) (map[string]float64, error)
}

// groups in the order they are taken. Bare boots come next to the runs they are compared with.
func groups() []group {
	return []group{
		{[]Measure{
			{Name: BareDefault, Unit: "s", What: "QEMU started until it ends: the kernel boots with a one-line command line, and its init powers off at once"},
			{Name: BareTuned, Unit: "s", What: "the same with irqlab's command line and CPU model"},
			{Name: WarmVFIO, Unit: "s", What: "irqlab run of one warm case, driver vfio, from the process's start to its end, JSON written"},
			{Name: WarmMana, Unit: "s", What: "the same with driver mana"},
		}, 0, takeRuns},
		{[]Measure{
			{Name: ColdBoot, Unit: "s", What: "lab.Start, cold, until the guest's agent answers"},
			{Name: ResidentCold, Unit: "MiB", What: "QEMU's resident memory then, guest memory included"},
		}, 0, takeCold},
		{[]Measure{{Name: Snapshot, Unit: "s", What: "lab.Start, warm, of a machine that has no snapshot yet: boot, save, fork"}}, 1, takeSnapshot(Snapshot, machine.DefaultShape.String())},
		{[]Measure{
			{Name: Fork, Unit: "s", What: "lab.Start, warm, until the guest's agent answers, a function plugged in"},
			{Name: ResidentWarm, Unit: "MiB", What: "QEMU's resident memory when all vectors have settled"},
			{Name: AgentRoundTrip, Unit: "us", What: "a reading of one IRQ: a call to the guest's agent and its answer"},
			{Name: FireToCounted, Unit: "us", What: "a vector fired until the agent has told that its handler ran, the call included"},
			{Name: RegisterRead, Unit: "us", What: "a register of BAR 0 read by the guest through VFIO, by the guest's clock"},
		}, 0, takeFork},
		{[]Measure{
			{Name: HWCRoundTrip, Unit: "us", What: "from one request of the driver's on the hardware channel to the next, while it brings its link up: device and guest"},
			{Name: HWCDevice, Unit: "us", What: "the device's share of it: from the request to its answer"},
		}, 0, takeHWC},
		{[]Measure{{Name: Throughput, Unit: "cases/min", What: "irqlab run of a matrix of warm cases, driver vfio, with --jobs 2"}}, 1, takeMatrix},
		{[]Measure{
			{Name: ModuleBuild, Unit: "s", What: "the driver's module built for this kernel with nothing to start from, all else there"},
			{Name: ModuleAndBoot, Unit: "s", What: "the same and a bare boot, where a placement could be looked at by hand"},
			{Name: Try, Unit: "s", What: "irqlab try of a patch that was not tried before: built, and both sides of the usual cases run"},
			{Name: TryOne, Unit: "s", What: "the same with one case"},
		}, 0, takeTries},
		{[]Measure{{Name: Warm16, Unit: "s", What: "irqlab run of one warm case, driver vfio, 16 vCPUs (" + shape16 + "), 17 vectors, as run-vfio"}}, 0, takeRun(Warm16, shape16, 17)},
		{[]Measure{{Name: Snapshot128, Unit: "s", What: "as snapshot, 128 vCPUs (" + shape128 + ")"}}, 1, takeSnapshot(Snapshot128, shape128)},
		{[]Measure{{Name: Warm128, Unit: "s", What: "as run-vfio-16, 128 vCPUs, 65 vectors"}}, 0, takeRun(Warm128, shape128, 65)},
	}
}

// bench is a run of the measures.
type bench struct {
	Options
	qemu   images.QEMU
	kernel images.Kernel
	accel  machine.Accel
	dir    *qemu.RunDir // for what is written on the way; it goes with us, however we end
	tag    string       // tells this run's own snapshot from any other
}

// Run measures. An interrupted run returns what it has, with ctx's error. A kernel SPEC that is wrong is an *images.BadKernelError.
func Run(ctx context.Context, o Options) (Report, error) {
	r := Report{Schema: Schema, Shape: machine.DefaultShape.String(), Host: Host{CPUs: runtime.NumCPU(), LoadBefore: load()}}
	if o.Kernel == "" {
		o.Kernel = lab.DefaultKernel
	}
	if o.Rounds <= 0 {
		o.Rounds = DefaultRounds
	}
	if err := known(o.Only); err != nil {
		return r, err
	}
	b, err := prepare(ctx, o)
	if err != nil {
		return r, err
	}
	defer b.dir.Close()
	r.Host.Accel, r.Host.QEMU, r.Kernel = string(b.accel), b.qemu.Version, b.kernel.Release
	for _, g := range groups() {
		if len(o.Only) > 0 && !slices.ContainsFunc(g.measures, func(m Measure) bool { return slices.Contains(o.Only, m.Name) }) {
			continue
		}
		measures, err := b.measure(ctx, g)
		r.Measures = append(r.Measures, measures...)
		if err != nil {
			return r, err
		}
	}
	r.Ratios = ratios(r.Measures)
	r.Host.LoadAfter = load()
	return r, nil
}

// Names lists the measures.
func Names() []string {
	var list []string
	for _, g := range groups() {
		for _, m := range g.measures {
			list = append(list, m.Name)
		}
	}
	return list
}

// UnknownError names a measure that there is not.
type UnknownError struct{ Name string }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("no measure %q; there are %s", e.Name, strings.Join(Names(), ", "))
}

func known(names []string) error {
	for _, n := range names {
		if !slices.Contains(Names(), n) {
			return &UnknownError{n}
		}
	}
	return nil
}

func prepare(ctx context.Context, o Options) (*bench, error) {
	b := &bench{Options: o, tag: "irqlab.bench=" + strconv.Itoa(os.Getpid())}
	var err error
	if b.accel, _, err = lab.ChooseAccel(o.Accel); err != nil {
		return nil, err
	}
	if b.qemu, err = o.Cache.QEMU(ctx, o.QEMU, o.Progress); err != nil {
		return nil, err // names QEMU
	}
	if b.kernel, err = o.Cache.Kernel(ctx, o.Kernel, o.Progress); err != nil {
		return nil, images.AsBadKernel(o.Kernel, err) // names the kernel
	}
	b.dir, err = qemu.NewRunDir("bench")
	return b, err
}

func (b *bench) measure(ctx context.Context, g group) ([]Measure, error) {
	rounds := g.rounds
	if rounds == 0 {
		rounds = b.Rounds
	}
	measures := slices.Clone(g.measures)
	done := func() []Measure {
		for i, m := range measures {
			measures[i] = summarize(m)
		}
		return slices.DeleteFunc(measures, func(m Measure) bool { return len(m.Values) == 0 })
	}
	for round := range rounds {
		if b.Progress != nil {
			b.Progress(fmt.Sprintf("measuring %s, round %d of %d", names(measures), round+1, rounds), 0, 0)
		}
		values, err := g.take(ctx, b, round)
		if err != nil {
			return done(), errors.Join(context.Cause(ctx), fmt.Errorf("measuring %s: %w", names(measures), err))
		}
		for i := range measures {
			if v, ok := values[measures[i].Name]; ok {
				measures[i].Values = append(measures[i].Values, v)
			}
		}
	}
	return done(), nil
}

func names(measures []Measure) string {
	words := make([]string, len(measures))
	for i, m := range measures {
		words[i] = m.Name
	}
	return strings.Join(words, ", ")
}

// load is the machine's one-minute load average, 0 where it cannot be told.
func load() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	word, _, _ := strings.Cut(string(b), " ")
	v, _ := strconv.ParseFloat(word, 64)
	return v
}

// MarshalJSON writes empty arrays where there is nothing.
func (r Report) MarshalJSON() ([]byte, error) {
	type plain Report
	if r.Measures == nil {
		r.Measures = []Measure{}
	}
	if r.Ratios == nil {
		r.Ratios = []Ratio{}
	}
	return json.Marshal(plain(r))
}
