package build

import (
	"fmt"
	"strings"
	"time"
)

// NoSourceError tells that the archive does not serve what building for a kernel needs.
type NoSourceError struct {
	Kernel  string // release
	Missing string // what is missing, and where it was looked for
	Err     error  // may be nil
}

func (e *NoSourceError) Error() string {
	s := fmt.Sprintf("kernel %s: nothing can be built of it: %s", e.Kernel, e.Missing)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *NoSourceError) Unwrap() error { return e.Err }

// Diagnostic is an error of the compiler, of the linker, or of another tool of the build.
type Diagnostic struct {
	File string // path in the kernel's tree; "" if it is about none
	Line int    // 0: unknown
	Text string
}

func (d Diagnostic) String() string {
	switch {
	case d.File == "":
		return d.Text
	case d.Line == 0:
		return d.File + ": " + d.Text
	}
	return fmt.Sprintf("%s:%d: %s", d.File, d.Line, d.Text)
}

// CompileError tells that changed files do not build.
type CompileError struct {
	Module string
	Errors []Diagnostic // the first ones; never none
	More   int          // that were left out
	Output string       // the end of what the build wrote, bounded
}

func (e *CompileError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s does not build", e.Module)
	for _, d := range e.Errors {
		fmt.Fprintf(&b, "\n%v", d)
	}
	if e.More > 0 {
		fmt.Fprintf(&b, "\n(%d more errors)", e.More)
	}
	return b.String()
}

// NotOwnError tells that a changed file is none of the module's, so that building the module alone would not show its effect.
type NotOwnError struct {
	Module string
	Path   string
}

func (e *NotOwnError) Error() string {
	return fmt.Sprintf("%s is not a file of the module %s: changing it needs a whole kernel", e.Path, e.Module)
}

// LimitError tells that a build was ended that took too long, or wrote too much.
type LimitError struct {
	What string
	Time time.Duration // 0: it was not about time
}

func (e *LimitError) Error() string { return "the build was ended: " + e.What }
