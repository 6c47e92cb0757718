// Package markdown reads irqlab's own documentation, for the tests that hold it to the code and for the one that runs what it shows.
package markdown

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// Page is a Markdown file.
type Page struct {
	Path    string // below the root, with slashes
	Source  []byte
	Blocks  []Text          // code blocks, fenced and indented
	Spans   []Text          // code within a line
	Links   []Text          // destinations
	Anchors map[string]bool // what a link may have behind its #
}

// Text is a part of a page.
type Text struct {
	Text       string
	Language   string            // of a fenced block: its info string's first word
	Options    map[string]string // the others, which are KEY=VALUE
	Line       int
	Start, End int // of a block: where its text is in the source
}

// Pages reads every Markdown file below root.
func Pages(root string) ([]*Page, error) {
	var pages []*Page
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		p, err := Parse(filepath.ToSlash(rel), source)
		pages = append(pages, p)
		return err
	})
	return pages, err
}

// Parse reads one page.
func Parse(path string, source []byte) (*Page, error) {
	p := &Page{Path: path, Source: source, Anchors: map[string]bool{}}
	tree := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(source))
	err := ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			p.anchor(words(n, source))
		case *ast.FencedCodeBlock:
			info := ""
			if n.Info != nil {
				info = string(n.Info.Value(source))
			}
			b, err := block(n.Lines(), source, info)
			if err != nil {
				return ast.WalkStop, fmt.Errorf("%s:%d: %w", path, b.Line, err)
			}
			p.Blocks = append(p.Blocks, b)
		case *ast.CodeBlock:
			b, _ := block(n.Lines(), source, "")
			p.Blocks = append(p.Blocks, b)
		case *ast.CodeSpan:
			p.Spans = append(p.Spans, Text{Text: words(n, source), Line: p.line(n)})
		case *ast.Link:
			to, err := url.PathUnescape(string(n.Destination))
			if err != nil {
				return ast.WalkStop, fmt.Errorf("%s:%d: %w", path, p.line(n), err)
			}
			p.Links = append(p.Links, Text{Text: to, Line: p.line(n)})
		}
		return ast.WalkContinue, nil
	})
	return p, err
}

func block(lines *text.Segments, source []byte, info string) (b Text, err error) {
	b.Text = string(lines.Value(source))
	if lines.Len() > 0 {
		b.Start, b.End = lines.At(0).Start, lines.At(lines.Len()-1).Stop
	}
	b.Line = 1 + strings.Count(string(source[:b.Start]), "\n")
	for i, word := range strings.Fields(info) {
		key, value, ok := strings.Cut(word, "=")
		switch {
		case i == 0:
			b.Language = word
			b.Options = map[string]string{}
		case !ok:
			return b, fmt.Errorf("%q behind the block's language is not KEY=VALUE", word)
		default:
			b.Options[key] = value
		}
	}
	return b, nil
}

// words are a node's text, without its marks.
func words(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Value(source))
			if t.SoftLineBreak() {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.ReplaceAll(b.String(), "\n", " ")
}

// line is where a node within a line stands: at the first text at or below it, else at the line its paragraph begins with.
func (p *Page) line(n ast.Node) int {
	at := 0
	_ = ast.Walk(n, func(n ast.Node, _ bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok {
			at = t.Segment.Start
			return ast.WalkStop, nil
		}
		return ast.WalkContinue, nil
	})
	return 1 + strings.Count(string(p.Source[:at]), "\n")
}

// anchor adds a heading's name as GitHub makes it: in small letters, blanks as hyphens, without punctuation; a second one of the same name gets a number.
func (p *Page) anchor(heading string) {
	name := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
	unique := name
	for i := 1; p.Anchors[unique]; i++ {
		unique = fmt.Sprintf("%s-%d", name, i)
	}
	p.Anchors[unique] = true
}

// Anchor is the name that the page's first heading of these words has.
func Anchor(heading string) string {
	p := &Page{Anchors: map[string]bool{}}
	p.anchor(heading)
	for name := range p.Anchors {
		return name
	}
	return ""
}

// Typed is what was typed at a console's prompt, "$ ", and lines that go on behind "> "; and what came.
type Typed struct {
	Command    string
	Start, End int // of what came, in the block's text
}

// Console reads a console block. What stands before its first prompt is lost.
func Console(block string) (all []Typed) {
	at, more := 0, false
	for line := range strings.Lines(block) {
		at += len(line)
		switch command, ok := strings.CutPrefix(line, "$ "); {
		case ok:
			all, more = append(all, Typed{command, at, at}), true
		case more && strings.HasPrefix(line, "> "):
			t := &all[len(all)-1]
			t.Command, t.Start, t.End = t.Command+line[2:], at, at
		case len(all) > 0:
			all[len(all)-1].End, more = at, false
		}
	}
	return all
}
