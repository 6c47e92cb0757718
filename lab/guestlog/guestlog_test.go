package guestlog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"irqlab/guestagent/agentapi"
)

func rec(seq uint64, at float64, level int, text string) agentapi.LogRecord {
	return agentapi.LogRecord{Seq: seq, Seconds: at, Level: level, Text: text}
}

func TestFromConsole(t *testing.T) {
	s := FromConsole([]byte("SeaBIOS\r\n[    1.250000] mana 0000:01:00.0: x\r\nirqlab: agent ready\n** 12 printk messages dropped **\n[ no\n[    2.000000][   T41] y\n[   10.000001] Kernel panic"))
	want := []agentapi.LogRecord{rec(0, 1.25, 4, "mana 0000:01:00.0: x"), rec(0, 2, 4, "y"), rec(0, 10.000001, 4, "Kernel panic")}
	if !slices.Equal(s.Records, want) || !slices.Equal(s.Dropped, []Span{{1.25, 2}}) {
		t.Errorf("%+v", s)
	}
}

func TestMerge(t *testing.T) {
	for _, tc := range []struct {
		name    string
		after   agentapi.LogRecord
		ring    []agentapi.LogRecord
		console string
		cut     string
		want    string // the texts
		whole   int
		why     string
	}{
		{name: "nothing at all", want: "", whole: AllLevels},
		{
			name: "a ring that has all needs no console",
			ring: []agentapi.LogRecord{rec(0, 1, 6, "a"), rec(1, 2, 4, "b")}, console: "** 3 printk messages dropped **\n[    1.500000] forged\n",
			want: "a b", whole: AllLevels,
		},
		{
			name: "the console has what the ring has forgotten",
			ring: []agentapi.LogRecord{rec(5, 5, 6, "e"), rec(6, 6, 4, "f")}, console: "[    1.000000] a\n[    2.000000] b\n[    6.000000] f\n",
			want: "a b e f", whole: ShownBelow, why: "forgotten 5 lines",
		},
		{
			name: "a line of the ring's first moment is not there twice",
			ring: []agentapi.LogRecord{rec(5, 5, 4, "e")}, console: "[    5.000000] d\n[    5.000000] e\n",
			want: "d e", whole: ShownBelow, why: "forgotten 5",
		},
		{
			name: "a gap in the middle", ring: []agentapi.LogRecord{rec(0, 1, 4, "a"), rec(9, 9, 4, "z")},
			console: "[    1.000000] a\n[    3.000000] b\n[    9.000000] z\n[   10.000000] later\n", want: "a b z", whole: ShownBelow, why: "forgotten 8",
		},
		{
			name: "only what came after a record counts", after: rec(2, 2, 4, "b"), ring: []agentapi.LogRecord{rec(9, 9, 4, "z")},
			console: "[    1.000000] a\n[    2.000000] b\n[    3.000000] c\n[    9.000000] z\n", want: "c z", whole: ShownBelow, why: "forgotten 6",
		},
		{
			name: "the ring goes on where it was left", after: rec(8, 2, 4, "b"), ring: []agentapi.LogRecord{rec(9, 9, 4, "z")}, console: "[    3.000000] c\n", want: "z", whole: AllLevels,
		},
		{
			name: "the console dropped some in the gap", ring: []agentapi.LogRecord{rec(9, 9, 4, "z")},
			console: "[    3.000000] c\n** 7 printk messages dropped **\n[    9.000000] z\n", want: "c z", whole: 0, why: "lacks some after 3.000000 s",
		},
		{
			name: "the console dropped some from before the gap on", after: rec(2, 2, 6, "b"), ring: []agentapi.LogRecord{rec(9, 9, 4, "z")},
			console: "[    1.000000] a\n** 7 printk messages dropped **\n[    9.000000] z\n", want: "z", whole: 0, why: "lacks some after 1.000000 s",
		},
		{
			name: "the console dropped some before the gap", after: rec(2, 2, 4, "b"), ring: []agentapi.LogRecord{rec(9, 9, 4, "z")},
			console: "** 7 printk messages dropped **\n[    1.000000] a\n[    2.000000] b\n[    9.000000] z\n", want: "z", whole: ShownBelow, why: "forgotten 6",
		},
		{
			name: "the console dropped some after the gap", ring: []agentapi.LogRecord{rec(9, 9, 6, "y"), rec(10, 10, 6, "z")},
			console: "[    3.000000] c\n[    9.500000] x\n** 7 printk messages dropped **\n", want: "c y z", whole: ShownBelow, why: "forgotten 9",
		},
		{
			name: "the console does not show the warnings", ring: []agentapi.LogRecord{rec(9, 9, 4, "z")}, console: "[    3.000000] c\n", want: "c z", whole: 0, why: "does not show all of the warnings",
		},
		{
			name: "it shows one of two alike", ring: []agentapi.LogRecord{rec(9, 9, 4, "z"), rec(10, 9, 4, "z")}, console: "[    9.000000] z\n", want: "z z", whole: 0, why: "does not show all",
		},
		{
			name: "the console is cut", ring: []agentapi.LogRecord{rec(9, 9, 6, "z")}, console: "[    3.000000] c\n", cut: "the disk is full",
			want: "c z", whole: 0, why: "the disk is full",
		},
		{
			name: "escapes and several lines are the same line", ring: []agentapi.LogRecord{rec(9, 9, 4, `a\x1b[31m \x09b é\x0asecond`)},
			console: "[    9.000000] a\x1b[31m \tb \xc3\xa9\n[    9.000000] second\n", want: `second a\x1b[31m \x09b é\x0asecond`, whole: ShownBelow, why: "forgotten",
		},
		{
			name: "stamps out of order", ring: []agentapi.LogRecord{rec(9, 9, 4, "z")}, console: "[    4.000000] d\n[    3.000000] c\n[    9.000000] z\n", want: "c d z", whole: ShownBelow, why: "forgotten",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			shown := FromConsole([]byte(tc.console))
			shown.Cut = tc.cut
			l := Merge(tc.after, tc.ring, shown)
			var texts []string
			for _, r := range l.Records {
				texts = append(texts, r.Text)
			}
			if got := strings.Join(texts, " "); got != tc.want || l.Whole != tc.whole || !strings.Contains(l.Why, tc.why) || (l.Why == "") != (tc.why == "") {
				t.Errorf("%q, whole below %d, %q\nwant %q, %d, %q", got, l.Whole, l.Why, tc.want, tc.whole, tc.why)
			}
			if err := l.Lost(ShownBelow); (err != nil) != (tc.whole < ShownBelow) {
				t.Errorf("of the warnings: %v", err)
			}
			if err := l.Lost(AllLevels); (err != nil) != (tc.whole < AllLevels) {
				t.Errorf("of all: %v", err)
			}
		})
	}
}

