package images

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// rechecks is what this process knows of the files it has booted.
type rechecks struct {
	mu      sync.Mutex
	pinned  map[string]string // SHA-256 of files outside the cache when they were first used
	checked map[string]error  // by entry, or by path outside the cache
}

// ChangedError tells that something a machine was started from is not what it was.
type ChangedError struct {
	Path string
	Err  error  // what is wrong with it
	Way  string // out of it
}

func (e *ChangedError) Error() string { return fmt.Sprintf("%s: %v (%s)", e.Path, e.Err, e.Way) }
func (e *ChangedError) Unwrap() error { return e.Err }

// entryOf is the entry that a path lies in: its kind and name; false if it is not in the cache.
func (c *Cache) entryOf(path string) (kind, name string, ok bool) {
	rel, err := filepath.Rel(c.dir, path)
	if err != nil || !filepath.IsLocal(rel) {
		return "", "", false
	}
	parts := strings.SplitN(filepath.ToSlash(rel), "/", 3)
	if len(parts) < 2 {
		return "", "", false
	}
	return parts[0], parts[1], true
}

// Pin remembers the content that a file outside the cache has when it is used first, so that Recheck can tell whether it has changed since. The cache knows of its own files;
// a directory is not pinned.
func (c *Cache) Pin(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if _, _, ok := c.entryOf(path); ok {
		return nil
	}
	if st, err := os.Stat(path); err != nil || st.IsDir() {
		return err
	}
	c.rechecks.mu.Lock()
	defer c.rechecks.mu.Unlock()
	if c.rechecks.pinned[path] != "" {
		return nil
	}
	sum, err := c.Hash(path)
	if err != nil {
		return err
	}
	if c.rechecks.pinned == nil {
		c.rechecks.pinned = map[string]string{}
	}
	c.rechecks.pinned[path] = sum
	return nil
}

// Recheck reads again what a machine was started from: the whole entry that the path lies in, or the file outside the cache that was pinned. The error is a *ChangedError if it
// is not what it was; it is nil for what has gone meanwhile, as snapshots do, or was never pinned. Each is read once in the life of the process: a second answer is the first.
func (c *Cache) Recheck(ctx context.Context, path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	kind, name, inCache := c.entryOf(path)
	what := path
	if inCache {
		what = filepath.Join(c.dir, kind, name)
	}
	c.rechecks.mu.Lock()
	defer c.rechecks.mu.Unlock()
	if err, ok := c.rechecks.checked[what]; ok {
		return err
	}
	if inCache {
		err = recheckEntry(ctx, what)
	} else {
		err = recheckFile(what, c.rechecks.pinned[what])
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.rechecks.checked == nil {
		c.rechecks.checked = map[string]error{}
	}
	c.rechecks.checked[what] = err
	return err
}

func recheckEntry(ctx context.Context, dir string) error {
	m, err := readManifest(dir)
	if err == nil {
		err = m.verify(ctx, dir)
	}
	if _, gone := os.Lstat(dir); err == nil || gone != nil {
		return nil
	}
	return &ChangedError{dir, err, "irqlab cache verify removes it, and the next run makes it anew"}
}

func recheckFile(path, was string) error {
	if was == "" {
		return nil
	}
	sum, err := hashFile(path)
	switch {
	case err == nil && sum == was:
		return nil
	case err == nil:
		err = fmt.Errorf("its content has changed since it was booted")
	case os.IsNotExist(err):
		err = fs.ErrNotExist
	}
	return &ChangedError{path, err, "let it be while irqlab runs, and run it again"}
}
