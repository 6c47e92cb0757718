//go:build linux

package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		word string
		list bool
		want string // empty: refused
	}{
		{"0-2,5", true, "0-2,5"}, {"3", true, "3"}, {"", true, ""}, {"x", true, ""}, {"2-1", true, ""},
		{"1", false, "0"}, {"f", false, "0-3"}, {"0xF0", false, "4-7"}, {"3,00000001", false, "0,32-33"}, {"80000001", false, "0,31"},
		{"0", false, ""}, {"", false, ""}, {"g", false, ""}, {"0-2", false, ""},
	} {
		got, err := parse(tc.word, tc.list)
		if (err == nil) != (tc.want != "") || err == nil && got.String() != tc.want {
			t.Errorf("parse(%q, %v): %v, %v; want %q", tc.word, tc.list, got, err, tc.want)
		}
	}
}

// The program runs where it was told, whatever thread of this one started it, and a process can be looked at and moved.
func TestTaskset(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		cmd := exec.CommandContext(t.Context(), exe, "-c", "0", "grep", "Cpus_allowed_list", "/proc/self/status")
		cmd.Env = append(os.Environ(), asTaskset+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "Cpus_allowed_list:\t0\n" {
			t.Fatalf("%q, %v", out, err)
		}
	}
	child := exec.CommandContext(t.Context(), "sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	var out bytes.Buffer
	pid := strconv.Itoa(child.Process.Pid)
	if err := run([]string{"-cp", "0", pid}, &out); err != nil || out.String() != "process "+pid+" may run on CPUs 0\n" {
		t.Errorf("%q, %v", &out, err)
	}
	for args, want := range map[string]string{"": "wanted", "-p": "PID is wanted", "-p x": `"x" is not a PID`, "-x 1 true": "unknown option", "-c 1023 true": "CPUs 1023", "-c 5000 true": "5000",
		"-c 0 no-such-program": "no-such-program"} {
		if err := run(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("taskset %s: %v; want %q", args, err, want)
		}
	}
}

// asTaskset, in the environment, makes this program taskset.
const asTaskset = "IRQLAB_TEST_TASKSET"

func TestMain(m *testing.M) {
	if os.Getenv(asTaskset) != "" {
		main()
	}
	os.Exit(m.Run())
}
