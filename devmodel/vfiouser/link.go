package vfiouser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// initialBuffer holds every message QEMU sends; only a transfer larger than that makes a buffer grow, up to maxMessage.
	initialBuffer = 8 << 10
	// oobSize is room for MaxDescriptors descriptors in one control message.
	oobSize = 16 + 4*MaxDescriptors
)

// link cuts the byte stream into messages and gives each the descriptors that came with it.
//
// It reads ahead, as much as the buffer holds, so that a message usually costs one system call. Descriptors cannot be read past: the kernel ends a read after the
// piece of the stream that carried some, so they belong to the last message that begins in what was read. While a message that owns descriptors is incomplete,
// reads stop at its end, so that never more than one message's are held.
type link struct {
	conn *net.UnixConn
	buf  []byte
	r, w int // buf[r:w] is read but not yet taken
	oob  [oobSize]byte

	// arrived is when the newest bytes were read: no earlier than the message in hand came, and the best that can be known of it.
	arrived time.Time

	fds       [MaxDescriptors]int
	numFDs    int
	fdsAt     int  // index into buf of the message that owns them
	lost      bool // the kernel or this link dropped some of them
	current   [MaxDescriptors]int
	truncated bool // the message in hand lost descriptors
}

// next returns the next message: its header, its body (valid until the following call) and its descriptors (the caller's to close). turn is counted up once the
// first byte of the message is there.
func (l *link) next(turn *atomic.Uint64) (h Header, body []byte, fds []int, err error) {
	counted := false
	for want := headerSize; ; {
		have := l.w - l.r
		if have > 0 && !counted {
			turn.Add(1)
			counted = true
		}
		if have >= headerSize {
			h.decode(l.buf[l.r:])
			if h.Size < headerSize || h.Size > maxMessage {
				return h, nil, nil, fmt.Errorf("%w: a message of %d bytes; the limits are %d and %d", ErrProtocol, h.Size, headerSize, maxMessage)
			}
			want = int(h.Size)
		}
		if have >= want && have >= headerSize {
			break
		}
		if err := l.fill(want); err != nil {
			if errors.Is(err, io.EOF) && l.w > l.r {
				err = fmt.Errorf("%w: the stream ends inside a message", ErrProtocol)
			}
			return h, nil, nil, err
		}
	}
	l.truncated = false
	if (l.numFDs > 0 || l.lost) && l.fdsAt == l.r {
		fds = l.current[:copy(l.current[:], l.fds[:l.numFDs])]
		l.truncated = l.lost
		l.numFDs, l.lost = 0, false
	}
	body = l.buf[l.r+headerSize : l.r+int(h.Size)]
	l.r += int(h.Size)
	return h, body, fds, nil
}

// fill reads more of the stream, making room for a message of want bytes at l.r.
func (l *link) fill(want int) error {
	if l.r == l.w {
		l.r, l.w = 0, 0
	}
	if l.r+want > len(l.buf) {
		// Nothing but the incomplete message is left, so descriptors held are its own.
		buf := l.buf
		if want > len(buf) {
			buf = make([]byte, want)
		}
		l.w = copy(buf, l.buf[l.r:l.w])
		l.r, l.buf, l.fdsAt = 0, buf, 0
	}
	room := l.buf[l.w:]
	if l.numFDs > 0 || l.lost {
		room = l.buf[l.w : l.r+want]
	}
	n, oobn, flags, _, err := l.conn.ReadMsgUnix(room, l.oob[:])
	l.arrived = time.Now()
	if oobn > 0 || flags&unix.MSG_CTRUNC != 0 {
		l.take(l.oob[:oobn], flags, l.w+n)
	}
	l.w += n
	if err != nil {
		return err
	}
	if n == 0 {
		return io.EOF
	}
	return nil
}

// take keeps the descriptors in control messages for the last message that begins in buf[:end].
func (l *link) take(oob []byte, flags, end int) {
	if l.numFDs == 0 && !l.lost {
		l.fdsAt = l.r
		for {
			at := l.fdsAt
			if at+headerSize > end {
				break
			}
			var h Header
			h.decode(l.buf[at:])
			if h.Size < headerSize || h.Size > maxMessage || at+int(h.Size) >= end {
				break
			}
			l.fdsAt = at + int(h.Size)
		}
	}
	if flags&unix.MSG_CTRUNC != 0 {
		l.lost = true
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		l.lost = true
		return
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if l.numFDs == len(l.fds) {
				l.lost = true
				_ = unix.Close(fd)
				continue
			}
			l.fds[l.numFDs] = fd
			l.numFDs++
		}
	}
}

// closeFDs closes descriptors of a message that never became complete.
func (l *link) closeFDs() {
	closeAll(l.fds[:l.numFDs])
	l.numFDs = 0
}

func closeAll(fds []int) {
	for i, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
			fds[i] = -1
		}
	}
}
