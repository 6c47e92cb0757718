// Package kmsg reads the kernel log through /dev/kmsg. It knows the record format (Documentation/ABI/testing/dev-kmsg), not what is a problem.
package kmsg

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
)

// recordSize is larger than the kernel's own bound on one formatted record (PRINTK_MESSAGE_MAX, 2 KiB), which escaping may quadruple.
const recordSize = 16 << 10

// ParseRecord reads "prefix,seq,usec,flags[,…];text\n KEY=value…". The KEY=value lines are dropped.
func ParseRecord(b []byte) (agentapi.LogRecord, error) {
	head, body, ok := bytes.Cut(b, []byte(";"))
	if !ok {
		return agentapi.LogRecord{}, fmt.Errorf("kernel log record %.40q has no ';'", b)
	}
	f := strings.SplitN(string(head), ",", 4)
	if len(f) < 3 {
		return agentapi.LogRecord{}, fmt.Errorf("kernel log record %.40q has fewer than three fields", b)
	}
	prefix, err := strconv.ParseUint(f[0], 10, 32)
	if err != nil {
		return agentapi.LogRecord{}, fmt.Errorf("kernel log record %.40q: priority: %w", b, err)
	}
	seq, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		return agentapi.LogRecord{}, fmt.Errorf("kernel log record %.40q: sequence number: %w", b, err)
	}
	usec, err := strconv.ParseUint(f[2], 10, 63)
	if err != nil {
		return agentapi.LogRecord{}, fmt.Errorf("kernel log record %.40q: time: %w", b, err)
	}
	text, _, _ := bytes.Cut(body, []byte("\n"))
	return agentapi.LogRecord{Seq: seq, Seconds: float64(usec) / 1e6, Level: int(prefix & 7), Text: unescape(text)}, nil
}

// unescape turns the \xNN of backslashes and of bytes above ASCII back; control characters stay escaped, since the text ends up on terminals.
func unescape(text []byte) string {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+4 <= len(text) && text[i+1] == 'x' {
			if c, err := strconv.ParseUint(string(text[i+2:i+4]), 16, 8); err == nil && (c == '\\' || c >= 0x80) {
				out = append(out, byte(c))
				i += 3
				continue
			}
		}
		out = append(out, text[i])
	}
	return strings.ToValidUTF8(string(out), "\uFFFD")
}

// Levels of a line that is added. By default no console shows the one, and every console the other.
const (
	Debug   = 7
	Warning = 4
)

// Mark adds a line to the kernel log and returns its record. The kernel stamps it while it is written.
func Mark(path string, level int, text string) (agentapi.LogRecord, error) {
	// A descriptor of its own: the kernel limits the rate of writes through one.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return agentapi.LogRecord{}, fmt.Errorf("kernel log: %s: %w", path, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil { // what is read from here on is new
		return agentapi.LogRecord{}, fmt.Errorf("kernel log: going to its end: %w", err)
	}
	// Without its newline the line could go on, and readers would not be given it yet.
	if _, err := unix.Write(fd, fmt.Appendf(nil, "<%d>%s\n", level, text)); err != nil {
		return agentapi.LogRecord{}, fmt.Errorf("kernel log: writing a line: %w", err)
	}
	buf := make([]byte, recordSize)
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EPIPE):
			continue
		case errors.Is(err, unix.EAGAIN):
			return agentapi.LogRecord{}, fmt.Errorf("kernel log: the line %q was written and is not there (printk.devkmsg=off?)", text)
		case err != nil:
			return agentapi.LogRecord{}, fmt.Errorf("kernel log: %w", err)
		}
		if rec, err := ParseRecord(buf[:n]); err != nil || rec.Text == text {
			return rec, err
		}
	}
}

// Read returns the records after sequence number after (0: all), without waiting for new ones. Lost says that records between after and the
// first one returned have been overwritten.
func Read(path string, after uint64) (agentapi.LogResult, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return agentapi.LogResult{}, fmt.Errorf("kernel log: %s: %w", path, err)
	}
	defer unix.Close(fd)
	out := agentapi.LogResult{Records: []agentapi.LogRecord{}} // never null in JSON
	buf := make([]byte, recordSize)
	first := true
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EPIPE): // overwritten while reading: the next read continues at the oldest record
			out.Lost = true
			continue
		case errors.Is(err, unix.EAGAIN):
			return out, nil
		case err != nil:
			return out, fmt.Errorf("kernel log: %w", err)
		case n == 0:
			return out, nil
		}
		rec, err := ParseRecord(buf[:n])
		if err != nil {
			return out, err
		}
		if first && (rec.Seq > after+1 || after == 0 && rec.Seq > 0) {
			out.Lost = true
		}
		first = false
		if after == 0 || rec.Seq > after {
			out.Records = append(out.Records, rec)
		}
	}
}
