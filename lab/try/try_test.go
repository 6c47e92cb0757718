package try

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/layout"
	"irqlab/lab/report"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
	"irqlab/scenarios/shape"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// side makes one side of a case of four CPUs: masks and effective CPUs of its queue vectors.
func oneSide(outcome result.Outcome, masks string, queues ...int) result.Case {
	node := 0
	c := result.Case{Scenario: Scenario, Name: "neighbour", Outcome: outcome, Kernel: "6.18.15+deb13-cloud-amd64", KernelSpec: "debian:6.18", Driver: "mana", Irqchip: "msi",
		Shape: shape.Default(), DeviceNode: &node, Vectors: len(queues) + 1, Pressure: []string{"nvme:queues=4"}, Online: cpulist.Range(0, 3),
		Command: "irqlab run changed-driver --case neighbour --kernel debian:6.18"}
	if outcome == result.Fail {
		c.Reasons = []string{"settled: clustered, expected not.\nmore of it"}
	}
	c.Observations = []result.Observation{reading("settled", cpulist.Range(0, 3), masks, queues...)}
	return c
}

// reading makes a reading of HWC and queue vectors; masks is "linear" or "cores".
func reading(label string, online cpulist.List, masks string, queues ...int) result.Observation {
	vectors := []result.Vector{{Role: result.RoleHWC, Asked: cpulist.Range(0, 1), Affinity: cpulist.Range(0, 1), Effective: cpulist.List{1}, Action: "mana_hwc@pci:0000:81:00.0"}}
	for i, q := range queues {
		mask := cpulist.List{i}
		if masks == "cores" {
			mask = cpulist.Range(i%2*2, i%2*2+1)
		}
		vectors = append(vectors, result.Vector{Index: i + 1, Role: result.RoleQueue, Asked: mask, Affinity: mask, Effective: cpulist.List{q}, Action: "mana_msi" + string(rune('1'+i)) + "@pci:0000:81:00.0"})
	}
	return result.Observe(label, online, vectors)
}

// changed returns a changed copy of a case.
func changed(c result.Case, f func(*result.Case)) result.Case {
	c.Observations = slices.Clone(c.Observations)
	for i := range c.Observations {
		c.Observations[i].Vectors = slices.Clone(c.Observations[i].Vectors)
	}
	f(&c)
	return c
}

var (
	clustered = oneSide(result.Fail, "cores", 0, 3, 0, 2)
	spread    = oneSide(result.Pass, "linear", 0, 1, 2, 3)
	onCores   = oneSide(result.Pass, "cores", 0, 3, 1, 2)
)

func warns(text string) func(*result.Case) {
	return func(c *result.Case) { c.KernelLog.Warnings = append(c.KernelLog.Warnings, text) }
}

func way(branch string) func(*result.Case) { return func(c *result.Case) { c.Branch = branch } }

// Each fact makes a case better or worse, and its counterpart the other; what is neither is only changed.
// onDisk is a case that has read from a disk on node 0 whose one request queue is on a CPU of a node.
func onDisk(cpu, node int) result.Case {
	c := oneSide(result.Observed, "unset", 0)
	zero := 0
	d := result.Disk{Name: "nvme0n1", Node: &zero, Queues: []result.DiskQueue{{Affinity: cpulist.Range(0, 3), Effective: cpulist.List{cpu}, Node: &node}}}
	for i := range 4 {
		d.Served = append(d.Served, result.Served{CPU: i, Queue: &zero, Handled: cpulist.List{cpu}})
	}
	c.Observations, c.Steps = nil, []result.Step{{At: "0", Text: "read-disks", Outcome: result.StepDone, Disks: []result.Disk{d}}}
	return c
}

