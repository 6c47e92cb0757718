package cli

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// A VM that cannot be ended is no verdict on a kernel, and no status of the guest's shell.
func TestClosing(t *testing.T) {
	open, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if err := closing(open, &exitError{status: 3}); exitStatus(err) != 3 {
		t.Errorf("closed: status %d, %v; want the shell's, 3", exitStatus(err), err)
	}
	for _, before := range []error{nil, &exitError{status: 3}, &exitError{ExitUsage, errors.New("before")}} {
		if err := closing(open, before); exitStatus(err) != ExitError || !strings.Contains(err.Error(), os.ErrClosed.Error()) {
			t.Errorf("not closed, after %v: status %d, %v; want %d and why", before, exitStatus(err), err, ExitError)
		}
	}
}

// A saved session says with which flags it was begun.
func TestShellCommand(t *testing.T) {
	cmd := newShell(Streams{})
	if err := cmd.ParseFlags([]string{"--hold", "vector:2 nth=2", "--out", "x", "--driver", "vfio", "--pressure", "a=none", "--pressure", "b=nvme:queues=4"}); err != nil {
		t.Fatal(err)
	}
	if got, want := shellCommand(cmd, []string{"low-vcpu"}), "irqlab shell low-vcpu --driver=vfio --hold=vector:2 nth=2 --pressure=a=none --pressure=b=nvme:queues=4"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
