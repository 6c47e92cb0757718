package cli

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"irqlab/images"
	"irqlab/lab/bisect"
	"irqlab/lab/build"
	"irqlab/lab/build/patch/gitrange"
	"irqlab/lab/try"
	"irqlab/scenarios/result"
)

// wholeSource is all of the source of the newest kernel. Its first build takes minutes, so that these tests are run only if they are asked for.
func wholeSource(t *testing.T) fs.FS {
	t.Helper()
	if os.Getenv("IRQLAB_WHOLE") == "" {
		t.Skip("IRQLAB_WHOLE is not set: it builds whole kernels")
	}
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := cache.Kernel(t.Context(), "debian:7.3", nil)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := build.New(cache, nil).Tree(t.Context(), kernel, build.KernelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return tree.FS()
}

// tried runs try and reads what it says as JSON.
func tried(t *testing.T, args ...string) (status int, trial try.Trial) {
	t.Helper()
	status, out, msg := irqlab(t, append([]string{"try", "--format", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &trial); err != nil {
		t.Fatalf("status %d, %v: %s%s", status, err, out, msg)
	}
	t.Log(msg)
	if k := trial.Kernels; k != nil && !k.With.Cached {
		scrap(t, k.With.Path)
	}
	return status, trial
}

// scrap takes a kernel that was built for the test out of the cache.
func scrap(t *testing.T, path string) {
	t.Cleanup(func() {
		if err := os.RemoveAll(path); err != nil {
			t.Error(err)
		}
	})
}

const (
	manage    = "kernel/irq/manage.c"
	hintsMask = `__irq_set_affinity\(irq, m, false\)` // of a hint: what the driver's masks come through
)

// A patch of the kernel's core that puts every hint on CPU 0 is worse, in the words of the facts; one that does not build tells where; one of which nothing is compiled is never called
// unchanged, and one that does nothing is.
func TestTryWhole(t *testing.T) {
	source := wholeSource(t)
	arm := "arch/arm64/kernel/irq.c"
	tree := filepath.Join(t.TempDir(), "linux")
	commits := commitsOf(t, tree, source, []string{manage, arm}, []change{
		{"genirq: a comment", map[string]func(string) string{manage: appended("/* irqlab */\n")}},
		{"genirq: simplify the hint", map[string]func(string) string{manage: replaced(t, hintsMask, "__irq_set_affinity(irq, cpumask_of(0), false)")}},
		{"genirq: what does not build", map[string]func(string) string{manage: appended("static int irqlab_test = irqlab_undeclared;\n")}},
		{"arm64: a comment", map[string]func(string) string{arm: appended("/* irqlab */\n")}},
	})
	of := func(i int) string { return fmt.Sprintf("git:%s@%s..%s", tree, commits[i-1], commits[i]) }

	status, trial := tried(t, of(2), "--case", "neighbour")
	if status != ExitFail || trial.Verdict.Word != try.WordWorse || trial.Kernels == nil || trial.Module != nil || len(trial.Cases) != 1 {
		t.Fatalf("all on CPU 0: status %d, %+v", status, trial.Verdict)
	}
	a, b := trial.Comparison.A.Cases[0], trial.Comparison.B.Cases[0]
	if a.Outcome != result.Pass || b.Outcome != result.Fail || !strings.HasSuffix(b.Command, " --kernel "+trial.Kernels.With.Path) || !strings.HasSuffix(a.Command, " --kernel "+trial.Kernels.Without.Path) {
		t.Errorf("without: %s by %s; with: %s by %s", a.Outcome, a.Command, b.Outcome, b.Command)
	}
	if status, trial := tried(t, of(1), "--case", "neighbour"); status != ExitPass || trial.Verdict.Word != try.WordUnchanged {
		t.Errorf("a comment: status %d, %+v", status, trial.Verdict)
	}
	if status, trial := tried(t, of(4)); status != ExitError || trial.Verdict.Word != try.WordUnknown || len(trial.Cases) > 0 || !slices.Equal(trial.Kernels.Unused, []string{arm}) {
		t.Errorf("another architecture: status %d, %+v", status, trial.Verdict)
	}
	all := "git:" + tree + "@" + commits[0] + ".."
	if status, trial := tried(t, all, "--case", "neighbour"); status != ExitError || trial.Verdict.Word != try.WordDoesNotBuild || len(trial.Errors) == 0 ||
		trial.Errors[0].File != manage || !strings.Contains(trial.Errors[0].Text, "irqlab_undeclared") {
		t.Errorf("what does not build: status %d, %+v: %+v", status, trial.Verdict, trial.Errors)
	}
}

// The RFC that has managed interrupts honour their device's node, which IRQLAB_MAILS has: one hunk needs a hand, which is told; with that hand's work, an NVMe disk's request queue comes to
// its disk's node.
func TestTryManagedNUMA(t *testing.T) {
	source := wholeSource(t)
	mail := filepath.Join(os.Getenv("IRQLAB_MAILS"), "genirq-managed-numa-rfc.txt")
	text, err := os.ReadFile(mail)
	if err != nil {
		t.Skip(err)
	}
	status, trial := tried(t, mail)
	misfits := slices.DeleteFunc(slices.Clone(trial.Hunks), func(h try.Hunk) bool { return h.Misfit == "" })
	if status != ExitError || trial.Verdict.Word != try.WordDoesNotApply || len(misfits) != 1 || misfits[0].Path != "kernel/irq/matrix.c" || !strings.Contains(strings.Join(trial.Verdict.Reasons, ""), "by hand") {
		t.Fatalf("as it is: status %d, %+v, %+v", status, trial.Verdict, misfits)
	}
	rebased := filepath.Join(t.TempDir(), "rebased.txt")
	if err := os.WriteFile(rebased, []byte(byHand(t, string(text), source)), 0o600); err != nil {
		t.Fatal(err)
	}
	status, trial = tried(t, rebased)
	if status != ExitPass || trial.Verdict.Word != try.WordBetter {
		t.Errorf("by hand: status %d, %+v", status, trial.Verdict)
	}
	for _, c := range trial.Cases {
		t.Logf("%s/%s: %s, better %q, worse %q, changed %q", c.Scenario, c.Case, c.Change, c.Better, c.Worse, c.Changed)
		if c.Case == "nvme-node-0" && c.Change != try.Better {
			t.Errorf("%s: %s", c.Case, c.Change)
		}
	}
}

// byHand does by hand what the mail's hunk that does not fit asks for: it adds a parameter to the definition.
func byHand(t *testing.T, mail string, source fs.FS) string {
	t.Helper()
	data, err := fs.ReadFile(source, "kernel/irq/matrix.c")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "int irq_matrix_alloc_managed(") })
	begin := strings.Index(mail, "@@ -280,")
	if i < 0 || begin < 0 {
		t.Fatal("neither the function nor the hunk are what they were")
	}
	end := begin + strings.Index(mail[begin:], "\n@@ ") + 1
	more := strings.Replace(lines[i+1], "unsigned int *", "int node, unsigned int *", 1)
	hunk := fmt.Sprintf("@@ -%d,3 +%[1]d,3 @@\n %s\n-%s\n+%s\n %s\n", i+1, lines[i], lines[i+1], more, lines[i+2])
	return mail[:begin] + hunk + mail[end:]
}

