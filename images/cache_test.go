package images

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// helperEnv makes the test binary play another irqlab process; see helperMain.
const helperEnv = "IRQLAB_TEST_HELPER"

func TestMain(m *testing.M) {
	if role := os.Getenv(helperEnv); role != "" {
		os.Exit(helperMain(role))
	}
	os.Exit(m.Run())
}

// helperMain is what a second process does: "build DIR" builds the entry test/k and counts builds in DIR/builds, "hang DIR" starts to build it and
// says so, "fetch DIR URL" fetches debian:9.1 from a test's archive. "own WORD" runs a command that has a child, and neither ends. "few N" before a role: with no more than N
// open files.
func helperMain(role string) int {
	args := strings.Fields(role)
	if args[0] == "own" {
		cmd := exec.CommandContext(context.Background(), "/bin/sh", "-c", "sleep 600 & echo started; wait")
		cmd.Stdout = os.Stdout
		fmt.Fprintln(os.Stderr, RunOwned(context.Background(), cmd))
		return 1
	}
	if args[0] == "few" {
		n, err := strconv.ParseUint(args[1], 10, 64)
		if err == nil {
			err = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		args = args[2:]
	}
	c, err := OpenCache(args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	switch args[0] {
	case "build":
		_, err = c.entry(context.Background(), "test", "k", func(_ context.Context, dir string) error {
			f, err := os.OpenFile(filepath.Join(args[1], "builds"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			defer f.Close()
			if _, err := f.WriteString("b"); err != nil {
				return err
			}
			time.Sleep(200 * time.Millisecond)
			return os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o600)
		})
	case "hang":
		_, err = c.entry(context.Background(), "test", "k", func(_ context.Context, dir string) error {
			if err := os.WriteFile(filepath.Join(dir, "half"), []byte("half"), 0o600); err != nil {
				return err
			}
			fmt.Println("building")
			select {}
		})
	case "fetch":
		c.apt = aptOptions{mirror: args[2], suites: testSuites, trusted: true}
		_, err = c.Kernel(context.Background(), "debian:9.1", nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func helper(t *testing.T, role string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// What a killed process was about to put in place is swept once nobody can be about it any more.
func TestSweepAbandoned(t *testing.T) {
	t.Parallel()
	c := newCache(t)
	old, fresh := filepath.Join(c.dir, tmpDir, ".memo.json1"), filepath.Join(c.dir, tmpDir, ".memo.json2")
	for _, path := range []string{old, fresh} {
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-2 * abandoned)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCache(c.dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an old file: %v", err)
	}
	if _, err := os.Stat(fresh); err != nil {
		t.Errorf("a file that may be another's: %v", err)
	}
	path := filepath.Join(c.dir, stateDir, "memo.json")
	if err := c.writeFile(path, []byte("whole")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "whole" {
		t.Errorf("written: %q, %v", b, err)
	}
}

func newCache(t *testing.T) *Cache {
	t.Helper()
	c, err := OpenCache(filepath.Join(t.TempDir(), "cache"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// temps lists what lies in the cache's tmp directory.
func temps(t *testing.T, c *Cache) []string {
	t.Helper()
	var names []string
	found, err := os.ReadDir(filepath.Join(c.dir, tmpDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range found {
		names = append(names, e.Name())
	}
	return names
}

func sampleEntry(builds *atomic.Int32) func(context.Context, string) error {
	return func(_ context.Context, dir string) error {
		builds.Add(1)
		if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "sub/file"), []byte("content"), 0o600); err != nil {
			return err
		}
		return os.Symlink("file", filepath.Join(dir, "sub/link"))
	}
}

func TestOpenCache(t *testing.T) {
	base := t.TempDir()
	t.Run("environment and mode", func(t *testing.T) {
		dir := filepath.Join(base, "from-env")
		t.Setenv("IRQLAB_CACHE", dir)
		c, err := OpenCache("")
		if err != nil {
			t.Fatal(err)
		}
		if c.Dir() != dir {
			t.Errorf("Dir = %s, want %s", c.Dir(), dir)
		}
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("mode %v, %v; want 0700", st.Mode(), err)
		}
	})
	t.Run("XDG", func(t *testing.T) {
		t.Setenv("IRQLAB_CACHE", "")
		t.Setenv("XDG_CACHE_HOME", base)
		c, err := OpenCache("")
		if err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(base, "irqlab"); c.Dir() != want {
			t.Errorf("Dir = %s, want %s", c.Dir(), want)
		}
	})
	t.Run("made private", func(t *testing.T) {
		dir := filepath.Join(base, "open")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenCache(dir); err != nil {
			t.Fatal(err)
		}
		if st, _ := os.Stat(dir); st.Mode().Perm() != 0o700 {
			t.Errorf("mode %v, want 0700", st.Mode())
		}
	})
	t.Run("not a directory", func(t *testing.T) {
		file := filepath.Join(base, "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenCache(file); err == nil || !strings.Contains(err.Error(), "IRQLAB_CACHE") || !strings.Contains(err.Error(), file) {
			t.Errorf("error %v, want one naming the directory and the way out", err)
		}
	})
}

func TestEntryIsBuiltOnceByGoroutines(t *testing.T) {
	t.Parallel()
	c := newCache(t)
	var builds atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			path, err := c.entry(t.Context(), "test", "some key/with: odd characters", sampleEntry(&builds))
			if err != nil {
				t.Error(err)
				return
			}
			if data, err := os.ReadFile(filepath.Join(path, "sub/link")); err != nil || string(data) != "content" {
				t.Errorf("entry holds %q, %v", data, err)
			}
		})
	}
	wg.Wait()
	if n := builds.Load(); n != 1 {
		t.Errorf("built %d times, want 1", n)
	}
	if left := temps(t, c); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestEntryIsBuiltOnceByProcesses(t *testing.T) {
	t.Parallel()
	c := newCache(t)
	var cmds []*exec.Cmd
	for range 3 {
		cmd := helper(t, "build "+c.dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	for _, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	if data, err := os.ReadFile(filepath.Join(c.dir, "builds")); err != nil || string(data) != "b" {
		t.Errorf("builds %q, %v; want one", data, err)
	}
	if !c.has("test", "k") {
		t.Error("entry is not whole")
	}
}

func TestKilledBuildIsSwept(t *testing.T) {
	t.Parallel()
	c := newCache(t)
	cmd := helper(t, "hang "+c.dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "building\n" {
		t.Fatalf("helper says %q, %v", line, err)
	}

	if _, err := OpenCache(c.dir); err != nil {
		t.Fatal(err)
	}
	if left := temps(t, c); len(left) != 1 {
		t.Fatalf("a build under way has %v in tmp, want its directory untouched", left)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var builds atomic.Int32
	if _, err := c.entry(ctx, "test", "k", sampleEntry(&builds)); !errors.Is(err, context.DeadlineExceeded) || builds.Load() != 0 {
		t.Fatalf("while another process builds: %v, %d builds; want a deadline and none", err, builds.Load())
	}

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if _, err := OpenCache(c.dir); err != nil {
		t.Fatal(err)
	}
	if left := temps(t, c); len(left) != 0 {
		t.Errorf("after the kill tmp still has %v", left)
	}
	if c.has("test", "k") {
		t.Error("a killed build left an entry")
	}
	if _, err := c.entry(t.Context(), "test", "k", sampleEntry(&builds)); err != nil || builds.Load() != 1 {
		t.Errorf("after the kill: %v, %d builds", err, builds.Load())
	}
}

func TestDamagedEntryIsRebuilt(t *testing.T) {
	t.Parallel()
	damages := map[string]func(dir string) error{
		"file removed":     func(dir string) error { return os.Remove(filepath.Join(dir, "sub/file")) },
		"file truncated":   func(dir string) error { return os.Truncate(filepath.Join(dir, "sub/file"), 3) },
		"content changed":  func(dir string) error { return os.WriteFile(filepath.Join(dir, "sub/file"), []byte("CONTENT"), 0o600) },
		"mode changed":     func(dir string) error { return os.Chmod(filepath.Join(dir, "sub/file"), 0o400) },
		"link removed":     func(dir string) error { return os.Remove(filepath.Join(dir, "sub/link")) },
		"manifest removed": func(dir string) error { return os.Remove(filepath.Join(dir, manifestName)) },
		"manifest garbled": func(dir string) error { return os.WriteFile(filepath.Join(dir, manifestName), []byte("{"), 0o600) },
		"manifest of another kind": func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, manifestName), []byte("{}"), 0o600), os.Remove(filepath.Join(dir, "sub/file")))
		},
		"manifest null": func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, manifestName), []byte("null"), 0o600), os.Remove(filepath.Join(dir, "sub/file")))
		},
		"emptied": func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)) },
		"gone":    os.RemoveAll,
		"directory for a file": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "sub/file")), os.Mkdir(filepath.Join(dir, "sub/file"), 0o700))
		},
		"link retargeted": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "sub/link")), os.Symlink("/etc/passwd", filepath.Join(dir, "sub/link")))
		},
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t)
			var builds atomic.Int32
			path, err := c.entry(t.Context(), "test", "k", sampleEntry(&builds))
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
			again, err := c.entry(t.Context(), "test", "k", sampleEntry(&builds))
			if err != nil {
				t.Fatal(err)
			}
			if data, err := os.ReadFile(filepath.Join(again, "sub/link")); err != nil || string(data) != "content" || builds.Load() != 2 {
				t.Errorf("entry holds %q, %v after %d builds; want it built again", data, err, builds.Load())
			}
			if left := temps(t, c); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestCopiedEntryStaysGood(t *testing.T) {
	t.Parallel()
	c := newCache(t)
	var builds atomic.Int32
	path, err := c.entry(t.Context(), "test", "k", sampleEntry(&builds))
	if err != nil {
		t.Fatal(err)
	}
	copied := time.Now().Add(-24 * time.Hour)
	if err := os.Chtimes(filepath.Join(path, "sub/file"), copied, copied); err != nil {
		t.Fatal(err)
	}
	if _, err := c.entry(t.Context(), "test", "k", sampleEntry(&builds)); err != nil || builds.Load() != 1 {
		t.Errorf("%v, %d builds: a file with another time but the same content is not damaged", err, builds.Load())
	}
}

