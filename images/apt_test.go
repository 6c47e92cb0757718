package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// testSuites are the suites of the tests' own archive.
var testSuites = []string{"trixie", "trixie-backports"}

// member is a file of a test's .deb.
type member struct {
	name string // as tar has it
	data []byte
	link string // symbolic link's target
}

// makeDeb writes a .deb the way dpkg-deb does: an ar archive of debian-binary, control.tar.gz and data.tar.gz.
func makeDeb(t testing.TB, control string, files ...member) []byte {
	t.Helper()
	pack := func(files ...member) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		w := tar.NewWriter(z)
		for _, f := range files {
			h := &tar.Header{Name: f.name, Typeflag: tar.TypeReg, Size: int64(len(f.data)), Mode: 0o644}
			if f.link != "" {
				h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
			}
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(f.data); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	var out bytes.Buffer
	out.WriteString("!<arch>\n")
	add := func(name string, data []byte) {
		fmt.Fprintf(&out, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", name, 0, 0, 0, "100644", len(data))
		out.Write(data)
		if len(data)%2 == 1 {
			out.WriteByte('\n')
		}
	}
	add("debian-binary", []byte("2.0\n"))
	add("control.tar.gz", pack(member{name: "./control", data: []byte(control)}))
	add("data.tar.gz", pack(files...))
	return out.Bytes()
}

func controlOf(name, version, depends string) string {
	s := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: Nobody <nobody@example.org>\nInstalled-Size: 10\nDescription: test\n", name, version)
	if depends != "" {
		s += "Depends: " + depends + "\n"
	}
	return s
}

// archive is a Debian archive served to the tests' apt-get. It is unsigned: only options internal to this package make apt accept that.
type archive struct {
	*httptest.Server
	mu     sync.Mutex
	files  map[string][]byte
	counts map[string]int
	times  map[string]time.Time // of the last change: apt asks whether a file is newer
	clock  time.Time
	alter  func(path string, w http.ResponseWriter, data []byte) bool // answers instead if it returns true
}

func newArchive(t testing.TB) *archive {
	t.Helper()
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Fatalf("these tests run the real apt-get: %v", err)
	}
	a := &archive{files: map[string][]byte{}, counts: map[string]int{}, times: map[string]time.Time{}, clock: time.Unix(1700000000, 0)}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.counts[r.URL.Path]++
		data, ok := a.files[r.URL.Path]
		alter, changed := a.alter, a.times[r.URL.Path]
		a.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		if alter != nil && alter(r.URL.Path, w, data) {
			return
		}
		http.ServeContent(w, r, "", changed, bytes.NewReader(data))
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *archive) requests(suffix string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	sum := 0
	for path, n := range a.counts {
		if strings.HasSuffix(path, suffix) {
			sum += n
		}
	}
	return sum
}

func (a *archive) setAlter(f func(path string, w http.ResponseWriter, data []byte) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.alter = f
}

type debSpec struct {
	name, version, depends string
	files                  []member
}

// publish replaces a suite.
func (a *archive) publish(t testing.TB, suite string, debs ...debSpec) {
	t.Helper()
	var packages bytes.Buffer
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range debs {
		data := makeDeb(t, controlOf(d.name, d.version, d.depends), d.files...)
		path := fmt.Sprintf("pool/%s_%s_amd64.deb", d.name, d.version)
		a.files["/"+path] = data
		fmt.Fprintf(&packages, "%sFilename: %s\nSize: %d\nSHA256: %x\n\n", controlOf(d.name, d.version, d.depends), path, len(data), sha256.Sum256(data))
	}
	dist := "/dists/" + suite
	a.clock = a.clock.Add(time.Hour)
	a.times[dist+"/main/binary-amd64/Packages"], a.times[dist+"/Release"] = a.clock, a.clock
	a.files[dist+"/main/binary-amd64/Packages"] = packages.Bytes()
	a.files[dist+"/Release"] = fmt.Appendf(nil, "Origin: Debian\nLabel: Debian\nSuite: %s\nCodename: %s\nArchitectures: amd64\nComponents: main\nDate: %s\nSHA256:\n %x %d main/binary-amd64/Packages\n",
		suite, suite, time.Now().UTC().Format(time.RFC1123), sha256.Sum256(packages.Bytes()), packages.Len())
}

// testKernel is a minimal kernel 9.1.R in the split layout.
func testKernel(t testing.TB, patch string) []debSpec {
	t.Helper()
	release := "9.1." + patch + "-cloud-amd64"
	image := makeBzImage(t, release, "gzip", makeVmlinux(t, release, true))
	version := "9.1." + patch + "-1"
	return []debSpec{
		{name: "linux-binary-" + release, version: version, files: []member{{name: "./usr/lib/modules/" + release + "/vmlinuz", data: image}}},
		{name: "linux-modules-" + release, version: version, files: []member{{name: "./usr/lib/modules/" + release + "/kernel/x.ko", data: []byte("module")}}},
		{name: "linux-image-" + release, version: version, depends: "linux-binary-" + release + ", linux-modules-" + release},
	}
}

func archiveCache(t testing.TB, a *archive) *Cache {
	t.Helper()
	c, err := OpenCache(filepath.Join(t.TempDir(), "cache"))
	if err != nil {
		t.Fatal(err)
	}
	c.apt = aptOptions{mirror: a.URL, suites: testSuites, trusted: true}
	return c
}

// testMirror is an archive with these packages in trixie-backports and an empty trixie, and an empty cache that fetches from it.
func testMirror(t testing.TB, debs ...debSpec) (*archive, *Cache) {
	t.Helper()
	a := newArchive(t)
	a.publish(t, "trixie")
	a.publish(t, "trixie-backports", debs...)
	return a, archiveCache(t, a)
}

// warnings collects what a cache warns of.
func warnings(c *Cache) func() string {
	var mu sync.Mutex
	var all []string
	c.Warn = func(s string) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, s)
	}
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(all, "\n")
	}
}

