package child

import (
	"bufio"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var reaper = NewReaper()

// TestMain makes the test process inherit orphans, as PID 1 does.
func TestMain(m *testing.M) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { reaper.Run(ctx) })
	code := m.Run()
	cancel()
	done.Wait()
	os.Exit(code)
}

func start(t *testing.T, script string, files ...*os.File) *Process {
	t.Helper()
	if len(files) == 0 {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { null.Close() })
		files = []*os.File{null, null, null}
	}
	p, err := reaper.Start(Spec{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", Files: files})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestStatus(t *testing.T) {
	t.Parallel()
	var all []*Process
	for i := range 40 { // many at once: none may get another's status or none at all
		all = append(all, start(t, "exit "+strconv.Itoa(i)))
	}
	for i, p := range all {
		<-p.Done()
		if st := p.Status(); !st.Exited() || st.ExitStatus() != i {
			t.Errorf("process %d: status %#x", i, st)
		}
	}
}

func TestStartError(t *testing.T) {
	t.Parallel()
	_, err := reaper.Start(Spec{Path: "/nowhere", Args: []string{"x"}})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "/nowhere") {
		t.Error(err)
	}
}

func TestSignalReachesTheGroup(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p := start(t, "sleep 1000 & echo $!; wait", null, w, w)
	w.Close()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	p.Signal(unix.SIGKILL)
	<-p.Done()
	if st := p.Status(); !st.Signaled() || st.Signal() != unix.SIGKILL {
		t.Errorf("status %#x", st)
	}
	p.Signal(unix.SIGKILL) // no one any more: nothing happens
	// The grandchild was killed with the group, came to us as an orphan and was collected.
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("process %d is still there", pid)
}
