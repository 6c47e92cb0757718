package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// reading calls then once the text has been read; it ends there, or goes on with silence, as a terminal does.
type reading struct {
	io.Reader
	silent <-chan struct{}
	then   func()
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err == io.EOF {
		r.then()
		if r.silent != nil {
			<-r.silent
		}
	}
	return n, err
}

// writing calls then at each write.
type writing struct {
	bytes.Buffer
	then func()
}

func (w *writing) Write(p []byte) (int, error) {
	w.then()
	return w.Buffer.Write(p)
}

// The first interrupt ends what reads and shows a huge file, wherever it is with it, and what waits for more of one.
func TestInterruptedReading(t *testing.T) {
	const events = 20000 // more than there are between two looks at the context
	traced, lined := strings.Repeat(smc, events), timelineFile+strings.Repeat(`{"t":1.25,"source":"device","kind":"x","text":"y"}`+"\n", events)
	for _, tc := range []struct{ args, in string }{
		{"trace -", traced}, {"trace - --format json", traced}, {"timeline -", lined}, {"timeline - --each", lined}, {"timeline - --html page.html", lined},
	} {
		t.Run(tc.args, func(t *testing.T) {
			t.Chdir(t.TempDir())
			never := make(chan struct{})
			defer close(never)
			for when, streams := range map[string]func(cancel func()) (io.Reader, io.Writer){
				"nothing more comes": func(cancel func()) (io.Reader, io.Writer) {
					return &reading{strings.NewReader(tc.in), never, cancel}, new(bytes.Buffer)
				},
				"all is read": func(cancel func()) (io.Reader, io.Writer) {
					return &reading{strings.NewReader(tc.in), nil, cancel}, new(bytes.Buffer)
				},
				"it is shown": func(cancel func()) (io.Reader, io.Writer) { return strings.NewReader(tc.in), &writing{then: cancel} },
			} {
				if when == "it is shown" && strings.Contains(tc.args, "--html") {
					continue // a page is written in one go, which is short
				}
				ctx, cancel := context.WithCancel(t.Context())
				in, out := streams(cancel)
				var errs bytes.Buffer
				status := Run(ctx, strings.Fields(tc.args), Streams{In: in, Out: out, Err: &errs})
				cancel()
				if status != ExitInterrupted || errs.String() != "irqlab: interrupted\n" {
					t.Errorf("when %s: status %d, %q; want %d", when, status, errs.String(), ExitInterrupted)
				}
				if w, ok := out.(*writing); ok && w.Len() > 1<<16 {
					t.Errorf("when %s: %d bytes were written after the interrupt", when, w.Len())
				}
			}
			if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
				t.Errorf("it left %v, %v", left, err)
			}
		})
	}
}

// To be interrupted is how device ends, with or without a file for its timeline.
func TestInterruptedDevice(t *testing.T) {
	dir := t.TempDir()
	for _, args := range []string{"device --socket " + filepath.Join(dir, "a"), "device --socket " + filepath.Join(dir, "b") + " --trace " + filepath.Join(dir, "trace.jsonl")} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		errs := writing{then: cancel} // it tells that it serves
		if status := Run(ctx, strings.Fields(args), Streams{In: strings.NewReader(""), Out: new(bytes.Buffer), Err: &errs}); status != ExitPass {
			t.Errorf("irqlab %s: status %d, %q; want %d", args, status, errs.String(), ExitPass)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "[ab]")); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}
