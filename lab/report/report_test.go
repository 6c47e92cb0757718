package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/layout"
	"irqlab/scenarios/result"
	"irqlab/scenarios/shape"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// run makes a case of four CPUs; queues are the effective CPUs of its queue vectors.
func run(name, strategy string, outcome result.Outcome, masks []string, queues ...int) result.Case {
	node := 0
	vectors := []result.Vector{{Index: 0, Role: result.RoleHWC, IRQ: 26, Affinity: cpulist.Range(0, 1), Effective: cpulist.List{0}, Counts: map[int]uint64{0: 2}}}
	for i, q := range queues {
		mask, err := cpulist.Parse(masks[i])
		if err != nil {
			panic(err)
		}
		vectors = append(vectors, result.Vector{Index: i + 1, Role: result.RoleQueue, IRQ: 27 + i, Asked: mask, Affinity: mask, Effective: cpulist.List{q}, Handled: cpulist.List{q}, Counts: map[int]uint64{2: 1, q: 2}})
	}
	return result.Case{
		Scenario: "low-vcpu", Name: name, Outcome: outcome, Kernel: "7.3.4+deb13-cloud-amd64", KernelSpec: "debian:7.3", Driver: "vfio", Strategy: strategy, Branch: strategy,
		Irqchip: "msi", Shape: shape.Default(), DeviceNode: &node, Vectors: len(vectors), Pressure: []string{"vectors:before=hwc,cpu0-3=8", "nvme:queues=4"},
		Online: cpulist.Range(0, 3), Start: "cold", Seconds: result.Seconds{Start: 5.1, Run: 1.25, Total: 6.4},
		Observations: []result.Observation{result.Observe("settled", cpulist.Range(0, 3), vectors)},
	}
}

func lowVCPU() result.Report {
	unset := run("unset", "unset", result.Pass, []string{"0-3", "0-3", "0-3", "0-3"}, 2, 3, 2, 3)
	unset.DeviceNode = nil
	return result.Report{Schema: result.Schema, Host: result.Host{QEMU: "11.1.3", Accel: "tcg", AccelReason: "no /dev/kvm", CPUs: 2}, Cases: []result.Case{
		run("numa-aware", "numa-aware", result.Pass, []string{"0-1", "2-3", "0-1", "2-3"}, 0, 2, 0, 3),
		run("linear", "linear", result.Pass, []string{"0", "1", "2", "3"}, 0, 1, 2, 3),
		unset,
	}}
}

func troubled() result.Report {
	r := lowVCPU()
	failed := &r.Cases[0]
	failed.Outcome = result.Fail
	failed.Branch = "numa-aware, first group skipped"
	failed.Reasons = []string{"settled: the queue vectors are on CPUs 0, 2, 0, 3, expected 0, 2, 1, 3.", "The kernel log has a warning, expected none: WARNING: CPU: 1."}
	failed.Notes = []string{"expectations on masks dropped because --vectors overrides"}
	failed.KernelLog.Warnings = []string{"WARNING: CPU: 1 PID: 1 at kernel/irq/manage.c:1\nCall Trace:\n\x1b[2J <TASK>"}
	failed.Observations[0].Vectors[3].Pending = true
	dropped := &failed.Observations[0].Vectors[2]
	dropped.Asked, dropped.Affinity, dropped.Dropped = cpulist.List{1}, cpulist.Range(0, 3), true
	failed.Observations[0].Vectors[4].Handled = cpulist.Range(0, 2)
	failed.Artifacts = result.Artifacts{Console: "low-vcpu/numa-aware/console.log", Trace: "low-vcpu/numa-aware/trace.jsonl"}
	failed.Evidence = &result.Evidence{Until: 1.136701, Held: []string{"late (hold at vector:1)"}, Awaited: []string{"the device's answer to request FENCE_RQ, since 1.012841"}, Events: []result.Event{
		{T: 0.911908, Source: "step", What: "bringing eth0 up"}, {T: 1.012841, Source: "device", What: "request FENCE_RQ\x1b[2J"}, {T: 1.107483, Source: "vector", What: "vector 0-4 fired, 6 times until 1.126108"}}}
	lost := &r.Cases[1]
	*lost = result.Case{Scenario: "low-vcpu", Name: "linear", Outcome: result.Error, KernelSpec: "debian:7.3", Driver: "mana", Irqchip: "msi", Shape: shape.Default(), Vectors: 5,
		Reasons: []string{"guest: not ready after 60s; last console lines:\n[    1.0] a\n[    2.0] b"}}
	return r
}

