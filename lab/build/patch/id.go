package patch

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// Reverse is the series that takes this one out: last patch first, each reversed.
func (s Series) Reverse() Series {
	out := make(Series, 0, len(s))
	for _, p := range slices.Backward(s) {
		q := *p
		q.Reversed = !p.Reversed
		q.Files = nil
		for i := range slices.Backward(p.Files) {
			q.Files = append(q.Files, p.Files[i].reverse())
		}
		out = append(out, &q)
	}
	return out
}

func (f File) reverse() File {
	f.Old, f.New, f.OldMode, f.NewMode = f.New, f.Old, f.NewMode, f.OldMode
	if f.Copy && f.Refused == "" {
		f.Refused = copyTakenOut
	} else if f.Refused == copyTakenOut {
		f.Refused = ""
	}
	hunks := f.Hunks
	f.Hunks = make([]Hunk, len(hunks))
	for i, h := range hunks {
		h.OldStart, h.OldLines, h.NewStart, h.NewLines = h.NewStart, h.NewLines, h.OldStart, h.OldLines
		h.Lines = slices.Clone(h.Lines)
		// What is removed stands before what is added.
		for from := 0; from < len(h.Lines); {
			to := from
			for to < len(h.Lines) && h.Lines[to].Op != ' ' {
				to++
			}
			block := h.Lines[from:to]
			for j := range block {
				block[j].Op = '+' + '-' - block[j].Op
			}
			slices.SortStableFunc(block, func(a, b Line) int { return int(b.Op) - int(a.Op) }) // '-' > '+'
			from = to + 1
		}
		f.Hunks[i] = h
	}
	return f
}

// ID is the patch's stable id, that of git patch-id --stable for what git itself would write of it: over what is changed,
// not where, and not over white space. Only for a patch that renames or copies it differs, since git has the similarity in it.
func (p *Patch) ID() string {
	var sum [sha1.Size]byte
	h := sha1.New()
	hunks := false
	flush := func() {
		carry := 0
		for i, b := range h.Sum(nil) { // an addition of long numbers, so files may come in any order
			carry += int(sum[i]) + int(b)
			sum[i] = byte(carry)
			carry >>= 8
		}
		h.Reset()
	}
	for i := range p.Files {
		if hunks {
			flush()
		}
		f := &p.Files[i]
		hunks = len(f.Hunks) > 0
		for _, l := range f.header() {
			h.Write(withoutSpace(l))
		}
		for _, hunk := range f.Hunks {
			for _, l := range hunk.Lines {
				h.Write(withoutSpace(string(l.Op) + l.Text))
			}
		}
	}
	flush()
	return hex.EncodeToString(sum[:])
}

// withoutSpace leaves out what C calls white space.
func withoutSpace(s string) []byte {
	out := make([]byte, 0, len(s))
	for _, c := range []byte(s) {
		if c != ' ' && (c < '\t' || c > '\r') {
			out = append(out, c)
		}
	}
	return out
}

// ID is the id of a series of one patch, and for more a hash of all ids in their order.
func (s Series) ID() string {
	if len(s) == 1 {
		return s[0].ID()
	}
	h := sha1.New()
	for _, p := range s {
		fmt.Fprintln(h, p.ID())
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Diff is the patch as git writes it, without the mail's text.
func (p *Patch) Diff() []byte {
	var b bytes.Buffer
	for i := range p.Files {
		f := &p.Files[i]
		for _, l := range f.header() {
			b.WriteString(l + "\n")
		}
		for _, h := range f.Hunks {
			section := ""
			if h.Section != "" {
				section = " " + h.Section
			}
			fmt.Fprintf(&b, "@@ -%s +%s @@%s\n", span(h.OldStart, h.OldLines), span(h.NewStart, h.NewLines), section)
			for _, l := range h.Lines {
				fmt.Fprintf(&b, "%c%s\n", l.Op, l.Text)
				if l.NoEOL {
					b.WriteString("\\ No newline at end of file\n")
				}
			}
		}
	}
	return b.Bytes()
}

func span(start, lines int) string {
	if lines == 1 {
		return fmt.Sprint(start)
	}
	return fmt.Sprintf("%d,%d", start, lines)
}

// header is what stands before a file's first hunk.
func (f *File) header() []string {
	a, b := f.Old, f.New
	if a == "" {
		a = f.New
	}
	if b == "" {
		b = f.Old
	}
	a, b = quoted("a/"+a), quoted("b/"+b)
	out := []string{"diff --git " + a + " " + b}
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch {
	case f.Old == "":
		add("new file mode 100%o", orDefault(f.NewMode))
		a = devNull
	case f.New == "":
		add("deleted file mode 100%o", orDefault(f.OldMode))
		b = devNull
	default:
		if f.OldMode != f.NewMode {
			add("old mode 100%o", orDefault(f.OldMode))
			add("new mode 100%o", orDefault(f.NewMode))
		}
		if f.Old != f.New {
			verb := "rename"
			if f.Copy {
				verb = "copy"
			}
			add("%s from %s", verb, quoted(f.Old))
			add("%s to %s", verb, quoted(f.New))
		}
	}
	if f.Refused == binaryChange {
		add("Binary files %s and %s differ", a, b)
	}
	if len(f.Hunks) > 0 {
		add("--- %s", tabbed(a))
		add("+++ %s", tabbed(b))
	}
	return out
}

func orDefault(m fs.FileMode) fs.FileMode {
	if m == 0 {
		return 0o644
	}
	return m
}

// quoted is a name as git writes it.
func quoted(name string) string {
	if !strings.ContainsFunc(name, func(r rune) bool { return r > '~' || r < ' ' || r == '"' || r == '\\' }) {
		return name
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(name) {
		switch {
		case c == '"' || c == '\\':
			b.WriteString(`\` + string(c))
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// tabbed ends a name with a blank in it, as for GNU patch.
func tabbed(name string) string {
	if strings.ContainsRune(name, ' ') && !strings.HasPrefix(name, `"`) {
		return name + "\t"
	}
	return name
}
