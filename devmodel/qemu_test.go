package devmodel_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"irqlab/devmodel"
	"irqlab/devmodel/pcifn"
	"irqlab/devmodel/trace"
	"irqlab/devmodel/vfiouser"
)

// qemuTimeout bounds every wait of these tests; it decides between "slow" and "never".
const qemuTimeout = 60 * time.Second

// scratchpad is a behaviour that a test can see through: BAR 0 is memory, and an 8-byte write at doorbell is an address at which it reads 16 bytes, stores them
// reversed 16 bytes further on, stores an owner word 32 bytes further on, and raises vector 1.
type scratchpad struct {
	bus pcifn.Bus

	mu     sync.Mutex
	bar    []byte
	resets []pcifn.ResetKind
	dmaErr error
}

const (
	doorbell  = 0x1000
	ownerWord = 0xc0ffee01
)

func newScratchpad(size int) *scratchpad { return &scratchpad{bar: make([]byte, size)} }

func (s *scratchpad) Attach(bus pcifn.Bus) { s.bus = bus }

func (s *scratchpad) ReadBAR(off uint64, p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	copy(p, s.bar[off:])
}

func (s *scratchpad) WriteBAR(off uint64, p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if off == doorbell && len(p) == 8 {
		s.dmaErr = s.ring(binary.LittleEndian.Uint64(p))
	}
	copy(s.bar[off:], p)
}

func (s *scratchpad) ring(iova uint64) error {
	var b [16]byte
	if err := s.bus.ReadDMA(iova, b[:]); err != nil {
		return err
	}
	for i := range 8 {
		b[i], b[15-i] = b[15-i], b[i]
	}
	if err := s.bus.WriteDMA(iova+16, b[:]); err != nil {
		return err
	}
	if err := s.bus.StoreRelease32(iova+32, ownerWord); err != nil {
		return err
	}
	s.bus.Raise(1)
	return nil
}

func (s *scratchpad) Reset(kind pcifn.ResetKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resets = append(s.resets, kind)
	clear(s.bar)
}

func (s *scratchpad) count(kind pcifn.ResetKind) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, k := range s.resets {
		if k == kind {
			n++
		}
	}
	return n
}

func (s *scratchpad) lastDMAError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dmaErr
}

// served is a function behind a socket, being served.
type served struct {
	*scratchpad
	fn     *pcifn.Function
	dev    *devmodel.Device
	socket string
}

// shortDir is a folder whose path leaves room for a socket's name, which t.TempDir does not always do.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "irqlab")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func serve(t testing.TB, cfg pcifn.Config) *served {
	t.Helper()
	s := &served{socket: filepath.Join(shortDir(t), "fn.sock")}
	if cfg.BAR0Size == 0 {
		cfg.BAR0Size = pcifn.DefaultBAR0Size
	}
	s.scratchpad = newScratchpad(cfg.BAR0Size)
	var err error
	if s.fn, err = pcifn.New(cfg, s.scratchpad); err != nil {
		t.Fatal(err)
	}
	if s.dev, err = devmodel.Listen(s.socket, s.fn); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() { failed <- s.dev.Serve(context.Background()) }()
	t.Cleanup(func() {
		if err := s.dev.Close(); err != nil {
			t.Errorf("close device: %v", err)
		}
		if err := <-failed; err != nil {
			t.Errorf("serve: %v", err)
		}
		events, _ := s.fn.Trace().Events()
		for _, e := range events {
			if e.Kind == vfiouser.TracePanic {
				t.Errorf("a handler panicked: %s", e.Text)
			}
		}
		if t.Failed() {
			for _, e := range events[max(0, len(events)-60):] {
				t.Log(e)
			}
		}
	})
	return s
}

