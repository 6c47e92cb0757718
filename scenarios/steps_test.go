package scenarios

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"irqlab/scenarios/result"
	"irqlab/scenarios/shape"
)

// The heads of scenarios whose steps follow, five lines each: the first step is in line 6.
const (
	manaHead = "name: x\ndriver: mana\nkernel: debian:7.3\nvectors: 5\nsteps:\n"
	diskHead = "name: x\nstrategy: linear\nkernel: debian:7.3\nvectors: 1\npressure: [\"nvme:queues=2\", \"virtio-blk:queues=1\"]\nsteps:\n"
	vfioHead = "name: x\nstrategy: linear\nkernel: debian:7.3\nvectors: 5\nsteps:\n"
)

// allVerbs is what an unknown one could have been.
const allVerbs = "probe, up, down, set-channels, load, unload, bind, unbind, vectors, hold, release, end, delay, drop, duplicate, " +
	"status, alter, add-interrupt, post, reset-service, reset, offline, online, unplug, replug, remove, rescan, suspend, hibernate, affinity, fire, settle, observe, storm, read-disks, run, expect, wait-for, together, sleep"

func TestStepErrors(t *testing.T) {
	for _, tc := range []struct {
		what, head, steps string
		want              []string // whole lines
	}{
		{"unknown verb", manaHead, "  - probe\n  - offlin: 3\n", []string{
			`f.yaml:7:5: steps.1: unknown verb "offlin"; allowed: ` + allVerbs + `; did you mean "offline"?`}},
		{"a mask that is none", manaHead, "  - probe\n  - affinity: {vector: 1}\n  - affinity: {vector: x, cpus: 3}\n  - affinity: {vector: 1, cpus: ''}\n", []string{
			`f.yaml:7:5: steps.1.affinity: cpus is missing`,
			`f.yaml:8:24: steps.2.affinity.vector: "x" is no number from 0 to 65535`}},
		{"an empty mask", manaHead, "  - probe\n  - affinity: {vector: 1, cpus: ''}\n", []string{`f.yaml:7:5: steps.1: no CPU is named`}},
		{"a mask too early, of a vector and of CPUs there are not", manaHead, "  - affinity: {vector: 5, cpus: 3-6}\n", []string{
			`f.yaml:6:5: steps.0: no vector is set up before the driver is started; begin with probe`,
			`f.yaml:6:5: steps.0: vector 5 is not the function's, which has 0-4`,
			`f.yaml:6:5: steps.0: CPUs 4-6 are not in the shape, which has CPUs 0-3; to show that the kernel refuses it, add refused: REGEXP`}},
		{"a mask of offline CPUs", manaHead, "  - probe\n  - offline: 2-3\n  - affinity: {vector: 1, cpus: 2-3}\n  - affinity: {vector: 1, cpus: 1-2}\n", []string{
			`f.yaml:8:5: steps.2: no CPU of the mask is online, but CPUs 0-1 are; to show that the kernel refuses it, add refused: REGEXP`}},
		{"unknown word", manaHead, "  - prove\n", []string{
			`f.yaml:6:5: steps.0: unknown verb "prove"; allowed: ` + allVerbs + `; did you mean "probe"?`}},
		{"no verb", manaHead, "  - refused: x\n", []string{
			`f.yaml:6:5: steps.0: no verb; allowed: ` + allVerbs}},
		{"an empty step", manaHead, "  - {}\n", []string{
			`f.yaml:6:5: steps.0: no verb; allowed: ` + allVerbs}},
		{"an empty step beside another", manaHead, "  - together: [[probe], [{}]]\n", []string{
			`f.yaml:6:26: steps.0.together.1.0: no verb; allowed: ` + allVerbs}},
		{"a merge key", manaHead, "  - <<: {probe: }\n", []string{
			`f.yaml:6:5: steps.0: a key must be a plain word, got an anchor or alias, which scenarios do not use`}},
		{"together refused", manaHead, "  - probe\n  - together: [[up], [sleep: 1s]]\n    refused: x\n", []string{
			`f.yaml:8:5: steps.1: a together step is not refused, but a step in it; put refused beside that one`}},
		{"a status that is too long", manaHead, "  - status: {at: request:any, status: 0x1ffffffff}\n", []string{
			`f.yaml:6:39: steps.0.status.status: "0x1ffffffff" is no status; allowed: 0 to 0xffffffff`}},
		{"a size and a field", manaHead, "  - alter: {at: request:any, field: code, size: 4, value: 3}\n  - probe\n", []string{
			`f.yaml:6:17: steps.0.alter.at: alter: name a field or say offset and size, not both`}},
		{"vectors there are not", manaHead, "  - drop: {at: \"vector:5\"}\n  - probe\n  - wait-for: {step: \"vector:0x10\"}\n", []string{
			`f.yaml:6:16: steps.0.drop.at: vector 5 is not the function's, which has 0-4`,
			`f.yaml:8:5: steps.2: vector 16 is not the function's, which has 0-4`}},
		{"no disk to read from", vfioHead, "  - read-disks\n", []string{
			`f.yaml:6:5: steps.0: the case has no disk; give one by pressure, as in nvme:queues=4,node=0`}},
		{"too many reads", diskHead, "  - read-disks: {reads: 1001}\n", []string{
			`f.yaml:7:5: steps.0: 1001 reads; allowed: 1 to 1000`}},
		{"a disk that was not read from", diskHead, "  - expect: {disks: [{on-node: true}, {}]}\n", []string{
			`f.yaml:7:14: steps.0.expect.disks: no disk was read from before; put read-disks before it`}},
		{"disks there are not", diskHead, "  - read-disks\n  - expect: {disks: [{}]}\n", []string{
			`f.yaml:8:14: steps.1.expect.disks: 1 disks are listed, but the pressure has 2`}},
		{"queues and CPUs there are not", diskHead, "  - read-disks\n  - expect: {disks: [{masks: [0, 1, 2]}, {queues: [4], meets: 9}]}\n", []string{
			`f.yaml:8:23: steps.1.expect.disks.0.masks: 3 are listed, but the disk has 2 request queues`,
			`f.yaml:8:43: steps.1.expect.disks.1.queues: CPU 4 is not in the shape; allowed: 0-3`,
			`f.yaml:8:63: steps.1.expect.disks.1.meets: CPU 9 is not in the shape; allowed: 0-3`}},
		{"two verbs", manaHead, "  - probe:\n    up:\n", []string{
			`f.yaml:7:5: steps.0: two verbs in one step, probe and up; begin another step with a dash`}},
		{"no list", manaHead, "  probe: x\n", []string{
			`f.yaml:5:1: steps: want a list of steps, got keys with values`}},
		{"empty list", manaHead, "  []\n", []string{
			`f.yaml:5:1: steps: the list is empty; leave the key out for the usual experiment`}},
		{"too many", manaHead, strings.Repeat("  - sleep: 1s\n", 201), []string{"f.yaml:5:1: steps: 201 steps; allowed: 200"}},
		{"a list as a step", manaHead, "  - [probe]\n", []string{
			`f.yaml:6:5: steps.0: want a single value, got a list`}},
		{"argument missing", manaHead, "  - hold\n  - offline:\n", []string{
			`f.yaml:6:5: steps.0: hold needs an argument: hold: {at: STEP, nth: N, as: NAME}`,
			`f.yaml:7:5: steps.1: offline needs an argument: offline: LIST`}},
		{"argument too much", manaHead, "  - probe\n  - settle: 3\n", []string{
			`f.yaml:7:13: steps.1.settle: settle takes no argument; write it as a plain word`}},
		{"key of an argument", manaHead, "  - probe: {wat: false}\n", []string{
			`f.yaml:6:13: steps.0.probe.wat: unknown key; allowed: wait; did you mean "wait"?`}},
		{"not both", manaHead, "  - probe: {wait: maybe}\n", []string{
			`f.yaml:6:19: steps.0.probe.wait: "maybe" is neither; allowed: true, false`}},
		{"key missing", manaHead, "  - hold: {at: request:QUERY_DEV_CONFIG}\n  - delay: {at: smc:establish}\n", []string{
			`f.yaml:6:5: steps.0.hold: as is missing`,
			`f.yaml:7:5: steps.1.delay: for is missing`}},
		{"bad CPUs", manaHead, "  - offline: three\n", []string{
			`f.yaml:6:14: steps.0.offline: CPU list "three": "three" is not a CPU number`}},
		{"bad duration", manaHead, "  - sleep: 5\n  - sleep: 1h\n  - probe\n  - wait-for: {link: up, within: soon}\n", []string{
			`f.yaml:6:12: steps.0.sleep: "5" is no duration; allowed: a number and its unit, as in 500ms, 30s or 2m, up to 10m0s`,
			`f.yaml:7:12: steps.1.sleep: "1h" is no duration; allowed: a number and its unit, as in 500ms, 30s or 2m, up to 10m0s`,
			`f.yaml:9:34: steps.3.wait-for.within: "soon" is no duration; allowed: a number and its unit, as in 500ms, 30s or 2m, up to 10m0s`}},
		{"bad count", manaHead, "  - set-channels: 0\n", []string{
			`f.yaml:6:19: steps.0.set-channels: "0" is no count; allowed: 1 to 1000000`}},
		{"bad times", manaHead, "  - drop: {at: smc:establish, times: never}\n", []string{
			`f.yaml:6:38: steps.0.drop.times: "never" is no count; allowed: 1 to 1000000, or always`}},
		{"bad number", manaHead, "  - status: {at: response:QUERY_DEV_CONFIG, status: EIO}\n", []string{
			`f.yaml:6:53: steps.0.status.status: "EIO" is no number; as in 22 or 0x16`}},
		{"bad event", manaHead, "  - probe\n  - post: link-upp\n  - post: channel-timeout\n  - post: unknown=256\n  - post: link-up=1\n", []string{
			`f.yaml:7:11: steps.1.post: unknown event "link-upp"; allowed: reset-request, fpga-reconfig, link-up, link-down, channel-timeout=MS, soc-suspend, soc-resume, unknown=TYPE; did you mean "link-up"?`,
			`f.yaml:8:11: steps.2.post: event channel-timeout needs a value from 0 to 16777215, as in channel-timeout=200`,
			`f.yaml:9:11: steps.3.post: event unknown needs a value from 0 to 255, as in unknown=200`,
			`f.yaml:10:11: steps.4.post: event link-up takes no value`}},
		{"bad regexp", manaHead, "  - offline: 3\n    refused: '('\n  - expect: {log: '*', no-log: ''}\n", []string{
			"f.yaml:7:14: steps.0.refused: \"(\" is no regular expression: missing closing ): `(`",
			"f.yaml:8:19: steps.1.expect.log: \"*\" is no regular expression: missing argument to repetition operator: `*`",
			`f.yaml:8:32: steps.1.expect.no-log: the regular expression is empty and would match any line`}},
		{"bad link", manaHead, "  - probe\n  - wait-for: {link: op}\n", []string{
			`f.yaml:7:22: steps.1.wait-for.link: unknown state of a link "op"; allowed: up, down, there, gone; did you mean "up"?`}},
		{"bad vectors", manaHead, "  - probe\n  - fire: {vectors: none}\n", []string{
			`f.yaml:7:21: steps.1.fire.vectors: "none" is no list of vectors; allowed: all, or numbers as in 0,2-4`}},
		{"together is no list of lists", manaHead, "  - together: [probe, up]\n", []string{
			`f.yaml:6:16: steps.0.together.0: want a list of steps, got a string`,
			`f.yaml:6:23: steps.0.together.1: want a list of steps, got a string`}},
		{"together with one branch, with none, and nested", manaHead, "  - together: [[probe]]\n  - together: [[], [settle]]\n  - together: [[probe], [{together: [[up], [settle]]}]]\n", []string{
			`f.yaml:6:5: steps.0.together: want two lists of steps or more, to run side by side`,
			`f.yaml:7:16: steps.1.together.0: the branch has no steps`,
			`f.yaml:8:27: steps.2.together.1.0: together within together; a branch is a plain list of steps`}},

		{"regular expression too large", manaHead, "  - wait-for: {log: 'a{1000}'}\n  - wait-for: {log: 'a{1000}b'}\n    refused: (x[ab]?|\\pL{2,}){400}\n", []string{
			`f.yaml:7:21: steps.1.wait-for.log: the regular expression that begins with "a{1000}b" comes to 1002 characters and classes with its repetitions written out; allowed: 1000, a line of the kernel's log is no longer`,
			`f.yaml:8:14: steps.1.refused: the regular expression that begins with "(x[ab]?|\\pL{2,}){400}" comes to 3200 characters and classes with its repetitions written out; allowed: 1000, a line of the kernel's log is no longer`}},
		{"unknown protocol step", manaHead, "  - hold: {at: request:QUERY_DEV_CONFG, as: a}\n  - release: a\n", []string{
			`f.yaml:6:16: steps.0.hold.at: step "request:QUERY_DEV_CONFG": no such step: neither a name on the trace nor a number such as 0x20001; did you mean "request:QUERY_DEV_CONFIG"?`}},
		{"unknown kind of step", manaHead, "  - drop: {at: requests:QUERY_DEV_CONFIG}\n", []string{
			"f.yaml:6:16: steps.0.drop.at: step \"requests:QUERY_DEV_CONFIG\": no such step: see `irqlab list steps`; did you mean \"request:QUERY_DEV_CONFIG\"?"}},
		{"action impossible at a step", manaHead, "  - hold: {at: register-read, as: a}\n  - status: {at: vector:1, status: 1}\n", []string{
			`f.yaml:6:5: steps.0: "a" is never released; add release: a where the device may go on`,
			`f.yaml:6:16: steps.0.hold.at: hold is not possible at register-read: QEMU stands still until the answer to a read is there, and gives up on the device after 5 s; hold an smc:, request: or response: step instead`,
			`f.yaml:7:18: steps.1.status.at: status is not possible at vector:1; there are hold, delay, drop, duplicate, add-interrupt`}},
		{"field that a message does not have", manaHead, "  - alter: {at: response:QUERY_DEV_CONFIG, field: mtv, value: 1}\n", []string{
			`f.yaml:6:17: steps.0.alter.at: alter: response:QUERY_DEV_CONFIG has no field "mtv"; it has code, version, message, size, device_type, device_instance, activity, status, length, caps, vports, bare_metal, max_eqs, mtu, link_speed`}},
		{"value wider than its field", manaHead, "  - alter: {at: response:QUERY_DEV_CONFIG, field: mtu, value: 0x10000}\n  - alter: {at: event:any, field: owner, value: 8}\n" +
			"  - alter: {at: response:any, field: length, value: 4097}\n  - alter: {at: request:any, offset: 8, size: 2, value: 65536}\n", []string{
			`f.yaml:6:63: steps.0.alter.value: alter: 0x10000 does not fit in mtu of response:QUERY_DEV_CONFIG, which has 16 bits; the largest value is 0xffff`,
			`f.yaml:7:49: steps.1.alter.value: alter: 0x8 does not fit in owner of event:any, which has 3 bits; the largest value is 0x7`,
			`f.yaml:8:53: steps.2.alter.value: alter: length 4097 does not fit: response:any has at most 4096 bytes`,
			`f.yaml:9:57: steps.3.alter.value: alter: 0x10000 does not fit in 2 bytes; the largest value is 0xffff`}},
		{"field and offset", manaHead, "  - alter: {at: response:QUERY_DEV_CONFIG, field: mtu, offset: 3, value: 1}\n", []string{
			`f.yaml:6:17: steps.0.alter.at: alter: name a field or say offset and size, not both`}},
		{"vector that is not there", manaHead, "  - add-interrupt: {at: smc:establish, vector: 5}\n  - probe\n  - fire: {vectors: 0-6}\n", []string{
			`f.yaml:6:5: steps.0: vector 5 is not the function's, which has 0-4`,
			`f.yaml:8:5: steps.2: vector 5-6 is not the function's, which has 0-4`}},
		{"no name", manaHead, "  - hold: {at: smc:establish, as: A hold}\n", []string{
			`f.yaml:6:35: steps.0.hold.as: "A hold" is not a name; allowed: a to z, 0 to 9, '.', '_', '-', 64 at most, beginning with a letter or digit`}},
		{"name taken", manaHead, "  - hold: {at: smc:establish, as: a}\n  - release: a\n  - drop: {at: vector:1, as: a}\n", []string{
			`f.yaml:8:5: steps.2: the name "a" is taken by the hold of line 6`}},

		{"never released", manaHead, "  - hold: {at: request:0x20001, as: a}\n  - probe: {wait: false}\n", []string{
			`f.yaml:6:5: steps.0: "a" is never released; add release: a where the device may go on`}},
		{"released before it is armed", manaHead, "  - release: a\n  - hold: {at: vector:1, as: a}\n", []string{
			`f.yaml:6:5: steps.0: "a" is released before it is armed, which is in line 7`}},
		{"released twice", manaHead, "  - hold: {at: vector:1, as: a}\n  - release: a\n  - release: a\n", []string{
			`f.yaml:8:5: steps.2: "a" has been released before; a hold can be released once`}},
		{"unknown hold", manaHead, "  - hold: {at: vector:1, as: first}\n  - release: frist\n  - release: first\n  - wait-for: {held: second}\n", []string{
			`f.yaml:7:5: steps.1: no hold is called "frist"; there are: first; did you mean "first"?`,
			`f.yaml:9:5: steps.3: no hold is called "second"; there are: first`}},
		{"no hold at all", manaHead, "  - release: a\n", []string{
			`f.yaml:6:5: steps.0: no hold is called "a"; there are: none`}},
		{"waits for a hold before it is armed, and after its release", manaHead,
			"  - probe\n  - wait-for: {held: a}\n  - hold: {at: vector:1, as: a}\n  - release: a\n  - wait-for: {held: a}\n", []string{
				`f.yaml:7:5: steps.1: "a" is not armed yet; that is in line 8`,
				`f.yaml:10:5: steps.4: "a" has been released before`}},
		{"waits for a hold that nothing comes to", manaHead, "  - hold: {at: request:QUERY_DEV_CONFIG, as: a}\n  - wait-for: {held: a}\n  - release: a\n  - probe\n", []string{
			`f.yaml:7:5: steps.1: the driver has not been started, so nothing brings the device to request:QUERY_DEV_CONFIG; start it before, as with probe: {wait: false}, or beside, in together`}},
		{"probe waits for itself", manaHead, "  - hold: {at: request:QUERY_DEV_CONFIG, as: a}\n  - probe\n  - release: a\n", []string{
			`f.yaml:7:5: steps.1: probe would wait for ever: it comes to request:QUERY_DEV_CONFIG, where "a" holds the device, and that is released only after this; start it with probe: {wait: false}, or put what releases it beside it, in together`}},
		{"up waits for itself", manaHead, "  - probe\n  - hold: {at: response:CONFIG_VPORT_RX, as: a}\n  - up\n  - release: a\n", []string{
			`f.yaml:8:5: steps.2: up would wait for ever: it comes to response:CONFIG_VPORT_RX, where "a" holds the device, and that is released only after this; put what releases it beside it, in together`}},
		{"a branch waits for itself", manaHead, "  - probe\n  - hold: {at: response:CONFIG_VPORT_RX, as: a}\n  - together: [[up, release: a], [sleep: 1s]]\n", []string{
			`f.yaml:8:17: steps.2.together.0.0: up would wait for ever: it comes to response:CONFIG_VPORT_RX, where "a" holds the device, and that is released only after this; put what releases it beside it, in together`}},
		{"up while the probe is held", manaHead, "  - hold: {at: smc:establish, as: a}\n  - probe: {wait: false}\n  - wait-for: {held: a}\n  - up\n  - release: a\n", []string{
			`f.yaml:9:5: steps.3: up would wait for ever: the probe of line 7 stops at "a", which is released only after this; release it before, or put what releases it beside it, in together`}},
		{"a link while the probe is held", manaHead, "  - hold: {at: smc:establish, as: a}\n  - probe: {wait: false}\n  - wait-for: {link: there}\n  - release: a\n", []string{
			`f.yaml:8:5: steps.2: wait-for would wait for ever: the probe of line 7 stops at "a", which is released only after this; release it before, or put what releases it beside it, in together`}},
		{"settle waits for a held vector", vfioHead, "  - probe\n  - vectors\n  - hold: {at: vector:2, as: a}\n  - settle\n  - release: a\n", []string{
			`f.yaml:9:5: steps.3: settle would wait for ever: it comes to vector:2, where "a" holds the device, and that is released only after this; put what releases it beside it, in together`}},
		{"unload waits for itself", manaHead, "  - probe\n  - hold: {at: smc:destroy, as: a}\n  - unload\n  - release: a\n", []string{
			`f.yaml:8:5: steps.2: unload would wait for ever: it comes to smc:destroy, where "a" holds the device, and that is released only after this; put what releases it beside it, in together`}},
		{"set-channels waits for itself", manaHead, "  - probe\n  - up\n  - hold: {at: request:DESTROY_WQ_OBJ, as: a}\n  - set-channels: 2\n  - release: a\n", []string{
			`f.yaml:9:5: steps.3: set-channels would wait for ever: it comes to request:DESTROY_WQ_OBJ, where "a" holds the device, and that is released only after this; put what releases it beside it, in together`}},
		{"down waits for itself", manaHead, "  - probe\n  - up\n  - hold: {at: request:CONFIG_VPORT_RX, as: a}\n  - down\n  - release: a\n", []string{
			`f.yaml:9:5: steps.3: down would wait for ever: it comes to request:CONFIG_VPORT_RX, where "a" holds the device, and that is released only after this; put what releases it beside it, in together`}},
		{"unload waits for the queues", manaHead, "  - probe\n  - up\n  - hold: {at: response:DESTROY_WQ_OBJ, as: a}\n  - unload\n  - release: a\n", []string{
			`f.yaml:9:5: steps.3: unload would wait for ever: it comes to response:DESTROY_WQ_OBJ, where "a" holds the device, and that is released only after this; put what releases it beside it, in together`}},
		{"bind waits for itself", manaHead, "  - probe\n  - unbind\n  - hold: {at: event:init-done, as: a}\n  - bind\n  - release: a\n", []string{
			`f.yaml:9:5: steps.3: bind would wait for ever: it comes to event:init-done, where "a" holds the device, and that is released only after this; put what releases it beside it, in together`}},
		{"probe in user space waits for its vector", vfioHead, "  - hold: {at: vector:0, as: a}\n  - probe\n  - release: a\n", []string{
			`f.yaml:7:5: steps.1: probe would wait for ever: it comes to vector:0, where "a" holds the device, and that is released only after this; start it with probe: {wait: false}, or put what releases it beside it, in together`}},
		{"fire waits for any vector", vfioHead, "  - probe\n  - vectors\n  - hold: {at: vector:any, as: a}\n  - fire: {vectors: 1}\n  - release: a\n", []string{
			`f.yaml:9:5: steps.3: fire would wait for ever: it comes to vector:any, where "a" holds the device, and that is released only after this; put what releases it beside it, in together`}},

		{"end of what is not there, and before it is", manaHead, "  - end: a\n  - end: b\n  - drop: {at: vector:1, as: b}\n", []string{
			`f.yaml:6:5: steps.0: no hold or fault is called "a"; there are: b; did you mean "b"?`,
			`f.yaml:7:5: steps.1: "b" is ended before it is armed, which is in line 8`}},
		{"an origin that there is not", manaHead, "  - drop: {at: vector:1, from: guest}\n  - drop: {at: request:any, from: lab}\n", []string{
			`f.yaml:6:32: steps.0.drop.from: unknown origin "guest"; allowed: device, lab`}},
		{"expect before observe", manaHead, "  - probe\n  - expect: {hwc: 0}\n", []string{
			`f.yaml:7:5: steps.1: nothing has been observed yet; put an observe: LABEL before it`}},
		{"expected CPUs", manaHead, "  - probe\n  - observe: a\n  - expect: {hwc: 9, queues: [0, 1, 2, 3, 4]}\n", []string{
			`f.yaml:8:19: steps.2.expect.hwc: CPU 9 is not in the shape; allowed: 0-3`,
			`f.yaml:8:22: steps.2.expect.queues: 5 queue vectors are listed, but 5 vectors make 4 of them beside the HWC`,
			`f.yaml:8:43: steps.2.expect.queues.4: CPU 4 is not in the shape; allowed: 0-3`}},
		{"label twice", manaHead, "  - probe\n  - observe: a\n  - observe: a\n", []string{
			`f.yaml:8:5: steps.2: the label "a" is used before; each observation needs one of its own`}},
		{"label no name", manaHead, "  - probe\n  - observe: After Reset\n", []string{
			`f.yaml:7:5: steps.1: "After Reset" is not a name; allowed: a to z, 0 to 9, '.', '_', '-', 64 at most, beginning with a letter or digit`}},
		{"counted", manaHead, "  - probe\n  - expect: {counted: [{step: smc:etablish, is: 1}, {step: smc:establish}]}\n", []string{
			`f.yaml:7:5: steps.1: step "smc:etablish": no such step: smc steps are establish, destroy, timeout; did you mean "smc:establish"?`,
			`f.yaml:7:5: steps.1: counted: smc:establish needs one of is and at-least`}},
		{"wait for nothing, and for two things", manaHead, "  - probe\n  - wait-for: {within: 1s}\n  - wait-for: {link: up, online: 0-3}\n  - wait-for: {link: up, count: 2}\n", []string{
			`f.yaml:7:5: steps.1: want exactly one of held, step, log, link and online to wait for`,
			`f.yaml:8:5: steps.2: want exactly one of held, step, log, link and online to wait for`,
			`f.yaml:9:5: steps.3: count goes with step or log only`}},
		{"wait for CPUs that are not there", manaHead, "  - wait-for: {online: 0-7}\n  - wait-for: {online: 1-3}\n  - wait-for: {online: ''}\n", []string{
			`f.yaml:6:5: steps.0: CPUs 0-7 can never be all that are online; allowed: CPU 0 and others of 0-3`,
			`f.yaml:7:5: steps.1: CPUs 1-3 can never be all that are online; allowed: CPU 0 and others of 0-3`,
			`f.yaml:8:5: steps.2: CPUs none can never be all that are online; allowed: CPU 0 and others of 0-3`}},

		{"CPU 0", manaHead, "  - offline: 0-1\n  - unplug: 0\n", []string{
			`f.yaml:6:5: steps.0: CPU 0 cannot leave; allowed: CPUs of 1-3; to show that it is refused, add refused: REGEXP`,
			`f.yaml:7:5: steps.1: CPU 0 cannot leave; allowed: CPUs of 1-3; to show that it is refused, add refused: REGEXP`}},
		{"all CPUs", manaHead, "  - offline: 0-3\n", []string{
			`f.yaml:6:5: steps.0: no CPU would be left online; keep CPU 0`}},
		{"CPU outside the shape", manaHead, "  - offline: 3-4\n  - unplug: 9\n  - storm: {offline: 7, rounds: 2}\n", []string{
			`f.yaml:6:5: steps.0: CPU 4 is not in the shape, which has CPUs 0-3`,
			`f.yaml:7:5: steps.1: CPU 9 is not in the shape, which has CPUs 0-3`,
			`f.yaml:8:5: steps.2: no vector is set up before the driver is started; begin with probe`,
			`f.yaml:8:5: steps.2: CPU 7 is not in the shape, which has CPUs 0-3`}},
		{"unplugged twice, onlined while unplugged, replugged twice", manaHead, "  - unplug: 3\n  - unplug: 2-3\n  - online: 3\n  - replug: 3\n  - replug: 3\n", []string{
			`f.yaml:7:5: steps.1: CPU 3 has been unplugged before`,
			`f.yaml:8:5: steps.2: CPU 3 is unplugged; replug it first`,
			`f.yaml:10:5: steps.4: CPU 3 has not been unplugged`}},
		{"offline twice, online twice", manaHead, "  - offline: 3\n  - offline: 3\n  - online: 3\n  - online: 3\n", []string{
			`f.yaml:7:5: steps.1: CPU 3 is offline before`,
			`f.yaml:9:5: steps.3: CPU 3 is online before`}},
		{"a CPU in two branches", manaHead, "  - together: [[offline: 3], [unplug: 2-3]]\n", []string{
			`f.yaml:6:5: steps.0: CPU 3 changes in two branches at once, in no certain order`}},

		{"set-channels with vfio", vfioHead, "  - set-channels: 2\n", []string{
			`f.yaml:6:5: steps.0: set-channels needs driver mana, and the case has driver vfio`}},
		{"vectors with mana", manaHead, "  - vectors\n", []string{
			`f.yaml:6:5: steps.0: vectors needs driver vfio, and the case has driver mana`}},
		{"reset-service and link with vfio", vfioHead, "  - probe\n  - reset-service\n  - wait-for: {link: up}\n", []string{
			`f.yaml:7:5: steps.1: reset-service needs driver mana, and the case has driver vfio`,
			`f.yaml:8:5: steps.2: a link needs driver mana, and the case has driver vfio`}},
		{"protocol steps with vfio", vfioHead, "  - hold: {at: request:QUERY_DEV_CONFIG, as: a}\n  - release: a\n  - probe\n  - wait-for: {step: event:test}\n", []string{
			`f.yaml:6:16: steps.0.hold.at: driver vfio speaks no MANA to the device, so it never comes to request:QUERY_DEV_CONFIG; allowed with it: vector:N, config-read, config-write, register-read, register-write`,
			`f.yaml:9:5: steps.3: driver vfio speaks no MANA to the device, so it never comes to event:test`}},
		{"before the driver", manaHead, "  - up\n  - settle\n  - post: link-up\n  - unload\n", []string{
			`f.yaml:6:5: steps.0: the driver has not been started; begin with probe`,
			`f.yaml:7:5: steps.1: no vector is set up before the driver is started; begin with probe`,
			`f.yaml:8:5: steps.2: the device has no event queue before the driver made one; begin with probe`,
			`f.yaml:9:5: steps.3: the driver has not been started; begin with probe`}},
		{"driver twice", manaHead, "  - probe\n  - probe\n", []string{
			`f.yaml:7:5: steps.1: the driver has been started before; unload it first, or use bind`}},
		{"removed twice, and used while it is", manaHead, "  - probe\n  - remove\n  - remove\n  - up\n  - bind\n  - probe\n", []string{
			`f.yaml:8:5: steps.2: the function has been removed before; rescan first`,
			`f.yaml:9:5: steps.3: the driver has not been started; begin with probe`,
			`f.yaml:10:5: steps.4: the function has been removed; rescan first`,
			`f.yaml:11:5: steps.5: the function has been removed; rescan first`}},
		{"found again, and nobody takes it", vfioHead, "  - probe\n  - vectors\n  - remove\n  - rescan\n  - settle\n", []string{
			`f.yaml:10:5: steps.4: no vector is set up before the driver is started; begin with probe`}},
		{"found again without its driver", manaHead, "  - probe\n  - remove\n  - unload\n  - rescan\n  - up\n", []string{
			`f.yaml:8:5: steps.2: the driver has not been started; begin with probe`,
			`f.yaml:10:5: steps.4: the driver has not been started; begin with probe`}},
		{"a rescan of what is there", manaHead, "  - probe\n  - rescan\n  - probe\n", []string{
			`f.yaml:8:5: steps.2: the driver has been started before; unload it first, or use bind`}},
		{"a sleep of no kind", manaHead, "  - suspend: {mode: disk}\n", []string{
			`f.yaml:6:21: steps.0.suspend.mode: unknown sleep state "disk"; allowed: freeze, mem`}},
		{"a sleep that is too short", manaHead, "  - suspend: {for: 100ms}\n", []string{
			`f.yaml:6:5: steps.0: a sleep of 100ms; allowed: from 500ms, since what wakes the guest must not come while it falls asleep`}},
		{"holds that stop a removal, a rescan and a sleep", manaHead, "  - probe\n  - hold: {at: \"smc:destroy\", as: a}\n  - remove\n  - release: a\n  - hold: {at: request:QUERY_DEV_CONFIG, as: b}\n  - rescan\n  - release: b\n" +
			"  - hold: {at: request:REGISTER_DEVICE, as: c}\n  - suspend\n  - release: c\n  - hold: {at: \"smc:destroy\", as: d}\n  - hibernate\n  - release: d\n", []string{
			`f.yaml:8:5: steps.2: remove would wait for ever: it comes to smc:destroy, where "a" holds the device, and that is released only after this; put what releases it beside it, in together`,
			`f.yaml:11:5: steps.5: rescan would wait for ever: it comes to request:QUERY_DEV_CONFIG, where "b" holds the device, and that is released only after this; put what releases it beside it, in together`,
			`f.yaml:14:5: steps.8: suspend would wait for ever: it comes to request:REGISTER_DEVICE, where "c" holds the device, and that is released only after this; put what releases it beside it, in together`,
			`f.yaml:17:5: steps.11: hibernate would wait for ever: it comes to smc:destroy, where "d" holds the device, and that is released only after this; put what releases it beside it, in together`}},
		{"vectors twice", vfioHead, "  - probe\n  - vectors\n  - vectors\n", []string{
			`f.yaml:8:5: steps.2: the queue vectors have been added before`}},
		{"too many channels", manaHead, "  - probe\n  - set-channels: 5\n", []string{
			`f.yaml:7:5: steps.1: 5 channels need as many queue vectors, and the function has 4`}},
		{"settled without an observation", manaHead + "", "  - probe\n  - observe: a\nexpect: {settled: {hwc: 0}}\n", []string{
			`f.yaml:8:10: expect.settled: no step observes settled; put what is expected into expect steps, or add observe: settled`}},
		{"known without a reason", manaHead, "  - probe\ncases: {a: {known: {kernels: debian:6.17}}}\n", []string{
			`f.yaml:7:13: cases.a.known: reason is missing`}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			_, err := Load("f.yaml", []byte(tc.head+tc.steps))
			if err == nil {
				t.Fatal("accepted")
			}
			if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, tc.want) {
				t.Errorf("got\n %s\nwant\n %s", strings.Join(got, "\n "), strings.Join(tc.want, "\n "))
			}
		})
	}
}

