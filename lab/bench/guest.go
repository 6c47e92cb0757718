package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"irqlab/devmodel/mana"
	"irqlab/devmodel/trace"
	"irqlab/guestagent/agentapi"
	"irqlab/lab"
	"irqlab/lab/machine"
	"irqlab/scenarios/result"
	"irqlab/scenarios/shape"
)

const (
	vectors    = 5
	hwcVectors = 17 // with as many queues as a link has by itself, so that there are many requests to time
	repeats    = 50 // of what is too short to be timed once
	reads      = 1000
	linkTime   = time.Minute
	wakeUp     = 20 * time.Millisecond
)

// takeRuns takes whole runs of the command and the bare boots they are compared with in turn, so that what else the machine does weighs on all.
func takeRuns(ctx context.Context, b *bench, round int) (map[string]float64, error) {
	tuned := machine.Machine{Shape: machine.DefaultShape, Accel: b.accel, Irqchip: machine.MSI}
	values := map[string]float64{}
	var err error
	if values[BareDefault], err = b.bare(ctx, "console=ttyS0 panic=-1"); err != nil {
		return nil, err
	}
	if values[BareTuned], err = b.bare(ctx, tuned.KernelCommandLine(), "-cpu", tuned.CPUModel()); err != nil {
		return nil, err
	}
	for name, scenario := range map[string]string{
		WarmVFIO: "name: bench\nstrategy: linear\nvectors: 5\n",
		WarmMana: "name: bench\ndriver: mana\nvectors: 5\n",
	} {
		if values[name], err = b.warm(ctx, round, scenario); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// warm runs a scenario as irqlab does, in the first round once before, for the snapshot.
func (b *bench) warm(ctx context.Context, round int, scenario string, flags ...string) (took float64, err error) {
	if round == 0 {
		if _, _, err := b.irqlab(ctx, scenario, flags...); err != nil {
			return 0, err
		}
	}
	took, _, err = b.irqlab(ctx, scenario, flags...)
	return took, err
}

// irqlab runs a scenario warm with the command and returns the seconds it took and its report, all of whose cases have passed.
func (b *bench) irqlab(ctx context.Context, scenario string, flags ...string) (float64, result.Report, error) {
	var rep result.Report
	file := filepath.Join(b.dir.Path, "bench.yaml")
	if err := os.WriteFile(file, []byte(scenario), 0o600); err != nil {
		return 0, rep, err
	}
	if len(b.Cmdline) > 0 {
		flags = append(slices.Clip(flags), "--cmdline", strings.Join(b.Cmdline, " "))
	}
	took, out, err := b.command(ctx, append([]string{"run", file, "--format", "json", "--start", lab.StartWarm, "--kernel", b.Kernel}, flags...)...)
	if err == nil {
		err = json.Unmarshal(out, &rep)
	}
	return took, rep, err
}

// command runs the irqlab command and returns the seconds it took, from outside, and what it wrote.
func (b *bench) command(ctx context.Context, args ...string) (float64, []byte, error) {
	args = slices.Concat(b.Command[1:], args, []string{"--accel", string(b.accel)})
	if b.Options.QEMU != "" {
		args = append(args, "--qemu", b.Options.QEMU)
	}
	cmd := exec.CommandContext(ctx, b.Command[0], args...)
	cmd.Env = append(os.Environ(), "IRQLAB_CACHE="+b.Cache.Dir())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) } // it cleans up
	cmd.WaitDelay = linkTime
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	start := time.Now()
	err := runOwned(cmd, syscall.SIGINT)
	took := time.Since(start).Seconds()
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, errs.Bytes(), out.Bytes())
	}
	return took, out.Bytes(), nil
}

func (b *bench) config(start string) lab.Config {
	return lab.Config{Cache: b.Cache, Kernel: b.Kernel, QEMU: b.Options.QEMU, Accel: string(b.accel), Start: start, Cmdline: b.Cmdline}
}

// started starts a VM and returns the seconds until its agent answered.
func started(ctx context.Context, cfg lab.Config) (*lab.VM, float64, error) {
	start := time.Now()
	vm, err := lab.Start(ctx, cfg)
	return vm, time.Since(start).Seconds(), err
}

