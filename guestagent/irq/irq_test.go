package irq

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
)

// As a 7.3.4 guest with the function opened through VFIO shows it, with a second and third kind of line from other machines.
const sample = `           CPU0       CPU1       CPU2       CPU3       
  0:         72          0          0          0 IO-APIC   2-edge      timer
  9:          0          5          0          0 IO-APIC   9-fasteoi   acpi
 24:          0          0          0          0 DMAR-MSI   0-edge      dmar0
 25:          1          0          0          0 PCI-MSIX-0000:80:00.0   0-edge      PCIe PME, aerdrv, pciehp, PCIe bwctrl
 28:          0          0         41          7 PCI-MSIX-0000:00:03.0   1-edge      virtio0-virtqueues
 29:          2          0          0          0 PCI-MSIX-0000:81:00.0   0-edge      vfio-msix[0](0000:81:00.0)
 30:          0          0          0 18446744073709551615 IR-PCI-MSIX-0000:81:00.0   1-edge      vfio-msix[1](0000:81:00.0)
 31:          0          9          0          0 Hyper-V PCIe MSI 2097153-edge      mana_q0@pci:7870:00:00.0
 32:          3          0          0          0 PCI-MSIX-0000:81:00.0   4-edge    
NMI:          1          2          3          4   Non-maskable interrupts
LOC:       4000       3000       2000       1000   Local timer interrupts
ERR:          0
MIS:          0
`

