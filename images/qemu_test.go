package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// script writes a shell script that plays a QEMU.
func script(t *testing.T, dir, body string) string {
	t.Helper()
	file := writeFile(t, dir, qemuProgram, []byte("#!/bin/sh\n"+body))
	if err := os.Chmod(file, 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

const goodQEMU = `case "$*" in
--version) echo "QEMU emulator version VERSION (Debian 1:x)";;
*vfio-user-pci,help*) echo "  socket=<SocketAddress>";;
esac
`

func TestProbeQEMU(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, version, reason string }{
		"good":         {strings.ReplaceAll(goodQEMU, "VERSION", "10.1.1"), "10.1.1", ""},
		"new":          {strings.ReplaceAll(goodQEMU, "VERSION", "11.0"), "11.0", ""},
		"patched":      {strings.ReplaceAll(goodQEMU, "VERSION", "10.1.90"), "10.1.90", ""},
		"too old":      {strings.ReplaceAll(goodQEMU, "VERSION", "10.1.0"), "", "older than " + MinQEMU},
		"much older":   {strings.ReplaceAll(goodQEMU, "VERSION", "9.2.4"), "", "older than " + MinQEMU},
		"no client":    {"case \"$*\" in --version) echo QEMU emulator version 11.1.3;; *) echo \"is not a valid device model name\" >&2; exit 1;; esac", "", "vfio-user-pci"},
		"not QEMU":     {"echo hello", "", "is no QEMU"},
		"never silent": {"exec yes", "", "no end of what --version writes"},
		"does not run": {"echo broken library >&2; exit 127", "", "broken library"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := script(t, t.TempDir(), c.body)
			got, err := newCache(t).QEMU(t.Context(), file, nil)
			if c.reason == "" {
				if err != nil || got.Version != c.version || len(got.Command) != 1 || got.Command[0] != file {
					t.Errorf("%+v, %v", got, err)
				}
				return
			}
			var unusable *UnusableQEMUError
			if !errors.As(err, &unusable) || unusable.Path != file || !strings.Contains(err.Error(), c.reason) || !strings.Contains(err.Error(), "--qemu") {
				t.Errorf("error %v; want an UnusableQEMUError saying %q", err, c.reason)
			}
		})
	}
	t.Run("missing", func(t *testing.T) {
		t.Parallel()
		var unusable *UnusableQEMUError
		if _, err := newCache(t).QEMU(t.Context(), "/nonexistent/qemu", nil); !errors.As(err, &unusable) {
			t.Errorf("error %v; want an UnusableQEMUError", err)
		}
	})
	t.Run("hangs", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := newCache(t).QEMU(ctx, script(t, t.TempDir(), "sleep 1000"), nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v; want the deadline", err)
		}
	})
}

