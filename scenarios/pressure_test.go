package scenarios

import (
	"fmt"
	"strings"
	"testing"
)

func TestParsePressure(t *testing.T) {
	for _, tc := range []struct{ in, want, err string }{
		{in: "nvme:queues=4", want: "nvme:queues=4"},
		{in: " nvme: queues=4 , node=1 ", want: "nvme:queues=4,node=1"},
		{in: "nvme:queues=4,node=none", want: "nvme:queues=4"},
		{in: "virtio-blk:queues=2,node=0", want: "virtio-blk:queues=2,node=0"},
		{in: "vectors:before=hwc,cpu0-3=8", want: "vectors:before=hwc,cpu0-3=8"},
		{in: "vectors:cpu2=8,before=queues,cpu0=12,cpu1=12,cpu3=0", want: "vectors:before=queues,cpu0-1=12,cpu2=8,cpu3=0"},
		{in: "vectors:before=queues,cpu5=1,cpu3=1", want: "vectors:before=queues,cpu3=1,cpu5=1"},
		{in: "", err: "no kind is given; allowed: nvme, virtio-blk, vectors"},
		{in: "nvme", err: `"" is not KEY=VALUE; as in nvme:queues=4,node=0`},
		{in: "nvme:node=1", err: "queues is missing; as in nvme:queues=4"},
		{in: "nvme:queues=0", err: "queues=0 is out of range; allowed: 1 to 64"},
		{in: "nvme:queues=65", err: "allowed: 1 to 64"},
		{in: "nvme:queus=4", err: `unknown key "queus"; allowed: queues, node; did you mean "queues"?`},
		{in: "nvme:queues=4,queues=4", err: "queues is given twice"},
		{in: "nvme:queues=4,node=x", err: `"x" is no node`},
		{in: "virtio-blik:queues=1", err: `did you mean "virtio-blk"?`},
		{in: "vectors:cpu0=1", err: "before is missing; allowed: before=hwc or before=queues"},
		{in: "vectors:before=now,cpu0=1", err: `before: unknown moment "now"; allowed: hwc, queues`},
		{in: "vectors:before=hwc", err: "no CPU has a level"},
		{in: "vectors:before=hwc,cpu=1", err: `key "cpu" names no CPU`},
		{in: "vectors:before=hwc,cpu3-1=1", err: "names no CPU"},
		{in: "vectors:before=hwc,cpu0=191", err: "allowed: 0 to 190"},
		{in: "vectors:before=hwc,cpu0=-1", err: "out of range"},
		{in: "vectors:before=hwc,cpu0-2=1,cpu2=3", err: "CPU 2 is given twice"},
		{in: "vectors:befor=hwc,cpu0=1", err: `unknown key "befor"; allowed: before, cpuN, cpuN-M; did you mean "before"?`},
	} {
		p, err := ParsePressure(tc.in)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("ParsePressure(%q): error %v, want one with %q", tc.in, err, tc.err)
			}
			continue
		}
		if err != nil || p.String() != tc.want {
			t.Errorf("ParsePressure(%q) = %s, %v; want %s", tc.in, p, err, tc.want)
		}
	}
}

func TestProfile(t *testing.T) {
	p, err := ParseProfile([]string{"nvme:queues=4", "vectors:before=hwc,cpu0=1", "vectors:before=queues,cpu0=2"})
	if err != nil {
		t.Fatal(err)
	}
	if n := p.Neighbours(); len(n) != 1 || n[0].Kind != PressureNVMe || n[0].Queues != 4 || n[0].Node != NoNode {
		t.Errorf("neighbours %v", n)
	}
	if p.Levels(BeforeHWC)[0] != 1 || p.Levels(BeforeQueues)[0] != 2 || p[:1].Levels(BeforeHWC) != nil {
		t.Error("levels are wrong")
	}
	if p, err := ParseProfile([]string{"none"}); err != nil || p == nil || len(p) != 0 {
		t.Errorf("none: %v, %v; want the empty profile, which is not nil", p, err)
	}
	for _, bad := range [][]string{{"none", "nvme:queues=1"}, {"vectors:before=hwc,cpu0=1", "vectors:before=hwc,cpu1=1"}} {
		if _, err := ParseProfile(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func FuzzParsePressure(f *testing.F) {
	for _, s := range []string{"nvme:queues=4", "virtio-blk:queues=2,node=1", "vectors:before=hwc,cpu0-3=8,cpu9=1", "vectors:before=queues,cpu0-8191=190", ":", "vectors:cpu,=="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		p, err := ParsePressure(in)
		if err != nil {
			return
		}
		back, err := ParsePressure(p.String())
		if err != nil || back.String() != p.String() {
			t.Fatalf("%q -> %s -> %s, %v", in, p, back, err)
		}
	})
}

func FuzzParseFlags(f *testing.F) {
	f.Add("none", "online+1")
	f.Add("0", "5")
	f.Fuzz(func(t *testing.T, node, vectors string) {
		if n, err := ParseDeviceNode(node); err == nil && formatNode(n) != node && !strings.HasPrefix(node, "0") {
			t.Fatalf("node %q -> %d", node, n)
		}
		var v VectorCount
		if v.UnmarshalText([]byte(vectors)) != nil {
			return
		}
		text, _ := v.MarshalText()
		var back VectorCount
		if err := back.UnmarshalText(text); err != nil || back != v {
			t.Fatalf("vectors %q -> %s -> %v, %v", vectors, text, back, err)
		}
	})
}

func TestParseProfiles(t *testing.T) {
	for _, tc := range []struct{ in, want, problem string }{
		{"", "", ""},
		{"none", "[]", ""},
		{"nvme:queues=4 virtio-blk:queues=1", "[nvme:queues=4 virtio-blk:queues=1]", ""},
		{"quiet=none busy=nvme:queues=4 busy=vectors:before=hwc,cpu0=2", "quiet[] busy[nvme:queues=4 vectors:before=hwc,cpu0=2]", ""},
		{"b=none a=none", "b[] a[]", ""},
		{"none busy=nvme:queues=4", "", `"none" has no name`},
		{"busy=nvme:queues=4 nvme:queues=2", "", "has no name"},
		{"none none", "", "unknown kind"},
		{"B!=none", "", "not a name"},
		{"busy=nvm:queues=4", "", `did you mean "nvme"`},
		{"nvme=4", "", "unknown kind"},
		{"busy=", "", "no kind is given"},
		{"=none", "", "unknown kind"},
	} {
		profiles, err := ParseProfiles(strings.Fields(tc.in))
		var got []string
		for _, p := range profiles {
			got = append(got, fmt.Sprint(p.Name, p.Entries.Strings()))
		}
		if s := strings.Join(got, " "); s != tc.want || tc.problem == "" && err != nil || tc.problem != "" && (err == nil || !strings.Contains(err.Error(), tc.problem)) {
			t.Errorf("%q: %s, %v; want %s, %s", tc.in, s, err, tc.want, tc.problem)
		}
	}
}
