package runner

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"irqlab/images"
	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

func runCases(t *testing.T, cases []scenarios.Case, o Options) result.Report {
	t.Helper()
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	o.Cache = cache
	if o.Timeout == 0 {
		o.Timeout = 8 * time.Minute // the machine may be busy with other tests' guests
	}
	rep, err := Run(t.Context(), cases, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Cases) != len(cases) {
		t.Fatalf("%d results for %d cases", len(rep.Cases), len(cases))
	}
	return rep
}

func plan(t *testing.T, sc *scenarios.Scenario, err error, o scenarios.Overrides) []scenarios.Case {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	cases, _, err := sc.Plan(o)
	if err != nil {
		t.Fatal(err)
	}
	return cases
}

// allVariable has everything run that the plain suite takes samples of: every shipped case both cold and warm, shapes of any size, experiments of steps (`task agreement`).
const allVariable = "IRQLAB_ALL"

func all() bool { return os.Getenv(allVariable) != "" }

// maxCPUs a shape of the plain suite has: a larger one boots for minutes without KVM.
const maxCPUs = 16

// samples are the experiments of steps that the plain suite has time for, one of each sort: a reset service alone sleeps for 10 s.
var samples = []string{
	"unplug-during-probe/linear/debian:7.3", "unplug-during-probe/user-space/debian:7.3", "unplug-during-reset/surplus-2/debian:7.3",
	"unplug-after/acpi/debian:7.3", "unplug-storm/driver/debian:7.3", "remove/linear/debian:7.3", "suspend/linear-idle/debian:7.3", "suspend/user-space-ram/debian:7.3", "nosmt/debian:7.3",
}

const sampleRounds = 10 // of a storm

// shipped lists the cases of every shipped scenario that the suite has time for.
func shipped(t *testing.T) []scenarios.Case {
	t.Helper()
	var cases []scenarios.Case
	sampled := 0
	for _, name := range scenarios.Shipped() {
		sc, err := scenarios.Get(name)
		for _, c := range plan(t, sc, err, scenarios.Overrides{}) {
			sample := slices.Contains(samples, c.Scenario+"/"+c.Name)
			if sample && !all() {
				sampled++
				eachStep(c.Steps, func(s *scenarios.Step) { s.Storm.Rounds = min(s.Storm.Rounds, sampleRounds) })
			}
			if all() || sample || c.Shape.CPUs() <= maxCPUs && c.Steps == nil {
				cases = append(cases, c)
			}
		}
	}
	if !all() && sampled != len(samples) {
		t.Errorf("%d of the samples %q are shipped", sampled, samples)
	}
	return cases
}

// Every case of every shipped scenario passes, forked from a snapshot, and what it reports has the form of the contract. A guest that is booted for the case puts every vector on the
// same CPU, by the same masks, but where the scenario says that boot history decides; the plain suite compares one case of each sort of machine.
func TestShipped(t *testing.T) {
	t.Parallel()
	cases := shipped(t)
	out := t.TempDir()
	rep := runCases(t, cases, Options{Out: out, Start: lab.StartAuto})
	for i, c := range rep.Cases {
		if c.Outcome != result.Pass && cases[i].KnownFailure() == "" {
			t.Errorf("%s/%s: %s: %s\n%s", c.Scenario, c.Name, c.Outcome, strings.Join(c.Reasons, "\n"), strings.Join(c.KernelLog.Warnings, "\n"))
			continue
		}
		if c.Start != lab.StartWarm {
			t.Errorf("%s/%s: started %s: %q", c.Scenario, c.Name, c.Start, c.Notes)
		}
		testForm(t, c)
		for _, f := range []string{c.Artifacts.Console, c.Artifacts.Trace} {
			if st, err := os.Stat(filepath.Join(out, f)); err != nil || st.Size() == 0 {
				t.Errorf("%s/%s: artifact %q: %v", c.Scenario, c.Name, f, err)
			}
		}
		testTimeline(t, c, filepath.Join(out, c.Artifacts.Timeline))
	}
	var again []scenarios.Case
	var warm []result.Case
	sorts := map[string]bool{}
	for i, c := range cases {
		if s := sortOf(&c); all() || !sorts[s] {
			sorts[s] = true
			again, warm = append(again, c), append(warm, rep.Cases[i])
		}
	}
	for i, c := range runCases(t, again, Options{Start: lab.StartCold}).Cases {
		if c.Start != lab.StartCold || len(c.Observations) == 0 {
			t.Errorf("%s/%s: started %s, %d observations: %s %q", c.Scenario, c.Name, c.Start, len(c.Observations), c.Outcome, c.Reasons)
		}
		free := historyDecides(t, &again[i])
		if d := cmp.Diff(see(c, free), see(warm[i], free)); d != "" {
			t.Errorf("%s/%s: (-cold +warm)\n%s", c.Scenario, c.Name, d)
		}
	}
	t.Logf("%d cases of %d compared, %d sorts of machine", len(again), len(cases), len(sorts))
}

