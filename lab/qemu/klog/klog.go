// Package klog finds reports of trouble in a Linux kernel's log: panics, oopses, warnings, lockdep splats, hung tasks, stalls and sanitizer findings,
// each with its text kept whole.
//
// It is pure: bytes in, findings out, in bounded memory whatever the guest writes. It must not know where the log comes from (a serial console, /dev/kmsg)
// nor what a finding means for a run.
package klog

import (
	"bytes"
	"regexp"
	"strings"
)

// Kind is what sort of trouble a report tells of.
type Kind string

// The kinds.
const (
	Panic           Kind = "panic"
	Oops            Kind = "oops" // a bad access, general protection fault and the like
	BUG             Kind = "BUG"  // BUG(), and the checks that print "BUG:"
	Warning         Kind = "WARN"
	Lockdep         Kind = "lockdep"
	HungTask        Kind = "hung task"
	SoftLockup      Kind = "soft lockup"
	HardLockup      Kind = "hard lockup"
	RCUStall        Kind = "RCU stall"
	WorkqueueLockup Kind = "workqueue lockup"
	KASAN           Kind = "KASAN"
	KCSAN           Kind = "KCSAN"
	KFENCE          Kind = "KFENCE"
	KMSAN           Kind = "KMSAN"
	UBSAN           Kind = "UBSAN"
	SpuriousIRQ     Kind = "irq: nobody cared"     // an interrupt line the kernel switched off
	NoIRQHandler    Kind = "no handler for vector" // an interrupt reached a CPU that no longer expected it
	HardwareError   Kind = "machine check"
	unnamed         Kind = "" // "cut here" was seen, what follows names it
)

// Finding is one report.
type Finding struct {
	Kind  Kind
	Title string // the line that names the trouble, without time stamp
	Text  string // the report's lines as written, time stamps included
	Line  int    // number of its first line in the log, from 1
	Cut   bool   // Text or a line of it was cut off at the scanner's bounds
	Open  bool   // the end of the report has not been seen (yet)
}

// Bounds of what a Scanner keeps.
const (
	MaxLine     = 4 << 10  // bytes of a line
	MaxReport   = 64 << 10 // bytes of a report
	MaxFindings = 64
	maxLines    = 1024 // lines of a report whose end never comes
)

// Scanner takes a log in pieces of any size. The zero value is ready; it is not safe for use from several goroutines.
type Scanner struct {
	line     []byte // the line begun but not ended
	cut      bool   // that line was too long
	number   int
	reports  []Finding
	dropped  int
	current  *report
	previous string // the line before: a report may begin with a row of '=' above the line that names it
}

type report struct {
	Finding
	text   strings.Builder
	style  style
	lines  int
	stray  int  // lines in a row that need not belong to the report
	traced bool // a call trace has ended
}

// style is how a report ends.
type style int

const (
	oneLine style = iota // at once
	bare                 // with its call traces and what goes with them, the first of which is a few lines away at most
	wordy                // the same after a longer text
	marked               // at "---[ end trace" or "---[ end Kernel panic"
	fenced               // at a row of '='
)

// slack is how many lines of a report, in a row, may be anything.
func (s style) slack() int {
	switch s {
	case bare:
		return 10
	case wordy:
		return 200
	}
	return maxLines
}

type rule struct {
	kind  Kind
	style style
	match *regexp.Regexp
}

func starts(kind Kind, style style, pattern string) rule {
	return rule{kind, style, regexp.MustCompile("^(?:" + pattern + ")")}
}

