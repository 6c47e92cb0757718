package scenarios

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestLoadErrors(t *testing.T) {
	for _, tc := range []struct {
		what string
		yaml string
		want []string // whole lines
	}{
		{"unknown key", "name: x\nstratgy: linear\n", []string{
			`f.yaml:2:1: stratgy: unknown key; allowed: name, title, question, text, source, kernel-bound, kernel, shape, strategy, driver, vectors, device-node, irqchip, ` +
				`pressure, packages, cmdline, offline, files, steps, expect, cases; did you mean "strategy"?`}},
		{"unknown strategy", "name: x\nstrategy: linaer\n", []string{
			`f.yaml:2:11: strategy: unknown strategy "linaer"; allowed: numa-aware, linear, mana-7.2, unset, all-online, local-spread, siblings, node, spread, single, masks:CPUS/CPUS/…, script:FILE ARGS; did you mean "linear"?`}},
		{"unknown strategy in a list", "name: x\nstrategy:\n  - linear\n  - xyzzy\n", []string{
			`f.yaml:4:5: strategy.1: unknown strategy "xyzzy"; allowed: numa-aware, linear, mana-7.2, unset, all-online, local-spread, siblings, node, spread, single, masks:CPUS/CPUS/…, script:FILE ARGS`}},
		{"unknown key in a case", "name: x\ncases:\n  a:\n    strategy: linear\n    expect:\n      settled:\n        queue: [0]\n", []string{
			`f.yaml:7:9: cases.a.expect.settled.queue: unknown key; allowed: online, vectors, hwc, queues, hwc-mask, queue-masks, queue-hints, clustered, ` +
				`idle-cpus, unused, own-cpu, queues-within, pending, dropped, offline-cpus; did you mean "queues"?`}},
		{"unknown label", "name: x\nstrategy: linear\nexpect: {setled: {hwc: 0}}\n", []string{
			`f.yaml:3:10: expect.setled: unknown key; allowed: branch, log, settled; did you mean "settled"?`}},
		{"several at once, in the file's order", "name: x\ndriver: vfoi\nvectors: many\nirqchip: msx\n", []string{
			`f.yaml:2:9: driver: unknown driver "vfoi"; allowed: vfio, mana; did you mean "vfio"?`,
			`f.yaml:3:10: vectors: "many" is no vector count; allowed: 1 to 2048, or online+N, online-N`,
			`f.yaml:4:10: irqchip: unknown irqchip "msx"; allowed: msi, remapped; did you mean "msi"?`}},
		{"no name", "strategy: linear\n", []string{`f.yaml:1:1: name: the scenario has no name; add name: WORD`}},
		{"bad name", "name: Low VCPU\nstrategy: linear\n", []string{`f.yaml:1:7: name: "Low VCPU" is ` + nameProblem}},
		{"bad case name", "name: x\nstrategy: linear\ncases: {../a: {}}\n", []string{`f.yaml:3:9: cases.../a: ` + nameProblem}},
		{"no strategy", "name: x\ncases:\n  a: {vectors: 3}\n", []string{
			`f.yaml:1:1: strategy: driver vfio needs a strategy; allowed: numa-aware, linear, mana-7.2, unset, all-online, local-spread, siblings, node, spread, single, masks:CPUS/CPUS/…, script:FILE ARGS`}},
		{"strategy with mana", "name: x\ndriver: mana\nstrategy: linear\n", []string{
			`f.yaml:3:11: strategy: driver mana spreads its vectors itself, so linear cannot be applied; leave strategy out, or use driver vfio`}},
		{"no value", "name: x\nstrategy:\n", []string{`f.yaml:2:1: strategy: no value is given`}},
		{"impossible shape", "name: x\nstrategy: linear\nshape: cores=2,nodes=3\n", []string{
			`f.yaml:3:8: shape: shape "cores=2,nodes=3": nodes=3 is impossible with 2 cores: a node holds at least one whole core; allowed: 1 to 2`}},
		{"vectors out of range", "name: x\nstrategy: linear\nvectors: [0, 2049]\n", []string{
			`f.yaml:3:11: vectors.0: "0" is no vector count; allowed: 1 to 2048, or online+N, online-N`,
			`f.yaml:3:14: vectors.1: "2049" is no vector count; allowed: 1 to 2048, or online+N, online-N`}},
		{"relative vectors out of range", "name: x\nstrategy: linear\nvectors: online-4\n", []string{`f.yaml:3:10: vectors: 0 vectors are impossible; allowed: 1 to 2048`}},
		{"CPU 0 offline", "name: x\nstrategy: linear\noffline: 0-1\n", []string{`f.yaml:3:10: offline: CPU 0 cannot be taken offline; allowed: CPUs of 1-3`}},
		{"offline outside the shape", "name: x\nstrategy: linear\ncases:\n  a:\n    offline: 3-5\n", []string{
			`f.yaml:5:14: cases.a.offline: CPUs 4-5 are not in the shape, which has CPUs 0-3`}},
		{"device node", "name: x\nstrategy: linear\ndevice-node: 1\n", []string{`f.yaml:3:14: device-node: node 1 is not in the shape; allowed: none, 0`}},
		{"device node word", "name: x\nstrategy: linear\ndevice-node: nil\n", []string{`f.yaml:3:14: device-node: "nil" is no node; allowed: a node number, or none`}},
		{"pressure kind", "name: x\nstrategy: linear\npressure:\n  - nvme:queues=4\n  - nmve:queues=4\n", []string{
			`f.yaml:5:5: pressure.1: pressure "nmve:queues=4": unknown kind "nmve"; allowed: nvme, virtio-blk, vectors; did you mean "nvme"?`}},
		{"pressure on an offline CPU", "name: x\nstrategy: linear\noffline: 3\npressure: vectors:before=hwc,cpu0-3=1\n", []string{
			`f.yaml:4:11: pressure: "vectors:before=hwc,cpu0-3=1": CPU 3 is not online; allowed: 0-2`}},
		{"too high a level", "name: x\ndriver: mana\npressure: vectors:before=hwc,cpu0=191\n", []string{
			`f.yaml:3:11: pressure.0: pressure "vectors:before=hwc,cpu0=191": cpu0=191 is out of range; allowed: 0 to 190; or full`}},
		{"two entries for a moment", "name: x\nstrategy: linear\npressure: [\"vectors:before=hwc,cpu0=1\", \"vectors:before=hwc,cpu1=1\"]\n", []string{
			`f.yaml:3:41: pressure.1: pressure "vectors:before=hwc,cpu1=1": there is an entry with before=hwc already; put all CPUs into one`}},
		{"too few queues expected", "name: x\nstrategy: linear\nvectors: 5\nexpect: {settled: {queues: [0, 1]}}\n", []string{
			`f.yaml:4:20: expect.settled.queues: 2 queue vectors are listed, but 5 vectors make 4 of them beside the HWC`}},
		{"expected CPU outside", "name: x\nstrategy: linear\nexpect: {settled: {hwc: 9}}\n", []string{`f.yaml:3:25: expect.settled.hwc: CPU 9 is not in the shape; allowed: 0-3`}},
		{"branch of another strategy", "name: x\nstrategy: linear\nexpect: {branch: numa-aware}\n", []string{
			`f.yaml:3:18: expect.branch: strategy linear has no branch "numa-aware"; allowed: "linear"`}},
		{"branch of no driver", "name: x\ndriver: mana\nexpect: {branch: all-online}\n", []string{
			`f.yaml:3:18: expect.branch: no driver has a branch "all-online"; allowed: "numa-aware", "numa-aware, first group skipped", "linear", "local-spread", "unset"`}},
		{"too many queues expected of a driver", "name: x\ndriver: mana\nvectors: 3\nexpect: {settled: {queue-masks: [0, 1, 2]}}\n", []string{
			`f.yaml:4:20: expect.settled.queue-masks: 3 queue vectors are listed, but 3 vectors make 2 of them beside the HWC`}},
		{"a negative number", "name: x\ndriver: mana\nexpect: {settled: {unused: -1}}\n", []string{`f.yaml:3:28: expect.settled.unused: "-1" is no number`}},
		{"a rule", "name: x\nstrategy: linear\nexpect: {log: dirty}\n", []string{`f.yaml:3:15: expect.log: unknown rule "dirty"; allowed: clean, any`}},
		{"bool", "name: x\nstrategy: linear\nexpect: {settled: {clustered: maybe}}\n", []string{
			`f.yaml:3:31: expect.settled.clustered: "maybe" is neither; allowed: true, false`}},
		{"wrong kind", "name: x\nstrategy: {a: b}\n", []string{`f.yaml:2:12: strategy.a: unknown key; allowed: script, args, masks`}},
		{"masks that are no list", "name: x\nstrategy: {masks: 0-3}\n", []string{`f.yaml:2:19: strategy.masks: want a list, got a string`}},
		{"no mask", "name: x\nvectors: 1\nstrategy: {masks: []}\n", []string{`f.yaml:3:12: strategy.masks: no mask is given; there must be one for each queue vector`}},
		{"no key beside strategy", "name: x\nstrategy: {}\n", []string{`f.yaml:2:1: strategy.masks: no mask is given; there must be one for each queue vector`}},
		{"an empty mask", "name: x\nvectors: 3\nstrategy: {masks: [0, '']}\n", []string{`f.yaml:3:23: strategy.masks.1: names no CPU; the kernel takes no empty mask`}},
		{"a mask that is none", "name: x\nvectors: 3\nstrategy: {masks: [0, x]}\n", []string{`f.yaml:3:23: strategy.masks.1: CPU list "x": "x" is not a CPU number`}},
		{"too few masks", "name: x\nvectors: 4\nstrategy: {masks: [0, 1]}\n", []string{
			`f.yaml:3:1: strategy: 2 masks are given, but 4 vectors make 3 queue vectors beside the HWC; give exactly one mask for each of them`}},
		{"too many masks, in one word", "name: x\nvectors: 2\nstrategy: masks:0/1\n", []string{
			`f.yaml:3:11: strategy: 2 masks are given, but 2 vectors make 1 queue vectors beside the HWC; give exactly one mask for each of them`}},
		{"masks outside the shape", "name: x\nvectors: 3\nstrategy: [linear, {masks: [0-4, 7]}]\n", []string{
			`f.yaml:3:1: strategy: mask 0: CPU 4 is not in the shape, which has CPUs 0-3; mask 1: CPU 7 is not in the shape, which has CPUs 0-3`}},
		{"masks with driver mana", "name: x\ndriver: mana\nvectors: 2\nstrategy: {masks: [0]}\n", []string{
			`f.yaml:4:1: strategy: driver mana spreads its vectors itself, so masks:0 cannot be applied; leave strategy out, or use driver vfio`}},
		{"an empty mask in one word", "name: x\nvectors: 3\nstrategy: masks:0/\n", []string{`f.yaml:3:11: strategy: mask 1 names no CPU; the kernel takes no empty mask`}},
		{"wrong kind, list", "name: [x]\nstrategy: linear\n", []string{`f.yaml:1:1: name: want a single value, got a list`}},
		{"wrong kind, root", "- a\n", []string{`f.yaml:1:1: want keys with values, got a list`}},
		{"alias", "name: &n x\nstrategy: linear\n", []string{`f.yaml:1:1: name: want a single value, got an anchor or alias, which scenarios do not use`}},
		{"too many cases", "name: x\nstrategy: linear\nvectors: [" + strings.Repeat("5,", 4096) + "5]\n", []string{
			`f.yaml:1:1: cases: the lists multiply to more than 4096 cases`}},
		{"empty", "# nothing\n", []string{"f.yaml:1:1: the file is empty"}},
		{"two documents", "name: x\nstrategy: linear\n---\nname: y\n", []string{`f.yaml:4:5: a second document; a file holds one scenario`}},
		{"nested brackets", "name: x\nvectors: " + strings.Repeat("[", 101), []string{"f.yaml:2:1: nested more than 100 deep"}},
		{"nested braces", "name: x\ncases: " + strings.Repeat("{a: ", 101), []string{"f.yaml:2:1: nested more than 100 deep"}},
		{"nested dashes", strings.Repeat("- ", 101), []string{"f.yaml:1:1: nested more than 100 deep"}},
		{"too large", "#" + strings.Repeat("x", MaxFile), []string{"f.yaml:1:1: the file is longer than the 65536 bytes allowed"}},
		{"not UTF-8", "name: x\ntitle: caf\xe9\n", []string{"f.yaml:2:11: byte 0xe9 is not UTF-8, which a scenario is written in"}},
		{"UTF-16", "\xff\xfen\x00a\x00", []string{"f.yaml:1:1: byte 0xff is not UTF-8, which a scenario is written in"}},
		{"binary", "name: x\x00\x7f", []string{"f.yaml:1:8: the control character U+0000, which no YAML file may have"}},
		{"escape in a key", "name: x\n\"\\e[31m\": 1\n", []string{
			`f.yaml:2:1: \x1b[31m: unknown key; allowed: name, title, question, text, source, kernel-bound, kernel, shape, strategy, driver, vectors, device-node, irqchip, pressure, packages, cmdline, offline, files, steps, expect, cases`}},
		{"number as a file", "42\n", []string{"f.yaml:1:1: want keys with values, got an integer"}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			_, err := Load("f.yaml", []byte(tc.yaml))
			if err == nil {
				t.Fatal("accepted")
			}
			if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, tc.want) {
				t.Errorf("got\n %s\nwant\n %s", strings.Join(got, "\n "), strings.Join(tc.want, "\n "))
			}
			var one *Error
			if !errors.As(err, &one) || one.Line < 1 || one.Column < 1 {
				t.Errorf("no position: %+v", one)
			}
		})
	}
}

