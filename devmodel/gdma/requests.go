package gdma

import (
	"bytes"
	"fmt"
)

// GDMA request codes (section 4.2).
const (
	CodeVerifyVersion   = 1
	CodeMaxResources    = 2
	CodeListDevices     = 3
	CodeRegisterDevice  = 4
	CodeDeregister      = 5
	CodeTestEQE         = 10
	CodeCreateQueue     = 12
	CodeDisableQueue    = 13
	CodeCreateRegion    = 25
	CodeAddPages        = 26
	CodeDestroyRegion   = 27
	CodeQueryHWCTimeout = 84
)

// queueEQ is the only queue type a network driver creates through GDMA.
const queueEQ = 4

// Fields of GDMA's messages (section 4.3).
var (
	verifyMin      = Field{"protocol_min", 0x28, 8}
	verifyMax      = Field{"protocol_max", 0x30, 8}
	verifyCaps     = Field{"driver_caps", 0x38, 8}
	verifyOS       = Field{"os", 0x60, 4}
	verifyMajor    = Field{"kernel_major", 0x68, 4}
	verifyMinor    = Field{"kernel_minor", 0x6c, 4}
	verifySub      = Field{"kernel_sub", 0x70, 4}
	verifyProtocol = Field{"protocol", 0x20, 8}
	verifyPFCaps   = Field{"device_caps", 0x28, 8}

	maxSQ       = Field{"max_sq", 0x24, 4}
	maxRQ       = Field{"max_rq", 0x28, 4}
	maxCQ       = Field{"max_cq", 0x2c, 4}
	maxEQ       = Field{"max_eq", 0x30, 4}
	maxDoorbell = Field{"max_doorbells", 0x34, 4}
	maxMSIX     = Field{"max_msix", 0x44, 4}

	listCount = Field{"count", 0x20, 4}

	registerPD       = Field{"pd", 0x20, 4}
	registerKey      = Field{"gpa_key", 0x24, 4}
	registerDoorbell = Field{"doorbell", 0x28, 4}

	testEQ = Field{"eq", 0x28, 4}

	createType     = Field{"type", 0x28, 4}
	createDoorbell = Field{"doorbell", 0x34, 4}
	createRegion   = Field{"region", 0x38, 8}
	createSize     = Field{"bytes", 0x44, 4}
	createVector   = Field{"vector", 0x4c, 4}
	createdID      = Field{"queue", 0x20, 4}

	disableType = Field{"type", 0x28, 4}
	disableID   = Field{"queue", 0x2c, 4}

	regionLength = Field{"length", 0x28, 8}
	regionFirst  = Field{"first_offset", 0x30, 4}
	regionPage   = Field{"page_type", 0x34, 4}
	regionTotal  = Field{"pages", 0x38, 4}
	regionHere   = Field{"pages_here", 0x3c, 4}
	regionHandle = Field{"region", 0x20, 8}

	addHandle = Field{"region", 0x28, 8}
	addCount  = Field{"pages_here", 0x30, 4}

	destroyHandle = Field{"region", 0x28, 8}

	timeoutReq  = Field{"milliseconds", 0x28, 4}
	timeoutResp = Field{"milliseconds", 0x20, 4}
)

const (
	verifyStrings = 0x80 // sysname, release, version, unused: 128 bytes each
	verifyString  = 0x80
	listEntries   = 0x28
	regionPages   = 0x40
	addPages      = 0x38
)