// kindCount is how many events of a kind are on the timeline.
func (s *served) kindCount(kind *trace.Kind) int {
	events, _ := s.fn.Trace().Events()
	n := 0
	for _, e := range events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// setIRQs lists the SET_IRQS messages on the timeline from event number from on, each as "index:type+action start count fds".
func (s *served) setIRQs(from int) (list []string, next int) {
	events, _ := s.fn.Trace().Events()
	for _, e := range events[from:] {
		if e.Kind != vfiouser.TraceSetIRQs {
			continue
		}
		f := func(name string) uint64 { v, _ := e.Field(name); return v }
		list = append(list, fmt.Sprintf("%d:%s s%d c%d f%d", f("index"), vfiouser.FormatSetIRQs(uint32(f("flags"))), f("start"), f("count"), f("fds")))
	}
	return list, len(events)
}

// qemu is a QEMU without a guest: a test plays the guest over qtest, and the operator over QMP.
type qemu struct {
	t      testing.TB
	cmd    *exec.Cmd
	stderr syncBuffer
	done   chan error
	qtest  *bufio.ReadWriter
	qmp    *bufio.ReadWriter
	conns  []net.Conn
}

// syncBuffer collects output that is read while it is still being written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// The root port is device 4 on bus 0, and what is behind it is bus 1.
const (
	rootPort = 4 << 3
	fnBus    = 1 << 8
	bar0Addr = 0xe0000000
	bar4Addr = 0xe0800000
	ecamBase = 0xb0000000
	msiAddr  = 0x100000 // guest RAM where vectors write instead of at an interrupt controller
	ramSize  = "128M"
)

// startQEMU starts a machine with one root port and no processor at work; args may add to it.
func startQEMU(t testing.TB, args ...string) *qemu {
	t.Helper()
	return startMachine(t, false, args)
}

// startMachine is startQEMU with a choice: with tcg the machine runs its firmware, and there is no qtest.
func startMachine(t testing.TB, tcg bool, args []string) *qemu {
	t.Helper()
	command, env := qemuCommand(t)
	dir := shortDir(t)
	q := &qemu{t: t, done: make(chan error, 1)}
	listen := func(name string) *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		_ = l.SetDeadline(time.Now().Add(qemuTimeout))
		return l
	}
	lt, lq := listen("qtest"), listen("qmp")
	accel := []string{"-accel", "qtest", "-qtest", "unix:" + filepath.Join(dir, "qtest"), "-qtest-log", "/dev/null"}
	if tcg {
		accel = []string{"-accel", "tcg"}
	}
	argv := append(append(command[1:len(command):len(command)], accel...),
		"-M", "q35,memory-backend=ram", "-m", ramSize, "-object", "memory-backend-memfd,id=ram,share=on,size="+ramSize,
		"-display", "none", "-nodefaults", "-no-user-config",
		"-qmp", "unix:"+filepath.Join(dir, "qmp"),
		"-device", "pcie-root-port,id=rp0,chassis=1,slot=1,bus=pcie.0,addr=4.0")
	q.cmd = exec.Command(command[0], append(argv, args...)...)
	q.cmd.Env = append(os.Environ(), env...)
	q.cmd.Stderr = &q.stderr
	if err := q.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { q.done <- q.cmd.Wait(); close(exited); _ = lt.Close(); _ = lq.Close() }()
	t.Cleanup(func() {
		_ = q.cmd.Process.Kill()
		<-exited
		for _, c := range q.conns {
			_ = c.Close()
		}
		if t.Failed() {
			t.Logf("QEMU said:\n%s", q.stderr.String())
		}
	})
	connect := func(l *net.UnixListener) *bufio.ReadWriter {
		c, err := l.Accept()
		if err != nil {
			<-exited
			t.Fatalf("QEMU did not connect: %v\n%s", err, q.stderr.String())
		}
		q.conns = append(q.conns, c)
		_ = c.SetDeadline(time.Now().Add(5 * time.Minute))
		return bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c))
	}
	if !tcg {
		q.qtest = connect(lt)
	}
	q.qmp = connect(lq)
	if _, err := q.qmp.ReadString('\n'); err != nil {
		t.Fatalf("QMP greeting: %v", err)
	}
	q.mustQMP("qmp_capabilities", nil)
	return q
}

// do is one qtest command; it returns the answer's words after OK.
func (q *qemu) do(format string, args ...any) []string {
	q.t.Helper()
	fmt.Fprintf(q.qtest, format+"\n", args...)
	if err := q.qtest.Flush(); err != nil {
		q.t.Fatalf("qtest: %v\n%s", err, q.stderr.String())
	}
	for {
		line, err := q.qtest.ReadString('\n')
		if err != nil {
			q.t.Fatalf("qtest "+format+": %v\n%s", append(args, err, q.stderr.String())...)
		}
		words := strings.Fields(line)
		switch {
		case len(words) > 0 && words[0] == "IRQ": // unasked news
		case len(words) > 0 && words[0] == "OK":
			return words[1:]
		default:
			q.t.Fatalf("qtest "+format+": %s", append(args, line)...)
		}
	}
}

