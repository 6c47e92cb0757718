package patch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// DefaultFuzz is how many lines of context may be dropped from either end of a hunk, as by patch -F3.
const DefaultFuzz = 3

const (
	maxFile = 32 << 20  // a file larger than this is not one of source
	maxTree = 256 << 20 // of all files that one series changes

	// What does not fit is looked at closely so often, and tried so often: it takes time, and nobody reads more.
	maxReasons = 200
	maxMisfits = 1000
)

// Options of [Apply].
type Options struct {
	// MaxFuzz is the most lines of context that may be dropped from the ends of a hunk: [DefaultFuzz], or 0 for none.
	MaxFuzz int
	// Outside says of a path that it is not part of what is built, such as documentation: its changes are passed over,
	// which the result says. Nil if all is built.
	Outside func(path string) bool
}

// A Result is what became of a series.
type Result struct {
	// Files are the changed files, sorted by path; nil if any hunk did not apply.
	Files []Changed
	// Hunks are all hunks in the order in which they were tried, applied or not. A change without hunks (a rename, a
	// mode, an empty file), and one of a file that is not there, has one entry, with Hunk 0.
	Hunks []HunkReport
	// Outside are the paths whose changes were passed over, sorted.
	Outside []string
	// Notes are the series' notes.
	Notes []string
}

// Fuzz is the most that any hunk needed.
func (r *Result) Fuzz() int {
	most := 0
	for _, h := range r.Hunks {
		most = max(most, h.Fuzz)
	}
	return most
}

// Changed is one file after the series.
type Changed struct {
	Path    string
	Removed bool
	Mode    fs.FileMode // permissions, for a file that is not removed
	Content []byte
}

// A HunkReport is how one hunk fitted.
type HunkReport struct {
	Patch      *Patch
	Path       string // of the file in the tree
	Hunk, Of   int    // the hunk's number within its file, from 1, and how many there are
	SourceLine int    // of the hunk in the patch's text
	Line       int    // where it was applied in the file as it was before this patch, from 1; 0 if it was not
	Offset     int    // how many lines from where the patch says
	Fuzz       int    // how many lines of context were dropped
	Section    string // the function that the hunk's header names
	Others     []int  // lines where it would fit as well, in other functions than the one it names
	Misfit     *Misfit
}

// A Misfit is why a hunk does not apply.
type Misfit struct {
	Reason Reason
	Text   string   // the reason in a sentence, with what to do
	Want   []string // the lines that the hunk expects
	Line   int      // where Found begins in the file, from 1; 0 if nothing like it stands there
	Found  []string // what stands at the nearest place
	Places []int    // for Ambiguous: the lines at which the hunk would fit
}

// A Reason why a hunk or a file's change does not apply.
type Reason string

// Reasons.
const (
	AlreadyApplied Reason = "already-applied" // the text is what the hunk would make it
	NotApplied     Reason = "not-applied"     // to be taken out, but it is not in
	FileMissing    Reason = "file-missing"
	FileExists     Reason = "file-exists" // the patch would create it
	Ambiguous      Reason = "ambiguous"   // fits in more than one place, or says none
	Whitespace     Reason = "whitespace"  // would fit but for spaces and tabs
	OtherVersion   Reason = "other-version"
	Different      Reason = "different" // there is similar text, or none
	Refused        Reason = "refused"   // binary, a symbolic link, not a regular file
)

// An ApplyError says that a series does not apply, and has each hunk that does not.
type ApplyError struct {
	Misfits []HunkReport
	Total   int // of all hunks
	Notes   []string
}

func (e *ApplyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d hunks do not apply", len(e.Misfits), e.Total)
	if e.Total == 1 {
		b.Reset()
		b.WriteString("the patch's only hunk does not apply")
	}
	for i, h := range e.Misfits {
		const most = 10
		if i == most {
			fmt.Fprintf(&b, "\n… and %d more", len(e.Misfits)-most)
			break
		}
		b.WriteString("\n" + h.Where() + ": " + h.Misfit.Text)
	}
	for _, n := range e.Notes {
		b.WriteString("\n" + n)
	}
	return b.String()
}

// Where names the hunk.
func (h *HunkReport) Where() string {
	if h.Hunk == 0 {
		return printable(h.Path)
	}
	return fmt.Sprintf("%s, hunk %d of %d (%s, line %d)", printable(h.Path), h.Hunk, h.Of, printable(h.Patch.Source), h.SourceLine)
}

