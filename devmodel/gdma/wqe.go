package gdma

import "fmt"

// Limits of a work-queue entry (section 3.5).
const (
	maxSendWQE = 512
	maxRecvWQE = 256
	maxOOB     = 32
	maxSGEs    = (maxSendWQE - wqeHeader - 8) / sgeSize
	wqeHeader  = 8
	sgeSize    = 16
)

// SGE is one piece of guest memory.
type SGE struct {
	Addr uint64 // DMA address
	Key  uint32 // memory key; one address space, so it says nothing
	Size uint32 // bytes
}

// WQE is a parsed work-queue entry. It is reused: valid until the next one is read.
type WQE struct {
	Offset  uint32 // monotonic byte position of its first basic unit
	Size    uint32 // bytes, whole basic units
	Header  uint32 // last_vbytes: length of the headers of a segmented packet
	Unit    uint16 // client data unit: the MSS of a segmented packet
	InSGL   bool   // client OOB in SGL: Linux's "this packet is to be segmented"
	oobLen  uint8
	sges    uint8
	oob     [maxOOB]byte
	sgl     [maxSGEs]SGE
	rawData [maxSendWQE]byte
}

// OOB is the inline out-of-band data: 8, 24 or 32 bytes.
func (w *WQE) OOB() []byte { return w.oob[:w.oobLen] }

// SGL is the scatter-gather list.
func (w *WQE) SGL() []SGE { return w.sgl[:w.sges] }

// Bytes is the sum of the SGE sizes.
func (w *WQE) Bytes() (n uint64) {
	for _, s := range w.SGL() {
		n += uint64(s.Size)
	}
	return n
}

// WQEError says why bytes are not a work-queue entry.
type WQEError struct {
	SGEs, OOB, Size, Limit int
}

func (e *WQEError) Error() string {
	if e.OOB == 0 {
		return "work-queue entry: inline OOB size is none of 8, 24 and 32 bytes"
	}
	return fmt.Sprintf("work-queue entry: %d SGEs and %d bytes of OOB make %d bytes, more than %d", e.SGEs, e.OOB, e.Size, e.Limit)
}

// oobBytes is the inline OOB size for its three-bit code, 0 when the code is not one.
func oobBytes(code uint32) int {
	switch code {
	case 2:
		return 8
	case 6:
		return 24
	case 7:
		return 32
	}
	return 0
}

// wqeSize is the size of the entry whose second dword is d, at most limit bytes.
func wqeSize(d uint32, limit int) (int, error) {
	sges, oob := int(d&0xff), oobBytes(d>>8&7)
	size := (wqeHeader + oob + sges*sgeSize + BasicUnit - 1) &^ (BasicUnit - 1)
	if oob == 0 || size > limit {
		return 0, &WQEError{sges, oob, size, limit}
	}
	return size, nil
}

// ParseWQE decodes the entry at the start of b into w, whose Offset is left alone. limit is the largest entry allowed, at most 512.
func ParseWQE(w *WQE, b []byte, limit int) error {
	if len(b) < BasicUnit {
		return &WQEError{0, 8, len(b), limit}
	}
	d := le.Uint32(b[4:])
	size, err := wqeSize(d, min(limit, len(b), maxSendWQE))
	if err != nil {
		return err
	}
	w.Size = uint32(size)
	w.Header = uint32(b[3])
	w.Unit = uint16(d >> 16 & 0x3fff)
	w.InSGL = d>>11&1 != 0
	w.sges = uint8(d)
	w.oobLen = uint8(copy(w.oob[:], b[wqeHeader:wqeHeader+oobBytes(d>>8&7)]))
	at := wqeHeader + int(w.oobLen)
	for i := range int(w.sges) {
		s := b[at+i*sgeSize:]
		w.sgl[i] = SGE{le.Uint64(s), le.Uint32(s[8:]), le.Uint32(s[12:])}
	}
	return nil
}

// AppendWQE appends the entry a driver would post: header, OOB (8, 24 or 32 bytes) and SGEs, padded to basic units. unit and header are for segmented packets
// and leave segmentation off when unit is 0.
func AppendWQE(b, oob []byte, sgl []SGE, unit uint16, header uint8) []byte {
	code := uint32(len(oob) / 4)
	if len(oob) == maxOOB {
		code = 7
	}
	d := uint32(len(sgl)) | code<<8
	if unit != 0 {
		d |= 1<<11 | uint32(unit&0x3fff)<<16
	}
	start := len(b)
	b = le.AppendUint32(b, uint32(header)<<24)
	b = le.AppendUint32(b, d)
	b = append(b, oob...)
	for _, s := range sgl {
		b = le.AppendUint64(b, s.Addr)
		b = le.AppendUint32(b, s.Key)
		b = le.AppendUint32(b, s.Size)
	}
	for (len(b)-start)%BasicUnit != 0 {
		b = append(b, 0)
	}
	return b
}
