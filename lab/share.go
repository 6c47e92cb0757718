package lab

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"irqlab/guestagent/agentapi"
)

// shareSocket lies in a run directory.
const shareSocket = "people"

// share lets any number of people into a guest that has one seat: whoever runs the VM sits there, and hands each session of others on as one more channel of its own connection.
type share struct {
	ctx   context.Context
	guest Access // its only seat
	cfg   *ssh.ServerConfig

	mu     sync.Mutex
	client *ssh.Client // nil until somebody comes
}

// Share lets several people into the guest at once, until ctx ends or the VM is closed. Without it one at a time has the guest's seat, and the others wait. It costs nothing until
// somebody comes.
func (vm *VM) Share(ctx context.Context) error {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	host, err := ssh.NewPublicKey(public)
	if err != nil {
		return err
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return err
	}
	pem, err := os.ReadFile(vm.access.ClientKey)
	if err != nil {
		return fmt.Errorf("guest's SSH key: %w", err)
	}
	person, err := ssh.ParsePrivateKey(pem)
	if err != nil {
		return fmt.Errorf("guest's SSH key %s: %w", vm.access.ClientKey, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &share{ctx: ctx, guest: vm.Access(), cfg: &ssh.ServerConfig{
		ServerVersion: "SSH-2.0-irqlab",
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if meta.User() != agentapi.User || !bytes.Equal(key.Marshal(), person.PublicKey().Marshal()) {
				return nil, errors.New("that is not the guest's key")
			}
			return nil, nil
		},
	}}
	s.cfg.AddHostKey(signer)
	l, err := net.Listen("unix", filepath.Join(vm.Dir(), shareSocket)) // a directory that is the user's alone
	if err != nil {
		cancel()
		return fmt.Errorf("run directory: %w", err)
	}
	var served sync.WaitGroup
	served.Go(func() { s.serve(l) })
	context.AfterFunc(ctx, func() { l.Close() })
	end := func() {
		cancel()
		served.Wait()
	}
	if err := vm.publish(access{ClientKey: vm.access.ClientKey, HostKey: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(host))), Shared: true}); err != nil {
		end()
		return err
	}
	vm.mu.Lock()
	vm.releases = append(vm.releases, end)
	vm.mu.Unlock()
	return nil
}

// serve takes people in until the listener is closed, and leaves the guest's seat when they are gone.
func (s *share) serve(l net.Listener) {
	var people sync.WaitGroup
	for {
		conn, err := l.Accept()
		if err != nil {
			break
		}
		people.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(s.ctx, func() { conn.Close() })()
			s.person(conn)
		})
	}
	people.Wait()
	if s.client != nil {
		s.client.Close()
	}
}

// person serves one connection.
func (s *share) person(conn net.Conn) {
	sc, channels, requests, err := ssh.NewServerConn(conn, s.cfg)
	if err != nil {
		return // who came has been told
	}
	defer sc.Close()
	go ssh.DiscardRequests(requests)
	var sessions sync.WaitGroup
	defer sessions.Wait()
	for nc := range channels {
		sessions.Go(func() {
			guest, fromGuest, err := s.open(nc.ChannelType(), nc.ExtraData())
			var refused *ssh.OpenChannelError
			switch {
			case errors.As(err, &refused):
				_ = nc.Reject(refused.Reason, refused.Message)
				return
			case err != nil:
				_ = nc.Reject(ssh.ConnectionFailed, err.Error())
				return
			}
			person, fromPerson, err := nc.Accept()
			if err != nil {
				guest.Close()
				return
			}
			join(person, fromPerson, guest, fromGuest)
		})
	}
}

// open opens a channel to the guest, over the connection that there is or, if it has ended, a new one.
func (s *share) open(kind string, extra []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var refused *ssh.OpenChannelError
	if s.client != nil {
		ch, reqs, err := s.client.OpenChannel(kind, extra)
		if err == nil || errors.As(err, &refused) {
			return ch, reqs, err
		}
		s.client.Close()
		s.client = nil
	}
	client, err := s.guest.Dial(s.ctx)
	if err != nil {
		return nil, nil, err
	}
	s.client = client
	return client.OpenChannel(kind, extra)
}

// join hands everything on between a person's channel and the guest's until one of them ends.
func join(person ssh.Channel, fromPerson <-chan *ssh.Request, guest ssh.Channel, fromGuest <-chan *ssh.Request) {
	go func() {
		_, _ = io.Copy(guest, person)
		_ = guest.CloseWrite()
	}()
	go func() {
		hand(guest, fromPerson)
		guest.Close() // the person has gone, and what runs there is to end
	}()
	var words sync.WaitGroup
	words.Go(func() { _, _ = io.Copy(person, guest) })
	words.Go(func() { _, _ = io.Copy(person.Stderr(), guest.Stderr()) })
	hand(person, fromGuest) // its status among them
	words.Wait()
	person.Close()
}

// hand passes requests on, and the answers to them back.
func hand(to ssh.Channel, requests <-chan *ssh.Request) {
	for r := range requests {
		ok, err := to.SendRequest(r.Type, r.WantReply, r.Payload)
		if r.WantReply {
			_ = r.Reply(ok && err == nil, nil)
		}
	}
}