// Apply applies the series to the tree, in memory. All hunks are tried, whatever fails: the result has the report even
// if the error, then an [*ApplyError], says that some did not apply. Any other error is the tree's, and has no result.
//
// The tree should be an [os.DirFS] or [os.Root.FS]: what lies behind a symbolic link is refused, but only an [fs.ReadLinkFS]
// tells that there is one.
func Apply(tree fs.FS, s Series, o Options) (*Result, error) {
	a := &applier{tree: tree, options: o, files: map[string]*state{}, first: map[string]*state{}, folders: map[string]bool{}, result: &Result{Notes: s.Notes()}}
	for _, p := range s {
		if err := a.patch(p); err != nil {
			return nil, err
		}
	}
	r := a.result
	slices.Sort(r.Outside)
	r.Outside = slices.Compact(r.Outside)
	failed := &ApplyError{Total: len(r.Hunks), Notes: r.Notes}
	for _, h := range r.Hunks {
		if h.Misfit != nil {
			failed.Misfits = append(failed.Misfits, h)
		}
	}
	if len(failed.Misfits) > 0 {
		failed.explain()
		return r, failed
	}
	r.Files = a.changed()
	return r, nil
}

// A state is a file as it is while patches are applied. States are never changed, but replaced.
type state struct {
	exists  bool
	mode    fs.FileMode
	content []byte
	lines   []string // of content, as far as somebody asked
}

func (s *state) text() []string {
	if s.lines == nil && len(s.content) > 0 {
		s.lines = splitLines(string(s.content))
	}
	return s.lines
}

// splitLines keeps the newlines.
func splitLines(s string) []string {
	lines := strings.SplitAfter(s, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

type applier struct {
	tree    fs.FS
	options Options
	files   map[string]*state // as they are now
	before  map[string]*state // of those that the current patch has changed, as they were before it
	first   map[string]*state // as they are in the tree
	folders map[string]bool   // those that new files are in
	total   int               // bytes read
	misfits int
	result  *Result
}

// A refusal is a path that must not be changed.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

// load is the file as it is now.
func (a *applier) load(path string) (*state, error) {
	if s, ok := a.files[path]; ok {
		return s, nil
	}
	if err := CheckPath(path); err != nil {
		return nil, &refusal{err.Error()}
	}
	s, err := a.read(path)
	if err != nil {
		return nil, err
	}
	a.files[path], a.first[path] = s, s
	return s, nil
}

// read reads a file of the tree, unless a symbolic link is in its way: what a link names may lie outside.
func (a *applier) read(path string) (*state, error) {
	for i, c := range path {
		if c != '/' {
			continue
		}
		info, err := fs.Lstat(a.tree, path[:i])
		if errors.Is(err, fs.ErrNotExist) {
			return &state{}, nil
		}
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			return nil, &refusal{fmt.Sprintf("%s is not a folder in this tree, but %s", printable(path[:i]), kind(info.Mode()))}
		}
	}
	info, err := fs.Lstat(a.tree, path)
	if errors.Is(err, fs.ErrNotExist) {
		return &state{}, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &refusal{fmt.Sprintf("it is not a regular file in this tree, but %s", kind(info.Mode()))}
	}
	f, err := a.tree.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", printable(path), err)
	}
	if len(content) > maxFile {
		return nil, &refusal{fmt.Sprintf("it is larger than %d MiB", maxFile>>20)}
	}
	if a.total += len(content); a.total > maxTree {
		return nil, fmt.Errorf("the files that the patches change are larger than %d MiB together", maxTree>>20)
	}
	return &state{exists: true, mode: info.Mode().Perm(), content: content}, nil
}

func kind(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m.IsDir():
		return "a folder"
	case m.IsRegular():
		return "a file"
	}
	return "a special file"
}

// set replaces a file's state.
func (a *applier) set(path string, s *state) {
	if _, ok := a.before[path]; !ok {
		a.before[path] = a.files[path]
	}
	a.files[path] = s
	if s.exists && !a.first[path].exists {
		for i, c := range path {
			if c == '/' {
				a.folders[path[:i]] = true
			}
		}
	}
}

// patch applies one patch.
func (a *applier) patch(p *Patch) error {
	a.before = map[string]*state{}
	// All renames of a patch happen at once: what one moves away is in no other's way.
	moves, written := map[string]bool{}, map[string]bool{}
	for i := range p.Files {
		if f := &p.Files[i]; f.Old != f.New && f.New != "" && !f.Copy {
			moves[f.Old] = true
		}
	}
	for i := range p.Files {
		f := &p.Files[i]
		if a.outside(f) {
			continue
		}
		if err := a.file(p, f, moves, written); err != nil {
			var r *refusal
			if !errors.As(err, &r) {
				return err
			}
			a.refuse(p, f, Refused, "%s", r.text)
		}
	}
	return nil
}