func TestLoadDialects(t *testing.T) {
	for what, yaml := range map[string]string{
		"byte order mark": "\ufeffname: x\nstrategy: linear\n",
		"CRLF":            "name: x\r\nstrategy: linear\r\n",
		"directive":       "%YAML 1.2\n---\nname: x\nstrategy: linear\n",
		"end marker":      "---\nname: x\nstrategy: linear\n...\n",
		"no last newline": "name: x\nstrategy: linear",
	} {
		s, err := Load("f.yaml", []byte(yaml))
		if err != nil {
			t.Errorf("%s: %v", what, err)
		} else if s.Name != "x" || len(s.cases) != 1 || s.cases[0].Strategy != "linear" {
			t.Errorf("%s: %+v", what, s)
		}
	}
}

// TestSlug makes sure that a case's name is one path element whatever it is made of.
func TestSlug(t *testing.T) {
	long := strings.Repeat("1,3,", 200)
	for name, want := range map[string]string{
		"linear":           "linear",
		"numa-aware/busy":  "numa-aware_busy",
		"unset/..":         "unset_",
		"..":               "case",
		"x/debian:7.3+deb": "x_debian_7.3+deb",
	} {
		if got := (&Case{Name: name}).Slug(); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	a, b := (&Case{Name: "a/" + long}).Slug(), (&Case{Name: "a/" + long + "2"}).Slug()
	if len(a) > 255 || a == b {
		t.Errorf("%q and %q: want two different file names", a, b)
	}
}

// TestLoadSyntaxErrors asks only for the position: the words are the YAML parser's.
func TestLoadSyntaxErrors(t *testing.T) {
	for yaml, at := range map[string]string{
		"name: x\nname: y\n":               "f.yaml:2:1: not YAML: ",
		"name: x\nstrategy: [linear\n":     "f.yaml:2:11: not YAML: ",
		"name: x\n  strategy: linear\n":    "f.yaml:",
		"name: x\nstrategy: linear\n\t- a": "f.yaml:",
	} {
		if _, err := Load("f.yaml", []byte(yaml)); err == nil || !strings.HasPrefix(err.Error(), at) {
			t.Errorf("%q: %v, want %s…", yaml, err, at)
		}
	}
}

func TestExpand(t *testing.T) {
	for _, tc := range []struct {
		what, yaml string
		want       string
	}{
		{"defaults", "name: x\nstrategy: linear\n", "linear: linear vfio 1x2x2 5 node 0 msi [] off [] debian:7.3"},
		{"driver mana", "name: x\ndriver: mana\n", "mana:  mana 1x2x2 5 node 0 msi [] off [] debian:7.3"},
		{"strategies x vectors", "name: x\nstrategy: [linear, unset]\nvectors: [3, online]\n",
			"linear/3-vectors: linear vfio 1x2x2 3 node 0 msi [] off [] debian:7.3\n" +
				"linear/online-vectors: linear vfio 1x2x2 4 node 0 msi [] off [] debian:7.3\n" +
				"unset/3-vectors: unset vfio 1x2x2 3 node 0 msi [] off [] debian:7.3\n" +
				"unset/online-vectors: unset vfio 1x2x2 4 node 0 msi [] off [] debian:7.3"},
		{"profiles, and a case that overrides", "name: x\nstrategy: linear\npressure: {none: none, disk: nvme:queues=2}\ncases:\n" +
			"  a: {vectors: 2}\n  b: {pressure: none, offline: '3', kernel: [debian:6.18, /boot/vmlinuz-1]}\n",
			"a/none: linear vfio 1x2x2 2 node 0 msi [] off [] debian:7.3\n" +
				"a/disk: linear vfio 1x2x2 2 node 0 msi [nvme:queues=2] off [] debian:7.3\n" +
				"b/debian:6.18: linear vfio 1x2x2 4 node 0 msi [] off [3] debian:6.18\n" +
				"b/vmlinuz-1: linear vfio 1x2x2 4 node 0 msi [] off [3] /boot/vmlinuz-1"},
		{"words with colons in braces", "name: x\ncases: {a: {strategy: linear, kernel: [debian:6.18, debian:trixie], pressure: [nvme:queues=1]}}\n",
			"a/debian:6.18: linear vfio 1x2x2 5 node 0 msi [nvme:queues=1] off [] debian:6.18\n" +
				"a/debian:trixie: linear vfio 1x2x2 5 node 0 msi [nvme:queues=1] off [] debian:trixie"},
		{"everything", "name: x\nstrategy: linear\nshape: ['cores=1,threads=1', 'sockets=2,nodes=2']\ndevice-node: [none, 0]\nirqchip: [msi, remapped]\nvectors: 2\n",
			"1x1x1/node-none/msi: linear vfio 1x1x1 2 node -1 msi [] off [] debian:7.3\n" +
				"1x1x1/node-none/remapped: linear vfio 1x1x1 2 node -1 remapped [] off [] debian:7.3\n" +
				"1x1x1/node-0/msi: linear vfio 1x1x1 2 node 0 msi [] off [] debian:7.3\n" +
				"1x1x1/node-0/remapped: linear vfio 1x1x1 2 node 0 remapped [] off [] debian:7.3\n" +
				"2x2x2-2nodes/node-none/msi: linear vfio 2x2x2 2 node -1 msi [] off [] debian:7.3\n" +
				"2x2x2-2nodes/node-none/remapped: linear vfio 2x2x2 2 node -1 remapped [] off [] debian:7.3\n" +
				"2x2x2-2nodes/node-0/msi: linear vfio 2x2x2 2 node 0 msi [] off [] debian:7.3\n" +
				"2x2x2-2nodes/node-0/remapped: linear vfio 2x2x2 2 node 0 remapped [] off [] debian:7.3"},
		{"masks, in either form", "name: x\nvectors: 3\nstrategy: [linear, {masks: [0, '2-3,1']}, masks:1/0-1]\n",
			"linear: linear vfio 1x2x2 3 node 0 msi [] off [] debian:7.3\nmasks:0/1-3: masks:0/1-3 vfio 1x2x2 3 node 0 msi [] off [] debian:7.3\nmasks:1/0-1: masks:1/0-1 vfio 1x2x2 3 node 0 msi [] off [] debian:7.3"},
		{"same value twice", "name: x\nstrategy: [linear, linear]\n", "linear: linear vfio 1x2x2 5 node 0 msi [] off [] debian:7.3\nlinear-2: linear vfio 1x2x2 5 node 0 msi [] off [] debian:7.3"},
		{"a case may go to the kernel's driver", "name: x\nstrategy: linear\ncases:\n  a: {}\n  b: {driver: mana}\n",
			"a: linear vfio 1x2x2 5 node 0 msi [] off [] debian:7.3\nb:  mana 1x2x2 5 node 0 msi [] off [] debian:7.3"},
	} {
		s, err := Load("f.yaml", []byte(tc.yaml))
		if err != nil {
			t.Errorf("%s: %v", tc.what, err)
			continue
		}
		if got := listing(s.cases); got != tc.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tc.what, got, tc.want)
		}
	}
}

