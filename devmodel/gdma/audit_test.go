package gdma

import (
	"fmt"
	"testing"

	"irqlab/devmodel/trace"
)

// idle is a client that leaves nothing behind.
type idle struct{ Client }

func (idle) Leaks() []Leak { return nil }

// TestAuditsAfter follows a device's audits through more of them than it keeps.
func TestAuditsAfter(t *testing.T) {
	for _, tc := range []struct {
		made, after          uint64
		first, count, missed uint64
	}{
		{made: 0, after: 0},
		{made: 3, after: 0, first: 1, count: 3},
		{made: 3, after: 2, first: 3, count: 1},
		{made: 3, after: 3},
		{made: maxAudits, after: 0, first: 1, count: maxAudits},
		{made: maxAudits + 1, after: 0, first: 2, count: maxAudits, missed: 1},
		{made: maxAudits + 1, after: 1, first: 2, count: maxAudits},
		{made: maxAudits + 9, after: maxAudits, first: maxAudits + 1, count: 9},
		{made: maxAudits + 9, after: maxAudits + 9},
		{made: 3 * maxAudits, after: 7, first: 2*maxAudits + 1, count: maxAudits, missed: 2*maxAudits - 7},
		{made: 3 * maxAudits, after: 3*maxAudits - 1, first: 3 * maxAudits, count: 1},
	} {
		t.Run(fmt.Sprintf("%d after %d", tc.made, tc.after), func(t *testing.T) {
			d := &Device{trace: trace.New(0), client: idle{}}
			for range tc.made {
				d.audit("test", DeviceHWC)
			}
			audits, missed := d.Audits(tc.after)
			if uint64(len(audits)) != tc.count || missed != tc.missed {
				t.Fatalf("%d audits, %d missed; want %d, %d", len(audits), missed, tc.count, tc.missed)
			}
			for i, a := range audits {
				if a.Seq != tc.first+uint64(i) {
					t.Fatalf("audit %d has number %d, the first ought to have %d", i, a.Seq, tc.first)
				}
			}
		})
	}
}
