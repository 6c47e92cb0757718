package timeline

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/foreign"
)

// Names of traced kinds that a tail folds or leaves out.
const (
	kindResponse  = "hwc-response" // of devmodel/gdma
	kindSMCAnswer = "smc-response" // likewise
	kindEQE       = "eqe"          // likewise
)

// Tail is what the lab and the device did last before a moment, for people who look for why a case failed.
type Tail struct {
	Rows    []Row
	Awaited []string // what had begun and not ended: steps, and requests that the device had not answered
}

// labRows is how many rows the lab has in a tail at least, if it did so much.
const labRows = 3

// unfolded is how many of the last requests a tail shows one by one.
const unfolded = 3

// told is a row of a tail in the making.
type told struct {
	Row
	request string       // of a request that was answered well, its name
	kind    string       // of what repeats
	vectors cpulist.List // of a run of events of that kind
	n       int
	last    Time
}

// LastSeen is when vectors were last observed, 0 if they never were.
func (tl *Timeline) LastSeen() Time {
	for i := len(tl.Events) - 1; i >= 0; i-- {
		if tl.Events[i].Kind == kindRead {
			return tl.Events[i].T
		}
	}
	return 0
}

// Tail makes rows of the last events until a moment, n at most. What repeats is one row; what only the device's
// developers look at is left out, and so is the guest's log.
func (tl *Timeline) Tail(until Time, n int) Tail {
	var rows []*told
	open := map[string]*told{} // requests without an answer, steps without an end
	answered := ""             // whose completion is under way
	add := func(e *Event, what string) *told {
		rows = append(rows, &told{Row: Row{T: e.T, Source: e.Source, What: foreign.Line(what)}})
		return rows[len(rows)-1]
	}
	for i := range tl.Events {
		e := &tl.Events[i]
		if e.T > until {
			break
		}
		name, _, _ := strings.Cut(e.Text, " ")
		_, moves := e.transition()
		switch {
		case e.Source == SourceLog:
		case e.Kind == kindStep && e.number("number") == 0 && slices.ContainsFunc(slices.Collect(maps.Keys(open)), numbered): // a stage of a step of the case's
		case e.Kind == kindStep:
			r := add(e, item{Event: e, on: -1}.words())
			if e.number("number") > 0 && (e.T+e.For > until || e.Step == "") {
				r.What = foreign.Line(e.Text) + ", under way"
			}
			// A stage, which has no number, ends with the next one, and with the case's steps.
			delete(open, "step ")
			delete(open, "step 0")
			open["step "+e.Fields["number"].String()] = &told{
				Row: Row{T: e.T, What: "the end of “" + foreign.Line(e.Text) + "”"},
			}
		case e.Kind == kindStepEnd:
			delete(open, "step "+e.Fields["number"].String())
			if e.Text != stepDone {
				add(e, item{Event: e, on: -1}.words())
			}
		case e.Kind == kindInject && e.T+e.For >= until: // which is in force still
			add(e, e.Text)
		case e.Kind == kindRequest:
			open["request "+e.Fields["message"].String()] = add(e, "request "+name)
		case e.Kind == kindSMC:
			open[kindSMC] = add(e, "SMC "+e.Text)
		case e.Kind == kindResponse, e.Kind == kindSMCAnswer:
			key := kindSMC
			if e.Kind == kindResponse {
				key = "request " + e.Fields["message"].String()
			}
			r := open[key]
			delete(open, key)
			answered = e.Kind
			switch {
			case r == nil:
				add(e, "answer: "+e.Text)
			case e.number("status") != 0:
				r.What += fmt.Sprintf(": status %#x", e.number("status"))
			default:
				r.What += ": ok"
				if e.Kind == kindResponse {
					r.request = strings.TrimPrefix(strings.TrimSuffix(r.What, ": ok"), "request ")
				}
			}
			continue
		case e.Kind == kindEQE && e.Text == "completion": // which the answer says, or a packet
			continue
		case e.Kind == kindEQE:
			add(e, "event "+e.Text)
		case e.Kind == kindFire && e.Vector != nil && *e.Vector == 0 && answered == kindResponse: // which the answer says
		case (e.Kind == kindFire || e.Kind == kindAssign || e.Kind == kindDeassign) && e.Vector != nil:
			r := (*told)(nil)
			if len(rows) > 0 {
				r = rows[len(rows)-1]
			}
			if r == nil || r.kind != e.Kind {
				r = add(e, "")
				r.kind = e.Kind
			}
			r.n, r.last, r.vectors = r.n+1, e.T, cpulist.New(append(r.vectors, *e.Vector)...)
		case e.Kind == kindMasks && e.number("differ") > 0,
			e.Kind == kindCall && e.number("failed") > 0,
			moves && e.Source == SourceCPU,
			e.Kind == kindInject,
			e.Source == SourceDevice && !plumbing(e.Kind):
			add(e, item{Event: e, on: -1}.words())
		}
		answered = ""
	}
	rows = folded(rows)
	for _, r := range rows {
		if r.kind != "" {
			r.What = run(r)
		}
	}
	var t Tail
	for _, r := range lastOf(rows, n) {
		t.Rows = append(t.Rows, r.Row)
	}
	var waiting []*told
	for key, r := range open {
		if !strings.HasPrefix(key, "step ") {
			r = &told{Row: Row{T: r.T, What: "the device's answer to " + r.What}}
		}
		waiting = append(waiting, r)
	}
	slices.SortFunc(waiting, func(a, b *told) int { return cmp.Compare(a.T, b.T) })
	for _, r := range waiting {
		t.Awaited = append(t.Awaited, fmt.Sprintf("%s, since %s", r.What, r.T))
	}
	return t
}

