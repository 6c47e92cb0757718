package endurance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"irqlab/images"
	"irqlab/scenarios/result"
)

// patience bounds what must not hang, on a machine that may be very busy. No test passes or fails by how long something takes.
const patience = 10 * time.Minute

// leaving bounds how long what a lab leaves behind may take to go.
const leaving = 2 * time.Minute

// tagVariable marks, through the environment they inherit, all processes that a site has started, however far down and whoever their parent is by now.
const tagVariable = "IRQLAB_TEST_ENDURANCE"

// site is a place where nothing lies but what the labs under test leave there: run directories, temporary files, a cache.
type site struct {
	t               *testing.T
	command         string // irqlab
	cache, run, tmp string // cache is empty for the user's own
	tag             string
}

// newSite makes a site whose cache holds QEMU and the default kernel, and nothing that is made of them.
func newSite(t *testing.T) *site {
	t.Helper()
	short, err := os.MkdirTemp("", "irqlab-e") // sockets lie below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	s := &site{t: t, cache: filepath.Join(short, "cache"), run: filepath.Join(short, "run"), tmp: filepath.Join(short, "tmp"), tag: filepath.Base(short)}
	for _, dir := range []string{s.run, s.tmp} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	shared, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shared.QEMU(t.Context(), "", nil); err != nil {
		t.Fatal(err)
	}
	k, err := shared.Kernel(t.Context(), defaultKernel, nil)
	if err != nil {
		t.Fatal(err)
	}
	kernel, _, _ := strings.Cut(strings.TrimPrefix(k.ModulesDir, filepath.Join(shared.Dir(), "kernel")+"/"), "/")
	for _, entry := range []string{"qemu", filepath.Join("kernel", kernel)} {
		if err := share(filepath.Join(shared.Dir(), entry), filepath.Join(s.cache, entry)); err != nil && !errors.Is(err, fs.ErrNotExist) { // QEMU may be the host's
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, p := range s.processes() {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	})
	return s
}

// build compiles the command.
func (s *site) build() {
	s.t.Helper()
	s.command = filepath.Join(s.t.TempDir(), "irqlab")
	if out, err := exec.CommandContext(s.t.Context(), "go", "build", "-buildvcs=false", "-o", s.command, "irqlab").CombinedOutput(); err != nil {
		s.t.Fatalf("build irqlab: %v\n%s", err, out)
	}
}

// share makes a tree of the same files: an entry of a cache is never written to. Where files cannot have two names they are copied, times included.
func share(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		at := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			return os.MkdirAll(at, 0o700)
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(target, at)
		}
		if err := os.Link(path, at); !errors.Is(err, syscall.EXDEV) {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(at, b, info.Mode().Perm()); err != nil {
			return err
		}
		return os.Chtimes(at, info.ModTime(), info.ModTime())
	})
}

// lab is an irqlab under test.
type lab struct {
	cmd      *exec.Cmd
	out, err bytes.Buffer
	ended    chan struct{}
}

// start starts irqlab in a process group of its own.
func (s *site) start(args ...string) *lab {
	s.t.Helper()
	l := &lab{cmd: exec.Command(s.command, args...), ended: make(chan struct{})}
	l.cmd.Env = append(os.Environ(), "IRQLAB_CACHE="+s.cache, "XDG_RUNTIME_DIR="+s.run, "TMPDIR="+s.tmp, tagVariable+"="+s.tag)
	l.cmd.Stdout, l.cmd.Stderr = &l.out, &l.err
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	l.cmd.WaitDelay = patience
	if err := l.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		defer close(l.ended)
		_ = l.cmd.Wait() // how it ended is in ProcessState
	}()
	return l
}

func (l *lab) pid() int { return l.cmd.Process.Pid }

func (l *lab) running() bool {
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

// signal is what killed the lab, 0 if it exited.
func (l *lab) signal() syscall.Signal {
	if ws := l.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		return ws.Signal()
	}
	return 0
}

func (l *lab) String() string {
	return fmt.Sprintf("%v\nstandard error:\n%s\nstandard output:\n%s", l.cmd.ProcessState, l.err.String(), l.out.String())
}

// report is the lab's result.
func (l *lab) report() (r result.Report, err error) {
	err = json.Unmarshal(l.out.Bytes(), &r)
	return r, err
}

// await waits until the lab has ended, and is fatal to the test if it hangs.
func (s *site) await(l *lab) {
	s.t.Helper()
	select {
	case <-l.ended:
	case <-time.After(patience):
		_ = l.cmd.Process.Signal(syscall.SIGQUIT) // where it hangs
		<-l.ended
		s.t.Fatalf("irqlab hangs:\n%s", l)
	}
}

// until waits for a list to become empty and returns what is still on it when there is no time left for that.
func until(ctx context.Context, list func() []string) []string {
	for end := time.Now().Add(leaving); ; time.Sleep(20 * time.Millisecond) {
		if left := list(); len(left) == 0 || time.Now().After(end) || ctx.Err() != nil {
			return left
		}
	}
}

// process is one that runs at a site.
type process struct {
	pid  int
	kind string // "irqlab", "qemu", "reaper", "go" (the tool, and what it runs), or its program
	line string
}

// processes lists those of the site that live: a process that has ended and is not waited for yet has no environment any more.
func (s *site) processes() []process {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	var list []process
	for _, f := range files {
		env, err := os.ReadFile(f)
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), tagVariable+"="+s.tag) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if pid == os.Getpid() {
			continue
		}
		b, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline"))
		args := strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
		list = append(list, process{pid, kindOf(args), strings.Join(args, " ")})
	}
	return list
}

func kindOf(args []string) string {
	base := filepath.Base(args[0])
	switch {
	case slices.ContainsFunc(args, func(a string) bool { return strings.Contains(filepath.Base(a), "qemu-system") }):
		return "qemu"
	case base == "sh":
		return "reaper"
	case base == "go" || strings.Contains(args[0], "/pkg/tool/"):
		return "go"
	}
	return base
}

// lines lists the site's processes for people.
func (s *site) lines() (list []string) {
	for _, p := range s.processes() {
		list = append(list, fmt.Sprintf("process %d: %.120s", p.pid, p.line))
	}
	return list
}

// runDirs lists the run directories.
func (s *site) runDirs() []string { return s.files(filepath.Join(s.run, "irqlab"), ".lock") }

// files lists what is in a directory, but for what may be there.
func (s *site) files(dir string, but ...string) (list []string) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(but, e.Name()) {
			list = append(list, filepath.Join(dir, e.Name()))
		}
	}
	return list
}

// temporaries lists unfinished files: in the temporary directory, and in the cache. What is there for a moment, not to be seen half, is no entry's and has no mark.
func (s *site) temporaries() []string {
	list := s.files(s.tmp)
	if s.cache == "" {
		return list
	}
	for _, path := range s.files(filepath.Join(s.cache, "tmp")) {
		if strings.Contains(path, "@") {
			list = append(list, path)
		}
	}
	return list
}
