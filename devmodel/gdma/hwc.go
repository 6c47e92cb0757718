package gdma

import (
	"bytes"
	"fmt"

	"irqlab/devmodel/inject"
)

// What the hardware channel says of itself in its init events (section 3.2). Depth 1 is what every driver up to 7.3 uses.
const (
	hwcDepth    = 1
	hwcDoorbell = 0
	hwcPD       = 0
	hwcGPAKey   = 0
	// maxQueued bounds the answers kept while the guest posts no receive buffer; beyond it requests wait in the send queue.
	maxQueued = 32
)

// channel is the hardware channel: one queue of each kind, made by the SMC, carrying requests and their answers.
type channel struct {
	d      *Device
	eq     *EQ
	cq     *CQ
	sq, rq *WQ
	// queued answers wait for a receive buffer: the drivers of 6.2 and 6.5 may send the next request before they post one again.
	queued [][]byte
	oob    [rxoobLength + 4]byte
}

// arrived takes what the guest wrote to the SMC window. The window stays the device's until the message is answered, so no other can follow.
func (d *Device) arrived(w *[SMCSize]byte) {
	h := smcWord(le.Uint32(w[smcHeader:]))
	var hit *inject.Hit
	if h.known() {
		hit = d.cfg.Inject.Pass(inject.SMC(h.kind()))
	}
	if hit.Waits() {
		kept := *w
		d.bay.Park(hit, nil, func() { d.message(hit, &kept) }, nil)
		return
	}
	d.message(hit, w)
}

// message serves what the guest wrote to the SMC window.
func (d *Device) message(hit *inject.Hit, w *[SMCSize]byte) {
	if hit.Copies() == 0 {
		d.fireToo(hit)
		return // the window stays the device's: the driver polls until it gives up
	}
	hit.Alter(w[:], smcPlace)
	h := smcWord(le.Uint32(w[smcHeader:]) &^ smcOwner)
	status := uint32(smcStatusFail)
	refusal, refuse := hit.Status()
	var after func()
	switch {
	case refuse:
		status = refusal
		d.trace.Note(kindSMC, "refused", uint64(h.kind()), uint64(h.version()), uint64(h))
	case h.kind() == smcEstablish && h.known():
		m := parseEstablish(w)
		d.trace.Note(kindSMC, fmt.Sprintf("establish eq=%#x cq=%#x rq=%#x sq=%#x vector=%d", m.eq, m.cq, m.rq, m.sq, m.vector),
			uint64(h.kind()), uint64(h.version()), uint64(h))
		if d.hwc != nil {
			// A guest that crashed or was kexec'd never says goodbye.
			d.destroy("establish over an active channel")
		}
		if int(m.vector) < d.bus.Vectors() {
			status = smcStatusOK
			d.establish(m)
			after = d.announce
		}
	case h.kind() == smcDestroy && h.known():
		d.trace.Note(kindSMC, "destroy", uint64(h.kind()), uint64(h.version()), uint64(h))
		status = smcStatusOK
		d.destroy("SMC destroy")
	case h.kind() == smcTimeout && h.known():
		d.trace.Note(kindSMC, "the driver reports a timeout", uint64(h.kind()), uint64(h.version()), uint64(h))
		status = smcStatusOK
	default:
		d.trace.Note(kindSMC, "unknown", uint64(h.kind()), uint64(h.version()), uint64(h))
	}
	answer := h.answer(status)
	if v, ok := hit.Value("answer"); ok {
		answer = smcWord(v &^ smcOwner)
	}
	d.fmu.Lock()
	if d.gen.Load() == d.unit { // else a reset has cleared the window
		le.PutUint32(d.smc[smcHeader:], uint32(answer))
		d.smcBusy = false
	}
	d.fmu.Unlock()
	d.trace.Record(kindSMCAnswer, uint64(answer), uint64(status))
	d.fireToo(hit)
	if after != nil {
		after()
	}
}

// establish makes the channel's queues. Their rings are one page each: at depth 1 none is larger, and the message carries no size.
func (d *Device) establish(m establish) {
	page := func(base uint64) ring {
		return ring{&region{base: base, length: minRing}, minRing}
	}
	c := &channel{d: d}
	c.eq = &EQ{Vector: uint32(m.vector), Device: DeviceHWC, arming: newArming(page(m.eq), EQESize)}
	c.cq = &CQ{EQ: c.eq, arming: newArming(page(m.cq), CQESize)}
	c.rq = &WQ{CQ: c.cq, ring: page(m.rq)}
	c.sq = &WQ{CQ: c.cq, ring: page(m.sq), Send: true, consume: c}
	// The tables are empty and have room for the channel.
	c.eq.ID, _ = d.eqs.add(c.eq)
	c.cq.ID, _ = d.cqs.add(c.cq)
	c.rq.ID, _ = d.rqs.add(c.rq)
	c.sq.ID, _ = d.sqs.add(c.sq)
	d.hwc = c
	d.trace.Note(kindLifecycle, fmt.Sprintf("hardware channel up: eq %d cq %d rq %d sq %d vector %d", c.eq.ID, c.cq.ID, c.rq.ID, c.sq.ID, m.vector))
}

