package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	seatPatience = 3 * time.Second        // for the guest's first word; doubled each time it does not come
	seatPause    = 100 * time.Millisecond // between attempts
)

// greeting begins whatever an SSH server says.
var greeting = []byte("SSH-")

// seat is a connection to a guest's one seat for people.
//
// QEMU joins and parts hosts and the guest's port without either side of the port being told in time: what the guest still had to say to the former host may reach the
// next, and what the next says first may reach a server that was still about the former. So the seat is not taken before the guest has greeted, and until then it is
// asked for again. The guest answers and does not begin; the first thing written is therefore kept, to be said as often as it takes.
type seat struct {
	ctx    context.Context
	cancel context.CancelFunc
	path   string

	begin sync.Once
	taken chan struct{} // closed when conn or err is set
	conn  net.Conn
	first []byte // of the guest's answer
	err   error
}

// newSeat makes a seat at the socket; ctx bounds the taking of it, not its use.
func newSeat(ctx context.Context, path string) *seat {
	ctx, cancel := context.WithCancel(ctx)
	return &seat{ctx: ctx, cancel: cancel, path: path, taken: make(chan struct{})}
}

func (s *seat) take(hello []byte) {
	defer close(s.taken)
	var last error
	for patience := seatPatience; ; patience *= 2 {
		if s.conn, s.first, last = ask(s.ctx, s.path, hello, patience); last == nil {
			return
		}
		select {
		case <-s.ctx.Done():
			s.err = fmt.Errorf("%w (%w)", context.Cause(s.ctx), last)
			return
		case <-time.After(seatPause):
		}
	}
}

// ask connects, says hello, and returns the connection with the beginning of the guest's greeting.
func ask(ctx context.Context, path string, hello []byte, patience time.Duration) (_ net.Conn, first []byte, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer func() {
		stop()
		if err != nil {
			conn.Close()
		}
	}()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, nil, err
	}
	if _, err := conn.Write(hello); err != nil {
		return nil, nil, err
	}
	first = make([]byte, len(greeting))
	if _, err := io.ReadFull(conn, first); err != nil {
		return nil, nil, fmt.Errorf("no greeting: %w", err)
	}
	if !bytes.Equal(first, greeting) {
		return nil, nil, fmt.Errorf("the guest says %q, which is meant for somebody who has left", first)
	}
	return conn, first, conn.SetDeadline(time.Time{})
}

func (s *seat) Write(p []byte) (int, error) {
	mine := false
	s.begin.Do(func() {
		mine = true
		s.take(p)
	})
	<-s.taken
	switch {
	case s.err != nil:
		return 0, s.err
	case mine:
		return len(p), nil
	}
	return s.conn.Write(p)
}

func (s *seat) Read(p []byte) (int, error) {
	select {
	case <-s.taken:
	case <-s.ctx.Done():
		s.giveUp(context.Cause(s.ctx))
	}
	if s.err != nil {
		return 0, s.err
	}
	if len(s.first) > 0 {
		n := copy(p, s.first)
		s.first = s.first[n:]
		return n, nil
	}
	return s.conn.Read(p)
}

// giveUp is the end of a seat that nobody has begun to take; one that is being taken is waited for.
func (s *seat) giveUp(err error) {
	s.begin.Do(func() {
		s.err = err
		close(s.taken)
	})
	<-s.taken
}

// CloseWrite tells the guest's side that nothing more comes.
func (s *seat) CloseWrite() error {
	s.giveUp(errors.New("the guest was told nothing"))
	if s.err != nil {
		return s.err
	}
	return s.conn.(*net.UnixConn).CloseWrite()
}

// Close leaves the seat, or gives up taking it.
func (s *seat) Close() error {
	s.cancel()
	s.giveUp(net.ErrClosed)
	if s.conn == nil {
		return nil
	}
	return s.conn.Close()
}
