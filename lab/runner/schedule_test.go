package runner

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"irqlab/scenarios/shape"
)

// order plays a queue through: cases take one step to start and one more to end, and what is told of each step is which began.
func order(q *queue, failing ...int) string {
	var steps []string
	age := map[int]int{}
	for len(age) > 0 || !q.empty() {
		var begun []string
		for i, ok := q.next(); ok; i, ok = q.next() {
			age[i] = 0
			begun = append(begun, fmt.Sprint(i))
		}
		steps = append(steps, strings.Join(begun, ","))
		for i := range age {
			switch age[i]++; {
			case slices.Contains(failing, i):
				q.ended(i)
				delete(age, i)
			case age[i] == 1:
				q.started(i)
			default:
				q.ended(i)
				delete(age, i)
			}
		}
	}
	return strings.Join(steps, " ")
}

// Cases of one machine run together, one of them makes the snapshot, and the others wait for it without a seat.
func TestOrder(t *testing.T) {
	one := need{cores: 1, memory: 1}
	plan := func(c capacity, machines string, made string) *queue {
		tasks := map[int]task{}
		for i, m := range machines {
			tasks[i] = task{machine: string(m), made: strings.ContainsRune(made, m), boots: one, fork: one}
		}
		return newQueue(c, tasks)
	}
	for _, tc := range []struct {
		what    string
		q       *queue
		failing []int
		want    string
	}{
		{what: "one at a time, by machine", q: plan(capacity{jobs: 1}, "abab", ""), want: "0  2  1  3 "},
		{what: "two snapshots are made side by side, then the first's forks", q: plan(capacity{jobs: 2}, "aabb", ""), want: "0,2  1,3 "},
		{what: "nobody makes a snapshot twice", q: plan(capacity{jobs: 4}, "aaaa", ""), want: "0 1,2,3 "},
		{what: "one that is there goes first", q: plan(capacity{jobs: 1}, "ab", "b"), want: "1  0 "},
		{what: "forks run while another boots", q: plan(capacity{jobs: 3}, "abbb", "b"), want: "1,2,3  0 "},
		{what: "a boot that fails is tried by the next", q: plan(capacity{jobs: 4}, "aaa", ""), failing: []int{0, 1}, want: "0 1 2 "},
		{what: "as many as the cores", q: plan(capacity{cores: 2, memory: 9}, "aaaa", "a"), want: "0,1  2,3 "},
		{what: "as many as fit memory", q: plan(capacity{cores: 9, memory: 3}, "aaaa", "a"), want: "0,1,2  3 "},
		{what: "one runs wherever it is", q: plan(capacity{}, "aa", "a"), want: "0  1 "},
	} {
		if got := order(tc.q, tc.failing...); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.what, got, tc.want)
		}
	}
	// What fits runs beside what is waited for, and a large one still comes.
	large := task{machine: "l", made: true, fork: need{cores: 2}}
	small := task{machine: "s", made: true, fork: need{cores: 1}}
	if got := order(newQueue(capacity{cores: 2, memory: math.MaxInt64}, map[int]task{0: small, 1: large, 2: small, 3: small})); got != "0,2  3  1 " {
		t.Errorf("a large one among small ones: %q", got)
	}
}

func TestNeed(t *testing.T) {
	for _, tc := range []struct {
		shape           string
		boots, threaded bool
		cores           float64
		memory          int64 // MiB
	}{
		{"cores=2,threads=2,memory=512M", true, true, 1, 612},
		{"cores=2,threads=2,memory=512M", false, true, 1, 180},
		{"sockets=2,cores=4,threads=2,memory=1G", false, true, 2, 228},
		{"sockets=8,cores=8,threads=2,nodes=8,memory=4G", false, false, 1, 676},
		{"sockets=8,cores=8,threads=2,nodes=8,memory=4G", true, false, 1, 4196},
		{"cores=1,threads=1,memory=128M", false, true, 1, 168},
	} {
		s, err := shape.ParseShape(tc.shape)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := needOf(s, tc.boots, tc.threaded), (need{cores: tc.cores, memory: tc.memory * mib}); got != want {
			t.Errorf("%s, boots %t: %+v, want %+v", tc.shape, tc.boots, got, want)
		}
	}
	if n := DefaultJobs(shape.Default()); n < 1 {
		t.Errorf("%d jobs", n)
	}
}

