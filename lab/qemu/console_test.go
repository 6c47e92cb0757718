package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"irqlab/lab/qemu/klog"
)

// testConsole is a console whose process has died of death, as far as it is told.
func testConsole(t *testing.T, path string, death error) (*Console, *os.File) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	c := newConsole(path)
	c.death = func() error { return death }
	c.diagnose = func(context.Context) (string, error) { return "diagnosis", nil }
	return c, file
}

func TestConsoleFinds(t *testing.T) {
	t.Parallel()
	const log = "[    0.1] one\r\nirqlab: agent ready\r\n[    0.2] two\r\n"
	for name, r := range map[string]io.Reader{"at once": strings.NewReader(log), "byte by byte": iotest.OneByteReader(strings.NewReader(log))} {
		c, file := testConsole(t, filepath.Join(t.TempDir(), "console.log"), errors.New("dead"))
		early := make(chan error)
		go func() { early <- c.WaitFor(context.Background(), "agent ready") }()
		c.run(r, file)
		if err := <-early; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// What has passed counts, and needs no live process.
		if err := c.WaitFor(context.Background(), "[    0.1] one"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := c.Tail(2); got != "irqlab: agent ready\n[    0.2] two" {
			t.Errorf("%s: tail %q", name, got)
		}
		if got, err := os.ReadFile(c.Path()); err != nil || string(got) != log {
			t.Errorf("%s: file %q, error %v", name, got, err)
		}
	}
}

func TestConsoleFails(t *testing.T) {
	t.Parallel()
	dead := &DeadError{Status: -1, Signal: syscall.SIGKILL, Stderr: "Aborted"}
	c, file := testConsole(t, filepath.Join(t.TempDir(), "console.log"), dead)
	r, w := io.Pipe()
	go c.run(r, file)
	_, _ = io.WriteString(w, "[ 1.0] booting\n")

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	var boot *BootError
	if err := c.WaitFor(ctx, "ready"); !errors.As(err, &boot) || !errors.Is(err, context.DeadlineExceeded) || boot.Diagnosis != "diagnosis" {
		t.Errorf("deadline: %v", err)
	}
	gaveUp, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.WaitFor(gaveUp, "ready"); !errors.As(err, &boot) || boot.Diagnosis != "" || !strings.Contains(err.Error(), "[ 1.0] booting") {
		t.Errorf("the caller's own end is no hang: %v", err)
	}
	_ = w.Close()
	if err := c.WaitFor(context.Background(), "ready"); !errors.As(err, &boot) || !errors.Is(err, dead) || !strings.Contains(err.Error(), "signal 9") {
		t.Errorf("death: %v", err)
	}

	c, file = testConsole(t, filepath.Join(t.TempDir(), "console.log"), dead)
	c.run(strings.NewReader("[ 1.0] Kernel panic - not syncing: why\n[ 1.1] Call Trace:\n"), file)
	if err := c.WaitFor(context.Background(), "ready"); !errors.As(err, &boot) || boot.Panic == nil || boot.Panic.Title != "Kernel panic - not syncing: why" ||
		!strings.Contains(err.Error(), "Call Trace") {
		t.Errorf("panic: %v", err)
	}
}

// flood is endless output: lines without end, and some that start reports.
type flood struct{ left int }

func (f *flood) Read(p []byte) (int, error) {
	if f.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), f.left)
	f.left -= n
	for i := range p[:n] {
		p[i] = "BUG: a\nx"[i%8]
	}
	return n, nil
}

func TestConsoleFlood(t *testing.T) {
	t.Parallel()
	c, file := testConsole(t, filepath.Join(t.TempDir(), "console.log"), errors.New("dead"))
	c.fileMax = 1 << 20
	c.run(&flood{left: 8 << 20}, file)
	if n := cap(c.tail); n > 4*consoleTail {
		t.Errorf("%d bytes are kept in memory", n)
	}
	if n := len(c.Scan()); n > klog.MaxFindings+1 {
		t.Errorf("%d findings are kept", n)
	}
	info, err := os.Stat(c.Path())
	if err != nil || info.Size() < c.fileMax || info.Size() > c.fileMax+200 {
		t.Errorf("file: %v, error %v", info.Size(), err)
	}
}

// A full disk costs the file, not the console.
func TestConsoleDiskFull(t *testing.T) {
	t.Parallel()
	c, file := testConsole(t, "/dev/full", errors.New("dead"))
	c.run(strings.NewReader("a\nagent ready\n"), file)
	if err := c.WaitFor(context.Background(), "agent ready"); err != nil {
		t.Error(err)
	}
	if err := c.FileError(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("file error %v", err)
	}
}

