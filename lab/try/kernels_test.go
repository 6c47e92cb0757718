package try

import (
	"slices"
	"strings"
	"testing"

	"irqlab/lab/report"
	"irqlab/scenarios"
)

// That nothing differs says nothing of files that are in no kernel: such a patch is never called unchanged. What was seen to be otherwise stays so.
func TestUnseen(t *testing.T) {
	files := []string{"arch/arm64/kernel/irq.c", "drivers/x.c"}
	for _, tc := range []struct {
		word  Word
		files []string
		want  Word
	}{
		{WordUnchanged, nil, WordUnchanged},
		{WordUnchanged, files, WordUnknown},
		{WordBetter, files, WordBetter},
		{WordChanged, files, WordChanged},
		{WordWorse, files, WordWorse},
		{WordFails, files, WordFails},
	} {
		v := Verdict{Word: tc.word}.Unseen(tc.files)
		if v.Word != tc.want {
			t.Errorf("%s with %d files unseen: %+v, want %s", tc.word, len(tc.files), v, tc.want)
		}
		if tc.want == WordUnknown && (v.Status != report.ExitError || !strings.Contains(strings.Join(v.Reasons, ""), strings.Join(files, ", "))) {
			t.Errorf("%+v", v)
		}
	}
}

// A whole kernel is asked what has nothing to do with its driver, too, and a shipped case of such is held to no version's placement.
func TestAskWhole(t *testing.T) {
	sc, err := scenarios.Get("low-vcpu")
	if err != nil {
		t.Fatal(err)
	}
	cases, _, err := sc.Plan(scenarios.Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(Ask(cases, false)); n != 0 {
		t.Errorf("the driver is asked %d cases of user space", n)
	}
	asked := Ask(slices.Clone(cases), true)
	if len(asked) != len(cases) {
		t.Errorf("%d cases of %d", len(asked), len(cases))
	}
	for i := range asked {
		if asked[i].Judges() {
			t.Errorf("%s is held to where its vectors come to lie", asked[i].Name)
		}
	}
}
