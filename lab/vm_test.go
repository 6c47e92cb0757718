package lab_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"irqlab/guestagent/agentapi"
	"irqlab/lab"
	"irqlab/lab/qemu"
)

// bootTime bounds a boot on a busy machine without KVM.
const bootTime = 4 * time.Minute

// start boots the default VM, or skips nothing: a machine that cannot is a failure.
func start(t *testing.T, cfg lab.Config) (*lab.VM, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootTime)
	t.Cleanup(cancel)
	vm, err := lab.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := vm.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return vm, ctx
}

// One boot serves the whole story of a VM: look around, drive the function, move CPUs and vectors, log in as a person, and leave nothing behind.
func TestVM(t *testing.T) {
	t.Parallel()
	vm, ctx := start(t, lab.Config{Name: "test-vm"})
	a := vm.Agent

	info, err := a.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.CPUs.Online.String(); got != "0-3" {
		t.Errorf("CPUs %s are online, want 0-3", got)
	}
	if got := info.CPUs.CPUs[1].Siblings.String(); got != "0-1" {
		t.Errorf("CPU 1 has siblings %s, want 0-1", got)
	}

	f, err := vm.Attach(ctx, lab.FunctionConfig{Vectors: 3})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := vm.Attach(ctx, lab.FunctionConfig{Vectors: 3}); err == nil || !strings.Contains(err.Error(), "taken") {
		t.Errorf("a slot took two functions: %v", err)
	}
	fn, err := a.OpenFunction(ctx, agentapi.OpenFunctionParams{Vendor: lab.VendorID, Device: lab.ManaID, WaitMS: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	if fn.Node != 0 || fn.Vectors != 3 {
		t.Errorf("the function has node %d and %d vectors, want node 0 and 3", fn.Node, fn.Vectors)
	}
	if _, err := a.AddVectors(ctx, fn.Address, 0, 1); err != nil {
		t.Fatal(err)
	}
	vectors, err := a.AddVectors(ctx, fn.Address, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Apply(ctx, agentapi.ApplyParams{Strategy: "linear", Node: fn.Node, Total: 3, HWC: &vectors[0], Queues: vectors[1:]}); err != nil {
		t.Fatal(err)
	}
	seen, err := f.Settle(ctx, a, vectors)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"0-1", "0", "1"} {
		irq := seen.Vectors[i].State
		if irq.Affinity.String() != want || irq.Pending() {
			t.Errorf("vector %d: requested %s, effective %s; want a settled %s", i, irq.Affinity, irq.Effective, want)
		}
		if got := f.PCI.VectorStates()[i].Fired; got < irq.Total {
			t.Errorf("vector %d was handled %d times and fired %d times", i, irq.Total, got)
		}
	}

	// A vector's only CPU leaves: the kernel must route it to one that is online.
	if _, err := a.SetCPU(ctx, 1, false); err != nil {
		t.Fatal(err)
	}
	if seen, err = f.Settle(ctx, a, vectors); err != nil {
		t.Fatal(err)
	}
	if got := seen.Vectors[2].State.Effective; seen.Online.String() != "0,2-3" || !got.Within(seen.Online) {
		t.Errorf("after CPU 1 left (online %s) vector 2 is routed to %s", seen.Online, got)
	}
	var guest *agentapi.Error
	if _, err := a.SetCPU(ctx, 99, false); !errors.As(err, &guest) || guest.Code != agentapi.CodeNotFound {
		t.Errorf("CPU 99 offline: %v, want code %s", err, agentapi.CodeNotFound)
	}
	if _, err := a.Apply(ctx, agentapi.ApplyParams{Strategy: "linaer", HWC: &vectors[0]}); !errors.As(err, &guest) || guest.Code != agentapi.CodeInvalid {
		t.Errorf("unknown strategy: %v, want code %s", err, agentapi.CodeInvalid)
	}

	links, err := a.Links(ctx)
	if err != nil || len(links) == 0 || links[0].Name != "lo" || !links[0].Up {
		t.Errorf("links %+v, %v; want lo, up", links, err)
	}
	testPerson(t, ctx)
	if warnings := vm.Console().Scan(); len(warnings) > 0 {
		t.Errorf("the kernel complained: %s", warnings[0].Text)
	}
}

// testPerson logs in as another process would, while the lab's own connection is in use.
func testPerson(t *testing.T, ctx context.Context) {
	access, err := lab.Reach("test-vm")
	if err != nil {
		t.Fatal(err)
	}
	client, err := access.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	out, err := session.Output("uname -r")
	if err != nil || !strings.Contains(string(out), "-cloud-amd64") {
		t.Errorf("uname -r: %q, %v", out, err)
	}
}

// A guest that crashes, and a QEMU that is killed, end calls promptly with an error that tells which it was.
func TestDeath(t *testing.T) {
	t.Parallel()
	vm, ctx := start(t, lab.Config{})
	dir := vm.Dir()
	client, err := vm.Access().Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	_ = session.Start("echo c > /proc/sysrq-trigger")
	<-vm.Process().Done()
	_, err = vm.Agent.Info(ctx)
	if err == nil {
		t.Fatal("the agent of a crashed guest answered")
	}
	var dead *qemu.DeadError
	if err = vm.Explain(ctx, err); !errors.As(err, &dead) || !dead.Guest() {
		t.Errorf("after a panic: %v; want a guest that ended", err)
	}
	findings := vm.Console().Scan()
	if len(findings) == 0 || !strings.Contains(findings[len(findings)-1].Text, "sysrq") {
		t.Errorf("the panic was not found on the console: %v", findings)
	}
	if err := vm.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("run directory %s is still there: %v", dir, err)
	}

	killed, ctx := start(t, lab.Config{})
	if err := syscall.Kill(killed.Process().PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, err = killed.Agent.Info(ctx)
	if err = killed.Explain(ctx, err); !errors.As(err, &dead) || dead.Guest() || dead.Signal != syscall.SIGKILL {
		t.Errorf("after kill -9 of QEMU: %v; want one that was killed", err)
	}
}

// Bad configurations are refused, and name what is wrong.
func TestStartRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg  lab.Config
		want string
	}{
		"accelerator": {lab.Config{Accel: "hax"}, "auto, kvm and tcg"},
		"kernel":      {lab.Config{Kernel: "/etc/passwd"}, "/etc/passwd"},
		"no kernel":   {lab.Config{Kernel: "/no/such/kernel"}, "/no/such/kernel"},
	} {
		t.Run(name, func(t *testing.T) {
			vm, err := lab.Start(t.Context(), tc.cfg)
			if err == nil {
				vm.Close()
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q does not mention %q", err, tc.want)
			}
		})
	}
}
