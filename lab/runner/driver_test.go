package runner

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"irqlab/devmodel/gdma"
	"irqlab/devmodel/mana"
	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/lab"
	"irqlab/scenarios/result"
	"irqlab/scenarios/shape"
)

func TestDriverBranch(t *testing.T) {
	for _, tc := range []struct {
		what    string
		shape   string
		offline string
		node    int
		masks   string // of the queue vectors
		want    string
	}{
		{"6.17 to 7.1, vectors above CPUs", "cores=2,threads=2", "", 0, "0-1 2-3 0-1 2-3", "numa-aware"},
		{"vectors as many as CPUs", "cores=2,threads=2", "", 0, "2-3 0-1 2-3", "numa-aware, first group skipped"},
		{"7.2", "cores=2,threads=2", "", 0, "0 1 2 3", "linear"},
		{"up to 6.8", "cores=2,threads=2", "", 0, "1 2 3 0", "local-spread"},
		{"7.2 with more queues than CPUs", "cores=1,threads=2", "", 0, "0 1 0-1", "linear"},
		{"nothing set", "cores=2,threads=2", "", 0, "0-3 0-3", "unset"},
		{"nothing set, on a node of two", "sockets=2,cores=2,threads=1,nodes=2", "", 1, "2-3 2-3", "unset"},
		{"surplus keeps the node's CPUs", "sockets=2,cores=1,threads=2,nodes=2", "", 0, "0 1 2 3 0-1", "linear"},
		{"CPUs offline", "cores=4,threads=2", "5-7", 0, "0-1 2-3 4 0-1 2-3", "numa-aware"},
		{"no node", "sockets=2,cores=2,threads=2,nodes=2", "", -1, "2-3 4-5 6-7 0-1 2-3", "numa-aware, first group skipped"},
		{"one thread a core", "cores=4,threads=1", "", 0, "0 1 2 3", "numa-aware or linear"},
		{"none of them", "cores=2,threads=2", "", 0, "3 3 3 3", "unknown"},
		{"no queue", "cores=2,threads=2", "", 0, "", ""},
	} {
		t.Run(tc.what, func(t *testing.T) {
			s, err := shape.ParseShape(tc.shape)
			if err != nil {
				t.Fatal(err)
			}
			vectors := []result.Vector{{Asked: cpulist.List{0}}}
			for _, m := range strings.Fields(tc.masks) {
				vectors = append(vectors, result.Vector{Asked: list(t, m)})
			}
			if got := driverBranch(s.Topology(list(t, tc.offline)), tc.node, vectors); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func list(t *testing.T, s string) cpulist.List {
	t.Helper()
	l, err := cpulist.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestAssignRoles(t *testing.T) {
	var vectors []result.Vector
	for i := range 4 {
		vectors = append(vectors, result.Vector{Index: i, Role: result.RoleQueue, Effective: cpulist.List{min(i, 1)}})
	}
	roles := []mana.Role{
		{Vector: 0, EQ: 24, HWC: true},
		{Vector: 2, EQ: 25, Queues: []mana.QueueRef{{VPort: 0, Queue: 0}}},
		{Vector: 2, EQ: 26, Queues: []mana.QueueRef{{VPort: 0, Queue: 1}}},
		{Vector: 3, EQ: 27},
		{Vector: 0, EQ: 28, Queues: []mana.QueueRef{{VPort: 1, Queue: 0}}},
	}
	assignRoles(vectors, roles)
	o := result.Observe("settled", cpulist.Range(0, 1), vectors)
	var got []string
	for _, v := range o.Vectors {
		got = append(got, fmt.Sprintf("%d %s %v", v.Index, v.Role, v.Queues))
	}
	want := []string{"0 hwc [{1 0}]", "1 unused []", "2 queue [{0 0} {0 1}]", "3 queue []"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if !o.Clustered || o.IdleCPUs.String() != "0" {
		t.Errorf("clustered %v, idle %s: the unused vector must not count", o.Clustered, o.IdleCPUs)
	}
	if n := queueVectors(roles); n != 3 {
		t.Errorf("%d queue vectors, want 3: two event queues share one", n)
	}
}

func TestAuditFindings(t *testing.T) {
	got := auditFindings([]gdma.Audit{
		{Cause: "DEREGISTER_DEVICE", Leaks: []gdma.Leak{{Kind: "eq", ID: 25}, {Kind: "region", ID: 3}}},
		{Cause: "SMC destroy"},
		{Cause: "reset: function-level", Leaks: []gdma.Leak{{Kind: "eq", ID: 25}}},
	})
	if d := cmp.Diff([]string{"The driver left behind at DEREGISTER_DEVICE: eq 25, region 3."}, got); d != "" {
		t.Error(d)
	}
}

func TestDriverError(t *testing.T) {
	guest := agentapi.Errorf(agentapi.CodeRefused, "link eth0: no")
	err := fmt.Errorf("case: %w", &DriverError{What: "the driver did not bring eth0 up", Err: guest, Log: []string{"mana: a", "mana: b"}})
	want := "case: the driver did not bring eth0 up: guest: link eth0: no; it logged:\n  mana: a\n  mana: b"
	if err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if !errors.Is(err, error(guest)) {
		t.Error("the guest's words are not in it")
	}
	if got := (&DriverError{What: "x"}).Error(); got != "x; it logged nothing" {
		t.Errorf("got %q", got)
	}
}

// TestLeftBehind: a function that nobody ever drove holds nothing; one with a vector still enabled says so elsewhere, in the VM tests.
func TestLeftBehind(t *testing.T) {
	f, err := lab.NewFunction(lab.FunctionConfig{Vectors: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer f.MANA.Close()
	if left := leftBehind(f); left != nil {
		t.Errorf("got %q", left)
	}
}
