package gdma

// Verdict is what becomes of something a tap has looked at.
type Verdict int

// Verdicts.
const (
	Deliver Verdict = iota
	Drop
	Hold // keep until Device.Release
)

// Response is an answer on its way to the guest. A tap may change Bytes, up to 4096 of them.
type Response struct {
	Code  uint32
	Bytes []byte
}

// Event is an event queue entry on its way to the guest. A tap may change the type, the details and the owner bits.
type Event struct {
	EQ, Vector uint32
	Type       EventType
	Details    [3]uint32
	Owner      uint32 // the lap, modulo 8
}

// Taps are the points where the device can be made to misbehave. All are called on the device's goroutine and must not block or call the device; nil ones cost nothing.
type Taps struct {
	// Response sees every answer of the hardware channel.
	Response func(*Response) Verdict
	// Event sees every event; false loses it without a trace in the guest.
	Event func(*Event) bool
	// Vector sees every interrupt; false loses it.
	Vector func(vector int) bool
}
