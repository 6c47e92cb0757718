package scenarios

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/guestagent/cpulist"
	"irqlab/scenarios/result"
)

// Line is one of the steps that Write writes: a step with a remark above it, or a remark alone, whose step has no verb.
type Line struct {
	Step     Step
	Remark   string   // may be several lines; "": none
	Branches [][]Line // of together, instead of the step's own
}

// Write makes a scenario file of a case's settings and of steps: what Load reads as one case that runs the same. remarks stand above everything.
func Write(c *Case, remarks []string, steps []Line) []byte {
	var b strings.Builder
	for _, r := range remarks {
		remark(&b, "", r)
	}
	key := func(name, text string) {
		if !plainWord.MatchString(text) || !strings.Contains(text, ",") {
			text = scalar(text)
		}
		fmt.Fprintf(&b, "%s: %s\n", name, text)
	}
	key("name", c.Scenario)
	if c.Question != "" {
		key("question", c.Question)
	}
	key("driver", c.Driver)
	if c.Masks != nil {
		fmt.Fprintf(&b, "strategy: %s\n", flowText(reflect.ValueOf(ownStrategy{Masks: c.Masks})))
	} else if c.Strategy != "" {
		key("strategy", c.Strategy)
	}
	key("kernel", c.Kernel)
	key("shape", c.Shape.String())
	key("vectors", strconv.Itoa(c.Vectors))
	if c.DeviceNode != 0 {
		key("device-node", formatNode(c.DeviceNode))
	}
	if c.Irqchip != IrqchipMSI {
		key("irqchip", c.Irqchip)
	}
	if len(c.Pressure) > 0 {
		b.WriteString("pressure:\n")
		for _, p := range c.Pressure.Strings() {
			fmt.Fprintf(&b, "  - %s\n", scalar(p))
		}
	}
	if len(c.Packages) > 0 {
		fmt.Fprintf(&b, "packages: %s\n", packagesText(c.Packages))
	}
	if len(c.Cmdline) > 0 {
		key("cmdline", c.Cmdline.String())
	}
	if len(c.Offline) > 0 {
		key("offline", c.Offline.String())
	}
	b.WriteString("steps:\n")
	writeSteps(&b, "  ", steps)
	return []byte(b.String())
}

// remark writes a comment. Whoever wrote its words, it ends with its lines.
func remark(b *strings.Builder, indent, text string) {
	for line := range strings.Lines(text) {
		line = strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
				return ' '
			}
			return r
		}, strings.ToValidUTF8(line, "?"))
		b.WriteString(strings.TrimRight(indent+"# "+line, " ") + "\n")
	}
}

func writeSteps(b *strings.Builder, indent string, lines []Line) {
	for _, l := range lines {
		if l.Remark != "" {
			remark(b, indent, l.Remark)
		}
		s := &l.Step
		if s.Verb == "" {
			continue
		}
		b.WriteString(indent + "- " + s.Verb)
		branches := l.Branches
		for _, branch := range s.Together {
			if l.Branches == nil {
				lines := make([]Line, len(branch))
				for i := range branch {
					lines[i].Step = branch[i]
				}
				branches = append(branches, lines)
			}
		}
		switch arg := s.argument(); {
		case branches != nil:
			b.WriteString(":\n")
			for _, branch := range branches {
				b.WriteString(indent + "    -\n")
				writeSteps(b, indent+"      ", branch)
			}
			continue
		case arg != nil:
			b.WriteString(": " + flowText(reflect.ValueOf(arg)))
		case s.Refused != "":
			b.WriteString(":")
		}
		if s.Refused != "" {
			b.WriteString("\n" + indent + "  " + keyRefused + ": " + scalar(s.Refused))
		}
		b.WriteString("\n")
	}
}

// argument is what stands beside the step's verb, in the type that it is read into; nil: nothing does.
func (s *Step) argument() any {
	switch {
	case s.Verb == VerbProbe && !s.Probe.Waits():
		return s.Probe
	case s.Verb == VerbSetChannels:
		return s.Channels
	case s.Rule != nil:
		return ruleArgument(*s.Rule)
	case s.Verb == VerbRelease:
		return s.Release
	case s.Verb == VerbEnd:
		return s.End
	case s.Verb == VerbPost:
		return s.Post.String()
	case s.CPUs != nil:
		return s.CPUs
	case s.Verb == VerbFire && (s.Fire.Vectors != nil || s.Fire.Rounds != nil):
		return s.Fire
	case s.Verb == VerbObserve:
		return s.Label
	case s.Verb == VerbStorm:
		return s.Storm
	case s.Verb == VerbReadDisks && s.Disks.Reads != nil:
		return s.Disks
	case s.Affinity != nil:
		return *s.Affinity
	case s.Expect != nil:
		return *s.Expect
	case s.WaitFor != nil:
		return *s.WaitFor
	case s.Verb == VerbSleep:
		return duration(s.Sleep)
	case s.Run != nil && *s.Run == (Program{Command: s.Run.Command}):
		return s.Run.Command
	case s.Run != nil:
		return *s.Run
	case s.Verb == VerbSuspend && s.Suspend != Suspend{}:
		return s.Suspend
	}
	return nil
}

