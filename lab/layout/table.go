package layout

import (
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// narrowestColumn is what a column keeps: narrower, it could not be read. So a table of many columns is wider than a
// terminal much narrower than Default.
const narrowestColumn = 8

// Table is a table without lines but for rules under its header and above its footer, if it has these. A cell may have
// several lines.
type Table struct {
	Header []string
	Rows   [][]string
	Footer []string
	Right  []int  // the columns whose cells end at the right
	Rules  bool   // under the header, above the footer
	Gap    int    // between columns; 0: 2
	Indent string // of every line
}

// Width is the width of the table where no cell is broken.
func (t Table) Width() int {
	widths, _ := t.widths()
	return t.total(widths)
}

// Render writes the table into a number of columns: the widest cells are broken between words, and within words if that
// does not do.
func (t Table) Render(columns int) string {
	widths, words := t.widths()
	for _, least := range [][]int{words, slices.Repeat([]int{narrowestColumn}, len(widths))} {
		for t.total(widths) > columns {
			widest := -1
			for i, w := range widths {
				if w > least[i] && (widest < 0 || w > widths[widest]) {
					widest = i
				}
			}
			if widest < 0 {
				break
			}
			widths[widest]--
		}
	}
	var lines []string
	for line := range strings.SplitSeq(t.writer(widths).Render(), "\n") {
		if t.Rules && strings.Trim(line, "-") == "" { // it goes on under the gap that follows the last column
			line = line[:max(0, len(line)-t.gap())]
		}
		lines = append(lines, strings.TrimRight(t.Indent+line, " "))
	}
	return strings.Join(lines, "\n") + "\n"
}

// Markdown writes the table as Markdown has them.
func (t Table) Markdown() string { return t.writer(nil).RenderMarkdown() }

func (t Table) writer(widths []int) table.Writer {
	w := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.Options{
		SeparateHeader: t.Rules && t.Header != nil,
		SeparateFooter: t.Rules && t.Footer != nil,
	}
	style.Format = table.FormatOptions{}
	style.Box.PaddingLeft, style.Box.PaddingRight = "", strings.Repeat(" ", t.gap())
	w.SetStyle(style)
	if t.Header != nil {
		w.AppendHeader(row(t.Header))
	}
	for _, r := range t.Rows {
		w.AppendRow(row(r))
	}
	if t.Footer != nil {
		w.AppendFooter(row(t.Footer))
	}
	var configs []table.ColumnConfig
	for i, width := range widths {
		c := table.ColumnConfig{
			Number:           i + 1,
			WidthMax:         max(width, 1),
			WidthMaxEnforcer: func(cell string, width int) string { return Wrap(cell, width, "") },
		}
		if slices.Contains(t.Right, i) {
			c.Align, c.AlignHeader, c.AlignFooter = text.AlignRight, text.AlignRight, text.AlignRight
		}
		configs = append(configs, c)
	}
	w.SetColumnConfigs(configs)
	return w
}

func row(cells []string) table.Row {
	r := make(table.Row, len(cells))
	for i, c := range cells {
		r[i] = c
	}
	return r
}

func (t Table) gap() int { return max(t.Gap, 2) }

func (t Table) total(widths []int) int {
	sum := len(t.Indent) + t.gap()*(len(widths)-1)
	for _, w := range widths {
		sum += w
	}
	return sum
}

// widths are those of the columns, and of the longest word in each: a column narrower than that breaks words.
func (t Table) widths() (widths, words []int) {
	for _, cells := range slices.Concat([][]string{t.Header, t.Footer}, t.Rows) {
		for i, cell := range cells {
			if i == len(widths) {
				widths, words = append(widths, 0), append(words, 0)
			}
			widths[i] = max(widths[i], Width(cell))
			for word := range strings.FieldsSeq(cell) {
				for _, p := range pieces(word) {
					words[i] = max(words[i], Width(p))
				}
			}
		}
	}
	return widths, words
}
