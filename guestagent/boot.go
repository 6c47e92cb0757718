//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mount is one file system PID 1 mounts.
type mount struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
	optional               bool // not every kernel has it
}

// mounts in order: /dev first, since the console lives there.
var mounts = []mount{
	{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755", false},
	{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "", false},
	{"sysfs", "/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "", false},
	{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620", false},
	{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777", false},
	{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755", false},
	{"tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777", false},
	{"debugfs", "/sys/kernel/debug", "debugfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "", true},
}

func mountAll() error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil && !m.optional {
			return fmt.Errorf("mounting %s: %w", m.fstype, err)
		}
		err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data)
		if err != nil && !m.optional && !errors.Is(err, unix.EBUSY) { // EBUSY: the kernel mounted it already
			return fmt.Errorf("mounting %s on %s: %w", m.fstype, m.target, err)
		}
	}
	return nil
}

// takeConsole makes the console standard input, output and error, in case the initramfs had no console node to start with.
func takeConsole() {
	fd, err := unix.Open("/dev/console", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // no console: nobody to tell
	}
	for std := range 3 {
		if err := unix.Dup3(fd, std, 0); err != nil {
			say("console: %v", err)
		}
	}
	unix.Close(fd)
}

// environment is what every process in the guest starts with; PID 1 takes it too.
func environment() []string {
	_ = os.MkdirAll("/root", 0o700)
	var env []string
	for _, v := range [][2]string{
		{"PATH", "/bbin:/bin:/sbin:/usr/bin:/usr/sbin:/usr/local/bin"},
		{"HOME", "/root"}, {"USER", "root"}, {"LOGNAME", "root"}, {"SHELL", "/bin/sh"}, {"TMPDIR", "/tmp"}, {"TERM", "vt100"}, {"LANG", "C.UTF-8"},
	} {
		_ = os.Setenv(v[0], v[1])
		env = append(env, v[0]+"="+v[1])
	}
	return env
}

// raiseFileLimit makes room for an eventfd per vector of several 2048-vector functions.
func raiseFileLimit() {
	limit := unix.Rlimit{Cur: 65536, Max: 65536}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		say("file limit: %v", err)
	}
}
