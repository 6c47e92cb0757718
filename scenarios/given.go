package scenarios

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"irqlab/scenarios/nearest"
)

// ParseExpectation reads what the command line expects: KEY=VALUE, where the key is one of expect.settled, or branch or log, and the value is what a scenario file would have
// there.
func ParseExpectation(text string) (*Expect, error) {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return nil, fmt.Errorf("%q is not KEY=VALUE, as in clustered=false", text)
	}
	whole, settled := keysOf[Expect](), keysOf[Observed]()
	whole = slices.DeleteFunc(whole, func(k string) bool { return k == LabelSettled })
	fragment := fmt.Sprintf("settled: {%s: %s}", key, value)
	switch {
	case slices.Contains(whole, key):
		fragment = fmt.Sprintf("{%s: %s}", key, value)
	case !slices.Contains(settled, key):
		return nil, nearest.Unknown("expectation", key, slices.Concat(whole, settled))
	}
	d := newDecoder("--expect")
	e := new(Expect)
	if root := d.parse([]byte(fragment)); root != nil {
		d.value(root, "", reflect.ValueOf(e).Elem())
	}
	if len(d.errs) > 0 {
		return nil, fmt.Errorf("%s: %s", text, d.errs[0].Problem)
	}
	return e, nil
}

// keysOf are the keys that a type has in a file.
func keysOf[T any]() []string {
	var keys []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			keys = append(keys, name)
		}
	}
	return keys
}

// AddExpectations lays what the command line expects over what cases do. An error is of usage: one of them can never show it.
func AddExpectations(cases []Case, given []*Expect) error {
	for i := range cases {
		c := &cases[i]
		for _, g := range given {
			c.expect(g)
		}
		if len(given) == 0 {
			continue
		}
		if p := c.Expect.validate(c); len(p) > 0 {
			return fmt.Errorf("case %s: %s: %s", c.Name, p[0].key, p[0].text)
		}
	}
	return nil
}

func (c *Case) expect(given *Expect) {
	own := given.over(&c.Expect)
	own.steps = c.Expect.steps
	c.Expect = *own
	c.given = true
}
