package patch

import (
	"bytes"
	"io"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/charset"
)

// isPage says whether raw begins like an HTML page.
func isPage(raw []byte) bool {
	head := bytes.TrimSpace(raw[:min(len(raw), 1024)])
	for _, start := range []string{"<!doctype html", "<html", "<head", "<?xml", "<pre", "<!--"} {
		if len(head) >= len(start) && strings.EqualFold(string(head[:len(start)]), start) {
			return true
		}
	}
	return false
}

// page reads a page saved from an archive of mails. All of them have the mail in <pre>, and its subject there, in a heading
// or in the page's title.
func (r *reader) page(raw []byte) error {
	utf8, err := charset.NewReader(bytes.NewReader(raw), "")
	if err != nil {
		return &ReadError{Name: r.name, Text: "a page with an unknown charset"}
	}
	z := html.NewTokenizer(utf8)
	var text, title, heading strings.Builder
	var pre, skip int
	var into *strings.Builder
	for {
		switch t := z.Next(); t {
		case html.ErrorToken:
			if z.Err() != io.EOF {
				return &ReadError{Name: r.name, Text: "a damaged page: " + printable(z.Err().Error())}
			}
			subject := heading.String()
			if strings.TrimSpace(subject) == "" {
				subject = title.String()
			}
			for _, site := range []string{" - Patchwork", " - MARC", " — Linux "} {
				subject, _, _ = strings.Cut(subject, site)
			}
			head := (*candidate)(nil).next()
			head.setSubject(parseSubject(strings.Trim(strings.TrimSpace(subject), "'")))
			return r.text(text.String(), textOptions{header: head})
		case html.TextToken:
			switch {
			case skip > 0:
			case pre > 0:
				text.Write(z.Text())
			case into != nil:
				into.Write(z.Text())
			}
		case html.StartTagToken, html.SelfClosingTagToken:
			name, _ := z.TagName()
			switch string(name) {
			case "pre":
				pre++
				text.WriteByte('\n')
			case "br":
				if pre > 0 {
					text.WriteByte('\n')
				}
			case "script", "style":
				if t == html.StartTagToken {
					skip++
				}
			case "title":
				into = &title
			case "h1", "h2":
				if heading.Len() == 0 {
					into = &heading
				}
			}
		case html.EndTagToken:
			name, _ := z.TagName()
			switch string(name) {
			case "pre":
				pre = max(pre-1, 0)
				text.WriteByte('\n')
			case "script", "style":
				skip = max(skip-1, 0)
			case "title", "h1", "h2":
				into = nil
			}
		}
	}
}
