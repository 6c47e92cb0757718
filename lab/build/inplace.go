package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"irqlab/images"
)

// InPlaceError tells that a tree of the user's own cannot be built at all, and what to do.
type InPlaceError struct{ Dir, Problem string }

func (e *InPlaceError) Error() string {
	return fmt.Sprintf("%s: cannot be built: %s", e.Dir, e.Problem)
}

// InPlace runs make in a kernel tree of the user's own, which makes of the image and the modules what has changed: as the user would, with their configuration, tools and environment,
// and in no sandbox.
//
// Errors a caller may tell apart: *CompileError, *InPlaceError.
func (b *Builder) InPlace(ctx context.Context, dir string) error {
	fail := func(format string, args ...any) error { return &InPlaceError{dir, fmt.Sprintf(format, args...)} }
	if _, err := os.Stat(filepath.Join(dir, "Makefile")); err != nil {
		return fail("it is no kernel tree: it has no Makefile")
	}
	config, err := os.ReadFile(filepath.Join(dir, ".config"))
	if err != nil {
		return fail("it is not configured: run make defconfig there, or put your own .config in")
	}
	compiler, words := hostCompiler(string(config), os.Environ())
	missing := func(tool string) error {
		return fail("%s is not installed (on Debian: apt install build-essential flex bison bc libelf-dev libssl-dev)", tool)
	}
	for _, tool := range []string{"make", compiler} {
		if _, err := exec.LookPath(tool); err != nil {
			return missing(tool)
		}
	}
	b.progress("building "+dir, 0, 0)
	out := output{full: func() {}}
	cmd := exec.CommandContext(ctx, "make", slices.Concat(parallel(), []string{"-C", dir, "bzImage", "modules"}, words)...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), ofMake), "LC_ALL=C") // whose messages are read
	cmd.Stdout, cmd.Stderr = &out, &out
	err = images.RunOwned(ctx, cmd)
	exit := new(exec.ExitError)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &exit) && out.has("No space left on device"):
		return fail("no space left on its device")
	case errors.As(err, &exit) && notFound.MatchString(out.text()):
		return missing(notFound.FindStringSubmatch(out.text())[1])
	case errors.As(err, &exit) && out.has("(NEW)"):
		return fail("its configuration has no answer for new options: run make olddefconfig there")
	case errors.As(err, &exit):
		full, absErr := filepath.Abs(dir)
		if absErr != nil {
			full = dir
		}
		return compileError(dir, diagnose(out.text(), "", full, func(string) bool { return true }), out.tail())
	case err != nil:
		return fail("make: %v", err)
	}
	return nil
}

// notFound is the complaint of the shell, or of make, about a tool that is not there.
var notFound = regexp.MustCompile(`(?m)^(?:(?:/bin/)?sh: (?:line )?\d+: |make(?:\[\d+\])?: )([\w.+-]+): (?:(?:command )?not found|No such file or directory)$`)

// hostCompiler is the compiler of a configuration, and what make has to be told for it to be taken again: else make would configure the tree for another one.
func hostCompiler(config string, environ []string) (compiler string, words []string) {
	has := func(option string) bool { return strings.Contains("\n"+config, "\nCONFIG_"+option+"=y\n") }
	told := slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, "LLVM=") || strings.HasPrefix(v, "CC=") })
	switch {
	case !has("CC_IS_CLANG"):
		return "gcc", nil
	case told:
		return "clang", nil
	case has("LD_IS_LLD"):
		return "clang", []string{"LLVM=1"}
	}
	return "clang", []string{"CC=clang"}
}

// ofMake tells a variable that a make above us left for the makes below it: ours is none of these.
func ofMake(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	return slices.Contains([]string{"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}, name)
}
