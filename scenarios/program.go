package scenarios

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"irqlab/scenarios/result"
)

// Bounds of a program.
const (
	maxCommand     = 4096
	ProgramDefault = time.Minute // that it may take
)

// Program is something that is run in the guest: a line for its shell, or a script of the user's own.
type Program struct {
	Command string    `json:"command,omitempty" jsonschema_description:"a line for the guest's shell"`
	Script  string    `json:"script,omitempty" jsonschema_description:"instead: a script or program, a file beside the scenario's, which is sent to the guest"`
	Args    string    `json:"args,omitempty" jsonschema_description:"with script: its arguments, as the guest's shell reads them"`
	Within  *duration `json:"within,omitempty" jsonschema_description:"how long it may take, e.g. 30s; default 1m"`
	Status  *exitRule `json:"status,omitempty" jsonschema_description:"the exit status that it must have, or any; default 0"`
	Output  *Pattern  `json:"output,omitempty" jsonschema_description:"regular expression that its output must match, standard error included"`
}

// Limit is how long the program may take.
func (p *Program) Limit() time.Duration {
	if p.Within == nil {
		return ProgramDefault
	}
	return time.Duration(*p.Within)
}

// String is the program in one line.
func (p *Program) String() string {
	if p.Script != "" {
		return strings.TrimSpace(p.Script + " " + p.Args)
	}
	line, more, _ := strings.Cut(strings.TrimSpace(p.Command), "\n")
	if more != "" {
		line += " …"
	}
	return line
}

// exitRule is the exit status that is expected.
type exitRule int

const anyStatus exitRule = -1

func (e *exitRule) UnmarshalText(b []byte) error {
	if string(b) == ruleAny {
		*e = anyStatus
		return nil
	}
	n, err := strconv.ParseUint(string(b), 10, 8)
	if err != nil {
		return fmt.Errorf("%q is no exit status; allowed: 0 to 255, or %s", b, ruleAny)
	}
	*e = exitRule(n)
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (e exitRule) MarshalText() ([]byte, error) {
	if e == anyStatus {
		return []byte(ruleAny), nil
	}
	return strconv.AppendInt(nil, int64(e), 10), nil
}

func (p *Program) decodeNode(d *decoder, n ast.Node, path string) {
	if text, ok := scalarText(n); ok {
		p.Command = text
	} else {
		type keys Program // which has no decoding of its own
		before := len(d.errs)
		d.structure(n, path, reflect.ValueOf((*keys)(p)).Elem())
		if len(d.errs) > before {
			return
		}
	}
	if err := p.validate(); err != nil {
		d.fail(path, "%v", err)
	}
}

func (p *Program) validate() error {
	switch {
	case p.Command == "" && p.Script == "":
		return errors.New("nothing is to be run; give a command line, or script: FILE")
	case p.Command != "" && p.Script != "":
		return errors.New("a command and a script; a step runs one of them")
	case p.Args != "" && p.Script == "":
		return errors.New("args are a script's; a command line has its own")
	case len(p.Command)+len(p.Args) > maxCommand:
		return fmt.Errorf("longer than %d bytes; put it into a script", maxCommand)
	case strings.ContainsRune(p.Command+p.Script+p.Args, 0):
		return errors.New("it has a NUL byte")
	}
	return nil
}

// File is where a program's script is: beside the scenario's own file, unless it says otherwise, or the command line named it.
func (c *Case) File(p *Program) string {
	if p == c.Script && c.ours {
		return p.Script
	}
	return c.HostFile(p.Script)
}

// Programs are those that the case runs, its strategy's included.
func (c *Case) Programs() []*Program {
	var out []*Program
	if c.Script != nil {
		out = append(out, c.Script)
	}
	for s := range allSteps(c.Steps) {
		if s.Run != nil {
			out = append(out, s.Run)
		}
	}
	return out
}

// check compares what became of a program with what is expected of it.
func (p *Program) check(name string, got *result.Program) []string {
	var reasons []string
	say := func(format string, args ...any) {
		reasons = append(reasons, name+": "+fmt.Sprintf(format, args...))
	}
	switch want := p.Status; {
	case got == nil:
		say("it was not run.")
		return reasons
	case got.Late:
		say("it did not end within %s, and was killed.%s", p.Limit(), said(got))
	case want != nil && *want == anyStatus:
	case got.Signal != "":
		say("it was killed by SIG%s.%s", got.Signal, said(got))
	case want == nil && got.Status != 0:
		say("it ended with status %d, expected 0.%s", got.Status, said(got))
	case want != nil && got.Status != int(*want):
		say("it ended with status %d, expected %d.%s", got.Status, *want, said(got))
	}
	if p.Output != nil && !p.Output.MatchString(got.Output) {
		say("its output does not match %q.%s", p.Output, said(got))
	}
	return reasons
}

// said is the end of what a program wrote.
func said(got *result.Program) string {
	lines := strings.Split(strings.TrimSpace(got.Output), "\n")
	if lines[0] == "" && len(lines) == 1 {
		return " It wrote nothing."
	}
	const shown = 5
	return " It wrote:\n" + strings.Join(lines[max(0, len(lines)-shown):], "\n")
}
