package pkgname

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for _, x := range []struct{ name, want string }{
		{"irqbalance", ""},
		{"libstdc++6", ""},
		{"0ad", ""},
		{"bash:arm64", "asks for the architecture arm64, and guests are amd64; write bash"},
		{"bash=5.2", "asks for version 5.2, and the one that Debian's suite has is taken; write bash"},
		{"", "is no name of a Debian package"},
		{"x", "two or more"},
		{"Bash", "is no name"},
		{"-y", "is no name"}, // apt would take it for an option
		{"bash dash", "is no name"},
		{"../bash", "is no name"},
		{"bash-", ""}, // looks like a name; no suite has one that ends so
	} {
		err := Check(x.name)
		if got := ""; err != nil && (x.want == "" || !strings.Contains(err.Error(), x.want)) || err == nil && x.want != got {
			t.Errorf("%q: %v, want %q", x.name, err, x.want)
		}
	}
}
