package images

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/xi2/xz"
)

// wantedModules are the modules that go into the initramfs when the kernel has them as modules, each with what it depends on. The first
// two carry the agent's channel where a kernel does not have them built in; mana_ib is left out on purpose: the lab looks at the NIC.
var wantedModules = []string{"virtio_pci", "virtio_console", "vfio_pci", "vfio_iommu_type1", "mana", "nvme", "virtio_blk", "qemu_fw_cfg"}

// driverModules are what each way to drive the function needs from the kernel.
var driverModules = map[string][]string{
	"vfio": {"vfio_pci", "vfio_iommu_type1"},
	"mana": {"mana"},
}

// maxModule bounds a decompressed module, in bytes: with debug information the largest are some ten MiB.
const maxModule = 256 << 20

// MissingModuleError says that a kernel has neither a module nor, as far as its modules.builtin tells, the same code built in.
type MissingModuleError struct {
	Kernel string // release
	Module string // as people write it: "vfio-pci"
	Driver string // the driver of a scenario that needs it; "" if another module does
	Dir    string // where it was looked for
}

func (e *MissingModuleError) Error() string {
	s := fmt.Sprintf("kernel %s has no %s module", e.Kernel, e.Module)
	if e.Driver != "" {
		s += fmt.Sprintf(": driver %s cannot work with it", e.Driver)
	}
	return s + fmt.Sprintf(" (looked in %s; use a kernel that has it, as module or built in)", e.Dir)
}

// DamagedModuleError says that a module's file is not a whole module.
type DamagedModuleError struct {
	Path string
	Err  error
}

func (e *DamagedModuleError) Error() string {
	return fmt.Sprintf("module %s: damaged: %v (fetch or build the kernel again)", e.Path, e.Err)
}

func (e *DamagedModuleError) Unwrap() error { return e.Err }

// module is one module to load.
type module struct {
	Name    string   // with '_'
	Depends []string // names of modules that must be loaded before, without built-in ones
	Data    []byte   // the decompressed ELF object
}

// moduleTree finds a kernel's modules by name.
type moduleTree struct {
	dir     string
	files   map[string]string // name to path below dir
	builtin map[string]bool
	deps    map[string][]string // from modules.dep; nil if there is none
}

// moduleName is the name the kernel gives the module in the given file.
func moduleName(file string) string {
	name := path.Base(filepath.ToSlash(file))
	for _, ext := range []string{".xz", ".zst", ".gz"} {
		name = strings.TrimSuffix(name, ext)
	}
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".ko"), ".o")
	return strings.ReplaceAll(name, "-", "_")
}

func isModuleFile(name string) bool {
	for _, ext := range []string{".ko", ".ko.xz", ".ko.zst", ".ko.gz"} {
		if strings.HasSuffix(name, ext) {
			return true
		}
	}
	return false
}

// openModules reads what dir (…/lib/modules/<release>, or a kernel build tree) says about its modules: modules.dep where depmod ran (Debian
// packages ship none), else modules.order, else the files themselves.
func openModules(ctx context.Context, dir string) (*moduleTree, error) {
	t := &moduleTree{dir: dir, files: make(map[string]string), builtin: make(map[string]bool)}
	if st, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("modules: %w", err)
	} else if !st.IsDir() {
		return nil, fmt.Errorf("modules: %s is not a directory", dir)
	}
	err := eachLine(filepath.Join(dir, "modules.builtin"), func(line string) { t.builtin[moduleName(line)] = true })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("modules: %w", err)
	}

	dep, err := openRegular(filepath.Join(dir, "modules.dep"))
	switch {
	case err == nil:
		defer dep.Close()
		if t.files, t.deps, err = parseModulesDep(dep); err != nil {
			return nil, fmt.Errorf("modules: %s: %w", dep.Name(), err)
		}
		return t, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("modules: %w", err)
	}

	// A build tree's modules.order names objects; whether they are there as .ko, compressed or not, shows when they are opened.
	err = eachLine(filepath.Join(dir, "modules.order"), func(line string) {
		if strings.HasSuffix(line, ".o") {
			line = strings.TrimSuffix(line, ".o") + ".ko"
		}
		t.files[moduleName(line)] = line
	})
	if err == nil && len(t.files) > 0 {
		return t, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("modules: %w", err)
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !d.IsDir() && isModuleFile(d.Name()) {
			rel, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			t.files[moduleName(rel)] = filepath.ToSlash(rel)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("modules: %w", err)
	}
	return t, nil
}