func TestCompare(t *testing.T) {
	const splat = "WARNING: CPU: 1 PID: 77 at kernel/irq/manage.c:12 x+0x1f/0x20\nCall Trace:"
	const again = "WARNING: CPU: 3 PID: 4242 at kernel/irq/manage.c:12 x+0x2f/0x20\nCall Trace:"
	fails := changed(spread, func(c *result.Case) { c.Outcome, c.Reasons = result.Fail, []string{"an interrupt was lost"} })
	lost := changed(spread, func(c *result.Case) { c.Observations = nil })
	dropped := changed(spread, func(c *result.Case) { c.Observations[0].Vectors[2].Dropped = true })
	fewer := oneSide(result.Observed, "linear", 0, 1)
	pair := oneSide(result.Observed, "linear", 0, 0, 1)
	known := changed(fails, func(c *result.Case) { c.Known = "the kernel loses one" })
	for _, tc := range []struct {
		name          string
		without, with result.Case
		want          Change
		back          Change // the other way round
		say           string // of the first fact
		fails         bool   // with the patch
	}{
		{"the published fix", clustered, spread, Better, Worse, "it does not fail, and did before", false},
		{"the same on both sides", spread, spread, Unchanged, Unchanged, "", false},
		{"clustered on both sides", clustered, clustered, Unchanged, Unchanged, "", true},
		{"a failure", spread, fails, Worse, Better, "it fails, and did not before: an interrupt was lost", true},
		{"a known failure that stays", known, known, Unchanged, Unchanged, "", false},
		{"a known failure that is mended", known, spread, Better, Worse, "it does not fail", false},
		{"a failure known of the kernel, which it did not have", spread, known, Worse, Better, "it fails, and did not before", true},
		{"other masks, as good", onCores, spread, Changed, Changed, "other masks are asked for vector 1-4", false},
		{"a choice within the same masks", onCores, oneSide(result.Pass, "cores", 1, 3, 0, 2), Changed, Changed, "vector 1,3 elsewhere, within the same masks", false},
		{"clustered, though nothing was expected", oneSide(result.Observed, "cores", 0, 3, 1, 2), oneSide(result.Observed, "cores", 0, 3, 0, 2), Worse, Better, "clustered, and was not before: CPU 0 has 2 queues; none on CPU 1", false},
		{"more CPUs idle", oneSide(result.Observed, "linear", 0, 1, 2), fewer, Worse, Better, "more CPUs without a queue: 2-3, before 3", false},
		{"more CPUs idle under a cluster", oneSide(result.Observed, "linear", 0, 0, 1, 2), pair, Worse, Better, "more CPUs without a queue: 2-3, before 3", false},
		{"a new warning", spread, changed(spread, warns(splat)), Worse, Better, "the kernel's log has a new warning: WARNING: CPU: 1 PID: 77", false},
		{"a warning more", changed(spread, warns(splat)), changed(changed(spread, warns(splat)), warns(again)), Worse, Better, "new warning: WARNING: CPU: 3 PID: 4242", false},
		{"the same warning, elsewhere", changed(spread, warns(splat)), changed(spread, warns(again)), Unchanged, Unchanged, "", false},
		{"the same warning, of a kernel that says who logs", changed(spread, warns("[    1.500000][    T7] "+splat)), changed(spread, warns("[   12.750000][ T4242] "+again)), Unchanged, Unchanged, "", false},
		{"a new warning, three times", spread, changed(changed(changed(spread, warns("[    1.5] "+splat)), warns("[   12.75] "+again)), warns("[   13.5] "+splat)), Worse, Better, "new warning: WARNING: CPU: 1 PID: 77 at kernel/irq/manage.c:12 x+0x1f/0x20 (3 like it)", false},
		{"another warning instead", changed(spread, warns(splat)), changed(spread, warns("BUG: x")), Worse, Worse, "new warning: BUG: x", false},
		{"a mask that is not kept", spread, dropped, Worse, Better, "did not keep what was asked for vector 2", false},
		{"a reading that is not come to", spread, lost, Worse, Better, `did not come as far as "settled"`, false},
		{"another way, to the same masks", changed(spread, way("linear")), changed(spread, way("numa-aware")), Changed, Changed, "the driver's way: numa-aware, before linear", false},
		{"a request queue that comes to its disk's node", onDisk(3, 1), onDisk(1, 0), Better, Worse, "on the disk's node: disk nvme0n1 queue 0 is on CPU 1, node 0, before on 3, node 1", false},
		{"a request queue elsewhere on its disk's node", onDisk(0, 0), onDisk(1, 0), Changed, Changed, "disk nvme0n1 queue 0: 0-3 on 1, node 0; requests from 0-3 on 1, before 0-3 on 0, node 0", false},
		{"a request queue where it was", onDisk(3, 1), onDisk(3, 1), Unchanged, Unchanged, "", false},
		{"a hint, and no more", changed(spread, func(c *result.Case) { c.Observations[0].Vectors[1].Hint = cpulist.List{0} }), spread, Changed, Changed, "", false},
		{"slower", spread, changed(spread, func(c *result.Case) { c.Seconds.Run = 1000 }), Unchanged, Unchanged, "", false},
		{"the lab's own failure", spread, changed(spread, func(c *result.Case) { c.Outcome, c.Reasons = result.Error, []string{"disk full"} }), Unknown, Unknown, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := compare(&tc.without, &tc.with)
			said := slices.Concat(got.Worse, got.Better, got.Changed)
			if got.Change != tc.want || tc.say != "" && !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, tc.say) }) {
				t.Errorf("%s: %q; want %s: %q", got.Change, said, tc.want, tc.say)
			}
			if (got.Fails != "") != tc.fails {
				t.Errorf("fails with it: %q, want %t", got.Fails, tc.fails)
			}
			if back := compare(&tc.with, &tc.without); back.Change != tc.back {
				t.Errorf("the other way round %s: %q; want %s", back.Change, slices.Concat(back.Worse, back.Better, back.Changed), tc.back)
			}
		})
	}
}

