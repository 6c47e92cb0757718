package endurance

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"irqlab/lab/cli"
	"irqlab/scenarios/result"
)

const defaultKernel = "debian:7.3"

// experiment is what the labs under test run.
var experiment = []string{"run", "low-vcpu", "--strategy", "linear", "--kernel", defaultKernel, "--timeout", "8m", "--format", "json"}

// makes says what a lab has to make before its case can run: kinds of entries that are taken out of the cache before.
type makes string

const (
	nothing   makes = "nothing"
	snapshot  makes = "snapshot"
	initramfs makes = "initramfs" // and all that comes with it
)

var kinds = map[makes][]string{snapshot: {"snapshot"}, initramfs: {"snapshot", "initramfs", "busybox", "keys"}}

// victim is what is killed. A kill is fair to a lab that lives on if it can still tell what happened.
type victim struct {
	name   string
	signal syscall.Signal
	kinds  []string // of processes, all of which are killed; "*": every process of the lab
	group  bool     // the lab's process group instead
	needs  makes    // the lab has such a process only then; "": always
}

var victims = []victim{
	{name: "irqlab", signal: syscall.SIGKILL, kinds: []string{"irqlab"}},
	{name: "QEMU", signal: syscall.SIGKILL, kinds: []string{"qemu"}},
	{name: "irqlab by SIGTERM", signal: syscall.SIGTERM, kinds: []string{"irqlab"}},
	{name: "go", signal: syscall.SIGKILL, kinds: []string{"go"}, needs: initramfs},
	{name: "reaper", signal: syscall.SIGKILL, kinds: []string{"reaper"}},
	{name: "irqlab by SIGINT", signal: syscall.SIGINT, kinds: []string{"irqlab"}},
	{name: "QEMU by SIGTERM", signal: syscall.SIGTERM, kinds: []string{"qemu"}},
	{name: "process group", signal: syscall.SIGKILL, group: true},
	{name: "irqlab and reaper", signal: syscall.SIGKILL, kinds: []string{"irqlab", "reaper"}},
	{name: "irqlab and QEMU", signal: syscall.SIGKILL, kinds: []string{"irqlab", "qemu"}},
	{name: "QEMU and reaper", signal: syscall.SIGKILL, kinds: []string{"qemu", "reaper"}},
	{name: "all", signal: syscall.SIGKILL, kinds: []string{"*"}},
}

func (v victim) hits(kind string) bool {
	return !v.group && (slices.Contains(v.kinds, kind) || slices.Contains(v.kinds, "*"))
}

// endsLab tells whether irqlab itself is hit.
func (v victim) endsLab() bool { return v.group || v.hits("irqlab") }

// kill kills the victims among the lab's processes and reports whether it hit one of each kind.
func (s *site) kill(v victim, l *lab) bool {
	if v.group {
		return l.running() && syscall.Kill(-l.pid(), v.signal) == nil
	}
	var pids []int
	found := map[string]bool{}
	for _, p := range s.processes() {
		if (p.kind != "irqlab" || p.pid == l.pid()) && v.hits(p.kind) {
			pids, found[p.kind] = append(pids, p.pid), true
		}
	}
	if len(found) == 0 || !slices.Contains(v.kinds, "*") && len(found) < len(v.kinds) {
		return false
	}
	hit := false
	for _, pid := range pids {
		hit = syscall.Kill(pid, v.signal) == nil || hit
	}
	return hit
}

