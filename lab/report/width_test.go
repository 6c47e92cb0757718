package report

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/lab/layout"
	"irqlab/scenarios/result"
	"irqlab/scenarios/shape"
)

// huge is all that is long: 128 CPUs, 64 queues with the kernel's names, masks that were dropped, counts on many CPUs,
// and a case that failed with everything it has to tell.
func huge() result.Report {
	vectors := []result.Vector{
		{
			Index:     0,
			Role:      result.RoleHWC,
			IRQ:       130,
			Action:    "mana_hwc@pci:0000:81:00.0",
			Affinity:  cpulist.Range(0, 1),
			Hint:      cpulist.Range(0, 1),
			Effective: cpulist.List{0},
			Counts:    map[int]uint64{0: 1234567},
		},
	}
	for i := range 64 {
		mask := cpulist.Range(2*i, 2*i+1)
		vectors = append(
			vectors,
			result.Vector{
				Index:     i + 1,
				Role:      result.RoleQueue,
				IRQ:       131 + i,
				Action:    fmt.Sprintf("mana_q%d@pci:0000:81:00.0", i),
				Asked:     mask,
				Affinity:  mask,
				Hint:      mask,
				Effective: cpulist.List{2*i + i%2},
				Counts:    map[int]uint64{2 * i: 4, 127: 1000},
			},
		)
	}
	plain := result.Case{
		Scenario:   "ht-core-spread",
		Name:       "driver-new-64/debian:6.12",
		Outcome:    result.Pass,
		Kernel:     "6.12.117+deb13-cloud-amd64",
		KernelSpec: "debian:6.12",
		Driver:     "mana",
		Branch:     "numa-aware, first group skipped",
		Irqchip:    "msi",
		Shape:      shape.Shape{Sockets: 2, Cores: 32, Threads: 2, Nodes: 2, MemoryMiB: 2048},
		Vectors:    65,
		Online:     cpulist.Range(0, 127),
		Observations: []result.Observation{
			result.Observe("settled", cpulist.Range(0, 127), vectors),
		},
		Command: "irqlab run ht-core-spread --case driver-new-64/debian:6.12 --kernel debian:6.12 --shape sockets=2,cores=32,threads=2,nodes=2,memory=2G",
	}
	bad := plain
	bad.Name, bad.Outcome, bad.KernelSpec, bad.Kernel = "driver-new-64/debian:7.3", result.Fail, "debian:7.3", "7.3.4+deb13-cloud-amd64"
	bad.Reasons = []string{
		strings.Repeat("settled: the queue vectors are not where they were expected to be. ", 8),
		"after 60s; last console lines:\n" + strings.Repeat("[    1.234567] smpboot: a long line ", 5),
	}
	odd := append([]result.Vector{}, vectors...)
	odd[3].Pending, odd[4].Handled, odd[5].Dropped, odd[5].Affinity = true, cpulist.Range(
		60,
		70,
	), true, cpulist.Range(
		0,
		127,
	)
	odd[6].Hint, odd[7].Counts = nil, map[int]uint64{}
	for cpu := range 128 {
		odd[7].Counts[cpu] = 5
	}
	bad.Observations = []result.Observation{result.Observe("settled", cpulist.Range(0, 127), odd)}
	bad.Pressure = []string{
		"vectors:before=hwc,cpu0-3=8,cpu4=9,cpu5=10,cpu6=11,cpu7=12,cpu8=13",
		"nvme:queues=4",
		"virtio-blk:queues=2,node=1",
	}
	bad.Notes = []string{strings.Repeat("expectations on masks dropped because --vectors overrides ", 3)}
	bad.KernelLog.Warnings = []string{
		"WARNING: CPU: 1 PID: 1 at kernel/irq/manage.c:1 " + strings.Repeat("irq_do_set_affinity+0x12/0x34 ", 5),
	}
	bad.Steps = []result.Step{
		{
			At:      "10.1.0",
			Text:    strings.Repeat("offline 2-3 ", 9),
			End:     5,
			Outcome: result.StepRefused,
			Refusal: strings.Repeat("device or resource busy ", 9),
		},
	}
	bad.Rules = []result.Rule{{Name: "configuration", Text: strings.Repeat("hold at request:QUERY_DEV_CONFIG ", 4)}}
	bad.Evidence = &result.Evidence{
		Until:   12.3456789,
		Held:    []string{"configuration (hold at request:QUERY_DEV_CONFIG, the first occurrence from here on)"},
		Awaited: []string{"the device's answer to request QUERY_DEV_CONFIG, since 4.870480"},
		Events: []result.Event{
			{T: 1.5, Source: "step", What: "settling"},
			{T: 2.25, Source: "device", What: strings.Repeat("CREATE_WQ_OBJ (8), ", 9)},
		},
	}
	bad.Artifacts = result.Artifacts{
		Console:  "ht-core-spread/driver-new-64-debian:7.3/console.log",
		Timeline: "ht-core-spread/driver-new-64-debian:7.3/timeline.jsonl",
	}
	none := result.Case{
		Scenario:     "faults/queue-refused",
		Name:         "second",
		Outcome:      result.Pass,
		Kernel:       plain.Kernel,
		KernelSpec:   plain.KernelSpec,
		Driver:       "mana",
		Irqchip:      "msi",
		Shape:        shape.Default(),
		Observations: []result.Observation{result.Observe("after", cpulist.Range(0, 3), nil)},
	}
	other := none
	other.Scenario = "faults/flr"
	return result.Report{Schema: result.Schema, Cases: []result.Case{plain, bad, none, other}, Seconds: 123,
		Host: result.Host{
			QEMU:        "11.1.3",
			Accel:       "tcg",
			AccelReason: "/dev/kvm is there but the CPU offers no vmx/svm: using TCG",
			CPUs:        2,
		}}
}

