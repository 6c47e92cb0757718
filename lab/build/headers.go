package build

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"irqlab/images"
	"irqlab/lab/build/archive"
	"irqlab/lab/build/kobj"
	"irqlab/lab/build/sandbox"
)

const (
	headersFormat = 1
	sourceFormat  = 1

	srcDir = "usr/src" // in an entry of headers, and in the sandbox
)

// plan says where what a build for a kernel needs is to come from.
type plan struct {
	kernel   images.Kernel
	headers  []images.Package // none: a subset of the source is prepared
	source   images.Package   // of the patched source; without a Name, upstream's is taken
	compiler string           // gcc-14
}

// kernelKey names a kernel of Debian's.
func kernelKey(k images.Kernel) string { return k.Release + "_" + k.Version }

var (
	dependency = regexp.MustCompile(`\blinux-(?:headers|kbuild)-[^ ,|()]+`)
	series     = regexp.MustCompile(`^\d+\.\d+`)
)

// plan looks up what the archive has for a kernel.
func (b *Builder) plan(ctx context.Context, k images.Kernel) (*plan, error) {
	if k.Suite == "" || k.Version == "" {
		return nil, &NoSourceError{Kernel: k.Release, Missing: "it was not fetched from Debian's archive, so where its source is cannot be told"}
	}
	p := &plan{kernel: k}
	own := "linux-headers-" + k.Release
	sourceName := "linux-source-" + series.FindString(k.Version)
	found, err := b.cache.Packages(ctx, k.Suite, b.progress, func(name string) bool {
		return name == own || name == sourceName || strings.HasPrefix(name, "linux-kbuild-") || strings.HasPrefix(name, "linux-headers-") && strings.HasSuffix(name, "-common")
	})
	if err != nil {
		return nil, err
	}
	// The newest that is not newer than what depends on it: linux-kbuild-6.1 is one package for all of 6.1.
	pick := func(name, version string) (images.Package, bool) {
		var any images.Package
		for _, q := range found {
			if q.Name == name && q.Version == version {
				return q, true
			}
			if q.Name == name && any.Name == "" {
				any = q
			}
		}
		return any, any.Name != "" && name != own && name != sourceName && !strings.HasPrefix(name, "linux-headers-")
	}
	if q, ok := pick(sourceName, k.Version); ok {
		p.source = q
	}
	headers, ok := pick(own, k.Version)
	if !ok {
		if k.Config == "" {
			return nil, &NoSourceError{Kernel: k.Release, Missing: fmt.Sprintf("%s has no package %s of version %s, and the kernel's package no configuration", k.Suite, own, k.Version)}
		}
		config, err := os.ReadFile(k.Config)
		if err != nil {
			return nil, err
		}
		p.compiler = compilerOf(configured(config, "CONFIG_CC_VERSION_TEXT"))
		return p, nil
	}
	p.headers = []images.Package{headers}
	p.compiler = compilerOf(headers.Depends)
	for _, name := range dependency.FindAllString(headers.Depends, -1) {
		q, ok := pick(name, k.Version)
		if !ok {
			return nil, &NoSourceError{Kernel: k.Release, Missing: fmt.Sprintf("%s needs %s, which %s does not have", own, name, k.Suite)}
		}
		p.headers = append(p.headers, q)
	}
	return p, nil
}

func totalSize(all []images.Package) (size int64) {
	for _, p := range all {
		size += p.Size + p.Room
	}
	return size
}

// packagedHeaders makes the entry of headers of a kernel that has packages of them.
func (b *Builder) packagedHeaders(ctx context.Context, p *plan) (key string, err error) {
	key = fmt.Sprintf("%s-%d", kernelKey(p.kernel), headersFormat)
	_, err = b.cache.Entry(ctx, headersKind, key, func(ctx context.Context, dir string) error {
		if err := b.cache.NeedSpace(totalSize(p.headers)); err != nil {
			return err
		}
		err := b.unpack(ctx, dir, "the headers of "+p.kernel.Release, headersPlace, func(debs string) ([]string, error) {
			return b.cache.Download(ctx, debs, p.headers, b.progress)
		})
		if err != nil {
			return err
		}
		return relinkKbuild(filepath.Join(dir, srcDir))
	})
	return key, err
}