// TestKills kills irqlab or one of its processes at a random moment, again and again (IRQLAB_KILLS times, from IRQLAB_SEED). Nothing may be left of it, and a
// run after it must pass.
func TestKills(t *testing.T) {
	t.Parallel()
	kills, seed := number(t, "IRQLAB_KILLS", 6), uint64(number(t, "IRQLAB_SEED", int(time.Now().UnixNano()%1e6)))
	t.Logf("IRQLAB_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	s := newSite(t)
	s.build()
	// So many labs are killed before one may run to its end: what one has left, the next finds, and is killed in turn.
	inARow := max(1, min(5, kills/2))
	// How long a run takes that makes so much; guesses, until it was seen.
	takes := map[makes]time.Duration{nothing: 3 * time.Second, snapshot: 10 * time.Second, initramfs: 15 * time.Second}
	hits, done, late := map[string]int{}, 0, 0
	for group := 0; done < kills && late <= kills; group++ {
		m := nothing
		switch { // the cache has nothing at first, so that the first labs make everything
		case group == 0 || r.IntN(8) == 0:
			m = initramfs
		case group > 1 && r.IntN(4) == 0:
			m = snapshot
		}
		for _, kind := range kinds[m] {
			if err := os.RemoveAll(filepath.Join(s.cache, kind)); err != nil {
				t.Fatal(err)
			}
		}
		name := ""
		for n := 0; n < inARow && done < kills && late <= kills; {
			v := draw(r, m)
			if group == 0 && n < 3 { // the plain test sees to the most frequent
				v = victims[n]
			}
			share := r.Float64()
			delay := time.Duration(share * share * float64(takes[m])) // most is made at the beginning
			beside := group > 1 && r.IntN(4) == 0                     // a second run, on the same cache
			name = fmt.Sprintf("kill %d: %s after %v, making %s", done+1, v.name, delay.Round(time.Millisecond), m)
			hit, outcome := s.round(name, v, delay, beside)
			if !hit {
				late++
				continue
			}
			t.Logf("%s: %s", name, outcome)
			hits[fmt.Sprintf("%s, making %s: %s", v.name, m, outcome)]++
			done, n = done+1, n+1
		}
		began := time.Now()
		s.inOrder(name)
		takes[m] = time.Since(began)
	}
	if done < kills {
		t.Errorf("%d kills came too late", late)
	}
	for _, what := range slices.Sorted(maps.Keys(hits)) {
		t.Logf("%3d  %s", hits[what], what)
	}
	t.Logf("%d kills, and %d that came too late", done, late)
}

// draw draws one of the victims that a lab has which makes so much.
func draw(r *rand.Rand, m makes) victim {
	for {
		if v := victims[r.IntN(len(victims))]; v.needs == "" || v.needs == m {
			return v
		}
	}
}

// round kills one lab and looks at what is left. It returns how the lab ended, and whether the kill came before that.
func (s *site) round(name string, v victim, delay time.Duration, beside bool) (hit bool, outcome string) {
	t := s.t
	t.Helper()
	before := s.runDirs()
	l := s.start(experiment...)
	var other *lab
	if beside && (v.group || slices.Equal(v.kinds, []string{"irqlab"})) { // else the other's processes would be hit
		other = s.start(experiment...)
	}
	time.Sleep(delay)
	hit = s.kill(v, l)
	for !hit && l.running() { // it has no such process at the moment
		time.Sleep(20 * time.Millisecond)
		hit = s.kill(v, l)
	}
	s.await(l)
	if other != nil {
		s.await(other)
		s.passed(name+": the run beside it", other)
	}
	outcome = s.judge(name, v, l)

	if left := until(t.Context(), s.lines); len(left) > 0 {
		t.Errorf("%s: %s\nis left:\n%s", name, l, strings.Join(left, "\n"))
	}
	// A lab that dies with its reaper leaves its run directory as it is: the next run sweeps it, if it lives long enough.
	if v.hits("reaper") {
		return hit, outcome
	}
	if left := until(t.Context(), func() []string {
		return slices.DeleteFunc(s.runDirs(), func(dir string) bool { return slices.Contains(before, dir) })
	}); len(left) > 0 {
		t.Errorf("%s: %s\nrun directories are left: %q", name, l, left)
	}
	return hit, outcome
}

// inOrder checks the cache, and that a run passes and leaves nothing.
func (s *site) inOrder(name string) {
	t := s.t
	t.Helper()
	for _, command := range []string{"verify", "list"} { // opening the cache sweeps it
		l := s.start("cache", command)
		s.await(l)
		if l.cmd.ProcessState.ExitCode() != cli.ExitPass {
			t.Errorf("%s: cache %s: %s", name, command, l)
		}
	}
	if left := s.temporaries(); len(left) > 0 {
		t.Errorf("%s: temporary files are left: %q", name, left)
	}
	next := s.start(experiment...)
	s.await(next)
	s.passed(name+": the next run", next)
	if left := until(t.Context(), func() []string { return slices.Concat(s.lines(), s.runDirs(), s.temporaries()) }); len(left) > 0 {
		t.Errorf("%s: after the next run is left: %q", name, left)
	}
}

// judge compares how a lab ended with what was killed.
func (s *site) judge(name string, v victim, l *lab) string {
	t := s.t
	t.Helper()
	status := l.cmd.ProcessState.ExitCode()
	rep, _ := l.report()
	var reasons string
	if len(rep.Cases) == 1 {
		reasons = strings.Join(rep.Cases[0].Reasons, "\n")
	}
	switch {
	case status == cli.ExitPass && len(rep.Cases) == 1 && rep.Cases[0].Outcome == result.Pass:
		for _, n := range rep.Cases[0].Notes {
			if strings.Contains(n, "snapshot") { // it is as good as before
				t.Errorf("%s: %s", name, n)
			}
		}
		return "passed"
	case v.endsLab() && l.signal() == v.signal: // by SIGTERM and SIGINT only before it could see to them
		return "died by " + v.signal.String()
	case v.endsLab() && status == cli.ExitInterrupted && strings.Contains(l.err.String(), "interrupted"):
		return "interrupted"
	case !v.endsLab() && !v.hits("reaper") && status == cli.ExitError && len(rep.Cases) == 1 && rep.Cases[0].Outcome == result.Error && tellsDeath(reasons),
		slices.Equal(v.kinds, []string{"qemu", "reaper"}) && status == cli.ExitError && tellsDeath(reasons),
		!v.endsLab() && status == cli.ExitError && len(rep.Cases) == 0 && tellsDeath(l.err.String()):
		return "error"
	}
	t.Errorf("%s: the lab ended wrongly: %s", name, l)
	return "wrong"
}

// tellsDeath reports whether a text says that a process was killed, or ended by a signal it could see to.
func tellsDeath(text string) bool {
	for _, words := range []string{"killed", "signal: killed", "QEMU has ended", "signal: terminated"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// passed fails the test unless the run passed and all was as it should be.
func (s *site) passed(name string, l *lab) {
	s.t.Helper()
	rep, err := l.report()
	if err != nil || l.cmd.ProcessState.ExitCode() != cli.ExitPass || len(rep.Cases) != 1 || rep.Cases[0].Outcome != result.Pass {
		s.t.Errorf("%s did not pass: %v %s", name, err, l)
		return
	}
	for _, n := range rep.Cases[0].Notes {
		if strings.Contains(n, "snapshot") {
			s.t.Errorf("%s: %s", name, n)
		}
	}
}

// number reads an environment variable.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