// A CPU that is offline on one side only is no idle one.
func TestCompareOtherCPUs(t *testing.T) {
	a, b := oneSide(result.Observed, "linear", 0, 1), oneSide(result.Observed, "linear", 0, 1)
	b.Observations = []result.Observation{reading("settled", cpulist.Range(0, 1), "linear", 0, 1)}
	if got := compare(&a, &b); got.Change != Changed || len(got.Better) > 0 {
		t.Errorf("%s: better %q", got.Change, got.Better)
	}
}

// pairs compares cases side by side.
func pairs(sides ...result.Case) []Compared {
	var a, b result.Report
	for i := 0; i < len(sides); i += 2 {
		without, with := sides[i], sides[i+1]
		without.Name, with.Name = without.Name+"/without", with.Name+"/with"
		with.Command += " --module 'mana=/home/some one/.cache/irqlab/module/6.18.15+deb13-cloud-amd64-mana-changed-c13b0518ffc403ceaf7ca86d/mana.ko'"
		with.Modules = []result.Module{{Name: "mana", File: "mana.ko", SHA256: "0123456789abcdef"}}
		a.Cases, b.Cases = append(a.Cases, without), append(b.Cases, with)
	}
	return Compare(a, b)
}

func TestJudge(t *testing.T) {
	fails := changed(spread, func(c *result.Case) { c.Outcome, c.Reasons = result.Fail, []string{"panic"} })
	lab := changed(spread, func(c *result.Case) { c.Outcome, c.Reasons = result.Error, []string{"disk full"} })
	known := changed(fails, func(c *result.Case) { c.Known = "so it is" })
	mute := changed(fails, func(c *result.Case) { c.Kernel, c.Observations = "", nil })
	warned := changed(changed(spread, warns("WARNING: possible circular locking dependency")), func(c *result.Case) {
		c.Outcome, c.Reasons = result.Fail, []string{scenarios.WarningReason + "WARNING: possible circular locking dependency."}
	})
	for _, tc := range []struct {
		name   string
		cases  []Compared
		notRun int
		word   Word
		status int
		reason string
	}{
		{"mended", pairs(clustered, spread, spread, spread), 0, WordBetter, 0, ""},
		{"as it was", pairs(spread, spread), 0, WordUnchanged, 0, ""},
		{"otherwise", pairs(onCores, spread, spread, spread), 0, WordChanged, 0, ""},
		{"mended here, broken there", pairs(clustered, spread, spread, fails), 0, WordWorse, 1, "neighbour: it fails, and did not before: panic"},
		{"a warning that the kernel had", pairs(warned, warned, clustered, spread), 0, WordBetter, 0, "by what the kernel logs without the patch, too"},
		{"a warning that the kernel had, and one more", pairs(warned, changed(warned, warns("BUG: more"))), 0, WordWorse, 1, "BUG: more"},
		{"neither kernel boots", pairs(mute, mute), 0, WordUnknown, 125, "neighbour, without the patch: panic"},
		{"it no longer boots", pairs(spread, mute), 0, WordWorse, 1, "it fails, and did not before: panic"},
		{"mends nothing", pairs(clustered, clustered, spread, spread), 0, WordFails, 1, "still fails: settled: clustered, expected not."},
		{"mends one of two", pairs(clustered, spread, clustered, clustered), 0, WordFails, 1, "still fails"},
		{"known on both sides", pairs(known, known, clustered, spread), 0, WordBetter, 0, ""},
		{"the lab failed with it", pairs(clustered, spread, spread, lab), 0, WordUnknown, 125, "neighbour, with the patch: disk full"},
		{"the lab failed without, and something is worse", pairs(spread, fails, lab, spread), 0, WordUnknown, 125, "neighbour, without the patch: disk full"},
		{"interrupted", pairs(spread, spread), 2, WordUnknown, 125, "2 runs had not ended"},
		{"nothing was run", nil, 0, WordUnknown, 125, ""},
	} {
		got := Judge(tc.cases, true, tc.notRun)
		if got.Word != tc.word || got.Status != tc.status || !strings.Contains(strings.Join(got.Reasons, "\n"), tc.reason) {
			t.Errorf("%s: %+v; want %s, %d: %s", tc.name, got, tc.word, tc.status, tc.reason)
		}
	}
	// What the driver fails is not held against a patch that leaves the driver alone; what it makes worse is, and what fails without the driver.
	user := changed(clustered, func(c *result.Case) { c.Driver = scenarios.DriverVFIO })
	for _, tc := range []struct {
		name  string
		cases []Compared
		word  Word
		say   string
	}{
		{"unchanged", pairs(clustered, clustered), WordUnchanged, "by the driver, which the patch does not change"},
		{"better elsewhere", pairs(clustered, clustered, onDisk(3, 1), onDisk(1, 0)), WordBetter, "by the driver"},
		{"worse", pairs(spread, clustered), WordWorse, "did not before"},
		{"of user space", pairs(user, user), WordFails, "still fails"},
	} {
		if got := Judge(tc.cases, false, 0); got.Word != tc.word || !strings.Contains(strings.Join(got.Reasons, "\n"), tc.say) {
			t.Errorf("a patch to something else, %s: %+v; want %s: %s", tc.name, got, tc.word, tc.say)
		}
	}
}