// TestWidth holds all that a report can be to the width it is for.
func TestWidth(t *testing.T) {
	half := func(r result.Report, from, to int) result.Report { r.Cases = r.Cases[from:to]; return r }
	for _, columns := range []int{80, 100, 120, 200} {
		for _, colour := range []bool{false, true} {
			for name, write := range map[string]func(p *page, b *bytes.Buffer) error{
				"huge":         func(p *page, b *bytes.Buffer) error { return render(b, huge(), p, (*page).everything) },
				"huge summary": func(p *page, b *bytes.Buffer) error { return render(b, huge(), p, (*page).briefly) },
				"troubled":     func(p *page, b *bytes.Buffer) error { return render(b, troubled(), p, (*page).everything) },
				"steps":        func(p *page, b *bytes.Buffer) error { return render(b, steps(), p, (*page).everything) },
				"comparison": func(p *page, b *bytes.Buffer) error {
					return renderComparison(b, Compare(half(huge(), 0, 1), half(huge(), 1, 2)), p)
				},
			} {
				var b bytes.Buffer
				if err := write(&page{columns: columns, colour: colour}, &b); err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(b.String()) {
					if w := layout.Width(strings.TrimSuffix(line, "\n")); w > columns {
						t.Errorf("%s in %d columns, colour %t: %d in %q", name, columns, colour, w, line)
					}
				}
			}
		}
	}
}

// TestForms: what a table leaves out or takes another form of where there is little room, and what it must not lose
// then.
func TestForms(t *testing.T) {
	r := huge()
	for name, tc := range map[string]struct {
		content  func(*page, result.Report)
		columns  int
		yes, not []string
	}{
		"a large machine": {(*page).everything, 80,
			[]string{"mana_q63 ", " core  node", "each hint is the requested mask", "126:4 127:1000", "from 0 to 127: 64 cores of", "held: configuration", "awaited: the device's answer"},
			[]string{"@pci", "CPU127"}},
		"summary": {(*page).briefly, 80,
			[]string{"cases without vectors to show on 6.12.117+deb13-cloud-amd64", "faults/flr/second", "driver-new-64/debian:7.3: fail", "again: ", "evidence: ht-core-spread/driver-new-64-debian:7.3/timeline.jsonl", " …\n"},
			[]string{"driver mana", "effective  core", "smpboot"}},
	} {
		var b bytes.Buffer
		if err := render(&b, r, &page{columns: tc.columns}, tc.content); err != nil {
			t.Fatal(err)
		}
		for _, w := range tc.yes {
			if !strings.Contains(b.String(), w) {
				t.Errorf("%s: no %q in\n%s", name, w, &b)
			}
		}
		for _, w := range tc.not {
			if strings.Contains(b.String(), w) {
				t.Errorf("%s: %q in\n%s", name, w, &b)
			}
		}
	}
}

// TestNoVectors: a case without vectors to show has no table of them, and its headline no columns for them.
func TestNoVectors(t *testing.T) {
	var b bytes.Buffer
	r := huge()
	r.Cases = r.Cases[2:3]
	if err := render(&b, r, &page{columns: 80}, (*page).everything); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"clustered", "queues", "effective", "vector  "} {
		if strings.Contains(b.String(), w) {
			t.Errorf("%q in\n%s", w, &b)
		}
	}
	if !strings.Contains(b.String(), "after, CPUs 0-3 online: no vectors") {
		t.Errorf("the observation is not told of:\n%s", &b)
	}
}