// alternatives has names of two parts: a matrix.
func alternatives() result.Report {
	r := result.Report{Schema: result.Schema, Host: result.Host{QEMU: "11.1.3", Accel: "kvm", CPUs: 1}}
	for _, s := range []string{"numa-aware", "linear"} {
		for _, p := range []string{"quiet", "busy"} {
			queues := []int{0, 1, 2, 3}
			if s == "numa-aware" && p == "busy" {
				queues = []int{1, 2, 1, 2}
			}
			c := run(s+"/"+p, s, result.Pass, []string{"0-3", "0-3", "0-3", "0-3"}, queues...)
			c.Scenario = "alternatives"
			r.Cases = append(r.Cases, c)
		}
	}
	r.Cases[3].Outcome = result.Fail
	r.Cases[3].Observations = nil
	return r
}

// large has more CPUs than columns, and a long row.
func large() result.Report {
	var vectors []result.Vector
	for i := range 33 {
		v := result.Vector{Index: i, Role: result.RoleQueue, IRQ: 40 + i, Affinity: cpulist.Range(2*i, 2*i+1), Hint: cpulist.Range(2*i, 2*i+1), Effective: cpulist.List{2 * i}, Counts: map[int]uint64{2 * i: 1}}
		if i == 0 {
			v.Role = result.RoleHWC
		}
		vectors = append(vectors, v)
	}
	c := result.Case{Scenario: "ht-core-spread", Name: "numa-aware", Outcome: result.Pass, Kernel: "7.3", Driver: "mana", Irqchip: "msi",
		Shape: shape.Shape{Sockets: 2, Cores: 32, Threads: 2, Nodes: 2, MemoryMiB: 2048}, Vectors: 33, Online: cpulist.Range(0, 127),
		Observations: []result.Observation{result.Observe("settled", cpulist.Range(0, 127), vectors)}}
	return result.Report{Schema: result.Schema, Cases: []result.Case{c}}
}

// steps has two experiments: one with all that a step can tell, and one that fails as is known.
func steps() result.Report {
	r := lowVCPU()
	r.Cases = r.Cases[1:]
	c := &r.Cases[0]
	c.Steps = []result.Step{
		{At: "0", Text: "hold at request:QUERY_DEV_CONFIG (configuration)", Line: 3, Outcome: result.StepDone},
		{At: "1", Text: "offline 3", Line: 4, Start: 0.5, End: 0.75, Outcome: result.StepRefused, Refusal: "guest: CPU 3: going offline: device or resource busy\nmore"},
		{At: "2.1.0", Text: "expect", Line: 5, Start: 1, End: 1, Outcome: result.StepDone,
			Log: []result.LogMatch{{Pattern: "#2", Line: "MANA IRQ indices #2-3 will retain the default CPU affinity\x1b[2J"}, {Pattern: "oops"}}, Counted: []result.Count{{Step: "smc:establish", N: 2}}},
		{At: "3", Text: "storm on CPUs 2-3, 200 rounds", Line: 6, Start: 1, End: 91.2, Outcome: result.StepDone, Storm: &result.Storm{Rounds: 200, Vectors: []result.StormVector{
			{Index: 0, Fired: 2531, Handled: 2500, Own: 31}, {Index: 1, Fired: 2500, Handled: 2500}, {Index: 2, Fired: 2500, Handled: 2499}}}},
	}
	c.Rules = []result.Rule{{Name: "configuration", Text: "hold at request:QUERY_DEV_CONFIG", Hits: 1}, {Name: "late", Text: "delay at vector:1", Tells: "last: vector:2 (1)"}}
	failed := &r.Cases[1]
	failed.Outcome, failed.Known, failed.Reasons = result.Fail, "the driver leaves its event queues behind (mana-protocol.md 8.2)", []string{"Step 0 (unload, line 9) failed: 4 event queues are left."}
	failed.Steps = []result.Step{{At: "0", Text: "unload", Line: 9, End: 0.1, Outcome: result.StepFailed, Refusal: "4 event queues are left"}}
	return r
}

