package runner

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"irqlab/lab"
	"irqlab/scenarios/result"
)

// labVariable makes a test be the lab in a process of its own, which another can stop or limit: it holds the steps' YAML.
const labVariable = "IRQLAB_TEST_LAB"

// beLab runs the scenario that the environment holds, if it does, and tells its stages and its result on standard output.
func beLab(t *testing.T, before func()) bool {
	text := os.Getenv(labVariable)
	if text == "" {
		return false
	}
	before()
	say := json.NewEncoder(os.Stdout)
	rep := runCases(t, stepCases(t, text), Options{Start: lab.StartAuto, Status: func(s Status) {
		if s.Done == nil {
			fmt.Println("stage: " + s.Stage)
		}
	}})
	fmt.Print("result: ")
	if err := say.Encode(rep.Cases[0]); err != nil {
		t.Error(err)
	}
	return true
}

// otherLab runs a scenario in a process of its own and calls at with each stage.
func otherLab(t *testing.T, text string, at func(stage string, pid int), env ...string) result.Case {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+name+"$")
	cmd.Env = append(append(os.Environ(), labVariable+"="+text), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	cmd.Stderr = &all
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var c result.Case
	found := false
	lines := bufio.NewScanner(io.TeeReader(out, &all))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if stage, ok := strings.CutPrefix(lines.Text(), "stage: "); ok && at != nil {
			at(stage, cmd.Process.Pid)
		} else if text, ok := strings.CutPrefix(lines.Text(), "result: "); ok {
			found = json.Unmarshal([]byte(text), &c) == nil
		}
	}
	if err := cmd.Wait(); err != nil || !found {
		t.Fatalf("the other lab: %v\n%s", err, all.String())
	}
	return c
}

// qemuOf finds the QEMU that is a child of a lab.
func qemuOf(t *testing.T, lab int) int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", lab))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		b, _ := os.ReadFile(list) // of a thread that may have ended
		for _, word := range strings.Fields(string(b)) {
			cmdline, _ := os.ReadFile("/proc/" + word + "/cmdline")
			if bytes.Contains(cmdline, []byte("qemu-system")) {
				pid, _ := strconv.Atoi(word)
				return pid
			}
		}
	}
	t.Fatal("the other lab has no QEMU")
	return 0
}

// TestStandstill stops the lab, its QEMU, and both, while a case runs whose expectation is not met: that is a fail only if nobody was stopped.
func TestStandstill(t *testing.T) {
	if beLab(t, func() {}) {
		return
	}
	t.Parallel()
	const unmet = "driver: vfio\nstrategy: linear\nsteps:\n  - probe\n  - vectors\n  - sleep: 500ms\n  - settle\n  - observe: a\n  - expect: {queues: [1, 0]}\n"
	for _, tc := range []struct {
		what    string
		stopped []string
		want    result.Outcome
		reason  string
	}{
		{"nobody", nil, result.Fail, "queue vectors"},
		{"the lab", []string{"lab"}, result.Error, "irqlab did not run for "},
		{"QEMU", []string{"qemu"}, result.Error, "QEMU did not run for "},
		{"both", []string{"lab", "qemu"}, result.Error, " did not run for "},
	} {
		t.Run(tc.what, func(t *testing.T) {
			c := otherLab(t, unmet, func(stage string, pid int) {
				if stage != "sleep 500ms" || tc.stopped == nil {
					return
				}
				pids := map[string]int{"lab": pid, "qemu": qemuOf(t, pid)}
				for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
					for _, who := range tc.stopped {
						if err := syscall.Kill(pids[who], signal); err != nil {
							t.Error(err)
						}
					}
					if signal == syscall.SIGSTOP {
						time.Sleep(3 * time.Second)
					}
				}
			})
			if c.Outcome != tc.want || !slices.ContainsFunc(c.Reasons, func(r string) bool { return strings.Contains(r, tc.reason) }) {
				t.Errorf("%s: %q; want %s because of %q", c.Outcome, c.Reasons, tc.want, tc.reason)
			}
		})
	}
}

// TestFileLimit: a lab that may not have the files open that a VM takes says so before it starts one, and one whose limit can be raised raises it.
func TestFileLimit(t *testing.T) {
	const soft, hard = "IRQLAB_TEST_SOFT", "IRQLAB_TEST_HARD"
	if os.Getenv(soft) != "" {
		var r syscall.Rlimit
		for name, to := range map[string]*uint64{soft: &r.Cur, hard: &r.Max} {
			n, err := strconv.ParseUint(os.Getenv(name), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			*to = n
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &r); err != nil { // for children, too
			t.Fatal(err)
		}
	}
	many := "driver: vfio\nstrategy: unset\ncases:\n  many:\n    vectors: 300\n    steps: [probe, vectors, settle]\n  few:\n    vectors: 3\n    steps: [probe, vectors, settle]\n"
	if beLab(t, func() {}) {
		return
	}
	t.Parallel()
	for _, tc := range []struct {
		soft, hard string
		want       result.Outcome
		reason     string
	}{
		{"100", "256", result.Error, "open files, and the hard limit is 256"},
		{"120", "1000", result.Observed, ""},
	} {
		c := otherLab(t, many, nil, soft+"="+tc.soft, hard+"="+tc.hard)
		if c.Outcome != tc.want || !strings.Contains(strings.Join(c.Reasons, "\n"), tc.reason) || c.Outcome == result.Error && c.Start != lab.StartCold {
			t.Errorf("limits %s and %s: %s %q, want %s because of %q", tc.soft, tc.hard, c.Outcome, c.Reasons, tc.want, tc.reason)
		}
	}
}
