package docs_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"irqlab/docs/markdown"
)

// TestUpdate types what the console blocks of the pages show, page by page from top to bottom, each page in a directory of its own, and puts what comes in the place of what is there.
// IRQLAB_DOCS is a regular expression of the pages' paths, "." for all of them.
//
// A block's info string may say status=N, which every command of it must end with (else 0); head=N: only the first N paragraphs are of interest, the rest becomes a line "…"; run=never:
// it takes too long, and was run by hand. A line in it that begins with # is a remark.
func TestUpdate(t *testing.T) {
	which, err := regexp.Compile(os.Getenv("IRQLAB_DOCS"))
	if err != nil || os.Getenv("IRQLAB_DOCS") == "" {
		t.Skipf("IRQLAB_DOCS names no page: nothing is changed (%v)", err)
	}
	bin := filepath.Join(t.TempDir(), "irqlab")
	build := exec.Command("go", "build", "-o", bin, "irqlab")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, p := range pages(t) {
		if !which.MatchString(name) {
			continue
		}
		dir := t.TempDir()
		if err := os.Symlink(bin, filepath.Join(dir, "irqlab")); err != nil {
			t.Fatal(err)
		}
		source := p.Source
		shift := 0
		for _, b := range p.Blocks {
			if b.Language == "yaml" && strings.HasPrefix(b.Text, "name: ") { // which a command below may name
				file := strings.Fields(b.Text)[1] + ".yaml"
				if err := os.WriteFile(filepath.Join(dir, file), []byte(b.Text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if b.Language != "console" || b.Options["run"] == "never" {
				continue
			}
			text, err := again(t, dir, b)
			if err != nil {
				t.Errorf("%s:%d: %v", name, b.Line, err)
				continue
			}
			source = bytes.Join([][]byte{source[:b.Start+shift], source[b.End+shift:]}, []byte(text))
			shift += len(text) - (b.End - b.Start)
		}
		if bytes.Equal(source, p.Source) {
			continue
		}
		if err := os.WriteFile(filepath.Join(root, name), source, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// again is the block's text with what its commands say now.
func again(t *testing.T, dir string, b markdown.Text) (string, error) {
	var text strings.Builder
	at := 0
	if len(b.Text) != b.End-b.Start {
		return "", errors.New("a console in a list cannot be written again: begin it in the first column")
	}
	for _, c := range markdown.Console(b.Text) {
		text.WriteString(b.Text[at:c.Start])
		at = c.End
		script := strings.Replace(c.Command, "go run . ", "./irqlab ", 1)
		cmd := exec.Command("bash", "-o", "pipefail", "-c", script)
		cmd.Dir = dir
		var out, told bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &told
		began := time.Now()
		err := cmd.Run()
		t.Logf("%6.1f s  %s", time.Since(began).Seconds(), strings.TrimSpace(c.Command))
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			return "", err
		}
		if want, _ := strconv.Atoi(b.Options["status"]); cmd.ProcessState.ExitCode() != want {
			return "", fmt.Errorf("%s: status %d, want %d: %s%s", c.Command, cmd.ProcessState.ExitCode(), want, &told, &out)
		}
		for line := range strings.Lines(told.String()) {
			if strings.HasPrefix(line, "irqlab: ") { // the others tell how it comes on
				text.WriteString(line)
			}
		}
		text.WriteString(head(out.String(), b.Options["head"]))
	}
	return text.String() + b.Text[at:], nil
}

// head is the first paragraphs of a text, as many as n says; all if it says nothing.
func head(text, n string) string {
	text = strings.Trim(text, "\n") + "\n"
	if text == "\n" {
		return ""
	}
	paragraphs := strings.SplitAfter(text, "\n\n")
	if k, err := strconv.Atoi(n); err == nil && k < len(paragraphs) {
		return strings.Join(paragraphs[:k], "") + "…\n"
	}
	return text
}
