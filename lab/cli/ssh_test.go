package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"
)

// running makes a run directory as a lab that runs a VM of that name has it, and returns what makes it ready and what ends it.
func running(t *testing.T, name string) (ready, end func()) {
	t.Helper()
	dir := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "irqlab", name+"-0000")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(file, text string) {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	owner := flock.New(filepath.Join(dir, "owner"))
	if err := owner.Lock(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { owner.Close() })
	write("vm.json", `{"name":"`+name+`","pid":1}`)
	return func() { write("access.json", `{"client_key":"key","host_key":"host"}`) }, func() { _ = os.RemoveAll(dir) }
}

// A VM that boots is waited for, also while its fork takes its place; one that is not there is named beside those that are.
func TestReach(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	var errs bytes.Buffer
	s := Streams{Err: &errs}

	if _, err := reach(t.Context(), s, "vm"); err == nil || err.Error() != `VM "vm": no VM is running` {
		t.Errorf("none: %v", err)
	}
	ready, _ := running(t, "other")
	ready()
	if _, err := reach(t.Context(), s, "vm"); err == nil || err.Error() != `VM "vm": not running; there are: other` {
		t.Errorf("another: %v", err)
	}
	if errs.Len() > 0 {
		t.Errorf("there was nothing to wait for: %q", &errs)
	}

	_, end := running(t, "vm")
	time.AfterFunc(300*time.Millisecond, end)
	time.AfterFunc(time.Second, func() { ready, _ := running(t, "vm"); time.AfterFunc(300*time.Millisecond, ready) })
	began := time.Now()
	access, err := reach(t.Context(), s, "vm")
	if err != nil || !strings.Contains(access.Socket, "vm-0000") || time.Since(began) < time.Second {
		t.Errorf("booting, then forked: %+v, %v after %v", access, err, time.Since(began))
	}
	if !strings.Contains(errs.String(), "VM vm is still booting") {
		t.Errorf("nobody said what is waited for: %q", &errs)
	}

	_, end = running(t, "lost")
	time.AfterFunc(200*time.Millisecond, end)
	if _, err := reach(t.Context(), s, "lost"); err == nil || !strings.Contains(err.Error(), "ended before its guest had booted") {
		t.Errorf("ended: %v", err)
	}
	running(t, "slow")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := reach(ctx, s, "slow"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("interrupted: %v", err)
	}
	for _, command := range []string{"ssh none true", "proxy none"} {
		if status, _, errs := irqlab(t, strings.Fields(command)...); status != ExitError || !strings.Contains(errs, `VM "none": not running; there are: other, slow, vm`) {
			t.Errorf("%s: status %d, %q", command, status, errs)
		}
	}
}
