package mana

import (
	"math/rand/v2"
	"testing"

	"irqlab/devmodel/gdma"
	"irqlab/devmodel/gdma/gdmatest"
	"irqlab/devmodel/pcifn"
)

// runRandom applies random operations, legal and not, chosen by next, and checks after each what must hold whatever the guest does: the channel answers, the device's books agree
// with the answers it gave, and nothing survives the end.
func runRandom(t *testing.T, steps int, next func(n int) int) {
	l := newLab(t, Config{VPorts: 2, Queues: 3}, 5, nil)
	type key struct{ eqs, wqs, regions, registered map[uint64]bool }
	var k key
	fresh := func() {
		l.Driver = gdmatest.NewDriver(l.M, l.R)
		if err := l.Open(l.ctx); err != nil {
			t.Fatal(err)
		}
		k = key{map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}}
	}
	base := l.M.Mark()
	fresh()
	restart := func() {
		l.M.FreeTo(base)
		fresh()
	}
	pick := func(m map[uint64]bool) uint64 {
		if len(m) == 0 || next(8) == 0 {
			return uint64(next(300))
		}
		i := next(len(m))
		low := ^uint64(0)
		// Map order is random: choose by value, so that a seed means one run.
		for ; i >= 0; i-- {
			best := ^uint64(0)
			for v := range m {
				if (low == ^uint64(0) || v > low) && v < best {
					best = v
				}
			}
			low = best
		}
		return low
	}
	call := func(req []byte) ([]byte, bool) {
		r, err := l.Call(l.ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		return r, gdmatest.Status(r) == gdma.StatusOK
	}
	req := func(code uint32, size, asked int, n ...gdmatest.Num) []byte {
		return gdmatest.Request(code, gdma.DeviceMANA, size, asked, 1, n...)
	}
	u32, u64 := gdmatest.U32, gdmatest.U64
	sizes := []uint64{4096, 8192, 16384, 100, 0, 1 << 31}
	for step := range steps {
		if l.M.Mark() > 60<<20 {
			l.f.Reset(pcifn.ResetFLR)
			restart()
		}
		switch next(16) {
		case 0, 1, 2, 3:
			pages := []uint64{}
			for range 1 + next(4) {
				switch next(10) {
				case 0: // nowhere
					pages = append(pages, uint64(next(1<<30))<<12)
				case 1, 2: // somewhere that may be another region's, or this one's twice
					pages = append(pages, base+uint64(6+next(20))*4096) // the channel itself has six pages
				default:
					pages = append(pages, l.M.Alloc(4096))
				}
			}
			if r, ok := call(gdmatest.RegionRequest(uint64(len(pages))*4096, pages)); ok {
				k.regions[le.Uint64(r[0x20:])] = true
			}
		case 4, 5:
			h := pick(k.regions)
			if r, ok := call(req(gdma.CodeCreateQueue, 96, 36, u32(0x28, 4), u64(0x38, h), u32(0x44, sizes[next(len(sizes))]), u32(0x4c, uint64(next(7))))); ok {
				delete(k.regions, h)
				k.eqs[uint64(le.Uint32(r[0x20:]))] = true
			}
		case 6, 7:
			a, b := pick(k.regions), pick(k.regions)
			if r, ok := call(req(codeCreateWQ, 88, 48, u64(0x28, firstPortHandle+uint64(next(3))), u32(0x30, uint64(1+next(2))), u64(0x38, a), u64(0x40, b),
				u32(0x48, sizes[next(len(sizes))]), u32(0x4c, sizes[next(len(sizes))]), u32(0x54, pick(k.eqs)))); ok {
				delete(k.regions, a)
				delete(k.regions, b)
				k.wqs[le.Uint64(r[0x28:])] = true
			}
		case 8:
			o := pick(k.wqs)
			if _, ok := call(req(codeDestroyWQ, 56, 32, u32(0x28, uint64(1+next(2))), u64(0x30, o))); ok {
				delete(k.wqs, o)
			}
		case 9:
			q := pick(k.eqs)
			if _, ok := call(req(gdma.CodeDisableQueue, 52, 32, u32(0x28, 4), u32(0x2c, q))); ok {
				delete(k.eqs, q)
			}
		case 10:
			h := pick(k.regions)
			if _, ok := call(req(gdma.CodeDestroyRegion, 48, 32, u64(0x28, h))); ok {
				delete(k.regions, h)
			}
		case 11:
			if _, ok := call(req(gdma.CodeRegisterDevice, 40, 44)); ok {
				k.registered[2] = true
			}
			call(req(codeConfigTX, 56, 36, u64(0x28, firstPortHandle+uint64(next(3)))))
		case 12: // doorbells of everything but the channel's own queues, at random
			for range next(20) {
				kind := gdma.DoorbellKind(next(5))
				id := uint64(25 + next(20))
				l.R.Doorbell(kind, gdma.DoorbellValue(id|uint64(next(1<<16))<<32|uint64(next(2))<<63))
			}
		case 13: // plausible producer positions over garbage or over entries
			for id := range uint32(8) {
				l.R.Doorbell(gdma.DoorbellSQ, gdma.ProducerDoorbell(25+id, uint32(32*next(64)), 0))
			}
			call(req(gdma.CodeTestEQE, 44, 32, u32(0x28, pick(k.eqs))))
			call(req(codeFenceRQ, 48, 32, u64(0x28, pick(k.wqs))))
		case 14:
			if next(6) == 0 {
				if _, ok := call(req(gdma.CodeDeregister, 40, 32)); ok {
					clear(k.registered)
					clear(k.eqs)
					clear(k.wqs)
				}
			}
		case 15:
			switch next(12) {
			case 0:
				l.f.Reset(pcifn.ResetKind(next(3)))
				restart()
			case 1:
				if err := l.Close(l.ctx); err != nil {
					t.Fatal(err)
				}
				if u := l.f.Usage(); u != (gdma.Usage{}) {
					t.Fatalf("step %d: left after destroy: %+v", step, u)
				}
				restart()
			case 2:
				restart() // a new life without a goodbye
			default:
				_ = l.f.PostEvent(Event{Type: gdma.EventHWC, EQ: uint32(pick(k.eqs))})
			}
		}
		// A round trip, so that everything rung has been taken up; then the books.
		if _, ok := call(gdmatest.Request(gdma.CodeListDevices, gdma.DeviceID{}, 40, 296, 1)); !ok {
			t.Fatalf("step %d: the channel is broken", step)
		}
		u := l.f.Usage()
		if u.EQs != 1+len(k.eqs) || u.SQs+u.RQs != 2+len(k.wqs) || u.CQs != 1+len(k.wqs) || u.Regions != len(k.regions) || u.Registrations != len(k.registered) || u.Answers != 0 {
			t.Fatalf("step %d: device holds %+v; answered for %d event queues, %d work queues, %d regions", step, u, len(k.eqs), len(k.wqs), len(k.regions))
		}
		if (u.Pages == 0) != (len(k.eqs)+len(k.wqs)+len(k.regions) == 0) {
			t.Fatalf("step %d: %d pages in the books of %+v", step, u.Pages, u)
		}
	}
}

