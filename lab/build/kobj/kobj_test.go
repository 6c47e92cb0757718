package kobj

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
)

// section is one of an object that a test makes.
type section struct {
	name  string
	kind  elf.SectionType
	flags elf.SectionFlag
	addr  uint64
	data  []byte
	link  uint32
	info  uint32
}

var le = binary.LittleEndian

// object makes an ELF file of sections, which get the numbers 1 and up.
func object(kind elf.Type, sections ...section) []byte {
	var names bytes.Buffer
	names.WriteByte(0)
	sections = append(sections, section{name: ".shstrtab", kind: elf.SHT_STRTAB})
	at := make([]uint32, len(sections))
	for i, s := range sections {
		at[i] = uint32(names.Len())
		names.WriteString(s.name + "\x00")
	}
	sections[len(sections)-1].data = names.Bytes()
	out := make([]byte, 64)
	var table bytes.Buffer
	table.Write(make([]byte, 64))
	for i, s := range sections {
		h := elf.Section64{Name: at[i], Type: uint32(s.kind), Flags: uint64(s.flags), Addr: s.addr, Off: uint64(len(out)), Size: uint64(len(s.data)), Link: s.link, Info: s.info, Addralign: 1}
		switch s.kind {
		case elf.SHT_SYMTAB:
			h.Entsize = 24
		case elf.SHT_RELA:
			h.Entsize = 24
		}
		_ = binary.Write(&table, le, h)
		out = append(out, s.data...)
	}
	copy(out, "\x7fELF\x02\x01\x01")
	le.PutUint16(out[16:], uint16(kind))
	le.PutUint16(out[18:], uint16(elf.EM_X86_64))
	le.PutUint32(out[20:], 1)
	le.PutUint64(out[40:], uint64(len(out)))
	le.PutUint16(out[52:], 64)
	le.PutUint16(out[58:], 64)
	le.PutUint16(out[60:], uint16(len(sections)+1))
	le.PutUint16(out[62:], uint16(len(sections)))
	return append(out, table.Bytes()...)
}

// symbolTable makes entries of 12 bytes at addr of pairs of offsets into strings at text: name, namespace; below 0: no offset at all.
func symbolTable(addr, text uint64, pairs ...[2]int) []byte {
	var out []byte
	for _, p := range pairs {
		at := addr + uint64(len(out))
		entry := make([]byte, symbolSize)
		for i, to := range p {
			if to >= 0 {
				le.PutUint32(entry[4+4*i:], uint32(text+uint64(to)-(at+4+4*uint64(i))))
			}
		}
		out = append(out, entry...)
	}
	return out
}

func TestExports(t *testing.T) {
	const a, g, s = 0xffffffff82000000, 0xffffffff82010000, 0xffffffff82020000
	const text = "pci_enable\x00NS\x00kfree\x00\x00" // "enable" is the tail of the first
	names := section{name: "__ksymtab_strings", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, addr: s, data: []byte(text)}
	table := func(name string, addr uint64, pairs ...[2]int) section {
		return section{name: name, kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, addr: addr, data: symbolTable(addr, s, pairs...)}
	}
	bytesOf := func(name string, data ...byte) section {
		return section{name: name, kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, data: data}
	}
	for _, tt := range []struct {
		name  string
		image []byte
		want  []Symbol
		bad   string
	}{
		{"two tables", object(elf.ET_EXEC, table("__ksymtab", a, [2]int{14, 20}), table("__ksymtab_gpl", g, [2]int{0, 11}, [2]int{4, 20}), names),
			[]Symbol{{Name: "kfree"}, {Name: "pci_enable", Namespace: "NS", GPL: true}, {Name: "enable", GPL: true}}, ""},
		{"flags", object(elf.ET_EXEC, table("__ksymtab", a, [2]int{14, 20}, [2]int{0, 20}), bytesOf("__kflagstab", 0, 1), names),
			[]Symbol{{Name: "kfree"}, {Name: "pci_enable", GPL: true}}, ""},
		{"checksums", object(elf.ET_EXEC, table("__ksymtab", a, [2]int{14, 20}), bytesOf("__kcrctab", 0x78, 0x56, 0x34, 0x12), names),
			[]Symbol{{Name: "kfree", CRC: 0x12345678}}, ""},
		{"no namespace at all", object(elf.ET_EXEC, table("__ksymtab", a, [2]int{14, -1}), names), []Symbol{{Name: "kfree"}}, ""},
		{"stripped of sections", object(elf.ET_EXEC), nil, "no table"},
		{"a name outside", object(elf.ET_EXEC, table("__ksymtab", a, [2]int{200, 20}), names), nil, "outside"},
		{"a name without end", object(elf.ET_EXEC, table("__ksymtab", a, [2]int{0, 0}), section{name: "__ksymtab_strings", kind: elf.SHT_PROGBITS, addr: s, data: []byte("kfree")}), nil, "without an end"},
		{"checksums missing", object(elf.ET_EXEC, table("__ksymtab", a, [2]int{14, 20}), bytesOf("__kcrctab", 1, 2), names), nil, "0 checksums"},
		{"flags missing", object(elf.ET_EXEC, table("__ksymtab", a, [2]int{14, 20}), bytesOf("__kflagstab"), names), nil, "0 flags"},
		{"no ELF", []byte("bzImage"), nil, "not a kernel object"},
	} {
		got, err := Exports(tt.image)
		if tt.bad != "" {
			if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), tt.bad) {
				t.Errorf("%s: %v, want %q", tt.name, err, tt.bad)
			}
			continue
		}
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %+v, %v, want %+v", tt.name, got, err, tt.want)
		}
	}
	var out bytes.Buffer
	if err := WriteSymvers(&out, []Symbol{{Name: "a", CRC: 1}, {Name: "b", Namespace: "NS", GPL: true}}); err != nil {
		t.Fatal(err)
	}
	if want := "0x00000001\ta\tvmlinux\tEXPORT_SYMBOL\t\n0x00000000\tb\tvmlinux\tEXPORT_SYMBOL_GPL\tNS\n"; out.String() != want {
		t.Errorf("got %q", out.String())
	}
}

