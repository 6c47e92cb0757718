// Package guestlog makes one record of what a guest's kernel logged out of two that each lack something: the kernel's own buffer, a ring that forgets its oldest
// lines, and the serial console, which shows warnings and what is worse, and lacks lines when the kernel had no time to print them.
//
// It is pure: records and bytes in, records out, whatever the guest wrote. It must not know how either is read, nor what a line means.
package guestlog

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"irqlab/guestagent/agentapi"
)

const (
	// ShownBelow is the level from which on the lab's guests show nothing on the console: KERN_NOTICE (lab/machine, the word loglevel=5).
	ShownBelow = 5
	// AllLevels is above every level there is.
	AllLevels = 8
	// unknownLevel is the level of a line that only the console has, which does not tell it: that of a warning, as good as any that it shows.
	unknownLevel = 4

	maxLine = 16 << 10 // of the console that is looked at: a kernel's lines have 2 KiB at most
)

// Shown is what the console tells.
type Shown struct {
	Records []agentapi.LogRecord // Seq is 0, and Level that of a warning: the console tells neither
	Dropped []Span               // where the kernel printed "** N printk messages dropped **"
	Cut     string               // why not all of the console is there; empty: it is
}

// Span is the time from one line to the next.
type Span struct{ From, To float64 }

var (
	consoleLine = regexp.MustCompile(`^\[ *(\d{1,9}\.\d{6})\](?:\[ *[TC]\d+\])? ?(.*)`)
	droppedLine = regexp.MustCompile(`^\*\* \d+ printk messages dropped \*\*`)
)

// FromConsole reads the lines of the kernel's that a serial console shows. What others wrote there is left out.
func FromConsole(console []byte) Shown {
	var s Shown
	last, open := 0.0, 0 // the spans from open on have no end yet
	for line := range bytes.Lines(console) {
		line = bytes.TrimRight(line, "\r\n")
		line = line[:min(len(line), maxLine)]
		if droppedLine.Match(line) {
			s.Dropped = append(s.Dropped, Span{last, math.Inf(1)})
		}
		m := consoleLine.FindSubmatch(line)
		if m == nil {
			continue
		}
		at, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			continue
		}
		last = at
		for ; open < len(s.Dropped); open++ {
			s.Dropped[open].To = at
		}
		s.Records = append(s.Records, agentapi.LogRecord{Seconds: at, Level: unknownLevel, Text: strings.ToValidUTF8(string(m[2]), "\uFFFD")})
	}
	return s
}

// Log is what a guest logged.
type Log struct {
	Records []agentapi.LogRecord // in order; those that only the console had have no Seq
	Whole   int                  // no line more severe than this level is missing: AllLevels if none is at all, 0 if any may be
	Why     string               // what is missing and why, if anything is
}

// Lost is an error if a line more severe than the level may be missing.
func (l Log) Lost(below int) error {
	if l.Whole >= below {
		return nil
	}
	return &LostError{l.Why}
}

// LostError tells that lines of the guest's log are lost, so that nobody can say what is not in it.
type LostError struct{ Why string }

func (e *LostError) Error() string {
	return "lines of the guest's log are lost, so what it did not log cannot be told: " + e.Why
}

// Whole is the log of a ring that has lost nothing.
func Whole(ring []agentapi.LogRecord) Log { return Log{Records: ring, Whole: AllLevels} }

// Merge puts together what the ring still has of the lines after a record (the zero record: of all), and what the console showed. Where the ring has forgotten lines the
// console's stand, by their time. The ring's records must be all that it has, of every level.
func Merge(after agentapi.LogRecord, ring []agentapi.LogRecord, shown Shown) Log {
	l := Log{Whole: AllLevels}
	var why []string
	shown.Records = slices.Clone(shown.Records)
	slices.SortStableFunc(shown.Records, func(a, b agentapi.LogRecord) int { return cmp.Compare(a.Seconds, b.Seconds) }) // a CPU may take its time between stamping and printing
	inRing := map[agentapi.LogRecord]int{}
	for _, r := range ring {
		inRing[witnessed(r)]++
	}
	last := after
	missing := uint64(0)
	gap := func(n uint64, from, to float64) {
		missing += n
		l.Whole = min(l.Whole, ShownBelow)
		for _, d := range shown.Dropped {
			if d.From <= to && d.To >= from {
				l.Whole = 0
				why = append(why, fmt.Sprintf("the console lacks some after %.6f s, too", d.From))
				break
			}
		}
		i, _ := slices.BinarySearchFunc(shown.Records, from, func(r agentapi.LogRecord, at float64) int { return cmp.Compare(r.Seconds, at) })
		for ; i < len(shown.Records) && shown.Records[i].Seconds <= to; i++ {
			r := shown.Records[i]
			key := witnessed(r)
			if inRing[key] > 0 {
				inRing[key]--
				continue
			}
			if r.Seconds == after.Seconds && key == witnessed(after) {
				continue
			}
			l.Records = append(l.Records, r)
		}
	}
	for _, r := range ring {
		first := last.Seq + 1
		if last == (agentapi.LogRecord{}) {
			first = 0
		}
		if r.Seq > first {
			gap(r.Seq-first, last.Seconds, math.Max(last.Seconds, r.Seconds))
		}
		l.Records = append(l.Records, r)
		last = r
	}
	if missing == 0 {
		return l
	}
	if shown.Cut != "" {
		l.Whole = 0
		why = append(why, shown.Cut)
	}
	if l.Whole > 0 {
		if r, ok := unshown(ring, shown); ok {
			l.Whole = 0
			why = append(why, fmt.Sprintf("the console does not show all of the warnings: not %.80q", r.Text))
		}
	}
	if l.Whole > 0 {
		why = append(why, "the console has the warnings, and nothing below them")
	}
	l.Why = strings.Join(append([]string{fmt.Sprintf("the guest's own buffer has forgotten %d lines", missing)}, why...), "; ")
	return l
}

// unshown is a warning of the ring's that the console does not have, though it must: then it may lack others.
func unshown(ring []agentapi.LogRecord, shown Shown) (agentapi.LogRecord, bool) {
	on := map[agentapi.LogRecord]int{}
	for _, r := range shown.Records {
		on[witnessed(r)]++
	}
	for _, r := range ring {
		if r.Level >= ShownBelow {
			continue
		}
		key := witnessed(r)
		if on[key] == 0 {
			return r, true
		}
		on[key]--
	}
	return agentapi.LogRecord{}, false
}

// witnessed is what both tell of a record, as far as both tell it in the same way: the ring escapes what is not printable, and of several lines the console shows each
// by itself.
func witnessed(r agentapi.LogRecord) agentapi.LogRecord {
	text, _, _ := strings.Cut(r.Text, `\x0a`)
	plain := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+4 <= len(text) && text[i+1] == 'x' && isHex(text[i+2]) && isHex(text[i+3]):
			i += 3
		case c > ' ' && c < utf8.RuneSelf-1:
			plain = append(plain, c)
		}
	}
	return agentapi.LogRecord{Seconds: math.Round(r.Seconds * 1e6), Text: string(plain)}
}

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' }
