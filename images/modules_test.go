package images

import (
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	agentmodule "irqlab/guestagent/module"
)

// testSection is a section of a module made for a test; its name-table offset is filled in.
type testSection struct {
	name  string
	kind  elf.SectionType
	flags elf.SectionFlag
	align uint64
	data  string
}

// testObject assembles a relocatable object from sections.
func testObject(t testing.TB, sections ...testSection) []byte {
	t.Helper()
	names := []byte{0}
	var body bytes.Buffer
	body.Write(make([]byte, elfHeaderSize))
	headers := []elf.Section64{{}}
	sections = append(sections, testSection{name: ".shstrtab", kind: elf.SHT_STRTAB, align: 1})
	for i, s := range sections {
		h := elf.Section64{Name: uint32(len(names)), Type: uint32(s.kind), Flags: uint64(s.flags), Addralign: s.align}
		names = append(append(names, s.name...), 0)
		data := []byte(s.data)
		if i == len(sections)-1 {
			data = names
		}
		align(&body, s.align)
		h.Off, h.Size = uint64(body.Len()), uint64(len(data))
		body.Write(data)
		headers = append(headers, h)
	}
	align(&body, 8)
	var out bytes.Buffer
	ident := [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}
	for _, part := range []any{
		elf.Header64{Ident: ident, Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: 1, Shoff: uint64(body.Len()), Ehsize: elfHeaderSize,
			Shentsize: elfSectionSize, Shnum: uint16(len(headers)), Shstrndx: uint16(len(headers) - 1)},
		body.Bytes()[elfHeaderSize:], headers,
	} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// testModule is a module that says it depends on others.
func testModule(t testing.TB, depends string) []byte {
	return testObject(t,
		testSection{name: ".text", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, align: 16, data: strings.Repeat("\x90", 4099)},
		testSection{name: ".modinfo", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, align: 1,
			data: "license=GPL\x00depends=" + depends + "\x00vermagic=1.2.3 SMP\x00"})
}

func compressed(t testing.TB, ext string, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch ext {
	case ".xz":
		w, err = xz.WriterConfig{CheckSum: xz.CRC32}.NewWriter(&b)
	case ".zst":
		w, err = zstd.NewWriter(&b)
	case ".gz":
		w = gzip.NewWriter(&b)
	case "":
		return data
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func writeTree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestModuleName(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"kernel/drivers/vfio/pci/vfio-pci-core.ko.xz": "vfio_pci_core",
		"mana.ko":                 "mana",
		"a/b-c_d.ko.zst":          "b_c_d",
		"x.ko.gz":                 "x",
		"drivers/net/net-mana.o":  "net_mana",
		"vfio-pci":                "vfio_pci",
		"kernel/weird.name.ko.xz": "weird.name",
	} {
		if got := moduleName(file); got != want {
			t.Errorf("moduleName(%q) = %q, want %q", file, got, want)
		}
	}
}

func TestLoadOrder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		wanted  string
		deps    map[string]string
		want    string
		wantErr string
	}{
		{name: "none"},
		{name: "single", wanted: "a", want: "a"},
		{name: "chain", wanted: "c", deps: map[string]string{"c": "b", "b": "a"}, want: "a b c"},
		{name: "diamond", wanted: "d", deps: map[string]string{"d": "b c", "b": "a", "c": "a"}, want: "a b c d"},
		{name: "shared and wanted", wanted: "x a y", deps: map[string]string{"x": "a", "y": "a x"}, want: "a x y"},
		{name: "twice", wanted: "a a", want: "a"},
		{name: "closure in any order", wanted: "d", deps: map[string]string{"d": "a b c", "c": "b a", "b": "a"}, want: "a b c d"},
		{name: "cycle", wanted: "z a", deps: map[string]string{"a": "b", "b": "c", "c": "a"}, wantErr: "cycle: a -> b -> c -> a"},
		{name: "self", wanted: "a", deps: map[string]string{"a": "a"}, wantErr: "cycle: a -> a"},
		{name: "cycle behind", wanted: "a", deps: map[string]string{"a": "b", "b": "c", "c": "b"}, wantErr: "cycle: b -> c -> b"},
		{name: "missing", wanted: "a", deps: map[string]string{"a": "b", "b": "!"}, wantErr: "no b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked := map[string]int{}
			got, err := loadOrder(strings.Fields(tt.wanted), func(name string) ([]string, error) {
				asked[name]++
				if tt.deps[name] == "!" {
					return nil, errors.New("no " + name)
				}
				return strings.Fields(tt.deps[name]), nil
			})
			checkError(t, err, tt.wantErr)
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			for name, n := range asked {
				if n != 1 {
					t.Errorf("asked %d times for %s", n, name)
				}
			}
		})
	}
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Fatal(err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Fatalf("error %v, want one with %q", err, want)
	}
}

