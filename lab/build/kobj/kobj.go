// Package kobj reads kernel objects: the symbols that a kernel image exports, and where two builds of a module differ in code.
package kobj

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// ErrFormat says that a file is not the kind of object it should be.
var ErrFormat = errors.New("not a kernel object that can be read")

// maxObject is more than any kernel image or module takes, in bytes.
const maxObject = 1 << 30

// open reads an x86-64 object. The library trusts some of what it reads; what is larger than the file is refused here.
func open(data []byte) (f *elf.File, err error) {
	if len(data) > maxObject {
		return nil, fmt.Errorf("%w: %d bytes", ErrFormat, len(data))
	}
	f, err = elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if f.Machine != elf.EM_X86_64 || f.Class != elf.ELFCLASS64 || f.ByteOrder != binary.LittleEndian {
		return nil, fmt.Errorf("%w: %v %v, not x86-64", ErrFormat, f.Machine, f.Class)
	}
	return f, nil
}

// content reads a section that must be in the file as it is.
func content(f *elf.File, s *elf.Section) ([]byte, error) {
	if s.Type == elf.SHT_NOBITS || s.Flags&elf.SHF_COMPRESSED != 0 || s.FileSize > maxObject {
		return nil, fmt.Errorf("%w: section %s: %v of %d bytes", ErrFormat, s.Name, s.Type, s.FileSize)
	}
	data, err := s.Data()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("%w: section %s: %w", ErrFormat, s.Name, err)
	}
	return data, nil
}

func cString(b []byte) (string, bool) {
	s, _, ok := bytes.Cut(b, []byte{0})
	return string(s), ok
}
