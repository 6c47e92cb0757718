package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"irqlab/images"
	"irqlab/lab/build"
	"irqlab/lab/try"
	"irqlab/scenarios/result"
)

// behindIncludes is a patch that adds a line behind the last #include of a file, with what stands there as its context.
func behindIncludes(t *testing.T, src *build.Source, path, line string) string {
	t.Helper()
	data, err := fs.ReadFile(src.FS(), path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	at := 0
	for i, l := range lines {
		if strings.HasPrefix(l, "#include") {
			at = i + 1
		}
	}
	const context = 3
	patch := fmt.Sprintf("--- a/%s\n+++ b/%[1]s\n@@ -%[2]d,%[3]d +%[2]d,%[4]d @@\n", path, at-context+1, 2*context, 2*context+1)
	for _, l := range lines[at-context : at] {
		patch += " " + l + "\n"
	}
	patch += "+" + line + "\n"
	for _, l := range lines[at : at+context] {
		patch += " " + l + "\n"
	}
	return patch
}

// sourceOfDriver is the source of the driver of the newest kernel.
func sourceOfDriver(t *testing.T) *build.Source {
	t.Helper()
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := cache.Kernel(t.Context(), "debian:7.3", nil)
	if err != nil {
		t.Fatal(err)
	}
	src, err := build.New(cache, nil).Source(t.Context(), kernel, try.ModuleDir)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// A driver that puts all its vectors on one CPU is worse, in the words of the facts; a patch that does not build tells where and why; each form of the verdict says the same. The
// changes are made here, of the fetched source: no text of the kernel's is in this repository.
func TestTry(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a module and boots virtual machines")
	}
	t.Parallel()
	src := sourceOfDriver(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const file = try.ModuleDir + "/gdma_main.c"
	wrong := write("wrong.diff", behindIncludes(t, src, file, "#define irq_set_affinity_and_hint(irq, mask) ((void)(mask), irq_set_affinity_and_hint(irq, cpumask_of(0)))"))
	broken := write("broken.diff", behindIncludes(t, src, file, "static int irqlab_test = irqlab_undeclared;"))

	// --check builds and runs nothing.
	if status, out, msg := irqlab(t, "try", "--check", wrong); status != ExitPass || !strings.Contains(out, "applies: 1 hunk") {
		t.Errorf("--check: status %d: %s%s", status, out, msg)
	}
	if status, out, _ := irqlab(t, "try", "--check", "--revert", wrong); status != ExitError || !strings.Contains(out, "leave --revert out") {
		t.Errorf("--check --revert: status %d: %s", status, out)
	}

	status, out, msg := irqlab(t, "try", broken, "--format", "json")
	var trial try.Trial
	if err := json.Unmarshal([]byte(out), &trial); err != nil {
		t.Fatalf("%v: %s%s", err, out, msg)
	}
	if status != ExitError || trial.Verdict.Word != try.WordDoesNotBuild || len(trial.Errors) == 0 || trial.Errors[0].File != file || trial.Errors[0].Line == 0 ||
		!strings.Contains(trial.Errors[0].Text, "irqlab_undeclared") {
		t.Errorf("what does not build: status %d, %+v: %+v", status, trial.Verdict, trial.Errors)
	}

	kept := filepath.Join(dir, "kept")
	status, out, msg = irqlab(t, "try", wrong, "--case", "neighbour", "--out", kept, "--format", "json")
	trial = try.Trial{}
	if err := json.Unmarshal([]byte(out), &trial); err != nil {
		t.Fatalf("%v: %s%s", err, out, msg)
	}
	if module := trial.Module; module != nil {
		t.Cleanup(func() { removeBuilt(t, trial) })
	}
	if status != ExitFail || trial.Verdict.Word != try.WordWorse || len(trial.Cases) != 1 {
		t.Fatalf("status %d, verdict %+v: %s", status, trial.Verdict, msg)
	}
	c := trial.Cases[0]
	if c.Change != try.Worse || !slices.ContainsFunc(c.Worse, func(s string) bool { return strings.Contains(s, "clustered, and was not before") }) || c.Fails == "" {
		t.Errorf("%s: worse %q, fails: %q", c.Change, c.Worse, c.Fails)
	}
	a, b := trial.Comparison.A.Cases[0], trial.Comparison.B.Cases[0]
	if a.Outcome != result.Pass || b.Outcome != result.Fail || len(a.Modules) != 0 || len(b.Modules) != 1 || b.Modules[0].SHA256 == "" || b.Modules[0].SHA256 != trial.Module.SHA256 {
		t.Errorf("without: %s with modules %+v; with: %s with modules %+v", a.Outcome, a.Modules, b.Outcome, b.Modules)
	}
	if a.Start != "warm" || b.Start != "warm" {
		t.Errorf("started %s and %s", a.Start, b.Start)
	}
	for _, name := range []string{resultsFile, trialFile, trialText, trialMail, "changed-driver/neighbour_with/console.log", "changed-driver/neighbour_without/console.log"} {
		if st, err := os.Stat(filepath.Join(kept, name)); err != nil || st.Size() == 0 {
			t.Errorf("--out: %s: %v", name, err)
		}
	}
	mail, err := os.ReadFile(filepath.Join(kept, trialMail))
	if err != nil || !strings.Contains(string(mail), "Again:   irqlab try ") || !strings.Contains(string(mail), "effective vCPU") {
		t.Errorf("%v: %s", err, mail)
	}
}

// A series of two commits, of which only the second one does something, is better where it changes what it is about, and leaves alone what it is not: the driver now spreads as it
// does with more vectors than CPUs.
func TestTrySeries(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a module and boots virtual machines")
	}
	t.Parallel()
	src := sourceOfDriver(t)
	tree := filepath.Join(t.TempDir(), "linux")
	const gdma, mark = try.ModuleDir + "/gdma_main.c", "irqlab_linear"
	commits := commitsOf(t, tree, src.FS(), modulePaths, []change{
		{"mana: a way to spread linearly", map[string]func(string) string{gdma: func(text string) string {
			text = replaced(t, `(num_msix_usable <= num_online_cpus\(\))`, "$1 && !"+mark)(text)
			at := strings.LastIndex(text, "#include ")
			return text[:at] + "#define " + mark + " false\n" + text[at:]
		}}},
		{"mana: spread linearly", map[string]func(string) string{gdma: replaced(t, mark+" false", mark+" true")}},
	})
	status, out, msg := irqlab(t, "try", "git:"+tree+"@"+commits[0]+"..", "--case", "neighbour", "--case", "node-1", "--format", "json")
	var trial try.Trial
	if err := json.Unmarshal([]byte(out), &trial); err != nil {
		t.Fatalf("%v: %s%s", err, out, msg)
	}
	if trial.Module != nil {
		t.Cleanup(func() { removeBuilt(t, trial) })
	}
	if status != ExitPass || trial.Verdict.Word != try.WordBetter || len(trial.Patches) != 2 || len(trial.Cases) != 2 {
		t.Fatalf("status %d, verdict %+v, %d patches: %s", status, trial.Verdict, len(trial.Patches), msg)
	}
	for _, c := range trial.Cases {
		want := map[string]try.Change{"neighbour": try.Unchanged, "node-1": try.Better}[c.Case]
		if c.Change != want {
			t.Errorf("%s: %s, want %s: better %q, worse %q, changed %q", c.Case, c.Change, want, c.Better, c.Worse, c.Changed)
		}
	}
}

// removeBuilt takes what was built for the test out of the cache.
func removeBuilt(t *testing.T, trial try.Trial) {
	for _, c := range trial.Comparison.B.Cases {
		for _, m := range c.Modules {
			if err := os.RemoveAll(filepath.Dir(m.File)); err != nil {
				t.Error(err)
			}
		}
	}
}

// What cannot be tried is told before anything is fetched: what is no patch is bad input, what changes nothing cannot be told.
func TestTryInput(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("IRQLAB_CACHE", filepath.Join(dir, "cache"))
	diff := func(path string) string {
		return fmt.Sprintf("--- a/%s\n+++ b/%[1]s\n@@ -1,2 +1,3 @@\n one\n+more\n two\n", path)
	}
	files := map[string]string{
		"kernel.diff": diff("kernel/irq/matrix.c"), "docs.diff": diff("Documentation/x.rst"), "text.txt": "no patch at all\n", "mana.diff": diff(try.ModuleDir + "/mana_en.c"),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	gitIn(t, dir, "init", "-q", "-b", "main", "tree")
	gitIn(t, filepath.Join(dir, "tree"), "commit", "-q", "--allow-empty", "-m", "x")
	t.Chdir(dir)
	for _, tc := range []struct {
		args   string
		status int
		want   string // on either stream
	}{
		{"try", ExitUsage, "requires at least 1 arg"},
		{"try no-such.diff", ExitUsage, "no-such.diff"},
		{"try text.txt", ExitUsage, "text.txt"},
		{"try git:no-such", ExitUsage, "no such folder"},
		{"try - -", ExitUsage, "given twice"},
		{"try mana.diff --format yaml", ExitUsage, "table, json, mail"},
		{"try mana.diff --case nieghbour", ExitUsage, `did you mean "neighbour"`},
		{"try mana.diff --scenario low-vcpu", ExitUsage, "no case of low-vcpu has to do with the kernel's driver"},
		{"try mana.diff --scenario low-vpcu", ExitUsage, `did you mean "low-vcpu"`},
		{"try mana.diff --shape cores=0", ExitUsage, "--shape"},
		{"try mana.diff --kernel debian:seven", ExitUsage, "starts with a digit"},
		{"try kernel.diff --kernel debian:seven", ExitUsage, "starts with a digit"},
		{"try kernel.diff --case nvme-node-9", ExitUsage, "nvme-node-0"},
		{"try mana.diff --debug lokdep", ExitUsage, "debugobjects, kasan"},
		{"try mana.diff --debug kasan,kcsan", ExitUsage, "together with kasan"},
		{"try mana.diff --kernel git:no-such@HEAD", ExitUsage, "no such folder"},
		{"try mana.diff --kernel tree", ExitUsage, "or a commit of a git tree: git:DIR@REV"},
		{"try mana.diff --kernel git:tree", ExitUsage, "names no commit"},
		{"try mana.diff --kernel git:tree@HEAD~1..HEAD", ExitUsage, "one commit is wanted"},
		{"try mana.diff --kernel git:tree@v7.2", ExitUsage, "there is no commit v7.2"},
		{"try docs.diff", ExitError, "changes nothing that boots"},
		{"try docs.diff --whole", ExitError, "changes nothing that boots"},
		{"run spread --kernel git:no-such@HEAD", ExitUsage, "no such folder"},
		{"run spread --kernel git:tree", ExitUsage, "names no commit"},
		{"run spread --kernel git:tree@..HEAD", ExitUsage, "two ends"},
		{"run spread --build", ExitUsage, "there is none: give --kernel DIR"},
		{"shell --build --kernel debian:7.3", ExitUsage, "there is none: give --kernel DIR"},
		{"compare --kernel git:tree@HEAD", ExitUsage, "two kernels are compared"},
	} {
		status, out, msg := irqlab(t, strings.Fields(tc.args)...)
		if status != tc.status || !strings.Contains(out+msg, tc.want) {
			t.Errorf("irqlab %s: status %d: %s%s; want %d and %q", tc.args, status, out, msg, tc.status, tc.want)
		}
	}
}

// A patch that changes more than the driver is checked against the whole source, here a commit's that has what one is known by: where it does not fit it is told what to do, and nothing is
// built.
func TestTryCheckWhole(t *testing.T) {
	if testing.Short() {
		t.Skip("fetches a toolchain")
	}
	dir := t.TempDir()
	tree := filepath.Join(dir, "linux")
	gitIn(t, dir, "init", "-q", "-b", "main", tree)
	const file = "kernel/irq/bell.c"
	for name, text := range map[string]string{"Makefile": "all:\n", "Kconfig": "", "arch/x86/Makefile": "", file: "one\ntwo\nthree\nfour\n"} {
		path := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	gitIn(t, tree, "add", "-A")
	gitIn(t, tree, "commit", "-q", "-m", "a bell")
	id := gitIn(t, tree, "rev-parse", "HEAD^{tree}")
	t.Cleanup(func() { // its source goes from the cache
		cache, err := images.OpenCache("")
		if err != nil {
			t.Fatal(err)
		}
		entries, err := cache.Entries(context.Background())
		for _, e := range entries {
			if strings.Contains(e.Name, id) {
				err = errors.Join(err, cache.Remove(context.Background(), e.Kind, e.Name))
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
	for name, tc := range map[string]struct {
		hunk   string
		status int
		want   string
	}{
		"fits":     {"@@ -1,4 +1,5 @@\n one\n two\n+and a half\n three\n four\n", ExitPass, "(1 exact)"},
		"misfit":   {"@@ -1,3 +1,4 @@\n one\n 2\n+and a half\n 3\n", ExitError, "rebase it to git:" + tree + "@HEAD by hand and give what comes of that"},
		"has it":   {"@@ -1,3 +1,4 @@\n one\n+two\n three\n four\n", ExitError, "has it already"},
		"new file": {"", ExitPass, "applies"},
	} {
		text := "--- a/" + file + "\n+++ b/" + file + "\n" + tc.hunk
		if tc.hunk == "" {
			text = "--- /dev/null\n+++ b/kernel/irq/new.c\n@@ -0,0 +1 @@\n+one\n"
		}
		diff := filepath.Join(dir, "x.diff")
		if err := os.WriteFile(diff, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		kept := filepath.Join(dir, "kept "+name)
		status, out, msg := irqlab(t, "try", "--check", diff, "--kernel", "git:"+tree+"@HEAD", "--out", kept)
		if words := strings.Join(strings.Fields(out), " "); status != tc.status || !strings.Contains(words, tc.want) {
			t.Errorf("%s: status %d: %s%s; want %d and %q", name, status, out, msg, tc.status, tc.want)
		}
		there, err := os.ReadFile(filepath.Join(kept, "there", file))
		original, oerr := os.ReadFile(filepath.Join(tree, file))
		if oerr != nil || (name == "misfit" || name == "has it") != (err == nil && bytes.Equal(there, original)) {
			t.Errorf("%s: the file as it stands: %q, %v", name, there, errors.Join(err, oerr))
		}
	}
}

// The command that does it again has what decides on the trial, quoted for a shell, and nothing of how it is shown.
func TestTryAgain(t *testing.T) {
	cmd := newTry(Streams{})
	if err := cmd.ParseFlags([]string{"--revert", "--case", "a b", "--case", "c", "--format", "json", "--out", "x", "--jobs", "2", "--shape", "cores=2", "--debug", "kasan,lockdep"}); err != nil {
		t.Fatal(err)
	}
	want := "irqlab try 'my mail.txt' --case 'a b' --case c --debug kasan --debug lockdep --kernel debian:7.3 --revert --shape 'cores=2'"
	if got := again(cmd, []string{"my mail.txt"}, nil, "kernel"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	whole := newTreeBisect(Streams{})
	if err := whole.ParseFlags([]string{"--whole", "--good", "v7.2"}); err != nil {
		t.Fatal(err)
	}
	if got, want := again(whole, nil, nil), "irqlab bisect --good v7.2 --whole"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
