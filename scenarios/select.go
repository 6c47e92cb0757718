package scenarios

import (
	"slices"
	"strings"

	"irqlab/scenarios/nearest"
)

// Select are the cases with a name that was asked for, or that begins with it and a slash; all, where none was.
func Select(cases []Case, want []string) ([]Case, error) {
	if len(want) == 0 {
		return cases, nil
	}
	names := make([]string, len(cases))
	for i, c := range cases {
		names[i] = c.Name
	}
	var out []Case
	for _, c := range cases {
		if slices.ContainsFunc(want, func(w string) bool { return isCase(c.Name, w) }) {
			out = append(out, c)
		}
	}
	for _, w := range want {
		if !slices.ContainsFunc(names, func(name string) bool { return isCase(name, w) }) {
			return nil, nearest.Unknown("case", w, names)
		}
	}
	return out, nil
}

func isCase(name, want string) bool { return name == want || strings.HasPrefix(name, want+"/") }
