package truth

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"irqlab/images"
	"irqlab/lab"
	"irqlab/lab/runner"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// batch is how many cases run between two lines of progress.
const batch = 50

// TestSoak runs random cases (IRQLAB_CASES, IRQLAB_SEED) and holds each outcome against what the facts say.
func TestSoak(t *testing.T) {
	seed, count, few := uint64(22), 6, true
	if s := os.Getenv("IRQLAB_CASES"); s != "" {
		count, few = int(number(t, s)), false
		seed = rand.Uint64N(1 << 32)
	}
	if s := os.Getenv("IRQLAB_SEED"); s != "" {
		seed = number(t, s)
	}
	kept, err := os.MkdirTemp("", "irqlab-truth-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(kept) }) // unless something is in it
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d, %d cases; those with a disagreement are kept in %s", seed, count, kept)
	tally := map[string]map[string]int{}
	began := time.Now()
	for first := 0; first < count; first += batch {
		list := make([]Case, 0, batch)
		for n := first; n < min(first+batch, count); n++ {
			list = append(list, Generate(seed, n, few))
		}
		out := filepath.Join(kept, "batch")
		bad, classes := runBatch(t, cache, list, out, tally)
		if err := os.RemoveAll(out); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d of %d cases after %s: %d disagreements in the last %d; %s", first+len(list), count, time.Since(began).Round(time.Second), bad, len(list), classes)
	}
	for _, row := range slices.Sorted(maps.Keys(tally)) {
		t.Logf("%-16s %v", row, tally[row])
	}
}

func number(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// runBatch runs cases and judges them; what is odd is kept beside out.
func runBatch(t *testing.T, cache *images.Cache, list []Case, out string, tally map[string]map[string]int) (bad int, classes string) {
	t.Helper()
	if err := os.MkdirAll(out, 0o700); err != nil {
		t.Fatal(err)
	}
	var cases []scenarios.Case
	for i := range list {
		p, err := planned(&list[i])
		if err != nil {
			t.Fatalf("%v\n%s", err, list[i].YAML())
		}
		cases = append(cases, p...)
	}
	rep, err := runner.Run(t.Context(), cases, runner.Options{Cache: cache, Start: lab.StartAuto, Jobs: 2, Out: out})
	if err != nil {
		t.Fatal(err)
	}
	why := map[Class]int{}
	for i := range list {
		c := &list[i]
		v, disagreements := weigh(t, c, rep.Cases[i], out)
		row := c.Driver + " " + c.Machine.Irqchip
		if tally[row] == nil {
			tally[row] = map[string]int{}
		}
		tally[row][string(rep.Cases[i].Outcome)]++
		for class := range v.Why {
			why[class]++
		}
		if len(disagreements) > 0 {
			bad++
			keep(t, c, rep.Cases[i], out, disagreements)
		}
	}
	return bad, fmt.Sprint(why)
}

// weigh judges a case that has run.
func weigh(t *testing.T, c *Case, r result.Case, out string) (Verdict, []string) {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	f, claim, err := Read(out, text)
	if err != nil {
		return Verdict{}, []string{err.Error()}
	}
	v := Judge(c, &f, &claim)
	return v, v.Disagreements(&claim)
}

// keep moves the files of a case out of the way of the next batch, and tells both views.
func keep(t *testing.T, c *Case, r result.Case, out string, disagreements []string) {
	t.Helper()
	dir := filepath.Join(filepath.Dir(out), c.ID())
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.Rename(filepath.Join(out, c.ID()), dir)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "case.yaml"), []byte(c.YAML()), 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "result.json"), text, 0o600)
	}
	if err != nil {
		t.Error(err)
	}
	t.Errorf("case %d of seed %d:\n  %s\nthe lab: %s\n  %s\nagain: irqlab run --start auto --out results %s/case.yaml, which is\n%s", c.Number, c.Seed,
		brief(disagreements), r.Outcome, brief(r.Reasons), dir, c.YAML())
}

// brief leaves out what an error has gathered about a guest; result.json has it.
func brief(lines []string) string {
	const most = 400
	out := make([]string, len(lines))
	for i, l := range lines {
		if out[i] = l; len(l) > most {
			out[i] = l[:most] + "…"
		}
	}
	return strings.Join(out, "\n  ")
}