func TestParseInterrupts(t *testing.T) {
	table, err := ParseInterrupts([]byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(table.CPUs, []int{0, 1, 2, 3}) {
		t.Errorf("CPUs = %v", table.CPUs)
	}
	want := []Row{
		{IRQ: 0, Counts: map[int]uint64{0: 72}, Chip: "IO-APIC", HWIRQ: 2, Action: "timer"},
		{IRQ: 9, Counts: map[int]uint64{1: 5}, Chip: "IO-APIC", HWIRQ: 9, Action: "acpi"},
		{IRQ: 24, Counts: map[int]uint64{}, Chip: "DMAR-MSI", HWIRQ: 0, Action: "dmar0"},
		{IRQ: 25, Counts: map[int]uint64{0: 1}, Chip: "PCI-MSIX-0000:80:00.0", HWIRQ: 0, Action: "PCIe PME, aerdrv, pciehp, PCIe bwctrl"},
		{IRQ: 28, Counts: map[int]uint64{2: 41, 3: 7}, Chip: "PCI-MSIX-0000:00:03.0", HWIRQ: 1, Action: "virtio0-virtqueues"},
		{IRQ: 29, Counts: map[int]uint64{0: 2}, Chip: "PCI-MSIX-0000:81:00.0", HWIRQ: 0, Action: "vfio-msix[0](0000:81:00.0)"},
		{IRQ: 30, Counts: map[int]uint64{3: 1<<64 - 1}, Chip: "IR-PCI-MSIX-0000:81:00.0", HWIRQ: 1, Action: "vfio-msix[1](0000:81:00.0)"},
		{IRQ: 31, Counts: map[int]uint64{1: 9}, Chip: "Hyper-V PCIe MSI", HWIRQ: 2097153, Action: "mana_q0@pci:7870:00:00.0"},
		{IRQ: 32, Counts: map[int]uint64{0: 3}, Chip: "PCI-MSIX-0000:81:00.0", HWIRQ: 4, Action: ""},
	}
	if len(table.Rows) != len(want) {
		t.Errorf("%d rows, want %d", len(table.Rows), len(want))
	}
	for _, w := range want {
		got := table.Rows[w.IRQ]
		if got.Chip != w.Chip || got.HWIRQ != w.HWIRQ || got.Action != w.Action || !maps.Equal(got.Counts, w.Counts) {
			t.Errorf("IRQ %d:\n got %+v\nwant %+v", w.IRQ, got, w)
		}
	}
}

func TestParseInterruptsOffline(t *testing.T) {
	table, err := ParseInterrupts([]byte(" CPU0 CPU3\n 5: 1 2 None x\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := Row{IRQ: 5, Counts: map[int]uint64{0: 1, 3: 2}, Chip: "None", HWIRQ: -1, Action: "x"}
	if got := table.Rows[5]; got.Chip != want.Chip || got.HWIRQ != -1 || got.Action != "x" || !maps.Equal(got.Counts, want.Counts) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestParseInterruptsErrors(t *testing.T) {
	for in, want := range map[string]string{
		"":                         "no header",
		"\n1: 2\n":                 "no header",
		"CPU0 GPU1\n":              `"GPU1" is not a CPU`,
		"CPU99999\n":               "is not a CPU",
		"CPU0 CPU1\n 1: 2\n":       "1 counts for 2 CPUs",
		"CPU0\n 1: x PIC 1-edge\n": "is not a count",
		"CPU0\n 99999999: 1 a\n":   "out of range",
	} {
		if _, err := ParseInterrupts([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", in, err, want)
		}
	}
}

func FuzzParseInterrupts(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte("CPU0\n1: 5 chip 3-edge a\n"))
	f.Add([]byte("CPU0 CPU8191\n0:1 2"))
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := ParseInterrupts(b)
		if err != nil {
			return
		}
		for n, row := range table.Rows {
			if n != row.IRQ || n < 0 || n > MaxIRQ || row.HWIRQ < -1 {
				t.Fatalf("row %d: %+v", n, row)
			}
			for c := range row.Counts {
				if !slices.Contains(table.CPUs, c) {
					t.Fatalf("count for CPU %d of %v", c, table.CPUs)
				}
			}
		}
	})
}

func BenchmarkParseInterrupts(b *testing.B) {
	b.ReportAllocs()
	b.SetBytes(int64(len(sample)))
	for b.Loop() {
		if _, err := ParseInterrupts([]byte(sample)); err != nil {
			b.Fatal(err)
		}
	}
}

func TestMask(t *testing.T) {
	for _, tc := range []struct {
		in, canonical string
		want          cpulist.List
	}{
		{"0", "0", nil},
		{"f\n", "f", cpulist.Range(0, 3)},
		{"00000000,00000008", "8", cpulist.List{3}},
		{"1,00000000", "1,00000000", cpulist.List{32}},
		{"80000000,00000001,ffff0000", "80000000,00000001,ffff0000", cpulist.New(append(cpulist.Range(16, 31), 32, 95)...)},
	} {
		got, err := ParseMask(tc.in)
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("ParseMask(%q) = %v, %v; want %v", tc.in, got, err, tc.want)
		}
		if s := FormatMask(tc.want); s != tc.canonical {
			t.Errorf("FormatMask(%v) = %q, want %q", tc.want, s, tc.canonical)
		}
	}
	for _, bad := range []string{"", "g", "1,,2", "100000000", "-1", strings.Repeat("0,", 300) + "1"} {
		if l, err := ParseMask(bad); err == nil {
			t.Errorf("ParseMask(%q) = %v, want an error", bad, l)
		}
	}
}

func FuzzMask(f *testing.F) {
	for _, s := range []string{"0", "f", "1,00000000", "ffffffff,ffffffff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseMask(s)
		if err != nil {
			return
		}
		if back, err := ParseMask(FormatMask(l)); err != nil || !slices.Equal(back, l) {
			t.Fatalf("%q -> %v -> %q -> %v, %v", s, l, FormatMask(l), back, err)
		}
	})
}

// tree writes files below a new root.
func tree(t *testing.T, files map[string]string) kfile.Root {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return kfile.Root(root)
}

// stats is /proc/stat with the totals of a /proc/interrupts; on CPUs that are offline, away more interrupts were handled of each IRQ.
func stats(table string, away uint64) string {
	t, err := ParseInterrupts([]byte(table))
	if err != nil {
		panic(err)
	}
	var b strings.Builder
	b.WriteString("cpu  84 0 345\ncpu0 84 0 345\nintr 12345")
	for n := range slices.Max(slices.Collect(maps.Keys(t.Rows))) + 1 {
		var sum uint64
		for _, c := range t.Rows[n].Counts {
			sum += c
		}
		if sum > 0 {
			sum += away
		}
		b.WriteString(" " + strconv.FormatUint(sum, 10))
	}
	return b.String() + "\nctxt 1990473\nsoftirq 1 2 3\n"
}

