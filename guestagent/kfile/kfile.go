// Package kfile reads and writes the one-value files of /proc and /sys. It knows files, not what they mean.
package kfile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/cpulist"
)

// Root is the directory that holds proc and sys; empty means "/". Tests point it at a tree of plain files.
type Root string

// Path joins elements below the root.
func (r Root) Path(elem ...string) string {
	return filepath.Join("/", string(r), filepath.Join(elem...))
}

// Bytes reads a whole file. Unlike os.ReadFile it makes no system call but those it takes: the agent reads hundreds of such files, and each call of an emulated guest is
// some ten thousand instructions.
func (r Root) Bytes(elem ...string) ([]byte, error) {
	path := r.Path(elem...)
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 4096)
	for {
		n, err := retry(func() (int, error) { return unix.Read(fd, b[len(b):cap(b)]) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return b, nil
		}
		if b = b[:len(b)+n]; len(b) == cap(b) {
			b = slices.Grow(b, cap(b))
		}
	}
}

func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR { //nolint:errorlint // a bare errno
			return n, err
		}
	}
}

// String reads a file without its surrounding white space.
func (r Root) String(elem ...string) (string, error) {
	b, err := r.Bytes(elem...)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

// Int reads a file holding one number, decimal or 0x hexadecimal.
func (r Root) Int(elem ...string) (int, error) {
	s, err := r.String(elem...)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is not a number", r.Path(elem...), s)
	}
	return int(n), nil
}

// CPUs reads a file holding a CPU list.
func (r Root) CPUs(elem ...string) (cpulist.List, error) {
	s, err := r.String(elem...)
	if err != nil {
		return nil, err
	}
	l, err := cpulist.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Path(elem...), err)
	}
	return l, nil
}

// Write stores value with one write, since each write to such a file is one command to the kernel; the file must exist.
func (r Root) Write(value string, elem ...string) error {
	path := r.Path(elem...)
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0) })
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if _, err := retry(func() (int, error) { return unix.Write(fd, []byte(value)) }); err != nil {
		return fmt.Errorf("%q: %w", value, &fs.PathError{Op: "write", Path: path, Err: err})
	}
	return nil
}

// Names lists a directory, sorted.
func (r Root) Names(elem ...string) ([]string, error) {
	path := r.Path(elem...)
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var names []string
	buf := make([]byte, 8<<10)
	for {
		n, err := retry(func() (int, error) { return unix.ReadDirent(fd, buf) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			slices.Sort(names)
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// LinkName returns the last element of a symbolic link's target, the way sysfs names a device's driver or group.
func (r Root) LinkName(elem ...string) (string, error) {
	t, err := os.Readlink(r.Path(elem...))
	if err != nil {
		return "", err
	}
	return filepath.Base(t), nil
}

// Has reports whether the file exists.
func (r Root) Has(elem ...string) bool {
	_, err := os.Lstat(r.Path(elem...))
	return err == nil
}
