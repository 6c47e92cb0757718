package build

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	kernelFormat = 1

	// What a whole kernel may take. The room is what is left over at the end, seen of 6.18 and 7.3, and some more.
	roomWhole   = 2500 << 20
	roomBase    = 1500 << 20
	roomBuild   = 500 << 20
	maxKernel   = 8 << 30
	kernelLimit = 60 * time.Minute

	usualObjects = 1550 // files that are compiled for a kernel, until one was built
)

// BuiltKernel is a kernel that was built, and result.json in its entry, or in that of a base.
type BuiltKernel struct {
	Path     string    `json:"-"` // what `--kernel PATH` takes
	Cached   bool      `json:"-"`
	Release  string    // uname -r
	Warnings []Warning // of the files that were compiled anew
	Added    []Warning // those of Warnings that the unchanged kernel does not have
	Unused   []string  // changed files that nothing that was built depends on
	Notes    []string  // what is not quite as it should be, one sentence each
	Compiled int       // files
	Seconds  float64   // that the build took, also when it was taken from the cache
}

// HasKernel tells whether the kernel was built as it is, so that building it with a change does not take minutes.
func (b *Builder) HasKernel(t *Tree) bool {
	_, ok := b.cache.Find(baseKind, (&whole{t: t}).key(false))
	return ok
}

// Kernel builds a kernel with files changed: path in the tree to content, nil for a file that is removed. No change builds it as it is, which takes minutes once; every other
// starts from the objects of that one.
//
// Errors a caller may tell apart: *CompileError (the change's fault; without a change, that of a git repository's commit), *DebugError, *LimitError, *sandbox.RefusedError,
// *images.NoSpaceError.
func (b *Builder) Kernel(ctx context.Context, t *Tree, changed map[string][]byte) (*BuiltKernel, error) {
	changed, err := t.really(changed)
	if err != nil {
		return nil, err
	}
	w := &whole{b: b, t: t, changed: changed}
	if dir, ok := b.cache.Find(builtKind, w.key(true)); ok {
		return built(dir, true)
	}
	release, err := b.cache.Hold(ctx, t.entry) // Tree has looked whether it is whole, which takes half a second
	if err != nil {
		return nil, err
	}
	defer release()
	w.source = filepath.Join(t.entry, wholeDir)
	if !isDir(w.source) {
		return nil, fmt.Errorf("the source of %s is no longer in the cache: run it again", t.Name)
	}
	w.root, release, err = b.hold(ctx, toolchainKind, t.parts.Toolchain)
	if err != nil {
		return nil, err
	}
	defer release()
	base, err := w.base(ctx)
	if err != nil {
		return nil, err
	}
	release, err = b.cache.Hold(ctx, base)
	if err != nil {
		return nil, err
	}
	defer release()
	fresh := false
	dir, err := b.cache.Entry(ctx, builtKind, w.key(true), func(ctx context.Context, dir string) error {
		fresh = true
		return w.make(ctx, dir, base)
	})
	if err != nil {
		return nil, err
	}
	return built(dir, !fresh)
}

func built(dir string, cached bool) (*BuiltKernel, error) {
	k := &BuiltKernel{Path: dir, Cached: cached}
	if err := readResult(dir, k); err != nil {
		return nil, err
	}
	return k, nil
}

// whole is the building of a kernel.
type whole struct {
	b       *Builder
	t       *Tree
	changed map[string][]byte
	root    string // of the toolchain
	source  string
}

// key names a base, or what becomes of it with the change, by all that decides on it.
func (w *whole) key(withChange bool) string {
	h := sha256.New()
	parts := w.t.parts
	if w.t.Commit != "" {
		parts.Origin = "" // a commit is the same in whatever repository it is found
	}
	fmt.Fprintf(h, "%d %+v %q %q %q", kernelFormat, parts, configuration(w.t.parts.Local, w.t.parts.Debug), toolEnv, wholeWords(w.t.parts.Compiler, w.t.parts.Debug))
	kind := ""
	if withChange {
		hashChange(h, w.changed)
		if len(w.changed) > 0 {
			kind = "changed-"
		}
	}
	return fmt.Sprintf("%s%s-%s%.6x", strings.ReplaceAll(w.t.Name, " ", "-"), w.t.parts.Local, kind, h.Sum(nil))
}

