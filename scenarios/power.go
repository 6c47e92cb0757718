package scenarios

import (
	"fmt"
	"time"
)

// Sleep states that a guest can be put into.
const (
	SuspendFreeze = "freeze" // suspend to idle: tasks and devices stand still, the CPUs idle
	SuspendMem    = "mem"    // suspend to RAM, ACPI's S3: the CPUs but one are taken offline, and the machine resets its devices
)

// SuspendModes are the sleep states allowed.
func SuspendModes() []string { return []string{SuspendFreeze, SuspendMem} }

// Suspend is how the guest is put to sleep.
type Suspend struct {
	Mode   suspendMode `json:"mode,omitempty" jsonschema_description:"freeze (suspend to idle) or mem (suspend to RAM, ACPI's S3); default freeze"`
	For    *duration   `json:"for,omitempty" jsonschema_description:"how long it sleeps before it is woken, from 500ms; default 2s"`
	Within *duration   `json:"within,omitempty" jsonschema_description:"how long it may take, besides, to fall asleep and to go on once woken; default 1m"`
}

// minAsleep is the shortest sleep: a guest that is woken while it falls asleep does not.
const minAsleep = 500 * time.Millisecond

// State is the sleep state.
func (s Suspend) State() string {
	if s.Mode == "" {
		return SuspendFreeze
	}
	return string(s.Mode)
}

// Asleep is how long the guest sleeps.
func (s Suspend) Asleep() time.Duration {
	if s.For == nil {
		return 2 * time.Second
	}
	return s.For.span()
}

// Patience is how long the guest may take besides.
func (s Suspend) Patience() time.Duration {
	if s.Within == nil {
		return time.Minute
	}
	return s.Within.span()
}

func (s Suspend) String() string { return fmt.Sprintf("%s for %s", s.State(), s.Asleep()) }

type suspendMode string

func (m *suspendMode) UnmarshalText(b []byte) error {
	return oneOf((*string)(m), b, "sleep state", SuspendModes())
}

// reprobes reports whether a rescan has the kernel's driver probe the function.
func (w *walk) reprobes() bool { return w.removed && w.loaded }

// power takes a step that removes the function, finds it again, or puts the guest to sleep.
func (w *walk) power(s *Step) {
	switch s.Verb {
	case VerbRemove:
		w.needs(s, !w.removed, "the function has been removed before; rescan first")
		if s.Refused == "" {
			w.started, w.up, w.again, w.removed = false, false, false, true
		}
	case VerbRescan:
		if w.removed && s.Refused == "" {
			w.started, w.again = w.reprobes(), w.reprobes()
			w.removed = false
		}
	case VerbSuspend:
		w.needs(s, s.Suspend.Asleep() >= minAsleep, fmt.Sprintf("a sleep of %s; allowed: from %s, since what wakes the guest must not come while it falls asleep", s.Suspend.Asleep(), minAsleep))
	}
}
