package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"irqlab/images"
	"irqlab/lab/build"
	"irqlab/lab/build/patch/gitrange"
	"irqlab/lab/foreign"
	"irqlab/scenarios"
)

func isCommit(spec string) bool { return strings.HasPrefix(spec, images.GitPrefix) }

// eachCommit puts for a SPEC that names a range of commits both of its ends. Its errors are of usage.
func eachCommit(kernels []string) ([]string, error) {
	var out []string
	for _, k := range kernels {
		spec, ok := strings.CutPrefix(k, images.GitPrefix)
		if !ok {
			out = append(out, k)
			continue
		}
		ends, err := gitrange.Ends(spec)
		if err != nil {
			return nil, usageError(fmt.Errorf("--kernel: %s: %w", foreign.Line(k), err))
		}
		for _, end := range ends {
			out = append(out, images.GitPrefix+end)
		}
	}
	return out, nil
}

// kernelTree finds or fetches the whole source of a kernel, one of Debian's or a commit.
func kernelTree(ctx context.Context, cache *images.Cache, b *build.Builder, spec string, o build.KernelOptions, p images.Progress) (*build.Tree, error) {
	if rest, ok := strings.CutPrefix(spec, images.GitPrefix); ok {
		dir, rev, err := gitrange.Place(rest)
		if err == nil {
			_, err = gitrange.OpenTree(ctx, dir, rev)
		}
		if err != nil && ctx.Err() == nil {
			return nil, usageError(&images.BadKernelError{Err: err})
		}
		return b.GitTree(ctx, dir, rev, o)
	}
	kernel, err := cache.Kernel(ctx, spec, p)
	if err != nil {
		return nil, labError(images.AsBadKernel(spec, err))
	}
	return b.Tree(ctx, kernel, o)
}

// sayFirst says of a kernel that was not built before what that takes.
func sayFirst(b *build.Builder, tree *build.Tree, say func(format string, args ...any)) {
	if !b.HasKernel(tree) {
		say("%s was not built before: that takes 7 to 10 minutes on two cores, once, and 3 GB in the cache with its source", tree.Name)
	}
}

// kernelBuilder builds the kernels of commits of git trees and, if asked to, the trees of the user's own that are to be run; each once.
type kernelBuilder struct {
	cache *images.Cache
	say   func(format string, args ...any)
	trees bool

	mu    sync.Mutex
	built map[string]string // path by SPEC
}

func newKernelBuilder(cache *images.Cache, s Streams, trees bool) *kernelBuilder {
	return &kernelBuilder{cache: cache, say: s.say, trees: trees, built: map[string]string{}}
}

// build is the cache's Build.
func (k *kernelBuilder) build(ctx context.Context, spec string, p images.Progress) (path string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	path, ok := k.built[spec]
	switch {
	case ok:
		return path, nil
	case isCommit(spec):
		path, err = k.commit(ctx, spec, p)
	case k.trees && isDir(spec):
		err = build.New(k.cache, p).InPlace(ctx, spec)
		var cannot *build.InPlaceError
		if errors.As(err, &cannot) {
			err = &images.BadKernelError{Err: err}
		}
	}
	if err == nil {
		k.built[spec] = path
	}
	return path, err
}

func (k *kernelBuilder) commit(ctx context.Context, spec string, p images.Progress) (path string, err error) {
	b := build.New(k.cache, p)
	tree, err := kernelTree(ctx, k.cache, b, spec, build.KernelOptions{}, p)
	if err != nil {
		return "", err
	}
	sayFirst(b, tree, k.say)
	built, err := b.Kernel(ctx, tree, nil)
	if err != nil {
		return "", err
	}
	return built.Path, nil
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// mayBeTree tells a SPEC that names a tree, or would if there were something of that name.
func mayBeTree(spec string) bool {
	st, err := os.Stat(spec)
	return !isCommit(spec) && !strings.HasPrefix(spec, "debian:") && (err != nil || st.IsDir())
}

// checkBuild refuses --build where no case runs a tree.
func (f *machineFlags) checkBuild(cases []scenarios.Case) error {
	if !f.buildTrees || slices.ContainsFunc(cases, func(c scenarios.Case) bool { return mayBeTree(c.Kernel) }) {
		return nil
	}
	return usageError(errors.New("--build: makes the kernel trees that --kernel names, and there is none: give --kernel DIR, too"))
}

// openCache opens the image cache for runs of kernels, which may have to be built first.
func (f *machineFlags) openCache(s Streams) (*images.Cache, error) {
	c, err := openCache(s)
	if err == nil {
		c.Build = newKernelBuilder(c, s, f.buildTrees).build
	}
	return c, err
}

// onKernel has the case run on a kernel that was built for it.
func onKernel(c *scenarios.Case, path string) {
	c.RunOn(path)
	c.Command += " --kernel " + quoted([]string{path})
}
