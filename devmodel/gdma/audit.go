package gdma

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Leak is something a driver set up and did not take down.
type Leak struct {
	Kind string // "eq", "cq", "sq", "rq", "region", "registration", or the client's own
	ID   uint64
}

func (l Leak) String() string { return fmt.Sprintf("%s %d", l.Kind, l.ID) }

// Audit is what was left when something ended: a device's registration, the hardware channel, or everything by a reset. A reset owes the driver nothing, so its leaks are
// what was in use.
type Audit struct {
	Seq   uint64        // from 1, without a gap
	Time  time.Duration // on the trace's clock
	Cause string
	Leaks []Leak
}

// maxAudits bounds the audits kept; the oldest are forgotten.
const maxAudits = 256

// Audits are the audits after number after (0: all), oldest first. Missed is how many of them have been forgotten: what was left behind then is not known.
func (d *Device) Audits(after uint64) (audits []Audit, missed uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	oldest := d.audited - uint64(len(d.audits)) // number of the last one forgotten
	if after < oldest {
		return slices.Clone(d.audits), oldest - after
	}
	return slices.Clone(d.audits[min(after-oldest, uint64(len(d.audits))):]), 0
}

// audit records what dev has left, or what everybody has left when dev is zero.
func (d *Device) audit(cause string, dev DeviceID) {
	all := dev == DeviceID{}
	d.audited++
	a := Audit{Seq: d.audited, Time: d.trace.Now(), Cause: cause}
	if all || dev == DeviceMANA {
		a.Leaks = d.client.Leaks()
	}
	add := func(kind string, id uint32) { a.Leaks = append(a.Leaks, Leak{kind, uint64(id)}) }
	for q := range d.eqs.all {
		if q.Device != DeviceHWC && (all || q.Device == dev) {
			add("eq", q.ID)
		}
	}
	if all || dev == DeviceMANA {
		// Work queues, their completion queues and regions exist on behalf of the client only.
		for q := range d.sqs.all {
			if d.hwc == nil || q != d.hwc.sq {
				add("sq", q.ID)
			}
		}
		for q := range d.rqs.all {
			if d.hwc == nil || q != d.hwc.rq {
				add("rq", q.ID)
			}
		}
		for q := range d.cqs.all {
			if d.hwc == nil || q != d.hwc.cq {
				add("cq", q.ID)
			}
		}
		for _, h := range slices.Sorted(maps.Keys(d.regions)) {
			a.Leaks = append(a.Leaks, Leak{"region", h})
		}
	}
	if all {
		for id := range d.devices {
			a.Leaks = append(a.Leaks, Leak{"registration", uint64(id.Type)})
		}
	}
	if len(d.audits) == maxAudits {
		d.audits = append(d.audits[:0], d.audits[1:]...)
	}
	d.audits = append(d.audits, a)
	d.trace.Note(kindAudit, cause, uint64(len(a.Leaks)))
	for _, l := range a.Leaks {
		d.trace.Note(kindAuditEntry, l.Kind, l.ID)
	}
}

// Usage counts what the device holds, the hardware channel's own queues included.
type Usage struct {
	EQs, CQs, SQs, RQs int
	Regions            int // that no queue has taken
	Pages              int // of regions, taken or not
	Registrations      int
	Answers            int // waiting for a receive buffer, or held by a rule
}

// Usage is what the device holds now; nothing at all after a reset or an SMC destroy.
func (d *Device) Usage() Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := Usage{d.eqs.used, d.cqs.used, d.sqs.used, d.rqs.used, len(d.regions), d.pages, len(d.devices), 0}
	if d.hwc != nil {
		u.Answers = len(d.hwc.queued) + d.hwc.cq.lane.Waiting()
	}
	return u
}
