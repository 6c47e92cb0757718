// Package disk reads from the disks that the lab puts beside the function, and tells which interrupts served what. It knows the names that the kernel's drivers give their
// interrupts, and no more of them.
package disk

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/irq"
	"irqlab/guestagent/kfile"
	"irqlab/guestagent/pci"
)

const (
	blocks = "sys/block"
	// size of a read, and what it and the buffer have to be a multiple of to get past the page cache.
	size = 4096
)

// disk is one of the lab's.
type disk struct {
	agentapi.Disk
	order int // of its serial number
}

// Read reads from each of the lab's disks, so many times from each online CPU, and tells which interrupts that took.
func Read(ctx context.Context, r kfile.Root, reads int) (agentapi.DisksResult, error) {
	var out agentapi.DisksResult
	disks, err := find(r)
	if err != nil {
		return out, err
	}
	if out.Online, err = r.CPUs("sys/devices/system/cpu/online"); err != nil {
		return out, err
	}
	for _, d := range disks {
		queues, err := requestQueues(r, d.Address)
		if err != nil {
			return out, fmt.Errorf("disk %s: %w", d.Name, err)
		}
		if d.Served, err = serve(ctx, r, d.Name, queues, out.Online, reads); err != nil {
			return out, fmt.Errorf("disk %s: %w", d.Name, err)
		}
		if d.Queues, err = look(r, queues); err != nil {
			return out, fmt.Errorf("disk %s: %w", d.Name, err)
		}
		out.Disks = append(out.Disks, d.Disk)
	}
	return out, nil
}

var serial = regexp.MustCompile(`^` + agentapi.DiskSerial + `(\d{1,4})$`)

// find lists the lab's disks, by their serial numbers.
func find(r kfile.Root) ([]disk, error) {
	names, err := r.Names(blocks)
	if err != nil {
		return nil, err
	}
	var out []disk
	for _, name := range names {
		m := serial.FindStringSubmatch(serialOf(r, name))
		if m == nil {
			continue
		}
		d := disk{Disk: agentapi.Disk{Name: name}}
		if d.order, err = strconv.Atoi(m[1]); err != nil {
			return nil, err
		}
		where, err := filepath.EvalSymlinks(r.Path(blocks, name))
		if err != nil {
			return nil, fmt.Errorf("disk %s: %w", name, err)
		}
		if d.Address = addressIn(where); d.Address == "" {
			return nil, fmt.Errorf("disk %s: %s has no PCI function in it", name, where)
		}
		if d.Node, err = r.Int("sys/bus/pci/devices", d.Address, "numa_node"); err != nil {
			d.Node = -1 // a kernel without NUMA has no such file
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b disk) int { return a.order - b.order })
	return out, nil
}

// serialOf is a disk's serial number, "" if it tells none. NVMe has it at the controller.
func serialOf(r kfile.Root, name string) string {
	for _, file := range []string{"serial", "device/serial"} {
		if s, err := r.String(blocks, name, file); err == nil {
			return strings.TrimSpace(s)
		}
	}
	return ""
}

// addressIn is the innermost PCI function on the way to a device in /sys.
func addressIn(path string) string {
	parts := strings.Split(path, string(filepath.Separator))
	for _, part := range slices.Backward(parts) {
		if pci.ValidAddress(part) {
			return part
		}
	}
	return ""
}

// The drivers' names for the interrupt of a request queue, whose number they end with. NVMe counts its queue for administration as the first.
var (
	nvmeQueue   = regexp.MustCompile(`^nvme\d+q([1-9]\d{0,4})$`)
	virtioQueue = regexp.MustCompile(`^virtio\d+-req\.(\d{1,5})$`)
)

// queueOf is the request queue that an interrupt of this name is of; false: of none.
func queueOf(action string) (int, bool) {
	if m := nvmeQueue.FindStringSubmatch(action); m != nil {
		n, err := strconv.Atoi(m[1])
		return n - 1, err == nil
	}
	if m := virtioQueue.FindStringSubmatch(action); m != nil {
		n, err := strconv.Atoi(m[1])
		return n, err == nil
	}
	return 0, false
}

// requestQueues are the IRQs of a function's request queues, by queue.
func requestQueues(r kfile.Root, address string) (map[int]int, error) {
	irqs, err := pci.MSIs(r, address)
	if err != nil {
		return nil, err
	}
	table, err := irq.Read(r)
	if err != nil {
		return nil, err
	}
	queues := map[int]int{}
	for _, n := range irqs {
		if q, ok := queueOf(table.Rows[n].Action); ok {
			queues[q] = n
		}
	}
	return queues, nil
}

// serve reads from each CPU in turn, and tells which queue's interrupt was handled, and where.
func serve(ctx context.Context, r kfile.Root, name string, queues map[int]int, online cpulist.List, reads int) ([]agentapi.Served, error) {
	f, err := os.OpenFile(r.Path("dev", name), os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []agentapi.Served
	for _, cpu := range online {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		before, err := irq.Read(r)
		if err != nil {
			return nil, err
		}
		if err := from(cpu, func() error { return read(f, reads) }); err != nil {
			return nil, fmt.Errorf("reading from CPU %d: %w", cpu, err)
		}
		after, err := irq.Read(r)
		if err != nil {
			return nil, err
		}
		out = append(out, risen(cpu, queues, before, after)...)
	}
	return out, nil
}

// risen says of which queues interrupts were handled between two readings, and on which CPUs.
func risen(cpu int, queues map[int]int, before, after irq.Table) []agentapi.Served {
	var out []agentapi.Served
	for _, q := range slices.Sorted(maps.Keys(queues)) {
		n := queues[q]
		var on cpulist.List
		for c, count := range after.Rows[n].Counts {
			if count > before.Rows[n].Counts[c] {
				on = append(on, c)
			}
		}
		if len(on) > 0 {
			out = append(out, agentapi.Served{CPU: cpu, Queue: q, On: cpulist.New(on...)})
		}
	}
	if out == nil { // by polling, or not at all by an interrupt of these
		out = []agentapi.Served{{CPU: cpu, Queue: -1}}
	}
	return out
}

// from calls f on one CPU.
func from(cpu int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its affinity
		var set unix.CPUSet
		set.Set(cpu)
		err := unix.SchedSetaffinity(0, &set)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// read reads a number of blocks past the page cache, each once.
func read(f *os.File, times int) error {
	buffer, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer unix.Munmap(buffer)
	for i := range times {
		if _, err := f.ReadAt(buffer, int64(i)*size); err != nil {
			return err
		}
	}
	return nil
}

// look tells what the kernel says of each queue's interrupt.
func look(r kfile.Root, queues map[int]int) ([]agentapi.DiskQueue, error) {
	seen, err := irq.Observe(r, slices.Sorted(maps.Values(queues)))
	if err != nil {
		return nil, err
	}
	out := []agentapi.DiskQueue{}
	for _, q := range slices.Sorted(maps.Keys(queues)) {
		out = append(out, agentapi.DiskQueue{Index: q, IRQ: queues[q], State: seen.IRQs[queues[q]], Managed: irq.Managed(r, queues[q], seen.IRQs[queues[q]].Affinity)})
	}
	return out, nil
}
