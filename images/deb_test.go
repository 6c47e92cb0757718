package images

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func unpackAll(t *testing.T, file, dir string) error {
	t.Helper()
	d, err := openDeb(file)
	if err != nil {
		return err
	}
	defer d.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	return d.unpack(t.Context(), root, func(name string) string { return name })
}

func TestUnpackDeb(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := writeFile(t, dir, "x.deb", makeDeb(t, controlOf("x", "1", ""),
		member{name: "./usr/lib/a", data: []byte("A")}, member{name: "./usr/lib/b", link: "a"}, member{name: "./usr/lib/c", link: "/etc/passwd"},
		member{name: "usr/lib/a2", data: []byte("A2")}))
	out := t.TempDir()
	if err := unpackAll(t, file, out); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"usr/lib/a": "A", "usr/lib/b": "A", "usr/lib/a2": "A2"} {
		if data, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(data) != want {
			t.Errorf("%s holds %q, %v; want %q", name, data, err, want)
		}
	}
	if to, err := os.Readlink(filepath.Join(out, "usr/lib/c")); to != "../../etc/passwd" {
		t.Errorf("a link into the host leads to %q, %v, and should lead to where a package's file would go", to, err)
	}
}

// Nothing a package says reaches outside of the directory it is unpacked into.
func TestUnpackDebStaysInside(t *testing.T) {
	t.Parallel()
	for name, files := range map[string][]member{
		"dots":      {{name: "../../../outside", data: []byte("x")}},
		"link":      {{name: "./d", link: "../.."}, {name: "./d/outside", data: []byte("x")}},
		"deep link": {{name: "./a/b", link: "../../.."}, {name: "./a/b/outside", data: []byte("x")}},
	} {
		dir := t.TempDir()
		file := writeFile(t, dir, "x.deb", makeDeb(t, controlOf("x", "1", ""), files...))
		out := filepath.Join(dir, "1", "2")
		if err := os.MkdirAll(out, 0o700); err != nil {
			t.Fatal(err)
		}
		err := unpackAll(t, file, out)
		for _, outside := range []string{filepath.Join(dir, "outside"), filepath.Join(dir, "1/outside"), filepath.Join(filepath.Dir(dir), "outside")} {
			if _, e := os.Lstat(outside); e == nil {
				t.Errorf("%s: wrote %s", name, outside)
			}
		}
		if name != "dots" && err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestDamagedDeb(t *testing.T) {
	t.Parallel()
	whole := makeDeb(t, controlOf("x", "1", ""), member{name: "./a", data: bytes.Repeat([]byte("data"), 1000)})
	negative := bytes.Replace(whole, []byte("4         `\n2.0"), []byte("-60       `\n2.0"), 1)
	for name, data := range map[string][]byte{
		"empty":         nil,
		"magic only":    whole[:8],
		"half a header": whole[:30],
		"half":          whole[:len(whole)/2],
		"short":         whole[:len(whole)-20],
		"not ar":        []byte(strings.Repeat("x", 100)),
		"negative size": negative,
		"flipped":       append(append(bytes.Clone(whole[:len(whole)-20]), 0xff, 0xff), whole[len(whole)-18:]...),
		"no data":       whole[:8+60+4],
	} {
		file := writeFile(t, t.TempDir(), "x.deb", data)
		if err := unpackAll(t, file, t.TempDir()); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v; want an error that names the file", name, err)
		}
	}
	if bytes.Equal(negative, whole) {
		t.Error("the negative size was not planted")
	}
}

func FuzzWalkAr(f *testing.F) {
	f.Add(makeDeb(f, controlOf("x", "1", ""), member{name: "./a", data: []byte("a")}))
	f.Add([]byte("!<arch>\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = walkAr(bytes.NewReader(data), int64(len(data))) // must end
	})
}

func TestKernelFromDebs(t *testing.T) {
	t.Parallel()
	const release = "9.1.0-cloud-amd64"
	image := makeBzImage(t, release, "xz", makeVmlinux(t, release, true))
	deb := func(name, depends string, files ...member) string {
		return writeFile(t, t.TempDir(), name+".deb", makeDeb(t, controlOf(name, "9.1.0-1", depends), files...))
	}
	old := deb("linux-image-"+release, "", member{name: "./boot/vmlinuz-" + release, data: image},
		member{name: "./lib/modules/" + release + "/kernel/mana.ko.xz", data: []byte("m")}, member{name: "./boot/config-" + release, data: []byte("CONFIG_X=y\n")},
		member{name: "./lib/modules/" + release + "/build", link: "/usr/src/x"}, member{name: "./usr/share/doc/x", data: []byte("doc")})
	binary := deb("linux-binary-"+release, "", member{name: "./usr/lib/modules/" + release + "/vmlinuz", data: image})
	modules := deb("linux-modules-"+release, "", member{name: "./usr/lib/modules/" + release + "/kernel/mana.ko.xz", data: []byte("m")})
	meta := deb("linux-image-"+release, "linux-binary-"+release+" (= 9.1.0-1), linux-modules-"+release)
	otherModules := deb("linux-modules-9.2.0-cloud-amd64", "", member{name: "./usr/lib/modules/9.2.0-cloud-amd64/kernel/mana.ko.xz", data: []byte("m")})
	own := deb("linux-image-9.1.0", "", member{name: "./boot/vmlinuz-9.1.0", data: makeBzImage(t, "9.1.0", "gzip", makeVmlinux(t, "9.1.0", true))})
	bash := deb("bash", "", member{name: "./bin/bash", data: []byte("#!")})
	liar := deb("linux-image-9.3.0", "", member{name: "./boot/vmlinuz-9.3.0", data: image})

	c := newCache(t)
	for _, spec := range []string{old, binary + "," + modules, modules + "," + binary + "," + meta} {
		k, err := c.Kernel(t.Context(), spec, nil)
		if err != nil || k.Release != release || k.ImageKind != KindVmlinux || k.Spec != spec {
			t.Errorf("%s: %+v, %v", spec, k, err)
			continue
		}
		if data, err := os.ReadFile(filepath.Join(k.ModulesDir, "kernel/mana.ko.xz")); err != nil || string(data) != "m" {
			t.Errorf("%s: module %q, %v", spec, data, err)
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(k.Image), "vmlinuz")); err == nil {
			t.Errorf("%s: the packed kernel was kept beside the unpacked one", spec)
		}
	}
	if k, err := c.Kernel(t.Context(), own, nil); err != nil || k.ModulesDir != "" || k.Release != "9.1.0" {
		t.Errorf("a kernel built without modules: %+v, %v", k, err)
	}
	var incomplete *IncompleteKernelError
	for spec, missing := range map[string]string{
		binary:                      "linux-modules-" + release,
		modules:                     "linux-binary-" + release,
		meta:                        "linux-binary-" + release,
		binary + "," + otherModules: "9.2.0-cloud-amd64",
	} {
		if _, err := c.Kernel(t.Context(), spec, nil); !errors.As(err, &incomplete) || !strings.Contains(incomplete.Reason, missing) {
			t.Errorf("%s: %v; want an IncompleteKernelError that names %s", spec, err, missing)
		}
	}
	whole, err := os.ReadFile(old)
	if err != nil {
		t.Fatal(err)
	}
	var not *NotAKernelError
	for what, data := range map[string][]byte{"empty": nil, "a header": []byte("!<arch>\n"), "half": whole[:len(whole)/2], "all but the end": whole[:len(whole)-40]} {
		if _, err := c.Kernel(t.Context(), writeFile(t, t.TempDir(), "x.deb", data), nil); !errors.As(err, &not) {
			t.Errorf("%s of a .deb: %v; want a NotAKernelError", what, err)
		}
	}
	if _, err := c.Kernel(t.Context(), bash, nil); !errors.As(err, &not) {
		t.Errorf("bash.deb: %v; want a NotAKernelError", err)
	}
	for _, spec := range []string{old + "," + own, liar} {
		if _, err := c.Kernel(t.Context(), spec, nil); err == nil {
			t.Errorf("%s: no error", spec)
		}
	}
	if _, err := c.Kernel(t.Context(), "/nonexistent/x.deb", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing .deb: %v", err)
	}
}

