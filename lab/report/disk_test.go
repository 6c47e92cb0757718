package report

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"irqlab/guestagent/cpulist"
	"irqlab/scenarios/result"
)

// readFrom is a case that has read from a disk on node 0 whose one request queue is on a CPU of a node.
func readFrom(name string, cpu, node int) result.Case {
	c := run(name, "unset", result.Observed, nil)
	c.Observations = nil
	zero := 0
	d := result.Disk{Name: "nvme0n1", Node: &zero,
		Queues: []result.DiskQueue{{IRQ: 30, Name: "nvme0q1", Managed: true, Affinity: cpulist.Range(0, 3), Effective: cpulist.List{cpu}, Node: &node}}}
	for i := range 4 {
		d.Served = append(d.Served, result.Served{CPU: i, Queue: &zero, Handled: cpulist.List{cpu}})
	}
	c.Steps = []result.Step{{At: "0", Text: "read-disks", Outcome: result.StepDone, Disks: []result.Disk{d}}}
	return c
}

func TestDisk(t *testing.T) {
	c := readFrom("nvme", 3, 1)
	p := &page{columns: 80}
	p.disk(&c.Steps[0], &c.Steps[0].Disks[0])
	want := `
  step 0, disk nvme0n1 on node 0:
  queue  name     irq  mask  effective  its node  requests
  -------------------------------------------------------------
      0  nvme0q1   30  0-3   3          node 1    from 0-3 on 3
  none on the disk's node; managed: nobody can set these masks; submitted and
    handled on the same CPU: from CPU 3
`
	if d := cmp.Diff(want, p.String()); d != "" {
		t.Error(d)
	}
	d := &c.Steps[0].Disks[0]
	d.Served[1].Handled, d.Served[2].Queue = cpulist.List{1, 3}, nil
	if got, want := RequestsOf(d, 0), "from 0,3 on 3; from 1 on 1,3"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := RequestsOf(d, 1); got != "none" {
		t.Errorf("%q", got)
	}
}

func TestCompareDisks(t *testing.T) {
	a, b := readFrom("nvme/debian:6.18", 3, 1), readFrom("nvme/debian:7.3", 1, 0)
	var got []string
	for _, d := range differences(&a, &b) {
		got = append(got, d.What+": "+d.A+" | "+d.B)
	}
	want := "disk nvme0n1 queue 0: 0-3 on 3, node 1; requests from 0-3 on 3 | 0-3 on 1, node 0; requests from 0-3 on 1"
	if strings.Join(got, "\n") != want {
		t.Errorf("%q, want %q", got, want)
	}
	if d := differences(&a, &a); len(d) > 0 {
		t.Errorf("%v", d)
	}
	b.Steps = nil
	if d := differences(&a, &b); len(d) != 1 || d[0].B != "" {
		t.Errorf("a disk that was read from on one side: %v", d)
	}
}

// A summary answers for the disks' queues, too: a pass is what the case expects, which may be that the node is not honoured.
func TestDisksInSummary(t *testing.T) {
	off, on, homeless := readFrom("off", 3, 1), readFrom("on", 0, 0), readFrom("homeless", 0, 0)
	homeless.Steps[0].Disks[0].Node = nil
	var b strings.Builder
	if err := Summary(&b, result.Report{Cases: []result.Case{off, on, homeless, {Scenario: off.Scenario, Name: "none", Outcome: result.Pass}}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"effective CPU of each disk queue", "on the disk's node", `off +observed +3 +no: 1 of 1`, `on +observed +0 +yes`, `homeless +observed +0 +it has none`, `none +pass +- +-`} {
		if !regexp.MustCompile(want).MatchString(b.String()) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
