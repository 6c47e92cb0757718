package kobj

import (
	"bufio"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
)

// Symbol is one that a kernel image exports to modules.
type Symbol struct {
	Name      string
	Namespace string
	CRC       uint32 // of its type; 0 in a kernel without CONFIG_MODVERSIONS
	GPL       bool   // only for modules under a license that goes with the kernel's
}

const (
	symbolSize = 12   // offsets of 32 bits, each relative to where it stands: value, name, namespace
	flagGPL    = 0x01 // in __kflagstab, which takes the place of a table of its own for GPL symbols from 7.0 on
)

// Exports reads the symbols that a vmlinux exports, which needs no symbol table.
func Exports(image []byte) ([]Symbol, error) {
	f, err := open(image)
	if err != nil {
		return nil, err
	}
	strings := f.Section("__ksymtab_strings")
	if strings == nil || f.Section("__ksymtab") == nil {
		return nil, fmt.Errorf("%w: it has no table of exported symbols", ErrFormat)
	}
	text, err := content(f, strings)
	if err != nil {
		return nil, err
	}
	var flags []byte
	if s := f.Section("__kflagstab"); s != nil {
		if flags, err = content(f, s); err != nil {
			return nil, err
		}
	}
	var all []Symbol
	for _, t := range []struct {
		table, crcs string
		gpl         bool
	}{{"__ksymtab", "__kcrctab", false}, {"__ksymtab_gpl", "__kcrctab_gpl", true}} {
		table := f.Section(t.table)
		if table == nil {
			continue
		}
		data, err := content(f, table)
		if err != nil {
			return nil, err
		}
		var crcs []byte
		if s := f.Section(t.crcs); s != nil {
			if crcs, err = content(f, s); err != nil {
				return nil, err
			}
			if len(crcs)/4 != len(data)/symbolSize {
				return nil, fmt.Errorf("%w: %d symbols in %s, %d checksums", ErrFormat, len(data)/symbolSize, t.table, len(crcs)/4)
			}
		}
		if flags != nil && len(flags) != len(data)/symbolSize {
			return nil, fmt.Errorf("%w: %d symbols in %s, %d flags", ErrFormat, len(data)/symbolSize, t.table, len(flags))
		}
		for i := 0; (i+1)*symbolSize <= len(data); i++ {
			s := Symbol{GPL: t.gpl}
			for _, field := range []struct {
				at int
				to *string
			}{{4, &s.Name}, {8, &s.Namespace}} {
				if *field.to, err = exported(table, data, i*symbolSize+field.at, strings, text); err != nil {
					return nil, err
				}
			}
			if crcs != nil {
				s.CRC = binary.LittleEndian.Uint32(crcs[i*4:])
			}
			if flags != nil {
				s.GPL = flags[i]&flagGPL != 0
			}
			all = append(all, s)
		}
	}
	return all, nil
}

// exported follows the offset at a place of the table into the strings, which the linker has merged: a string may be the tail of another.
func exported(table *elf.Section, data []byte, at int, strings *elf.Section, text []byte) (string, error) {
	offset := int64(int32(binary.LittleEndian.Uint32(data[at:])))
	if offset == 0 {
		return "", nil // older kernels have no string for no namespace
	}
	to := table.Addr + uint64(at) + uint64(offset) - strings.Addr
	if to >= uint64(len(text)) {
		return "", fmt.Errorf("%w: a symbol of %s has a name outside %s", ErrFormat, table.Name, strings.Name)
	}
	s, ok := cString(text[to:])
	if !ok {
		return "", fmt.Errorf("%w: a symbol of %s has a name without an end", ErrFormat, table.Name)
	}
	return s, nil
}

// WriteSymvers writes the symbols as Module.symvers, which a build of modules checks theirs against.
func WriteSymvers(w io.Writer, symbols []Symbol) error {
	b := bufio.NewWriter(w)
	for _, s := range symbols {
		kind := "EXPORT_SYMBOL"
		if s.GPL {
			kind = "EXPORT_SYMBOL_GPL"
		}
		fmt.Fprintf(b, "0x%08x\t%s\tvmlinux\t%s\t%s\n", s.CRC, s.Name, kind, s.Namespace)
	}
	return b.Flush()
}