func TestKernelFromPaths(t *testing.T) {
	t.Parallel()
	const release = "9.1.0-own"
	vmlinux := makeVmlinux(t, release, true)
	bz := makeBzImage(t, release, "zstd", vmlinux)
	c := newCache(t)

	t.Run("bzImage alone", func(t *testing.T) {
		file := writeFile(t, t.TempDir(), "bzImage", bz)
		k, err := c.Kernel(t.Context(), file, nil)
		if err != nil || k.Release != release || k.ImageKind != KindVmlinux || k.ModulesDir != "" || k.Source != file {
			t.Errorf("%+v, %v", k, err)
		}
		before, _ := os.Stat(k.Image)
		again, err := c.Kernel(t.Context(), file, nil)
		after, _ := os.Stat(again.Image)
		if err != nil || again != k || !os.SameFile(before, after) {
			t.Errorf("second time %+v, %v", again, err)
		}
	})
	t.Run("installed", func(t *testing.T) {
		for image, modules := range map[string]string{
			"boot/vmlinuz-" + release:                 "lib/modules/" + release,
			"boot/vmlinuz":                            "usr/lib/modules/" + release,
			"lib/modules/" + release + "/vmlinuz":     "lib/modules/" + release,
			"bzImage":                                 "lib/modules/" + release,
			"usr/lib/modules/" + release + "/vmlinuz": "usr/lib/modules/" + release,
		} {
			dir := t.TempDir()
			file := writeFile(t, dir, image, bz)
			writeFile(t, dir, modules+"/kernel/x.ko", nil)
			if k, err := c.Kernel(t.Context(), file, nil); err != nil || k.ModulesDir != filepath.Join(dir, modules) {
				t.Errorf("%s: modules %q, %v; want %s", image, k.ModulesDir, err, modules)
			}
		}
		dir := t.TempDir()
		file := writeFile(t, dir, "boot/vmlinuz", bz)
		writeFile(t, dir, "lib/modules/9.9.9-other/kernel/x.ko", nil)
		if k, err := c.Kernel(t.Context(), file, nil); err != nil || k.ModulesDir != "" {
			t.Errorf("another kernel's modules are taken: %q, %v", k.ModulesDir, err)
		}
	})
	t.Run("vmlinux", func(t *testing.T) {
		file := writeFile(t, t.TempDir(), "vmlinux", vmlinux)
		if k, err := c.Kernel(t.Context(), file, nil); err != nil || k.Image != file || k.ImageKind != KindVmlinux || k.Release != release {
			t.Errorf("%+v, %v", k, err)
		}
	})
	t.Run("build tree", func(t *testing.T) {
		tree := t.TempDir()
		writeFile(t, tree, "include/config/kernel.release", []byte(release+"\n"))
		var not *NotAKernelError
		if _, err := c.Kernel(t.Context(), tree, nil); !errors.As(err, &not) || !strings.Contains(err.Error(), "make") {
			t.Errorf("a tree that is not built: %v", err)
		}
		boot := writeFile(t, tree, "arch/x86/boot/bzImage", bz)
		if k, err := c.Kernel(t.Context(), tree, nil); err != nil || k.Release != release || k.ImageKind != KindVmlinux || k.ModulesDir != "" || k.Source != tree {
			t.Errorf("without modules: %+v, %v", k, err)
		}
		writeFile(t, tree, "modules.order", []byte("drivers/net/mana.o\n"))
		for _, spec := range []string{tree, boot} {
			if k, err := c.Kernel(t.Context(), spec, nil); err != nil || k.ModulesDir != tree {
				t.Errorf("%s: modules %q, %v; want the tree", spec, k.ModulesDir, err)
			}
		}
		writeFile(t, tree, "vmlinux", makeVmlinux(t, release, false))
		if k, err := c.Kernel(t.Context(), tree, nil); err != nil || k.Image == filepath.Join(tree, "vmlinux") {
			t.Errorf("a vmlinux without PVH is preferred to the bzImage: %+v, %v", k, err)
		}
		direct := writeFile(t, tree, "vmlinux", vmlinux)
		if k, err := c.Kernel(t.Context(), tree, nil); err != nil || k.Image != direct {
			t.Errorf("the tree's own vmlinux is not used: %+v, %v", k, err)
		}
	})
	t.Run("nothing of the kind", func(t *testing.T) {
		var not *NotAKernelError
		if _, err := c.Kernel(t.Context(), t.TempDir(), nil); !errors.As(err, &not) {
			t.Errorf("an empty directory: %v", err)
		}
		if _, err := c.Kernel(t.Context(), "/dev/null", nil); !errors.As(err, &not) {
			t.Errorf("/dev/null: %v", err)
		}
		if _, err := c.Kernel(t.Context(), "7.3", nil); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "debian:7.3") {
			t.Errorf("a bare version: %v; want the right spelling in it", err)
		}
		old := bytes.Clone(bz)
		binary.LittleEndian.PutUint16(old[protocolAt:], 0x0204)
		binary.LittleEndian.PutUint16(old[kernelVersionAt:], 0)
		if _, err := c.Kernel(t.Context(), writeFile(t, t.TempDir(), "old", old), nil); !errors.As(err, &not) {
			t.Errorf("a kernel that does not tell its release: %v", err)
		}
	})
}
