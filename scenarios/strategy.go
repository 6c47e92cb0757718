package scenarios

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/strategy"
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
	Masks []cpulist.List `json:"masks,omitempty" jsonschema_description:"a mask for each queue vector, in order, the HWC left alone" jsonschema:"minItems=1"`
}

// ParseStrategy checks a --strategy: a name, or masks in the one-word form.
func ParseStrategy(text string) error { return new(spreading).UnmarshalText([]byte(text)) }

// UnmarshalText reads what String writes.
func (s *spreading) UnmarshalText(b []byte) error {
	list, own := strings.CutPrefix(string(b), strategy.Masks+":")
	if !own {
		if s.name = string(b); !slices.Contains(strategyNames(), s.name) {
			return unknown("strategy", s.name, append(strategyNames(), MasksForm))
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
	c.Strategy, c.Masks = s.String(), s.Masks
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
