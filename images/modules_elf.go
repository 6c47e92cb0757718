package images

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// moduleSignature ends a signed module. What it signs is everything before, so such a module cannot be made smaller.
var moduleSignature = []byte("~Module signature appended~\n")

const (
	elfHeaderSize  = 64
	elfSectionSize = 64
)

// stripDebug takes the contents of debug sections out of a module: a developer's own build carries some ten MiB of them per module, which
// the guest would unpack for nothing. Sections keep their number, so no index in the file changes; the kernel skips what is not allocated.
// A module without debug sections, or with a signature, is returned as it is.
func stripDebug(object []byte) ([]byte, error) {
	if bytes.HasSuffix(object, moduleSignature) {
		return object, nil
	}
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return nil, noEOF(err)
	}
	debug := func(s *elf.Section) bool {
		name := strings.TrimPrefix(s.Name, ".rela")
		return s.Flags&elf.SHF_ALLOC == 0 && (strings.HasPrefix(name, ".debug_") || strings.HasPrefix(name, ".zdebug_"))
	}
	found := false
	for _, s := range f.Sections {
		found = found || debug(s)
	}
	if !found {
		return object, nil
	}
	if f.Class != elf.ELFCLASS64 || f.ByteOrder != binary.LittleEndian {
		return nil, errors.New("not a 64-bit little-endian object")
	}
	le := binary.LittleEndian
	headers := le.Uint64(object[40:])
	if size := le.Uint16(object[58:]); size != elfSectionSize {
		return nil, fmt.Errorf("section headers of %d bytes, expected %d", size, elfSectionSize)
	}
	if end := headers + uint64(len(f.Sections))*elfSectionSize; end < headers || end > uint64(len(object)) {
		return nil, fmt.Errorf("section headers: %w", io.ErrUnexpectedEOF)
	}

	out := bytes.NewBuffer(make([]byte, 0, len(object)))
	out.Write(object[:elfHeaderSize])
	table := bytes.Clone(object[headers : headers+uint64(len(f.Sections))*elfSectionSize])
	for i, s := range f.Sections {
		header := table[i*elfSectionSize:]
		switch {
		case debug(s):
			le.PutUint64(header[24:], uint64(out.Len())) // sh_offset
			le.PutUint64(header[32:], 0)                 // sh_size
			le.PutUint64(header[8:], uint64(s.Flags&^elf.SHF_COMPRESSED))
		case s.Type == elf.SHT_NOBITS:
			le.PutUint64(header[24:], uint64(out.Len()))
		case s.Type != elf.SHT_NULL:
			end := s.Offset + s.FileSize
			if end < s.Offset || end > uint64(len(object)) {
				return nil, fmt.Errorf("section %s: %w", s.Name, io.ErrUnexpectedEOF)
			}
			if s.Addralign > 1<<16 || s.Addralign&(s.Addralign-1) != 0 {
				return nil, fmt.Errorf("section %s: alignment %d", s.Name, s.Addralign)
			}
			if out.Len()+int(s.FileSize) > 2*len(object) { // sections that overlap: nothing a linker writes
				return nil, errors.New("sections overlap")
			}
			align(out, s.Addralign)
			le.PutUint64(header[24:], uint64(out.Len()))
			out.Write(object[s.Offset:end])
		}
	}
	align(out, 8)
	at := out.Len()
	out.Write(table)
	stripped := out.Bytes()
	le.PutUint64(stripped[40:], uint64(at)) // e_shoff
	return stripped, nil
}

func align(b *bytes.Buffer, to uint64) {
	for to > 1 && uint64(b.Len())%to != 0 {
		b.WriteByte(0)
	}
}
