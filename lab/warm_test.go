package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"irqlab/images"
	"irqlab/lab/qemu"
)

// helperEnv makes the test binary a lab of its own, for a parent to kill: its value is the kernel command line word that gives it a snapshot of its own.
const helperEnv = "IRQLAB_TEST_SNAPSHOT"

func TestMain(m *testing.M) {
	if word := os.Getenv(helperEnv); word != "" {
		vm, err := Start(context.Background(), Config{Start: StartWarm, Cmdline: []string{word}, Progress: func(what string, _, _ int64) { fmt.Println(what) }})
		fmt.Println("not killed:", err)
		if err == nil {
			_ = vm.Close()
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const patience = 10 * time.Minute // a busy machine without KVM boots in minutes

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func startWarm(t *testing.T, cfg Config) *VM {
	t.Helper()
	vm, err := Start(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = vm.Close() })
	return vm
}

// output runs a command in the guest.
func output(t *testing.T, vm *VM, command string) string {
	t.Helper()
	client, err := vm.Access().Dial(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b, err := s.Output(command)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return strings.TrimSpace(string(b))
}

// Two guests forked from one snapshot know what time it is, draw different random numbers, and let people in by different host keys; what one does the other does not see.
func TestForks(t *testing.T) {
	t.Parallel()
	var vms []*VM
	for _, name := range []string{"fork-a", "fork-b"} {
		vms = append(vms, startWarm(t, Config{Name: name, Start: StartWarm}))
	}
	seen := map[string]bool{}
	for i, vm := range vms {
		if vm.Start != StartWarm || len(vm.Notes) > 0 {
			t.Errorf("started %s, notes %v", vm.Start, vm.Notes)
		}
		now, err := time.Parse(time.UnixDate, output(t, vm, "date -u"))
		if late := time.Since(now); err != nil || late.Abs() > time.Minute {
			t.Errorf("the guest's clock is %v late (%v)", late, err)
		}
		seen[output(t, vm, "cat /proc/sys/kernel/random/uuid")] = true
		access, err := Reach(vm.process.Name())
		if err != nil {
			t.Fatal(err)
		}
		seen[access.HostKey] = true
		client, err := access.Dial(testContext(t))
		if err != nil {
			t.Fatalf("log in as a person: %v", err)
		}
		_ = client.Close()
		if got := output(t, vm, "ls /tmp"); got != "" {
			t.Errorf("fork %d finds %q", i, got)
		}
		_ = output(t, vm, "echo mine > /tmp/mine")
		if text, cut := vm.Console().Text(); !strings.Contains(string(text), "agent ready") || cut != "" {
			t.Error("the console does not tell the boot")
		}
		if warnings := vm.Console().Scan(); len(warnings) > 0 {
			t.Errorf("the kernel complained: %s", warnings[0].Text)
		}
	}
	if len(seen) != 4 {
		t.Errorf("two forks share random numbers or host keys: %v", seen)
	}
	// Once a function was there, QEMU would save the machine without it.
	vm := vms[0]
	if _, err := vm.Attach(testContext(t), FunctionConfig{Vectors: 2}); err != nil {
		t.Fatal(err)
	}
	if err := vm.process.Save(testContext(t), t.TempDir()); !errors.Is(err, qemu.ErrAttached) {
		t.Errorf("saving with a function attached: %v", err)
	}
}

// own is a configuration with a snapshot that no other test shares, gone when the test ends.
func own(t *testing.T) (Config, boot, string) {
	t.Helper()
	cfg := Config{Start: StartWarm, Cmdline: []string{fmt.Sprintf("irqlab.test=%d-%d", os.Getpid(), time.Now().UnixNano())}}
	b, _, err := prepare(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	key, err := b.snapshotKey()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if e, err := b.cfg.Cache.Snapshot(context.Background(), key, func(context.Context, string) error { return errors.New("gone") }); err == nil {
			_ = b.cfg.Cache.Discard(context.Background(), e)
		}
	})
	return cfg, b, key
}

// A snapshot that was damaged where no check of sizes sees it does not come to life. It is made anew, once, and the result says so.
// A guest that nobody asks for anything is at rest: before the first person has come, and after the last has gone.
func TestIdleGuestRests(t *testing.T) {
	t.Parallel()
	vm := startWarm(t, Config{Start: StartWarm})
	for _, when := range []string{"before anyone has logged in", "after someone has"} {
		if idle, err := vm.process.Quiesce(testContext(t), patience/4); err != nil || !idle {
			t.Errorf("%s the guest does not come to rest: %v", when, err)
		}
		_ = output(t, vm, "true")
	}
}

func TestBadSnapshotIsMadeAnew(t *testing.T) {
	t.Parallel()
	cfg, b, key := own(t)
	bad, err := b.cfg.Cache.Snapshot(testContext(t), key, func(ctx context.Context, dir string) error {
		if err := b.snapshot(ctx, dir); err != nil {
			return err
		}
		return os.Truncate(filepath.Join(dir, "devices"), 1000)
	})
	if err != nil {
		t.Fatal(err)
	}
	vm := startWarm(t, cfg)
	if vm.Start != StartWarm || len(vm.Notes) != 1 || !strings.Contains(vm.Notes[0], "made anew") {
		t.Errorf("started %s with notes %q", vm.Start, vm.Notes)
	}
	if st, err := os.Stat(filepath.Join(bad.Dir, "devices")); err != nil || st.Size() <= 1000 {
		t.Errorf("the cache holds %v, %v in place of the bad snapshot", st, err)
	}
	again := startWarm(t, cfg)
	if again.Start != StartWarm || len(again.Notes) > 0 {
		t.Errorf("after that: started %s with notes %q", again.Start, again.Notes)
	}
}

// A snapshot damaged in any of its files makes no guest, and is known for the culprit. One that lacks a file is none: the cache sees to that.
func TestDamagedSnapshot(t *testing.T) {
	t.Parallel()
	b, _, err := prepare(testContext(t), Config{Start: StartWarm})
	if err != nil {
		t.Fatal(err)
	}
	key, err := b.snapshotKey()
	if err != nil {
		t.Fatal(err)
	}
	entry, err := b.cfg.Cache.Snapshot(testContext(t), key, b.snapshot)
	if err != nil {
		t.Fatal(err)
	}
	cut := func(part float64) func([]byte) []byte {
		return func(b []byte) []byte { return b[:int(part*float64(len(b)))] }
	}
	for _, tc := range []struct {
		file   string
		damage func([]byte) []byte
	}{
		{"devices", cut(0)},
		{"devices", cut(0.5)}, // its end only describes what came before
		{"devices", func(b []byte) []byte { return bytes.Repeat([]byte{0xff}, len(b)) }},
		{"memory", cut(0)},
		{"memory", func(b []byte) []byte { return b[:len(b)-1] }},
		{"memory", func(b []byte) []byte { return append(b, 0) }},
		{"snapshot.json", cut(0)},
		{"snapshot.json", cut(0.5)},
	} {
		dir := t.TempDir()
		for _, name := range []string{"devices", "memory", "console", "snapshot.json"} {
			content, err := os.ReadFile(filepath.Join(entry.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if name == tc.file {
				content = tc.damage(content)
			}
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		vm, err := b.fork(testContext(t), dir)
		var bad *forkError
		if vm != nil {
			_ = vm.Close()
		}
		if !errors.As(err, &bad) {
			t.Errorf("%s damaged: %v; want a fork that fails by the snapshot's fault", tc.file, err)
		}
		if err := os.RemoveAll(dir); err != nil { // it is large
			t.Fatal(err)
		}
	}
}

// Who kills QEMU while it restores a guest, as a host short of memory does, has not shown the snapshot to be bad.
func TestUnborn(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		dead qemu.DeadError
		bad  bool
	}{
		{qemu.DeadError{Status: -1, Signal: syscall.SIGKILL}, false},
		{qemu.DeadError{Reason: "host-signal"}, false},
		{qemu.DeadError{Status: -1, Signal: syscall.SIGKILL, Cause: errors.New("the lab gave up")}, true},
		{qemu.DeadError{Status: -1, Signal: syscall.SIGSEGV}, true},
		{qemu.DeadError{Status: 1}, true},
		{qemu.DeadError{Reason: "guest-reset"}, true},
	} {
		var bad *forkError
		if got := errors.As(unborn(&qemu.RestoreError{Err: &tc.dead}), &bad); got != tc.bad {
			t.Errorf("%v: the snapshot's fault: %v", &tc.dead, got)
		}
	}
}

// A machine that QEMU cannot save starts cold where that is allowed, and the result says why.
func TestUnsavable(t *testing.T) {
	t.Parallel()
	cfg, b, key := own(t)
	_, err := b.cfg.Cache.Snapshot(testContext(t), key, func(_ context.Context, dir string) error {
		return os.WriteFile(filepath.Join(dir, refusedFile), []byte("State blocked by non-migratable device"), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	if vm, err := Start(testContext(t), cfg); err == nil || !strings.Contains(err.Error(), "non-migratable") {
		if vm != nil {
			_ = vm.Close()
		}
		t.Errorf("warm start of what cannot be saved: %v", err)
	}
	cfg.Start = StartAuto
	vm := startWarm(t, cfg)
	if vm.Start != StartCold || len(vm.Notes) != 1 || !strings.Contains(vm.Notes[0], "non-migratable") {
		t.Errorf("started %s with notes %q", vm.Start, vm.Notes)
	}
}

// A lab that is killed while it makes a snapshot leaves no QEMU, no snapshot, and nothing that the next one does not sweep.
func TestKilledSnapshot(t *testing.T) {
	t.Parallel()
	cfg, b, key := own(t)
	lab := exec.Command(os.Args[0])
	lab.Env = append(os.Environ(), helperEnv+"="+cfg.Cmdline[0])
	lab.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := lab.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := lab.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(out)
	for line := ""; !strings.Contains(line, "once"); {
		if line, err = in.ReadString('\n'); err != nil {
			t.Fatalf("the lab said %q, then %v", line, err)
		}
	}
	ours := func() int { // QEMUs with our word on their command line
		n := 0
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), cfg.Cmdline[0]) {
				n++
			}
		}
		return n
	}
	for ours() == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	if err := lab.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, in)
	_ = lab.Wait()
	for start := time.Now(); ours() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatal("QEMU outlived the lab")
		}
	}
	cache, err := images.OpenCache("") // sweeps
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache.Dir(), "tmp", "snapshot-"+key+"*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if b.cfg.Cache.HasSnapshot(key) {
		t.Error("half a snapshot was taken for a whole one")
	}
}
