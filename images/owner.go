package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// What lies in a cache is run: QEMU with its libraries and, in a guest that maps its memory, kernels. So it must be this user's own, or root's, who could do anyhow
// as they like. OpenCache refuses a cache that somebody else could have filled, and an entry that somebody else made counts as damaged.

const ownCache = "set IRQLAB_CACHE to a directory of your own"

// checkOwner refuses a cache directory that is, or could have been filled, by somebody else.
func checkOwner(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("cache %s: %w", dir, err)
	}
	if err := ours(st); err != nil {
		return fmt.Errorf("cache %s: %w, who can put there what would be run as %s (%s)", dir, err, userName(os.Geteuid()), ownCache)
	}
	inside, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cache %s: %w (%s)", dir, err, ownCache)
	}
	if len(inside) > 0 && st.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("cache %s: others can write to it (mode %04o), and what they put there would be run as %s: remove it and let it be made anew (or %s)",
			dir, st.Mode().Perm(), userName(os.Geteuid()), ownCache)
	}
	for _, e := range inside {
		st, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) { // another process's, gone meanwhile
			continue
		}
		if err == nil {
			err = ours(st)
		}
		if err != nil {
			return fmt.Errorf("cache %s: %s: %w: remove it (or %s)", dir, e.Name(), err, ownCache)
		}
	}
	if os.Geteuid() != 0 {
		return nil // who owns a user's parent directories is for the machine's administrator to settle
	}
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("cache %s: %w", dir, err)
	}
	for parent := filepath.Dir(resolved); ; parent = filepath.Dir(parent) {
		st, err := os.Stat(parent)
		if err != nil {
			return fmt.Errorf("cache %s: %w", dir, err)
		}
		err = ours(st)
		if err == nil && st.Mode().Perm()&0o002 != 0 && st.Mode()&fs.ModeSticky == 0 {
			err = errors.New("anybody can write to it")
		}
		if err != nil {
			return fmt.Errorf("cache %s: %s: %w, and so another cache could take the place of this one, to be run as root (%s)", dir, parent, err, ownCache)
		}
		if parent == filepath.Dir(parent) {
			return nil
		}
	}
}

// ours is an error for what belongs to neither this user nor root.
func ours(st fs.FileInfo) error {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || sys.Uid == 0 || int(sys.Uid) == os.Geteuid() {
		return nil
	}
	return fmt.Errorf("it belongs to %s", userName(int(sys.Uid)))
}

func userName(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return "user " + id
}
