package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/irq"
	"irqlab/guestagent/kfile"
	"irqlab/guestagent/module"
)

const (
	function = "0000:81:00.0"
	other    = "0000:00:03.0" // bound to a kernel driver, one vector
)

// kernel is a guest's /proc and /sys as plain files, with the vector allocator's rule: a new interrupt goes to the CPU of the default
// affinity that has the fewest vectors.
type kernel struct {
	t    testing.TB
	root kfile.Root
	rows []row
	next int
	// fail makes the n-th allocation from now fail; 0: none.
	fail int
	// stray makes allocations ignore the default affinity.
	stray bool
	room  int // vectors that a CPU has; 0: enough
}

type row struct {
	irq, index, cpu int
	address, action string
}

func newKernel(t testing.TB) *kernel {
	k := &kernel{t: t, root: kfile.Root(t.TempDir()), next: 24}
	k.write("proc/cmdline", "console=ttyS0 quiet")
	k.write("proc/uptime", "12.50 40.00")
	k.write("proc/sys/kernel/osrelease", "7.3.4+deb13-cloud-amd64")
	k.write("proc/irq/default_smp_affinity", "f")
	for _, f := range []string{"online", "present", "possible"} {
		k.write("sys/devices/system/cpu/"+f, "0-3")
	}
	for c := range 4 {
		d := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", c)
		k.write(d+"topology/core_id", fmt.Sprint(c/2))
		k.write(d+"topology/physical_package_id", "0")
		k.write(d+"topology/thread_siblings_list", []string{"0-1", "2-3"}[c/2])
		k.write(d+"online", "1")
	}
	for _, m := range []string{"vfio_iommu_type1/parameters/allow_unsafe_interrupts", "vfio_pci/refcnt"} {
		k.write("sys/module/"+m, "0")
	}
	for _, a := range []string{function, other} {
		k.write("sys/bus/pci/devices/"+a+"/vendor", "0x1414")
		k.write("sys/bus/pci/devices/"+a+"/device", map[string]string{function: "0x00ba", other: "0xfffe"}[a])
		k.write("sys/bus/pci/devices/"+a+"/numa_node", "0")
		k.link("sys/bus/pci/devices/"+a+"/iommu_group", "../../../kernel/iommu_groups/7")
	}
	k.link("sys/bus/pci/devices/"+function+"/driver", "../../drivers/vfio-pci")
	k.link("sys/bus/pci/devices/"+other+"/driver", "../../drivers/virtio-pci")
	k.request(other, 0, "virtio0-config", 1)
	return k
}

func (k *kernel) write(name, content string) {
	k.t.Helper()
	path := k.root.Path(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content+"\n"), 0o644)); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) link(name, target string) {
	k.t.Helper()
	path := k.root.Path(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path)); err != nil {
		k.t.Fatal(err)
	}
}

// request allocates an interrupt on a CPU.
func (k *kernel) request(address string, index int, action string, cpu int) {
	n := k.next
	k.next++
	k.rows = append(k.rows, row{n, index, cpu, address, action})
	d := fmt.Sprintf("proc/irq/%d/", n)
	k.write(d+"smp_affinity_list", "0-3")
	k.write(d+"smp_affinity", "f")
	k.write(d+"effective_affinity_list", fmt.Sprint(cpu))
	k.write(d+"affinity_hint", "0")
	k.write(d+"node", "0")
	k.write(fmt.Sprintf("sys/bus/pci/devices/%s/msi_irqs/%d", address, n), "msix")
	k.table()
}

func (k *kernel) table() {
	var b strings.Builder
	b.WriteString("            CPU0       CPU1       CPU2       CPU3\n")
	totals := make([]string, k.next)
	for n := range totals {
		totals[n] = "0"
	}
	for _, r := range k.rows {
		fmt.Fprintf(&b, "%3d: 0 0 0 1 PCI-MSIX-%s %d-edge %s\n", r.irq, r.address, r.index, r.action)
		totals[r.irq] = "1"
	}
	b.WriteString("NMI: 0 0 0 0 Non-maskable interrupts\n")
	k.write("proc/interrupts", strings.TrimSuffix(b.String(), "\n"))
	k.write("proc/stat", "intr 99 "+strings.Join(totals, " "))
}

// opened is a function opened on the kernel.
type opened struct {
	k       *kernel
	address string
	n       int
	reads   int
	gone    []int
}

