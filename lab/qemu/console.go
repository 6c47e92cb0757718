package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"irqlab/lab/qemu/klog"
)

const (
	consoleTail    = 256 << 10 // bytes kept in memory
	consoleFileMax = 64 << 20  // bytes written to the file
	panicGrace     = 5 * time.Second
)

// Console is the guest's serial console, from its first byte: written to a file, searched for reports of trouble as it comes, its end kept in memory.
// What a guest can make of it is bounded: the file at 64 MiB, memory at a fraction of one.
type Console struct {
	path    string
	fileMax int64
	// diagnose and death ask the process, which knows more than its console does.
	diagnose func(context.Context) (string, error)
	death    func() error
	stood    func() Standstill

	mu      sync.Mutex
	tail    []byte
	written int64
	seen    int64 // bytes that came
	begun   int64 // of them, before Begin
	fileErr error
	scanner klog.Scanner
	before  []klog.Finding // the lab's own NMI; nil: it has sent none
	ended   bool
	changed chan struct{} // closed, and made anew, when anything above changes
	waiters map[*waiter]struct{}
}

// waiter looks for a text in what comes, whatever pieces it comes in.
type waiter struct {
	text  []byte
	rest  []byte // end of what was searched, one byte shorter than text
	found bool
}

func (w *waiter) feed(p []byte) {
	if w.found {
		return
	}
	joined := append(w.rest, p...)
	w.found = bytes.Contains(joined, w.text)
	w.rest = append([]byte(nil), joined[max(0, len(joined)-len(w.text)+1):]...)
}

func newConsole(path string) *Console {
	return &Console{path: path, fileMax: consoleFileMax, stood: func() Standstill { return Standstill{} },
		changed: make(chan struct{}), waiters: map[*waiter]struct{}{}}
}

// run copies the console until it ends.
func (c *Console) run(r io.Reader, file *os.File) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		c.take(buf[:n], file)
		if err != nil {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fileErr = errors.Join(c.fileErr, file.Close())
	c.scanner.Flush()
	c.ended = true
	c.announce()
}

func (c *Console) take(p []byte, file io.Writer) {
	if len(p) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fileErr == nil && c.written < c.fileMax {
		keep := p[:min(int64(len(p)), c.fileMax-c.written)]
		_, c.fileErr = file.Write(keep)
		c.written += int64(len(keep))
		if c.written == c.fileMax {
			_, _ = fmt.Fprintf(file, "\n[irqlab: the guest wrote more than %d bytes; the rest is not kept]\n", c.fileMax)
		}
	}
	c.seen += int64(len(p))
	if c.tail = append(c.tail, p...); len(c.tail) > 2*consoleTail {
		c.tail = append(c.tail[:0], c.tail[len(c.tail)-consoleTail:]...)
	}
	_, _ = c.scanner.Write(p)
	for w := range c.waiters {
		w.feed(p)
	}
	c.announce()
}

// announce wakes whoever waits. The lock is held.
func (c *Console) announce() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Path is the file that holds the console's text.
func (c *Console) Path() string { return c.path }

// FileError is what went wrong in writing the file, such as a full disk. The console in memory does not depend on it.
func (c *Console) FileError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fileErr
}

// Text is all that the console has shown. Cut says why some of it is missing; empty: none is.
func (c *Console) Text() (text []byte, cut string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if int64(len(c.tail)) == c.seen {
		return bytes.Clone(c.tail), ""
	}
	if c.fileErr == nil {
		text, err := os.ReadFile(c.path)
		if err == nil && c.seen > c.written {
			cut = fmt.Sprintf("the console's file holds its first %d bytes, and %d came", c.written, c.seen)
		}
		if err == nil {
			return text, cut
		}
		return bytes.Clone(c.tail), fmt.Sprintf("the console's file cannot be read: %v", err)
	}
	return bytes.Clone(c.tail), fmt.Sprintf("the console's file could not be written: %v", c.fileErr)
}

