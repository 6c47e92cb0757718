package shape

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestParseShape(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want Shape
		err  string
	}{
		{in: "sockets=1,cores=2,threads=2,nodes=1,memory=512M", want: Default()},
		{in: "cores=4", want: Shape{1, 4, 2, 1, 512}},
		{in: " sockets = 2 , cores=32,nodes=2,memory=2G", want: Shape{2, 32, 2, 2, 2048}},
		{in: "cores=1,threads=1,memory=1GiB", want: Shape{1, 1, 1, 1, 1024}},
		{in: "cores=4,nodes=4", want: Shape{1, 4, 2, 4, 512}},             // more nodes than sockets
		{in: "cores=5,threads=1,nodes=2", want: Shape{1, 5, 1, 2, 512}},   // uneven
		{in: "cores=3,nodes=2,memory=513M", want: Shape{1, 3, 2, 2, 513}}, // uneven memory, too
		{in: "cores=127,memory=1G", want: Shape{1, 127, 2, 1, 1024}},
		{in: "sockets=3,cores=33", err: "3 sockets x 33 cores x 2 threads need APIC id 321; interrupts reach ids up to 254"},
		{in: "cpus=6", want: Shape{1, 3, 2, 1, 512}},
		{in: "cpus=3", want: Shape{1, 3, 1, 1, 512}},
		{in: "cpus=8,sockets=2,nodes=2", want: Shape{2, 2, 2, 2, 512}},
		{in: "cpus=6,sockets=2", want: Shape{2, 3, 1, 1, 512}},
		{in: "threads=1,cpus=6", want: Shape{1, 6, 1, 1, 512}},
		{in: "cores=6,cpus=6", want: Shape{1, 6, 1, 1, 512}},
		{in: "cores=2,threads=2,cpus=4", want: Default()},
		{in: "cpus=7,threads=2", err: "cpus=7 does not come out with whole cores; 1 sockets x 3 cores x 2 threads are 6 CPUs"},
		{in: "cpus=6,cores=4", err: "cpus=6 does not come out with whole cores; 1 sockets x 4 cores x 1 threads are 4 CPUs"},
		{in: "cpus=5,cores=2,threads=2", err: "cpus=5 does not come out"},
		{in: "cpus=2147483647", err: "cores=2147483647 is impossible"},
		{in: "cpus=0", err: `cpus: "0" is not`},
		{in: "", err: `"" is not KEY=VALUE`},
		{in: "cores", err: `"cores" is not KEY=VALUE; allowed: sockets, cores, threads, nodes, memory, cpus`},
		{in: "core=2", err: `unknown key "core"; allowed: sockets, cores, threads, nodes, memory, cpus; did you mean "cores"?`},
		{in: "cores=2,cores=2", err: "cores is given twice"},
		{in: "cores=0", err: `cores: "0" is not a number of 1 or more`},
		{in: "cores=-1", err: `cores: "-1" is not`},
		{in: "cores=two", err: `cores: "two" is not`},
		{in: "cores=2147483647,sockets=2147483647", err: "sockets=2147483647 is impossible"},
		{in: "cores=128", err: "1 sockets x 128 cores x 2 threads are 256 CPUs; allowed: 1 to 255"},
		{in: "sockets=256,cores=1,threads=1", err: "sockets=256 is impossible; allowed: 1 to 255"},
		{in: "sockets=255,cores=1,threads=1,nodes=64,memory=4G", want: Shape{255, 1, 1, 64, 4096}},
		{in: "sockets=65,cores=1,threads=1,nodes=65,memory=8G", err: "nodes=65 is impossible; allowed: 1 to 64"},
		{in: "nodes=3", err: "nodes=3 is impossible with 2 cores"},
		{in: "nodes=0", err: "nodes"},
		{in: "cores=100,nodes=65,memory=64G", err: "allowed: 1 to 64"},
		{in: "memory=512", err: `memory: "512" needs a unit, as in 512M or 2G`},
		{in: "memory=G", err: `memory: "G" is not a size`},
		{in: "memory=1M", err: "memory=1M is impossible; allowed: 128M to 256G"},
		{in: "memory=9999999G", err: "is not a size of at most 256G"},
		{in: "cores=8,nodes=8,memory=256M", err: "give memory=512M"},
	} {
		got, err := ParseShape(tc.in)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("ParseShape(%q): error %v, want one with %q", tc.in, err, tc.err)
			}
			continue
		}
		if err != nil || got != tc.want {
			t.Errorf("ParseShape(%q) = %v, %v; want %v", tc.in, got, err, tc.want)
		}
	}
}

