package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Make is really run, in a tree that has of a kernel's only what make is asked for there: what it made is there, what it says is read, and what cannot be built is told with what to do.
func TestInPlace(t *testing.T) {
	t.Setenv("MAKEFLAGS", "n") // of a make above that only says what it would do: not ours
	const ok = "CONFIG_X=y\n"
	for name, tc := range map[string]struct {
		makefile, config string
		want             string // of the error; "": none
		file             string // that is to be there then
	}{
		"builds":         {"bzImage modules:\n\t@echo '  CC      a.o'; echo $(MAKEFLAGS) >made-$@\n", ok, "", "made-modules"},
		"no tree":        {"", ok, "it has no Makefile", ""},
		"not configured": {"bzImage modules:\n", "", "make defconfig", ""},
		"compiler":       {"bzImage modules:\n\t@echo 'kernel/a.c:7:3: error: something undeclared'; false\n", ok, "kernel/a.c:7: something undeclared", ""},
		"absolute":       {"bzImage modules:\n\t@echo '$(CURDIR)/kernel/a.c:7:3: error: something undeclared'; false\n", ok, "\nkernel/a.c:7: something undeclared", ""},
		"make":           {"bzImage: no-such-file\nmodules:\n", ok, "No rule to make target 'no-such-file'", ""},
		"tool":           {"bzImage modules:\n\tno-such-flex -o x\n", ok, "no-such-flex is not installed (on Debian: ", ""},
		"shell's tool":   {"bzImage modules:\n\tno-such-flex -o x; exit $$?\n", ok, "no-such-flex is not installed (on Debian: ", ""},
		"new options":    {"bzImage modules:\n\t@echo 'Some option (X) [N/y/?] (NEW) '; read answer\n", ok, "make olddefconfig", ""},
		"no clang":       {"bzImage modules:\n", "CONFIG_CC_IS_CLANG=y\n", "clang is not installed", ""},
	} {
		if name == "no clang" {
			if _, err := os.Stat("/usr/bin/clang"); err == nil {
				continue
			}
		}
		dir := t.TempDir()
		for file, text := range map[string]string{"Makefile": tc.makefile, ".config": tc.config} {
			if text != "" {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		err := New(nil, nil).InPlace(t.Context(), dir)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		if tc.file != "" {
			if _, err := os.Stat(filepath.Join(dir, tc.file)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		var broken *CompileError
		if is := errors.As(err, &broken); is != slices.Contains([]string{"compiler", "absolute", "make"}, name) {
			t.Errorf("%s: a CompileError: %t", name, is)
		}
	}
}

// An interrupt ends make and all that it started.
func TestInPlaceInterrupted(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{"Makefile": "bzImage:\n\t@touch begun; sleep 2; touch ended\nmodules:\n", ".config": "CONFIG_X=y\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	why := errors.New("Ctrl-C")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for {
			if _, err := os.Stat(filepath.Join(dir, "begun")); err == nil {
				cancel(why)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	if err := New(nil, nil).InPlace(ctx, dir); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
	time.Sleep(3 * time.Second) // longer than what it started would take
	if _, err := os.Stat(filepath.Join(dir, "ended")); err == nil {
		t.Error("what make had started went on")
	}
}

func TestHostCompiler(t *testing.T) {
	const clang, lld = "CONFIG_CC_IS_CLANG=y\n", "CONFIG_LD_IS_LLD=y\n"
	for _, tc := range []struct{ config, environ, want string }{
		{"CONFIG_CC_IS_GCC=y\n", "", "gcc"},
		{"", "LLVM=1", "gcc"},
		{clang, "", "clang CC=clang"},
		{clang + lld, "", "clang LLVM=1"},
		{clang + lld, "LLVM=-19", "clang"},
		{clang, "CC=clang-19", "clang"},
		{"CONFIG_CC_IS_CLANG_NOT=y\n", "", "gcc"},
	} {
		compiler, words := hostCompiler(tc.config, []string{tc.environ, "HOME=/x"})
		if got := strings.Join(append([]string{compiler}, words...), " "); got != tc.want {
			t.Errorf("%q, %s: %q, want %q", tc.config, tc.environ, got, tc.want)
		}
	}
}
