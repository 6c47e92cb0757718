package gdma

import (
	"fmt"
	"slices"
	"strconv"

	"irqlab/devmodel/inject"
)

// Sizes of hardware channel messages (section 3.7).
const (
	RequestHeader  = 0x28
	ResponseHeader = 0x20
	maxMessage     = 4096
)

// Field is a little-endian number in a message, Size bytes (1, 2, 4 or 8) at Off from the message's start.
type Field struct {
	Name      string
	Off, Size int
}

// Header fields of a request.
var (
	hdrCode        = Field{"code", 0x04, 4}
	hdrVersion     = Field{"version", 0x08, 2}
	hdrMessage     = Field{"message", 0x0a, 2}
	hdrSize        = Field{"size", 0x0c, 4}
	hdrRespVersion = Field{"response_version", 0x18, 2}
	hdrRespSize    = Field{"response_size", 0x1c, 4}
	hdrDeviceType  = Field{"device_type", 0x20, 2}
	hdrInstance    = Field{"device_instance", 0x22, 2}
	hdrActivity    = Field{"activity", 0x24, 4}
)

// Header fields of a response. Version, message id and size lie where a request has them.
var (
	respDeviceType = Field{"device_type", 0x10, 2}
	respInstance   = Field{"device_instance", 0x12, 2}
	respActivity   = Field{"activity", 0x14, 4}
	respStatus     = Field{"status", 0x18, 4}
)

// Headers as rules know them.
var (
	requestHeader  = []Field{hdrCode, hdrVersion, hdrMessage, hdrSize, hdrRespVersion, hdrRespSize, hdrDeviceType, hdrInstance, hdrActivity}
	responseHeader = []Field{hdrCode, hdrVersion, hdrMessage, hdrSize, respDeviceType, respInstance, respActivity, respStatus}
)

// place finds the fields of a message for inject: the header's, then the message's own.
func (d *Device) place(code uint32, header []Field, fields func(*Message) []Field) func(string) (inject.Place, bool) {
	return func(name string) (inject.Place, bool) {
		all := header
		if m := d.msgs[code]; m != nil {
			all = slices.Concat(header, fields(m))
		}
		i := slices.IndexFunc(all, func(f Field) bool { return f.Name == name })
		if i < 0 {
			return inject.Place{}, false
		}
		return inject.Bytes(all[i].Off, all[i].Size), true
	}
}

// Get is the field's value in b, 0 when b ends before the field does.
func (f Field) Get(b []byte) uint64 {
	if f.Off+f.Size > len(b) {
		return 0
	}
	switch b = b[f.Off:]; f.Size {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(le.Uint16(b))
	case 4:
		return uint64(le.Uint32(b))
	}
	return le.Uint64(b)
}

// Put stores v; a field that does not fit in b is left out, which is how an older, shorter answer is made.
func (f Field) Put(b []byte, v uint64) {
	if f.Off+f.Size > len(b) {
		return
	}
	switch b = b[f.Off:]; f.Size {
	case 1:
		b[0] = byte(v)
	case 2:
		le.PutUint16(b, uint16(v))
	case 4:
		le.PutUint32(b, uint32(v))
	default:
		le.PutUint64(b, v)
	}
}

// Message declares one request: what it is called, the shortest that can be served, and the fields shown on the trace.
type Message struct {
	Code       uint32
	Name       string
	MinRequest int // bytes, header included; 0: the header
	// MaxVersion is the newest response version whose fields the device fills; 0: echo the one asked for.
	MaxVersion uint16
	Request    []Field
	Response   []Field
}

// Status is a response's status.
type Status uint32

// StatusOK, StatusMoreEntries and StatusUnsupported are the driver's; it takes every other value for a failure, so the rest are this model's own and say why.
const (
	StatusOK          Status = 0
	StatusMalformed   Status = 1 // shorter than it claims or than it must be
	StatusInvalid     Status = 2 // a field has an impossible value
	StatusNotFound    Status = 3 // names something that does not exist
	StatusExists      Status = 4
	StatusLimit       Status = 5 // one more than the device has
	StatusMoreEntries Status = 0x105
	StatusUnsupported Status = 0xffffffff
)

func (s Status) String() string {
	switch s {
	case StatusOK:
		return "ok"
	case StatusMalformed:
		return "malformed"
	case StatusInvalid:
		return "invalid"
	case StatusNotFound:
		return "not-found"
	case StatusExists:
		return "exists"
	case StatusLimit:
		return "limit"
	case StatusMoreEntries:
		return "more-entries"
	case StatusUnsupported:
		return "unsupported"
	}
	return strconv.FormatUint(uint64(s), 10)
}

// failed says whether the driver takes the status for a failure.
func (s Status) failed() bool { return s != StatusOK && s != StatusMoreEntries }

// Request is a request being served.
type Request struct {
	Message *Message
	Device  DeviceID
	Version uint16
	// Bytes is the whole request. It lies in the device's memory: the guest cannot change it any more.
	Bytes []byte
	resp  []byte // what the driver asked for, zero-filled
}

// Get is a field of the request.
func (r *Request) Get(f Field) uint64 { return f.Get(r.Bytes) }

// U32 is a field of the request of at most four bytes.
func (r *Request) U32(f Field) uint32 { return uint32(f.Get(r.Bytes)) }

// Put stores a field of the answer; one beyond the size the driver asked for is left out.
func (r *Request) Put(f Field, v uint64) { f.Put(r.resp, v) }

// PutBytes stores bytes of the answer at off, as far as they fit.
func (r *Request) PutBytes(off int, b []byte) {
	if off < len(r.resp) {
		copy(r.resp[off:], b)
	}
}

// appendFields appends " name=value" for every field that lies within b; values over 9 in hexadecimal.
func appendFields(dst []byte, fields []Field, b []byte) []byte {
	for _, f := range fields {
		if f.Off+f.Size > len(b) {
			continue
		}
		dst = append(append(append(dst, ' '), f.Name...), '=')
		if v := f.Get(b); v > 9 {
			dst = strconv.AppendUint(append(dst, "0x"...), v, 16)
		} else {
			dst = strconv.AppendUint(dst, v, 10)
		}
	}
	return dst
}

// describe is the message's text on the trace.
func (d *Device) describe(code uint32, fields func(*Message) []Field, b []byte) string {
	m := d.msgs[code]
	if m == nil {
		return fmt.Sprintf("code %#x", code)
	}
	return string(appendFields(append(make([]byte, 0, 128), m.Name...), fields(m), b))
}