// modulesReplaced has a case with a module of the user's own, and one that came to no guest.
func modulesReplaced() result.Report {
	r := lowVCPU()
	r.Cases = r.Cases[:2]
	r.Cases[0].Modules = []result.Module{{Name: "mana", File: "/tmp/\x1b[2Jmana.ko", SHA256: strings.Repeat("0123456789abcdef", 4)}}
	r.Cases[1].Modules = []result.Module{{Name: "mana", File: "mana.ko"}}
	return r
}

func TestTable(t *testing.T) {
	for _, tc := range []struct {
		golden string
		report result.Report
		colour bool
	}{
		{"low-vcpu.txt", lowVCPU(), false},
		{"troubled.txt", troubled(), false},
		{"troubled-colour.txt", troubled(), true},
		{"alternatives.txt", alternatives(), false},
		{"large.txt", large(), false},
		{"steps.txt", steps(), false},
		{"modules.txt", modulesReplaced(), false},
		{"empty.txt", result.Report{Schema: result.Schema}, false},
	} {
		t.Run(tc.golden, func(t *testing.T) {
			var got bytes.Buffer
			if err := render(&got, tc.report, &page{columns: layout.Default, colour: tc.colour}, (*page).everything); err != nil {
				t.Fatal(err)
			}
			golden(t, tc.golden, got.Bytes())
			if !tc.colour && bytes.ContainsRune(got.Bytes(), '\x1b') {
				t.Error("an escape sequence without colour")
			}
			for line := range strings.Lines(got.String()) {
				if strings.TrimRight(line, " \n") != strings.TrimRight(line, "\n") {
					t.Errorf("trailing space: %q", line)
				}
			}
		})
	}
}

func TestMarkdown(t *testing.T) {
	r := troubled()
	r.Cases[0].KernelLog.Warnings[0] += "\n````\n# not a heading"
	var got bytes.Buffer
	if err := Markdown(&got, r); err != nil {
		t.Fatal(err)
	}
	golden(t, "troubled.md", got.Bytes())
	if !strings.Contains(got.String(), "\n`````\n") {
		t.Error("the guest's words end the code block they are in")
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s; if this is meant, run go test ./lab/report -update\n-want +got:\n%s", name, d)
	}
}

func TestTableHasNoColourInAFile(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Table(f, lowVCPU()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(f.Name())
	if err != nil || len(b) == 0 || bytes.ContainsRune(b, '\x1b') {
		t.Errorf("%d bytes, error %v", len(b), err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestWriteErrors(t *testing.T) {
	if err := Table(full{}, lowVCPU()); err == nil {
		t.Error("Table hides a failed write")
	}
	if err := JSON(full{}, lowVCPU()); err == nil {
		t.Error("JSON hides a failed write")
	}
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	if err := JSON(&b, troubled()); err != nil {
		t.Fatal(err)
	}
	golden(t, "troubled.json", b.Bytes())
	var back result.Report
	d := json.NewDecoder(&b)
	d.DisallowUnknownFields()
	if err := d.Decode(&back); err != nil || len(back.Cases) != 3 || back.Cases[0].Find("settled") == nil {
		t.Errorf("read back: %v", err)
	}
	if d.More() {
		t.Error("more than one object")
	}
}

func TestExitStatus(t *testing.T) {
	for want, outcomes := range map[int][][]result.Outcome{
		ExitPass:  {{result.Pass}, {result.Pass, result.Pass}},
		ExitFail:  {{result.Fail}, {result.Pass, result.Fail, result.Pass}},
		ExitError: {{}, {result.Error}, {result.Error, result.Fail}, {result.Fail, result.Error, result.Pass}, {""}},
	} {
		for _, os := range outcomes {
			var r result.Report
			for _, o := range os {
				r.Cases = append(r.Cases, result.Case{Outcome: o})
			}
			if got := ExitStatus(r); got != want {
				t.Errorf("ExitStatus(%v) = %d, want %d", os, got, want)
			}
		}
	}
}
