package build

import (
	"path"
	"regexp"
	"strconv"
	"strings"
)

// said is what a build told.
type said struct {
	warnings []Warning
	errors   []Diagnostic
	fallback []Diagnostic // of make itself: only of interest where no tool said what is wrong
}

var (
	// "FILE:LINE:COLUMN: warning: TEXT", of the compiler; LINE and COLUMN may be missing, as with objtool and the linker.
	located = regexp.MustCompile(`^([^\s:][^:]*):(?:(\d+):)?(?:(\d+):)? (warning|error|fatal error): (.+)$`)
	// "FILE:LINE: *** TEXT.  Stop." and "make[2]: *** [RULE] Error 1", of make.
	makeError = regexp.MustCompile(`^(?:make(?:\[\d+\])?|([^\s:][^:]*):(\d+)): \*\*\* (.+)$`)
	modpost   = regexp.MustCompile(`^(WARNING|ERROR): modpost: (.+)$`)
	// "OBJECT: in function 'F':" of the linker, and then for each of its faults "FILE:(SECTION+OFFSET): TEXT".
	linkFault = regexp.MustCompile(`^\S+:\(\S+\): ((?:undefined reference to|multiple definition of) .+)$`)
	linker    = regexp.MustCompile(`^(?:/usr/bin/)?(?:\S*-)?ld: (.+)$`)
)

const (
	maxText   = 500 // bytes of what a tool says, in one line
	maxErrors = 10
	maxSaid   = 1000
)

// diagnose reads the output of a build. tree is where the kernel's headers are in the sandbox, and isFile tells whether a path in the kernel's tree is one of the module's files.
func diagnose(output, module, tree string, isFile func(string) bool) said {
	var s said
	place := func(file, line string) (string, int) {
		n, _ := strconv.Atoi(line)
		return inKernel(file, module, tree, isFile), n
	}
	seen := map[string]bool{}
	where := "" // of the linker's next faults
	for line := range strings.Lines(output) {
		line = printable(strings.TrimRight(line, "\r\n"))
		if len(s.warnings)+len(s.errors)+len(s.fallback) >= maxSaid || seen[line] {
			continue // a header's warning comes once for each file that includes it
		}
		seen[line] = true
		if m := located.FindStringSubmatch(line); m != nil {
			file, n := place(m[1], m[2])
			if m[4] == "warning" {
				s.warnings = append(s.warnings, Warning{File: file, Line: n, Text: m[5]})
			} else {
				s.errors = append(s.errors, Diagnostic{File: file, Line: n, Text: m[5]})
			}
		} else if m := modpost.FindStringSubmatch(line); m != nil {
			if m[1] == "WARNING" {
				s.warnings = append(s.warnings, Warning{Text: "modpost: " + m[2]})
			} else {
				s.errors = append(s.errors, Diagnostic{Text: "modpost: " + m[2]})
			}
		} else if m := linkFault.FindStringSubmatch(line); m != nil {
			s.errors = append(s.errors, Diagnostic{Text: "ld: " + where + m[1]})
		} else if m := linker.FindStringSubmatch(line); m != nil && strings.HasSuffix(m[1], ":") {
			where = m[1] + " "
		} else if m := linker.FindStringSubmatch(line); m != nil {
			s.errors = append(s.errors, Diagnostic{Text: "ld: " + m[1]})
		} else if m := makeError.FindStringSubmatch(line); m != nil {
			d := Diagnostic{Text: "make: " + m[3]}
			if m[1] != "" {
				d.File, d.Line = place(m[1], m[2])
			}
			s.fallback = append(s.fallback, d)
		}
	}
	return s
}

// inKernel turns the name that a tool gives a file into its path in the kernel's tree.
func inKernel(file, module, tree string, isFile func(string) bool) string {
	file = path.Clean(file)
	for _, top := range []string{"/build/", tree + "/"} {
		if rest, ok := strings.CutPrefix(file, top); ok {
			return rest
		}
	}
	if in := path.Join(module, file); isFile(in) || path.Dir(file) == "." && !isFile(file) {
		return in // newer kernels build in the module's directory
	}
	return file
}

// printable makes a line of foreign text short and plain.
func printable(line string) string {
	line = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(line, "?"))
	if len(line) > maxText {
		line = strings.ToValidUTF8(line[:maxText], "") + "…"
	}
	return line
}

func compileError(module string, s said, tail string) *CompileError {
	all := s.errors
	if len(all) == 0 {
		all = s.fallback
	}
	if len(all) == 0 {
		all = []Diagnostic{{Text: "the build failed without a word of what is wrong"}}
	}
	n := min(len(all), maxErrors)
	return &CompileError{Module: module, Errors: all[:n], More: len(all) - n, Output: strings.TrimPrefix(tail, "\n")}
}

// added are the warnings that were not there before. The line does not count: what stands above it may have moved it.
func added(now, before []Warning) []Warning {
	type what struct{ file, text string }
	had := map[what]int{}
	for _, w := range before {
		had[what{w.File, w.Text}]++
	}
	var out []Warning
	for _, w := range now {
		k := what{w.File, w.Text}
		if had[k] > 0 {
			had[k]--
			continue
		}
		out = append(out, w)
	}
	return out
}