// What looks wrong and is not.
func TestStepsAccepted(t *testing.T) {
	for what, yaml := range map[string]string{
		"released beside":                  manaHead + "  - hold: {at: request:QUERY_DEV_CONFIG, as: a}\n  - together: [[probe], [{wait-for: {held: a}}, release: a]]\n",
		"started beside":                   manaHead + "  - hold: {at: smc:establish, as: a}\n  - together: [[{wait-for: {held: a}}, release: a], [probe]]\n  - up\n",
		"armed beside":                     manaHead + "  - together: [[probe], [{hold: {at: vector:1, as: a}}]]\n  - release: a\n",
		"a later occurrence":               manaHead + "  - hold: {at: request:QUERY_DEV_CONFIG, nth: 3, as: a}\n  - probe\n  - reset-service\n  - wait-for: {held: a}\n  - release: a\n",
		"a hold of what a verb never does": manaHead + "  - hold: {at: request:CONFIG_VPORT_TX, as: a}\n  - probe\n  - together: [[up], [wait-for: {held: a}, release: a]]\n",
		"another vector fires":             vfioHead + "  - probe\n  - vectors\n  - hold: {at: vector:2, as: a}\n  - fire: {vectors: '0-1,3'}\n  - together: [[settle], [release: a]]\n",
		"refused on purpose": manaHead + "  - offline: 0\n    refused: x\n  - {unplug: 0-3, refused: x}\n  - release: nobody\n    refused: x\n  - unplug: 3\n  - unplug: 3\n    refused: x\n" +
			"  - probe\n  - set-channels: 9\n    refused: x\n  - probe:\n    refused: x\n",
		"log before any observation": manaHead + "  - probe\n  - expect: {log: a, no-log: [b, c], counted: {step: 'request:0x20001', is: 1}}\n",
		"removed and found again":    manaHead + "  - probe\n  - up\n  - remove\n  - fire:\n    refused: x\n  - rescan\n  - probe\n  - up\n  - remove\n  - rescan\n  - up\n  - settle\n",
		"removed before it is used":  manaHead + "  - remove\n  - rescan\n  - probe\n",
		"opened again":               vfioHead + "  - probe\n  - vectors\n  - remove\n  - rescan\n  - probe\n  - vectors\n",
		"sleeps":                     manaHead + "  - suspend\n  - probe\n  - suspend: {mode: mem, for: 500ms}\n  - hold: {at: request:QUERY_DEV_CONFIG, as: a}\n  - together: [[suspend], [{wait-for: {held: a}}, release: a]]\n",
		"a CPU comes and goes":       manaHead + "  - offline: 3\n  - unplug: 3\n  - replug: 3\n  - online: 3\n  - offline: 3\n",
		"loaded anew":                manaHead + "  - probe\n  - unload\n  - probe\n  - up\n  - unbind\n  - bind\n  - wait-for: {link: there}\n",
		"null for no argument":       manaHead + "  - probe:\n  - up:\n  - fire:\n",
		"a comment and a flow":       "name: x\ndriver: mana\nsteps: [probe, up, {fire: {rounds: 3}}, {observe: a}] # so\n",
		"faults": manaHead + "  - delay: {at: config-write@0x4, nth: 2, times: always, for: 5ms, as: slow}\n  - duplicate: {at: event:test}\n  - duplicate: {at: event:test}\n" +
			"  - status: {at: response:0x20001, status: 0xc0000001}\n  - alter: {at: response:QUERY_DEV_CONFIG, offset: 0x30, size: 2, value: 0x10}\n" +
			"  - alter: {at: event:any, field: owner, value: 7}\n  - add-interrupt: {at: vector:any, vector: 1, times: 3}\n  - drop: {at: register-write@0x18}\n",
	} {
		if _, err := Load("f.yaml", []byte(yaml)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestStepValues reads every verb once and writes it back in one line, which shows what was read.
func TestStepValues(t *testing.T) {
	s, err := Load("f.yaml", []byte(manaHead+`  - hold: {at: request:QUERY_DEV_CONFIG, nth: 2, as: a}
  - delay: {at: smc:establish, for: 1500ms, times: always}
  - duplicate: {at: event:test, times: 2}
  - duplicate: {at: event:test}
  - status: {at: response:0x20001, status: 0xc0000001, as: nay}
  - alter: {at: response:QUERY_DEV_CONFIG, offset: 0x30, value: 16}
  - alter: {at: event:any, field: owner, value: 0x7}
  - add-interrupt: {at: smc:establish, vector: 4}
  - probe: {wait: false}
  - release: a
  - together: [[up, {settle: }], [sleep: 2s]]
  - post: channel-timeout=0x10
  - reset-service
  - {offline: "2,3", refused: "(?i)busy"}
  - fire
  - fire: {vectors: 1-2, rounds: 7}
  - observe: x
  - storm: {offline: 1-2, rounds: 200}
  - wait-for: {log: "a+b", count: 2, within: 5s}
  - wait-for: {online: 0-3}
  - suspend
  - suspend: {mode: mem, for: 3s, within: 90s}
`))
	if err != nil {
		t.Fatal(err)
	}
	c := s.cases[0]
	var got []string
	for s := range allSteps(c.Steps) {
		got = append(got, s.At+" "+s.String())
		if s.Line < 6 || s.At == "3" && s.Line != 9 {
			t.Errorf("step %s: line %d", s.At, s.Line)
		}
	}
	want := []string{
		"0 hold at request:QUERY_DEV_CONFIG, occurrence 2 as a",
		"1 delay at smc:establish, always for 1.5s as delay smc:establish",
		"2 duplicate at event:test, 2 times as duplicate event:test",
		"3 duplicate at event:test as duplicate event:test (2)",
		"4 status at response:0x20001: 0xc0000001 as nay",
		"5 alter at response:QUERY_DEV_CONFIG: 4 bytes at 0x30 = 0x10 as alter response:QUERY_DEV_CONFIG",
		"6 alter at event:any: owner = 0x7 as alter event:any",
		"7 add-interrupt at smc:establish: vector 4 as add-interrupt smc:establish",
		"8 probe, without waiting",
		"9 release a",
		"10 together [up; settle] [sleep 2s]",
		"10.0.0 up", "10.0.1 settle", "10.1.0 sleep 2s",
		"11 post channel-timeout=16",
		"12 reset-service",
		"13 offline 2-3",
		"14 fire vectors all", "15 fire vectors 1-2, 7 rounds",
		"16 observe x",
		"17 storm on CPUs 1-2, 200 rounds",
		`18 wait for log "a+b", 2 times`, "19 wait for online 0-3",
		"20 suspend freeze for 2s", "21 suspend mem for 3s",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if c.Steps[13].Refused != "(?i)busy" || c.Steps[12].Post.Event != EventResetRequest || c.Steps[18].WaitFor.Limit() != 5*time.Second || c.Steps[19].WaitFor.Limit() != WithinDefault ||
		c.Steps[20].Suspend.Patience() != time.Minute || c.Steps[21].Suspend.Patience() != 90*time.Second {
		t.Errorf("%+v", c.Steps)
	}
	if !slices.Equal(c.Labels, []string{"x"}) {
		t.Errorf("labels %q", c.Labels)
	}
}

func TestCheckSteps(t *testing.T) {
	const steps = manaHead + `  - hold: {at: request:QUERY_DEV_CONFIG, as: a}
  - probe: {wait: false}
  - offline: 3
    refused: (?i)busy
  - release: a
  - observe: before
  - expect: {hwc: 0, log: "#3 will", no-log: [oops, "bad.*"], counted: [{step: smc:establish, is: 1}, {step: request:any, at-least: 2}]}
  - expect: {queues: [0, 1]}
  - storm: {offline: 3, rounds: 2}
  - online: 3
    refused: x
  - observe: after
  - expect: {hwc: 1}
`
	s, err := Load("f.yaml", []byte(strings.Replace(steps, "vectors: 5", "vectors: 3", 1)))
	if err != nil {
		t.Fatal(err)
	}
	topology := shape.Default().Topology(list("2")).CPUs
	good := func() result.Case {
		c := settled("0", "1")
		c.Shape = shape.Default()
		before, after := c.Observations[0], c.Observations[0]
		before.Label, after.Label = "before", "after"
		after.Vectors = slices.Clone(after.Vectors)
		after.Vectors[0].Effective = list("1")
		c.Observations = []result.Observation{before, after}
		for s := range allSteps(s.cases[0].Steps) {
			c.Steps = append(c.Steps, result.Step{At: s.At, Text: s.String(), Outcome: result.StepDone})
		}
		c.Steps[2].Outcome, c.Steps[2].Refusal = result.StepRefused, "Device or resource busy"
		c.Steps[8].Outcome, c.Steps[8].Refusal = result.StepRefused, "x"
		c.Steps[5].Log = []result.LogMatch{{Pattern: "#3 will", Line: "mana: #3 will"}, {Pattern: "oops"}, {Pattern: "bad.*"}}
		c.Steps[5].Counted = []result.Count{{Step: "smc:establish", N: 1}, {Step: "request:any", N: 2}}
		c.Steps[7].Storm = &result.Storm{Rounds: 2, Vectors: []result.StormVector{{Index: 0, Fired: 5, Handled: 5}}}
		c.Steps[8].Topology = slices.Clone(topology)
		c.Rules = []result.Rule{{Name: "a", Text: "hold at request:QUERY_DEV_CONFIG", Hits: 1}}
		return c
	}
	for _, tc := range []struct {
		what   string
		change func(*result.Case)
		want   []string
	}{
		{"as it should be", func(*result.Case) {}, nil},
		{"not reached", func(c *result.Case) { c.Steps = c.Steps[:8] }, []string{"Step 8 (online 3, line 15) was not reached."}},
		{"carried out", func(c *result.Case) { c.Steps[2].Outcome = result.StepDone }, []string{"Step 2 (offline 3, line 8) was carried out, expected it to be refused."}},
		{"other words", func(c *result.Case) { c.Steps[2].Refusal = "no such CPU" },
			[]string{`Step 2 (offline 3, line 8) was refused with "no such CPU", expected words that match "(?i)busy".`}},
		{"refused", func(c *result.Case) { c.Steps[7].Outcome, c.Steps[7].Refusal = result.StepRefused, "no" },
			[]string{"Step 7 (storm on CPUs 3, 2 rounds, line 14) was refused: no."}},
		{"failed", func(c *result.Case) { c.Steps[1].Outcome, c.Steps[1].Refusal = result.StepFailed, "no link." },
			[]string{"Step 1 (probe, without waiting, line 7) failed: no link."}},
		{"no line", func(c *result.Case) { c.Steps[5].Log[0].Line = "" }, []string{`Step 5 (expect, line 12): no line of the kernel log matches "#3 will", expected one.`}},
		{"a line", func(c *result.Case) { c.Steps[5].Log[2].Line = "bad thing" },
			[]string{`Step 5 (expect, line 12): the kernel log has "bad thing", expected no line that matches "bad.*".`}},
		{"counts", func(c *result.Case) { c.Steps[5].Counted[0].N, c.Steps[5].Counted[1].N = 2, 1 }, []string{
			"Step 5 (expect, line 12): smc:establish occurred 2 times, expected 1.", "Step 5 (expect, line 12): request:any occurred 1 times, expected 2 or more."}},
		{"no counts", func(c *result.Case) { c.Steps[5].Counted = c.Steps[5].Counted[1:] }, []string{"Step 5 (expect, line 12): smc:establish was not counted."}},
		{"lost interrupt", func(c *result.Case) { c.Steps[7].Storm.Vectors[0].Handled = 4 },
			[]string{"Step 7 (storm on CPUs 3, 2 rounds, line 14): vector 0 fired 5 times and was handled 4 times."}},
		{"may have merged", func(c *result.Case) { c.Steps[7].Storm.Vectors[0] = result.StormVector{Fired: 7, Own: 2, Handled: 5} }, nil},
		{"lost, merged or not", func(c *result.Case) { c.Steps[7].Storm.Vectors[0] = result.StormVector{Fired: 7, Own: 2, Handled: 4} },
			[]string{"Step 7 (storm on CPUs 3, 2 rounds, line 14): vector 0 fired 7 times, 2 of them by itself, and was handled 4 times."}},
		{"from nowhere", func(c *result.Case) { c.Steps[7].Storm.Vectors[0] = result.StormVector{Fired: 7, Own: 2, Handled: 8} },
			[]string{"Step 7 (storm on CPUs 3, 2 rounds, line 14): vector 0 fired 7 times and was handled 8 times, at one moment 1 times more than it had fired: whether others were lost cannot be told " +
				`(docs/hotplug.md, "Sent once more").`}},
		{"from nowhere, and as many lost", func(c *result.Case) { c.Steps[7].Storm.Vectors[0] = result.StormVector{Fired: 7, Handled: 7, Ahead: 1} },
			[]string{"Step 7 (storm on CPUs 3, 2 rounds, line 14): vector 0 fired 7 times and was handled 7 times, at one moment 1 times more than it had fired: whether others were lost cannot be told " +
				`(docs/hotplug.md, "Sent once more").`}},
		{"no fire, too few rounds", func(c *result.Case) { c.Steps[7].Storm.Vectors[0], c.Steps[7].Storm.Rounds = result.StormVector{}, 1 }, []string{
			"Step 7 (storm on CPUs 3, 2 rounds, line 14): 1 rounds were done, expected 2.", "Step 7 (storm on CPUs 3, 2 rounds, line 14): vector 0 did not fire."}},
		{"no storm", func(c *result.Case) { c.Steps[7].Storm = nil }, []string{"Step 7 (storm on CPUs 3, 2 rounds, line 14): no vector was counted."}},
		{"node of a CPU", func(c *result.Case) { c.Steps[8].Topology[2].Node = 1 }, []string{"Step 8 (online 3, line 15): CPU 3 is on node 1, expected 0."}},
		{"sibling of a CPU", func(c *result.Case) { c.Steps[8].Topology[2].Siblings = list("0,3") },
			[]string{"Step 8 (online 3, line 15): CPU 3 shares its core with 0,3, expected 3."}},
		{"core of a CPU", func(c *result.Case) { c.Steps[8].Topology[2].Core = 7 },
			[]string{"Step 8 (online 3, line 15): CPU 3 is core 7 of package 0, expected core 1 of package 0."}},
		{"a CPU too many", func(c *result.Case) { c.Steps[8].Topology[2].ID = 4 }, []string{"Step 8 (online 3, line 15): CPU 4 is online, which the shape does not have."}},
		{"hold not reached", func(c *result.Case) { c.Rules[0].Hits, c.Rules[0].Tells = 0, "last: smc:establish (1)" },
			[]string{"The device was to hold at request:QUERY_DEV_CONFIG (a), which was never reached; last: smc:establish (1)."}},
		{"two expect steps about one observation", func(c *result.Case) { c.Observations[0].Vectors = slices.Clone(c.Observations[1].Vectors)[:2] }, []string{
			"before: the HWC vector is on CPU 1, expected 0.", "before: the queue vectors are on CPUs 0, expected 0, 1."}},
		{"another observation", func(c *result.Case) { c.Observations[1].Vectors = c.Observations[0].Vectors }, []string{"after: the HWC vector is on CPU 0, expected 1."}},
	} {
		c := good()
		tc.change(&c)
		if got := s.cases[0].Expect.Check(c); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got\n %s\nwant\n %s", tc.what, strings.Join(got, "\n "), strings.Join(tc.want, "\n "))
		}
	}
}

func TestCheckDisks(t *testing.T) {
	s, err := Load("f.yaml", []byte(diskHead+"  - read-disks\n  - expect: {disks: [{masks: [0-1, 2-3], queues: [1, 3], on-node: false, meets: \"1,3\"}, {on-node: true}]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	zero, one := 0, 1
	good := func() result.Case {
		c := settled("0")
		disks := []result.Disk{
			{Name: "nvme0n1", Node: &zero, Queues: []result.DiskQueue{{Affinity: list("0-1"), Effective: list("1"), Node: &zero}, {Index: 1, Affinity: list("2-3"), Effective: list("3"), Node: &one}},
				Served: []result.Served{{CPU: 0, Queue: &zero, Handled: list("1")}, {CPU: 1, Queue: &zero, Handled: list("1")}, {CPU: 2, Queue: &one, Handled: list("3")}, {CPU: 3, Queue: &one, Handled: list("3")}}},
			{Name: "vda", Node: &one, Queues: []result.DiskQueue{{Affinity: list("0-3"), Effective: list("3"), Node: &one}}},
		}
		c.Steps = []result.Step{{At: "0", Outcome: result.StepDone, Disks: disks}, {At: "1", Outcome: result.StepDone}}
		return c
	}
	const first, second = "Step 1 (expect, line 8), disk 0: ", "Step 1 (expect, line 8), disk 1: "
	for _, tc := range []struct {
		what   string
		change func(disks []result.Disk)
		want   []string
	}{
		{"as it should be", func([]result.Disk) {}, nil},
		{"another mask", func(d []result.Disk) { d[0].Queues[1].Affinity = list("3") }, []string{first + "the request queues' masks are 0-1, 3, expected 0-1, 2-3."}},
		{"another CPU", func(d []result.Disk) { d[0].Queues[1].Effective = list("2") }, []string{first + "the request queues' interrupts are on CPUs 1, 2, expected 1, 3."}},
		{"a queue fewer", func(d []result.Disk) { d[0].Queues = d[0].Queues[:1] }, []string{
			first + "the request queues' masks are 0-1, expected 0-1, 2-3.", first + "the request queues' interrupts are on CPUs 1, expected 1, 3.",
			first + "every request queue's interrupt is on the disk's node, expected some to be elsewhere."}},
		{"off its node", func(d []result.Disk) { d[1].Queues[0].Node = &zero }, []string{second + "not every request queue's interrupt is on the disk's node, expected that."}},
		{"a disk of no node", func(d []result.Disk) { d[1].Node = nil }, []string{second + "not every request queue's interrupt is on the disk's node, expected that."}},
		{"handled elsewhere", func(d []result.Disk) { d[0].Served[1].Handled = list("0-1") }, []string{first + "the CPUs that handled what they had submitted are 3, expected 1,3."}},
		{"handled twice, once elsewhere", func(d []result.Disk) { d[0].Served = append(d[0].Served, result.Served{CPU: 3, Handled: list("0")}) },
			[]string{first + "the CPUs that handled what they had submitted are 1, expected 1,3."}},
	} {
		c := good()
		tc.change(c.Steps[0].Disks)
		if got := s.cases[0].Expect.Check(c); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got\n %s\nwant\n %s", tc.what, strings.Join(got, "\n "), strings.Join(tc.want, "\n "))
		}
	}
	c := good()
	c.Steps[0].Disks = c.Steps[0].Disks[:1]
	if got := s.cases[0].Expect.Check(c); !slices.Equal(got, []string{second + "the guest has no such disk."}) {
		t.Errorf("a disk fewer: %q", got)
	}
	// A kernel of one's own is asked, and not held to what stock ones do.
	for kernel, want := range map[string]bool{"debian:7.2": true, "/home/me/linux": false} {
		cases, _, err := s.Plan(Overrides{Kernels: []string{kernel}})
		if err != nil {
			t.Fatal(err)
		}
		if held := cases[0].Steps[1].Expect.Disks != nil; held != want {
			t.Errorf("%s is held to the placement: %v", kernel, held)
		}
	}
}

// Overrides leave the steps alone, and what is expected of them where it still means something.
func TestPlanSteps(t *testing.T) {
	s, err := Load("f.yaml", []byte(vfioHead+"  - probe\n  - vectors\n  - observe: a\n  - expect: {queues: [0, 1, 2, 3], queue-masks: [0, 1, 2, 3], log: x}\n"+
		"cases:\n  old: {kernel: debian:6.18}\n  new: {steps: [probe, expect: {no-log: y}, vectors, {observe: a}, {expect: {hwc: 0}}]}\n"+
		"  other: {steps: [probe, vectors, {offline: '3'}, {observe: a}, {expect: {hwc: 0}}]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if a, b, c := s.cases[0].Setup(), s.cases[1].Setup(), s.cases[2].Setup(); a != b || a == c {
		t.Errorf("setups: want the two that differ in kernel and expectations alike, and the one with other steps apart:\n%s\n%s\n%s", a, b, c)
	}
	for _, tc := range []struct {
		what  string
		o     Overrides
		cases int
		want  string // of the first case
	}{
		{"nothing", Overrides{}, 3, `{} "3" "" {"queues":["0","1","2","3"],"queue-masks":["0","1","2","3"],"log":["x"]}`},
		{"strategy", Overrides{Strategies: []string{"unset"}}, 3, `{} "3" "" {"log":["x"]}`},
		{"vectors", Overrides{Vectors: []VectorCount{{N: 4}}}, 3, `{} "3" "" {}`},
		{"irqchip", Overrides{Irqchips: []string{IrqchipRemapped}}, 3, `{} "3" "" {"queue-masks":["0","1","2","3"],"log":["x"]}`},
		{"kernel", Overrides{Kernels: []string{"debian:6.12"}}, 2, `{} "1" "" {"no-log":["y"]} "4" "" {"hwc":"0"}`},
	} {
		cases, _, err := s.Plan(tc.o)
		if err != nil {
			t.Errorf("%s: %v", tc.what, err)
			continue
		}
		if got := describe(cases[0].Expect); len(cases) != tc.cases || got != tc.want {
			t.Errorf("%s: %d cases, the first of which expects %s; want %d, %s", tc.what, len(cases), got, tc.cases, tc.want)
		}
	}
	if got := describe(s.cases[0].Expect); !strings.Contains(got, "queues") {
		t.Errorf("an override reached into the scenario: %s", got)
	}
	for _, tc := range []struct {
		o    Overrides
		want string
	}{
		{Overrides{Drivers: []string{DriverMana}}, "case old: steps.1: vectors needs driver vfio, and the case has driver mana"},
		{Overrides{Shapes: []shape.Shape{{Sockets: 1, Cores: 3, Threads: 1, Nodes: 1, MemoryMiB: 512}}}, "case other: steps.2: CPU 3 is not in the shape, which has CPUs 0-2"},
	} {
		if _, _, err := s.Plan(tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", tc.o, err, tc.want)
		}
	}
}

func TestKnown(t *testing.T) {
	s, err := Load("f.yaml", []byte("name: x\nstrategy: linear\ncases:\n  a:\n    kernel: [debian:6.17, debian:6.17.13, debian:6.18, /boot/vmlinuz]\n    known:\n"+
		"      - {kernels: debian:6.17, reason: it leaks, where: issue 7}\n      - {kernels: [/boot/vmlinuz], reason: it is mine}\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range s.cases {
		got = append(got, c.KnownFailure())
	}
	if want := []string{"it leaks (issue 7)", "it leaks (issue 7)", "", "it is mine"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	got = nil
	for _, c := range s.cases { // a kernel that was built of the same source fails as it does, and the scenario's own case stays as it is
		c.RunOn("/built")
		got = append(got, c.KnownFailure())
		if c.Kernel != "/built" {
			t.Errorf("it runs on %s", c.Kernel)
		}
	}
	if want := []string{"it leaks (issue 7)", "it leaks (issue 7)", "", "it is mine"}; !slices.Equal(got, want) {
		t.Errorf("built: %q, want %q", got, want)
	}
	if n := len(s.cases[0].Known[0].Kernels); n != 1 {
		t.Errorf("it is known of %d kernels now", n)
	}
}