func TestParseTotals(t *testing.T) {
	got, err := ParseTotals([]byte(stats(sample, 2)))
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]uint64{0: 74, 24: 0, 28: 50, 29: 4, 33: 0, -1: 0} {
		if got.Of(n) != want {
			t.Errorf("IRQ %d: %d, want %d", n, got.Of(n), want)
		}
	}
	for in, want := range map[string]string{"": "no line", "intrx 1 2\n": "no line", "cpu 1\nintr 5 1 x\n": `IRQ 1: "x"`, "intr 5 -1": `IRQ 0: "-1"`} {
		if _, err := ParseTotals([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", in, err, want)
		}
	}
	if got, err := ParseTotals([]byte("intr 0\n")); err != nil || len(got) != 0 {
		t.Errorf("no IRQs: %v, %v", got, err)
	}
}

func FuzzParseTotals(f *testing.F) {
	f.Add([]byte(stats(sample, 0)))
	f.Add([]byte("intr 1 2 3"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := ParseTotals(b); err == nil && len(got) > len(b) {
			t.Fatalf("%d totals in %d bytes", len(got), len(b))
		}
	})
}

func irqFiles(files map[string]string, n int, affinity, effective, hint string) {
	d := "proc/irq/" + strconv.Itoa(n) + "/"
	files[d+"smp_affinity_list"] = affinity + "\n"
	files[d+"effective_affinity_list"] = effective + "\n"
	files[d+"affinity_hint"] = hint + "\n"
	files[d+"node"] = "1\n"
}

func TestObserve(t *testing.T) {
	files := map[string]string{"proc/interrupts": sample, "proc/stat": stats(sample, 2), "sys/devices/system/cpu/online": "0-3\n"}
	irqFiles(files, 28, "2", "3", "4")
	irqFiles(files, 29, "0-3", "0", "0")
	o, err := Observe(tree(t, files), []int{29, 28})
	if err != nil {
		t.Fatal(err)
	}
	if o.Online.String() != "0-3" || len(o.IRQs) != 2 {
		t.Fatalf("%+v", o)
	}
	hwc, q := o.IRQs[29], o.IRQs[28]
	if hwc.Pending() || hwc.Hint != nil || hwc.Node != 1 || hwc.Action != "vfio-msix[0](0000:81:00.0)" {
		t.Errorf("%+v", hwc)
	}
	if !q.Pending() || q.Hint.String() != "2" || q.Counts[2] != 41 || q.Total != 50 {
		t.Errorf("%+v", q)
	}
	for _, n := range []int{99, 30} { // not in the table; in it without /proc/irq files: freed in between
		_, err = Observe(tree(t, files), []int{n})
		if r := fault.Reply(err); r.Code != agentapi.CodeNotFound {
			t.Errorf("IRQ %d: %+v", n, r)
		}
	}
}

