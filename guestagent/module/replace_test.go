package module

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
)

// image is a loader of an image with mana, and with nvme, which is loaded.
func image(t *testing.T) Loader {
	t.Helper()
	root, dir := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(dir, "modules.order"): "nvme nvme.ko\nmana mana.ko\n", filepath.Join(dir, "mana.ko"): "shipped", filepath.Join(root, "sys/module/nvme/refcnt"): "0",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Loader{Root: kfile.Root(root), Dir: dir}
}

func part(name, whole string, from, to int) agentapi.ReplaceModuleParams {
	sum := sha256.Sum256([]byte(whole))
	return agentapi.ReplaceModuleParams{Name: name, Size: len(whole), SHA256: hex.EncodeToString(sum[:]), Offset: from, Data: []byte(whole[from:to])}
}

// A module takes its place with its last part, and not before; one that was begun and not ended leaves nothing to one that begins anew.
func TestReplace(t *testing.T) {
	l := image(t)
	const whole = "a changed module"
	for _, p := range []agentapi.ReplaceModuleParams{
		part("mana", "another one, given up", 0, 9),
		part("mana", whole, 0, 6), part("mana", whole, 6, 10), part("mana", whole, 10, len(whole)),
	} {
		if b, err := os.ReadFile(filepath.Join(l.Dir, "mana.ko")); err != nil || string(b) != "shipped" {
			t.Fatalf("before the last part: %q, %v", b, err)
		}
		if err := l.Replace(p); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(l.Dir, "mana.ko")); err != nil || string(b) != whole {
		t.Errorf("the module is %q, %v", b, err)
	}
	if left, err := filepath.Glob(filepath.Join(l.Dir, "*.part")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestReplaceRefused(t *testing.T) {
	const whole = "a changed module"
	wrong := part("mana", whole, 0, len(whole))
	wrong.SHA256 = strings.Repeat("0", 64)
	huge := part("mana", whole, 0, 4)
	huge.Size = agentapi.MaxModule + 1
	long := part("mana", whole, 0, 4)
	long.Size, long.Data = agentapi.MaxModule, bytes.Repeat([]byte("x"), agentapi.ModulePart+1)
	for name, tc := range map[string]struct {
		p          agentapi.ReplaceModuleParams
		code, want string
	}{
		"another hash":      {wrong, agentapi.CodeInvalid, "has the hash"},
		"too large":         {huge, agentapi.CodeInvalid, "must be 1 to 33554432"},
		"too large a part":  {long, agentapi.CodeInvalid, "a part of 1048577 bytes"},
		"no part":           {part("mana", whole, 3, 3), agentapi.CodeInvalid, "a part of 0 bytes"},
		"beyond the end":    {agentapi.ReplaceModuleParams{Name: "mana", Size: 4, Offset: 3, Data: []byte("xy")}, agentapi.CodeInvalid, "2 bytes at 3 are not in a file of 4"},
		"before the begin":  {agentapi.ReplaceModuleParams{Name: "mana", Size: 4, Offset: -1, Data: []byte("xy")}, agentapi.CodeInvalid, "2 bytes at -1"},
		"no beginning":      {part("mana", whole, 4, 8), agentapi.CodeInvalid, "a part at 4 after 0 bytes"},
		"no name":           {part("../mana", whole, 0, 4), agentapi.CodeInvalid, "not a module name"},
		"not in the image":  {part("e1000", whole, 0, 4), agentapi.CodeNotFound, "the image has nvme, mana"},
		"loaded, by itself": {part("nvme", whole, 0, 4), agentapi.CodeUnsupported, "cannot be replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			l := image(t)
			err := l.Replace(tc.p)
			if err == nil || !strings.Contains(err.Error(), tc.want) || fault.Reply(err).Code != tc.code {
				t.Errorf("%v; want %s: %s", err, tc.code, tc.want)
			}
			if b, err := os.ReadFile(filepath.Join(l.Dir, "mana.ko")); err != nil || string(b) != "shipped" {
				t.Errorf("the module is %q, %v", b, err)
			}
		})
	}
}
