package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"irqlab/docs/markdown"
	"irqlab/scenarios"
)

// What the documentation names without giving it: what a reader has, or puts in its place.
var (
	docsEnviron = []string{"HOME=/home/you"}
	docsKernels = []string{
		"debian:6.1", "debian:6.12", "debian:6.16", "debian:6.17", "debian:6.18", "debian:7.2", "debian:7.3", // what the tests run, too
		"git:~/linux@v6.18..v7.2", "git:~/linux@v7.2",
		"/home/you/linux", "/home/you/linux-patched", ".", // a built tree, the same with a patch, one that a bisect goes through
	}
	docsFiles   = map[string]string{"mine.yaml": "low-vcpu", "my.yaml": "low-vcpu"}
	docsScripts = []string{"set_irq_affinity.sh", "check.sh", "lib.sh", "tune.conf"}
	docsRecords = []string{"timeline.jsonl", "trace.jsonl"}
	docsWords   = map[string]string{ // of command lines within a sentence
		"SCENARIO": "low-vcpu", "CASE": "linear", "DIR": "out", "FILE": "timeline.jsonl", "OUT.html": "out.html", "PATH": "/path",
		"A": "debian:6.18", "B": "debian:7.3", "SPEC": "debian:7.3", "KIND": "step", "N": "4", "NAME": "name",
	}
)

// TestDocumentedCommands runs every command line of the documentation, and of the examples in --help, up to where it would start a VM. That a command works as printed is another
// matter, which IRQLAB_DOCS=update looks at.
func TestDocumentedCommands(t *testing.T) {
	t.Setenv("IRQLAB_CACHE", t.TempDir())
	home := t.TempDir()
	t.Setenv("HOME", home)
	if err := os.Mkdir(filepath.Join(home, "linux"), 0o700); err != nil { // the tree whose commits are named
		t.Fatal(err)
	}
	pages, err := markdown.Pages("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range newRoot(Streams{}).Commands() {
		pages = append(pages, &markdown.Page{Path: cmd.CommandPath() + " --help", Blocks: []markdown.Text{{Text: cmd.Example, Language: "sh"}}})
	}
	n := 0
	for _, p := range pages {
		t.Run(strings.ReplaceAll(p.Path, "/", "_"), func(t *testing.T) {
			r := newReader(t)
			if strings.HasSuffix(p.Path, "--help") && strings.Contains(p.Blocks[0].Text, " results/low-vcpu-driver/") { // help has no room to tell where files come from
				if err := r.run([]string{"run", "low-vcpu-driver", "--out", "results"}); err != nil {
					t.Fatal(err)
				}
			}
			for _, b := range p.Blocks {
				if b.Language == "yaml" {
					r.scenario(t, p.Path, b)
				}
			}
			for _, b := range p.Blocks {
				commands, err := commandsOf(b)
				if err != nil {
					t.Errorf("%s:%d: %v", p.Path, b.Line, err)
				}
				for _, args := range commands {
					n++
					if err := r.run(args); err != nil {
						t.Errorf("%s:%d: irqlab %s: %v", p.Path, b.Line, strings.Join(args, " "), err)
					}
				}
			}
			for _, s := range p.Spans {
				if !begins.MatchString(s.Text) {
					continue
				}
				commands, err := scriptCommands(s.Text)
				if err != nil {
					t.Errorf("%s:%d: `%s`: %v", p.Path, s.Line, s.Text, err)
				}
				for _, args := range commands {
					for i, a := range args {
						if word, ok := docsWords[a]; ok {
							args[i] = word
						}
					}
					n++
					if err := newReader(t).run(args); err != nil {
						t.Errorf("%s:%d: `%s`: %v", p.Path, s.Line, s.Text, err)
					}
				}
			}
		})
	}
	if n < 100 {
		t.Errorf("only %d commands were found", n)
	}
}

// begins matches what begins with a call of irqlab, calls what has one somewhere.
var (
	begins = regexp.MustCompile(`^(go run \.|(\S*/)?irqlab)( |$)`)
	calls  = regexp.MustCompile(`(^|[\s'"])(go run \.|[\w./~$]*\birqlab) [a-z-]`)
)

// commandsOf lists the calls of irqlab in a block, each without its name: in what was typed at the prompt of a console, and in a script. A block without a language is a script if
// it calls irqlab.
func commandsOf(b markdown.Text) ([][]string, error) {
	switch {
	case b.Language == "console":
		var all [][]string
		for _, c := range markdown.Console(b.Text) {
			commands, err := scriptCommands(c.Command)
			if err != nil {
				return nil, err
			}
			all = append(all, commands...)
		}
		return all, nil
	case b.Language == "sh", b.Language == "" && calls.MatchString(b.Text):
		return scriptCommands(b.Text)
	}
	return nil, nil
}

