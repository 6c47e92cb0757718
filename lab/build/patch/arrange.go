package patch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// arrange makes a series of what was found: without replies, doubles and cover letters, and numbered patches in the order
// of their numbers.
func arrange(found []*candidate) (Series, error) {
	source := found[0].Source
	found, notes := choose(found)
	if len(found) == 0 {
		return nil, &ReadError{Name: source, Text: "only diffs in cover letters are in it: give the mails with the patches"}
	}
	if err := oneVersion(found); err != nil {
		return nil, err
	}
	// The patches that count to the same total belong together, and stand where the first of them does.
	type key struct{ total, version, input int }
	groups := map[key][]*candidate{}
	keyOf := func(c *candidate) key { return key{c.total, c.version, 0} }
	numbers := map[key]map[int]bool{}
	apart := map[key]bool{} // counted twice, so by different inputs
	for _, c := range found {
		k := keyOf(c)
		if numbers[k] == nil {
			numbers[k] = map[int]bool{}
		}
		apart[k] = apart[k] || numbers[k][c.number]
		numbers[k][c.number] = true
	}
	var order []key
	single := 0
	for _, c := range found {
		k := keyOf(c)
		if c.total < 2 || !c.numbered {
			single++
			k = key{input: -single} // alone
		} else if apart[k] {
			k.input = c.input + 1
		}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], c)
	}
	var s Series
	for _, k := range order {
		group := groups[k]
		if k.input >= 0 {
			slices.SortStableFunc(group, func(a, b *candidate) int { return cmp.Compare(a.number, b.number) })
			for i := 1; i < len(group); i++ {
				if a, b := group[i-1], group[i]; a.number == b.number {
					return nil, &ReadError{Name: b.Source, Text: fmt.Sprintf("two patches call themselves %d/%d: %q and %q: give each series in a file of its own",
						b.number, b.total, a.Title, b.Title)}
				}
			}
			notes = append(notes, missing(group)...)
		}
		for _, c := range group {
			s = append(s, c.Patch)
		}
	}
	s[0].Notes = append(notes, s[0].Notes...)
	return s, nil
}

// choose leaves out replies, unless there is nothing else, doubles and cover letters.
func choose(found []*candidate) ([]*candidate, []string) {
	var kept []*candidate
	var notes []string
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	onlyReplies := !slices.ContainsFunc(found, func(c *candidate) bool { return !c.reply && !c.cover() })
	type same struct {
		number int
		diff   string
	}
	seen := map[same]*candidate{}
	for _, c := range found {
		switch {
		case c.reply && !onlyReplies:
			note("Passed over: a reply with a diff of its own, %q by %s.", c.Title, cmp.Or(c.Author, "somebody"))
			continue
		case c.cover() && len(found) > 1:
			note("Passed over: a diff in the cover letter %q.", c.Title)
			continue
		}
		key := same{c.number, string(c.Diff())}
		if other := seen[key]; other != nil {
			if other.MessageID == "" || other.MessageID != c.MessageID {
				note("Passed over: the same patch once more, %q in %s.", cmp.Or(c.Title, "without a title"), printable(c.Source))
			}
			continue
		}
		seen[key] = c
		kept = append(kept, c)
	}
	return kept, notes
}

// oneVersion refuses several versions of one series: in one input, or of one title.
func oneVersion(found []*candidate) error {
	type where struct {
		input int
		title string
	}
	first := map[where]*candidate{}
	for _, c := range found {
		for _, w := range []where{{c.input, ""}, {-1, strings.ToLower(c.title)}} {
			if w.input < 0 && w.title == "" {
				continue
			}
			other := first[w]
			if other == nil {
				first[w] = c
			} else if other.version != c.version && other.title != "" && c.title != "" {
				return &ReadError{Name: c.Source, Text: fmt.Sprintf("more than one version is given: %s and %s: give one", other.named(), c.named())}
			}
		}
	}
	return nil
}

// named is the candidate with its version and number.
func (c *candidate) named() string {
	s := fmt.Sprintf("v%d", c.version)
	if c.total > 0 {
		s += fmt.Sprintf(" %d/%d", c.number, c.total)
	}
	return fmt.Sprintf("%s %q", s, c.title)
}

// missing notes which numbers of a sorted group are not there.
func missing(group []*candidate) []string {
	const most = 5
	var notes []string
	have := map[int]bool{}
	for _, c := range group {
		have[c.number] = true
	}
	total := group[0].total
	gone := 0
	for n := 1; n <= total; n++ {
		if have[n] {
			continue
		}
		if gone++; gone <= most {
			notes = append(notes, fmt.Sprintf("Patch %d/%d is missing.", n, total))
		}
	}
	if gone > most {
		notes = append(notes, fmt.Sprintf("%d more patches of %d are missing.", gone-most, total))
	}
	return notes
}
