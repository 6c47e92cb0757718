package irq

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
)

const (
	interrupts      = "proc/interrupts"
	stat            = "proc/stat"
	onlineCPUs      = "sys/devices/system/cpu/online"
	defaultAffinity = "proc/irq/default_smp_affinity"
)

func dir(n int) string { return "proc/irq/" + strconv.Itoa(n) }

// maxTorn is how often in a row CPUs may come and go while /proc/interrupts is read.
const maxTorn = 20

// Read parses /proc/interrupts. The kernel writes its lines one after the other, each with the CPUs that are online just then, so a table during whose reading one came or
// went is read again.
func Read(r kfile.Root) (Table, error) {
	var torn error
	for range maxTorn {
		b, err := r.Bytes(interrupts)
		if err != nil {
			return Table{}, err
		}
		online, err := r.CPUs(onlineCPUs)
		if err != nil {
			return Table{}, err
		}
		var t Table
		if t, torn = ParseInterrupts(b); torn == nil && slices.Equal(t.CPUs, online) {
			return t, nil
		}
		if torn == nil {
			torn = fmt.Errorf("/proc/interrupts: it shows CPUs %s, and online are %s", cpulist.New(t.CPUs...), online)
		}
	}
	return Table{}, fmt.Errorf("%w, %d readings in a row", torn, maxTorn)
}

// totals are the interrupts handled so far, by IRQ number. /proc/interrupts cannot tell them: it leaves out what was handled on CPUs that are offline now.
func totals(r kfile.Root) (Totals, error) {
	b, err := r.Bytes(stat)
	if err != nil {
		return nil, err
	}
	return ParseTotals(b)
}

// Observe reads the given IRQs. The counts of one observation come from one reading of /proc/interrupts, the totals from one of /proc/stat.
func Observe(r kfile.Root, irqs []int) (agentapi.Observation, error) {
	table, err := Read(r)
	if err != nil {
		return agentapi.Observation{}, err
	}
	all, err := totals(r)
	if err != nil {
		return agentapi.Observation{}, err
	}
	out := agentapi.Observation{Online: cpulist.New(table.CPUs...), IRQs: make(map[int]agentapi.IRQ, len(irqs))}
	for _, n := range irqs {
		o, err := observeOne(r, table, n)
		if err != nil {
			return agentapi.Observation{}, err
		}
		o.Total = all.Of(n)
		out.IRQs[n] = o
	}
	return out, nil
}

func observeOne(r kfile.Root, table Table, n int) (agentapi.IRQ, error) {
	row, ok := table.Rows[n]
	if !ok {
		return agentapi.IRQ{}, notFound(n)
	}
	o := agentapi.IRQ{Node: -1, Chip: row.Chip, Action: row.Action, Counts: row.Counts}
	var err error
	if o.Affinity, err = r.CPUs(dir(n), "smp_affinity_list"); err != nil {
		return o, vanished(n, err)
	}
	if o.Effective, err = r.CPUs(dir(n), "effective_affinity_list"); err != nil {
		return o, vanished(n, err)
	}
	hint, err := r.String(dir(n), "affinity_hint")
	if err != nil {
		return o, vanished(n, err)
	}
	if o.Hint, err = ParseMask(hint); err != nil {
		return o, fmt.Errorf("IRQ %d: hint: %w", n, err)
	}
	if o.Node, err = r.Int(dir(n), "node"); errors.Is(err, fs.ErrNotExist) {
		o.Node = -1
	} else if err != nil {
		return o, fmt.Errorf("IRQ %d: %w", n, err)
	}
	return o, nil
}

func notFound(n int) error {
	return fault.New(agentapi.CodeNotFound, "IRQ %d is not in /proc/interrupts: no driver holds it", n)
}

// vanished explains a missing /proc/irq file: the interrupt was freed between two readings.
func vanished(n int, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(agentapi.CodeNotFound, "IRQ %d was freed while it was read: %w", n, err)
	}
	return fmt.Errorf("IRQ %d: %w", n, err)
}

// pollEvery is how often Await looks: well below the time an interrupt takes to reach a TCG guest, yet idle enough not to slow it.
const pollEvery = 2 * time.Millisecond

// Await waits until each IRQ's total count has risen above above[irq], then observes them.
// The error of an expired ctx names those that did not move.
func Await(ctx context.Context, r kfile.Root, above map[int]uint64) (agentapi.Observation, error) {
	if _, err := AwaitTotals(ctx, r, above); err != nil {
		return agentapi.Observation{}, err
	}
	return Observe(r, slices.Sorted(maps.Keys(above)))
}