// wholeWords are for make. What a kernel says of when and by whom it was built is always the same.
//
// Where a kernel is entered by PVH, a call of memcmp comes before what kasan and kcsan have put into it works: gcc makes one of a comparison in code that is seldom run, however small.
func wholeWords(compiler string, debug []string) []string {
	words := []string{"ARCH=x86_64", "CC=x86_64-linux-gnu-" + compiler, "HOSTCC=" + compiler, "KBUILD_BUILD_TIMESTAMP=Thu Jan  1 00:00:00 UTC 1970", "KBUILD_BUILD_VERSION=1"}
	if slices.Contains(debug, "kasan") || slices.Contains(debug, "kcsan") {
		words = append(words, "CFLAGS_enlighten.o=-minline-all-stringops")
	}
	return words
}

// words are make's for some targets.
func (w *whole) words(targets ...string) []string {
	return slices.Concat([]string{"-C", "/build"}, wholeWords(w.t.parts.Compiler, w.t.parts.Debug), targets)
}

// base returns the entry with the objects of the unchanged kernel, building it if need be.
func (w *whole) base(ctx context.Context) (string, error) {
	key := w.key(false)
	dir, err := w.b.cache.Entry(ctx, baseKind, key, func(ctx context.Context, dir string) error {
		if err := w.b.cache.NeedSpace(roomBase); err != nil {
			return err
		}
		p := &place{b: w.b, root: w.root, upper: filepath.Join(dir, wholeDir), scratch: filepath.Join(dir, ".scratch"), lower: []string{w.source}}
		if err := os.Mkdir(p.upper, 0o700); err != nil {
			return err
		}
		var before BuiltKernel
		if part, ok := w.b.cache.Find(partKind, key); ok {
			if err := readResult(part, &before); err != nil {
				return err
			}
			if err := fillIn(ctx, p.upper, filepath.Join(part, wholeDir)); err != nil {
				return err
			}
		}
		r, err := w.makeBase(ctx, p, before)
		if compile := new(CompileError); errors.As(err, &compile) && before.Compiled > 0 {
			// A file that was being written when everything was killed may be half of one.
			if err := os.RemoveAll(p.upper); err != nil {
				return err
			}
			if err := os.Mkdir(p.upper, 0o700); err != nil {
				return err
			}
			p.copied = false
			r, err = w.makeBase(ctx, p, BuiltKernel{})
		}
		if err != nil {
			if ctx.Err() != nil || errors.As(err, new(*LimitError)) {
				if e := w.keep(context.WithoutCancel(ctx), key, p, r); e != nil {
					err = fmt.Errorf("%w (what was built so far is lost: %v)", err, e)
				}
			}
			return err
		}
		if err := p.own(); err != nil {
			return err
		}
		return writeResult(dir, r)
	})
	if err == nil {
		err = w.b.cache.Remove(ctx, partKind, key)
	}
	var compile *CompileError
	if errors.As(err, &compile) && w.t.Commit == "" {
		err = fmt.Errorf("%s does not build as it is: %w", w.t.Name, errors.New(compile.Error()))
	}
	return dir, err
}

// keep saves what an interrupted build has made for the next one.
func (w *whole) keep(ctx context.Context, key string, p *place, r BuiltKernel) error {
	if r.Compiled == 0 {
		return nil // nothing that would take long
	}
	if err := errors.Join(p.own(), w.b.cache.Remove(ctx, partKind, key)); err != nil {
		return err
	}
	_, err := w.b.cache.Entry(ctx, partKind, key, func(_ context.Context, dir string) error {
		return errors.Join(writeResult(dir, r), os.Rename(p.upper, filepath.Join(dir, wholeDir)))
	})
	return err
}

// makeBase configures and builds the unchanged kernel, or goes on where that was interrupted. With an error it tells how far it came.
func (w *whole) makeBase(ctx context.Context, p *place, before BuiltKernel) (r BuiltKernel, err error) {
	began := time.Now()
	what := "building " + w.t.Name
	w.b.progress("configuring "+w.t.Name, 0, 0)
	configured := filepath.Join(p.upper, ".config")
	if _, err := os.Lstat(configured); err != nil { // else it was interrupted
		if err := w.configure(ctx, p); err != nil {
			return r, err
		}
	}
	config, err := os.ReadFile(configured)
	if err != nil {
		return r, err
	}
	if r.Notes, err = checkConfiguration(string(config), w.t.parts.Local, w.t.parts.Debug); err != nil {
		return r, err
	}
	if p.copied {
		r.Notes = append(r.Notes, copiedNote)
	}
	said, compiled, err := w.compile(ctx, p, what, before.Compiled, usualObjects)
	r.Warnings = append(before.Warnings, added(said.warnings, before.Warnings)...)
	r.Compiled, r.Seconds = compiled, before.Seconds+time.Since(began).Seconds()
	return r, err
}

