package truth

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"irqlab/guestagent/cpulist"
	"irqlab/images"
	"irqlab/lab"
	"irqlab/lab/runner"
	"irqlab/scenarios/result"
)

// again is a copy that shares nothing.
func again[T any](t *testing.T, v T) T {
	t.Helper()
	var out T
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A checker that cannot disagree proves nothing: of a real case, each fact and each claim is spoiled in turn, and each time that must be noticed.
func TestSpoiled(t *testing.T) {
	rule := &Rule{At: "vector:1", Nth: 1, Times: 1, Name: "late", Extra: "for: 20ms"}
	c := Case{Machine: machines[0], Driver: "vfio", Strategy: "linear", Vectors: 5, Steps: []Step{
		{Verb: "probe"}, {Verb: "vectors"}, {Verb: "delay", Rule: rule}, {Verb: "settle"}, {Verb: "observe", Name: "first"},
		{Verb: "storm", CPUs: cpulist.New(3), Rounds: 1}, {Verb: "settle"}, {Verb: "observe", Name: "last"}, {Verb: "expect", Want: &Want{Vectors: 5}},
	}}
	cases, err := planned(&c)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	rep, err := runner.Run(t.Context(), cases, runner.Options{Cache: cache, Start: lab.StartAuto, Jobs: 1, Out: out})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(rep.Cases[0])
	if err != nil {
		t.Fatal(err)
	}
	facts, claim, err := Read(out, text)
	if err != nil {
		t.Fatal(err)
	}
	v := Judge(&c, &facts, &claim)
	if d := v.Disagreements(&claim); len(d) > 0 || rep.Cases[0].Outcome != result.Pass {
		t.Fatalf("%s: %q, %q", rep.Cases[0].Outcome, rep.Cases[0].Reasons, d)
	}
	last := func(f *Facts) *Vector { return &f.Observations[1].Vectors[2] } // vector 2, which linear puts on CPU 1
	moved := func(f *Facts) {                                               // as if CPU 2 had handled vector 2 all the time
		v := last(f)
		v.Counts = map[int]uint64{2: v.Counts[1] + v.Counts[2] + v.Counts[0] + v.Counts[3]}
	}
	drop := func(f *Facts, kind, text string, vector int) {
		i := slices.IndexFunc(f.Trace, func(e Event) bool { return e.Kind == kind && strings.Contains(e.Text, text) && e.Vector == vector })
		if i < 0 {
			t.Fatalf("no %s %q of vector %d", kind, text, vector)
		}
		f.Trace = slices.Delete(f.Trace, i, i+1)
	}
	call := func(f *Facts, text string) {
		f.Trace = append(f.Trace, Event{Kind: "agent-call", Failed: 1, Text: text})
	}
	last2 := func(c *Case) *Want { return c.Steps[len(c.Steps)-1].Want }
	yes, none := true, cpulist.List{}
	for _, tc := range []struct {
		what  string
		spoil func(*Case, *Facts, *Claim)
		want  string
	}{
		{"counts of one CPU as another's", func(_ *Case, f *Facts, _ *Claim) { moved(f) }, "the trace has"},
		{"handled on another CPU", func(_ *Case, f *Facts, _ *Claim) {
			for i := range f.Trace {
				if e := &f.Trace[i]; e.Kind == "vector-read" && e.Vector == 2 && e.Effective == 0 {
					e.Handled += uint64(i) // it rises
				}
			}
		}, string(classElsewhere)},
		{"handled nowhere", func(_ *Case, f *Facts, _ *Claim) {
			for i := range f.Trace {
				if e := &f.Trace[i]; e.Kind == "vector-read" && e.Vector == 2 {
					e.Handled = 1
				}
			}
		}, string(classUnsettled)},
		{"effective", func(_ *Case, f *Facts, _ *Claim) { last(f).Effective = cpulist.New(2) }, string(classPending)},
		{"effective and requested", func(_ *Case, f *Facts, _ *Claim) {
			last(f).Effective, last(f).Requested = cpulist.New(2), cpulist.New(2)
		}, string(classDropped)},
		{"requested", func(_ *Case, f *Facts, _ *Claim) { last(f).Requested = cpulist.Range(0, 3) }, string(classDropped)},
		{"asked", func(_ *Case, f *Facts, _ *Claim) { last(f).Asked = cpulist.Range(0, 1) }, "strategy linear asks for"},
		{"a hint", func(c *Case, f *Facts, _ *Claim) {
			c.Driver, last(f).Hint = "mana", cpulist.New(3)
		}, `its hint "3"`},
		{"online", func(_ *Case, f *Facts, _ *Claim) { f.Observations[1].Online = cpulist.Range(0, 2) }, "by the steps it ought to be"},
		{"an effective CPU that is offline", func(_ *Case, f *Facts, _ *Claim) {
			f.Observations[1].Online = cpulist.List{0, 2, 3}
		}, string(classOffline)},
		{"an observation that is missing", func(_ *Case, f *Facts, _ *Claim) { f.Observations = f.Observations[:1] }, "nothing ended it"},
		{"one vector fewer", func(_ *Case, f *Facts, _ *Claim) {
			f.Observations[1].Vectors = f.Observations[1].Vectors[:4]
		}, string(classVectors)},
		{"one vector fewer, and nobody expects more", func(c *Case, f *Facts, _ *Claim) {
			last2(c).Vectors = 0
			f.Observations[1].Vectors = f.Observations[1].Vectors[:4]
		}, "4 vectors, and the device has 5"},
		{"a vector that was not assigned", func(_ *Case, f *Facts, _ *Claim) {
			f.Trace = slices.DeleteFunc(f.Trace, func(e Event) bool { return e.Kind == "vector-assign" && e.Vector == 4 })
		}, string(classRoom)},
		{"a signal that is missing", func(_ *Case, f *Facts, _ *Claim) { drop(f, "vector-fire", "", 3) }, "the device counts"},
		{"a signal that was not handled", func(_ *Case, f *Facts, _ *Claim) {
			i := slices.IndexFunc(f.Trace, func(e Event) bool { return e.Kind == "vector-fire" && e.Vector == 3 })
			f.Trace = slices.Insert(f.Trace, i, f.Trace[i])
			for n, k := i+1, f.Trace[i].Fired+1; n < len(f.Trace); n++ {
				if e := &f.Trace[n]; e.Kind == "vector-fire" && e.Vector == 3 {
					e.Fired = k
					k++
				}
			}
		}, "and was handled"},
		{"masks of the trace", func(_ *Case, f *Facts, _ *Claim) {
			for i := range f.Trace {
				f.Trace[i].Text = strings.Replace(f.Trace[i].Text, "requested 1,", "requested 0,", 1)
			}
		}, "the trace has asked"},
		{"a warning", func(_ *Case, f *Facts, _ *Claim) {
			f.Log = append(f.Log, "[  1.0] WARNING: CPU: 0 PID: 1 at kernel/irq/chip.c:1 f")
		}, string(classWarning)},
		{"a warning that is not there", func(_ *Case, _ *Facts, c *Claim) {
			c.Outcome, c.Reasons = fail, []string{"The kernel log has a warning, expected none: WARNING."}
		}, "nothing shows that"},
		{"a lost interrupt", func(_ *Case, f *Facts, _ *Claim) { call(f, "irq.await: no new interrupt within 10s on IRQ 30") }, string(classLost)},
		{"pressure that could not be", func(_ *Case, f *Facts, _ *Claim) { call(f, "pressure.occupy: no space left on device") }, "the pressure could not be brought up"},
		{"a CPU that would not leave", func(_ *Case, f *Facts, _ *Claim) { call(f, "cpu.set: device or resource busy") }, string(classRefused)},
		{"a call that failed", func(_ *Case, f *Facts, _ *Claim) { call(f, "irq.observe: the channel is closed") }, string(classLab)},
		{"a rule that was not hit", func(_ *Case, f *Facts, _ *Claim) { drop(f, "inject", "occurrence", 0) }, string(classUnreached)},
		{"a storm with a loss", func(_ *Case, f *Facts, _ *Claim) { f.Storms[0].Vectors[1].Handled-- }, string(classStorm)},
		{"a storm with one too many", func(_ *Case, f *Facts, _ *Claim) { f.Storms[0].Vectors[1].Handled++ }, string(classStorm)},
		{"a storm cut short", func(_ *Case, f *Facts, _ *Claim) { f.Storms[0].Rounds = 0 }, string(classStorm)},
		{"refused, expected", func(c *Case, _ *Facts, _ *Claim) { c.Steps[1].Refused = "no space" }, string(classAllowed)},
		{"what is expected: online", func(c *Case, _ *Facts, _ *Claim) { last2(c).Online = cpulist.Range(0, 2) }, string(classOnline)},
		{"what is expected: vectors", func(c *Case, _ *Facts, _ *Claim) { last2(c).Vectors = 4 }, string(classVectors)},
		{"what is expected: within", func(c *Case, _ *Facts, _ *Claim) { last2(c).Within = cpulist.Range(0, 2) }, string(classWithin)},
		{"what is expected: clustered", func(c *Case, _ *Facts, _ *Claim) { last2(c).Clustered = &yes }, string(classClustered)},
		{"what is expected: idle", func(c *Case, _ *Facts, _ *Claim) { l := cpulist.New(1); last2(c).Idle = &l }, string(classIdle)},
		{"what is expected: shared", func(c *Case, _ *Facts, _ *Claim) { no := false; last2(c).Own = &no }, string(classOwn)},
		{"what is expected: HWC", func(c *Case, _ *Facts, _ *Claim) { l := cpulist.New(3); last2(c).HWC = &l }, string(classHWC)},
		{"what is expected: queues", func(c *Case, _ *Facts, _ *Claim) { last2(c).Queues = []cpulist.List{{0}, {1}, {2}, {0}} }, string(classQueues)},
		{"what is expected: dropped", func(c *Case, _ *Facts, _ *Claim) { last2(c).Dropped = cpulist.New(1) }, string(classKept)},
		{"the outcome", func(_ *Case, _ *Facts, c *Claim) { c.Outcome = fail }, "the lab says fail, and it is pass"},
		{"observed, though something is expected", func(_ *Case, _ *Facts, c *Claim) { c.Outcome = observed }, "the lab says observed, and it is pass"},
		{"a doubt about what is well", func(_ *Case, _ *Facts, c *Claim) {
			c.Outcome, c.Reasons = failed, []string{withheld + "it stood still"}
		}, "the lab says error, and it is pass"},
		{"a storm that was ahead", func(_ *Case, f *Facts, _ *Claim) { f.Storms[0].Vectors[1].Ahead = 1 }, string(classStorm)},
		{"a reason", func(_ *Case, _ *Facts, c *Claim) { c.Reasons = []string{"It felt wrong."} }, "a reason of no known class"},
		{"clustered", func(_ *Case, _ *Facts, c *Claim) { c.Observations[0].Clustered = true }, "clustered true"},
		{"idle", func(_ *Case, _ *Facts, c *Claim) { c.Observations[0].Idle = cpulist.New(1) }, `idle "1"`},
		{"pending", func(_ *Case, _ *Facts, c *Claim) { c.Observations[0].Vectors[1].Pending = true }, "pending true"},
		{"dropped", func(_ *Case, _ *Facts, c *Claim) { c.Observations[0].Vectors[1].Dropped = true }, "dropped true"},
		{"handled", func(_ *Case, _ *Facts, c *Claim) { c.Observations[0].Vectors[1].Handled = none }, `handled on ""`},
		{"the branch", func(_ *Case, _ *Facts, c *Claim) { c.Branch = "siblings" }, "took the branch"},
		{"an artifact", func(_ *Case, _ *Facts, c *Claim) { c.Artifacts.Trace = "" }, "artifacts are missing"},
		{"warnings", func(_ *Case, _ *Facts, c *Claim) { c.KernelLog.Warnings = []string{"WARNING"} }, "the lab found 1 warnings"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			c, f, claim := again(t, c), again(t, facts), again(t, claim)
			tc.spoil(&c, &f, &claim)
			v := Judge(&c, &f, &claim)
			if got := strings.Join(v.Disagreements(&claim), "\n"); !strings.Contains(got, tc.want) {
				t.Errorf("%q is not in\n%s", tc.want, got)
			}
		})
	}
}
