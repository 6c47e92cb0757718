package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"irqlab/lab/runner"
	"irqlab/scenarios/result"
	"irqlab/scenarios/shape"
)

func TestLeft(t *testing.T) {
	for _, tc := range []struct {
		left runner.Left
		want string
	}{
		{runner.Left{}, ""},
		{runner.Left{AtLeast: true}, ""},
		{runner.Left{Time: time.Second}, ", about 5 s left"},
		{runner.Left{Time: 6 * time.Second}, ", about 10 s left"},
		{runner.Left{Time: 44 * time.Second}, ", about 40 s left"},
		{runner.Left{Time: 99 * time.Second}, ", about 100 s left"},
		{runner.Left{Time: 110 * time.Second}, ", about 2 min left"},
		{runner.Left{Time: 110 * time.Second, AtLeast: true}, ", more than 2 min left"},
		{runner.Left{Time: 3 * time.Hour}, ", about 3 h left"},
	} {
		if got := left(tc.left); got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.left, got, tc.want)
		}
	}
}

// A log hears of a run after a moment, then every quarter of a minute, later every minute, however often the steps change; of a single step when that step takes long.
func TestLogIsToldAtIntervals(t *testing.T) {
	at := func(p *progress, seconds ...int) (told int) {
		for _, s := range seconds {
			if now := p.begun.Add(time.Duration(s) * time.Second); p.due(now) {
				p.told = now
				told++
			}
		}
		return told
	}
	from := time.Unix(1000, 0)
	p := &progress{run: "case 1 of 9", begun: from}
	if n := at(p, 0, 1); n != 0 {
		t.Errorf("told %d times at once", n)
	}
	var minute []int
	for s := 2; s < 62; s++ {
		minute = append(minute, s)
	}
	if n := at(p, minute...); n != 4 {
		t.Errorf("told %d times within a minute, want 4", n)
	}
	var late []int
	for s := 3600; s < 4200; s++ {
		late = append(late, s)
	}
	if n := at(p, late...); n != 10 {
		t.Errorf("told %d times within ten minutes after an hour, want 10", n)
	}
	step := &progress{begun: from, started: from.Add(time.Minute)}
	if n := at(step, 60, 61); n != 0 {
		t.Errorf("told %d times of a short step", n)
	}
	if n := at(step, 62, 63, 70, 77, 78); n != 2 {
		t.Errorf("told %d times of a long step, want 2", n)
	}
}

// interrupter cancels when it is told what it waits for.
type interrupter struct {
	mu     sync.Mutex
	text   bytes.Buffer
	until  string
	cancel func()
}

func (w *interrupter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	if strings.Contains(w.text.String(), w.until) {
		w.cancel()
	}
	return len(p), nil
}

// Ctrl-C leaves what has ended on standard output and in --out, tells how much is missing, and says 130.
func TestInterruptedRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := &interrupter{until: "low-vcpu/linear: pass", cancel: cancel}
	var out bytes.Buffer
	dir := filepath.Join(t.TempDir(), "out")
	args := []string{"run", "low-vcpu", "--strategy", "linear", "--strategy", "unset", "--jobs", "1", "--timeout", "8m", "--verbose", "--format", "json", "--out", dir}
	if status := Run(ctx, args, Streams{In: strings.NewReader(""), Out: &out, Err: errs}); status != ExitInterrupted {
		t.Errorf("status %d, want %d", status, ExitInterrupted)
	}
	written, err := os.ReadFile(filepath.Join(dir, resultsFile))
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string][]byte{"standard output": out.Bytes(), resultsFile: written} {
		var rep result.Report
		if err := json.Unmarshal(text, &rep); err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		if len(rep.Cases) != 1 || rep.Cases[0].Name != "linear" || rep.NotRun != 1 || len(rep.Pending) != 1 || !strings.Contains(rep.Pending[0].Command, rep.Pending[0].Name) {
			t.Errorf("%s: %d cases, %d not run; want linear, and 1 that was not", where, len(rep.Cases), rep.NotRun)
		}
	}
	if !strings.Contains(errs.text.String(), "irqlab: interrupted") {
		t.Errorf("told: %s", errs.text.String())
	}
}

// Results are there as soon as a case has ended, each time whole.
func TestPartialResults(t *testing.T) {
	w := resultsWriter{path: filepath.Join(t.TempDir(), resultsFile)}
	rep := result.Report{Schema: result.Schema, NotRun: 3}
	for n := range 3 {
		rep.Cases, rep.NotRun = append(rep.Cases, result.Case{Name: "x", Shape: shape.Default()}), 2-n
		w.took = 0
		w.partial(rep)
		b, err := os.ReadFile(w.path)
		if err != nil {
			t.Fatal(err)
		}
		var got result.Report
		if err := json.Unmarshal(b, &got); err != nil || len(got.Cases) != n+1 || got.NotRun != 2-n {
			t.Errorf("after %d cases: %v in %s", n+1, err, b)
		}
	}
	// What takes long to write is not written each time.
	w.took, w.last = time.Hour, time.Now()
	w.partial(result.Report{})
	if b, _ := os.ReadFile(w.path); !bytes.Contains(b, []byte(`"x"`)) {
		t.Error("written though the last time took an hour")
	}
	if err := (&resultsWriter{path: "/no/such/directory/results.json"}).write(rep); err == nil {
		t.Error("written nowhere, without an error")
	}
}
