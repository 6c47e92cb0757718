package runner

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"irqlab/images"
	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// named gives a case a VM of its own name.
func named(t *testing.T, name, text string) []scenarios.Case {
	t.Helper()
	sc, err := scenarios.Load(name+".yaml", []byte(strings.Replace(stepsHead, "name: steps", "name: "+name, 1)+text))
	return plan(t, sc, err, scenarios.Overrides{})
}

// inGuest runs a command in the guest of a case under way, and does not wait for it longer than a guest that hangs deserves.
func inGuest(t *testing.T, c *scenarios.Case, command string) {
	access, err := lab.Reach(vmName(c))
	if err != nil {
		t.Error(err)
		return
	}
	client, err := access.Dial(t.Context())
	if err != nil {
		t.Error(err)
		return
	}
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		t.Error(err)
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- session.Run(command) }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("%s: %v", command, err)
		}
	case <-time.After(4 * time.Second):
	}
}

// TestMuteGuest: a guest that stops answering without a word had its time, and that is a fail with evidence. What the lab's own NMI has it say is part of that, and no warning.
func TestMuteGuest(t *testing.T) {
	t.Parallel()
	cases := named(t, "mute", "driver: vfio\nstrategy: linear\nsteps:\n  - probe\n  - vectors\n  - sleep: 100ms\n  - settle\n")
	runCases(t, named(t, "mute", "driver: vfio\nstrategy: linear\nsteps:\n  - probe\n"), Options{Start: lab.StartAuto}) // the snapshot is not this case's to wait for
	var once sync.Once
	c := runCases(t, cases, Options{Start: lab.StartAuto, Timeout: 8 * time.Second, Status: func(s Status) {
		if s.Stage == "sleep 100ms" {
			once.Do(func() {
				// Its agent is PID 1, which no signal stops, but a control group does.
				inGuest(t, &cases[0], "mkdir -p /tmp/g && mount -t cgroup2 none /tmp/g && mkdir /tmp/g/f && echo 1 > /tmp/g/f/cgroup.procs && echo 1 > /tmp/g/f/cgroup.freeze")
			})
		}
	}}).Cases[0]
	reasons := strings.Join(c.Reasons, "\n")
	if c.Outcome != result.Fail {
		t.Errorf("%s: %s", c.Outcome, reasons)
	}
	for _, want := range []string{"step 3 (settle, line", "the run of the case was not done after 8s (--timeout)", "unanswered for", "last console lines", "Kernel panic"} {
		if !strings.Contains(reasons, want) {
			t.Errorf("%q is not in: %s", want, reasons)
		}
	}
	if c.Evidence == nil || !slices.ContainsFunc(c.Evidence.Awaited, func(s string) bool { return strings.HasPrefix(s, "the end of step 3 (settle, line") }) {
		t.Errorf("what was awaited is not told: %+v", c.Evidence)
	}
	if len(c.KernelLog.Warnings) > 0 {
		t.Errorf("what the lab provoked counts as the kernel's: %q", c.KernelLog.Warnings)
	}
}

// TestNoTime: a limit that ends before there is a guest, or before a guest that works is done, blames nobody.
func TestNoTime(t *testing.T) {
	t.Parallel()
	cases := named(t, "no-time", "driver: vfio\nstrategy: linear\nsteps:\n  - probe\n  - vectors\n  - sleep: 20s\n")
	runCases(t, named(t, "no-time", "driver: vfio\nstrategy: linear\nsteps:\n  - probe\n"), Options{Start: lab.StartAuto})
	for limit, want := range map[time.Duration]string{time.Nanosecond: "--timeout", 5 * time.Second: "the run of the case was not done after 5s (--timeout)"} {
		for _, start := range []string{lab.StartCold, lab.StartAuto} {
			if limit > time.Second && start == lab.StartCold {
				continue
			}
			c := runCases(t, cases, Options{Start: start, Timeout: limit}).Cases[0]
			if reasons := strings.Join(c.Reasons, "\n"); c.Outcome != result.Error || !strings.Contains(reasons, want) {
				t.Errorf("%s, %s: %s: %s; want an error with %q", limit, start, c.Outcome, reasons, want)
			}
		}
	}
}