func (q *qemu) number(words []string) uint64 {
	q.t.Helper()
	if len(words) != 1 {
		q.t.Fatalf("qtest answered %q", words)
	}
	v, err := strconv.ParseUint(words[0], 0, 64)
	if err != nil {
		q.t.Fatal(err)
	}
	return v
}

func (q *qemu) read(size string, addr uint64) uint64 { return q.number(q.do("read%s %#x", size, addr)) }
func (q *qemu) write(size string, addr, v uint64)    { q.do("write%s %#x %#x", size, addr, v) }

func (q *qemu) readRAM(addr uint64, n int) []byte {
	q.t.Helper()
	words := q.do("read %#x %#x", addr, n)
	b, err := hex.DecodeString(strings.TrimPrefix(words[0], "0x"))
	if err != nil || len(b) != n {
		q.t.Fatalf("read %#x: %v %v", addr, words, err)
	}
	return b
}

func (q *qemu) writeRAM(addr uint64, b []byte) { q.do("write %#x %#x 0x%x", addr, len(b), b) }

// cfg reads and cfgWrite writes configuration space through ports 0xcf8 and 0xcfc.
func (q *qemu) cfg(fn, off int, size string) uint64 {
	q.do("outl 0xcf8 %#x", 1<<31|fn<<8|off&^3)
	return q.number(q.do("in%s %#x", size, 0xcfc+off&3))
}

func (q *qemu) cfgWrite(fn, off int, size string, v uint64) {
	q.do("outl 0xcf8 %#x", 1<<31|fn<<8|off&^3)
	q.do("out%s %#x %#x", size, 0xcfc+off&3, v)
}

// ecam is the address of a configuration register in the memory-mapped window that setup opens.
func ecam(fn, off int) uint64 { return ecamBase + uint64(fn)<<12 + uint64(off) }

// setup is what firmware would do: open the root port and give the function addresses and bus mastering.
func (q *qemu) setup() {
	q.cfgWrite(0, 0x64, "l", 0)
	q.cfgWrite(0, 0x60, "l", ecamBase|1) // the host bridge's PCIEXBAR, 256 buses
	q.cfgWrite(rootPort, 0x18, "l", 0x010100)
	q.cfgWrite(rootPort, 0x24, "l", 0xe0f0e000)
	q.cfgWrite(rootPort, 0x28, "l", 0)
	q.cfgWrite(rootPort, 0x2c, "l", 0)
	q.cfgWrite(rootPort, 0x04, "w", 0x7)
	q.enable(0x6)
}

// enable writes the function's BARs and COMMAND.
func (q *qemu) enable(command uint64) {
	for off, v := range map[int]uint64{0x10: bar0Addr, 0x14: 0, 0x20: bar4Addr, 0x24: 0} {
		q.cfgWrite(fnBus, off, "l", v)
	}
	q.cfgWrite(fnBus, 0x04, "w", command)
}

// vector writes a table entry that targets guest RAM, and its mask bit.
func (q *qemu) vector(n int, masked bool) {
	entry := uint64(bar4Addr + 16*n)
	q.write("l", entry, msiAddr+uint64(4*n))
	q.write("l", entry+4, 0)
	q.write("l", entry+8, msiData(n))
	q.mask(n, masked)
}

func msiData(n int) uint64 { return 0xab000000 | uint64(n) }

func (q *qemu) mask(n int, masked bool) {
	v := uint64(0)
	if masked {
		v = 1
	}
	q.write("l", uint64(bar4Addr+16*n+12), v)
}

// arrived waits until a vector's message is in guest RAM, and removes it.
func (q *qemu) arrived(n int) {
	q.t.Helper()
	addr := uint64(msiAddr + 4*n)
	q.until(fmt.Sprintf("the message of vector %d", n), func() bool { return q.read("l", addr) == msiData(n) })
	q.write("l", addr, 0)
}

func (q *qemu) until(what string, ok func() bool) {
	q.t.Helper()
	until(q.t, what, ok)
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(qemuTimeout); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", qemuTimeout, what)
		}
	}
}