const copiedNote = "built in a copy of the source, since this machine does not lay directories over each other"

// target makes one of the targets that are about the configuration.
func (w *whole) target(ctx context.Context, p *place, name string) error {
	r := run{args: w.words(name)}
	return w.failed(p.run(ctx, &r), &r)
}

func isKconfig(name string) bool { return strings.HasPrefix(path.Base(name), "Kconfig") }

// configure makes .config: tinyconfig with ours over it.
func (w *whole) configure(ctx context.Context, p *place) error {
	file := filepath.Join(p.upper, ".config")
	if err := w.target(ctx, p, "tinyconfig"); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(configuration(w.t.parts.Local, w.t.parts.Debug))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := w.target(ctx, p, "olddefconfig"); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return nil
}

// compile builds the kernel and its modules, of whose files some may be compiled already. With an error, too, it tells what was said and how many are compiled by then.
func (w *whole) compile(ctx context.Context, p *place, what string, compiled, total int) (said, int, error) {
	r := run{args: w.words("vmlinux", "modules")}
	w.b.progress(what, int64(compiled), int64(max(total, compiled)))
	r.output.line = func(line []byte) {
		if isCompiling(line) {
			compiled++
			w.b.progress(what, int64(compiled), int64(max(total, compiled)))
		}
	}
	err := p.run(ctx, &r)
	return w.diagnose(&r), compiled, w.failed(err, &r)
}

// isCompiling tells make's line about a file of the kernel's that it compiles: "  CC      kernel/irq/matrix.o".
func isCompiling(line []byte) bool {
	words := bytes.Fields(line)
	if !bytes.HasPrefix(line, []byte("  ")) || len(words) < 2 || bytes.HasPrefix(words[len(words)-1], []byte("/")) {
		return false
	}
	return string(words[0]) == "CC" || string(words[0]) == "AS"
}

func (w *whole) diagnose(r *run) said {
	return diagnose(r.output.text(), "", "/build", func(string) bool { return true })
}

// failed turns make's failure into what it says.
func (w *whole) failed(err error, r *run) error {
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return compileError(w.t.Name, w.diagnose(r), r.output.tail())
	}
	return err
}

// make builds the kernel with the change into a new entry.
func (w *whole) make(ctx context.Context, dir, base string) error {
	var r BuiltKernel
	if err := readResult(base, &r); err != nil {
		return err
	}
	began := time.Now()
	objects := filepath.Join(base, wholeDir)
	layers := []string{objects}
	if len(w.changed) > 0 {
		if err := w.b.cache.NeedSpace(roomBuild); err != nil {
			return err
		}
		p := &place{b: w.b, root: w.root, upper: filepath.Join(dir, ".work"), scratch: filepath.Join(dir, ".scratch"), lower: []string{objects, w.source}, removed: removed(w.changed)}
		if err := w.write(p.upper); err != nil {
			return err
		}
		names := map[string]bool{}
		for name := range w.changed {
			names[name] = true
		}
		used := map[string]bool{}
		total, err := mentions(objects, names, used)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(slices.Collect(maps.Keys(w.changed)), isKconfig) { // else make would ask for the values of new options
			if err := w.target(ctx, p, "olddefconfig"); err != nil {
				return err
			}
		}
		said, compiled, err := w.compile(ctx, p, "building "+w.t.Name+" with the change", 0, total)
		if err != nil {
			return err
		}
		if p.copied && !slices.Contains(r.Notes, copiedNote) {
			r.Notes = append(r.Notes, copiedNote)
		}
		if _, err := mentions(p.upper, names, used); err != nil {
			return err
		}
		r.Added, r.Warnings, r.Compiled = added(said.warnings, r.Warnings), said.warnings, compiled
		r.Unused = unused(w.changed, used, func(name string) bool { return isDir(filepath.Join(objects, name)) })
		layers = []string{p.upper, objects}
	}
	var err error
	if r.Release, err = takeKernel(dir, layers); err != nil {
		return fmt.Errorf("building %s: %w", w.t.Name, err)
	}
	if err := os.RemoveAll(filepath.Join(dir, ".work")); err != nil {
		return err
	}
	if len(w.changed) > 0 {
		r.Seconds = time.Since(began).Seconds()
	}
	return writeResult(dir, r)
}