func TestName(t *testing.T) {
	for action, want := range map[string]string{
		"mana_q0@pci:0000:81:00.0": "mana_q0", "mana_msi1@pci:0000:81:00.0": "mana_msi1", "mana_hwc@pci:0000:81:00.0": "mana_hwc", "virtio0-input": "virtio0-input",
		"vfio-msix[1](0000:81:00.0)": "", "": "",
	} {
		if got := IRQName(result.Vector{Action: action}); got != want {
			t.Errorf("%q: %q, want %q", action, got, want)
		}
	}
}

func TestSeats(t *testing.T) {
	for name, tc := range map[string]struct {
		shape shape.Shape
		again bool
		cpu   int
		want  string
	}{
		"4 CPUs with threads":      {shape.Default(), false, 3, "none"},
		"8 CPUs with threads":      {shape.Shape{Sockets: 1, Cores: 4, Threads: 2, Nodes: 1}, false, 3, "none"},
		"16 CPUs without threads":  {shape.Shape{Sockets: 1, Cores: 16, Threads: 1, Nodes: 1}, false, 3, "none"},
		"16 CPUs with threads":     {shape.Shape{Sockets: 1, Cores: 8, Threads: 2, Nodes: 1}, false, 3, "{1 0}"},
		"two nodes":                {shape.Shape{Sockets: 2, Cores: 2, Threads: 1, Nodes: 2}, false, 3, "{3 1}"},
		"a CPU that came back":     {shape.Shape{Sockets: 2, Cores: 2, Threads: 1, Nodes: 2}, true, 3, "none"},
		"the published large one":  {shape.Shape{Sockets: 2, Cores: 32, Threads: 2, Nodes: 2}, false, 65, "{32 1}"},
		"nodes that part a socket": {shape.Shape{Sockets: 1, Cores: 4, Threads: 2, Nodes: 2}, false, 4, "{2 1}"},
	} {
		c := result.Case{Shape: tc.shape}
		if tc.again {
			c.Steps = []result.Step{{Topology: []agentapi.CPU{{ID: 3}}}}
		}
		got := "none"
		if s := seats(&c); s != nil {
			got = fmt.Sprint(s[tc.cpu])
		}
		if got != tc.want {
			t.Errorf("%s: CPU %d has %s, want %s", name, tc.cpu, got, tc.want)
		}
	}
}

func TestPlacement(t *testing.T) {
	on := func(queues ...cpulist.List) *result.Observation {
		o := &result.Observation{Vectors: []result.Vector{{Role: result.RoleHWC, Effective: cpulist.List{0}}}}
		for i, q := range queues {
			o.Vectors = append(o.Vectors, result.Vector{Index: i + 1, Role: result.RoleQueue, Effective: q})
		}
		return o
	}
	each := func(cpus ...int) (l []cpulist.List) {
		for _, c := range cpus {
			l = append(l, cpulist.List{c})
		}
		return l
	}
	for want, tc := range map[string]struct {
		o     *result.Observation
		limit int
	}{
		"0; 0,2,0,3":                        {on(each(0, 2, 0, 3)...), 20},
		"0; [0-1],[]":                       {on(cpulist.Range(0, 1), nil), 20},
		"0; 9,1..6,2":                       {on(each(9, 1, 2, 3, 4, 5, 6, 2)...), 8},
		"0; 1,2,3,9..14":                    {on(each(1, 2, 3, 9, 10, 11, 12, 13, 14)...), 12},
		"0; 1,2,3":                          {on(each(1, 2, 3)...), 5},
		"0":                                 {on(), 20},
		"0; 5 queues on 3 CPUs from 1 to 9": {on(each(1, 9, 4, 1, 9)...), 8},
	} {
		if got := placement(tc.o, nil, tc.limit); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestFileIsOfOneWidth: what --out keeps does not depend on the terminal.
func TestFileIsOfOneWidth(t *testing.T) {
	var a, b bytes.Buffer
	t.Setenv("COLUMNS", "80")
	if err := File(&a, huge()); err != nil {
		t.Fatal(err)
	}
	t.Setenv("COLUMNS", "200")
	if err := File(&b, huge()); err != nil {
		t.Fatal(err)
	}
	longest := layout.Width(a.String())
	if a.String() != b.String() || longest > FileColumns || longest <= layout.Default {
		t.Errorf("the longest line is %d wide, the two are equal: %t", longest, a.String() == b.String())
	}
}