// outside passes over what is not built.
func (a *applier) outside(f *File) bool {
	if a.options.Outside == nil {
		return false
	}
	for _, path := range []string{f.Old, f.New} {
		if path != "" && !a.options.Outside(path) {
			return false
		}
	}
	a.result.Outside = append(a.result.Outside, f.Path())
	return true
}

// refuse reports that none of a file's change can be applied.
func (a *applier) refuse(p *Patch, f *File, why Reason, format string, args ...any) {
	h := HunkReport{Patch: p, Path: f.Path(), Of: len(f.Hunks), Misfit: &Misfit{Reason: why, Text: fmt.Sprintf(format, args...)}}
	if len(f.Hunks) > 0 {
		h.SourceLine = f.Hunks[0].SourceLine
		if old, _ := f.Hunks[0].sides(); len(f.Hunks) == 1 {
			h.Misfit.Want = trimmed(old.lines)
		}
	}
	a.result.Hunks = append(a.result.Hunks, h)
}

// file applies one file's change.
func (a *applier) file(p *Patch, f *File, moves, written map[string]bool) error {
	if f.Refused != "" {
		a.refuse(p, f, Refused, "%s, which is not applied: take it out of the patch if it does not matter here", f.Refused)
		return nil
	}
	moved := f.Old != "" && f.New != "" && f.Old != f.New
	from, to := &state{}, &state{}
	var err error
	if f.Old != "" {
		if from, err = a.load(f.Old); err != nil {
			return err
		}
		if s, ok := a.before[f.Old]; moved && ok {
			from = s // and what it moves is what was there before the patch
		}
		if !from.exists {
			return a.missing(p, f)
		}
	}
	if f.New != "" && f.New != f.Old {
		if to, err = a.load(f.New); err != nil {
			return err
		}
		if to.exists && !(moved && moves[f.New]) {
			a.thereAlready(p, f, to)
			return nil
		}
		if err := a.blocked(f.New); err != nil {
			return err
		}
	}
	content, ok := a.hunks(p, f, from)
	if !ok {
		return nil
	}
	if f.New == "" {
		if len(content) > 0 {
			const text = "the patch removes the file, but this tree's has more in it than the patch knows"
			if len(f.Hunks) == 0 {
				a.refuse(p, f, Different, text)
				return nil
			}
			last := &a.result.Hunks[len(a.result.Hunks)-1]
			old, _ := f.Hunks[len(f.Hunks)-1].sides()
			last.Misfit = &Misfit{Reason: Different, Text: text, Want: trimmed(old.lines), Line: last.Line, Found: trimmed(from.text())}
			last.Line = 0
			return nil
		}
		a.set(f.Old, &state{})
		return nil
	}
	mode := from.mode
	switch {
	case f.NewMode != 0:
		mode = f.NewMode
	case !from.exists:
		mode = 0o644
	}
	if moved && !f.Copy && !written[f.Old] {
		a.set(f.Old, &state{})
	}
	a.set(f.New, &state{exists: true, mode: mode, content: content})
	written[f.New] = true
	return nil
}

// blocked refuses a new file below one that an earlier patch made.
func (a *applier) blocked(path string) error {
	for i, c := range path {
		if c != '/' {
			continue
		}
		if s, ok := a.files[path[:i]]; ok && s.exists {
			return &refusal{fmt.Sprintf("%s is a file", printable(path[:i]))}
		}
	}
	if a.folders[path] {
		return &refusal{"it is a folder"}
	}
	return nil
}

// missing says why there is no such file.
func (a *applier) missing(p *Patch, f *File) error {
	switch {
	case f.New == "" && !p.Reversed:
		a.refuse(p, f, AlreadyApplied, "already applied: the file that the patch removes is not there")
	case f.New == "" && p.Reversed:
		a.refuse(p, f, NotApplied, "is not in this tree, so it cannot be taken out: the file that the patch makes is not there")
	default:
		if f.New != f.Old {
			s, err := a.load(f.New)
			if err != nil {
				return err
			}
			if s.exists {
				a.refuse(p, f, p.done(), "%s: the file has its new name, %s", p.doneText(), f.New)
				return nil
			}
		}
		a.refuse(p, f, FileMissing, "the file %s is not there: is the patch against another kernel, or made in another folder than the tree's root?", f.Old)
	}
	return nil
}

