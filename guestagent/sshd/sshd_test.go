package sshd

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"irqlab/guestagent/child"
)

// reaper is one for all tests: it waits for every child of the process, as PID 1 does.
var reaper = child.NewReaper()

func TestMain(m *testing.M) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { reaper.Run(ctx) })
	code := m.Run()
	cancel()
	done.Wait()
	os.Exit(code)
}

func signer(t testing.TB) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type fixture struct {
	server *Server
	host   ssh.Signer
	key    ssh.Signer
}

func newFixture(t testing.TB) *fixture {
	f := &fixture{host: signer(t), key: signer(t)}
	f.server = New(Config{
		HostKey: func() (ssh.Signer, error) { return f.host, nil }, Authorized: []ssh.PublicKey{signer(t).PublicKey(), f.key.PublicKey()}, User: "root",
		Shells: []string{"/nowhere/sh", "/bin/sh"}, Env: []string{"PATH=/usr/bin:/bin", "TERM=vt100", "PS1=$ "}, Reaper: reaper,
	})
	return f
}

// serve runs the server on one end of a socket and returns the other, and a channel that gets Serve's result.
func (f *fixture) serve(t testing.TB) (net.Conn, <-chan error) {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ours, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f.server.Serve(t.Context(), theirs) }()
	t.Cleanup(func() { ours.Close() })
	return ours, done
}

func (f *fixture) config(user string, key ssh.Signer) *ssh.ClientConfig {
	return &ssh.ClientConfig{User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.FixedHostKey(f.host.PublicKey())}
}

func (f *fixture) client(t testing.TB) (*ssh.Client, <-chan error) {
	t.Helper()
	conn, done := f.serve(t)
	c, chans, reqs, err := ssh.NewClientConn(conn, "guest", f.config("root", f.key))
	if err != nil {
		t.Fatal(err)
	}
	client := ssh.NewClient(c, chans, reqs)
	t.Cleanup(func() { client.Close() })
	return client, done
}

