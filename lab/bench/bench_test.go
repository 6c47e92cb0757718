package bench

import (
	"bytes"
	"context"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"irqlab/devmodel/trace"
	"irqlab/images"
)

func TestSummarize(t *testing.T) {
	for _, tc := range []struct{ values, want []float64 }{ // median, min, max
		{[]float64{3, 1, 2}, []float64{2, 1, 3}},
		{[]float64{4, 1, 2, 3}, []float64{2.5, 1, 4}},
		{[]float64{7}, []float64{7, 7, 7}},
		{nil, []float64{0, 0, 0}},
	} {
		m := summarize(Measure{Values: tc.values})
		if got := []float64{m.Median, m.Min, m.Max}; !slices.Equal(got, tc.want) {
			t.Errorf("%v: %v, want %v", tc.values, got, tc.want)
		}
	}
}

func TestRatios(t *testing.T) {
	got := ratios([]Measure{{Name: WarmVFIO, Median: 1}, {Name: BareDefault, Median: 8}, {Name: Fork, Median: 1}, {Name: ColdBoot}})
	if len(got) != 1 || got[0] != (Ratio{WarmVFIO, BareDefault, 0.125}) {
		t.Errorf("%+v", got)
	}
}

func TestNamesAreUnique(t *testing.T) {
	names := slices.Sorted(slices.Values(Names()))
	if len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("%v", names)
	}
}

func TestHWCIntervals(t *testing.T) {
	kind := func(name string) *trace.Kind {
		kinds := trace.Kinds()
		return kinds[slices.IndexFunc(kinds, func(k *trace.Kind) bool { return k.Name() == name })] // as the device declares it
	}
	request, response := kind("hwc-request"), kind("hwc-response")
	at := func(us int, k *trace.Kind) trace.Event {
		return trace.Event{T: time.Duration(us) * time.Microsecond, Kind: k}
	}
	trips, device := hwcIntervals([]trace.Event{at(5, request), at(10, request), at(14, response), at(40, request), at(43, response)}, 8*time.Microsecond)
	if !slices.Equal(trips, []float64{30}) || !slices.Equal(device, []float64{4, 3}) {
		t.Errorf("trips %v, device %v", trips, device)
	}
}

func TestExecutable(t *testing.T) {
	f, err := elf.NewFile(bytes.NewReader(executable(powerOff)))
	if err != nil {
		t.Fatal(err)
	}
	p := f.Progs[0]
	code := make([]byte, len(powerOff))
	if _, err := p.ReadAt(code, int64(f.Entry-p.Vaddr)); err != nil || !bytes.Equal(code, powerOff) || f.Machine != elf.EM_X86_64 || p.Flags != elf.PF_R|elf.PF_X {
		t.Errorf("entry %#x, segment %+v, code % x, %v", f.Entry, p, code, err)
	}
	// The kernel takes it: exit(42) instead of a reboot.
	path := filepath.Join(t.TempDir(), "exit")
	if err := os.WriteFile(path, executable([]byte{0xbf, 42, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05}), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command(path).Run(); err == nil || err.(*exec.ExitError).ExitCode() != 42 {
		t.Errorf("it ended with %v", err)
	}
}

// Both boots take the clock for what it is: a kernel that measures its delays on a busy machine may find some that are far too long, and hang. A bare boot comes to its end by itself, and one that cannot tells what was last on its console.
func TestBareBoot(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	b, err := prepare(ctx, Options{Cache: cache, Kernel: "debian:7.3", Accel: "tcg"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.dir.Close()
	if took, err := b.bare(ctx, "console=ttyS0 panic=-1 no_timer_check tsc=reliable"); err != nil || took <= 0 {
		t.Errorf("%v after %v s", err, took)
	}
	if _, err := b.bare(ctx, "console=ttyS0 panic=-1 no_timer_check tsc=reliable rdinit=/missing root=/dev/none"); err == nil || !bytes.Contains([]byte(err.Error()), []byte("panicked")) {
		t.Errorf("a kernel without an init: %v", err)
	}
}
