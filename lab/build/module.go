package build

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"irqlab/images"
	"irqlab/lab/build/kobj"
	"irqlab/lab/build/sandbox"
)

const (
	moduleFormat = 3
	resultFile   = "result.json"
	treeDir      = "tree" // what the build of the unpatched module left: others start from it
)

// result is result.json in an entry.
type result struct {
	Name       string
	Warnings   []Warning
	Comparison Comparison // of the unpatched one
	Seconds    float64
}

// Module builds the module with files changed: path in the kernel's tree to content, nil for a file that is removed. No change builds the unpatched module, which is also
// what every other is compared with and made from.
//
// Errors a caller may tell apart: *CompileError (the change's fault), *NotOwnError, *LimitError, *sandbox.RefusedError, *images.NoSpaceError.
func (b *Builder) Module(ctx context.Context, src *Source, changed map[string][]byte) (*Module, error) {
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		if !fs.ValidPath(name) || !src.Builds(name) {
			return nil, &NotOwnError{Module: src.Module, Path: name}
		}
	}
	changed = src.really(changed)
	j, done, err := b.job(ctx, src)
	if err != nil {
		return nil, err
	}
	defer done()
	twin, err := j.build(ctx, nil, "")
	if err != nil || len(changed) == 0 {
		return twin, err
	}
	release, err := b.cache.Hold(ctx, twin.Path)
	if err != nil {
		return nil, err
	}
	defer release()
	m, err := j.build(ctx, changed, filepath.Join(filepath.Dir(twin.Path), treeDir))
	if err != nil {
		return nil, err
	}
	m.Comparison = twin.Comparison
	m.Added = added(m.Warnings, twin.Warnings)
	return m, nil
}

// really leaves out what is not changed at all.
func (s *Source) really(changed map[string][]byte) map[string][]byte {
	out := map[string][]byte{}
	for name, content := range changed {
		was, err := fs.ReadFile(s.FS(), name)
		if there := err == nil; there != (content != nil) || there && string(was) != string(content) {
			out[name] = content
		}
	}
	return out
}

// Scratch builds the module past the cache and with nothing to start from, into a new directory: what it takes anybody else.
func (b *Builder) Scratch(ctx context.Context, src *Source, changed map[string][]byte, dir string) error {
	j, done, err := b.job(ctx, src)
	if err != nil {
		return err
	}
	defer done()
	return j.make(ctx, dir, changed, "")
}

// job is the building of one or more variants of a module.
type job struct {
	b             *Builder
	src           *Source
	root, headers string
}

// job holds what building a module takes, until done is called.
func (b *Builder) job(ctx context.Context, src *Source) (j *job, done func(), err error) {
	root, releaseRoot, err := b.hold(ctx, toolchainKind, src.parts.Toolchain)
	if err != nil {
		return nil, nil, err
	}
	headers, releaseHeaders, err := b.hold(ctx, headersKind, src.parts.Headers)
	if err != nil {
		releaseRoot()
		return nil, nil, err
	}
	return &job{b: b, src: src, root: root, headers: headers}, func() {
		releaseHeaders()
		releaseRoot()
	}, nil
}

// key names a variant by all that decides on it.
func (j *job) key(changed map[string][]byte) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d %+v %q", moduleFormat, j.src.parts, toolEnv)
	hashChange(h, changed)
	kind := "pristine"
	if len(changed) > 0 {
		kind = "changed"
	}
	return fmt.Sprintf("%s-%s-%s-%.12x", kernelKey(j.src.Kernel), path.Base(j.src.Module), kind, h.Sum(nil))
}

// hashChange adds changed files to what names a build.
func hashChange(h io.Writer, changed map[string][]byte) {
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		if changed[name] == nil {
			fmt.Fprintf(h, " %q removed", name)
		} else {
			fmt.Fprintf(h, " %q %x", name, sha256.Sum256(changed[name]))
		}
	}
}

