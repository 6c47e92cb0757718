package images

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const sampleList = `Package: aardvark
Version: 1
Description: not wanted
 Package: linux-image-9.9.9-cloud-amd64

Package: linux-image-6.18.15+deb13-cloud-amd64
Source: linux-signed-amd64 (6.18.15+1~bpo13+1)
Version: 6.18.15-1~bpo13+1
Installed-Size: 100
Depends: kmod, linux-base (>= 4.3~),
 initramfs-tools
Size: 2000
SHA256: 00

Package: linux-binary-6.19.6+deb13-cloud-amd64
Version: 6.19.6-1
Size: 1
Installed-Size: 2

Package: linux-image-6.19.6+deb13-cloud-amd64
Version: 6.19.6-1
Depends: linux-binary-6.19.6+deb13-cloud-amd64 (= 6.19.6-1), linux-modules-6.19.6+deb13-cloud-amd64 (= 6.19.6-1)

Package: linux-binary-7.3.4+deb13-cloud-amd64
Version: 7.3.4-1
Size: 30
Installed-Size: 4

Package: linux-modules-7.3.4+deb13-cloud-amd64
Version: 7.3.4-1
Size: 50
Installed-Size: 6

Package: linux-image-7.3.4+deb13-rt-amd64
Version: 7.3.4-1

Package: linux-image-6.1.0-50-cloud-amd64-unsigned
Version: 6.1.176-1
Size: 9

Package: linux-image-6.1.0-50-cloud-amd64
Version: 6.1.176-1
Size: 10

Package: linux-image-cloud-amd64
Version: 7

Package: qemu-system-x86
Version: 1:11.1.2+ds-1~bpo13+1

Package: qemu-system-x86
Version: 1:11.1.10+ds-1~bpo13+1`

func wantedSample(name string) bool { return name == qemuPackage || kernelPackage(name) != "" }

func TestScanPackages(t *testing.T) {
	t.Parallel()
	found, err := scanPackages(strings.NewReader(sampleList), wantedSample)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range found {
		names = append(names, e.Package)
	}
	want := []string{"linux-image-6.18.15+deb13-cloud-amd64", "linux-binary-6.19.6+deb13-cloud-amd64", "linux-image-6.19.6+deb13-cloud-amd64",
		"linux-binary-7.3.4+deb13-cloud-amd64", "linux-modules-7.3.4+deb13-cloud-amd64", "linux-image-6.1.0-50-cloud-amd64-unsigned",
		"linux-image-6.1.0-50-cloud-amd64", "qemu-system-x86", "qemu-system-x86"}
	if !slices.Equal(names, want) {
		t.Errorf("found %v, want %v", names, want)
	}
	if p := found[0].name(); p.Size != 2000 || p.Installed != 100<<10 {
		t.Errorf("sizes %+v", p)
	}
	if v := newestVersion(found, qemuPackage); v != "1:11.1.10+ds-1~bpo13+1" {
		t.Errorf("newest QEMU %q", v)
	}
}

func TestScanPackagesLongLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 600<<10)
	list := "Package: a\nDescription: " + long + "\n\nPackage: linux-image-9.1.0-cloud-amd64\nVersion: 9.1.0-1\nDepends: " + long + "\nSize: 7\n"
	found, err := scanPackages(strings.NewReader(list), wantedSample)
	if err != nil || len(found) != 1 || found[0].Size != "7" {
		t.Errorf("found %d, %v; want the kernel behind the long lines", len(found), err)
	}
	if _, err := scanPackages(strings.NewReader("Package: linux-image-9.1.0-cloud-amd64\nDepends: "+long+long+"\n"), wantedSample); err == nil {
		t.Error("a paragraph of a mebibyte is expected to be refused")
	}
}

