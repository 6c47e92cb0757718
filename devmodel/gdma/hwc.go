package gdma

import "fmt"

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
	held   []Response
}

// message serves what the guest wrote to the SMC window.
func (d *Device) message(w *[SMCSize]byte) {
	h := smcWord(le.Uint32(w[smcHeader:]) &^ smcOwner)
	status := uint32(smcStatusFail)
	var after func()
	switch {
	case h.kind() == smcEstablish && h.version() == 0:
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
	case h.kind() == smcDestroy && h.version() == 0:
		d.trace.Note(kindSMC, "destroy", uint64(h.kind()), uint64(h.version()), uint64(h))
		status = smcStatusOK
		d.destroy("SMC destroy")
	case h.kind() == smcTimeout && h.version() <= 1:
		d.trace.Note(kindSMC, "the driver reports a timeout", uint64(h.kind()), uint64(h.version()), uint64(h))
		status = smcStatusOK
	default:
		d.trace.Note(kindSMC, "unknown", uint64(h.kind()), uint64(h.version()), uint64(h))
	}
	answer := h.answer(status)
	d.fmu.Lock()
	if d.gen.Load() == d.unit { // else a reset has cleared the window
		le.PutUint32(d.smc[smcHeader:], uint32(answer))
		d.smcBusy = false
	}
	d.fmu.Unlock()
	d.trace.Record(kindSMCAnswer, uint64(answer), uint64(status))
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
func (c *channel) Ready(*WQ) bool { return len(c.queued) < maxQueued && len(c.held) < maxQueued }

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
	resp := d.answer(b)
	if d.hwc != c {
		return
	}
	r := Response{uint32(hdrCode.Get(b)), resp}
	if d.cfg.Taps.Response != nil {
		switch d.cfg.Taps.Response(&r) {
		case Drop:
			return
		case Hold:
			r.Bytes = append([]byte(nil), r.Bytes...)
			c.held = append(c.held, r)
			return
		}
	}
	c.respond(r.Bytes)
}

// Release lets the held answers go, in order.
func (d *Device) Release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hwc == nil {
		return
	}
	held := d.hwc.held
	d.hwc.held = nil
	for _, r := range held {
		d.hwc.respond(r.Bytes)
	}
	d.Kick(d.hwc.sq)
}

// answer serves the request in b and builds its answer.
func (d *Device) answer(b []byte) []byte {
	code := uint32(hdrCode.Get(b))
	size, asked := hdrSize.Get(b), hdrRespSize.Get(b)
	d.trace.Note(kindRequest, d.describe(code, func(m *Message) []Field { return m.Request }, b), uint64(code), hdrMessage.Get(b), hdrVersion.Get(b), size, asked,
		hdrActivity.Get(b))
	r := Request{
		Message: d.msgs[code],
		Device:  DeviceID{uint16(hdrDeviceType.Get(b)), uint16(hdrInstance.Get(b))},
		Version: uint16(hdrVersion.Get(b)),
	}
	r.resp = d.resp[:min(max(asked, ResponseHeader), maxMessage)]
	clear(r.resp)
	version := hdrRespVersion.Get(b)
	status := StatusUnsupported
	switch {
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
	if status != StatusOK && status != StatusMoreEntries {
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

// respond puts an answer in the next receive buffer, or keeps it until there is one.
func (c *channel) respond(b []byte) {
	queue := len(c.queued) > 0 || c.rq.Posted() == 0
	c.d.trace.Note(kindResponse, c.d.describe(uint32(hdrCode.Get(b)), func(m *Message) []Field { return m.Response }, b)+" "+Status(respStatus.Get(b)).String(),
		hdrCode.Get(b), hdrMessage.Get(b), respStatus.Get(b), uint64(len(b)), bit(queue))
	if queue {
		c.queued = append(c.queued, append([]byte(nil), b...))
		return
	}
	c.deliver(b)
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
	if d.complete(c.cq, c.sq.ID, true) != nil {
		return
	}
	putRXOOB(d.cqe[:], w.Offset, uint32(len(b)))
	if d.complete(c.cq, c.rq.ID, false) != nil {
		return
	}
	d.notify(c.cq)
}

// flush delivers queued answers to receive buffers that have just been posted.
func (d *Device) flush() {
	c := d.hwc
	was := len(c.queued)
	for len(c.queued) > 0 && !c.rq.dead && c.rq.Posted() > 0 {
		b := c.queued[0]
		c.queued = c.queued[1:]
		c.deliver(b)
	}
	if was >= maxQueued && len(c.queued) < maxQueued {
		d.Kick(c.sq)
	}
}
