package report

import (
	"bytes"
	"encoding/json"
	"testing"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/layout"
	"irqlab/scenarios/result"
	"irqlab/scenarios/shape"
)

// fix is the published story: the same five vectors before and after the patch.
func fix() (before, after result.Report) {
	a := run("before-fix/debian:6.18", "", result.Pass, []string{"0-1", "2-3", "0-1", "2-3"}, 0, 3, 0, 2)
	a.Kernel, a.KernelSpec, a.Driver, a.Branch = "6.18.15+deb13-cloud-amd64", "debian:6.18", "mana", "numa-aware"
	b := run("fixed/debian:7.3", "", result.Pass, []string{"0", "1", "2", "3"}, 0, 1, 2, 3)
	b.Driver, b.Branch = "mana", "linear"
	for _, c := range []*result.Case{&a, &b} {
		c.Scenario = "low-vcpu-driver"
		for i := range c.Observations[0].Vectors {
			v := &c.Observations[0].Vectors[i]
			v.Hint = v.Affinity
		}
	}
	host := result.Host{QEMU: "11.1.3", Accel: "tcg", CPUs: 2}
	return result.Report{Schema: result.Schema, Host: host, Cases: []result.Case{a}}, result.Report{Schema: result.Schema, Host: host, Cases: []result.Case{b}}
}

// module is the same under one kernel, with a changed module.
func module() (before, after result.Report) {
	before, after = fix()
	b := &after.Cases[0]
	b.Name, b.Kernel, b.KernelSpec = "before-fix/with", before.Cases[0].Kernel, before.Cases[0].KernelSpec
	b.Modules = []result.Module{{Name: "mana", File: "/tmp/\x1b[2Jmana.ko", SHA256: "0123456789abcdef"}}
	return before, after
}

// uneven is a pair of which one kernel's driver has a vector less, another that fails, and one that did not run.
func uneven() (before, after result.Report) {
	before, after = fix()
	b := &after.Cases[0]
	b.Outcome, b.Reasons = result.Fail, []string{"The driver took the branch \"linear\", expected \"numa-aware\"."}
	vectors := b.Observations[0].Vectors[:4]
	vectors[3].Pending, vectors[3].Hint = true, nil
	vectors[2].Role = result.RoleUnused
	b.Observations[0] = result.Observe("settled", cpulist.Range(0, 3), vectors)
	b.KernelLog.Warnings = []string{"WARNING: \x1b[2J"}
	same, lost := before.Cases[0], before.Cases[0]
	same.Name, lost.Name = "same/debian:6.18", "lost/debian:6.18"
	before.Cases = append(before.Cases, same, lost)
	same.Name, same.KernelSpec = "same/debian:7.3", "debian:7.3"
	lost = result.Case{Scenario: "low-vcpu-driver", Name: "lost/debian:7.3", KernelSpec: "debian:7.3", Outcome: result.Error, Shape: shape.Default(), Reasons: []string{"no such kernel"}}
	after.Cases = append(after.Cases, same, lost)
	return before, after
}

func TestCompare(t *testing.T) {
	for _, tc := range []struct {
		golden string
		pair   func() (result.Report, result.Report)
		status int
	}{
		{"compare-fix", fix, ExitPass},
		{"compare-uneven", uneven, ExitError},
		{"compare-module", module, ExitPass},
		{"compare-nothing", func() (a, b result.Report) { return }, ExitError},
	} {
		t.Run(tc.golden, func(t *testing.T) {
			c := Compare(tc.pair())
			var table, doc bytes.Buffer
			if err := renderComparison(&table, c, &page{columns: layout.Default}); err != nil {
				t.Fatal(err)
			}
			golden(t, tc.golden+".txt", table.Bytes())
			if err := JSON(&doc, c); err != nil {
				t.Fatal(err)
			}
			golden(t, tc.golden+".json", doc.Bytes())
			var back Comparison
			if err := json.Unmarshal(doc.Bytes(), &back); err != nil || len(back.Differences) != len(c.Differences) || len(back.A.Cases) != len(c.A.Cases) {
				t.Errorf("read back: %v", err)
			}
			if bytes.ContainsRune(table.Bytes(), '\x1b') {
				t.Error("an escape sequence without colour")
			}
			if got := CompareStatus(c); got != tc.status {
				t.Errorf("status %d, want %d", got, tc.status)
			}
		})
	}
}

// TestCompareIgnoresTheRun: what differs from run to run is no difference between kernels.
func TestCompareIgnoresTheRun(t *testing.T) {
	a, _ := fix()
	b, _ := fix()
	b.Cases[0].Seconds.Total *= 2
	for i := range b.Cases[0].Observations[0].Vectors {
		v := &b.Cases[0].Observations[0].Vectors[i]
		v.IRQ, v.Counts = v.IRQ+7, map[int]uint64{0: 99}
	}
	if d := Compare(a, b).Differences; len(d) > 0 {
		t.Errorf("%+v", d)
	}
}

func TestCompareWriteErrors(t *testing.T) {
	if err := CompareTable(full{}, Compare(fix())); err == nil {
		t.Error("CompareTable hides a failed write")
	}
	if err := JSON(full{}, Compare(fix())); err == nil {
		t.Error("JSON hides a failed write")
	}
}

// A rename is a difference: scripts match names in /proc/interrupts. What vfio calls a vector is none.
func TestCompareNames(t *testing.T) {
	name := func(words ...string) *result.Case {
		c := run("x", "linear", result.Pass, nil)
		o := result.Observation{Label: "settled"}
		for i, w := range words {
			o.Vectors = append(o.Vectors, result.Vector{Index: i, Role: result.RoleQueue, Action: w})
		}
		c.Observations = []result.Observation{o}
		return &c
	}
	d := differences(name("mana_hwc@pci:x", "mana_q0@pci:x", "mana_q1@pci:x"), name("mana_hwc@pci:y", "mana_msi1@pci:y", "mana_msi2@pci:y"))
	if got, want := summarize(d), "name of vector 1-2 (mana_q0 is mana_msi1)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if d := differences(name("vfio-msix[0](a)"), name("vfio-msix[0](b)")); len(d) > 0 {
		t.Errorf("%+v", d)
	}
}