// write writes the changed files, those that were programs as programs.
func (w *whole) write(upper string) error {
	if err := os.Mkdir(upper, 0o700); err != nil {
		return err
	}
	for _, name := range byDepth(w.changed) {
		if w.changed[name] == nil {
			continue
		}
		if err := write(upper, name, w.changed[name]); err != nil {
			return err
		}
		st, err := w.t.root.Lstat(name)
		if err == nil && st.Mode().IsRegular() && st.Mode()&0o100 != 0 || err != nil && bytes.HasPrefix(w.changed[name], []byte("#!")) {
			if err := os.Chmod(filepath.Join(upper, name), 0o700); err != nil {
				return err
			}
		}
	}
	return nil
}

// mentions looks through what make noted of how each file was built, and adds to used those of names that something was built of. It returns how many compiled files were.
func mentions(tree string, names, used map[string]bool) (objects int, err error) {
	err = filepath.WalkDir(tree, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !strings.HasSuffix(file, ".cmd") {
			return err
		}
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		found := false
		lines := bufio.NewReaderSize(f, 64<<10)
		for {
			line, err := lines.ReadSlice('\n')
			if name := noted(line); len(name) > 0 && names[string(name)] {
				used[string(name)] = true
				found = true
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil && !errors.Is(err, bufio.ErrBufferFull) { // the command itself may be that long
				return err
			}
		}
		if found && strings.HasSuffix(file, ".o.cmd") {
			objects++
		}
		return nil
	})
	return objects, err
}

// noted is the file that a line of make's notes says something was made of: "  include/linux/irq.h \", or "source_kernel/irq/matrix.o := kernel/irq/matrix.c".
func noted(line []byte) []byte {
	line = bytes.TrimRight(line, " \\\n")
	if bytes.HasPrefix(line, []byte("source_")) || bytes.HasPrefix(line, []byte("deps_")) {
		_, line, _ = bytes.Cut(line, []byte(":= "))
	}
	line = bytes.TrimSpace(line)
	return bytes.TrimPrefix(line, []byte("/build/"))
}

// unused are the changed files, sorted, that nothing was built of. Of files that make's notes do not name, it goes by whether anything was built in their directory.
func unused(changed map[string][]byte, used map[string]bool, builtIn func(dir string) bool) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		if used[name] {
			continue
		}
		base := path.Base(name)
		switch path.Ext(name) {
		case ".c", ".h", ".S", ".rs", ".dts", ".dtsi", ".rst", ".txt", ".yaml":
		default:
			if !isKconfig(name) && builtIn(path.Dir(name)) && base != "MAINTAINERS" {
				continue
			}
		}
		out = append(out, name)
	}
	return out
}

var plainRelease = regexp.MustCompile(`^[0-9][0-9A-Za-z.+~_-]{0,127}$`)

// kernelFiles are what is kept of a build beside the modules: what `--kernel` looks at in a tree.
var kernelFiles = []string{"vmlinux", ".config", "include/config/kernel.release", "modules.order", "modules.builtin", "modules.builtin.modinfo"}

// takeKernel copies a built kernel and its modules out of layers, the uppermost first. What lies there may be anything that a changed Makefile put there, so no link is followed.
func takeKernel(to string, layers []string) (release string, err error) {
	var from []*os.Root
	for _, dir := range layers {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return "", err
		}
		defer root.Close()
		from = append(from, root)
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return "", err
	}
	defer root.Close()
	take := func(name string) error {
		for _, layer := range from {
			st, err := layer.Lstat(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if !st.Mode().IsRegular() || st.Size() > maxFile {
				return fmt.Errorf("%s is not a file", name)
			}
			r, err := layer.Open(name)
			if err != nil {
				return err
			}
			defer r.Close()
			if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
				return err
			}
			w, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			_, err = io.Copy(w, r)
			return errors.Join(err, w.Close())
		}
		return fmt.Errorf("it made no %s", name)
	}
	for _, name := range kernelFiles {
		if err := take(name); err != nil {
			return "", err
		}
	}
	order, err := root.ReadFile("modules.order")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(order)) {
		name := strings.TrimSpace(line)
		if object, ok := strings.CutSuffix(name, ".o"); ok {
			name = object + ".ko"
		}
		if !fs.ValidPath(name) || path.Ext(name) != ".ko" {
			return "", fmt.Errorf("modules.order names %q", printable(name))
		}
		if err := take(name); err != nil {
			return "", err
		}
	}
	data, err := root.ReadFile("include/config/kernel.release")
	release = strings.TrimSpace(string(data))
	if err == nil && !plainRelease.MatchString(release) {
		err = fmt.Errorf("its release is %q", printable(release))
	}
	return release, err
}
