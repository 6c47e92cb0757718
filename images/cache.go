package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// Progress reports a long operation: what is being done, how much of it (bytes or items), and the total, 0 or less when unknown.
// It may be called from another goroutine than the caller's, never concurrently with itself for one operation.
type Progress func(what string, done, total int64)

func (p Progress) report(what string, done, total int64) {
	if p != nil {
		p(what, done, total)
	}
}

// Cache is a directory of finished entries, shared by any number of processes.
//
// Layout: <kind>/<key>/ is an entry with its manifest; tmp/ holds what is being built; lock/ holds one lock file per entry, whose
// modification time says when the entry was last used. Lock files are never removed: removing one would let two holders in.
type Cache struct {
	Warn     func(message string) // what went wrong without stopping anything; nil discards it. Set before use
	Progress Progress             // for calls that take no Progress of their own. Set before use

	// Build, if there is one, is asked for each kernel first: it may build it, and returns its path as a SPEC has it, or "" for what the SPEC names. A SPEC that begins with GitPrefix
	// names nothing that is there. Set before use.
	Build func(ctx context.Context, spec string, p Progress) (path string, err error)

	dir string
	apt aptOptions

	rechecks rechecks
}

func (c *Cache) warn(format string, args ...any) {
	if c.Warn != nil {
		c.Warn(fmt.Sprintf(format, args...))
	}
}

const (
	manifestName = ".irqlab-manifest.json"
	tmpDir       = "tmp"
	lockDir      = "lock"
	stateDir     = "state"               // what is not an entry: apt's private state, the kernel index
	lockPoll     = 50 * time.Millisecond // how often a waiter retries a lock held by another process
)

// OpenCache opens the cache in dir, making it if needed. An empty dir means $IRQLAB_CACHE, else irqlab in the user's XDG cache directory.
// Directories are made 0700: they hold private keys.
func OpenCache(dir string) (*Cache, error) {
	if dir == "" {
		dir = os.Getenv("IRQLAB_CACHE")
	}
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("cache: %w (set IRQLAB_CACHE to a directory)", err)
		}
		dir = filepath.Join(base, "irqlab")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("cache %s: %w", dir, err)
	}
	for i, d := range []string{dir, filepath.Join(dir, tmpDir), filepath.Join(dir, lockDir), filepath.Join(dir, stateDir)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, noSpace(dir, 0, fmt.Errorf("cache %s: %w (set IRQLAB_CACHE to a directory you can write)", dir, err))
		}
		if i == 0 { // before anything of ours is put there
			if err := checkOwner(dir); err != nil {
				return nil, err
			}
		}
	}
	if st, err := os.Stat(dir); err == nil && st.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			return nil, fmt.Errorf("cache %s: others can enter it and it cannot be made private: %w (set IRQLAB_CACHE to a directory of your own)", dir, err)
		}
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return nil, fmt.Errorf("cache %s: not writable: %w (set IRQLAB_CACHE to a directory you can write)", dir, err)
	}
	c := &Cache{dir: dir}
	c.sweep()
	return c, nil
}

// Dir is the cache's directory.
func (c *Cache) Dir() string { return c.dir }