// TestNothingOutlivesTheDeadline makes sure that a program that will not hear of an end takes its children with it.
func TestNothingOutlivesTheDeadline(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	file := script(t, dir, "trap '' TERM\nsleep 1000 </dev/null >/dev/null 2>&1 &\necho $! >"+dir+"/pid.new; mv "+dir+"/pid.new "+dir+"/pid\nsleep 1000\n")
	done := make(chan error)
	go func() {
		_, err := newCache(t).QEMU(ctx, file, nil)
		done <- err
	}()
	var pid int
	for pid == 0 {
		data, _ := os.ReadFile(filepath.Join(dir, "pid"))
		pid, _ = strconv.Atoi(strings.TrimSpace(string(data)))
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	for range 500 { // the kernel may take a moment to end it
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %d goes on", pid)
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

// The host's QEMU is used when it is good enough, and only then.
func TestHostQEMU(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	script(t, dir, strings.ReplaceAll(goodQEMU, "VERSION", "11.1.3"))
	c := newCache(t)
	if q, err := c.QEMU(t.Context(), "", nil); err != nil || q.Version != "11.1.3" || !strings.Contains(q.Source, "host") {
		t.Errorf("%+v, %v", q, err)
	}
	script(t, dir, strings.ReplaceAll(goodQEMU, "VERSION", "7.2.0"))
	if q, err := c.QEMU(t.Context(), "", nil); !errors.Is(err, ErrNoApt) {
		t.Errorf("too old a host's QEMU and no apt: %+v, %v; want ErrNoApt", q, err)
	}
}

func TestCompareDotted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{{"10.1.1", "10.1.1", 0}, {"10.1", "10.1.0", 0}, {"10.1.10", "10.1.9", 1}, {"9.9.9", "10.1.1", -1}, {"11", "10.1.1", 1}} {
		if got := compareDotted(c.a, c.b); got != c.want {
			t.Errorf("compareDotted(%s, %s) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestQEMUPlace(t *testing.T) {
	t.Parallel()
	for name, kept := range map[string]bool{
		"usr/bin/qemu-system-x86_64":                    true,
		"usr/bin/qemu-system-i386":                      false,
		"usr/lib/x86_64-linux-gnu/libc.so.6":            true,
		"lib/x86_64-linux-gnu/libc.so.6":                true,
		"usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": true,
		"usr/lib/x86_64-linux-gnu/gconv/UTF-16.so":      false,
		"usr/lib/x86_64-linux-gnu/qemu/accel-qtest.so":  true,
		"usr/lib/x86_64-linux-gnu/qemu/ui-curses.so":    false,
		"usr/share/qemu/efi-virtio.rom":                 true,
		"usr/share/qemu/kvmvapic.bin":                   true,
		"usr/share/qemu/skiboot.lid":                    false,
		"usr/share/seabios/bios-256k.bin":               true,
		"usr/share/doc/qemu-system-common/copyright":    false,
		"etc/passwd": false,
	} {
		if got := qemuPlace(name); (got != "") != kept {
			t.Errorf("qemuPlace(%q) = %q, want kept: %v", name, got, kept)
		}
	}
}

// TestRealQEMUAndKernel takes QEMU and the newest 7.3 kernel from the real mirror (or the user's cache) and boots the kernel until it finds no
// root file system: the unpacked QEMU runs, the unpacked kernel is entered.
func TestRealQEMUAndKernel(t *testing.T) {
	t.Parallel()
	c, err := OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	c.Warn = func(s string) { t.Log(s) }
	q, err := c.QEMU(t.Context(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	k, err := c.Kernel(t.Context(), "debian:7.3", nil)
	if err != nil {
		t.Fatal(err)
	}
	if k.ImageKind != KindVmlinux || k.ModulesDir == "" || !strings.HasPrefix(k.Release, "7.3.") {
		t.Fatalf("kernel %+v; want an unpacked 7.3 with modules", k)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	args := append(q.Command[1:len(q.Command):len(q.Command)], "-accel", "tcg", "-cpu", "qemu64,+x2apic", "-m", "256", "-nodefaults", "-display", "none", "-serial", "stdio",
		"-no-reboot", "-kernel", k.Image, "-append", "console=ttyS0 panic=-1 tsc=reliable mitigations=off nokaslr no_timer_check")
	cmd := exec.CommandContext(ctx, q.Command[0], args...)
	cmd.Env = append(os.Environ(), q.Env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := RunOwned(ctx, cmd); err != nil {
		t.Fatalf("QEMU: %v\n%s", err, out.String())
	}
	for _, want := range []string{"Linux version " + k.Release, "Unable to mount root fs"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("console lacks %q:\n%s", want, out.String())
		}
	}

	infos, err := c.Kernels(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]int{}
	for _, i := range infos {
		states[i.State]++
	}
	if states[Cached] == 0 || states[Fetchable] == 0 {
		t.Errorf("states %v: want cached and fetchable kernels", states)
	}
}

// An entry of the cache is found without the mirror, and not when it is damaged.
func TestCachedQEMU(t *testing.T) {
	t.Parallel()
	c := newCache(t)
	for version, key := range map[string]string{"11.1.3": "a", "11.1.10": "b"} {
		_, err := c.entry(t.Context(), qemuKind, key, func(_ context.Context, dir string) error {
			return os.WriteFile(filepath.Join(dir, qemuFile), []byte(`{"version":"`+version+`"}`), 0o600)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if q, ok := c.cachedQEMU(); !ok || q.Version != "11.1.10" {
		t.Errorf("%+v, %v; want the newest", q, ok)
	}
	if err := os.Truncate(filepath.Join(c.dir, qemuKind, "b", manifestName), 3); err != nil {
		t.Fatal(err)
	}
	if q, ok := c.cachedQEMU(); !ok || q.Version != "11.1.3" {
		t.Errorf("%+v, %v; want the one that is whole", q, ok)
	}
}