func TestTouch(t *testing.T) {
	for path, want := range map[string]string{
		"drivers/net/ethernet/microsoft/mana/gdma_main.c": "own",
		"drivers/net/ethernet/microsoft/mana/new.c":       "own",
		"include/net/mana/gdma.h":                         "own",
		"drivers/infiniband/hw/mana/main.c":               "beyond",
		"kernel/irq/matrix.c":                             "beyond",
		"include/linux/irq.h":                             "beyond",
		"drivers/net/ethernet/microsoft/Kconfig":          "beyond",
		"Documentation/networking/mana.rst":               "nothing",
		"MAINTAINERS":                                     "nothing",
		"tools/testing/selftests/net/x.sh":                "nothing",
		"tools/objtool/check.c":                           "beyond",
	} {
		got := Touch([]string{path})
		if slices.Contains(got.Own, path) != (want == "own") || slices.Contains(got.Nothing, path) != (want == "nothing") || slices.Contains(got.Beyond, path) != (want == "beyond") {
			t.Errorf("%s: %+v, want %s", path, got, want)
		}
	}
}

// plan lists what a choice asks of a kernel.
func plan(t *testing.T, c Choice, kernel string) []scenarios.Case {
	t.Helper()
	names, chosen := c.Names(Touched{})
	var cases []scenarios.Case
	for _, name := range names {
		sc, err := scenarios.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		more, _, err := sc.Plan(scenarios.Overrides{Kernels: []string{kernel}})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range more {
			if chosen == nil || slices.Contains(chosen, m.Name) {
				cases = append(cases, m)
			}
		}
	}
	return Ask(cases, false)
}