func TestFetchKernel(t *testing.T) {
	t.Parallel()
	a, c := testMirror(t, append(testKernel(t, "2"), testKernel(t, "10")...)...)
	k, err := c.Kernel(t.Context(), "debian:9.1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if k.Release != "9.1.10-cloud-amd64" || k.ImageKind != KindVmlinux || k.Source != "Debian trixie-backports 9.1.10-1" || k.Spec != "debian:9.1" {
		t.Errorf("kernel %+v", k)
	}
	if data, err := os.ReadFile(filepath.Join(k.ModulesDir, "kernel/x.ko")); err != nil || string(data) != "module" {
		t.Errorf("module %q, %v", data, err)
	}
	if f, err := os.Open(k.Image); err != nil || checkVmlinux(f) != nil {
		t.Errorf("image: %v, %v", err, checkVmlinux(f))
	}
	before := a.requests("")
	if again, err := c.Kernel(t.Context(), "debian:9.1", nil); err != nil || again != k {
		t.Errorf("second time %+v, %v", again, err)
	}
	if now := a.requests(""); now != before {
		t.Errorf("a cached kernel cost %d requests", now-before)
	}
	infos, err := c.Kernels(t.Context(), false)
	if err != nil || len(infos) != 2 || infos[0].State != Cached || infos[1].State != Fetchable {
		t.Errorf("Kernels = %+v, %v", infos, err)
	}
}

func TestBrokenFetchLeavesNoEntry(t *testing.T) {
	t.Parallel()
	a, c := testMirror(t, testKernel(t, "2")...)
	truncate := func(path string, w http.ResponseWriter, data []byte) bool {
		if !strings.HasSuffix(path, ".deb") {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:len(data)/2])
		return true
	}
	corrupt := func(path string, w http.ResponseWriter, data []byte) bool {
		if !strings.HasSuffix(path, ".deb") {
			return false
		}
		bad := bytes.Clone(data)
		bad[len(bad)/2] ^= 1
		_, _ = w.Write(bad)
		return true
	}
	missing := func(path string, w http.ResponseWriter, _ []byte) bool {
		if strings.HasSuffix(path, ".deb") {
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		return false
	}
	for name, alter := range map[string]func(string, http.ResponseWriter, []byte) bool{"truncated": truncate, "corrupted": corrupt, "missing": missing} {
		a.setAlter(alter)
		_, err := c.Kernel(t.Context(), "debian:9.1", nil)
		if err == nil || !strings.Contains(err.Error(), "debian:9.1") || !strings.Contains(err.Error(), "linux-binary-9.1.2-cloud-amd64") {
			t.Errorf("%s: error %v; want one naming the kernel and the package", name, err)
		}
		if len(c.cachedKernels()) > 0 || len(temps(t, c)) > 0 {
			t.Errorf("%s: left entries %v, temps %v", name, c.cachedKernels(), temps(t, c))
		}
	}
	a.setAlter(nil)
	if _, err := c.Kernel(t.Context(), "debian:9.1", nil); err != nil {
		t.Errorf("after the trouble: %v", err)
	}
}

