package gdma

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The vectors are those of section 10, made by a C compiler from the drivers' own structures.

func TestGoldenDoorbells(t *testing.T) {
	for _, c := range []struct {
		name string
		got  DoorbellValue
		want DoorbellValue
	}{
		{"cq", ConsumerDoorbell(0x123456, 0x41, true), 0x8000004100123456},
		{"eq", ConsumerDoorbell(0x1234, 0x105, true), 0x8000010500001234},
		{"sq", ProducerDoorbell(0x21, 0x40, 0), 0x0000004000000021},
		{"rq", ProducerDoorbell(0x22, 0x20, 1), 0x0000002001000022},
	} {
		if c.got != c.want {
			t.Errorf("%s: %#016x, want %#016x", c.name, uint64(c.got), uint64(c.want))
		}
	}
	if v := DoorbellValue(0x8000004100123456); v.ID(DoorbellCQ) != 0x123456 || v.Index() != 0x41 || !v.Arm() {
		t.Errorf("cq decodes to id %#x index %#x arm %v", v.ID(DoorbellCQ), v.Index(), v.Arm())
	}
	if v := DoorbellValue(0x8000010500001234); v.ID(DoorbellEQ) != 0x1234 || v.Index() != 0x105 || !v.Arm() {
		t.Errorf("eq decodes to id %#x index %#x arm %v", v.ID(DoorbellEQ), v.Index(), v.Arm())
	}
	if v := DoorbellValue(0x0000002001000022); v.ID(DoorbellRQ) != 0x22 || v.Tail() != 0x20 {
		t.Errorf("rq decodes to id %#x tail %#x", v.ID(DoorbellRQ), v.Tail())
	}
	if v, want := DoorbellValue(0x8020804000000023), (Moderation{64, 32, true, true}); v.ID(DoorbellDIM) != 0x23 || v.Moderation() != want {
		t.Errorf("dim decodes to id %#x %+v", v.ID(DoorbellDIM), v.Moderation())
	}
}

func TestGoldenWords(t *testing.T) {
	word := func(v uint32) []byte { return le.AppendUint32(nil, v) }
	for _, c := range []struct {
		name string
		got  uint32
		want string
	}{
		{"CQE wq 0x22 receive owner 1", cqeWord(0x22, false, owner(64, 64)), "22000020"},
		{"CQE wq 0x21 send owner 1", cqeWord(0x21, true, owner(64, 64)), "21000021"},
		{"EQE type 129 owner 1", eqeWord(EventInitEQ, owner(256, 256)), "81000020"},
		{"EQE type 3 owner 2", eqeWord(EventCompletion, owner(512, 256)), "03000040"},
		{"INIT_EQ_ID_DB", initEQ(0x18, 0), "18000000"},
		{"INIT_DATA 1", initData(initCQ, 0x18), "18000001"},
		{"INIT_DATA 7", initData(initMaxCQs, 0x200), "00020007"},
		{"SMC establish ok", uint32(smcWord(1).answer(smcStatusOK)), "81000000"},
		{"SMC establish failed", uint32(smcWord(1).answer(smcStatusFail)), "81010000"},
		{"SMC destroy ok", uint32(smcWord(2).answer(smcStatusOK)), "82000000"},
		{"SMC establish pending", smcEstablish | smcOwner, "01000080"},
	} {
		if !bytes.Equal(word(c.got), unhex(t, c.want)) {
			t.Errorf("%s: % x, want %s", c.name, word(c.got), c.want)
		}
	}
}

func TestOwnerLaps(t *testing.T) {
	const n = 64
	for lap := range uint32(20) {
		want := lap % 8
		for _, i := range []uint32{0, 1, n - 1} {
			if got := owner(lap*n+i, n) >> 29; got != want {
				t.Errorf("entry %d of lap %d: owner %d, want %d", i, lap, got, want)
			}
		}
	}
}

func TestGoldenRXOOB(t *testing.T) {
	var b [32]byte
	putRXOOB(b[:], 0x20, 72)
	if want := unhex(t, "000000000000000000000000 20000000 00000000 00000000 48000000 00000000"); !bytes.Equal(b[:], want) {
		t.Errorf("% x\nwant % x", b, want)
	}
}