// runQMP runs one QMP command.
func (q *qemu) runQMP(command string, args any) (json.RawMessage, error) {
	q.t.Helper()
	b, err := json.Marshal(map[string]any{"execute": command, "arguments": args})
	if args == nil {
		b, err = json.Marshal(map[string]any{"execute": command})
	}
	if err != nil {
		q.t.Fatal(err)
	}
	_, _ = q.qmp.Write(append(b, '\n'))
	if err := q.qmp.Flush(); err != nil {
		q.t.Fatalf("QMP %s: %v\n%s", command, err, q.stderr.String())
	}
	for {
		line, err := q.qmp.ReadBytes('\n')
		if err != nil {
			q.t.Fatalf("QMP %s: %v\n%s", command, err, q.stderr.String())
		}
		var reply struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
			Event string `json:"event"`
		}
		if err := json.Unmarshal(line, &reply); err != nil {
			q.t.Fatalf("QMP %s: %v: %s", command, err, line)
		}
		switch {
		case reply.Error != nil:
			return nil, errors.New(reply.Error.Desc)
		case reply.Event == "":
			return reply.Return, nil
		}
	}
}

func (q *qemu) mustQMP(command string, args any) {
	q.t.Helper()
	if _, err := q.runQMP(command, args); err != nil {
		q.t.Fatalf("QMP %s: %v", command, err)
	}
}

func deviceAdd(socket string) map[string]any {
	return map[string]any{"driver": "vfio-user-pci", "id": "fn", "bus": "rp0", "socket": map[string]any{"type": "unix", "path": socket}}
}

func deviceArg(socket string) []string {
	b, err := json.Marshal(deviceAdd(socket))
	if err != nil {
		panic(err)
	}
	return []string{"-device", string(b)}
}

// alive fails the test when QEMU has gone, or has complained about the device.
func (q *qemu) alive() {
	q.t.Helper()
	q.mustQMP("query-status", nil)
	for _, bad := range []string{"vfio", "failed", "unexpected", "short read"} {
		if strings.Contains(q.stderr.String(), bad) {
			q.t.Errorf("QEMU complained:\n%s", q.stderr.String())
			return
		}
	}
}

