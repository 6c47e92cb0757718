// Package sshd is the guest's SSH server on a byte stream: public keys only, one client per stream, sessions with shell or command.
package sshd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"irqlab/guestagent/child"
)

// Config is what a Server needs. All fields but Env are required.
type Config struct {
	HostKey    func() (ssh.Signer, error) // asked for each connection
	Authorized []ssh.PublicKey            // who may log in
	User       string                     // the one user name accepted
	Shells     []string                   // absolute paths; the first that exists is the shell
	Env        []string                   // of every process
	Reaper     *child.Reaper
	Log        func(format string, args ...any) // may be nil
}

// Server serves connections one by one or at once.
type Server struct{ cfg Config }

const (
	handshakeTimeout = time.Minute // generous: a guest with many emulated CPUs is slow
	maxChannels      = 32          // per connection
)

// New makes a Server.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = func(string, ...any) {}
	}
	return &Server{cfg: cfg}
}

func (s *Server) authorize(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	if meta.User() != s.cfg.User {
		return nil, fmt.Errorf("user %q: only %q exists", meta.User(), s.cfg.User)
	}
	for _, k := range s.cfg.Authorized {
		if bytes.Equal(k.Marshal(), key.Marshal()) {
			return nil, nil
		}
	}
	return nil, fmt.Errorf("key %s is not authorized", ssh.FingerprintSHA256(key))
}

// Serve serves one client until it leaves, which is no error, or ctx ends. It closes conn and ends all the client started.
func (s *Server) Serve(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	// A client that stops talking amid the handshake must not keep the next one out.
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return fmt.Errorf("SSH: %w", err)
	}
	key, err := s.cfg.HostKey()
	if err != nil {
		return fmt.Errorf("SSH host key: %w", err)
	}
	cfg := &ssh.ServerConfig{ServerVersion: "SSH-2.0-irqlab", PublicKeyCallback: s.authorize}
	cfg.AddHostKey(key)
	sc, channels, requests, err := ssh.NewServerConn(conn, cfg)
	if err != nil {
		return fmt.Errorf("SSH handshake: %w", err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return fmt.Errorf("SSH: %w", err)
	}
	go ssh.DiscardRequests(requests)

	var sessions sync.WaitGroup
	slots := make(chan struct{}, maxChannels)
	for nc := range channels {
		if nc.ChannelType() != "session" {
			_ = nc.Reject(ssh.UnknownChannelType, "only session channels are served")
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			_ = nc.Reject(ssh.ResourceShortage, "too many channels")
			continue
		}
		ch, reqs, err := nc.Accept()
		if err != nil {
			<-slots
			continue
		}
		sessions.Go(func() {
			defer func() { <-slots }()
			defer s.guard("SSH session")
			newSession(s, ch, reqs).serve(ctx)
		})
	}
	cancel()
	sessions.Wait()
	if err := sc.Wait(); !left(err) {
		return fmt.Errorf("SSH: %w", err)
	}
	return nil
}

// left tells a client that went away, with or without a word, and with or without having read what was said to it, from a broken conversation.
func left(err error) bool {
	return err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		strings.Contains(err.Error(), "disconnect, reason 11:") // SSH_DISCONNECT_BY_APPLICATION; x/crypto/ssh exports no type for it
}

// guard keeps a panic from ending PID 1 and with it the kernel; call it deferred.
func (s *Server) guard(what string) {
	if p := recover(); p != nil {
		s.cfg.Log("%s: panic: %v\n%s", what, p, debug.Stack())
	}
}

// shell returns the first shell there is.
func (s *Server) shell() (string, error) {
	for _, p := range s.cfg.Shells {
		if st, err := os.Stat(p); err == nil && !st.IsDir() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("this image has no shell: none of %q exists", s.cfg.Shells)
}
