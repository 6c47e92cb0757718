package build

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"irqlab/images"
	"irqlab/lab/build/patch/gitrange"
)

const (
	wholeFormat = 1

	wholeDir = "tree" // in an entry of a kernel's whole source, and of what was built of it
)

// Tree is a kernel's whole source, with the toolchain and the configuration that it is built with. It is made by Builder.Tree and Builder.GitTree.
type Tree struct {
	Name     string   // for people: "linux 6.18.15", "linux at 0123456789ab"
	Origin   string   // for people: "linux-source-7.3 7.3.4-1~bpo13+1 of trixie-backports"
	Compiler string   // for people: "gcc-14 of trixie"
	Notes    []string // what is not quite as it should be, one sentence each
	Commit   string   // of a git repository; "" if it is Debian's

	parts wholeParts
	entry string   // of the source
	root  *os.Root // of the source; closed when nothing refers to it any more
}

// wholeParts are the entries that a tree consists of, and how it is configured.
type wholeParts struct {
	Toolchain string
	Source    string
	Compiler  string // gcc-14
	Suite     string // that the toolchain is of
	Origin    string
	Local     string   // what is put behind the version: -irqlab-kasan
	Debug     []string // sorted
}

// FS holds all of the pristine source. It is not to be written to, and tells of symbolic links, which whoever applies a patch must not follow.
func (t *Tree) FS() fs.FS { return t.root.FS() }

// Tree finds or fetches all of the source of one of Debian's kernels, and the toolchain for it.
//
// Errors a caller may tell apart: *NoSourceError, *DebugError, *sandbox.RefusedError, *images.NoSpaceError, *images.AptError, images.ErrNoApt.
func (b *Builder) Tree(ctx context.Context, k images.Kernel, o KernelOptions) (*Tree, error) {
	debug, err := o.debug()
	if err != nil {
		return nil, err
	}
	t := &Tree{Name: "linux " + upstream(k.Version)}
	memo := fmt.Sprintf("whole-%d-%d-%s", toolchainFormat, wholeFormat, kernelKey(k))
	if k.Version == "" || !b.cache.Recall(memo, &t.parts) || !b.openTree(t) {
		if t.parts, err = b.gatherWhole(ctx, k); err != nil {
			return nil, err
		}
		if !b.openTree(t) {
			return nil, fmt.Errorf("source of %s: it went from the cache while it was being made", t.Name)
		}
		if err := b.cache.Remember(memo, t.parts); err != nil {
			return nil, err
		}
	}
	if t.Origin == upstreamOrigin(k) {
		t.Notes = append(t.Notes, "built from upstream's source: Debian's own patches are no longer served")
	}
	t.parts.configure("", debug)
	return t, nil
}

// configure sets what distinguishes the releases of kernels that are built of one source.
func (p *wholeParts) configure(commit string, debug []string) {
	p.Local = "-irqlab"
	if commit != "" {
		p.Local += "-g" + commit[:min(12, len(commit))]
	}
	for _, name := range debug {
		p.Local += "-" + name
	}
	p.Debug = debug
}

// openTree opens a tree of entries that are there; false if one is not.
func (b *Builder) openTree(t *Tree) bool {
	dir, ok := b.cache.Find(wholeKind, t.parts.Source)
	if _, tools := b.cache.Find(toolchainKind, t.parts.Toolchain); !ok || !tools {
		return false
	}
	root, err := os.OpenRoot(filepath.Join(dir, wholeDir))
	t.Origin, t.Compiler, t.entry, t.root = t.parts.Origin, t.parts.Compiler+" of "+t.parts.Suite, dir, root
	return err == nil
}

// gatherWhole makes all that a tree of one of Debian's kernels consists of.
func (b *Builder) gatherWhole(ctx context.Context, k images.Kernel) (wholeParts, error) {
	plan, err := b.plan(ctx, k)
	if err != nil {
		return wholeParts{}, err
	}
	p := wholeParts{Compiler: plan.compiler, Suite: baseSuite(k.Suite), Source: fmt.Sprintf("%s-%d", kernelKey(k), wholeFormat), Origin: plan.origin()}
	t, err := b.toolchain(ctx, p.Suite, p.Compiler)
	if err != nil {
		return p, err
	}
	p.Toolchain = t.key
	_, err = b.cache.Entry(ctx, wholeKind, p.Source, func(ctx context.Context, dir string) error {
		if err := b.cache.NeedSpace(roomWhole); err != nil {
			return err
		}
		fetch := func(ctx context.Context, work string) (string, error) { return b.fetchSource(ctx, work, plan) }
		return b.unpackSource(ctx, dir, filepath.Join(dir, wholeDir), t, fetch, func(string) bool { return true }, nil)
	})
	if err != nil {
		return p, err
	}
	return p, b.fetchToolchain(ctx, t) // it may have been pruned
}

