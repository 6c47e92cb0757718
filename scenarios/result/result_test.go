package result

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"irqlab/guestagent/cpulist"
	"irqlab/scenarios/shape"
)

// placed makes an HWC vector on CPU 0 and queue vectors on the given CPUs; -1 stands for a vector routed nowhere.
func placed(queues ...int) []Vector {
	vs := []Vector{{Index: 0, Role: RoleHWC, Effective: cpulist.List{0}}}
	for i, c := range queues {
		v := Vector{Index: i + 1, Role: RoleQueue}
		if c >= 0 {
			v.Effective = cpulist.List{c}
		}
		vs = append(vs, v)
	}
	return vs
}

func TestClustered(t *testing.T) {
	for _, tc := range []struct {
		what      string
		online    string
		vectors   []Vector
		clustered string
		idle      string
	}{
		{"published numa-aware row", "0-3", placed(0, 2, 0, 3), "0", "1"},
		{"published linear row", "0-3", placed(0, 1, 2, 3), "", ""},
		{"published unset row", "0-3", placed(2, 3, 2, 3), "2-3", "0-1"},
		{"HWC is no queue", "0-1", placed(1), "", "0"},
		{"two on a CPU, but none idle", "0-1", placed(0, 1, 0), "", ""},
		{"idle, but none doubled", "0-3", placed(0, 1), "", "2-3"},
		{"offline CPUs are not idle", "0,2", placed(0, 0), "0", "2"},
		{"one CPU", "0", placed(0, 0, 0), "", ""},
		{"no queues", "0-3", placed(), "", "0-3"},
		{"a vector routed nowhere", "0-1", placed(-1, 0), "", "1"},
		{"a vector on several CPUs counts on each", "0-3", []Vector{{Role: RoleQueue, Effective: cpulist.Range(0, 1)}, {Role: RoleQueue, Effective: cpulist.Range(1, 2)}}, "1", "3"},
	} {
		online, err := cpulist.Parse(tc.online)
		if err != nil {
			t.Fatal(err)
		}
		o := Observe("settled", online, tc.vectors)
		if got := ClusteredCPUs(online, tc.vectors).String(); got != tc.clustered {
			t.Errorf("%s: clustered CPUs %q, want %q", tc.what, got, tc.clustered)
		}
		if o.Clustered != (tc.clustered != "") {
			t.Errorf("%s: clustered = %t", tc.what, o.Clustered)
		}
		if got := o.IdleCPUs.String(); got != tc.idle {
			t.Errorf("%s: idle CPUs %q, want %q", tc.what, got, tc.idle)
		}
	}
}

