package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// tree is a set of files of many sizes, with names that the two ways of sorting disagree about.
func tree() map[string]string {
	files := map[string]string{}
	for _, d := range []string{"a", "drivers/net", "drivers/net-old", "drivers/net/mana", "drivers/net/mana-x", "drivers/net/manab", "include/net", "include/net/mana", "z"} {
		for i := range 12 {
			files[fmt.Sprintf("%s/f%02d.c", d, i)] = strings.Repeat(fmt.Sprintf("%s %d\n", d, i), 10+i*i*20)
		}
	}
	files["drivers/net.txt"] = "a file beside the directory\n"
	files[strings.Repeat("long/", 30)+strings.Repeat("n", 120)] = "a path that takes an extended header\n"
	files["drivers/net/mana/empty"] = ""
	return files
}

// pack makes a .tar.xz of blocks of the given size, sorted as git archive does or as tar --sort=name does.
func pack(t testing.TB, files map[string]string, block int, byName bool) []byte {
	t.Helper()
	names := make([]string, 0, len(files))
	for n := range files {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int {
		if byName {
			return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
		}
		return strings.Compare(a, b)
	})
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, n := range names {
		if err := w.WriteHeader(&tar.Header{Name: "linux-1/" + n, Mode: 0o644, Size: int64(len(files[n])), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[n]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return compress(t, plain.Bytes(), block)
}

func compress(t testing.TB, plain []byte, block int) []byte {
	t.Helper()
	cmd := exec.Command("xz", "-0", "-T1", fmt.Sprintf("--block-size=%d", block), "-c")
	cmd.Stdin = bytes.NewReader(plain)
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("no xz on this machine to make archives with")
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func open(t testing.TB, data []byte) *Archive {
	t.Helper()
	a, err := Open(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func collect(got map[string]string) func(string, *tar.Header, io.Reader) error {
	return func(name string, h *tar.Header, r io.Reader) error {
		data, err := io.ReadAll(r)
		got[name] = string(data)
		return err
	}
}

func TestArchive(t *testing.T) {
	files := tree()
	for _, block := range []int{3000, 20_000, 1 << 20} {
		for _, byName := range []bool{false, true} {
			a := open(t, pack(t, files, block, byName))
			all := map[string]string{}
			if err := Walk(a.from(t.Context(), 0), collect(all)); err != nil || !reflect.DeepEqual(all, files) {
				t.Errorf("blocks of %d, by name %v: %d files of %d, %v", block, byName, len(all), len(files), err)
			}
			for _, dir := range []string{"a", "drivers/net", "drivers/net/mana", "drivers/net-old", "include/net/mana", "z", "none", "drivers/net/m"} {
				want, got, read := map[string]string{}, map[string]string{}, map[string]string{}
				for n, c := range files {
					if strings.HasPrefix(n, dir+"/") {
						want[n] = c
					}
				}
				if err := a.Directory(t.Context(), dir, collect(got)); err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("blocks of %d, by name %v, %s: %d files of %d, %v", block, byName, dir, len(got), len(want), err)
				}
				// By itself, without the rescue by reading all.
				if err := a.directory(t.Context(), dir, collect(read)); err != nil {
					t.Error(err)
				}
				for n := range want {
					if read[n] != want[n] {
						t.Errorf("blocks of %d, by name %v, %s: %s was not found in its place", block, byName, dir, n)
					}
				}
				if block == 3000 && dir == "drivers/net/mana" && len(read) > len(files)/2 {
					t.Errorf("%d files of %d were read to find %s", len(read), len(files), dir)
				}
			}
		}
	}
}

// An archive that is not sorted is read as a whole.
func TestUnsorted(t *testing.T) {
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, n := range []string{"z/1", "m/1", "a/1", "m/2", "b/1"} {
		if err := w.WriteHeader(&tar.Header{Name: "x/" + n, Size: 2000, Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 2000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	if err := open(t, compress(t, plain.Bytes(), 1024)).Directory(t.Context(), "a", collect(got)); err != nil || len(got) != 1 {
		t.Errorf("%d files, %v", len(got), err)
	}
}

func TestDamage(t *testing.T) {
	good := pack(t, tree(), 20_000, false)
	for _, tt := range []struct {
		name   string
		change func([]byte) []byte
	}{
		{"empty", func([]byte) []byte { return nil }},
		{"no header", func(b []byte) []byte { b[0]++; return b }},
		{"flags", func(b []byte) []byte { b[7]++; return b }},
		{"cut", func(b []byte) []byte { return b[:len(b)-4] }},
		{"index", func(b []byte) []byte { b[len(b)-20]++; return b }},
		{"two streams", func(b []byte) []byte { return append(b, b...) }},
		{"a block", func(b []byte) []byte { b[len(b)/2]++; return b }},
		{"the last block", func(b []byte) []byte { b[len(b)-300]++; return b }},
	} {
		data := tt.change(bytes.Clone(good))
		a, err := Open(bytes.NewReader(data), int64(len(data)))
		if err == nil {
			err = Walk(a.from(t.Context(), 0), func(string, *tar.Header, io.Reader) error { return nil })
		}
		if err == nil {
			t.Errorf("%s: no error", tt.name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := open(t, good).Directory(ctx, "a", func(string, *tar.Header, io.Reader) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that had ended gave %v", err)
	}
}

func FuzzArchive(f *testing.F) {
	f.Add(pack(f, map[string]string{"a/b": strings.Repeat("x", 5000), "c": ""}, 1024, true))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := Open(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		if last := a.blocks[len(a.blocks)-1]; last.from+last.len > 1<<20 {
			return // a bomb is no kernel's
		}
		_ = a.Directory(t.Context(), "a", func(string, *tar.Header, io.Reader) error { return nil })
	})
}

// BenchmarkDirectory finds a module's directory in a kernel's source: IRQLAB_BENCH_ARCHIVE names the .tar.xz.
func BenchmarkDirectory(b *testing.B) {
	file := os.Getenv("IRQLAB_BENCH_ARCHIVE")
	if file == "" {
		b.Skip("IRQLAB_BENCH_ARCHIVE is not set")
	}
	r, err := os.Open(filepath.Clean(file))
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	st, err := r.Stat()
	if err != nil {
		b.Fatal(err)
	}
	for _, whole := range []bool{false, true} {
		b.Run(fmt.Sprintf("whole=%v", whole), func(b *testing.B) {
			for b.Loop() {
				a, err := Open(r, st.Size())
				if err != nil {
					b.Fatal(err)
				}
				visit := func(string, *tar.Header, io.Reader) error { return nil }
				if whole {
					err = Walk(a.from(b.Context(), 0), visit)
				} else {
					err = a.Directory(b.Context(), "drivers/net/ethernet/microsoft/mana", visit)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
