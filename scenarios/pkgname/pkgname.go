// Package pkgname says what a Debian package may be called. It is pure and knows no package.
package pkgname

import (
	"fmt"
	"regexp"
	"strings"
)

// Pattern is what a name looks like.
const Pattern = `^[a-z0-9][a-z0-9+.-]+$`

var pattern = regexp.MustCompile(Pattern)

// Check says what is wrong with a name.
func Check(name string) error {
	base, arch, hasArch := strings.Cut(name, ":")
	plain, version, hasVersion := strings.Cut(name, "=")
	switch {
	case pattern.MatchString(name):
		return nil
	case hasArch && pattern.MatchString(base):
		return fmt.Errorf("%q asks for the architecture %s, and guests are amd64; write %s", name, arch, base)
	case hasVersion && pattern.MatchString(plain):
		return fmt.Errorf("%q asks for version %s, and the one that Debian's suite has is taken; write %s", name, version, plain)
	}
	return fmt.Errorf("%q is no name of a Debian package; allowed: two or more of a-z, 0-9, +, . and -, as in irqbalance", name)
}
