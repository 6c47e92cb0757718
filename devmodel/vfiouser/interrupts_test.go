package vfiouser

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"irqlab/devmodel/trace"
)

func irqBody(flags, index, start, count uint32, data ...byte) []byte {
	return append(encoded(&SetIRQs{ArgSize: 20, Flags: flags, Index: index, Start: start, Count: count}, setIRQsSize), data...)
}

const (
	assign  = IRQDataEventfd | IRQActionTrigger
	trigger = IRQDataNone | IRQActionTrigger
)

func TestSetIRQs(t *testing.T) {
	t.Parallel()
	b := newBoard()
	c := newClient(t, b)
	fds := make([]int, 20)
	for i := range fds {
		fds[i] = eventfd(t, unix.EFD_NONBLOCK)
	}
	assigned := func(want string) {
		t.Helper()
		got := ""
		for _, s := range b.irqs.States() {
			if s.Assigned {
				got += fmt.Sprint(" ", s.Index)
			}
		}
		if got != want {
			t.Errorf("assigned:%s, want%s", got, want)
		}
	}
	counts := func(from int, want ...uint64) {
		t.Helper()
		for i, w := range want {
			if got := counter(t, fds[from+i]); got != w {
				t.Errorf("eventfd %d has %d, want %d", from+i, got, w)
			}
		}
	}

	c.ok(CmdSetIRQs, irqBody(assign, 2, 0, 1)) // "on, no vectors yet"
	assigned("")
	c.ok(CmdSetIRQs, irqBody(assign, 2, 0, 2), fds[0], fds[1])
	c.ok(CmdSetIRQs, irqBody(assign, 2, 4, 16), fds[4:20]...)
	assigned(" 0 1 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19")
	b.irqs.Raise(1)
	b.irqs.Raise(1)
	b.irqs.Raise(19)
	counts(0, 0, 2)
	counts(19, 1)

	// De-assign a part; a signal there waits, once, for the next eventfd. Its neighbours are as before.
	c.ok(CmdSetIRQs, irqBody(assign, 2, 5, 15))
	assigned(" 0 1 4")
	b.irqs.Raise(5)
	b.irqs.Raise(5)
	if s := b.irqs.States()[5]; !s.Pending || s.Fired != 2 {
		t.Errorf("vector 5: %+v", s)
	}
	c.ok(CmdSetIRQs, irqBody(assign, 2, 5, 1), fds[7])
	counts(5, 0, 0, 1)
	if s := b.irqs.States()[5]; s.Pending || s.Assignments != 2 || s.Delivered != 1 {
		t.Errorf("vector 5: %+v", s)
	}

	// Replacing an eventfd.
	c.ok(CmdSetIRQs, irqBody(assign, 2, 0, 1), fds[2])
	b.irqs.Raise(0)
	counts(0, 0, 0, 1)

	// Triggered by the client: those with an eventfd, the others not even remembered.
	c.ok(CmdSetIRQs, irqBody(trigger, 2, 0, 4))
	counts(0, 0, 1, 1, 0)
	c.ok(CmdSetIRQs, irqBody(IRQDataBool|IRQActionTrigger, 2, 0, 3, 1, 0, 1))
	counts(0, 0, 0, 1)
	if s := b.irqs.States()[3]; s.Pending || s.Fired != 0 {
		t.Errorf("vector 3: %+v", s)
	}

	// Masked by the client: latched.
	c.ok(CmdSetIRQs, irqBody(IRQDataNone|IRQActionMask, 2, 1, 1))
	b.irqs.Raise(1)
	counts(1, 0)
	c.ok(CmdSetIRQs, irqBody(IRQDataBool|IRQActionUnmask, 2, 0, 2, 0, 1))
	counts(1, 1)

	// Disabling the index takes all away; what is signalled then is not lost.
	b.irqs.Raise(3)
	c.ok(CmdSetIRQs, irqBody(trigger, 2, 0, 0))
	assigned("")
	b.irqs.Raise(4)
	c.ok(CmdSetIRQs, irqBody(assign, 2, 3, 2), fds[3], fds[4])
	counts(3, 1, 1)

	// Disabling an index that has nothing.
	for _, index := range []uint32{0, 1, 4} {
		c.ok(CmdSetIRQs, irqBody(trigger, index, 0, 0))
	}

	pipe := make([]int, 2)
	if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	for _, bad := range []struct {
		body []byte
		fds  []int
	}{
		{irqBody(assign, 2, 0, 21), nil},
		{irqBody(assign, 2, 20, 1), nil},
		{irqBody(assign, 2, 1<<32-1, 2), nil},
		{irqBody(assign, 2, 2, 1<<32-1), nil},
		{irqBody(trigger, 2, 21, 0), nil},
		{irqBody(assign, 2, 0, 0), nil},
		{irqBody(assign, 2, 0, 3), fds[:2]},
		{irqBody(assign, 2, 0, 1), fds[:2]},
		{irqBody(assign, 2, 0, 1), []int{pipe[1]}},
		{irqBody(assign, 2, 0, 2), []int{fds[0], pipe[1]}},
		{irqBody(assign, 0, 0, 1), fds[:1]},
		{irqBody(assign, 3, 0, 1), fds[:1]},
		{irqBody(trigger, 3, 0, 0), nil},
		{irqBody(trigger, 5, 0, 0), nil},
		{irqBody(trigger, 2, 0, 1), fds[:1]},
		{irqBody(IRQDataBool|IRQActionTrigger, 2, 0, 3, 1, 1), nil},
		{irqBody(IRQDataEventfd|IRQActionUnmask, 2, 0, 1), fds[:1]},
		{irqBody(IRQDataNone|IRQActionMask, 2, 0, 0), nil},
		{irqBody(0, 2, 0, 1), nil},
		{irqBody(IRQActionTrigger, 2, 0, 1), nil},
		{irqBody(IRQDataNone, 2, 0, 1), nil},
		{irqBody(IRQDataNone|IRQDataBool|IRQActionTrigger, 2, 0, 1, 1), nil},
		{irqBody(IRQDataNone|IRQActionMask|IRQActionTrigger, 2, 0, 1), nil},
		{irqBody(1<<6|trigger, 2, 0, 1), nil},
		{encoded(&SetIRQs{ArgSize: 16, Flags: trigger, Index: 2, Count: 1}, setIRQsSize), nil},
	} {
		c.fails(unix.EINVAL, CmdSetIRQs, bad.body, bad.fds...)
	}
	assigned(" 3 4")
}

