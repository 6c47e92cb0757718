package module

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
)

const manifest = `# name file dependencies
irqbypass irqbypass.ko
vfio vfio.ko
vfio_iommu_type1 vfio_iommu_type1.ko vfio
vfio_pci_core vfio-pci-core.ko vfio,irqbypass
vfio-pci vfio-pci.ko vfio-pci-core,vfio
mana mana.ko
`

func names(es []Entry) string {
	var out []string
	for _, e := range es {
		out = append(out, e.Name)
	}
	return strings.Join(out, " ")
}

func TestClosure(t *testing.T) {
	m, err := ParseManifest([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"vfio-pci":         "irqbypass vfio vfio_pci_core vfio_pci",
		"vfio_pci":         "irqbypass vfio vfio_pci_core vfio_pci",
		"vfio_iommu_type1": "vfio vfio_iommu_type1",
		"mana":             "mana",
		"nothing":          "",
	} {
		got, ok := m.Closure(name)
		if names(got) != want || ok != (want != "") {
			t.Errorf("Closure(%s) = %q, %v; want %q", name, names(got), ok, want)
		}
	}
}

func TestParseManifestErrors(t *testing.T) {
	for in, want := range map[string]string{
		"a\n":                 "1 fields",
		"a b c d\n":           "4 fields",
		"a ../a.ko\n":         "not a plain file name",
		"a /etc/passwd\n":     "not a plain file name",
		"a ..\n":              "not a plain file name",
		"a a.ko\na a.ko\n":    "listed twice",
		"a a.ko b\nb b.ko\n":  "not listed before",
		"# x\n\na a.ko b,c\n": "modules.order:3",
	} {
		if _, err := ParseManifest([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", in, err, want)
		}
	}
}

func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(manifest))
	f.Add([]byte("a a.ko ,,\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseManifest(b)
		if err != nil {
			return
		}
		for _, e := range m {
			if strings.ContainsRune(e.File, '/') || e.File == ".." {
				t.Fatalf("file %q leaves the directory", e.File)
			}
			c, ok := m.Closure(e.Name)
			if !ok || c[len(c)-1].Name != e.Name {
				t.Fatalf("Closure(%s) = %v", e.Name, c)
			}
			for i, x := range c { // all dependencies come before
				for _, d := range x.Deps {
					if !slices.ContainsFunc(c[:i], func(y Entry) bool { return y.Name == d }) {
						t.Fatalf("Closure(%s): %s before its dependency %s", e.Name, x.Name, d)
					}
				}
			}
		}
	})
}

func TestLoad(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"sys/module/vfio", "lib"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "lib/modules.order"), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	l := Loader{Root: kfile.Root(root), Dir: filepath.Join(root, "lib")}
	if done, err := l.Load("vfio", ""); err != nil || done != nil {
		t.Errorf("loaded already: %v, %v", done, err)
	}
	for name, code := range map[string]string{
		"mana_ib": agentapi.CodeUnsupported,
		"mana-ib": agentapi.CodeUnsupported,
		"ext4":    agentapi.CodeNotFound,
		"mana":    agentapi.CodeNotFound, // listed, but its file is gone
	} {
		if _, err := l.Load(name, ""); err == nil || fault.Reply(err).Code != code {
			t.Errorf("Load(%s): %v, want code %s", name, err, code)
		}
	}
	if err := l.Unload("ext4"); err == nil || fault.Reply(err).Code != agentapi.CodeNotFound {
		t.Errorf("Unload: %v", err)
	}
}

func TestCmdlineParams(t *testing.T) {
	got := CmdlineParams("console=ttyS0 quiet vfio_iommu_type1.allow_unsafe_interrupts=1 mana.dyndbg=+p vfio-pci.a vfio_pci.b=c .x=1 y.=2")
	want := map[string]string{"vfio_iommu_type1": "allow_unsafe_interrupts=1", "mana": "dyndbg=+p", "vfio_pci": "a b=c"}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %q, want %q", k, got[k], v)
		}
	}
}
