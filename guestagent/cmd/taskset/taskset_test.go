//go:build linux

package main

import (
	"testing"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		word string
		list bool
		want string // empty: refused
	}{
		{"0-2,5", true, "0-2,5"}, {"3", true, "3"}, {"", true, ""}, {"x", true, ""}, {"2-1", true, ""},
		{"1", false, "0"}, {"f", false, "0-3"}, {"0xF0", false, "4-7"}, {"3,00000001", false, "0,32-33"}, {"80000001", false, "0,31"},
		{"0", false, ""}, {"", false, ""}, {"g", false, ""}, {"0-2", false, ""},
	} {
		got, err := parse(tc.word, tc.list)
		if (err == nil) != (tc.want != "") || err == nil && got.String() != tc.want {
			t.Errorf("parse(%q, %v): %v, %v; want %q", tc.word, tc.list, got, err, tc.want)
		}
	}
}
