package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"irqlab/images"
)

// What git bisect run is to take a command for that came to no verdict: to skip the commit, or to stop, but never a bad commit.
func TestBisectStatus(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "bzImage")
	if err := os.WriteFile(text, []byte("no kernel\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args string
		want int
		says string
	}{
		{"run spread --bisect --kernel " + dir, ExitError, "not a kernel build tree"},
		{"run spread --bisect --kernel " + text, ExitError, "not a usable kernel"},
		{"run spread --bisect --kernel " + dir + "/vmlinux", ExitError, "no such file"},
		{"run spread --bisect --format json --kernel " + dir, ExitError, "not a kernel build tree"},
		{"run spread --kernel " + dir, ExitUsage, "not a kernel build tree"},
		{"run spread --bisect=false --kernel " + dir, ExitUsage, "not a kernel build tree"},

		{"run spread --bisect --kernle .", ExitStop, `did you mean "--kernel"`},
		{"run spread --kernle . --bisect=true", ExitStop, `did you mean "--kernel"`},
		{"run spread --bisetc --kernel .", ExitStop, `did you mean "--bisect"`},
		{"run spread --bisect=perhaps", ExitStop, "--bisect"},
		{"run spraed --bisect", ExitStop, `did you mean "spread"`},
		{"rnu spread --bisect", ExitStop, "--bisect"},
		{"run spread --bisect --start wram", ExitStop, `did you mean "warm"`},
		{"run spread --bisect --kernel debian:seven", ExitStop, "starts with a digit"},
		{"run spread --bisect --qemu " + text, ExitStop, text},
		{"run low-vcpu --bisect --shape cpus=8", ExitStop, "case numa-aware would only be observed"},
		{"run low-vcpu --bisect --case linear --shape cpus=8 --expect clustered=false --kernel " + dir, ExitError, "not a kernel build tree"},
	} {
		status, out, msg := irqlab(t, strings.Fields(tc.args)...)
		if status != tc.want || out != "" || !strings.Contains(msg, tc.says) {
			t.Errorf("irqlab %s: status %d, stdout %q, stderr %q; want status %d, nothing on stdout, and %q", tc.args, status, out, msg, tc.want, tc.says)
		}
	}
}

// The commits of the history that TestBisect makes, oldest first: what each one's kernel is.
const (
	kernel73  = "debian:7.3"  // gives each CPU a queue
	kernel618 = "debian:6.18" // does not
	noBuild   = "fails"       // make does
	noKernel  = "text"        // is what make leaves where the kernel should be
)

// git begins in the middle, where both lie that have none, and then needs few of the others.
var history = []string{kernel73, kernel73, kernel73, kernel618, kernel618, noBuild, noKernel, kernel618, kernel618, kernel618, kernel618, kernel618}

// begun is when the first commit was made, in seconds since 1970: the commits' names hang on it, and which way git goes around what it skips on those. Two boots' worth this way.
const begun = 1_700_000_120

// makefile builds what stands in for a kernel: a tree as make leaves it, of a kernel that was built before. A make that fails leaves what there was.
const makefile = `include kernel.mk
all bzImage:
	@test "$(KERNEL)" != fails || { echo "init/main.c: error: this commit does not compile" >&2; exit 1; }
	@test -e .config # olddefconfig came before
	@rm -rf vmlinux kernel modules.order include/config/kernel.release
	@mkdir -p include/config
	@if test "$(KERNEL)" = text; then echo "ld: this is no kernel" > vmlinux; else \
		cp $(BUILT)/$(KERNEL)/vmlinux vmlinux && cp -rL $(BUILT)/$(KERNEL)/modules/kernel kernel && \
		find kernel -name '*.ko*' > modules.order && basename $$(readlink $(BUILT)/$(KERNEL)/modules) > include/config/kernel.release; fi
modules: bzImage
olddefconfig:
	@echo CONFIG_MICROSOFT_MANA=m > .config
`

// bisectLine finds the line that README has people type.
var bisectLine = regexp.MustCompile(`(?m)^    cd ~/linux && (git bisect run .*)$`)

// README's line finds the commit from which on the kernel's own driver leaves a CPU without a queue, by way of commits that do not build, or build no kernel.
func TestBisect(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	t.Parallel()
	for _, tool := range []string{"git", "make", "sh"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%v: the line needs it", err)
		}
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	found := bisectLine.FindSubmatch(readme)
	if found == nil {
		t.Fatalf("README has no line %s", bisectLine)
	}
	line := strings.ReplaceAll(string(found[1]), "~/irqlab/irqlab", program(t))

	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	built := t.TempDir()
	for _, spec := range []string{kernel73, kernel618} {
		k, err := cache.Kernel(t.Context(), spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(built, strings.TrimPrefix(spec, "debian:"))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, target := range map[string]string{"vmlinux": k.Image, "modules": k.ModulesDir} {
			if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}

	tree := t.TempDir()
	sh := func(command string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
		cmd.Dir = tree
		cmd.Env = append(os.Environ(), "BUILT="+built, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		return string(out)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(tree, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sh("git init -q")
	write("Makefile", makefile)
	write(".gitignore", ".config\nvmlinux\n/kernel/\nmodules.order\n/include/\n")
	for i, kernel := range history {
		write("kernel.mk", fmt.Sprintf("# %d\nKERNEL = %s\n", i, strings.TrimPrefix(kernel, "debian:")))
		sh(fmt.Sprintf("git add -A && GIT_AUTHOR_DATE='%[2]d +0000' GIT_COMMITTER_DATE='%[2]d +0000' git commit -qm 'commit %[1]d'", i, begun+60*i))
	}
	first := fmt.Sprintf("HEAD~%d", len(history)-1)
	sh("git checkout -q " + first + " && make olddefconfig all && git checkout -q -") // a good kernel is there when the first commit does not build
	sh("git bisect start HEAD " + first)
	out := sh(line)
	log := sh("git bisect log")
	defer func() {
		if t.Failed() {
			t.Logf("%s:\n%s\n%s", line, out, log)
		}
	}()

	judged := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# (good|bad|skip|first bad commit): \[\w+\] (commit \d+)$`).FindAllStringSubmatch(log, -1) {
		judged[m[2]] = m[1]
	}
	seen := map[string]int{}
	for i, kernel := range history {
		want := map[string]string{kernel73: "good", kernel618: "bad", noBuild: "skip", noKernel: "skip"}[kernel]
		if i == slices.Index(history, kernel618) {
			want = "first bad commit"
		}
		switch got := judged[fmt.Sprintf("commit %d", i)]; {
		case got == "" && want != "first bad commit": // git did not need it
		case got != want:
			t.Errorf("commit %d (%s): git has it for %q, want %q", i, kernel, got, want)
		default:
			seen[kernel]++
		}
	}
	for _, kernel := range []string{kernel73, kernel618, noBuild, noKernel} {
		if seen[kernel] == 0 {
			t.Errorf("no commit whose kernel %s was judged", kernel)
		}
	}
	if left := sh("git status --porcelain"); left != "" {
		t.Errorf("the tree is dirty: %s", left)
	}
}
