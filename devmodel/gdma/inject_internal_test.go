package gdma

import (
	"math/bits"
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
			own    []Field // of the header
			fields []Field
		}{{"request:" + m.Name, steps["request:any"].Fields, requestHeader, m.Request}, {"response:" + m.Name, steps["response:any"].Fields, responseHeader, m.Response}} {
			want := c.header
			for _, n := range names(c.fields) {
				if !slices.Contains(c.header, n) {
					want = append(want[:len(want):len(want)], n)
				}
			}
			s := steps[c.step]
			if !slices.Equal(s.Fields, want) {
				t.Errorf("%s: inject has fields %q, gdma %q", c.step, s.Fields, want)
			}
			for _, f := range slices.Concat(c.own, c.fields) {
				if i := slices.Index(s.Fields, f.Name); i >= 0 && s.Bits[i] != 8*f.Size {
					t.Errorf("%s: %s has %d bits in inject, %d bytes in gdma", c.step, f.Name, s.Bits[i], f.Size)
				}
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
	for i, f := range steps["event:test"].Fields {
		if p, ok := eqePlace(f); !ok || p.Width != steps["event:test"].Bits[i] {
			t.Errorf("an event has %s: %v, at %+v; inject says %d bits", f, ok, p, steps["event:test"].Bits[i])
		}
	}
	for _, c := range []*Completion{hwcSent, hwcReceived} {
		fields := steps[c.Step.String()].Fields
		for i, f := range fields {
			if p, ok := c.place(f); !ok || p.Width != steps[c.Step.String()].Bits[i] {
				t.Errorf("%s has %s: %v, at %+v; inject says %d bits", c.Step, f, ok, p, steps[c.Step.String()].Bits[i])
			}
		}
		if len(fields) != 2+len(c.Places) {
			t.Errorf("%s: inject has fields %q, gdma %v", c.Step, fields, c.Places)
		}
	}
	for i, f := range steps["smc:establish"].Fields {
		p, ok := smcPlace(f)
		if f == "answer" { // no part of the message; its owner bit is the device's
			ok, p.Width = !ok, bits.TrailingZeros32(smcOwner)
		}
		if !ok || p.Width != steps["smc:establish"].Bits[i] {
			t.Errorf("smc: %s: %v, at %+v; inject says %d bits", f, ok, p, steps["smc:establish"].Bits[i])
		}
	}
}