func TestInterruptedFetch(t *testing.T) {
	t.Parallel()
	a, c := testMirror(t, testKernel(t, "2")...)
	reached, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	a.setAlter(func(path string, w http.ResponseWriter, data []byte) bool {
		if !strings.HasSuffix(path, ".deb") {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:100])
		w.(http.Flusher).Flush()
		once.Do(func() { close(reached) })
		<-release
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-reached
		cancel()
	}()
	_, err := c.Kernel(ctx, "debian:9.1", nil)
	close(release)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if len(c.cachedKernels()) > 0 || len(temps(t, c)) > 0 {
		t.Errorf("left entries %v, temps %v", c.cachedKernels(), temps(t, c))
	}
	a.setAlter(nil)
	if _, err := c.Kernel(t.Context(), "debian:9.1", nil); err != nil {
		t.Errorf("repeated: %v", err)
	}
}

func TestProcessKilledWhileFetching(t *testing.T) {
	t.Parallel()
	a, c := testMirror(t, testKernel(t, "2")...)
	reached, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	a.setAlter(func(path string, w http.ResponseWriter, data []byte) bool {
		if !strings.HasSuffix(path, ".deb") {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		w.(http.Flusher).Flush()
		once.Do(func() { close(reached) })
		<-release
		return true
	})
	cmd := helper(t, "fetch "+c.dir+" "+a.URL)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-reached
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	close(release)
	a.setAlter(nil)
	if _, err := c.Kernel(t.Context(), "debian:9.1", nil); err != nil {
		t.Errorf("after another process was killed: %v", err)
	}
	if left := temps(t, c); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestTwoProcessesFetchAtOnce(t *testing.T) {
	t.Parallel()
	a, c := testMirror(t, testKernel(t, "2")...)
	var cmds []*exec.Cmd
	for range 2 {
		cmd := helper(t, "fetch "+c.dir+" "+a.URL)
		cmd.Stderr = &bytes.Buffer{}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	for _, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, cmd.Stderr)
		}
	}
	if n := a.requests("linux-modules-9.1.2-cloud-amd64_9.1.2-1_amd64.deb"); n != 1 {
		t.Errorf("fetched %d times, want once", n)
	}
	if n := a.requests("/dists/trixie-backports/main/binary-amd64/Packages"); n != 1 {
		t.Errorf("package list fetched %d times, want once", n)
	}
}

func TestMirrorTrouble(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	a.publish(t, "trixie-backports", testKernel(t, "2")...) // and no trixie
	c := archiveCache(t, a)
	warned := warnings(c)
	x, err := c.ensureIndex(t.Context(), time.Hour, nil)
	if err != nil || len(x.Kernels) != 1 {
		t.Fatalf("index %+v, %v; want it made without the missing suite", x, err)
	}
	if w := warned(); !strings.Contains(w, "trixie") {
		t.Errorf("warnings %q: the missing suite is not named", w)
	}

	// A kernel that appears later is found without waiting a day, and one whose package has moved on is looked up again.
	x.Time = x.Time.Add(-time.Hour)
	if err := c.writeIndex(x); err != nil {
		t.Fatal(err)
	}
	a.publish(t, "trixie-backports", testKernel(t, "7")...)
	if k, err := c.Kernel(t.Context(), "debian:9.1.7", nil); err != nil || k.Release != "9.1.7-cloud-amd64" {
		t.Errorf("new kernel: %+v, %v", k, err)
	}

	// The mirror goes away: what is cached still works, with a warning; what is not is a clear error.
	a.Close()
	x = c.readIndex()
	x.Time = x.Time.Add(-48 * time.Hour)
	if err := c.writeIndex(x); err != nil {
		t.Fatal(err)
	}
	if k, err := c.Kernel(t.Context(), "debian:9.1", nil); err != nil || k.Release != "9.1.7-cloud-amd64" {
		t.Errorf("cached kernel with the mirror down: %+v, %v", k, err)
	}
	if w := warned(); !strings.Contains(w, "not refreshed") {
		t.Errorf("warnings %q: the failed refresh is not told", w)
	}
	if err := os.Remove(c.indexPath()); err != nil {
		t.Fatal(err)
	}
	if k, err := c.Kernel(t.Context(), "debian:9", nil); err != nil || k.Release != "9.1.7-cloud-amd64" {
		t.Errorf("cached kernel without any index: %+v, %v", k, err)
	}
	other, err := OpenCache(filepath.Join(t.TempDir(), "other"))
	if err != nil {
		t.Fatal(err)
	}
	other.apt = c.apt
	_, err = other.Kernel(t.Context(), "debian:9.1", nil)
	if err == nil || !strings.Contains(err.Error(), "--kernel PATH") || !strings.Contains(err.Error(), a.URL) {
		t.Errorf("error %v; want the mirror named and the way out", err)
	}
}