func TestGoldenEstablish(t *testing.T) {
	w := [SMCSize]byte(unhex(t, "34121000 00003512 10000000 36121000 00003712 10000000 00500000 01000000"))
	want := establish{eq: 0x101234000, cq: 0x101235000, rq: 0x101236000, sq: 0x5000000101237000}
	if got := parseEstablish(&w); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if h := smcWord(le.Uint32(w[smcHeader:])); h.kind() != smcEstablish || h.version() != 0 {
		t.Errorf("header %#x: type %d version %d", uint32(h), h.kind(), h.version())
	}
}

func TestGoldenWQE(t *testing.T) {
	for _, c := range []struct {
		name string
		oob  int
		sges int
		unit uint16
		hdr  uint8
		want string
		size uint32
	}{
		{"RQ", 8, 1, 0, 0, "00000000 01020000", 32},
		{"HWC SQ", 24, 1, 0, 0, "00000000 01060000", 64},
		{"TSO", 8, 3, 1448, 54, "00000036 030aa805", 64},
	} {
		sgl := make([]SGE, c.sges)
		for i := range sgl {
			sgl[i] = SGE{0x1000 * uint64(i+1), uint32(i), 100 * uint32(i+1)}
		}
		oob := bytes.Repeat([]byte{0xa5}, c.oob)
		b := AppendWQE(nil, oob, sgl, c.unit, c.hdr)
		if !bytes.Equal(b[:8], unhex(t, c.want)) {
			t.Errorf("%s: header % x, want %s", c.name, b[:8], c.want)
		}
		var w WQE
		if err := ParseWQE(&w, b, maxSendWQE); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if w.Size != c.size || w.Unit != c.unit || uint8(w.Header) != c.hdr || w.InSGL != (c.unit != 0) || !bytes.Equal(w.OOB(), oob) || len(w.SGL()) != c.sges {
			t.Errorf("%s: parsed %d bytes, unit %d, header %d, %d SGEs", c.name, w.Size, w.Unit, w.Header, len(w.SGL()))
		}
		for i, s := range w.SGL() {
			if s != sgl[i] {
				t.Errorf("%s: SGE %d is %+v, want %+v", c.name, i, s, sgl[i])
			}
		}
	}
}

func TestParseWQERefuses(t *testing.T) {
	header := func(sges, code uint32) []byte {
		b := make([]byte, maxSendWQE)
		le.PutUint32(b[4:], sges|code<<8)
		return b
	}
	for _, c := range []struct {
		name  string
		b     []byte
		limit int
		ok    bool
	}{
		{"31 SGEs fill the largest entry", header(31, 2), maxSendWQE, true},
		{"32 SGEs", header(32, 2), maxSendWQE, false},
		{"255 SGEs", header(255, 2), maxSendWQE, false},
		{"15 SGEs fill the largest receive entry", header(15, 2), maxRecvWQE, true},
		{"16 SGEs to receive", header(16, 2), maxRecvWQE, false},
		{"32 bytes of OOB", header(29, 7), maxSendWQE, true},
		{"32 bytes of OOB and one SGE too many", header(30, 7), maxSendWQE, false},
		{"no OOB", header(1, 0), maxSendWQE, false},
		{"OOB of 4 bytes", header(1, 1), maxSendWQE, false},
		{"OOB of 20 bytes", header(1, 5), maxSendWQE, false},
		{"no SGE", header(0, 2), maxSendWQE, true},
		{"less than a basic unit", make([]byte, 31), maxSendWQE, false},
		{"more than was posted", header(2, 2), 32, false},
		{"nothing", nil, maxSendWQE, false},
	} {
		var w WQE
		if err := ParseWQE(&w, c.b, c.limit); (err == nil) != c.ok {
			t.Errorf("%s: error %v", c.name, err)
		}
	}
}

