package scenarios

import (
	"fmt"

	"irqlab/guestagent/cpulist"
)

// VerbAffinity writes a mask.
const VerbAffinity = "affinity"

// Affinity is a mask that is written to one vector's interrupt, whoever drives the function.
type Affinity struct {
	Vector offset       `json:"vector" jsonschema_description:"the vector, 0 for the HWC's"`
	CPUs   cpulist.List `json:"cpus" jsonschema_description:"the mask, in the kernel's list format"`
}

// String is the end of the step's text.
func (a *Affinity) String() string { return fmt.Sprintf("of vector %d to %s", a.Vector, cpus(a.CPUs)) }

// affinity checks a mask. What the kernel is to refuse may be any, so that it is seen to.
func (w *walk) affinity(s *Step, beside [][]Step) {
	a := s.Affinity
	all := cpulist.Range(0, w.c.Shape.CPUs()-1)
	w.needs(s, int(a.Vector) < w.c.Vectors, fmt.Sprintf("vector %d is not the function's, which has %s", a.Vector, cpulist.Range(0, w.c.Vectors-1)))
	const refused = "; to show that the kernel refuses it, add refused: REGEXP"
	switch gone := a.CPUs.Minus(all); {
	case len(a.CPUs) == 0:
		w.say(s, "no CPU is named")
	case len(gone) > 0:
		w.needs(s, false, fmt.Sprintf("%s not in the shape, which has %s%s", gone.Are("is", "are"), all.Words(), refused))
	case beside == nil && len(a.CPUs.And(w.online)) == 0:
		w.needs(s, false, fmt.Sprintf("no CPU of the mask is online, but %s%s", w.online.Are("is", "are"), refused))
	}
}