// A package that the index has but the mirror has lost makes irqlab look again, once.
func TestStaleIndexIsRefreshedOnce(t *testing.T) {
	t.Parallel()
	a, c := testMirror(t, testKernel(t, "2")...)
	x, err := c.ensureIndex(t.Context(), time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	x.Time = x.Time.Add(-time.Hour)
	if err := c.writeIndex(x); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	for path := range a.files {
		if strings.HasSuffix(path, ".deb") {
			delete(a.files, path)
		}
	}
	a.mu.Unlock()
	a.publish(t, "trixie-backports", testKernel(t, "3")...)
	if k, err := c.Kernel(t.Context(), "debian:9.1", nil); err != nil || k.Release != "9.1.3-cloud-amd64" {
		t.Errorf("kernel %+v, %v; want the one the mirror has now", k, err)
	}
}

// A package list damaged on the disk heals: apt alone would never look at it again.
func TestDamagedListIsFetchedAgain(t *testing.T) {
	t.Parallel()
	_, c := testMirror(t, testKernel(t, "2")...)
	if _, err := c.Kernels(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	lists, err := filepath.Glob(filepath.Join(c.dir, stateDir, "mirrors/*/lists/*_Packages*"))
	if err != nil || len(lists) == 0 || filepath.Ext(lists[0]) != ".lz4" {
		t.Fatalf("lists %q, %v", lists, err)
	}
	for _, l := range lists {
		if err := os.WriteFile(l, []byte("not packed at all"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if infos, err := c.Kernels(t.Context(), true); err != nil || len(infos) != 1 || infos[0].State != Fetchable {
		t.Errorf("Kernels = %+v, %v", infos, err)
	}
}

// A clock that was ahead once leaves an index that must not stay for good.
func TestIndexFromTheFuture(t *testing.T) {
	t.Parallel()
	a, c := testMirror(t, testKernel(t, "2")...)
	if err := c.writeIndex(&index{Time: time.Now().Add(1000 * time.Hour), Failed: time.Now().Add(1000 * time.Hour), Mirror: a.URL}); err != nil {
		t.Fatal(err)
	}
	if x, err := c.ensureIndex(t.Context(), time.Hour, nil); err != nil || len(x.Kernels) != 1 {
		t.Errorf("%+v, %v; want a fresh index", x, err)
	}
}

func TestIncompleteKernelIsRefused(t *testing.T) {
	t.Parallel()
	k := testKernel(t, "2")
	_, c := testMirror(t, k[0], k[2])
	_, err := c.Kernel(t.Context(), "debian:9.1", nil)
	var incomplete *IncompleteKernelError
	if !errors.As(err, &incomplete) || incomplete.Release != "9.1.2-cloud-amd64" || !strings.Contains(incomplete.Reason, "linux-modules-9.1.2-cloud-amd64") {
		t.Errorf("error %v; want an IncompleteKernelError naming the lost package", err)
	}
}

// An archive that is not signed is refused unless this package's own tests ask for it.
func TestUnsignedArchiveIsRefused(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	a.publish(t, "trixie", testKernel(t, "2")...)
	c := archiveCache(t, a)
	c.apt.trusted = false
	if _, err := c.Kernel(t.Context(), "debian:9.1", nil); err == nil || !strings.Contains(err.Error(), "not signed") {
		t.Errorf("error %v; want the missing signature named", err)
	}
}

// Root is not needed: the same fetch by a user who owns nothing but the cache.
func TestFetchAsPlainUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Log("already a plain user: the other tests show it")
		return
	}
	a, _ := testMirror(t, testKernel(t, "2")...)
	const nobody = 65534
	dir, err := os.MkdirTemp("", "irqlab-plain-") // t.TempDir lies below a directory of root's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "test-binary")
	// Not by us: a child that another test starts meanwhile would have the file open for writing until its exec, and no file that is can be executed.
	if out, err := exec.Command("cp", os.Args[0], program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := errors.Join(os.Chmod(program, 0o755), os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "cache"), 0o700), os.Chown(filepath.Join(dir, "cache"), nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	cmd := helper(t, "fetch "+filepath.Join(dir, "cache")+" "+a.URL)
	cmd.Path, cmd.Dir = program, "/"
	cmd.Env = append(cmd.Env, "HOME=/nonexistent")
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := (&Cache{dir: filepath.Join(dir, "cache")}).cachedKernels(); len(got) != 1 {
		t.Errorf("cached %v, want one kernel", got)
	}
}

func TestNoApt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	c := newCache(t)
	for name, err := range map[string]error{
		"kernel": func() error { _, err := c.Kernel(t.Context(), "debian:7.3", nil); return err }(),
		"QEMU":   func() error { _, err := c.QEMU(t.Context(), "", nil); return err }(),
	} {
		if !errors.Is(err, ErrNoApt) || !strings.Contains(err.Error(), "--qemu PATH") || !strings.Contains(err.Error(), "--kernel PATH") {
			t.Errorf("%s: %v; want ErrNoApt with the way out", name, err)
		}
	}
}

func TestChooseMirror(t *testing.T) {
	t.Parallel()
	const m = "http://mirror.example/debian/"
	for name, c := range map[string]struct {
		lines string
		want  string
	}{
		"usual": {"Debian\tDebian\tbookworm\tmain\t" + m + "\nDebian\tDebian-Security\tbookworm-security\tmain\thttp://security.example/\n", m},
		"security first": {"Debian\tDebian-Security\tbookworm-security\tmain\thttp://security.example/debian-security/\n" +
			"Debian\tDebian\tbookworm-updates\tmain\thttp://other.example/\nDebian\tDebian\tbookworm\tmain\t" + m + "\n", m},
		"never updated":        {"\t\ttrixie-security\tmain\thttp://x.example/debian-security/\n\t\ttrixie\tmain\t" + m + "\n", m},
		"by suite name":        {"\t\tstable\tmain\t" + m + "\n", m},
		"other vendors":        {"Google\tcloud\tcloud-sdk-bookworm\tmain\thttps://cloud.example/\nUbuntu\tUbuntu\tnoble\tmain\thttp://ubuntu.example/\nNode\tNode\tnodistro\tmain\thttp://n.example\n", ""},
		"vendor on our suite":  {"Docker\tDocker CE\tbookworm\tmain\thttps://docker.example/\n", ""},
		"only other component": {"Debian\tDebian\tbookworm\tcontrib\t" + m + "\n", ""},
		"unfit for a list":     {"\t\tbookworm\tmain\thttp://a b/\n", ""},
		"garbage":              {"x\ty\n\n\t\t\t\t\n", ""},
	} {
		if got, ok := chooseMirror(parseTargets(c.lines)); got != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, %v; want %q", name, got, ok, c.want)
		}
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"http://user:pass@host/debian x": "http://host/debian x",
		"E: 'https://u@h/' and http://h": "E: 'https://h/' and http://h",
		"http://h/a@b":                   "http://h/a@b",
		"nothing here":                   "nothing here",
		"http://a@b@c/d":                 "http://c/d",
		"://":                            "://",
	} {
		if got := redact(in); got != want {
			t.Errorf("redact(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestParseStatus(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]float64{
		"dlstatus:19:98.0000:Retrieving file 19 of 20": 98,
		"dlstatus:1:0:x": 0, "dlstatus:1:100:a:b": 100,
		"pmstatus:a:5:x": -1, "dlstatus:1:NaN:x": -1, "dlstatus:1:101:x": -1, "dlstatus:1": -1, "": -1,
	} {
		got, ok := parseStatus(in)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("parseStatus(%q) = %v, %v; want %v", in, got, ok, want)
		}
	}
	if got := totalSize("Reading…\n'http://x/a.deb' a.deb 10 SHA256:00\n'http://x/b.deb' b.deb 5 \nx y 7\n'bad' b -3\n"); got != 15 {
		t.Errorf("totalSize = %d, want 15", got)
	}
}

// A mirror whose files have no end fills no disk: the fetch ends with an error that says so, and leaves nothing. Each is sent as fast as the other end takes it, without a
// length, and cut off only far above any bound.
func TestEndlessMirror(t *testing.T) {
	t.Parallel()
	const far = 4 * maxList
	for name, c := range map[string]struct {
		suffix string
		block  int    // bytes: apt only looks at what it has got so far between chunks, and not always
		want   string // "": whose bound comes first is a matter of how the chunks fall
	}{
		"InRelease":            {"/InRelease", 1 << 20, "unexpected size"},
		"InRelease in morsels": {"/InRelease", 1 << 15, ""},
		"Release in morsels":   {"/Release", 1 << 15, ""},
		"Packages":             {"/Packages", 1 << 20, "unexpected size"},
		"Packages in morsels":  {"/Packages", 1 << 15, ""},
		"package":              {".deb", 1 << 20, "unexpected size"},
		"package in morsels":   {".deb", 1 << 15, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a, cache := testMirror(t, testKernel(t, "2")...)
			a.mu.Lock()
			for _, suite := range testSuites {
				a.files["/dists/"+suite+"/InRelease"] = nil // not there, unless it is the one without end
			}
			a.mu.Unlock()
			var sent atomic.Int64
			a.setAlter(func(path string, w http.ResponseWriter, data []byte) bool {
				if !strings.HasSuffix(path, c.suffix) {
					if strings.HasSuffix(path, "/InRelease") {
						w.WriteHeader(http.StatusNotFound)
						return true
					}
					return false
				}
				block := bytes.Repeat([]byte("Origin: Debian.\n"), c.block/16)
				for _, err := w.Write(data); err == nil && sent.Load() < far; sent.Add(int64(len(block))) {
					_, err = w.Write(block)
				}
				return true
			})
			_, err := cache.Kernel(t.Context(), "debian:9.1", nil)
			switch {
			case err == nil && strings.HasSuffix(name, "Release in morsels"): // apt's own bound came first, and this mirror's lists are trusted without one
			case err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 10000:
				t.Errorf("error %.2000v; want %q", err, c.want)
			}
			if n := sent.Load(); n == 0 || n >= far {
				t.Errorf("%d bytes were taken", n)
			}
			if left := DiskUsage(cache.dir); left > 1<<20 {
				t.Errorf("%d bytes are left in the cache", left)
			}
			a.setAlter(func(path string, w http.ResponseWriter, _ []byte) bool {
				if strings.HasSuffix(path, "/InRelease") {
					w.WriteHeader(http.StatusNotFound)
					return true
				}
				return false
			})
			if x := cache.readIndex(); x != nil { // a mirror in trouble is not asked again at once
				x.Time = x.Time.Add(-time.Hour)
				if err := cache.writeIndex(x); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := cache.Kernel(t.Context(), "debian:9.1", nil); err != nil {
				t.Errorf("once the mirror has come to its senses: %v", err)
			}
		})
	}
}

// What a killed run has left of a fetch is counted until the next start sweeps it; what a living one writes is left alone.
func TestSweepApt(t *testing.T) {
	t.Parallel()
	a, c := testMirror(t, testKernel(t, "2")...)
	if _, err := c.ensureIndex(t.Context(), time.Hour, nil); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(c.aptDir(), entryName(a.URL))
	var left []string
	for _, place := range []string{"lists/partial", "cache/archives/partial", "tmp/run-1", "../../apt/lists"} {
		dir := filepath.Join(state, place)
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "half"), make([]byte, 1<<20), 0o600)); err != nil {
			t.Fatal(err)
		}
		left = append(left, filepath.Join(dir, "half"))
	}
	there := func() (n int) {
		for _, path := range left {
			if _, err := os.Stat(path); err == nil {
				n++
			}
		}
		return n
	}
	size := func() (sum int64) {
		entries, err := c.Entries(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Kind == aptKind {
				sum += e.Size
			}
		}
		return sum
	}
	if n := size(); n < 3<<20 {
		t.Errorf("%d bytes counted, want the 3 MiB that were left", n)
	}
	unlock, err := c.lock(t.Context(), aptLock)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCache(c.dir); err != nil || there() != len(left) {
		t.Errorf("%d of %d files are there while an apt-get is at work, %v", there(), len(left), err)
	}
	unlock()
	if _, err := OpenCache(c.dir); err != nil || there() != 0 {
		t.Errorf("%d files are left after a start, %v", there(), err)
	}
	if n := size(); n == 0 || n > 1<<20 {
		t.Errorf("%d bytes counted, want those of the lists", n)
	}
}

