package build

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"irqlab/images"
)

// Builder prepares sources and builds modules and kernels. Its methods may be called from several goroutines, and several processes may share a cache.
type Builder struct {
	cache    *images.Cache
	progress images.Progress
}

// New makes a Builder that keeps what it makes in the cache. progress may be nil; it is never called concurrently.
func New(cache *images.Cache, progress images.Progress) *Builder {
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	var mu sync.Mutex // what is fetched and what is unpacked go on side by side
	return &Builder{cache: cache, progress: func(what string, done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		progress(what, done, total)
	}}
}

// Source is the source of one module of one kernel, with all that building it needs. It is made by Builder.Source.
type Source struct {
	Kernel   images.Kernel
	Module   string   // directory of the module in the source, slash-separated: drivers/net/ethernet/microsoft/mana
	Origin   string   // for people: "linux-source-7.3 7.3.4-1~bpo13+1 of trixie-backports"
	Compiler string   // for people: "gcc-14 (Debian 14.2.0-19) 14.2.0", as the kernel's configuration names it
	Notes    []string // what is not quite as it should be, one sentence each

	parts parts
	files string // holds the module's directory
	tree  string // holds the kernel's headers
}

// parts are the entries that a source consists of.
type parts struct {
	Toolchain string
	Headers   string
	Source    string // "": the module's files are among the headers
	Tree      string // directory below usr/src that has the kernel's headers
	Make      string // directory below usr/src that make is run in
	Prepared  bool   // headers were prepared here
	Compiler  string // gcc-14
	Origin    string
}

// FS holds the pristine files of the module's directory and of the kernel's headers, under their paths in the kernel's tree. It is not to be written to.
func (s *Source) FS() fs.FS { return treeFS{s} }

// Covers tells whether FS knows about the path: a file that is covered and not in FS is not in the kernel. What is not covered may be there or not.
func (s *Source) Covers(name string) bool {
	return fs.ValidPath(name) && (strings.HasPrefix(name, s.Module+"/") || strings.HasPrefix(name, "include/"))
}

// treeFS is Source.FS. It tells of symbolic links, which whoever applies a patch must not follow.
type treeFS struct{ s *Source }

var _ fs.ReadLinkFS = treeFS{}

func (t treeFS) Open(name string) (fs.File, error) {
	dir, err := t.dir("open", name)
	if err != nil {
		return nil, err
	}
	return os.DirFS(dir).Open(name)
}

func (t treeFS) Lstat(name string) (fs.FileInfo, error) {
	dir, err := t.dir("lstat", name)
	if err != nil {
		return nil, err
	}
	return fs.Lstat(os.DirFS(dir), name)
}

func (t treeFS) ReadLink(name string) (string, error) {
	dir, err := t.dir("readlink", name)
	if err != nil {
		return "", err
	}
	return fs.ReadLink(os.DirFS(dir), name)
}