func TestVerifyHashesEverything(t *testing.T) {
	t.Parallel()
	c := newCache(t)
	var builds atomic.Int32
	for _, key := range []string{"good", "bad"} {
		if _, err := c.entry(t.Context(), "test", key, sampleEntry(&builds)); err != nil {
			t.Fatal(err)
		}
	}
	// A bit flip on the disk: same size, same time. Only hashing finds it.
	file := filepath.Join(c.dir, "test/bad/sub/file")
	st, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(file, []byte("conteNt"), 0o600), os.Chtimes(file, st.ModTime(), st.ModTime())); err != nil {
		t.Fatal(err)
	}
	if !c.has("test", "bad") {
		t.Fatal("the cheap check is expected not to see it")
	}
	damaged, err := c.Verify(t.Context())
	if err != nil || len(damaged) != 1 || !strings.Contains(damaged[0], "test/bad") || !strings.Contains(damaged[0], "sub/file") {
		t.Errorf("Verify = %q, %v; want test/bad and its file named", damaged, err)
	}
	if c.has("test", "bad") || !c.has("test", "good") {
		t.Error("want the damaged entry gone and the good one kept")
	}
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	t.Parallel()
	c := newCache(t)
	broken := errors.New("broken")
	_, err := c.entry(t.Context(), "test", "k", func(_ context.Context, dir string) error {
		return errors.Join(os.WriteFile(filepath.Join(dir, "half"), nil, 0o600), broken)
	})
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want the build's", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = c.entry(ctx, "test", "k", func(_ context.Context, dir string) error {
		cancel()
		return os.WriteFile(filepath.Join(dir, "whole"), nil, 0o600)
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if c.has("test", "k") || len(temps(t, c)) > 0 {
		t.Errorf("entry %v, temps %v; want nothing", c.has("test", "k"), temps(t, c))
	}
}