// The usual cases are all there, whatever the kernel, each on the machine that it is for.
func TestUsualCases(t *testing.T) {
	for _, kernel := range []string{"debian:6.1", "debian:6.18", "debian:7.3"} {
		cases := plan(t, Choice{}, kernel)
		var names []string
		smt, cpus, nodes, neighbours, offline := map[int]bool{}, map[int]bool{}, map[int]bool{}, map[bool]bool{}, false
		for _, c := range cases {
			names = append(names, c.Name)
			smt[c.Shape.Threads], cpus[c.Shape.CPUs()], nodes[c.Shape.Nodes], neighbours[len(c.Pressure) > 0] = true, true, true, true
			offline = offline || len(c.Offline) > 0
			if !c.Judges() {
				t.Errorf("%s on %s expects nothing", c.Name, kernel)
			}
		}
		if !slices.Equal(names, usual) {
			t.Errorf("%s: %q, want %q", kernel, names, usual)
		}
		if !smt[1] || !smt[2] || !cpus[2] || !cpus[4] || !cpus[8] || !nodes[1] || !nodes[2] || !neighbours[true] || !neighbours[false] || !offline {
			t.Errorf("%s: threads %v, CPUs %v, nodes %v, neighbours %v, offline %t: something is missing", kernel, smt, cpus, nodes, neighbours, offline)
		}
	}
}

// With all, every case is the kernel's driver's, none runs what another does, and no scenario but faults holds the driver to its version's masks.
func TestAllCases(t *testing.T) {
	cases := plan(t, Choice{All: true}, "debian:7.3")
	of := map[string]int{}
	seen := map[string]bool{}
	for _, c := range cases {
		of[c.Scenario]++
		_, what, _ := strings.Cut(c.Setup(), "|")
		if c.Driver != scenarios.DriverMana || seen[what] {
			t.Errorf("%s/%s: driver %s, run already: %t", c.Scenario, c.Name, c.Driver, seen[what])
		}
		seen[what] = true
		if slices.Contains(more, c.Scenario) && c.Scenario != "spread" && (c.Judges() || c.Expect.Branch != nil || c.Expect.Settled != nil && c.Expect.Settled.QueueMasks != nil) {
			t.Errorf("%s/%s holds the driver to its version", c.Scenario, c.Name)
		}
		for _, s := range c.Steps {
			if slices.Contains(more, c.Scenario) && s.Expect != nil && (s.Expect.QueueMasks != nil || s.Expect.Log != nil) {
				t.Errorf("%s/%s, line %d: holds the driver to its version", c.Scenario, c.Name, s.Line)
			}
		}
	}
	for _, name := range []string{Scenario, "spread", "vector-boundary", "device-node", "unplug-during-reset", "unplug-during-probe", "unplug-storm", "hwc-status"} {
		if of[name] == 0 {
			t.Errorf("no case of %s; there are %v", name, of)
		}
	}
	if len(cases) <= len(usual)+len(more) {
		t.Errorf("%d cases", len(cases))
	}
}

