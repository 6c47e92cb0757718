package patch

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// The published mails are not in the repository. IRQLAB_MAILS names a folder with them, IRQLAB_TREES one with kernel
// sources as 6.18.15 and 7.3.4, of which drivers/net/ethernet/microsoft/mana, include/linux/irq.h, kernel/irq and
// arch/x86/kernel/apic are enough.
func mails(t *testing.T, name string) Series {
	t.Helper()
	dir := os.Getenv("IRQLAB_MAILS")
	if dir == "" {
		t.Skip("IRQLAB_MAILS names no folder with the published mails")
	}
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	s, err := Read(Input{name, f})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func kernelTree(t *testing.T, version string) fs.FS {
	t.Helper()
	dir := os.Getenv("IRQLAB_TREES")
	if dir == "" {
		t.Skip("IRQLAB_TREES names no folder with kernel sources")
	}
	return os.DirFS(filepath.Join(dir, version))
}

func TestPublishedMailsRead(t *testing.T) {
	for _, tt := range []struct {
		name string
		want []string // version, number, title, files, hunks
	}{
		{"mana-linear-v5.txt", []string{`v5 0/0 "net: mana: Optimize irq affinity for low vcpu configs" [gdma_main.c 6]`}},
		{"mana-linear-v2.txt", []string{`v2 0/0 "net: mana: Optimize irq affinity for low vcpu configs" [gdma_main.c 3]`}},
		{"genirq-managed-numa-rfc.txt", []string{
			`v1 1/2 "genirq: honor device NUMA node when allocating descs" [irqdesc.c 1]`,
			`v1 2/2 "genirq/matrix: take NUMA into account for managed IRQs" [irq.h 1 vector.c 2 matrix.c 4]`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, p := range mails(t, tt.name) {
				var files []any
				for _, f := range p.Files {
					files = append(files, filepath.Base(f.New), len(f.Hunks))
				}
				got = append(got, fmt.Sprintf("v%d %d/%d %q %v", p.Version, p.Number, p.Total, p.Title, files))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

// What each hunk of the published patches does on two kernels, as patch -F3 has it.
func TestPublishedMailsApply(t *testing.T) {
	for _, tt := range []struct {
		mail, tree string
		reverse    bool
		want       string // per hunk: = exact, + offset, a digit for fuzz, or the reason
	}{
		{"mana-linear-v5.txt", "6.18.15", false, "+ + 3 1 + +"},
		{"mana-linear-v5.txt", "7.3.4", false, "already-applied already-applied already-applied already-applied already-applied already-applied"},
		{"mana-linear-v5.txt", "7.3.4", true, "+ + + + + +"},
		{"mana-linear-v5.txt", "6.18.15", true, "not-applied not-applied different different not-applied not-applied"},
		{"mana-linear-v2.txt", "6.18.15", false, "+ 1 +"},
		{"mana-linear-v2.txt", "7.3.4", false, "already-applied other-version other-version"},
		{"genirq-managed-numa-rfc.txt", "6.18.15", false, "2 + + + + + different +"},
		{"genirq-managed-numa-rfc.txt", "7.3.4", false, "2 + + + + + different +"},
	} {
		t.Run(fmt.Sprintf("%s/%s/%v", tt.mail, tt.tree, tt.reverse), func(t *testing.T) {
			s := mails(t, tt.mail)
			if tt.reverse {
				s = s.Reverse()
			}
			r, err := Apply(kernelTree(t, tt.tree), s, Options{MaxFuzz: DefaultFuzz})
			var failed *ApplyError
			if err != nil && !errors.As(err, &failed) {
				t.Fatal(err)
			}
			if got := fits(r); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if err != nil {
				return
			}
			// GNU patch comes to the same bytes.
			if want, ok := gnuPatch(t, kernelTree(t, tt.tree), s); !ok {
				t.Error("GNU patch does not apply it")
			} else if got := contents(r); !maps.Equal(got, want) {
				t.Error("GNU patch has another result")
			}
		})
	}
}
