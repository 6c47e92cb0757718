package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"irqlab/scenarios"
)

// A person holds the driver's probe, finds that the kernel lets no CPU go there, and lets the device go on.
func TestShellHold(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	commands := strings.Join([]string{
		"offline 3", "unplug 0", "status", "wait-for held=no-such", "release", "release", "wait-for link=there", "up", "settle", "vectors", "offline 3", "log", "bogus",
	}, "\n")
	status := Run(ctx, []string{"shell", "--hold", "request:QUERY_DEV_CONFIG"}, Streams{In: strings.NewReader(commands), Out: &out, Err: &errs})
	if status != 0 {
		t.Fatalf("status %d\n%s%s", status, &out, &errs)
	}
	at := 0
	for _, want := range []string{
		"probe has come to request:QUERY_DEV_CONFIG, and the device stands still",
		"device or resource busy", // CPUs cannot leave while the kernel probes a PCI driver
		"boot CPU",
		"HELD",
		"request:QUERY_DEV_CONFIG (1)",
		"no-such",
		"release: the device is held at nothing",
		"reading-1, CPUs 0-3 online",
		"smpboot: CPU 3 is now offline",
		`unknown verb "bogus"`,
	} {
		i := strings.Index(out.String()[at:], want)
		if i < 0 {
			t.Fatalf("no %q, or not in its place, in\n%s", want, &out)
		}
		at += i
	}
	if !strings.Contains(out.String(), "probe: done") {
		t.Errorf("the end of the probe was not told:\n%s", &out)
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
	l := newLines(Streams{In: strings.NewReader("help\n" + strings.Repeat("x", 1<<17) + "\nquit\n")})
	if line, err := l.read(""); line != "help" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
	if line, err := l.read(""); err == nil || !strings.Contains(err.Error(), "a line of more than 65536 bytes is no step") {
		t.Errorf("%.20q, %v", line, err)
	}
}