func TestAwait(t *testing.T) {
	files := map[string]string{"proc/interrupts": sample, "proc/stat": stats(sample, 0), "sys/devices/system/cpu/online": "0-3\n"}
	irqFiles(files, 28, "2", "2", "0")
	irqFiles(files, 29, "0", "0", "0")
	r := tree(t, files)
	if o, err := Await(t.Context(), r, map[int]uint64{29: 1, 28: 47}); err != nil || len(o.IRQs) != 2 || o.IRQs[28].Total != 48 {
		t.Errorf("already above: %+v, %v", o, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := Await(ctx, r, map[int]uint64{29: 2, 28: 47})
	if rep := fault.Reply(err); rep.Code != agentapi.CodeTimeout || !strings.Contains(rep.Message, "IRQ 29 (vfio-msix[0](0000:81:00.0)) at 2") || strings.Contains(rep.Message, "IRQ 28") {
		t.Errorf("timeout: %+v", rep)
	}
	// The count moves while it is awaited.
	go func() {
		time.Sleep(10 * time.Millisecond)
		moved := strings.Replace(sample, " 29:          2 ", " 29:          3 ", 1)
		tmp := r.Path("proc/new")
		_ = os.WriteFile(tmp, []byte(stats(moved, 0)), 0o644)
		_ = os.Rename(tmp, r.Path("proc/stat"))
	}()
	if o, err := Await(t.Context(), r, map[int]uint64{29: 2}); err != nil || o.IRQs[29].Total != 3 {
		t.Errorf("moving: %+v, %v", o, err)
	}
}

// A table is read again while the CPUs it shows are not those that are online, or its lines do not go with its header.
func TestReadTorn(t *testing.T) {
	t.Parallel()
	files := map[string]string{"proc/interrupts": sample, "sys/devices/system/cpu/online": "0-2\n"}
	r := tree(t, files)
	if _, err := Read(r); err == nil || !strings.Contains(err.Error(), "shows CPUs 0-3, and online are 0-2, 20 readings") {
		t.Errorf("a CPU that left: %v", err)
	}
	for content, want := range map[string]string{"CPU0 CPU1\n 27: 5 PCI-MSIX-0000:00:02.0 0-edge x\n": "not a count", sample: ""} {
		if err := os.WriteFile(r.Path("proc/interrupts"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(r.Path("sys/devices/system/cpu/online"), []byte("0-3\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(r); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", content, err, want)
		}
	}
}

func TestLevels(t *testing.T) {
	files := map[string]string{"proc/interrupts": sample, "sys/devices/system/cpu/online": "0-3\n"}
	for n, eff := range map[int]string{0: "0", 9: "1", 24: "2", 25: "0", 28: "2", 29: "0", 30: "3", 31: "1", 32: "0"} {
		irqFiles(files, n, "0-3", eff, "0")
		files["proc/irq/"+strconv.Itoa(n)+"/smp_affinity"] = "f\n"
	}
	r := tree(t, files)
	want := map[int]int{0: 3, 1: 2, 2: 2, 3: 1} // IRQ 32 has no handler
	if got, err := Levels(r); err != nil || !maps.Equal(got, want) {
		t.Errorf("Levels = %v, %v; want %v", got, err, want)
	}
	// A managed interrupt takes a vector on each CPU of its mask.
	if err := os.Chmod(r.Path("proc/irq/28/smp_affinity"), 0o444); err != nil {
		t.Fatal(err)
	}
	want = map[int]int{0: 4, 1: 3, 2: 2, 3: 2}
	if got, err := Levels(r); err != nil || !maps.Equal(got, want) {
		t.Errorf("managed: Levels = %v, %v; want %v", got, err, want)
	}
}

func TestWithDefault(t *testing.T) {
	r := tree(t, map[string]string{"proc/irq/default_smp_affinity": "f"})
	read := func() string { s, _ := r.String("proc/irq/default_smp_affinity"); return s }
	boom := errors.New("boom")
	err := WithDefault(r, cpulist.New(2), func() error {
		if got := read(); got != "4" {
			t.Errorf("inside: %q", got)
		}
		return boom
	})
	if !errors.Is(err, boom) || read() != "f" {
		t.Errorf("after an error: %v, default %q", err, read())
	}
	func() {
		defer func() { _ = recover() }()
		_ = WithDefault(r, cpulist.New(3), func() error { panic("no") })
	}()
	if read() != "f" {
		t.Errorf("after a panic the default is %q", read())
	}
}

func TestSetAffinity(t *testing.T) {
	files := map[string]string{}
	irqFiles(files, 7, "0", "0", "0")
	r := tree(t, files)
	if err := SetAffinity(r, 7, cpulist.New(1, 2)); err != nil {
		t.Fatal(err)
	}
	if s, _ := r.String("proc/irq/7/smp_affinity_list"); s != "1-2" {
		t.Errorf("wrote %q", s)
	}
	if err := SetAffinity(r, 8, cpulist.New(1)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing IRQ: %v", err)
	}
	if err := SetAffinity(r, 7, nil); fault.Reply(err).Code != agentapi.CodeInvalid {
		t.Errorf("empty mask: %v", err)
	}
}
