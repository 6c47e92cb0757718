package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/u-root/u-root/pkg/cpio"
	"golang.org/x/crypto/ssh"
)

// maxInitramfs is what the archive may weigh, in bytes.
const maxInitramfs = 16 << 20

func testCache(t testing.TB) *Cache {
	t.Helper()
	c, err := OpenCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestToolsMatch(t *testing.T) {
	t.Parallel()
	f, err := parser.ParseFile(token.NewFileSet(), "uroot_tools.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var imported, want []string
	for _, i := range f.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		imported = append(imported, path)
	}
	for _, c := range urootCommands {
		want = append(want, urootCmds+c)
	}
	if diff := cmp.Diff(want, imported); diff != "" {
		t.Errorf("urootCommands and uroot_tools.go differ: -list +imports\n%s", diff)
	}
	names, _ := guestCommands()
	if sorted := slices.Compact(slices.Sorted(slices.Values(names))); len(sorted) != len(names) {
		t.Errorf("a command is in the guest twice: %v", names)
	}
	for alias, command := range busyboxAliases {
		if slices.Contains(names, alias) {
			t.Errorf("alias %s hides a command", alias)
		}
		if !slices.Contains(names, command) {
			t.Errorf("alias %s names %s, which is no command", alias, command)
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := testCache(t)
	first, err := c.keys(ctx)
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.keys(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.hostPEM, second.hostPEM) || !bytes.Equal(first.clientLine, second.clientLine) || first.hostLine != second.hostLine {
		t.Error("the keys of one cache changed")
	}
	st, err := os.Stat(first.clientPath)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o600 {
		t.Errorf("client key has mode %v", st.Mode().Perm())
	}
	host, err := ssh.ParsePrivateKey(first.hostPEM)
	if err != nil {
		t.Fatal(err)
	}
	pub, _, _, _, err := ssh.ParseAuthorizedKey([]byte(first.hostLine))
	if err != nil || !bytes.Equal(pub.Marshal(), host.PublicKey().Marshal()) || pub.Type() != ssh.KeyAlgoED25519 {
		t.Errorf("host line %q is not the host key's public half (%v)", first.hostLine, err)
	}
	if bytes.Contains(first.clientLine, []byte(first.hostLine)) {
		t.Error("client and host share a key")
	}

	if err := os.WriteFile(first.clientPath, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	third, err := c.keys(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(third.clientLine, first.clientLine) {
		t.Error("damaged keys were not made anew")
	}
	other, err := testCache(t).keys(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if other.hostLine == third.hostLine {
		t.Error("two caches share a host key")
	}
}

func testRecords(t testing.TB) []cpio.Record {
	t.Helper()
	modules := []module{{Name: "vfio", Data: []byte("one")}, {Name: "vfio_pci", Depends: []string{"vfio"}, Data: []byte("two")}}
	records, err := initramfsRecords("1.2.3", []byte("busybox"), modules, &keys{hostPEM: []byte("host"), clientLine: []byte("client")})
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func TestInitramfsRecords(t *testing.T) {
	t.Parallel()
	var archive, again bytes.Buffer
	for _, w := range []io.Writer{&archive, &again} {
		if err := writeInitramfs(w, testRecords(t)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archive.Bytes(), again.Bytes()) {
		t.Error("the same parts gave two archives")
	}
	read, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(archive.Bytes())))
	if err != nil {
		t.Fatal(err)
	}
	contents := map[string]string{}
	modes := map[string]uint64{}
	last := ""
	for _, r := range read {
		if r.Name <= last {
			t.Errorf("%s after %s", r.Name, last)
		}
		last = r.Name
		if dir := filepath.Dir(r.Name); dir != "." && modes[dir]&cpio.S_IFMT != cpio.S_IFDIR {
			t.Errorf("%s comes before its directory", r.Name)
		}
		modes[r.Name] = r.Mode
		if r.MTime != 0 || r.UID != 0 || r.GID != 0 || r.NLink != 1 {
			t.Errorf("%s: mtime %d, uid %d, gid %d, links %d", r.Name, r.MTime, r.UID, r.GID, r.NLink)
		}
		data, err := io.ReadAll(io.NewSectionReader(r, 0, int64(r.FileSize)))
		if err != nil {
			t.Fatal(err)
		}
		contents[r.Name] = string(data)
	}
	for name, want := range map[string]struct {
		mode uint64
		data string
	}{
		"init":                                   {cpio.S_IFLNK | 0o777, "bin/irqlab-agent"},
		"bin/irqlab-agent":                       {cpio.S_IFLNK | 0o777, "bb"},
		"bin/sh":                                 {cpio.S_IFLNK | 0o777, "bb"},
		"bin/ls":                                 {cpio.S_IFLNK | 0o777, "bb"},
		"bin/bb":                                 {cpio.S_IFREG | 0o755, "busybox"},
		"dev/console":                            {cpio.S_IFCHR | 0o600, ""},
		"proc":                                   {cpio.S_IFDIR | 0o755, ""},
		"tmp":                                    {cpio.S_IFDIR | 0o1777, ""},
		"etc/irqlab/host_key":                    {cpio.S_IFREG | 0o600, "host"},
		"etc/irqlab/authorized_keys":             {cpio.S_IFREG | 0o600, "client"},
		"lib/modules/1.2.3/irqlab":               {cpio.S_IFDIR | 0o755, ""},
		"etc/passwd":                             {cpio.S_IFREG | 0o644, "root:x:0:0:root:/root:/bin/sh\n"},
		"lib/modules/1.2.3/irqlab/vfio_pci.ko":   {cpio.S_IFREG | 0o644, "two"},
		"lib/modules/1.2.3/irqlab/modules.order": {cpio.S_IFREG | 0o644, "vfio vfio.ko\nvfio_pci vfio_pci.ko vfio\n"},
	} {
		if modes[name] != want.mode || contents[name] != want.data {
			t.Errorf("%s: mode %o, %q; want %o, %q", name, modes[name], contents[name], want.mode, want.data)
		}
	}
}

func TestNeedDriver(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		i       Initramfs
		driver  string
		missing string
	}{
		{"as modules", Initramfs{modulesDir: "d", Modules: []string{"vfio", "vfio_pci", "vfio_iommu_type1"}}, "vfio", ""},
		{"built in", Initramfs{modulesDir: "d", Modules: []string{"vfio_pci"}, Builtin: []string{"vfio_iommu_type1"}}, "vfio", ""},
		{"no vfio", Initramfs{modulesDir: "d", release: "1.2.3", Modules: []string{"mana"}}, "vfio", "vfio-pci"},
		{"half", Initramfs{modulesDir: "d", release: "1.2.3", Modules: []string{"vfio_pci"}}, "vfio", "vfio-iommu-type1"},
		{"no mana", Initramfs{modulesDir: "d", release: "1.2.3", Modules: []string{"vfio_pci"}}, "mana", "mana"},
		{"modules unknown", Initramfs{}, "vfio", ""},
	} {
		err := tt.i.NeedDriver(tt.driver)
		var missing *MissingModuleError
		switch {
		case tt.missing == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.missing != "" && (!errors.As(err, &missing) || missing.Module != tt.missing):
			t.Errorf("%s: error %v, want a *MissingModuleError for %s", tt.name, err, tt.missing)
		case tt.missing != "" && !strings.Contains(err.Error(), "kernel 1.2.3 has no "+tt.missing+" module: driver "+tt.driver+" cannot work with it"):
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestInitramfsBadRelease(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"", "..", "../../etc", "a/b", "a b", "a\nb"} {
		if _, err := testCache(t).Initramfs(context.Background(), Kernel{Release: release}, nil); err == nil || !strings.Contains(err.Error(), "not a kernel release") {
			t.Errorf("release %q: %v", release, err)
		}
	}
}

// copySource copies what the guest's binary is built from to another place.
func copySource(t testing.TB) string {
	t.Helper()
	src, err := compiledIn()
	if err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(t.TempDir(), "another place", "irqlab")
	if err := os.CopyFS(filepath.Join(dst, "guestagent"), os.DirFS(filepath.Join(src, "guestagent"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dst, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dst
}

// The whole build, twice and from two places: the same bytes, within the size, and commands that run.
func TestInitramfsBuild(t *testing.T) {
	ctx := context.Background()
	copied := copySource(t)
	dir := writeTree(t, map[string]string{"kernel/mana.ko.xz": string(compressed(t, ".xz", testModule(t, "")))})
	kernel := Kernel{Spec: "test", Release: "1.2.3", ModulesDir: dir}
	c := testCache(t)

	var steps []string
	progress := func(what string, done, total int64) {
		if len(steps) == 0 || steps[len(steps)-1] != what {
			steps = append(steps, what)
		}
	}
	first, err := c.Initramfs(ctx, kernel, progress)
	if err != nil {
		t.Fatal(err)
	}
	if len(steps) < 2 {
		t.Errorf("progress reported only %q", steps)
	}
	if diff := cmp.Diff([]string{"mana"}, first.Modules); diff != "" {
		t.Errorf("modules: -want +got\n%s", diff)
	}
	st, err := os.Stat(first.Path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() > maxInitramfs {
		t.Errorf("%d bytes, more than %d", st.Size(), maxInitramfs)
	}
	t.Logf("initramfs: %d bytes", st.Size())

	t.Run("cached", func(t *testing.T) {
		second, err := c.Initramfs(ctx, kernel, func(what string, _, _ int64) { t.Errorf("built again: %s", what) })
		if err != nil {
			t.Fatal(err)
		}
		if second.Path != first.Path {
			t.Errorf("%s, then %s", first.Path, second.Path)
		}
	})

	t.Run("deterministic", func(t *testing.T) {
		t.Setenv("IRQLAB_SOURCE", copied)
		t.Setenv("GOFLAGS", "-tags=irqlab_test_noise") // the caller's settings must not reach the build
		other := testCache(t)
		if err := os.CopyFS(filepath.Join(other.Dir(), "keys"), os.DirFS(filepath.Join(c.Dir(), "keys"))); err != nil {
			t.Fatal(err)
		}
		if err := filepath.WalkDir(filepath.Join(other.Dir(), "keys"), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			return os.Chmod(path, 0o600)
		}); err != nil {
			t.Fatal(err)
		}
		second, err := other.Initramfs(ctx, kernel, nil)
		if err != nil {
			t.Fatal(err)
		}
		a, err := os.ReadFile(first.Path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(second.Path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("two builds from the same sources differ (%d and %d bytes)", len(a), len(b))
		}
		if bytes.Contains(b, []byte("another place")) {
			t.Error("a path of the build machine is in the archive")
		}
	})

	t.Run("commands", func(t *testing.T) {
		bb, err := c.busybox(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		bin := t.TempDir()
		for _, name := range []string{"sh", "uname", "seq", "wc", "init"} {
			if err := os.Symlink(bb, filepath.Join(bin, name)); err != nil {
				t.Fatal(err)
			}
		}
		for _, tt := range []struct {
			args []string
			want string
			code int
		}{
			{[]string{bb, "echo", "one binary"}, "one binary\n", 0},
			{[]string{filepath.Join(bin, "uname")}, "Linux\n", 0},
			{[]string{filepath.Join(bin, "sh"), "-c", "seq 3 | wc -l; echo $((2+3))"}, "3\n5\n", 0},
			{[]string{bb, "false"}, "", 1},
			{[]string{bb, "no-such-command"}, `bb: no command "no-such-command"; there are: basename cat`, 127},
		} {
			cmd := exec.Command(tt.args[0], tt.args[1:]...)
			cmd.Env = []string{"PATH=" + bin}
			out, err := cmd.CombinedOutput()
			got := strings.Join(strings.Fields(string(out)), " ")
			if want := strings.Join(strings.Fields(tt.want), " "); !strings.HasPrefix(got, want) || (want == "" && got != "") {
				t.Errorf("%q printed %q, want %q", tt.args[1:], got, want)
			}
			if code := cmd.ProcessState.ExitCode(); code != tt.code {
				t.Errorf("%q: exit status %d, want %d (%v)", tt.args[1:], code, tt.code, err)
			}
		}
	})
}

// A build that is interrupted at any of its steps leaves nothing in the cache.
func TestInitramfsCancelled(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"loading", "compiling"} {
		t.Run(step, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			c := testCache(t)
			reason := fmt.Errorf("stopped while %s", step)
			_, err := c.Initramfs(ctx, Kernel{Release: "1.2.3"}, func(what string, _, _ int64) {
				if strings.HasPrefix(what, step) {
					cancel(reason)
				}
			})
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("error %v, want %v", err, reason)
			}
			for _, kind := range []string{"busybox", "initramfs", tmpDir} {
				left, err := os.ReadDir(filepath.Join(c.Dir(), kind))
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				for _, e := range left {
					t.Errorf("%s/%s is left", kind, e.Name())
				}
			}
		})
	}
}

func TestNoGo(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := testCache(t).Initramfs(context.Background(), Kernel{Release: "1.2.3"}, nil)
	var noGo *NoGoError
	if !errors.As(err, &noGo) || !strings.Contains(err.Error(), "put go in PATH") {
		t.Errorf("error %v, want a *NoGoError that names the way out", err)
	}
}

func TestBadSource(t *testing.T) {
	other := writeTree(t, map[string]string{"go.mod": "module somebody.else/thing\n"})
	for dir, want := range map[string]string{other: `holds module "somebody.else/thing"`, filepath.Join(other, "none"): "no such file", other + "/go.mod": "not a directory"} {
		t.Setenv("IRQLAB_SOURCE", dir)
		_, err := testCache(t).Initramfs(context.Background(), Kernel{Release: "1.2.3"}, nil)
		var noSource *NoSourceError
		if !errors.As(err, &noSource) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "set IRQLAB_SOURCE") {
			t.Errorf("IRQLAB_SOURCE=%s: error %v, want a *NoSourceError with %q", dir, err, want)
		}
	}
}

// An agent that does not compile is an error that shows the compiler's words.
func TestBrokenAgent(t *testing.T) {
	src := copySource(t)
	if err := os.WriteFile(filepath.Join(src, "guestagent", "broken.go"), []byte("package main\n\nvar x int = \"no number\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("IRQLAB_SOURCE", src)
	_, err := testCache(t).Initramfs(context.Background(), Kernel{Release: "1.2.3"}, nil)
	if err == nil || !strings.Contains(err.Error(), "broken.go:3") || !strings.Contains(err.Error(), "irqlab/guestagent") {
		t.Errorf("error %v, want one that names the package and the line", err)
	}
}

func TestBusyboxKey(t *testing.T) {
	t.Parallel()
	src := copySource(t)
	key := func() string {
		t.Helper()
		k, err := busyboxKey(src, "go1.26")
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	write := func(name, data string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(src, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(src, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := key()
	write("guestagent/x_test.go", "package main")
	write("guestagent/testdata/x", "x")
	write("images/x.go", "package images")
	if key() != before {
		t.Error("a file that is not built changed the key")
	}
	if other, err := busyboxKey(src, "go1.27"); err != nil || other == before {
		t.Errorf("another Go version has the same key (%v)", err)
	}
	for _, name := range []string{"guestagent/x.go", "guestagent/new/asset", "go.sum"} {
		write(name, "package main // changed")
		if now := key(); now == before {
			t.Errorf("%s changed, the key did not", name)
		} else {
			before = now
		}
	}
}

// What every run pays: everything is there and only has to be found.
func BenchmarkInitramfsCached(b *testing.B) {
	ctx := context.Background()
	dir := writeTree(b, map[string]string{"kernel/mana.ko.xz": string(compressed(b, ".xz", testModule(b, "")))})
	c := testCache(b)
	kernel := Kernel{Release: "1.2.3", ModulesDir: dir}
	if _, err := c.Initramfs(ctx, kernel, nil); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Initramfs(ctx, kernel, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWriteInitramfs(b *testing.B) {
	records := testRecords(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := writeInitramfs(io.Discard, records); err != nil {
			b.Fatal(err)
		}
	}
}
