package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"irqlab/images"
)

// Builder prepares sources and builds modules. Its methods may be called from several goroutines, and several processes may share a cache.
type Builder struct {
	cache    *images.Cache
	progress images.Progress
}

// New makes a Builder that keeps what it makes in the cache. progress may be nil.
func New(cache *images.Cache, progress images.Progress) *Builder {
	return &Builder{cache: cache, progress: progress}
}

// Source is the source of one module of one kernel, with all that building it needs. It is made by Builder.Source.
type Source struct {
	Kernel   images.Kernel
	Module   string // directory of the module in the source, slash-separated: drivers/net/ethernet/microsoft/mana
	Dir      string // holds the pristine files under their paths in the kernel's tree; not to be written to
	Origin   string // for people: "linux-source-7.3 7.3.4-1~bpo13+1 of trixie-backports"
	Compiler string // for people: "gcc-14 (Debian 14.2.0-19) 14.2.0"
	Notes    []string
}

// FS holds the pristine files of the module and its headers. What is not below a directory of Covers is not in it, although the kernel may have it.
func (s *Source) FS() fs.FS { return os.DirFS(s.Dir) }

// Covers tells whether FS knows about the path: a file that is covered and not in FS is not in the kernel.
func (s *Source) Covers(name string) bool { return false }

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
// Errors a caller may tell apart: *NoSourceError, *NoSandboxError, *images.NoSpaceError, *images.AptError, images.ErrNoApt.
func (b *Builder) Source(ctx context.Context, k images.Kernel, module string) (*Source, error) {
	return nil, errors.ErrUnsupported
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

// Module builds the module with files changed: path in the kernel's tree to content, nil for a file that is removed. No change builds the unpatched module.
//
// Errors a caller may tell apart: *CompileError (the change's fault), *NotOwnError, *LimitError, and those of Source.
func (b *Builder) Module(ctx context.Context, src *Source, changed map[string][]byte) (*Module, error) {
	return nil, errors.ErrUnsupported
}