func TestNames(t *testing.T) {
	own := Touched{Own: []string{ModuleDir + "/mana_en.c"}}
	genirq := Touched{Beyond: []string{"kernel/irq/matrix.c"}}
	disk := Touched{Beyond: []string{"drivers/nvme/host/pci.c", "block/blk-mq.c"}}
	all, both, few := strings.Join(usual, " "), Scenario+" "+ManagedIRQs, strings.Join(managed, " ")
	for _, tc := range []struct {
		c            Choice
		of           Touched
		names, cases string
	}{
		{Choice{}, own, Scenario, all},
		{Choice{}, genirq, both, all + " " + few},
		{Choice{}, disk, both, besideDisk + " " + few},
		{Choice{}, Touched{Own: own.Own, Beyond: disk.Beyond}, both, all + " " + few},
		{Choice{}, Touched{Beyond: append(slices.Clone(disk.Beyond), "drivers/nvmem/core.c")}, both, all + " " + few},
		{Choice{Cases: []string{"leaves"}}, own, Scenario, "leaves"},
		{Choice{Cases: []string{"leaves"}}, disk, both, "leaves"},
		{Choice{Scenarios: []string{"spread"}}, own, "spread", ""},
		{Choice{Scenarios: []string{"spread"}}, genirq, "spread", ""},
		{Choice{Scenarios: []string{"spread"}, Cases: []string{"a"}}, own, "spread", "a"},
	} {
		names, cases := tc.c.Names(tc.of)
		if strings.Join(names, " ") != tc.names || strings.Join(cases, " ") != tc.cases {
			t.Errorf("%+v of %+v: %q, %q; want %q, %q", tc.c, tc.of, names, cases, tc.names, tc.cases)
		}
	}
	for _, of := range []Touched{own, genirq} {
		names, _ := Choice{All: true}.Names(of)
		if !slices.Contains(names, Scenario) || !slices.Contains(names, AnyMachine) || slices.Contains(names, ManagedIRQs) != (len(of.Beyond) > 0) {
			t.Errorf("all of %+v: %q", of, names)
		}
	}
}

// trial is the published story, with what a reader has to know beside.
func trial(cases []Compared) Trial {
	t := New("debian:6.18")
	t.IRQLab, t.Command = "1.2", "irqlab try 'a mail.txt' another-mail-with-a-long-name.txt --kernel debian:6.18 --shape cores=4"
	t.Kernel.Release, t.Kernel.Compiler = "6.18.15+deb13-cloud-amd64", "gcc-14 (Debian 14.2.0-19) 14.2.0"
	t.Patches = []Patch{{Title: "net: driver: Spread the vectors of machines with few CPUs, of which the title says a lot", Version: 5, Tags: []string{"net"}, ID: strings.Repeat("ab", 20), Source: "a mail.txt"}}
	t.ID = strings.Repeat("ab", 20)
	t.Hunks = []Hunk{
		{Path: "a.c", Where: "a.c, hunk 1 of 2 (a mail.txt, line 40)", Line: 10},
		{Path: "a.c", Where: "a.c, hunk 2 of 2 (a mail.txt, line 60)", Line: 100, Offset: 7, Fuzz: 1},
	}
	t.Outside = []string{"Documentation/x.rst"}
	t.Module = &Module{Name: "mana", SHA256: strings.Repeat("0f", 32), Warnings: []Diagnostic{{File: "a.c", Line: 12, Text: "unused variable 'x' [-Wunused-variable]"}}, Identical: true, Functions: 321, Without: "the distribution's own module"}
	t.Seconds = Seconds{Source: 0.5, Build: 3.21, Cases: 12, Total: 16}
	t.Cases = cases
	t.Verdict = Judge(cases, true, 0)
	return t
}

