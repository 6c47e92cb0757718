package bench

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"irqlab/images"
	"irqlab/lab/qemu"
)

// pidFile, in the environment, makes the test program the one that is killed: QEMU's place takes a shell that writes its process id there, and does not end.
const pidFile = "IRQLAB_TEST_BENCH_PID"

// Whoever kills irqlab while it measures a bare boot has no QEMU and no directory left.
func TestBareBootOfAKilledLab(t *testing.T) {
	if path := os.Getenv(pidFile); path != "" {
		dir, err := qemu.NewRunDir("bench")
		if err != nil {
			t.Fatal(err)
		}
		b := &bench{dir: dir, qemu: images.QEMU{Command: []string{"/bin/sh", "-c", `echo $$ >"$` + pidFile + `.new" && mv "$` + pidFile + `.new" "$` + pidFile + `"; exec sleep 60`}}}
		_, err = b.bare(t.Context(), "")
		t.Fatal("it ended:", err)
	}
	t.Parallel()
	root := t.TempDir()
	path := filepath.Join(root, "pid")
	lab := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=1m")
	lab.Env = append(os.Environ(), pidFile+"="+path, "XDG_RUNTIME_DIR="+root)
	if err := lab.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = lab.Process.Kill()
		_ = lab.Wait()
	}()
	var pid int
	await(t, "QEMU has started", func() bool {
		text, err := os.ReadFile(path)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	if dirs, err := filepath.Glob(filepath.Join(root, "irqlab", "bench-*")); err != nil || len(dirs) != 1 {
		t.Errorf("directories %q, %v; want one", dirs, err)
	}
	if err := lab.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = lab.Wait()
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	await(t, "QEMU has died", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || zombie(pid) })
	await(t, "the directory is gone", func() bool {
		dirs, err := filepath.Glob(filepath.Join(root, "irqlab", "bench-*"))
		return err == nil && len(dirs) == 0
	})
}

// zombie tells a process that has died and waits for whoever adopted it.
func zombie(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}