// FuzzMerge has both witnesses say anything: nothing of the ring's is lost, a whole ring is taken as it is, and what is added is the console's.
func FuzzMerge(f *testing.F) {
	f.Add([]byte("\x05\x05\x04e\x00\x06\x06\x04f"), "[    1.000000] a\n[    6.000000] f\n", uint8(0))
	f.Add([]byte("\x00\x01\x04a"), "** 1 printk messages dropped **\r\n[99999999999.000000] x\n[  1.0000", uint8(3))
	f.Fuzz(func(t *testing.T, ring []byte, console string, after uint8) {
		var records []agentapi.LogRecord
		seq := uint64(after)
		missing := false
		for len(ring) >= 4 {
			skip := uint64(ring[0] % 4)
			if after == 0 && len(records) == 0 && skip > 0 {
				seq = skip - 1
			} else if after == 0 && len(records) == 0 {
				seq = ^uint64(0) // the first is number 0
			} else {
				seq += skip
			}
			missing = missing || skip > 0
			seq++
			records = append(records, rec(seq, float64(ring[1])/10, int(ring[2]%8), string(ring[3:4])))
			ring = ring[4:]
		}
		var from agentapi.LogRecord
		if after > 0 {
			from = rec(uint64(after), 0, 4, "")
		}
		shown := FromConsole([]byte(console))
		l := Merge(from, records, shown)
		if (l.Whole < AllLevels) != missing || (l.Why == "") == missing {
			t.Fatalf("missing %t: whole below %d, %q", missing, l.Whole, l.Why)
		}
		var kept []agentapi.LogRecord
		for _, r := range l.Records {
			if i := slices.Index(records, r); i >= 0 {
				kept = append(kept, r)
			} else if !slices.Contains(shown.Records, r) {
				t.Fatalf("nobody logged %+v", r)
			}
		}
		if !slices.Equal(kept, records) || !missing && len(l.Records) != len(records) {
			t.Fatalf("of %s only %s", fmt.Sprint(records), fmt.Sprint(l.Records))
		}
	})
}