// sortOf tells machines apart by what a start could make differ: CPUs, nodes, other devices, CPUs taken offline, and who drives the function.
func sortOf(c *scenarios.Case) string {
	return fmt.Sprint(c.Shape.CPUs(), c.Shape.Nodes, c.Irqchip, c.Pressure.Neighbours() != nil, c.Pressure.Levels(scenarios.BeforeHWC) != nil, c.Offline != nil)
}

// seen is what a start must not change. IRQ numbers and counts are the kernel's own business: they depend on what it has done before.
type seen struct {
	Outcome, Branch, Online string
	Observations            []observed
}

type observed struct {
	Label, Online, Idle string
	Clustered           bool
	Vectors             []vector
}

type vector struct {
	Index                           int
	Role, Affinity, Hint, Effective string
	Pending                         bool
}

// historyDecides tells whether the case's scenario says that its boot history has a part in which CPU of a mask a vector comes to, and the case names none itself.
func historyDecides(t *testing.T, c *scenarios.Case) bool {
	t.Helper()
	sc, err := scenarios.Get(c.Scenario)
	if err != nil {
		t.Fatal(err)
	}
	named := c.Expect.Settled != nil && c.Expect.Settled.Queues != nil
	return !named && strings.Contains(sc.Text+c.Text, "boot history")
}

// see takes down what a start must not change; anyCPU: where in its mask a vector is may change, that it is there may not.
func see(c result.Case, anyCPU bool) seen {
	s := seen{Outcome: string(c.Outcome), Branch: c.Branch, Online: c.Online.String()}
	for _, o := range c.Observations {
		row := observed{Label: o.Label, Online: o.Online.String(), Idle: o.IdleCPUs.String(), Clustered: o.Clustered}
		if anyCPU {
			row.Idle, row.Clustered = "", false
		}
		for _, v := range o.Vectors {
			on := v.Effective.String()
			if anyCPU && v.Effective.Within(v.Affinity) {
				on = "in its mask"
			}
			row.Vectors = append(row.Vectors, vector{v.Index, v.Role, v.Affinity.String(), v.Hint.String(), on, v.Pending})
		}
		s.Observations = append(s.Observations, row)
	}
	return s
}

// testForm checks a passed case against the contract's JSON.
func testForm(t *testing.T, c result.Case) {
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Scenario, Case, Outcome, Kernel, Driver, Strategy, Irqchip, Online, Start *string
		Reasons                                                                   []string
		Shape                                                                     struct{ Sockets, Cores, Threads, Nodes, CPUs, Memory_MiB int }
		Seconds                                                                   map[string]float64
		Observations                                                              []struct {
			Label, Online string
			Vectors       []struct {
				Index, IRQ                *int
				Role, Affinity, Effective string
				Hint                      *string
				Pending                   *bool
				Counts                    map[string]uint64
			}
			Clustered *bool
			Idle_CPUs *string
		}
		Kernel_Log *struct{ Warnings *[]string }
		Artifacts  *struct{ Console, Trace string }
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	for name, p := range map[string]*string{
		"scenario": v.Scenario, "case": v.Case, "outcome": v.Outcome, "kernel": v.Kernel, "driver": v.Driver, "strategy": v.Strategy, "irqchip": v.Irqchip, "online": v.Online, "start": v.Start,
	} {
		if p == nil {
			t.Errorf("case %s: the JSON lacks %s: %s", c.Name, name, b)
		}
	}
	if v.Reasons == nil || v.Kernel_Log == nil || v.Kernel_Log.Warnings == nil || v.Shape.CPUs != c.Shape.CPUs() || v.Shape.Memory_MiB == 0 || v.Seconds["total"] <= 0 || len(v.Observations) == 0 {
		t.Errorf("case %s: the JSON is not the contract's: %s", c.Name, b)
	}
	for _, o := range v.Observations {
		if o.Clustered == nil || o.Idle_CPUs == nil || o.Online == "" || len(o.Vectors) == 0 {
			t.Errorf("case %s: observation %s is not the contract's: %s", c.Name, o.Label, b)
		}
		for i, x := range o.Vectors {
			if x.Index == nil || *x.Index != i || x.IRQ == nil || (x.Role == result.RoleHWC) != (i == 0) || x.Affinity == "" || x.Effective == "" || x.Hint == nil || x.Pending == nil || len(x.Counts) == 0 {
				t.Errorf("case %s: vector %d is not the contract's: %s", c.Name, i, b)
			}
		}
	}
}

