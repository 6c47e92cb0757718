package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"irqlab/lab/build/patch"
	"irqlab/lab/foreign"
	"irqlab/lab/layout"
)

const misfitLines = 30 // of a hunk that does not apply, this much is shown of either text

// Patch writes how a series applies: each patch, each file's hunks, and of each hunk that does not fit the text that it expects
// and the text that stands there.
func Patch(w io.Writer, s patch.Series, r *patch.Result) error {
	p := &page{columns: layout.Columns(w), colour: layout.Colour(w)}
	for _, one := range s {
		p.patchHead(one)
	}
	for _, n := range r.Notes {
		p.bullet("note: ", n)
	}
	for _, path := range r.Outside {
		p.bullet("", "not built, so passed over: "+foreign.Line(path))
	}
	hunks := r.Hunks
	for len(hunks) > 0 {
		n := 1
		for n < len(hunks) && hunks[n].Patch == hunks[0].Patch && hunks[n].Path == hunks[0].Path {
			n++
		}
		p.patchFile(hunks[:n])
		hunks = hunks[n:]
	}
	for i := range r.Hunks {
		if m := r.Hunks[i].Misfit; m != nil && !sameElsewhere(r, m.Reason) {
			p.misfit(&r.Hunks[i])
		}
	}
	p.linef("")
	p.bullet("", patchTotal(r))
	_, err := w.Write(p.Bytes())
	return err
}

// sameElsewhere reports whether all hunks fail for one reason that is the patch's as a whole, so that their texts would tell no more: it is there already, or is not there to be taken out.
func sameElsewhere(r *patch.Result, reason patch.Reason) bool {
	return (reason == patch.AlreadyApplied || reason == patch.NotApplied) &&
		!slices.ContainsFunc(r.Hunks, func(h patch.HunkReport) bool { return h.Misfit == nil || h.Misfit.Reason != reason })
}

// patchHead says what a patch is called.
func (p *page) patchHead(one *patch.Patch) {
	name := cmp.Or(foreign.Line(one.Title), "a diff without a title")
	if one.Version > 1 {
		name = fmt.Sprintf("v%d %s", one.Version, name)
	}
	if one.Total > 0 {
		name = fmt.Sprintf("%d/%d %s", one.Number, one.Total, name)
	}
	if one.Reversed {
		name = "taken out: " + name
	}
	p.bullet("", name)
	p.bullet("  ", fmt.Sprintf("%s, id %.12s", foreign.Line(one.Source), one.ID()))
}

// patchFile is a line for each hunk of one file.
func (p *page) patchFile(hunks []patch.HunkReport) {
	p.linef("")
	p.bullet("", foreign.Line(hunks[0].Path))
	if len(hunks) == 1 && hunks[0].Hunk == 0 {
		p.linef("  %s", patchFit(&hunks[0]))
		return
	}
	t := layout.Table{Rules: true, Indent: "  ", Header: []string{"hunk", "line", "fits", "function"}, Right: []int{0, 1}}
	for i := range hunks {
		h := &hunks[i]
		line := "-"
		if h.Line > 0 {
			line = strconv.Itoa(h.Line)
		}
		t.Rows = append(t.Rows, []string{fmt.Sprintf("%d/%d", h.Hunk, h.Of), line, patchFit(h), ""})
	}
	room := max(p.columns-t.Width(), 0) + len("function")
	for i := range hunks {
		t.Rows[i][3] = layout.Snip(foreign.Line(hunks[i].Section), room) // a name that is cut is told from the line
	}
	p.WriteString(t.Render(p.columns))
}

// patchFit says in a few words how a hunk fits.
func patchFit(h *patch.HunkReport) string {
	if h.Misfit != nil {
		return "NO: " + strings.ReplaceAll(string(h.Misfit.Reason), "-", " ")
	}
	if h.Hunk == 0 {
		return "exact"
	}
	var words []string
	if h.Fuzz > 0 {
		words = append(words, fmt.Sprintf("fuzz %d", h.Fuzz))
	}
	if h.Offset != 0 {
		words = append(words, fmt.Sprintf("offset %+d", h.Offset))
	}
	if len(h.Others) > 0 {
		words = append(words, fmt.Sprintf("by function, 1 of %d", len(h.Others)+1))
	}
	if words == nil {
		return "exact"
	}
	return strings.Join(words, ", ")
}

// misfit shows both texts of a hunk that does not apply. A ! marks the lines that the other text lacks.
func (p *page) misfit(h *patch.HunkReport) {
	m := h.Misfit
	p.linef("")
	sentence := foreign.Line(m.Text)
	if !strings.HasSuffix(sentence, "?") {
		sentence += "."
	}
	p.bullet("", foreign.Line(h.Where())+": "+sentence)
	if len(m.Places) > 0 {
		p.bullet("  ", fmt.Sprintf("fits at line %s", strings.Trim(fmt.Sprint(m.Places), "[]")))
	}
	if len(m.Want) > 0 {
		p.linef("  expected:")
		p.sourceText(m.Want, m.Found, 0)
	}
	if len(m.Found) > 0 {
		p.linef("  there:")
		p.sourceText(m.Found, m.Want, m.Line)
	}
}

// sourceText shows lines, numbered from first unless that is 0.
func (p *page) sourceText(lines, other []string, first int) {
	for i, l := range lines {
		if i == misfitLines {
			p.linef("    … and %s", Plural(len(lines)-i, "more line", "more lines"))
			return
		}
		mark := " "
		if !slices.Contains(other, l) {
			mark = "!"
		}
		number := ""
		if first > 0 {
			number = fmt.Sprint(first + i)
		}
		// Tabs as wide as in an editor, and no line that a terminal would wrap.
		l = layout.Snip(foreign.Line(expandTabs(l)), p.columns-len("  ! 12345 "))
		p.linef("%s", strings.TrimRight(fmt.Sprintf("  %s %5s %s", mark, number, l), " "))
	}
}

func expandTabs(s string) string {
	var b strings.Builder
	column := 0
	for _, r := range s {
		if r != '\t' {
			b.WriteRune(r)
			column++
			continue
		}
		for ok := true; ok; ok = column%8 != 0 {
			b.WriteByte(' ')
			column++
		}
	}
	return b.String()
}

// patchTotal is the sum of it.
func patchTotal(r *patch.Result) string {
	var exact, moved, fuzzy, failed int
	for _, h := range r.Hunks {
		switch {
		case h.Misfit != nil:
			failed++
		case h.Fuzz > 0:
			fuzzy++
		case h.Offset != 0:
			moved++
		default:
			exact++
		}
	}
	var words []string
	for _, c := range []struct {
		n    int
		what string
	}{{exact, "exact"}, {moved, "at an offset"}, {fuzzy, "with fuzz"}} {
		if c.n > 0 {
			words = append(words, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	how := strings.Join(words, ", ")
	switch {
	case failed > 0 && how != "":
		return fmt.Sprintf("does not apply: %d of %d hunks (%s)", failed, len(r.Hunks), how)
	case failed > 0:
		return fmt.Sprintf("does not apply: none of %d hunks", len(r.Hunks))
	case how == "":
		return "applies: nothing is to be changed"
	}
	s := fmt.Sprintf("applies: %d hunks (%s)", len(r.Hunks), how)
	if fuzzy > 0 {
		s += fmt.Sprintf("; look at those with fuzz: up to %s of context may differ", Plural(r.Fuzz(), "line", "lines"))
	}
	return s
}