// rules are tried in order on a line without its time stamp. Texts as of kernels 6.1 to 7.3.
var rules = []rule{
	starts(Panic, marked, `Kernel panic - not syncing`),
	starts(KASAN, fenced, `BUG: KASAN: `),
	starts(KCSAN, fenced, `BUG: KCSAN: `),
	starts(KFENCE, fenced, `BUG: KFENCE: `),
	starts(KMSAN, fenced, `BUG: KMSAN: `),
	starts(UBSAN, marked, `UBSAN: `),
	starts(SoftLockup, bare, `(?:watchdog: )?BUG: soft lockup`),
	starts(HardLockup, bare, `(?:NMI )?[Ww]atchdog:? .*(?:hard LOCKUP|BUG: hard lockup)|(?:watchdog: )?BUG: hard lockup|Watchdog detected hard LOCKUP`),
	starts(WorkqueueLockup, bare, `BUG: workqueue lockup`),
	starts(RCUStall, bare, `(?:rcu: )?INFO: \S+ (?:self-)?detected (?:expedited )?stalls? on CPU|(?:rcu: )?INFO: rcu_tasks\S* detected stalls|rcu: \S+ kthread (?:starved|timer wakeup)`),
	starts(HungTask, bare, `INFO: task \S+ (?:is )?blocked (?:in I/O wait )?for more than`),
	starts(Lockdep, wordy, `WARNING: (?:possible|inconsistent|suspicious RCU|bad unlock|bad contention|held lock freed|Nested lock|lock held|chain_key|\S+ \S+ lock order|.*lock.*detected)|`+
		`\[ BUG: (?:Invalid wait context|.*lock)|possible (?:circular|recursive) locking|BUG: MAX_LOCK|BUG: (?:key|looking up)|`+
		`WARNING: \S+/\d+ (?:still has locks|is leaving)`),
	starts(Lockdep, bare, `INFO: trying to register non-static key|INFO: lockdep is turned off|DEBUG_LOCKS_WARN_ON`),
	starts(Oops, marked, `BUG: kernel NULL pointer|BUG: unable to handle|[Uu]nable to handle kernel|Oops: |general protection fault|stack segment: |invalid opcode: |`+
		`divide error: |int3: |bounds: |double fault|traps: PANIC|PANIC: double fault|BUG: (?:IRQ|task|NMI|#DF) stack guard page|kernel stack overflow`),
	starts(BUG, marked, `kernel BUG at |Kernel BUG at `),
	starts(Warning, marked, `WARNING: (?:CPU: ?\d|\S+:\d+ at )`),
	starts(Warning, bare, `WARNING: `),
	starts(BUG, bare, `BUG: |BUG \S+ `),
	starts(SpuriousIRQ, bare, `irq \d+: nobody cared`),
	starts(NoIRQHandler, oneLine, `(?:\w+: )?\d+\.\d+ No irq handler for vector`),
	starts(HardwareError, oneLine, `mce: \[Hardware Error\]`),
}

var (
	stamp     = regexp.MustCompile(`^(?:<\d+>)?\[ *\d+\.\d+\](?:\[ *[TC]\d+\])? ?`)
	traceEnd  = regexp.MustCompile(`^ ?</(?:TASK|IRQ|NMI|EOI|SOFTIRQ|#DF|ENTRY_TRAMPOLINE)>`)
	followsOn = regexp.MustCompile(`^(?:\s|Call Trace|Sending NMI|NMI backtrace|CPU: ?\d|CPU#|Hardware name|Workqueue: |Tainted: |Stopper: |RIP: |RSP: |Code: |R[A-DS0-9][XIP0-9 ]{1,2}: |FS: |CS: |CR2: |DR\d: |PKRU: |EFLAGS|Modules linked|Task dump|task:|rcu: |\(detected|\(t=|Kernel Offset|Disabling IRQ|handlers:|\[<|irq event|hardirqs|softirqs|Future hung task|INFO: task \S+ is blocked on|"echo 0)`)
	row       = regexp.MustCompile(`^={20,}$`)
)

// Told is the report from the line on that says what it is about, which some have a rule above.
func (f *Finding) Told() string {
	if first, rest, more := strings.Cut(f.Text, "\n"); more && row.MatchString(Message(first)) {
		return rest
	}
	return f.Text
}

// Message returns a log line without its time stamp and line end.
func Message(line string) string {
	line = strings.TrimRight(line, "\r\n")
	return line[len(stamp.FindString(line)):]
}

// Write takes the next piece of the log. It never fails.
func (s *Scanner) Write(p []byte) (int, error) {
	n := len(p)
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			s.append(p)
			return n, nil
		}
		s.append(p[:i])
		s.endLine()
		p = p[i+1:]
	}
}

func (s *Scanner) append(p []byte) {
	if room := MaxLine - len(s.line); len(p) > room {
		p, s.cut = p[:room], true
	}
	s.line = append(s.line, p...)
}

