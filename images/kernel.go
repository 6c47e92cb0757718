package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Kernel is a kernel ready to boot.
type Kernel struct {
	Spec       string // as asked for
	Release    string // uname -r
	Image      string // path
	ImageKind  string // "vmlinux" (uncompressed, has a PVH entry) or "bzImage"
	ModulesDir string // …/lib/modules/<release> or a build tree, "" if there is none; modules.dep may be missing from it
	Source     string // for people: "Debian trixie-backports 7.3.4-1~bpo13+1", or a path
	Suite      string // of Debian that it came from: trixie-backports; "" unless it was fetched from a mirror
	Version    string // of its packages: 7.3.4-1~bpo13+1; "" unless it was fetched from a mirror
	Config     string // path of its configuration, "" if that did not come with it
}

const (
	kernelKind = "kernel" // entries with a kernel and its modules
	imageKind  = "image"  // entries with a vmlinux taken from a bzImage given by path

	indexAge = 24 * time.Hour // how old the package index may be before it is refreshed unasked
)

// kernelFile is kernel.json in an entry.
type kernelFile struct {
	Release  string    `json:"release"`
	Version  string    `json:"version,omitempty"`
	Suite    string    `json:"suite,omitempty"` // "" unless it came from the mirror
	Image    string    `json:"image,omitempty"` // file in the entry, "" if the image stayed where it was
	Kind     string    `json:"kind"`
	Modules  bool      `json:"modules,omitempty"` // lib/modules/<release> is in the entry
	Packages []pkgName `json:"packages,omitempty"`
}

const kernelFileName = "kernel.json"

func readKernelFile(entry string) (kernelFile, error) {
	var k kernelFile
	data, err := os.ReadFile(filepath.Join(entry, kernelFileName))
	if err != nil {
		return k, err
	}
	if err := json.Unmarshal(data, &k); err != nil {
		return k, fmt.Errorf("%s: %w", entry, err)
	}
	return k, nil
}

func (k kernelFile) write(dir string) error {
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, kernelFileName), data, 0o600)
}

func (k kernelFile) kernel(entry, spec, source, image string) Kernel {
	out := Kernel{Spec: spec, Release: k.Release, Image: image, ImageKind: k.Kind, Source: source, Suite: k.Suite, Version: k.Version}
	if config := filepath.Join(entry, "config"); regular(config) {
		out.Config = config
	}
	if k.Image != "" {
		out.Image = filepath.Join(entry, k.Image)
	}
	if k.Modules {
		out.ModulesDir = filepath.Join(entry, "lib/modules", k.Release)
	}
	return out
}

// Kernel finds, fetches or unpacks the kernel that a SPEC names.
//
// Errors a caller may tell apart: *SpecError, *UnknownKernelError, *IncompleteKernelError, *NotAKernelError, *NoSpaceError, ErrNoApt, fs.ErrNotExist for a
// path that is not there.
func (c *Cache) Kernel(ctx context.Context, spec string, p Progress) (Kernel, error) {
	s, err := parseSpec(spec)
	if err != nil {
		return Kernel{}, err
	}
	path := ""
	if c.Build != nil {
		if path, err = c.Build(ctx, spec, p); err != nil {
			return Kernel{}, kernelError(spec, err)
		}
	}
	switch {
	case path != "":
		return c.pathKernel(ctx, spec, path, p)
	case s.Commit:
		return Kernel{}, &SpecError{Spec: spec, Problem: "a commit's kernel has to be built, which is not done here"}
	case s.Debian != "":
		return c.debianKernel(ctx, spec, s.Debian, p)
	case len(s.Debs) > 0:
		return c.debKernel(ctx, spec, s.Debs, p)
	}
	return c.pathKernel(ctx, spec, s.Path, p)
}

// BadKernelError tells that a kernel SPEC is a mistake of the user's, not a failure of the lab: no such kernel, no such file, or no kernel at all.
type BadKernelError struct{ Err error }

func (e *BadKernelError) Error() string { return e.Err.Error() }
func (e *BadKernelError) Unwrap() error { return e.Err }