func TestRandomOperations(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		runRandom(t, 400, r.IntN)
	}
}

func FuzzOperations(f *testing.F) {
	f.Add([]byte{0, 3, 11, 1, 4, 0, 0, 0, 0})
	f.Add([]byte{15, 0, 0, 15, 2, 13, 13, 12, 9})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 2000 {
			return
		}
		n := 0
		runRandom(t, len(b)/4, func(max int) int {
			v := 0
			if n < len(b) {
				v = int(b[n])
				if max > 256 && n+1 < len(b) {
					v = v<<8 | int(b[n+1])
					n++
				}
			}
			n++
			return v % max
		})
	})
}

// FuzzRequest sends one request with any body to a device with a port that is up; the answer has a proper header and the device still works.
func FuzzRequest(f *testing.F) {
	f.Add(uint32(codeConfigRX), make([]byte, 0x50+512))
	f.Add(uint32(codeCreateWQ), make([]byte, 0x30))
	f.Add(uint32(codeQueryStats), []byte{0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, code uint32, body []byte) {
		if len(body) > 4096-gdma.RequestHeader || code == gdma.CodeDeregister {
			return
		}
		l := newLab(t, Config{Queues: 1}, 2, nil)
		d := dialects[3]
		l.probe(t, d, 0)
		l.up(t, d, l.ports[0], 1, 1)
		req := gdmatest.Request(code, gdma.DeviceMANA, gdma.RequestHeader+len(body), 256, 1)
		copy(req[gdma.RequestHeader:], body)
		if _, err := l.Call(l.ctx, req); err != nil {
			t.Fatal(err)
		}
		l.request(t, codeQueryDevConfig, 88, 80, 3)
		_ = l.f.Close()
	})
}
