package kobj

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// Difference tells how the code of one module differs from another's.
type Difference struct {
	Functions int      // in both
	Differ    []string // functions, or sections where it is not a function that differs, that differ or are in one only; sorted
}

// Identical tells whether the code is the same.
func (d Difference) Identical() bool { return len(d.Differ) == 0 }

// Compare compares every executable section of two modules: bytes, and what their relocations refer to. Data, debug information and signatures are left out.
func Compare(a, b []byte) (Difference, error) {
	ca, err := readCode(a)
	if err != nil {
		return Difference{}, fmt.Errorf("the first: %w", err)
	}
	cb, err := readCode(b)
	if err != nil {
		return Difference{}, fmt.Errorf("the second: %w", err)
	}
	var d Difference
	differ := map[string]bool{}
	for name := range ca.functions {
		if other, ok := cb.functions[name]; ok {
			d.Functions++
			differ[name] = ca.functions[name] != other
		} else {
			differ[name] = true
		}
	}
	for name := range cb.functions {
		if _, ok := ca.functions[name]; !ok {
			differ[name] = true
		}
	}
	maps.DeleteFunc(differ, func(_ string, is bool) bool { return !is })
	// What belongs to no function, and the order of functions, are in the sections alone.
	if len(differ) == 0 {
		for name := range ca.sections {
			if other, ok := cb.sections[name]; !ok || other != ca.sections[name] {
				differ[name] = true
			}
		}
		for name := range cb.sections {
			if _, ok := ca.sections[name]; !ok {
				differ[name] = true
			}
		}
	}
	d.Differ = slices.Sorted(maps.Keys(differ))
	return d, nil
}

// code is what a module executes: canonical text, by name.
type code struct {
	functions map[string]string
	sections  map[string]string
}

func executable(s *elf.Section) bool {
	return s.Type == elf.SHT_PROGBITS && s.Flags&elf.SHF_ALLOC != 0 && s.Flags&elf.SHF_EXECINSTR != 0
}

// reference is a relocation, with what it refers to in words that do not depend on where things lie.
type reference struct {
	at     uint64 // in the section
	kind   elf.R_X86_64
	target string
}

func readCode(object []byte) (*code, error) {
	f, err := open(object)
	if err != nil {
		return nil, err
	}
	if f.Type != elf.ET_REL {
		return nil, fmt.Errorf("%w: %v, not a module", ErrFormat, f.Type)
	}
	symbols, err := f.Symbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	references, err := readReferences(f, symbols)
	if err != nil {
		return nil, err
	}
	c := &code{map[string]string{}, map[string]string{}}
	data := map[int][]byte{}
	for i, s := range f.Sections {
		if !executable(s) {
			continue
		}
		if data[i], err = content(f, s); err != nil {
			return nil, err
		}
		name := s.Name
		for c.sections[name] != "" {
			name += "'"
		}
		c.sections[name] = canonical(data[i], references[i], 0, uint64(len(data[i])))
	}
	if len(data) == 0 {
		return nil, fmt.Errorf("%w: no code in it", ErrFormat)
	}
	// Functions of one name, as static ones of several files may be, are told apart by their order.
	functions := slices.DeleteFunc(slices.Clone(symbols), func(s elf.Symbol) bool {
		return elf.ST_TYPE(s.Info) != elf.STT_FUNC || data[int(s.Section)] == nil || s.Size == 0
	})
	slices.SortStableFunc(functions, func(a, b elf.Symbol) int {
		return cmp.Or(cmp.Compare(a.Section, b.Section), cmp.Compare(a.Value, b.Value))
	})
	for _, s := range functions {
		code := data[int(s.Section)]
		if s.Value > uint64(len(code)) || s.Size > uint64(len(code))-s.Value {
			return nil, fmt.Errorf("%w: function %s lies outside its section", ErrFormat, s.Name)
		}
		name := s.Name
		for n := 2; ; n++ {
			if _, taken := c.functions[name]; !taken {
				break
			}
			name = fmt.Sprintf("%s (%d)", s.Name, n)
		}
		c.functions[name] = canonical(code, references[int(s.Section)], s.Value, s.Size)
	}
	return c, nil
}

// canonical is a stretch of code as text that is equal for equal code.
func canonical(data []byte, refs []reference, at, size uint64) string {
	out := append([]byte(nil), data[at:at+size]...)
	first, _ := slices.BinarySearchFunc(refs, at, func(r reference, at uint64) int { return cmp.Compare(r.at, at) })
	for _, r := range refs[first:] {
		if r.at >= at+size {
			break
		}
		out = fmt.Appendf(out, "\x00%d %d %s", r.at-at, r.kind, r.target)
	}
	return string(out)
}

