package scenarios

import (
	"slices"
	"strings"
	"testing"

	"irqlab/guestagent/cpulist"
	"irqlab/scenarios/shape"
)

func mustGet(t testing.TB, name string) *Scenario {
	t.Helper()
	s, err := Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPlan(t *testing.T) {
	none := NoNode
	offline, allOnline := list("3"), cpulist.List(nil)
	parse := func(text string) shape.Shape {
		s, err := shape.ParseShape(text)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	const profile = "[vectors:before=hwc,cpu0-3=8 vectors:before=queues,cpu0=12,cpu1=16,cpu2=8,cpu3=10]"
	const unsetProfile = "[vectors:before=hwc,cpu0-3=8 vectors:before=queues,cpu0-1=12,cpu2-3=9]"
	for _, tc := range []struct {
		what     string
		scenario string
		o        Overrides
		want     string
		notes    string
	}{
		{"as it is", "low-vcpu", Overrides{},
			"numa-aware: numa-aware vfio 1x2x2 5 node 0 msi " + profile + " off [] debian:7.3\n" +
				"linear: linear vfio 1x2x2 5 node 0 msi " + profile + " off [] debian:7.3\n" +
				"unset: unset vfio 1x2x2 5 node 0 msi " + unsetProfile + " off [] debian:7.3", ""},
		{"a strategy that a case has selects it", "low-vcpu", Overrides{Strategies: []string{"unset", "linear"}},
			"unset: unset vfio 1x2x2 5 node 0 msi " + unsetProfile + " off [] debian:7.3\n" +
				"linear: linear vfio 1x2x2 5 node 0 msi " + profile + " off [] debian:7.3", ""},
		{"a strategy that none has", "low-vcpu", Overrides{Strategies: []string{"siblings"}},
			"numa-aware/siblings: siblings vfio 1x2x2 5 node 0 msi " + profile + " off [] debian:7.3\n" +
				"unset/siblings: siblings vfio 1x2x2 5 node 0 msi " + unsetProfile + " off [] debian:7.3",
			"expectations on masks, placement dropped because --strategy overrides"},
		{"masks of one's own", "low-vcpu", Overrides{Strategies: []string{"masks:0/1/2/0-3"}},
			"numa-aware/masks:0/1/2/0-3: masks:0/1/2/0-3 vfio 1x2x2 5 node 0 msi " + profile + " off [] debian:7.3\n" +
				"unset/masks:0/1/2/0-3: masks:0/1/2/0-3 vfio 1x2x2 5 node 0 msi " + unsetProfile + " off [] debian:7.3",
			"expectations on masks, placement dropped because --strategy overrides"},
		{"pressure away", "low-vcpu", Overrides{Pressures: []NamedProfile{{}}, Strategies: []string{"linear"}},
			"linear: linear vfio 1x2x2 5 node 0 msi [] off [] debian:7.3", "expectations on placement dropped because --pressure overrides"},
		{"vectors", "low-vcpu", Overrides{Vectors: []VectorCount{{N: 6}}, Strategies: []string{"linear"}},
			"linear: linear vfio 1x2x2 6 node 0 msi " + profile + " off [] debian:7.3", "expectations on masks, placement dropped because --vectors overrides"},
		{"the same vectors", "low-vcpu", Overrides{Vectors: []VectorCount{{N: 5}}, Strategies: []string{"linear"}},
			"linear: linear vfio 1x2x2 5 node 0 msi " + profile + " off [] debian:7.3", ""},
		{"vectors select a case", "vector-boundary", Overrides{Vectors: []VectorCount{{N: 4}}}, "equal: mana-7.2 vfio 1x2x2 4 node 0 msi [] off [] debian:7.3\n" +
			"driver-equal/debian:6.18:  mana 1x2x2 4 node 0 msi [] off [] debian:6.18\ndriver-equal/debian:7.3:  mana 1x2x2 4 node 0 msi [] off [] debian:7.3", ""},
		{"kernels multiply and keep", "low-vcpu", Overrides{Kernels: []string{"debian:6.18", "/tmp/build/"}, Strategies: []string{"linear"}},
			"linear/debian:6.18: linear vfio 1x2x2 5 node 0 msi " + profile + " off [] debian:6.18\n" +
				"linear/build: linear vfio 1x2x2 5 node 0 msi " + profile + " off [] /tmp/build/", ""},
		{"a kernel selects the case that tells what it does", "low-vcpu-driver", Overrides{Kernels: []string{"debian:6.18.15"}},
			"before-fix:  mana 1x2x2 5 node 0 msi [nvme:queues=4] off [] debian:6.18.15", ""},
		{"another kernel is held to the last", "low-vcpu-driver", Overrides{Kernels: []string{"/src/linux"}},
			"fixed:  mana 1x2x2 5 node 0 msi [nvme:queues=4] off [] /src/linux", ""},
		{"a version that only looks like one", "low-vcpu-driver", Overrides{Kernels: []string{"debian:6.1"}},
			"fixed:  mana 1x2x2 5 node 0 msi [nvme:queues=4] off [] debian:6.1", ""},
		{"each kernel its own", "low-vcpu-driver", Overrides{Kernels: []string{"debian:7.3", "debian:6.18"}},
			"fixed/debian:7.3:  mana 1x2x2 5 node 0 msi [nvme:queues=4] off [] debian:7.3\n" +
				"before-fix/debian:6.18:  mana 1x2x2 5 node 0 msi [nvme:queues=4] off [] debian:6.18", ""},
		{"a strategy leaves the driver's cases out", "vector-boundary", Overrides{Strategies: []string{"mana-7.2"}, Vectors: []VectorCount{{N: 4}}},
			"equal: mana-7.2 vfio 1x2x2 4 node 0 msi [] off [] debian:7.3", ""},
		{"memory moves no vector", "low-vcpu", Overrides{Shapes: []shape.Shape{parse("memory=1G")}, Strategies: []string{"linear"}},
			"linear: linear vfio 1x2x2 5 node 0 msi " + profile + " off [] debian:7.3", ""},
		{"a smaller shape takes pressure with it", "low-vcpu", Overrides{Shapes: []shape.Shape{parse("cores=1")}, Strategies: []string{"linear"}},
			"linear: linear vfio 1x1x2 5 node 0 msi [vectors:before=hwc,cpu0-1=8 vectors:before=queues,cpu0=12,cpu1=16] off [] debian:7.3",
			"expectations on masks, placement dropped because --shape overrides\npressure on CPUs 2-3 dropped: not online"},
		{"relative vectors follow the shape", "offline-before", Overrides{Shapes: []shape.Shape{parse("cores=8")}, Strategies: []string{"unset"}},
			"unset: unset vfio 1x8x2 14 node 0 msi [] off [5-7] debian:7.3", "expectations on masks, counts dropped because --shape overrides"},
		{"offline", "low-vcpu", Overrides{Offlines: []cpulist.List{offline}, Strategies: []string{"linear"}},
			"linear: linear vfio 1x2x2 5 node 0 msi [vectors:before=hwc,cpu0-2=8 vectors:before=queues,cpu0=12,cpu1=16,cpu2=8] off [3] debian:7.3",
			"expectations on masks, placement dropped because --offline overrides\npressure on CPU 3 dropped: not online"},
		{"nothing offline", "offline-before", Overrides{Offlines: []cpulist.List{allOnline}, Strategies: []string{"linear"}},
			"linear: linear vfio 1x4x2 9 node 0 msi [] off [] debian:7.3", "expectations on masks, placement, counts dropped because --offline overrides"},
		{"device node selects", "device-node", Overrides{DeviceNodes: []int{none}}, "none: numa-aware vfio 2x2x2 6 node -1 msi [] off [] debian:7.3\n" +
			"driver-none:  mana 2x2x2 6 node -1 msi [] off [] debian:7.3", ""},
		{"device node none, where no case has it", "low-vcpu", Overrides{DeviceNodes: []int{none}, Strategies: []string{"linear"}},
			"linear: linear vfio 1x2x2 5 node -1 msi " + profile + " off [] debian:7.3", "expectations on masks, placement dropped because --device-node overrides"},
		{"irqchip", "low-vcpu", Overrides{Irqchips: []string{IrqchipRemapped}, Strategies: []string{"linear"}},
			"linear: linear vfio 1x2x2 5 node 0 remapped " + profile + " off [] debian:7.3", "expectations on placement dropped because --irqchip overrides"},
		{"the kernel's driver", "low-vcpu", Overrides{Drivers: []string{DriverMana}},
			"mana:  mana 1x2x2 5 node 0 msi [vectors:before=hwc,cpu0-3=8 vectors:before=queues,cpu0=12,cpu1=16,cpu2=8,cpu3=10] off [] debian:7.3\n" +
				"mana-2:  mana 1x2x2 5 node 0 msi [vectors:before=hwc,cpu0-3=8 vectors:before=queues,cpu0-1=12,cpu2-3=9] off [] debian:7.3",
			"expectations on masks, placement dropped because --driver overrides"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			cases, notes, err := mustGet(t, tc.scenario).Plan(tc.o)
			if err != nil {
				t.Fatal(err)
			}
			if got := listing(cases); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
			if got := strings.Join(notes, "\n"); got != tc.notes {
				t.Errorf("notes\n%s\nwant\n%s", got, tc.notes)
			}
		})
	}
}

// names lists the cases' names.
func names(cases []Case) string {
	var n []string
	for _, c := range cases {
		n = append(n, c.Name)
	}
	return strings.Join(n, " ")
}

// Alternatives of several flags multiply, and each case of what comes out still expects what the flags leave true.
func TestMatrix(t *testing.T) {
	small, large := shape.Default(), shape.Default()
	large.Sockets, large.Nodes = 2, 2
	quietAndBusy := []NamedProfile{{"quiet", Profile{}}, {"busy", Profile{{Kind: PressureNVMe, Queues: 4, Node: NoNode}}}}
	for _, tc := range []struct {
		what, scenario string
		o              Overrides
		want, notes    string
	}{
		{"kernels by shapes", "low-vcpu", Overrides{Strategies: []string{"linear"}, Shapes: []shape.Shape{small, large}, Kernels: []string{"debian:6.18", "debian:7.3"}},
			"linear/1x2x2/debian:6.18 linear/2x2x2-2nodes/debian:6.18 linear/1x2x2/debian:7.3 linear/2x2x2-2nodes/debian:7.3",
			"linear/2x2x2-2nodes/debian:6.18, linear/2x2x2-2nodes/debian:7.3: 5 vectors on 8 CPUs: what depends on more vectors than CPUs goes the other way; --vectors online+1 gives each CPU a queue\n" +
				"linear/2x2x2-2nodes/debian:6.18, linear/2x2x2-2nodes/debian:7.3: expectations on masks, placement dropped because --shape overrides"},
		{"drivers, of which one has strategies", "low-vcpu", Overrides{Drivers: Drivers(), Strategies: []string{"linear", "node"}, Pressures: []NamedProfile{{}}},
			"linear/vfio numa-aware/vfio/node mana", ""},
		{"pressures", "low-vcpu", Overrides{Strategies: []string{"linear"}, Pressures: quietAndBusy}, "linear/quiet linear/busy", "expectations on placement dropped because --pressure overrides"},
		{"pressures that the scenario has", "alternatives", Overrides{Strategies: []string{"siblings"}, Pressures: quietAndBusy}, "siblings/quiet siblings/busy", ""},
		{"vectors, relative and not, irqchips", "vector-boundary", Overrides{Drivers: []string{DriverVFIO}, Vectors: []VectorCount{{N: 4}, {Online: true, N: -1}}, Irqchips: Irqchips()},
			"equal/4-vectors/msi one-below/online-1-vectors/msi equal/4-vectors/remapped one-below/online-1-vectors/remapped", ""},
		{"a node that one shape lacks", "device-node", Overrides{Strategies: []string{"numa-aware"}, Shapes: []shape.Shape{small, large}, DeviceNodes: []int{1}},
			"", ""},
		{"offline lists", "low-vcpu", Overrides{Strategies: []string{"linear"}, Offlines: []cpulist.List{nil, list("3")}}, "linear/all-online linear/offline-3", ""},
	} {
		cases, notes, err := mustGet(t, tc.scenario).Plan(tc.o)
		if err != nil {
			t.Errorf("%s: %v", tc.what, err)
			continue
		}
		if got := names(cases); tc.want != "" && got != tc.want {
			t.Errorf("%s: got %s, want %s", tc.what, got, tc.want)
		}
		if got := strings.Join(notes, "\n"); tc.notes != "" && got != tc.notes {
			t.Errorf("%s: notes %s, want %s", tc.what, got, tc.notes)
		}
		for _, c := range cases {
			if p := slices.Concat(c.validate(), c.Expect.validate(&c)); len(p) > 0 {
				t.Errorf("%s: %s is impossible: %s", tc.what, c.Name, p[0].text)
			}
		}
	}
	cases, notes, err := mustGet(t, "device-node").Plan(Overrides{Strategies: []string{"numa-aware"}, Shapes: []shape.Shape{small, large}, DeviceNodes: []int{1}})
	if err != nil || len(cases) == 0 || len(notes) == 0 || !strings.Contains(notes[len(notes)-1], "left out, since it is impossible: device-node: node 1 is not in the shape") {
		t.Errorf("cases %s, notes %q, error %v; want the one-node shape left out", names(cases), notes, err)
	}
	for _, c := range cases {
		if c.Shape != large || c.DeviceNode != 1 {
			t.Errorf("%s has shape %v and node %d", c.Name, c.Shape, c.DeviceNode)
		}
	}
	// Every strategy on three kernels and four shapes: the example of docs/scenarios.md.
	shapes := []shape.Shape{small, large, large, large}
	shapes[2].Cores, shapes[3].Threads = 4, 1
	cases, _, err = mustGet(t, "alternatives").Plan(Overrides{Strategies: []string{AllStrategies}, Pressures: []NamedProfile{{}}, Shapes: shapes, Kernels: []string{"debian:6.18", "debian:7.2", "debian:7.3"}})
	if err != nil || len(cases) != 120 {
		t.Errorf("%d cases, want 120: %v", len(cases), err)
	}
	for n := range 4 { // nothing that the scenario says itself is taken from the shape it says it of
		if c := cases[n]; c.Shape == small && c.Expect.Settled.QueueMasks == nil {
			t.Errorf("%s expects nothing", c.Name)
		}
	}
	many := make([]VectorCount, 1+MaxCases/16)
	for i := range many {
		many[i].N = 1 + i
	}
	if _, _, err := mustGet(t, "alternatives").Plan(Overrides{Vectors: many}); err == nil || !strings.Contains(err.Error(), "more than 4096 cases") {
		t.Errorf("too many: %v", err)
	}
}

// TestPlanKeepsScenario: a plan must not eat into the scenario it comes from.
func TestPlanKeepsScenario(t *testing.T) {
	s := mustGet(t, "low-vcpu")
	before := listing(s.cases) + describe(s.cases[0].Expect)
	off := list("1-3")
	if _, _, err := s.Plan(Overrides{Vectors: []VectorCount{{N: 9}}, Offlines: []cpulist.List{off}, Strategies: []string{"node"}, Irqchips: []string{IrqchipRemapped}}); err != nil {
		t.Fatal(err)
	}
	if after := listing(s.cases) + describe(s.cases[0].Expect); after != before {
		t.Errorf("the scenario became\n%s\nfrom\n%s", after, before)
	}
	cases, notes, err := s.Plan(Overrides{})
	if err != nil || len(cases) != 3 || len(notes) != 0 || len(cases[0].Notes) != 0 {
		t.Errorf("a second plan has %d cases, notes %q, error %v", len(cases), notes, err)
	}
}

func TestPlanErrors(t *testing.T) {
	node1 := 1
	cpu0, far := list("0"), list("9")
	tiny := shape.Shape{Sockets: 1, Cores: 1, Threads: 1, Nodes: 1, MemoryMiB: 512}
	for _, tc := range []struct {
		scenario string
		o        Overrides
		want     string
	}{
		{"low-vcpu", Overrides{Strategies: []string{"linaer"}}, `scenario low-vcpu: --strategy: unknown strategy "linaer"; allowed: numa-aware, linear, mana-7.2, unset, ` +
			`all-online, local-spread, siblings, node, spread, single, masks:CPUS/CPUS/…, script:FILE ARGS; did you mean "linear"?`},
		{"low-vcpu", Overrides{Drivers: []string{"vfoi"}}, `--driver: unknown driver "vfoi"; allowed: vfio, mana; did you mean "vfio"?`},
		{"low-vcpu", Overrides{Irqchips: []string{"x2"}}, `--irqchip: unknown irqchip "x2"; allowed: msi, remapped`},
		{"low-vcpu", Overrides{Vectors: []VectorCount{{N: 2049}}}, `vectors: 2049 vectors are impossible; allowed: 1 to 2048`},
		{"low-vcpu", Overrides{DeviceNodes: []int{node1}}, `device-node: node 1 is not in the shape; allowed: none, 0`},
		{"low-vcpu", Overrides{Offlines: []cpulist.List{cpu0}}, `offline: CPU 0 cannot be taken offline`},
		{"low-vcpu", Overrides{Offlines: []cpulist.List{far}}, `offline: CPU 9 is not in the shape, which has CPUs 0-3`},
		{"low-vcpu", Overrides{Kernels: []string{""}}, `--kernel: no kernel is named`},
		{"low-vcpu", Overrides{Shapes: []shape.Shape{{}}}, `--shape: sockets=0 is impossible`},
		{"low-vcpu", Overrides{Drivers: []string{DriverMana}, Strategies: []string{"linear"}}, `--strategy: driver mana spreads its vectors itself`},
		{"low-vcpu", Overrides{Pressures: []NamedProfile{{Entries: Profile{{Kind: PressureNVMe, Queues: 1, Node: 3}}}}}, `pressure: "nvme:queues=1,node=3": node 3 is not in the shape`},
		{"low-vcpu", Overrides{Strategies: []string{"masks:0/x"}}, `--strategy: mask 1: CPU list "x": "x" is not a CPU number`},
		{"low-vcpu", Overrides{Strategies: []string{"masks:0/1"}}, `strategy: 2 masks are given, but 5 vectors make 4 queue vectors beside the HWC`},
		{"offline-before", Overrides{Shapes: []shape.Shape{tiny}}, `offline: CPUs 5-7 are not in the shape, which has CPU 0; with --shape, give --offline, too`},
	} {
		_, _, err := mustGet(t, tc.scenario).Plan(tc.o)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: error %v, want one with %q", tc.o, err, tc.want)
		}
	}
}

