package qemu

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/gofrs/flock"
)

// Files in a run directory.
const (
	ownerFile   = "owner"    // locked for as long as the directory is in use
	keepFile    = "keep"     // its presence says that the directory outlives its VM
	stateFile   = "vm.json"  // Running, once QEMU runs
	sshSocket   = "ssh.sock" // the guest's SSH port for people
	consoleFile = "console.log"
)

// maxSocketPath is the longest path a Unix socket can have on Linux, without its final NUL.
const maxSocketPath = 107

// RunDirRoot is the directory that holds the run directories of the user's VMs: under XDG_RUNTIME_DIR where there is one of the user's own, else under the temporary
// directory. su and sudo may leave it another user's.
func RunDirRoot() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() && info.Sys().(*syscall.Stat_t).Uid == uint32(os.Geteuid()) {
			return filepath.Join(dir, "irqlab")
		}
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("irqlab-%d", os.Getuid()))
}

// MaxName is how many letters a VM's name may have: its run directory's path must leave room for sockets.
const MaxName = 40

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$`)

// RunDir is the private directory of one VM: mode 0700, removed by Close, or by a small child process if the lab dies first.
type RunDir struct {
	Path string
	Name string

	owner  *flock.Flock
	reaper *exec.Cmd
	cord   io.WriteCloser // its end tells the reaper that the lab is gone
	close  sync.Once
	err    error
}

// NewRunDir makes a run directory below RunDirRoot for a VM of that name, made up if empty, and removes those of labs that died.
func NewRunDir(name string) (*RunDir, error) { return newRunDir(RunDirRoot(), name) }

func newRunDir(root, name string) (_ *RunDir, err error) {
	if name != "" && !namePattern.MatchString(name) {
		return nil, fmt.Errorf("VM name %q: give up to %d letters, digits, '-', '_' or '.'", name, MaxName)
	}
	unlock, err := lockRoot(root)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := sweep(root); err != nil {
		return nil, err
	}
	suffix := make([]byte, 4)
	if _, err := rand.Read(suffix); err != nil {
		return nil, err
	}
	base := hex.EncodeToString(suffix)
	if name == "" {
		name = "vm-" + base
		base = name
	} else {
		base = name + "-" + base
	}
	d := &RunDir{Path: filepath.Join(root, base), Name: name}
	if n := len(filepath.Join(d.Path, "functions-xx.sock")); n > maxSocketPath {
		return nil, fmt.Errorf("run directory %s: socket paths in it would be %d bytes, above the %d that Linux allows: set XDG_RUNTIME_DIR or TMPDIR to a shorter path", d.Path, n, maxSocketPath)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	// The reaper comes before what it removes, so that there is no moment at which the lab could die and leave the directory.
	if err := d.startReaper(); err != nil {
		return nil, fmt.Errorf("run directory %s: the process that removes it should the lab die: %w", d.Path, err)
	}
	if err := os.Mkdir(d.Path, 0o700); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	d.owner = flock.New(filepath.Join(d.Path, ownerFile), flock.SetPermissions(0o600))
	if err := d.owner.Lock(); err != nil {
		return nil, fmt.Errorf("run directory %s: %w", d.Path, err)
	}
	return d, nil
}

// lockRoot makes the root if need be and holds its lock, which orders the making of run directories and the sweep.
func lockRoot(root string) (unlock func(), err error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("run directories: %w (set XDG_RUNTIME_DIR or TMPDIR to a directory of your own)", err)
	}
	info, err := os.Lstat(root)
	if err != nil {
		return nil, fmt.Errorf("run directories: %w", err)
	}
	// In a shared temporary directory somebody else may have been first.
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("run directories: %s is not a directory that only you can enter: remove it, or set XDG_RUNTIME_DIR or TMPDIR to a directory of your own", root)
	}
	l := flock.New(filepath.Join(root, ".lock"), flock.SetPermissions(0o600))
	if err := l.Lock(); err != nil {
		return nil, fmt.Errorf("run directories: %w", err)
	}
	return func() { _ = l.Close() }, nil
}

// sweep removes the run directories whose owner is gone and that nobody asked to keep. The root's lock is held.
func sweep(root string) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("run directories: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		if !e.IsDir() || exists(filepath.Join(dir, keepFile)) || inUse(dir) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("run directory %s, left by a lab that died: %w", dir, err)
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// inUse reports whether a lab holds the directory. The lock taken to find out is shared, so that two who ask do not see each other.
func inUse(dir string) bool {
	path := filepath.Join(dir, ownerFile)
	if !exists(path) {
		return false
	}
	l := flock.New(path, flock.SetFlag(os.O_RDONLY))
	defer l.Close()
	free, err := l.TryRLock()
	return !free || err != nil
}

// startReaper starts a shell that waits for the end of its input. One word means that the lab has done its own cleaning; none, that the lab is gone.
// The second removal catches what a dying QEMU may have made after the first. When startReaper returns, the reaper has left the lab's process group and no longer dies with it.
func (d *RunDir) startReaper() error {
	const script = `read -r word || [ -e "$0/` + keepFile + `" ] || { rm -rf -- "$0"; sleep 1; rm -rf -- "$0"; }`
	c := exec.Command("/bin/sh", "-c", script, d.Path)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a Ctrl-C is for the lab
	cord, err := c.StdinPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	d.reaper, d.cord = c, cord
	return nil
}

// Keep makes the directory outlive the VM and the lab; whoever asked for it removes it.
func (d *RunDir) Keep() error {
	if err := os.WriteFile(filepath.Join(d.Path, keepFile), nil, 0o600); err != nil {
		return fmt.Errorf("run directory %s: %w", d.Path, err)
	}
	return nil
}

// Close removes the directory unless it is to be kept. It may be called again.
func (d *RunDir) Close() error {
	d.close.Do(func() { d.err = d.remove() })
	return d.err
}

func (d *RunDir) remove() error {
	var err error
	if exists(filepath.Join(d.Path, keepFile)) {
		err = ignoreMissing(os.Remove(filepath.Join(d.Path, stateFile)))
	} else {
		err = os.RemoveAll(d.Path)
	}
	if d.reaper != nil {
		_, _ = io.WriteString(d.cord, "done\n")
		_ = d.cord.Close()
		_ = d.reaper.Wait()
	}
	if d.owner != nil {
		_ = d.owner.Close()
	}
	if err != nil {
		return fmt.Errorf("run directory %s: %w", d.Path, err)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Running is a VM that some lab of this user runs.
type Running struct {
	Name      string `json:"name"`
	Dir       string `json:"-"`
	SSHSocket string `json:"-"`
	PID       int    `json:"pid"` // QEMU's
}

// publish lets others find the VM.
func (d *RunDir) publish(pid int) error {
	b, err := json.Marshal(Running{Name: d.Name, PID: pid})
	if err != nil {
		return err
	}
	path := filepath.Join(d.Path, stateFile)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	return nil
}

// List returns the running VMs by name. A run directory that cannot be read is left out: its VM is coming or going.
func List() []Running { return list(RunDirRoot()) }

func list(root string) []Running {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil
	}
	var vms []Running
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		b, err := os.ReadFile(filepath.Join(dir, stateFile))
		if err != nil || !inUse(dir) {
			continue
		}
		r := Running{Dir: dir, SSHSocket: filepath.Join(dir, sshSocket)}
		if json.Unmarshal(b, &r) != nil || !namePattern.MatchString(r.Name) {
			continue
		}
		vms = append(vms, r)
	}
	slices.SortFunc(vms, func(a, b Running) int { return strings.Compare(a.Name+a.Dir, b.Name+b.Dir) })
	return vms
}

// NotRunningError is the answer to Find when there is not exactly one such VM.
type NotRunningError struct {
	Name    string
	Running []Running // all of them, or those that share the name
	Several bool
}

func (e *NotRunningError) Error() string {
	var names []string
	for _, r := range e.Running {
		if e.Several {
			names = append(names, filepath.Base(r.Dir))
		} else {
			names = append(names, r.Name)
		}
	}
	switch {
	case e.Several:
		return fmt.Sprintf("VM %q: several run under that name; say which: %s", e.Name, strings.Join(names, ", "))
	case len(names) == 0:
		return fmt.Sprintf("VM %q: no VM is running", e.Name)
	}
	return fmt.Sprintf("VM %q: not running; there are: %s", e.Name, strings.Join(names, ", "))
}

// Find returns the running VM of that name, or of that run directory's name where several share one. The error is a *NotRunningError.
func Find(name string) (Running, error) { return find(List(), name) }

func find(vms []Running, name string) (Running, error) {
	var same []Running
	for _, r := range vms {
		if filepath.Base(r.Dir) == name {
			return r, nil
		}
		if r.Name == name {
			same = append(same, r)
		}
	}
	switch len(same) {
	case 0:
		return Running{}, &NotRunningError{Name: name, Running: vms}
	case 1:
		return same[0], nil
	}
	return Running{}, &NotRunningError{Name: name, Running: same, Several: true}
}
