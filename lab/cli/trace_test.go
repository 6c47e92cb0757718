package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"irqlab/devmodel/trace"
)

const (
	smc   = `{"t":334646000,"kind":"smc-request","type":1,"version":0,"header":2147483649,"text":"establish eq=0x1000"}` + "\n"
	dma   = `{"t":1334646001,"kind":"dma-map","iova":1048576,"size":18446744069432410112,"flags":3}` + "\n"
	reset = `{"t":9,"kind":"reset","text":"client\u001b[2Jgone"}` + "\n"
)

func traceFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTrace(t *testing.T) {
	for _, tc := range []struct {
		what    string
		content string
		args    string
		want    string
		stderr  string // in it
	}{
		{"table", smc + dma + reset, "", `seconds             +  kind         event
0.334646                smc-request  establish eq=0x1000  (type=1 version=0 header=0x80000001)
1.334646      1.000000  dma-map      iova=0x100000 size=0xffffffff01100000 flags=3
0.000000     -1.334646  reset        client [2Jgone
`, ""},
		{"one kind", smc + dma, "--kind dma-map", "seconds             +  kind     event\n1.334646                dma-map  iova=0x100000 size=0xffffffff01100000 flags=3\n", ""},
		{"lines as they are", smc + dma + reset, "--format json --kind reset --kind smc-request", smc + reset, ""},
		{"a kind there is, and none here", smc, "--format json --kind vector-fire", "", "no event of kind vector-fire"},
		{"nothing recorded", "", "--format json", "", ""},
		{"blank lines", "\n" + smc + "\r\n", "--format json", smc, ""},
		{"last line cut", smc + `{"t":12,"kin`, "--format json", smc, "the last line is cut short"},
		{"last line without its newline", smc + strings.TrimSuffix(dma, "\n"), "--format json", smc + dma, ""},
	} {
		t.Run(tc.what, func(t *testing.T) {
			args := append([]string{"trace", traceFile(t, tc.content)}, strings.Fields(tc.args)...)
			status, out, msg := irqlab(t, args...)
			if tc.args == "" {
				out = strings.TrimLeft(out, " ")
			}
			if status != ExitPass || strings.TrimLeft(out, " ") != tc.want {
				t.Errorf("status %d, stderr %q, got\n%s\nwant\n%s", status, msg, out, tc.want)
			}
			if (msg == "") != (tc.stderr == "") || !strings.Contains(msg, tc.stderr) {
				t.Errorf("stderr %q, want %q in it", msg, tc.stderr)
			}
		})
	}
}

func TestTraceRefuses(t *testing.T) {
	for _, tc := range []struct{ content, args, want string }{
		{smc + "{\n" + dma, "", "trace.jsonl:2: not a line of a timeline"},
		{smc + "[1]\n", "", "trace.jsonl:2: not a line of a timeline: want one JSON object"},
		{`{"kind":"x"}` + "\n", "", "it has no t or no kind"},
		{`{"t":1,"kind":7}` + "\n", "", "kind: 7 is not what belongs there"},
		{`{"t":1.5,"kind":"x"}` + "\n", "", "t: "},
		{`{"t":1,"kind":"x","a":{}}` + "\n", "", "a: want a number or a string"},
		{`{"t":1,"kind":"x"} 5` + "\n", "", "something follows the object"},
		{smc + dma, "--kind smc-reqest", `; did you mean "smc-request"?`},
		{smc, "--format xml", "allowed: table, json"},
	} {
		args := append([]string{"trace", traceFile(t, tc.content)}, strings.Fields(tc.args)...)
		status, out, msg := irqlab(t, args...)
		if status != ExitUsage || out != "" || !strings.Contains(msg, tc.want) {
			t.Errorf("%q %s: status %d, stdout %q, stderr %q; want %d, nothing and %q", tc.content, tc.args, status, out, msg, ExitUsage, tc.want)
		}
	}
}

// TestTraceOfARecorder: what a recorder writes is what trace reads.
func TestTraceOfARecorder(t *testing.T) {
	rec := trace.New(0)
	kind := trace.NewKind("fired", "vector", "value")
	rec.Record(kind, 3, 1<<63)
	rec.Note(kind, `a "word"`, 4)
	events, _ := rec.Events()
	var lines []byte
	for _, e := range events {
		lines = append(e.AppendJSON(lines), '\n')
	}
	got, cut, err := readTrace("t", bytes.NewReader(lines))
	if err != nil || cut || len(got) != 2 {
		t.Fatalf("%d events, cut %v, error %v", len(got), cut, err)
	}
	if d := got[0].describe(); got[0].T != events[0].T || got[0].Kind != "fired" || d != "vector=3 value=0x8000000000000000" {
		t.Errorf("got %s at %s: %s", got[0].Kind, got[0].T, d)
	}
	if d := got[1].describe(); d != `a "word"  (vector=4 value=0)` {
		t.Errorf("got %s", d)
	}
}

func FuzzTrace(f *testing.F) {
	for _, s := range []string{smc, dma, reset, "", "{", "[]", `{"t":1,"kind":"x","a":"b"}`, `{"t":1e9,"kind":"x"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		events, cut, err := readTrace("fuzz", bytes.NewReader(b))
		if err != nil {
			return
		}
		var lines, table bytes.Buffer
		if err := traceLines(t.Context(), &lines, events); err != nil {
			t.Fatal(err)
		}
		if err := traceTable(t.Context(), &table, events); err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(table.Bytes(), []byte("\n")); n != len(events)+1 {
			t.Errorf("%d events became a table of %d lines", len(events), n)
		}
		again, cutAgain, err := readTrace("again", &lines)
		if err != nil || cutAgain || len(again) != len(events) {
			t.Errorf("%d events (cut %v) were written and read back as %d: %v", len(events), cut, len(again), err)
		}
	})
}
