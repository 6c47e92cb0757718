package kmsg

import (
	"testing"
	"unicode/utf8"

	"irqlab/guestagent/agentapi"
)

func TestParseRecord(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want agentapi.LogRecord
	}{
		{"6,339,5140900,-;NET: Registered protocol family 10\n", agentapi.LogRecord{Seq: 339, Seconds: 5.1409, Level: 6, Text: "NET: Registered protocol family 10"}},
		{"30,340,5690716,c,caller=T1;udevd: a;b\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n", agentapi.LogRecord{Seq: 340, Seconds: 5.690716, Level: 6, Text: "udevd: a;b"}},
		{"4,0,0,-;", agentapi.LogRecord{Level: 4}},
		{`6,1,0,-;ACPI: \x5c_SB_: caf\xc3\xa9 \x1b[31m \xq \x`, agentapi.LogRecord{Seq: 1, Level: 6, Text: `ACPI: \_SB_: café \x1b[31m \xq \x`}},
		{`6,1,0,-;\xff`, agentapi.LogRecord{Seq: 1, Level: 6, Text: "\uFFFD"}},
	} {
		if got, err := ParseRecord([]byte(tc.in)); err != nil || got != tc.want {
			t.Errorf("%q:\n got %+v, %v\nwant %+v", tc.in, got, err, tc.want)
		}
	}
	for _, bad := range []string{"", "6,1,2 no semicolon", "6,1;x", "x,1,2,-;t", "6,x,2,-;t", "6,1,x,-;t", "6,-1,2,-;t"} {
		if got, err := ParseRecord([]byte(bad)); err == nil {
			t.Errorf("%q: %+v, want an error", bad, got)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte("6,339,5140900,-;text\n KEY=value\n"))
	f.Add([]byte(`4,1,2,c;\x5c\xc3`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRecord(b)
		if err != nil {
			return
		}
		if !utf8.ValidString(r.Text) || r.Level < 0 || r.Level > 7 || r.Seconds < 0 {
			t.Fatalf("%q -> %+v", b, r)
		}
	})
}
