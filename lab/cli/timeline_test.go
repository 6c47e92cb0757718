package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

// What is no file is written to and stays what it is, and so does a symbolic link.
func TestTimelineHTMLElsewhere(t *testing.T) {
	in, dir := traceFile(t, timelineFile), t.TempDir()
	page, link := filepath.Join(dir, "page.html"), filepath.Join(dir, "link.html")
	if err := errors.Join(os.WriteFile(page, []byte("old"), 0o600), os.Symlink(page, link)); err != nil {
		t.Fatal(err)
	}
	if status, _, msg := irqlab(t, "timeline", in, "--html", link); status != ExitPass {
		t.Fatalf("status %d, %q", status, msg)
	}
	if b, err := os.ReadFile(page); err != nil || !strings.HasPrefix(string(b), "<!DOCTYPE html>") {
		t.Errorf("the link's file has %.40q, %v", b, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info, err)
	}

	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	go func() { _, _ = io.Copy(io.Discard, reader) }() // until it is closed
	if status, _, msg := irqlab(t, "timeline", in, "--html", pipe); status != ExitPass {
		t.Errorf("status %d, %q", status, msg)
	}
	if info, err := os.Lstat(pipe); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("the pipe is %v, %v", info, err)
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
		{timelineFile, "--to 0", ExitUsage, "--to 0: must be after --from 0"},
		{timelineFile, "--from 1e3", ExitUsage, `"1e3" is no time`},
		{timelineFile, "--html /nowhere/page.html", ExitError, "--html /nowhere/page.html: no such file or directory\n"},
		{timelineFile, "--html=", ExitUsage, "--html: it is empty"},
	} {
		args := append([]string{"timeline", traceFile(t, tc.content)}, strings.Fields(tc.args)...)
		status, out, msg := irqlab(t, args...)
		if status != tc.status || out != "" || !strings.Contains(msg, tc.want) {
			t.Errorf("%q %s: status %d, stdout %q, stderr %q; want %d, nothing and %q", tc.content, tc.args, status, out, msg, tc.status, tc.want)
		}
	}
}
