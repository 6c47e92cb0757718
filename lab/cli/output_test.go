package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// asIrqlab, in the environment, makes this program the command.
const asIrqlab = "IRQLAB_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asIrqlab) != "" {
		os.Exit(Main())
	}
	os.Exit(m.Run())
}

// refusing is an output that takes the first bytes and no more.
type refusing struct{ takes int }

var errRefused = errors.New("refused by the test")

func (w *refusing) Write(p []byte) (int, error) {
	if len(p) <= w.takes {
		w.takes -= len(p)
		return len(p), nil
	}
	n := w.takes
	w.takes = 0
	return n, errRefused
}

// No command that prints a result succeeds when the result did not get out, all or part of it.
func TestOutputRefused(t *testing.T) {
	t.Setenv("IRQLAB_CACHE", t.TempDir())
	for _, tc := range []struct{ args, in string }{
		{"list scenarios", ""}, {"list steps", ""}, {"list strategies", ""}, {"list shapes", ""}, {"list faults", ""},
		{"doctor", ""}, {"cache list", ""}, {"cache verify", ""}, {"cache", ""},
		{"trace -", smc}, {"trace - --format json", smc}, {"timeline -", timelineFile}, {"timeline - --each", timelineFile},
		{"", ""}, {"--help", ""}, {"help run", ""}, {"run --help", ""}, {"completion bash", ""}, {"completion zsh", ""},
	} {
		for _, takes := range []int{0, 5} {
			var errs bytes.Buffer
			status := Run(t.Context(), strings.Fields(tc.args), Streams{In: strings.NewReader(tc.in), Out: &refusing{takes}, Err: &errs})
			if status != ExitError || !strings.Contains(errs.String(), "irqlab: standard output: "+errRefused.Error()) {
				t.Errorf("irqlab %s, %d bytes taken: status %d, %q", tc.args, takes, status, &errs)
			}
		}
	}
}

// What takes a while is not begun when its results would be lost; --out keeps what a closed output would lose.
func TestOutputChecked(t *testing.T) {
	t.Setenv("IRQLAB_CACHE", t.TempDir())
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	read.Close()
	for _, args := range []string{"run", "run --format json", "compare --kernel debian:6.18 --kernel debian:7.3", "bench bare-boot"} {
		for want, out := range map[string]io.Writer{errClosed.Error(): closedOutput{errClosed}, syscall.EPIPE.Error(): write} {
			var errs bytes.Buffer
			if status := Run(t.Context(), strings.Fields(args), Streams{In: strings.NewReader(""), Out: out, Err: &errs}); status != ExitError || errs.String() != "irqlab: standard output: "+want+"\n" {
				t.Errorf("irqlab %s: status %d, %q; want %q only", args, status, &errs, want)
			}
		}
	}
	for _, tc := range []struct {
		out  string
		to   io.Writer
		want error
	}{{"results", closedOutput{errClosed}, nil}, {"results", write, syscall.EPIPE}, {"", new(bytes.Buffer), nil}, {"", os.Stderr, nil}} {
		f, s := runFlags{out: tc.out}, Streams{Out: tc.to}
		if err := f.output(&s); !errors.Is(err, tc.want) {
			t.Errorf("--out %q, %T: %v, want %v", tc.out, tc.to, err, tc.want)
		}
	}
}

// The process's own standard output: closed, full, without a reader, or rightly thrown away.
func TestStandardOutput(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	read.Close()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		script string
		status string
		want   string // on standard error
	}{
		{`"$0" list steps >&-`, "125", "irqlab: standard output: it is closed"},
		{`"$0" list steps >&- <&-`, "125", "irqlab: standard output: it is closed"},
		{`exec "$0" run >&-`, "125", "irqlab: standard output: it is closed"},
		{`"$0" list steps > /dev/full`, "125", "no space left on device"},
		{`"$0" list steps > /dev/null`, "0", ""},
		{`"$0" list steps <> /dev/null >&0`, "0", ""}, // as who starts a daemon, or throws all away, does
		{`exec <> /dev/null 1>&0; "$0" list steps`, "0", ""},
		{`"$0" list steps | cat > /dev/null`, "0", ""},
		{`exec "$0" list steps`, "125", "irqlab: standard output: write /dev/stdout: broken pipe\n"}, // to the pipe below
	} {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", tc.script, exe)
		cmd.Env = append(os.Environ(), asIrqlab+"=1", "IRQLAB_CACHE="+t.TempDir())
		var errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = write, &errs
		_ = cmd.Run() // the status tells
		if status := cmd.ProcessState.String(); status != "exit status "+tc.status || !strings.Contains(errs.String(), tc.want) {
			t.Errorf("%s: %s, %q; want %s, %q", tc.script, status, &errs, tc.status, tc.want)
		}
	}
}
