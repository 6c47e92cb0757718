package endurance

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"irqlab/images"
	facade "irqlab/lab"
	"irqlab/lab/runner"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// sample is what this process and the machine hold while no case runs.
type sample struct {
	cases      int
	resident   int // MiB, of this process
	heap       int // KiB in use
	goroutines int
	files      int // open descriptors
	memories   int // of these: guest memories
	mappings   int
	threads    int
	processes  int // that this one has started, at any distance
	runDirs    int
	unfinished int // in the temporary directories
	state      int // in the cache beside its entries: memos, locks
	shm        int // files in /dev/shm that are a lab's
}

func (a sample) String() string {
	return fmt.Sprintf("%4d cases: %d MiB resident, heap %d KiB, %d goroutines, %d threads, %d descriptors (%d memories), %d mappings, %d processes, %d run directories, %d unfinished files, %d notes, %d in /dev/shm",
		a.cases, a.resident, a.heap, a.goroutines, a.threads, a.files, a.memories, a.mappings, a.processes, a.runDirs, a.unfinished, a.state, a.shm)
}

// take samples after what is dead is collected.
func (s *site) take(cases int) sample {
	t := s.t
	t.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	a := sample{cases: cases, heap: int(m.HeapAlloc >> 10), goroutines: runtime.NumGoroutine(), processes: len(s.processes()), runDirs: len(s.runDirs()), unfinished: len(s.temporaries())}
	if s.cache != "" {
		a.state = len(s.files(filepath.Join(s.cache, "state"))) + len(s.files(filepath.Join(s.cache, "lock")))
	}
	for _, fd := range s.files("/proc/self/fd") {
		target, err := os.Readlink(fd)
		if err != nil {
			continue // the one that reads the directory
		}
		a.files++
		if strings.HasPrefix(target, "/memfd:") {
			a.memories++
		}
	}
	for _, f := range s.files("/dev/shm") {
		if strings.Contains(f, "irqlab") || strings.Contains(f, "qemu") {
			a.shm++
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	a.mappings = strings.Count(string(maps), "\n")
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if n, err := fmt.Sscanf(line, "VmRSS: %d kB", &a.resident); n == 1 && err == nil {
			a.resident >>= 10
		}
		_, _ = fmt.Sscanf(line, "Threads: %d", &a.threads)
	}
	return a
}

// grown names what there is more of than there was, by more than is allowed, whatever the number of cases between.
//
// What a case owns must all be gone. Descriptors, goroutines and threads may differ by a few that the runtime keeps, and mappings with them. The heap moves with what pools and
// caches hold; a leak of 10 KiB a case, a tenth of what its trace takes, shows after 500. Resident memory adds to that what Go's pages are split into.
func (a sample) grown(was sample) (list []string) {
	for _, q := range []struct {
		what       string
		was, is    int
		difference int
	}{
		{"MiB resident", was.resident, a.resident, 24},
		{"KiB of heap", was.heap, a.heap, 4 << 10},
		{"goroutines", was.goroutines, a.goroutines, 2},
		{"threads", was.threads, a.threads, 12},
		{"descriptors", was.files, a.files, 2},
		{"guest memories", was.memories, a.memories, 0},
		{"mappings", was.mappings, a.mappings, 60},
		{"processes", was.processes, a.processes, 0},
		{"run directories", was.runDirs, a.runDirs, 0},
		{"unfinished files", was.unfinished, a.unfinished, 0},
		{"notes in the cache", was.state, a.state, 0},
		{"files in /dev/shm", was.shm, a.shm, 0},
	} {
		if q.is > q.was+q.difference {
			list = append(list, fmt.Sprintf("%d %s, where there were %d", q.is, q.what, q.was))
		}
	}
	return list
}

// TestCases runs warm cases in one process, two at a time (IRQLAB_CASES of them). What the process and the machine hold must not grow with their number.
func TestCases(t *testing.T) {
	const batch = 4 // nothing runs between batches
	cases := number(t, "IRQLAB_CASES", 2*batch)
	s := newSite(t)
	for name, value := range map[string]string{"XDG_RUNTIME_DIR": s.run, "TMPDIR": s.tmp, tagVariable: s.tag} {
		t.Setenv(name, value)
	}
	if os.Getenv("IRQLAB_CASES") == "" { // a cache of its own would have to boot the machine; the common one is not this test's to count in
		s.cache = ""
	}
	cache, err := images.OpenCache(s.cache)
	if err != nil {
		t.Fatal(err)
	}
	sc, err := scenarios.Get("low-vcpu")
	if err != nil {
		t.Fatal(err)
	}
	planned, _, err := sc.Plan(scenarios.Overrides{Strategies: []string{"linear"}, Kernels: []string{defaultKernel}})
	if err != nil || len(planned) != 1 {
		t.Fatalf("%d cases, %v", len(planned), err)
	}
	warm := min(20, cases/2) // until pools and caches are full
	var first, last sample
	bad := 0
	for ran := 0; ran < cases; {
		var list []scenarios.Case
		for range min(batch, cases-ran) {
			list = append(list, planned[0])
		}
		scenarios.Disambiguate(list)
		rep, err := runner.Run(t.Context(), list, runner.Options{Cache: cache, Start: facade.StartAuto, Jobs: 2, Timeout: 8 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range rep.Cases {
			if c.Outcome != result.Pass {
				bad++
				t.Errorf("case %d: %s: %s", ran, c.Outcome, strings.Join(c.Reasons, "\n"))
			}
		}
		ran += len(list)
		last = s.take(ran)
		t.Log(last)
		if first.cases == 0 && ran >= warm {
			first = last
		}
	}
	for end := time.Now().Add(10 * time.Second); len(last.grown(first)) > 0 && time.Now().Before(end); last = s.take(cases) { // goroutines on their way out
		time.Sleep(100 * time.Millisecond)
	}
	if grown := last.grown(first); len(grown) > 0 {
		t.Errorf("after %d cases, from the %dth on:\n%s", cases, first.cases, strings.Join(grown, "\n"))
	}
	t.Logf("%d cases, %d of which did not pass", cases, bad)
}
