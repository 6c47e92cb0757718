// Package inject lets a device stand still, misbehave or be watched at named steps of its protocol.
//
// A step is a point where the device has just seen, or is about to do, one thing: a request of the hardware channel, its answer, an event, a completion, an interrupt, an
// access to a register. Steps lists their names. A Rule says what becomes of the n-th time a step is reached; a Controller has the rules, and tests talk to it while the
// device runs. The device asks it at every step (Pass) and does what the Hit says.
//
// The device can hold still without anybody waiting for it: what a rule holds is parked (Bay) and the goroutine goes on, so that the guest's accesses are answered at once.
// Work whose order the protocol fixes shares a Lane: entries of one event queue, of one completion queue, everything on the hardware channel, writes to BAR 0. In a lane
// nothing overtakes what is parked; other lanes go on. A reset drops what is parked.
//
// The package holds names and rules and knows no device: where a field lies in a message is told by the device. Its own tests keep the names equal to those on the trace.
package inject