func stories() map[string]Trial {
	eight := func(queues ...int) result.Case {
		c := oneSide(result.Pass, "linear", queues...)
		c.Name, c.Shape, c.Pressure = "node-1", shape.Shape{Sockets: 2, Cores: 2, Threads: 2, Nodes: 2, MemoryMiB: 512}, nil
		node := 1
		c.DeviceNode = &node
		c.Online = cpulist.Range(0, 7)
		c.Observations = []result.Observation{reading("before", cpulist.Range(0, 7), "linear", queues...), reading("left", cpulist.Range(0, 6), "linear", queues[:7]...)}
		return c
	}
	quiet := changed(spread, func(c *result.Case) { c.Name, c.Pressure = "quiet", nil })
	panicked := changed(quiet, func(c *result.Case) {
		c.Outcome, c.Reasons, c.Observations = result.Fail, []string{"the guest panicked: \x1b[2J a line that is long enough to be broken somewhere in the middle of it all\nmore"}, nil
		c.KernelLog.Warnings = []string{"Kernel panic - not syncing: Fatal exception"}
	})
	lab := changed(quiet, func(c *result.Case) {
		c.Outcome, c.Reasons, c.Observations = result.Error, []string{"QEMU was killed"}, nil
	})
	taken := trial(pairs(spread, clustered))
	taken.Reversed = true
	broken := trial(nil)
	broken.Module, broken.Errors = nil, []Diagnostic{{File: "drivers/net/ethernet/microsoft/mana/gdma_main.c", Line: 7, Text: "'y' undeclared (first use in this function)"}}
	broken.Verdict = Verdict{Word: WordDoesNotBuild, Status: report.ExitError, Reasons: []string{"3 more errors"}}
	differs := trial(pairs(quiet, quiet))
	differs.Module.Identical, differs.Module.Differ = false, []string{"f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9"}
	unchecked := trial(pairs(clustered, clustered))
	unchecked.Module.Unchecked, unchecked.Hunks = "the kernel came without modules", nil
	whole := trial(pairs(quiet, quiet, clustered, spread))
	whole.Module, whole.Kernel.Source, whole.Seconds.Base, whole.Seconds.Build = nil, "linux-source-6.18 of a suite", 432.1, 61.4
	whole.Kernels = &Kernels{Without: Built{Release: "6.18.15-irqlab", Path: "/cache/base"}, With: Built{Release: "6.18.15-irqlab", Path: "/cache/patched"}, Debug: []string{"kasan", "lockdep"},
		Warnings: []Diagnostic{{File: "kernel/irq/a.c", Line: 12, Text: "unused variable 'x' [-Wunused-variable]"}}, Unused: []string{"arch/arm64/kernel/irq.c", "drivers/net/ethernet/other/main.c"}}
	unseen := trial(pairs(quiet, quiet))
	unseen.Module, unseen.Kernels = nil, &Kernels{Without: Built{Cached: true}, With: Built{Cached: true}, Unused: whole.Kernels.Unused}
	unseen.Verdict = unseen.Verdict.Unseen(unseen.Kernels.Unused)
	return map[string]Trial{
		"whole":     whole,
		"unseen":    unseen,
		"better":    trial(pairs(clustered, spread, quiet, quiet, eight(0, 1, 2, 3, 4, 5, 6, 7), eight(7, 6, 5, 4, 3, 2, 1, 0))),
		"worse":     taken,
		"panic":     trial(pairs(quiet, panicked)),
		"unknown":   trial(pairs(clustered, spread, quiet, lab)),
		"broken":    broken,
		"differs":   differs,
		"unchecked": unchecked,
	}
}