func gdmaMessages() []*Message {
	return []*Message{
		{Code: CodeVerifyVersion, Name: "VERIFY_VF_DRIVER_VERSION", MinRequest: 0x40,
			Request: []Field{verifyMin, verifyMax, verifyCaps, verifyOS, verifyMajor, verifyMinor, verifySub}, Response: []Field{verifyProtocol, verifyPFCaps}},
		{Code: CodeMaxResources, Name: "QUERY_MAX_RESOURCES", Response: []Field{maxSQ, maxRQ, maxCQ, maxEQ, maxDoorbell, maxMSIX}},
		{Code: CodeListDevices, Name: "LIST_DEVICES", Response: []Field{listCount}},
		{Code: CodeRegisterDevice, Name: "REGISTER_DEVICE", Request: []Field{hdrDeviceType, hdrInstance}, Response: []Field{registerPD, registerKey, registerDoorbell}},
		{Code: CodeDeregister, Name: "DEREGISTER_DEVICE", Request: []Field{hdrDeviceType, hdrInstance}},
		{Code: CodeTestEQE, Name: "GENERATE_TEST_EQE", MinRequest: 0x2c, Request: []Field{testEQ}},
		{Code: CodeCreateQueue, Name: "CREATE_QUEUE", MinRequest: 0x50,
			Request: []Field{createType, createDoorbell, createRegion, createSize, createVector}, Response: []Field{createdID}},
		{Code: CodeDisableQueue, Name: "DISABLE_QUEUE", MinRequest: 0x30, Request: []Field{disableType, disableID}},
		{Code: CodeCreateRegion, Name: "CREATE_DMA_REGION", MinRequest: regionPages,
			Request: []Field{regionLength, regionFirst, regionPage, regionTotal, regionHere}, Response: []Field{regionHandle}},
		{Code: CodeAddPages, Name: "DMA_REGION_ADD_PAGES", MinRequest: addPages, Request: []Field{addHandle, addCount}},
		{Code: CodeDestroyRegion, Name: "DESTROY_DMA_REGION", MinRequest: 0x30, Request: []Field{destroyHandle}},
		{Code: CodeQueryHWCTimeout, Name: "QUERY_HWC_TIMEOUT", MinRequest: 0x2c, Request: []Field{timeoutReq}, Response: []Field{timeoutResp}},
	}
}

// serve answers GDMA's own requests.
func (d *Device) serve(r *Request) Status {
	switch r.Message.Code {
	case CodeVerifyVersion:
		return d.verifyVersion(r)
	case CodeMaxResources:
		r.Put(maxSQ, uint64(d.cfg.SQs))
		r.Put(maxRQ, uint64(d.cfg.RQs))
		r.Put(maxCQ, uint64(d.cfg.CQs))
		r.Put(maxEQ, uint64(d.cfg.EQs))
		r.Put(maxDoorbell, uint64(d.cfg.DoorbellPages))
		r.Put(maxMSIX, uint64(d.cfg.MaxMSIX))
		return StatusOK
	case CodeListDevices:
		list := [...]DeviceID{DeviceHWC, DeviceMANA}
		r.Put(listCount, uint64(len(list)))
		for i, id := range list {
			r.Put(Field{Off: listEntries + 4*i, Size: 2}, uint64(id.Type))
			r.Put(Field{Off: listEntries + 4*i + 2, Size: 2}, uint64(id.Instance))
		}
		return StatusOK
	case CodeRegisterDevice:
		if r.Device != DeviceMANA {
			return StatusNotFound
		}
		if d.Registered(r.Device) {
			return StatusExists
		}
		d.devices[r.Device] = &registration{}
		r.Put(registerPD, 1)
		r.Put(registerDoorbell, uint64(min(1, d.cfg.DoorbellPages-1)))
		return StatusOK
	case CodeDeregister:
		if !d.Registered(r.Device) {
			return StatusNotFound
		}
		d.deregister(r.Device)
		return StatusOK
	case CodeTestEQE:
		eq := d.eqs.get(r.U32(testEQ))
		if eq == nil || eq.Device != r.Device {
			return StatusNotFound
		}
		if d.postEvent(eq, EventTest, 0, 0, 0) != nil {
			return StatusLimit
		}
		return StatusOK
	case CodeCreateQueue:
		return d.createEQ(r)
	case CodeDisableQueue:
		if r.U32(disableType) != queueEQ {
			return StatusInvalid
		}
		eq := d.eqs.get(r.U32(disableID))
		if eq == nil || eq.Device != r.Device || eq.Device == DeviceHWC {
			return StatusNotFound
		}
		d.removeEQ(eq)
		return StatusOK
	case CodeCreateRegion:
		return d.createRegion(r)
	case CodeAddPages:
		rg := d.regions[r.Get(addHandle)]
		if rg == nil {
			return StatusNotFound
		}
		return d.addPages(rg, r.U32(addCount), r.Bytes[addPages:])
	case CodeDestroyRegion:
		rg := d.regions[r.Get(destroyHandle)]
		if rg == nil {
			return StatusNotFound
		}
		delete(d.regions, rg.handle)
		d.pages -= rg.want
		return StatusOK
	case CodeQueryHWCTimeout:
		r.Put(timeoutResp, uint64(d.cfg.HWCTimeout))
		return StatusOK
	}
	return StatusUnsupported
}

