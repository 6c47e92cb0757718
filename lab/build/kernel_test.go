package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"irqlab/images"
)

func TestDebugOptions(t *testing.T) {
	for _, tt := range []struct {
		names []string
		want  []string
		err   string
	}{
		{nil, nil, ""},
		{[]string{"lockdep", "kasan"}, []string{"kasan", "lockdep"}, ""},
		{[]string{"lockdep", "lockdep"}, []string{"lockdep"}, ""},
		{[]string{"kazan"}, nil, "there are debugobjects, kasan, kcsan"},
		{[]string{""}, nil, "none of that name"},
		{[]string{"kcsan", "lockdep", "kasan"}, nil, "together with kasan"},
	} {
		got, err := KernelOptions{Debug: tt.names}.debug()
		var debug *DebugError
		if !slices.Equal(got, tt.want) || errors.As(err, &debug) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q gave %q, %v", tt.names, got, err)
		}
	}
	for _, name := range DebugOptions() {
		for option, value := range settings("CONFIG_" + strings.Join(debugSets[name], "\nCONFIG_")) {
			if value != "y" {
				t.Errorf("%s sets %s to %q", name, option, value)
			}
		}
	}
}

func TestConfiguration(t *testing.T) {
	whole := configuration("-irqlab-lockdep", []string{"lockdep"})
	set := settings(whole)
	if set["LOCALVERSION"] != `"-irqlab-lockdep"` || set["PROVE_LOCKING"] != "y" || set["MICROSOFT_MANA"] != "m" || set["IPV6"] != "n" || len(set) < 100 {
		t.Errorf("%d settings: %v", len(set), set)
	}
	if n := strings.Count(smallConfig, "\nCONFIG_"); n != len(settings(smallConfig)) {
		t.Errorf("small.config has %d lines for %d options", n, len(settings(smallConfig)))
	}
	with := func(change string) string { return strings.ReplaceAll(whole, "=n\n", "=n\n") + change }
	for _, tt := range []struct{ name, config, note, err string }{
		{"all of it", whole, "", ""},
		{"off is not being there", strings.ReplaceAll(whole, "CONFIG_IPV6=n\n", ""), "", ""},
		{"off as kconfig writes it", strings.ReplaceAll(whole, "CONFIG_IPV6=n\n", "# CONFIG_IPV6 is not set\n"), "", ""},
		{"one was dropped", strings.ReplaceAll(whole, "CONFIG_HYPERV=y\n", ""), "asks for: HYPERV", ""},
		{"one was switched off", with("# CONFIG_PVH is not set\n"), "asks for: PVH", ""},
		{"one came back", with("CONFIG_IPV6=y\n"), "asks for: IPV6", ""},
		{"a module became none", with("CONFIG_VFIO=y\nCONFIG_PVH=m\n"), "asks for: PVH, VFIO", ""},
		{"more than was asked for", with("CONFIG_X=y\n"), "", ""},
		{"what a debug option is about", with("# CONFIG_PROVE_LOCKING is not set\n"), "", "has no PROVE_LOCKING"},
		{"what a debug option has beside", with("# CONFIG_DEBUG_ATOMIC_SLEEP is not set\n"), "DEBUG_ATOMIC_SLEEP", ""},
	} {
		notes, err := checkConfiguration(tt.config, "-irqlab-lockdep", []string{"lockdep"})
		note := strings.Join(notes, "")
		if (note != "") != (tt.note != "") || !strings.HasSuffix(note, tt.note) || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %q, %v", tt.name, note, err)
		}
	}
}

func TestIsCompiling(t *testing.T) {
	for line, want := range map[string]bool{
		"  CC      kernel/irq/matrix.o":                     true,
		"  CC [M]  drivers/net/ethernet/m/mana.o":           true,
		"  AS      arch/x86/entry/entry.o":                  true,
		"  CC      /build/tools/objtool/check.o":            false,
		"  HOSTCC  scripts/basic/fixdep":                    false,
		"  LD      vmlinux.o":                               false,
		"  CC":                                              false,
		"CC      kernel/irq/matrix.o":                       false,
		"kernel/irq/matrix.c:1: warning: CC is not defined": false,
		"": false,
	} {
		if got := isCompiling([]byte(line)); got != want {
			t.Errorf("%q: %v", line, got)
		}
	}
}

