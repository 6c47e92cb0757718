package scenarios

import (
	"slices"
	"strings"
	"testing"

	"irqlab/scenarios/shape"
)

func TestParseCmdline(t *testing.T) {
	for _, tc := range []struct {
		text string
		want []string
		err  string
	}{
		{"", nil, ""},
		{"none", nil, ""},
		{"nosmt", []string{"nosmt"}, ""},
		{" isolcpus=managed_irq,domain,2-3\tirqaffinity=0-1\nnohz_full=2-3 ", []string{"isolcpus=managed_irq,domain,2-3", "irqaffinity=0-1", "nohz_full=2-3"}, ""},
		{`dyndbg="file a.c +p" x`, []string{`dyndbg="file a.c +p"`, "x"}, ""},
		{`dyndbg="file a.c`, nil, "not closed"},
		{"x=é", nil, "no kernel parameter has"},
		{"x=\x01", nil, "no kernel parameter has"},
		{strings.Repeat("x ", MaxCmdline), nil, "too many"},
		{"nosmt console=ttyS1", nil, "console=ttyS1 is not to be changed: the lab reads"},
		{"quiet", nil, "quiet is not to be changed"},
		{`"quiet"`, nil, "is not to be changed"},
		{"panic=0", nil, "is to end at once"},
		{"rdinit=/bin/sh", nil, "first program"},
		{"vfio-iommu-type1.allow-unsafe-interrupts=0", nil, "driver vfio needs it"},
		{"intel_iommu=off", nil, "--irqchip"},
		{"a -- b", nil, "the agent's"},
		{"panic_on_oops=1 consoleblank=0", []string{"panic_on_oops=1", "consoleblank=0"}, ""},
	} {
		got, err := ParseCmdline(tc.text)
		if tc.err == "" && (err != nil || !slices.Equal(got, tc.want)) || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%q: %q, %v, want %q, %q", tc.text, got, err, tc.want, tc.err)
		}
	}
}

func FuzzParseCmdline(f *testing.F) {
	f.Add(`a "b c"=d none`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCmdline(text)
		if err != nil {
			return
		}
		again, err := ParseCmdline(c.String())
		if err != nil || !slices.Equal(again, c) {
			t.Errorf("%q: %q, then %q, %v", text, c, again, err)
		}
	})
}

func TestCPUsThatSleep(t *testing.T) {
	for _, tc := range []struct{ shape, cmdline, asleep, missing string }{
		{"cores=2,threads=2", "", "", ""},
		{"cores=2,threads=2", "threadirqs", "", ""},
		{"cores=2,threads=2", "nosmt", "1,3", ""},
		{"cores=2,threads=2", "nosmt=force", "1,3", ""},
		{"cores=4,threads=1", "nosmt", "", ""},
		{"cores=2,threads=2", "maxcpus=3", "3", ""},
		{"cores=2,threads=2", "maxcpus=0", "1-3", ""},
		{"cores=2,threads=2", "maxcpus=9", "", ""},
		{"cores=2,threads=2", "nosmp", "1-3", ""},
		{"cores=2,threads=2", "nr_cpus=3", "3", "3"},
		{"cores=2,threads=2", "possible_cpus=3 nosmt", "1,3", "3"},
	} {
		s, err := shape.ParseShape(tc.shape)
		if err != nil {
			t.Fatal(err)
		}
		c, err := ParseCmdline(tc.cmdline)
		if err != nil {
			t.Fatal(err)
		}
		if asleep, missing := c.asleep(s); asleep.String() != tc.asleep || missing.String() != tc.missing {
			t.Errorf("%s, %s: %s asleep, %s missing, want %s, %s", tc.shape, tc.cmdline, asleep, missing, tc.asleep, tc.missing)
		}
	}
}

// What counts from the online CPUs follows the command line.
func TestCmdlineOfCases(t *testing.T) {
	load := func(text string) (*Scenario, error) { return Load("x.yaml", []byte("name: x\ndriver: mana\n"+text)) }
	for text, want := range map[string]string{
		"cmdline: quiet\n":                                "x.yaml:3:10: cmdline: quiet is not to be changed",
		"cmdline: nosmt\noffline: 1\n":                    `x.yaml:4:10: offline: CPU 1 is not brought up with "nosmt"; allowed: CPUs of 2`,
		"cmdline: nosmt\npressure: [x]\n":                 "x.yaml:4:12: pressure.0",
		"cmdline: [none, nosmt, quiet]\n":                 "x.yaml:3:24: cmdline.2: quiet",
		"cmdline: {nosmt: true}\n":                        "want a single value",
		"cmdline: nr_cpus=2\nsteps: [probe, online: 3]\n": "CPU 3 is unplugged",
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	s, err := load("cmdline: [none, nosmt, nosmt threadirqs]\n")
	if err != nil {
		t.Fatal(err)
	}
	cases, _, err := s.Plan(Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		name    string
		vectors int
	}{{"no-cmdline", 5}, {"nosmt", 3}, {"nosmt+threadirqs", 3}} {
		if c := cases[i]; c.Name != want.name || c.Vectors != want.vectors {
			t.Errorf("case %d: %s, %d vectors, want %v", i, c.Name, c.Vectors, want)
		}
	}
	s, err = load("vectors: 5\nexpect: {settled: {clustered: false}}\n")
	if err != nil {
		t.Fatal(err)
	}
	if cases, _, err = s.Plan(Overrides{Cmdlines: []Cmdline{{"nosmt"}}}); err != nil || len(cases) != 1 || cases[0].Judges() || len(cases[0].Booted()) != 2 {
		t.Fatalf("%+v, %v", cases, err)
	}
	if cases, _, err = s.Plan(Overrides{Cmdlines: []Cmdline{nil}}); err != nil || !cases[0].Judges() {
		t.Errorf("what the case has anyway takes nothing away: %+v, %v", cases, err)
	}
	written := Write(&Case{Scenario: "x", Driver: DriverMana, Kernel: "debian:7.3", Shape: shape.Default(), Vectors: 5, Irqchip: IrqchipMSI, Cmdline: Cmdline{"nosmt", `a="b c"`}}, nil, nil)
	if !strings.Contains(string(written), "cmdline: ") {
		t.Errorf("%s", written)
	}
}
