// Command rewriter turns main packages into libraries of one binary, with gobusybox's rewriter. It reads what go list -export -deps -json says of them from its input.
//
//	rewriter DIRECTORY BBMAIN NAME=PACKAGE...
//
// Each package is written to a directory of its name, and registers itself with the package BBMAIN.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/u-root/gobusybox/src/pkg/bb/bbinternal"
	"golang.org/x/sync/errgroup"
	"golang.org/x/tools/go/packages"
)

func main() {
	if err := run(os.Args[1:], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader) error {
	if len(args) < 2 {
		return errors.New("rewriter DIRECTORY BBMAIN NAME=PACKAGE...")
	}
	loaded, err := load(in)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, arg := range args[2:] {
		name, path, _ := strings.Cut(arg, "=")
		p := loaded[path]
		if p == nil {
			return errors.Join(fmt.Errorf("command %s: package %s was not found", name, path), g.Wait())
		}
		g.Go(func() (err error) {
			defer func() { // the rewriter panics on code it does not know
				if r := recover(); r != nil {
					err = fmt.Errorf("command %s: gobusybox cannot rewrite it: %v", name, r)
				}
			}()
			if err := bbinternal.NewPackage(name, p).Rewrite(filepath.Join(args[0], name), args[1]); err != nil {
				return fmt.Errorf("command %s: gobusybox: %w", name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// load parses and checks main packages, by path, as go/packages would, which leaves its go running when this process is killed.
//
// The types of what they import come from export data, which the build that follows needs anyway.
func load(in io.Reader) (map[string]*packages.Package, error) {
	exports := map[string]string{}
	fset := token.NewFileSet()
	config := types.Config{Sizes: types.SizesFor("gc", "amd64"), Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	loaded := map[string]*packages.Package{}
	for d := json.NewDecoder(in); d.More(); { // dependencies come first
		var l struct {
			ImportPath, Name, Dir, Export string
			DepOnly                       bool
			GoFiles, EmbedFiles, Imports  []string
			ImportMap                     map[string]string
		}
		if err := d.Decode(&l); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		exports[l.ImportPath] = l.Export
		if l.DepOnly {
			continue
		}
		if l.Name != "main" {
			return nil, fmt.Errorf("package %s is not a command", l.ImportPath)
		}
		p := &packages.Package{ID: l.ImportPath, PkgPath: l.ImportPath, Name: l.Name, Fset: fset, Imports: map[string]*packages.Package{}, TypesSizes: config.Sizes,
			TypesInfo: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Instances: map[*ast.Ident]types.Instance{}, Defs: map[*ast.Ident]types.Object{},
				Uses: map[*ast.Ident]types.Object{}, Implicits: map[ast.Node]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}, Scopes: map[ast.Node]*types.Scope{}}}
		for _, path := range l.Imports {
			p.Imports[path] = &packages.Package{PkgPath: cmp.Or(l.ImportMap[path], path)}
		}
		for _, name := range l.EmbedFiles {
			p.EmbedFiles = append(p.EmbedFiles, filepath.Join(l.Dir, name))
		}
		for _, name := range l.GoFiles {
			path := filepath.Join(l.Dir, name)
			file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
			if err != nil {
				return nil, err
			}
			p.GoFiles, p.Syntax = append(p.GoFiles, path), append(p.Syntax, file)
		}
		p.CompiledGoFiles = p.GoFiles // there is no cgo
		var err error
		if p.Types, err = config.Check(l.ImportPath, fset, p.Syntax, p.TypesInfo); err != nil {
			return nil, fmt.Errorf("package %s does not compile for linux/amd64: %w", l.ImportPath, err)
		}
		loaded[l.ImportPath] = p
	}
	return loaded, nil
}