// TestFilesNotKept: a file of --out that cannot be written is the lab's error, whatever the kernel's log says beside it; the warnings are kept.
func TestFilesNotKept(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"console.log", "trace.jsonl", "timeline.jsonl"} {
		cases := named(t, "not-kept", "driver: vfio\nstrategy: linear\nsteps:\n  - probe\n  - vectors\n  - sleep: 100ms\n")
		cases[0].Name = strings.TrimSuffix(file, filepath.Ext(file))
		out := t.TempDir()
		if err := errors.Join(os.MkdirAll(filepath.Join(out, dir(&cases[0])), 0o700), os.Symlink("/dev/full", filepath.Join(out, dir(&cases[0]), file))); err != nil {
			t.Fatal(err)
		}
		var once sync.Once
		c := runCases(t, cases, Options{Out: out, Start: lab.StartAuto, Status: func(s Status) {
			if s.Stage == "sleep 100ms" {
				once.Do(func() { inGuest(t, &cases[0], "echo '<4>WARNING: CPU: 0 PID: 1 at x.c:1 x+0x1/0x2' > /dev/kmsg") })
			}
		}}).Cases[0]
		if c.Outcome != result.Error || !slices.ContainsFunc(c.Reasons, func(r string) bool { return strings.Contains(r, "no space left on device") }) {
			t.Errorf("%s: %s: %q; want an error that tells of it", file, c.Outcome, c.Reasons)
		}
		if !strings.Contains(strings.Join(c.KernelLog.Warnings, "\n"), "x.c:1") {
			t.Errorf("%s: the warning is not kept: %q", file, c.KernelLog.Warnings)
		}
	}
}

// TestDamagedKernel: what was booted is read again before a guest is blamed, and one whose kernel was not what it should be is not.
func TestDamagedKernel(t *testing.T) {
	t.Parallel()
	const unmet = "driver: vfio\nstrategy: linear\nexpect: {settled: {queues: [1, 0]}}\n"
	source, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	k, err := source.Kernel(t.Context(), lab.DefaultKernel, nil)
	if err != nil {
		t.Fatal(err)
	}
	kernel := bareKernel(t)
	if err := os.CopyFS(filepath.Join(filepath.Dir(kernel), "lib/modules", k.Release), os.DirFS(k.ModulesDir)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		what   string
		change bool
		want   result.Outcome
	}{{"as it was", false, result.Fail}, {"changed meanwhile", true, result.Error}} {
		cases := named(t, "damaged", unmet)
		cases[0].Kernel = kernel
		var once sync.Once
		c := runCases(t, cases, Options{Start: lab.StartCold, Status: func(s Status) {
			if tc.change && s.Stage == "settling" {
				once.Do(func() { flip(t, kernel) })
			}
		}}).Cases[0]
		reasons := strings.Join(c.Reasons, "\n")
		if c.Outcome != tc.want || tc.change != strings.Contains(reasons, kernel) {
			t.Errorf("a kernel %s: %s: %s; want %s", tc.what, c.Outcome, reasons, tc.want)
		}
	}
}

// flip changes a byte in the middle of a file, and keeps its time.
func flip(t *testing.T, path string) {
	st, err := os.Stat(path)
	if err != nil {
		t.Error(err)
		return
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Error(err)
		return
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, st.Size()/2)
	b[0] ^= 0xff
	_, werr := f.WriteAt(b, st.Size()/2)
	if err := errors.Join(err, werr, f.Close(), os.Chtimes(path, st.ModTime(), st.ModTime())); err != nil {
		t.Error(err)
	}
}
