package scenarios

import (
	"slices"
	"strings"
	"testing"

	"irqlab/guestagent/cpulist"
	"irqlab/scenarios/result"
)

func list(s string) cpulist.List {
	l, err := cpulist.Parse(s)
	if err != nil {
		panic(err)
	}
	return l
}

// settled makes a result of four CPUs with the HWC on CPU 0; each queue is "effective" or "effective/requested".
func settled(queues ...string) result.Case {
	vectors := []result.Vector{{Role: result.RoleHWC, Affinity: list("0-1"), Effective: list("0")}}
	for i, q := range queues {
		effective, requested, ok := strings.Cut(q, "/")
		if !ok {
			requested = effective
		}
		v := result.Vector{Index: i + 1, Role: result.RoleQueue, Affinity: list(requested), Effective: list(effective)}
		v.Pending = !v.Effective.Within(v.Affinity)
		vectors = append(vectors, v)
	}
	return result.Case{Strategy: "linear", Branch: "linear", Observations: []result.Observation{result.Observe(LabelSettled, list("0-3"), vectors)}}
}

func TestCheck(t *testing.T) {
	with := func(c result.Case, change func(*result.Case)) result.Case { change(&c); return c }
	vector := func(index int, change func(*result.Vector)) func(*result.Case) {
		return func(c *result.Case) { change(&c.Observations[0].Vectors[index]) }
	}
	for _, tc := range []struct {
		what   string
		expect string // YAML below expect
		got    result.Case
		want   []string
	}{
		{"nothing expected", "{}", settled("0", "1", "2", "3"), nil},
		{"all of it", `{branch: linear, settled: {online: 0-3, vectors: 5, hwc: 0, queues: [0, 1, 2, 3], hwc-mask: 0-1, queue-masks: [0, 1, 2, 3], queue-hints: ['', '', '', ''], ` +
			`clustered: false, idle-cpus: '', own-cpu: true, queues-within: 0-3, pending: none, offline-cpus: unused}}`, settled("0", "1", "2", "3"), nil},
		{"branch", "{branch: linear}", with(settled("0"), func(c *result.Case) { c.Branch = "numa-aware" }),
			[]string{`Strategy linear took the branch "numa-aware", expected "linear".`}},
		{"branch of a driver", "{branch: linear}", with(settled("0"), func(c *result.Case) { c.Strategy, c.Branch = "", "numa-aware" }),
			[]string{`The driver took the branch "numa-aware", expected "linear".`}},
		{"unused", "{settled: {unused: 0, hwc-mask: 0-1}}", with(settled("0", "1/3"), func(c *result.Case) { c.Observations[0].Vectors[2].Role = result.RoleUnused }),
			[]string{"settled: the number of unused vectors is 1, expected 0.", "settled: vector 2 is on CPU 1 and has not moved to its mask 3, expected every vector to have settled."}},
		{"hwc", "{settled: {hwc: 2}}", settled("0"), []string{"settled: the HWC vector is on CPU 0, expected 2."}},
		{"queues", "{settled: {queues: [0, 1, 2, 3]}}", settled("0", "1", "0", "3"), []string{"settled: the queue vectors are on CPUs 0, 1, 0, 3, expected 0, 1, 2, 3."}},
		{"too few queues", "{settled: {queues: [0, 1, 2, 3]}}", settled("0"), []string{"settled: the queue vectors are on CPUs 0, expected 0, 1, 2, 3."}},
		{"no queues", "{settled: {queues: [0, 1, 2, 3]}}", settled(), []string{"settled: the queue vectors are on CPUs none, expected 0, 1, 2, 3."}},
		{"masks", "{settled: {hwc-mask: 0, queue-masks: [0-1, 2-3, '0,2', 3]}}", settled("0/0-1", "2/2-3", "0/0-1", "3"), []string{
			"settled: the HWC vector's requested mask is 0-1, expected 0.",
			"settled: the queue vectors' requested masks are 0-1, 2-3, 0-1, 3, expected 0-1, 2-3, [0,2], 3."}},
		{"hints", "{settled: {queue-hints: [0, 1, 2, 3]}}", settled("0", "1", "2", "3"), []string{
			"settled: the queue vectors' affinity hints are [], [], [], [], expected 0, 1, 2, 3."}},
		{"clustered", "{settled: {clustered: false, idle-cpus: '', own-cpu: true}}", settled("0", "2", "0", "3"), []string{
			"settled: queue vectors are clustered on CPU 0 while CPU 1 has none, expected no cluster.",
			"settled: the CPUs without a queue vector are 1, expected none.",
			"settled: CPU 0 has more than one queue vector, expected a CPU for each."}},
		{"not clustered", "{settled: {clustered: true, idle-cpus: 1, own-cpu: false}}", settled("0", "1", "2", "3"), []string{
			"settled: no queue vectors are clustered, expected a cluster.",
			"settled: the CPUs without a queue vector are none, expected 1.",
			"settled: each queue vector has a CPU of its own, expected some to share one."}},
		{"within", "{settled: {queues-within: 0-1}}", settled("0", "1", "2", "3"), []string{
			"settled: queue vector 3 is on CPU 2, expected it within 0-1.", "settled: queue vector 4 is on CPU 3, expected it within 0-1."}},
		{"vectors and online", "{settled: {vectors: online+1, online: 0-2}}", settled("0"), []string{
			"settled: CPUs 0-3 are online, expected 0-2.", "settled: the function has 2 vectors, expected 5."}},
		{"pending, by rule", "{}", settled("0/3"), []string{"settled: vector 1 is on CPU 0 and has not moved to its mask 3, expected every vector to have settled."}},
		{"pending, lifted", "{settled: {pending: any}}", settled("0/3"), nil},
		{"dropped", "{settled: {queues-within: 0-1}}", with(settled("0/0-1", "0"), vector(1, func(v *result.Vector) { v.Asked, v.Dropped = list("1"), true })),
			[]string{"settled: vector 1: asked for 1, the kernel kept 0-1."}},
		{"refused", "{}", with(settled("0"), vector(1, func(v *result.Vector) { v.Asked, v.Dropped, v.Refused = list("1"), true, "no space left on device" })),
			[]string{"settled: vector 1: asked for 1, the kernel refused it (no space left on device) and kept 0."}},
		{"dropped, expected", "{settled: {dropped: 1}}", with(settled("0/0-1", "0"), vector(1, func(v *result.Vector) { v.Asked, v.Dropped = list("1"), true })), nil},
		{"kept, expected to be dropped", "{settled: {dropped: 1-2}}", with(settled("0", "1"), vector(1, func(v *result.Vector) { v.Asked, v.Dropped = list("1"), true })),
			[]string{"settled: vector 2: the kernel has 1 as it was asked for, expected it dropped."}},
		{"one that there is not", "{settled: {dropped: '1,4'}}", with(settled("0/0-1", "0"), vector(1, func(v *result.Vector) { v.Asked, v.Dropped = list("1"), true })),
			[]string{"settled: vector 4 is not there, expected its mask dropped."}},
		{"another dropped", "{settled: {dropped: 2}}", with(settled("0/0-1", "0"), vector(1, func(v *result.Vector) { v.Asked, v.Dropped = list("1"), true })),
			[]string{"settled: vector 1: asked for 1, the kernel kept 0-1.", "settled: vector 2: the kernel has 0 as it was asked for, expected it dropped."}},
		{"asked and requested differ, since CPUs left", "{}", with(settled("0/0-1"), vector(1, func(v *result.Vector) { v.Asked = list("3") })), nil},
		{"an effective mask that lies", "{settled: {queues: [3, 0, 1, 2]}}", with(settled("3", "0", "1", "2"), vector(1, func(v *result.Vector) { v.Handled, v.Unsettled = list("0-2"), true })),
			[]string{"settled: vector 1: the kernel says that it is routed to CPU 3, and handled what was fired last on CPUs 0-2."}},
		{"a contradiction cannot be lifted", "{settled: {pending: any}}", with(settled("3"), vector(1, func(v *result.Vector) { v.Handled = list("0") })),
			[]string{"settled: vector 1: the kernel says that it is routed to CPU 3, and handled what was fired last on CPU 0."}},
		{"handled nobody knows where", "{}", with(settled("3"), vector(1, func(v *result.Vector) { v.Unsettled = true })),
			[]string{"settled: vector 1 did not settle: on none of the CPUs online did its count rise when it was handled."}},
		{"handled where it should be", "{}", with(settled("3"), vector(1, func(v *result.Vector) { v.Handled = list("3") })), nil},
		{"offline, by rule", "{}", settled("5"), []string{"settled: vector 1 is on CPU 5, which is offline, expected only 0-3."}},
		{"offline, lifted", "{settled: {offline-cpus: any}}", settled("5"), nil},
		{"log, by rule", "{}", with(settled("0"), func(c *result.Case) { c.KernelLog.Warnings = []string{"WARNING: CPU: 1 PID: 1 at x.c:1\nmore"} }),
			[]string{"The kernel log has a warning, expected none: WARNING: CPU: 1 PID: 1 at x.c:1."}},
		{"log, lifted", "{log: any}", with(settled("0"), func(c *result.Case) { c.KernelLog.Warnings = []string{"WARNING"} }), nil},
		{"no observation", "{}", result.Case{}, []string{`There is no observation "settled", expected one.`}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			s, err := Load("f.yaml", []byte("name: x\nstrategy: linear\nexpect: "+tc.expect+"\n"))
			if err != nil {
				t.Fatal(err)
			}
			if got := s.cases[0].Expect.Check(tc.got); !slices.Equal(got, tc.want) {
				t.Errorf("got\n %s\nwant\n %s", strings.Join(got, "\n "), strings.Join(tc.want, "\n "))
			}
		})
	}
}