func FuzzParseWQE(f *testing.F) {
	f.Add(AppendWQE(nil, make([]byte, 8), []SGE{{1, 2, 3}}, 0, 0), 512)
	f.Add(AppendWQE(nil, make([]byte, 24), make([]SGE, 30), 1448, 54), 512)
	f.Add([]byte{}, 0)
	f.Fuzz(func(t *testing.T, b []byte, limit int) {
		var w WQE
		if err := ParseWQE(&w, b, limit); err != nil {
			return
		}
		if w.Size == 0 || w.Size%BasicUnit != 0 || int(w.Size) > min(limit, len(b), maxSendWQE) {
			t.Fatalf("size %d of %d bytes, limit %d", w.Size, len(b), limit)
		}
		if used := wqeHeader + len(w.OOB()) + len(w.SGL())*sgeSize; used > int(w.Size) || used+BasicUnit <= int(w.Size) {
			t.Fatalf("%d bytes used of %d", used, w.Size)
		}
	})
}

func TestDoorbellRegisters(t *testing.T) {
	for k := range doorbellKinds {
		if got, ok := DoorbellAt(k.Offset()); !ok || got != k {
			t.Errorf("%v: offset %#x is %v, %v", k, k.Offset(), got, ok)
		}
	}
	for _, off := range []uint64{0x408, 0x8, 0xff0, 0x1000} {
		if k, ok := DoorbellAt(off); ok {
			t.Errorf("offset %#x is %v", off, k)
		}
	}
}

// TestArming checks the arming protocol of section 3.3 case by case.
func TestArming(t *testing.T) {
	const n = 4
	fresh := func(posted uint32) arming { return arming{n: n, t: n + posted, seen: n, armed: true} }
	for _, c := range []struct {
		name                 string
		posted, index        uint32
		arm                  bool
		notify, valid, armed bool
	}{
		{"arm with nothing new", 0, n, true, false, true, true},
		{"progress without arming disarms", 0, n, false, false, true, false},
		{"arm and one new", 1, n, true, true, true, false},
		{"arm and a full lap new", n, n, true, true, true, false},
		{"arm caught up", 3, n + 3, true, false, true, true},
		{"more than a lap behind", n + 1, n, true, false, false, true},
		{"ahead of the device", 0, n + 1, true, false, false, true},
		{"index of eight laps ago is the same index", 0, n + 8*n, true, false, true, true},
	} {
		a := fresh(c.posted)
		notify, valid := a.rung(ConsumerDoorbell(24, c.index, c.arm))
		if notify != c.notify || valid != c.valid || a.armed != c.armed {
			t.Errorf("%s: notify %v valid %v armed %v", c.name, notify, valid, a.armed)
		}
	}
}

func TestRegionAddresses(t *testing.T) {
	pages := []uint64{0x9000, 0x3000, 0xf000, 0x1000}
	scattered := &region{pages: append([]uint64(nil), pages...), length: 4 * PageSize, want: 4, have: 4}
	scattered.seal()
	if scattered.pages == nil {
		t.Fatal("scattered pages were taken for one run")
	}
	run := &region{pages: []uint64{0x4000, 0x5000, 0x6000, 0x7000}, length: 4 * PageSize, want: 4, have: 4}
	run.seal()
	if run.pages != nil {
		t.Fatal("a contiguous list was kept")
	}
	for _, c := range []struct {
		r    *region
		pos  uint32
		addr uint64
		n    uint32
	}{
		{scattered, 0, 0x9000, 4096},
		{scattered, 0x1fe0, 0x3fe0, 32},
		{scattered, 0x3fe0, 0x1fe0, 32},
		{scattered, 0x4000, 0x9000, 4096},
		{scattered, 0xfffff020, 0x1020, 0xfe0},
		{run, 0, 0x4000, 0x4000},
		{run, 0x3fe0, 0x7fe0, 32},
		{run, 0x4000 * 7, 0x4000, 0x4000},
	} {
		if addr, n := (ring{c.r, 4 * PageSize}).at(c.pos); addr != c.addr || n != c.n {
			t.Errorf("position %#x: address %#x and %d bytes, want %#x and %d", c.pos, addr, n, c.addr, c.n)
		}
	}
}