// ruleArgument is the argument whose rule it is.
func ruleArgument(r inject.Rule) any {
	point := rulePoint{At: r.Step, From: origin(r.From)}
	if r.Nth > 1 {
		n := count(r.Nth)
		point.Nth = &n
	}
	plain := plainRule{rulePoint: point}
	if r.Times != 1 {
		n := times(r.Times)
		plain.Times = &n
	}
	if validName(r.Name) { // else it is the one that such a rule gets by itself
		plain.As = ruleName(r.Name)
	}
	switch r.Action {
	case inject.Hold:
		return holdRule{rulePoint: point, As: plain.As}
	case inject.Delay:
		return delayRule{plain, duration(r.For)}
	case inject.Status:
		return statusRule{plain, status32(r.Status)}
	case inject.Add:
		return addRule{plain, offset(r.Vector)}
	case inject.Alter:
		a := alterRule{plainRule: plain, Field: r.Field, Value: numeral(r.Value)}
		if r.Size > 0 {
			at, size := offset(r.Offset), offset(r.Size)
			a.Offset, a.Size = &at, &size
		}
		return a
	}
	return plain
}

// MarshalText writes what UnmarshalText reads.
func (t times) MarshalText() ([]byte, error) {
	if t < 0 {
		return []byte("always"), nil
	}
	return strconv.AppendInt(nil, int64(t), 10), nil
}

// MarshalText writes what UnmarshalText reads.
func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// MarshalText writes what UnmarshalText reads.
func (v VectorSet) MarshalText() ([]byte, error) {
	if v == nil {
		return []byte("all"), nil
	}
	return []byte(cpulist.List(v).String()), nil
}

// flowText writes a value on one line, as the decoder reads it.
func flowText(v reflect.Value) string {
	if m, ok := v.Interface().(encoding.TextMarshaler); ok && !(v.Kind() == reflect.Pointer && v.IsNil()) {
		text, err := m.MarshalText()
		if err != nil {
			panic("scenarios: " + err.Error()) // none of ours has one
		}
		return scalar(string(text))
	}
	switch v.Kind() {
	case reflect.Pointer:
		return flowText(v.Elem())
	case reflect.Struct:
		var pairs []string
		for _, f := range reflect.VisibleFields(v.Type()) {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			field := v.FieldByIndex(f.Index)
			if name == "" || options == "omitempty" && (field.IsZero() || field.Kind() == reflect.Slice && field.Len() == 0 && field.IsNil()) {
				continue
			}
			pairs = append(pairs, name+": "+flowText(field))
		}
		return "{" + strings.Join(pairs, ", ") + "}"
	case reflect.Slice:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = flowText(v.Index(i))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case reflect.String:
		return scalar(v.String())
	}
	return fmt.Sprint(v.Interface())
}

// plainWord is a scalar that means itself without quotes, unless it has a comma within brackets.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9_./+=,@-]*(:[A-Za-z0-9_./+=@-]+)*$`)

// scalar writes a text so that YAML reads the same text: what is not certain to be a plain word is quoted as in JSON, which YAML contains.
func scalar(text string) string {
	special := slices.Contains([]string{"null", "true", "false", "yes", "no", "on", "off", "y", "n"}, strings.ToLower(text))
	if plainWord.MatchString(text) && !special && !strings.Contains(text, ",") {
		return text
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // of a string, to a Builder
	return strings.TrimSuffix(b.String(), "\n")
}

// Seen is what an observation showed and another of the same experiment must show again: what was asked of the kernel, and not where it chose to put a vector within a mask.
func Seen(o *result.Observation) *StepExpect {
	e := &StepExpect{}
	e.Online = &o.Online
	var dropped cpulist.List
	for _, v := range o.Vectors {
		if v.Role == result.RoleQueue {
			e.QueueMasks = append(e.QueueMasks, v.Affinity)
		}
		if v.Dropped {
			dropped = append(dropped, v.Index)
		}
		if v.Pending {
			rule := pendingRule(ruleAny)
			e.Pending = &rule
		}
		if len(v.Effective.Minus(o.Online)) > 0 {
			rule := offlineRule(ruleAny)
			e.OfflineCPUs = &rule
		}
	}
	if dropped != nil {
		e.Dropped = &dropped
	}
	return e
}

// WaitForStep waits for n occurrences of a step of the protocol.
func WaitForStep(step string, n int) *WaitFor {
	w := &WaitFor{Step: step}
	if n > 1 {
		times := count(n)
		w.Count = &times
	}
	return w
}

// NameFor makes a scenario's name of a word, such as that of its file.
func NameFor(word string) string {
	name := strings.Trim(notName.ReplaceAllString(strings.ToLower(word), "-"), "-._")
	if !validName(name) {
		return "session"
	}
	return name
}

var notName = regexp.MustCompile(`[^a-z0-9._-]+`)
