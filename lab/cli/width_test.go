package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"irqlab/images"
	"irqlab/lab/layout"
	"irqlab/scenarios/result"
)

// fits complains of the lines of a text that are longer than so many columns.
func fits(t *testing.T, what, text string, columns int) {
	t.Helper()
	if text == "" {
		t.Errorf("%s is empty", what)
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if w := layout.Width(line); w > columns {
			t.Errorf("%s: %d columns, want %d at most: %q", what, w, columns, line)
		}
		if strings.HasSuffix(line, " ") {
			t.Errorf("%s: a space at the end of %q", what, line)
		}
	}
}

// TestHelpFits walks all commands: none of their help is wider than the terminal, be it one of 80 columns or not, and
// it tells of each flag.
func TestHelpFits(t *testing.T) {
	n := 0
	var walk func(cmd *cobra.Command, path []string)
	walk = func(cmd *cobra.Command, path []string) {
		n++
		for _, columns := range []int{72, 80, 100, 120} {
			cmd.InitDefaultHelpFlag()
			fits(t, cmd.CommandPath()+" --help", helpText(cmd, columns), columns)
		}
		status, out, errs := irqlab(t, append(path, "--help")...)
		if status != ExitPass || errs != "" {
			t.Errorf("irqlab %v --help: status %d, stderr %q", path, status, errs)
		}
		fits(t, fmt.Sprintf("irqlab %v --help, run", path), out, layout.Default)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { // and it is all there
			if !f.Hidden && !cmd.IsAdditionalHelpTopicCommand() && !strings.Contains(out, "--"+f.Name) {
				t.Errorf("irqlab %v --help does not tell of --%s", path, f.Name)
			}
		})
		for _, child := range cmd.Commands() {
			walk(child, append(path[:len(path):len(path)], child.Name()))
		}
	}
	walk(newRoot(Streams{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}), nil)
	if n < 20 {
		t.Errorf("only %d commands were looked at", n)
	}
}

func TestListsFit(t *testing.T) {
	t.Setenv("IRQLAB_CACHE", t.TempDir())
	for _, args := range []string{"list", "list scenarios", "list faults", "list strategies", "list shapes", "list steps", "cache list", "doctor"} {
		_, out, _ := irqlab(t, strings.Fields(args)...)
		fits(t, "irqlab "+args, out, layout.Default)
	}
	var b bytes.Buffer
	writeKernels(&b, []images.KernelInfo{
		{
			Spec:    "debian:6.12.90-1~bpo12+1",
			Release: "6.12.90+deb12.1-cloud-amd64",
			Suite:   "bookworm-backports",
			State:   "fetchable",
		},
		{Spec: "debian:7.1.13", Release: "7.1.13+deb13-cloud-amd64", Suite: "trixie-backports", State: "incomplete",
			Reason: "trixie-backports has no package linux-modules-7.1.13+deb13-cloud-amd64 of version 7.1.13-1~bpo13+1"},
	})
	fits(t, "kernels", b.String(), layout.Default)
	for _, want := range []string{"7.1.13+deb13 ", "ends in -cloud-amd64", "  debian:7.1.13: trixie-backports has no package"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, &b)
		}
	}
}

func TestCommonEnd(t *testing.T) {
	for want, releases := range map[string][]string{
		"":             {"7.3.4+deb13-cloud-amd64"},
		"-cloud-amd64": {"7.3.4+deb13-cloud-amd64", "6.1.0-50-cloud-amd64", "7.2.13+deb14-cloud-amd64"},
		"-amd64":       {"7.3.4-cloud-amd64", "6.1.0-50-amd64"},
	} {
		var kernels []images.KernelInfo
		for _, r := range releases {
			kernels = append(kernels, images.KernelInfo{Release: r})
		}
		if got := commonEnd(kernels); got != want {
			t.Errorf("%v: %q, want %q", releases, got, want)
		}
	}
	if got := commonEnd([]images.KernelInfo{{Release: "a"}, {Release: "b"}}); got != "" {
		t.Errorf("%q of nothing in common", got)
	}
}

// TestShown: a person gets the names of files from here, a program relative to --out, and nobody those of files that go.
func TestShown(t *testing.T) {
	for want, f := range map[string]runFlags{
		"results/a/console.log": {out: "results", format: "table"},
		"a/console.log":         {out: "results", format: "json"},
		"":                      {out: "results", format: "table", passing: true},
	} {
		rep := result.Report{Cases: []result.Case{{Artifacts: result.Artifacts{Console: "a/console.log"}}}}
		got := f.shown(rep).Cases[0].Artifacts
		if got.Console != want || got.Trace != "" || rep.Cases[0].Artifacts.Console != "a/console.log" {
			t.Errorf("%+v: %+v, of %+v", f, got, rep.Cases[0].Artifacts)
		}
	}
}