func open(t testing.TB, c *ssh.Client) *ssh.Session {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestAuthorization(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, cfg := range map[string]*ssh.ClientConfig{
		"wrong key":  f.config("root", signer(t)),
		"wrong user": f.config("guest", f.key),
		"password":   {User: "root", Auth: []ssh.AuthMethod{ssh.Password("")}, HostKeyCallback: ssh.FixedHostKey(f.host.PublicKey())},
		"nothing":    {User: "root", HostKeyCallback: ssh.FixedHostKey(f.host.PublicKey())},
	} {
		conn, done := f.serve(t)
		if _, _, _, err := ssh.NewClientConn(conn, "guest", cfg); err == nil {
			t.Errorf("%s: let in", name)
		}
		conn.Close()
		if err := <-done; err == nil {
			t.Errorf("%s: the server saw no error", name)
		}
	}
	c, _ := f.client(t)
	if c.User() != "root" {
		t.Errorf("user %q", c.User())
	}
}

func TestGarbage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, junk := range []string{"\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "SSH-1.5-x\r\n", "SSH-2.0-x\r\n\xff\xff\xff\xff\xff", strings.Repeat("x", 70000)} {
		conn, done := f.serve(t)
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		_, _ = io.WriteString(conn, junk)
		conn.Close()
		if err := <-done; err == nil {
			t.Errorf("%.20q was accepted", junk)
		}
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	c, _ := newFixture(t).client(t)
	s := open(t, c)
	var out, errs bytes.Buffer
	s.Stdin, s.Stdout, s.Stderr = strings.NewReader("in\n"), &out, &errs
	if err := s.Setenv("IRQLAB_X", "y z"); err != nil {
		t.Fatal(err)
	}
	err := s.Run(`cat; echo "$IRQLAB_X $TERM"; echo bad >&2; exit 7`)
	var exit *ssh.ExitError
	if !errors.As(err, &exit) || exit.ExitStatus() != 7 {
		t.Errorf("err = %v, want exit status 7", err)
	}
	if out.String() != "in\ny z vt100\n" || errs.String() != "bad\n" {
		t.Errorf("out %q, err %q", out.String(), errs.String())
	}
}

func TestExecLargeOutput(t *testing.T) {
	t.Parallel()
	c, _ := newFixture(t).client(t)
	out, err := open(t, c).Output("head -c 5000000 /dev/zero")
	if err != nil || len(out) != 5000000 {
		t.Errorf("%d bytes, %v", len(out), err)
	}
}

// A script's shell ends although what it left in the background keeps its output open; a command waits for that.
func TestBackground(t *testing.T) {
	t.Parallel()
	c, _ := newFixture(t).client(t)
	s := open(t, c)
	var out bytes.Buffer
	s.Stdin, s.Stdout = strings.NewReader("sleep 1000 & head -c 60000 /dev/zero; exit 3\n"), &out
	if err := s.Shell(); err != nil {
		t.Fatal(err)
	}
	var exit *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 3 || out.Len() != 60000 {
		t.Errorf("err = %v, %d bytes", err, out.Len())
	}
	if out, err := open(t, c).Output("(sleep .5; echo late) &"); err != nil || string(out) != "late\n" {
		t.Errorf("%q, %v", out, err)
	}
	s = open(t, c) // somebody who floods it from the background does not hold it either
	s.Stdin, s.Stdout = strings.NewReader("yes &\n"), io.Discard
	if err := s.Shell(); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
}

func TestSignals(t *testing.T) {
	t.Parallel()
	c, _ := newFixture(t).client(t)
	s := open(t, c)
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("echo up; exec sleep 1000"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if err := s.Signal(ssh.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = s.Wait()
	var exit *ssh.ExitError
	if !errors.As(err, &exit) || exit.Signal() != "TERM" {
		t.Errorf("err = %v, want signal TERM", err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, _ := f.client(t)
	if err := open(t, c).Setenv("BAD-NAME", "x"); err == nil {
		t.Error("a bad variable name was taken")
	}
	if err := open(t, c).RequestSubsystem("sftp"); err == nil {
		t.Error("an unknown subsystem was taken")
	}
	if err := open(t, c).WindowChange(1, 1); err != nil { // asks for no reply
		t.Error(err)
	}
	s := open(t, c)
	if ok, err := s.SendRequest("pty-req", true, []byte("short")); ok || err != nil {
		t.Errorf("a damaged pty-req: %v, %v", ok, err)
	}
	if ok, err := s.SendRequest("x11-req", true, nil); ok || err != nil {
		t.Errorf("x11-req: %v, %v", ok, err)
	}
	if _, _, err := c.OpenChannel("direct-tcpip", nil); err == nil {
		t.Error("a forwarding channel was opened")
	}
	var held []*ssh.Session
	for range maxChannels + 1 {
		s, err := c.NewSession()
		if err != nil {
			break
		}
		held = append(held, s)
	}
	if len(held) > maxChannels {
		t.Errorf("%d channels at once", len(held))
	}
}

func TestNoShell(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.server.cfg.Shells = []string{"/nowhere/sh", "/tmp"}
	c, _ := f.client(t)
	if err := open(t, c).Run("true"); err == nil {
		t.Error("ran without a shell")
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	c, _ := newFixture(t).client(t)
	s := open(t, c)
	in, _ := s.StdinPipe()
	out, _ := s.StdoutPipe()
	if err := s.RequestPty("xterm-irqlab", 33, 77, ssh.TerminalModes{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Shell(); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	until := func(want string) {
		t.Helper()
		b := make([]byte, 1)
		for !strings.Contains(got.String(), want) {
			if _, err := out.Read(b); err != nil {
				t.Fatalf("waiting for %q: %v; got %q", want, err, got.String())
			}
			got.Write(b)
		}
		got.Reset()
	}
	fmt.Fprint(in, "stty size; echo \"<$TERM>\"; tty\n")
	until("33 77")
	until("<xterm-irqlab>")
	until("/dev/pts/")
	if err := s.WindowChange(44, 99); err != nil {
		t.Fatal(err)
	}
	// The change has no reply; requests on one channel are served in order, so one with a reply tells that it is done.
	if _, err := s.SendRequest("nothing", true, nil); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(in, "stty size\n")
	until("44 99")
	// The interrupt character reaches the foreground job, and the shell lives on.
	fmt.Fprint(in, "echo st''arted; sleep 1000; echo after\n")
	until("started")
	time.Sleep(50 * time.Millisecond) // the shell has to hand the terminal to sleep; an early ^C would hit the shell itself
	fmt.Fprint(in, "\x03")
	fmt.Fprint(in, "echo ali''ve\n")
	until("alive")
	fmt.Fprint(in, "exit 5\n")
	err := s.Wait()
	var exit *ssh.ExitError
	if !errors.As(err, &exit) || exit.ExitStatus() != 5 {
		t.Errorf("err = %v, want exit status 5", err)
	}
}

// TestClientVanishes checks that the server ends what a vanished client started and returns.
func TestClientVanishes(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*ssh.Session) error{
		"command": func(s *ssh.Session) error { return s.Start("echo $$; trap '' HUP; sleep 1000") },
		"terminal": func(s *ssh.Session) error {
			if err := s.RequestPty("vt100", 10, 10, nil); err != nil {
				return err
			}
			return s.Start("echo up; sleep 1000")
		},
	} {
		f := newFixture(t)
		c, done := f.client(t)
		if err := start(open(t, c)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c.Close()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A socket tells the one who reads from a client that went without having read all from one that said goodbye. Both have left.
func TestLeft(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		nil: true, io.EOF: true, net.ErrClosed: true, errors.New("disconnect, reason 11: bye"): true,
		&net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}: true,
		&net.OpError{Op: "write", Err: os.NewSyscallError("write", syscall.EPIPE)}:    true,
		errors.New("disconnect, reason 2: protocol error"):                            false, io.ErrUnexpectedEOF: false,
	} {
		if got := left(err); got != want {
			t.Errorf("%v: left %t, want %t", err, got, want)
		}
	}
}

func TestContextEndsServe(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ours, theirs := net.Pipe()
	defer ours.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.server.Serve(ctx, theirs) }()
	cancel()
	if err := <-done; err == nil {
		t.Error("an interrupted handshake ended without an error")
	}
}

func TestParseAuthorizedKeys(t *testing.T) {
	a, b := signer(t).PublicKey(), signer(t).PublicKey()
	file := "# comment\n" + string(ssh.MarshalAuthorizedKey(a)) + "\n" + string(ssh.MarshalAuthorizedKey(b)) + "# end\n"
	keys, err := ParseAuthorizedKeys([]byte(file))
	if err != nil || len(keys) != 2 || !bytes.Equal(keys[1].Marshal(), b.Marshal()) {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	for _, bad := range []string{"", "\n", "# none\n", "ssh-ed25519 !!!\n"} {
		if keys, err := ParseAuthorizedKeys([]byte(bad)); err == nil {
			t.Errorf("%q: %d keys", bad, len(keys))
		}
	}
}

func TestMergeEnv(t *testing.T) {
	got := strings.Join(mergeEnv([]string{"A=1", "B=2"}, []string{"B=3", "C=4", "A="}), " ")
	if got != "A= B=3 C=4" {
		t.Error(got)
	}
}

func FuzzServe(f *testing.F) {
	fix := newFixture(f)
	f.Add([]byte("SSH-2.0-x\r\n"))
	f.Add([]byte("SSH-2.0-OpenSSH_10\r\n\x00\x00\x00\x0c\x0a\x14"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := net.Pipe()
		go func() {
			go func() { _, _ = io.Copy(io.Discard, ours) }()
			_, _ = ours.Write(b)
			ours.Close()
		}()
		if err := fix.server.Serve(t.Context(), theirs); err == nil {
			t.Fatalf("%q passed the handshake", b)
		}
	})
}