// AsBadKernel returns err, which Kernel or Initramfs has for a SPEC, as a *BadKernelError if the SPEC itself is wrong, else as it is.
func AsBadKernel(spec string, err error) error {
	var form *SpecError
	var unknown *UnknownKernelError
	var incomplete *IncompleteKernelError
	var no *NotAKernelError
	var noGo *NoGoError
	switch {
	case errors.As(err, &incomplete) && !strings.HasPrefix(spec, "debian:"), // the packages given, not those of a mirror
		errors.As(err, &form), errors.As(err, &unknown), errors.As(err, &no), errors.Is(err, fs.ErrNotExist) && !errors.As(err, &noGo):
		return &BadKernelError{err}
	}
	return err
}

func (c *Cache) debianKernel(ctx context.Context, spec, want string, p Progress) (Kernel, error) {
	fail := func(err error) (Kernel, error) { return Kernel{}, kernelError(spec, err) }
	x := c.readIndex()
	chosen, err := selectKernel(c.cachedKernels(), want)
	if exact := err == nil && (want == chosen.upstream() || want == chosen.Version || want == chosen.Release); !exact {
		// Anything less than an exact, cached kernel may have become a newer one.
		fresh, indexErr := c.ensureIndex(ctx, indexAge, p)
		switch {
		case indexErr == nil:
			x = fresh
		case err != nil || ctx.Err() != nil:
			return fail(indexErr)
		default:
			c.warn("kernel %s: using the cached %s without asking for a newer one: %v", spec, chosen.Release, indexErr)
		}
		chosen, err = selectKernel(c.known(x), want)
	}
	for attempt := 0; ; attempt++ {
		if err == nil {
			var entry string
			if entry, err = c.fetchKernel(ctx, chosen, x, p); err == nil {
				k, err := readKernelFile(entry)
				if err != nil {
					return fail(err)
				}
				return k.kernel(entry, spec, fmt.Sprintf("Debian %s %s", k.Suite, k.Version), ""), nil
			}
		}
		// Not there, or no longer: worth one fresh look at the mirror.
		var a *AptError
		var unknown *UnknownKernelError
		var incomplete *IncompleteKernelError
		var young time.Duration
		switch {
		case errors.As(err, &a) && a.gone():
			young = time.Minute
		case errors.As(err, &unknown), errors.As(err, &incomplete):
			young = 10 * time.Minute // mirrors change a few times a day; a misspelt SPEC should not wait for a refresh every time
		}
		stale := young > 0
		if attempt > 0 || !stale || ctx.Err() != nil || x != nil && time.Since(x.Time) < young {
			return fail(err)
		}
		fresh, indexErr := c.ensureIndex(ctx, young, p)
		if indexErr != nil {
			return fail(errors.Join(err, indexErr))
		}
		x = fresh
		chosen, err = selectKernel(c.known(x), want)
	}
}

// kernelError names the SPEC unless the error does it already.
func kernelError(spec string, err error) error {
	switch text := err.Error(); {
	case strings.HasPrefix(text, "kernel "+spec):
		return err
	case strings.HasPrefix(text, spec+": "):
		return fmt.Errorf("kernel %w", err)
	}
	return fmt.Errorf("kernel %s: %w", spec, err)
}

// fetchKernel returns the entry of a Debian kernel, fetching its packages if needed.
func (c *Cache) fetchKernel(ctx context.Context, k candidate, x *index, p Progress) (string, error) {
	return c.entry(ctx, kernelKind, k.key(), func(ctx context.Context, dir string) error {
		const unpacked = 128 << 20 // vmlinux
		need := int64(unpacked)
		for _, pkg := range k.Packages {
			need += pkg.Size + pkg.Installed
		}
		if err := c.NeedSpace(need); err != nil {
			return err
		}
		debs := filepath.Join(dir, ".debs")
		if err := os.Mkdir(debs, 0o700); err != nil {
			return err
		}
		files, err := c.downloadKernel(ctx, debs, k, x, p)
		if err != nil {
			return err
		}
		p.report("unpacking "+k.Release, 0, 0)
		f, err := unpackKernelDebs(ctx, dir, files)
		if err != nil {
			return err
		}
		if f.Release != k.Release {
			return fmt.Errorf("its packages hold kernel %s, not %s", f.Release, k.Release)
		}
		f.Version, f.Suite, f.Packages = k.Version, k.Suite, k.Packages
		if err := f.write(dir); err != nil {
			return err
		}
		return os.RemoveAll(debs)
	})
}

