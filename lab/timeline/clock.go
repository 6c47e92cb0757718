package timeline

import (
	"context"
	"fmt"
	"time"

	"irqlab/guestagent/agentapi"
)

// Pair is one reading of the guest's log clock: a request for it was sent, and its answer received, at these moments of the host's clock. The guest looked at its own
// at some moment in between.
type Pair struct {
	Sent, Received time.Duration
	Guest          time.Duration
}

// middle is the host's time that the pair takes Guest for.
func (p Pair) middle() time.Duration { return p.Sent + (p.Received-p.Sent)/2 }

// half is how far off that can be.
func (p Pair) half() time.Duration { return (p.Received - p.Sent + 1) / 2 }

// growth is how much the guest's clock is taken to gain or lose at most where it was not measured, as a part of the time. A guest calibrates its emulated TSC while it
// boots, and on a busy host it is off by some thousandths.
const growth = 5e-3

// Clock takes a guest's log clock to the host's: exactly so at From and at To, and on the straight line between them.
type Clock struct {
	From   Time    `json:"from"`         // of the first measurement, on the host's clock
	Guest  Time    `json:"guest"`        // what the guest's clock read then
	To     Time    `json:"to"`           // of the last one; From: there was only one
	Rate   float64 `json:"rate"`         // host seconds in a second of the guest
	Beyond float64 `json:"rate_beyond"`  // the same before From and after To: Rate if that is known well enough, or 1
	Error  Time    `json:"error"`        // a log line between From and To happened within this of its t
	Growth float64 `json:"error_growth"` // before and after, the error grows by this part of the distance
	Excess Time    `json:"residual"`     // part of Error: by how much the readings between the two contradict the line
	Pairs  int     `json:"readings"`     // how many readings there are
}

// Align fits a clock to readings taken at the start of a case and at its end. Of each lot the one with the shortest way to the guest and back counts; the others say
// how well the line between the two fits. Without a reading at the end, or beyond two that are
// too near each other to tell, the guest's clock is taken to run as the host's.
func Align(start, end []Pair) (*Clock, error) {
	if len(start) == 0 {
		start, end = end, nil
	}
	if len(start) == 0 {
		return nil, fmt.Errorf("the guest's clock was never read")
	}
	a := shortest(start)
	c := &Clock{From: Time(a.middle()), To: Time(a.middle()), Guest: Time(a.Guest), Rate: 1, Beyond: 1, Error: Time(a.half()), Growth: growth, Pairs: len(start) + len(end)}
	if len(end) > 0 {
		b := shortest(end)
		if b.Guest <= a.Guest || b.middle() <= a.middle() {
			return nil, fmt.Errorf("the guest's clock went from %s to %s while the host's went from %s to %s", a.Guest, b.Guest, a.middle(), b.middle())
		}
		c.To, c.Error = Time(b.middle()), Time(max(a.half(), b.half()))
		c.Rate = float64(b.middle()-a.middle()) / float64(b.Guest-a.Guest)
		if doubt := float64(a.half()+b.half()) / float64(b.Guest-a.Guest); doubt < growth {
			c.Beyond, c.Growth = c.Rate, doubt
		}
	}
	for _, lot := range [][]Pair{start, end} {
		for _, p := range lot {
			at := time.Duration(c.Host(Time(p.Guest)))
			c.Excess = max(c.Excess, Time(p.Sent-at), Time(at-p.Received))
		}
	}
	c.Error += c.Excess
	return c, nil
}

func shortest(lot []Pair) Pair {
	best := lot[0]
	for _, p := range lot[1:] {
		if p.Received-p.Sent < best.Received-best.Sent {
			best = p
		}
	}
	return best
}

// Host is the host's time of a moment of the guest's log clock.
func (c *Clock) Host(guest Time) Time {
	since := float64(guest - c.Guest)
	measured := float64(c.To - c.From)
	switch at := since * c.Rate; {
	case since < 0:
		return c.From + Time(since*c.Beyond)
	case at > measured:
		return c.To + Time((since-measured/c.Rate)*c.Beyond)
	default:
		return c.From + Time(at)
	}
}

// ErrorAt bounds how far a log line that Host puts at t may be from where it belongs.
func (c *Clock) ErrorAt(t Time) Time {
	return c.Error + Time(c.Growth*float64(max(0, c.From-t, t-c.To)))
}

// PPM is by how many millionths the guest's clock runs faster than the host's.
func (c *Clock) PPM() float64 { return (1/c.Rate - 1) * 1e6 }

// Marker puts lines into a guest's log; a *lab.Agent.
type Marker interface {
	Mark(ctx context.Context, text string) (agentapi.LogRecord, error)
}

// markText begins the lines Measure leaves in the log.
const markText = "irqlab: clock mark "

// enough is a way to the guest and back that is short enough, and mostReadings is how many are tried for one that is: a busy host makes them long.
const (
	enough       = 5 * time.Millisecond
	mostReadings = 8
)

// Measure reads a guest's log clock at least n times. It has the kernel stamp lines of its log: no other clock of the guest is sure to agree with that one.
func Measure(ctx context.Context, m Marker, now func() time.Duration, n int) ([]Pair, error) {
	var pairs []Pair
	for len(pairs) < n || len(pairs) < mostReadings && 2*shortest(pairs).half() > enough {
		sent := now()
		r, err := m.Mark(ctx, fmt.Sprintf("%s%d", markText, len(pairs)))
		if err != nil {
			return pairs, fmt.Errorf("the guest's clock: %w", err)
		}
		pairs = append(pairs, Pair{Sent: sent, Received: now(), Guest: stamp(r)})
	}
	return pairs, nil
}

// stamp is a record's time; the kernel gives microseconds.
func stamp(r agentapi.LogRecord) time.Duration {
	return time.Duration(r.Seconds*1e6+0.5) * time.Microsecond
}