// TestFaults: every fault says what each family of kernels makes of it, a case at a time, in a way that a wrong kernel fails.
func TestFaults(t *testing.T) {
	names := Faults()
	if len(names) < 20 {
		t.Errorf("%d faults: %v", len(names), names)
	}
	for _, name := range names {
		s := mustGet(t, name)
		if "faults/"+s.Name != name || s.Title == "" || s.Question == "" || s.Text == "" || s.Source == "" {
			t.Errorf("%s: its file lacks a name of its own, title, question, text or source", name)
		}
		cases, _, err := s.Plan(Overrides{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cases {
			told := false
			for s := range allSteps(c.Steps) {
				told = told || s.Refused != "" || s.Expect != nil && (s.Expect.Log != nil || s.Expect.Counted != nil)
			}
			if !told || !c.bound {
				t.Errorf("%s, %s: expects nothing that a wrong kernel fails, or is not kernel-bound", name, c.Name)
			}
		}
	}
	if _, err := Get("faults/hwc-staus"); err == nil || !strings.Contains(err.Error(), `did you mean "faults/hwc-status"?`) {
		t.Errorf("unknown fault: %v", err)
	}
}

// TestKernelBound: of cases that are for their kernels only, --kernel takes those that have it, else those that have the newest of all.
func TestKernelBound(t *testing.T) {
	s, err := Load("bound.yaml", []byte("name: bound\nkernel-bound: true\ndriver: mana\ncases:\n  new: {kernel: [debian:7.2, debian:7.3], steps: [probe, up]}\n"+
		"  old: {kernel: [debian:6.1, debian:6.12], steps: [probe]}\n  all: {kernel: [debian:6.1, debian:7.3], steps: [probe, up, down]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for kernel, want := range map[string]string{
		"debian:7.3": "new/debian:7.3 all/debian:7.3", "debian:6.12.117": "old/debian:6.12.117", "debian:6.1": "old/debian:6.1 all/debian:6.1", "/src/linux": "new/linux all/linux",
		"debian:8.1": "new/debian:8.1 all/debian:8.1",
	} {
		cases, _, err := s.Plan(Overrides{Kernels: []string{kernel}})
		var got []string
		for _, c := range cases {
			got = append(got, c.Name)
			if c.Kernel != kernel {
				t.Errorf("%s: kernel %s, want %s", c.Name, c.Kernel, kernel)
			}
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v; want %q", kernel, got, err, want)
		}
	}
	// Several name each case's kernel once.
	cases, _, err := s.Plan(Overrides{Kernels: []string{"debian:6.1", "debian:7.3"}})
	var got []string
	for _, c := range cases {
		got = append(got, c.Name)
	}
	if want := "old/debian:6.1 all/debian:6.1 new/debian:7.3 all/debian:7.3"; err != nil || strings.Join(got, " ") != want {
		t.Errorf("two kernels: %q, %v; want %q", got, err, want)
	}
}

// What the command line expects is added to what a case expects, and it is held to that whatever else a flag has taken away.
func TestGivenExpectations(t *testing.T) {
	given := func(texts ...string) (out []*Expect) {
		for _, text := range texts {
			e, err := ParseExpectation(text)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, e)
		}
		return out
	}
	plan := func(name string, o Overrides, expect ...string) (Case, error) {
		t.Helper()
		cases, _, err := mustGet(t, name).Plan(o)
		if err != nil {
			t.Fatal(err)
		}
		last := cases[len(cases)-1:]
		err = AddExpectations(last, given(expect...))
		return last[0], err
	}
	large := Overrides{Shapes: []shape.Shape{{Sockets: 1, Cores: 4, Threads: 2, Nodes: 1, MemoryMiB: 512}}}
	linear := Overrides{Strategies: []string{"linear"}}
	if c, err := plan("low-vcpu", linear); err != nil || !c.Judges() || c.Expect.Settled.QueuesWithin != nil {
		t.Errorf("as shipped: %+v, %v", c.Expect.Settled, err)
	}
	c, err := plan("low-vcpu", linear, "queues-within=0-3", "log=any", "clustered=false")
	if w := c.Expect.Settled; err != nil || !c.Judges() || w.QueuesWithin.String() != "0-3" || *w.Clustered || len(w.Queues) != 4 || *c.Expect.Log != ruleAny {
		t.Errorf("with more: %+v, %v", c.Expect, err)
	}
	if c, _ := plan("low-vcpu", large); c.Judges() {
		t.Error("a case that a flag has taken expectations from is held to all of them")
	}
	if c, err := plan("low-vcpu", large, "clustered=false"); err != nil || !c.Judges() || c.Expect.Settled.Queues != nil {
		t.Errorf("a case is not held to what the command line expects of it alone: %v", err)
	}
	if _, err := plan("low-vcpu", Overrides{}, "queues-within=0-9"); err == nil || !strings.Contains(err.Error(), "settled.queues-within: CPUs 4-9 are not in the shape") {
		t.Errorf("CPUs that there are not: %v", err)
	}
	if _, err := plan("unplug-after", Overrides{}, "clustered=false"); err == nil || !strings.Contains(err.Error(), "no step observes settled") {
		t.Errorf("steps with labels of their own: %v", err)
	}
	for text, want := range map[string]string{
		"clustered": "is not KEY=VALUE", "=x": "is not KEY=VALUE", "clusterd=true": `did you mean "clustered"?`, "clustered=maybe": "allowed: true, false", "settled=1": "unknown expectation",
		"queues=0,1": "want a list", "queues=[0": "clustered", "hwc=0}, log: any, x: {a: 1": "hwc",
	} {
		if _, err := ParseExpectation(text); err == nil || !strings.Contains(err.Error(), want) && want != "clustered" && want != "hwc" {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for yaml, want := range map[string]bool{"": false, "expect: {}": false, "expect: {log: clean}": true, "expect: {settled: {pending: any}}": true,
		"steps: [probe, vectors, settle, observe: x]": false, "steps: [probe, vectors, {storm: {offline: 1, rounds: 1}}]": true} {
		s, err := Load("f.yaml", []byte("name: x\nstrategy: linear\n"+yaml+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.cases[0].Judges(); got != want {
			t.Errorf("%q: judges %v, want %v", yaml, got, want)
		}
	}
}

func TestShipped(t *testing.T) {
	want := []string{"low-vcpu", "alternatives", "changed-driver", "device-node", "full-cpu", "hibernate", "ht-core-spread", "irqbalance", "isolated-cpus", "low-vcpu-driver", "managed-irq-numa", "nosmt", "offline-before", "published-rows", "remove", "spread", "suspend", "threadirqs", "unplug-after", "unplug-during-probe", "unplug-during-reset", "unplug-storm",
		"vector-boundary"}
	if got := Shipped(); !slices.Equal(got, want) {
		t.Errorf("Shipped() = %v, want %v", got, want)
	}
	for _, name := range Shipped() {
		s := mustGet(t, name)
		if s.Name != name || s.Title == "" || s.Question == "" || s.Text == "" || s.Source == "" {
			t.Errorf("%s: its file lacks a name of its own, title, question, text or source", name)
		}
		cases, notes, err := s.Plan(Overrides{})
		if err != nil || len(notes) > 0 {
			t.Errorf("%s: %v, notes %v", name, err, notes)
		}
		for _, c := range cases {
			tells := c.Expect.Settled != nil && (c.Expect.Settled.QueueMasks != nil || c.Expect.Settled.Clustered != nil || c.Expect.Settled.Unused != nil)
			for s := range allSteps(c.Steps) {
				tells = tells || s.Refused != "" || s.Verb == VerbStorm || s.Expect != nil && (!s.Expect.empty() || s.Expect.Disks != nil)
			}
			if !tells {
				t.Errorf("%s, %s: expects nothing that a wrong kernel fails", name, c.Name)
			}
		}
	}
	_, err := Get("low-vpcu")
	if err == nil || !strings.Contains(err.Error(), `did you mean "low-vcpu"?`) {
		t.Errorf("unknown scenario: %v", err)
	}
	if _, err := Get("../go"); err == nil {
		t.Error("a path was taken for a shipped scenario")
	}
}

// A case that is wanted for its machine alone loses nothing that anybody would miss; a driver that nobody asked for takes things away without a word.
func TestPlanBare(t *testing.T) {
	sc, err := Get("low-vcpu")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		o     Overrides
		notes int
	}{
		{Overrides{Drivers: []string{DriverMana}}, 1},
		{Overrides{Drivers: []string{DriverMana}, Bare: true}, 0},
		{Overrides{Drivers: []string{DriverMana}, Bare: true, DriverImplied: true}, 0},
		{Overrides{Vectors: []VectorCount{{N: 7}}, Bare: true}, 0},
	} {
		cases, notes, err := sc.Plan(tc.o)
		if err != nil {
			t.Fatal(err)
		}
		if len(notes) != tc.notes {
			t.Errorf("%+v: %d notes: %q", tc.o, len(notes), notes)
		}
		if c := cases[0]; tc.o.Drivers != nil && (c.Driver != DriverMana || c.Strategy != "" || tc.o.DriverImplied != (len(c.Pressure) == 0)) {
			t.Errorf("%+v: driver %s, strategy %s, pressure %s", tc.o, c.Driver, c.Strategy, c.Pressure.Strings())
		}
	}
	faults, err := Get("unplug-during-reset")
	if err != nil {
		t.Fatal(err)
	}
	if cases, _, err := faults.Plan(Overrides{Bare: true}); err != nil || cases[0].Steps != nil || cases[0].Judges() {
		t.Errorf("a bare case has steps %v, %v", cases[0].Steps, err)
	}
}

// A hold that can never be reached is refused before a VM is booted for it.
func TestReachable(t *testing.T) {
	for line, want := range map[string]string{"hold vector:2": "", "hold vector:9": "vector 9 is not the function's", "hold smc:establish": "driver vfio speaks no MANA"} {
		step, err := ParseStep(line)
		if err != nil {
			t.Fatal(err)
		}
		c := Case{Driver: DriverVFIO, Vectors: 5, Shape: shape.Default()}
		if err := Reachable(step, &c); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}