const relaSize = 24

// readReferences reads the relocations of executable sections, by section and in order.
func readReferences(f *elf.File, symbols []elf.Symbol) (map[int][]reference, error) {
	all := map[int][]reference{}
	places := newPlaces(f, symbols)
	for _, s := range f.Sections {
		to := int(s.Info)
		if s.Type != elf.SHT_RELA || to <= 0 || to >= len(f.Sections) || !executable(f.Sections[to]) {
			continue
		}
		data, err := content(f, s)
		if err != nil {
			return nil, err
		}
		for ; len(data) >= relaSize; data = data[relaSize:] {
			info := binary.LittleEndian.Uint64(data[8:])
			r := reference{at: binary.LittleEndian.Uint64(data), kind: elf.R_X86_64(info & 0xffffffff)}
			addend := int64(binary.LittleEndian.Uint64(data[16:]))
			n := int(info >> 32)
			if n == 0 || n > len(symbols) {
				return nil, fmt.Errorf("%w: a relocation of %s refers to symbol %d of %d", ErrFormat, f.Sections[to].Name, n, len(symbols))
			}
			if r.target, err = places.target(symbols[n-1], r.kind, addend); err != nil {
				return nil, err
			}
			all[to] = append(all[to], r)
		}
	}
	for _, refs := range all {
		slices.SortStableFunc(refs, func(a, b reference) int { return cmp.Compare(a.at, b.at) })
	}
	return all, nil
}

// places says what lies where in a module.
type places struct {
	f       *elf.File
	named   map[int][]elf.Symbol // functions and objects of each section, by value
	content map[int][]byte
}

func newPlaces(f *elf.File, symbols []elf.Symbol) *places {
	p := &places{f: f, named: map[int][]elf.Symbol{}, content: map[int][]byte{}}
	for _, s := range symbols {
		n := int(s.Section)
		if t := elf.ST_TYPE(s.Info); (t == elf.STT_FUNC || t == elf.STT_OBJECT) && s.Size > 0 && n > 0 && n < len(f.Sections) {
			p.named[n] = append(p.named[n], s)
		}
	}
	for _, list := range p.named {
		slices.SortStableFunc(list, func(a, b elf.Symbol) int { return cmp.Compare(a.Value, b.Value) })
	}
	return p
}

// target names what a relocation refers to, without saying where that lies: it depends on the paths of source files, which are among the data.
func (p *places) target(s elf.Symbol, kind elf.R_X86_64, addend int64) (string, error) {
	n := int(s.Section)
	if elf.ST_TYPE(s.Info) != elf.STT_SECTION || n <= 0 || n >= len(p.f.Sections) {
		return fmt.Sprintf("%s%+d", s.Name, addend), nil
	}
	section := p.f.Sections[n]
	at := addend + int64(s.Value)
	if kind == elf.R_X86_64_PC32 || kind == elf.R_X86_64_PLT32 {
		at += 4 // from the end of the instruction, as good as always
	}
	if i, exact := slices.BinarySearchFunc(p.named[n], at, func(s elf.Symbol, at int64) int { return cmp.Compare(int64(s.Value), at) }); exact {
		return fmt.Sprintf("%s:%s", section.Name, p.named[n][i].Name), nil
	} else if i > 0 {
		if s := p.named[n][i-1]; at >= 0 && uint64(at)-s.Value < s.Size {
			return fmt.Sprintf("%s:%s%+d", section.Name, s.Name, uint64(at)-s.Value), nil
		}
	}
	if section.Type != elf.SHT_PROGBITS || executable(section) {
		return fmt.Sprintf("%s%+d", section.Name, addend), nil
	}
	data, ok := p.content[n]
	if !ok {
		var err error
		if data, err = content(p.f, section); err != nil {
			return "", err
		}
		p.content[n] = data
	}
	if at < 0 || at >= int64(len(data)) {
		return fmt.Sprintf("%s%+d", section.Name, addend), nil
	}
	const enough = 64 // of what has neither name nor end
	str, ok := cString(data[at:])
	if !ok {
		str = str[:min(len(str), enough)]
	}
	name := section.Name
	if strings.HasPrefix(name, ".rodata.str") {
		name = ".rodata" // strings are sorted by length, and a path's length depends on the directory
	}
	return fmt.Sprintf("%s:%q", name, withoutDirectory(str)), nil
}

// withoutDirectory is the name alone of a source file (__FILE__, as some messages hold it), any other text as it is: the distribution builds in another directory.
func withoutDirectory(text string) string {
	if ext := path.Ext(text); (ext == ".c" || ext == ".h") && !strings.ContainsAny(text, " \t\n%") {
		return path.Base(text)
	}
	return text
}