// Driver is what the guest's driver said of itself.
type Driver struct {
	Capabilities uint64
	Release      string // "Linux 7.3.4+deb13-cloud-amd64", printable ASCII only; empty before it said so
}

// Driver is what the guest's driver said when it was last probed.
func (d *Device) Driver() Driver {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.driver
}

func (d *Device) verifyVersion(r *Request) Status {
	const protocol = 1
	if r.Get(verifyMin) > protocol || r.Get(verifyMax) < protocol {
		return StatusInvalid
	}
	text := func(i int) string {
		at := verifyStrings + i*verifyString
		if at+verifyString > len(r.Bytes) {
			return ""
		}
		s, _, _ := bytes.Cut(r.Bytes[at:at+verifyString], []byte{0})
		return string(bytes.Map(func(c rune) rune {
			if c < ' ' || c > '~' {
				return -1
			}
			return c
		}, s))
	}
	d.driver = Driver{r.Get(verifyCaps), text(0)}
	if s := text(1); s != "" {
		d.driver.Release += " " + s
	}
	d.trace.Note(kindLifecycle, fmt.Sprintf("driver %q, capabilities %#x", d.driver.Release, d.driver.Capabilities))
	r.Put(verifyProtocol, protocol)
	r.Put(verifyPFCaps, d.cfg.Capabilities)
	return StatusOK
}

// Registered says whether the driver has registered a device.
func (d *Device) Registered(id DeviceID) bool { return d.devices[id] != nil }

// deregister ends a device. What its driver left behind is recorded and goes with it.
func (d *Device) deregister(id DeviceID) {
	d.audit("DEREGISTER_DEVICE", id)
	if id == DeviceMANA {
		d.client.Drop()
		for _, t := range [...]*table[WQ]{&d.sqs, &d.rqs} {
			for q := range t.all {
				if d.hwc == nil || q != d.hwc.sq && q != d.hwc.rq {
					d.DestroyWQ(q)
				}
			}
		}
	}
	for eq := range d.eqs.all {
		if eq.Device == id {
			d.removeEQ(eq)
		}
	}
	delete(d.devices, id)
}

func (d *Device) createEQ(r *Request) Status {
	reg := d.devices[r.Device]
	size := r.U32(createSize)
	switch {
	case r.U32(createType) != queueEQ:
		return StatusUnsupported
	case reg == nil:
		return StatusNotFound
	case r.U32(createVector) >= uint32(d.bus.Vectors()):
		return StatusInvalid
	}
	rg := d.regions[r.Get(createRegion)]
	if rg == nil {
		return StatusNotFound
	}
	if !rg.validRing(size) {
		return StatusInvalid
	}
	eq := &EQ{Vector: r.U32(createVector), Device: r.Device, Ordinal: reg.eqs, arming: newArming(ring{rg, size}, EQESize)}
	id, ok := d.eqs.add(eq)
	if !ok {
		return StatusLimit
	}
	eq.ID = id
	reg.eqs++
	reg.live++
	delete(d.regions, rg.handle) // the queue's now
	r.Put(createdID, uint64(id))
	return StatusOK
}

func (d *Device) removeEQ(eq *EQ) {
	eq.gone = true
	d.eqs.remove(eq.ID)
	d.pages -= eq.ring.want
	if reg := d.devices[eq.Device]; reg != nil {
		// 7.2 and later make their queues anew at every ifup: the count starts again with them.
		if reg.live--; reg.live == 0 {
			reg.eqs = 0
		}
	}
}