// entry returns the directory of the finished entry (kind, key), building it if it is missing or damaged.
//
// build gets an empty directory on the cache's file system and fills it; nothing of it is visible before it returns nil. The lock of the
// entry is held meanwhile, so a second process or goroutine that wants the same entry waits and then finds it finished. kind is a plain
// word; key may be any string. build must not ask for the same entry, and entries that build others must do so in one fixed order of kinds.
func (c *Cache) entry(ctx context.Context, kind, key string, build func(ctx context.Context, dir string) error) (string, error) {
	name := entryName(key)
	path := filepath.Join(c.dir, kind, name)
	if checkEntry(path) == nil {
		c.touch(kind, name)
		return path, nil
	}
	unlock, err := c.lock(ctx, kind+"-"+name)
	if err != nil {
		return "", err
	}
	defer unlock()
	c.removeTemps(kind, name) // ours alone now: whatever lies there was left by a killed build
	damage := checkEntry(path)
	if damage == nil {
		c.touch(kind, name)
		return path, nil
	}
	tmp, err := os.MkdirTemp(filepath.Join(c.dir, tmpDir), kind+"-"+name+"@")
	if err != nil {
		return "", noSpace(c.dir, 0, fmt.Errorf("cache %s: %w", c.dir, err))
	}
	defer os.RemoveAll(tmp)
	work := filepath.Join(tmp, "entry")
	if err := os.Mkdir(work, 0o700); err != nil {
		return "", noSpace(c.dir, 0, fmt.Errorf("cache %s: %w", c.dir, err))
	}
	if err := build(ctx, work); err != nil {
		return "", noSpace(c.dir, 0, err)
	}
	if err := writeManifest(ctx, work); err != nil {
		return "", noSpace(c.dir, 0, fmt.Errorf("%s %s: %w", kind, key, err))
	}
	if err := context.Cause(ctx); err != nil {
		return "", fmt.Errorf("%s %s: %w", kind, key, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", noSpace(c.dir, 0, fmt.Errorf("cache %s: %w", c.dir, err))
	}
	if !errors.Is(damage, fs.ErrNotExist) {
		// A damaged entry moves aside first; it goes with the temporary directory.
		if err := os.Rename(path, filepath.Join(tmp, "damaged")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("cache: %s: damaged (%v) and in the way: %w", path, damage, err)
		}
	}
	if err := os.Rename(work, path); err != nil {
		return "", noSpace(c.dir, 0, fmt.Errorf("cache: %s: %w", path, err))
	}
	c.touch(kind, name)
	return path, nil
}

// has tells whether the entry is there and whole, without building it.
func (c *Cache) has(kind, key string) bool {
	return checkEntry(filepath.Join(c.dir, kind, entryName(key))) == nil
}

// lock takes the named lock, waiting for other holders in this process and others.
func (c *Cache) lock(ctx context.Context, name string) (unlock func(), err error) {
	return c.take(ctx, name, (*flock.Flock).TryLockContext)
}

func (c *Cache) take(ctx context.Context, name string, how func(*flock.Flock, context.Context, time.Duration) (bool, error)) (unlock func(), err error) {
	path := filepath.Join(c.dir, lockDir, name)
	l := flock.New(path, flock.SetPermissions(0o600))
	ok, err := how(l, ctx, lockPoll)
	if err != nil {
		if ctx.Err() != nil {
			return nil, &BusyError{Name: name, Err: err}
		}
		return nil, noSpace(c.dir, 0, fmt.Errorf("cache: lock %s: %w", path, err))
	}
	if !ok {
		return nil, fmt.Errorf("cache: lock %s: not taken", path)
	}
	return func() { _ = l.Unlock() }, nil
}

// lockShared takes the named lock together with others who do, waiting for whoever holds it alone.
func (c *Cache) lockShared(ctx context.Context, name string) (unlock func(), err error) {
	return c.take(ctx, name, (*flock.Flock).TryRLockContext)
}

// tryLock takes the named lock if nobody holds it.
func (c *Cache) tryLock(name string) (unlock func(), ok bool) {
	l := flock.New(filepath.Join(c.dir, lockDir, name), flock.SetPermissions(0o600))
	if ok, err := l.TryLock(); err != nil || !ok {
		return nil, false
	}
	return func() { _ = l.Unlock() }, true
}

func (c *Cache) lockPath(kind, name string) string {
	return filepath.Join(c.dir, lockDir, kind+"-"+name)
}

// touch notes that an entry was used, at most once an hour; Prune reads it.
func (c *Cache) touch(kind, name string) {
	path := c.lockPath(kind, name)
	now := time.Now()
	if st, err := os.Stat(path); err == nil && now.Sub(st.ModTime()) > time.Hour {
		_ = os.Chtimes(path, now, now)
	}
}

// writeFile puts a file of the cache's state in place at once. What a killed writer leaves lies where sweep finds it.
func (c *Cache) writeFile(path string, data []byte) error {
	return renameio.WriteFile(path, data, 0o600, renameio.WithTempDir(filepath.Join(c.dir, tmpDir)))
}

// abandoned is how old a file that writeFile was about to put in place must be for its writer to be dead.
const abandoned = time.Hour

// sweep removes what was left by those who were killed: temporary directories whose lock nobody holds, and files that are long due.
func (c *Cache) sweep() {
	found, err := os.ReadDir(filepath.Join(c.dir, tmpDir))
	if err != nil {
		return
	}
	for _, e := range found {
		lock, _, ok := strings.Cut(e.Name(), "@")
		if !ok {
			if st, err := e.Info(); err == nil && st.Mode().IsRegular() && time.Since(st.ModTime()) > abandoned {
				_ = os.Remove(filepath.Join(c.dir, tmpDir, e.Name()))
			}
			continue
		}
		if unlock, ok := c.tryLock(lock); ok {
			_ = os.RemoveAll(filepath.Join(c.dir, tmpDir, e.Name()))
			unlock()
		}
	}
	if len(c.aptLeavings()) > 0 {
		if unlock, ok := c.tryLock(aptLock); ok {
			c.sweepApt()
			unlock()
		}
	}
}

func (c *Cache) removeTemps(kind, name string) {
	left, _ := filepath.Glob(filepath.Join(c.dir, tmpDir, kind+"-"+name+"@*"))
	for _, d := range left {
		_ = os.RemoveAll(d)
	}
}

// Verify hashes every file of every entry and moves damaged entries out of the way, so that their next use builds them again.
// It returns one sentence per damaged entry.
func (c *Cache) Verify(ctx context.Context) ([]string, error) {
	var damaged []string
	err := c.each(func(kind, name, path string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, err := readManifest(path)
		if err == nil {
			err = m.verify(ctx, path)
		}
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		damaged = append(damaged, fmt.Sprintf("%s/%s: %v", kind, name, err))
		return c.remove(ctx, kind, name)
	})
	return damaged, err
}

// Prune removes entries not used for the given time, and the package lists of mirrors not asked for as long, and returns their names. It never waits: what somebody works
// on is in use.
func (c *Cache) Prune(ctx context.Context, unused time.Duration) ([]string, error) {
	var gone []string
	limit := time.Now().Add(-unused)
	err := c.each(func(kind, name, _ string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		fresh := func() bool {
			st, err := os.Stat(c.lockPath(kind, name))
			return err != nil || st.ModTime().After(limit)
		}
		if fresh() {
			return nil
		}
		unlock, ok := c.tryLock(kind + "-" + name)
		if !ok {
			return nil
		}
		defer unlock()
		if fresh() { // made anew while we looked
			return nil
		}
		if err := c.moveAway(kind, name); err != nil {
			return err
		}
		gone = append(gone, kind+"/"+name)
		return nil
	})
	if err != nil {
		return gone, err
	}
	lists, err := c.pruneApt(limit)
	return append(gone, lists...), err
}

func (c *Cache) each(visit func(kind, name, path string) error) error {
	kinds, err := os.ReadDir(c.dir)
	if err != nil {
		return fmt.Errorf("cache %s: %w", c.dir, err)
	}
	for _, k := range kinds {
		if !k.IsDir() || k.Name() == tmpDir || k.Name() == lockDir || k.Name() == stateDir || strings.HasPrefix(k.Name(), ".") {
			continue
		}
		names, err := os.ReadDir(filepath.Join(c.dir, k.Name()))
		if err != nil {
			return fmt.Errorf("cache %s: %w", c.dir, err)
		}
		for _, n := range names {
			if !n.IsDir() {
				continue
			}
			if err := visit(k.Name(), n.Name(), filepath.Join(c.dir, k.Name(), n.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove takes an entry away in one step, so that nobody sees it half removed.
func (c *Cache) remove(ctx context.Context, kind, name string) error {
	unlock, err := c.lock(ctx, kind+"-"+name)
	if err != nil {
		return err
	}
	defer unlock()
	return c.moveAway(kind, name)
}

// moveAway is remove for the holder of the entry's lock.
func (c *Cache) moveAway(kind, name string) error {
	tmp, err := os.MkdirTemp(filepath.Join(c.dir, tmpDir), kind+"-"+name+"@")
	if err != nil {
		return noSpace(c.dir, 0, fmt.Errorf("cache %s: %w", c.dir, err))
	}
	defer os.RemoveAll(tmp)
	if err := os.Rename(filepath.Join(c.dir, kind, name), filepath.Join(tmp, "removed")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cache: %w", err)
	}
	return nil
}

// entryName turns a key into a file name: itself when it is a plain one, else a readable beginning and a hash.
func entryName(key string) string {
	plain := func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("._+~-", r):
			return r
		}
		return '_'
	}
	name := strings.Map(plain, key)
	if name == key && len(name) <= 120 && name != "" && !strings.HasPrefix(name, ".") {
		return name
	}
	sum := sha256.Sum256([]byte(key))
	name = strings.TrimLeft(name, ".")
	return name[:min(len(name), 60)] + "-" + hex.EncodeToString(sum[:8])
}

// manifest lists what an entry must hold. The cheap check compares sizes and times; a file whose time differs is hashed.
type manifest struct {
	Files []manifestFile `json:"files"` // sorted by path
}

type manifestFile struct {
	Path   string `json:"path"` // relative to the entry, slash-separated
	Size   int64  `json:"size,omitempty"`
	Time   int64  `json:"time,omitempty"`   // modification, Unix nanoseconds
	SHA256 string `json:"sha256,omitempty"` // of a regular file
	Link   string `json:"link,omitempty"`   // target of a symbolic link
	Mode   uint32 `json:"mode"`             // permission bits of a regular file
}

func writeManifest(ctx context.Context, dir string) error {
	var m manifest
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f := manifestFile{Path: filepath.ToSlash(rel)}
		st, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.Type() == fs.ModeSymlink:
			f.Link, err = os.Readlink(path)
		case st.Mode().IsRegular():
			f.Size, f.Time, f.Mode = st.Size(), st.ModTime().UnixNano(), uint32(st.Mode().Perm())
			f.SHA256, err = hashFile(path)
		default:
			err = fmt.Errorf("%s: neither a file nor a link", rel)
		}
		m.Files = append(m.Files, f)
		return err
	})
	if err != nil {
		return err
	}
	sort.Slice(m.Files, func(i, j int) bool { return m.Files[i].Path < m.Files[j].Path })
	return m.write(dir)
}

func (m *manifest) write(dir string) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, manifestName), data, 0o600, renameio.WithTempDir(dir))
}

