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
	VerbUp:     queuesMade,
	VerbDown:   queuesGone,
	VerbUnload: {"DEREGISTER_DEVICE"},
}

// What it takes to make the queues of a link, and to end them.
var (
	queuesMade = []string{"CONFIG_VPORT_TX", "CREATE_DMA_REGION", "CREATE_WQ_OBJ", "CONFIG_VPORT_RX"}
	queuesGone = []string{"CONFIG_VPORT_RX", "DESTROY_WQ_OBJ"}
)

// requests are those that a step is certain to have the driver send. A link that is up loses its queues before its driver goes; another number of channels ends them and
// makes them anew, while the number that there is already is no change to the kernel.
func (w *walk) requests(s *Step) []string {
	verb := s.Verb
	switch verb {
	case VerbLoad, VerbBind:
		verb = VerbProbe
	case VerbRescan:
		if !w.reprobes() {
			return nil
		}
		verb = VerbProbe
	case VerbUnbind, VerbRemove:
		verb = VerbUnload
	case VerbSuspend, VerbHibernate: // the driver gives the device up, and sets it up anew
		if !w.started {
			return nil
		}
		names := slices.Concat(requestsOf[VerbUnload], requestsOf[VerbProbe])
		if w.linkUp {
			names = slices.Concat(names, queuesGone, queuesMade)
		}
		return names
	}
	names := requestsOf[verb]
	switch {
	case verb == VerbUp && w.linkUp, verb == VerbDown && !w.linkUp: // nothing to do
		return nil
	case verb == VerbUnload && w.linkUp:
		names = slices.Concat(names, queuesGone)
	case verb == VerbSetChannels && w.linkUp && w.changesChannels(s.Channels):
		names = slices.Concat(queuesGone, queuesMade)
	}
	return names
}

// changesChannels reports whether a number of channels is certain to be another than there is: the one set before, or after up as many as there are queue vectors and were
// CPUs when the driver counted them.
func (w *walk) changesChannels(n int) bool {
	if w.channels != 0 {
		return n != w.channels
	}
	return n < min(w.c.Queues(), w.counted)
}

// links keeps what is certain about the driver's link after a step.
func (w *walk) links(s *Step) {
	switch s.Verb {
	case VerbProbe, VerbLoad, VerbBind, VerbRescan:
		if s.Verb == VerbRescan && !w.again {
			return
		}
		w.linkUp, w.channels, w.counted = false, 0, len(w.online)
	case VerbUnload, VerbUnbind, VerbRemove, VerbDown:
		w.linkUp = false
	case VerbUp:
		w.linkUp, w.channels = true, 0
	case VerbSetChannels:
		w.channels = s.Channels
	}
}

// passes reports whether a step is certain to come to the point of a rule, and to stop there while it holds.
func (w *walk) passes(s *Step, r *inject.Rule) bool {
	c := w.c
	if r.Nth > 1 {
		return false
	}
	kind, name, _ := strings.Cut(r.Step, ":")
	if kind == "vector" {
		fired := map[string]bool{VerbSettle: true, VerbStorm: true, VerbFire: s.Fire.Vectors == nil || name == "any"}[s.Verb]
		for _, v := range s.Fire.Vectors {
			fired = fired || name == strconv.Itoa(v)
		}
		return fired || starts(s) && (name == "0" || name == "any") // the one in user space settles it
	}
	if c.Driver != DriverMana {
		return false
	}
	sleeps := (s.Verb == VerbSuspend || s.Verb == VerbHibernate) && w.started
	begins := slices.Contains([]string{VerbProbe, VerbLoad, VerbBind}, s.Verb) || s.Verb == VerbRescan && w.reprobes() || sleeps
	switch kind {
	case "smc":
		return begins && name == "establish" || (slices.Contains([]string{VerbUnload, VerbUnbind, VerbRemove}, s.Verb) || sleeps) && name == "destroy"
	case "request", "response":
		sent := w.requests(s)
		return name == "any" && sent != nil || slices.Contains(sent, name)
	case "event":
		return begins && slices.Contains([]string{"init-eq", "init-data", "init-done"}, name)
	}
	return false
}

// stuck reports a step that would wait for a hold which is released only after it: in the branch or list the step is in, or nowhere.
func (w *walk) stuck(s *Step, beside [][]Step) {
	if s.Verb == VerbProbe && !s.Probe.Waits() {
		return
	}
	ready := slices.Contains([]string{VerbUp, VerbDown, VerbSetChannels, VerbVectors, VerbUnload, VerbUnbind, VerbRemove, VerbSuspend, VerbHibernate, VerbSettle, VerbFire, VerbStorm, VerbObserve, VerbAffinity}, s.Verb) ||
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
		case w.passes(s, h.step.Rule):
			w.say(s, "%s would wait for ever: it comes to %s, where %q holds the device, and that is released only after this; %s", s.Verb, h.step.Rule.Step, name, way)
			return
		}
	}
}
