package images

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A command and the children it has started die with this process, however that dies, and with the context.
func TestRunOwned(t *testing.T) {
	t.Parallel()
	word := fmt.Sprintf("own %d-%d", os.Getpid(), time.Now().UnixNano()) // a role, and the mark of all processes that come of it
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), helperEnv+"="+word)
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "started\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if n := marked(word); n < 3 { // the owner, the shell and its child; and the guard
		t.Errorf("%d processes found", n)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	for start := time.Now(); marked(word) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("%d processes outlive their owner", marked(word))
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "trap '' TERM; sleep 600 & wait")
	cmd.Env = append(os.Environ(), helperEnv+"="+word)
	if err := runOwned(ctx, cmd, cancel); err == nil {
		t.Error("a command that was cancelled ended well")
	}
	for start := time.Now(); marked(word) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("%d processes outlive their context", marked(word))
		}
	}
}

// marked counts the living processes that have the word in their environment.
func marked(word string) (n int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), helperEnv+"="+word) {
			n++
		}
	}
	return n
}
