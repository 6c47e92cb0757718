package runner

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"irqlab/lab"
	"irqlab/lab/machine"
	"irqlab/scenarios"
	"irqlab/scenarios/shape"
)

const mib = 1 << 20

// What a VM takes of the host (docs/dev/performance.md, "Jobs").
const (
	cpusPerCore  = 8         // emulated CPUs sleep most of the time: one core serves this many of them, each with a thread of its own
	hostMemory   = 100 * mib // QEMU's own
	forkMemory   = 64 * mib  // of a restored guest: what it had when it was saved, and what it has touched since
	memoryPerCPU = 4 * mib   // of the above, for each of its CPUs
	spareMemory  = 256 * mib // nobody's
)

// need is what a VM takes of the host.
type need struct {
	cores  float64
	memory int64 // bytes
	files  int   // open in this process
}

// needOf is what a VM of the shape takes: all its memory if it boots, what it touches if it is restored. threaded: its CPUs can run side by side.
func needOf(s shape.Shape, boots, threaded bool) need {
	n := need{cores: 1, memory: hostMemory + int64(s.MemoryMiB)*mib}
	if threaded {
		n.cores = max(1, float64(s.CPUs())/cpusPerCore)
	}
	if !boots {
		n.memory = min(n.memory, hostMemory+forkMemory+int64(s.CPUs())*memoryPerCPU)
	}
	return n
}

// capacity is what there is to share out.
type capacity struct {
	jobs   int     // VMs at a time; 0: as many as the rest allows
	cores  float64 // with jobs given, neither these
	memory int64   // nor this counts: who says how many knows
	files  int     // counts always: a VM that cannot have them tells nothing
}

// hostCapacity is what this process may use of the machine: its cores by affinity and control group quota, which the runtime knows, and the memory available.
func hostCapacity(jobs int) capacity {
	return capacity{jobs: jobs, cores: float64(runtime.GOMAXPROCS(0)), memory: availableMemory("/") - spareMemory, files: lab.FilesForVMs()}
}

// admits tells whether a VM may run beside the others. One may always run.
func (c capacity) admits(running map[int]need, n need) bool {
	if len(running) == 0 {
		return true
	}
	for _, r := range running {
		n.cores += r.cores
		n.memory += r.memory
		n.files += r.files
	}
	if n.files > c.files {
		return false
	}
	if c.jobs > 0 {
		return len(running) < c.jobs
	}
	return n.cores <= c.cores && n.memory <= c.memory
}

// availableMemory is what the kernel would give without swapping, or what is left of the least of this process's control groups' limits; root is / but for tests. What cannot be
// read does not limit.
func availableMemory(root string) int64 {
	available := int64(math.MaxInt64)
	b, _ := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	for line := range strings.Lines(string(b)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); err == nil {
			available = kib << 10
		}
	}
	b, _ = os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(b)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		mount, limit, usage := "sys/fs/cgroup", "memory.max", "memory.current"
		if part[0] != "0" { // version 1
			if !slices.Contains(strings.Split(part[1], ","), "memory") {
				continue
			}
			mount, limit, usage = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
		}
		for dir := path.Clean("/" + part[2]); ; dir = path.Dir(dir) {
			most, err1 := readInt(filepath.Join(root, mount, dir, limit)) // "max" is no number
			used, err2 := readInt(filepath.Join(root, mount, dir, usage))
			if err1 == nil && err2 == nil {
				available = min(available, max(0, most-used))
			}
			if dir == "/" {
				break
			}
		}
	}
	return available
}

