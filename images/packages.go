package images

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"pault.ag/go/debian/version"
)

// What lies in the cache beside QEMU, kernels and initramfs is made of these: entries of any kind, and packages and sources of Debian's to make them of.

// Entry returns the directory of the finished entry (kind, key), building it if it is missing or damaged.
//
// build gets an empty directory on the cache's file system and fills it; nothing of it is visible before it returns nil. The entry's lock is held meanwhile, so a second
// process or goroutine that wants the same entry waits and then finds it finished. kind is a plain word; key may be any string. build must not ask for the same entry, and
// entries that build others must do so in one fixed order of kinds.
func (c *Cache) Entry(ctx context.Context, kind, key string, build func(ctx context.Context, dir string) error) (string, error) {
	return c.entry(ctx, kind, key, build)
}

// Find returns the directory of an entry if it is there and whole.
func (c *Cache) Find(kind, key string) (dir string, ok bool) {
	name := entryName(key)
	dir = filepath.Join(c.dir, kind, name)
	if checkEntry(dir) != nil {
		return "", false
	}
	c.touch(kind, name)
	return dir, true
}

// Remove takes an entry away, waiting for those who use it; one that is not there is no error.
func (c *Cache) Remove(ctx context.Context, kind, key string) error {
	name := entryName(key)
	if _, err := os.Lstat(filepath.Join(c.dir, kind, name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return c.remove(ctx, kind, name)
}

// AsNoSpace returns err as a *NoSpaceError if it comes from a full file system, else as it is.
func (c *Cache) AsNoSpace(err error) error { return noSpace(c.dir, 0, err) }

// Hold keeps Prune from removing the entry that a path lies in, until release is called. Several may hold one entry.
func (c *Cache) Hold(ctx context.Context, path string) (release func(), err error) {
	kind, name, ok := c.entryOf(path)
	if !ok {
		return nil, fmt.Errorf("cache: %s is in no entry", path)
	}
	return c.lockShared(ctx, kind+"-"+name)
}

// Package is a package of Debian's in one suite.
type Package struct {
	Name                 string
	Version              string
	Suite                string
	Depends              string
	PreDepends, Provides string
	Size                 int64 // of the .deb, in bytes
	Room                 int64 // unpacked, in bytes
}

// IsGone tells whether err comes from a mirror that no longer has what its lists name.
func IsGone(err error) bool {
	var a *AptError
	return errors.As(err, &a) && a.gone()
}

// Packages looks up packages of a suite by name, newest version first.
func (c *Cache) Packages(ctx context.Context, suite string, p Progress, want func(name string) bool) ([]Package, error) {
	x, err := c.ensureIndex(ctx, indexAge, p)
	if err != nil {
		return nil, err
	}
	a := c.aptOf(x)
	file := a.list(suite)
	if file == "" { // the lists went, and what was learnt of the kernels in them is still there
		if x, err = c.ensureIndex(ctx, 0, p); err != nil {
			return nil, err
		}
		if file = c.aptOf(x).list(suite); file == "" {
			return nil, fmt.Errorf("%s has no suite %s", redact(x.Mirror), suite)
		}
	}
	r, err := openCompressed(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	found, err := scanPackages(r, want)
	if err != nil {
		return nil, fmt.Errorf("package list of %s: %w", suite, err)
	}
	out := make([]Package, 0, len(found))
	for _, e := range found {
		n := e.name()
		out = append(out, Package{Name: e.Package, Version: e.Version, Suite: suite, Depends: e.Depends, PreDepends: e.PreDepends, Provides: e.Provides, Size: n.Size, Room: n.Installed})
	}
	slices.SortStableFunc(out, func(a, b Package) int { return compareVersions(b.Version, a.Version) })
	return out, nil
}

func compareVersions(a, b string) int {
	va, erra := version.Parse(a)
	vb, errb := version.Parse(b)
	if erra != nil || errb != nil {
		return cmp.Compare(a, b)
	}
	return version.Compare(va, vb)
}

// aptOf is where the private state for the index's mirror lies; nothing in it is touched.
func (c *Cache) aptOf(x *index) *apt {
	return &apt{c: c, dir: filepath.Join(c.aptDir(), entryName(redact(x.Mirror)))}
}

// Download fetches packages into dir, each verified against its suite's signed list, and returns their files in the same order.
func (c *Cache) Download(ctx context.Context, dir string, all []Package, p Progress) ([]string, error) {
	return withApt(ctx, c, p, func(a *apt) ([]string, error) {
		files := make([]string, 0, len(all))
		for _, pkg := range all {
			f, err := a.download(ctx, dir, pkg.Suite, pkg.Name, pkg.Version, pkg.Size, p)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
		return files, nil
	})
}

// Closure tells which packages a suite's packages need with all they depend on, as the files that apt would fetch: sorted names, which hold the versions.
func (c *Cache) Closure(ctx context.Context, suite string, names []string, p Progress) (files []string, size int64, err error) {
	plan, err := withApt(ctx, c, p, func(a *apt) (string, error) { return a.planClosure(ctx, "", suite, names) })
	if err != nil {
		return nil, 0, fmt.Errorf("packages %s of %s: %w", strings.Join(names, " "), suite, err)
	}
	return plannedFiles(plan), totalSize(plan), nil
}

// planClosure says what installing packages would fetch, from the suites of a list that writeConfig made.
func (a *apt) planClosure(ctx context.Context, dir, list string, names []string) (string, error) {
	return a.run(ctx, dir, "", 0, nil, slices.Concat([]string{"-o", a.sourceOption(list), "install", "-y", "--no-install-recommends", "--print-uris"}, names)...)
}

// downloadClosure fetches it.
func (a *apt) downloadClosure(ctx context.Context, dir, list string, names []string, what string, size int64, p Progress) error {
	_, err := a.run(ctx, dir, what, size, p, slices.Concat([]string{"-o", a.sourceOption(list), "-o", "Dir::Cache::Archives=" + dir, "install", "-y", "--no-install-recommends", "--download-only"}, names)...)
	return err
}

// plannedFiles are the names in lines "'URI' FILE SIZE HASH" of --print-uris.
func plannedFiles(plan string) []string {
	var files []string
	for line := range strings.Lines(plan) {
		if f := strings.Fields(line); len(f) >= 3 && strings.HasPrefix(f[0], "'") {
			files = append(files, f[1])
		}
	}
	slices.Sort(files)
	return files
}

// DownloadClosure fetches packages of a suite with all they depend on into dir, and returns their files.
func (c *Cache) DownloadClosure(ctx context.Context, dir, suite string, names []string, what string, size int64, p Progress) ([]string, error) {
	if err := os.MkdirAll(filepath.Join(dir, "partial"), 0o700); err != nil {
		return nil, err
	}
	return withApt(ctx, c, p, func(a *apt) ([]string, error) {
		if err := a.downloadClosure(ctx, dir, suite, names, what, size, p); err != nil {
			return nil, fmt.Errorf("packages %s of %s: %w", strings.Join(names, " "), suite, err)
		}
		return filepath.Glob(filepath.Join(dir, "*.deb"))
	})
}

// DownloadSource fetches the upstream part of a source package of a suite (NAME_VERSION.orig.tar.xz) into dir. What Debian adds to it is not fetched, and need not be there.
func (c *Cache) DownloadSource(ctx context.Context, dir, suite, name, ver string, p Progress) (string, error) {
	x, err := c.ensureIndex(ctx, indexAge, p)
	if err != nil {
		return "", err
	}
	return locked(ctx, c, x, func(a *apt) (string, error) {
		const young = time.Minute
		for age := indexAge; ; age = young {
			file, err := a.downloadSource(ctx, dir, suite, name, ver, age, p)
			if err == nil || age == young || !IsGone(err) || time.Since(modTime(a.sourceStamp(suite))) < young || ctx.Err() != nil {
				return file, err
			}
		}
	})
}

func (a *apt) downloadSource(ctx context.Context, dir, suite, name, ver string, maxAge time.Duration, p Progress) (string, error) {
	option, err := a.sourceIndex(ctx, suite, maxAge, p)
	if err != nil {
		return "", err
	}
	const size = 256 << 20 // more than any kernel's
	if _, err := a.run(ctx, dir, name+" "+ver, size, percentOnly(p), "-o", option, "source", "--download-only", "--tar-only", name+"="+ver); err != nil {
		return "", fmt.Errorf("source of %s %s in %s: %w", name, ver, suite, err)
	}
	found, err := filepath.Glob(filepath.Join(dir, name+"_*.orig.tar.xz"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("source of %s %s in %s: apt-get source left %d archives", name, ver, suite, len(found))
	}
	return found[0], nil
}

// percentOnly hides a size that is no more than a bound.
func percentOnly(p Progress) Progress {
	return func(what string, done, total int64) {
		if total > 0 {
			done, total = done*100/total, 100
		}
		p.report(what, done, total)
	}
}

// sourceIndex fetches the suite's list of sources if it is not there or old, and returns the option that makes apt use it. Nothing else needs lists of sources, so they are
// not fetched with the others.
func (a *apt) sourceIndex(ctx context.Context, suite string, maxAge time.Duration, p Progress) (option string, err error) {
	if !slices.Contains(a.suites, suite) {
		return "", fmt.Errorf("no suite %s", suite)
	}
	kind := "signed-by=" + a.keyring
	if a.trusted {
		kind = "trusted=yes"
	}
	name := "source-" + suite
	if err := a.c.writeFile(a.sourceFile(name), fmt.Appendf(nil, "deb-src [%s] %s %s main\n", kind, a.mirror, suite)); err != nil {
		return "", noSpace(a.c.dir, 0, err)
	}
	option = a.sourceOption(name)
	found, _ := filepath.Glob(filepath.Join(a.dir, "lists", "*_dists_"+suite+"_main_source_Sources*"))
	if len(found) > 0 && time.Since(modTime(a.sourceStamp(suite))) < maxAge {
		return option, nil
	}
	// List-Cleanup would remove the lists of packages.
	if _, err := a.run(ctx, "", "list of sources", 0, p, "-o", option, "-o", "APT::Update::Error-Mode=any", "-o", "APT::Get::List-Cleanup=false",
		"-o", "pkgCacheFile::Generate=false", "update"); err != nil {
		return "", fmt.Errorf("list of sources of %s: %w", suite, err)
	}
	return option, a.c.writeFile(a.sourceStamp(suite), []byte(suite+"\n"))
}

// sourceStamp is a file that was written when the suite's list of sources was fetched: the list itself has the mirror's time.
func (a *apt) sourceStamp(suite string) string {
	return filepath.Join(a.dir, "sources", suite+".fetched")
}

// withApt runs f with the private state of the mirror that the index was made of. If the mirror has moved on since, the lists are fetched anew and f runs once more.
func withApt[T any](ctx context.Context, c *Cache, p Progress, f func(*apt) (T, error)) (T, error) {
	var none T
	x, err := c.ensureIndex(ctx, indexAge, p)
	if err != nil {
		return none, err
	}
	const young = time.Minute
	for attempt := 0; ; attempt++ {
		out, err := locked(ctx, c, x, f)
		if err == nil || attempt > 0 || !IsGone(err) || time.Since(x.Time) < young || ctx.Err() != nil {
			return out, err
		}
		fresh, indexErr := c.ensureIndex(ctx, young, p)
		if indexErr != nil {
			return none, errors.Join(err, indexErr)
		}
		x = fresh
	}
}

// locked runs f alone with the private state of the mirror that an index was made of.
func locked[T any](ctx context.Context, c *Cache, x *index, f func(*apt) (T, error)) (T, error) {
	var none T
	unlock, err := c.lock(ctx, aptLock)
	if err != nil {
		return none, err
	}
	defer unlock()
	a, err := c.newApt(ctx, x)
	if err != nil {
		return none, err
	}
	return f(a)
}

// Unpack unpacks .deb files into dir. place gets a clean slash-separated path and returns where it goes, "" for nowhere; it is called from several goroutines.
func Unpack(ctx context.Context, dir string, files []string, place func(name string) string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b string) int { return cmp.Compare(fileSize(b), fileSize(a)) }) // so that the workers end together
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, f := range files {
		g.Go(func() error {
			d, err := openDeb(f)
			if err != nil {
				return err
			}
			defer d.Close()
			return d.unpack(ctx, root, place)
		})
	}
	return g.Wait()
}

// ModuleObject returns the object of a kernel's module as it came with the kernel, decompressed. It is a *MissingModuleError if the kernel has none of that name.
func (k Kernel) ModuleObject(ctx context.Context, name string) ([]byte, error) {
	if k.ModulesDir == "" {
		return nil, &MissingModuleError{Kernel: k.Release, Module: name, Dir: k.ModulesDir}
	}
	t, err := openModules(ctx, k.ModulesDir)
	if err != nil {
		return nil, err
	}
	if t.files[name] == "" {
		return nil, &MissingModuleError{Kernel: k.Release, Module: name, Dir: k.ModulesDir}
	}
	file, err := t.path(name)
	if err != nil {
		return nil, err
	}
	m, err := readModule(file)
	return m.Data, err
}

// Remember keeps a small value under a name, until the state of the cache is removed; Recall returns it.
func (c *Cache) Remember(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return noSpace(c.dir, 0, c.writeFile(c.memo(name), data))
}

// Recall reads what was remembered under a name into v; false if nothing was.
func (c *Cache) Recall(name string, v any) bool {
	data, err := os.ReadFile(c.memo(name))
	return err == nil && json.Unmarshal(data, v) == nil
}

func (c *Cache) memo(name string) string {
	return filepath.Join(c.dir, stateDir, "memo-"+entryName(name)+".json")
}
