package mana

import (
	"runtime"
	"testing"

	"irqlab/devmodel/gdma"
	"irqlab/devmodel/trace"
)

// BenchmarkTransmit is a packet from its doorbell to its completion in guest memory, in bursts of 32 as a busy driver sends them.
func BenchmarkTransmit(b *testing.B) {
	const burst = 32
	l := newLab(b, Config{}, 9, trace.New(0))
	d := dialects[4]
	l.probe(b, d, 0)
	p := l.ports[0]
	l.up(b, d, p, 1, 1)
	q := p.send[0]
	frame := l.M.Alloc(4096)
	l.M.Write(frame, []byte{2, 0, 0, 0, 0, 1})
	wqe := gdma.AppendWQE(nil, oob(q, p), []gdma.SGE{{Addr: frame, Size: 60}}, 0, 0)
	b.ReportAllocs()
	for b.Loop() {
		for range burst {
			q.Post(l.M, wqe)
		}
		l.R.Doorbell(gdma.DoorbellSQ, gdma.ProducerDoorbell(q.ID, q.Tail, 0))
		for n := 0; n < burst; {
			_, ok, err := l.Completion(&q.CQ)
			if err != nil {
				b.Fatal(err)
			}
			if ok {
				n++
			} else {
				runtime.Gosched()
			}
		}
		l.R.Doorbell(gdma.DoorbellCQ, gdma.ConsumerDoorbell(q.CQ.ID, q.CQ.Index(), true))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/burst, "ns/packet")
}

// BenchmarkUp is a vPort with 64 queues brought up and down: 1026 requests.
func BenchmarkUp(b *testing.B) {
	l := newLab(b, Config{}, 65, trace.New(0))
	d := dialects[3]
	l.probe(b, d, 0)
	mark := l.M.Mark()
	b.ReportAllocs()
	for b.Loop() {
		l.up(b, d, l.ports[0], 64, 1)
		l.down(b, d, l.ports[0])
		l.M.FreeTo(mark)
	}
}

// BenchmarkReadRegister is what a guest's register read costs the function.
func BenchmarkReadRegister(b *testing.B) {
	l := newLab(b, Config{}, 2, nil)
	var p [8]byte
	b.ReportAllocs()
	for b.Loop() {
		l.f.ReadBAR(regSMCOff, p[:])
	}
}