// TestSaturatedEventfd has eventfds that cannot take one more: neither kind may hold up the device.
func TestSaturatedEventfd(t *testing.T) {
	t.Parallel()
	for _, flags := range []int{0, unix.EFD_NONBLOCK} {
		v := NewInterrupts(1, nil)
		fd := eventfd(t, unix.EFD_NONBLOCK)
		var full [8]byte
		le.PutUint64(full[:], 1<<64-2)
		if _, err := unix.Write(fd, full[:]); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags); err != nil {
			t.Fatal(err)
		}
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Set(SetIRQs{ArgSize: 20, Flags: assign, Count: 1}, nil, []int{dup}); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			v.Raise(0)
		}
		if got := counter(t, fd); got != 1<<64-2 {
			t.Errorf("the count is %d", got)
		}
		v.Raise(0)
		if got := counter(t, fd); got != 1 {
			t.Errorf("the count is %d after it was taken", got)
		}
		v.Release()
	}
}

func TestReadPending(t *testing.T) {
	t.Parallel()
	v := NewInterrupts(20, nil)
	for _, i := range []int{0, 9, 19} {
		v.Raise(i)
	}
	for _, c := range []struct {
		off  uint64
		want string
	}{{0, "0102080000"}, {1, "0208000000"}, {2, "0800000000"}, {3, "0000000000"}, {1 << 20, "0000000000"}} {
		p := []byte{0xff, 0xff, 0xff, 0xff, 0xff}
		if v.ReadPending(c.off, p); fmt.Sprintf("%x", p) != c.want {
			t.Errorf("from %d: %x, want %s", c.off, p, c.want)
		}
	}
	v.ClearPending()
	p := make([]byte, 3)
	if v.ReadPending(0, p); fmt.Sprintf("%x", p) != "000000" {
		t.Errorf("after clearing: %x", p)
	}
	if v.Raise(-1) || v.Raise(20) {
		t.Error("a vector outside the table was raised")
	}
}