func (s *Scanner) endLine() {
	s.number++
	line := strings.ToValidUTF8(string(bytes.TrimRight(s.line, "\r")), "\uFFFD")
	s.scan(line, s.cut)
	s.line, s.cut = s.line[:0], false
}

// Findings returns the reports seen so far, oldest first; the last one may still be Open. Beyond MaxFindings reports are only counted, see Dropped.
func (s *Scanner) Findings() []Finding {
	list := append([]Finding(nil), s.reports...)
	if r := s.current; r != nil && r.Kind != unnamed {
		f := r.Finding
		f.Text, f.Open = r.text.String(), true
		list = append(list, f)
	}
	return list
}

// Dropped is how many reports there were beyond those Findings returns.
func (s *Scanner) Dropped() int { return s.dropped }

func (s *Scanner) scan(line string, cut bool) {
	message := Message(line)
	defer func() { s.previous = line }()
	if s.current != nil && !s.continues(message) {
		s.close()
	}
	if s.current == nil {
		s.open(message)
	}
	if r := s.current; r != nil {
		r.add(line, cut)
		if r.ends(message) {
			s.close()
		}
	}
}

const cutHere = "------------[ cut here ]------------"

// open starts a report if the line does.
func (s *Scanner) open(message string) {
	r := &report{Finding: Finding{Line: s.number}}
	if strings.HasPrefix(message, cutHere) {
		r.style = marked
		s.current = r
		return
	}
	if !r.name(message) {
		return
	}
	s.current = r
	if r.style >= wordy && row.MatchString(Message(s.previous)) {
		r.Line--
		r.add(s.previous, false)
	}
}

// name gives the report its kind and title, if the line has one.
func (r *report) name(message string) bool {
	for _, rule := range rules {
		if rule.match.MatchString(message) {
			r.Kind, r.Title = rule.kind, strings.TrimSpace(message)
			if r.style != marked { // a report that began with "cut here" ends with its mark, whatever it is
				r.style = rule.style
			}
			return true
		}
	}
	return false
}

// continues reports whether the line belongs to the report that is open.
func (s *Scanner) continues(message string) bool {
	r := s.current
	if strings.HasPrefix(message, cutHere) || r.Kind != Panic && strings.HasPrefix(message, "Kernel panic - not syncing") {
		return false
	}
	if r.Kind == unnamed {
		r.name(message) // most often the first line after "cut here"; refcounts and lists put one of their own in between
	}
	if r.lines >= maxLines && r.Kind != Panic {
		return false
	}
	if r.style != bare && r.style != wordy {
		return true
	}
	if followsOn.MatchString(message) && !strings.HasPrefix(message, "rcu: INFO: ") {
		r.stray = 0
		return true
	}
	r.stray++
	if r.traced || r.stray > r.style.slack() || row.MatchString(message) {
		return false
	}
	var next report
	return !next.name(message)
}

// ends reports whether the line was the report's last.
func (r *report) ends(message string) bool {
	switch {
	case traceEnd.MatchString(message):
		r.traced = true
	case r.style == oneLine, strings.HasPrefix(message, "---[ end "):
		return true
	case r.style == fenced && r.lines > 2:
		return row.MatchString(message)
	}
	return false
}

func (s *Scanner) close() {
	r := s.current
	s.current = nil
	if r.Kind == unnamed { // "cut here" and nothing known after it: it still is a warning
		r.Kind, r.Title = Warning, strings.TrimSpace(Message(secondLine(r.text.String())))
	}
	if len(s.reports) == MaxFindings {
		s.dropped++
		return
	}
	r.Text = r.text.String()
	s.reports = append(s.reports, r.Finding)
}

func secondLine(text string) string {
	_, rest, _ := strings.Cut(text, "\n")
	line, _, _ := strings.Cut(rest, "\n")
	return line
}

// Flush tells that the log has ended: a line without an end is one all the same.
func (s *Scanner) Flush() {
	if len(s.line) > 0 || s.cut {
		s.endLine()
	}
	if s.current != nil {
		s.close()
	}
}

func (r *report) add(line string, cut bool) {
	r.lines++
	if r.text.Len()+len(line)+1 > MaxReport {
		r.Cut = true
		return
	}
	r.Cut = r.Cut || cut
	r.text.WriteString(line)
	r.text.WriteByte('\n')
}
