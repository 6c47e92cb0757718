package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"irqlab/images"
)

func fill(_ context.Context, dir string) error {
	return os.WriteFile(filepath.Join(dir, "memory"), bytes.Repeat([]byte{1}, 2<<20), 0o600)
}

// The cache commands on a cache with two snapshots, one of which is then damaged.
func TestCacheCommands(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("IRQLAB_CACHE", dir)
	c, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"one", "two"} {
		if _, err := c.Snapshot(t.Context(), key, fill); err != nil {
			t.Fatal(err)
		}
	}
	run := func(want int, line string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if got := Run(t.Context(), strings.Fields(line), Streams{nil, &out, &errs}); got != want {
			t.Errorf("irqlab %s: status %d, want %d\n%s%s", line, got, want, &out, &errs)
		}
		return out.String() + errs.String()
	}
	for _, want := range []string{"snapshot", "one", "two", "2.0", "2 entries, 4.0 MiB", dir} {
		if got := run(ExitPass, "cache list"); !strings.Contains(got, want) {
			t.Errorf("cache list does not show %q:\n%s", want, got)
		}
	}
	if got := run(ExitPass, "cache verify"); !strings.Contains(got, "whole") {
		t.Errorf("verify of a good cache: %s", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "snapshot/one/memory"), make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run(ExitFail, "cache verify"); !strings.Contains(got, "snapshot/one: memory: content changed") {
		t.Errorf("verify of a damaged one: %s", got)
	}
	if got := run(ExitPass, "cache prune"); strings.Contains(got, "snapshot") {
		t.Errorf("a fresh cache was pruned: %s", got)
	}
	if got := run(ExitPass, "cache prune --snapshots 1M"); got != "snapshot/two\n" {
		t.Errorf("pruned to 1 MiB: %q", got)
	}
	for line, want := range map[string]string{
		"cache prune --snapshots plenty": "plenty",
		"cache prune --unused -1s":       "negative",
		"cache prune now":                "cache prune --help",
		"cache list kernels":             "cache list --help",
	} {
		if got := run(ExitUsage, line); !strings.Contains(got, want) {
			t.Errorf("irqlab %s: %q does not name %q", line, got, want)
		}
	}
}