// TestQEMUColdPlug takes one cold-plugged function through a driver's life.
func TestQEMUColdPlug(t *testing.T) {
	t.Parallel()
	s := serve(t, pcifn.Config{Vectors: 8})
	q := startQEMU(t, deviceArg(s.socket)...)
	q.setup()

	t.Run("configuration space", func(t *testing.T) {
		for _, c := range []struct {
			name string
			off  int
			size string
			want uint64
		}{
			{"vendor and device", 0x00, "l", 0x00ba1414},
			{"command", 0x04, "w", 0x6},
			{"status", 0x06, "w", 0x10},
			{"revision and class", 0x08, "l", 0x02000001},
			{"header type", 0x0e, "b", 0},
			{"subsystem", 0x2c, "l", 0},
			{"no ROM", 0x30, "l", 0},
			{"no INTx pin", 0x3d, "b", 0},
			{"MSI-X id", 0x40, "b", 0x11},
			{"MSI-X control", 0x42, "w", 7},
			{"MSI-X table", 0x44, "l", 4},
			{"MSI-X pending bits", 0x48, "l", 0x804},
			{"PCI Express id", 0x50, "b", 0x10},
			{"device capabilities with FLR", 0x54, "l", 0x10008000},
			{"device control", 0x58, "w", 0x2010},
		} {
			if got := q.cfg(fnBus, c.off, c.size); got != c.want {
				t.Errorf("%s: got %#x, want %#x", c.name, got, c.want)
			}
			if got := q.read(c.size, ecam(fnBus, c.off)); got != c.want {
				t.Errorf("%s through ECAM: got %#x, want %#x", c.name, got, c.want)
			}
		}
		if got := q.read("l", ecam(fnBus, 0x100)); got != 0 {
			t.Errorf("extended capabilities: got %#x, want none", got)
		}
	})

	t.Run("BAR sizes", func(t *testing.T) {
		q.cfgWrite(fnBus, 0x04, "w", 0)
		for off, want := range map[int]uint64{0x10: 0xffff000c, 0x14: 0xffffffff, 0x18: 0, 0x20: 0xfffff00c, 0x24: 0xffffffff, 0x30: 0} {
			q.cfgWrite(fnBus, off, "l", 0xffffffff)
			if got := q.cfg(fnBus, off, "l"); got != want {
				t.Errorf("BAR at %#x sized %#x, want %#x", off, got, want)
			}
		}
		q.enable(0x6)
	})

	t.Run("registers", func(t *testing.T) {
		for i, size := range []string{"b", "w", "l", "q"} {
			bits := 8 << i
			want := 0x1122334455667788 >> (64 - bits)
			q.write(size, bar0Addr+0x100, uint64(want))
			if got := q.read(size, bar0Addr+0x100); got != uint64(want) {
				t.Errorf("%d bits: wrote %#x, read %#x", bits, want, got)
			}
		}
	})

	t.Run("vectors grow one by one", func(t *testing.T) {
		_, from := s.setIRQs(0)
		step := func(what string, want ...string) {
			t.Helper()
			// A configuration read is answered after everything before it, posted writes included.
			q.cfg(fnBus, 0, "l")
			var got []string
			got, from = s.setIRQs(from)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: SET_IRQS %q, want %q", what, got, want)
			}
		}
		q.cfgWrite(fnBus, 0x42, "w", 0xc000)
		step("enable with all masked", "2:eventfd+trigger s0 c1 f0")
		for n := range 8 {
			q.vector(n, true)
		}
		q.cfgWrite(fnBus, 0x42, "w", 0x8000)
		step("clear the function mask")
		for n := range 5 {
			q.mask(n, false)
			step(fmt.Sprintf("unmask %d", n), fmt.Sprintf("2:eventfd+trigger s%d c1 f1", n))
			for v := range n + 1 {
				if err := s.fn.Fire(v); err != nil {
					t.Fatal(err)
				}
				q.arrived(v)
			}
		}
		q.mask(7, false)
		step("unmask 7, past a gap", "2:eventfd+trigger s7 c1 f1")
		if err := s.fn.Fire(7); err != nil {
			t.Fatal(err)
		}
		q.arrived(7)

		states := s.fn.VectorStates()
		for n, st := range states {
			if want := n < 5 || n == 7; st.Assigned != want || st.Pending {
				t.Errorf("vector %d: %+v", n, st)
			}
		}
		if err := s.fn.Fire(8); err == nil {
			t.Error("vector 8 of 8 fired")
		}
	})

	t.Run("a signal waits for its vector", func(t *testing.T) {
		if err := s.fn.Fire(6); err != nil {
			t.Fatal(err)
		}
		if got := q.read("q", bar4Addr+0x800); got != 1<<6 {
			t.Errorf("pending bits %#x, want vector 6's", got)
		}
		q.mask(6, false)
		q.arrived(6)
		if got := q.read("q", bar4Addr+0x800); got != 0 {
			t.Errorf("pending bits %#x after delivery", got)
		}
	})

	t.Run("masked vectors are remembered by QEMU", func(t *testing.T) {
		q.mask(3, true)
		if err := s.fn.Fire(3); err != nil {
			t.Fatal(err)
		}
		if err := s.fn.Fire(2); err != nil {
			t.Fatal(err)
		}
		q.arrived(2)
		if got := q.read("l", msiAddr+12); got != 0 {
			t.Errorf("masked vector 3 wrote %#x", got)
		}
		q.mask(3, false)
		q.arrived(3)
	})

	t.Run("DMA", func(t *testing.T) {
		const at = 0x200000
		in := []byte("0123456789abcdef")
		q.writeRAM(at, in)
		q.write("q", bar0Addr+doorbell, at)
		q.arrived(1)
		if got := string(q.readRAM(at+16, 16)); got != "fedcba9876543210" {
			t.Errorf("the function stored %q", got)
		}
		if got := q.read("l", at+32); got != ownerWord {
			t.Errorf("owner word %#x", got)
		}
		if err := s.lastDMAError(); err != nil {
			t.Error(err)
		}
		q.write("q", bar0Addr+doorbell, 0x7000000000)
		q.read("l", bar0Addr)
		if err := s.lastDMAError(); !errors.Is(err, vfiouser.ErrUnmapped) {
			t.Errorf("DMA to nowhere: %v", err)
		}
		q.cfgWrite(fnBus, 0x04, "w", 0x2)
		q.write("q", bar0Addr+doorbell, at)
		q.read("l", bar0Addr)
		if err := s.lastDMAError(); !errors.Is(err, vfiouser.ErrDMADisabled) {
			t.Errorf("DMA without bus mastering: %v", err)
		}
		q.cfgWrite(fnBus, 0x04, "w", 0x6)
	})

	t.Run("function level reset", func(t *testing.T) {
		q.write("l", bar0Addr+0x100, 0x55)
		if err := s.fn.Fire(5); err != nil { // latched, and to be forgotten
			t.Fatal(err)
		}
		q.cfgWrite(fnBus, 0x58, "w", 0xa010)
		if got := q.cfg(fnBus, 0x58, "w"); got != 0x2010 {
			t.Errorf("device control reads %#x after FLR", got)
		}
		if got := q.cfg(fnBus, 0x04, "w"); got != 0 {
			t.Errorf("COMMAND reads %#x after FLR", got)
		}
		if got := s.count(pcifn.ResetFLR); got != 1 {
			t.Errorf("the behaviour saw %d FLRs", got)
		}
		if s.fn.Memory().Enabled() {
			t.Error("FLR left bus mastering on")
		}
		q.enable(0x6)
		if got := q.read("l", bar0Addr+0x100); got != 0 {
			t.Errorf("register %#x survived FLR", got)
		}
		if st := s.fn.VectorStates()[5]; st.Pending {
			t.Error("a latched signal survived FLR")
		}
		if err := s.fn.Fire(0); err != nil {
			t.Fatal(err)
		}
		q.arrived(0) // the eventfds survive
	})

	t.Run("machine reset", func(t *testing.T) {
		before := s.count(pcifn.ResetDevice)
		_, from := s.setIRQs(0)
		q.mustQMP("system_reset", nil)
		until(t, "the device reset", func() bool { return s.count(pcifn.ResetDevice) > before })
		q.setup()
		if got := q.cfg(fnBus, 0x42, "w"); got != 7 {
			t.Errorf("MSI-X control %#x after reset", got)
		}
		if got, _ := s.setIRQs(from); len(got) == 0 || got[0] != "2:none+trigger s0 c0 f0" {
			t.Errorf("SET_IRQS at reset: %q", got)
		}
		for n, st := range s.fn.VectorStates() {
			if st.Assigned {
				t.Errorf("vector %d is assigned after reset", n)
			}
		}
		q.cfgWrite(fnBus, 0x42, "w", 0x8000)
		q.vector(0, false)
		if err := s.fn.Fire(0); err != nil {
			t.Fatal(err)
		}
		q.arrived(0)
	})
	q.alive()
}