func eachLine(path string, f func(string)) error {
	file, err := openRegular(path)
	if err != nil {
		return err
	}
	defer file.Close()
	s := bufio.NewScanner(file)
	for s.Scan() {
		if line := strings.TrimSpace(s.Text()); line != "" {
			f(line)
		}
	}
	return s.Err()
}

// parseModulesDep reads depmod's modules.dep: "kernel/a/b.ko.xz: kernel/c.ko.xz kernel/d.ko.xz" a line.
func parseModulesDep(r io.Reader) (files map[string]string, deps map[string][]string, err error) {
	files, deps = make(map[string]string), make(map[string][]string)
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		file, needs, ok := strings.Cut(line, ":")
		if !ok || !isModuleFile(file) {
			return nil, nil, fmt.Errorf("line %d: %.80q is not \"module: dependencies\"", n, line)
		}
		name := moduleName(file)
		files[name] = file
		for _, d := range strings.Fields(needs) {
			deps[name] = append(deps[name], moduleName(d))
		}
	}
	return files, deps, s.Err()
}

// path is where the named module's file is, trying every compression in case the index names another. dir itself may lie anywhere, but a name
// from its index must not lead out of it.
func (t *moduleTree) path(name string) (string, error) {
	rel := t.files[name]
	if !filepath.IsLocal(filepath.FromSlash(rel)) {
		return "", fmt.Errorf("modules: %s: the index names %q, which is not below it", t.dir, rel)
	}
	file := filepath.Join(t.dir, filepath.FromSlash(rel))
	bare := file
	for _, ext := range []string{".xz", ".zst", ".gz"} {
		bare = strings.TrimSuffix(bare, ext)
	}
	for _, try := range []string{file, bare, bare + ".xz", bare + ".zst", bare + ".gz"} {
		if st, err := os.Stat(try); err == nil && st.Mode().IsRegular() {
			return try, nil
		}
	}
	return "", fmt.Errorf("modules: module %s: %s is in the index of %s but missing (run `make modules`, or fetch the kernel again)", name, rel, t.dir)
}

// load reads the wanted modules that the kernel has as modules, with their dependencies, in load order.
func (t *moduleTree) load(ctx context.Context, release string, wanted []string) ([]module, error) {
	loaded := make(map[string]module)
	depends := func(name string) ([]string, error) {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		file, err := t.path(name)
		if err != nil {
			return nil, err
		}
		m, err := readModule(file)
		if err != nil {
			return nil, err
		}
		m.Name = name
		if t.deps != nil {
			m.Depends = t.deps[name]
		}
		m.Depends = slices.DeleteFunc(slices.Clone(m.Depends), func(d string) bool { return t.builtin[d] })
		for _, d := range m.Depends {
			if t.files[d] == "" {
				return nil, fmt.Errorf("modules: module %s: %w", name, &MissingModuleError{Kernel: release, Module: d, Dir: t.dir})
			}
		}
		loaded[name] = m
		return m.Depends, nil
	}
	var present []string
	for _, name := range wanted {
		if t.files[name] != "" && !t.builtin[name] {
			present = append(present, name)
		}
	}
	order, err := loadOrder(present, depends)
	if err != nil {
		return nil, err
	}
	var list []module
	for _, name := range order {
		m := loaded[name]
		if m.Data, err = stripDebug(m.Data); err != nil {
			return nil, &DamagedModuleError{Path: t.files[name], Err: err}
		}
		list = append(list, m)
	}
	return list, nil
}

