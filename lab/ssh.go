package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/crypto/ssh"

	"irqlab/guestagent/agentapi"
)

// sshConfig is how to authenticate to a guest made from the image with these keys: the client's private key file, and the one host key to accept
// as a line of an authorized_keys file.
func sshConfig(clientKey, hostKey string) (*ssh.ClientConfig, error) {
	pem, err := os.ReadFile(clientKey)
	if err != nil {
		return nil, fmt.Errorf("guest's SSH key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(pem)
	if err != nil {
		return nil, fmt.Errorf("guest's SSH key %s: %w", clientKey, err)
	}
	host, _, _, _, err := ssh.ParseAuthorizedKey([]byte(hostKey))
	if err != nil {
		return nil, fmt.Errorf("guest's host key %q: %w", hostKey, err)
	}
	c := &ssh.ClientConfig{
		User:              agentapi.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback:   ssh.FixedHostKey(host),
		HostKeyAlgorithms: []string{host.Type()},
	}
	// The library prefers a key exchange that holds against quantum computers. The channel is a private socket, and the emulated guest pays for every instruction.
	c.KeyExchanges = []string{ssh.KeyExchangeCurve25519}
	c.Ciphers = []string{ssh.CipherChaCha20Poly1305} // the emulated CPU has no AES instructions
	return c, nil
}

// dialSSH opens an SSH connection over a byte stream that leads to a guest; ctx bounds the handshake.
func dialSSH(ctx context.Context, stream io.ReadWriteCloser, cfg *ssh.ClientConfig) (*ssh.Client, error) {
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	conn, chans, reqs, err := ssh.NewClientConn(streamConn{stream}, "guest", cfg)
	if !stop() {
		return nil, fmt.Errorf("SSH handshake with the guest: %w", context.Cause(ctx))
	}
	if err != nil {
		stream.Close()
		return nil, fmt.Errorf("SSH handshake with the guest: %w", err)
	}
	return ssh.NewClient(conn, chans, reqs), nil
}

// streamConn makes a net.Conn of a byte stream, which is all that x/crypto/ssh needs of one.
type streamConn struct{ io.ReadWriteCloser }

type guestAddr struct{}

func (guestAddr) Network() string { return "virtio-serial" }
func (guestAddr) String() string  { return "guest" }

func (streamConn) LocalAddr() net.Addr              { return guestAddr{} }
func (streamConn) RemoteAddr() net.Addr             { return guestAddr{} }
func (streamConn) SetDeadline(time.Time) error      { return nil }
func (streamConn) SetReadDeadline(time.Time) error  { return nil }
func (streamConn) SetWriteDeadline(time.Time) error { return nil }
