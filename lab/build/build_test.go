package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"irqlab/images"
	"irqlab/lab/build/patch"
)

const gdma = testModule + "/gdma_main.c"

// prepared is the source of the newest kernel's mana.
func prepared(t *testing.T, spec string) (*Builder, *Source) {
	t.Helper()
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	k, err := cache.Kernel(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := New(cache, nil)
	s, err := b.Source(t.Context(), k, testModule)
	if err != nil {
		t.Fatal(err)
	}
	return b, s
}

// A symbolic link in a source is not followed when a patch is applied to it, wherever it lies.
func TestLinksAreTold(t *testing.T) {
	outside, files, tree := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "x.h"), []byte("a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, link := range []struct{ dir, name, to string }{
		{files, testModule + "/x.h", filepath.Join(outside, "x.h")},
		{files, testModule + "/linked", outside},
		{tree, "include/x.h", filepath.Join(outside, "x.h")},
		{tree, "include/linked", outside},
	} {
		path := filepath.Join(link.dir, link.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(link.to, path); err != nil {
			t.Fatal(err)
		}
	}
	source := (&Source{Module: testModule, files: files, tree: tree}).FS()
	for _, dir := range []string{testModule, "include"} {
		for _, name := range []string{dir + "/x.h", dir + "/linked/x.h"} {
			series, err := patch.Read(patch.Input{Name: "in", R: strings.NewReader("--- a/" + name + "\n+++ b/" + name + "\n@@ -1 +1 @@\n-a\n+b\n")})
			if err != nil {
				t.Fatal(err)
			}
			r, err := patch.Apply(source, series, patch.Options{})
			if err == nil || len(r.Hunks) != 1 || r.Hunks[0].Misfit.Reason != patch.Refused || !strings.Contains(err.Error(), "a symbolic link") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if to, err := fs.ReadLink(source, dir+"/linked"); err != nil || to != outside {
			t.Errorf("%s/linked leads to %q: %v", dir, to, err)
		}
	}
}

// The changes are made here, of the fetched source: no text of the kernel's is in this repository.
func TestModule(t *testing.T) {
	spec := "debian:7.3"
	if other := os.Getenv("IRQLAB_BUILD_KERNEL"); other != "" { // such as debian:6.18, whose headers are prepared here
		spec = other
	}
	began := time.Now()
	b, s := prepared(t, spec)
	t.Logf("source of %s: %.1f s; %s, %s %v", s.Kernel.Release, time.Since(began).Seconds(), s.Origin, s.Compiler, s.Notes)
	read := func(name string) string {
		t.Helper()
		data, err := fs.ReadFile(s.FS(), name)
		if err != nil || !s.Covers(name) {
			t.Fatal(name, err)
		}
		return string(data)
	}
	source, header := read(gdma), read("include/net/mana/gdma.h")
	lines := strings.Count(source, "\n")
	build := func(t *testing.T, changed map[string][]byte) (*Module, error) {
		began := time.Now()
		m, err := b.Module(t.Context(), s, changed)
		t.Logf("%.1f s", time.Since(began).Seconds())
		if err == nil && len(s.really(changed)) > 0 {
			t.Cleanup(func() { os.RemoveAll(filepath.Dir(m.Path)) })
		}
		return m, err
	}

	t.Run("unpatched", func(t *testing.T) {
		m, err := build(t, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c := m.Comparison; !c.Identical || c.Reason != "" || c.Functions < 100 || m.Name != "mana" || filepath.Base(m.Path) != "mana.ko" {
			t.Errorf("%+v", *m)
		}
		same, err := build(t, map[string][]byte{gdma: []byte(source)})
		if err != nil || same.Path != m.Path || !same.Cached {
			t.Errorf("a file that is the same gave %+v, %v", same, err)
		}
	})
	t.Run("changed", func(t *testing.T) {
		marker := fmt.Sprintf("irqlab %d", time.Now().UnixNano()) // no earlier build's
		changed := map[string][]byte{
			"include/net/mana/gdma.h": []byte("#define IRQLAB_TEST_MARKER \"" + marker + "\"\n" + header),
			testModule + "/added.h":   []byte("static int irqlab_unused(void) { return 1; }\n"),
			gdma:                      []byte(source + "#include \"added.h\"\nconst char irqlab_marker[] __attribute__((used)) = IRQLAB_TEST_MARKER;\n"),
		}
		m, err := build(t, changed)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(m.Path)
		if err != nil || !bytes.Contains(data, []byte(marker)) || m.Cached || !m.Comparison.Identical {
			t.Errorf("%+v, %v", *m, err)
		}
		if len(m.Added) == 0 || !slices.ContainsFunc(m.Added, func(w Warning) bool {
			return w.File == testModule+"/added.h" && w.Line == 1 && strings.Contains(w.Text, "irqlab_unused")
		}) {
			t.Errorf("added warnings: %v", m.Added)
		}
		again, err := build(t, changed)
		if err != nil || !again.Cached || again.Path != m.Path || !slices.Equal(again.Added, m.Added) {
			t.Errorf("the second time: %+v, %v", again, err)
		}
	})
	t.Run("does not compile", func(t *testing.T) {
		_, err := build(t, map[string][]byte{gdma: []byte(source + "int irqlab_broken = no_such_thing;\n")})
		var compile *CompileError
		if !errors.As(err, &compile) || compile.Errors[0].File != gdma || compile.Errors[0].Line != lines+1 || !strings.Contains(compile.Errors[0].Text, "no_such_thing") {
			t.Errorf("%v", err)
		}
	})
	t.Run("not the module's own", func(t *testing.T) {
		for _, name := range []string{"kernel/irq/matrix.c", "include/linux/pci.h", testModule + "/../../x.c", "/etc/passwd", testModule + "//x.c"} {
			var own *NotOwnError
			if _, err := b.Module(t.Context(), s, map[string][]byte{name: nil}); !errors.As(err, &own) || own.Path != name {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		slow := New(b.cache, func(what string, _, _ int64) {
			if strings.HasPrefix(what, "building mana") {
				time.AfterFunc(100*time.Millisecond, cancel)
			}
		})
		changed := map[string][]byte{gdma: []byte(source + "int irqlab_interrupted;\n")}
		if _, err := slow.Module(ctx, s, changed); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		j := &job{b: b, src: s}
		if dir, ok := b.cache.Find(moduleKind, j.key(changed)); ok {
			t.Errorf("%s is there", dir)
		}
		if left, _ := filepath.Glob(filepath.Join(b.cache.Dir(), "tmp", moduleKind+"-"+j.key(changed)+"@*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	// A Makefile runs what it likes, and all it gets at is its own directory.
	t.Run("a Makefile that runs commands", func(t *testing.T) {
		const script = `\nX := $(shell for f in /usr/src/x /usr/bin/x /etc/x /x; do echo x >$$f && echo "$$f: warning: was written"; done 2>/dev/null; ` +
			`ls /root /home /run /sys 2>/dev/null | sed 's/.*/x: warning: saw &/'; grep -v -e lo: -e '|' /proc/net/dev | sed 's/.*/x: warning: network &/')\n$(info $(X))\n`
		makefile := read(testModule+"/Makefile") + strings.ReplaceAll(script, `\n`, "\n") + fmt.Sprintf("# %d\n", time.Now().UnixNano())
		m, err := build(t, map[string][]byte{testModule + "/Makefile": []byte(makefile)})
		if err != nil || len(m.Added) > 0 {
			t.Errorf("%+v, %v", m, err)
		}
	})
}

// What a build leaves is read without following it anywhere.
func TestTakeModule(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("\x7fELFsecret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		make func(dir string) error
		ok   bool
	}{
		{"a module", func(dir string) error { return os.WriteFile(dir+"/x-y.ko", []byte("\x7fELF"), 0o600) }, true},
		{"none", func(string) error { return nil }, false},
		{"two", func(dir string) error {
			return errors.Join(os.WriteFile(dir+"/a.ko", []byte("\x7fELF"), 0o600), os.WriteFile(dir+"/b.ko", []byte("\x7fELF"), 0o600))
		}, false},
		{"text", func(dir string) error { return os.WriteFile(dir+"/x.ko", []byte("text"), 0o600) }, false},
		{"a link to the host", func(dir string) error { return os.Symlink(outside, dir+"/x.ko") }, false},
		{"a link inside", func(dir string) error {
			return errors.Join(os.WriteFile(dir+"/object", []byte("\x7fELF"), 0o600), os.Symlink("object", dir+"/x.ko"))
		}, false},
		{"a pipe that nobody writes to", func(dir string) error { return syscall.Mkfifo(dir+"/x.ko", 0o600) }, false},
		{"a directory", func(dir string) error { return os.Mkdir(dir+"/x.ko", 0o700) }, false},
		{"its directory a link to the host", func(dir string) error {
			return errors.Join(os.Rename(outside, filepath.Dir(outside)+"/x.ko"), os.Remove(dir), os.Symlink(filepath.Dir(outside), dir))
		}, false},
	} {
		work := t.TempDir()
		if err := os.MkdirAll(filepath.Join(work, "m"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := tt.make(filepath.Join(work, "m")); err != nil {
			t.Fatal(err)
		}
		var name string
		data, err := takeModule(work, "m", &name)
		if (err == nil) != tt.ok || tt.ok && (string(data) != "\x7fELF" || name != "x_y") {
			t.Errorf("%s: %q of %s, %v", tt.name, data, name, err)
		}
	}
}

// A kernel that did not come from the archive has no source there.
func TestNoSource(t *testing.T) {
	cache, err := images.OpenCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var none *NoSourceError
	if _, err := New(cache, nil).Source(t.Context(), images.Kernel{Release: "6.99"}, testModule); !errors.As(err, &none) || !strings.Contains(err.Error(), "6.99") {
		t.Errorf("got %v", err)
	}
	if _, err := New(cache, nil).Source(t.Context(), images.Kernel{Release: "6.99"}, "../x"); err == nil || errors.As(err, &none) {
		t.Errorf("got %v", err)
	}
}