func TestLines(t *testing.T) {
	for _, writes := range [][]string{{"a\nbc\n\nd"}, {"a", "\nb", "c\n", "\n", "d"}, {"", "a\nb", "", "c\n\nd"}} {
		var got []string
		o := output{line: func(line []byte) { got = append(got, string(line)) }}
		for _, w := range writes {
			if _, err := o.Write([]byte(w)); err != nil {
				t.Fatal(err)
			}
		}
		if want := []string{"a", "bc", ""}; !slices.Equal(got, want) || o.text() != "a\nbc\n\nd" {
			t.Errorf("%q gave %q, and all of it %q", writes, got, o.text())
		}
	}
}

func TestUnused(t *testing.T) {
	tree := t.TempDir()
	for name, text := range map[string]string{
		"kernel/.a.o.cmd":              "savedcmd_kernel/a.o := gcc " + strings.Repeat("x", 200<<10) + "\n\nsource_kernel/a.o := kernel/a.c\n\ndeps_kernel/a.o := \\\n    $(wildcard include/config/SMP) \\\n  include/linux/irq.h \\\n",
		"kernel/.b.o.cmd":              "source_kernel/b.o := kernel/b.c\n\ndeps_kernel/b.o := \\\n  include/linux/irq.h \\\n  /build/kernel/b.h\n",
		"kernel/.c.lds.cmd":            "deps_kernel/c.lds := include/linux/irq.h\n",
		"include/config/auto.conf.cmd": "deps_config := \\\n\tkernel/Kconfig \\\n\tKconfig\n",
		"kernel/a.o":                   "  include/linux/none.h\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(tree, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/dev/zero", filepath.Join(tree, ".endless.cmd")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		names   string
		objects int
		unused  string
	}{
		{"kernel/a.c", 1, ""},
		{"include/linux/irq.h", 2, ""},
		{"kernel/b.h kernel/a.c", 2, ""},
		{"include/linux/none.h", 0, "include/linux/none.h"},
		{"kernel/d.c kernel/a.c", 1, "kernel/d.c"},
		{"kernel/Kconfig drivers/Kconfig", 0, "drivers/Kconfig"},
		{"kernel/Makefile drivers/Makefile Makefile", 0, "drivers/Makefile"},
		{"kernel/x.sh kernel/x.tbl drivers/x.tbl", 0, "drivers/x.tbl"},
		{"MAINTAINERS Documentation/x.rst kernel/x.yaml", 0, "Documentation/x.rst MAINTAINERS kernel/x.yaml"},
		{"arch/arm64/kernel/irq.c", 0, "arch/arm64/kernel/irq.c"},
	} {
		names, changed, used := map[string]bool{}, map[string][]byte{}, map[string]bool{}
		for _, name := range strings.Fields(tt.names) {
			names[name], changed[name] = true, nil
		}
		objects, err := mentions(tree, names, used)
		got := unused(changed, used, func(dir string) bool { return isDir(filepath.Join(tree, dir)) })
		if err != nil || objects != tt.objects || strings.Join(got, " ") != tt.unused {
			t.Errorf("%s: %d objects, unused %q, %v", tt.names, objects, got, err)
		}
	}
}