func (o *opened) Vectors() int {
	if o.k.room > 0 {
		return 2 * agentapi.MaxLevel
	}
	return 16
}
func (o *opened) GivenUp(k int) bool { return slices.Contains(o.gone, k) }
func (o *opened) GiveUp(n int) error {
	o.gone = append(o.gone, n)
	i := slices.IndexFunc(o.k.rows, func(r row) bool { return r.address == o.address && r.index == n })
	o.k.write(fmt.Sprintf("sys/kernel/irq/%d/hwirq", o.k.rows[i].irq), fmt.Sprint(n))
	o.k.rows = slices.Delete(o.k.rows, i, i+1)
	o.k.table()
	return nil
}
func (o *opened) Enabled() int { return o.n }
func (o *opened) ReadRegister(offset uint64, size int) (uint64, error) {
	o.reads++
	return offset<<8 | uint64(size), nil
}
func (o *opened) AddVector() error {
	k := o.k
	if k.fail > 0 {
		if k.fail--; k.fail == 0 {
			return fault.New(agentapi.CodeRefused, "no space: %w", os.ErrPermission)
		}
	}
	mask, err := k.root.String("proc/irq/default_smp_affinity")
	if err != nil {
		return err
	}
	allowed, err := irq.ParseMask(mask)
	if err != nil {
		return err
	}
	levels := make([]int, 4)
	for _, r := range k.rows {
		levels[r.cpu]++
	}
	cpu := slices.MinFunc(allowed, func(a, b int) int { return levels[a] - levels[b] })
	if k.stray {
		cpu = 3
	}
	if k.room > 0 && levels[cpu] >= k.room { // then it takes another one
		cpu = (cpu + 1) % 4
	}
	k.request(o.address, o.n, fmt.Sprintf("vfio-msix[%d](%s)", o.n, o.address), cpu)
	o.n++
	return nil
}

func (o *opened) Close() error {
	for _, r := range o.k.rows {
		if r.address == o.address {
			_ = os.Remove(o.k.root.Path(fmt.Sprintf("sys/bus/pci/devices/%s/msi_irqs/%d", o.address, r.irq)))
		}
	}
	o.k.rows = slices.DeleteFunc(o.k.rows, func(r row) bool { return r.address == o.address })
	o.k.table()
	o.n = 0
	return nil
}

func newAgent(t testing.TB) (*Agent, *kernel) {
	k := newKernel(t)
	a := New(Config{
		Root: k.root, Modules: module.Loader{Root: k.root, Dir: k.root.Path("lib")},
		Open: func(address, group string) (Function, error) {
			if group != "7" {
				t.Errorf("group %q", group)
			}
			return &opened{k: k, address: address}, nil
		},
		PowerOff: func() {},
	})
	return a, k
}

// dial serves the agent on a pipe and returns the lab's client.
func dial(t testing.TB, a *Agent) *agentapi.Client {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan error, 1)
	go func() {
		err := a.Serve(t.Context(), theirs)
		theirs.Close()
		done <- err
	}()
	t.Cleanup(func() {
		ours.Close()
		<-done
	})
	return agentapi.NewClient(ours)
}

