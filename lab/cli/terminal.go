package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/term"
)

// terminal gives the session a terminal like ours, puts ours into raw mode, and passes changes of its size on until restore is called.
func terminal(ctx context.Context, sess *ssh.Session, tty *os.File) (restore func(), err error) {
	fd := int(tty.Fd())
	width, height, err := term.GetSize(fd)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	name := os.Getenv("TERM")
	if name == "" {
		name = "vt100"
	}
	if err := sess.RequestPty(name, height, width, ssh.TerminalModes{}); err != nil {
		return nil, fmt.Errorf("guest: terminal: %w", err)
	}
	old, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-resized:
				if w, h, err := term.GetSize(fd); err == nil {
					_ = sess.WindowChange(h, w)
				}
			}
		}
	}()
	return func() {
		cancel()
		signal.Stop(resized)
		_ = term.Restore(fd, old)
	}, nil
}
