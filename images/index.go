package images

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"pault.ag/go/debian/control"
	"pault.ag/go/debian/version"
)

// suites are the Debian suites kernels are looked for in.
var suites = []string{"bookworm", "bookworm-backports", "trixie", "trixie-backports", "forky", "sid"}

// qemuPackage is the package QEMU comes from, and the suite it is taken from.
const (
	qemuPackage = "qemu-system-x86"
	qemuSuite   = "trixie-backports"
	qemuBase    = "trixie" // where the rest of its dependencies live
)

// index is what irqlab remembers of the package lists, small enough to be read in a millisecond.
type index struct {
	Time    time.Time   `json:"time"`   // of the last successful refresh
	Failed  time.Time   `json:"failed"` // of the last failed one
	Mirror  string      `json:"mirror"`
	Suites  []string    `json:"suites"` // that the mirror has
	QEMU    string      `json:"qemu"`   // version of qemuPackage in qemuSuite, "" if there is none
	Kernels []candidate `json:"kernels"`
}

const indexFormat = 1

// indexPath is where the index lies that was made of the mirror in use now.
func (c *Cache) indexPath() string {
	return filepath.Join(c.dir, stateDir, fmt.Sprintf("kernels-%d-%.8x.json", indexFormat, sha256.Sum256([]byte(c.mirrorOrigin()))))
}

// readIndex returns the index, nil if there is none; a damaged one counts as none.
func (c *Cache) readIndex() *index {
	data, err := os.ReadFile(c.indexPath())
	if err != nil {
		return nil
	}
	var x index
	if json.Unmarshal(data, &x) != nil || x.Time.IsZero() {
		return nil
	}
	// A clock that was wrong once would make an index that never gets old.
	if now := time.Now(); x.Time.After(now) || x.Failed.After(now) {
		x.Time, x.Failed = time.Unix(0, 0), time.Time{}
	}
	return &x
}

func (c *Cache) writeIndex(x *index) error {
	data, err := json.Marshal(x)
	if err != nil {
		return err
	}
	if err := c.writeFile(c.indexPath(), data); err != nil {
		return noSpace(c.dir, 0, fmt.Errorf("cache: package index: %w", err))
	}
	return nil
}

// ensureIndex returns an index not older than maxAge, refreshing it if needed. When the refresh fails and an older index is there, that one
// is returned with a warning.
func (c *Cache) ensureIndex(ctx context.Context, maxAge time.Duration, p Progress) (*index, error) {
	const retryAfter = 10 * time.Minute // a mirror that is down is not asked again at every run
	good := func(x *index) bool {
		if x == nil {
			return false
		}
		return time.Since(x.Time) < maxAge || maxAge > 0 && time.Since(x.Failed) < retryAfter
	}
	x := c.readIndex()
	if good(x) {
		return x, nil
	}
	asked := time.Now()
	unlock, err := c.lock(ctx, aptLock)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if x = c.readIndex(); good(x) || x != nil && x.Time.After(asked) {
		return x, nil // another process did it while we waited
	}
	fresh, err := c.refreshIndex(ctx, p)
	if err == nil {
		return fresh, c.writeIndex(fresh)
	}
	if x == nil || ctx.Err() != nil {
		return nil, err
	}
	c.warn("package index not refreshed, using the one of %s: %v", x.Time.Local().Format("2006-01-02 15:04"), err)
	x.Failed = time.Now()
	_ = c.writeIndex(x)
	return x, nil
}

// refreshIndex runs under aptLock.
func (c *Cache) refreshIndex(ctx context.Context, p Progress) (*index, error) {
	const room = 300 << 20 // lists of six suites, compressed, twice
	if err := c.NeedSpace(room); err != nil {
		return nil, err
	}
	a, err := c.newApt(ctx, nil)
	if err != nil {
		return nil, err
	}
	lists, err := a.update(ctx, p)
	if err != nil {
		return nil, err
	}
	found, damaged, err := scanLists(lists)
	if err != nil { // apt believes in a list that it has verified once: only a missing one is fetched again
		for _, l := range damaged {
			if err := os.Remove(l.file); err != nil {
				return nil, fmt.Errorf("package list of %s: %w", l.suite, err)
			}
		}
		if lists, err = a.update(ctx, p); err != nil {
			return nil, err
		}
		if found, _, err = scanLists(lists); err != nil {
			return nil, err
		}
	}
	x := &index{Time: time.Now(), Mirror: a.mirror}
	for i, l := range lists {
		x.Suites = append(x.Suites, l.suite)
		x.Kernels = append(x.Kernels, candidates(l.suite, found[i])...)
		if l.suite == qemuSuite {
			x.QEMU = newestVersion(found[i], qemuPackage)
		}
	}
	slices.SortStableFunc(x.Kernels, compareCandidates)
	x.Kernels = slices.CompactFunc(x.Kernels, func(a, b candidate) bool {
		return a.Release == b.Release && a.Version == b.Version && (a.Reason == "") == (b.Reason == "")
	})
	return x, nil
}

