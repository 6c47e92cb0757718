package vfiouser

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDescriptorsStayWithTheirMessage has a message whose descriptor was read with its header, while its body arrives together with the next message and that one's
// descriptor: each keeps its own.
func TestDescriptorsStayWithTheirMessage(t *testing.T) {
	t.Parallel()
	ours, theirs := socketPair(t, unix.SOCK_STREAM)
	defer ours.Close()
	defer theirs.Close()
	c := &client{t: t, conn: ours}
	l := &link{conn: theirs, buf: make([]byte, 128)}
	message := func(id uint16, size int) []byte {
		return append(encoded(&Header{ID: id, Command: CmdDMAMap, Size: uint32(headerSize + size)}, headerSize), make([]byte, size)...)
	}
	files := []int{memfd(t, dmaPage), memfd(t, 2*dmaPage)}
	first, second := message(1, 32), message(2, 32)
	c.raw(first[:20], files[0])
	if err := l.fill(headerSize); err != nil {
		t.Fatal(err)
	}
	c.raw(first[20:])
	c.raw(second, files[1])
	c.raw(message(3, 100)) // makes the buffer grow
	var turn atomic.Uint64
	for id := range uint16(3) {
		h, body, fds, err := l.next(&turn)
		if err != nil || h.ID != id+1 || len(body) != int(h.Size)-headerSize {
			t.Fatalf("message %d: %+v, %d bytes, %v", id+1, h, len(body), err)
		}
		want := 1
		if h.ID == 3 {
			want = 0
		}
		if len(fds) != want {
			t.Fatalf("message %d came with %d descriptors, want %d", h.ID, len(fds), want)
		}
		for _, fd := range fds {
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil || st.Size != int64(h.ID)*dmaPage {
				t.Errorf("message %d has a file of %d bytes, %v", h.ID, st.Size, err)
			}
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("message %d: a child process would inherit the descriptor", h.ID)
			}
		}
		closeAll(fds)
	}
	if turn.Load() != 3 {
		t.Errorf("%d turns for 3 messages", turn.Load())
	}
}

// TestAnswerAfterAPause: after a process was stopped, the watch may be as late as the reply, so the reply looks at the clock itself.
func TestAnswerAfterAPause(t *testing.T) {
	t.Parallel()
	ours, theirs := socketPair(t, unix.SOCK_STREAM)
	defer ours.Close()
	s := &session{link: link{conn: theirs, arrived: time.Now().Add(-2 * replyLimit)}, dev: newBoard(), out: make([]byte, initialBuffer), limit: replyLimit, negotiated: true}
	if err := s.answer(Header{Command: CmdReset, Size: headerSize}, nil, nil); !errors.Is(err, ErrLate) {
		t.Errorf("answer: %v, want ErrLate", err)
	}
	_ = theirs.Close()
	if n, err := ours.Read(make([]byte, 64)); n != 0 {
		t.Errorf("%d bytes were sent, %v", n, err)
	}
}
