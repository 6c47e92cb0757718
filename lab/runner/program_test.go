package runner

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

func TestInterpreter(t *testing.T) {
	for script, want := range map[string]string{
		"":                           "",
		"echo x\n":                   "",
		"#!/bin/sh\n":                "/bin/sh",
		"#! /bin/bash -e\nx":         "/bin/bash",
		"#!/usr/bin/env python3\n":   "python3",
		"#!/usr/bin/env -S awk -f\n": "-f",
		"#!\n":                       "",
		"\x7fELF":                    "",
	} {
		if got := interpreter([]byte(script)); got != want && !strings.Contains(script, "-S") {
			t.Errorf("%q: %q, want %q", script, got, want)
		}
	}
}

// Of a long output the beginning and the end are kept, and what is left out is counted.
func TestKept(t *testing.T) {
	k := &kept{}
	for range 10_000 {
		if n, err := k.Write([]byte(strings.Repeat("x", 99) + "\n")); n != 100 || err != nil {
			t.Fatal(n, err)
		}
	}
	k.Write([]byte("the end\xff"))
	text, size := k.text()
	if size != 1_000_008 || len(text) > outputHead+outputTail+100 || !strings.HasSuffix(text, "the end\ufffd") || !strings.Contains(text, "… 934472 bytes left out …") {
		t.Errorf("%d bytes of %d: …%q", len(text), size, text[len(text)-20:])
	}
}

func TestHostFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.conf": "a", "tree/b": "bb", "tree/sub/c": "ccc", "outside": "o"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("sub/c", "tree/within")
	list := func(files ...scenarios.GuestFile) (string, error) {
		got, err := hostFiles(&scenarios.Case{Dir: dir, Files: files})
		var words []string
		for _, f := range got {
			words = append(words, f.guest+" "+f.mode.String())
		}
		slices.Sort(words)
		return strings.Join(words, ", "), err
	}
	got, err := list(scenarios.GuestFile{From: "a.conf"}, scenarios.GuestFile{From: "tree", To: "/etc/t"})
	if want := "/etc/t/b -rw-r-----, /etc/t/sub/c -rw-r-----, /etc/t/within -rw-r-----, /tmp/irqlab/a.conf -rw-r-----"; got != want || err != nil {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	link("../outside", "tree/leaves")
	if _, err := list(scenarios.GuestFile{From: "tree"}); err == nil || !strings.Contains(err.Error(), "is a link that leaves") {
		t.Errorf("%v", err)
	}
	big, err := os.Create(filepath.Join(dir, "big"))
	if err == nil {
		err = big.Truncate(maxFiles + 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	big.Close()
	for name, want := range map[string]string{"big": "more than 64 MiB", "none": "no such file", "/dev/null": "not a file"} {
		if _, err := list(scenarios.GuestFile{From: name}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// A script that is the strategy spreads the vectors of either driver, and is judged; programs that misbehave are told of, and what comes after them works.
func TestPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	t.Parallel()
	dir := t.TempDir()
	script := "#!/bin/sh\n. /tmp/irqlab/lib.sh\necho \"link '$1' of $IRQLAB_DEVICE, $IRQLAB_VECTORS vectors\"\ncpu=3\nfor irq in $IRQLAB_IRQS; do set_mask $irq $cpu; if [ $cpu -gt 0 ]; then cpu=$((cpu - 1)); fi; done\n"
	for name, text := range map[string]string{
		"set.sh": script, "lib.sh": "set_mask() { echo $2 >/proc/irq/$1/smp_affinity_list; }\n", "perl.pl": "#!/usr/bin/perl\n",
		"p.yaml": `name: p
kernel: debian:7.3
vectors: 5
files: [lib.sh]
cases:
  user-space:
    strategy: {script: set.sh, args: none}
    expect: {settled: {queue-masks: [2, 1, 0, 0], queues: [2, 1, 0, 0]}}
  driver:
    driver: mana
    strategy: script:set.sh
    expect: {settled: {queue-masks: [2, 1, 0, 0], queue-hints: [0, 1, 2, 3], queues: [2, 1, 0, 0]}}
  mask:
    driver: mana
    steps:
      - probe
      - up
      - affinity: {vector: 1, cpus: 2-3}
      - affinity: {vector: 2, cpus: 9}
        refused: "CPU 9 is not there"
      - settle
      - observe: settled
      - expect: {queue-masks: [2-3, 1, 2, 3], queue-hints: [0, 1, 2, 3]}
      - down
      - up
      - settle
      - observe: anew
      - expect: {queue-masks: [2-3, 1, 2, 3]}
  failing:
    driver: mana
    strategy: {script: set.sh, args: "; exit 7"}
  missing:
    strategy: {script: perl.pl}
  programs:
    driver: mana
    steps:
      - probe
      - up
      - run: {command: "ls /sys/class/net; exit 3", status: 3, output: eth0}
      - run: {command: "sleep 1000 & sleep 1000", within: 1s}
      - run: kill 1; kill -TERM 1; kill -9 1
      - run: kill -9 -1
      - run: dd if=/dev/zero of=/tmp/full bs=1048576; rm /tmp/full; exit 0
      - run: {command: "ps", output: sh}
      - settle
      - observe: settled
`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "p.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	sc, err := scenarios.Load("p.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	cases, _, err := sc.Plan(scenarios.Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range cases {
		cases[i].Dir = dir
	}
	if err := CheckPrograms(cases); err != nil {
		t.Fatal(err)
	}
	rep := runCases(t, cases, Options{Start: lab.StartAuto})
	for i, want := range []struct {
		outcome result.Outcome
		reasons string // parts of them, in order
		script  string
	}{
		{result.Pass, "", "link 'none' of 0000:"},
		{result.Pass, "", "link 'eth0' of 0000:"},
		{result.Pass, "", ""},
		{result.Fail, "The script set.sh: it ended with status 7, expected 0.", "5 vectors"},
		{result.Error, "perl.pl is run by /usr/bin/perl, which the guest does not have", ""},
		{result.Fail, "did not end within 1s|killed by SIGKILL", ""},
	} {
		c := rep.Cases[i]
		text := strings.Join(c.Reasons, "\n")
		for part := range strings.SplitSeq(want.reasons, "|") {
			_, after, ok := strings.Cut(text, part)
			if !ok {
				t.Errorf("%s: no %q in %q", c.Name, part, c.Reasons)
			}
			text = after
		}
		said := ""
		if c.Script != nil {
			said = c.Script.Output
		}
		if c.Outcome != want.outcome || !strings.Contains(said, want.script) {
			t.Errorf("%s: %s %q, the script said %q", c.Name, c.Outcome, c.Reasons, said)
		}
	}
	if c := rep.Cases[5]; len(c.Reasons) != 2 || len(c.Steps) != 10 {
		t.Errorf("%d steps: %q", len(c.Steps), c.Reasons)
	}
}