func TestFullDiskIsNamed(t *testing.T) {
	t.Parallel()
	c := newCache(t)
	_, err := c.entry(t.Context(), "test", "k", func(context.Context, string) error {
		return os.WriteFile("/dev/full", []byte("x"), 0o600)
	})
	var full *NoSpaceError
	if !errors.As(err, &full) || full.Dir != c.dir || !strings.Contains(err.Error(), "IRQLAB_CACHE") || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v, want a NoSpaceError that names the cache and the way out", err)
	}
	if err := c.NeedSpace(1 << 60); !errors.As(err, &full) || full.Need != 1<<60 {
		t.Errorf("NeedSpace of an exbibyte: %v, want a NoSpaceError", err)
	}
	if err := c.NeedSpace(1); err != nil {
		t.Errorf("NeedSpace of a byte: %v", err)
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	c := newCache(t)
	var builds atomic.Int32
	for _, key := range []string{"old", "new"} {
		if _, err := c.entry(t.Context(), "test", key, sampleEntry(&builds)); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-100 * 24 * time.Hour)
	if err := os.Chtimes(filepath.Join(c.dir, lockDir, "test-old"), long, long); err != nil {
		t.Fatal(err)
	}
	gone, err := c.Prune(t.Context(), 30*24*time.Hour)
	if err != nil || !slices.Equal(gone, []string{"test/old"}) || c.has("test", "old") || !c.has("test", "new") {
		t.Errorf("Prune = %v, %v", gone, err)
	}

	// What somebody works on is not waited for, and what they have made meanwhile is not old.
	for _, name := range []string{"test-new", aptLock} {
		unlock, err := c.lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
	}
	hurry, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if gone, err := c.Prune(hurry, 0); err != nil || hurry.Err() != nil || len(gone) > 0 || !c.has("test", "new") {
		t.Errorf("Prune beside a build = %v, %v", gone, err)
	}
}

