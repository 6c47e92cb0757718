package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"irqlab/lab/layout"
	"irqlab/lab/runner"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// A person holds the driver's probe, finds that the kernel lets no CPU go there, and lets the device go on. What was done is left as a scenario, and running that shows the same.
func TestShellHold(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	dir := filepath.Join(t.TempDir(), "session")
	saved := filepath.Join(t.TempDir(), "early.yaml")
	first := "offline 3\nunplug 0\nstatus\n"
	commands := strings.Join([]string{
		"save " + saved, "save " + saved, "wait-for held=no-such", "release", "release", "wait-for link=there", "up", "wait-for step=response:CONFIG_VPORT_RX within=2s", "settle", "vectors",
		"offline 2-3", "offline 3", "online 2", "fire vectors=1 rounds=2", "vectors", "log", "bogus", "ofline 3", "help offline", "help",
		"hold request:CONFIG_VPORT_RX as=x", "down", "wait-for held=x", "quit", "not reached",
	}, "\n")
	in := io.MultiReader(&reading{strings.NewReader(first), nil, func() { // while the prompt waits for more
		_, after, _ := strings.Cut(out.String(), "\nVM ")
		name, _, _ := strings.Cut(strings.TrimSpace(after), ",")
		sshBeside(ctx, t, name)
	}}, strings.NewReader(commands))
	status := Run(ctx, []string{"shell", "--hold", "request:QUERY_DEV_CONFIG", "--out", dir}, Streams{In: in, Out: &out, Err: &errs})
	if status != 0 {
		t.Fatalf("status %d\n%s%s", status, &out, &errs)
	}
	at, told := 0, strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"probe has come to request:QUERY_DEV_CONFIG, and",
		"device or resource busy", // CPUs cannot leave while the kernel probes a PCI driver
		"boot CPU",
		"HELD",
		"request:QUERY_DEV_CONFIG (1)",
		"early.yaml has what you did",
		"was left as it is", // once more
		"no-such",
		"query-dev-config is released",
		"release: the device is held at nothing",
		"it has come, after",
		"eth0 is up with 4 channels",
		"it has come, after 0.0 s", // since the step before began
		"5 vectors: HWC on CPU ",
		"reading-1, CPUs 0-3 online",
		"CPUs 2-3 offline; online: 0-1",
		"CPU 3 was offline before; online: 0-1",
		"CPU 2 online; online: 0-2",
		"fired vector 1, 2 times; all were handled",
		"reading-2, CPUs 0-2 online",
		"smpboot: CPU 3 is now offline",
		"bogus: there is no such word",
		`did you mean "offline"?`,
		"offline: LIST",
		"save FILE.yaml",
		"x is set: the device will stand at request:CONFIG_VPORT_RX",
	} {
		i := strings.Index(told[at:], want)
		if i < 0 {
			t.Fatalf("no %q, or not in its place, in\n%s", want, &out)
		}
		at += i
	}
	for _, want := range []string{"probe: done", "the device stands at x"} {
		if !strings.Contains(told, want) {
			t.Errorf("%q was not told:\n%s", want, &out)
		}
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > layout.Default && !strings.Contains(line, dir[:20]) {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if said := errs.String(); strings.Contains(said, "overrides") || strings.Contains(said, "context") || strings.Contains(said, "ended:") || strings.Contains(said, "hung") {
		t.Errorf("nobody asked for this: %s", said)
	}
	for _, name := range []string{"session.yaml", "timeline.jsonl", "timeline.html", "console.log", "trace.jsonl"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil || !strings.Contains(strings.Join(strings.Fields(errs.String()), " "), name) {
			t.Errorf("%s: %v, told: %s", name, err, &errs)
		}
	}

	var results, quiet bytes.Buffer
	if status := Run(ctx, []string{"run", filepath.Join(dir, "session.yaml"), "--format", "json"}, Streams{In: strings.NewReader(""), Out: &results, Err: &quiet}); status != ExitPass {
		file, _ := os.ReadFile(filepath.Join(dir, "session.yaml"))
		t.Fatalf("run again: status %d\n%s\n%s%s", status, file, &results, &quiet)
	}
	var rep result.Report
	if err := json.Unmarshal(results.Bytes(), &rep); err != nil {
		t.Fatal(err)
	}
	for _, label := range []string{"reading-1", "reading-2"} {
		o := rep.Cases[0].Find(label)
		if o == nil {
			t.Fatalf("no %s when it is run again:\n%s", label, &results)
		}
		_, table, _ := strings.Cut(out.String(), label+", CPUs ")
		rows := map[string]map[string]string{}
		var header []string
		for line := range strings.Lines(table) {
			switch f := strings.Fields(line); {
			case len(rows) == len(o.Vectors):
			case len(f) > 5 && f[0] == "vector":
				header = f
			case len(header) > 0 && len(f) >= len(header) && (f[1] == result.RoleHWC || f[1] == result.RoleQueue):
				rows[f[0]] = map[string]string{}
				for i, name := range header {
					rows[f[0]][name] = f[i]
				}
			}
		}
		for _, v := range o.Vectors {
			row := rows[strconv.Itoa(v.Index)]
			if row == nil || row["role"] != v.Role || row["requested"] != v.Affinity.String() || row["effective"] != v.Effective.String() {
				t.Errorf("%s, vector %d: %s, requested %s, effective %s when it is run again; in the session %q", label, v.Index, v.Role, v.Affinity, v.Effective, row)
			}
		}
		if !strings.HasPrefix(table, o.Online.String()+" online") {
			t.Errorf("%s: CPUs %s are online when it is run again", label, o.Online)
		}
	}
}

// Lines that come at once, while the driver still sets up again after a reset, are about what is there then; so is the session when it is run again. What the kernel reports meanwhile is told.
func TestShellAfterReset(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	dir := filepath.Join(t.TempDir(), "session")
	in := io.MultiReader(&reading{strings.NewReader("offline 3\nrelease\nsettle\nstatus\n"), nil, func() {
		_, after, _ := strings.Cut(out.String(), "\nVM ")
		name, _, _ := strings.Cut(strings.TrimSpace(after), ",")
		var told bytes.Buffer
		if status := Run(ctx, []string{"ssh", name, "echo '<2>BUG: made by a test' >/dev/kmsg"}, Streams{In: strings.NewReader(""), Out: &told, Err: &told}); status != 0 {
			t.Errorf("ssh %s: status %d: %s", name, status, &told)
		}
	}}, strings.NewReader("sleep 1s\nwait-for link=gone within=100ms\n"))
	status := Run(ctx, []string{"shell", "low-vcpu-driver", "--kernel", "debian:7.3", "--during", "reset-service", "--hold", "request:QUERY_DEV_CONFIG", "--out", dir}, Streams{In: in, Out: &out, Err: &errs})
	told := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"5 vectors: HWC on CPU ", "the kernel is in trouble (BUG): BUG: made by a test"} {
		if status != 0 || !strings.Contains(told, want) {
			t.Fatalf("status %d, no %q in\n%s%s", status, want, &out, &errs)
		}
	}
	if !strings.Contains(strings.Join(strings.Fields(errs.String()), " "), "not in session.yaml: wait for link gone: left out: the driver's link is ") {
		t.Errorf("what is left out is not told: %s", &errs)
	}
	var results, quiet bytes.Buffer
	status = Run(ctx, []string{"run", filepath.Join(dir, "session.yaml"), "--expect", "log=any", "--format", "json"}, Streams{In: strings.NewReader(""), Out: &results, Err: &quiet})
	if status != ExitPass {
		t.Errorf("run again: status %d\n%s%s", status, &results, &quiet)
	}
}

