package mana

import (
	"math/bits"
	"slices"

	"irqlab/devmodel/gdma"
)

// port is a vPort: one network device of the guest.
type port struct {
	index int
	tx    bool // CONFIG_VPORT_TX was sent
	rx    bool // packets may be delivered
	rss   bool
	deflt uint64
	table []uint64
	key   [rxKeySize]byte
	send  []*object
	recv  []*object

	packets, bytes uint64
}

// object is a work queue with its completion queue, by the handle the driver calls it.
type object struct {
	f      *Function
	handle uint64
	port   *port
	q      *gdma.WQ
}

const firstPortHandle = 0x100

func (p *port) handle() uint64 { return firstPortHandle + uint64(p.index) }

// address is the port's MAC address, locally administered.
func (p *port) address() [6]byte { return [6]byte{0x02, 'm', 'a', 'n', 'a', byte(p.index)} }

func (f *Function) port(handle uint64) *port {
	if i := handle - firstPortHandle; i < uint64(len(f.ports)) {
		return f.ports[i]
	}
	return nil
}

// client is the Function as the GDMA device sees it.
type client Function

// Messages implements gdma.Client.
func (c *client) Messages() []*gdma.Message { return messages() }

// Leaks implements gdma.Client.
func (c *client) Leaks() (leaks []gdma.Leak) {
	for _, p := range c.ports {
		if p.rx {
			leaks = append(leaks, gdma.Leak{Kind: "vport with receive enabled", ID: uint64(p.index)})
		}
	}
	return leaks
}

// Drop implements gdma.Client.
func (c *client) Drop() {
	for i, p := range c.ports {
		c.ports[i] = &port{index: i, packets: p.packets, bytes: p.bytes}
	}
	clear(c.objects)
}

// Request implements gdma.Client.
func (c *client) Request(r *gdma.Request) gdma.Status {
	f := (*Function)(c)
	if r.Device != gdma.DeviceMANA {
		return gdma.StatusNotFound
	}
	// 7.2 and later ask these two before they register; nothing else makes sense without a registration.
	switch r.Message.Code {
	case codeQueryDevConfig:
		return f.queryDevConfig(r)
	case codeQueryVPort:
		return f.queryVPort(r)
	}
	if !f.dev.Registered(r.Device) {
		return gdma.StatusNotFound
	}
	switch r.Message.Code {
	case codeQueryStats:
		mask := r.Get(statsAsked) & statsMask
		r.Put(statsReported, mask)
		for i, v := range f.stats {
			if mask>>i&1 != 0 {
				r.Put(field("", statsCounters+8*i, 8), v)
			}
		}
		return gdma.StatusOK
	case codeConfigTX:
		p := f.port(r.Get(txVPort))
		if p == nil {
			return gdma.StatusNotFound
		}
		p.tx = true
		r.Put(txOffset, uint64(p.index))
		r.Put(txShort, 1)
		return gdma.StatusOK
	case codeCreateWQ:
		return f.createWQ(r)
	case codeDestroyWQ:
		o := f.objects[r.Get(destroyObject)]
		if o == nil || o.q.Send != (r.U32(destroyType) == objectSQ) {
			return gdma.StatusNotFound
		}
		f.destroyObject(o)
		return gdma.StatusOK
	case codeFenceRQ:
		o := f.objects[r.Get(fenceObject)]
		if o == nil || o.q.Send {
			return gdma.StatusNotFound
		}
		// Nothing is ever under way between two requests, so the fence is reached at once.
		clear(f.cqe[:])
		rxCQE{kind: cqeRXFence}.put(f.cqe[:])
		f.dev.Complete(fenced, o.q, f.cqe[:])
		return gdma.StatusOK
	case codeConfigRX:
		return f.configRX(r)
	case codeQueryLink:
		if f.port(r.Get(linkVPort)) == nil {
			return gdma.StatusNotFound
		}
		r.Put(linkUnconfigured, 1)
		r.Put(linkSpeed, uint64(f.cfg.LinkSpeed))
		return gdma.StatusOK
	case codeSetBandwidth:
		if f.port(r.Get(clampVPort)) == nil {
			return gdma.StatusNotFound
		}
		r.Put(clampUnset, 1) // no rate is enforced: packets are counted and dropped
		return gdma.StatusOK
	case codeQueryPHY:
		return gdma.StatusOK // there is no PHY, so all its counters are 0
	}
	return gdma.StatusUnsupported
}