func TestEntryName(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, key := range []string{"a", "A", "7.3.4+deb13-cloud-amd64_7.3.4-1~bpo13+1", "1:2", "1;2", "a/b", "a_b", "../x", "..", ".", "", strings.Repeat("x", 300),
		strings.Repeat("x", 301), "é", "a@b", "a b", "a\x00b", "a*b", "a[b"} {
		name := entryName(key)
		if other, dup := seen[name]; dup {
			t.Errorf("%q and %q share the name %q", key, other, name)
		}
		seen[name] = key
		if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") || strings.ContainsAny(name, ":@*[? /\x00") || len(name) > 200 || !fs.ValidPath(name) {
			t.Errorf("entryName(%q) = %q: not a plain file name", key, name)
		}
	}
}

func BenchmarkEntryHit(b *testing.B) {
	c, err := OpenCache(filepath.Join(b.TempDir(), "cache"))
	if err != nil {
		b.Fatal(err)
	}
	build := func(_ context.Context, dir string) error {
		for i := range 100 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte("content"), 0o600); err != nil {
				return err
			}
		}
		return nil
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.entry(b.Context(), "bench", "k", build); err != nil {
			b.Fatal(err)
		}
	}
}

// What somebody holds is not pruned, by one or by several, and then it is.
func TestHold(t *testing.T) {
	t.Parallel()
	c, err := OpenCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := c.Entry(t.Context(), "kind", "name", func(_ context.Context, dir string) error {
		return os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	if found, ok := c.Find("kind", "name"); !ok || found != dir {
		t.Errorf("found %s, %v", found, ok)
	}
	var releases []func()
	for range 2 {
		release, err := c.Hold(t.Context(), filepath.Join(dir, "f"))
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, release)
	}
	for held, release := range releases {
		if gone, err := c.Prune(t.Context(), -time.Hour); err != nil || len(gone) > 0 {
			t.Errorf("%d let go: pruned %v, %v", held, gone, err)
		}
		release()
	}
	if gone, err := c.Prune(t.Context(), -time.Hour); err != nil || len(gone) != 1 {
		t.Errorf("pruned %v, %v", gone, err)
	}
	if dir, ok := c.Find("kind", "name"); ok {
		t.Errorf("%s is still there", dir)
	}
	if _, err := c.Hold(t.Context(), "/etc/passwd"); err == nil {
		t.Error("what is in no entry was held")
	}
}

func TestRemember(t *testing.T) {
	t.Parallel()
	c, err := OpenCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]int
	if c.Recall("a/b", &got) {
		t.Error("recalled what was not remembered")
	}
	if err := c.Remember("a/b", map[string]int{"x": 1}); err != nil {
		t.Fatal(err)
	}
	if !c.Recall("a/b", &got) || got["x"] != 1 || c.Recall("a_b", &got) {
		t.Errorf("recalled %v", got)
	}
}
