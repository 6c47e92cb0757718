package pci

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
)

type tree struct {
	t *testing.T
	kfile.Root
}

func newTree(t *testing.T) tree {
	r := tree{t, kfile.Root(t.TempDir())}
	r.write("sys/bus/pci/drivers_probe", "")
	for address, id := range map[string][2]string{
		"0000:00:03.0": {"0x1af4", "0x1003"}, "0000:81:00.0": {"0x1414", "0x00ba"}, "0000:82:00.0": {"0x1414", "0x00ba"},
	} {
		r.add(address, id[0], id[1])
	}
	return r
}

func (r tree) write(name, content string) {
	r.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(r.Path(name)), 0o755), os.WriteFile(r.Path(name), []byte(content), 0o644)); err != nil {
		r.t.Fatal(err)
	}
}

func (r tree) add(address, vendor, device string) {
	d := "sys/bus/pci/devices/" + address
	r.write(d+"/vendor", vendor+"\n")
	r.write(d+"/device", device+"\n")
	r.write(d+"/driver_override", "(null)\n")
}

func TestFind(t *testing.T) {
	r := newTree(t)
	for _, tc := range []struct {
		m    Match
		want string
	}{
		{Match{Vendor: 0x1414, Device: 0x00ba}, "0000:81:00.0"},
		{Match{Vendor: 0x1414, Device: 0x00ba, Skip: func(a string) bool { return a == "0000:81:00.0" }}, "0000:82:00.0"},
		{Match{Address: "0000:82:00.0"}, "0000:82:00.0"},
	} {
		if got, err := Find(r.Root, tc.m); err != nil || got != tc.want {
			t.Errorf("%s: %q, %v; want %q", tc.m, got, err, tc.want)
		}
	}
	for _, m := range []Match{{Vendor: 0x1414, Device: 1}, {Address: "0000:99:00.0"}, {Vendor: 0x1414, Device: 0xba, Skip: func(string) bool { return true }}} {
		if got, err := Find(r.Root, m); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %q, %v", m, got, err)
		}
	}
}

