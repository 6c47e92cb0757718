package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const snapshotKind = "snapshot"

// DefaultSnapshotLimit is how much room snapshots may take in a cache unless IRQLAB_CACHE_LIMIT says otherwise.
const DefaultSnapshotLimit = 4 << 30

// SnapshotEntry is a finished snapshot in a cache.
type SnapshotEntry struct {
	Dir  string
	Made bool // by this call
	key  string
	id   fileID // tells it from one made later in its place
}

// Snapshot returns the snapshot with that key, which must tell all that went into it, making it if it is missing or damaged. make fills an empty directory; it runs once
// for any number of goroutines and processes that ask at the same time, and what it leaves when it is killed is swept. After that the oldest snapshots go, until
// the rest is within SnapshotLimit.
//
// A snapshot may be removed at any time by somebody else's run: open its files, and ask again if one has gone.
func (c *Cache) Snapshot(ctx context.Context, key string, make func(ctx context.Context, dir string) error) (SnapshotEntry, error) {
	e := SnapshotEntry{key: key}
	limit, err := SnapshotLimit()
	if err != nil {
		return e, err
	}
	e.Dir, err = c.entry(ctx, snapshotKind, key, func(ctx context.Context, dir string) error {
		e.Made = true
		return make(ctx, dir)
	})
	if err != nil {
		return e, err
	}
	now := time.Now()
	_ = os.Chtimes(c.lockPath(snapshotKind, entryName(key)), now, now) // which of them is oldest matters to the minute, unlike with other kinds
	if e.id, err = identify(filepath.Join(e.Dir, manifestName)); err != nil {
		return e, fmt.Errorf("snapshot %s: %w", key, err)
	}
	if e.Made {
		c.trim(limit, entryName(key))
	}
	return e, nil
}

// Room returns a *NoSpaceError if fewer than need bytes are left for the cache, or if err, which may be nil, says that they were not enough.
func (c *Cache) Room(need int64, err error) error {
	if err == nil {
		return c.NeedSpace(need)
	}
	return &NoSpaceError{Dir: c.dir, Free: freeSpace(c.dir), Need: need, Err: err}
}

// HasSnapshot tells whether Snapshot would find one.
func (c *Cache) HasSnapshot(key string) bool { return c.has(snapshotKind, key) }

// Discard removes a snapshot that turned out to be of no use, unless another has taken its place meanwhile.
func (c *Cache) Discard(ctx context.Context, e SnapshotEntry) error {
	id, err := identify(filepath.Join(e.Dir, manifestName))
	if errors.Is(err, fs.ErrNotExist) || err == nil && id != e.id {
		return nil
	}
	return c.remove(ctx, snapshotKind, entryName(e.key))
}

// SnapshotLimit is the room snapshots may take, in bytes: $IRQLAB_CACHE_LIMIT, a number with an optional K, M, G or T (powers of 1024).
func SnapshotLimit() (int64, error) {
	text := os.Getenv("IRQLAB_CACHE_LIMIT")
	if text == "" {
		return DefaultSnapshotLimit, nil
	}
	n, err := ParseSize(text)
	if err != nil {
		return 0, fmt.Errorf("IRQLAB_CACHE_LIMIT: %w", err)
	}
	return n, nil
}

// ParseSize reads a number of bytes: "4G", "512 MiB", "1073741824".
func ParseSize(text string) (int64, error) {
	bad := fmt.Errorf("%q is not a size, such as 4G or 512M", text)
	digits := strings.TrimLeft(text, "0123456789")
	n, err := strconv.ParseInt(text[:len(text)-len(digits)], 10, 64)
	if err != nil {
		return 0, bad
	}
	shift, ok := map[string]int{"": 0, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}[strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(strings.TrimSpace(digits)), "IB"), "B")]
	if !ok || n > (1<<62)>>shift {
		return 0, bad
	}
	return n << shift, nil
}

// Entry is a finished entry of a cache, for people, or what else takes room there: the package lists of a mirror, and what is being made.
type Entry struct {
	Kind string    // "kernel", "snapshot", …; "apt" for package lists, "tmp" for what is being made
	Name string    // within its kind
	Size int64     // bytes
	Used time.Time // when it was last used, to the hour
}