// GitTree takes a commit of a git repository: a bare one, a work tree or a shallow clone. Nothing of the repository's is run, and no network used. The toolchain is trixie's.
//
// Errors a caller may tell apart: as Tree's; those about the repository say what to do.
func (b *Builder) GitTree(ctx context.Context, dir, rev string, o KernelOptions) (*Tree, error) {
	debug, err := o.debug()
	if err != nil {
		return nil, err
	}
	c, err := gitrange.OpenTree(ctx, dir, rev)
	if err != nil {
		return nil, err
	}
	files, err := c.Files(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"Makefile", "Kconfig", "arch/x86/Makefile"} {
		if !slices.ContainsFunc(files, func(f gitrange.File) bool { return f.Name == name }) {
			return nil, fmt.Errorf("%s at %s: no source of a kernel: it has no %s", dir, rev, name)
		}
	}
	p := wholeParts{Compiler: gitCompiler, Suite: gitSuite, Source: fmt.Sprintf("git-%s-%d", c.ID, wholeFormat), Origin: "commit " + c.Commit + " of " + dir}
	memo := fmt.Sprintf("toolchain-%d-%s-%s", toolchainFormat, p.Suite, p.Compiler) // asking apt takes seconds
	b.cache.Recall(memo, &p.Toolchain)
	if _, ok := b.cache.Find(toolchainKind, p.Toolchain); !ok {
		chain, err := b.toolchain(ctx, p.Suite, p.Compiler)
		if err != nil {
			return nil, err
		}
		if err := b.fetchToolchain(ctx, chain); err != nil {
			return nil, err
		}
		p.Toolchain = chain.key
		if err := b.cache.Remember(memo, p.Toolchain); err != nil {
			return nil, err
		}
	}
	if _, err := b.cache.Entry(ctx, wholeKind, p.Source, func(ctx context.Context, dir string) error {
		if err := b.cache.NeedSpace(roomWhole); err != nil {
			return err
		}
		return b.checkout(ctx, c, filepath.Join(dir, wholeDir))
	}); err != nil {
		return nil, err
	}
	t := &Tree{Name: "linux at " + c.Commit[:min(12, len(c.Commit))], Commit: c.Commit, parts: p}
	t.parts.configure(c.Commit, debug)
	if !b.openTree(t) {
		return nil, fmt.Errorf("source of %s: it went from the cache while it was being made", t.Name)
	}
	return t, nil
}

const (
	gitSuite    = "trixie"
	gitCompiler = "gcc-14"
)

// checkout writes the files of a commit.
func (b *Builder) checkout(ctx context.Context, c *gitrange.Tree, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close()
	what := "unpacking commit " + c.Commit[:min(12, len(c.Commit))]
	return c.Walk(ctx, func(f gitrange.File, n, of int, r io.Reader) error {
		if n%1000 == 0 {
			b.progress(what, int64(n), int64(of))
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Mode: 0o600}
		switch {
		case f.Link:
			target, err := io.ReadAll(io.LimitReader(r, 4<<10))
			if err != nil {
				return err
			}
			h.Typeflag, h.Linkname = tar.TypeSymlink, string(target)
		case f.Executable:
			h.Mode = 0o700
		}
		return writeFile(root, f.Name, h, r)
	})
}

// really leaves out what is not changed at all.
func (t *Tree) really(changed map[string][]byte) (map[string][]byte, error) {
	out := map[string][]byte{}
	for name, content := range changed {
		if !fs.ValidPath(name) || name == "." {
			return nil, fmt.Errorf("%q is no file of %s", name, t.Name)
		}
		for parent := range parents(name) {
			if st, err := t.root.Lstat(parent); err == nil && st.Mode()&fs.ModeSymlink != 0 {
				return nil, fmt.Errorf("%s: %s is a symbolic link in %s", name, parent, t.Name)
			}
		}
		st, err := t.root.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if content == nil {
				continue
			}
		case err != nil:
			return nil, err
		case st.IsDir():
			return nil, fmt.Errorf("%s is a directory of %s", name, t.Name)
		case st.Mode().IsRegular() && content != nil:
			if was, err := t.root.ReadFile(name); err != nil || string(was) == string(content) {
				if err != nil {
					return nil, err
				}
				continue
			}
		}
		out[name] = content
	}
	return out, nil
}

// parents are the directories above a file, the lowest first.
func parents(name string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for {
			i := strings.LastIndexByte(name, '/')
			if i < 0 {
				return
			}
			if name = name[:i]; !yield(name) {
				return
			}
		}
	}
}

// removed are the names of a change's removed files.
func removed(changed map[string][]byte) []string {
	var out []string
	for name, content := range changed {
		if content == nil {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