func TestValidAddress(t *testing.T) {
	for s, want := range map[string]bool{
		"0000:81:00.0": true, "10000:e1:00.7": true, "": false, "81:00.0": false, "0000:81:00.8": false, "0000:81:00.0/..": false,
		"..": false, "0000:81:00.0\n": false, "0000:8G:00.0": false,
	} {
		if ValidAddress(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

// Only the buses that have no function are asked to look again.
func TestRescan(t *testing.T) {
	r := newTree(t)
	for _, b := range []string{"0000:81", "0000:8a"} {
		path := r.Path("sys/class/pci_bus", b)
		if err := errors.Join(os.MkdirAll(path, 0o755), os.WriteFile(filepath.Join(path, "rescan"), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := Rescan(r.Root); err != nil {
		t.Fatal(err)
	}
	for b, want := range map[string]string{"0000:81": "", "0000:8a": "1"} {
		if got, err := r.String("sys/class/pci_bus", b, "rescan"); got != want || err != nil {
			t.Errorf("bus %s was told %q, %v; want %q", b, got, err, want)
		}
	}
}

func TestWaitFor(t *testing.T) {
	r := newTree(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := WaitFor(ctx, r.Root, Match{Vendor: 1, Device: 2})
	if rep := fault.Reply(err); rep.Code != agentapi.CodeNotFound || !strings.Contains(rep.Message, "0000:81:00.0 1414:00ba") {
		t.Errorf("%+v", rep)
	}
	if _, err := WaitFor(t.Context(), r.Root, Match{Address: "nonsense"}); fault.Reply(err).Code != agentapi.CodeInvalid {
		t.Errorf("nonsense was waited for: %v", err)
	}
	added := make(chan struct{})
	go func() {
		defer close(added)
		time.Sleep(15 * time.Millisecond)
		r.add("0000:83:00.0", "0x0001", "0x0002")
	}()
	got, err := WaitFor(t.Context(), r.Root, Match{Vendor: 1, Device: 2})
	<-added
	if err != nil || got != "0000:83:00.0" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestBindRefused(t *testing.T) {
	r := newTree(t) // plain files: nobody binds
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	err := Bind(ctx, r.Root, "0000:81:00.0", "vfio-pci")
	if fault.Reply(err).Code != agentapi.CodeRefused || !strings.Contains(err.Error(), "did not take it") {
		t.Error(err)
	}
	for name, want := range map[string]string{"sys/bus/pci/devices/0000:81:00.0/driver_override": "vfio-pci", "sys/bus/pci/drivers_probe": "0000:81:00.0"} {
		if s, _ := r.String(name); s != want {
			t.Errorf("%s: %q", name, s)
		}
	}
}

// Plain files stand for sysfs: what is written tells what the kernel would be asked, and nobody acts on it.
func TestAttachDetachReset(t *testing.T) {
	r := newTree(t)
	const a = "0000:81:00.0"
	wrote := func(name, want string) {
		t.Helper()
		if s, _ := r.String(name); s != want {
			t.Errorf("%s: %q, want %q", name, s, want)
		}
	}
	refused := func(err error, code, text string) {
		t.Helper()
		if err == nil || fault.Reply(err).Code != code || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want code %s with %q", err, code, text)
		}
	}
	refused(Attach(r.Root, a, "../x"), agentapi.CodeInvalid, "not a driver's name")
	refused(Attach(r.Root, a, "mana"), agentapi.CodeNotFound, "load its module first")
	r.write("sys/bus/pci/drivers/mana/bind", "")
	r.write("sys/bus/pci/drivers/mana/unbind", "")
	refused(Attach(r.Root, a, "mana"), agentapi.CodeRefused, "did not take it")
	wrote("sys/bus/pci/drivers/mana/bind", a)

	refused(Detach(r.Root, a), agentapi.CodeInvalid, "has no driver")
	if err := os.Symlink("../../drivers/mana", r.Path("sys/bus/pci/devices/"+a+"/driver")); err != nil {
		t.Fatal(err)
	}
	refused(Attach(r.Root, a, "mana"), agentapi.CodeInvalid, "bound to mana")
	if err := Detach(r.Root, a); err != nil {
		t.Error(err)
	}
	wrote("sys/bus/pci/drivers/mana/unbind", a)

	refused(Reset(r.Root, a), agentapi.CodeUnsupported, "no way to reset")
	r.write("sys/bus/pci/devices/"+a+"/reset", "")
	if err := Reset(r.Root, a); err != nil {
		t.Error(err)
	}
	wrote("sys/bus/pci/devices/"+a+"/reset", "1")
}

func TestMSIs(t *testing.T) {
	r := newTree(t)
	if got, err := MSIs(r.Root, "0000:81:00.0"); err != nil || got != nil {
		t.Errorf("no MSI: %v, %v", got, err)
	}
	for _, n := range []string{"100", "29", "30"} {
		r.write("sys/bus/pci/devices/0000:81:00.0/msi_irqs/"+n, "msix\n")
	}
	if got, err := MSIs(r.Root, "0000:81:00.0"); err != nil || !slices.Equal(got, []int{29, 30, 100}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := MSIs(r.Root, "../x"); fault.Reply(err).Code != agentapi.CodeInvalid {
		t.Error(err)
	}
}

func TestGroupAndNode(t *testing.T) {
	r := newTree(t)
	if n, err := Node(r.Root, "0000:81:00.0"); n != -1 || err != nil {
		t.Errorf("no NUMA: %d, %v", n, err)
	}
	r.write("sys/bus/pci/devices/0000:81:00.0/numa_node", "1\n")
	if n, err := Node(r.Root, "0000:81:00.0"); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := IOMMUGroup(r.Root, "0000:81:00.0"); fault.Reply(err).Code != agentapi.CodeUnsupported {
		t.Error(err)
	}
	if err := os.Symlink("../../../kernel/iommu_groups/12", r.Path("sys/bus/pci/devices/0000:81:00.0/iommu_group")); err != nil {
		t.Fatal(err)
	}
	if g, err := IOMMUGroup(r.Root, "0000:81:00.0"); g != "12" || err != nil {
		t.Errorf("%q, %v", g, err)
	}
}
