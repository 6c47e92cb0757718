package gdma

import (
	"slices"
	"strings"
	"testing"

	"irqlab/devmodel/inject"
)

// TestStepsAreNamedAsOnTheTrace: inject has a table of names of its own, so that it can list them without a device.
func TestStepsAreNamedAsOnTheTrace(t *testing.T) {
	steps := map[string]inject.Step{}
	for _, s := range inject.Steps() {
		steps[s.Name] = s
	}
	names := func(fields []Field) (n []string) {
		for _, f := range fields {
			n = append(n, f.Name)
		}
		return n
	}
	if got, want := steps["request:any"].Fields, names(requestHeader); !slices.Equal(got, want) {
		t.Errorf("header of a request: inject has %q, gdma %q", got, want)
	}
	if got, want := steps["response:any"].Fields, append(names(responseHeader), "length"); !slices.Equal(got, want) {
		t.Errorf("header of an answer: inject has %q, gdma %q", got, want)
	}
	mine := map[uint32]string{}
	for _, m := range gdmaMessages() {
		mine[m.Code] = m.Name
		for _, c := range []struct {
			step   string
			header []string
			fields []Field
		}{{"request:" + m.Name, steps["request:any"].Fields, m.Request}, {"response:" + m.Name, steps["response:any"].Fields, m.Response}} {
			want := c.header
			for _, n := range names(c.fields) {
				if !slices.Contains(c.header, n) {
					want = append(want[:len(want):len(want)], n)
				}
			}
			if got := steps[c.step].Fields; !slices.Equal(got, want) {
				t.Errorf("%s: inject has fields %q, gdma %q", c.step, got, want)
			}
		}
	}
	for code := range uint32(1 << 16) {
		name := strings.TrimPrefix(inject.Request(code).String(), "request:")
		if named := !strings.HasPrefix(name, "0x"); named != (mine[code] != "") || named && name != mine[code] {
			t.Errorf("code %d: inject calls it %q, gdma %q", code, name, mine[code])
		}
	}
	for typ := range 256 {
		name := strings.TrimPrefix(inject.Event(uint8(typ)).String(), "event:")
		trace := EventType(typ).String()
		if strings.HasPrefix(name, "0x") != (trace[0] >= '0' && trace[0] <= '9') || !strings.HasPrefix(name, "0x") && name != trace {
			t.Errorf("event %d: inject calls it %q, the trace %q", typ, name, trace)
		}
	}
	for _, f := range steps["event:test"].Fields {
		if _, ok := eqePlace(f); !ok {
			t.Errorf("an event has no %s", f)
		}
	}
	for _, c := range []*Completion{hwcSent, hwcReceived} {
		fields := steps[c.Step.String()].Fields
		for _, f := range fields {
			if _, ok := c.place(f); !ok {
				t.Errorf("%s has no %s", c.Step, f)
			}
		}
		if len(fields) != 2+len(c.Places) {
			t.Errorf("%s: inject has fields %q, gdma %v", c.Step, fields, c.Places)
		}
	}
	for _, f := range steps["smc:establish"].Fields {
		if _, ok := smcPlace(f); ok == (f == "answer") {
			t.Errorf("smc: %s is found: %v", f, ok)
		}
	}
}