// readResult reads what an entry says of what is in it.
func readResult(entry string, into any) error {
	data, err := os.ReadFile(filepath.Join(entry, resultFile))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", entry, err)
	}
	return nil
}

func writeResult(entry string, result any) error {
	data, err := json.Marshal(result)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(entry, resultFile), data, 0o600)
}

// build returns a variant from the cache, or builds it, starting from the objects in a tree if one is given.
func (j *job) build(ctx context.Context, changed map[string][]byte, from string) (*Module, error) {
	fresh := false
	entry, err := j.b.cache.Entry(ctx, moduleKind, j.key(changed), func(ctx context.Context, dir string) error {
		fresh = true
		return j.make(ctx, dir, changed, from)
	})
	if err != nil {
		return nil, err
	}
	var r result
	if err := readResult(entry, &r); err != nil {
		return nil, err
	}
	return &Module{Name: r.Name, Path: filepath.Join(entry, r.Name+".ko"), Warnings: r.Warnings, Comparison: r.Comparison, Seconds: r.Seconds, Cached: !fresh}, nil
}

// make builds a variant into a new entry.
func (j *job) make(ctx context.Context, dir string, changed map[string][]byte, from string) error {
	const room = 128 << 20
	if err := j.b.cache.NeedSpace(room); err != nil {
		return err
	}
	began := time.Now()
	module, release := j.src.Module, j.src.Kernel.Release
	work := filepath.Join(dir, treeDir)
	if from == "" {
		from = filepath.Join(dir, "none")
	}
	if err := copyTree(filepath.Join(work, module), filepath.Join(j.src.files, module), filepath.Join(from, module)); err != nil {
		return err
	}
	mounts := []sandbox.Mount{{From: filepath.Join(j.headers, srcDir), To: "/" + srcDir}, {From: work, To: "/build", Write: true}}
	headers := filepath.Join(dir, "headers")
	overlays, err := j.change(work, headers, changed)
	if err != nil {
		return err
	}
	mounts = append(mounts, overlays...)
	what := "building " + path.Base(module) + " for " + release
	if len(changed) == 0 {
		what = "building the unpatched " + path.Base(module) + " for " + release
	}
	j.b.progress(what, 0, 0)

	const limit = 10 * time.Minute
	args := []string{"-C", "/" + srcDir + "/" + j.src.parts.Make, "M=/build/" + module, "KCFLAGS=-g0"}
	if j.src.parts.Prepared {
		args = append(args, makeWords(release, j.src.parts.Compiler)...)
	}
	r := run{root: j.root, work: work, mounts: mounts, limit: limit, args: slices.Concat(args, noBTF, []string{"modules"})}
	buildErr := j.b.run(ctx, &r)
	said := diagnose(r.output.text(), module, "/"+srcDir+"/"+j.src.parts.Tree, func(name string) bool {
		st, err := os.Lstat(filepath.Join(work, name))
		return err == nil && st.Mode().IsRegular()
	})
	if exit := new(exec.ExitError); errors.As(buildErr, &exit) {
		if len(changed) == 0 {
			return fmt.Errorf("the unpatched %s does not build for %s: %w%s", module, release, buildErr, r.output.tail())
		}
		return compileError(module, said, r.output.tail())
	}
	if buildErr != nil {
		return fmt.Errorf("building %s for %s: %w", module, release, buildErr)
	}
	res := result{Warnings: said.warnings}
	object, err := takeModule(work, module, &res.Name)
	if err != nil {
		return fmt.Errorf("building %s for %s: %w", module, release, err)
	}
	if err := os.WriteFile(filepath.Join(dir, res.Name+".ko"), object, 0o600); err != nil {
		return err
	}
	if len(changed) == 0 {
		res.Comparison = compareWith(ctx, j.src.Kernel, res.Name, object)
	} else if err := os.RemoveAll(work); err != nil {
		return err
	}
	if err := os.RemoveAll(headers); err != nil {
		return err
	}
	res.Seconds = time.Since(began).Seconds()
	return writeResult(dir, res)
}