// announce posts the init events: the EQ's id and doorbell page first, because the driver can ring nothing before it knows them.
func (d *Device) announce() {
	c := d.hwc
	d.postEvent(c.eq, EventInitEQ, initEQ(c.eq.ID, hwcDoorbell), 0, 0)
	for _, v := range [...][2]uint32{
		{initCQ, c.cq.ID},
		{initRQ, c.rq.ID},
		{initSQ, c.sq.ID},
		{initDepth, hwcDepth},
		{initMaxRequest, maxMessage},
		{initMaxResponse, maxMessage},
		{initMaxCQs, d.MaxCQs()},
		{initPD, hwcPD},
		{initGPAKey, hwcGPAKey},
	} {
		d.postEvent(c.eq, EventInitData, initData(v[0], v[1]), 0, 0)
	}
	d.postEvent(c.eq, EventInitDone, 0, 0, 0)
}

// MaxCQs is above every completion queue id: the size of the driver's table.
func (d *Device) MaxCQs() uint32 { return firstID + uint32(len(d.cqs.slots)) }

// Ready implements Consumer: requests wait in the ring when too many answers wait for a buffer.
func (c *channel) Ready(*WQ) bool { return len(c.queued) < maxQueued }

// Consume implements Consumer: one request.
func (c *channel) Consume(q *WQ, w *WQE) {
	d := c.d
	sgl := w.SGL()
	if len(sgl) != 1 || sgl[0].Size < RequestHeader || sgl[0].Size > maxMessage {
		d.trace.Note(kindAnomaly, "hardware channel entry is not one buffer of 40 to 4096 bytes: no request to answer", uint64(q.ID))
		return
	}
	b := d.req[:sgl[0].Size]
	if err := d.Read(sgl[0].Addr, b); err != nil {
		d.lost("request", q.ID, err)
		return
	}
	code := uint32(hdrCode.Get(b))
	d.trace.Note(kindRequest, d.describe(code, func(m *Message) []Field { return m.Request }, b), uint64(code), hdrMessage.Get(b), hdrVersion.Get(b), hdrSize.Get(b),
		hdrRespSize.Get(b), hdrActivity.Get(b))
	h := d.cfg.Inject.Pass(inject.Request(code))
	if h.Waits() {
		kept := bytes.Clone(b)
		c.park(h, func() { c.serve(h, kept) })
		return
	}
	c.serve(h, b)
}

// The channel has one slot: while a request, an answer or one of its completions is held, what came later waits in the ring.

func (c *channel) park(h *inject.Hit, resume func()) {
	c.d.bay.Park(h, &c.cq.lane, resume, c.goOn)
}

// goOn takes up what has waited for something held.
func (c *channel) goOn() {
	c.d.flush()
	c.d.Kick(c.sq)
}

// serve acts on a request and sends its answer.
func (c *channel) serve(h *inject.Hit, b []byte) {
	d := c.d
	if h != nil {
		h.Alter(b, d.place(uint32(hdrCode.Get(b)), requestHeader, func(m *Message) []Field { return m.Request }))
	}
	for range h.Copies() {
		resp := d.answer(h, b)
		if d.hwc != c {
			return
		}
		c.respond(resp)
	}
	d.fireToo(h)
}

