// Package cpu reads the CPU and NUMA topology from sysfs and takes CPUs on- and offline. It knows nothing of interrupts.
package cpu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
)

const (
	cpuDir  = "sys/devices/system/cpu"
	nodeDir = "sys/devices/system/node"
)

func dir(cpu int) string  { return cpuDir + "/cpu" + strconv.Itoa(cpu) }
func node(id int) string  { return nodeDir + "/node" + strconv.Itoa(id) }
func topo(cpu int) string { return dir(cpu) + "/topology" }

// Online returns the CPUs the kernel runs on.
func Online(r kfile.Root) (cpulist.List, error) { return r.CPUs(cpuDir, "online") }

// Topology reads the online CPUs' place in cores, packages and nodes (Documentation/admin-guide/cputopology.rst).
// A kernel without NUMA shows no nodes: all CPUs are then on node 0 at distance 10.
func Topology(r kfile.Root) (agentapi.Topology, error) {
	var t agentapi.Topology
	var err error
	for _, f := range []struct {
		name string
		to   *cpulist.List
	}{{"online", &t.Online}, {"present", &t.Present}, {"possible", &t.Possible}} {
		if *f.to, err = r.CPUs(cpuDir, f.name); err != nil {
			return t, fmt.Errorf("CPU topology: %w", err)
		}
	}
	if t.Nodes, err = nodes(r, t.Online); err != nil {
		return t, fmt.Errorf("NUMA topology: %w", err)
	}
	for _, id := range t.Online {
		c := agentapi.CPU{ID: id}
		for _, n := range t.Nodes {
			if n.CPUs.Has(id) {
				c.Node = n.ID
			}
		}
		if c.Core, err = r.Int(topo(id), "core_id"); err != nil {
			return t, fmt.Errorf("CPU %d: %w", id, err)
		}
		if c.Package, err = r.Int(topo(id), "physical_package_id"); err != nil {
			return t, fmt.Errorf("CPU %d: %w", id, err)
		}
		siblings, err := r.CPUs(topo(id), "thread_siblings_list")
		if err != nil {
			return t, fmt.Errorf("CPU %d: %w", id, err)
		}
		c.Siblings = siblings.And(t.Online)
		if shared, err := r.CPUs(dir(id), "cache/index3/shared_cpu_list"); err == nil {
			c.L3 = shared.And(t.Online)
		} else if !errors.Is(err, fs.ErrNotExist) { // a machine need not have such a cache
			return t, fmt.Errorf("CPU %d: %w", id, err)
		}
		t.CPUs = append(t.CPUs, c)
	}
	return t, nil
}

func nodes(r kfile.Root, online cpulist.List) ([]agentapi.Node, error) {
	ids, err := r.CPUs(nodeDir, "online")
	if errors.Is(err, fs.ErrNotExist) {
		return []agentapi.Node{{ID: 0, CPUs: online, Distances: []int{10}}}, nil
	}
	if err != nil {
		return nil, err
	}
	var out []agentapi.Node
	for _, id := range ids {
		n := agentapi.Node{ID: id}
		cpus, err := r.CPUs(node(id), "cpulist")
		if err != nil {
			return nil, err
		}
		n.CPUs = cpus.And(online)
		s, err := r.String(node(id), "distance")
		if err != nil {
			return nil, err
		}
		if n.Distances, err = ParseDistances(s); err != nil {
			return nil, fmt.Errorf("node %d: %w", id, err)
		}
		out = append(out, n)
	}
	return out, nil
}

// ParseDistances reads a node's distance row, "10 20".
func ParseDistances(s string) ([]int, error) {
	var out []int
	for f := range strings.FieldsSeq(s) {
		n, err := strconv.ParseUint(f, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("distance row %q: %q is not a distance", s, f)
		}
		out = append(out, int(n))
	}
	return out, nil
}

// SetOnline takes a CPU on- or offline and returns who is online then. A CPU already in that state is left alone.
// The kernel's refusal (EBUSY while PCI drivers probe, for one) is in the error.
func SetOnline(r kfile.Root, id int, up bool) (cpulist.List, error) {
	state := map[bool]string{true: "online", false: "offline"}[up]
	present, err := r.CPUs(cpuDir, "present")
	if err != nil {
		return nil, err
	}
	if !slices.Contains(present, id) {
		return nil, fault.New(agentapi.CodeNotFound, "CPU %d is not present; present are %s", id, present)
	}
	online, err := Online(r)
	if err != nil {
		return nil, err
	}
	if online.Has(id) == up {
		return online, nil
	}
	value := "0"
	if up {
		value = "1"
	}
	err = r.Write(value, dir(id), "online")
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.New(agentapi.CodeUnsupported, "CPU %d cannot go %s: the kernel does not let this CPU be unplugged (CPU 0 on x86 never)", id, state)
	}
	if err != nil {
		return nil, fmt.Errorf("CPU %d: going %s: %w", id, state, err)
	}
	return Online(r)
}

// Storm takes CPUs offline and online again, one after the other, round after round, and calls restore at the end of each. It ends early with the first error, and with ctx.
func Storm(ctx context.Context, r kfile.Root, cpus cpulist.List, rounds int, restore func() error) error {
	for range rounds {
		for _, up := range []bool{false, true} {
			for _, id := range cpus {
				if err := context.Cause(ctx); err != nil {
					return err
				}
				if _, err := SetOnline(r, id, up); err != nil {
					return err
				}
			}
		}
		if err := restore(); err != nil {
			return err
		}
	}
	return nil
}

// OnlinePresent brings up, one after the other, all CPUs that are present, if the kernel's command line has agentapi.OnlineWord.
func OnlinePresent(r kfile.Root) error {
	cmdline, err := r.String("proc/cmdline")
	if err != nil || !slices.Contains(strings.Fields(cmdline), agentapi.OnlineWord) {
		return err
	}
	present, err := r.CPUs(cpuDir, "present")
	if err != nil {
		return err
	}
	online, err := Online(r)
	if err != nil {
		return err
	}
	for _, id := range present.Minus(online) {
		err := r.Write("1", dir(id), "online")
		if errors.Is(err, syscall.ECANCELED) || errors.Is(err, syscall.EPERM) { // another thread of a core, with nosmt
			continue
		}
		if err != nil {
			return fmt.Errorf("CPU %d: going online: %w", id, err)
		}
	}
	return nil
}