// loadOrder lists wanted and everything they depend on, dependencies first, otherwise in the order given. depends is asked once per name.
func loadOrder(wanted []string, depends func(name string) ([]string, error)) ([]string, error) {
	var order, chain []string
	done := make(map[string]bool)
	var visit func(name string) error
	visit = func(name string) error {
		if done[name] {
			return nil
		}
		if i := slices.Index(chain, name); i >= 0 {
			return fmt.Errorf("modules: dependency cycle: %s", strings.Join(append(slices.Clone(chain[i:]), name), " -> "))
		}
		chain = append(chain, name)
		needs, err := depends(name)
		if err != nil {
			return err
		}
		for _, d := range needs {
			if err := visit(d); err != nil {
				return err
			}
		}
		chain = chain[:len(chain)-1]
		done[name] = true
		order = append(order, name)
		return nil
	}
	for _, name := range wanted {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// readModule decompresses a module's file and reads what it depends on.
func readModule(file string) (module, error) {
	raw, err := readRegular(file)
	if err != nil {
		return module{}, fmt.Errorf("modules: %w", err)
	}
	data, err := decompressModule(file, raw)
	if err != nil {
		return module{}, &DamagedModuleError{Path: file, Err: err}
	}
	info, err := parseModinfo(data)
	if err != nil {
		return module{}, &DamagedModuleError{Path: file, Err: err}
	}
	return module{Name: moduleName(file), Depends: info.depends, Data: data}, nil
}

// decompressModule undoes the compression that the file's name tells.
func decompressModule(name string, raw []byte) ([]byte, error) {
	var r io.Reader = bytes.NewReader(raw)
	switch filepath.Ext(name) {
	case ".xz":
		x, err := xz.NewReader(r, 0)
		if err != nil {
			return nil, noEOF(err) // which begins with the library's name
		}
		r = x
	case ".zst":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxModule))
		if err != nil {
			return nil, fmt.Errorf("zstd: %w", noEOF(err))
		}
		defer z.Close()
		r = z
	case ".gz":
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", noEOF(err))
		}
		r = z
	default:
		return raw, nil
	}
	data, err := io.ReadAll(io.LimitReader(r, maxModule+1))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", noEOF(err))
	}
	if len(data) > maxModule {
		return nil, fmt.Errorf("decompress: more than %d MiB", maxModule>>20)
	}
	return data, nil
}

// noEOF names the end of a file that came too early.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// modinfo is what a module says about itself.
type modinfo struct {
	depends  []string // normalised names
	name     string   // normalised; "" in one built before 4.13
	vermagic string   // of the kernel that it was built for
}

// parseModinfo reads the .modinfo section of a module: key=value strings, each ended by a NUL byte.
func parseModinfo(object []byte) (modinfo, error) {
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return modinfo{}, fmt.Errorf("not an ELF object: %w", noEOF(err))
	}
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 || f.Type != elf.ET_REL {
		return modinfo{}, fmt.Errorf("not an x86-64 relocatable object but %v %v %v", f.Class, f.Machine, f.Type)
	}
	section := f.Section(".modinfo")
	if section == nil {
		return modinfo{}, errors.New("no .modinfo section")
	}
	if section.Type == elf.SHT_NOBITS || section.Flags&elf.SHF_COMPRESSED != 0 {
		return modinfo{}, errors.New(".modinfo section has no plain contents")
	}
	data, err := section.Data()
	if err != nil {
		return modinfo{}, fmt.Errorf(".modinfo section: %w", noEOF(err))
	}
	for _, s := range f.Sections { // a file cut short still has its headers if they come first
		if end := s.Offset + s.FileSize; s.Type != elf.SHT_NOBITS && s.Type != elf.SHT_NULL && (end < s.Offset || end > uint64(len(object))) {
			return modinfo{}, fmt.Errorf("section %s ends beyond the file: %w", s.Name, io.ErrUnexpectedEOF)
		}
	}
	return parseModinfoStrings(data), nil
}

func parseModinfoStrings(data []byte) modinfo {
	var info modinfo
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		key, value, _ := strings.Cut(string(entry), "=")
		switch key {
		case "name":
			info.name = strings.ReplaceAll(value, "-", "_")
		case "vermagic":
			info.vermagic = strings.TrimSpace(value)
		case "depends":
			for d := range strings.SplitSeq(value, ",") {
				if d = strings.TrimSpace(d); d != "" {
					info.depends = append(info.depends, moduleName(d))
				}
			}
		}
	}
	return info
}

// modulesOrder is the manifest the agent loads by: "name file.ko dep1,dep2" a line (the last field only where there are any), in load order.
func modulesOrder(list []module) []byte {
	var b bytes.Buffer
	for _, m := range list {
		fmt.Fprintf(&b, "%s %s.ko", m.Name, m.Name)
		if len(m.Depends) > 0 {
			b.WriteString(" " + strings.Join(m.Depends, ","))
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}
