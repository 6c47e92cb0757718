package images

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// manaModule is a module with these strings in its .modinfo, and further sections.
func manaModule(t testing.TB, modinfo string, more ...testSection) []byte {
	return testObject(t, append([]testSection{{name: ".modinfo", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, align: 1, data: strings.ReplaceAll(modinfo, "|", "\x00")}}, more...)...)
}

func TestReplacement(t *testing.T) {
	t.Parallel()
	const magic = "|vermagic=6.18.1-lab SMP preempt mod_unload "
	const versions = "|vermagic=6.18.1-lab SMP mod_unload modversions "
	crcs := testSection{name: "__versions", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, align: 1, data: strings.Repeat("x", 64)}
	debug := testSection{name: ".debug_info", kind: elf.SHT_PROGBITS, align: 1, data: strings.Repeat("d", 1<<16)}
	large := testSection{name: ".data", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, align: 1, data: strings.Repeat("d", 33<<20)}
	shipped := compressed(t, ".xz", manaModule(t, "name=mana|depends=helper"+magic))
	tree := map[string]string{"modules.builtin": "kernel/drivers/nvme/host/nvme.ko\nkernel/lib/inside.ko\n", "kernel/mana.ko.xz": string(shipped)}
	versioned := map[string]string{"mana.ko": string(manaModule(t, "name=mana|depends="+versions))}
	depmod := maps.Clone(tree)
	depmod["modules.dep"] = "kernel/mana.ko.xz: kernel/helper.ko.xz kernel/deeper.ko.xz\n"
	good := manaModule(t, "name=mana|depends=helper,inside"+magic)
	for _, tt := range []struct {
		name    string
		files   map[string]string // the kernel's; nil: tree
		module  string            // "": mana
		file    string            // "": m.ko
		data    []byte
		wantErr string
	}{
		{name: "good", data: good},
		{name: "compressed", file: "m.ko.xz", data: compressed(t, ".xz", good)},
		{name: "debug information", data: manaModule(t, "name=mana|depends="+magic, debug)},
		{name: "of depmod's dependencies", files: depmod, data: manaModule(t, "name=mana|depends=deeper"+magic)},
		{name: "no name of its own", data: manaModule(t, "depends="+magic)},
		{name: "versions, another release", files: versioned, data: manaModule(t, "name=mana|depends="+strings.Replace(versions, "18.1", "18.2", 1), crcs)},
		{name: "versions wanted, another release without", files: versioned, data: manaModule(t, "name=mana|depends="+strings.Replace(versions, "18.1", "18.2", 1)), wantErr: "for 6.18.2-lab, and this is 6.18.1-lab"},
		{name: "another release", data: manaModule(t, "name=mana|depends=|vermagic=7.3.4 SMP preempt mod_unload "), wantErr: "built for another kernel: for 7.3.4, and this is 6.18.1-lab"},
		{name: "another configuration", data: manaModule(t, "name=mana|depends=|vermagic=6.18.1-lab SMP mod_unload "), wantErr: `"SMP mod_unload", and this kernel has "SMP preempt mod_unload"`},
		{name: "no vermagic", data: manaModule(t, "name=mana|depends="), wantErr: "no vermagic"},
		{name: "another module", data: manaModule(t, "name=e1000|depends="+magic), wantErr: "it is the module e1000, not mana"},
		{name: "needs more", data: manaModule(t, "name=mana|depends=auxiliary"+magic), wantErr: "needs the module auxiliary"},
		{name: "built in", module: "nvme", data: manaModule(t, "name=nvme|depends="+magic), wantErr: "has nvme built in"},
		{name: "not there", module: "e1000", data: manaModule(t, "name=e1000|depends="+magic), wantErr: "has no module e1000 to replace"},
		{name: "cut short", data: good[:len(good)-100], wantErr: "not a whole module"},
		{name: "empty", data: nil, wantErr: "not a whole module: not an ELF object"},
		{name: "text", data: []byte("not a module at all, whatever its name says, and long enough for a header"), wantErr: "not a whole module: not an ELF object"},
		{name: "no modinfo", data: testObject(t), wantErr: "no .modinfo"},
		{name: "damaged compression", file: "m.ko.xz", data: compressed(t, ".xz", good)[:60], wantErr: "not a whole module"},
		{name: "too large for a guest", data: manaModule(t, "name=mana|depends="+magic, large), wantErr: "33 MiB without debug information, at most 32 are sent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			files, module, file := tt.files, tt.module, tt.file
			if files == nil {
				files = tree
			}
			if module == "" {
				module = "mana"
			}
			if file == "" {
				file = "m.ko"
			}
			path := filepath.Join(t.TempDir(), file)
			if err := os.WriteFile(path, tt.data, 0o644); err != nil {
				t.Fatal(err)
			}
			r, err := new(Cache).Replacement(t.Context(), Kernel{Release: "6.18.1-lab", ModulesDir: writeTree(t, files)}, module, path)
			checkError(t, err, tt.wantErr)
			if tt.wantErr != "" {
				var bad *BadModuleError
				if !errors.As(err, &bad) || !strings.Contains(err.Error(), path) || r.Data != nil {
					t.Errorf("%v: want a *BadModuleError that names the file, and no module", err)
				}
				return
			}
			sum := sha256.Sum256(tt.data)
			if r.Name != module || r.SHA256 != hex.EncodeToString(sum[:]) || !bytes.HasPrefix(r.Data, []byte(elf.ELFMAG)) || len(r.Data) > 1<<15 {
				t.Errorf("module %s, hash %s, %d bytes", r.Name, r.SHA256, len(r.Data))
			}
		})
	}
	path := filepath.Join(t.TempDir(), "m.ko")
	_, err := new(Cache).Replacement(t.Context(), Kernel{}, "mana", path)
	checkError(t, err, "no such file")
	if err := os.WriteFile(path, good, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = new(Cache).Replacement(t.Context(), Kernel{Release: "6.18.1-lab"}, "mana", path)
	checkError(t, err, "came without modules")
}
