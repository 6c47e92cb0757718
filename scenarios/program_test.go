package scenarios

import (
	"strings"
	"testing"

	"irqlab/scenarios/result"
)

func TestProgramErrors(t *testing.T) {
	for text, want := range map[string]string{
		"steps: [probe, run: '']":                                  "nothing is to be run",
		"steps: [probe, run]":                                      "run needs an argument",
		"steps:\n  - run: {command: x, script: y}":                 "a command and a script",
		"steps:\n  - run: {command: x, args: y}":                   "args are a script's",
		"steps:\n  - run: {args: y}":                               "nothing is to be run",
		"steps:\n  - run: {comand: x}":                             "did you mean \"command\"?",
		"steps:\n  - run: {command: x, status: 256}":               "allowed: 0 to 255, or any",
		"steps:\n  - run: {command: x, within: 1h}":                "is no duration",
		"steps:\n  - run: {command: x, output: (}":                 "output: ",
		"steps:\n  - run: " + strings.Repeat("x", maxCommand+1):    "put it into a script",
		"strategy: {script: x.sh, masks: [0]}":                     "masks and a script",
		"strategy: {script: ''}":                                   "masks: no mask is given",
		"strategy: {args: x}":                                      "args are a script's",
		"strategy: 'script:'":                                      "no script is named",
		"strategy: linear\nfiles: [x, {from: y, to: /proc/x}]":     "files.1: /proc/x is the guest's own",
		"strategy: linear\nfiles: [{from: y, to: etc/x}]":          "it begins with /",
		"strategy: linear\nfiles: [{from: y, to: /tmp/../bin/sh}]": "is the guest's own",
		"strategy: linear\nfiles: [..]":                            "has no name of its own",
		"strategy: linear\nfiles: [{to: /tmp/x}]":                  "no file is named",
	} {
		if !strings.Contains(text, "strategy") {
			text = "strategy: linear\n" + text
		}
		_, err := Load("x.yaml", []byte("name: x\n"+text+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A script is a strategy whoever drives the function, and any of its own settings stays.
func TestScriptStrategies(t *testing.T) {
	s, err := Load("x.yaml", []byte("name: x\nfiles: [a.conf, {from: /b, to: /etc/b}]\nvectors: 5\ncases:\n  ours: {strategy: {script: set.sh, args: all eth0}}\n  driver: {driver: mana, strategy: 'script:/abs.sh'}\n"))
	if err != nil {
		t.Fatal(err)
	}
	cases, _, err := s.Plan(Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ strategy, file, args string }{{"script:set.sh all eth0", "/dir/set.sh", "all eth0"}, {"script:/abs.sh", "/abs.sh", "$IRQLAB_LINK"}} {
		c := cases[i]
		c.Dir = "/dir"
		if c.Strategy != want.strategy || c.File(c.Script) != want.file || c.Script.Args != want.args || c.Masks != nil || len(c.Programs()) != 1 || c.Files[0].Target() != "/tmp/irqlab/a.conf" {
			t.Errorf("%s: %q, %q, %+v, want %+v", c.Name, c.Strategy, c.File(c.Script), c.Script, want)
		}
	}
	cases, notes, err := mustGet(t, "spread").Plan(Overrides{Strategies: []string{"script:./mine.sh x"}})
	if err != nil || len(cases) == 0 || !strings.Contains(strings.Join(notes, "\n"), "dropped because --strategy") {
		t.Fatalf("%v, %q", err, notes)
	}
	for _, c := range cases {
		c.Dir = "/dir"
		if c.Driver != DriverMana || c.File(c.Script) != "./mine.sh" || !strings.HasSuffix(c.Name, "/mine.sh+x") || c.Judges() {
			t.Errorf("%s: driver %s, %s, judges %t", c.Name, c.Driver, c.File(c.Script), c.Judges())
		}
	}
	cases, _, err = mustGet(t, "low-vcpu").Plan(Overrides{Strategies: []string{"script:a", "linear"}, Drivers: []string{DriverVFIO, DriverMana}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		if (c.Driver == DriverMana) != (c.Strategy == "") {
			t.Errorf("%s: driver %s, strategy %s", c.Name, c.Driver, c.Strategy)
		}
	}
}

func TestProgramIsJudged(t *testing.T) {
	any, three := anyStatus, exitRule(3)
	output := &Pattern{}
	if err := output.UnmarshalText([]byte("^all set")); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		p    Program
		got  *result.Program
		want string // "": nothing
	}{
		{Program{}, nil, "it was not run"},
		{Program{}, &result.Program{}, ""},
		{Program{}, &result.Program{Status: 2, Output: "a\nb\n"}, "status 2, expected 0. It wrote:\na\nb"},
		{Program{}, &result.Program{Signal: "KILL"}, "killed by SIGKILL. It wrote nothing"},
		{Program{}, &result.Program{Late: true}, "did not end within 1m0s"},
		{Program{Status: &any}, &result.Program{Status: 2}, ""},
		{Program{Status: &any}, &result.Program{Late: true}, "did not end"},
		{Program{Status: &three}, &result.Program{Status: 3}, ""},
		{Program{Status: &three}, &result.Program{}, "status 0, expected 3"},
		{Program{Output: output}, &result.Program{Output: "all set\n"}, ""},
		{Program{Output: output}, &result.Program{Output: "not all set\n"}, `does not match "^all set"`},
	} {
		got := strings.Join(tc.p.check("x", tc.got), "; ")
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%+v of %+v: %q, want %q", tc.p, tc.got, got, tc.want)
		}
	}
}