func TestLoadModules(t *testing.T) {
	t.Parallel()
	vfio := func(ext string) map[string]string {
		return map[string]string{
			"kernel/virt/lib/irqbypass.ko" + ext:                 string(compressed(t, ext, testModule(t, ""))),
			"kernel/drivers/vfio/vfio.ko" + ext:                  string(compressed(t, ext, testModule(t, ""))),
			"kernel/drivers/vfio/pci/vfio-pci-core.ko" + ext:     string(compressed(t, ext, testModule(t, "vfio,irqbypass"))),
			"kernel/drivers/vfio/pci/vfio-pci.ko" + ext:          string(compressed(t, ext, testModule(t, "vfio-pci-core,vfio"))),
			"kernel/drivers/infiniband/hw/mana/mana_ib.ko" + ext: "never read",
		}
	}
	with := func(files map[string]string, more ...string) map[string]string {
		for i := 0; i < len(more); i += 2 {
			files[more[i]] = more[i+1]
		}
		return files
	}
	without := func(files map[string]string, name string) map[string]string {
		delete(files, name)
		return files
	}
	const order = "irqbypass irqbypass.ko\nvfio vfio.ko\nvfio_pci_core vfio_pci_core.ko %s\nvfio_pci vfio_pci.ko %s\n"
	fromModinfo := "vfio vfio.ko\nirqbypass irqbypass.ko\nvfio_pci_core vfio_pci_core.ko vfio,irqbypass\nvfio_pci vfio_pci.ko vfio_pci_core,vfio\n"
	for _, tt := range []struct {
		name    string
		files   map[string]string
		want    string // modules.order
		wantErr string
	}{
		{name: "plain", files: vfio(""), want: fromModinfo},
		{name: "xz", files: vfio(".xz"), want: fromModinfo},
		{name: "zstd", files: vfio(".zst"), want: fromModinfo},
		{name: "gzip", files: vfio(".gz"), want: fromModinfo},
		{name: "nothing", files: map[string]string{"modules.alias": ""}},
		{
			name: "modules.dep rules",
			files: with(vfio(".xz"), "modules.dep", "kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/drivers/vfio/pci/vfio-pci-core.ko.xz kernel/virt/lib/irqbypass.ko.xz\n"+
				"kernel/drivers/vfio/pci/vfio-pci-core.ko.xz: kernel/virt/lib/irqbypass.ko.xz kernel/drivers/vfio/vfio.ko.xz\n"+
				"kernel/drivers/vfio/vfio.ko.xz:\nkernel/virt/lib/irqbypass.ko.xz:\n"),
			want: fmt.Sprintf(order, "irqbypass,vfio", "vfio_pci_core,irqbypass"),
		},
		{
			name:  "builtin is skipped",
			files: with(without(vfio(".xz"), "kernel/drivers/vfio/vfio.ko.xz"), "modules.builtin", "kernel/drivers/vfio/vfio.ko\nkernel/drivers/nvme/host/nvme.ko\n"),
			want:  "irqbypass irqbypass.ko\nvfio_pci_core vfio_pci_core.ko irqbypass\nvfio_pci vfio_pci.ko vfio_pci_core\n",
		},
		{
			name: "build tree",
			files: map[string]string{"modules.order": "drivers/block/virtio_blk.o\ndrivers/net/net-x.o\n", "modules.builtin": "",
				"drivers/block/virtio_blk.ko": string(testModule(t, ""))},
			want: "virtio_blk virtio_blk.ko\n",
		},
		{
			name:  "index names another compression",
			files: map[string]string{"modules.order": "kernel/mana.ko\n", "kernel/mana.ko.zst": string(compressed(t, ".zst", testModule(t, "")))},
			want:  "mana mana.ko\n",
		},
		{name: "dependency missing", files: without(vfio(""), "kernel/drivers/vfio/vfio.ko"), wantErr: "module vfio_pci: kernel 1.2.3 has no vfio module"},
		{name: "file missing", files: map[string]string{"modules.order": "kernel/mana.ko\n"}, wantErr: "kernel/mana.ko is in the index"},
		{name: "index leads out", files: map[string]string{"modules.dep": "../mana.ko:\n"}, wantErr: "not below it"},
		{name: "index absolute", files: map[string]string{"modules.dep": "/etc/mana.ko:\n"}, wantErr: "not below it"},
		{name: "bad modules.dep", files: map[string]string{"modules.dep": "kernel/mana.ko:\n\x00\x01"}, wantErr: "line 2"},
		{name: "cycle", files: map[string]string{"mana.ko": string(testModule(t, "a")), "a.ko": string(testModule(t, "mana"))}, wantErr: "cycle: mana -> a -> mana"},
		{name: "empty file", files: map[string]string{"mana.ko": ""}, wantErr: "mana.ko: damaged: not an ELF object: unexpected EOF"},
		{name: "empty xz", files: map[string]string{"mana.ko.xz": ""}, wantErr: "mana.ko.xz: damaged: xz: data is truncated"},
		{name: "text", files: map[string]string{"mana.ko": "#!/bin/sh\necho this is not a module at all, whatever its name says\n"}, wantErr: "mana.ko: damaged: not an ELF object"},
		{name: "no modinfo", files: map[string]string{"mana.ko": string(testObject(t))}, wantErr: "mana.ko: damaged: no .modinfo"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			tree, err := openModules(ctx, writeTree(t, tt.files))
			var list []module
			if err == nil {
				list, err = tree.load(ctx, "1.2.3", wantedModules)
			}
			checkError(t, err, tt.wantErr)
			if diff := cmp.Diff(tt.want, string(modulesOrder(list))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			manifest, err := agentmodule.ParseManifest(modulesOrder(list))
			if err != nil || len(manifest) != len(list) {
				t.Errorf("the agent reads %d of %d modules: %v", len(manifest), len(list), err)
			}
			for _, m := range list {
				if !bytes.HasPrefix(m.Data, []byte(elf.ELFMAG)) {
					t.Errorf("%s is not decompressed", m.Name)
				}
			}
		})
	}
}

