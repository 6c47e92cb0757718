package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// checkedWriter remembers the first error of what it wraps: a result that went nowhere is no success, whatever printed it.
type checkedWriter struct {
	io.Writer
	err    error
	failed func() // called at the first error, if given
}

func (w *checkedWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil && w.err == nil {
		w.err = err
		if w.failed != nil {
			w.failed()
		}
	}
	return n, err
}

// Unwrap is what is written to.
func (w *checkedWriter) Unwrap() io.Writer { return w.Writer }

// writable says, without writing anything, why nothing that is written could get through, as far as that can be known before: a run takes a while, and its results would be lost.
func writable(w io.Writer) error {
	if checked, ok := w.(*checkedWriter); ok {
		w = checked.Unwrap()
	}
	if closed, ok := w.(closedOutput); ok {
		return closed.error
	}
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var ready []unix.PollFd
	var failed error
	err = conn.Control(func(fd uintptr) {
		ready = []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		_, failed = unix.Poll(ready, 0)
	})
	switch {
	case err != nil:
		return err
	case failed != nil && !errors.Is(failed, unix.EINTR):
		return failed
	case ready[0].Revents&unix.POLLNVAL != 0:
		return unix.EBADF
	case ready[0].Revents&unix.POLLERR != 0: // a pipe or socket without a reader
		return unix.EPIPE
	}
	return nil
}

// outputError is the error of a command whose results did not get out.
func outputError(err error) error {
	return &exitError{ExitError, fmt.Errorf("standard output: %w", err)}
}

// closedOutput stands for a standard output that is not there.
type closedOutput struct{ error }

func (c closedOutput) Write([]byte) (int, error) { return 0, c.error }

// errClosed names both that it can be: where standard output is closed, Go's runtime puts /dev/null in its place before anybody can look, open for reading and writing.
var errClosed = errors.New("it is closed, or is /dev/null open for reading and writing, as Go opens a closed one: the results would be lost (give it a file or a pipe; " +
	"for the exit status alone, open it for writing only, as > /dev/null does; run's --out keeps them elsewhere)")

// standardOutput is the process's, or what stands for a closed one.
func standardOutput(f *os.File) io.Writer {
	var st, null unix.Stat_t
	fd := int(f.Fd())
	if unix.Fstat(fd, &st) != nil {
		return closedOutput{errClosed}
	}
	if unix.Stat(os.DevNull, &null) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != null.Rdev {
		return f
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE != unix.O_RDWR || shared(fd) {
		return f
	}
	return closedOutput{errClosed}
}

// shared tells whether a descriptor was given to us: who opened it for us gave it to standard input or error as well, or has it still.
func shared(fd int) bool {
	const file = 0 // KCMP_FILE
	same := func(pid, other int) bool {
		order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(pid), file, uintptr(fd), uintptr(other), 0)
		return errno == 0 && order == 0
	}
	for other := range 3 {
		if other != fd && same(os.Getpid(), other) || same(os.Getppid(), other) {
			return true
		}
	}
	return false
}