// headersPlace says which files of the packages of headers are kept, and where: all lie below one directory, with the kernel's build programs beside its headers.
func headersPlace(name string) string {
	if rest, ok := strings.CutPrefix(name, "usr/lib/linux-kbuild-"); ok {
		return srcDir + "/linux-kbuild-" + rest
	}
	rest, ok := strings.CutPrefix(name, srcDir+"/linux-headers-")
	if !ok {
		return ""
	}
	if _, arch, ok := strings.Cut(rest, "/arch/"); ok && strings.Contains(arch, "/") && !strings.HasPrefix(arch, "x86/") {
		return ""
	}
	return name
}

// relinkKbuild makes the links of the headers lead to where headersPlace has put the build programs.
func relinkKbuild(src string) error {
	links, err := filepath.Glob(filepath.Join(src, "linux-headers-*", "*"))
	if err != nil {
		return err
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil {
			continue // no link
		}
		if _, rest, ok := strings.Cut(target, "lib/linux-kbuild-"); ok {
			if err := os.Remove(link); err != nil {
				return err
			}
			if err := os.Symlink("../linux-kbuild-"+rest, link); err != nil {
				return err
			}
		}
	}
	return nil
}

// upstream is the version of Linux that a package of it holds.
func upstream(version string) string {
	v, _, _ := strings.Cut(version, "-")
	return v
}

// upstreamOrigin says that upstream's source is what a kernel's is taken from.
func upstreamOrigin(k images.Kernel) string {
	return fmt.Sprintf("linux_%s.orig.tar.xz of %s", upstream(k.Version), k.Suite)
}

// origin says where the source is from.
func (p *plan) origin() string {
	if p.source.Name == "" {
		return upstreamOrigin(p.kernel)
	}
	return fmt.Sprintf("%s %s of %s", p.source.Name, p.source.Version, p.source.Suite)
}

// fetchUpstream fetches upstream's source of a kernel.
func (b *Builder) fetchUpstream(ctx context.Context, dir string, k images.Kernel) (file string, err error) {
	const room = 256 << 20
	if err := b.cache.NeedSpace(room); err != nil {
		return "", err
	}
	file, err = b.cache.DownloadSource(ctx, dir, k.Suite, "linux", k.Version, b.progress)
	if images.IsGone(err) {
		err = &NoSourceError{Kernel: k.Release, Missing: fmt.Sprintf("its source, linux_%s.orig.tar.xz, is gone from %s (take another kernel: docs/building.md says which can be built)",
			upstream(k.Version), k.Suite), Err: err}
	}
	return file, err
}

// openArchive opens a .tar.xz.
func openArchive(file string) (*archive.Archive, io.Closer, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	a, err := archive.Open(f, st.Size())
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("%s: %w", filepath.Base(file), err)
	}
	return a, f, nil
}

// preparedHeaders makes the entry of headers of a kernel that has no packages of them, from a subset of its source. It has the module's own files, too.
func (b *Builder) preparedHeaders(ctx context.Context, p *plan, t *toolchain, module string) (key string, err error) {
	key = fmt.Sprintf("%s-%d-%s", kernelKey(p.kernel), headersFormat, t.key)
	_, err = b.cache.Entry(ctx, headersKind, key, func(ctx context.Context, dir string) error {
		tree := filepath.Join(dir, srcDir, "linux-"+upstream(p.kernel.Version))
		fetch := func(ctx context.Context, work string) (string, error) { return b.fetchUpstream(ctx, work, p.kernel) }
		return b.unpackSource(ctx, dir, tree, t, fetch, func(name string) bool { return partOfPrepared(name, module) }, func(root string) error {
			return b.prepare(ctx, root, filepath.Join(dir, srcDir), tree, p)
		})
	})
	return key, err
}