func TestOpenModulesErrors(t *testing.T) {
	t.Parallel()
	dir := writeTree(t, map[string]string{"file": ""})
	for path, want := range map[string]string{filepath.Join(dir, "none"): "no such file", filepath.Join(dir, "file"): "not a directory"} {
		_, err := openModules(context.Background(), path)
		checkError(t, err, want)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := openModules(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("walk with a cancelled context: %v", err)
	}
}

// Every module cut short anywhere, and every compressed one with a flipped byte, is a DamagedModuleError that names the file.
func TestDamagedModules(t *testing.T) {
	t.Parallel()
	object := testModule(t, "a,b")
	dir := t.TempDir()
	for _, ext := range []string{"", ".xz", ".zst", ".gz"} {
		whole := compressed(t, ext, object)
		path := filepath.Join(dir, "mana.ko"+ext)
		check := func(what string, data []byte) {
			t.Helper()
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := readModule(path)
			var damaged *DamagedModuleError
			if !errors.As(err, &damaged) || damaged.Path != path || !strings.Contains(err.Error(), path) {
				t.Errorf("%s%s: error %v, want a *DamagedModuleError that names the file", what, ext, err)
			}
		}
		for n := 0; n < len(whole); n += max(1, len(whole)/41) {
			check(fmt.Sprintf("cut to %d of %d bytes", n, len(whole)), whole[:n])
		}
		check("cut by one byte", whole[:len(whole)-1])
		if ext == "" {
			continue
		}
		flipped := bytes.Clone(whole)
		flipped[len(flipped)/2] ^= 0x10
		check("flipped", flipped)
	}
}

func TestStripDebug(t *testing.T) {
	t.Parallel()
	debug := strings.Repeat("debug", 1<<12)
	sections := []testSection{
		{name: ".text", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, align: 64, data: "code"},
		{name: ".debug_info", kind: elf.SHT_PROGBITS, align: 1, data: debug},
		{name: ".rela.debug_info", kind: elf.SHT_RELA, align: 8, data: debug},
		{name: ".debug_line", kind: elf.SHT_PROGBITS, flags: elf.SHF_COMPRESSED, align: 8, data: debug},
		{name: ".data", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, align: 32, data: "data of an odd length"},
		{name: ".modinfo", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, align: 1, data: "depends=a\x00"},
		{name: ".BTF", kind: elf.SHT_PROGBITS, align: 4, data: "types"},
	}
	object := testObject(t, sections...)
	stripped, err := stripDebug(object)
	if err != nil {
		t.Fatal(err)
	}
	if len(stripped) > len(object)-3*len(debug) {
		t.Errorf("%d bytes of %d left", len(stripped), len(object))
	}
	f, err := elf.NewFile(bytes.NewReader(stripped))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Sections) != len(sections)+2 {
		t.Fatalf("%d sections, want %d: indexes in the file would point elsewhere", len(f.Sections), len(sections)+2)
	}
	for i, want := range sections {
		got := f.Sections[i+1]
		data, err := got.Data()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(want.name, "debug") {
			want.data = ""
		} else if got.Offset%want.align != 0 {
			t.Errorf("%s at %d is not aligned to %d", want.name, got.Offset, want.align)
		}
		if got.Name != want.name || string(data) != want.data {
			t.Errorf("section %d: %s with %d bytes, want %s with %d", i+1, got.Name, len(data), want.name, len(want.data))
		}
	}
	again, err := stripDebug(stripped)
	if err != nil || len(again) != len(stripped) {
		t.Errorf("stripped twice: %d bytes, then %d, error %v", len(stripped), len(again), err)
	}
	signed := append(bytes.Clone(object), moduleSignature...)
	if kept, err := stripDebug(signed); err != nil || !bytes.Equal(kept, signed) {
		t.Errorf("a signed module changed (error %v)", err)
	}
	plain := testModule(t, "")
	if kept, err := stripDebug(plain); err != nil || !bytes.Equal(kept, plain) {
		t.Errorf("a module without debug sections changed (error %v)", err)
	}
}

