package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"irqlab/lab/foreign"
	"irqlab/lab/layout"
)

// What a log (standard error that is no terminal) is told: a step that takes longer than patience, and again every so often; of a run of cases how far it is, no matter which step
// it is at, ever more seldom.
const (
	patience     = 2 * time.Second
	reminder     = 15 * time.Second
	longReminder = time.Minute // of a run
	perReminder  = 20          // what has passed of a run, for each time it is told of
)

// barWidth is that of the bar itself.
const barWidth = 16

// progress shows what is going on: one line that is rewritten on a terminal, and on anything else a line for each step that takes long.
type progress struct {
	w   io.Writer
	tty bool

	mu      sync.Mutex
	run     string // how far a run of cases is; "": there is none
	begun   time.Time
	what    string
	done    int64
	total   int64
	bar     *progressbar.ProgressBar
	started time.Time
	told    time.Time
	stop    chan struct{}
	stopped sync.WaitGroup
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, tty: isTerminal(w), stop: make(chan struct{})}
	p.stopped.Go(p.tick)
	return p
}

func isTerminal(w any) bool { return layout.IsTerminal(w) }

// report takes note of a step and how far it is, in bytes or items; total is 0 or less when unknown. It has the shape of images.Progress.
func (p *progress) report(what string, done, total int64) {
	what = foreign.Line(what)
	p.mu.Lock()
	defer p.mu.Unlock()
	if what != p.what {
		p.clear()
		p.what, p.started = what, time.Now()
		if p.run == "" {
			p.told = time.Time{}
		}
	}
	p.done, p.total = done, total
	p.draw()
}

// overall takes note of how far a run of cases is.
func (p *progress) overall(run string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run == "" {
		p.begun, p.told = time.Now(), time.Time{}
	}
	if run != p.run {
		p.clear()
		p.run = run
	}
}

// every is how often a run is told of that has taken so long.
func every(elapsed time.Duration) time.Duration {
	return min(max(reminder, elapsed/perReminder), longReminder)
}

// due tells whether a log is to hear something.
func (p *progress) due(now time.Time) bool {
	switch {
	case p.run != "" && p.told.IsZero():
		return now.Sub(p.begun) >= patience
	case p.run != "":
		return now.Sub(p.told) >= every(now.Sub(p.begun))
	case p.told.IsZero():
		return now.Sub(p.started) >= patience
	}
	return now.Sub(p.told) >= reminder
}

// text is what is said, without how far the step is.
func (p *progress) text() string {
	if p.run == "" {
		return p.what
	}
	return p.run + ": " + p.what
}

// close removes the line; nothing is shown afterwards.
func (p *progress) close() {
	close(p.stop)
	p.stopped.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

// result writes a line to w, which may be the same terminal, without tearing the progress line.
func (p *progress) result(w io.Writer, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	line := foreign.Text(fmt.Sprintf(format, args...))
	if isTerminal(w) {
		line = layout.Wrap(line, layout.Columns(w), "  ")
	}
	fmt.Fprintln(w, line)
}

// update runs f where no report or result is written meanwhile.
func (p *progress) update(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// pause takes the line away until the next report.
func (p *progress) pause() {
	p.update(func() {
		p.clear()
		p.what = ""
	})
}

func (p *progress) tick() {
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-t.C:
			p.mu.Lock()
			p.draw()
			p.mu.Unlock()
		}
	}
}

func (p *progress) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
}

func (p *progress) draw() {
	switch now := time.Now(); {
	case p.what == "":
	case p.tty:
		p.drawBar()
	case p.due(now):
		p.told = now
		far := "…"
		if p.total > 0 {
			far = fmt.Sprintf(": %d%%", 100*p.done/p.total)
		}
		text := strings.TrimSuffix(layout.Snip(p.text(), layout.Columns(p.w)-layout.Width(far)), "…")
		fmt.Fprintln(p.w, text+far)
	}
}

func (p *progress) drawBar() {
	limit := p.total
	if limit <= 0 {
		limit = -1 // a spinner
	}
	if p.bar == nil || p.bar.GetMax64() != limit {
		p.clear()
		// A line that the terminal breaks could not be taken away again. What is beside the words: a spinner and the time, or per cent, bar and times.
		rest := len("⠋  [10m10s]")
		if limit > 0 {
			rest = barWidth + len("  100% ||  [10m10s]")
		}
		p.bar = progressbar.NewOptions64(limit,
			progressbar.OptionSetWriter(p.w),
			progressbar.OptionSetDescription(layout.Snip(p.text(), max(layout.Columns(p.w)-1-rest, 8))),
			progressbar.OptionSetWidth(barWidth),
			progressbar.OptionSetElapsedTime(true),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionSetSpinnerChangeInterval(0),
		)
	}
	_ = p.bar.Set64(p.done)
	_ = p.bar.RenderBlank()
}