func (d *Device) createRegion(r *Request) Status {
	length, first, total := r.Get(regionLength), r.U32(regionFirst), r.U32(regionTotal)
	switch {
	case r.U32(regionPage) != 0, first >= PageSize, length == 0, total == 0, total > maxRegionPages,
		length > uint64(total)*PageSize-uint64(first):
		return StatusInvalid
	case len(d.regions) >= maxRegions, d.pages+int(total) > maxTotalPages:
		return StatusLimit
	}
	rg := &region{first: first, length: length, want: int(total)}
	status := d.addPages(rg, r.U32(regionHere), r.Bytes[regionPages:])
	if status != StatusOK && status != StatusMoreEntries {
		return status
	}
	d.nextRgn++
	rg.handle = d.nextRgn
	d.regions[rg.handle] = rg
	d.pages += rg.want
	r.Put(regionHandle, rg.handle)
	return status
}

// addPages appends n page addresses. It takes all or none.
func (d *Device) addPages(rg *region, n uint32, b []byte) Status {
	switch {
	case uint64(n)*8 > uint64(len(b)):
		return StatusMalformed
	case n == 0, int(n) > rg.want-rg.have:
		return StatusInvalid
	}
	for i := range int(n) {
		if le.Uint64(b[8*i:])%PageSize != 0 {
			return StatusInvalid
		}
	}
	for i := range int(n) {
		rg.pages = append(rg.pages, le.Uint64(b[8*i:]))
	}
	rg.have += int(n)
	if !rg.complete() {
		return StatusMoreEntries
	}
	rg.seal()
	return StatusOK
}

// NewWQ makes a work queue and its completion queue from two regions, which are the queues' afterwards. consume takes the entries of a send queue.
func (d *Device) NewWQ(send bool, wqRegion uint64, wqBytes uint32, cqRegion uint64, cqBytes uint32, eqID uint32, consume Consumer) (*WQ, Status) {
	wr, cr, eq := d.regions[wqRegion], d.regions[cqRegion], d.eqs.get(eqID)
	switch {
	case wr == nil, cr == nil, eq == nil, eq.Device == DeviceHWC:
		return nil, StatusNotFound
	case wr == cr, !wr.validRing(wqBytes), !cr.validRing(cqBytes):
		return nil, StatusInvalid
	}
	t := &d.rqs
	if send {
		t = &d.sqs
	}
	cq := &CQ{EQ: eq, arming: newArming(ring{cr, cqBytes}, CQESize)}
	cq.armed = false // its driver arms it once it knows the id
	q := &WQ{Send: send, CQ: cq, ring: ring{wr, wqBytes}, consume: consume}
	var ok bool
	if q.ID, ok = t.add(q); !ok {
		return nil, StatusLimit
	}
	if cq.ID, ok = d.cqs.add(cq); !ok {
		t.remove(q.ID)
		return nil, StatusLimit
	}
	delete(d.regions, wqRegion)
	delete(d.regions, cqRegion)
	return q, StatusOK
}

// DestroyWQ ends a work queue and its completion queue.
func (d *Device) DestroyWQ(q *WQ) {
	t := &d.rqs
	if q.Send {
		t = &d.sqs
	}
	if t.get(q.ID) != q {
		return
	}
	q.dead = true
	t.remove(q.ID)
	d.cqs.remove(q.CQ.ID)
	q.CQ.gone = true
	d.pages -= q.ring.want + q.CQ.ring.want
}

// Queues calls f for every event queue, the hardware channel's first, and says which it is.
func (d *Device) Queues(f func(eq *EQ, hwc bool)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for eq := range d.eqs.all {
		f(eq, eq.Device == DeviceHWC)
	}
}

// Event posts an event on the hardware channel's EQ, or on eq when it is not 0.
func (d *Device) Event(eq uint32, typ EventType, details [3]uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hwc == nil {
		return fmt.Errorf("gdma: event %d: the driver has not set up the hardware channel", typ)
	}
	q := d.hwc.eq
	if eq != 0 {
		if q = d.eqs.get(eq); q == nil {
			return fmt.Errorf("gdma: event %d on queue %d: %w", typ, eq, errNoEQ)
		}
	}
	if err := d.postEvent(q, typ, details[0], details[1], details[2]); err != nil {
		return fmt.Errorf("gdma: event %d on queue %d: %w", typ, q.ID, err)
	}
	return nil
}
