package scenarios

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"irqlab/scenarios/nearest"
)

// leadUp is a verb of a step that makes the device come to steps of its protocol, and of those that have to be done before it.
type leadUp struct {
	verb   string
	before []string
}

// leadUps are all of them, by who drives the function. A step that ends the driver's use of the device has the most to do when a link is up.
var leadUps = map[string][]leadUp{
	DriverMana: {
		{VerbProbe, nil},
		{VerbLoad, nil},
		{VerbBind, []string{VerbProbe, VerbUnbind}}, // loading binds what it finds
		{VerbUp, []string{VerbProbe}},
		{VerbDown, []string{VerbProbe, VerbUp}},
		{VerbSetChannels, []string{VerbProbe, VerbUp}},
		{VerbUnload, []string{VerbProbe, VerbUp}},
		{VerbUnbind, []string{VerbProbe, VerbUp}},
		{VerbRemove, []string{VerbProbe, VerbUp}},
		{VerbRescan, []string{VerbProbe, VerbUp, VerbRemove}},
		{VerbSuspend, []string{VerbProbe, VerbUp}},
		{VerbHibernate, []string{VerbProbe, VerbUp}},
		{VerbResetService, []string{VerbProbe, VerbUp}},
		{VerbPost, []string{VerbProbe, VerbUp}},
		{VerbReset, []string{VerbProbe, VerbUp}},
		{VerbFire, []string{VerbProbe, VerbUp}},
		{VerbSettle, []string{VerbProbe, VerbUp}},
		{VerbStorm, []string{VerbProbe, VerbUp}},
	},
	DriverVFIO: {
		{VerbProbe, nil},
		{VerbVectors, []string{VerbProbe}},
		{VerbReset, []string{VerbProbe, VerbVectors}},
		{VerbRemove, []string{VerbProbe, VerbVectors}},
		{VerbRescan, []string{VerbProbe, VerbVectors, VerbRemove}},
		{VerbSuspend, []string{VerbProbe, VerbVectors}},
		{VerbHibernate, []string{VerbProbe, VerbVectors}},
		{VerbFire, []string{VerbProbe, VerbVectors}},
		{VerbSettle, []string{VerbProbe, VerbVectors}},
		{VerbStorm, []string{VerbProbe, VerbVectors}},
	},
}

// LeadUps are the verbs of the steps that make the device do something with this driver.
func LeadUps(driver string) []string {
	verbs := make([]string, len(leadUps[driver]))
	for i, l := range leadUps[driver] {
		verbs[i] = l.verb
	}
	return verbs
}

// leadUpOf finds a verb's, nil where there is none.
func leadUpOf(driver, verb string) *leadUp {
	i := slices.IndexFunc(leadUps[driver], func(l leadUp) bool { return l.verb == verb })
	if i < 0 {
		return nil
	}
	return &leadUps[driver][i]
}

// LeadUp reads a step, as ParseStep does, that is to make a case's device do something, and says what has to be done before it. The argument may follow an equals sign, as in
// set-channels=2; set-channels alone halves the number of channels that up makes.
func LeadUp(line string, c *Case) (step Step, before []Step, err error) {
	line = strings.TrimSpace(line)
	if verb, arg, ok := strings.Cut(line, "="); ok && !strings.ContainsAny(verb, " {:") {
		line = verb + " " + arg
	}
	verb, _, given := strings.Cut(line, " ")
	verb = strings.TrimSuffix(verb, ":")
	lead := leadUpOf(c.Driver, verb)
	if lead == nil {
		allowed := strings.Join(LeadUps(c.Driver), ", ")
		for _, driver := range Drivers() {
			if leadUpOf(driver, verb) != nil {
				return step, nil, fmt.Errorf("%s needs driver %s, and the case has driver %s; allowed: %s", verb, driver, c.Driver, allowed)
			}
		}
		if slices.Contains(verbNames(), verb) {
			return step, nil, fmt.Errorf("%s makes the device do nothing; allowed: %s", verb, allowed)
		}
		return step, nil, nearest.Unknown("step", verb, LeadUps(c.Driver))
	}
	channels := min(c.Queues(), len(c.Online()))
	if verb == VerbSetChannels && !given {
		if channels < 2 {
			return step, nil, fmt.Errorf("set-channels: the link has %d channel, and another number of them is impossible; give the function more vectors, or the machine more CPUs", channels)
		}
		line = fmt.Sprint(VerbSetChannels, " ", channels/2)
	}
	if step, err = ParseStep(line); err != nil {
		return step, nil, fmt.Errorf("%s: %w", verb, err)
	}
	for _, v := range lead.before {
		before = append(before, Step{Verb: v})
	}
	probe := *c
	probe.Steps = append(slices.Clone(before), step)
	for i := range probe.Steps {
		probe.Steps[i].At = fmt.Sprint(i)
	}
	if problems := probe.validateSteps(); len(problems) > 0 {
		return step, nil, fmt.Errorf("%s: %s", verb, problems[0].text)
	}
	return step, before, nil
}

// Reachable says why a hold, or another rule, can never be reached in a case's machine.
func Reachable(step Step, c *Case) error {
	alone := *c
	step.At = "0"
	end := Step{Verb: VerbEnd, End: step.Rule.Name, At: "1", Line: step.Line}
	alone.Steps = []Step{step, end}
	if problems := alone.validateSteps(); len(problems) > 0 {
		return errors.New(problems[0].text)
	}
	return nil
}