// dir is where a name is to be looked up.
func (t treeFS) dir(op, name string) (string, error) {
	switch {
	case !fs.ValidPath(name):
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	case name == t.s.Module || strings.HasPrefix(name, t.s.Module+"/"), strings.HasPrefix(t.s.Module, name+"/"): // or on the way there, as who applies a patch looks at
		return t.s.files, nil
	case name != "include" && !strings.HasPrefix(name, "include/"):
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	return t.s.tree, nil
}

// Builds tells whether a change of this file can be built into the module alone: it lies in the module's directory, or is a header that is the module's own by its name.
// A change of any other file needs a whole kernel.
func (s *Source) Builds(name string) bool { return Owns(s.Module, name) }

// Owns tells whether a file is a module's own: in its directory, or a header below include/ in a directory, or of a name, that is the module's.
func Owns(module, name string) bool {
	if strings.HasPrefix(name, module+"/") {
		return true
	}
	if !strings.HasPrefix(name, "include/") || path.Ext(name) != ".h" {
		return false
	}
	own := path.Base(module)
	return path.Base(path.Dir(name)) == own || strings.TrimSuffix(path.Base(name), ".h") == own
}

// Source finds or fetches the source of the module in the given directory of the kernel's tree, and the toolchain for it.
//
// Errors a caller may tell apart: *NoSourceError, *sandbox.RefusedError, *images.NoSpaceError, *images.AptError, images.ErrNoApt.
func (b *Builder) Source(ctx context.Context, k images.Kernel, module string) (*Source, error) {
	if !fs.ValidPath(module) || module == "." {
		return nil, fmt.Errorf("module %q: not a directory of the kernel's source", module)
	}
	memo := fmt.Sprintf("build-%d-%d-%d-%s-%s", toolchainFormat, headersFormat, sourceFormat, kernelKey(k), module)
	var p parts
	if k.Version != "" && b.cache.Recall(memo, &p) {
		if s, ok := b.assemble(k, module, p); ok {
			return s, nil
		}
	}
	p, err := b.gather(ctx, k, module)
	if err != nil {
		return nil, err
	}
	s, ok := b.assemble(k, module, p)
	if !ok {
		return nil, fmt.Errorf("source of %s for %s: it went from the cache while it was being made", module, k.Release)
	}
	return s, b.cache.Remember(memo, p)
}

// gather makes all that a source consists of.
func (b *Builder) gather(ctx context.Context, k images.Kernel, module string) (parts, error) {
	plan, err := b.plan(ctx, k)
	if err != nil {
		return parts{}, err
	}
	p := parts{Compiler: plan.compiler}
	if len(plan.headers) == 0 {
		p.Prepared = true
		p.Tree = "linux-" + upstream(k.Version)
		p.Make = p.Tree
		p.Origin = upstreamOrigin(k)
		t, err := b.toolchain(ctx, baseSuite(k.Suite), plan.compiler)
		if err != nil {
			return p, err
		}
		p.Toolchain = t.key
		if p.Headers, err = b.preparedHeaders(ctx, plan, t, module); err != nil {
			return p, err
		}
		if err := b.fetchToolchain(ctx, t); err != nil { // it may have been pruned
			return p, err
		}
		if dir, ok := b.cache.Find(headersKind, p.Headers); ok && isDir(filepath.Join(dir, srcDir, p.Tree, module)) {
			return p, nil
		}
		p.Source, err = b.packagedSource(ctx, plan, module) // they were prepared for another module
		return p, err
	}
	p.Make = "linux-headers-" + k.Release
	p.Tree = p.Make
	for _, h := range plan.headers {
		if strings.HasSuffix(h.Name, "-common") {
			p.Tree = h.Name
		}
	}
	p.Origin = plan.origin()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		t, err := b.toolchain(ctx, baseSuite(k.Suite), plan.compiler)
		if err != nil {
			return err
		}
		p.Toolchain = t.key
		return b.fetchToolchain(ctx, t)
	})
	g.Go(func() (err error) {
		if p.Source, err = b.packagedSource(ctx, plan, module); err != nil {
			return err
		}
		p.Headers, err = b.packagedHeaders(ctx, plan)
		return err
	})
	return p, g.Wait()
}

func isDir(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.IsDir()
}

// assemble makes a Source of entries that are there; false if one is not.
func (b *Builder) assemble(k images.Kernel, module string, p parts) (*Source, bool) {
	headers, ok := b.cache.Find(headersKind, p.Headers)
	if _, tools := b.cache.Find(toolchainKind, p.Toolchain); !ok || !tools {
		return nil, false
	}
	s := &Source{Kernel: k, Module: module, Origin: p.Origin, parts: p, tree: filepath.Join(headers, srcDir, p.Tree)}
	s.files = s.tree
	if p.Source != "" {
		if s.files, ok = b.cache.Find(sourceKind, p.Source); !ok {
			return nil, false
		}
	}
	if config, err := os.ReadFile(filepath.Join(headers, srcDir, p.Make, ".config")); err == nil {
		s.Compiler = configured(config, "CONFIG_CC_VERSION_TEXT")
	}
	if p.Prepared {
		s.Notes = append(s.Notes, "built against upstream's headers with the kernel's configuration: Debian's own patches are no longer served")
	}
	return s, true
}

// hold returns the directory of an entry that is there, kept from being pruned until release is called.
func (b *Builder) hold(ctx context.Context, kind, key string) (dir string, release func(), err error) {
	dir, ok := b.cache.Find(kind, key)
	if !ok {
		return "", nil, fmt.Errorf("%s/%s is no longer in the cache, or damaged: run it again", kind, key)
	}
	release, err = b.cache.Hold(ctx, dir)
	return dir, release, err
}

// Warning is one of the compiler's.
type Warning struct {
	File string // path in the kernel's tree
	Line int    // 0: unknown
	Text string // the compiler's words, with the option that controls it: "unused variable 'x' [-Wunused-variable]"
}

func (w Warning) String() string { return fmt.Sprintf("%s:%d: %s", w.File, w.Line, w.Text) }

// Module is a built module.
type Module struct {
	Name       string // mana
	Path       string // of the .ko in the cache, named as the kernel names it
	Warnings   []Warning
	Added      []Warning // those of Warnings that the unpatched module does not have
	Comparison Comparison
	Seconds    float64 // that the build took, also when it was taken from the cache
	Cached     bool
}

// Comparison tells how the unpatched module, built the same way, differs from the distribution's. It belongs to the kernel and module, whatever was changed.
type Comparison struct {
	Identical bool     // every executable section has the same code, relocations included
	Functions int      // compared
	Differ    []string // functions that differ, are missing or were added, sorted
	Reason    string   // why nothing could be compared; "" if it was
}