// unpackSource fetches a source, and beside it the toolchain, and unpacks the wanted parts into a directory of an entry. Then it calls then, which may be nil, with the
// toolchain's root.
func (b *Builder) unpackSource(ctx context.Context, dir, tree string, t *toolchain, fetch func(ctx context.Context, work string) (string, error), want func(name string) bool, then func(root string) error) error {
	work := filepath.Join(dir, ".work")
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	var tarball string
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		tarball, err = fetch(gctx, work)
		return err
	})
	g.Go(func() error { return b.fetchToolchain(gctx, t) })
	if err := g.Wait(); err != nil {
		return err
	}
	root, release, err := b.hold(ctx, toolchainKind, t.key)
	if err != nil {
		return err
	}
	defer release()
	if err := b.extract(ctx, root, tarball, tree, want); err != nil {
		return err
	}
	if err := os.RemoveAll(work); err != nil || then == nil {
		return err
	}
	return then(root)
}

// Parts of the source that preparing a build of modules needs, beside every Kconfig, Kbuild and Makefile.
var preparedParts = regexp.MustCompile(`^(include|arch/x86|scripts|certs|kernel/time|security/selinux/include|security/ipe|tools/(build|scripts|include|lib|objtool|arch/x86|bpf/resolve_btfids))/` +
	`|^tools/Makefile$|^kernel/.*\.h$|^kernel/bounds\.c$|^kernel/sched/rq-offsets\.c$|^[^/]*$`)

func partOfPrepared(name, module string) bool {
	base := path.Base(name)
	return strings.HasPrefix(base, "Kconfig") || strings.HasPrefix(base, "Kbuild") || strings.HasPrefix(base, "Makefile") ||
		preparedParts.MatchString(name) || strings.HasPrefix(name, module+"/")
}

// extract unpacks the wanted parts of a source. The toolchain's own xz decompresses side by side, which is what takes the time here.
func (b *Builder) extract(ctx context.Context, root, tarball, tree string, want func(name string) bool) error {
	if err := os.MkdirAll(tree, 0o700); err != nil {
		return err
	}
	to, err := os.OpenRoot(tree)
	if err != nil {
		return err
	}
	defer to.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := sandbox.Command{Root: root, Mounts: []sandbox.Mount{{From: filepath.Dir(tarball), To: "/build"}}, Dir: "/build", Env: toolEnv,
			Args: []string{"/usr/bin/xz", "-dcqq", "-T" + fmt.Sprint(runtime.GOMAXPROCS(0)), "/build/" + filepath.Base(tarball)}, Output: w}.Run(ctx)
		if err != nil {
			err = fmt.Errorf("%s: xz: %w", filepath.Base(tarball), err)
		}
		w.CloseWithError(err)
		ended <- err
	}()
	files := 0
	err = archive.Walk(r, func(name string, h *tar.Header, r io.Reader) error {
		if files++; files%1000 == 0 {
			b.progress("unpacking "+filepath.Base(tarball), int64(files), 0)
		}
		if !want(name) {
			return nil
		}
		return writeFile(to, name, h, r)
	})
	if err != nil {
		cancel(err)
		r.CloseWithError(err)
	} else {
		_, err = io.Copy(io.Discard, r) // the archive's padding, or xz would never end
	}
	if e := <-ended; err == nil {
		err = e
	}
	return err
}

