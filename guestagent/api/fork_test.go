package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/kfile"
)

func TestEntropyInfo(t *testing.T) {
	want := []byte{24, 0, 0, 0, 3, 0, 0, 0, 7, 8, 9}
	if got := entropyInfo([]byte{7, 8, 9}); !bytes.Equal(got, want) {
		t.Errorf("struct rand_pool_info %v, want %v", got, want)
	}
	// What x/sys/unix knows of the numbers.
	if addEntropy != unix.RNDADDENTROPY || reseed != 0x5207 {
		t.Errorf("ioctl numbers %#x, %#x", addEntropy, reseed)
	}
}

// What cannot be used is refused before the clock or a key changes; a file that is no random device says so.
func TestRefreshRefuses(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(root+"/dev", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/dev/urandom", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := New(Config{Root: kfile.Root(root), HostKey: func([]byte) { t.Error("a refused refresh changed the host key") }})
	good := agentapi.RefreshParams{UnixNS: 1, Entropy: make([]byte, agentapi.EntropySize), HostKeySeed: make([]byte, 32)}
	for name, tc := range map[string]struct {
		change func(*agentapi.RefreshParams)
		code   string
	}{
		"time":    {func(p *agentapi.RefreshParams) { p.UnixNS = -1 }, agentapi.CodeInvalid},
		"entropy": {func(p *agentapi.RefreshParams) { p.Entropy = p.Entropy[1:] }, agentapi.CodeInvalid},
		"seed":    {func(p *agentapi.RefreshParams) { p.HostKeySeed = nil }, agentapi.CodeInvalid},
		"device":  {func(*agentapi.RefreshParams) {}, agentapi.CodeRefused},
	} {
		p := good
		tc.change(&p)
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		resp := a.answer(context.Background(), agentapi.Request{ID: 1, Method: agentapi.MethodRefresh, Params: raw})
		if resp.Error == nil || resp.Error.Code != tc.code {
			t.Errorf("%s: answer %+v, want code %s", name, resp.Error, tc.code)
		}
	}
	if _, err := a.refresh(context.Background(), good); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("a plain file took entropy: %v", err)
	}
}