// numbered tells the key of a step of the case's own.
func numbered(key string) bool {
	return strings.HasPrefix(key, "step ") && key != "step " && key != "step 0"
}

// plumbing are the device's events that tell of no decision: doorbells, memory, the connection, the configuration
// space.
func plumbing(kind string) bool {
	return slices.ContainsFunc(
		[]string{"doorbell-", "dma-", "client-", "config-", "request-error", "audit", "leak"},
		func(p string) bool { return strings.HasPrefix(kind, p) },
	)
}

// run says what a run of events of one kind was.
func run(r *told) string {
	vectors := "vector " + r.vectors.String()
	switch r.kind {
	case kindAssign:
		return vectors + " enabled"
	case kindDeassign:
		return vectors + " disabled"
	}
	if r.n == 1 {
		return vectors + " fired"
	}
	return fmt.Sprintf("%s fired, %d times until %s", vectors, r.n, r.last)
}

// folded makes one row of each run of requests that were answered well, but for the last ones.
func folded(rows []*told) []*told {
	apart := len(rows)
	for k := 0; apart > 0 && k < unfolded; {
		apart--
		if rows[apart].request != "" {
			k++
		}
	}
	var out []*told
	for i := 0; i < len(rows); {
		k := i
		var names []string
		times := map[string]int{}
		for ; k < apart && rows[k].request != ""; k++ {
			if times[rows[k].request]++; times[rows[k].request] == 1 {
				names = append(names, rows[k].request)
			}
		}
		if k-i < 2 {
			out = append(out, rows[i])
			i++
			continue
		}
		for j, name := range names {
			if n := times[name]; n > 1 {
				names[j] = fmt.Sprintf("%s (%d)", name, n)
			}
		}
		rows[i].What = fmt.Sprintf("requests %s: ok, until %s", strings.Join(names, ", "), rows[k-1].T)
		out = append(out, rows[i])
		i = k
	}
	return out
}

// lastOf are the last n rows; where the lab has fewer than its share in them, its last rows before them take the place
// of the device's first.
func lastOf(rows []*told, n int) []*told {
	lab := func(r *told) bool { return r.Source != SourceDevice && r.Source != SourceVector }
	from := max(0, len(rows)-n)
	kept := slices.Clone(rows[from:])
	share := 0
	for _, r := range kept {
		if lab(r) {
			share++
		}
	}
	for from--; from >= 0 && share < labRows; from-- {
		i := slices.IndexFunc(kept, func(r *told) bool { return !lab(r) })
		if !lab(rows[from]) || i < 0 {
			continue
		}
		kept = slices.Insert(slices.Delete(kept, i, i+1), 0, rows[from])
		share++
	}
	return kept
}
