package labtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"irqlab/lab/labtest"
)

// subject chooses what TestSubject does, in a process of its own: the ends of a test are its subject.
const subject = "IRQLAB_TEST_SUBJECT"

func TestSubject(t *testing.T) {
	switch os.Getenv(subject) {
	case "":
		t.Skip("run by TestOutcomes")
	case "outcomes":
		labtest.RunScenario(t, "testdata/outcomes.yaml")
	case "mistake":
		labtest.RunScenario(t, "low-vcpu", labtest.Case("linaer"))
	case "kernel":
		labtest.RunScenario(t, "low-vcpu", labtest.Case("linear"), labtest.Kernel("/no/such/kernel"))
	default:
		labtest.RunScenario(t, "low-vcpu", labtest.Case("linear"))
	}
}

// Each outcome is what it should be to package testing, and what cannot be run says why.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	artifacts := t.TempDir()
	for name, tc := range map[string]struct {
		vm   bool
		env  []string
		args []string
		want []string // lines of go test -v, as regular expressions
	}{
		"outcomes": {true, nil, []string{"-test.artifacts", "-test.outputdir=" + artifacts}, []string{
			`--- FAIL: TestSubject `, `--- PASS: TestSubject/good `, `--- FAIL: TestSubject/bad `, `.*no queue vectors are clustered, expected a cluster`, `--- SKIP: TestSubject/nothing `, `.*observed only: the case expects nothing`,
		}},
		"chosen":      {true, nil, []string{"-test.run=TestSubject/lin"}, []string{`--- PASS: TestSubject/linear `}},
		"no time":     {false, nil, []string{"-test.timeout=10s"}, []string{`--- FAIL: TestSubject/linear `, `.*the time of the test is over`}},
		"short":       {false, nil, []string{"-test.short"}, []string{`--- SKIP: TestSubject `, `.*boots virtual machines \(-short\)`}},
		"no go":       {false, []string{"PATH=" + empty, "IRQLAB_CACHE=" + filepath.Join(empty, "cache")}, nil, []string{`--- SKIP: TestSubject `, `.*no VM can be had here: .*no Go toolchain`}},
		"no go in CI": {false, []string{"PATH=" + empty, "IRQLAB_CACHE=" + filepath.Join(empty, "cache"), labtest.RequireVariable + "=1"}, nil, []string{`--- FAIL: TestSubject `, `.*no Go toolchain`}},
		"mistake":     {false, nil, nil, []string{`--- FAIL: TestSubject `, `.*did you mean "linear"\?`}},
		"kernel":      {false, nil, nil, []string{`--- FAIL: TestSubject/linear `, `.*/no/such/kernel`}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.vm && testing.Short() {
				t.Skip("boots virtual machines")
			}
			cmd := exec.CommandContext(t.Context(), self, append([]string{"-test.v", "-test.run=TestSubject"}, tc.args...)...)
			cmd.Env = append(os.Environ(), subject+"="+name, labtest.RequireVariable+"=")
			cmd.Env = append(cmd.Env, tc.env...)
			out, _ := cmd.CombinedOutput() // its status is in what it says
			for _, want := range tc.want {
				if !regexp.MustCompile(`(?m)^ *` + want).Match(out) {
					t.Errorf("no line %q in\n%s", want, out)
				}
			}
		})
	}
	if testing.Short() {
		return
	}
	var kept []string
	err = filepath.WalkDir(artifacts, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			kept = append(kept, filepath.Base(filepath.Dir(path))+"/"+d.Name())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"good/console.log", "good/timeline.jsonl", "good/trace.jsonl", "bad/console.log", "/results.txt", "/results.json", "/results.md"} {
		if !slices.ContainsFunc(kept, func(file string) bool { return strings.HasSuffix(file, want) }) {
			t.Errorf("no artifact %s in %q", want, kept)
		}
	}
}