// TestQEMUHotAdd adds the function to a running machine, and a second machine after the first is gone.
func TestQEMUHotAdd(t *testing.T) {
	t.Parallel()
	s := serve(t, pcifn.Config{Vectors: 64})
	for round := range 2 {
		q := startQEMU(t)
		q.mustQMP("device_add", deviceAdd(s.socket))
		q.setup()
		if got := q.cfg(fnBus, 0x00, "l"); got != 0x00ba1414 {
			t.Fatalf("round %d: the hot-added function reads %#x", round, got)
		}
		if got := q.read("l", bar0Addr+0x100); got != 0 {
			t.Errorf("round %d: a new client finds register %#x", round, got)
		}
		q.write("l", bar0Addr+0x100, 0x77)
		// All vectors ready before MSI-X is enabled: the messages are split at what one can carry.
		for n := range 20 {
			q.vector(n, false)
		}
		_, from := s.setIRQs(0)
		q.cfgWrite(fnBus, 0x42, "w", 0x8000)
		got, _ := s.setIRQs(from)
		want := []string{"2:eventfd+trigger s0 c1 f0", "2:eventfd+trigger s0 c16 f16", "2:eventfd+trigger s16 c4 f4"}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("round %d: SET_IRQS %q, want %q", round, got, want)
		}
		for n := range 20 {
			if err := s.fn.Fire(n); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 20 {
			q.arrived(n)
		}
		q.alive()

		// A second machine finds the function taken, and survives the refusal.
		if round == 0 {
			other := startQEMU(t)
			if _, err := other.runQMP("device_add", deviceAdd(s.socket)); err == nil {
				t.Error("a second client was served")
			}
			other.mustQMP("query-status", nil)
		}

		q.mustQMP("quit", nil)
		if err := <-q.done; err != nil {
			t.Errorf("QEMU: %v", err)
		}
		q.done <- nil
		until(t, "the client's end", func() bool { return s.count(pcifn.ResetClientGone) == round+1 })
		if n := s.fn.Memory().Len(); n != 0 {
			t.Errorf("%d ranges are still mapped", n)
		}
	}
}

