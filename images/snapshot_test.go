package images

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func filled(size int) func(context.Context, string) error {
	return func(_ context.Context, dir string) error {
		return os.WriteFile(filepath.Join(dir, "memory"), bytes.Repeat([]byte{1}, size), 0o600)
	}
}

func TestSnapshotIsMadeOnce(t *testing.T) {
	t.Parallel()
	c := testCache(t)
	var builds atomic.Int32
	var made atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			e, err := c.Snapshot(t.Context(), "k", func(ctx context.Context, dir string) error {
				builds.Add(1)
				time.Sleep(20 * time.Millisecond)
				return filled(10)(ctx, dir)
			})
			if err != nil {
				t.Error(err)
			}
			if e.Made {
				made.Add(1)
			}
		})
	}
	wg.Wait()
	if builds.Load() != 1 || made.Load() != 1 || !c.HasSnapshot("k") {
		t.Errorf("%d builds, told to %d of 8; there: %t", builds.Load(), made.Load(), c.HasSnapshot("k"))
	}
}

// Two runs find the same snapshot bad. The first discards it and makes another; the second must not take that one away.
func TestDiscard(t *testing.T) {
	t.Parallel()
	c := testCache(t)
	bad, err := c.Snapshot(t.Context(), "k", filled(10))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Discard(t.Context(), bad); err != nil || c.HasSnapshot("k") {
		t.Errorf("discard: %v; still there: %t", err, c.HasSnapshot("k"))
	}
	if err := c.Discard(t.Context(), bad); err != nil {
		t.Errorf("discarding what has gone: %v", err)
	}
	good, err := c.Snapshot(t.Context(), "k", filled(10))
	if err != nil || !good.Made {
		t.Fatalf("after discard: made %t, %v", good.Made, err)
	}
	if err := c.Discard(t.Context(), bad); err != nil || !c.HasSnapshot("k") {
		t.Errorf("the successor of a discarded snapshot went with it: %v", err)
	}
}

func TestSnapshotLimit(t *testing.T) {
	c := testCache(t)
	t.Setenv("IRQLAB_CACHE_LIMIT", "250K")
	now := time.Now()
	for i, key := range []string{"a", "b", "c"} {
		e, err := c.Snapshot(t.Context(), key, filled(100<<10))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(e.Dir); err != nil {
			t.Errorf("the snapshot just made is not there: %v", err)
		}
		old := now.Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(c.lockPath(snapshotKind, key), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if c.HasSnapshot("a") || !c.HasSnapshot("b") || !c.HasSnapshot("c") {
		t.Errorf("250 KiB hold a, b, c: %t, %t, %t; want the oldest gone", c.HasSnapshot("a"), c.HasSnapshot("b"), c.HasSnapshot("c"))
	}
	if _, err := c.Snapshot(t.Context(), "b", filled(1)); err != nil { // b is used: now c is the oldest
		t.Fatal(err)
	}
	if _, err := c.Snapshot(t.Context(), "d", filled(100<<10)); err != nil {
		t.Fatal(err)
	}
	if c.HasSnapshot("c") || !c.HasSnapshot("b") {
		t.Errorf("the one used last went (b there: %t), or the oldest stayed (c there: %t)", c.HasSnapshot("b"), c.HasSnapshot("c"))
	}
	// One above the limit all by itself is kept while it is the newest: it is about to be used.
	if _, err := c.Snapshot(t.Context(), "big", filled(300<<10)); err != nil || !c.HasSnapshot("big") {
		t.Errorf("a snapshot above the limit: %v, there: %t", err, c.HasSnapshot("big"))
	}
	entries, err := c.Entries(t.Context())
	if err != nil || len(entries) != 1 || entries[0].Kind != "snapshot" || entries[0].Name != "big" || entries[0].Size != 300<<10 {
		t.Errorf("entries %+v, %v", entries, err)
	}
	if gone := c.TrimSnapshots(0); !slices.Equal(gone, []string{"snapshot/big"}) {
		t.Errorf("trim to nothing removed %v", gone)
	}
	t.Setenv("IRQLAB_CACHE_LIMIT", "plenty")
	if _, err := c.Snapshot(t.Context(), "e", filled(1)); err == nil || !strings.Contains(err.Error(), "IRQLAB_CACHE_LIMIT") {
		t.Errorf("a limit that is no size: %v", err)
	}
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "4G": 4 << 30, "512 MiB": 512 << 20, "10k": 10 << 10, "1T": 1 << 40, "7B": 7, "3kb": 3 << 10,
		"": -1, "G": -1, "-1": -1, "4X": -1, "4GG": -1, "99999999T": -1, "1e3": -1,
	} {
		got, err := ParseSize(text)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}

// A hash is remembered, and forgotten as soon as the file is another.
func TestHash(t *testing.T) {
	t.Parallel()
	c := testCache(t)
	file := filepath.Join(t.TempDir(), "f")
	write := func(s string) {
		if err := os.WriteFile(file+".new", []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for _, s := range []string{"one", "two", "six"} { // of the same length
		write(s)
		for range 2 {
			h, err := c.Hash(file)
			if err != nil {
				t.Fatal(err)
			}
			want, err := hashFile(file)
			if err != nil || h != want {
				t.Errorf("hash of %q is %s, want %s (%v)", s, h, want, err)
			}
			seen[h] = true
		}
	}
	if len(seen) != 3 {
		t.Errorf("%d hashes of 3 contents", len(seen))
	}
	if _, err := c.Hash(file + ".none"); !os.IsNotExist(err) {
		t.Errorf("no file: %v", err)
	}
}