// forked starts a VM from a snapshot that is there before the clock runs.
func forked(ctx context.Context, cfg lab.Config) (*lab.VM, float64, error) {
	_, made, err := lab.Machine(ctx, cfg)
	if err != nil {
		return nil, 0, err
	}
	if !made {
		vm, err := lab.Start(ctx, cfg)
		if err == nil {
			err = vm.Close()
		}
		if err != nil {
			return nil, 0, err
		}
	}
	return started(ctx, cfg)
}

func takeCold(ctx context.Context, b *bench, _ int) (map[string]float64, error) {
	vm, took, err := started(ctx, b.config(lab.StartCold))
	if err != nil {
		return nil, err
	}
	mib, err := resident(vm)
	return map[string]float64{ColdBoot: took, ResidentCold: mib}, errors.Join(err, vm.Close())
}

// takeRun takes whole runs of the command with a machine of that shape.
func takeRun(name, shapeText string, vectors int) func(context.Context, *bench, int) (map[string]float64, error) {
	return func(ctx context.Context, b *bench, round int) (map[string]float64, error) {
		scenario := fmt.Sprintf("name: bench\nstrategy: linear\nvectors: %d\n", vectors)
		took, err := b.warm(ctx, round, scenario, "--shape", shapeText)
		return map[string]float64{name: took}, err
	}
}

// takeSnapshot starts a machine of that shape that differs from any other by a word of its command line that no kernel knows, and removes its snapshot.
func takeSnapshot(name, shapeText string) func(context.Context, *bench, int) (map[string]float64, error) {
	return func(ctx context.Context, b *bench, _ int) (map[string]float64, error) {
		cfg := b.config(lab.StartWarm)
		var err error
		if cfg.Shape, err = shape.ParseShape(shapeText); err != nil {
			return nil, err
		}
		cfg.Cmdline = append(slices.Clip(b.Cmdline), b.tag)
		key, _, err := lab.Machine(ctx, cfg)
		if err != nil {
			return nil, err
		}
		vm, took, err := started(ctx, cfg)
		if err != nil {
			return nil, err
		}
		err = vm.Close()
		entry, gone := b.Cache.Snapshot(ctx, key, func(context.Context, string) error { return errors.New("it is not in the cache") })
		if gone == nil {
			gone = b.Cache.Discard(ctx, entry)
		}
		return map[string]float64{name: took}, errors.Join(err, gone)
	}
}

func takeFork(ctx context.Context, b *bench, _ int) (map[string]float64, error) {
	cfg := b.config(lab.StartWarm)
	cfg.Functions = []lab.FunctionConfig{{Slot: lab.FunctionSlot, Vectors: vectors}}
	vm, took, err := forked(ctx, cfg)
	if err != nil {
		return nil, err
	}
	values, err := b.inFork(ctx, vm)
	if values != nil {
		values[Fork] = took
	}
	return values, errors.Join(err, vm.Close())
}

