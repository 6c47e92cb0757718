package scenarios

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/strategy"
	"irqlab/scenarios/result"
)

// MasksForm is how masks of the user's own are written where a strategy is named in one word: a slash apart, since a mask may have commas.
const MasksForm = strategy.Masks + ":CPUS/CPUS/…"

// spreading is a strategy: one of the built-in ones by its name, or what the user brings.
type spreading struct {
	name string // of a built-in one; "": it is one of ownStrategy
	ownStrategy
}

// ownStrategy is a strategy that is the user's own: exactly one of the fields is set.
type ownStrategy struct {
	Script string         `json:"script,omitempty" jsonschema_description:"a script of the user's own, a file beside the scenario's, that writes the masks"`
	Args   string         `json:"args,omitempty" jsonschema_description:"with script: its arguments, as the guest's shell reads them; default $IRQLAB_LINK, the driver's link"`
	Masks  []cpulist.List `json:"masks,omitempty" jsonschema_description:"a mask for each queue vector, in order, the HWC left alone" jsonschema:"minItems=1"`
}

// ScriptForm is how a script that is the strategy is written in one word.
const ScriptForm = scriptPrefix + "FILE ARGS"

const (
	scriptPrefix = "script:"
	scriptArgs   = "$IRQLAB_LINK"
)

// IsScript reports whether a --strategy is a script.
func IsScript(text string) bool { return strings.HasPrefix(text, scriptPrefix) }

// ParseStrategy checks a --strategy: a name, or masks in the one-word form.
func ParseStrategy(text string) error { return new(spreading).UnmarshalText([]byte(text)) }

// UnmarshalText reads what String writes.
func (s *spreading) UnmarshalText(b []byte) error {
	if script, ok := strings.CutPrefix(string(b), scriptPrefix); ok {
		s.Script, s.Args, _ = strings.Cut(strings.TrimSpace(script), " ")
		return s.checkScript()
	}
	list, own := strings.CutPrefix(string(b), strategy.Masks+":")
	if !own {
		if s.name = string(b); !slices.Contains(strategyNames(), s.name) {
			return unknown("strategy", s.name, append(strategyNames(), MasksForm, ScriptForm))
		}
		return nil
	}
	for i, text := range strings.Split(list, "/") {
		l, err := cpulist.Parse(text)
		if err != nil {
			return fmt.Errorf("mask %d: %w", i, err)
		}
		s.Masks = append(s.Masks, l)
	}
	return s.checkMasks()
}

// checkScript finds what is wrong with a script as it is named.
func (s *spreading) checkScript() error {
	if s.Script == "" {
		return errors.New("no script is named; as in " + scriptPrefix + "./set_irq_affinity.sh")
	}
	return s.program().validate()
}

// program is the script as it is run.
func (s *spreading) program() *Program {
	return &Program{Script: s.Script, Args: cmp.Or(s.Args, scriptArgs)}
}

func (s *spreading) checkMasks() error {
	for i, m := range s.Masks {
		if len(m) == 0 {
			return fmt.Errorf("mask %d names no CPU; the kernel takes no empty mask", i)
		}
	}
	return nil
}

// String is a name, or masks:0/1/2-3.
func (s spreading) String() string {
	if s.Script != "" {
		return strings.TrimSpace(scriptPrefix + s.Script + " " + s.Args)
	}
	if s.Masks == nil {
		return s.name
	}
	words := make([]string, len(s.Masks))
	for i, m := range s.Masks {
		words[i] = m.String()
	}
	return strategy.Masks + ":" + strings.Join(words, "/")
}

func (s *spreading) decodeNode(d *decoder, n ast.Node, path string) {
	if text, ok := scalarText(n); ok {
		if err := s.UnmarshalText([]byte(text)); err != nil {
			d.fail(path, "%v", err)
		}
		return
	}
	before := len(d.errs)
	d.structure(n, path, reflect.ValueOf(&s.ownStrategy).Elem())
	if len(d.errs) > before {
		return
	}
	if s.Script != "" {
		if s.Masks != nil {
			d.fail(path, "masks and a script; a strategy is one of them")
		} else if err := s.checkScript(); err != nil {
			d.fail(path, "%v", err)
		}
		return
	}
	if s.Args != "" {
		d.fail(join(path, "args"), "args are a script's; add script: FILE")
		return
	}
	if len(s.Masks) == 0 {
		d.fail(join(path, "masks"), "no mask is given; there must be one for each queue vector")
	}
	for i, m := range s.Masks {
		if len(m) == 0 {
			d.fail(join(join(path, "masks"), strconv.Itoa(i)), "names no CPU; the kernel takes no empty mask")
		}
	}
}

// spread gives the case its strategy.
func (c *Case) spread(s spreading) string {
	c.Strategy, c.Masks, c.Script = s.String(), s.Masks, nil
	if s.Script != "" {
		c.Script = s.program()
	}
	return c.Strategy
}

// spreadBy is spread with a strategy in the one-word form, which has been checked.
func (c *Case) spreadBy(text string) {
	var s spreading
	if text != "" {
		_ = s.UnmarshalText([]byte(text))
	}
	c.spread(s)
}

// CheckScript judges the script that is the strategy, if one is.
func (c *Case) CheckScript(r result.Case) []string {
	if c.Script == nil {
		return nil
	}
	return c.Script.check("The script "+c.Script.Script, r.Script)
}

// strategyWord is short for a strategy in the name of a case: of a script, what the file is called.
func strategyWord(text string) string {
	if !IsScript(text) {
		return text
	}
	file, args, _ := strings.Cut(text[len(scriptPrefix):], " ")
	return strings.Join(append([]string{filepath.Base(file)}, strings.Fields(args)...), "+")
}

// validateMasks finds what is impossible about masks of the user's own. A CPU that is offline is possible: what the kernel makes of that is its affair.
func (c *Case) validateMasks() error {
	if c.Masks == nil {
		return nil
	}
	if len(c.Masks) != c.Queues() {
		return fmt.Errorf("%d masks are given, but %d vectors make %d queue vectors beside the HWC; give exactly one mask for each of them", len(c.Masks), c.Vectors, c.Queues())
	}
	all := cpulist.Range(0, c.Shape.CPUs()-1)
	var problems []string
	for i, m := range c.Masks {
		if gone := m.Minus(all); len(gone) > 0 {
			problems = append(problems, fmt.Sprintf("mask %d: %s not in the shape, which has %s", i, gone.Are("is", "are"), all.Words()))
		}
	}
	if problems == nil {
		return nil
	}
	return errors.New(strings.Join(problems, "; "))
}