func readInt(file string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// tasks describes the cases to the queue; those that cannot be run are left out.
func tasks(ctx context.Context, cases []scenarios.Case, o Options, accel machine.Accel, skip func(i int) bool) (map[int]task, error) {
	type known struct {
		key  string
		made bool
	}
	asked := map[string]known{}
	out := map[int]task{}
	for i := range cases {
		c := &cases[i]
		if skip(i) {
			continue
		}
		threaded := machine.Machine{Accel: accel, Shape: c.Shape, OneThread: oneThread(c)}.Threaded()
		t := task{made: true, boots: needOf(c.Shape, true, threaded), fork: needOf(c.Shape, false, threaded)}
		e := &experiment{opts: o, c: c}
		var err error
		if t.boots.files, err = lab.Files(e.config(), e.functions()); err != nil {
			return nil, err
		}
		t.fork.files = t.boots.files
		if o.Start == "" || o.Start == lab.StartCold {
			t.fork = t.boots
			out[i] = t
			continue
		}
		cfg := e.config()
		// What does not make the machine is not asked about twice.
		mine := cfg
		mine.Name, mine.Functions, mine.Progress, mine.Cache, mine.Modules = "", nil, nil, nil, nil
		word := fmt.Sprintf("%+v", mine)
		k, ok := asked[word]
		if !ok {
			var err error
			if k.key, k.made, err = lab.Machine(ctx, cfg); ctx.Err() != nil {
				return nil, context.Cause(ctx)
			} else if err != nil { // the case will tell when it tries
				k = known{word, false}
			}
			asked[word] = k
		}
		t.machine, t.made = k.key, k.made
		out[i] = t
	}
	return out, nil
}

// queue hands out cases: those of one machine together, and as long as a machine has no snapshot only one case at a time, which makes it. It is not safe for concurrent use.
type queue struct {
	capacity capacity
	groups   []*group // in the order they are served
	of       map[int]*group
	running  map[int]need
}

// group are the cases of one machine.
type group struct {
	waiting []int
	boots   need // of the VM that makes the snapshot
	fork    need
	made    bool // the snapshot is there, or none is wanted: nobody need wait
	maker   int  // the case whose start makes the snapshot, or none
}

const none = -1

// task is a case for the queue.
type task struct {
	machine     string // cases with the same one are forks of one snapshot
	made        bool   // the snapshot is there, or none is wanted
	boots, fork need
}

func newQueue(c capacity, tasks map[int]task) *queue {
	q := &queue{capacity: c, of: map[int]*group{}, running: map[int]need{}}
	by := map[string]*group{}
	for _, i := range slices.Sorted(maps.Keys(tasks)) {
		t := tasks[i]
		g := by[t.machine]
		if g == nil {
			g = &group{boots: t.boots, fork: t.fork, made: t.made, maker: none}
			by[t.machine] = g
			q.groups = append(q.groups, g)
		}
		g.waiting = append(g.waiting, i)
		q.of[i] = g
	}
	return q
}

// next takes the next case that may run now. A case of a machine that has been begun comes first, so that its snapshot is done with before the next one is there.
func (q *queue) next() (i int, ok bool) {
	for _, made := range []bool{true, false} {
		for _, g := range q.groups {
			n := g.fork
			if !g.made {
				n = g.boots
			}
			if g.made != made || len(g.waiting) == 0 || g.maker != none || !q.capacity.admits(q.running, n) {
				continue
			}
			i, g.waiting = g.waiting[0], g.waiting[1:]
			if !g.made {
				g.maker = i
			}
			q.running[i] = n
			return i, true
		}
	}
	return 0, false
}

// started tells that the case's VM answers: its snapshot is made, or it came out that there cannot be one.
func (q *queue) started(i int) {
	if g := q.of[i]; g.maker == i {
		g.made, g.maker = true, none
		q.running[i] = g.fork
	}
}

// ended tells that the case is over. If it was to make the snapshot and did not come to it, the next one tries.
func (q *queue) ended(i int) {
	delete(q.running, i)
	if g := q.of[i]; g.maker == i {
		g.maker = none
	}
}

// empty tells that no case waits.
func (q *queue) empty() bool {
	return !slices.ContainsFunc(q.groups, func(g *group) bool { return len(g.waiting) > 0 })
}

// makes tells whether the case was handed out to make its machine's snapshot, and has not done so.
func (q *queue) makes(i int) bool { return q.of[i].maker == i }
