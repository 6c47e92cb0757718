// Package patch reads patches in the forms people have them (mails, mailboxes, archive pages, diffs) and applies them
// to a tree, telling of each hunk how it fitted or why it did not.
//
// It is pure: it reads from the readers and the [fs.FS] it is given, writes nothing, runs nothing, and knows nothing of
// kernels, builds or virtual machines. What a patch says of itself is foreign text and may hold anything: whoever shows
// it on a terminal makes it fit for one first.
package patch

import (
	"io"
	"io/fs"
	"slices"
)

// An Input is one file, page or mailbox with patches, by the name that errors and reports call it.
type Input struct {
	Name string
	R    io.Reader
}

// A Series is patches in the order in which they apply.
type Series []*Patch

// A Patch is one mail's or one commit's change, or a plain diff.
type Patch struct {
	Title     string // the subject without what is in brackets before it; empty for a plain diff
	Author    string // as "Name <address>"; empty if not said
	MessageID string // without the angle brackets
	Source    string // the input's name

	// Version is 5 for "[PATCH v5 …]", and 1 where none is said. Number and Total are 2 and 3 for "[PATCH 2/3]",
	// and 0 for a patch that stands alone.
	Version, Number, Total int
	// Tags are the other words in the brackets: "RFC", "net".
	Tags []string

	Files []File
	// Notes say in whole sentences what a reader of the result must know of how the patch was come by: another patch
	// of its series is missing, a reply with a diff of its own was passed over.
	Notes []string
	// Reversed is set if the patch is here to be taken out.
	Reversed bool
}

// A File is the part of a patch that changes one file. Paths are relative to the tree's root, with forward slashes, and
// never leave it.
type File struct {
	Old, New string      // the path before and after; Old is empty for a new file, New for a removed one
	OldMode  fs.FileMode // 0644 or 0755 where the patch says it, else 0
	NewMode  fs.FileMode
	Copy     bool   // Old stays: New is a copy of it, changed by the hunks
	Refused  string // what it is that cannot be applied: "a binary change", "a symbolic link"; else empty
	Hunks    []Hunk
}

// Path is the file's path after the change, or before if the change removes it.
func (f *File) Path() string {
	if f.New != "" {
		return f.New
	}
	return f.Old
}

// A Hunk is one place's change.
type Hunk struct {
	OldStart, OldLines int // as in the hunk's header: 1-based, 0 for an empty side
	NewStart, NewLines int
	Section            string // what follows the second @@, usually the function's name
	Lines              []Line
	SourceLine         int // where the hunk's header stands in the input's (decoded) text, from 1
}

// A Line of a hunk.
type Line struct {
	Op    byte   // ' ' for context, '-' for removed, '+' for added
	Text  string // without the newline
	NoEOL bool   // the file ends with this line, without a newline
}

// Paths are all paths that the series changes, sorted.
func (s Series) Paths() []string {
	var paths []string
	for _, p := range s {
		for i := range p.Files {
			if old := p.Files[i].Old; old != "" && !p.Files[i].Copy {
				paths = append(paths, old)
			}
			if p.Files[i].New != "" {
				paths = append(paths, p.Files[i].New)
			}
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// Notes are the notes of all patches.
func (s Series) Notes() []string {
	var notes []string
	for _, p := range s {
		notes = append(notes, p.Notes...)
	}
	return notes
}
