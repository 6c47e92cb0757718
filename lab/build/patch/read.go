package patch

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/text/encoding/unicode"
)

const (
	maxInput = 64 << 20 // of one input, unpacked
	maxLines = 4 << 20  // of one text; a whole release of the kernel has some 3 million
	maxNotes = 10       // of one kind
)

// A ReadError says what is wrong with an input, and where.
type ReadError struct {
	Name string
	Line int // in the input's text, or, if that is encoded, in the mail's decoded text, from 1; 0 if it is the whole
	Text string
}

func (e *ReadError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s, line %d: %s", printable(e.Name), e.Line, e.Text)
	}
	return printable(e.Name) + ": " + e.Text
}

// Read reads the patches of all inputs, in their order. What an input is (a mailbox, a mail, an archive's page, a diff;
// gzipped or not) is told from its content. The mails of a series are put in the order of their numbers, a cover letter
// and replies are passed over. An error is a [*ReadError] unless reading itself failed.
func Read(inputs ...Input) (Series, error) {
	var found []*candidate
	for i, in := range inputs {
		cs, err := readInput(in)
		if err != nil {
			return nil, err
		}
		for _, c := range cs {
			c.input = i
		}
		found = append(found, cs...)
	}
	if len(found) == 0 {
		return nil, &ReadError{Name: "patches", Text: "none was given"}
	}
	return arrange(found)
}

// A candidate is a patch that was found, and what decides whether it belongs into the series.
type candidate struct {
	*Patch
	subject
	input int
}

// readInput reads one input.
func readInput(in Input) ([]*candidate, error) {
	raw, err := readAll(in)
	if err != nil {
		return nil, err
	}
	r := &reader{name: in.Name}
	if err := r.read(raw, 0); err != nil {
		return nil, err
	}
	if len(r.found) > 0 {
		return r.found, nil
	}
	e := &ReadError{Name: in.Name, Text: "no patch is in it"}
	switch {
	case len(bytes.TrimSpace(raw)) == 0:
		e.Text = "it is empty"
	case r.covers > 0:
		e.Text = "only a series' cover letter is in it: give the mails with the patches, or the whole thread as a mailbox"
	case r.quoted:
		e.Text = "only a reply that quotes a patch is in it: give the mail that it answers"
	case bytes.IndexByte(raw, 0) >= 0:
		e.Text = "it is no text"
	}
	return nil, e
}

// readAll reads an input and makes UTF-8 without a mark before it of what it can.
func readAll(in Input) ([]byte, error) {
	limited := func(r io.Reader) ([]byte, error) {
		raw, err := io.ReadAll(io.LimitReader(r, maxInput+1))
		if err == nil && len(raw) > maxInput {
			err = &ReadError{Name: in.Name, Text: fmt.Sprintf("it is larger than %d MiB", maxInput>>20)}
		}
		return raw, err
	}
	raw, err := limited(in.R)
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err == nil {
			raw, err = limited(z)
		}
		if e, ok := err.(*ReadError); ok {
			return nil, e
		} else if err != nil {
			return nil, &ReadError{Name: in.Name, Text: "its compression is damaged: " + err.Error()}
		}
	}
	switch {
	case bytes.HasPrefix(raw, []byte("\xef\xbb\xbf")):
		raw = raw[3:]
	case bytes.HasPrefix(raw, []byte("\xff\xfe")), bytes.HasPrefix(raw, []byte("\xfe\xff")): // a Windows shell's redirection
		if raw, err = unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewDecoder().Bytes(raw); err != nil {
			return nil, &ReadError{Name: in.Name, Text: "its UTF-16 is damaged"}
		}
	}
	return raw, nil
}

// A reader collects what is found in one input.
type reader struct {
	name   string
	found  []*candidate
	hunks  int
	covers int  // cover letters
	quoted bool // there are quoted diffs
}

const maxDepth = 8 // of mails in mails

// read tells what raw is and reads it. depth is that of mails in mails.
func (r *reader) read(raw []byte, depth int) error {
	if depth > maxDepth {
		return &ReadError{Name: r.name, Text: "a mail in a mail in a mail, too often"}
	}
	switch {
	case isPage(raw):
		return r.page(raw)
	case isBox(raw):
		line := 0
		for mail := range splitBox(raw) {
			if err := r.mail(mail, line, depth); err != nil {
				return err
			}
			line += bytes.Count(mail, []byte("\n"))
		}
		return nil
	case isMail(raw):
		return r.mail(raw, 0, depth)
	}
	return r.text(string(raw), textOptions{})
}

// textOptions say what is known of a text.
type textOptions struct {
	header *candidate // of the mail that the text is, or of the page it stands in, whose title counts if the text has none
	whole  bool       // the text is one mail's
	offset int        // lines of the input before it
}

var (
	titleLine   = regexp.MustCompile(`^(?:\* )?(?i:((?:re|aw|sv|fw|fwd): *)*)\[[^\]]*(?:PATCH|RFC)[^\]]*\]\s*\S`)
	commitLine  = regexp.MustCompile(`^commit [0-9a-f]{40}(?:[0-9a-f]{24})?\b`)
	fieldLine   = regexp.MustCompile(`^(Subject|From|Author|Message-ID|Message-Id): +(\S.*)$`)
	onlyIn      = regexp.MustCompile(`^Only in \S.*: \S`)
	quotedStart = regexp.MustCompile(`^(?:> ?)+(?:diff --git |\+\+\+ |@@ -)`)
	archiveTail = regexp.MustCompile(` +@ \d{4}-\d\d-\d\d .*$`)
)