// What is shown fits its columns, and is what it was.
func TestRender(t *testing.T) {
	for name, tr := range stories() {
		for kind, render := range map[string]func(*bytes.Buffer) error{
			".txt":  func(b *bytes.Buffer) error { return Table(b, tr) },
			".mail": func(b *bytes.Buffer) error { return Mail(b, tr) },
			".json": func(b *bytes.Buffer) error { return report.JSON(b, tr) },
		} {
			var got bytes.Buffer
			if err := render(&got); err != nil {
				t.Fatal(err)
			}
			golden(t, name+kind, got.Bytes())
			for line := range strings.Lines(got.String()) {
				line = strings.TrimRight(line, "\n")
				if strings.Contains(line, "'mana=") && kind == ".txt" { // one word, which cannot be broken
					line = ""
				}
				if n := layout.Width(line); kind == ".txt" && n > layout.Default || kind == ".mail" && n > mailWidth {
					t.Errorf("%s%s: %d columns: %s", name, kind, n, line)
				}
				if kind != ".json" && (strings.HasSuffix(line, " ") || strings.ContainsRune(line, '\x1b')) {
					t.Errorf("%s%s: %q", name, kind, line)
				}
			}
			if kind == ".json" {
				var back Trial
				if err := json.Unmarshal(got.Bytes(), &back); err != nil || len(back.Cases) != len(tr.Cases) || back.Verdict.Word != tr.Verdict.Word {
					t.Errorf("%s: read back: %v", name, err)
				}
			}
		}
	}
}

// The table takes the width of the terminal, the mail that of mails, and neither a line more than that.
func TestWidth(t *testing.T) {
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ptmx.Close()
	defer tty.Close()
	for _, columns := range []int{60, 80, 132} {
		t.Setenv("COLUMNS", strconv.Itoa(columns))
		for name, tr := range stories() {
			for i := range tr.Cases {
				tr.Cases[i].With.Command = "" // one word of which cannot be broken
			}
			for kind, tc := range map[string]struct {
				render func(io.Writer, Trial) error
				most   int
			}{"table": {Table, columns}, "mail": {Mail, mailWidth}} {
				var got bytes.Buffer
				if err := tc.render(terminal{&got, tty}, tr); err != nil {
					t.Fatal(err)
				}
				longest := 0
				for line := range strings.Lines(got.String()) {
					longest = max(longest, layout.Width(strings.TrimSuffix(line, "\n")))
				}
				if longest > tc.most || longest < tc.most*3/4 {
					t.Errorf("%s of %q in %d columns: the longest line has %d", kind, name, columns, longest)
				}
			}
		}
	}
}

// terminal keeps what is written to a terminal.
type terminal struct {
	io.Writer
	tty io.Writer
}

func (w terminal) Unwrap() io.Writer { return w.tty }

// What is no good of a case stands beside where its vectors are, or below that if the table would be too wide.
func TestOverview(t *testing.T) {
	tr := trial(pairs(clustered, clustered))
	for columns, want := range map[int]string{
		80: "neighbour  1; 0,3,0,2 fail, clustered  1; 0,3,0,2 fail, clustered  unchanged\n",
		70: "neighbour  1; 0,3,0,2       1; 0,3,0,2       unchanged\n           fail, clustered  fail, clustered\n",
	} {
		p := &page{width: columns}
		p.overview(tr)
		if !strings.HasSuffix(p.String(), want) {
			t.Errorf("%d columns:\n%s\nwant:\n%s", columns, p, want)
		}
	}
}

func TestFit(t *testing.T) {
	exact, moved, fuzzy, misfit := Hunk{}, Hunk{Offset: -3}, Hunk{Offset: 3, Fuzz: 1}, Hunk{Misfit: "no"}
	for want, hunks := range map[string][]Hunk{
		"1 hunk, as it is":                               {exact},
		"2 hunks, as they are":                           {exact, exact},
		"2 hunks, 1 at another line than the patch says": {exact, moved},
		"3 hunks, 1 with fuzz":                           {exact, moved, fuzzy},
		"4 hunks, 1 of them not":                         {exact, moved, fuzzy, misfit},
	} {
		if got := (&Trial{Hunks: hunks}).Fit(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s; if this is meant, run go test ./lab/try -update\n-want +got:\n%s", name, d)
	}
}
