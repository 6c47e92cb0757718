package build

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"irqlab/images"
)

// Kinds of entries in the cache.
const (
	toolchainKind = "toolchain"    // a small root file system with a compiler and what a build needs
	headersKind   = "headers"      // what modules of one kernel are built against
	sourceKind    = "modsource"    // pristine files of one module
	moduleKind    = "module"       // a built module
	wholeKind     = "kernelsource" // all of a kernel's source
	baseKind      = "kernelbase"   // what was built of it as it is: others start from these objects
	partKind      = "kernelpart"   // the beginning of one, when it was interrupted
	builtKind     = "kernelbuild"  // a built kernel
)

// toolPackages are what building a kernel's own tools and modules takes, beside the compiler.
var toolPackages = []string{"libc6-dev", "make", "flex", "bison", "bc", "libelf-dev", "libssl-dev", "perl-base", "pahole", "xz-utils",
	"dash", "bash", "coreutils", "sed", "grep", "findutils", "diffutils", "mawk", "gzip"}

// baseSuite is the suite that a suite builds on: a kernel of trixie-backports was built with trixie's compiler.
func baseSuite(suite string) string { return strings.TrimSuffix(suite, "-backports") }

var compilerName = regexp.MustCompile(`\bgcc-(\d{1,2})\b`)

// compilerOf finds the compiler that a configuration or a dependency names: gcc-14.
func compilerOf(text string) string { return compilerName.FindString(text) }

// configured returns the value of an option in a configuration, without quotes; "" if it is not set.
func configured(config []byte, option string) string {
	for line := range strings.Lines(string(config)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), option+"="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return ""
}

// toolchain is a compiler of a suite with all that a build needs.
type toolchain struct {
	key      string
	suite    string
	compiler string
	names    []string
	size     int64 // of its packages, in bytes
}

// toolchain looks up which packages make a toolchain now.
func (b *Builder) toolchain(ctx context.Context, suite, compiler string) (*toolchain, error) {
	if compiler == "" {
		return nil, errors.New("the compiler that the kernel was built with is not known")
	}
	t := &toolchain{suite: suite, compiler: compiler, names: append([]string{compiler}, toolPackages...)}
	files, size, err := b.cache.Closure(ctx, suite, t.names, b.progress)
	if err != nil {
		return nil, err
	}
	t.size = size
	sum := sha256.Sum256([]byte(strings.Join(files, "\n")))
	t.key = fmt.Sprintf("%s-%s-%d-%.6x", suite, compiler, toolchainFormat, sum)
	return t, nil
}

// fetchToolchain makes the toolchain's entry.
func (b *Builder) fetchToolchain(ctx context.Context, t *toolchain) error {
	_, err := b.cache.Entry(ctx, toolchainKind, t.key, func(ctx context.Context, dir string) error {
		if err := b.cache.NeedSpace(6 * t.size); err != nil {
			return err
		}
		err := b.unpack(ctx, dir, t.compiler, toolPlace, func(debs string) ([]string, error) {
			return b.cache.DownloadClosure(ctx, debs, t.suite, t.names, t.compiler+" of "+t.suite, t.size, b.progress)
		})
		if err != nil {
			return err
		}
		return finishRoot(dir, t.compiler)
	})
	return err
}

// unpack fills an entry with what place keeps of packages that download puts into a directory.
func (b *Builder) unpack(ctx context.Context, dir, what string, place func(name string) string, download func(debs string) ([]string, error)) error {
	debs := filepath.Join(dir, ".debs")
	if err := os.Mkdir(debs, 0o700); err != nil {
		return err
	}
	files, err := download(debs)
	if err != nil {
		return err
	}
	b.progress("unpacking "+what, 0, 0)
	if err := images.Unpack(ctx, dir, files, place); err != nil {
		return err
	}
	return os.RemoveAll(debs)
}

const toolchainFormat = 2 // of what is kept of the packages

// finishRoot does what the packages' own scripts would do, as far as a build needs it, and makes the places that are mounted on.
func finishRoot(dir, compiler string) error {
	links := map[string]string{"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/bin/awk": "mawk", "usr/bin/gcc": compiler, "usr/bin/cc": compiler}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "usr/bin/sh")); err != nil { // dash's package leaves it to a script in older releases
		if err := os.Symlink("dash", filepath.Join(dir, "usr/bin/sh")); err != nil {
			return err
		}
	}
	for _, name := range []string{"dev", "proc", "tmp", "build", "usr/src", "usr/sbin", "usr/lib64"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// Small archives without which programs do not link; all others are for static programs, and large.
var neededArchives = []string{"libgcc.a", "libgcc_eh.a", "libc_nonshared.a", "libpthread.a", "libdl.a", "librt.a", "libutil.a"}

// toolPlace says which files of the toolchain's packages are kept, and where: not what people read, nor what a kernel's build does not run.
func toolPlace(name string) string {
	for _, top := range []string{"bin/", "sbin/", "lib/", "lib64/"} { // packages that are not merged into /usr yet
		if strings.HasPrefix(name, top) {
			name = "usr/" + name
		}
	}
	if !strings.HasPrefix(name, "usr/") {
		return ""
	}
	base := path.Base(name)
	switch {
	case strings.HasPrefix(name, "usr/share/"):
		for _, keep := range []string{"bison/", "perl/", "perl5/"} {
			if strings.HasPrefix(name, "usr/share/"+keep) {
				return name
			}
		}
		return ""
	case strings.HasPrefix(name, "usr/src/"), strings.HasPrefix(name, "usr/lib/linux/uapi/") && !strings.HasPrefix(name, "usr/lib/linux/uapi/x86/"),
		strings.Contains(name, "/gconv/"), strings.Contains(name, "/ossl-modules/"):
		return ""
	case strings.HasSuffix(base, ".a"):
		if !slices.Contains(neededArchives, base) {
			return ""
		}
	case base == "lto1", base == "g++-mapper-server":
		return ""
	case strings.HasPrefix(base, "lib") && strings.Contains(base, "san.so"), strings.HasPrefix(base, "libhwasan"):
		return ""
	}
	return name
}
