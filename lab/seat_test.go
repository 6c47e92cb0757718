package lab

import (
	"bufio"
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// listen answers the first clients of a socket as told, the last answer for all that follow: "" hangs up, "-" says nothing.
func listen(t *testing.T, answers ...string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for i := 0; ; i++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			answer := answers[min(i, len(answers)-1)]
			hello, _ := bufio.NewReader(c).ReadString('\n')
			switch answer {
			case "":
				c.Close()
			case "-":
				t.Cleanup(func() { c.Close() })
			default:
				_, _ = io.WriteString(c, answer+hello)
				if c, ok := c.(*net.UnixConn); ok {
					_ = c.CloseWrite()
				}
			}
		}
	}()
	return path
}

// TestSeat makes sure that a client meets a guest that speaks to it, and not what was left for another.
func TestSeat(t *testing.T) {
	t.Parallel()
	for what, answers := range map[string][]string{
		"at once":                {"SSH-2.0-irqlab "},
		"after leftovers":        {"\x0f\xb0\xcc\xd7 SSH-", "SSH-2.0-irqlab "},
		"after hanging up":       {"", "SSH", "SSH-2.0-irqlab "},
		"after being overheard":  {"-", "SSH-2.0-irqlab "},
		"after several of these": {"xxxx", "", "xxxxxxxx", "SSH-2.0-irqlab "},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newSeat(t.Context(), listen(t, answers...))
			defer s.Close()
			if _, err := io.WriteString(s, "SSH-2.0-me\n"); err != nil {
				t.Fatal(err)
			}
			if err := s.CloseWrite(); err != nil {
				t.Error(err)
			}
			if got, err := io.ReadAll(s); err != nil || string(got) != "SSH-2.0-irqlab SSH-2.0-me\n" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

func TestSeatNotTaken(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, io.ErrNoProgress)
	defer cancel()
	for what, path := range map[string]string{"leftovers": listen(t, "junk"), "silence": listen(t, "-"), "nobody": filepath.Join(t.TempDir(), "none")} {
		s := newSeat(ctx, path)
		if _, err := io.WriteString(s, "SSH-2.0-me\n"); err == nil || !strings.Contains(err.Error(), io.ErrNoProgress.Error()) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := s.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: read from a seat that was not taken", what)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Nothing said, nothing asked for.
	s := newSeat(t.Context(), "/no/such/socket")
	read := make(chan error, 1)
	go func() {
		_, err := s.Read(make([]byte, 1))
		read <- err
	}()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-read; err == nil {
		t.Error("read from a closed seat")
	}
}