// compareWith compares the unpatched module with the distribution's.
func compareWith(ctx context.Context, k images.Kernel, name string, object []byte) Comparison {
	theirs, err := k.ModuleObject(ctx, name)
	if err != nil {
		return Comparison{Reason: fmt.Sprintf("the distribution's %s cannot be read: %v", name, err)}
	}
	d, err := kobj.Compare(theirs, object)
	if err != nil {
		return Comparison{Reason: fmt.Sprintf("%s cannot be compared: %v", name, err)}
	}
	return Comparison{Identical: d.Identical(), Functions: d.Functions, Differ: d.Differ}
}

// takeModule reads the one module that a build made. What lies there may be anything that a changed Makefile put there, so no link is followed.
func takeModule(work, module string, name *string) ([]byte, error) {
	root, err := os.OpenRoot(work)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	found, err := fs.Glob(root.FS(), path.Join(module, "*.ko"))
	if err != nil {
		return nil, err
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("it made %d modules, not one", len(found))
	}
	const largest = 256 << 20
	if st, err := root.Lstat(found[0]); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() || st.Size() > largest {
		return nil, fmt.Errorf("%s is not a module", found[0])
	}
	f, err := root.Open(found[0])
	if err != nil {
		return nil, err
	}
	defer f.Close()
	*name = strings.ReplaceAll(strings.TrimSuffix(path.Base(found[0]), ".ko"), "-", "_")
	data, err := io.ReadAll(io.LimitReader(f, largest))
	if err == nil && !strings.HasPrefix(string(data), "\x7fELF") {
		err = fmt.Errorf("%s is not a module", found[0])
	}
	return data, err
}

// copyTree copies directories over each other, with the times of their files: make tells by these what is up to date. One that is not there is passed over.
func copyTree(to string, from ...string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, dir := range from {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				if name == dir && errors.Is(err, fs.ErrNotExist) {
					return fs.SkipAll
				}
				return err
			}
			rel, err := filepath.Rel(dir, name)
			if err != nil {
				return err
			}
			target := filepath.Join(to, rel)
			switch {
			case d.IsDir():
				return os.MkdirAll(target, 0o700)
			case d.Type().IsRegular():
				return copyFile(target, name)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func copyFile(to, from string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	st, err := r.Stat()
	if err != nil {
		return err
	}
	w, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, st.Mode().Perm())
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil {
		w.Close()
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.Chtimes(to, st.ModTime(), st.ModTime())
}

// change writes changed files into the module's directory, and changed headers into copies of directories of headers, which it returns as mounts over them.
func (j *job) change(work, headers string, changed map[string][]byte) ([]sandbox.Mount, error) {
	var mounts []sandbox.Mount
	var copied []string
	for _, name := range byDepth(changed) {
		if strings.HasPrefix(name, j.src.Module+"/") {
			if err := write(work, name, changed[name]); err != nil {
				return nil, err
			}
			continue
		}
		if !slices.ContainsFunc(copied, func(dir string) bool { return strings.HasPrefix(name, dir+"/") }) {
			dir := path.Dir(name)
			for !isDir(filepath.Join(j.src.tree, dir)) { // a new directory
				dir = path.Dir(dir)
			}
			if err := copyTree(filepath.Join(headers, dir), filepath.Join(j.src.tree, dir)); err != nil {
				return nil, err
			}
			copied = append(copied, dir)
			mounts = append(mounts, sandbox.Mount{From: filepath.Join(headers, dir), To: path.Join("/", srcDir, j.src.parts.Tree, dir)})
		}
		if err := write(headers, name, changed[name]); err != nil {
			return nil, err
		}
	}
	return mounts, nil
}

// byDepth are the files' names, those in upper directories first.
func byDepth(changed map[string][]byte) []string {
	return slices.SortedFunc(maps.Keys(changed), func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")), strings.Compare(a, b))
	})
}

// write writes, or removes, one changed file.
func write(dir, name string, content []byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if content == nil {
		return nil
	}
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	return root.WriteFile(name, content, 0o600)
}