// answer serves the request in b, unless h refuses it, and builds its answer.
func (d *Device) answer(h *inject.Hit, b []byte) []byte {
	code := uint32(hdrCode.Get(b))
	size, asked := hdrSize.Get(b), hdrRespSize.Get(b)
	r := Request{
		Message: d.msgs[code],
		Device:  DeviceID{uint16(hdrDeviceType.Get(b)), uint16(hdrInstance.Get(b))},
		Version: uint16(hdrVersion.Get(b)),
	}
	r.resp = d.resp[:min(max(asked, ResponseHeader), maxMessage)]
	clear(r.resp)
	version := hdrRespVersion.Get(b)
	status := StatusUnsupported
	refusal, refuse := h.Status()
	switch {
	case refuse:
		status = Status(refusal)
	case r.Message == nil:
	case size < RequestHeader || size > uint64(len(b)) || size < uint64(r.Message.MinRequest) || asked > maxMessage:
		status = StatusMalformed
	default:
		r.Bytes = b[:size]
		if v := uint64(r.Message.MaxVersion); v != 0 {
			version = min(version, v)
		}
		if code>>16 == 0 {
			status = d.serve(&r)
		} else {
			status = d.client.Request(&r)
		}
	}
	if status.failed() {
		r.resp = r.resp[:ResponseHeader]
	}
	hdrCode.Put(r.resp, uint64(code))
	hdrVersion.Put(r.resp, version)
	hdrMessage.Put(r.resp, hdrMessage.Get(b))
	hdrSize.Put(r.resp, uint64(len(r.resp)))
	respDeviceType.Put(r.resp, hdrDeviceType.Get(b))
	respInstance.Put(r.resp, hdrInstance.Get(b))
	respActivity.Put(r.resp, hdrActivity.Get(b))
	respStatus.Put(r.resp, uint64(status))
	return r.resp
}

// respond sends an answer on its way.
func (c *channel) respond(b []byte) {
	if c.cq.lane.Busy() {
		kept := bytes.Clone(b)
		c.cq.lane.Wait(func() { c.respond(kept) })
		return
	}
	h := c.d.cfg.Inject.Pass(inject.Response(uint32(hdrCode.Get(b))))
	if h.Waits() {
		kept := bytes.Clone(b)
		c.park(h, func() { c.hand(h, kept) })
		return
	}
	c.hand(h, b)
}

// hand puts an answer in the next receive buffer, or keeps it until there is one.
func (c *channel) hand(h *inject.Hit, b []byte) {
	d := c.d
	if h != nil {
		b = d.spoil(h, b)
	}
	for range h.Copies() {
		queue := len(c.queued) > 0 || c.rq.Posted() == 0
		d.trace.Note(kindResponse, d.describe(uint32(hdrCode.Get(b)), func(m *Message) []Field { return m.Response }, b)+" "+Status(respStatus.Get(b)).String(),
			hdrCode.Get(b), hdrMessage.Get(b), respStatus.Get(b), uint64(len(b)), bit(queue))
		if queue {
			c.queued = append(c.queued, bytes.Clone(b))
		} else {
			c.deliver(b)
		}
	}
	d.fireToo(h)
}

// spoil changes an answer as a rule wants. Its length is no field of it: what is said of it, in the header and in the completion, can be changed apart.
func (d *Device) spoil(h *inject.Hit, b []byte) []byte {
	if status, ok := h.Status(); ok {
		if respStatus.Put(b, uint64(status)); Status(status).failed() {
			b = b[:ResponseHeader]
			hdrSize.Put(b, ResponseHeader)
		}
	}
	h.Alter(b, d.place(uint32(hdrCode.Get(b)), responseHeader, func(m *Message) []Field { return m.Response }))
	if n, ok := h.Value("length"); ok {
		b = append(bytes.Clone(b), make([]byte, maxMessage)...)[:min(n, maxMessage)]
	}
	return b
}

// deliver uses up one receive entry. An answer that its buffer cannot take is lost, and the driver times out.
func (c *channel) deliver(b []byte) {
	d := c.d
	if c.rq.dead || !d.next(c.rq) {
		return
	}
	w := &d.wqe
	if sgl := w.SGL(); len(sgl) == 0 || uint64(sgl[0].Size) < uint64(len(b)) {
		d.trace.Note(kindAnomaly, fmt.Sprintf("receive buffer cannot take an answer of %d bytes", len(b)), uint64(c.rq.ID))
		return
	} else if err := d.write(sgl[0].Addr, b); err != nil {
		d.lost("answer", c.rq.ID, err)
		return
	}
	// The request's send completion goes with its answer, so that one event announces both.
	putRXOOB(c.oob[:], w.Offset, uint32(len(b)))
	if d.complete(hwcSent, c.sq, nil, false) == nil {
		_ = d.complete(hwcReceived, c.rq, c.oob[:], true)
	}
}

// flush delivers queued answers to receive buffers that have just been posted.
func (d *Device) flush() {
	c := d.hwc
	was := len(c.queued)
	for len(c.queued) > 0 && !c.rq.dead && c.rq.Posted() > 0 && !c.cq.lane.Busy() {
		b := c.queued[0]
		c.queued = c.queued[1:]
		c.deliver(b)
	}
	if was >= maxQueued && len(c.queued) < maxQueued {
		d.Kick(c.sq)
	}
}