func TestNodes(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want string
	}{
		{"nodes=1", "0-3"},
		{"nodes=2", "0-1 2-3"},
		{"cores=3,nodes=2", "0-1 2-5"}, // a core is never split
		{"cores=5,threads=1,nodes=3", "0 1-2 3-4"},
		{"sockets=2,nodes=4", "0-1 2-3 4-5 6-7"},
		{"sockets=2,cores=2,nodes=1", "0-7"},
	} {
		s, err := ParseShape(tc.in)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for n := range s.Nodes {
			got = append(got, s.NodeCPUs(n).String())
			for _, c := range s.NodeCPUs(n) {
				if s.Node(c) != n {
					t.Errorf("%s: Node(%d) = %d, want %d", tc.in, c, s.Node(c), n)
				}
			}
		}
		if g := strings.Join(got, " "); g != tc.want {
			t.Errorf("%s: nodes hold %s, want %s", tc.in, g, tc.want)
		}
		if s.Node(s.CPUs()) != -1 || s.NodeCPUs(s.Nodes) != nil || s.NodeCPUs(-1) != nil {
			t.Errorf("%s: a CPU or node it does not have", tc.in)
		}
	}
}

func TestTopology(t *testing.T) {
	s := Shape{2, 2, 2, 2, 512}
	topo := s.Topology([]int{3, 6, 7})
	if topo.Online.String() != "0-2,4-5" || topo.Present.String() != "0-7" {
		t.Errorf("online %s, present %s", topo.Online, topo.Present)
	}
	var got []string
	for _, c := range topo.CPUs {
		got = append(got, fmt.Sprintf("%d:n%d,p%d,c%d,s%s", c.ID, c.Node, c.Package, c.Core, c.Siblings))
	}
	want := "0:n0,p0,c0,s0-1 1:n0,p0,c0,s0-1 2:n0,p0,c1,s2 4:n1,p1,c0,s4-5 5:n1,p1,c0,s4-5"
	if g := strings.Join(got, " "); g != want {
		t.Errorf("CPUs\n %s, want\n %s", g, want)
	}
	if len(topo.Nodes) != 2 || topo.Nodes[1].CPUs.String() != "4-5" || fmt.Sprint(topo.Nodes[1].Distances) != "[20 10]" {
		t.Errorf("nodes %+v", topo.Nodes)
	}
}

func TestJSON(t *testing.T) {
	b, err := json.Marshal(Default())
	if want := `{"sockets":1,"cores":2,"threads":2,"nodes":1,"cpus":4,"memory_mib":512}`; err != nil || string(b) != want {
		t.Errorf("marshal: %s, %v; want %s", b, err, want)
	}
	var s Shape
	if err := json.Unmarshal(b, &s); err != nil || s != Default() {
		t.Errorf("unmarshal: %v, %v", s, err)
	}
	for _, bad := range []string{`{}`, `3`, `{"sockets":1,"cores":2,"threads":2,"nodes":1,"cpus":5,"memory_mib":512}`} {
		if err := json.Unmarshal([]byte(bad), &s); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

func FuzzParseShape(f *testing.F) {
	for _, s := range []string{"", "sockets=1,cores=2,threads=2,nodes=1,memory=512M", "cores=4,nodes=3", "memory=1GiB", "cores=99999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		s, err := ParseShape(in)
		if err != nil {
			return
		}
		if back, err := ParseShape(s.String()); err != nil || back != s {
			t.Fatalf("%q -> %v -> %q -> %v, %v", in, s, s.String(), back, err)
		}
		total := 0
		for n := range s.Nodes {
			if len(s.NodeCPUs(n)) == 0 {
				t.Fatalf("%q: node %d has no CPU", in, n)
			}
			total += len(s.NodeCPUs(n))
		}
		if total != s.CPUs() {
			t.Fatalf("%q: nodes hold %d of %d CPUs", in, total, s.CPUs())
		}
	})
}

func TestAPICIDs(t *testing.T) {
	for _, tt := range []struct{ sockets, cores, threads, want int }{
		{1, 1, 1, 0}, {1, 2, 2, 3}, {2, 2, 2, 7}, {1, 3, 2, 5}, {2, 3, 2, 13}, {2, 32, 2, 127}, {3, 5, 1, 20}, {1, 255, 1, 254}, {1, 127, 2, 253},
	} {
		if got := (Shape{Sockets: tt.sockets, Cores: tt.cores, Threads: tt.threads}).highestAPICID(); got != tt.want {
			t.Errorf("%dx%dx%d: highest APIC id %d, want %d", tt.sockets, tt.cores, tt.threads, got, tt.want)
		}
	}
}
