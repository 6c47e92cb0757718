package images

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
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
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "trap '' TERM; sleep 600 & echo started; wait")
	cmd.Stdout = writerFunc(func() { cancel() })
	cmd.Env = append(os.Environ(), helperEnv+"="+word)
	if err := RunOwned(ctx, cmd); err == nil {
		t.Error("a command that was cancelled ended well")
	}
	for start := time.Now(); marked(word) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("%d processes outlive their context", marked(word))
		}
	}
}

// With however few open files (below 8 no Go program starts), a fetch ends: well, or with an error. Nothing runs on, and the next one need not wait.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	a.publish(t, "trixie")
	a.publish(t, "trixie-backports", testKernel(t, "2")...)
	var mu sync.Mutex
	told, well := map[string]int{}, 0
	var all errgroup.Group
	all.SetLimit(4)
	for n := 8; n <= 32; n++ {
		all.Go(func() error {
			c := archiveCache(t, a)
			role := fmt.Sprintf("few %d fetch %s %s", n, c.dir, a.URL)
			cmd := helper(t, role)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				return err
			}
			hung := time.AfterFunc(2*time.Minute, func() {
				t.Errorf("with %d open files: no end", n)
				_ = cmd.Process.Kill()
			})
			err := cmd.Wait()
			hung.Stop()
			for start := time.Now(); marked(role) > 0 && time.Since(start) < time.Minute; time.Sleep(10 * time.Millisecond) {
			}
			if left := marked(role); left > 0 {
				t.Errorf("with %d open files: %d processes are left", n, left)
			}
			if unlock, ok := c.tryLock(aptLock); !ok {
				t.Errorf("with %d open files: the lock is held", n)
			} else {
				unlock()
			}
			mu.Lock()
			defer mu.Unlock()
			switch text := out.String(); {
			case err == nil:
				well++
			case strings.Contains(text, "ulimit -n"):
				told["remedy"]++
			case !strings.Contains(text, "pipe failed") && !strings.Contains(text, "oo many open files"):
				t.Errorf("with %d open files: %v: %.1000s", n, err, text)
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	if well == 0 || told["remedy"] == 0 {
		t.Errorf("%d fetches went well and %d told the remedy: this shows nothing", well, told["remedy"])
	}
}

// writerFunc is called when something is written.
type writerFunc func()

func (f writerFunc) Write(p []byte) (int, error) {
	f()
	return len(p), nil
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