// What a build leaves is read without following it anywhere.
func TestTakeKernel(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := map[string]string{"vmlinux": "\x7fELF", ".config": "CONFIG_X=y\n", "include/config/kernel.release": "6.18.15-irqlab\n", "modules.order": "a/x.o\nb/y.o\n",
		"modules.builtin": "", "modules.builtin.modinfo": "", "a/x.ko": "x", "b/y.ko": "y"}
	for _, tt := range []struct {
		name   string
		change map[string]string // of the upper layer
		link   map[string]string
		err    string
		want   map[string]string
	}{
		{"nothing above", nil, nil, "", nil},
		{"above", map[string]string{"vmlinux": "new", "b/y.ko": "new"}, nil, "", map[string]string{"vmlinux": "new", "a/x.ko": "x", "b/y.ko": "new"}},
		{"modules of an older make", map[string]string{"modules.order": "a/x.ko\n"}, nil, "", map[string]string{"a/x.ko": "x"}},
		{"a module that is not there", map[string]string{"modules.order": "c/z.o\n"}, nil, "it made no c/z.ko", nil},
		{"a module outside", map[string]string{"modules.order": "../z.o\n"}, nil, "modules.order names", nil},
		{"no module", map[string]string{"modules.order": "vmlinux\n"}, nil, "modules.order names", nil},
		{"a release that is none", map[string]string{"include/config/kernel.release": "../../x\n"}, nil, "its release is", nil},
		{"a link to the host", nil, map[string]string{"vmlinux": outside}, "vmlinux is not a file", nil},
		{"a link inside", nil, map[string]string{"vmlinux": ".config"}, "vmlinux is not a file", nil},
		{"a directory that is a link to the host", nil, map[string]string{"a": filepath.Dir(outside)}, "a/x.ko", nil},
	} {
		lower, upper, to := t.TempDir(), t.TempDir(), t.TempDir()
		for dir, files := range map[string]map[string]string{lower: base, upper: tt.change} {
			for name, text := range files {
				if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for name, target := range tt.link {
			if err := os.Symlink(target, filepath.Join(upper, name)); err != nil {
				t.Fatal(err)
			}
		}
		release, err := takeKernel(to, []string{upper, lower})
		if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) || err == nil && release != "6.18.15-irqlab" {
			t.Errorf("%s: %q, %v", tt.name, release, err)
		}
		for name, want := range tt.want {
			if data, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(data) != want {
				t.Errorf("%s: %s is %q, %v", tt.name, name, data, err)
			}
		}
	}
}

// A source that is built as a kernel is, in a second: the same targets of make, the same notes of what was made of what.
var smallTree = map[string]string{
	"Makefile": `objects := main.o part/one.o part/two.o
vpath %.c .
tinyconfig: ; @echo '# CONFIG_EXPERT is not set' >.config
olddefconfig: ; @echo configuring; sed -i -e '/CONFIG_HYPERV=/d' -e '/CONFIG_PROVE_LOCKING=/d' .config
%.o: %.c
	@echo "  CC      $@"
	@sleep 0.2; $(CC) -Wall -MD -MP -MF $(@D)/.$(@F).d -c -o $@ $<
	@(echo "source_$@ := $<"; tr -s ' \\' '\n' <$(@D)/.$(@F).d) >$(@D)/.$(@F).cmd
vmlinux: $(objects)
	@ld -r -o $@ $^
	@mkdir -p include/config
	@echo "9.9.0$$(sed -n 's/^CONFIG_LOCALVERSION="\(.*\)"/\1/p' .config)" >include/config/kernel.release
modules: vmlinux
	@cp part/two.o two.ko; echo two.o >modules.order; : >modules.builtin; : >modules.builtin.modinfo
-include $(wildcard .*.d part/.*.d)
`,
	"Kconfig":           "\n",
	"arch/x86/Makefile": "\n",
	"main.c":            "#include \"part/part.h\"\nint main_value = VALUE; static int idle(void) { return 1; }\n",
	"part/part.h":       "#define VALUE 1\n",
	"part/one.c":        "#include \"part.h\"\nint one = VALUE; static int rest(void) { return 1; }\n",
	"part/two.c":        "int two;\n",
	"part/other.c":      "int other;\n",
	"run.sh":            "#!/bin/sh\n",
}

func commit(t *testing.T, dir, message string, files map[string]string) (id string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		mode := fs.FileMode(0o600)
		if strings.HasSuffix(name, ".sh") {
			mode = 0o700
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), mode)); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=Bell Ringer", "-c", "user.email=bell@example.org", "commit", "-q", "-m", message}, {"rev-parse", "HEAD"}} {
		out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		id = strings.TrimSpace(string(out))
	}
	return id
}