// TestSwapUnderFire swaps eventfds while the function fires: no signal may be lost between the old one and the new, and none may hit a closed one.
func TestSwapUnderFire(t *testing.T) {
	t.Parallel()
	v := NewInterrupts(1, trace.New(16))
	fds := []int{eventfd(t, unix.EFD_NONBLOCK), eventfd(t, unix.EFD_NONBLOCK)}
	const fires = 20000
	var wg sync.WaitGroup
	wg.Go(func() {
		for range fires {
			v.Raise(0)
		}
	})
	var got uint64
	for i := range 2000 {
		dup, err := unix.FcntlInt(uintptr(fds[i%2]), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Set(SetIRQs{ArgSize: 20, Flags: assign, Count: 1}, nil, []int{dup}); err != nil {
			t.Fatal(err)
		}
		got += counter(t, fds[0]) + counter(t, fds[1])
	}
	wg.Wait()
	got += counter(t, fds[0]) + counter(t, fds[1])
	s := v.States()[0]
	if got != s.Delivered || s.Fired != fires || s.Pending {
		t.Errorf("%d signals arrived of %+v", got, s)
	}
	v.Release()
}

// FuzzSetIRQs runs sequences of messages, signals and resets against a model.
func FuzzSetIRQs(f *testing.F) {
	f.Add([]byte{0x24, 0, 1, 1, 0x24, 0, 4, 4, 0xf0, 1, 0, 0, 0x21, 0, 0, 0, 0xf0, 1, 0, 0, 0x24, 1, 1, 1})
	f.Add([]byte{0x24, 2, 3, 3, 0x09, 2, 1, 0, 0xf0, 2, 0, 0, 0x11, 2, 1, 0, 0xf1, 0, 0, 0, 0x22, 0, 4, 0})
	f.Add([]byte{0x24, 0, 0, 0, 0x21, 3, 2, 0, 0x3f, 0, 1, 1, 0xf2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 400 {
			return
		}
		const n = 6
		type model struct{ assigned, masked, pending bool }
		var want [n]model
		v := NewInterrupts(n, trace.New(16))
		before := openFDs(t)
		for ; len(ops) >= 4; ops = ops[4:] {
			flags, start, count, nfds := uint32(ops[0]), uint32(ops[1]), uint32(ops[2]), int(ops[3])
			switch flags {
			case 0xf0: // the function signals
				if start < n {
					v.Raise(int(start))
					if m := &want[start]; !m.assigned || m.masked {
						m.pending = true
					}
				}
				continue
			case 0xf1:
				v.ClearPending()
				for i := range want {
					want[i].pending = false
				}
				continue
			case 0xf2:
				v.Release()
				want = [n]model{}
				continue
			}
			fds := make([]int, nfds%(n+2))
			for i := range fds {
				fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
				if err != nil {
					t.Fatal(err)
				}
				fds[i] = fd
			}
			data := []byte{1, 0, 1, 1}
			err := v.Set(SetIRQs{ArgSize: 20, Flags: flags, Start: start, Count: count}, data, fds)
			given := len(fds)
			for _, fd := range fds {
				if fd >= 0 && err == nil {
					t.Fatalf("a descriptor was left over by a message that succeeded")
				}
			}
			closeAll(fds)
			if err != nil {
				continue
			}
			if start+count > n {
				t.Fatalf("vectors %d to %d of %d were accepted", start, start+count, n)
			}
			if flags == trigger && count == 0 {
				for i := range want {
					want[i].assigned, want[i].masked = false, false
				}
			}
			for i := range count {
				m := &want[start+i]
				on := flags&IRQDataBool == 0 || data[i] != 0
				switch {
				case flags == assign:
					m.assigned = given > 0
				case flags&IRQActionMask != 0 && on:
					m.masked = true
				case flags&IRQActionUnmask != 0 && on:
					m.masked = false
				}
			}
			for i := range want {
				if m := &want[i]; m.assigned && !m.masked {
					m.pending = false
				}
			}
		}
		assigned := 0
		for i, s := range v.States() {
			if s.Assigned != want[i].assigned || s.Pending != want[i].pending {
				t.Fatalf("vector %d: %+v, want %+v", i, s, want[i])
			}
			if s.Assigned {
				assigned++
			}
		}
		if got := openFDs(t); got != before+assigned {
			t.Fatalf("%d descriptors, want %d and one for each of %d assigned vectors", got, before, assigned)
		}
		v.Release()
		if got := openFDs(t); got != before {
			t.Fatalf("%d descriptors after release, %d before", got, before)
		}
	})
}

func BenchmarkFire(b *testing.B) {
	v := NewInterrupts(1, trace.New(0))
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		b.Fatal(err)
	}
	if err := v.Set(SetIRQs{ArgSize: 20, Flags: assign, Count: 1}, nil, []int{fd}); err != nil {
		b.Fatal(err)
	}
	defer v.Release()
	b.ReportAllocs()
	for b.Loop() {
		v.Raise(0)
	}
}

// A process that has no descriptors left takes a message without its eventfds: the client is refused, and the vectors say that theirs were lost, for the client may go on as if
// it had them. A vector whose eventfd arrives has lost nothing.
func TestEventfdsLost(t *testing.T) {
	const child = "IRQLAB_TEST_NO_FILES"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestEventfdsLost$")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	b := newBoard()
	c := newClient(t, b)
	events := []int{eventfd(t, 0), eventfd(t, 0), eventfd(t, 0)}
	c.ok(CmdSetIRQs, irqBody(assign, 2, 0, 1), events[0])
	var had unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &had); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: had.Max}); err != nil {
		t.Fatal(err)
	}
	for { // the gaps, too
		if _, err := unix.Dup(0); err != nil {
			break
		}
	}
	c.fails(unix.EINVAL, CmdSetIRQs, irqBody(assign, 2, 3, 2), events[1:]...)
	for i, v := range b.irqs.States() {
		want := map[int]uint64{3: 1, 4: 1}[i]
		if v.Lost != want || v.Assigned != (i == 0) {
			t.Errorf("vector %d: %d eventfds lost, assigned %t; want %d lost", i, v.Lost, v.Assigned, want)
		}
	}
	if events, _ := b.rec.Events(); !slices.ContainsFunc(events, func(e trace.Event) bool { return e.Kind == TraceLost }) {
		t.Error("the timeline does not tell of it")
	}
}
