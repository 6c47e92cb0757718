package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/irq"
	"irqlab/guestagent/pci"
)

const probePoll = 2 * time.Millisecond

// rescan finds the functions that were plugged in. By itself the kernel would too, after the tenth of a second that it gives a link to come up.
func (a *Agent) rescan(context.Context, agentapi.Empty) (agentapi.Empty, error) {
	return agentapi.Empty{}, pci.Rescan(a.cfg.Root)
}

// openFunction takes a function from whatever driver has it and opens it through VFIO.
func (a *Agent) openFunction(ctx context.Context, p agentapi.OpenFunctionParams) (agentapi.FunctionInfo, error) {
	none := agentapi.FunctionInfo{}
	wait, err := milliseconds(p.WaitMS)
	if err != nil {
		return none, err
	}
	if p.Address == "" && p.Vendor == 0 {
		return none, fault.New(agentapi.CodeInvalid, "neither address nor vendor and device given")
	}
	for _, m := range []struct{ name, params string }{
		// Only a guest's toy IOMMU lacks interrupt remapping; nothing behind it needs the protection.
		{"vfio_iommu_type1", "allow_unsafe_interrupts=1"},
		{"vfio_pci", ""},
	} {
		if _, err := a.cfg.Modules.Load(m.name, m.params); err != nil {
			return none, err
		}
	}
	// An earlier insertion, by hand for one, may have left the parameter off.
	if err := a.cfg.Root.Write("1", "sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"); err != nil {
		return none, fmt.Errorf("allowing unsafe interrupts: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	address, err := pci.WaitFor(ctx, a.cfg.Root, pci.Match{Vendor: p.Vendor, Device: p.Device, Address: p.Address, Skip: a.isOpen})
	if err != nil {
		return none, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.functions[address] != nil {
		return none, fault.New(agentapi.CodeInvalid, "function %s is open already: close it first", address)
	}
	node, err := pci.Node(a.cfg.Root, address)
	if err != nil {
		return none, err
	}
	// vfio-pci would reset it when it is opened and when it is closed, which makes no difference to where its interrupts go.
	if err := pci.SetReset(a.cfg.Root, address, false); err != nil {
		return none, err
	}
	// A function just plugged in gets its group after it appears; once bound it has one. Without an IOMMU vfio-pci refuses it, and
	// the missing group is what there is to say.
	bindErr := pci.Bind(ctx, a.cfg.Root, address, "vfio-pci")
	group, err := pci.IOMMUGroup(a.cfg.Root, address)
	if err != nil {
		_ = pci.Unbind(a.cfg.Root, address)
		return none, err
	}
	if bindErr != nil {
		_ = pci.Unbind(a.cfg.Root, address)
		return none, bindErr
	}
	f, err := a.open(ctx, address, group)
	if err != nil {
		_ = pci.Unbind(a.cfg.Root, address)
		return none, err
	}
	a.functions[address] = f
	return agentapi.FunctionInfo{Address: address, Node: node, Vectors: f.Vectors(), Driver: pci.Driver(a.cfg.Root, address)}, nil
}

// open waits for the driver's probe to be done, of which neither its being shown as bound nor drivers_probe tells: until then the group's device file is not there, and
// then the function is not in the group (__vfio_register_dev in drivers/vfio/vfio_main.c).
func (a *Agent) open(ctx context.Context, address, group string) (Function, error) {
	for {
		f, err := a.cfg.Open(address, group)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(probePoll):
		}
	}
}

func (a *Agent) isOpen(address string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.functions[address] != nil
}

// opened returns a function opened before; a.mu is held.
func (a *Agent) opened(address string) (Function, error) {
	f := a.functions[address]
	if f == nil {
		return nil, fault.New(agentapi.CodeInvalid, "function %.32q is not open: open are %v", address, slices.Sorted(maps.Keys(a.functions)))
	}
	return f, nil
}

// addVectors enables vectors one by one, each a request of its own to the device, as a driver that allocates them late does. Those before one that the kernel refuses stay.
func (a *Agent) addVectors(ctx context.Context, p agentapi.AddVectorsParams) (agentapi.AddVectorsResult, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, err := a.opened(p.Address)
	if err != nil {
		return agentapi.AddVectorsResult{}, err
	}
	if p.First != f.Enabled() || p.Count < 1 || p.Count > f.Vectors()-f.Enabled() {
		return agentapi.AddVectorsResult{}, fault.New(agentapi.CodeInvalid,
			"function %s: %d vectors from %d on: the next is %d and the table holds %d", p.Address, p.Count, p.First, f.Enabled(), f.Vectors())
	}
	var out agentapi.AddVectorsResult
	for range p.Count {
		if err := ctx.Err(); err != nil {
			return agentapi.AddVectorsResult{}, err
		}
		if err := f.AddVector(); err != nil {
			if out.Refused = fault.Reply(err); out.Refused.Code != agentapi.CodeRefused {
				return agentapi.AddVectorsResult{}, err
			}
			break
		}
	}
	out.Vectors, err = a.enabled(p.Address, f)
	return out, err
}

// readRegister reads a register of an opened function, and times it.
func (a *Agent) readRegister(ctx context.Context, p agentapi.ReadRegisterParams) (agentapi.ReadRegisterResult, error) {
	var r agentapi.ReadRegisterResult
	if !slices.Contains([]int{1, 2, 4, 8}, p.Size) || p.Offset%uint64(p.Size) != 0 {
		return r, fault.New(agentapi.CodeInvalid, "a register of %d bytes at %#x: 1, 2, 4 or 8 bytes are read, at a multiple of their number", p.Size, p.Offset)
	}
	if p.Times < 1 || p.Times > agentapi.MaxReads {
		return r, fault.New(agentapi.CodeInvalid, "%d reads: must be 1 to %d", p.Times, agentapi.MaxReads)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	f, err := a.opened(p.Address)
	if err != nil {
		return r, err
	}
	start := time.Now()
	for range p.Times {
		if err := ctx.Err(); err != nil {
			return r, err
		}
		if r.Value, err = f.ReadRegister(p.Offset, p.Size); err != nil {
			return r, err
		}
	}
	r.Nanoseconds = time.Since(start).Nanoseconds()
	return r, nil
}

// enabled lists the vectors of an opened function and checks what two sources say of each: the MSI-X index the chip shows and the one in
// the name vfio-pci requested the interrupt by.
func (a *Agent) enabled(address string, f Function) ([]agentapi.Vector, error) {
	vectors, err := a.vectorsOf(address)
	if err != nil {
		return nil, err
	}
	held := vectors[:0]
	for _, v := range vectors {
		if v.Name != "" { // allocated ahead but not requested
			held = append(held, v)
		}
	}
	var there []int
	for k := range f.Enabled() {
		if !f.GivenUp(k) {
			there = append(there, k)
		}
	}
	if len(held) != len(there) {
		return nil, fmt.Errorf("function %s: %d vectors were enabled but the kernel shows %d: %+v", address, len(there), len(held), held)
	}
	for i, v := range held {
		k := there[i]
		if want := fmt.Sprintf("vfio-msix[%d](%s)", k, address); v.Index != k || v.Name != want {
			return nil, fmt.Errorf("function %s: IRQ %d is index %d, named %q, where %q was expected", address, v.IRQ, v.Index, v.Name, want)
		}
	}
	return held, nil
}

// vectorsOf lists the MSI interrupts of a function with any driver, ascending index.
func (a *Agent) vectorsOf(address string) ([]agentapi.Vector, error) {
	irqs, err := pci.MSIs(a.cfg.Root, address)
	if err != nil {
		return nil, err
	}
	table, err := irq.Read(a.cfg.Root)
	if err != nil {
		return nil, err
	}
	out := make([]agentapi.Vector, 0, len(irqs))
	for _, n := range irqs {
		row, ok := table.Rows[n]
		if !ok || row.HWIRQ < 0 { // /proc/interrupts leaves out what nobody requested
			row.HWIRQ, err = a.cfg.Root.Int("sys/kernel/irq", fmt.Sprint(n), "hwirq")
			if err != nil {
				return nil, fmt.Errorf("function %s: IRQ %d: MSI-X index: %w", address, n, err)
			}
		}
		out = append(out, agentapi.Vector{Index: row.HWIRQ & pci.MSIXIndexMask, IRQ: n, Name: row.Action})
	}
	slices.SortFunc(out, func(x, y agentapi.Vector) int { return cmp.Compare(x.Index, y.Index) })
	return out, nil
}

func (a *Agent) findFunction(_ context.Context, p agentapi.FindFunctionParams) (agentapi.FunctionInfo, error) {
	address, err := pci.Find(a.cfg.Root, pci.Match{Vendor: p.Vendor, Device: p.Device})
	if err != nil {
		return agentapi.FunctionInfo{}, err
	}
	node, err := pci.Node(a.cfg.Root, address)
	return agentapi.FunctionInfo{Address: address, Node: node, Driver: pci.Driver(a.cfg.Root, address)}, err
}

func (a *Agent) functionIRQs(_ context.Context, p agentapi.FunctionIRQsParams) (agentapi.AddVectorsResult, error) {
	v, err := a.vectorsOf(p.Address)
	return agentapi.AddVectorsResult{Vectors: v}, err
}

func (a *Agent) closeFunction(_ context.Context, p agentapi.CloseFunctionParams) (agentapi.Empty, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, err := a.opened(p.Address)
	if err != nil {
		return agentapi.Empty{}, err
	}
	delete(a.functions, p.Address)
	if err := f.Close(); err != nil {
		return agentapi.Empty{}, err
	}
	return agentapi.Empty{}, errors.Join(pci.SetReset(a.cfg.Root, p.Address, true), pci.Unbind(a.cfg.Root, p.Address))
}

// sureRoom is how many device vectors every CPU has room for (198 were seen); only above it need be looked where the newest one went, which takes a while among so many.
const sureRoom = 185

// elsewhere reports whether the newest vector of a function is on another CPU: the kernel takes another one, whatever the default affinity, when one has no vector left.
func (a *Agent) elsewhere(address string, f Function, cpu int) (bool, error) {
	vectors, err := a.enabled(address, f)
	if err != nil {
		return false, err
	}
	effective, err := irq.Effective(a.cfg.Root, vectors[len(vectors)-1].IRQ)
	return !slices.Equal(effective, cpulist.New(cpu)), err
}

// withUnopened calls f for a function that exists and that the agent does not drive itself, while nothing else allocates interrupts.
func (a *Agent) withUnopened(address string, f func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.functions[address] != nil {
		return fault.New(agentapi.CodeInvalid, "function %s is open: close it first", address)
	}
	if _, err := pci.Find(a.cfg.Root, pci.Match{Address: address}); err != nil {
		return err
	}
	return f()
}

func (a *Agent) bind(_ context.Context, p agentapi.BindParams) (agentapi.Empty, error) {
	return agentapi.Empty{}, a.withUnopened(p.Address, func() error { return pci.Attach(a.cfg.Root, p.Address, p.Driver) })
}

func (a *Agent) unbind(_ context.Context, p agentapi.FunctionParams) (agentapi.Empty, error) {
	return agentapi.Empty{}, a.withUnopened(p.Address, func() error { return pci.Detach(a.cfg.Root, p.Address) })
}

func (a *Agent) reset(_ context.Context, p agentapi.FunctionParams) (agentapi.Empty, error) {
	return agentapi.Empty{}, a.withUnopened(p.Address, func() error { return pci.Reset(a.cfg.Root, p.Address) })
}

// occupy tops CPUs up to a level of device vectors. The kernel places a new interrupt on the allowed CPU with the most free vectors
// (matrix_find_best_cpu in kernel/irq/matrix.c), so with one CPU in the default affinity the new vector goes there; that is verified.
func (a *Agent) occupy(ctx context.Context, p agentapi.OccupyParams) (agentapi.OccupyResult, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	none := agentapi.OccupyResult{}
	f, err := a.opened(p.Address)
	if err != nil {
		return none, err
	}
	before, err := irq.Levels(a.cfg.Root)
	if err != nil {
		return none, err
	}
	out := agentapi.OccupyResult{Before: before, Added: []agentapi.Vector{}}
	need := 0
	levels := maps.Clone(p.Levels)
	for _, c := range p.Full {
		if _, twice := levels[c]; twice {
			return none, fault.New(agentapi.CodeInvalid, "CPU %d has a level and is to be full", c)
		}
		if levels == nil {
			levels = map[int]int{}
		}
		levels[c] = agentapi.MaxLevel
	}
	for _, c := range slices.Sorted(maps.Keys(levels)) {
		level := levels[c]
		have, online := before[c]
		if !online {
			return none, fault.New(agentapi.CodeInvalid, "pressure on CPU %d, which is not online: online are %s", c, cpulist.New(slices.Collect(maps.Keys(before))...))
		}
		if level < 0 || level > agentapi.MaxLevel {
			return none, fault.New(agentapi.CodeInvalid, "pressure of %d vectors on CPU %d: must be 0 to %d", level, c, agentapi.MaxLevel)
		}
		if have > level {
			out.Above = append(out.Above, c)
		}
		need += max(0, level-have)
	}
	if free := f.Vectors() - f.Enabled(); need > free {
		return none, fault.New(agentapi.CodeInvalid, "the levels need %d more vectors, function %s has %d left", need, p.Address, free)
	}
	first := f.Enabled()
	placed := map[int]int{} // index -> CPU it must be on
	for _, c := range slices.Sorted(maps.Keys(levels)) {
		n := levels[c] - before[c]
		if n <= 0 {
			continue
		}
		err := irq.WithDefault(a.cfg.Root, cpulist.New(c), func() error {
			at := f.Enabled()
			for range n {
				if err := ctx.Err(); err != nil {
					return err
				}
				placed[f.Enabled()] = c
				if err := f.AddVector(); err != nil {
					return fmt.Errorf("pressure on CPU %d: %w", c, err)
				}
				if !p.Full.Has(c) || before[c]+f.Enabled()-at < sureRoom {
					continue
				}
				over, err := a.elsewhere(p.Address, f, c)
				if over || err != nil {
					k := f.Enabled() - 1
					delete(placed, k)
					return errors.Join(err, f.GiveUp(k))
				}
			}
			return nil
		})
		if err != nil {
			return none, err
		}
	}
	vectors, err := a.enabled(p.Address, f)
	if err != nil {
		return none, err
	}
	for _, v := range vectors {
		if v.Index < first {
			continue
		}
		effective, err := irq.Effective(a.cfg.Root, v.IRQ)
		if err != nil {
			return none, err
		}
		if want := cpulist.New(placed[v.Index]); !slices.Equal(effective, want) {
			return none, fmt.Errorf("pressure: vector %d (IRQ %d) was to sit on CPU %s but is on %s: the CPU may have no room for so many", v.Index, v.IRQ, want, effective)
		}
		out.Added = append(out.Added, v)
	}
	out.After, err = irq.Levels(a.cfg.Root)
	return out, err
}