// sshBeside reaches a VM that a shell leads or sits in, whatever standard input is, while another ssh is there, too, and gets the command's own status.
func sshBeside(ctx context.Context, t *testing.T, name string) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Error(err)
		return
	}
	defer null.Close()
	open, write := io.Pipe() // nobody writes to it
	defer write.Close()
	long, stop := context.WithCancel(ctx)
	var first sync.WaitGroup
	first.Go(func() {
		Run(long, []string{"ssh", name, "sleep", "1000"}, Streams{In: open, Out: io.Discard, Err: io.Discard})
	})
	defer first.Wait()
	defer stop()
	for _, tc := range []struct {
		args   string
		in     io.Reader
		status int
		want   string
	}{
		{"-- grep -c cpu /proc/stat", null, 0, "5\n"},
		{"grep -c cpu /proc/stat", open, 0, "5\n"},
		{"-- true", null, 0, ""},
		{"-- cat", strings.NewReader("hello\n"), 0, "hello\n"},
		{"false", null, 1, ""},
		{"-- exit 3", strings.NewReader(""), 3, ""},
		{"-- no-such-command", null, 127, ""},
		{"exec -- echo $HOME a;b", null, 0, "$HOME a;b\n"},
		{"exec false", open, 1, ""},
		{"exec -- no-such-command", null, 127, ""},
		{"", strings.NewReader("echo in\nexit 4\n"), 4, "in\n"},
		{"", null, 0, ""},
	} {
		var out, errs bytes.Buffer
		timed, cancel := context.WithTimeout(ctx, 25*time.Second) // less than a wait for the guest's one seat
		verb, args := "ssh", tc.args
		if rest, ok := strings.CutPrefix(args, "exec "); ok {
			verb, args = "exec", rest
		}
		status := Run(timed, append([]string{verb, name}, strings.Fields(args)...), Streams{In: tc.in, Out: &out, Err: &errs})
		cancel()
		if status != tc.status || out.String() != tc.want {
			t.Errorf("ssh %s with %T: status %d, %q; want %d, %q; %s", tc.args, tc.in, status, &out, tc.status, tc.want, &errs)
		}
	}
}

