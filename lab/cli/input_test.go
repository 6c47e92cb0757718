package cli

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What is no plain file is refused, or read as it comes; waiting for it ends with an interrupt.
func TestInput(t *testing.T) {
	t.Setenv("IRQLAB_CACHE", t.TempDir())
	dir := t.TempDir()
	pipe, socket := filepath.Join(dir, "pipe.yaml"), filepath.Join(dir, "socket.yaml")
	unread := filepath.Join(dir, "unread.html")
	for _, p := range []string{pipe, unread} {
		if err := syscall.Mkfifo(p, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	page := filepath.Join(dir, "timeline.jsonl")
	if err := os.WriteFile(page, []byte(timelineFile), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"run %", "shell %", "compare --kernel debian:6.18 --kernel debian:7.3 %", "trace %", "timeline %"} {
		for file, want := range map[string]string{socket: "a socket, not a file", dir + "/": "a directory, not a file"} {
			args := strings.Fields(strings.ReplaceAll(command, "%", file))
			if status, _, errs := irqlab(t, args...); status != ExitUsage || !strings.Contains(errs, want) {
				t.Errorf("%s: status %d, %q; want %d, %q", args, status, errs, ExitUsage, want)
			}
		}
	}
	for _, command := range []string{"run %", "shell %", "compare --kernel debian:6.18 --kernel debian:7.3 %", "trace %", "timeline %", "timeline " + page + " --html " + unread} {
		for _, open := range []bool{false, true} { // nobody has opened it at the other end; somebody has, and neither writes nor reads
			args := strings.Fields(strings.ReplaceAll(command, "%", pipe))
			if open {
				f, err := os.OpenFile(pipe, os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			var out, errs bytes.Buffer
			if status := Run(ctx, args, Streams{In: strings.NewReader(""), Out: &out, Err: &errs}); status != ExitInterrupted {
				t.Errorf("%s, opened %v: status %d, %q; want %d", args, open, status, &errs, ExitInterrupted)
			}
			cancel()
		}
	}
	fed := filepath.Join(dir, "fed.yaml")
	if err := syscall.Mkfifo(fed, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() { _ = os.WriteFile(fed, []byte("name: x\nstrategies: [linear]\n"), 0) }()
	if status, _, errs := irqlab(t, "run", fed); status != ExitUsage || !strings.Contains(errs, fed+":2:1: strategies") {
		t.Errorf("through a pipe: status %d, %q; want it to be read", status, errs)
	}
}
