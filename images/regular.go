package images

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// errNotRegular is the error of a named pipe, a socket or a device where a file was wanted. Opening or reading one could take for ever.
var errNotRegular = errors.New("not a regular file")

// openRegular opens a regular file for reading; what is none is refused without waiting for it.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) { // a socket, or a device without a driver
		return nil, fmt.Errorf("%s: %w", path, errNotRegular)
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", path, errNotRegular)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readRegular reads a regular file as a whole.
func readRegular(path string) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// regular tells whether a path is that of a regular file.
func regular(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.Mode().IsRegular()
}
