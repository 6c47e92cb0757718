package cli

import (
	"context"
	"fmt"
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

// commits builds the kernels of commits of git trees, each once.
type commits struct {
	cache *images.Cache
	say   func(format string, args ...any)

	mu    sync.Mutex
	built map[string]string // path by SPEC
}

func newCommits(cache *images.Cache, s Streams) *commits {
	return &commits{cache: cache, say: s.say, built: map[string]string{}}
}

// build is the cache's Build.
func (c *commits) build(ctx context.Context, spec string, p images.Progress) (path string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if path, ok := c.built[spec]; ok {
		return path, nil
	}
	b := build.New(c.cache, p)
	tree, err := kernelTree(ctx, c.cache, b, spec, build.KernelOptions{}, p)
	if err != nil {
		return "", err
	}
	sayFirst(b, tree, c.say)
	k, err := b.Kernel(ctx, tree, nil)
	if err != nil {
		return "", err
	}
	c.built[spec] = k.Path
	return k.Path, nil
}

// onKernel has the case run on a kernel that was built for it.
func onKernel(c *scenarios.Case, path string) {
	c.RunOn(path)
	c.Command += " --kernel " + quoted([]string{path})
}
