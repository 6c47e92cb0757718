package disk

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/irq"
	"irqlab/guestagent/kfile"
)

func TestQueueOf(t *testing.T) {
	for action, want := range map[string]int{"nvme0q1": 0, "nvme12q64": 63, "virtio1-req.0": 0, "virtio7-req.15": 15,
		"nvme0q0": -1, "virtio1-config": -1, "virtio1-virtqueues": -1, "mana_q1@pci:0000:81:00.0": -1, "": -1, "nvme0q99999999": -1} {
		if got, ok := queueOf(action); ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: %d, %v, want %d", action, got, ok, want)
		}
	}
}

func FuzzQueueOf(f *testing.F) {
	f.Add("nvme0q1")
	f.Add("virtio1-req.0")
	f.Fuzz(func(t *testing.T, action string) {
		if q, ok := queueOf(action); ok && (q < 0 || q > 99999) {
			t.Errorf("%q: %d", action, q)
		}
	})
}

func TestRisen(t *testing.T) {
	table := func(counts ...map[int]uint64) irq.Table {
		out := irq.Table{Rows: map[int]irq.Row{}}
		for i, c := range counts {
			out.Rows[30+i] = irq.Row{IRQ: 30 + i, Counts: c}
		}
		return out
	}
	queues := map[int]int{0: 30, 1: 31}
	for _, tc := range []struct {
		what          string
		before, after irq.Table
		want          []agentapi.Served
	}{
		{"one queue", table(map[int]uint64{3: 1}, nil), table(map[int]uint64{3: 9}, nil), []agentapi.Served{{CPU: 2, Queue: 0, On: cpulist.List{3}}}},
		{"both, on several CPUs", table(nil, map[int]uint64{0: 5}), table(map[int]uint64{3: 9, 1: 1}, map[int]uint64{0: 6}),
			[]agentapi.Served{{CPU: 2, Queue: 0, On: cpulist.List{1, 3}}, {CPU: 2, Queue: 1, On: cpulist.List{0}}}},
		{"none", table(map[int]uint64{3: 1}, nil), table(map[int]uint64{3: 1}, nil), []agentapi.Served{{CPU: 2, Queue: -1}}},
		{"a queue whose interrupt has gone", table(map[int]uint64{3: 1}), irq.Table{}, []agentapi.Served{{CPU: 2, Queue: -1}}},
	} {
		if d := cmp.Diff(tc.want, risen(2, queues, tc.before, tc.after)); d != "" {
			t.Errorf("%s: %s", tc.what, d)
		}
	}
}

// The lab's disks are found by their serial numbers, whatever else there is, and in their order.
func TestFind(t *testing.T) {
	r := kfile.Root(t.TempDir())
	write := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(r.Path(name)), 0o755), os.WriteFile(r.Path(name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	add := func(where, name, file, serial string) {
		t.Helper()
		write(where+"/"+name+"/"+file, serial)
		if err := errors.Join(os.MkdirAll(r.Path(blocks), 0o755), os.Symlink(r.Path(where, name), r.Path(blocks, name))); err != nil {
			t.Fatal(err)
		}
	}
	const bridge = "sys/devices/pci0000:80/0000:80:00.0/"
	add(bridge+"0000:82:00.0/virtio1/block", "vda", "serial", "irqlab1\n")
	add(bridge+"0000:81:00.0/nvme/nvme0", "nvme0n1", "device/serial", "irqlab0              \n")
	add(bridge+"0000:83:00.0/virtio2/block", "vdb", "serial", "mine")
	add("sys/devices/virtual/block", "loop0", "size", "0")
	write("sys/bus/pci/devices/0000:81:00.0/numa_node", "1\n")
	write("sys/bus/pci/devices/0000:82:00.0/numa_node", "-1\n")
	got, err := find(r)
	if err != nil {
		t.Fatal(err)
	}
	want := []agentapi.Disk{{Name: "nvme0n1", Address: "0000:81:00.0", Node: 1}, {Name: "vda", Address: "0000:82:00.0", Node: -1}}
	if !slices.EqualFunc(got, want, func(a disk, b agentapi.Disk) bool { return cmp.Equal(a.Disk, b) }) {
		t.Errorf("%+v", got)
	}
	add("sys/devices/virtual/block", "ram0", "serial", "irqlab7")
	if _, err := find(r); err == nil {
		t.Error("a disk without a PCI function is taken")
	}
}