func (f *Function) queryDevConfig(r *gdma.Request) gdma.Status {
	r.Put(devCaps, f.cfg.PortCapabilities)
	r.Put(devVPorts, uint64(f.cfg.VPorts))
	r.Put(devMaxEQs, uint64(f.cfg.VPorts*f.cfg.Queues))
	r.Put(devMTU, uint64(f.cfg.MTU))
	r.Put(devLinkSpeed, uint64(f.cfg.LinkSpeed))
	return gdma.StatusOK
}

func (f *Function) queryVPort(r *gdma.Request) gdma.Status {
	i := r.U32(vportIndex)
	if i >= uint32(len(f.ports)) {
		return gdma.StatusNotFound
	}
	p := f.ports[i]
	r.Put(vportMaxSQ, uint64(f.cfg.Queues))
	r.Put(vportMaxRQ, uint64(f.cfg.Queues))
	r.Put(vportIndirection, uint64(f.cfg.Indirection))
	mac := p.address()
	r.PutBytes(vportMAC, mac[:])
	r.Put(vportHandle, p.handle())
	return gdma.StatusOK
}

func (f *Function) createWQ(r *gdma.Request) gdma.Status {
	p := f.port(r.Get(wqVPort))
	if p == nil {
		return gdma.StatusNotFound
	}
	list := &p.recv
	send := r.U32(wqType) == objectSQ
	if send {
		list = &p.send
	} else if r.U32(wqType) != objectRQ {
		return gdma.StatusInvalid
	}
	if len(*list) >= f.cfg.Queues {
		return gdma.StatusLimit
	}
	f.nextObject++
	o := &object{f: f, handle: f.nextObject, port: p}
	var status gdma.Status
	o.q, status = f.dev.NewWQ(send, r.Get(wqRegion), r.U32(wqBytes), r.Get(wqCQRegion), r.U32(wqCQBytes), r.U32(wqEQ), o)
	if status != gdma.StatusOK {
		return status
	}
	f.objects[o.handle] = o
	*list = append(*list, o)
	r.Put(wqID, uint64(o.q.ID))
	r.Put(wqCQ, uint64(o.q.CQ.ID))
	r.Put(wqObject, o.handle)
	return gdma.StatusOK
}

func (f *Function) destroyObject(o *object) {
	f.dev.DestroyWQ(o.q)
	delete(f.objects, o.handle)
	p := o.port
	list := &p.recv
	if o.q.Send {
		list = &p.send
	}
	*list = slices.DeleteFunc(*list, func(x *object) bool { return x == o })
	// The driver turns receive off but leaves the table as it was.
	if p.deflt == o.handle {
		p.deflt = noObject
	}
	for i, h := range p.table {
		if h == o.handle {
			p.table[i] = noObject
		}
	}
}

// receives says whether h may stand where a receive object of p is asked for; none at all may.
func (f *Function) receives(p *port, h uint64) bool {
	o := f.objects[h]
	return h == noObject || h == 0 || o != nil && o.port == p && !o.q.Send
}

func (f *Function) configRX(r *gdma.Request) gdma.Status {
	p := f.port(r.Get(rxVPort))
	if p == nil {
		return gdma.StatusNotFound
	}
	n, off := int(r.Get(rxEntries)), int(r.Get(rxTableOffset))
	update := r.Get(rxUpdateTable) != 0
	// The table's place is stated, so that version 1 (6.2), which has it 8 bytes earlier, needs no case of its own.
	if update && (n < 1 || n > MaxIndirection || bits.OnesCount(uint(n)) != 1) {
		return gdma.StatusInvalid
	}
	if update && (off < rxKey+rxKeySize || off%8 != 0 || off+8*n > len(r.Bytes)) {
		return gdma.StatusMalformed
	}
	if r.Get(rxUpdateDefault) != 0 && !f.receives(p, r.Get(rxDefault)) {
		return gdma.StatusNotFound
	}
	for i := 0; update && i < n; i++ {
		if !f.receives(p, le.Uint64(r.Bytes[off+8*i:])) {
			return gdma.StatusNotFound
		}
	}
	// All of it is good: nothing is half changed.
	if update {
		p.table = slices.Grow(p.table[:0], n)[:n]
		for i := range p.table {
			p.table[i] = le.Uint64(r.Bytes[off+8*i:])
		}
	}
	if r.Get(rxUpdateDefault) != 0 {
		p.deflt = r.Get(rxDefault)
	}
	if r.Get(rxUpdateKey) != 0 {
		copy(p.key[:], r.Bytes[rxKey:])
	}
	if v := r.U32(rxEnable); v != rxUnchanged {
		p.rx = v != 0
		p.rss = r.U32(rxRSS) != 0
	}
	return gdma.StatusOK
}
