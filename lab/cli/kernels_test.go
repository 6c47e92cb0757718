package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"irqlab/images"
)

// A tree of the user's own is made if that is asked for, once however many cases run it; what cannot be is bad input, and so is a commit that there is not.
func TestKernelBuilder(t *testing.T) {
	dir := t.TempDir()
	tree, bare := filepath.Join(dir, "tree"), filepath.Join(dir, "bare")
	for name, text := range map[string]string{"tree/Makefile": "bzImage:\n\t@echo made >>made\nmodules:\n", "tree/.config": "CONFIG_X=y\n", "bare/Makefile": "bzImage modules:\n"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	gitIn(t, dir, "init", "-q", "repo")
	cache, err := images.OpenCache(filepath.Join(dir, "cache"))
	if err != nil {
		t.Fatal(err)
	}
	made := func() int {
		text, _ := os.ReadFile(filepath.Join(tree, "made"))
		return strings.Count(string(text), "made")
	}
	for _, trees := range []bool{false, true} {
		k := newKernelBuilder(cache, Streams{Err: io.Discard}, trees)
		for range 2 {
			if path, err := k.build(t.Context(), tree, nil); path != "" || err != nil {
				t.Errorf("%q, %v", path, err)
			}
		}
		if want := map[bool]int{true: 1}[trees]; made() != want {
			t.Errorf("trees %t: made %d times, want %d", trees, made(), want)
		}
		for _, spec := range []string{"debian:7.3", filepath.Join(tree, "Makefile"), filepath.Join(dir, "no-such")} {
			if path, err := k.build(t.Context(), spec, nil); path != "" || err != nil {
				t.Errorf("%s: %q, %v", spec, path, err)
			}
		}
	}
	k := newKernelBuilder(cache, Streams{Err: io.Discard}, true)
	for spec, want := range map[string]string{bare: "not configured", "git:" + filepath.Join(dir, "repo") + "@v7.2": "there is no commit v7.2", "git:" + tree + "@v7.2": "no git repository"} {
		var bad *images.BadKernelError
		if _, err := k.build(t.Context(), spec, nil); !errors.As(err, &bad) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", spec, err, want)
		}
	}
}

func TestEachCommit(t *testing.T) {
	dir := t.TempDir()
	spec := "git:" + dir
	got, err := eachCommit([]string{"debian:7.3", spec + "@v6.18..v7.2", spec + "@v7.3", "/a..b"})
	if want := []string{"debian:7.3", spec + "@v6.18", spec + "@v7.2", spec + "@v7.3", "/a..b"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if _, err := eachCommit([]string{spec}); exitStatus(err) != ExitUsage {
		t.Errorf("no commit: %v", err)
	}
}