// How many open files there are limits also who says how many jobs there are to be; one VM may always try.
func TestAdmitsFiles(t *testing.T) {
	for _, tc := range []struct {
		c       capacity
		running map[int]need
		want    bool
	}{
		{capacity{files: 100, cores: 9, memory: 9}, map[int]need{0: {files: 60}}, false},
		{capacity{files: 120, cores: 9, memory: 9}, map[int]need{0: {files: 60}}, true},
		{capacity{files: 100, jobs: 4}, map[int]need{0: {files: 60}}, false},
		{capacity{files: 120, jobs: 4}, map[int]need{0: {files: 60}}, true},
		{capacity{files: 10, jobs: 4}, nil, true},
	} {
		if got := tc.c.admits(tc.running, need{files: 60}); got != tc.want {
			t.Errorf("%+v beside %+v: %t, want %t", tc.c, tc.running, got, tc.want)
		}
	}
}

// The memory a process may use is the least of what the machine has and what its control groups leave.
func TestAvailableMemory(t *testing.T) {
	const meminfo = "MemTotal: 100 kB\nMemFree: 5 kB\nMemAvailable:   64 kB\n"
	for _, tc := range []struct {
		what  string
		files map[string]string
		want  int64
	}{
		{"nothing to read", nil, math.MaxInt64},
		{"no group", map[string]string{"proc/meminfo": meminfo}, 64 << 10},
		{"version 2, without a limit", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 64 << 10},
		{"version 2, a parent's limit", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
			"sys/fs/cgroup/a/memory.max": "30000\n", "sys/fs/cgroup/a/memory.current": "10000\n"}, 20000},
		{"version 1", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "3:cpu:/x\n4:memory:/a\n0::/\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "5000\n", "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "6000\n"}, 0},
		{"no line of ours", map[string]string{"proc/meminfo": "nonsense\n", "proc/self/cgroup": "nonsense\n"}, math.MaxInt64},
	} {
		root := t.TempDir()
		for name, text := range tc.files {
			file := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := availableMemory(root); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.what, got, tc.want)
		}
	}
	if got := availableMemory("/"); got <= 0 || got == math.MaxInt64 {
		t.Errorf("this machine: %d", got)
	}
}

// What is left is told from what was measured; what was not makes it a lower bound; nothing measured tells nothing.
func TestEstimate(t *testing.T) {
	began := time.Unix(1000, 0)
	at := began.Add(40 * time.Second)
	small, large := kind{cpus: 4}, kind{cpus: 64}
	boot := kind{boots: true, cpus: 4}
	waiting := func(n int, k ...kind) (w []work) {
		for range n {
			w = append(w, work{kinds: k})
		}
		return w
	}
	measured := func(busy time.Duration) estimator {
		e := estimator{began: began, busy: busy}
		e.measured(small, 1*time.Second)
		e.measured(small, 3*time.Second)
		e.measured(boot, 10*time.Second)
		return e
	}
	for _, tc := range []struct {
		what string
		e    estimator
		todo []work
		want Left
	}{
		{"nothing measured", estimator{began: began}, waiting(3, small), Left{}},
		{"one after the other", measured(40 * time.Second), waiting(10, small), Left{Time: 20 * time.Second}},
		{"two side by side", measured(80 * time.Second), waiting(10, small), Left{Time: 10 * time.Second}},
		{"a boot comes first", measured(40 * time.Second), waiting(1, small, boot), Left{Time: 12 * time.Second}},
		{"side by side, but not within one", measured(80 * time.Second), waiting(1, small, boot), Left{Time: 12 * time.Second}},
		{"under way", measured(39 * time.Second), []work{{kinds: []kind{small}, elapsed: time.Second}}, Left{Time: time.Second}},
		{"longer than it should", measured(20 * time.Second), []work{{kinds: []kind{small}, elapsed: 20 * time.Second}}, Left{}},
		{"some that was not measured", measured(40 * time.Second), append(waiting(2, small), waiting(1, large)...), Left{Time: 4 * time.Second, AtLeast: true}},
	} {
		if got := tc.e.left(at, tc.todo); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.what, got, tc.want)
		}
	}
}