func TestCandidates(t *testing.T) {
	t.Parallel()
	found, err := scanPackages(strings.NewReader(sampleList), wantedSample)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]candidate{}
	for _, k := range candidates("trixie-backports", found) {
		got[k.Release] = k
	}
	for release, packages := range map[string][]string{
		"6.18.15+deb13-cloud-amd64": {"linux-image-6.18.15+deb13-cloud-amd64"},
		"7.3.4+deb13-cloud-amd64":   {"linux-binary-7.3.4+deb13-cloud-amd64", "linux-modules-7.3.4+deb13-cloud-amd64"},
		"6.1.0-50-cloud-amd64":      {"linux-image-6.1.0-50-cloud-amd64"},
		"6.19.6+deb13-cloud-amd64":  nil,
	} {
		k, ok := got[release]
		var names []string
		for _, p := range k.Packages {
			names = append(names, p.Name)
		}
		if !ok || !slices.Equal(names, packages) || (k.Reason == "") != (packages != nil) {
			t.Errorf("%s: %+v, want packages %v", release, k, packages)
		}
	}
	if r := got["6.19.6+deb13-cloud-amd64"].Reason; !strings.Contains(r, "linux-modules-6.19.6+deb13-cloud-amd64") {
		t.Errorf("reason %q does not name the package", r)
	}
	if len(got) != 4 {
		t.Errorf("%d candidates, want 4", len(got))
	}

	// Parts of different versions do not make a kernel.
	mixed := []pkgEntry{{Package: "linux-binary-9.1.0-cloud-amd64", Version: "9.1.0-1"}, {Package: "linux-modules-9.1.0-cloud-amd64", Version: "9.1.0-2"}}
	for _, k := range candidates("sid", mixed) {
		if k.Reason == "" {
			t.Errorf("%+v is taken for whole", k)
		}
	}
}

func TestKernelPackage(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"linux-image-7.3.4+deb13-cloud-amd64":       "7.3.4+deb13-cloud-amd64",
		"linux-modules-7.3.4+deb13-cloud-amd64":     "7.3.4+deb13-cloud-amd64",
		"linux-image-6.1.0-50-cloud-amd64-unsigned": "6.1.0-50-cloud-amd64",
		"linux-image-7.3.4+deb13-amd64":             "",
		"linux-image-cloud-amd64":                   "",
		"linux-image--cloud-amd64":                  "",
		"linux-image-":                              "",
		"linux-headers-7.3.4+deb13-cloud-amd64":     "",
	} {
		if got := kernelPackage(name); got != want {
			t.Errorf("kernelPackage(%q) = %q, want %q", name, got, want)
		}
	}
}

func FuzzScanPackages(f *testing.F) {
	f.Add([]byte(sampleList))
	f.Add([]byte("Package: linux-image-9-cloud-amd64\n"))
	f.Add([]byte("Package:linux-image-9-cloud-amd64\nVersion: \n : \n\tx\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		found, err := scanPackages(bytes.NewReader(data), wantedSample)
		if err != nil {
			return
		}
		for _, k := range candidates("sid", found) {
			if (k.Reason == "") == (len(k.Packages) == 0) {
				t.Errorf("%+v: want packages or a reason", k)
			}
		}
		newestVersion(found, qemuPackage)
	})
}

func BenchmarkScanPackages(b *testing.B) {
	list := []byte(strings.Repeat(strings.Repeat("Package: other\nVersion: 1\nDescription: some text of a usual length for such a line\n\n", 1000)+sampleList+"\n\n", 3))
	b.SetBytes(int64(len(list)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := scanPackages(bytes.NewReader(list), wantedSample); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKernels is `irqlab list kernels` with a warm cache.
func BenchmarkKernels(b *testing.B) {
	c, err := OpenCache(filepath.Join(b.TempDir(), "cache"))
	if err != nil {
		b.Fatal(err)
	}
	if err := c.writeIndex(&index{Time: time.Unix(1700000000, 0), Kernels: slices.Repeat(sampleKernels, 5)}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Kernels(b.Context(), false); err != nil {
			b.Fatal(err)
		}
	}
}