func FuzzModule(f *testing.F) {
	f.Add(testObject(f, testSection{name: ".modinfo", kind: elf.SHT_PROGBITS, data: "depends=a,b-c\x00"}))
	f.Add(testObject(f, testSection{name: ".modinfo", kind: elf.SHT_PROGBITS, data: "depends=x\x00depends\x00=\x00"},
		testSection{name: ".debug_info", kind: elf.SHT_PROGBITS, align: 1, data: "debug"},
		testSection{name: ".rela.debug_info", kind: elf.SHT_RELA, align: 8, data: "debug"}))
	f.Add([]byte(elf.ELFMAG))
	f.Fuzz(func(t *testing.T, object []byte) {
		info, err := parseModinfo(object)
		if err != nil {
			return
		}
		for _, d := range info.depends {
			if d == "" || strings.ContainsAny(d, ",-\x00") {
				t.Fatalf("dependency %q", d)
			}
		}
		stripped, err := stripDebug(object)
		if err != nil {
			return
		}
		if len(stripped) > 2*len(object)+1<<17*64 {
			t.Fatalf("%d bytes became %d", len(object), len(stripped))
		}
	})
}

func FuzzModinfoStrings(f *testing.F) {
	f.Add([]byte("depends=a,b\x00name=x\x00"))
	f.Add([]byte("\x00\x00depends=\x00depends=,,-,"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, d := range parseModinfoStrings(data).depends {
			if d == "" || strings.ContainsAny(d, ",-\x00") {
				t.Fatalf("dependency %q", d)
			}
		}
	})
}

func FuzzModulesDep(f *testing.F) {
	f.Add("kernel/a-b.ko.xz: kernel/c.ko.xz\nkernel/c.ko.xz:\n")
	f.Add("# comment\n\n:\n")
	f.Fuzz(func(t *testing.T, text string) {
		files, deps, err := parseModulesDep(strings.NewReader(text))
		if err != nil {
			return
		}
		for name := range deps {
			if files[name] == "" {
				t.Fatalf("dependencies of %q, which has no file", name)
			}
		}
	})
}

// A compressed module may hold anything: it is read whole or refused, within the bound.
func FuzzDecompressModule(f *testing.F) {
	for i, ext := range []string{".xz", ".zst", ".gz"} {
		f.Add(byte(i), compressed(f, ext, []byte("small seeds keep the fuzzer quick")))
	}
	f.Fuzz(func(t *testing.T, format byte, raw []byte) {
		name := "m.ko" + []string{".xz", ".zst", ".gz"}[int(format)%3]
		if data, err := decompressModule(name, raw); err == nil && len(data) > maxModule {
			t.Fatalf("%d bytes", len(data))
		}
	})
}

func BenchmarkReadModule(b *testing.B) {
	object := testModule(b, "a,b")
	for _, ext := range []string{"", ".xz", ".zst", ".gz"} {
		b.Run("ko"+ext, func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "m.ko"+ext)
			if err := os.WriteFile(path, compressed(b, ext, object), 0o644); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(object)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := readModule(path); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
