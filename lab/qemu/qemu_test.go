package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/digitalocean/go-qemu/qmp"
	"github.com/digitalocean/go-qemu/qmp/raw"

	"irqlab/images"
	"irqlab/lab/machine"
)

// patience bounds what must not hang, on a machine that may be very busy. No test passes or fails by how long something takes.
const patience = 4 * time.Minute

var findQEMU = sync.OnceValues(func() (images.QEMU, error) {
	cache, err := images.OpenCache("")
	if err != nil {
		return images.QEMU{}, err
	}
	return cache.QEMU(context.Background(), os.Getenv("IRQLAB_QEMU"), nil)
})

var findKernel = sync.OnceValues(func() (images.Kernel, error) {
	cache, err := images.OpenCache("")
	if err != nil {
		return images.Kernel{}, err
	}
	return cache.Kernel(context.Background(), "debian:7.3", nil)
})

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// testRoot is a short path: sockets lie below it.
func testRoot(t *testing.T) string {
	t.Helper()
	root, err := os.MkdirTemp("", "irqlab-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	return root
}

func testMachine() machine.Machine {
	return machine.Machine{
		Shape: machine.DefaultShape, Accel: machine.TCG, Irqchip: machine.MSI, Kernel: "/no/kernel",
		Slots: []machine.Slot{{ID: "function", Node: 0}},
	}
}

// idle makes of a machine's arguments one that QEMU builds in full but never runs, for which it needs no kernel.
func idle(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-kernel", "-initrd", "-append":
			i++
		case "-accel":
			i++
			out = append(out, "-accel", "qtest")
		default:
			out = append(out, args[i])
		}
	}
	return out
}

// testConfig is an idle machine in a run directory of the test's own.
func testConfig(t *testing.T) Config {
	t.Helper()
	q, err := findQEMU()
	if err != nil {
		t.Fatalf("QEMU for the test: %v", err)
	}
	run, err := newRunDir(testRoot(t), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = run.Close() })
	return Config{Command: q.Command, Env: q.Env, Machine: testMachine(), RunDir: run, QMPTimeout: patience, arguments: idle}
}