func (c *Cache) downloadKernel(ctx context.Context, dir string, k candidate, x *index, p Progress) ([]string, error) {
	return locked(ctx, c, x, func(a *apt) (files []string, err error) {
		for _, pkg := range k.Packages {
			f, err := a.download(ctx, dir, k.Suite, pkg.Name, k.Version, pkg.Size, p)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
		return files, nil
	})
}

// unpackKernelDebs unpacks kernel packages into dir (lib/modules/<release>, config, vmlinux or vmlinuz) and says what they held.
// Both layouts are known: boot/vmlinuz-<release>, and from 6.19 usr/lib/modules/<release>/vmlinuz (qemu-facts, "Packages").
func unpackKernelDebs(ctx context.Context, dir string, files []string) (kernelFile, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return kernelFile{}, err
	}
	defer root.Close()
	layout := kernelLayout{images: map[string]bool{}, modules: map[string]bool{}}
	var names, depends []string
	for _, file := range files {
		d, err := openDeb(file)
		if err != nil {
			return kernelFile{}, err
		}
		names = append(names, d.Package)
		depends = append(depends, d.deb.Control.Values["Depends"])
		err = d.unpack(ctx, root, layout.place)
		d.Close()
		if err != nil {
			return kernelFile{}, err
		}
	}
	given := strings.Join(names, ", ")
	switch {
	case len(layout.images) > 1:
		return kernelFile{}, fmt.Errorf("%s hold %d kernels (%s): give the packages of one", given, len(layout.images), strings.Join(sortedKeys(layout.images), ", "))
	case len(layout.images) == 0 && len(layout.modules) > 0:
		r := sortedKeys(layout.modules)[0]
		return kernelFile{}, &IncompleteKernelError{Spec: given, Release: r, Reason: "no kernel image in " + given + "; linux-binary-" + r + " or linux-image-" + r + " is missing"}
	case len(layout.images) == 0:
		for _, d := range depends {
			for _, word := range strings.Fields(d) {
				if r := kernelPackage(word); r != "" && strings.HasPrefix(word, "linux-binary-") {
					return kernelFile{}, &IncompleteKernelError{Spec: given, Release: r, Reason: given + " only depends on linux-binary-" + r + " and linux-modules-" + r + "; give those"}
				}
			}
		}
		return kernelFile{}, &NotAKernelError{Path: given, Reason: "no vmlinuz and no modules in it"}
	}
	release := sortedKeys(layout.images)[0]
	f := kernelFile{Release: release, Modules: layout.modules[release]}
	if !f.Modules {
		if others := sortedKeys(layout.modules); len(others) > 0 {
			return kernelFile{}, &IncompleteKernelError{Spec: given, Release: release, Reason: "the modules are those of " + strings.Join(others, ", ")}
		}
		if slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "linux-binary-") }) {
			return kernelFile{}, &IncompleteKernelError{Spec: given, Release: release, Reason: "no modules in " + given + "; linux-modules-" + release + " is missing"}
		}
	}
	packed := filepath.Join(dir, "vmlinuz")
	image, kind, inside, err := unpackKernel(packed, filepath.Join(dir, "vmlinux"))
	if err != nil {
		return kernelFile{}, err
	}
	if inside != "" && inside != release {
		return kernelFile{}, fmt.Errorf("%s: the image says it is %s, its place says %s", given, inside, release)
	}
	if image != packed {
		if err := os.Remove(packed); err != nil {
			return kernelFile{}, err
		}
	}
	f.Image, f.Kind = filepath.Base(image), kind
	return f, nil
}

// kernelLayout finds its way in kernel packages.
type kernelLayout struct {
	images, modules map[string]bool // releases seen
}