// TestJSON holds the output against the contract's own example.
func TestJSON(t *testing.T) {
	node := 0
	r := Report{
		Schema: Schema,
		Host:   Host{QEMU: "11.1.3", Accel: "tcg", CPUs: 2},
		Cases: []Case{{
			Scenario: "low-vcpu", Name: "linear", Outcome: Pass,
			Kernel: "7.3.4+deb13-cloud-amd64", Driver: "vfio", Strategy: "linear", Branch: "linear", Irqchip: "msi",
			Shape: shape.Default(), DeviceNode: &node, Vectors: 5, Pressure: []string{"nvme:queues=4"}, Online: cpulist.Range(0, 3),
			Start: "warm", Seconds: Seconds{0.41, 0.52, 0.93},
			Observations: []Observation{Observe("settled", cpulist.Range(0, 3), []Vector{
				{Index: 0, Role: RoleHWC, IRQ: 26, Asked: cpulist.List{1}, Affinity: cpulist.Range(0, 3), Effective: cpulist.List{0}, Handled: cpulist.List{0}, Dropped: true, Refused: "no space", Counts: map[int]uint64{0: 2}},
				{Index: 1, Role: RoleQueue, IRQ: 27, Affinity: cpulist.List{0}, Effective: cpulist.List{0}, Counts: map[int]uint64{0: 2, 1: 1}},
			})},
			Artifacts: Artifacts{Console: "low-vcpu/linear/console.log"},
		}, {}},
	}
	want := `{"schema":2,"host":{"qemu":"11.1.3","accel":"tcg","cpus":2},"cases":[` +
		`{"scenario":"low-vcpu","case":"linear","outcome":"pass","reasons":[],"kernel":"7.3.4+deb13-cloud-amd64","driver":"vfio","strategy":"linear",` +
		`"branch":"linear","irqchip":"msi","shape":{"sockets":1,"cores":2,"threads":2,"nodes":1,"cpus":4,"memory_mib":512},"device_node":0,"vectors":5,` +
		`"pressure":["nvme:queues=4"],"online":"0-3","start":"warm","seconds":{"start":0.41,"run":0.52,"total":0.93},"observations":[` +
		`{"label":"settled","online":"0-3","vectors":[` +
		`{"index":0,"role":"hwc","irq":26,"asked":"1","affinity":"0-3","hint":"","effective":"0","handled":"0","dropped":true,"refused":"no space","pending":false,"counts":{"0":2}},` +
		`{"index":1,"role":"queue","irq":27,"asked":"","affinity":"0","hint":"","effective":"0","handled":"","dropped":false,"pending":false,"counts":{"0":2,"1":1}}],` +
		`"clustered":false,"idle_cpus":"1-3"}],"kernel_log":{"warnings":[]},"artifacts":{"console":"low-vcpu/linear/console.log"}},` +
		`{"scenario":"","case":"","outcome":"","reasons":[],"kernel":"","driver":"","strategy":"","irqchip":"",` +
		`"shape":{"sockets":0,"cores":0,"threads":0,"nodes":0,"cpus":0,"memory_mib":0},"device_node":null,"vectors":0,"pressure":[],"online":"",` +
		`"start":"","seconds":{"start":0,"run":0,"total":0},"observations":[],"kernel_log":{"warnings":[]},"artifacts":{}}]}`
	got, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	r.Cases = r.Cases[:1]
	got, _ = json.Marshal(r)
	var back Report
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatal(err)
	}
	r.Cases[0].Reasons, r.Cases[0].KernelLog.Warnings = []string{}, []string{}
	if d := cmp.Diff(r, back); d != "" {
		t.Errorf("read back, -want +got:\n%s", d)
	}
	if b, _ := json.Marshal(Report{}); string(b) != `{"schema":0,"host":{"qemu":"","accel":"","cpus":0},"cases":[]}` {
		t.Errorf("empty report: %s", b)
	}
}

func TestFind(t *testing.T) {
	c := Case{Observations: []Observation{Observe("settled", nil, placed(1)), Observe("after", nil, placed(2)), Observe("settled", nil, placed(3))}}
	o := c.Find("settled")
	if o == nil {
		t.Fatal("not found")
	}
	hwc, queues := o.Placement()
	if hwc.String() != "0" || len(queues) != 1 || queues[0].String() != "3" {
		t.Errorf("placement %v; %v: not that of the last one with the label", hwc, queues)
	}
	if c.Find("before") != nil {
		t.Error("found a label that is not there")
	}
}

func TestStormCounts(t *testing.T) {
	for name, tt := range map[string]struct {
		v           StormVector
		lost, ahead uint64
	}{
		"even":                       {StormVector{Fired: 7, Handled: 7}, 0, 0},
		"nothing":                    {StormVector{}, 0, 0},
		"one lost":                   {StormVector{Fired: 7, Handled: 6}, 1, 0},
		"one too many":               {StormVector{Fired: 7, Handled: 8}, 0, 1},
		"two may have merged":        {StormVector{Fired: 7, Handled: 5, Own: 2}, 0, 0},
		"more are missing than that": {StormVector{Fired: 7, Handled: 4, Own: 2}, 1, 0},
		"too many, own or not":       {StormVector{Fired: 7, Handled: 10, Own: 2}, 0, 3},
	} {
		if lost, ahead := tt.v.Lost(), Ahead(tt.v.Fired, tt.v.Handled); lost != tt.lost || ahead != tt.ahead {
			t.Errorf("%s: %d lost, %d ahead, want %d, %d", name, lost, ahead, tt.lost, tt.ahead)
		}
	}
}