// writeFile writes an entry of a source archive.
func writeFile(root *os.Root, name string, h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, 0o700)
	}
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeSymlink {
		return root.Symlink(h.Linkname, name)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	mode := fs.FileMode(0o600)
	if h.Mode&0o100 != 0 {
		mode = 0o700
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// prepare makes of a subset of the source what headers packages hold: the configuration, generated headers, build programs and the kernel's exported symbols.
func (b *Builder) prepare(ctx context.Context, root, src, tree string, p *plan) error {
	config, err := os.ReadFile(p.kernel.Config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tree, ".config"), config, 0o600); err != nil {
		return err
	}
	image, err := os.ReadFile(p.kernel.Image)
	if err != nil {
		return err
	}
	symbols, err := kobj.Exports(image)
	if err != nil {
		return fmt.Errorf("kernel %s: %s: %w", p.kernel.Release, p.kernel.Image, err)
	}
	f, err := os.Create(filepath.Join(tree, "Module.symvers"))
	if err != nil {
		return err
	}
	if err := errors.Join(kobj.WriteSymvers(f, symbols), f.Close()); err != nil {
		return err
	}
	const limit = 15 * time.Minute
	b.progress("preparing to build for "+p.kernel.Release, 0, 0)
	inside := "/" + srcDir + "/" + filepath.Base(tree)
	r := run{root: root, work: src, limit: limit, mounts: []sandbox.Mount{{From: src, To: "/" + srcDir, Write: true}},
		args: slices.Concat([]string{"-C", inside}, makeWords(p.kernel.Release, p.compiler), noBTF, []string{"olddefconfig", "modules_prepare"})}
	if err := b.run(ctx, &r); err != nil {
		return fmt.Errorf("preparing to build for %s: %w%s", p.kernel.Release, err, r.output.tail())
	}
	return nil
}

// noBTF keeps make from building and running what makes type information of debug information; the configuration that is compiled in stays as it is.
var noBTF = []string{"CONFIG_DEBUG_INFO_BTF=", "CONFIG_DEBUG_INFO_BTF_MODULES="}

// makeWords are for trees that were prepared here; those of packages have the same in a file of their own.
func makeWords(release, compiler string) []string {
	return []string{"ARCH=x86", "KERNELRELEASE=" + release, "CC=x86_64-linux-gnu-" + compiler, "HOSTCC=" + compiler}
}

// packagedSource makes the entry of a module's pristine files.
func (b *Builder) packagedSource(ctx context.Context, p *plan, module string) (key string, err error) {
	key = fmt.Sprintf("%s-%s-%d", kernelKey(p.kernel), strings.ReplaceAll(module, "/", "_"), sourceFormat)
	_, err = b.cache.Entry(ctx, sourceKind, key, func(ctx context.Context, dir string) error {
		work := filepath.Join(dir, ".work")
		if err := os.Mkdir(work, 0o700); err != nil {
			return err
		}
		tarball, err := b.fetchSource(ctx, work, p)
		if err != nil {
			return err
		}
		a, closer, err := openArchive(tarball)
		if err != nil {
			return err
		}
		defer closer.Close()
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		defer root.Close()
		files := 0
		b.progress("finding "+module+" in "+filepath.Base(tarball), 0, 0)
		if err := a.Directory(ctx, module, func(name string, h *tar.Header, r io.Reader) error {
			files++
			return writeFile(root, name, h, r)
		}); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(tarball), err)
		}
		if files == 0 {
			return &NoSourceError{Kernel: p.kernel.Release, Missing: "its source has no directory " + module}
		}
		return os.RemoveAll(work)
	})
	return key, err
}

// fetchSource fetches the source that a kernel with headers was built from: Debian's, or upstream's if that is gone.
func (b *Builder) fetchSource(ctx context.Context, dir string, p *plan) (file string, err error) {
	if p.source.Name == "" {
		return b.fetchUpstream(ctx, dir, p.kernel)
	}
	if err := b.cache.NeedSpace(2 * p.source.Size); err != nil {
		return "", err
	}
	debs, err := b.cache.Download(ctx, dir, []images.Package{p.source}, b.progress)
	if err != nil {
		return "", err
	}
	b.progress("unpacking "+p.source.Name, 0, 0)
	if err := images.Unpack(ctx, dir, debs, func(name string) string {
		if strings.HasPrefix(name, srcDir+"/linux-source-") && strings.HasSuffix(name, ".tar.xz") {
			return path.Base(name)
		}
		return ""
	}); err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "linux-source-*.tar.xz"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%s %s holds %d archives", p.source.Name, p.source.Version, len(found))
	}
	return found[0], nil
}
