package cli

import (
	"strings"
	"testing"
	"time"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/lab/layout"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// Whatever is done is answered, with what it has changed.
func TestAnswer(t *testing.T) {
	cpus := func(online, present string) agentapi.Topology {
		o, oerr := cpulist.Parse(online)
		p, perr := cpulist.Parse(present)
		if oerr != nil || perr != nil {
			t.Fatal(oerr, perr)
		}
		return agentapi.Topology{Online: o, Present: p}
	}
	all := cpus("0-3", "0-3")
	link := func(up bool, channels int) []agentapi.Link {
		return []agentapi.Link{{Name: "eth0", Up: up, Combined: channels}}
	}
	on := func(index int, role string, cpu int, unsettled bool) result.Vector {
		return result.Vector{Index: index, Role: role, Affinity: cpulist.List{cpu}, Effective: cpulist.List{cpu}, Unsettled: unsettled}
	}
	for _, tc := range []struct {
		line string
		s    stand
		want string
	}{
		{"offline 2-3", stand{before: all, after: cpus("0-1", "0-3")}, "CPUs 2-3 offline; online: 0-1"},
		{"offline 3", stand{before: all, after: cpus("0-2", "0-3")}, "CPU 3 offline; online: 0-2"},
		{"offline 2-3", stand{before: cpus("0-1", "0-3"), after: cpus("0-1", "0-3")}, "CPUs 2-3 were offline before; online: 0-1"},
		{"online 3", stand{before: all, after: all}, "CPU 3 was online before; online: 0-3"},
		{"online 3", stand{before: cpus("0-2", "0-3"), after: all}, "CPU 3 online; online: 0-3"},
		{"unplug 3", stand{before: all, after: cpus("0-2", "0-2")}, "CPU 3 unplugged; online: 0-2"},
		{"replug 3", stand{before: cpus("0-2", "0-2"), after: cpus("0-2", "0-3")}, "CPU 3 plugged in, and offline; online: 0-2"},
		{"probe", stand{links: link(false, 4)}, "the driver has the function; eth0 is down with 4 channels, after 1.5 s"},
		{"probe", stand{}, "the driver has the function, after 1.5 s"},
		{"load", stand{}, "the driver is loaded, after 1.5 s"},
		{"unload", stand{}, "the driver is unloaded, after 1.5 s"},
		{"bind", stand{links: link(false, 1)}, "the driver has the function; eth0 is down with 1 channel, after 1.5 s"},
		{"unbind", stand{}, "the driver has let the function go, after 1.5 s"},
		{"up", stand{links: link(true, 4)}, "eth0 is up with 4 channels, after 1.5 s"},
		{"down", stand{links: link(false, 0)}, "eth0 is down, after 1.5 s"},
		{"set-channels 2", stand{links: link(true, 2)}, "eth0 is up with 2 channels, after 1.5 s"},
		{"vectors", stand{}, "the queue vectors are there, and the strategy has been applied"},
		{"release w", stand{}, "w is released; the device goes on"},
		{"end w", stand{}, "w has ended; the device does as usual"},
		{"hold smc:destroy as=w", stand{}, "w is set: the device will stand at smc:destroy"},
		{"hold smc:destroy as=w nth=2", stand{}, "w is set: the device will stand at smc:destroy, occurrence 2 from here on"},
		{"drop vector:1 times=2 as=x", stand{}, "x is in force: drop at vector:1, 2 times"},
		{"post link-up", stand{}, "the device has posted link-up"},
		{"reset-service", stand{}, "the device has asked for a reset; what the driver does now goes on by itself"},
		{"reset", stand{}, "the kernel has reset the function; the driver was not told"},
		{"settle", stand{settledOn: []result.Vector{on(0, result.RoleHWC, 0, false), on(1, result.RoleQueue, 2, false), on(2, result.RoleQueue, 3, true)}},
			"3 vectors: HWC on CPU 0; queues on 2, 3\nvector 2 did not settle: requested 3, effective 3"},
		{"settle", stand{settledOn: []result.Vector{on(0, result.RoleHWC, 0, false), on(1, result.RoleQueue, 2, false), on(2, result.RoleUnused, 3, false)}},
			"3 vectors: HWC on CPU 0; queues on 2; unused on 3"},
		{"fire", stand{}, "fired every vector, 1 time; all were handled"},
		{"fire vectors=1-2 rounds=3", stand{}, "fired vectors 1-2, 3 times; all were handled"},
		{"storm offline=3 rounds=2", stand{after: all, did: result.Step{Storm: &result.Storm{Rounds: 2, Vectors: []result.StormVector{{Fired: 5, Handled: 5}, {Index: 1, Fired: 6, Handled: 6}}}}},
			"2 rounds, 11 interrupts, each vector's handled as often as fired; online: 0-3"},
		{"storm offline=3 rounds=2", stand{after: all, did: result.Step{Storm: &result.Storm{Rounds: 2, Vectors: []result.StormVector{{Fired: 5, Handled: 4}}}}},
			"2 rounds, 5 interrupts; online: 0-3\nvector 0 fired 5 times and was handled 4 times"},
		{"wait-for held=w", stand{}, "it has come, after 1.5 s"},
		{"sleep 2s", stand{}, "slept for 2s"},
		{"together [[up], [sleep: 1s]]", stand{}, "done, in 1.5 s"},
	} {
		step, err := scenarios.ParseStep(tc.line)
		if err != nil {
			t.Fatalf("%s: %v", tc.line, err)
		}
		tc.s.step, tc.s.took = step, 1500*time.Millisecond
		if got := tc.s.answer(); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.line, got, tc.want)
		}
	}
}

// help explains every word of the prompt, every verb and every step of the protocol, within 80 columns, and finds what was meant.
func TestExplain(t *testing.T) {
	topics := promptWords()
	for _, topic := range append(topics, "request:QUERY_DEV_CONFIG", "vector:2", "register-write@0x8") {
		text, err := explain(topic)
		if err != nil || !strings.HasPrefix(text, strings.TrimRight(topic, "@0x28")) {
			t.Errorf("%s: %q, %v", topic, text, err)
		}
		for line := range strings.Lines(layout.Hang(text, layout.Default)) {
			if len([]rune(line)) > layout.Default+1 {
				t.Errorf("%s: %s", topic, line)
			}
		}
	}
	for topic, want := range map[string]string{"ofline": `"offline"`, "vectros": `"vectors"`, "request:QUERY_DEV_CONFG": `"request:QUERY_DEV_CONFIG"`, "xyzzy-plugh": `there is no "xyzzy-plugh"; help`} {
		if _, err := explain(topic); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", topic, err, want)
		}
	}
}
