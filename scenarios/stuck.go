package scenarios

import (
	"slices"
	"strconv"
	"strings"

	"irqlab/devmodel/inject"
)

// What every driver from 6.1 to 7.3 sends in the course of a verb (the reference's minimum, section 12): a hold there stops the verb for certain.
var requestsOf = map[string][]string{
	VerbProbe:  {"VERIFY_VF_DRIVER_VERSION", "QUERY_MAX_RESOURCES", "LIST_DEVICES", "REGISTER_DEVICE", "QUERY_DEV_CONFIG", "QUERY_VPORT_CONFIG"},
	VerbUp:     {"CONFIG_VPORT_TX", "CREATE_DMA_REGION", "CREATE_WQ_OBJ", "CONFIG_VPORT_RX"},
	VerbDown:   {"DESTROY_WQ_OBJ"},
	VerbUnload: {"DEREGISTER_DEVICE"},
}

// passes reports whether a step is certain to come to the point of a rule, and to stop there while it holds.
func passes(c *Case, s *Step, r *inject.Rule) bool {
	if r.Nth > 1 {
		return false
	}
	kind, name, _ := strings.Cut(r.Step, ":")
	if kind == "vector" {
		fired := map[string]bool{VerbSettle: true, VerbStorm: true, VerbFire: s.Fire.Vectors == nil}[s.Verb]
		for _, v := range s.Fire.Vectors {
			fired = fired || name == strconv.Itoa(v)
		}
		return fired || c.Driver == DriverMana && starts(s) && (name == "0" || name == "any")
	}
	if c.Driver != DriverMana {
		return false
	}
	verb := s.Verb
	switch verb {
	case VerbLoad, VerbBind:
		verb = VerbProbe
	case VerbUnbind:
		verb = VerbUnload
	}
	switch kind {
	case "smc":
		return verb == VerbProbe && name == "establish" || verb == VerbUnload && name == "destroy"
	case "request", "response":
		return name == "any" && requestsOf[verb] != nil || slices.Contains(requestsOf[verb], name)
	case "event":
		return verb == VerbProbe && slices.Contains([]string{"init-eq", "init-data", "init-done"}, name)
	}
	return false
}

// stuck reports a step that would wait for a hold which is released only after it: in the branch or list the step is in, or nowhere.
func (w *walk) stuck(s *Step, beside [][]Step) {
	if s.Verb == VerbProbe && !s.Probe.Waits() {
		return
	}
	ready := slices.Contains([]string{VerbUp, VerbDown, VerbSetChannels, VerbVectors, VerbUnload, VerbUnbind, VerbSettle, VerbFire, VerbStorm, VerbObserve}, s.Verb) ||
		s.WaitFor != nil && slices.Contains([]string{LinkUp, LinkDown, LinkThere}, string(s.WaitFor.Link))
	for _, h := range w.armed {
		name := h.step.Rule.Name
		if releasesIn(beside, name) {
			continue
		}
		way := "put what releases it beside it, in together"
		if s.Verb == VerbProbe {
			way = "start it with probe: {wait: false}, or " + way
		}
		switch {
		case h.stalls != nil && ready:
			w.say(s, "%s would wait for ever: the %s of line %d stops at %q, which is released only after this; release it before, or %s", s.Verb, h.stalls.Verb, h.stalls.Line, name, way)
			return
		case passes(w.c, s, h.step.Rule):
			w.say(s, "%s would wait for ever: it comes to %s, where %q holds the device, and that is released only after this; %s", s.Verb, h.step.Rule.Step, name, way)
			return
		}
	}
}