// Entries lists the cache by kind and name. Entries that come or go meanwhile may be missing.
func (c *Cache) Entries(ctx context.Context) ([]Entry, error) {
	var list []Entry
	err := c.each(func(kind, name, path string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, err := readManifest(path)
		if err != nil {
			return nil //nolint:nilerr // on its way in or out, or damaged: Verify's business
		}
		e := Entry{Kind: kind, Name: name}
		for _, f := range m.Files {
			e.Size += f.Size
		}
		if st, err := os.Stat(c.lockPath(kind, name)); err == nil {
			e.Used = st.ModTime()
		}
		list = append(list, e)
		return nil
	})
	list = append(list, c.aptStates()...)
	making, _ := os.ReadDir(filepath.Join(c.dir, tmpDir))
	for _, m := range making {
		path := filepath.Join(c.dir, tmpDir, m.Name())
		list = append(list, Entry{Kind: tmpDir, Name: m.Name(), Size: DiskUsage(path), Used: modTime(path)})
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Kind+"/"+a.Name, b.Kind+"/"+b.Name) })
	return list, err
}

// DiskUsage adds up the files below a path, in bytes. Those that come or go meanwhile may be missing.
func DiskUsage(path string) int64 {
	_, sum := measure(path)
	return sum
}

// measure is the size of the largest file below a path, and that of all.
func measure(path string) (largest, sum int64) {
	_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if st, err := d.Info(); err == nil {
				largest, sum = max(largest, st.Size()), sum+st.Size()
			}
		}
		return nil //nolint:nilerr // what has gone takes no room
	})
	return largest, sum
}

// TrimSnapshots removes the snapshots that were not used for the longest time until the rest takes no more than limit bytes, and returns the names of the removed.
func (c *Cache) TrimSnapshots(limit int64) []string { return c.trim(limit, "") }

// trim spares one that has just been made, and those somebody works on.
func (c *Cache) trim(limit int64, spare string) (gone []string) {
	entries, err := c.Entries(context.Background())
	if err != nil {
		return nil
	}
	entries = slices.DeleteFunc(entries, func(e Entry) bool { return e.Kind != snapshotKind })
	slices.SortFunc(entries, func(a, b Entry) int { return b.Used.Compare(a.Used) })
	var total int64
	for _, e := range entries {
		if total += e.Size; total <= limit || e.Name == spare {
			continue
		}
		unlock, ok := c.tryLock(e.Kind + "-" + e.Name)
		if !ok {
			continue
		}
		err := c.moveAway(e.Kind, e.Name)
		unlock()
		if err != nil {
			c.warn("snapshot %s could not be removed: %v", e.Name, err)
			continue
		}
		total -= e.Size
		gone = append(gone, e.Kind+"/"+e.Name)
	}
	return gone
}

// fileID tells whether a file is still the one it was, without reading it.
type fileID struct {
	Dev, Inode    uint64
	Size          int64
	Written, Made int64 // modification and status change, Unix nanoseconds
}

func identify(path string) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileID{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return fileID{st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}, nil
}

// Hash is the SHA-256 of a file's content, in hex. It is remembered for as long as the file is the same, so that asking again costs nothing.
func (c *Cache) Hash(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	id, err := identify(path)
	if err != nil {
		return "", err
	}
	type remembered struct {
		ID     fileID
		SHA256 string
	}
	memo := filepath.Join(c.dir, stateDir, "hash-"+entryName(path)+".json")
	if b, err := os.ReadFile(memo); err == nil {
		var r remembered
		if json.Unmarshal(b, &r) == nil && r.ID == id && r.SHA256 != "" {
			return r.SHA256, nil
		}
	}
	sum, err := hashFile(path)
	if err != nil {
		return "", err
	}
	// Two writes within one tick of the file system's clock look like one; what was written just now is not remembered.
	if after, err := identify(path); err == nil && after == id && time.Since(time.Unix(0, id.Made)) > time.Second {
		if b, err := json.Marshal(remembered{id, sum}); err == nil {
			_ = c.writeFile(memo, b)
		}
	}
	return sum, nil
}