// AwaitTotals is Await that reads no more than the totals, where an observation reads four files for each IRQ.
func AwaitTotals(ctx context.Context, r kfile.Root, above map[int]uint64) (map[int]uint64, error) {
	start := time.Now()
	irqs := slices.Sorted(maps.Keys(above))
	for {
		all, err := totals(r)
		if err != nil {
			return nil, err
		}
		still := slices.DeleteFunc(slices.Clone(irqs), func(n int) bool { return all.Of(n) > above[n] })
		if len(still) == 0 {
			seen := map[int]uint64{}
			for _, n := range irqs {
				seen[n] = all.Of(n)
			}
			return seen, nil
		}
		select {
		case <-ctx.Done():
			return nil, late(r, still, all, time.Since(start), ctx.Err())
		case <-time.After(pollEvery):
		}
	}
}

// late says which IRQs did not move, by the names of those that handle them.
func late(r kfile.Root, still []int, all Totals, after time.Duration, why error) error {
	table, err := Read(r)
	if err != nil {
		return err
	}
	var names []string
	for _, n := range still {
		row, ok := table.Rows[n]
		if !ok {
			return notFound(n)
		}
		names = append(names, fmt.Sprintf("IRQ %d (%s) at %d", n, row.Action, all.Of(n)))
	}
	return fault.New(agentapi.CodeTimeout, "no new interrupt within %s on %s: %w", after.Round(time.Millisecond), strings.Join(names, ", "), why)
}

// SetAffinity requests a mask for an IRQ. With plain PCI-MSI the kernel may only mark the move as pending until the next interrupt.
func SetAffinity(r kfile.Root, n int, mask cpulist.List) error {
	if len(mask) == 0 {
		return fault.New(agentapi.CodeInvalid, "IRQ %d: an empty affinity mask cannot be set", n)
	}
	if err := r.Write(mask.String(), dir(n), "smp_affinity_list"); err != nil {
		return fmt.Errorf("IRQ %d: affinity %s: %w", n, mask, err)
	}
	return nil
}

// WithDefault runs f while new interrupts get the given default affinity, and restores the former default whatever f does.
// The former default is kept as the kernel wrote it, so that bits of absent CPUs survive.
func WithDefault(r kfile.Root, mask cpulist.List, f func() error) (err error) {
	old, err := r.String(defaultAffinity)
	if err != nil {
		return err
	}
	if err := r.Write(FormatMask(mask), defaultAffinity); err != nil {
		return fmt.Errorf("default affinity %s: %w", mask, err)
	}
	defer func() {
		if e := r.Write(old, defaultAffinity); e != nil {
			err = errors.Join(err, fmt.Errorf("restoring the default affinity %s: %w", old, e))
		}
	}()
	return f()
}

// Effective returns the CPUs an IRQ is routed to.
func Effective(r kfile.Root, n int) (cpulist.List, error) {
	return r.CPUs(dir(n), "effective_affinity_list")
}

// Levels counts the device interrupt vectors that take room in each online CPU's vector space.
//
// Only a requested interrupt (one with an action) owns a vector: the kernel merely reserves one in a global count before that
// (arch/x86/kernel/apic/vector.c). A managed MSI interrupt, whose affinity user space may not write, takes one on every online CPU of its
// mask, wherever it is routed (irq_matrix_reserve_managed in kernel/irq/matrix.c).
func Levels(r kfile.Root) (map[int]int, error) {
	table, err := Read(r)
	if err != nil {
		return nil, err
	}
	levels := map[int]int{}
	for _, cpu := range table.CPUs {
		levels[cpu] = 0
	}
	for n, row := range table.Rows {
		if row.Action == "" || !ownsVector(row.Chip) {
			continue
		}
		file := "effective_affinity_list"
		if managed(r, row) {
			file = "smp_affinity_list"
		}
		cpus, err := r.CPUs(dir(n), file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // freed meanwhile
		}
		if err != nil {
			return nil, err
		}
		for _, cpu := range cpus {
			if _, online := levels[cpu]; online {
				levels[cpu]++
			}
		}
	}
	return levels, nil
}

// ownsVector tells chips whose interrupts are delivered through an x86 vector of their own from demultiplexed or legacy ones.
func ownsVector(chip string) bool {
	return strings.Contains(chip, "IO-APIC") || strings.Contains(chip, "MSI") || strings.Contains(chip, "DMAR")
}

// Managed reports whether the kernel lets nobody set an interrupt's mask: it refuses even the mask that is set.
func Managed(r kfile.Root, n int, mask cpulist.List) bool {
	err := r.Write(mask.String(), dir(n), "smp_affinity_list")
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.EPERM) // which of them depends on the kernel
}

func managed(r kfile.Root, row Row) bool {
	if !strings.Contains(row.Chip, "PCI-MSI") {
		return false
	}
	// Kernels >= 6.13 take the write bit away where user space may not set the affinity.
	st, err := os.Stat(r.Path(dir(row.IRQ), "smp_affinity"))
	return err == nil && st.Mode().Perm()&0o200 == 0
}