// The published rows come out every time.
func TestPublishedRowsAgainAndAgain(t *testing.T) {
	t.Parallel()
	const rounds = 3 // more would take the suite's time; ten and more in a row have been run
	want := map[string]string{"numa-aware": "0; 0, 2, 0, 3", "linear": "0; 0, 1, 2, 3", "unset": "0; 2, 3, 2, 3"}
	sc, err := scenarios.Get(scenarios.Default)
	cases := plan(t, sc, err, scenarios.Overrides{})
	if len(cases) != len(want) {
		t.Fatalf("%d cases, want %d", len(cases), len(want))
	}
	for round := range rounds {
		for _, c := range runCases(t, cases, Options{Start: lab.StartAuto}).Cases {
			o := c.Find(scenarios.LabelSettled)
			if o == nil {
				t.Errorf("round %d, %s: %s: %s", round, c.Name, c.Outcome, strings.Join(c.Reasons, "\n"))
				continue
			}
			hwc, queues := o.Placement()
			if got := hwc.String() + "; " + scenarios.Row(queues); c.Outcome != result.Pass || got != want[c.Name] {
				t.Errorf("round %d, %s: %s with %s, want %s", round, c.Name, c.Outcome, got, want[c.Name])
			}
		}
	}
}

// What is broken on purpose is told apart: an expectation or a guest that fails is a fail with its evidence, what the lab could not do is an error.
func TestTruth(t *testing.T) {
	t.Parallel()
	const yaml = "name: truth\nstrategy: linear\nexpect: {settled: {queues: [3, 2, 1, 0]}}\n"
	for _, tc := range []struct {
		name      string
		overrides scenarios.Overrides
		options   Options
		outcome   result.Outcome
		reason    string
	}{
		{name: "wrong expectation", options: Options{Start: lab.StartAuto}, outcome: result.Fail, reason: "0, 1, 2, 3"},
		{name: "panic", options: Options{Cmdline: []string{"rdinit=/no/such/init"}}, outcome: result.Fail, reason: "Kernel panic"},
		{name: "hang", options: Options{Cmdline: []string{"rdinit=/bbin/cat"}, Timeout: 25 * time.Second}, outcome: result.Fail, reason: lab.DefaultKernel[len("debian:"):]},
		{name: "no modules", overrides: scenarios.Overrides{Kernels: []string{bareKernel(t)}}, outcome: result.Error, reason: "vfio"},
		{name: "no such QEMU", options: Options{QEMU: "/no/such/qemu"}, outcome: result.Error, reason: "/no/such/qemu"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sc, err := scenarios.Load("truth.yaml", []byte(yaml))
			cases := plan(t, sc, err, tc.overrides)
			cache, err := images.OpenCache("")
			if err != nil {
				t.Fatal(err)
			}
			tc.options.Cache = cache
			rep, err := Run(t.Context(), cases, tc.options)
			if err != nil { // nothing ran
				if tc.outcome != result.Error || !strings.Contains(err.Error(), tc.reason) {
					t.Errorf("%v; want %s about %q", err, tc.outcome, tc.reason)
				}
				return
			}
			c := rep.Cases[0]
			if reasons := strings.Join(c.Reasons, "\n"); c.Outcome != tc.outcome || !strings.Contains(reasons, tc.reason) {
				t.Errorf("%s: %s; want %s about %q", c.Outcome, reasons, tc.outcome, tc.reason)
			}
		})
	}
}

// bareKernel is a kernel image without its modules.
func bareKernel(t *testing.T) string {
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	k, err := cache.Kernel(t.Context(), lab.DefaultKernel, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(k.Image)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "vmlinux")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