// place says where a file of a package goes, "" for nowhere.
func (l *kernelLayout) place(name string) string {
	if r, ok := strings.CutPrefix(name, "boot/vmlinuz-"); ok && plainRelease(r) {
		l.images[r] = true
		return "vmlinuz"
	}
	if r, ok := strings.CutPrefix(name, "boot/config-"); ok && plainRelease(r) {
		return "config"
	}
	rest, ok := strings.CutPrefix(strings.TrimPrefix(name, "usr/"), "lib/modules/")
	if !ok {
		return ""
	}
	release, file, ok := strings.Cut(rest, "/")
	if !ok || !plainRelease(release) || file == "" {
		return ""
	}
	switch file {
	case "vmlinuz":
		l.images[release] = true
		return "vmlinuz"
	case "config":
		return "config"
	case "build", "source", "System.map":
		return ""
	}
	if strings.HasPrefix(file, "modules.") || isModuleFile(file) {
		if isModuleFile(file) {
			l.modules[release] = true
		}
		return path.Join("lib/modules", release, file)
	}
	return ""
}

// debKernel unpacks .deb files given by path.
func (c *Cache) debKernel(ctx context.Context, spec string, files []string, p Progress) (Kernel, error) {
	h := sha256.New()
	var need int64 = 128 << 20
	files = slices.Clone(files)
	for i, f := range files {
		abs, err := filepath.Abs(f)
		if err != nil {
			return Kernel{}, kernelError(spec, err)
		}
		st, err := os.Stat(abs)
		if err != nil {
			return Kernel{}, kernelError(spec, pathHint(err))
		}
		sum, err := hashFile(abs)
		if err != nil {
			return Kernel{}, kernelError(spec, err)
		}
		need += 4 * st.Size()
		files[i] = abs
		fmt.Fprintln(h, sum)
	}
	entry, err := c.entry(ctx, kernelKind, "deb-"+hex.EncodeToString(h.Sum(nil))[:32], func(ctx context.Context, dir string) error {
		if err := c.NeedSpace(need); err != nil {
			return err
		}
		p.report("unpacking "+filepath.Base(files[0]), 0, 0)
		f, err := unpackKernelDebs(ctx, dir, files)
		var bad *badDebError
		if errors.As(err, &bad) {
			return &NotAKernelError{Path: bad.path, Reason: strings.TrimPrefix(bad.Error(), bad.path+": ")}
		}
		if err != nil {
			return err
		}
		return f.write(dir)
	})
	if err != nil {
		return Kernel{}, kernelError(spec, err)
	}
	k, err := readKernelFile(entry)
	if err != nil {
		return Kernel{}, kernelError(spec, err)
	}
	return k.kernel(entry, spec, strings.Join(files, ", "), ""), nil
}

// pathHint adds the other spellings to the error of a path that is not there.
func pathHint(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w (a Debian kernel is spelled debian:VERSION, such as debian:7.3)", err)
	}
	return err
}

// pathKernel takes a kernel image or a build tree.
func (c *Cache) pathKernel(ctx context.Context, spec, file string, p Progress) (Kernel, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return Kernel{}, kernelError(spec, err)
	}
	st, err := os.Stat(file)
	if err != nil {
		return Kernel{}, kernelError(spec, pathHint(err))
	}
	switch {
	case st.IsDir():
		return c.treeKernel(ctx, spec, file, p)
	case !st.Mode().IsRegular():
		return Kernel{}, &NotAKernelError{Path: file, Reason: "not a regular file"}
	}
	f, err := openRegular(file)
	if err != nil {
		return Kernel{}, kernelError(spec, err)
	}
	magic := make([]byte, 8)
	n, _ := f.ReadAt(magic, 0) // a short file is told apart below
	f.Close()
	if bytes.Equal(magic[:n], []byte("!<arch>\n")) {
		return c.debKernel(ctx, spec, []string{file}, p)
	}
	return c.imageKernel(ctx, spec, file, p)
}

// imageKernel takes a bzImage or a vmlinux, with the modules that obviously belong to it.
func (c *Cache) imageKernel(ctx context.Context, spec, file string, p Progress) (Kernel, error) {
	k := Kernel{Spec: spec, Source: file}
	err := c.bootable(ctx, &k, file, p)
	if err != nil {
		return Kernel{}, kernelError(spec, err)
	}
	if tree := treeOf(file); tree != "" {
		k.ModulesDir = treeModules(tree)
	} else {
		k.ModulesDir = siblingModules(file, k.Release)
	}
	if k.Release == "" {
		return Kernel{}, &NotAKernelError{Path: file, Reason: "it does not tell its release"}
	}
	return k, nil
}

