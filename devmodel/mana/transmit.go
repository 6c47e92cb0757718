package mana

import "irqlab/devmodel/gdma"

const (
	ethernetHeader = 14
	vlanTag        = 4
)

// Ready implements gdma.Consumer: packets go nowhere, so there is always room.
func (o *object) Ready(*gdma.WQ) bool { return true }

// Consume implements gdma.Consumer: one packet of a send queue is counted and dropped. Every entry gets exactly one completion, in order, because the driver pops its
// own list for each without looking at it.
func (o *object) Consume(q *gdma.WQ, w *gdma.WQE) {
	f := o.f
	oob, ok := parseTXOOB(w.OOB())
	result := cqeTXBadOOB
	if ok && oob.cq == q.CQ.ID {
		result = o.packet(w, oob)
	}
	switch result {
	case cqeTXBadOOB:
		f.stats[statTXBadOOB]++
	case cqeTXMTU:
		f.stats[statTXMTU]++
	case cqeTXVPortIndex:
		f.stats[statTXBadOffset]++
	case cqeTXVPortOff:
		f.stats[statTXDisabled]++
	case cqeTXGDMAError:
		f.stats[statTXGDMAError]++
	}
	if oob.suppress {
		return
	}
	le.PutUint32(f.cqe[:], cqeHead(result))
	clear(f.cqe[4:])
	le.PutUint32(f.cqe[cqeTXWQEPosition:], w.Offset)
	f.dev.Complete(sent, q, f.cqe[:])
}

// packet checks and counts a packet, which may be one to be cut into segments.
func (o *object) packet(w *gdma.WQE, oob txOOB) cqeType {
	p, f := o.port, o.f
	switch {
	case !p.tx:
		return cqeTXVPortOff
	case int(oob.vport) != p.index:
		return cqeTXVPortIndex
	}
	size := w.Bytes()
	count := uint64(1)
	if w.InSGL {
		header, mss := uint64(w.Header), uint64(w.Unit)
		if header < ethernetHeader || mss == 0 || size <= header {
			return cqeTXHeader
		}
		payload := size - header
		count = (payload + mss - 1) / mss
		if header+min(mss, payload) > uint64(f.cfg.MTU+vlanTag) {
			return cqeTXMTU
		}
		size = payload + count*header
	} else if size < ethernetHeader {
		return cqeTXHeader
	} else if size > uint64(f.cfg.MTU+vlanTag) {
		return cqeTXMTU
	}
	// The destination decides which counters move; it may be split over buffers.
	at := 0
	for _, s := range w.SGL() {
		n := min(len(f.mac)-at, int(s.Size))
		if n == 0 {
			continue
		}
		if err := f.dev.Read(s.Addr, f.mac[at:at+n]); err != nil {
			return cqeTXGDMAError
		}
		if at += n; at == len(f.mac) {
			break
		}
	}
	packets, bytes := statTXUnicast, statTXUnicastBytes
	if f.mac == [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} {
		packets, bytes = statTXBroadcast, statTXBroadcastBytes
	} else if f.mac[0]&1 != 0 {
		packets, bytes = statTXMulticast, statTXMulticastBytes
	}
	f.stats[packets] += count
	f.stats[bytes] += size
	f.stats[statTXBytes] += size
	p.packets += count
	p.bytes += size
	return cqeTXOK
}
