package cpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
)

// guest writes the sysfs of 1 socket x 2 cores x 2 threads on two nodes, with CPU 3 offline.
func guest(t *testing.T) kfile.Root {
	t.Helper()
	root := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("sys/devices/system/cpu/online", "0-2")
	write("sys/devices/system/cpu/present", "0-3")
	write("sys/devices/system/cpu/possible", "0-7")
	for c := range 3 {
		d := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", c)
		write(d+"topology/core_id", fmt.Sprint(c/2))
		write(d+"topology/physical_package_id", "0")
		write(d+"topology/thread_siblings_list", []string{"0-1", "0-1", "2"}[c])
		if c < 2 {
			write(d+"cache/index3/shared_cpu_list", "0-1,3")
		}
		if c > 0 {
			write(d+"online", "1")
		}
	}
	write("sys/devices/system/node/online", "0-1")
	write("sys/devices/system/node/node0/cpulist", "0-1")
	write("sys/devices/system/node/node0/distance", "10 21")
	write("sys/devices/system/node/node1/cpulist", "2-3")
	write("sys/devices/system/node/node1/distance", "21 10")
	return kfile.Root(root)
}

func TestTopology(t *testing.T) {
	topo, err := Topology(guest(t))
	if err != nil {
		t.Fatal(err)
	}
	if topo.Online.String() != "0-2" || topo.Present.String() != "0-3" || topo.Possible.String() != "0-7" || len(topo.CPUs) != 3 {
		t.Errorf("%+v", topo)
	}
	c := topo.CPUs[2]
	if topo.CPUs[0].L3.String() != "0-1" || c.L3 != nil {
		t.Errorf("caches: CPU 0 %v, CPU 2, which has none, %v", topo.CPUs[0].L3, c.L3)
	}
	if c.ID != 2 || c.Node != 1 || c.Core != 1 || c.Siblings.String() != "2" {
		t.Errorf("CPU 2: %+v", c)
	}
	if len(topo.Nodes) != 2 || topo.Nodes[1].CPUs.String() != "2" || !slices.Equal(topo.Nodes[1].Distances, []int{21, 10}) {
		t.Errorf("nodes: %+v", topo.Nodes)
	}
}

func TestTopologyWithoutNUMA(t *testing.T) {
	r := guest(t)
	if err := os.RemoveAll(r.Path(nodeDir)); err != nil {
		t.Fatal(err)
	}
	topo, err := Topology(r)
	if err != nil || len(topo.Nodes) != 1 || topo.Nodes[0].CPUs.String() != "0-2" || !slices.Equal(topo.Nodes[0].Distances, []int{10}) {
		t.Errorf("%+v, %v", topo.Nodes, err)
	}
}

func TestTopologyDamaged(t *testing.T) {
	for file, content := range map[string]string{
		"sys/devices/system/cpu/online":                             "x",
		"sys/devices/system/cpu/cpu1/topology/core_id":              "",
		"sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "1-0",
		"sys/devices/system/node/node1/distance":                    "10 x",
		"sys/devices/system/node/online":                            "0-1,9",
		"sys/devices/system/cpu/cpu0/topology/physical_package_id":  "zero",
	} {
		r := guest(t)
		if err := os.WriteFile(r.Path(file), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if topo, err := Topology(r); err == nil {
			t.Errorf("%s = %q: %+v, want an error", file, content, topo)
		}
	}
}

func TestSetOnline(t *testing.T) {
	r := guest(t)
	for _, tc := range []struct {
		cpu  int
		up   bool
		code string
	}{
		{0, false, agentapi.CodeUnsupported},
		{9, false, agentapi.CodeNotFound},
		{-1, true, agentapi.CodeNotFound},
		{3, true, agentapi.CodeUnsupported}, // present, but its file is not there
	} {
		if _, err := SetOnline(r, tc.cpu, tc.up); err == nil || fault.Reply(err).Code != tc.code {
			t.Errorf("SetOnline(%d, %v): %v, want code %s", tc.cpu, tc.up, err, tc.code)
		}
	}
	if l, err := SetOnline(r, 1, true); err != nil || l.String() != "0-2" {
		t.Errorf("online already: %v, %v", l, err)
	}
	if _, err := SetOnline(r, 2, false); err != nil {
		t.Error(err)
	}
	if s, _ := r.String(dir(2), "online"); s != "0" {
		t.Errorf("cpu2/online = %q", s)
	}
}

// The tree's list of online CPUs does not follow what is written, so each round finds CPUs 1 and 2 online still.
func TestStorm(t *testing.T) {
	r := guest(t)
	restored := 0
	restore := func() error { restored++; return nil }
	if err := Storm(t.Context(), r, cpulist.New(1, 2), 3, restore); err != nil || restored != 3 {
		t.Errorf("%d rounds: %v", restored, err)
	}
	for _, id := range []int{1, 2} {
		if s, _ := r.String(dir(id), "online"); s != "0" {
			t.Errorf("cpu%d/online = %q", id, s)
		}
	}
	refused := errors.New("mask refused")
	if err := Storm(t.Context(), r, cpulist.New(1), 3, func() error { restored++; return refused }); !errors.Is(err, refused) || restored != 4 {
		t.Errorf("%v after %d restores", err, restored)
	}
	if err := Storm(t.Context(), r, cpulist.New(0), 1, restore); err == nil || fault.Reply(err).Code != agentapi.CodeUnsupported {
		t.Errorf("CPU 0: %v", err)
	}
	gone := errors.New("channel gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if err := Storm(ctx, r, cpulist.New(1), 1, restore); !errors.Is(err, gone) {
		t.Errorf("after the channel went: %v", err)
	}
}

func TestOnlinePresent(t *testing.T) {
	for _, tt := range []struct{ cmdline, cpu3 string }{{"quiet irqlab.online", "1"}, {"irqlab.online=no quiet", "0"}} {
		r := guest(t)
		for path, content := range map[string]string{"proc/cmdline": tt.cmdline, dir(2) + "/online": "untouched", dir(3) + "/online": "0"} {
			if err := os.MkdirAll(filepath.Dir(r.Path(path)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(r.Path(path), []byte(content+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := OnlinePresent(r); err != nil {
			t.Errorf("%s: %v", tt.cmdline, err)
		}
		if s, _ := r.String(dir(3), "online"); s != tt.cpu3 {
			t.Errorf("%s: cpu3/online = %q", tt.cmdline, s)
		}
		if s, _ := r.String(dir(2), "online"); s != "untouched" {
			t.Errorf("%s: cpu2/online = %q", tt.cmdline, s)
		}
		if err := os.Remove(r.Path(dir(3), "online")); err != nil {
			t.Fatal(err)
		}
		if err := OnlinePresent(r); (err != nil) != (tt.cpu3 == "1") {
			t.Errorf("%s: a CPU that does not go online: %v", tt.cmdline, err)
		}
	}
}

func TestErrnoCrosses(t *testing.T) {
	err := fmt.Errorf("CPU 2: going offline: %w", &os.PathError{Op: "write", Path: "x", Err: syscall.EBUSY})
	if r := fault.Reply(err); r.Code != agentapi.CodeRefused || syscall.Errno(r.Errno) != syscall.EBUSY {
		t.Errorf("%+v", r)
	}
}

func FuzzParseDistances(f *testing.F) {
	f.Add("10 20")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		ds, err := ParseDistances(s)
		for _, d := range ds {
			if d < 0 || d > 65535 {
				t.Fatalf("%q: distance %d, %v", s, d, err)
			}
		}
	})
}
