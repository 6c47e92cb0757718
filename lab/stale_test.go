package lab

import (
	"errors"
	"fmt"
	"testing"

	"irqlab/lab/machine"
	"irqlab/lab/qemu"
	"irqlab/lab/qemu/klog"
)

// A boot that the emulator led astray is tried again; one that the kernel ended is not.
func TestStaleBoot(t *testing.T) {
	finding := func(code string) []klog.Finding {
		return []klog.Finding{{Kind: klog.Oops, Title: "Oops: int3: 0000 [#1] SMP NOPTI",
			Text: "[    2.5] Oops: int3: 0000 [#1] SMP NOPTI\n[    2.5] RIP: 0010:enqueue_task_fair+0xa0b/0xcc0\n[    2.5] Code: e8 " + code + " <1f> 44 00\n"}}
	}
	for _, tc := range []struct {
		what  string
		accel machine.Accel
		err   error
		want  bool
	}{
		{"stale code", machine.TCG, fmt.Errorf("x: %w", &qemu.BootError{Trouble: finding("0f")}), true},
		{"a breakpoint of the kernel's", machine.TCG, &qemu.BootError{Trouble: finding("cc")}, false},
		{"a CPU of silicon", machine.KVM, &qemu.BootError{Trouble: finding("0f")}, false},
		{"a boot that hangs", machine.TCG, &qemu.BootError{}, false},
		{"another error", machine.TCG, errors.New("no"), false},
	} {
		if got := (boot{machine: machine.Machine{Accel: tc.accel}}).stale(tc.err); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.what, got, tc.want)
		}
	}
}
