package scenarios

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/scenarios/shape"
)

// MaxCmdline bounds the words of one case: a kernel on x86 takes 2,047 bytes, and irqlab has words of its own.
const MaxCmdline = 1024

// Cmdline are words added to the guest kernel's command line, each as it stands there.
type Cmdline []string

// ParseCmdline reads a --cmdline: what UnmarshalText does.
func ParseCmdline(text string) (c Cmdline, err error) {
	err = c.UnmarshalText([]byte(text))
	return c, err
}

// UnmarshalText reads words apart by blanks, as the kernel does: a double quote keeps those within it together. "none" and nothing at all are no words.
func (c *Cmdline) UnmarshalText(b []byte) error {
	text := strings.TrimSpace(string(b))
	*c = nil
	if text == "none" {
		return nil
	}
	if len(text) > MaxCmdline {
		return fmt.Errorf("%d bytes are too many; allowed: %d", len(text), MaxCmdline)
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return r > unicode.MaxASCII || r < ' ' && r != '\t' && r != '\n' || r == 0x7f }); i >= 0 {
		return fmt.Errorf("%q has %q, which no kernel parameter has", text, text[i:i+1])
	}
	if strings.Count(text, `"`)%2 != 0 {
		return fmt.Errorf("%q has a double quote that is not closed", text)
	}
	quoted := false
	for _, word := range strings.FieldsFunc(text, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && strings.ContainsRune(" \t\n", r)
	}) {
		if why := protected(word); why != "" {
			return fmt.Errorf("%s is not to be changed: %s", word, why)
		}
		*c = append(*c, word)
	}
	return nil
}

// String writes what UnmarshalText reads; "" for no words.
func (c Cmdline) String() string { return strings.Join(c, " ") }

// protected says what irqlab needs a word of its own for that this one would undo; "": nothing.
func protected(word string) string {
	name, _ := parameter(word)
	switch name {
	case "console", "earlycon", "earlyprintk", "quiet", "loglevel", "printk.devkmsg":
		return "the lab reads the kernel's warnings on the console, and what it says when it dies"
	case "panic":
		return "a guest that panics is to end at once"
	case "init", "rdinit", "initrd", "noinitrd", "root", agentapi.OnlineWord:
		return "the guest's agent is its first program"
	case "vfio_iommu_type1.allow_unsafe_interrupts", "intel_iommu":
		return "driver vfio needs it, and irqchip (--irqchip) decides how interrupts are remapped"
	case "--":
		return "what comes after it would be the agent's"
	}
	return ""
}

// parameter is the name and the value of a word; the kernel takes - and _ in a name for the same.
func parameter(word string) (name, value string) {
	name, value, _ = strings.Cut(strings.ReplaceAll(word, `"`, ""), "=")
	if name != "--" {
		name = strings.ReplaceAll(name, "-", "_")
	}
	return name, value
}

// asleep are the CPUs of the shape that a kernel with these words does not bring up: the other threads of each core, and those beyond a number. missing are those of them
// that it does not even count as present. Words whose effect depends on more than the shape are not known here: the runner tells when the guest has other CPUs.
func (c Cmdline) asleep(s shape.Shape) (asleep, missing cpulist.List) {
	all := cpulist.Range(0, s.CPUs()-1)
	beyond := func(value string) cpulist.List {
		n, err := strconv.Atoi(value)
		if err != nil || n >= len(all) {
			return nil
		}
		return all[max(1, n):]
	}
	for _, word := range c {
		switch name, value := parameter(word); name {
		case "nosmt":
			for _, cpu := range all {
				if cpu%s.Threads != 0 {
					asleep = asleep.Or(cpulist.List{cpu})
				}
			}
		case "nosmp":
			asleep = asleep.Or(beyond("0"))
		case "maxcpus":
			asleep = asleep.Or(beyond(value))
		case "nr_cpus", "possible_cpus":
			missing = missing.Or(beyond(value))
		}
	}
	return asleep.Or(missing), missing
}

// cmdlineWord is short for the words: what each of them sets.
func cmdlineWord(c Cmdline) string {
	if len(c) == 0 {
		return "no-cmdline"
	}
	return strings.Join(c, "+")
}