// module is an object of functions one after another, each with its code and references, and of strings.
type module struct {
	functions []function
	data      string // of .rodata
	gap       string // behind the functions, in no function
	init      string // of .init.text
	where     string // name of .rodata, if it is not that
}

type function struct {
	name, code string
	refs       []ref
}

type ref struct {
	at     uint64
	kind   elf.R_X86_64
	symbol string // "": .rodata itself
	addend int64
}

const (
	moduleText   = 1
	moduleData   = 2
	moduleSymtab = 3
	moduleNames  = 4
)

func (m module) object() []byte {
	var text, symbols, relocations bytes.Buffer
	names := "\x00"
	number := map[string]int{}
	symbols.Write(make([]byte, 24))
	add := func(name string, kind elf.SymType, section int, value, size uint64) {
		number[name] = symbols.Len() / 24
		at := 0
		if kind != elf.STT_SECTION {
			at = len(names)
			names += name + "\x00"
		}
		_ = binary.Write(&symbols, le, elf.Sym64{Name: uint32(at), Info: elf.ST_INFO(elf.STB_LOCAL, kind), Shndx: uint16(section), Value: value, Size: size})
	}
	add("", elf.STT_SECTION, moduleData, 0, 0)
	for _, f := range m.functions {
		add(f.name, elf.STT_FUNC, moduleText, uint64(text.Len()), uint64(len(f.code)))
		text.WriteString(f.code)
	}
	start := uint64(0)
	for _, f := range m.functions {
		for _, r := range f.refs {
			if number[r.symbol] == 0 {
				add(r.symbol, elf.STT_NOTYPE, 0, 0, 0)
			}
			_ = binary.Write(&relocations, le, elf.Rela64{Off: start + r.at, Info: uint64(number[r.symbol])<<32 | uint64(r.kind), Addend: r.addend})
		}
		start += uint64(len(f.code))
	}
	text.WriteString(m.gap)
	code := elf.SHF_ALLOC | elf.SHF_EXECINSTR
	sections := []section{
		{name: ".text", kind: elf.SHT_PROGBITS, flags: code, data: text.Bytes()},
		{name: cmp.Or(m.where, ".rodata"), kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, data: []byte(m.data)},
		{name: ".symtab", kind: elf.SHT_SYMTAB, data: symbols.Bytes(), link: moduleNames},
		{name: ".strtab", kind: elf.SHT_STRTAB, data: []byte(names)},
		{name: ".rela.text", kind: elf.SHT_RELA, data: relocations.Bytes(), link: moduleSymtab, info: moduleText},
	}
	if m.init != "" {
		sections = append(sections, section{name: ".init.text", kind: elf.SHT_PROGBITS, flags: code, data: []byte(m.init)})
	}
	return object(elf.ET_REL, sections...)
}

