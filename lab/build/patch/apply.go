package patch

import (
	"fmt"
	"io/fs"
)

// DefaultFuzz is how many lines of context may be dropped from either end of a hunk, as by patch -F3.
const DefaultFuzz = 3

// Options of [Apply].
type Options struct {
	// MaxFuzz is the most lines of context that may be dropped from the ends of a hunk: [DefaultFuzz], or 0 for none.
	MaxFuzz int
}

// A Result is what became of a series.
type Result struct {
	// Files are the changed files, sorted by path; nil if any hunk did not apply.
	Files []Changed
	// Hunks are all hunks in the order in which they were tried, applied or not. A change without hunks (a rename, a
	// mode, an empty file) has one entry, with Hunk 0.
	Hunks []HunkReport
	// Notes are the series' notes.
	Notes []string
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
	Patch     *Patch
	Path      string // of the file in the tree
	Hunk, Of  int    // the hunk's number within its file, from 1, and how many there are
	Line      int    // where the hunk was applied in the file as it was then, from 1; 0 if it was not
	Offset    int    // how many lines from where the patch says
	Fuzz      int    // how many lines of context were dropped
	Section   string // the function that the hunk's header names
	NotFitted *Misfit
}

// A Misfit is why a hunk does not apply.
type Misfit struct {
	Reason Reason
	Text   string   // the reason in a sentence, with what to do
	Want   []string // the lines that the hunk expects
	Line   int      // where Found begins in the file, from 1; 0 if there is nothing
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
	Ambiguous      Reason = "ambiguous"   // fits in more than one place
	Whitespace     Reason = "whitespace"  // would fit but for spaces and tabs
	OtherVersion   Reason = "other-version"
	Different      Reason = "different" // there is similar text, or none
	Refused        Reason = "refused"   // binary, a symbolic link, not a regular file
)

// An ApplyError says that a series does not apply, and has each hunk that does not.
type ApplyError struct {
	Misfits []HunkReport
	Total   int // of all hunks
}

func (e *ApplyError) Error() string {
	return fmt.Sprintf("%d of %d hunks do not apply", len(e.Misfits), e.Total)
}

// Apply applies the series to the tree, in memory. All hunks are tried, whatever fails: the result has the report even
// if the error, then an [*ApplyError], says that some did not apply.
func Apply(tree fs.FS, s Series, o Options) (*Result, error) {
	return nil, fmt.Errorf("applying is not there yet")
}
