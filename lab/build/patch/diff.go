package patch

import (
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// Why not one of the parsers there are: each gives up at a cut or damaged hunk with its own words and no line, and which
// hunk, at which line, cut where, is what the reader of a bad mail must hear.

const (
	binaryChange  = "a binary change"
	symlinkChange = "a symbolic link"
	moduleChange  = "a submodule"
	copyTakenOut  = "a copy, which cannot be taken out"

	maxHunks = 200_000 // per input; a whole kernel release has some 100,000
)

var (
	hunkHeader = regexp.MustCompile(`^@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@ ?(.*)$`)
	timestamp  = regexp.MustCompile(`(?:\t.*|\s+\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d.*|\s+(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{3} [ \d]\d \d\d:\d\d:\d\d.*)$`)
	epoch      = regexp.MustCompile(`\s(?:1970-01-01 00:00:00|1969-12-31 \d\d:|1970-01-01 \d\d:00:00|Thu Jan +1 00:00:00 1970)`)
	oneLetter  = regexp.MustCompile(`^[abciow12]/`)
)

// A diffParser walks through the lines of one text.
type diffParser struct {
	name   string
	lines  []string
	at     int
	prefix string // of the new side's paths in the last file that told: "linux-6.18/"
	hunks  int
	offset int // lines of the input before the text
}

func (d *diffParser) errorAt(line int, format string, args ...any) error {
	return &ReadError{Name: d.name, Line: line + 1 + d.offset, Text: fmt.Sprintf(format, args...)}
}

// line is the i-th line without a carriage return at its end, or "" after the last.
func (d *diffParser) line(i int) string {
	if i >= len(d.lines) {
		return ""
	}
	return strings.TrimSuffix(d.lines[i], "\r")
}

// file reads one file's change if one begins at the current line, and goes behind it.
func (d *diffParser) file() (*File, error) {
	l := d.line(d.at)
	switch {
	case strings.HasPrefix(l, "diff --git "):
		return d.gitFile()
	case strings.HasPrefix(l, "diff --cc "), strings.HasPrefix(l, "diff --combined "):
		return nil, d.errorAt(d.at, "the combined diff of a merge, which cannot be applied: give the merge's commits")
	case d.plainStart(d.at):
		return d.plainFile()
	case strings.HasPrefix(l, "*** ") && strings.HasPrefix(d.line(d.at+1), "--- ") && strings.HasPrefix(d.line(d.at+2), "********"):
		return nil, d.errorAt(d.at, "a context diff, which is not read: make a unified one, with diff -u")
	case strings.HasPrefix(l, "Binary files ") && strings.HasSuffix(l, " differ"):
		return d.plainBinary()
	case hunkHeader.MatchString(l):
		return nil, d.errorAt(d.at, "half a patch: a hunk without the names of its file before it")
	}
	return nil, nil
}

// plainStart says whether a file's change without git's line begins at a line.
func (d *diffParser) plainStart(i int) bool {
	return strings.HasPrefix(d.line(i), "--- ") && strings.HasPrefix(d.line(i+1), "+++ ") && strings.HasPrefix(d.line(i+2), "@@ -")
}

// gitFile reads what follows "diff --git".
func (d *diffParser) gitFile() (*File, error) {
	start := d.at
	crlf := strings.HasSuffix(d.lines[start], "\r")
	header := strings.TrimPrefix(d.line(start), "diff --git ")
	d.at++
	f := &File{}
	var created, deleted bool
	var from, to, oldName, newName string // rename and copy have no prefix, the others do
	var err error
headers:
	for ; d.at < len(d.lines); d.at++ {
		l := d.line(d.at)
		word := func(prefix string) (string, bool) { return strings.CutPrefix(l, prefix) }
		if v, ok := word("old mode "); ok {
			f.OldMode, err = d.mode(f, v)
		} else if v, ok := word("new mode "); ok {
			f.NewMode, err = d.mode(f, v)
		} else if v, ok := word("new file mode "); ok {
			created = true
			f.NewMode, err = d.mode(f, v)
		} else if v, ok := word("deleted file mode "); ok {
			deleted = true
			f.OldMode, err = d.mode(f, v)
		} else if v, ok := word("rename from "); ok {
			from, err = d.unquote(v)
		} else if v, ok := word("rename to "); ok {
			to, err = d.unquote(v)
		} else if v, ok := word("copy from "); ok {
			f.Copy = true
			from, err = d.unquote(v)
		} else if v, ok := word("copy to "); ok {
			to, err = d.unquote(v)
		} else if v, ok := word("index "); ok {
			if _, mode, ok := strings.Cut(v, " "); ok {
				_, err = d.mode(f, mode)
			}
		} else if !strings.HasPrefix(l, "similarity index ") && !strings.HasPrefix(l, "dissimilarity index ") {
			break headers
		}
		if err != nil {
			return nil, err
		}
	}
	switch l := d.line(d.at); {
	case l == "GIT binary patch":
		f.Refused = binaryChange
		d.at++
	case strings.HasPrefix(l, "Binary files ") && strings.HasSuffix(l, " differ"):
		f.Refused = binaryChange
		d.at++
	case strings.HasPrefix(l, "--- "):
		if !strings.HasPrefix(d.line(d.at+1), "+++ ") {
			return nil, d.errorAt(d.at, "half a patch: a line with +++ should follow")
		}
		if oldName, _, err = d.headerName("--- "); err != nil {
			return nil, err
		}
		if newName, _, err = d.headerName("+++ "); err != nil {
			return nil, err
		}
	}
	switch {
	case from != "" && to != "":
		f.Old, f.New = from, to
	case oldName != "":
		if f.Old, f.New, err = d.pair(oldName, newName); err != nil {
			return nil, err
		}
	default:
		a, b, ok := d.splitGitNames(header)
		if !ok {
			return nil, d.errorAt(start, "half a patch, or a damaged one: the names of the changed file cannot be told")
		}
		if f.Old, f.New, err = d.pair(a, b); err != nil {
			return nil, err
		}
	}
	if created || oldName == devNull {
		f.Old = ""
	}
	if deleted || newName == devNull {
		f.New = ""
	}
	return f, d.rest(f, start, crlf)
}

const devNull = "/dev/null"

// plainFile reads what diff -u writes: ---, +++ and hunks.
func (d *diffParser) plainFile() (*File, error) {
	start := d.at
	crlf := strings.HasSuffix(d.lines[start], "\r")
	oldName, oldAbsent, err := d.headerName("--- ")
	if err != nil {
		return nil, err
	}
	newName, newAbsent, err := d.headerName("+++ ")
	if err != nil {
		return nil, err
	}
	f := &File{}
	if f.Old, f.New, err = d.pair(oldName, newName); err != nil {
		return nil, err
	}
	if oldName == devNull {
		f.Old = ""
	}
	if newName == devNull {
		f.New = ""
	}
	if err := d.rest(f, start, crlf); err != nil {
		return nil, err
	}
	// diff -N says by the year 1970 that a file is not there.
	if len(f.Hunks) == 1 && f.Old != "" && f.New != "" {
		h := &f.Hunks[0]
		if oldAbsent && h.OldStart == 0 && h.OldLines == 0 {
			f.Old = ""
		} else if newAbsent && h.NewStart == 0 && h.NewLines == 0 {
			f.New = ""
		}
	}
	return f, nil
}

// plainBinary reads diff's one line about a binary file.
func (d *diffParser) plainBinary() (*File, error) {
	names := strings.TrimSuffix(strings.TrimPrefix(d.line(d.at), "Binary files "), " differ")
	a, b, ok := strings.Cut(names, " and ")
	if !ok {
		return nil, nil // a sentence that looks like it
	}
	old, new, err := d.pair(a, b)
	if err != nil {
		return nil, err
	}
	d.at++
	return &File{Old: old, New: new, Refused: binaryChange}, nil
}

// rest reads the hunks and checks the file's paths.
func (d *diffParser) rest(f *File, start int, crlf bool) error {
	for _, p := range []string{f.Old, f.New} {
		if p == "" {
			continue
		}
		if err := CheckPath(p); err != nil {
			return d.errorAt(start, "%v", err)
		}
	}
	if f.Old == "" && f.New == "" {
		return d.errorAt(start, "a change of no file")
	}
	for strings.HasPrefix(d.line(d.at), "@@ ") || strings.HasPrefix(d.line(d.at), "@@@ ") {
		if f.Refused == binaryChange {
			break
		}
		if d.hunks++; d.hunks > maxHunks {
			return d.errorAt(d.at, "more than %d hunks", maxHunks)
		}
		h, err := d.hunk(f, crlf)
		if err != nil {
			return err
		}
		f.Hunks = append(f.Hunks, h)
	}
	if len(f.Hunks) == 0 && f.Refused == "" && f.Old == f.New && f.OldMode == f.NewMode {
		return d.errorAt(start, "half a patch: nothing is said of how %s changes", f.Path())
	}
	return nil
}

// hunk reads one hunk.
func (d *diffParser) hunk(f *File, crlf bool) (Hunk, error) {
	at, n := d.at, len(f.Hunks)+1
	m := hunkHeader.FindStringSubmatch(d.line(at))
	if m == nil {
		return Hunk{}, d.errorAt(at, "%s, hunk %d: its header is damaged", f.Path(), n)
	}
	num := func(s string) int {
		if s == "" {
			return 1
		}
		v, _ := strconv.Atoi(s)
		return v
	}
	h := Hunk{OldStart: num(m[1]), OldLines: num(m[2]), NewStart: num(m[3]), NewLines: num(m[4]), Section: strings.TrimSpace(m[5]), SourceLine: at + 1 + d.offset}
	d.at++
	olds, news := 0, 0
	for ; olds < h.OldLines || news < h.NewLines; d.at++ {
		if d.at >= len(d.lines) {
			return h, d.errorAt(at, "half a patch: the text ends within hunk %d of %s, after %s of %s",
				n, f.Path(), counts(olds, news), counts(h.OldLines, h.NewLines))
		}
		l := d.lines[d.at]
		if crlf {
			l = strings.TrimSuffix(l, "\r")
		}
		op, text := byte(' '), ""
		switch {
		case l == "" || l == "\r": // an empty line of context whose space was lost on the way
			text = l
		case l[0] == '\\':
			if len(h.Lines) > 0 {
				h.Lines[len(h.Lines)-1].NoEOL = true
			}
			continue
		default:
			op, text = l[0], l[1:]
		}
		// A signature is no removed line: the mail ends here.
		signature := strings.TrimRight(l, "\r") == "-- " && d.tailFrom(d.at)
		switch {
		case signature, op != ' ' && op != '-' && op != '+':
			return h, d.brokenHunk(f, h, n, olds, news, signature)
		case strings.ContainsRune(text, 0):
			return h, d.errorAt(d.at, "%s, hunk %d: a NUL byte: not a text", f.Path(), n)
		}
		if op != '+' {
			olds++
		}
		if op != '-' {
			news++
		}
		if olds > h.OldLines || news > h.NewLines {
			return h, d.wrongCounts(f, h, n)
		}
		h.Lines = append(h.Lines, Line{Op: op, Text: text})
	}
	for ; d.at < len(d.lines) && strings.HasPrefix(d.lines[d.at], "\\ "); d.at++ {
		if len(h.Lines) > 0 {
			h.Lines[len(h.Lines)-1].NoEOL = true
		}
	}
	// One more line of the hunk, where its header says it is over: somebody edited it.
	if l := d.line(d.at); len(l) > 1 && (l[0] == '+' && !strings.HasPrefix(l, "+++ ") || l[0] == '-' && l[1] != '-') {
		return h, d.wrongCounts(f, h, n)
	}
	if !h.changes() {
		return h, d.errorAt(at, "%s, hunk %d changes nothing", f.Path(), n)
	}
	if !h.endsRight() {
		return h, d.errorAt(at, "%s, hunk %d: lines follow one that is said to end the file", f.Path(), n)
	}
	return h, nil
}

// changes says whether the hunk has a line that is not context.
func (h *Hunk) changes() bool {
	for _, l := range h.Lines {
		if l.Op != ' ' {
			return true
		}
	}
	return false
}

// endsRight says whether only the last line of each side is said to end the file.
func (h *Hunk) endsRight() bool {
	var oldEnd, newEnd bool
	for _, l := range h.Lines {
		if l.Op != '+' && oldEnd || l.Op != '-' && newEnd {
			return false
		}
		oldEnd = oldEnd || l.Op != '+' && l.NoEOL
		newEnd = newEnd || l.Op != '-' && l.NoEOL
	}
	return true
}

func counts(old, new int) string { return fmt.Sprintf("%d old and %d new lines", old, new) }

// tailFrom says whether what follows a line with "-- " looks like a mail's end rather than more of a hunk: a line or two,
// neither of which could be a hunk's.
func (d *diffParser) tailFrom(at int) bool {
	next := d.line(at + 1)
	return next == "" || !strings.ContainsRune(" +-@\\", rune(next[0]))
}

// brokenHunk says what a line is that does not belong into a hunk.
func (d *diffParser) brokenHunk(f *File, h Hunk, n, olds, news int, signature bool) error {
	l := d.line(d.at)
	if signature || strings.HasPrefix(l, "diff --git ") || strings.HasPrefix(l, "From ") || strings.HasPrefix(l, "@@ ") {
		if strings.HasPrefix(l, "@@ ") || strings.HasPrefix(l, "diff --git ") {
			return d.wrongCounts(f, h, n)
		}
		return d.errorAt(d.at, "half a patch: the mail ends within hunk %d of %s, after %s of %s",
			n, f.Path(), counts(olds, news), counts(h.OldLines, h.NewLines))
	}
	return d.errorAt(d.at, "%s, hunk %d: this line is neither context nor change: a mail program has wrapped lines, or text was lost", f.Path(), n)
}

// wrongCounts says what the hunk's header should say.
func (d *diffParser) wrongCounts(f *File, h Hunk, n int) error {
	olds, news := 0, 0
	start := h.SourceLine - 1 - d.offset
	i := start + 1
	for ; i < len(d.lines); i++ {
		l := d.line(i)
		if d.plainStart(i) || l == "-- " || l == "" && d.line(i+1) == "" {
			break
		}
		if l == "" || l[0] == ' ' || l[0] == '-' {
			olds++
		}
		if l == "" || l[0] == ' ' || l[0] == '+' {
			news++
		}
		if l != "" && !strings.ContainsRune(" +-\\", rune(l[0])) {
			break
		}
	}
	return d.errorAt(start, "%s, hunk %d: its header promises %s, its text has %s: a line is missing or too many, or, if the hunk was edited by hand, the header must be, too",
		f.Path(), n, counts(h.OldLines, h.NewLines), counts(olds, news))
}

// mode reads a mode as git writes it.
func (d *diffParser) mode(f *File, s string) (fs.FileMode, error) {
	v, err := strconv.ParseUint(strings.TrimSpace(s), 8, 32)
	if err != nil {
		return 0, d.errorAt(d.at, "a damaged mode")
	}
	switch v &^ 0o7777 {
	case 0o120000:
		f.Refused = symlinkChange
	case 0o160000:
		f.Refused = moduleChange
	case 0o100000:
		if v&0o111 != 0 {
			return 0o755, nil
		}
		return 0o644, nil
	default:
		return 0, d.errorAt(d.at, "mode %s: not that of a file", s)
	}
	return 0, nil
}

// headerName reads the name in a line that begins with prefix, and whether its time says that there is no such file.
func (d *diffParser) headerName(prefix string) (string, bool, error) {
	rest := strings.TrimPrefix(d.line(d.at), prefix)
	var name string
	if strings.HasPrefix(rest, `"`) {
		end := closingQuote(rest)
		if end < 0 {
			return "", false, d.errorAt(d.at, "a damaged name")
		}
		var err error
		if name, err = d.unquote(rest[:end+1]); err != nil {
			return "", false, err
		}
	} else {
		name = strings.TrimRight(timestamp.ReplaceAllString(rest, ""), " ")
	}
	d.at++
	if name == "" {
		return "", false, d.errorAt(d.at-1, "a file without a name")
	}
	return name, epoch.MatchString(rest), nil
}

// closingQuote is where the quoted string that s begins with ends, or -1.
func closingQuote(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

// unquote reads a name that git quoted, or one as it is.
func (d *diffParser) unquote(s string) (string, error) {
	if !strings.HasPrefix(s, `"`) {
		return s, nil
	}
	// git quotes as C does, and Go reads that: \a \b \f \n \r \t \v \\ \" and three octal digits.
	name, err := strconv.Unquote(s)
	if err != nil {
		return "", d.errorAt(d.at, "a damaged name")
	}
	return name, nil
}

// splitGitNames splits "a/x b/x", where nothing else says the names, so both are the same file.
func (d *diffParser) splitGitNames(s string) (string, string, bool) {
	if strings.HasPrefix(s, `"`) {
		end := closingQuote(s)
		if end < 0 || end+2 > len(s) {
			return "", "", false
		}
		a, err := d.unquote(s[:end+1])
		b, err2 := d.unquote(strings.TrimPrefix(s[end+1:], " "))
		return a, b, err == nil && err2 == nil
	}
	// Two names of one length, or of one but for the prefix, which has two letters in both.
	if len(s)%2 == 1 && s[len(s)/2] == ' ' {
		a, b := s[:len(s)/2], s[len(s)/2+1:]
		if a == b || oneLetter.MatchString(a) && oneLetter.MatchString(b) && a[2:] == b[2:] {
			return a, b, true
		}
	}
	return "", "", false
}

// pair takes from two names what comes before the tree's root, a/ and b/ or the names of two trees, and gives one path
// where the two mean one file. The side that is /dev/null has the other's path.
func (d *diffParser) pair(old, new string) (string, string, error) {
	if old == devNull && new == devNull {
		return "", "", d.errorAt(d.at, "a change of no file")
	}
	if old == devNull || new == devNull {
		name := new
		if new == devNull {
			name = old
		}
		if oneLetter.MatchString(name) {
			name = name[2:]
		} else if d.prefix != "" {
			name = strings.TrimPrefix(name, d.prefix)
		}
		return name, name, nil
	}
	for _, name := range []string{old, new} {
		if strings.HasPrefix(name, "/") {
			return "", "", d.errorAt(d.at, "%s: an absolute path, which leaves the tree: make the diff in the tree's root", printable(name))
		}
	}
	a, oldRest, okA := strings.Cut(old, "/")
	b, newRest, okB := strings.Cut(new, "/")
	switch {
	case old == new:
		return old, new, nil
	case okA && okB && oneLetter.MatchString(old) && oneLetter.MatchString(new) && oldRest == newRest:
		return oldRest, newRest, nil
	case okA && okB && a != b && oldRest == newRest:
		d.prefix = b + "/"
		return oldRest, newRest, nil
	}
	for _, suffix := range []string{".orig", ".old", ".bak", "~"} {
		if old == new+suffix {
			return new, new, nil
		}
	}
	return "", "", d.errorAt(d.at, "%s and %s: which file is meant cannot be told: make the diff with git, or of two trees that differ in the first folder's name only",
		printable(old), printable(new))
}

// CheckPath refuses a path that is not plainly one of a file below the tree's root, or lies in git's own folder.
func CheckPath(p string) error {
	for _, r := range p {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%s: a file's name with a character that is not printable", printable(p))
		}
	}
	if !fs.ValidPath(p) || p == "." || strings.Contains(p, `\`) {
		return fmt.Errorf("%s: a path that leaves the tree, or is not a plain one", printable(p))
	}
	for part := range strings.SplitSeq(p, "/") {
		if strings.EqualFold(part, ".git") {
			return fmt.Errorf("%s: a path in git's own folder", printable(p))
		}
	}
	return nil
}

// printable shows foreign text in a sentence.
func printable(s string) string {
	const most = 200
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