// Of a range in which the driver's module is the same, whole kernels tell the first bad commit, each built from what the good end's left.
func TestBisectWhole(t *testing.T) {
	source := wholeSource(t)
	tree := filepath.Join(t.TempDir(), "linux")
	if err := os.CopyFS(tree, source); err != nil {
		t.Fatal(err)
	}
	for _, date := range []string{"GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"} { // the same commits each time, so that the good end is built once
		t.Setenv(date, "2026-01-01T00:00:00Z")
	}
	gitIn(t, tree, "init", "-q", "-b", "main")
	gitIn(t, tree, "add", "-A", "-f")
	var commits []string
	for _, c := range []change{
		{"linux: as it is", nil},
		{"Documentation: how to read it", map[string]func(string) string{"Documentation/index.rst": appended("More\n")}},
		{"genirq/matrix: a comment", map[string]func(string) string{"kernel/irq/matrix.c": appended("/* irqlab */\n")}},
		{"genirq: simplify the hint", map[string]func(string) string{manage: replaced(t, hintsMask, "__irq_set_affinity(irq, cpumask_of(0), false)")}},
		{"genirq/chip: half of a change", map[string]func(string) string{"kernel/irq/chip.c": appended("static int irqlab_test = irqlab_undeclared;\n")}},
		{"genirq/chip: the other half", map[string]func(string) string{"kernel/irq/chip.c": replaced(t, `(?m)^static int irqlab_test = .*\n`, "/* irqlab */\n")}},
	} {
		for name, edit := range c.of {
			path := filepath.Join(tree, name)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(edit(string(data))), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		gitIn(t, tree, "commit", "-q", "-a", "-m", c.subject)
		commits = append(commits, gitIn(t, tree, "rev-parse", "HEAD"))
	}
	status, out, msg := irqlab(t, "bisect", "--whole", "--good", commits[0], "--tree", tree, "--case", "1x4x1", "--format", "json")
	t.Log(msg)
	var found bisect.Bisection
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		t.Fatalf("status %d, %v: %s", status, err, out)
	}
	if status != ExitPass || found.FirstBad == nil || found.FirstBad.Name != commits[3] || !found.Whole || found.Range.OfModule != 4 {
		t.Errorf("status %d, first bad %+v, %+v, %+v", status, found.FirstBad, found.Verdict, found.Range)
	}
	for _, s := range found.Steps {
		t.Logf("%s %s %s: %.0f s, %.0f s", s.Verdict, s.Name[:12], s.Subject, s.Seconds.Build, s.Seconds.Cases)
		if s.Kernel != "" && s.Name != commits[0] {
			scrap(t, s.Kernel)
		}
		if (s.Verdict == gitrange.Skip) != (s.Name == commits[4]) {
			t.Errorf("%s: %s %q", s.Subject, s.Verdict, s.Reasons)
		}
	}
}