func listing(cases []Case) string {
	var lines []string
	for _, c := range cases {
		lines = append(lines, fmt.Sprintf("%s: %s %s %dx%dx%d %d node %d %s %v off [%s] %s",
			c.Name, c.Strategy, c.Driver, c.Shape.Sockets, c.Shape.Cores, c.Shape.Threads, c.Vectors, c.DeviceNode, c.Irqchip, c.Pressure.Strings(), c.Offline, c.Kernel))
	}
	return strings.Join(lines, "\n")
}

func TestExpectationsMerge(t *testing.T) {
	s, err := Load("f.yaml", []byte("name: x\nstrategy: linear\nexpect:\n  log: any\n  settled: {hwc: 0, clustered: false}\ncases:\n  a: {}\n  b: {expect: {branch: linear, settled: {hwc: '1', idle-cpus: ''}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		`{"log":"any","settled":{"hwc":"0","clustered":false}}`,
		`{"branch":"linear","log":"any","settled":{"hwc":"1","clustered":false,"idle-cpus":""}}`,
	} {
		if got := describe(s.cases[i].Expect); got != want {
			t.Errorf("case %s expects %s, want %s", s.cases[i].Name, got, want)
		}
	}
}

func TestVectorCount(t *testing.T) {
	for text, want := range map[string]string{"5": "5", "online": "online", "online+1": "online+1", "online-2": "online-2", "online+0": "online",
		"0": "", "-1": "", "+1": "", "online1": "", "online+": "", "online+9999": "", "2048": "2048", "2049": "", "0x5": "", "": ""} {
		var v VectorCount
		err := v.UnmarshalText([]byte(text))
		if (err == nil) != (want != "") {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got, _ := v.MarshalText(); err == nil && string(got) != want {
			t.Errorf("%q written back: %s, want %s", text, got, want)
		}
	}
	if n := (VectorCount{Online: true, N: 1}).Of(5); n != 6 {
		t.Errorf("online+1 of 5 = %d", n)
	}
}

func FuzzLoad(f *testing.F) {
	for _, name := range slices.Concat(Shipped(), Faults()) {
		data, err := Source(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("name: x\nstrategy: [linear, unset]\npressure: {a: none, b: ['nvme:queues=4']}\nexpect: {log: any, settled: {queues: [0]}}\n"))
	f.Add([]byte("name: &a x\ncases: *a\n<<: {}\n---\n"))
	f.Add([]byte("? [a]\n: !!binary |\n  x\n"))
	f.Add([]byte(manaHead + "  - {hold: {at: request:QUERY_DEV_CONFIG, nth: 2, as: a}}\n  - probe: {wait: false}\n  - together: [[{wait-for: {held: a, within: 5s}}, release: a], [sleep: 1s]]\n" +
		"  - offline: 3\n    refused: busy\n  - observe: x\n  - expect: {queues: [0], log: 'a+', counted: {step: smc:establish, is: 1}}\n"))
	f.Add([]byte(vfioHead + "  - probe:\n  - vectors\n  - fire: {vectors: 0-3, rounds: 2}\n  - storm: {offline: 2-3, rounds: 9}\n  - alter: {at: config-write@0x4, offset: 0, size: 2, value: 0x7}\n" +
		"  - unplug: 3\n  - replug: 3\n  - online: 3\n  - observe: a\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Load("f.yaml", data)
		if err != nil {
			var errs Errors
			if !errors.As(err, &errs) || len(errs) == 0 {
				t.Fatalf("%v is no Errors", err)
			}
			for _, e := range errs {
				if e.Line < 1 || e.Column < 0 || e.Problem == "" {
					t.Fatalf("%+v", e)
				}
			}
			return
		}
		cases, _, err := s.Plan(Overrides{})
		if err != nil || len(cases) == 0 {
			t.Fatalf("a valid scenario plans to %d cases: %v", len(cases), err)
		}
		slugs := map[string]bool{}
		for _, c := range cases {
			if slugs[c.Slug()] || strings.ContainsAny(c.Slug(), "/\\ ") || c.Slug() == ".." || c.Slug() == "." {
				t.Fatalf("slug %q of case %q", c.Slug(), c.Name)
			}
			slugs[c.Slug()] = true
			if c.Vectors < 1 || c.Shape.Validate() != nil || !c.Offline.Within(c.Shape.Topology(nil).Online) {
				t.Fatalf("impossible case %+v", c)
			}
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	data, err := Source("alternatives")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Load("f.yaml", data); err != nil {
			b.Fatal(err)
		}
	}
}
