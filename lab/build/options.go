package build

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// KernelOptions say how a whole kernel is configured beside the small configuration that irqlab ships.
type KernelOptions struct {
	Debug []string // of DebugOptions
}

// smallConfig is what a kernel is configured with, over tinyconfig.
//
//go:embed small.config
var smallConfig string

// debugSets are what each name of DebugOptions sets.
var debugSets = map[string][]string{
	"kasan":        {"KASAN=y", "KASAN_GENERIC=y", "KASAN_OUTLINE=y", "KASAN_VMALLOC=y", "STACKTRACE=y"},
	"kcsan":        {"KCSAN=y"},
	"ubsan":        {"UBSAN=y", "UBSAN_BOUNDS=y", "UBSAN_SHIFT=y"},
	"lockdep":      {"PROVE_LOCKING=y", "DEBUG_ATOMIC_SLEEP=y"},
	"debugobjects": {"DEBUG_OBJECTS=y", "DEBUG_OBJECTS_FREE=y", "DEBUG_OBJECTS_TIMERS=y", "DEBUG_OBJECTS_WORK=y", "DEBUG_OBJECTS_RCU_HEAD=y", "DEBUG_OBJECTS_PERCPU_COUNTER=y"},
	"slub":         {"SLUB_DEBUG=y", "SLUB_DEBUG_ON=y"},
	"list":         {"DEBUG_LIST=y", "DEBUG_PLIST=y", "DEBUG_SG=y", "DEBUG_NOTIFIERS=y"},
}

// debugApart are those that no kernel has together.
var debugApart = [][2]string{{"kasan", "kcsan"}}

// DebugOptions are the names that KernelOptions.Debug may have.
func DebugOptions() []string { return slices.Sorted(maps.Keys(debugSets)) }

// DebugError tells that a kernel cannot be built with what KernelOptions.Debug asks for.
type DebugError struct {
	Name   string
	Reason string
}

func (e *DebugError) Error() string { return fmt.Sprintf("debug option %q: %s", e.Name, e.Reason) }

// Check tells of a mistake in the options: a *DebugError.
func (o KernelOptions) Check() error {
	_, err := o.debug()
	return err
}

// debug are the options' names, sorted, each once.
func (o KernelOptions) debug() ([]string, error) {
	names := slices.Compact(slices.Sorted(slices.Values(o.Debug)))
	for _, name := range names {
		if debugSets[name] == nil {
			return nil, &DebugError{name, "there is none of that name (there are " + strings.Join(DebugOptions(), ", ") + ")"}
		}
	}
	for _, pair := range debugApart {
		if slices.Contains(names, pair[0]) && slices.Contains(names, pair[1]) {
			return nil, &DebugError{pair[1], "no kernel has it together with " + pair[0]}
		}
	}
	return names, nil
}

// configuration is what is put behind tinyconfig's.
func configuration(local string, debug []string) string {
	var b strings.Builder
	b.WriteString(smallConfig)
	fmt.Fprintf(&b, "CONFIG_LOCALVERSION=%q\n", local)
	for _, name := range debug {
		for _, set := range debugSets[name] {
			b.WriteString("CONFIG_" + set + "\n")
		}
	}
	return b.String()
}

// settings are the options that a configuration sets, without CONFIG_: to y, m or a value, or to n.
func settings(config string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(config) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "# CONFIG_"); ok {
			if name, ok := strings.CutSuffix(rest, " is not set"); ok {
				out[name] = "n"
			}
		} else if rest, ok := strings.CutPrefix(line, "CONFIG_"); ok {
			if name, value, ok := strings.Cut(rest, "="); ok {
				out[name] = value
			}
		}
	}
	return out
}

// dropped are the options, sorted, that a kernel's configuration does not have as they were asked for. An option that is not there is off.
func dropped(asked, got map[string]string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		have := got[name]
		if have == "" {
			have = "n"
		}
		if have != asked[name] {
			out = append(out, name)
		}
	}
	return out
}

// checkConfiguration says as notes what a kernel's configuration lacks. What a debug option is about must be there.
func checkConfiguration(config, local string, debug []string) (notes []string, err error) {
	got := settings(config)
	for _, name := range debug {
		if lacks := dropped(settings("CONFIG_"+strings.Join(debugSets[name][:1], "\nCONFIG_")), got); len(lacks) > 0 {
			return nil, &DebugError{name, "this kernel, with this compiler, has no " + strings.Join(lacks, ", ")}
		}
	}
	if lacks := dropped(settings(configuration(local, debug)), got); len(lacks) > 0 {
		notes = append(notes, "its configuration has not what irqlab asks for: "+strings.Join(lacks, ", "))
	}
	return notes, nil
}
