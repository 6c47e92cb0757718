package sshd

import (
	"bytes"
	"errors"

	"golang.org/x/crypto/ssh"
)

// ParseAuthorizedKeys reads all keys of an OpenSSH authorized_keys file; one without keys is an error, since nobody could log in.
func ParseAuthorizedKeys(data []byte) ([]ssh.PublicKey, error) {
	var keys []ssh.PublicKey
	for len(bytes.TrimSpace(data)) > 0 {
		key, _, _, rest, err := ssh.ParseAuthorizedKey(data)
		if err != nil {
			if len(keys) > 0 { // trailing comments
				break
			}
			return nil, err
		}
		keys, data = append(keys, key), rest
	}
	if len(keys) == 0 {
		return nil, errors.New("no key in it")
	}
	return keys, nil
}