func readManifest(dir string) (*manifest, error) {
	data, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		if _, e := os.Lstat(dir); e == nil {
			return nil, fmt.Errorf("manifest missing: %v", err) // not ErrNotExist: something is there
		}
		return nil, err
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if len(m.Files) == 0 {
		return nil, errors.New("manifest: it lists no file") // JSON, but not of ours: every entry has files
	}
	return &m, nil
}

// checkEntry is the cheap check: nil when every file of the entry is there with its size and time, or with its size and hash.
// The error is fs.ErrNotExist only when there is no entry at all.
func checkEntry(dir string) error {
	m, err := readManifest(dir)
	if err != nil {
		return err
	}
	if st, err := os.Lstat(dir); err != nil {
		return err
	} else if err := ours(st); err != nil {
		return err
	}
	moved := false
	for i := range m.Files {
		f := &m.Files[i]
		st, err := m.lstat(dir, f)
		if err != nil {
			return err
		}
		if f.Link == "" && st.ModTime().UnixNano() != f.Time {
			if err := f.checkHash(dir); err != nil {
				return err
			}
			f.Time, moved = st.ModTime().UnixNano(), true
		}
	}
	if moved {
		_ = m.write(dir) // a copied cache: its times are good from now on
	}
	return nil
}

// lstat checks all that needs no reading of the file.
func (m *manifest) lstat(dir string, f *manifestFile) (fs.FileInfo, error) {
	path := filepath.Join(dir, filepath.FromSlash(f.Path))
	st, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("%s: missing: %v", f.Path, err)
	}
	if err := ours(st); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path, err)
	}
	if f.Link != "" {
		if target, err := os.Readlink(path); err != nil || target != f.Link {
			return nil, fmt.Errorf("%s: not the link it was", f.Path)
		}
		return st, nil
	}
	switch {
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file any more", f.Path)
	case st.Size() != f.Size:
		return nil, fmt.Errorf("%s: %d bytes, expected %d", f.Path, st.Size(), f.Size)
	case uint32(st.Mode().Perm()) != f.Mode:
		return nil, fmt.Errorf("%s: mode %v, expected %v", f.Path, st.Mode().Perm(), fs.FileMode(f.Mode))
	}
	return st, nil
}

