package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Where irqlab was built there is nothing any more: the command has its agent's source with it, a program that uses the lab says how it comes by one, and who has no Go learns so before anything
// is fetched.
func TestSourceMovedAway(t *testing.T) {
	t.Parallel()
	images, err := filepath.Abs("../../images")
	if err != nil {
		t.Fatal(err)
	}
	bin, elsewhere := t.TempDir(), t.TempDir()
	// To be built elsewhere takes a minute of compiling; it is to have another name for the place that makes a difference.
	gone := "-gcflags=irqlab/images=-trimpath=" + images + "=>" + filepath.Join(elsewhere, "gone", "images")
	for _, args := range [][]string{{"build", gone, "-o", filepath.Join(bin, "irqlab"), "irqlab"}, {"test", "-c", gone, "-o", filepath.Join(bin, "gotest"), "irqlab/docs/gotest"}} {
		if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v: %s", args, err, out)
		}
	}
	// run starts one of them somewhere else, with a cache of its own unless the user's is asked for.
	run := func(program, cache string, env []string, args ...string) (int, string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, program), args...)
		cmd.Dir = elsewhere
		cmd.Env = append(os.Environ(), env...)
		if cache != "" {
			cmd.Env = append(cmd.Env, "IRQLAB_CACHE="+cache)
		}
		out, err := cmd.CombinedOutput()
		if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}

	cache := filepath.Join(t.TempDir(), "cache")
	noGo, noSource := "PATH="+t.TempDir(), "IRQLAB_SOURCE="+elsewhere
	unspaced := func(s string) string { return strings.Join(strings.Fields(s), "") } // lines are broken where they end
	for _, tc := range []struct {
		env    []string
		args   string
		status int
		says   []string
	}{
		{nil, "doctor", -1, []string{"ok    source         of the guest's agent: " + filepath.Join(cache, "source"), "(this irqlab carries it)", "ok    go             go1."}},
		{[]string{noGo}, "doctor", ExitFail, []string{"ok    source ", "fail  go ", "-> install Go"}},
		{[]string{noSource}, "doctor", ExitFail, []string{"fail  source         of the guest's agent: IRQLAB_SOURCE: ", "-> see irqlab --version, check that version out, and set IRQLAB_SOURCE"}},
		{[]string{noGo}, "run", ExitError, []string{"no Go toolchain", "put go in PATH"}},
		{[]string{noGo}, "run spread --bisect --kernel .", ExitStop, []string{"no Go toolchain"}},
		{[]string{noSource}, "run", ExitError, []string{"the source of the guest agent was not found: IRQLAB_SOURCE: ", "or unset it"}},
		{[]string{noGo}, "shell", ExitError, []string{"no Go toolchain"}},
	} {
		status, out := run("irqlab", cache, tc.env, strings.Fields(tc.args)...)
		if status != tc.status && tc.status >= 0 {
			t.Errorf("%v irqlab %s: status %d, want %d: %s", tc.env, tc.args, status, tc.status, out)
		}
		for _, want := range tc.says {
			if !strings.Contains(unspaced(out), unspaced(want)) {
				t.Errorf("%v irqlab %s does not say %q: %s", tc.env, tc.args, want, out)
			}
		}
	}
	for _, kind := range []string{"qemu", "kernel", "apt"} {
		if found, _ := filepath.Glob(filepath.Join(cache, kind, "*")); found != nil {
			t.Errorf("for nothing: %v", found)
		}
	}

	if status, out := run("gotest", cache, nil, "-test.run=Strategies"); status != ExitFail || !strings.Contains(out, "the source of the guest agent was not found: ") ||
		!strings.Contains(out, "set IRQLAB_SOURCE to a checkout of irqlab, of this irqlab's version") {
		t.Errorf("a program that uses the lab: status %d: %s", status, out)
	}

	if testing.Short() {
		t.Skip("the rest boots a virtual machine")
	}
	if status, out := run("irqlab", "", nil, "run", "low-vcpu", "--case", "linear"); status != ExitPass || !strings.Contains(out, "low-vcpu/linear: pass") {
		t.Errorf("status %d: %s", status, out)
	}
}