// scanLists reads the paragraphs of interest of every list; damaged are the lists that cannot be read, for the reasons in err.
func scanLists(lists []packageList) (found [][]pkgEntry, damaged []packageList, err error) {
	found = make([][]pkgEntry, len(lists))
	errs := make([]error, len(lists))
	var wg sync.WaitGroup
	for i, l := range lists {
		wg.Go(func() {
			var r io.ReadCloser
			if r, errs[i] = openCompressed(l.file); errs[i] != nil {
				return
			}
			defer r.Close()
			found[i], errs[i] = scanPackages(r, func(name string) bool { return name == qemuPackage || kernelPackage(name) != "" })
		})
	}
	wg.Wait()
	for i, l := range lists {
		if errs[i] != nil {
			damaged = append(damaged, l)
			err = errors.Join(err, fmt.Errorf("package list of %s: %w", l.suite, errs[i]))
		}
	}
	return found, damaged, err
}

// pkgEntry is what irqlab reads of a paragraph in a package list.
type pkgEntry struct {
	control.Paragraph
	Package       string `required:"true"`
	Version       string `required:"true"`
	Depends       string
	PreDepends    string `control:"Pre-Depends"`
	Provides      string
	Size          string
	InstalledSize string `control:"Installed-Size"` // KiB
}

func (e pkgEntry) name() pkgName {
	size, _ := strconv.ParseInt(e.Size, 10, 64) // sizes only serve progress and the space check
	installed, _ := strconv.ParseInt(e.InstalledSize, 10, 64)
	return pkgName{Name: e.Package, Size: max(size, 0), Installed: max(installed, 0) << 10}
}

// scanPackages reads a package list and returns the wanted paragraphs. Lists have some 70 000 paragraphs of which a handful is wanted,
// so only those are handed to the control file parser.
func scanPackages(r io.Reader, want func(name string) bool) ([]pkgEntry, error) {
	const maxLine = 1 << 20
	br := bufio.NewReaderSize(r, 256<<10)
	var out []pkgEntry
	var paragraph []byte
	wanted := false
	finish := func() error {
		if wanted {
			var e pkgEntry
			if err := control.Unmarshal(&e, bytes.NewReader(paragraph)); err != nil {
				return err
			}
			out = append(out, e)
		}
		paragraph, wanted = paragraph[:0], false
		return nil
	}
	for {
		line, err := br.ReadSlice('\n')
		start := true
		for {
			if start {
				if len(bytes.TrimRight(line, "\r\n")) == 0 && err == nil {
					if err := finish(); err != nil {
						return nil, err
					}
				} else if name, ok := bytes.CutPrefix(line, []byte("Package:")); ok && err == nil {
					wanted = want(string(bytes.TrimSpace(name)))
					paragraph = paragraph[:0]
				}
			}
			if wanted {
				if len(paragraph)+len(line) > maxLine {
					return nil, errors.New("a paragraph is too long")
				}
				paragraph = append(paragraph, line...)
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				break
			}
			start = false
			line, err = br.ReadSlice('\n')
		}
		if errors.Is(err, io.EOF) {
			return out, finish()
		}
		if err != nil {
			return nil, err
		}
	}
}

// kernelPackage returns the release a kernel package belongs to, "" for any other package.
func kernelPackage(name string) string {
	for _, prefix := range []string{"linux-image-", "linux-binary-", "linux-modules-"} {
		if r, ok := strings.CutPrefix(name, prefix); ok {
			r = strings.TrimSuffix(r, "-unsigned")
			if strings.HasSuffix(r, "-"+flavour) && r[0] >= '0' && r[0] <= '9' {
				return r
			}
		}
	}
	return ""
}

