package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"irqlab/guestagent/agentapi"
)

// Replacement is a module of the user's own that takes the place of a kernel's.
type Replacement struct {
	Name   string // with '_'
	Path   string // as given
	SHA256 string // of the file, in hexadecimal
	Data   []byte // decompressed, and without debug information unless it is signed
}

// BadModuleError tells that a module which was given cannot take the place of the kernel's own.
type BadModuleError struct {
	Name, Path string
	Err        error
}

func (e *BadModuleError) Error() string {
	return fmt.Sprintf("module %s=%s: %v", e.Name, e.Path, e.Err)
}
func (e *BadModuleError) Unwrap() error { return e.Err }

// Replacement reads a module's file and checks, as far as that can be seen without starting the kernel, that it takes the place of the kernel's own module of that name:
// that it is a whole module of that name, built for this kernel, and needs no module that the kernel's own does not. The error is a *BadModuleError, or the context's.
func (c *Cache) Replacement(ctx context.Context, k Kernel, name, path string) (Replacement, error) {
	r := Replacement{Name: strings.ReplaceAll(name, "-", "_"), Path: path}
	given, err := r.read()
	if err == nil {
		err = given.replaces(ctx, k, r.Name)
	}
	if ctx.Err() != nil {
		return Replacement{}, context.Cause(ctx)
	}
	if err != nil {
		return Replacement{}, &BadModuleError{name, path, err}
	}
	return r, nil
}

// givenModule is what a module that was given says of itself.
type givenModule struct {
	modinfo
	versions bool // it has the versions of the symbols that it takes
}

// read reads the file.
func (r *Replacement) read() (givenModule, error) {
	f, err := openRegular(r.Path)
	if err != nil {
		return givenModule{}, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxModule+1))
	if err != nil {
		return givenModule{}, err
	}
	if len(raw) > maxModule {
		return givenModule{}, fmt.Errorf("more than %d MiB: not a module that a guest could take", maxModule>>20)
	}
	sum := sha256.Sum256(raw)
	r.SHA256 = hex.EncodeToString(sum[:])
	damaged := func(err error) (givenModule, error) {
		return givenModule{}, fmt.Errorf("not a whole module: %w (build it again)", err)
	}
	data, err := decompressModule(r.Path, raw)
	if err != nil {
		return damaged(err)
	}
	info, err := parseModinfo(data)
	if err != nil {
		return damaged(err)
	}
	if r.Data, err = stripDebug(data); err != nil {
		return damaged(err)
	}
	if len(r.Data) > agentapi.MaxModule {
		return givenModule{}, fmt.Errorf("%d MiB without debug information, at most %d are sent to a guest: leave out what it does not need (strip --strip-debug)", len(r.Data)>>20, agentapi.MaxModule>>20)
	}
	object, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return damaged(err)
	}
	return givenModule{info, object.Section("__versions") != nil}, nil
}

// replaces tells why the module cannot take the place of a kernel's own.
func (g givenModule) replaces(ctx context.Context, k Kernel, name string) error {
	if g.name != "" && g.name != name {
		return fmt.Errorf("it is the module %s, not %s", g.name, name)
	}
	own, tree, err := ownModule(ctx, k, name)
	if err != nil {
		return err
	}
	info, err := parseModinfo(own.Data)
	if err != nil {
		return err
	}
	if why := g.anotherKernels(info.vermagic); why != "" {
		return errors.New(why)
	}
	for _, d := range g.depends {
		if !tree.builtin[d] && !slices.Contains(own.Depends, d) {
			return fmt.Errorf("it needs the module %s, which the kernel's own %s does not: the guest has no such module", d, name)
		}
	}
	return nil
}

// anotherKernels says, as the kernel would by refusing it, that the module was built for another kernel than one whose modules have this vermagic; "": it was not. Where
// symbols have versions, those decide, and not the release.
func (g givenModule) anotherKernels(vermagic string) string {
	release, flags := splitVermagic(g.vermagic)
	wantRelease, wantFlags := splitVermagic(vermagic)
	switch {
	case g.vermagic == "":
		return "it does not say which kernel it was built for (no vermagic)"
	case release != wantRelease && !(g.versions && strings.Contains(wantFlags, "modversions")):
		return fmt.Sprintf("it was built for another kernel: for %s, and this is %s (build it against this kernel, or give that one with --kernel)", release, wantRelease)
	case flags != wantFlags:
		return fmt.Sprintf("it was built for %s with another configuration: %q, and this kernel has %q", release, flags, wantFlags)
	}
	return ""
}

// OwnModule is the kernel's own module of that name, decompressed.
func (c *Cache) OwnModule(ctx context.Context, k Kernel, name string) ([]byte, error) {
	own, _, err := ownModule(ctx, k, name)
	return own.Data, err
}

// ownModule reads the kernel's own module, and tells what is built in.
func ownModule(ctx context.Context, k Kernel, name string) (own module, tree *moduleTree, err error) {
	if k.ModulesDir == "" {
		return own, nil, fmt.Errorf("kernel %s came without modules, so there is none to replace", k.Release)
	}
	if tree, err = openModules(ctx, k.ModulesDir); err != nil {
		return own, nil, err
	}
	switch {
	case tree.builtin[name]:
		return own, nil, fmt.Errorf("kernel %s has %s built in, so no module can take its place", k.Release, name)
	case tree.files[name] == "":
		return own, nil, fmt.Errorf("kernel %s has no module %s to replace", k.Release, name)
	}
	path, err := tree.path(name)
	if err != nil {
		return own, nil, err
	}
	own, err = readModule(path)
	if tree.deps != nil {
		own.Depends = tree.deps[name]
	}
	return own, tree, err
}

// splitVermagic parts the release from what of the configuration matters to modules.
func splitVermagic(vermagic string) (release, flags string) {
	release, flags, _ = strings.Cut(vermagic, " ")
	return release, flags
}
