package power

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
)

func tree(t *testing.T, files map[string]string) kfile.Root {
	t.Helper()
	r := kfile.Root(t.TempDir())
	for name, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(r.Path(name)), 0o755), os.WriteFile(r.Path(name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// A sleep is refused, in words that say why, where it would be another one than was asked for, or one that nothing ends; else what is to wake the guest is in place.
func TestPrepare(t *testing.T) {
	const state, sleeps, active, wakeup, printk = dir + "/state", dir + "/mem_sleep", tty + "/console/active", tty + "/ttyS0/power/wakeup", keepConsole
	for _, tc := range []struct {
		what, mode string
		files      map[string]string
		code, says string
		written    map[string]string
	}{
		{"to idle", "freeze", map[string]string{state: "freeze mem disk\n", active: "tty0 ttyS0\n", wakeup: "disabled\n", printk: "Y\n"}, "", "",
			map[string]string{wakeup: "enabled", printk: "N"}},
		{"to RAM", "mem", map[string]string{state: "freeze mem disk\n", sleeps: "[s2idle] deep\n", printk: "Y\n"}, "", "", map[string]string{sleeps: "deep", printk: "N"}},
		{"a kernel without printk's parameter", "mem", map[string]string{state: "mem\n", sleeps: "deep\n"}, "", "", nil},
		{"of no kind", "standby", map[string]string{state: "freeze mem disk\n"}, agentapi.CodeInvalid, `sleep state "standby"`, nil},
		{"a kernel that only switches off", "disk", map[string]string{state: "freeze disk\n", dir + "/disk": "[platform] shutdown reboot\n"}, agentapi.CodeUnsupported, "does not know test_resume, only: platform shutdown reboot", nil},
		{"another disk", "disk", map[string]string{state: "disk\n", dir + "/disk": "[platform] test_resume\n", blocks + "/nvme0n1/device/serial": "irqlab0\n", "dev/nvme0n1": ""},
			agentapi.CodeNotFound, "no disk with the serial number hibernation; there are: nvme0n1", nil},
		{"a disk that is no swap area", "disk", map[string]string{state: "disk\n", dir + "/disk": "[platform] test_resume\n", blocks + "/nvme0n1/device/serial": "hibernation   \n", "dev/nvme0n1": ""},
			agentapi.CodeRefused, "swap on nvme0n1", map[string]string{dir + "/disk": "[platform] test_resume\n"}},
		{"a kernel that does not sleep", "freeze", map[string]string{state: "\n"}, agentapi.CodeUnsupported, "knows only: ", nil},
		{"a machine without S3", "mem", map[string]string{state: "freeze mem\n", sleeps: "[s2idle]\n"}, agentapi.CodeUnsupported, "no S3, its kernel knows only: s2idle", map[string]string{sleeps: "[s2idle]\n"}},
		{"no console", "freeze", map[string]string{state: "freeze\n", active: "\n"}, agentapi.CodeUnsupported, "no console", nil},
		{"a kernel without sleep", "freeze", nil, agentapi.CodeUnsupported, "knows only", nil},
	} {
		r := tree(t, tc.files)
		ctx, cancel := context.WithTimeout(t.Context(), 2*lookFor)
		defer cancel()
		err := Prepare(ctx, r, tc.mode)
		switch {
		case tc.code == "" && err != nil:
			t.Errorf("%s: %v", tc.what, err)
		case tc.code != "" && (err == nil || fault.Reply(err).Code != tc.code || !strings.Contains(err.Error(), tc.says)):
			t.Errorf("%s: %v, want %s: %s", tc.what, err, tc.code, tc.says)
		}
		for name, want := range tc.written {
			if got, _ := os.ReadFile(r.Path(name)); string(got) != want {
				t.Errorf("%s: %s holds %q, want %q", tc.what, name, got, want)
			}
		}
	}
}

func TestSuspend(t *testing.T) {
	r := tree(t, map[string]string{dir + "/state": "freeze mem\n"})
	if err := Suspend(r, "mem"); err != nil {
		t.Fatal(err)
	}
	if got, _ := r.String(dir, "state"); got != "mem" {
		t.Errorf("state holds %q", got)
	}
	if err := Suspend(kfile.Root(t.TempDir()), "mem"); err == nil || !strings.Contains(err.Error(), "suspending to mem") {
		t.Errorf("without the file: %v", err)
	}
}
