package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/lab/report"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// stand is how things stand after a step, as far as the answer to it tells.
type stand struct {
	step          scenarios.Step
	did           result.Step
	took          time.Duration
	before, after agentapi.Topology
	links         []agentapi.Link
	settledOn     []result.Vector
}

// changesCPUs reports whether a step takes CPUs away or brings them back.
func changesCPUs(verb string) bool {
	return slices.Contains([]string{scenarios.VerbOffline, scenarios.VerbOnline, scenarios.VerbUnplug, scenarios.VerbReplug}, verb)
}

// answer says what a step that was carried out has done.
func (s *stand) answer() string {
	step := s.step
	switch step.Verb {
	case scenarios.VerbOffline, scenarios.VerbOnline, scenarios.VerbUnplug, scenarios.VerbReplug:
		if text := s.changed(); text != "" {
			return text
		}
		state := map[string]string{
			scenarios.VerbOffline: "offline before", scenarios.VerbOnline: "online before", scenarios.VerbUnplug: "unplugged before", scenarios.VerbReplug: "there before",
		}[step.Verb]
		return fmt.Sprintf("%s %s; %s", cpulist.List(step.CPUs).Are("was", "were"), state, s.online())
	case scenarios.VerbProbe, scenarios.VerbUp, scenarios.VerbDown, scenarios.VerbSetChannels, scenarios.VerbLoad, scenarios.VerbUnload, scenarios.VerbBind, scenarios.VerbUnbind:
		return s.driver()
	case scenarios.VerbVectors:
		return "the queue vectors are there, and the strategy has been applied"
	case scenarios.VerbRelease:
		return step.Release + " is released; the device goes on"
	case scenarios.VerbEnd:
		return step.End + " has ended; the device does as usual"
	case scenarios.VerbHold:
		return fmt.Sprintf("%s is set: the device will stand at %s", step.Rule.Name, place(step.Rule))
	case scenarios.VerbResetService:
		return "the device has asked for a reset; what the driver does now goes on by itself"
	case scenarios.VerbPost:
		return "the device has posted " + step.Post.String()
	case scenarios.VerbReset:
		return "the kernel has reset the function; the driver was not told"
	case scenarios.VerbRemove:
		return "the kernel has forgotten the function, which the machine still has; rescan finds it again"
	case scenarios.VerbRescan:
		return "the kernel has looked for PCI functions; probe waits for the driver, if there is one for what it found"
	case scenarios.VerbHibernate:
		return "the guest has written itself to a disk, and goes on from there, after " + lasted(s.took)
	case scenarios.VerbSuspend:
		return fmt.Sprintf("the guest slept (%s), and goes on after %s", step.Suspend.State(), lasted(s.took))
	case scenarios.VerbAffinity:
		return "the kernel has taken the mask " + step.Affinity.String() + "; settle moves the vector"
	case scenarios.VerbSettle:
		return s.settled()
	case scenarios.VerbFire:
		what := "every vector"
		if l := cpulist.List(step.Fire.Vectors); len(l) == 1 {
			what = "vector " + l.String()
		} else if l != nil {
			what = "vectors " + l.String()
		}
		return fmt.Sprintf("fired %s, %s; all were handled", what, report.Plural(step.Fire.Times(), "time", "times"))
	case scenarios.VerbStorm:
		return s.stormed()
	case scenarios.VerbWaitFor:
		return fmt.Sprintf("it has come, after %s", lasted(s.took))
	case scenarios.VerbSleep:
		return "slept for " + step.Sleep.String()
	}
	if step.Rule != nil {
		return fmt.Sprintf("%s is in force: %s", step.Rule.Name, scenarios.RuleText(*step.Rule))
	}
	return "done, in " + lasted(s.took)
}

// changed says which CPUs came or went, "" if none did.
func (s *stand) changed() string {
	var parts []string
	for _, change := range []struct {
		cpus cpulist.List
		are  string
	}{
		{s.before.Present.Minus(s.after.Present), "unplugged"},
		{s.before.Online.Minus(s.after.Online).And(s.after.Present), "offline"},
		{s.after.Present.Minus(s.before.Present), "plugged in, and offline"},
		{s.after.Online.Minus(s.before.Online), "online"},
	} {
		if len(change.cpus) > 0 {
			parts = append(parts, change.cpus.Are(change.are, change.are))
		}
	}
	if parts == nil {
		return ""
	}
	return strings.Join(parts, "; ") + "; " + s.online()
}

func (s *stand) online() string { return fmt.Sprintf("online: %s", s.after.Online) }

// driver says what the kernel's driver has now.
func (s *stand) driver() string {
	done := map[string]string{
		scenarios.VerbProbe: "the driver has the function", scenarios.VerbLoad: "the driver is loaded", scenarios.VerbUnload: "the driver is unloaded",
		scenarios.VerbBind: "the driver has the function", scenarios.VerbUnbind: "the driver has let the function go",
	}[s.step.Verb]
	var parts []string
	if done != "" {
		parts = append(parts, done)
	}
	for _, l := range s.links {
		state := "down"
		if l.Up {
			state = "up"
		}
		text := fmt.Sprintf("%s is %s", l.Name, state)
		if l.Combined > 0 {
			text += " with " + report.Plural(l.Combined, "channel", "channels")
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ") + ", after " + lasted(s.took)
}

// settled says where the vectors are.
func (s *stand) settled() string {
	if s.settledOn == nil {
		return "settled"
	}
	at := map[string][]string{}
	var late []string
	for _, v := range s.settledOn {
		at[v.Role] = append(at[v.Role], v.Effective.String())
		if v.Unsettled {
			late = append(late, fmt.Sprintf("vector %d did not settle: requested %s, effective %s", v.Index, v.Affinity, v.Effective))
		}
	}
	list := func(role string) string { return cmp.Or(strings.Join(at[role], ", "), "none") }
	text := fmt.Sprintf("%s: HWC on CPU %s; queues on %s", report.Plural(len(s.settledOn), "vector", "vectors"), list(result.RoleHWC), list(result.RoleQueue))
	if len(at[result.RoleUnused]) > 0 {
		text += "; unused on " + list(result.RoleUnused)
	}
	if late != nil {
		text += "\n" + strings.Join(late, "\n")
	}
	return text
}

// stormed says how a storm's numbers compare.
func (s *stand) stormed() string {
	storm := s.did.Storm
	if storm == nil {
		return "the storm is over"
	}
	var fired uint64
	var odd []string
	for _, v := range storm.Vectors {
		fired += v.Fired
		if v.Lost() > 0 || v.Ahead > 0 || v.Handled > v.Fired {
			odd = append(odd, fmt.Sprintf("vector %d fired %d times and was handled %d times", v.Index, v.Fired, v.Handled))
		}
	}
	text := fmt.Sprintf("%s, %d interrupts", report.Plural(storm.Rounds, "round", "rounds"), fired)
	if odd == nil {
		return text + ", each vector's handled as often as fired; " + s.online()
	}
	return text + "; " + s.online() + "\n" + strings.Join(odd, "\n")
}

// place is where a hold is.
func place(r *inject.Rule) string {
	if r.Nth > 1 {
		return fmt.Sprintf("%s, occurrence %d from here on", r.Step, r.Nth)
	}
	return r.Step
}

func lasted(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