// scrap removes what was made of a tree from the cache.
func scrap(t *testing.T, b *Builder, tree *Tree) {
	t.Cleanup(func() {
		entries, err := b.cache.Entries(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			if e.Name == tree.parts.Source || strings.Contains(e.Name, tree.Commit[:12]) {
				if err := b.cache.Remove(context.Background(), e.Kind, e.Name); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

func TestGitTree(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	b := New(cache, func(what string, done, total int64) { told = append(told, fmt.Sprintf("%s %d/%d", what, done, total)) })
	dir := t.TempDir()
	files := maps.Clone(smallTree)
	files["main.c"] += fmt.Sprintf("/* %d */\n", time.Now().UnixNano()) // no earlier test's
	id := commit(t, dir, "one", files)
	tree, err := b.GitTree(t.Context(), dir, "HEAD", KernelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scrap(t, b, tree)
	if tree.Commit != id || tree.Compiler != "gcc-14 of trixie" || !strings.Contains(tree.Origin, id) {
		t.Errorf("%+v", *tree)
	}
	if data, err := fs.ReadFile(tree.FS(), "part/part.h"); err != nil || string(data) != files["part/part.h"] {
		t.Errorf("%q, %v", data, err)
	}

	// Interrupted when two of three files are compiled: what is compiled by then is not compiled again.
	ctx, cancel := context.WithCancel(t.Context())
	slow := New(cache, func(what string, done, _ int64) {
		if strings.HasPrefix(what, "building") && done == 2 {
			cancel()
		}
	})
	if _, err := slow.Kernel(ctx, tree, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	w := &whole{b: b, t: tree}
	if _, ok := cache.Find(partKind, w.key(false)); !ok {
		t.Error("what was built before the interruption is not kept")
	}
	if left, _ := filepath.Glob(filepath.Join(cache.Dir(), "tmp", "*"+w.key(false)+"@*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	told = nil
	base, err := b.Kernel(t.Context(), tree, nil)
	if err != nil {
		t.Fatal(err)
	}
	again := 0
	for _, what := range told {
		if strings.HasPrefix(what, "building") {
			again++
		}
	}
	if again > 2 || base.Compiled < 3 || base.Cached || len(base.Warnings) != 2 || base.Release != "9.9.0-irqlab-g"+id[:12] || len(base.Added) > 0 ||
		!slices.ContainsFunc(base.Notes, func(n string) bool { return strings.HasSuffix(n, ": HYPERV") }) {
		t.Errorf("after the interruption: %+v, told %q", *base, told)
	}
	if _, ok := cache.Find(partKind, w.key(false)); ok {
		t.Error("the part is still there")
	}

	for _, tt := range []struct {
		name     string
		changed  map[string]string // "-": removed
		compiled int
		added    string
		unused   string
		errors   string
	}{
		{"one file", map[string]string{"part/two.c": "int two = 2;\n"}, 1, "", "", ""},
		{"a header", map[string]string{"part/part.h": "#define VALUE 2\n"}, 2, "", "", ""},
		{"a warning", map[string]string{"part/two.c": "static int unused_value;\n"}, 1, "part/two.c:1", "", ""},
		{"a new file that is included", map[string]string{"part/new.h": "int fresh;\n", "part/two.c": "#include \"new.h\"\n"}, 1, "", "", ""},
		{"nothing that is built", map[string]string{"part/other.c": "int more;\n"}, 0, "", "part/other.c", ""},
		{"half of it", map[string]string{"part/other.c": "int more;\n", "part/two.c": "int two = 3;\n"}, 1, "", "part/other.c", ""},
		{"an option", map[string]string{"Kconfig": "config NEW\n"}, 0, "", "Kconfig", ""},
		{"an error", map[string]string{"part/one.c": "int one = ;\n"}, 0, "", "", "part/one.c:1"},
		{"a header that is removed", map[string]string{"part/part.h": "-"}, 0, "", "", "part/part.h"},
		{"a Makefile that looks around", map[string]string{"Makefile": files["Makefile"] + "$(info $(shell ls /root /home /run 2>/dev/null | sed 's/^/x: warning: saw /'))\n"}, 0, "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			changed := map[string][]byte{"run.sh": []byte(files["run.sh"])} // which is none
			for name, text := range tt.changed {
				if changed[name] = []byte(text); text == "-" {
					changed[name] = nil
				}
			}
			k, err := b.Kernel(t.Context(), tree, changed)
			if tt.errors != "" {
				var compile *CompileError
				if !errors.As(err, &compile) || !strings.Contains(err.Error(), tt.errors) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if k.Compiled != tt.compiled || strings.Join(k.Unused, " ") != tt.unused || k.Cached || k.Path == base.Path ||
				(tt.added == "") != (len(k.Added) == 0) || tt.added != "" && !strings.HasPrefix(k.Added[0].String(), tt.added) {
				t.Errorf("%+v", *k)
			}
			for _, name := range kernelFiles {
				if _, err := os.Stat(filepath.Join(k.Path, name)); err != nil {
					t.Error(err)
				}
			}
			if again, err := b.Kernel(t.Context(), tree, changed); err != nil || !again.Cached || again.Path != k.Path || !slices.Equal(again.Unused, k.Unused) {
				t.Errorf("again: %+v, %v", again, err)
			}
		})
	}
	t.Run("no such file", func(t *testing.T) {
		for _, name := range []string{"../x", "/etc/passwd", ".", "part"} {
			if _, err := b.Kernel(t.Context(), tree, map[string][]byte{name: {}}); err == nil || name == "part" && !strings.Contains(err.Error(), "is a directory") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("debug option that it lacks", func(t *testing.T) {
		other, err := b.GitTree(t.Context(), dir, "HEAD", KernelOptions{Debug: []string{"lockdep"}})
		if err != nil {
			t.Fatal(err)
		}
		var debug *DebugError
		if _, err := b.Kernel(t.Context(), other, nil); !errors.As(err, &debug) || debug.Name != "lockdep" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("another repository", func(t *testing.T) {
		clone := filepath.Join(t.TempDir(), "clone")
		if out, err := exec.Command("git", "clone", "-q", "--bare", dir, clone).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		other, err := b.GitTree(t.Context(), clone, id, KernelOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if k, err := b.Kernel(t.Context(), other, nil); err != nil || !k.Cached || k.Path != base.Path || !strings.Contains(other.Origin, clone) {
			t.Errorf("%+v, %v; %s", k, err, other.Origin)
		}
	})
	t.Run("no kernel's", func(t *testing.T) {
		other := t.TempDir()
		commit(t, other, "one", map[string]string{"README": fmt.Sprint(time.Now().UnixNano())})
		if _, err := b.GitTree(t.Context(), other, "HEAD", KernelOptions{}); err == nil || !strings.Contains(err.Error(), "no source of a kernel") {
			t.Errorf("got %v", err)
		}
	})

	// A scratch directory on another file system keeps directories from being laid over each other.
	t.Run("in a copy", func(t *testing.T) {
		elsewhere, err := os.MkdirTemp("/dev/shm", "irqlab-test-")
		if err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { os.RemoveAll(elsewhere) })
		root, ok1 := cache.Find(toolchainKind, tree.parts.Toolchain)
		source, ok2 := cache.Find(wholeKind, tree.parts.Source)
		objects, ok3 := cache.Find(baseKind, w.key(false))
		if !ok1 || !ok2 || !ok3 {
			t.Fatal(ok1, ok2, ok3)
		}
		w := &whole{b: b, t: tree, root: root, changed: map[string][]byte{"part/part.h": nil, "part/one.c": []byte("int one = 4;\n"), "main.c": []byte("int main_value;\n")}}
		p := &place{b: b, root: root, upper: filepath.Join(t.TempDir(), "upper"), scratch: filepath.Join(elsewhere, "scratch"),
			lower: []string{filepath.Join(objects, wholeDir), filepath.Join(source, wholeDir)}, removed: removed(w.changed)}
		if err := w.write(p.upper); err != nil {
			t.Fatal(err)
		}
		if _, compiled, err := w.compile(t.Context(), p, "building", 0, 0); err != nil || compiled != 2 || !p.copied {
			t.Fatalf("compiled %d, copied %v, %v", compiled, p.copied, err)
		}
		if err := p.own(); err != nil {
			t.Fatal(err)
		}
		var left []string
		for name := range files {
			if _, err := os.Lstat(filepath.Join(p.upper, name)); err == nil {
				left = append(left, name)
			}
		}
		slices.Sort(left)
		if _, err := os.Stat(filepath.Join(p.upper, "vmlinux")); err != nil || !slices.Equal(left, []string{"main.c", "part/one.c"}) {
			t.Errorf("left: %q, %v", left, err)
		}
	})
}