// candidates groups the kernel packages of one suite. Up to 6.18 linux-image-R holds image and modules; from 6.19 it only depends on
// linux-binary-R and linux-modules-R (qemu-facts, "Packages").
func candidates(suite string, found []pkgEntry) []candidate {
	type id struct{ release, version string }
	groups := map[id]map[string]pkgEntry{}
	for _, e := range found {
		if r := kernelPackage(e.Package); r != "" {
			k := id{r, e.Version}
			if groups[k] == nil {
				groups[k] = map[string]pkgEntry{}
			}
			groups[k][e.Package] = e
		}
	}
	var out []candidate
	for k, g := range groups {
		c := candidate{Release: k.release, Version: k.version, Suite: suite}
		image, hasImage := g["linux-image-"+k.release]
		if !hasImage {
			image, hasImage = g["linux-image-"+k.release+"-unsigned"]
		}
		binary, hasBinary := g["linux-binary-"+k.release]
		if !hasBinary {
			binary, hasBinary = g["linux-binary-"+k.release+"-unsigned"]
		}
		modules, hasModules := g["linux-modules-"+k.release]
		split := hasBinary || hasModules || strings.Contains(image.Depends, "linux-binary-"+k.release) || strings.Contains(image.Depends, "linux-modules-"+k.release)
		switch {
		case !split && hasImage:
			c.Packages = []pkgName{image.name()}
		case hasBinary && hasModules:
			c.Packages = []pkgName{binary.name(), modules.name()}
		case hasBinary || hasImage && !hasModules:
			c.Reason = fmt.Sprintf("%s has no package linux-modules-%s of version %s", suite, k.release, k.version)
		default:
			c.Reason = fmt.Sprintf("%s has no package linux-binary-%s of version %s", suite, k.release, k.version)
		}
		out = append(out, c)
	}
	slices.SortFunc(out, compareCandidates)
	return out
}

func newestVersion(found []pkgEntry, name string) string {
	best := ""
	var bestV version.Version
	for _, e := range found {
		if e.Package != name {
			continue
		}
		if v, err := version.Parse(e.Version); err == nil && (best == "" || version.Compare(bestV, v) < 0) {
			best, bestV = e.Version, v
		}
	}
	return best
}

// KernelInfo is a line of `irqlab list kernels`.
type KernelInfo struct {
	Spec    string // that names this kernel
	Release string // uname -r
	Suite   string
	Version string // of the packages
	State   string // cached, fetchable or incomplete
	Reason  string // why it is incomplete
}

// States of a KernelInfo.
const (
	Cached     = "cached"
	Fetchable  = "fetchable"
	Incomplete = "incomplete"
)

// ErrNoIndex says that no package index was fetched yet and no kernel is cached.
var ErrNoIndex = errors.New("no package index yet: irqlab fetch, or irqlab list kernels --refresh, gets it")

// Kernels lists the Debian kernels there are, newest first. Without refresh it reads only the cache, and the error is ErrNoIndex if that
// knows of none.
func (c *Cache) Kernels(ctx context.Context, refresh bool) ([]KernelInfo, error) {
	x := c.readIndex()
	if refresh {
		var err error
		if x, err = c.ensureIndex(ctx, 0, c.Progress); err != nil {
			return nil, err
		}
	}
	all := c.known(x)
	if x == nil && len(all) == 0 {
		return nil, ErrNoIndex
	}
	return kernelInfos(all, c.cachedKernels()), nil
}

// known is everything a SPEC may mean: what the index has, and what the cache has though the mirror may have lost it.
func (c *Cache) known(x *index) []candidate {
	have := map[string]bool{}
	var all []candidate
	for _, k := range c.cachedKernels() {
		have[k.key()] = true
		all = append(all, k)
	}
	if x != nil {
		for _, k := range x.Kernels {
			if !have[k.key()] {
				all = append(all, k)
			}
		}
	}
	return all
}

// cachedKernels lists the Debian kernels with an entry. It does not check them: they are checked when used.
func (c *Cache) cachedKernels() []candidate {
	found, err := os.ReadDir(filepath.Join(c.dir, kernelKind))
	if err != nil {
		return nil
	}
	var out []candidate
	for _, e := range found {
		d, err := readKernelFile(filepath.Join(c.dir, kernelKind, e.Name()))
		if errors.Is(err, fs.ErrNotExist) || err != nil || d.Suite == "" {
			continue
		}
		out = append(out, candidate{Release: d.Release, Version: d.Version, Suite: d.Suite, Packages: d.Packages})
	}
	return out
}

func kernelInfos(all, cached []candidate) []KernelInfo {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b candidate) int { return compareCandidates(b, a) })
	isCached := map[string]bool{}
	for _, k := range cached {
		isCached[k.key()] = true
	}
	out := make([]KernelInfo, 0, len(all))
	for _, k := range all {
		i := KernelInfo{Release: k.Release, Suite: k.Suite, Version: k.Version, State: Fetchable, Reason: k.Reason}
		switch {
		case k.Reason != "":
			i.State = Incomplete
		case isCached[k.key()]:
			i.State = Cached
		}
		// The shortest SPEC that selects this one and no other.
		for _, name := range []string{k.upstream(), k.Version, k.Release} {
			i.Spec = "debian:" + name
			best, broken := pickKernel(all, name)
			if best == nil {
				best = broken
			}
			if best != nil && best.key() == k.key() {
				break
			}
		}
		out = append(out, i)
	}
	return out
}