func start(t *testing.T, cfg Config) *Process {
	t.Helper()
	p, err := Start(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	return rest[0] == 'Z' // dead; whoever inherited it has not looked yet
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("%s: not within %s", what, patience)
}

func TestMain(m *testing.M) {
	if root := os.Getenv("IRQLAB_TEST_LAB"); root != "" {
		labProcess(root)
	}
	if root := os.Getenv("IRQLAB_TEST_RUNDIR"); root != "" {
		runDirProcess(root)
	}
	os.Exit(m.Run())
}

// The shapes that the argument tables describe are shapes that QEMU builds.
func TestQEMUBuildsTheShapes(t *testing.T) {
	shape := func(text string) machine.Shape {
		var s machine.Shape
		if _, err := fmt.Sscanf(text, "%dx%dx%d/%d", &s.Sockets, &s.Cores, &s.Threads, &s.Nodes); err != nil {
			t.Fatal(err)
		}
		s.MemoryMiB = 257 * s.Nodes
		return s
	}
	tests := []struct {
		name   string
		change func(*machine.Machine)
	}{
		{"one CPU", func(m *machine.Machine) { m.Shape = shape("1x1x1/1") }},
		{"uneven nodes, remapped", func(m *machine.Machine) { m.Shape, m.Irqchip = shape("3x1x2/2"), machine.Remapped }},
		{"more nodes than sockets, own distances", func(m *machine.Machine) {
			m.Shape, m.Distances = shape("1x3x2/3"), [][]int{{10, 21, 31}, {21, 10, 21}, {31, 21, 10}}
		}},
		{"128 CPUs", func(m *machine.Machine) { m.Shape = shape("2x32x2/2") }},
		{"spare sockets", func(m *machine.Machine) { m.Shape, m.SpareSockets = shape("2x2x2/2"), 2 }},
		{"device on no node, neighbours on both", func(m *machine.Machine) {
			m.Shape = shape("2x1x1/2")
			m.Slots = []machine.Slot{{ID: "a", Node: machine.NoNode}, {ID: "b", Node: 1}}
			m.Neighbours = []machine.Neighbour{
				{Kind: machine.NVMe, Queues: 4, Node: machine.NoNode}, {Kind: machine.VirtioBlk, Queues: 2, Node: 0},
				{Kind: machine.VirtioBlk, Queues: 1, Node: machine.NoNode}, {Kind: machine.NVMe, Queues: 64, Node: 1},
			}
		}},
		{"a full house of bridges", func(m *machine.Machine) {
			m.Shape, m.Slots = shape("8x1x2/8"), nil
			for i := range machine.MaxDevices {
				m.Slots = append(m.Slots, machine.Slot{ID: "f" + strconv.Itoa(i), Node: i % 8})
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t)
			tt.change(&cfg.Machine)
			p := start(t, cfg)
			var status struct{ Status string }
			if err := p.QMP(testContext(t), "query-status", nil, &status); err != nil || status.Status != "running" {
				t.Errorf("status %q, error %v", status.Status, err)
			}
			var cpus []struct {
				CPUIndex int `json:"cpu-index"`
				Props    struct {
					Node int `json:"node-id"`
				}
			}
			if err := p.QMP(testContext(t), "query-cpus-fast", nil, &cpus); err != nil {
				t.Fatal(err)
			}
			if len(cpus) != cfg.Machine.Shape.CPUs() {
				t.Errorf("%d CPUs, want %d", len(cpus), cfg.Machine.Shape.CPUs())
			}
			for _, c := range cpus {
				if want := cfg.Machine.Shape.Node(c.CPUIndex); c.Props.Node != want {
					t.Errorf("CPU %d is on node %d, want %d", c.CPUIndex, c.Props.Node, want)
				}
			}
			for _, port := range cfg.Machine.Slots {
				// Refused for its own sake, not for the bus: there is a port, and it is free to plug into.
				err := p.AttachFunction(testContext(t), port.ID, filepath.Join(p.Dir(), "nobody.sock"))
				var refused *CommandError
				if !errors.As(err, &refused) || !strings.Contains(refused.Desc, "nobody.sock") {
					t.Errorf("slot %s: %v", port.ID, err)
				}
			}
		})
	}
}

// A wrong description is refused before a directory is made or a program started.
func TestValidatesFirst(t *testing.T) {
	root := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", root)
	ran := filepath.Join(root, "ran")
	m := testMachine()
	m.Slots[0].Node = 3
	_, err := Start(testContext(t), Config{Command: []string{"/bin/touch", ran}, Machine: m})
	var wrong *machine.FieldError
	if !errors.As(err, &wrong) || wrong.Field != "Slots[0].Node" {
		t.Errorf("error %v", err)
	}
	if entries, _ := os.ReadDir(root); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	round := func() (pid int, dir string) {
		p := start(t, testConfig(t))
		if err := p.Err(); err != nil {
			t.Error(err)
		}
		info, err := os.Stat(p.Dir())
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("run directory: %v, %v", info, err)
		}
		for range 2 {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		select {
		case <-p.Done():
		default:
			t.Error("closed but not done")
		}
		if err := p.Err(); err != nil {
			t.Errorf("after Close: %v", err)
		}
		if err := p.QMP(testContext(t), "query-status", nil, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("QMP after Close: %v", err)
		}
		return p.PID(), p.Dir()
	}
	round() // what the runtime opens once stays open
	fds, goroutines := descriptors(), runtime.NumGoroutine()
	pid, dir := round()
	if !gone(pid) || exists(dir) {
		t.Errorf("QEMU gone: %t, %s still there: %t", gone(pid), dir, exists(dir))
	}
	if n := descriptors(); n != fds {
		t.Errorf("%d descriptors before, %d after", fds, n)
	}
	eventually(t, fmt.Sprintf("goroutines back to %d", goroutines), func() bool { return runtime.NumGoroutine() <= goroutines })
}

func TestKeep(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Keep = true
	p := start(t, cfg)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if !exists(p.Console().Path()) {
		t.Errorf("%s is gone", p.Console().Path())
	}
	other, err := newRunDir(filepath.Dir(p.Dir()), "other") // which sweeps
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if !exists(p.Dir()) {
		t.Error("the sweep took a directory that was to be kept")
	}
}

func TestDoesNotStart(t *testing.T) {
	t.Parallel()
	t.Run("no such program", func(t *testing.T) {
		t.Parallel()
		cfg := testConfig(t)
		cfg.Command = []string{"/no/such/qemu"}
		if _, err := Start(testContext(t), cfg); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "/no/such/qemu") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("QEMU refuses its arguments", func(t *testing.T) {
		t.Parallel()
		cfg := testConfig(t)
		cfg.arguments = func(args []string) []string { return append(idle(args), "-device", "no-such-device") }
		_, err := Start(testContext(t), cfg)
		var dead *DeadError
		if !errors.As(err, &dead) || dead.Status != 1 || dead.Guest() || !strings.Contains(dead.Stderr, "no-such-device") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("it never greets", func(t *testing.T) {
		t.Parallel()
		cfg := testConfig(t)
		cfg.Command, cfg.QMPTimeout = []string{"/bin/sh", "-c", "exec sleep 600"}, 100*time.Millisecond
		_, err := Start(testContext(t), cfg)
		var late *TimeoutError
		if !errors.As(err, &late) || late.Command != "qmp_capabilities" {
			t.Errorf("error %v", err)
		}
	})
	t.Run("the caller has given up", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := Start(ctx, testConfig(t)); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

func TestQMP(t *testing.T) {
	t.Parallel()
	p := start(t, testConfig(t))
	ctx := testContext(t)
	var refused *CommandError
	if err := p.QMP(ctx, "no-such-command", nil, nil); !errors.As(err, &refused) || refused.Class != "CommandNotFound" {
		t.Errorf("error %v", err)
	}
	var schema []any // some 200 KiB
	if err := p.QMP(ctx, "query-qmp-schema", nil, &schema); err != nil || len(schema) < 100 {
		t.Errorf("schema of %d parts, error %v", len(schema), err)
	}
	v, err := raw.NewMonitor(typed{ctx, p}).QueryVersion()
	if err != nil || v.Qemu.Major < 10 {
		t.Errorf("go-qemu's version call: %+v, error %v", v, err)
	}
	// Calls from many goroutines, with events in between.
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				if i == 0 {
					if err := errors.Join(p.QMP(ctx, "stop", nil, nil), p.QMP(ctx, "cont", nil, nil)); err != nil {
						t.Error(err)
					}
					continue
				}
				var v struct{ QEMU struct{ Major int } }
				if err := p.QMP(ctx, "query-version", nil, &v); err != nil || v.QEMU.Major < 10 {
					t.Errorf("version %v, error %v", v, err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := p.WaitEvent(ctx, func(e qmp.Event) bool { return e.Event == "STOP" }); err != nil {
		t.Error(err)
	}
	if n := len(p.Events()); n < 40 {
		t.Errorf("%d events", n)
	}
	// A caller that gives up does not cost the VM, nor the next caller its answer.
	gaveUp, cancel := context.WithCancel(ctx)
	cancel()
	if err := p.QMP(gaveUp, "query-status", nil, nil); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	var version struct{ QEMU struct{ Major int } }
	if err := p.QMP(ctx, "query-version", nil, &version); err != nil || version.QEMU.Major < 10 {
		t.Errorf("version %v, error %v", version, err)
	}
	if err := p.AttachFunction(ctx, "elsewhere", "/x"); err == nil || !strings.Contains(err.Error(), `"elsewhere"`) {
		t.Errorf("error %v", err)
	}
}

// A QEMU that does not answer is a dead one.
func TestQMPDeadline(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	p := start(t, cfg)
	if err := syscall.Kill(p.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	err := p.qmp(testContext(t), 200*time.Millisecond, "query-status", nil, nil)
	var dead *DeadError
	var late *TimeoutError
	if !errors.As(err, &dead) || !errors.As(err, &late) || late.Command != "query-status" || dead.Guest() {
		t.Fatalf("error %v", err)
	}
	if !gone(p.PID()) || !errors.As(p.Err(), &late) {
		t.Errorf("gone: %t, Err %v", gone(p.PID()), p.Err())
	}
	if err := p.QMP(testContext(t), "query-status", nil, nil); !errors.As(err, &dead) {
		t.Errorf("the next call: %v", err)
	}
	if text, err := p.Diagnose(testContext(t)); !strings.Contains(text, "query-status") || !errors.As(err, &dead) {
		t.Errorf("diagnosis of the dead: %s, %v", text, err)
	}
}

// A QEMU that is stopped says nothing of its guest, and that is not the guest's fault.
func TestFrozen(t *testing.T) {
	t.Parallel()
	p := start(t, testConfig(t))
	if err := syscall.Kill(p.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(testContext(t), 300*time.Millisecond)
	defer cancel()
	var frozen *FrozenError
	if text, err := p.Diagnose(ctx); !errors.As(err, &frozen) || !strings.Contains(text, "query-status") {
		t.Errorf("diagnosis of the frozen: %s, %v", text, err)
	}
}

func TestKilledMidRun(t *testing.T) {
	t.Parallel()
	p := start(t, testConfig(t))
	ctx := testContext(t)
	waited := make(chan error)
	go func() { waited <- p.Console().WaitFor(ctx, "what never comes") }()
	event := make(chan error)
	go func() {
		_, err := p.WaitEvent(ctx, func(e qmp.Event) bool { return false })
		event <- err
	}()
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{<-waited, <-event, p.QMP(ctx, "query-status", nil, nil), p.Err()} {
		var dead *DeadError
		if !errors.As(err, &dead) || dead.Signal != syscall.SIGKILL || dead.Guest() {
			t.Errorf("error %v", err)
		}
	}
	if err := p.Close(); err != nil || exists(p.Dir()) {
		t.Errorf("Close: %v; %s there: %t", err, p.Dir(), exists(p.Dir()))
	}
	var dead *DeadError
	if !errors.As(p.Err(), &dead) {
		t.Errorf("Close has hidden how it ended: %v", p.Err())
	}
}

// The agent's channel and the socket for people lead to ports of the guest; here to QEMU, which holds what is sent until the guest opens the port.
func TestChannels(t *testing.T) {
	t.Parallel()
	p := start(t, testConfig(t))
	if _, err := io.WriteString(p.AgentConn(), "SSH-2.0-lab\r\n"); err != nil {
		t.Error(err)
	}
	for range 2 { // one after the other
		c, err := net.Dial("unix", p.SSHSocket())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	var chardevs []struct{ Label, Filename string }
	if err := p.QMP(testContext(t), "query-chardev", nil, &chardevs); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"qmp", "console", "agent", "ssh"} {
		if !slices.ContainsFunc(chardevs, func(c struct{ Label, Filename string }) bool { return c.Label == want }) {
			t.Errorf("no chardev %s among %v", want, chardevs)
		}
	}
}

// labProcess is a lab of its own, for a parent to kill. It says where its QEMU is.
func labProcess(root string) {
	signal.Ignore(syscall.SIGPIPE)
	fail := func(err error) {
		fmt.Println("error:", err)
		os.Exit(3)
	}
	q, err := findQEMU()
	if err != nil {
		fail(err)
	}
	run, err := newRunDir(root, "victim")
	if err != nil {
		fail(err)
	}
	p, err := Start(context.Background(), Config{Command: q.Command, Env: q.Env, Machine: testMachine(), RunDir: run, QMPTimeout: patience, arguments: idle})
	if err != nil {
		fail(err)
	}
	fmt.Println(p.PID(), run.reaper.Process.Pid, p.Dir())
	select {}
}

// runDirProcess makes run directories until it is killed; with IRQLAB_TEST_KEEP, one that is to be kept.
func runDirProcess(root string) {
	for {
		run, err := newRunDir(root, "")
		if err == nil && os.Getenv("IRQLAB_TEST_KEEP") != "" {
			err = run.Keep()
			fmt.Println("kept")
			_, _ = io.Copy(io.Discard, os.Stdin)
		}
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(3)
		}
	}
}

// The lab's whole process group is killed the moment its run directory appears: the reaper is there before, and out of the group.
func TestGroupKilled(t *testing.T) {
	t.Parallel()
	root := testRoot(t)
	for range 10 {
		lab := exec.Command(os.Args[0], "-test.run=^$")
		lab.Env = append(os.Environ(), "IRQLAB_TEST_RUNDIR="+root)
		lab.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := lab.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- lab.Wait() }()
		for len(runDirs(t, root)) == 0 && len(ended) == 0 {
			runtime.Gosched()
		}
		if err := syscall.Kill(-lab.Process.Pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-ended
		eventually(t, "the run directories' end", func() bool { return len(runDirs(t, root)) == 0 })
	}
}

// What is to be kept outlives a lab that is killed, too.
func TestKeptDirectoryOfAKilledLab(t *testing.T) {
	t.Parallel()
	root := testRoot(t)
	lab := exec.Command(os.Args[0], "-test.run=^$")
	lab.Env = append(os.Environ(), "IRQLAB_TEST_RUNDIR="+root, "IRQLAB_TEST_KEEP=1")
	if _, err := lab.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := lab.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := lab.Start(); err != nil {
		t.Fatal(err)
	}
	var word string
	if _, err := fmt.Fscan(out, &word); err != nil || word != "kept" {
		t.Fatalf("the lab says %q, %v", word, err)
	}
	reaper := children(t, lab.Process.Pid)
	if len(reaper) != 1 {
		t.Fatalf("the lab has children %v", reaper)
	}
	if err := lab.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = lab.Wait()
	eventually(t, "the reaper's end", func() bool { return gone(reaper[0]) })
	if dirs := runDirs(t, root); len(dirs) != 1 {
		t.Errorf("run directories %q", dirs)
	}
}

// runDirs lists the run directories below a root.
func runDirs(t *testing.T, root string) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(root, "vm-*"))
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// children lists the processes that a process has started.
func children(t *testing.T, pid int) (list []int) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, _ := os.ReadFile(f) // its thread may have ended
		for _, word := range strings.Fields(string(b)) {
			n, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, n)
		}
	}
	return list
}

// The lab is killed as hard as can be: QEMU, the reaper and the run directory go with it.
func TestLabKilled(t *testing.T) {
	t.Parallel()
	if _, err := findQEMU(); err != nil {
		t.Fatalf("QEMU for the test: %v", err)
	}
	root := testRoot(t)
	pid, reaper, dir, lab := startLab(t, root)
	if vms := list(root); len(vms) != 1 || vms[0].Name != "victim" || vms[0].PID != pid || vms[0].Dir != dir || !exists(vms[0].SSHSocket) {
		t.Errorf("running: %+v", vms)
	}
	if err := lab.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = lab.Wait()
	eventually(t, "QEMU's end", func() bool { return gone(pid) })
	eventually(t, "the run directory's end", func() bool { return !exists(dir) })
	eventually(t, "the reaper's end", func() bool { return gone(reaper) })
	if vms := list(root); len(vms) != 0 {
		t.Errorf("running: %+v", vms)
	}
}

// Lab and reaper are killed: the next lab sweeps up, and leaves alone what is in use.
func TestSweep(t *testing.T) {
	t.Parallel()
	if _, err := findQEMU(); err != nil {
		t.Fatalf("QEMU for the test: %v", err)
	}
	root := testRoot(t)
	pid, reaper, dir, lab := startLab(t, root)
	live, err := newRunDir(root, "live")
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	if !exists(dir) {
		t.Fatal("a directory in use was swept")
	}
	if err := errors.Join(syscall.Kill(reaper, syscall.SIGKILL), lab.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = lab.Wait()
	eventually(t, "QEMU's end", func() bool { return gone(pid) })
	if !exists(dir) {
		t.Fatal("nothing to sweep")
	}
	next, err := newRunDir(root, "next")
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if exists(dir) || !exists(live.Path) {
		t.Errorf("stale directory there: %t, live one: %t", exists(dir), exists(live.Path))
	}
}

// A guest without a root file system panics; the error has the panic, and QEMU's end is the guest's doing.
func TestGuestPanics(t *testing.T) {
	t.Parallel()
	p := bootKernel(t)
	err := p.Console().WaitFor(testContext(t), "irqlab: agent ready")
	var boot *BootError
	if !errors.As(err, &boot) || boot.Panic == nil || !strings.Contains(boot.Panic.Title, "Unable to mount root fs") || !strings.Contains(boot.Panic.Text, "Call Trace") {
		t.Fatalf("error %v", err)
	}
	<-p.Done()
	var dead *DeadError
	if !errors.As(p.Err(), &dead) || !dead.Guest() || dead.Reason != "guest-reset" {
		t.Errorf("Err %v", p.Err())
	}
	file, err := os.ReadFile(p.Console().Path())
	if err != nil || !strings.Contains(strings.ReplaceAll(string(file), "\r", ""), boot.Panic.Text) {
		t.Errorf("the console file, %d bytes, has not the panic; error %v", len(file), err)
	}
}

// A guest that waits for ever is told apart from a dead one, and tells where it hangs.
func TestGuestHangs(t *testing.T) {
	t.Parallel()
	p := bootKernel(t, "loglevel=7", "rootwait", "root=/dev/nowhere")
	if err := p.Console().WaitFor(testContext(t), "Waiting for root device"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	err := p.Console().WaitFor(ctx, "irqlab: agent ready")
	var boot *BootError
	if !errors.As(err, &boot) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	for _, want := range []string{"status running", "registers of CPU 3:", "RIP=", "Waiting for root device", "NMI: Not continuing", "NMI backtrace for cpu"} {
		if !strings.Contains(boot.Error(), want) {
			t.Errorf("no %q in the error", want)
		}
	}
	if t.Failed() {
		t.Log(boot.Error())
	}
	if findings := p.Console().Scan(); len(findings) > 0 || len(boot.Trouble) > 0 {
		t.Errorf("what the lab's own NMI has the guest say counts as trouble: %+v, %+v", findings, boot.Trouble)
	}
}

// bootKernel starts the default kernel with no initramfs.
func bootKernel(t *testing.T, words ...string) *Process {
	t.Helper()
	k, err := findKernel()
	if err != nil {
		t.Fatalf("kernel for the test: %v", err)
	}
	cfg := testConfig(t)
	cfg.arguments = nil
	cfg.Machine.Kernel, cfg.Machine.Cmdline = k.Image, words
	return start(t, cfg)
}