// thereAlready says why there is a file that the patch would make.
func (a *applier) thereAlready(p *Patch, f *File, have *state) {
	if f.Old == "" && len(f.Hunks) <= 1 {
		var made []string
		if len(f.Hunks) == 1 {
			_, new := f.Hunks[0].sides()
			made = new.lines
		}
		if slices.Equal(made, have.text()) {
			a.refuse(p, f, p.done(), "%s: the file that it makes is there, with the same text", p.doneText())
			return
		}
	}
	a.refuse(p, f, FileExists, "the patch makes the file %s, but it is there, with other text", f.New)
}

// done is the reason why a patch cannot be applied whose outcome is there.
func (p *Patch) done() Reason {
	if p.Reversed {
		return NotApplied
	}
	return AlreadyApplied
}

func (p *Patch) doneText() string {
	if p.Reversed {
		return "is not in this tree, so it cannot be taken out"
	}
	return "already applied, or given in reverse"
}

// hunks applies a file's hunks and gives its new content; false if any does not apply.
func (a *applier) hunks(p *Patch, f *File, from *state) ([]byte, bool) {
	if len(f.Hunks) == 0 {
		if f.OldMode == f.NewMode && f.Old == f.New {
			return from.content, true
		}
		if f.New == "" && len(from.content) > 0 {
			return from.content, true // the caller refuses it
		}
		a.result.Hunks = append(a.result.Hunks, HunkReport{Patch: p, Path: f.Path()})
		return from.content, true
	}
	file := from.text()
	var out bytes.Buffer
	copied, least, shift, all := 0, 0, 0, true
	var x index
	for i := range f.Hunks {
		h := &f.Hunks[i]
		report := HunkReport{Patch: p, Path: f.Path(), Hunk: i + 1, Of: len(f.Hunks), SourceLine: h.SourceLine, Section: h.Section}
		old, new := h.sides()
		at, ok := fit{}, false
		if a.misfits >= maxMisfits {
			report.Misfit = &Misfit{Reason: Different, Text: fmt.Sprintf("not tried any more, after %d that do not apply", maxMisfits)}
			a.result.Hunks = append(a.result.Hunks, report)
			all = false
			continue
		}
		if len(old.lines) == 0 && len(file) == 0 && i == 0 {
			ok = true // all of an empty or new file
		} else if len(old.lines) > 0 {
			at, ok = locate(file, &old, h.Section, least, shift, a.options.MaxFuzz)
		}
		if ok && !h.keepsEnd(at, len(old.lines), len(file)) {
			ok = false
		}
		if !ok {
			if a.misfits++; a.misfits > maxReasons {
				report.Misfit = &Misfit{Reason: Different, Text: fmt.Sprintf("does not fit; after %d such, the reason is not looked for", maxReasons), Want: trimmed(old.lines)}
			} else {
				if x == nil {
					x = indexOf(file)
				}
				report.Misfit = misfit(p, h, file, x, least, shift, at)
			}
			a.result.Hunks = append(a.result.Hunks, report)
			all = false
			continue
		}
		report.Line = at.at + 1
		report.Fuzz = at.fuzz
		if len(old.lines) > 0 {
			report.Offset = at.at - old.start
			shift = report.Offset
		}
		for _, o := range at.others {
			report.Others = append(report.Others, o+1)
		}
		a.result.Hunks = append(a.result.Hunks, report)

		// Only what changes is replaced: context that was dropped stays what the file has.
		start, end := at.at+old.prefix, at.at+len(old.lines)-old.suffix
		for _, l := range file[copied:start] {
			out.WriteString(l)
		}
		for _, l := range new.lines[new.prefix : len(new.lines)-new.suffix] {
			out.WriteString(l)
		}
		copied, least = end, end
	}
	if !all {
		return nil, false
	}
	for _, l := range file[copied:] {
		out.WriteString(l)
	}
	return out.Bytes(), true
}

// keepsEnd says whether a hunk that takes or leaves a file without a newline at its end is at that end.
func (h *Hunk) keepsEnd(at fit, oldLines, fileLines int) bool {
	for _, l := range h.Lines {
		if l.NoEOL && at.at+oldLines != fileLines {
			return false
		}
	}
	return true
}

// changed is what differs from the tree.
func (a *applier) changed() []Changed {
	files := []Changed{}
	for _, path := range slices.Sorted(maps.Keys(a.files)) {
		now, before := a.files[path], a.first[path]
		if now.exists == before.exists && now.mode == before.mode && bytes.Equal(now.content, before.content) {
			continue
		}
		files = append(files, Changed{Path: path, Removed: !now.exists, Mode: now.mode, Content: now.content})
	}
	return files
}
