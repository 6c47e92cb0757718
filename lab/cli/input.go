package cli

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// openInput opens a file that was named on the command line. A named pipe is waited for, as is one that a shell makes of <(command), but no longer than until ctx ends;
// so is a file of /proc that calls itself regular and has nothing to say yet. What nobody can mean is refused.
func openInput(ctx context.Context, path string) (io.ReadCloser, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	switch kind := st.Mode(); {
	case kind.IsDir():
		return nil, fmt.Errorf("%s: a directory, not a file", path)
	case kind&fs.ModeSocket != 0:
		return nil, fmt.Errorf("%s: a socket, not a file", path)
	case kind&fs.ModeDevice != 0 && kind&fs.ModeCharDevice == 0:
		return nil, fmt.Errorf("%s: a block device, not a file", path)
	}
	f, err := waitOpen(ctx, path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{&untilDone{ctx, f}, f}, nil
}

// waitOpen opens what may keep who opens it waiting, until ctx is done: the opening is then left to itself.
func waitOpen(ctx context.Context, path string, flag int) (*os.File, error) {
	type answer struct {
		file *os.File
		err  error
	}
	opened := make(chan answer, 1)
	go func() {
		f, err := os.OpenFile(path, flag, 0)
		opened <- answer{f, err}
	}()
	select {
	case a := <-opened:
		return a.file, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
