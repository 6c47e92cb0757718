package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const timelineFile = `{"irqlab":"timeline","schema":1,"scenario":"s","case":"c","cpus":2,"end":2}
{"t":0.5,"for":1.5,"source":"step","kind":"step","text":"loading mana"}
{"t":1.25,"source":"vector","kind":"vector-fire","vector":1,"fields":{"delivered":1}}
{"t":1.5,"source":"guest-log","kind":"cpu-offline","cpu":1,"level":6,"text":"smpboot: CPU 1 is now offline"}
`

func TestTimeline(t *testing.T) {
	for _, tc := range []struct {
		what, args string
		want, not  string
	}{
		{"all", "", "0.500000              step       loading mana\n1.250000    0.750000  vector     vector 1 fired\n1.500000    0.250000  guest-log  smpboot", "\x00"},
		{"one source", "--source cpu", "CPU 1 is now offline", "fired"},
		{"a window", "--from 1.1 --to 1300ms", "fired", "offline"},
		{"a vector", "--vector 1,3-4", "fired", "loading"},
		{"a CPU", "--cpu 1", "offline", "fired"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			args := append([]string{"timeline", traceFile(t, timelineFile)}, strings.Fields(tc.args)...)
			status, out, msg := irqlab(t, args...)
			if status != ExitPass || msg != "" || !strings.Contains(out, tc.want) || strings.Contains(out, tc.not) {
				t.Errorf("status %d, stderr %q, got\n%s\nwant %q in it and %q not", status, msg, out, tc.want, tc.not)
			}
		})
	}
}

func TestTimelineHTML(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.html")
	status, out, msg := irqlab(t, "timeline", traceFile(t, timelineFile), "--html", path)
	if status != ExitPass || out != "" || msg != "" {
		t.Fatalf("status %d, stdout %q, stderr %q", status, out, msg)
	}
	page, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(page), "<!DOCTYPE html>") || !strings.Contains(string(page), ">vector 1</div>") {
		t.Errorf("page %.200s, error %v", page, err)
	}
}

func TestTimelineRefuses(t *testing.T) {
	for _, tc := range []struct {
		content, args string
		status        int
		want          string
	}{
		{"", "", ExitUsage, "it is empty"},
		{"{}\n", "", ExitUsage, "run --out leaves as timeline.jsonl"},
		{timelineFile, "--source guestlog", ExitUsage, `did you mean "guest-log"?`},
		{timelineFile, "--from soon", ExitUsage, `--from: "soon" is no time`},
		{timelineFile, "--to -1", ExitUsage, "no time since the case began"},
		{timelineFile, "--from 2 --to 1", ExitUsage, "must be after"},
		{timelineFile, "--vector x", ExitUsage, "--vector: "},
		{timelineFile, "--cpu 3-1", ExitUsage, "--cpu: "},
		{timelineFile, "--html /nowhere/page.html", ExitError, "--html: "},
	} {
		args := append([]string{"timeline", traceFile(t, tc.content)}, strings.Fields(tc.args)...)
		status, out, msg := irqlab(t, args...)
		if status != tc.status || out != "" || !strings.Contains(msg, tc.want) {
			t.Errorf("%q %s: status %d, stdout %q, stderr %q; want %d, nothing and %q", tc.content, tc.args, status, out, msg, tc.status, tc.want)
		}
	}
}
