package runner

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

func TestDisk(t *testing.T) {
	topo := agentapi.Topology{CPUs: []agentapi.CPU{{ID: 0, Node: 0}, {ID: 1, Node: 0}, {ID: 2, Node: 1}}}
	got := disk(agentapi.Disk{Name: "vda", Node: 1,
		Queues: []agentapi.DiskQueue{
			{IRQ: 30, Managed: true, State: agentapi.IRQ{Action: "virtio1-req.0", Affinity: cpulist.Range(0, 2), Effective: cpulist.List{2}}},
			{Index: 1, IRQ: 31, State: agentapi.IRQ{Effective: cpulist.Range(0, 1)}},
			{Index: 2, IRQ: 32, State: agentapi.IRQ{Effective: cpulist.Range(1, 2)}},
			{Index: 3, IRQ: 33, State: agentapi.IRQ{Effective: cpulist.List{9}}}},
		Served: []agentapi.Served{{CPU: 0, Queue: 0, On: cpulist.List{2}}, {CPU: 1, Queue: -1}}}, topo)
	zero, one := 0, 1
	want := result.Disk{Name: "vda", Node: &one,
		Queues: []result.DiskQueue{
			{IRQ: 30, Name: "virtio1-req.0", Managed: true, Affinity: cpulist.Range(0, 2), Effective: cpulist.List{2}, Node: &one},
			{Index: 1, IRQ: 31, Effective: cpulist.Range(0, 1), Node: &zero},
			{Index: 2, IRQ: 32, Effective: cpulist.Range(1, 2)},
			{Index: 3, IRQ: 33, Effective: cpulist.List{9}}},
		Served: []result.Served{{CPU: 0, Queue: &zero, Handled: cpulist.List{2}}, {CPU: 1}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := disk(agentapi.Disk{Node: -1}, topo); d.Node != nil || d.OnNode() {
		t.Errorf("a disk of no node: %+v", d)
	}
}

// A second disk makes room for the first: its second queue is on CPU 2, since CPU 3 has a managed vector already. A disk on node 0 with one request queue has its interrupt on node 1, and one that expects otherwise fails.
func TestReadDisks(t *testing.T) {
	t.Parallel()
	const head = `
name: disks
strategy: unset
vectors: 1
shape: sockets=2,cores=2,threads=1,nodes=2,memory=512M
pressure: ["nvme:queues=1,node=0", "virtio-blk:queues=2,node=1"]
cases:
  right:
    steps: [read-disks, expect: {disks: [{masks: [0-3], queues: [3], on-node: false, meets: 3}, {masks: [0-1, 2-3], meets: 1-2}]}]
  wrong:
    steps: [read-disks: {reads: 2}, expect: {disks: [{queues: [1], on-node: true, meets: 1}, {}]}]
`
	sc, err := scenarios.Load("disks.yaml", []byte(head))
	rep := runCases(t, plan(t, sc, err, scenarios.Overrides{}), Options{Start: lab.StartAuto})
	if c := rep.Cases[0]; c.Outcome != result.Pass {
		t.Errorf("%s: %q", c.Outcome, c.Reasons)
	}
	for _, d := range rep.Cases[0].Steps[0].Disks {
		if len(d.Queues) == 0 || slices.ContainsFunc(d.Queues, func(q result.DiskQueue) bool { return !q.Managed || q.Name == "" }) || len(d.Served) != 4 {
			t.Errorf("%+v", d)
		}
	}
	if c := rep.Cases[1]; c.Outcome != result.Fail || len(c.Reasons) != 3 || !strings.Contains(c.Reasons[0], "are on CPUs 3, expected 1") {
		t.Errorf("a wrong expectation: %s: %q", c.Outcome, c.Reasons)
	}
}