func TestCompare(t *testing.T) {
	const data = "\x00one\x00/build/linux/drivers/x.c\x00two\x00"
	f := function{"f", "\x48\xc7\xc7\x00\x00\x00\x00\xc3", []ref{{3, elf.R_X86_64_32S, "", 1}}}
	g := function{"g", "\xe8\x00\x00\x00\x00\xc3", []ref{{1, elf.R_X86_64_PLT32, "printk", -4}}}
	file := function{"h", "\x48\xc7\xc7\x00\x00\x00\x00\xc3", []ref{{3, elf.R_X86_64_32S, "", 5}}}
	base := module{functions: []function{f, g, file}, data: data}
	for _, tt := range []struct {
		name  string
		other module
		want  []string
	}{
		{"the same", base, nil},
		{"strings elsewhere", module{functions: []function{{f.name, f.code, []ref{{3, elf.R_X86_64_32S, "", 7}}}, g, {file.name, file.code, []ref{{3, elf.R_X86_64_32S, "", 11}}}},
			data: "before\x00one\x00x.c\x00"}, nil},
		{"strings in another section of strings", module{functions: base.functions, data: data, where: ".rodata.str1.8"}, nil},
		{"strings that can be written to", module{functions: base.functions, data: data, where: ".data"}, []string{"f", "h"}},
		{"another string", module{functions: []function{{f.name, f.code, []ref{{3, elf.R_X86_64_32S, "", 30}}}, g, file}, data: data}, []string{"f"}},
		{"another file", module{functions: []function{f, g, file}, data: strings.Replace(data, "x.c", "y.c", 1)}, []string{"h"}},
		{"another callee", module{functions: []function{f, {g.name, g.code, []ref{{1, elf.R_X86_64_PLT32, "panic", -4}}}, file}, data: data}, []string{"g"}},
		{"another addend", module{functions: []function{f, {g.name, g.code, []ref{{1, elf.R_X86_64_PLT32, "printk", -8}}}, file}, data: data}, []string{"g"}},
		{"another kind of reference", module{functions: []function{f, {g.name, g.code, []ref{{1, elf.R_X86_64_PC32, "printk", -4}}}, file}, data: data}, []string{"g"}},
		{"no reference", module{functions: []function{f, {g.name, g.code, nil}, file}, data: data}, []string{"g"}},
		{"another byte", module{functions: []function{f, {g.name, "\xe9\x00\x00\x00\x00\xc3", g.refs}, file}, data: data}, []string{"g"}},
		{"one more, one less", module{functions: []function{f, file, {"new", "\xc3", nil}}, data: data}, []string{"g", "new"}},
		{"another order", module{functions: []function{g, f, file}, data: data}, []string{".text"}},
		{"code of no function", module{functions: base.functions, data: data, gap: "\xcc"}, []string{".text"}},
		{"a section more", module{functions: base.functions, data: data, init: "\xc3"}, []string{".init.text"}},
	} {
		d, err := Compare(base.object(), tt.other.object())
		if err != nil || !slices.Equal(d.Differ, tt.want) || d.Identical() != (tt.want == nil) {
			t.Errorf("%s: %+v, %v, want %v", tt.name, d, err, tt.want)
		}
	}
	twice := module{functions: []function{{"s", "\xc3", nil}, {"s", "\x90\xc3", nil}}}
	other := module{functions: []function{{"s", "\xc3", nil}, {"s", "\xcc\xc3", nil}}}
	if d, err := Compare(twice.object(), other.object()); err != nil || !slices.Equal(d.Differ, []string{"s (2)"}) || d.Functions != 2 {
		t.Errorf("two functions of one name: %+v, %v", d, err)
	}
	for name, bad := range map[string][]byte{"empty": nil, "an image": object(elf.ET_EXEC), "no code": object(elf.ET_REL)} {
		if _, err := Compare(base.object(), bad); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzObject(f *testing.F) {
	const a, s = 0x1000, 0x2000
	f.Add(object(elf.ET_EXEC, section{name: "__ksymtab", kind: elf.SHT_PROGBITS, addr: a, data: symbolTable(a, s, [2]int{0, 1})},
		section{name: "__ksymtab_strings", kind: elf.SHT_PROGBITS, addr: s, data: []byte("a\x00")}))
	f.Add(module{functions: []function{{"f", "\xe8\x00\x00\x00\x00\xc3", []ref{{1, elf.R_X86_64_PLT32, "g", -4}, {0, elf.R_X86_64_32S, "", 1}}}}, data: "\x00text\x00"}.object())
	f.Fuzz(func(t *testing.T, data []byte) {
		if symbols, err := Exports(data); err != nil && !errors.Is(err, ErrFormat) {
			t.Errorf("%d symbols, %v", len(symbols), err)
		}
		if d, err := Compare(data, data); err == nil && !d.Identical() {
			t.Errorf("an object differs from itself: %+v", d)
		} else if err != nil && !errors.Is(err, ErrFormat) {
			t.Error(err)
		}
	})
}
