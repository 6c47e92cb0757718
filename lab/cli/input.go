package cli

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
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
	}{untilDone(ctx, f), f}, nil
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

// untilDone reads until ctx is done, be it while nothing comes.
func untilDone(ctx context.Context, r io.Reader) io.Reader { return (&inTurn{from: r}).until(ctx) }

// inTurn is what several read in turn. A read that its reader no longer waits for goes on, and what it brings is the next reader's.
type inTurn struct {
	from io.Reader

	mu     sync.Mutex
	coming chan piece // of the read under way, if one is
	rest   piece      // not taken yet
}

type piece struct {
	b   []byte
	err error
}

// until reads for as long as ctx is not done.
func (s *inTurn) until(ctx context.Context) io.Reader { return &turn{ctx, s} }

type turn struct {
	ctx context.Context
	s   *inTurn
}

const leastRead = 4096

func (t *turn) Read(p []byte) (int, error) {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := context.Cause(t.ctx); err != nil {
		return 0, err
	}
	if len(s.rest.b) == 0 && s.rest.err == nil {
		if s.coming == nil {
			s.coming = make(chan piece, 1)
			go func(c chan<- piece) {
				b := make([]byte, max(len(p), leastRead)) // p is the caller's again once we return
				n, err := s.from.Read(b)
				c <- piece{b[:n], err}
			}(s.coming)
		}
		select {
		case s.rest = <-s.coming:
			s.coming = nil
		case <-t.ctx.Done():
			return 0, context.Cause(t.ctx)
		}
	}
	n := copy(p, s.rest.b)
	s.rest.b = s.rest.b[n:]
	if n > 0 {
		return n, nil
	}
	return 0, s.rest.err
}
