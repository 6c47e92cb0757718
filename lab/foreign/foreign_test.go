package foreign

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"plain":             {"a b é 漢\nc", "a b é 漢\nc"},
		"empty":             {"", ""},
		"line ends":         {"a\r\nb\n", "a\nb\n"},
		"carriage return":   {"fail\rpass", "fail pass"},
		"CSI":               {"\x1b[2J\x1b[31mred", " [2J [31mred"},
		"OSC":               {"\x1b]0;title\x07x", " ]0;title x"},
		"DCS":               {"\x1bP$q\x1b\\x", " P$q \\x"},
		"eight-bit CSI":     {"\u009b31m", " 31m"},
		"as a raw byte":     {"\x9b31m", "\ufffd31m"},
		"tab, bell, delete": {"a\tb\ac\x7f\x00", "a b c  "},
		"bidi":              {"a\u202eb\u2066c\u200f", "a b c "},
		"no width":          {"a\u200bb\ufeffc\u00ad", "a b c "},
		"line separators":   {"a\u2028b\u2029c\u0085d", "a b c d"},
		"overlong":          {strings.Repeat("é", MaxLine+1) + "\nb", strings.Repeat("é", MaxLine) + "…\nb"},
	} {
		if got := Text(tc.in); got != tc.want {
			t.Errorf("%s: %.80q, want %.80q", name, got, tc.want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("a\x1b[31m\r\n\u202e\x9b")
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		if !utf8.ValidString(got) || strings.Count(got, "\n") != strings.Count(s, "\n") || Text(got) != got && len(s) < MaxLine {
			t.Fatalf("%q -> %q", s, got)
		}
		for line := range strings.SplitSeq(got, "\n") {
			if utf8.RuneCountInString(line) > MaxLine+1 || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Fatalf("%q -> %q", s, got)
			}
		}
	})
}
