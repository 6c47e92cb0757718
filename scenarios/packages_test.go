package scenarios

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestPackages(t *testing.T) {
	const head = "name: x\nstrategy: linear\n"
	for _, x := range []struct {
		file, flags string
		want        string // the cases' packages
		err         string
	}{
		{"", "", "default: []", ""},
		{"packages: irqbalance\n", "", "default: [irqbalance]", ""},
		{"packages: [irqbalance, bash, irqbalance]\n", "", "default: [bash irqbalance]", ""}, // a set
		{"packages: [bash]\ncases: {a: {}, b: {packages: [dash]}, c: {packages: none}}\n", "", "a: [bash] b: [dash] c: []", ""},
		{"packages: [bash]\ncases: {a: {}, c: {packages: none}}\n", "ethtool bash", "a: [bash ethtool] c: [bash ethtool]", ""},
		{"packages: [bash, none]\n", "", "", "packages: none stands beside other packages"},
		{"packages: [bash:arm64]\n", "", "", "packages.0: \"bash:arm64\" asks for the architecture arm64"},
		{"packages: -y\n", "", "", "is no name of a Debian package"},
		{"packages: {bash: 1}\n", "", "", "packages"},
		{"packages: []\n", "", "", "packages"},
		{"packages: [" + many65() + "]\n", "", "", "65 packages are asked for; allowed: 64"},
		{"", many65(), "", "65 packages; allowed: 64"},
		{"", "bash=5", "", "asks for version 5"},
	} {
		got, err := packagesOf(head+x.file, strings.Fields(strings.ReplaceAll(x.flags, ",", " ")))
		switch {
		case x.err != "":
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%q with %.20q: %v, want %q", x.file, x.flags, err, x.err)
			}
		case err != nil || got != x.want:
			t.Errorf("%q with %q: %q, %v; want %q", x.file, x.flags, got, err, x.want)
		}
	}
}

// many65 are more packages than a case may have.
func many65() string {
	var names []string
	for i := range MaxPackages + 1 {
		names = append(names, fmt.Sprintf("lib%d", i))
	}
	return strings.Join(names, ", ")
}

func packagesOf(file string, flags []string) (string, error) {
	s, err := Load("f.yaml", []byte(file))
	if err != nil {
		return "", err
	}
	cases, _, err := s.Plan(Overrides{})
	if err == nil && len(flags) > 0 {
		err = AddPackages(cases, flags)
	}
	if err != nil {
		return "", err
	}
	var out []string
	for _, c := range cases {
		name := c.Name
		if name == c.Strategy {
			name = "default"
		}
		out = append(out, fmt.Sprintf("%s: %v", name, c.Packages))
	}
	return strings.Join(out, " "), nil
}

// Cases that differ in their packages alone are two, and what is written of one is read again.
func TestPackagesTellCasesApart(t *testing.T) {
	s, err := Load("f.yaml", []byte("name: x\nstrategy: linear\ncases: {a: {packages: [bash, dash]}, b: {}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	cases, _, err := s.Plan(Overrides{Kernels: []string{"debian:6.18"}})
	if err != nil || len(cases) != 2 || cases[0].Setup() == cases[1].Setup() {
		t.Fatalf("%d cases, %v; want two that differ", len(cases), err)
	}
	again, err := Load("again.yaml", Write(&cases[0], nil, []Line{{Step: Step{Verb: VerbProbe}}}))
	if err != nil || !slices.Equal(again.cases[0].Packages, cases[0].Packages) {
		t.Errorf("written and read again: %v, want %v", err, cases[0].Packages)
	}
}
