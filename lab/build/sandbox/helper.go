package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func init() {
	if len(os.Args) == 1 && os.Args[0] == helperName && os.Getpid() == 1 {
		runtime.LockOSThread() // what a thread gives up is its own alone
		help()
	}
}

// help sets up the namespaces that this process is the first one in, and becomes the program; it does not return.
func help() {
	syscall.CloseOnExec(orderFD)
	syscall.CloseOnExec(troubleFD)
	var o order
	step, err := "order", json.NewDecoder(os.NewFile(orderFD, "order")).Decode(&o)
	refused := false
	if err == nil {
		step, err = o.enter()
		refused = err != nil
	}
	if err == nil {
		step, err = o.limit()
	}
	if err == nil {
		step = o.Args[0]
		err = unix.Exec(o.Args[0], o.Args, o.Env)
	}
	t := trouble{Step: step, Errno: syscall.EIO, Overlay: errors.As(err, new(*OverlayError)), Refused: refused && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES))}
	errors.As(err, &t.Errno)
	_ = json.NewEncoder(os.NewFile(troubleFD, "trouble")).Encode(t)
	os.Exit(126)
}

// enter makes o.Root the root of this process's own mount namespace.
func (o *order) enter() (step string, err error) {
	mount := func(from, to, fs string, flags uintptr, data string) bool {
		step, err = fmt.Sprintf("mounting %s on %s", from, to), unix.Mount(from, to, fs, flags, data)
		return err == nil
	}
	if !mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") || !mount(o.Root, o.Root, "", unix.MS_BIND, "") {
		return step, err
	}
	in := func(path string) string { return filepath.Join(o.Root, path) }

	const plain = unix.MS_NOSUID | unix.MS_NODEV
	if !mount("tmpfs", in("tmp"), "tmpfs", plain, "size=512m,mode=1777") || !mount("tmpfs", in("dev"), "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "size=64k,mode=755") {
		return step, err
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom"} {
		node := in("dev/" + name)
		if step, err = node, os.WriteFile(node, nil, 0o600); err != nil {
			return step, err
		}
		if !mount("/dev/"+name, node, "", unix.MS_BIND, "") {
			return step, err
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if step, err = "dev/"+name, os.Symlink(target, in("dev/"+name)); err != nil {
			return step, err
		}
	}
	// A container may hide parts of its /proc, and then the kernel lets nobody mount a whole one. A build can do without.
	_ = unix.Mount("proc", in("proc"), "proc", plain|unix.MS_NOEXEC, "")

	for _, m := range o.Mounts {
		if len(m.Over) > 0 {
			step, err = m.overlay(in(m.To))
			if err != nil {
				return step, err
			}
		} else if !mount(m.From, in(m.To), "", unix.MS_BIND, "") {
			return step, err
		}
		if step, err = "protecting "+m.To, protect(in(m.To), !m.Write); err != nil {
			return step, err
		}
	}
	if step, err = "protecting dev", protect(in("dev"), true); err != nil {
		return step, err
	}
	if step, err = "protecting /", protect(o.Root, true); err != nil {
		return step, err
	}
	if step, err = "a root of its own", unix.Chdir(o.Root); err != nil {
		return step, err
	}
	if err = unix.PivotRoot(".", "."); err != nil {
		return step, err
	}
	if err = unix.Unmount(".", unix.MNT_DETACH); err != nil { // the old root, which lies on top
		return step, err
	}
	_ = unix.Sethostname([]byte("irqlab"))
	return o.Dir, unix.Chdir(o.Dir)
}

// overlay mounts From over other directories on a place. They are named by descriptors, since a path may hold what separates options.
func (m *Mount) overlay(on string) (step string, err error) {
	var names []string
	for _, dir := range append([]string{m.From, m.Scratch}, m.Over...) {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return dir, err
		}
		defer unix.Close(fd)
		names = append(names, fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	options := fmt.Sprintf("userxattr,upperdir=%s,workdir=%s,lowerdir=%s", names[0], names[1], strings.Join(names[2:], ":"))
	if err := unix.Mount("overlay", on, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return "laying directories over each other", &OverlayError{err}
	}
	root, err := os.OpenRoot(on)
	if err != nil {
		return on, err
	}
	defer root.Close()
	for _, name := range m.Remove {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return name, err
		}
	}
	return "", nil
}

// protect makes a mount read-only if it is to be, and denies it set-user-ID programs. Flags that the host has set must be set again: in a user namespace they are locked.
func protect(path string, readOnly bool) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return err
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NOSUID)
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	for _, f := range []struct {
		have int64
		flag uintptr
	}{
		{unix.ST_RDONLY, unix.MS_RDONLY}, {unix.ST_NODEV, unix.MS_NODEV}, {unix.ST_NOEXEC, unix.MS_NOEXEC},
		{unix.ST_NOATIME, unix.MS_NOATIME}, {unix.ST_NODIRATIME, unix.MS_NODIRATIME}, {unix.ST_RELATIME, unix.MS_RELATIME},
	} {
		if st.Flags&f.have != 0 {
			flags |= f.flag
		}
	}
	return unix.Mount("", path, "", flags, "")
}

// limit gives up for good what the program has no use for.
func (o *order) limit() (step string, err error) {
	unix.Umask(0o077)
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return "no core files", err
	}
	if o.MaxFile > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(o.MaxFile), Max: uint64(o.MaxFile)}); err != nil {
			return "size of files", err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return "no new privileges", err
	}
	for cap := uintptr(0); cap < 64; cap++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, cap, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: beyond the last one there is
			return "capabilities", err
		}
	}
	// Exec by user 0 gives back what the bounding set has, which is nothing.
	var data [2]unix.CapUserData
	return "capabilities", unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
}
