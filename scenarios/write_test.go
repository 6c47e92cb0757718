package scenarios

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// sameSteps compares steps but for the lines they stand on.
var sameSteps = cmp.Options{
	cmpopts.IgnoreFields(Step{}, "Line"),
	cmp.Comparer(func(a, b *regexp.Regexp) bool { return a == b || a != nil && b != nil && a.String() == b.String() }),
	cmpopts.EquateEmpty(),
}

// Every case there is can be written down, and is read as the same; an editor accepts it, too.
func TestWriteShipped(t *testing.T) {
	schema := compiled(t)
	steps := 0
	for _, name := range slices.Concat(Shipped(), Faults()) {
		sc, err := Get(name)
		if err != nil {
			t.Fatal(err)
		}
		cases, _, err := sc.Plan(Overrides{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cases[:min(len(cases), 12)] {
			lines := make([]Line, len(c.Steps))
			for i := range c.Steps {
				lines[i].Step = c.Steps[i]
				steps++
			}
			if len(lines) == 0 {
				lines = []Line{{Step: Step{Verb: VerbProbe}}}
				c.Steps = []Step{{Verb: VerbProbe, At: "0"}}
			}
			c.Scenario = strings.ReplaceAll(c.Scenario, "/", "-")
			file := Write(&c, []string{"as it was"}, lines)
			again, err := Load("written", file)
			if err != nil {
				t.Fatalf("%s/%s:\n%s\n%v", name, c.Name, file, err)
			}
			if err := schema.Validate(instance(t, file)); err != nil {
				t.Errorf("%s/%s:\n%s\n%v", name, c.Name, file, err)
			}
			planned, _, err := again.Plan(Overrides{})
			if err != nil || len(planned) != 1 {
				t.Fatalf("%s/%s: %d cases, %v", name, c.Name, len(planned), err)
			}
			got := planned[0]
			if d := cmp.Diff(c.Steps, got.Steps, sameSteps); d != "" {
				t.Errorf("%s/%s: -as it was +as written:\n%s\n%s", name, c.Name, d, file)
			}
			c.doing, got.doing = "", "" // which has no place for the words of refused
			if c.Setup() != got.Setup() || c.Kernel != got.Kernel {
				t.Errorf("%s/%s: %s with %s, as written %s with %s", name, c.Name, c.Setup(), c.Kernel, got.Setup(), got.Kernel)
			}
		}
	}
	if steps < 300 {
		t.Errorf("only %d steps were written", steps)
	}
}

// What a person can type can be written, whatever verb it is of.
func TestWriteTyped(t *testing.T) {
	typed := []string{
		"probe", "probe {wait: false}", "run echo a: #b | cat", "affinity vector=1 cpus=2-3", "run {script: x.sh, args: a b, within: 2s, status: any, output: \"^x\"}", "up", "down", "set-channels 2", "load", "unload", "bind", "unbind", "vectors",
		"hold request:QUERY_DEV_CONFIG nth=2", "release window", "end window", "delay response:any for=500ms times=3 as=slow",
		"drop vector:2 from=lab times=always", "duplicate event:completion", "status response:QUERY_DEV_CONFIG status=0xc0000001",
		"alter response:QUERY_DEV_CONFIG field=mtu value=0x10", "alter response:QUERY_DEV_CONFIG offset=8 size=2 value=7",
		"add-interrupt completion:hwc-send vector=3", "post channel-timeout=200", "post unknown=9", "reset-service", "reset",
		"offline 1,3", "online 1", "unplug 3", "replug 3", "fire", "fire vectors=1-2 rounds=3", "settle", "observe before",
		"storm offline=1-2 rounds=3", "expect {online: 0-1, queues: [0, 1], queue-hints: [0, \"\"], log: [a, b], counted: {step: smc:destroy, is: 0}}",
		"read-disks", "read-disks reads=3", "expect {disks: [{masks: [0-1, 2-3], queues: [1, 3], on-node: false, meets: 1}, {}]}", "wait-for held=window", `wait-for {log: "a, b: # {c} \\d+", within: 2m, count: 2}`, "wait-for link=up", "wait-for online=0,2", "sleep 1.5s",
		"remove", "rescan", "hibernate", "suspend", "suspend mode=mem for=3s within=2m",
		"together [[up], [wait-for: {held: window}, release: window]]",
	}
	verbs := map[string]bool{}
	for _, line := range typed {
		step, err := ParseStep(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		verbs[step.Verb] = true
		step.Refused = `"quoted", \d: {x} # y`
		if step.Verb == VerbTogether {
			step.Refused = ""
		}
		var b strings.Builder
		writeSteps(&b, "", []Line{{Step: step, Remark: "a remark\nof two lines"}})
		d := newDecoder("")
		var got stepList
		if root := d.parse([]byte(b.String())); root != nil {
			got.decodeNode(d, root, "steps")
		}
		if len(d.errs) > 0 {
			t.Errorf("%s:\n%s%v", line, &b, d.errs)
		} else if diff := cmp.Diff([]Step{step}, []Step(got), sameSteps); diff != "" {
			t.Errorf("%s:\n%s%s", line, &b, diff)
		}
	}
	for _, v := range Verbs() {
		if !verbs[v.Name] {
			t.Errorf("%s is not among those typed", v.Name)
		}
	}
}

func FuzzScalar(f *testing.F) {
	for _, text := range []string{"", "a", "0x10", "a: b", "request:QUERY_DEV_CONFIG", "- x", "null", "#", "a\nb", "{", "…", "a,b", "'", `"`, "1:2", "~", "\u2028", "<&>", "a:", "=", "@x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		file := []byte("- [" + scalar(text) + "]\n- {k: " + scalar(text) + "}\n- k: " + scalar(text) + "\n")
		if pos, _ := notText([]byte(text)); pos != nil || strings.ContainsAny(text, "\r\u0085\ufeff\ufffd") || nestedTooDeeply(file) > 0 {
			t.Skip("no YAML file has that")
		}
		d := newDecoder("")
		root := d.parse(file)
		if root == nil {
			t.Fatalf("%q: %v", file, d.errs)
		}
		items, _ := d.items(root, "")
		list, _ := d.items(items[0], "")
		if got, ok := scalarText(list[0]); !ok || got != text {
			t.Errorf("in a list %q: %q", text, got)
		}
		for _, item := range items[1:] {
			pairs, ok := d.pairs(item, "")
			if !ok || len(pairs) != 1 {
				t.Fatalf("%q: %v", file, d.errs)
			}
			if got, ok := scalarText(pairs[0].value); !ok || got != text {
				t.Errorf("beside a key %q: %q", text, got)
			}
		}
	})
}

// Masks of the user's own are written as they are read, and an editor accepts them.
func TestWriteMasks(t *testing.T) {
	sc, err := Load("f.yaml", []byte("name: x\nvectors: 4\nstrategy: {masks: [0, '1,3', 2-3]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	cases, _, err := sc.Plan(Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	file := Write(&cases[0], nil, []Line{{Step: Step{Verb: VerbProbe}}})
	again, err := Load("written", file)
	if err != nil {
		t.Fatalf("%s\n%v", file, err)
	}
	if err := compiled(t).Validate(instance(t, file)); err != nil {
		t.Errorf("%s\n%v", file, err)
	}
	if got := again.cases[0]; got.Strategy != "masks:0/1,3/2-3" || !cmp.Equal(got.Masks, cases[0].Masks) {
		t.Errorf("%s\nis read as %s, %v", file, got.Strategy, got.Masks)
	}
}