func TestLastLines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		n    int
		want string
	}{
		{"", 3, ""}, {"a", 3, "a"}, {"a\nb\nc\n", 2, "b\nc"}, {"a\r\nb\r\n", 1, "b"}, {"a\nb\n", 9, "a\nb"}, {"a\nb", 0, ""}, {"\n\n", 1, ""}, {"a\n\nc", 2, "\nc"},
	} {
		if got := lastLines(tt.text, tt.n); got != tt.want {
			t.Errorf("last %d of %q: %q, want %q", tt.n, tt.text, got, tt.want)
		}
	}
}

func TestTailBuffer(t *testing.T) {
	t.Parallel()
	b := tailBuffer{max: 10}
	for i := range 100 {
		fmt.Fprintf(&b, "%d,", i)
	}
	if s := b.String(); !strings.HasPrefix(s, "…") || !strings.HasSuffix(s, "98,99,") || len(b.buf) > 20 {
		t.Errorf("kept %q", s)
	}
}

func FuzzConsole(f *testing.F) {
	f.Add([]byte("[ 1.0] a\r\nagent ready"), "agent ready", 3)
	f.Add([]byte("aaab"), "aab", 1)
	f.Fuzz(func(t *testing.T, log []byte, text string, piece int) {
		if text == "" || len(log) > consoleTail {
			return
		}
		w := &waiter{text: []byte(text)}
		for rest := log; len(rest) > 0; {
			n := min(max(1, piece), len(rest))
			w.feed(rest[:n])
			rest = rest[n:]
		}
		if want := strings.Contains(string(log), text); w.found != want {
			t.Errorf("%q in %q, in pieces of %d: %t, want %t", text, log, piece, w.found, want)
		}
		lastLines(string(log), piece%100)
	})
}

// What a guest had reported before the lab's NMI is its own, also when the lab asks it twice; what it reports after it is the lab's doing, and shown apart.
func TestProvoked(t *testing.T) {
	c := newConsole("")
	feed := func(text string) { c.take([]byte(text), io.Discard) }
	feed("[    1.000000] WARNING: CPU: 0 PID: 1 at x.c:1 x+0x1/0x2\n[    1.000000] ---[ end trace 0000000000000000 ]---\n")
	first := c.provoke()
	feed("[    2.000000] Kernel panic - not syncing: NMI: Not continuing\n")
	second := c.provoke()
	feed("[    3.000000] ---[ end Kernel panic - not syncing: NMI: Not continuing ]---\n[    4.000000] BUG: soft lockup - CPU#1 stuck\n")
	if own := c.Scan(); len(own) != 1 || own[0].Kind != klog.Warning {
		t.Errorf("the guest's own: %+v", own)
	}
	if got := first(); len(got) != 2 || got[0].Kind != klog.Panic {
		t.Errorf("provoked: %+v", got)
	}
	if got := second(); len(got) != 1 || got[0].Kind != klog.SoftLockup {
		t.Errorf("provoked the second time: %+v", got)
	}
}

// TestTailSinceBegin leaves the boot out of what a guest said last, also when memory has forgotten where it ended.
func TestTailSinceBegin(t *testing.T) {
	for _, tc := range []struct {
		name, boot, since, want string
	}{
		{"a boot that is not over", "BIOS-e820\nlast\n", "", "BIOS-e820\nlast"},
		{"nothing since", "BIOS-e820\n", "", nothingSince},
		{"something since", "BIOS-e820\nready\n", "one\r\ntwo\n", "one\ntwo"},
		{"much since", "BIOS-e820\n", strings.Repeat("x\n", 2*consoleTail), "x\nx\nx"},
	} {
		c := newConsole("")
		c.take([]byte(tc.boot), io.Discard)
		if tc.name != "a boot that is not over" {
			c.Begin()
		}
		c.take([]byte(tc.since), io.Discard)
		if got := c.Tail(3); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// TestWholeText has the console's text from memory while that holds it, then from the file, and says what is missing.
func TestWholeText(t *testing.T) {
	long := strings.Repeat("line\n", consoleTail)
	for _, tc := range []struct {
		name, text string
		max        int64
		broken     bool
		cut        string
	}{
		{"short, with no file", "a\nb\n", consoleFileMax, true, ""},
		{"long", long, consoleFileMax, false, ""},
		{"longer than the file may be", long, 100, false, "holds its first 100 bytes"},
		{"long, with no file", long, consoleFileMax, true, "could not be written"},
	} {
		path := filepath.Join(t.TempDir(), "console")
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		c := newConsole(path)
		c.fileMax = tc.max
		if tc.broken {
			file.Close()
		}
		c.take([]byte(tc.text), file)
		text, cut := c.Text()
		if !strings.Contains(cut, tc.cut) || (cut == "") != (tc.cut == "") || cut == "" && string(text) != tc.text {
			t.Errorf("%s: %d bytes, %q", tc.name, len(text), cut)
		}
		file.Close()
	}
}
