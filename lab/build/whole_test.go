package build

import (
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"irqlab/images"
	"irqlab/lab/build/patch"
)

func TestWholeKernel(t *testing.T) {
	if os.Getenv("IRQLAB_WHOLE") == "" {
		t.Skip("IRQLAB_WHOLE is not set")
	}
	spec := os.Getenv("IRQLAB_BUILD_KERNEL")
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
		if time.Since(last) > 5*time.Second || done == 0 {
			last = time.Now()
			t.Log(last.Format(time.TimeOnly), what, done, total)
		}
	})
	began := time.Now()
	tree, err := b.Tree(t.Context(), k, KernelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f s: %+v", time.Since(began).Seconds(), *tree)
	began = time.Now()
	m, err := b.Kernel(t.Context(), tree, nil)
	t.Logf("%.1f s: %+v %v", time.Since(began).Seconds(), m, err)
	if err != nil {
		t.Fatal(err)
	}
	name := os.Getenv("X_PATCH")
	if name == "" {
		return
	}
	_ = patch.Options{}
	data, err := fs.ReadFile(tree.FS(), name)
	if err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	m, err = b.Kernel(t.Context(), tree, map[string][]byte{name: []byte(strings.TrimSpace(string(data)) + "\n/* " + began.String() + "*/\n")})
	t.Logf("%.1f s: %+v %v", time.Since(began).Seconds(), m, err)
}
