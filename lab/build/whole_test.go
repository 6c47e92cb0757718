package build

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"irqlab/images"
)

// TestWholeKernel builds whole kernels and boots them: minutes for each kernel that is not in the cache yet, so it runs only when asked for.
func TestWholeKernel(t *testing.T) {
	if os.Getenv("IRQLAB_WHOLE") == "" {
		t.Skip("it takes minutes: set IRQLAB_WHOLE=1 for it")
	}
	specs := []string{"debian:6.18", "debian:7.3"}
	if spec := os.Getenv("IRQLAB_BUILD_KERNEL"); spec != "" {
		specs = []string{spec}
	}
	program := filepath.Join(t.TempDir(), "irqlab")
	if out, err := exec.Command("go", "build", "-o", program, "irqlab").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, spec := range specs {
		t.Run(spec, func(t *testing.T) { testWholeKernel(t, spec, program) })
	}
}

func testWholeKernel(t *testing.T, spec, program string) {
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	k, err := cache.Kernel(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	last := time.Now()
	b := New(cache, func(what string, done, total int64) {
		if time.Since(last) > 20*time.Second {
			last = time.Now()
			t.Logf("%s: %d of %d", what, done, total)
		}
	})
	began := time.Now()
	tree, err := b.Tree(t.Context(), k, KernelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("source in %.1f s: %s, %s, %v", time.Since(began).Seconds(), tree.Origin, tree.Compiler, tree.Notes)
	build := func(t *testing.T, changed map[string][]byte) (*BuiltKernel, error) {
		began := time.Now()
		built, err := b.Kernel(t.Context(), tree, changed)
		if err != nil {
			t.Logf("failed in %.1f s", time.Since(began).Seconds())
			return nil, err
		}
		t.Logf("%.1f s: %d files compiled, %v", time.Since(began).Seconds(), built.Compiled, built.Notes)
		if len(changed) > 0 {
			t.Cleanup(func() {
				if err := cache.Remove(context.Background(), builtKind, filepath.Base(built.Path)); err != nil {
					t.Error(err)
				}
			})
		}
		taken, err := cache.Kernel(t.Context(), built.Path, nil)
		if err != nil || taken.Release != built.Release || taken.ImageKind != images.KindVmlinux || taken.ModulesDir != built.Path {
			t.Errorf("as a kernel: %+v, %v", taken, err)
		}
		return built, nil
	}
	run := func(t *testing.T, k *BuiltKernel) {
		if out, err := exec.Command(program, "run", "low-vcpu", "--kernel", k.Path).CombinedOutput(); err != nil {
			t.Errorf("irqlab run: %v\n%s", err, out)
		}
		// Whether the kernel's own driver spreads well is the kernel's business; that it was judged is ours.
		out, err := exec.Command(program, "run", "low-vcpu-driver", "--kernel", k.Path).CombinedOutput()
		if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
			t.Errorf("irqlab run: %v\n%s", err, out)
		}
	}
	read := func(name string) string {
		data, err := fs.ReadFile(tree.FS(), name)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	const matrix, irq = "kernel/irq/matrix.c", "include/linux/irq.h"
	marker := "irqlab " + time.Now().String() // no earlier build's

	t.Run("as it is", func(t *testing.T) {
		k, err := build(t, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(k.Notes)+len(k.Added)+len(k.Unused) > 0 || k.Compiled < 1000 {
			t.Errorf("%+v", *k)
		}
		run(t, k)
	})
	t.Run("one file", func(t *testing.T) {
		k, err := build(t, map[string][]byte{
			matrix:                []byte(read(matrix) + "\nconst char irqlab_marker[] __attribute__((used)) = \"" + marker + "\";\nstatic int irqlab_unused(void) { return 1; }\n"),
			"Documentation/x.rst": []byte(marker + "\n"),
			"arch/x86/irqlab.c":   []byte("int x;\n"),
		})
		if err != nil {
			t.Fatal(err)
		}
		image, err := os.ReadFile(filepath.Join(k.Path, "vmlinux"))
		if err != nil || !bytes.Contains(image, []byte(marker)) || k.Compiled > 10 {
			t.Errorf("%+v, %v", *k, err)
		}
		if len(k.Added) != 1 || k.Added[0].File != matrix || !strings.Contains(k.Added[0].Text, "irqlab_unused") || !slices.Equal(k.Unused, []string{"Documentation/x.rst", "arch/x86/irqlab.c"}) {
			t.Errorf("%+v", *k)
		}
		run(t, k)
	})
	t.Run("a header that many include", func(t *testing.T) {
		k, err := build(t, map[string][]byte{irq: []byte("/* " + marker + " */\n" + read(irq))})
		if err != nil {
			t.Fatal(err)
		}
		if k.Compiled < 100 || len(k.Unused)+len(k.Added) > 0 {
			t.Errorf("%+v", *k)
		}
	})
	t.Run("does not compile", func(t *testing.T) {
		_, err := build(t, map[string][]byte{matrix: []byte(read(matrix) + "int irqlab_broken = no_such_thing;\n")})
		var compile *CompileError
		if !errors.As(err, &compile) || compile.Errors[0].File != matrix || compile.Errors[0].Line != strings.Count(read(matrix), "\n")+1 || !strings.Contains(compile.Errors[0].Text, "no_such_thing") {
			t.Errorf("%v", err)
		}
	})
	t.Run("does not link", func(t *testing.T) {
		_, err := build(t, map[string][]byte{matrix: []byte(read(matrix) + "int irqlab_missing(void);\nint irqlab_calls(void);\nint irqlab_calls(void) { return irqlab_missing(); }\n")})
		var compile *CompileError
		if !errors.As(err, &compile) || !strings.Contains(err.Error(), "irqlab_missing") {
			t.Errorf("%v", err)
		}
	})
	// A Kconfig and a Makefile run what they like, and all they get at is their own directory.
	t.Run("commands at build time", func(t *testing.T) {
		script := "for f in /usr/src/x /usr/bin/x /etc/x /x; do echo x >$$f && echo $$f: warning: was written; done 2>/dev/null; ls /root /home /run /sys 2>/dev/null | sed 's/^/x: warning: saw /'; " +
			"grep -v -e lo: -e '|' /proc/net/dev | sed 's/^/x: warning: network /'"
		k, err := build(t, map[string][]byte{
			"kernel/irq/Makefile": []byte(read("kernel/irq/Makefile") + "\n$(info $(shell " + script + "))\n# " + marker + "\n"),
			"kernel/irq/Kconfig":  []byte(read("kernel/irq/Kconfig") + "\nconfig IRQLAB_TEST\n\tstring\n\tdefault \"$(shell,touch /usr/bin/x && echo written)\"\n"),
		})
		if err != nil {
			t.Fatal(err)
		}
		config, err := os.ReadFile(filepath.Join(k.Path, ".config"))
		if err != nil || bytes.Contains(config, []byte("written")) || len(k.Added)+len(k.Unused) > 0 {
			t.Errorf("%+v, %v", *k, err)
		}
	})
}
