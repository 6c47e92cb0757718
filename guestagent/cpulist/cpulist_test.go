package cpulist

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want List
		err  string
	}{
		{in: "", want: nil},
		{in: "\n", want: nil},
		{in: "0", want: List{0}},
		{in: "0-3", want: List{0, 1, 2, 3}},
		{in: "8,0-1,1", want: List{0, 1, 8}},
		{in: "3-1", err: "runs backwards"},
		{in: "0-", err: `"" is not a CPU number`},
		{in: "x", err: `"x" is not a CPU number`},
		{in: "0,,1", err: `"" is not a CPU number`},
		{in: "0-99999", err: "above the highest"},
	} {
		got, err := Parse(tc.in)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("Parse(%q): error %v, want one with %q", tc.in, err, tc.err)
			}
			continue
		}
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("Parse(%q) = %v, %v; want %v", tc.in, got, err, tc.want)
		}
	}
}

func TestString(t *testing.T) {
	for want, l := range map[string]List{
		"":           nil,
		"5":          {5},
		"0-3":        {0, 1, 2, 3},
		"0-1,4,8-10": {0, 1, 4, 8, 9, 10},
	} {
		if got := l.String(); got != want {
			t.Errorf("%v.String() = %q, want %q", []int(l), got, want)
		}
	}
}

func TestSetOperations(t *testing.T) {
	a, b := Range(0, 3), New(2, 3, 4)
	if got := a.Minus(b).String(); got != "0-1" {
		t.Errorf("Minus = %s", got)
	}
	if got := a.And(b).String(); got != "2-3" {
		t.Errorf("And = %s", got)
	}
	if got := a.Or(b).String(); got != "0-4" {
		t.Errorf("Or = %s", got)
	}
	if !New(1).Within(a) || New(9).Within(a) || !List(nil).Within(nil) {
		t.Error("Within is wrong")
	}
}

func TestJSON(t *testing.T) {
	b, err := json.Marshal(struct{ L List }{Range(0, 2)})
	if err != nil || string(b) != `{"L":"0-2"}` {
		t.Errorf("marshal: %s, %v", b, err)
	}
	var v struct{ L List }
	if err := json.Unmarshal([]byte(`{"L":"1,3"}`), &v); err != nil || v.L.String() != "1,3" {
		t.Errorf("unmarshal: %v, %v", v.L, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "0-3,8", "8191", "1-0", "0-8191"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := Parse(s)
		if err != nil {
			return
		}
		back, err := Parse(l.String())
		if err != nil || !slices.Equal(l, back) {
			t.Fatalf("%q -> %v -> %q -> %v, %v", s, l, l.String(), back, err)
		}
	})
}