// TestQEMUVectorLimits realizes functions at both ends of the table size.
func TestQEMUVectorLimits(t *testing.T) {
	t.Parallel()
	for _, vectors := range []int{1, 129, 2048} {
		s := serve(t, pcifn.Config{Vectors: vectors})
		q := startQEMU(t, deviceArg(s.socket)...)
		q.setup()
		if got := q.cfg(fnBus, 0x42, "w"); got != uint64(vectors-1) {
			t.Errorf("%d vectors: MSI-X control %#x", vectors, got)
		}
		q.cfgWrite(fnBus, 0x42, "w", 0x8000)
		last := vectors - 1
		q.vector(last, false)
		if err := s.fn.Fire(last); err != nil {
			t.Fatal(err)
		}
		q.arrived(last)
		q.alive()
	}
}

// TestQEMUFirmware boots SeaBIOS, which unmaps and remaps guest memory as it goes, twice over a machine reset; then QEMU is killed, and another takes its place.
func TestQEMUFirmware(t *testing.T) {
	t.Parallel()
	s := serve(t, pcifn.Config{})
	// Firmware is done with the function when it has turned its memory decode on.
	enabled := func() int {
		events, _ := s.fn.Trace().Events()
		n := 0
		for _, e := range events {
			if v, _ := e.Field("value"); e.Kind == pcifn.TraceCommand && v&2 != 0 {
				n++
			}
		}
		return n
	}
	for round := range 2 {
		seen, churn := enabled(), s.kindCount(vfiouser.TraceDMAUnmap)
		q := startMachine(t, true, deviceArg(s.socket))
		for boot := range 2 {
			until(t, "firmware to enable the function", func() bool { return enabled() > seen })
			seen = enabled()
			q.alive()
			if boot == 0 && s.kindCount(vfiouser.TraceDMAUnmap) == churn {
				t.Error("firmware remapped nothing; this tests less than it says")
			}
			if boot == 0 {
				q.mustQMP("system_reset", nil)
			}
		}
		events, _ := s.fn.Trace().Events()
		for _, e := range events {
			// Only the error interrupt is refused, on purpose.
			if cmd, _ := e.Field("command"); e.Kind == vfiouser.TraceError && cmd != uint64(vfiouser.CmdGetIRQInfo) {
				t.Errorf("a request of QEMU's was refused: %v", e)
			}
		}
		_ = q.cmd.Process.Kill()
		until(t, "the client's end", func() bool { return s.count(pcifn.ResetClientGone) == round+1 })
	}
}

// TestQEMUSecondaryBusReset resets the function through its root port.
func TestQEMUSecondaryBusReset(t *testing.T) {
	t.Parallel()
	s := serve(t, pcifn.Config{})
	q := startQEMU(t, deviceArg(s.socket)...)
	q.setup()
	q.cfgWrite(fnBus, 0x42, "w", 0x8000)
	q.vector(0, false)
	before := s.count(pcifn.ResetDevice)
	q.cfgWrite(rootPort, 0x3e, "w", 0x40)
	q.cfgWrite(rootPort, 0x3e, "w", 0)
	if got := s.count(pcifn.ResetDevice); got != before+1 {
		t.Errorf("%d device resets, want 1", got-before)
	}
	if got := q.cfg(fnBus, 0x04, "w"); got != 0 {
		t.Errorf("COMMAND %#x after reset", got)
	}
	if st := s.fn.VectorStates()[0]; st.Assigned {
		t.Error("vector 0 is still assigned")
	}
	q.enable(0x6)
	if got := q.cfg(fnBus, 0x00, "l"); got != 0x00ba1414 {
		t.Errorf("the function reads %#x", got)
	}
	q.alive()
}
