package patch

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"iter"
	"path"
	"regexp"
	"strings"

	"github.com/emersion/go-message"
	_ "github.com/emersion/go-message/charset" // charsets other than UTF-8
)

var (
	boxLine    = regexp.MustCompile(`^From \S.*\d{1,2}:\d\d.*\d{4}.*$`)
	headerLine = regexp.MustCompile(`^[!-9;-~]+:(?:[ \t].*)?$`)
	mailHeader = regexp.MustCompile(`^(?i:From|Subject|Date|Message-ID|Content-Type|Received|Return-Path|Delivered-To|MIME-Version|To):`)
)

// firstLine cuts raw after its first line, and takes the line's end from it.
func firstLine(raw []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(raw, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r")), rest
}

// isBox says whether raw begins like a mailbox: with a line that separates mails, and a mail's header.
func isBox(raw []byte) bool {
	line, rest := firstLine(raw)
	next, _ := firstLine(rest)
	return boxLine.Match(line) && headerLine.Match(next)
}

// isMail says whether raw begins with a mail's header.
func isMail(raw []byte) bool {
	known := false
	for i := 0; i < 5000 && len(raw) > 0; i++ {
		var line []byte
		line, raw = firstLine(raw)
		switch {
		case len(line) == 0:
			return known
		case i > 0 && (line[0] == ' ' || line[0] == '\t'):
		case headerLine.Match(line):
			known = known || mailHeader.Match(line)
		default:
			return false
		}
	}
	return false
}

// splitBox gives a mailbox's mails, separating lines included. Lengths that the mails give are not believed: what begins
// a mail is a line that separates, and a header's behind it. Within a patch no line begins so.
func splitBox(raw []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		start := 0
		for at := 0; at < len(raw); {
			end := bytes.IndexByte(raw[at:], '\n')
			if end < 0 {
				break
			}
			at += end + 1
			if bytes.HasPrefix(raw[at:], []byte("From ")) && isBox(raw[at:]) {
				if !yield(raw[start:at]) {
					return
				}
				start = at
			}
		}
		yield(raw[start:])
	}
}

var quotedFrom = regexp.MustCompile(`(?m)^>(>*From )`)

// mail reads one mail, which may begin with a mailbox's separating line and stands line lines down in the input.
func (r *reader) mail(raw []byte, line, depth int) error {
	if isBox(raw) {
		_, raw = firstLine(raw)
		line++
		raw = quotedFrom.ReplaceAll(raw, []byte("$1"))
	}
	body := bodyLine(raw)
	e, err := message.Read(bufio.NewReader(bytes.NewReader(raw)))
	if e == nil {
		return &ReadError{Name: r.name, Line: line + 1, Text: "a mail with a damaged header: " + printable(err.Error())}
	}
	head := (*candidate)(nil).next()
	text, err2 := e.Header.Text("Subject")
	if err2 != nil {
		text = e.Header.Get("Subject")
	}
	head.setSubject(parseSubject(text))
	if from, err := e.Header.Text("From"); err == nil {
		head.Author = printable(from)
	} else {
		head.Author = printable(e.Header.Get("From"))
	}
	head.setField("Message-ID", strings.TrimSpace(e.Header.Get("Message-ID")))
	m := &mailReader{reader: r, head: head, line: line + body}
	before := len(r.found)
	if err := m.part(e, err, depth, true); err != nil {
		return err
	}
	// A diff that is both in the mail's text and beside it counts once.
	seen := map[string]bool{}
	kept := r.found[:before]
	for _, c := range r.found[before:] {
		if d := string(c.Diff()); !seen[d] {
			seen[d] = true
			kept = append(kept, c)
		}
	}
	r.found = kept
	if len(kept) == before && head.cover() {
		r.covers++
	}
	return nil
}

// bodyLine is how many lines come before a mail's body.
func bodyLine(raw []byte) int {
	n := 0
	for len(raw) > 0 {
		var line []byte
		line, raw = firstLine(raw)
		n++
		if len(line) == 0 {
			break
		}
	}
	return n
}

type mailReader struct {
	*reader
	head *candidate
	line int // lines of the input before the body
}

// part reads a part of a mail. err is what go-message said of its encoding.
func (m *mailReader) part(e *message.Entity, err error, depth int, top bool) error {
	if depth > maxDepth {
		return &ReadError{Name: m.name, Text: "a mail with parts in parts in parts, too often"}
	}
	fail := func(err error) error {
		return &ReadError{Name: m.mailName(), Text: "a damaged mail: " + printable(err.Error())}
	}
	if parts := e.MultipartReader(); parts != nil {
		for {
			p, err := parts.NextPart()
			if p == nil {
				if errors.Is(err, io.EOF) {
					return nil
				}
				return fail(err)
			}
			if err := m.part(p, err, depth+1, false); err != nil {
				return err
			}
		}
	}
	kind, params, _ := e.Header.ContentType()
	_, disposition, _ := e.Header.ContentDisposition()
	file := strings.ToLower(params["name"] + disposition["filename"])
	if !readable(kind, file) {
		return nil
	}
	body, readErr := io.ReadAll(io.LimitReader(e.Body, maxInput))
	if err != nil && !message.IsUnknownCharset(err) || readErr != nil {
		return fail(errors.Join(err, readErr))
	}
	if kind == "message/rfc822" {
		return m.read(body, depth+1)
	}
	if strings.EqualFold(params["format"], "flowed") && kind == "text/plain" {
		body = unflow(body, strings.EqualFold(params["delsp"], "yes"))
	}
	if !top && (isBox(body) || isMail(body)) { // git format-patch's file, attached
		return m.read(body, depth+1)
	}
	if kind == "text/html" {
		return m.page(body)
	}
	o := textOptions{header: m.head, whole: true}
	switch strings.ToLower(e.Header.Get("Content-Transfer-Encoding")) {
	case "", "7bit", "8bit", "binary":
		if top {
			o.offset = m.line
		}
	}
	name := m.name
	m.name = m.mailName()
	defer func() { m.name = name }()
	n := len(m.found)
	if err := m.text(string(body), o); err != nil {
		return err
	}
	for _, c := range m.found[n:] {
		c.Source = name
	}
	return nil
}

// mailName names the mail among others of its input.
func (m *mailReader) mailName() string {
	if m.head.Title == "" {
		return m.name
	}
	return m.name + ` ("` + m.head.Title + `")`
}

// readable says whether a part of this type, with this file name, may hold a patch. An application's is one if its name says so.
func readable(kind, file string) bool {
	switch {
	case kind == "" || strings.HasPrefix(kind, "text/") || kind == "message/rfc822":
		return kind != "text/calendar" && kind != "text/rtf"
	case strings.Contains(kind, "patch"), strings.Contains(kind, "diff"):
		return true
	}
	switch path.Ext(file) {
	case ".patch", ".diff", ".eml", ".mbox", ".mbx", ".txt":
		return true
	}
	return false
}

// unflow undoes format=flowed (RFC 3676): lines that end in a blank go on in the next, and one blank before a line is not its own.
func unflow(body []byte, delSpace bool) []byte {
	var out bytes.Buffer
	out.Grow(len(body))
	for len(body) > 0 {
		var line []byte
		line, body = firstLine(body)
		if string(line) == "-- " {
			out.WriteString("-- \n")
			continue
		}
		line = bytes.TrimPrefix(line, []byte(" "))
		if len(line) > 0 && line[len(line)-1] == ' ' && len(body) > 0 {
			if delSpace {
				line = line[:len(line)-1]
			}
			out.Write(line)
			continue
		}
		out.Write(line)
		out.WriteByte('\n')
	}
	return out.Bytes()
}