// Shows reports whether text has appeared on the console, or does so before ctx ends.
func (c *Console) Shows(ctx context.Context, text string) bool {
	w, forget := c.look(text)
	defer forget()
	for {
		c.mu.Lock()
		found, ended, changed := w.found, c.ended, c.changed
		c.mu.Unlock()
		if found || ended {
			return found
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// look watches for text, which may have come already.
func (c *Console) look(text string) (w *waiter, forget func()) {
	w = &waiter{text: []byte(text)}
	c.mu.Lock()
	defer c.mu.Unlock()
	w.feed(c.tail)
	c.waiters[w] = struct{}{}
	return w, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiters, w)
	}
}

// Begin tells that the boot is over: what comes from here on is what the guest is about.
func (c *Console) Begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = c.seen
}

// nothingSince stands for the lines that there are not: those of the boot would be taken for something that has to do with the end.
const nothingSince = "(nothing since the guest had booted)"

// Tail returns the last n lines since Begin, without the line end of the last.
func (c *Console) Tail(n int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	forgotten := c.seen - int64(len(c.tail))
	text := lastLines(string(c.tail[max(0, c.begun-forgotten):]), n)
	if text == "" && c.begun > 0 {
		return nothingSince
	}
	return text
}

func lastLines(text string, n int) string {
	text = strings.TrimRight(strings.ReplaceAll(text, "\r", ""), "\n")
	at := len(text)
	for range n {
		i := strings.LastIndexByte(text[:at], '\n')
		if i < 0 {
			return text
		}
		at = i
	}
	return text[min(at+1, len(text)):]
}

// Scan returns the reports of trouble seen so far, oldest first; see klog. What the guest reports once the lab has sent it an NMI is the lab's doing, and left out.
func (c *Console) Scan() []klog.Finding {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.before != nil {
		return c.before
	}
	return c.scanner.Findings()
}

// provoke notes that the lab is about to provoke reports. What came before it counts on; provoked returns what comes after.
func (c *Console) provoke() (provoked func() []klog.Finding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := len(c.scanner.Findings())
	if c.before == nil {
		c.before = append([]klog.Finding{}, c.scanner.Findings()...)
	}
	return func() []klog.Finding {
		c.mu.Lock()
		defer c.mu.Unlock()
		all := c.scanner.Findings()
		return all[min(own, len(all)):]
	}
}

func (c *Console) panicked() *klog.Finding {
	for _, f := range c.scanner.Findings() {
		if f.Kind == klog.Panic {
			return &f
		}
	}
	return nil
}

// WaitFor returns nil once text has appeared on the console, now or at any time before. It fails, with a *BootError, as soon as the guest has panicked or
// QEMU has ended, and when ctx ends; if that is by its deadline, the guest hangs, and the error carries a Diagnosis, after which the guest is of no more use.
func (c *Console) WaitFor(ctx context.Context, text string) error {
	start := time.Now()
	w, forget := c.look(text)
	defer forget()
	var grace <-chan time.Time // runs from the panic on, for the rest of its text
	for {
		c.mu.Lock()
		found, ended, changed, trouble := w.found, c.ended, c.changed, c.panicked()
		c.mu.Unlock()
		if found {
			return nil
		}
		fail := func(err error) *BootError {
			return &BootError{Awaited: text, After: time.Since(start), Err: err, Panic: trouble, Trouble: c.Scan(), Tail: c.Tail(tailLines), Stood: c.stood()}
		}
		if ended {
			return fail(c.death())
		}
		if trouble != nil && grace == nil {
			grace = time.After(panicGrace)
		}
		select {
		case <-changed:
		case <-grace:
			return fail(nil)
		case <-ctx.Done():
			e := fail(context.Cause(ctx))
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				var mute error
				if e.Diagnosis, mute = c.diagnose(context.WithoutCancel(ctx)); mute != nil {
					e.Err = fmt.Errorf("%w: %w", e.Err, mute)
				}
			}
			return e
		}
	}
}