func (f *manifestFile) checkHash(dir string) error {
	sum, err := hashFile(filepath.Join(dir, filepath.FromSlash(f.Path)))
	if err != nil {
		return fmt.Errorf("%s: %v", f.Path, err)
	}
	if sum != f.SHA256 {
		return fmt.Errorf("%s: content changed", f.Path)
	}
	return nil
}

// verify hashes everything.
func (m *manifest) verify(ctx context.Context, dir string) error {
	for i := range m.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		f := &m.Files[i]
		if _, err := m.lstat(dir, f); err != nil {
			return err
		}
		if f.Link == "" {
			if err := f.checkHash(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

func hashFile(path string) (string, error) {
	f, err := openRegular(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// BusyError says that another irqlab worked on an entry for longer than the caller could wait.
type BusyError struct {
	Name string
	Err  error // the context's
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("cache: waiting for another irqlab that works on %s: %v", e.Name, e.Err)
}

func (e *BusyError) Unwrap() error { return e.Err }

// NoSpaceError says that the file system of Dir is full, or has less than Need bytes left.
type NoSpaceError struct {
	Dir  string
	Free int64 // bytes available to this user
	Need int64 // bytes, 0 when unknown
	Err  error // what failed, may be nil
}

func (e *NoSpaceError) Error() string {
	s := fmt.Sprintf("no space left for the cache %s: %s free", e.Dir, mebibytes(e.Free))
	if e.Need > 0 {
		s += fmt.Sprintf(", %s needed", mebibytes(e.Need))
	}
	s += " (free some, or set IRQLAB_CACHE to a directory on another file system)"
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *NoSpaceError) Unwrap() error { return e.Err }

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

// noSpace turns an error that comes from a full file system into a NoSpaceError and leaves every other one alone.
// Commands that were run only leave their text.
func noSpace(dir string, need int64, err error) error {
	var already *NoSpaceError
	if err == nil || errors.As(err, &already) {
		return err
	}
	if isNoSpace(err) || strings.Contains(err.Error(), "No space left on device") || strings.Contains(err.Error(), "enough free space") {
		return &NoSpaceError{Dir: dir, Free: freeSpace(dir), Need: need, Err: err}
	}
	return err
}

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// freeSpace is what the user may still write below dir, in bytes; 0 when it cannot be told.
func freeSpace(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}

// NeedSpace fails early and clearly, with a *NoSpaceError, when fewer than need bytes are left.
func (c *Cache) NeedSpace(need int64) error {
	if free := freeSpace(c.dir); free < need {
		return &NoSpaceError{Dir: c.dir, Free: free, Need: need}
	}
	return nil
}