// bootable fills in the image, its kind and its release.
func (c *Cache) bootable(ctx context.Context, k *Kernel, file string, p Progress) error {
	f, err := openRegular(file)
	if err != nil {
		return err
	}
	magic := make([]byte, 4)
	n, _ := f.ReadAt(magic, 0)
	f.Close()
	if n == 4 && string(magic) == "\x7fELF" { // as it is
		k.Image, k.ImageKind, k.Release, err = unpackKernel(file, "")
		return err
	}
	sum, err := hashFile(file)
	if err != nil {
		return err
	}
	entry, err := c.entry(ctx, imageKind, sum[:32], func(ctx context.Context, dir string) error {
		const room = 256 << 20
		if err := c.NeedSpace(room); err != nil {
			return err
		}
		p.report("unpacking "+filepath.Base(file), 0, 0)
		image, kind, release, err := unpackKernel(file, filepath.Join(dir, "vmlinux"))
		if err != nil {
			return err
		}
		f := kernelFile{Release: release, Kind: kind}
		if image != file {
			f.Image = filepath.Base(image)
		}
		return f.write(dir)
	})
	if err != nil {
		return err
	}
	kf, err := readKernelFile(entry)
	if err != nil {
		return err
	}
	found := kf.kernel(entry, k.Spec, k.Source, file)
	k.Image, k.ImageKind, k.Release = found.Image, found.ImageKind, found.Release
	return nil
}

// siblingModules looks for the modules of a release where a package or an installation puts them relative to its image.
func siblingModules(image, release string) string {
	if release == "" {
		return ""
	}
	dir := filepath.Dir(image)
	if filepath.Base(dir) == release && filepath.Base(filepath.Dir(dir)) == "modules" {
		return dir // …/lib/modules/<release>/vmlinuz
	}
	for _, rel := range []string{"../lib/modules", "../usr/lib/modules", "lib/modules", "usr/lib/modules"} {
		d := filepath.Join(dir, rel, release)
		if st, err := os.Stat(d); err == nil && st.IsDir() {
			return d
		}
	}
	return ""
}

// treeImages are where a build leaves a bootable image, the fastest to boot first.
var treeImages = []string{"vmlinux", "arch/x86/boot/bzImage"}

// isTree tells a kernel build tree (O= or in place) from any other directory.
func isTree(dir string) bool {
	for _, name := range []string{"include/config/kernel.release", "include/config/auto.conf", "Kbuild", "modules.order"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// treeOf is the build tree that an image lies in, "" if it lies in none.
func treeOf(image string) string {
	for _, rel := range append(treeImages, "arch/x86_64/boot/bzImage") {
		if tree, ok := strings.CutSuffix(image, string(filepath.Separator)+filepath.FromSlash(rel)); ok && isTree(tree) {
			return tree
		}
	}
	return ""
}

// treeModules is the tree itself where modules were built: modules.order says where each lies.
func treeModules(tree string) string {
	if st, err := os.Stat(filepath.Join(tree, "modules.order")); err == nil && st.Size() > 0 {
		return tree
	}
	return ""
}

func (c *Cache) treeKernel(ctx context.Context, spec, tree string, p Progress) (Kernel, error) {
	var tried []error
	for _, rel := range treeImages {
		file := filepath.Join(tree, filepath.FromSlash(rel))
		if _, err := os.Stat(file); err != nil {
			continue
		}
		k, err := c.imageKernel(ctx, spec, file, p)
		if err == nil {
			k.Source, k.ModulesDir = tree, treeModules(tree)
			return k, nil
		}
		tried = append(tried, err)
	}
	if len(tried) > 0 {
		return Kernel{}, errors.Join(tried...)
	}
	if isTree(tree) {
		return Kernel{}, &NotAKernelError{Path: tree, Reason: "the tree has neither vmlinux nor arch/x86/boot/bzImage: run make in it, as irqlab run does with --build"}
	}
	return Kernel{}, &NotAKernelError{Path: tree, Reason: "a directory, but not a kernel build tree"}
}