// inFork times what happens in a guest whose agent drives the function.
func (b *bench) inFork(ctx context.Context, vm *lab.VM) (map[string]float64, error) {
	a, fn := vm.Agent, vm.Function(lab.FunctionSlot)
	opened, err := a.OpenFunction(ctx, agentapi.OpenFunctionParams{Vendor: lab.VendorID, Device: lab.ManaID, WaitMS: 10_000})
	if err != nil {
		return nil, err
	}
	added, err := a.AddVectors(ctx, opened.Address, 0, vectors)
	if err != nil {
		return nil, err
	}
	if _, err := a.Apply(ctx, agentapi.ApplyParams{Strategy: "linear", Node: opened.Node, Total: vectors, HWC: &added[0], Queues: added[1:]}); err != nil {
		return nil, err
	}
	if _, err := fn.Settle(ctx, a, added); err != nil {
		return nil, err
	}
	values := map[string]float64{}
	if values[ResidentWarm], err = resident(vm); err != nil {
		return nil, err
	}
	one := added[1]
	var calls, fires []float64
	seen, err := a.Observe(ctx, added[1:2])
	for i := 0; i < repeats && err == nil; i++ {
		start := time.Now()
		seen, err = a.Observe(ctx, added[1:2])
		calls = append(calls, microseconds(time.Since(start)))
	}
	for i := 0; i < repeats && err == nil; i++ {
		start := time.Now()
		if err = fn.PCI.Fire(one.Index); err == nil {
			seen, err = a.Await(ctx, seen, 10*time.Second)
		}
		fires = append(fires, microseconds(time.Since(start)))
	}
	if err != nil {
		return nil, err
	}
	read, err := a.ReadRegister(ctx, agentapi.ReadRegisterParams{Address: opened.Address, Size: 4, Times: reads})
	if err != nil {
		return nil, err
	}
	values[RegisterRead] = microseconds(time.Duration(read.Nanoseconds)) / reads
	values[AgentRoundTrip], values[FireToCounted] = median(calls), median(fires)
	return values, nil
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

func median(values []float64) float64 { return summarize(Measure{Values: values}).Median }

// takeHWC has the kernel's driver bring its link up, and takes the times of its requests from the device's timeline.
func takeHWC(ctx context.Context, b *bench, _ int) (map[string]float64, error) {
	cfg := b.config(lab.StartWarm)
	cfg.Functions = []lab.FunctionConfig{{Slot: lab.FunctionSlot, Vectors: hwcVectors, MANA: mana.Config{Queues: hwcVectors - 1}}}
	vm, _, err := forked(ctx, cfg)
	if err != nil {
		return nil, err
	}
	values, err := hwcTimes(ctx, vm)
	return values, errors.Join(err, vm.Close())
}

func hwcTimes(ctx context.Context, vm *lab.VM) (map[string]float64, error) {
	a, fn := vm.Agent, vm.Function(lab.FunctionSlot)
	if _, err := a.LoadModule(ctx, "mana", ""); err != nil {
		return nil, err
	}
	link, err := manaLink(ctx, a)
	if err != nil {
		return nil, err
	}
	began := fn.Trace.Now()
	up := true
	if _, err := a.SetLink(ctx, agentapi.SetLinkParams{Name: link, Up: &up}); err != nil {
		return nil, err
	}
	events, _ := fn.Trace.Events()
	trips, device := hwcIntervals(events, began)
	if len(trips) == 0 {
		return nil, errors.New("the driver made no requests while it brought its link up")
	}
	return map[string]float64{HWCRoundTrip: median(trips), HWCDevice: median(device)}, nil
}

// hwcIntervals are the microseconds from each request to the next, and from each request to its answer, after a moment of the timeline.
func hwcIntervals(events []trace.Event, began time.Duration) (trips, device []float64) {
	var last time.Duration
	for _, e := range events {
		switch {
		case e.T < began:
		case e.Kind.Name() == "hwc-request":
			if last > 0 {
				trips = append(trips, microseconds(e.T-last))
			}
			last = e.T
		case e.Kind.Name() == "hwc-response" && last > 0:
			device = append(device, microseconds(e.T-last))
		}
	}
	return trips, device
}

func manaLink(ctx context.Context, a *lab.Agent) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, linkTime, fmt.Errorf("the driver registered no link within %s", linkTime))
	defer cancel()
	for {
		links, err := a.Links(ctx)
		if err != nil {
			return "", err
		}
		if i := slices.IndexFunc(links, func(l agentapi.Link) bool { return l.Driver == "mana" }); i >= 0 {
			return links[i].Name, nil
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(wakeUp):
		}
	}
}

// takeMatrix runs strategies times vector counts, all forks of one machine.
func takeMatrix(ctx context.Context, b *bench, _ int) (map[string]float64, error) {
	const matrix = "name: bench\nstrategy: [numa-aware, linear, mana-7.2, siblings, local-spread, all-online, node, unset]\nvectors: [3, 4, 5, 6]\n"
	took, rep, err := b.irqlab(ctx, matrix, "--jobs", "2")
	if err != nil {
		return nil, err
	}
	return map[string]float64{Throughput: 60 * float64(len(rep.Cases)) / took}, nil
}

// resident is QEMU's resident memory in MiB.
func resident(vm *lab.VM) (float64, error) {
	path := fmt.Sprintf("/proc/%d/smaps_rollup", vm.Process().PID())
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Rss:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("%s has no Rss", path)
}
