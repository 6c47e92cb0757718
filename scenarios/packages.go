package scenarios

import (
	"fmt"
	"slices"
	"strings"

	"irqlab/scenarios/pkgname"
)

// packageWord is the name of a Debian package.
type packageWord string

func (w *packageWord) UnmarshalText(b []byte) error {
	*w = packageWord(b)
	return pkgname.Check(string(b))
}

// noPackages takes away what the file asks for, in one of its cases.
const noPackages = "none"

// setPackages has the case ask for packages, in the order of their names and each once.
func (c *Case) setPackages(words many[packageWord]) {
	c.Packages = nil
	if len(words) == 1 && words[0] == noPackages {
		return
	}
	for _, w := range words {
		c.Packages = append(c.Packages, string(w))
	}
	slices.Sort(c.Packages)
	c.Packages = slices.Compact(c.Packages)
}

// checkPackages says what is wrong with the packages together.
func (c *Case) checkPackages(say func(key, format string, args ...any)) {
	if len(c.Packages) > MaxPackages {
		say("packages", "%d packages are asked for; allowed: %d, what they depend on comes by itself", len(c.Packages), MaxPackages)
	}
	if slices.Contains(c.Packages, noPackages) {
		say("packages", "%s stands beside other packages; leave it out", noPackages)
	}
}

// MaxPackages is how many packages a case may ask for by name.
const MaxPackages = 64

// AddPackages has all cases ask for packages beside their own.
func AddPackages(cases []Case, names []string) error {
	for _, n := range names {
		if err := pkgname.Check(n); err != nil {
			return err
		}
	}
	for i := range cases {
		c := &cases[i]
		c.Packages = slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.Packages, names))))
		if len(c.Packages) > MaxPackages {
			return fmt.Errorf("case %s: %d packages; allowed: %d, what they depend on comes by itself", c.Name, len(c.Packages), MaxPackages)
		}
	}
	return nil
}

func packagesText(names []string) string { return "[" + strings.Join(names, ", ") + "]" }
