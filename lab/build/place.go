package build

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"irqlab/lab/build/sandbox"
)

// place is where a kernel is built: a directory that is written to, over those that show through.
type place struct {
	b       *Builder
	root    string // of the toolchain
	upper   string
	scratch string   // beside it
	lower   []string // uppermost first
	removed []string
	copied  bool // lower directories cannot be laid under it, so upper has all that they have
}

// run runs make there.
func (p *place) run(ctx context.Context, r *run) error {
	r.root, r.work, r.most, r.limit = p.root, p.upper, maxKernel, kernelLimit
	if !p.copied {
		if err := os.MkdirAll(p.scratch, 0o700); err != nil {
			return err
		}
		r.mounts = []sandbox.Mount{{From: p.upper, To: "/build", Write: true, Over: p.lower, Scratch: p.scratch, Remove: p.removed}}
		err := p.b.run(ctx, r)
		if e := os.RemoveAll(p.scratch); err == nil {
			err = e
		}
		if !errors.As(err, new(*sandbox.OverlayError)) {
			return err
		}
		if err := p.copy(ctx); err != nil {
			return err
		}
	}
	r.mounts = []sandbox.Mount{{From: p.upper, To: "/build", Write: true}}
	return p.b.run(ctx, r)
}

// copy is for machines that do not lay directories over each other.
func (p *place) copy(ctx context.Context) error {
	if err := p.b.cache.NeedSpace(roomWhole + roomBase); err != nil {
		return err
	}
	p.b.progress("copying the kernel's source, since this machine does not let it be laid under a build", 0, 0)
	p.copied = true
	for _, dir := range p.lower {
		if err := fillIn(ctx, p.upper, dir); err != nil {
			return err
		}
	}
	root, err := os.OpenRoot(p.upper)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range p.removed {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// fillIn copies what is not there yet, with the times of files: make tells by these what is up to date.
func fillIn(ctx context.Context, to, from string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		if _, err := os.Lstat(target); err == nil {
			return nil
		}
		switch {
		case d.Type() == fs.ModeSymlink:
			link, err := os.Readlink(name)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case d.Type().IsRegular():
			return copyFile(target, name)
		}
		return nil
	})
}

// own leaves only what the build itself has made: what was copied there goes.
func (p *place) own() error {
	if !p.copied {
		return nil
	}
	for _, dir := range p.lower {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, err := filepath.Rel(dir, name)
			if err != nil {
				return err
			}
			was, err := d.Info()
			if err != nil {
				return err
			}
			target := filepath.Join(p.upper, rel)
			if is, err := os.Lstat(target); err == nil && is.Mode() == was.Mode() && is.Size() == was.Size() && (is.Mode()&fs.ModeSymlink != 0 || is.ModTime().Equal(was.ModTime())) {
				return os.Remove(target)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