// text finds the diffs in a text. A text that is not one mail's may be several mails' or a commit's as somebody saved
// them: then lines that look like a subject begin the next.
func (r *reader) text(text string, o textOptions) error {
	if strings.Count(text, "\n") > maxLines {
		return &ReadError{Name: r.name, Text: fmt.Sprintf("more than %d lines", maxLines)}
	}
	lines := strings.Split(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	d := &diffParser{name: r.name, lines: lines, hunks: r.hunks, offset: o.offset}
	defer func() { r.hunks = d.hunks }()

	cur := o.header.next()
	var commits int
	var notes []string
	title, inBody := false, true // whether cur has a title of its own; whether a mail's first lines are being read
	flush := func() {
		if len(cur.Files) > 0 {
			cur.Source = r.name
			cur.Notes = notes
			r.found = append(r.found, cur)
		} else if cur.cover() {
			r.covers++
		}
		cur, title, notes = o.header.next(), false, nil
	}
	setTitle := func(s string) {
		if len(cur.Files) > 0 || cur.cover() && title {
			flush()
		}
		cur.setSubject(parseSubject(s))
		title = true
	}
	for d.at < len(lines) {
		f, err := d.file()
		if err != nil {
			return err
		}
		if f != nil {
			cur.Files = append(cur.Files, *f)
			continue
		}
		l := d.line(d.at)
		field := fieldLine.FindStringSubmatch(l)
		switch {
		case quotedStart.MatchString(l):
			r.quoted = true
		case onlyIn.MatchString(l) && len(notes) < maxNotes:
			notes = append(notes, fmt.Sprintf("%s, line %d: %q: that file's text is not in the patch; diff -N puts it in.", printable(r.name), d.at+1+d.offset, printable(l)))
		case o.whole:
			// A mail's text may begin with the true author and subject, and an empty line.
			if inBody && field != nil && field[1] == "From" {
				cur.Author = printable(field[2])
			} else if inBody && field != nil && field[1] == "Subject" {
				cur.setSubject(parseSubject(field[2]))
			} else if strings.TrimSpace(l) != "" {
				inBody = false
			}
		case commitLine.MatchString(l):
			if commits++; commits > 1 {
				return d.errorAt(d.at, "several commits as git log shows them, which does not say in what order they apply: give git format-patch --stdout A..B")
			}
			flush()
			for i := d.at + 1; i < min(d.at+12, len(lines)); i++ {
				if t, ok := strings.CutPrefix(d.line(i), "    "); ok && strings.TrimSpace(t) != "" {
					setTitle(t)
					break
				}
			}
		case titleLine.MatchString(l):
			setTitle(strings.TrimPrefix(l, "* "))
		case field == nil:
		case field[1] == "Subject":
			setTitle(field[2])
		case len(cur.Files) > 0: // behind a patch: text of another mail, whose subject is still to come
			if field[1] != "Author" {
				flush()
				cur.setField(field[1], field[2])
			}
		default:
			cur.setField(field[1], field[2])
		}
		d.at++
	}
	flush()
	return nil
}

// setField sets what a line of a mail's header says.
func (c *candidate) setField(key, value string) {
	switch strings.ToLower(key) {
	case "from", "author":
		c.Author = printable(archiveTail.ReplaceAllString(value, ""))
	case "message-id":
		if id, _, ok := strings.Cut(strings.TrimPrefix(value, "<"), ">"); ok {
			c.MessageID = printable(id)
		}
	}
}

// next is a new candidate with what a header says; of no header, an empty one.
func (c *candidate) next() *candidate {
	if c == nil {
		return &candidate{Patch: &Patch{Version: 1}}
	}
	p := *c.Patch
	p.Tags = slices.Clone(p.Tags)
	return &candidate{Patch: &p, subject: c.subject}
}

// A subject is what the line of that name says.
type subject struct {
	title                  string
	reply, numbered        bool
	version, number, total int
	tags                   []string
}

// cover says whether the mail is number 0 of a series.
func (s *subject) cover() bool { return s.numbered && s.number == 0 }

func (c *candidate) setSubject(s subject) {
	c.subject = s
	c.Title, c.Version, c.Number, c.Total, c.Tags = s.title, s.version, s.number, s.total, s.tags
}

var (
	replyMark   = regexp.MustCompile(`^(?i:re|aw|sv|antw|fw|fwd)(?:\[\d+\])?: *`)
	bracket     = regexp.MustCompile(`^\[([^\]]*)\]\s*`)
	numberWord  = regexp.MustCompile(`^(\d{1,4})/(\d{1,4})$`)
	versionWord = regexp.MustCompile(`^(?i:(?:PATCH|RFC)?-?v(\d{1,4}))$`)
)

// parseSubject reads "[PATCH v5 net 2/3] title".
func parseSubject(s string) subject {
	out := subject{version: 1}
	s = printable(strings.Join(strings.Fields(s), " "))
	for {
		if m := replyMark.FindString(s); m != "" {
			lower := strings.ToLower(m)
			out.reply = out.reply || !strings.HasPrefix(lower, "f")
			s = s[len(m):]
			continue
		}
		m := bracket.FindStringSubmatch(s)
		if m == nil {
			break
		}
		s = s[len(m[0]):]
		for _, word := range strings.FieldsFunc(m[1], func(r rune) bool { return r == ' ' || r == ',' }) {
			if n := numberWord.FindStringSubmatch(word); n != nil {
				fmt.Sscan(n[1]+" "+n[2], &out.number, &out.total)
				out.numbered = true
			} else if v := versionWord.FindStringSubmatch(word); v != nil {
				fmt.Sscan(v[1], &out.version)
			} else if !strings.EqualFold(word, "PATCH") {
				out.tags = append(out.tags, word)
			}
		}
	}
	out.title = s
	return out
}