// Each mirror has an index and lists of its own, so that naming another takes effect at once, and naming the first again as well.
func TestMirrorIsChanged(t *testing.T) {
	first, c := testMirror(t, testKernel(t, "2")...)
	second := newArchive(t)
	second.publish(t, "trixie")
	second.publish(t, "trixie-backports", testKernel(t, "3")...)
	// Newer by its date, as lists go that a mirror stamps: the age of a list says nothing of whose it is.
	first.publish(t, "trixie-backports", testKernel(t, "2")...)
	c.apt.mirror = ""
	for _, step := range []struct {
		mirror *archive
		want   string
	}{{first, "9.1.2-cloud-amd64"}, {second, "9.1.3-cloud-amd64"}, {first, "9.1.2-cloud-amd64"}} {
		t.Setenv(MirrorVariable, step.mirror.URL)
		x, err := c.ensureIndex(t.Context(), time.Hour, nil)
		if err != nil || len(x.Kernels) != 1 || x.Kernels[0].Release != step.want || x.Mirror != step.mirror.URL {
			t.Fatalf("index %+v, %v; want %s alone, of %s", x, err, step.want, step.mirror.URL)
		}
		if k, err := c.Kernel(t.Context(), "debian:9.1."+step.want[4:5], nil); err != nil || k.Release != step.want {
			t.Errorf("kernel %+v, %v; want %s", k, err, step.want)
		}
	}
	if n := first.requests("/dists/trixie-backports/main/binary-amd64/Packages"); n != 1 {
		t.Errorf("the first mirror's list was fetched %d times, want once", n)
	}
	// A mirror that cannot be reached is an error, and no reason to ask another.
	third := newArchive(t)
	third.Close()
	t.Setenv(MirrorVariable, third.URL)
	before := first.requests("") + second.requests("")
	if _, err := c.Kernel(t.Context(), "debian:9.2", nil); err == nil || !strings.Contains(err.Error(), third.URL) {
		t.Errorf("error %v; want the mirror named", err)
	}
	if now := first.requests("") + second.requests(""); now != before {
		t.Errorf("%d requests went to mirrors that were not named", now-before)
	}
	states := c.aptStates()
	if len(states) != 3 {
		t.Errorf("states %+v, want one for each mirror", states)
	}
	// They go when nobody has asked for them, and come again.
	gone, err := c.Prune(t.Context(), 0)
	if err != nil || len(gone) != 5 || len(c.aptStates()) != 0 {
		t.Errorf("pruned %v, %v; want two kernels and three states", gone, err)
	}
	t.Setenv(MirrorVariable, first.URL)
	if k, err := c.Kernel(t.Context(), "debian:9.1", nil); err != nil || k.Release != "9.1.2-cloud-amd64" {
		t.Errorf("after the prune: %+v, %v", k, err)
	}
}

// What the host's apt sources say decides like a variable.
func TestMirrorOrigin(t *testing.T) {
	c := newCache(t)
	list := filepath.Join(t.TempDir(), "sources.list")
	defer func(was []string) { hostSources = was }(hostSources)
	hostSources = []string{list}
	seen := map[string]string{}
	for _, step := range []struct{ name, variable, sources string }{
		{"no sources", "", ""}, {"sources", "", "deb http://a.example trixie main"}, {"others", "", "deb http://b.example trixie main"},
		{"a variable", "http://c.example", "deb http://b.example trixie main"}, {"another", "http://d.example", "deb http://b.example trixie main"},
	} {
		t.Setenv(MirrorVariable, step.variable)
		if step.sources != "" {
			if err := os.WriteFile(list, []byte(step.sources), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		path := c.indexPath()
		if path != c.indexPath() {
			t.Errorf("%s: the index is now here, now there", step.name)
		}
		if other, ok := seen[path]; ok {
			t.Errorf("%s and %s share an index", step.name, other)
		}
		seen[path] = step.name
	}
}
