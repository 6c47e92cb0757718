// Package cpulist reads and writes the kernel's CPU list format, "0-3,8,10-11", which /sys, /proc/irq and irqlab's JSON share.
package cpulist

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxCPU is the highest CPU number accepted; x86-64 kernels are built for at most 8192 CPUs.
const MaxCPU = 8191

// List is a set of CPU numbers in ascending order without repeats. Nil is the empty set.
type List []int

// New returns the set of the given CPUs, sorted.
func New(cpus ...int) List {
	l := slices.Clone(cpus)
	slices.Sort(l)
	return slices.Compact(l)
}

// Words name the set in a sentence: "CPU 3", "CPUs 0,3", "no CPU".
func (l List) Words() string {
	switch len(l) {
	case 0:
		return "no CPU"
	case 1:
		return "CPU " + l.String()
	}
	return "CPUs " + l.String()
}

// Are is Words with a verb that agrees: "CPU 3 is", "CPUs 0,3 are".
func (l List) Are(one, many string) string {
	if len(l) > 1 {
		return l.Words() + " " + many
	}
	return l.Words() + " " + one
}

// Range returns the set first..last, empty when last < first.
func Range(first, last int) List {
	var l List
	for c := first; c <= last; c++ {
		l = append(l, c)
	}
	return l
}

// Parse reads a list such as "0-3,8". Surrounding white space is ignored; the empty string is the empty set.
func Parse(s string) (List, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, nil
	}
	var l List
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		first, err := number(lo)
		if err != nil {
			return nil, fmt.Errorf("CPU list %q: %w", s, err)
		}
		last := first
		if isRange {
			if last, err = number(hi); err != nil {
				return nil, fmt.Errorf("CPU list %q: %w", s, err)
			}
		}
		if last < first {
			return nil, fmt.Errorf("CPU list %q: range %q runs backwards", s, part)
		}
		l = append(l, Range(first, last)...)
	}
	return New(l...), nil
}

func number(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q is not a CPU number", s)
	}
	if n > MaxCPU {
		return 0, fmt.Errorf("CPU %d is above the highest, %d", n, MaxCPU)
	}
	return int(n), nil
}

// String writes the list in the kernel's form, runs joined by '-'.
func (l List) String() string {
	var b strings.Builder
	for i := 0; i < len(l); {
		j := i
		for j+1 < len(l) && l[j+1] == l[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(l[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(l[j]))
		}
		i = j + 1
	}
	return b.String()
}

// Has reports whether cpu is in the set.
func (l List) Has(cpu int) bool {
	_, ok := slices.BinarySearch(l, cpu)
	return ok
}

// Minus returns the CPUs of l that are not in o.
func (l List) Minus(o List) List {
	return l.filter(func(c int) bool { return !o.Has(c) })
}

// And returns the CPUs that are in both sets.
func (l List) And(o List) List {
	return l.filter(o.Has)
}

// Or returns the CPUs that are in either set.
func (l List) Or(o List) List { return New(slices.Concat(l, o)...) }

// Within reports whether every CPU of l is in o.
func (l List) Within(o List) bool { return len(l.Minus(o)) == 0 }

func (l List) filter(keep func(int) bool) List {
	var out List
	for _, c := range l {
		if keep(c) {
			out = append(out, c)
		}
	}
	return out
}

// MarshalText and UnmarshalText make a List a string in JSON and YAML.
func (l List) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (l *List) UnmarshalText(b []byte) error {
	p, err := Parse(string(b))
	*l = p
	return err
}
