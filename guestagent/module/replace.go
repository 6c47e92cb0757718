package module

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
)

// Replace takes a part of a module's file. With the last one the file takes the place of the image's own, and is what Load inserts from then on, whoever asks.
func (l Loader) Replace(p agentapi.ReplaceModuleParams) error {
	name := Canonical(p.Name)
	if err := check(name); err != nil {
		return err
	}
	invalid := func(format string, args ...any) error {
		return fault.New(agentapi.CodeInvalid, "module %s: "+format, append([]any{name}, args...)...)
	}
	switch {
	case p.Size < 1 || p.Size > agentapi.MaxModule:
		return invalid("a file of %d bytes: must be 1 to %d", p.Size, agentapi.MaxModule)
	case len(p.Data) < 1 || len(p.Data) > agentapi.ModulePart:
		return invalid("a part of %d bytes: must be 1 to %d", len(p.Data), agentapi.ModulePart)
	case p.Offset < 0 || p.Offset > p.Size-len(p.Data):
		return invalid("%d bytes at %d are not in a file of %d", len(p.Data), p.Offset, p.Size)
	case l.loaded(name):
		return fault.New(agentapi.CodeUnsupported, "module %s is loaded already, or built into the kernel: a module that the guest inserts as it boots cannot be replaced", name)
	}
	closure, err := l.closure(name)
	if err != nil {
		return err
	}
	file := filepath.Join(l.Dir, closure[len(closure)-1].File)
	f, err := os.OpenFile(file+".part", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("module %s: %w", name, err)
	}
	defer f.Close()
	whole, err := put(f, p)
	if err == nil && whole {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("module %s: %w", name, err)
	}
	return nil
}

// put adds a part to what there is of a file, and tells whether that is the whole then.
func put(f *os.File, p agentapi.ReplaceModuleParams) (whole bool, err error) {
	if p.Offset == 0 {
		if err := f.Truncate(0); err != nil {
			return false, err
		}
	}
	st, err := f.Stat()
	if err != nil {
		return false, err
	}
	if st.Size() != int64(p.Offset) {
		return false, fault.New(agentapi.CodeInvalid, "a part at %d after %d bytes", p.Offset, st.Size())
	}
	if _, err := f.WriteAt(p.Data, int64(p.Offset)); err != nil {
		return false, err
	}
	if p.Offset+len(p.Data) < p.Size {
		return false, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, int64(p.Size))); err != nil {
		return false, err
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != p.SHA256 {
		return false, fault.New(agentapi.CodeInvalid, "what came has the hash %s, not %.64q", sum, p.SHA256)
	}
	return true, nil
}
