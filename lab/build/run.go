package build

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"irqlab/images"
	"irqlab/lab/build/sandbox"
)

// What a build may use up. The largest file and the sum are far above what a module takes.
const (
	maxFile   = 1 << 30
	maxWork   = 3 << 30 // unless a run says otherwise
	maxOutput = 32 << 20
	keptHead  = 512 << 10 // of the output
	keptTail  = 64 << 10
	shownTail = 4 << 10 // in an error
)

// toolEnv is all the environment that tools have: the same everywhere, so that builds are the same.
var toolEnv = []string{"PATH=/usr/sbin:/usr/bin", "HOME=/build", "LC_ALL=C", "TZ=UTC", "KBUILD_BUILD_USER=irqlab", "KBUILD_BUILD_HOST=irqlab"}

// run is one make in the sandbox.
type run struct {
	root   string // of the toolchain
	work   string // on the host, measured while it runs
	most   int64  // bytes in work; 0: maxWork
	mounts []sandbox.Mount
	args   []string // for make
	limit  time.Duration
	output output
}

// run runs it. The error is an *exec.ExitError if make failed, and a *LimitError if it was ended.
func (b *Builder) run(ctx context.Context, r *run) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(r.limit, func() { cancel(&LimitError{What: fmt.Sprintf("it took longer than %v", r.limit), Time: r.limit}) })
	defer timer.Stop()
	r.output.full = func() { cancel(&LimitError{What: fmt.Sprintf("it wrote more than %d MiB of messages", maxOutput>>20)}) }
	most := cmp.Or(r.most, maxWork)
	watched := make(chan struct{})
	defer func() { <-watched }()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		defer close(watched)
		pause := 500 * time.Millisecond
		for {
			select {
			case <-stop:
				return
			case <-time.After(pause):
			}
			began := time.Now()
			if images.DiskUsage(r.work) > most {
				cancel(&LimitError{What: fmt.Sprintf("it wrote more than %d MiB to its directory", most>>20)})
				return
			}
			pause = max(pause, 50*time.Since(began)) // a whole kernel is many files
		}
	}()
	err := sandbox.Command{Root: r.root, Mounts: r.mounts, Dir: "/build", Env: toolEnv, MaxFile: maxFile, Output: &r.output,
		Args: slices.Concat([]string{"/usr/bin/make"}, parallel(), r.args)}.Run(ctx)
	if exit := new(exec.ExitError); errors.As(err, &exit) && r.output.has("No space left on device") {
		return b.cache.AsNoSpace(errors.New("the build: No space left on device"))
	}
	return err
}

// parallel has make use all processors, and keep apart what its jobs say: a shell writes one message in several pieces, between which another's may come, and messages are read.
func parallel() []string {
	return []string{fmt.Sprintf("-j%d", runtime.GOMAXPROCS(0)), "--output-sync"}
}

// output keeps the beginning and the end of what a program writes.
type output struct {
	full func()            // called once when it writes without end
	line func(line []byte) // called with each whole line; nil: nobody wants them

	mu         sync.Mutex
	head, rest []byte
	size       int64
	open       []byte // a line that has not ended, for line
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.size <= maxOutput && o.size+int64(len(p)) > maxOutput {
		o.full()
	}
	o.size += int64(len(p))
	o.lines(p)
	n := min(len(p), keptHead-len(o.head))
	o.head = append(o.head, p[:n]...)
	o.rest = append(o.rest, p[n:]...)
	if len(o.rest) > 2*keptTail {
		o.rest = append(o.rest[:0], o.rest[len(o.rest)-keptTail:]...)
	}
	return len(p), nil
}

// lines tells of the lines that end in p.
func (o *output) lines(p []byte) {
	if o.line == nil {
		return
	}
	for line := range bytes.Lines(p) {
		if line[len(line)-1] != '\n' {
			if len(o.open) < maxText {
				o.open = append(o.open, line...)
			}
			break
		}
		o.line(append(o.open, line[:len(line)-1]...))
		o.open = o.open[:0]
	}
}

func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	gap := ""
	if int64(len(o.head)+len(o.rest)) < o.size {
		gap = "\n"
	}
	return string(o.head) + gap + string(o.rest)
}

func (o *output) has(words string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Contains(o.head, []byte(words)) || bytes.Contains(o.rest, []byte(words))
}

// tail is the end of it, as lines to put below an error; "" if there is none.
func (o *output) tail() string {
	text := strings.TrimSpace(o.text())
	if len(text) > shownTail {
		text = text[len(text)-shownTail:]
		_, text, _ = strings.Cut(text, "\n")
	}
	if text == "" {
		return ""
	}
	return "\n" + text
}