// The prompt says what its message is about, and once.
func TestAbout(t *testing.T) {
	for line, want := range map[string]string{
		"hold register-read@0x8": "hold is not possible at register-read@0x8: ",
		"hold":                   "hold: needs an argument: hold: {",
		"offline x":              `offline: CPU list "x": `,
	} {
		word, _, _ := strings.Cut(line, " ")
		_, err := scenarios.ParseStep(line)
		if err == nil {
			t.Fatalf("%q is a step", line)
		}
		if got := about(word, err.Error()); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// What comes through a pipe is lines of a bounded length.
func TestPipedLines(t *testing.T) {
	var shown bytes.Buffer
	l := newLines(Streams{Out: &shown, In: strings.NewReader("help\n\n" + strings.Repeat("x", 1<<17) + "\nquit\n")})
	for _, want := range []string{"help", ""} {
		if line, err := l.read("irqlab> "); line != want || err != nil {
			t.Errorf("%q, %v", line, err)
		}
	}
	if got := shown.String(); got != "irqlab> help\n" {
		t.Errorf("a transcript of it reads %q", got)
	}
	if line, err := l.read(""); err == nil || !strings.Contains(err.Error(), "a line of more than 65536 bytes is no step") {
		t.Errorf("%.20q, %v", line, err)
	}
}

// What a person is told of a step has not the step's place, and names the rules that had a part in its failure.
func TestPlainStep(t *testing.T) {
	err := &runner.StepError{Err: errors.New("not handled"), Late: true, Holds: []string{"x (hold at vector:1)"}, Ate: []string{"y (drop at vector:2), 3 so far"}}
	if got, want := plainStep(err), "not handled; the device is held: x (hold at vector:1); dropped by a rule: y (drop at vector:2), 3 so far"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