func call[R any](t *testing.T, c *agentapi.Client, method string, params any) R {
	t.Helper()
	var r R
	if err := c.Call(t.Context(), method, params, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func wantCode(t *testing.T, c *agentapi.Client, method string, params any, code, text string) {
	t.Helper()
	err := c.Call(t.Context(), method, params, nil)
	var e *agentapi.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Message, text) {
		t.Errorf("%s %+v: error %v, want code %s with %q", method, params, err, code, text)
	}
}

func TestInfo(t *testing.T) {
	t.Parallel()
	a, _ := newAgent(t)
	c := dial(t, a)
	info := call[agentapi.Info](t, c, agentapi.MethodInfo, agentapi.InfoParams{Version: agentapi.Version})
	if info.Release != "7.3.4+deb13-cloud-amd64" || info.UptimeS != 12.5 || info.CPUs.Online.String() != "0-3" || info.CPUs.CPUs[3].Core != 1 {
		t.Errorf("%+v", info)
	}
	wantCode(t, c, agentapi.MethodInfo, agentapi.InfoParams{Version: 99}, agentapi.CodeUnsupported, "version 99")
}

func TestFunctionLife(t *testing.T) {
	t.Parallel()
	a, k := newAgent(t)
	c := dial(t, a)
	f := call[agentapi.FunctionInfo](t, c, agentapi.MethodOpenFunction, agentapi.OpenFunctionParams{Vendor: 0x1414, Device: 0x00ba})
	if f.Address != function || f.Vectors != 16 || f.Node != 0 || f.Driver != "vfio-pci" {
		t.Errorf("%+v", f)
	}
	if s, _ := k.root.String("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"); s != "1" {
		t.Errorf("unsafe interrupts: %q", s)
	}
	wantCode(t, c, agentapi.MethodOpenFunction, agentapi.OpenFunctionParams{Address: function}, agentapi.CodeInvalid, "open already")
	found := call[agentapi.FunctionInfo](t, c, agentapi.MethodFindFunction, agentapi.FindFunctionParams{Vendor: 0x1414, Device: 0xfffe})
	if found.Address != other || found.Driver != "virtio-pci" {
		t.Errorf("%+v", found)
	}
	wantCode(t, c, agentapi.MethodFindFunction, agentapi.FindFunctionParams{Vendor: 0x1414, Device: 0xdead}, agentapi.CodeNotFound, "dead")
	wantCode(t, c, agentapi.MethodAddVectors, agentapi.AddVectorsParams{Address: function, First: 1, Count: 1}, agentapi.CodeInvalid, "the next is 0")
	wantCode(t, c, agentapi.MethodAddVectors, agentapi.AddVectorsParams{Address: function, Count: 17}, agentapi.CodeInvalid, "the table holds 16")
	wantCode(t, c, agentapi.MethodAddVectors, agentapi.AddVectorsParams{Address: function, Count: -1}, agentapi.CodeInvalid, "-1 vectors")
	hwc := call[agentapi.AddVectorsResult](t, c, agentapi.MethodAddVectors, agentapi.AddVectorsParams{Address: function, Count: 1})
	all := call[agentapi.AddVectorsResult](t, c, agentapi.MethodAddVectors, agentapi.AddVectorsParams{Address: function, First: 1, Count: 4})
	if len(hwc.Vectors) != 1 || len(all.Vectors) != 5 || all.Vectors[4].Index != 4 || all.Vectors[4].Name != "vfio-msix[4](0000:81:00.0)" {
		t.Errorf("%+v, %+v", hwc, all)
	}
	own := []cpulist.List{{3}, {0, 2}, {1}, {0, 1, 2, 3}}
	given := call[agentapi.ApplyResult](t, c, agentapi.MethodApply, agentapi.ApplyParams{Strategy: "masks:3/0,2/1/0-3", Masks: own, Total: 5, Queues: all.Vectors[1:]})
	if got := fmt.Sprint(given.Masks[1].Mask, " ", given.Masks[3].Mask); got != "0,2 0-3" || given.Branch != "masks" {
		t.Errorf("masks of one's own: %s, %s", got, given.Branch)
	}
	wantCode(t, c, agentapi.MethodApply, agentapi.ApplyParams{Masks: own[:3], Total: 5, Queues: all.Vectors[1:]}, agentapi.CodeInvalid, "3 masks for 4 queue vectors")
	applied := call[agentapi.ApplyResult](t, c, agentapi.MethodApply,
		agentapi.ApplyParams{Strategy: "linear", Node: 0, Total: 5, HWC: &all.Vectors[0], Queues: all.Vectors[1:]})
	var masks []string
	for _, m := range applied.Masks {
		masks = append(masks, fmt.Sprint(m.Index, "=", m.Mask))
		if s, _ := k.root.CPUs(fmt.Sprintf("proc/irq/%d/smp_affinity_list", m.IRQ)); !slices.Equal(s, m.Mask) {
			t.Errorf("vector %d: %v written, %v reported", m.Index, s, m.Mask)
		}
	}
	if got := strings.Join(masks[1:], " "); got != "1=0 2=1 3=2 4=3" {
		t.Errorf("linear: %s", got)
	}
	wantCode(t, c, agentapi.MethodApply, agentapi.ApplyParams{Strategy: "lineal", Total: 5}, agentapi.CodeInvalid, "lineal")
	call[agentapi.Empty](t, c, agentapi.MethodSetAffinity, agentapi.SetAffinityParams{Masks: []agentapi.AppliedMask{{IRQ: all.Vectors[1].IRQ, Mask: cpulist.New(3)}}})
	if s, _ := k.root.CPUs(fmt.Sprintf("proc/irq/%d/smp_affinity_list", all.Vectors[1].IRQ)); s.String() != "3" {
		t.Errorf("affinity %s, set to 3", s)
	}
	wantCode(t, c, agentapi.MethodSetAffinity, agentapi.SetAffinityParams{Masks: []agentapi.AppliedMask{{IRQ: 9999, Mask: cpulist.New(3)}}}, agentapi.CodeNotFound, "IRQ 9999")
	irqs := call[agentapi.AddVectorsResult](t, c, agentapi.MethodFunctionIRQs, agentapi.FunctionIRQsParams{Address: other})
	if len(irqs.Vectors) != 1 || irqs.Vectors[0].Name != "virtio0-config" {
		t.Errorf("%+v", irqs)
	}
	o := call[agentapi.Observation](t, c, agentapi.MethodAwait, agentapi.AwaitParams{Above: map[int]uint64{all.Vectors[2].IRQ: 0}})
	if got := o.IRQs[all.Vectors[2].IRQ]; got.Total != 1 || got.Affinity.String() != "1" {
		t.Errorf("%+v", o)
	}
	wantCode(t, c, agentapi.MethodAwait, agentapi.AwaitParams{Above: map[int]uint64{all.Vectors[2].IRQ: 1}, TimeoutMS: 5}, agentapi.CodeTimeout, "vfio-msix[2]")
	if r := call[agentapi.TotalsResult](t, c, agentapi.MethodAwaitTotals, agentapi.AwaitParams{Above: map[int]uint64{all.Vectors[2].IRQ: 0}}); r.Totals[all.Vectors[2].IRQ] != 1 {
		t.Errorf("%+v", r)
	}
	wantCode(t, c, agentapi.MethodAwaitTotals, agentapi.AwaitParams{Above: map[int]uint64{all.Vectors[2].IRQ: 1}, TimeoutMS: 5}, agentapi.CodeTimeout, "vfio-msix[2]")
	storm := agentapi.StormParams{CPUs: cpulist.New(1, 3), Rounds: 2, Masks: []agentapi.AppliedMask{{IRQ: all.Vectors[1].IRQ, Mask: cpulist.New(2)}}}
	call[agentapi.Empty](t, c, agentapi.MethodStorm, storm)
	if s, _ := k.root.CPUs(fmt.Sprintf("proc/irq/%d/smp_affinity_list", all.Vectors[1].IRQ)); s.String() != "2" {
		t.Errorf("after a storm the affinity is %s, to be set to 2", s)
	}
	wantCode(t, c, agentapi.MethodCloseFunction, agentapi.CloseFunctionParams{Address: other}, agentapi.CodeInvalid, "is not open")
}

// The kernel's drivers take and leave a function that the agent does not drive itself.
func TestKernelDrivers(t *testing.T) {
	t.Parallel()
	a, k := newAgent(t)
	c := dial(t, a)
	k.write("sys/bus/pci/drivers/virtio-pci/unbind", "")
	k.write("sys/bus/pci/devices/"+other+"/reset", "")
	call[agentapi.Empty](t, c, agentapi.MethodUnbind, agentapi.FunctionParams{Address: other})
	call[agentapi.Empty](t, c, agentapi.MethodReset, agentapi.FunctionParams{Address: other})
	for name, want := range map[string]string{"sys/bus/pci/drivers/virtio-pci/unbind": other, "sys/bus/pci/devices/" + other + "/reset": "1"} {
		if s, _ := k.root.String(name); s != want {
			t.Errorf("%s: %q, want %q", name, s, want)
		}
	}
	wantCode(t, c, agentapi.MethodBind, agentapi.BindParams{Address: other, Driver: "mana"}, agentapi.CodeInvalid, "bound to virtio-pci")
	wantCode(t, c, agentapi.MethodReset, agentapi.FunctionParams{Address: "0000:99:00.0"}, agentapi.CodeNotFound, "0000:99:00.0")
	wantCode(t, c, agentapi.MethodUnbind, agentapi.FunctionParams{Address: "nonsense"}, agentapi.CodeInvalid, "not a PCI address")
	call[agentapi.FunctionInfo](t, c, agentapi.MethodOpenFunction, agentapi.OpenFunctionParams{Address: function})
	for _, m := range []string{agentapi.MethodUnbind, agentapi.MethodReset} {
		wantCode(t, c, m, agentapi.FunctionParams{Address: function}, agentapi.CodeInvalid, "close it first")
	}
}

// What the kernel refuses is told beside what it granted.
func TestRefusals(t *testing.T) {
	t.Parallel()
	a, k := newAgent(t)
	c := dial(t, a)
	call[agentapi.FunctionInfo](t, c, agentapi.MethodOpenFunction, agentapi.OpenFunctionParams{Address: function})
	k.fail = 4 // the fourth vector
	r := call[agentapi.AddVectorsResult](t, c, agentapi.MethodAddVectors, agentapi.AddVectorsParams{Address: function, Count: 6})
	if len(r.Vectors) != 3 || r.Refused == nil || r.Refused.Code != agentapi.CodeRefused || !strings.Contains(r.Refused.Message, "no space") {
		t.Fatalf("%+v", r)
	}
	// A full device is what a file says that takes no byte, with the errno of a CPU that has no vector left.
	full := k.root.Path(fmt.Sprintf("proc/irq/%d/smp_affinity_list", r.Vectors[1].IRQ))
	if err := errors.Join(os.Remove(full), os.Symlink("/dev/full", full)); err != nil {
		t.Fatal(err)
	}
	applied := call[agentapi.ApplyResult](t, c, agentapi.MethodApply, agentapi.ApplyParams{Strategy: "linear", Node: -1, Total: 3, Queues: r.Vectors[1:]})
	if m := applied.Masks; len(m) != 2 || !strings.Contains(m[0].Refused, "no space left") || m[1].Refused != "" {
		t.Fatalf("%+v", applied)
	}
	if s, _ := k.root.CPUs(fmt.Sprintf("proc/irq/%d/smp_affinity_list", r.Vectors[2].IRQ)); s.String() != "1" {
		t.Errorf("the mask after the refused one is %s, to be 1", s)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	wantCode(t, c, agentapi.MethodApply, agentapi.ApplyParams{Strategy: "linear", Node: -1, Total: 3, Queues: r.Vectors[1:]}, agentapi.CodeNotFound, "vector 1")
}

func TestVectorsAreVerified(t *testing.T) {
	t.Parallel()
	a, k := newAgent(t)
	c := dial(t, a)
	call[agentapi.FunctionInfo](t, c, agentapi.MethodOpenFunction, agentapi.OpenFunctionParams{Address: function})
	k.request(function, 3, "someone else", 0)
	wantCode(t, c, agentapi.MethodAddVectors, agentapi.AddVectorsParams{Address: function, Count: 1}, agentapi.CodeFailed, "1 vectors were enabled but the kernel shows 2")
}

func TestOpenWithoutIOMMU(t *testing.T) {
	t.Parallel()
	a, k := newAgent(t)
	for _, link := range []string{"driver", "iommu_group"} {
		if err := os.Remove(k.root.Path("sys/bus/pci/devices", function, link)); err != nil {
			t.Fatal(err)
		}
	}
	k.write("sys/bus/pci/devices/"+function+"/driver_override", "(null)")
	k.write("sys/bus/pci/drivers_probe", "")
	wantCode(t, dial(t, a), agentapi.MethodOpenFunction, agentapi.OpenFunctionParams{Address: function}, agentapi.CodeUnsupported, "intel_iommu=on")
	if s, _ := k.root.String("sys/bus/pci/devices", function, "driver_override"); s != "" {
		t.Errorf("driver_override is left at %q", s)
	}
}

func levels(m map[int]int) string {
	return fmt.Sprintf("%d %d %d %d", m[0], m[1], m[2], m[3])
}

func TestOccupy(t *testing.T) {
	t.Parallel()
	a, k := newAgent(t)
	c := dial(t, a)
	call[agentapi.FunctionInfo](t, c, agentapi.MethodOpenFunction, agentapi.OpenFunctionParams{Address: function})
	def := func() string { s, _ := k.root.String("proc/irq/default_smp_affinity"); return s }

	r := call[agentapi.OccupyResult](t, c, agentapi.MethodOccupy, agentapi.OccupyParams{Address: function, Levels: map[int]int{0: 2, 1: 0, 3: 4}})
	if levels(r.Before) != "0 1 0 0" || levels(r.After) != "2 1 0 4" || r.Above.String() != "1" || len(r.Added) != 6 || def() != "f" {
		t.Errorf("%+v, default %s", r, def())
	}
	// A second call tops up from what is there.
	r = call[agentapi.OccupyResult](t, c, agentapi.MethodOccupy, agentapi.OccupyParams{Address: function, Levels: map[int]int{0: 2, 2: 1}})
	if levels(r.After) != "2 1 1 4" || len(r.Added) != 1 || r.Added[0].Index != 6 {
		t.Errorf("%+v", r)
	}
	for _, tc := range []struct {
		levels map[int]int
		text   string
	}{
		{map[int]int{4: 1}, "CPU 4, which is not online"},
		{map[int]int{-1: 1}, "not online"},
		{map[int]int{0: -1}, "must be 0 to"},
		{map[int]int{0: 1 << 40}, "must be 0 to"},
		{map[int]int{0: 12}, "10 more vectors, function 0000:81:00.0 has 9 left"},
	} {
		wantCode(t, c, agentapi.MethodOccupy, agentapi.OccupyParams{Address: function, Levels: tc.levels}, agentapi.CodeInvalid, tc.text)
	}
	wantCode(t, c, agentapi.MethodOccupy, agentapi.OccupyParams{Address: other}, agentapi.CodeInvalid, "is not open")
	k.fail = 2
	wantCode(t, c, agentapi.MethodOccupy, agentapi.OccupyParams{Address: function, Levels: map[int]int{1: 4}}, agentapi.CodeRefused, "pressure on CPU 1")
	if def() != "f" {
		t.Errorf("after a failure the default affinity is %s", def())
	}
	k.stray = true
	wantCode(t, c, agentapi.MethodOccupy, agentapi.OccupyParams{Address: function, Levels: map[int]int{2: 2}}, agentapi.CodeFailed, "was to sit on CPU 2 but is on 3")
}

// A CPU is full when the next vector comes to another one, which is freed again: what is left is all on it.
func TestOccupyFully(t *testing.T) {
	t.Parallel()
	a, k := newAgent(t)
	k.room = sureRoom + 7
	c := dial(t, a)
	call[agentapi.FunctionInfo](t, c, agentapi.MethodOpenFunction, agentapi.OpenFunctionParams{Address: function})
	r := call[agentapi.OccupyResult](t, c, agentapi.MethodOccupy, agentapi.OccupyParams{Address: function, Full: cpulist.List{2}, Levels: map[int]int{3: 4}})
	if levels(r.After) != "0 1 192 4" || len(r.Added) != 192+4 {
		t.Errorf("%s, %d added", levels(r.After), len(r.Added))
	}
	wantCode(t, c, agentapi.MethodOccupy, agentapi.OccupyParams{Address: function, Full: cpulist.List{2}, Levels: map[int]int{2: 1}}, agentapi.CodeInvalid, "CPU 2 has a level and is to be full")
	if r = call[agentapi.OccupyResult](t, c, agentapi.MethodOccupy, agentapi.OccupyParams{Address: function, Levels: map[int]int{0: 1}}); levels(r.After) != "1 1 192 4" {
		t.Errorf("after one was given up the next is not placed: %+v", r)
	}
}

func TestReadRegister(t *testing.T) {
	t.Parallel()
	a, k := newAgent(t)
	f := &opened{k: k, address: function}
	a.functions[function] = f
	c := dial(t, a)
	r := call[agentapi.ReadRegisterResult](t, c, agentapi.MethodReadRegister, agentapi.ReadRegisterParams{Address: function, Offset: 8, Size: 4, Times: 3})
	if r.Value != 8<<8|4 || f.reads != 3 || r.Nanoseconds <= 0 {
		t.Errorf("%+v after %d reads", r, f.reads)
	}
	for _, p := range []agentapi.ReadRegisterParams{
		{Address: function, Size: 3, Times: 1}, {Address: function, Size: 0, Times: 1}, {Address: function, Offset: 2, Size: 4, Times: 1}, {Address: function, Size: 4},
		{Address: function, Size: 4, Times: agentapi.MaxReads + 1}, {Address: other, Size: 4, Times: 1},
	} {
		wantCode(t, c, agentapi.MethodReadRegister, p, agentapi.CodeInvalid, "")
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	a, _ := newAgent(t)
	a.methods["test.panic"] = func(context.Context, json.RawMessage) (any, error) { panic("boom") }
	a.methods["test.huge"] = func(context.Context, json.RawMessage) (any, error) { return strings.Repeat("x", agentapi.MaxLine), nil }
	a.methods["test.unmarshalable"] = func(context.Context, json.RawMessage) (any, error) { return func() {}, nil }
	c := dial(t, a)
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	wantCode(t, c, "no.such", nil, agentapi.CodeUnsupported, "no.such")
	wantCode(t, c, "test.panic", nil, agentapi.CodeFailed, "panicked")
	wantCode(t, c, "test.huge", nil, agentapi.CodeFailed, "longer than the channel allows")
	wantCode(t, c, "test.unmarshalable", nil, agentapi.CodeFailed, "unsupported type")
	wantCode(t, c, agentapi.MethodInfo, raw(`[]`), agentapi.CodeInvalid, "parameters")
	wantCode(t, c, agentapi.MethodInfo, raw(`{"version":1,"colour":2}`), agentapi.CodeInvalid, "colour")
	wantCode(t, c, agentapi.MethodInfo, nil, agentapi.CodeUnsupported, "version 0")
	wantCode(t, c, agentapi.MethodSetCPU, raw(`{"cpu":99999999999999999999}`), agentapi.CodeInvalid, "parameters")
	wantCode(t, c, agentapi.MethodStorm, agentapi.StormParams{Rounds: 1}, agentapi.CodeInvalid, "over 0 CPUs")
	wantCode(t, c, agentapi.MethodStorm, agentapi.StormParams{CPUs: cpulist.New(1), Rounds: 1 << 20}, agentapi.CodeInvalid, "must be 1 to 1000")
	wantCode(t, c, agentapi.MethodOpenFunction, agentapi.OpenFunctionParams{}, agentapi.CodeInvalid, "neither")
	wantCode(t, c, agentapi.MethodOpenFunction, agentapi.OpenFunctionParams{Address: "../../x"}, agentapi.CodeInvalid, "not a PCI address")
	wantCode(t, c, agentapi.MethodOpenFunction, agentapi.OpenFunctionParams{Vendor: 1, WaitMS: -5}, agentapi.CodeInvalid, "-5 ms")
	wantCode(t, c, agentapi.MethodOpenFunction, agentapi.OpenFunctionParams{Vendor: 1, Device: 2}, agentapi.CodeNotFound, "0001:0002")
	wantCode(t, c, agentapi.MethodFunctionIRQs, agentapi.FunctionIRQsParams{Address: "/etc"}, agentapi.CodeInvalid, "not a PCI address")
	wantCode(t, c, agentapi.MethodFunctionIRQs, agentapi.FunctionIRQsParams{Address: "0000:99:00.0"}, agentapi.CodeNotFound, "0000:99:00.0")
	wantCode(t, c, agentapi.MethodLoadModule, agentapi.LoadModuleParams{Name: "../x"}, agentapi.CodeInvalid, "../x")
	wantCode(t, c, agentapi.MethodObserve, agentapi.ObserveParams{IRQs: []int{-1}}, agentapi.CodeNotFound, "IRQ -1")
	wantCode(t, c, agentapi.MethodObserve, agentapi.ObserveParams{IRQs: make([]int, 1<<15)}, agentapi.CodeInvalid, "at most")
	wantCode(t, c, agentapi.MethodSetLink, agentapi.SetLinkParams{Name: "lo", MTU: -1}, agentapi.CodeInvalid, "out of range")
	for _, text := range []string{"", "two\nlines", strings.Repeat("x", agentapi.MaxMark+1), "caf\u00e9"} {
		wantCode(t, c, agentapi.MethodMark, agentapi.MarkParams{Text: text}, agentapi.CodeInvalid, "printable ASCII")
	}
	if call[agentapi.Info](t, c, agentapi.MethodInfo, agentapi.InfoParams{Version: agentapi.Version}).Version != agentapi.Version { // the channel survived it all
		t.Error("no info")
	}
}

func TestModuleNamesStayInside(t *testing.T) {
	t.Parallel()
	a, k := newAgent(t)
	// sys/module/../../proc exists, so an unchecked name would read as loaded.
	if _, err := os.Stat(k.root.Path("sys/module/../../proc")); errors.Is(err, fs.ErrNotExist) {
		t.Fatal("the tree does not test this")
	}
	wantCode(t, dial(t, a), agentapi.MethodLoadModule, agentapi.LoadModuleParams{Name: "../../proc"}, agentapi.CodeInvalid, "not a module name")
}

func TestServeEnds(t *testing.T) {
	t.Parallel()
	a, _ := newAgent(t)
	for in, want := range map[string]string{
		"":                      "",
		"{\"id\":1,\"method\":": "unexpected EOF",
		"not json\n":            "not a request",
		"[1]\n":                 "not a request",
	} {
		err := a.Serve(t.Context(), readWriter{strings.NewReader(in), io.Discard})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

// A call that waits keeps no other waiting, one that was given up does not disturb those that follow, and the end of the channel ends them all.
func TestCallsSideBySide(t *testing.T) {
	t.Parallel()
	a, _ := newAgent(t)
	begun := make(chan struct{})
	a.methods["wait"] = method(func(ctx context.Context, _ agentapi.Empty) (agentapi.Empty, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return agentapi.Empty{}, ctx.Err()
	})
	c := dial(t, a)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	wait := func(ctx context.Context) {
		go func() { ended <- c.Call(ctx, "wait", nil, nil) }()
		<-begun
	}
	info := func() { call[agentapi.Info](t, c, agentapi.MethodInfo, agentapi.InfoParams{Version: agentapi.Version}) }
	wait(ctx)
	info()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a call that was given up: %v", err)
	}
	info()
	wait(t.Context())
	c.Close()
	if err := <-ended; err == nil {
		t.Error("a call outlived the channel")
	}
	if err := c.Call(t.Context(), agentapi.MethodInfo, nil, nil); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("a call after the end: %v", err)
	}
}

func TestPowerOffAnswersFirst(t *testing.T) {
	t.Parallel()
	a, _ := newAgent(t)
	var out bytes.Buffer
	answered := false
	a.cfg.PowerOff = func() { answered = bytes.Contains(out.Bytes(), []byte(`{"id":7,"result":{}}`)) }
	if err := a.Serve(t.Context(), readWriter{strings.NewReader(`{"id":7,"method":"power.off"}` + "\n"), &out}); err != nil || !answered {
		t.Errorf("%v, answered before: %v, %q", err, answered, out.String())
	}
}

type readWriter struct {
	io.Reader
	io.Writer
}

func FuzzServe(f *testing.F) {
	for _, s := range []string{
		`{"id":1,"method":"info","params":{"version":1}}`,
		`{"id":2,"method":"irq.observe","params":{"irqs":[24]}}`,
		`{"id":3,"method":"pressure.occupy","params":{"address":"0000:81:00.0","levels":{"0":3,"2":1}}}`,
		`{"id":4,"method":"affinity.apply","params":{"strategy":"numa-aware","total":5,"queues":[{"index":1,"irq":24}]}}`,
		`{"id":5,"method":"cpu.set","params":{"cpu":2}}`,
		`{"id":6,"method":"function.vectors","params":{"address":"0000:81:00.0","first":0,"count":2}}`,
		`{"id":7,"method":"module.load","params":{"name":"mana"}}`,
	} {
		f.Add([]byte(s + "\n"))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		a, _ := newAgent(t)
		// These act on the machine the test runs on, or wait as long as they are told.
		for _, m := range []string{agentapi.MethodSetLink, agentapi.MethodUnloadModule, agentapi.MethodOpenFunction, agentapi.MethodAwait} {
			delete(a.methods, m)
		}
		a.functions[function] = &opened{k: newKernel(t), address: function}
		var out bytes.Buffer
		_ = a.Serve(t.Context(), readWriter{bytes.NewReader(in), &out})
		r := bufio.NewReader(&out)
		for {
			line, err := agentapi.ReadLine(r)
			if err != nil {
				break
			}
			var resp agentapi.Response
			if err := json.Unmarshal(line, &resp); err != nil || (resp.Result == nil) == (resp.Error == nil) {
				t.Fatalf("%q was answered by %q, %v", in, line, err)
			}
			if resp.Error != nil && strings.Contains(resp.Error.Message, "panicked") {
				t.Fatalf("%q: %s", in, resp.Error.Message)
			}
		}
	})
}