func scriptCommands(script string) (commands [][]string, err error) {
	file, err := syntax.NewParser().Parse(strings.NewReader(script), "")
	if err != nil {
		return nil, err
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		words, werr := expand.Fields(&expand.Config{Env: expand.ListEnviron(docsEnviron...), CmdSubst: substituted}, call.Args...)
		err = errors.Join(err, werr)
		switch {
		case len(words) == 0:
		case filepath.Base(words[0]) == "irqlab":
			commands = append(commands, words[1:])
		case len(words) > 2 && words[0] == "go" && words[1] == "run" && words[2] == ".":
			commands = append(commands, words[3:])
		default:
			if i := slices.Index(words, "sh"); i >= 0 && i+2 < len(words) && words[i+1] == "-c" {
				inner, ierr := scriptCommands(words[i+2])
				commands, err = append(commands, inner...), errors.Join(err, ierr)
			}
		}
		return true
	})
	return commands, err
}

// substituted stands for the output of a command that is not run.
func substituted(w io.Writer, _ *syntax.CmdSubst) error {
	_, err := io.WriteString(w, "output")
	return err
}

// reader is somebody who tries what a page says, in a directory of his own, from the first line to the last.
type reader struct{ dir string }

func newReader(t *testing.T) *reader {
	t.Helper()
	r := &reader{t.TempDir()}
	for _, name := range docsRecords {
		r.write(t, name, smc+dma)
	}
	for _, name := range docsScripts {
		r.write(t, name, "#!/bin/sh\n")
	}
	for name, scenario := range docsFiles {
		text, err := os.ReadFile("../../scenarios/" + scenario + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		r.write(t, name, string(text))
	}
	return r
}

func (r *reader) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What stands before a piece of a scenario to make a whole one of it: steps follow a probe; what is further to the right belongs to a case.
const (
	beforeSteps = "name: x\ndriver: mana\nsteps:\n  - probe\n"
	beforeKnown = "name: x\ndriver: mana\ncases:\n  a:\n"
)

// scenario loads a scenario, or a piece of one. The reader keeps a whole one under its name.
func (r *reader) scenario(t *testing.T, page string, b markdown.Text) {
	t.Helper()
	text := b.Text
	switch {
	case strings.HasPrefix(text, "  - "):
		text = beforeSteps + text
	case strings.HasPrefix(text, "    known:"):
		text = beforeKnown + text
	}
	sc, err := scenarios.Load(page, []byte(text))
	if err != nil {
		t.Errorf("%s:%d: %v", page, b.Line, err)
		return
	}
	r.write(t, sc.Name+".yaml", text)
}

// enter makes the reader's directory the working one.
func (r *reader) enter() (leave func(), err error) {
	was, err := os.Getwd()
	if err == nil {
		err = os.Chdir(r.dir)
	}
	return func() { _ = os.Chdir(was) }, err
}

// run goes with one command as far as it can without a VM.
func (r *reader) run(args []string) error {
	var out, errs bytes.Buffer
	s := Streams{In: strings.NewReader(""), Out: &out, Err: &errs}
	root := newRoot(s)
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	switch err := cmd.ParseFlags(rest); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return suggestFlag(cmd, err)
	}
	if version := cmd.Flags().Lookup("version"); version != nil && version.Changed {
		return nil
	}
	files := cmd.Flags().Args()
	switch cmd.Name() {
	case "run", "compare", "shell", "fetch":
		return r.dryRun(cmd, args)
	case "list", "trace", "timeline":
		if slices.Equal(files, []string{"kernels"}) {
			return nil // the cache's affair
		}
		restore, err := r.enter()
		if err != nil {
			return err
		}
		defer restore()
		if status := Run(context.Background(), args, s); status != ExitPass {
			return fmt.Errorf("status %d: %s", status, &errs)
		}
		return nil
	}
	if cmd.Args == nil {
		return nil
	}
	return cmd.Args(cmd, files)
}

// dryRun stops where QEMU is looked for: cases are planned by then.
func (r *reader) dryRun(cmd *cobra.Command, args []string) error {
	if kernels, err := cmd.Flags().GetStringArray("kernel"); err == nil {
		for _, k := range kernels {
			if !slices.Contains(docsKernels, k) {
				return fmt.Errorf("--kernel %s: no reader has it (see docsKernels)", k)
			}
		}
	}
	out := ""
	if cmd.Name() == "run" && cmd.Flags().Changed("out") { // whose files another command of the page reads
		out, _ = cmd.Flags().GetString("out")
	}
	const qemu = "/no/such/qemu"
	args = append(slices.Clone(args), "--qemu", qemu)
	if out != "" {
		args = append(args, "--format", "json", "--timeline=false")
	}
	restore, err := r.enter()
	if err != nil {
		return err
	}
	defer restore()
	var stdout, errs bytes.Buffer
	status := Run(context.Background(), args, Streams{In: strings.NewReader(""), Out: &stdout, Err: &errs})
	if !strings.Contains(errs.String(), qemu) { // it was refused before; the status is the command's affair
		return fmt.Errorf("status %d: %s", status, &errs)
	}
	if out == "" {
		return nil
	}
	var rep struct {
		Cases []struct{ Scenario, Case string }
	}
	if err := json.Unmarshal(stdout.Bytes(), &rep); err != nil {
		return err
	}
	for _, c := range rep.Cases { // what a run would have left
		dir := filepath.Join(out, c.Scenario, (&scenarios.Case{Name: c.Case}).Slug())
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		for _, name := range docsRecords {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(smc+dma), 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}
