package inject

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Action is what a rule does.
type Action string

// The actions. Losing an interrupt is Drop at vector:N.
const (
	Hold      Action = "hold"          // stand still until Release
	Delay     Action = "delay"         // stand still for a while
	Drop      Action = "drop"          // as if it had not happened
	Duplicate Action = "duplicate"     // twice
	Status    Action = "status"        // answer with this status: at a request or an SMC message without acting on it, at a response having acted
	Alter     Action = "alter"         // change a field or some bytes
	Add       Action = "add-interrupt" // fire a vector as well
)

// MaxReadDelay bounds the delay of a read, for whose answer QEMU stands still and waits 5 s at most.
const MaxReadDelay = 2 * time.Second

// kind is the part of a step's name before its colon.
type kind uint8

const (
	kindSMC kind = iota
	kindRequest
	kindResponse
	kindEvent
	kindCompletion
	kindVector
	kindConfigRead
	kindConfigWrite
	kindRegisterRead
	kindRegisterWrite
	kinds
)

var (
	everything = []Action{Hold, Delay, Drop, Duplicate, Status, Alter, Add}
	onRead     = []Action{Delay, Alter, Add}
	onWrite    = []Action{Hold, Delay, Drop, Alter, Add}
)

// kindInfo says what a kind is called, what it is, what can be done there, and how many bytes Alter can reach.
type kindInfo struct {
	name, text string
	actions    []Action
	bytes      int
}

var kindTable = [kinds]kindInfo{
	kindSMC:           {"smc", "message of the shared-memory channel, before the device acts on it", []Action{Hold, Delay, Drop, Status, Alter, Add}, 32},
	kindRequest:       {"request", "request of the hardware channel has arrived, before the device acts on it", everything, 4096},
	kindResponse:      {"response", "its answer is about to leave: the device has acted", everything, 4096},
	kindEvent:         {"event", "entry of an event queue is about to be posted", []Action{Hold, Delay, Drop, Duplicate, Alter, Add}, 16},
	kindCompletion:    {"completion", "entry of a completion queue is about to be posted", []Action{Hold, Delay, Drop, Duplicate, Alter, Add}, 64},
	kindVector:        {"vector", "interrupt is about to be fired", []Action{Hold, Delay, Drop, Duplicate, Add}, 0},
	kindConfigRead:    {"config-read", "read of configuration space", onRead, 8},
	kindConfigWrite:   {"config-write", "write to configuration space", onWrite, 8},
	kindRegisterRead:  {"register-read", "read of BAR 0", onRead, 8},
	kindRegisterWrite: {"register-write", "write to BAR 0: SMC window and doorbells", onWrite, 8},
}

// access says whether steps of the kind are told apart by an optional offset.
func (k kind) access() bool { return k >= kindConfigRead }

// A Point is a step as the device meets it: a kind, and which one of it.
type Point struct {
	kind kind
	n    uint32
	lab  bool // of a vector: it is the lab that fires it
}

// Completions.
var (
	CompletionSend       = Point{kind: kindCompletion, n: 0}
	CompletionReceive    = Point{kind: kindCompletion, n: 1}
	CompletionFence      = Point{kind: kindCompletion, n: 2}
	CompletionHWCSend    = Point{kind: kindCompletion, n: 3}
	CompletionHWCReceive = Point{kind: kindCompletion, n: 4}
)

// SMC is the step of an SMC message of a type.
func SMC(typ uint32) Point { return Point{kind: kindSMC, n: typ} }

// Request is the step of a request's arrival.
func Request(code uint32) Point { return Point{kind: kindRequest, n: code} }

// Response is the step of an answer's leaving.
func Response(code uint32) Point { return Point{kind: kindResponse, n: code} }

// Event is the step of an event of a type.
func Event(typ uint8) Point { return Point{kind: kindEvent, n: uint32(typ)} }

// Vector is the step of a vector's firing by the device.
func Vector(n int) Point { return Point{kind: kindVector, n: uint32(n)} }

// LabVector is the same step when it is the lab that fires the vector, to see where it goes.
func LabVector(n int) Point { return Point{kindVector, uint32(n), true} }

// ConfigRead is the step of a read that starts at an offset of configuration space.
func ConfigRead(off uint64) Point { return Point{kind: kindConfigRead, n: uint32(off)} }

// ConfigWrite is the step of a write that starts at an offset of configuration space.
func ConfigWrite(off uint64) Point { return Point{kind: kindConfigWrite, n: uint32(off)} }

// RegisterRead is the step of a read that starts at an offset of BAR 0.
func RegisterRead(off uint64) Point { return Point{kind: kindRegisterRead, n: uint32(off)} }

// RegisterWrite is the step of a write that starts at an offset of BAR 0.
func RegisterWrite(off uint64) Point { return Point{kind: kindRegisterWrite, n: uint32(off)} }

// named is a step with a name of its own, and the fields by which Alter knows its bytes.
type named struct {
	n      uint32
	name   string
	text   string
	fields []field
}

// field is a number by the name it has on the trace, and how many bits the device keeps of what Alter makes of it.
type field struct {
	name string
	bits int
}

// fields reads NAME or NAME:BITS; most have 32.
func fields(text string) []field {
	var all []field
	for _, word := range strings.Fields(text) {
		name, width, _ := strings.Cut(word, ":")
		bits := 32
		if width != "" {
			bits, _ = strconv.Atoi(width) // the device's tests compare
		}
		all = append(all, field{name, bits})
	}
	return all
}

// lengthField of an answer is how long it is to become, and no field in it.
const lengthField = "length"

var (
	smcFields      = fields("vector:16 header answer:31")
	requestHeader  = fields("code version:16 message:16 size response_version:16 response_size device_type:16 device_instance:16 activity")
	responseHeader = fields("code version:16 message:16 size device_type:16 device_instance:16 activity status length")
	eventFields    = fields("type:8 details0 details1 details2 owner:3")
	accessFields   = fields("value:64")
)

// smcMessages are the messages of the shared-memory channel (reference, section 2).
var smcMessages = []named{
	{1, "establish", "create the hardware channel", smcFields},
	{2, "destroy", "end it", smcFields},
	{4, "timeout", "the driver reports that a request timed out", smcFields},
}

// message is a request with its answer (reference, sections 4.2 and 5.1).
type message struct {
	code              uint32
	name              string
	request, response []field
}

// messages are in the order in which a driver of 7.3 first sends them.
var messages = []message{
	{10, "GENERATE_TEST_EQE", fields("eq"), nil},
	{1, "VERIFY_VF_DRIVER_VERSION", fields("protocol_min:64 protocol_max:64 driver_caps:64 os kernel_major kernel_minor kernel_sub"), fields("protocol:64 device_caps:64")},
	{84, "QUERY_HWC_TIMEOUT", fields("milliseconds"), fields("milliseconds")},
	{3, "LIST_DEVICES", nil, fields("count")},
	{2, "QUERY_MAX_RESOURCES", nil, fields("max_sq max_rq max_cq max_eq max_doorbells max_msix")},
	{0x20001, "QUERY_DEV_CONFIG", fields("proto_major proto_minor proto_micro"), fields("caps:64 vports:16 bare_metal:8 max_eqs mtu:16 link_speed")},
	{4, "REGISTER_DEVICE", nil, fields("pd gpa_key doorbell")},
	{0x20008, "QUERY_VPORT_CONFIG", fields("index"), fields("max_sq max_rq indirection vport:64")},
	{0x2000a, "QUERY_LINK_CONFIG", fields("vport:64"), fields("qos_mbps qos_unconfigured:8 link_mbps")},
	{0x20002, "QUERY_GF_STAT", fields("mask:64"), fields("mask:64")},
	{0x2000c, "QUERY_PHY_STAT", nil, nil},
	{0x20003, "CONFIG_VPORT_TX", fields("vport:64 pd doorbell"), fields("vport_offset:16 short_form:8")},
	{25, "CREATE_DMA_REGION", fields("length:64 first_offset page_type pages pages_here"), fields("region:64")},
	{26, "DMA_REGION_ADD_PAGES", fields("region:64 pages_here"), nil},
	{12, "CREATE_QUEUE", fields("type doorbell region:64 bytes vector"), fields("queue")},
	{0x20004, "CREATE_WQ_OBJ", fields("vport:64 type wq_region:64 cq_region:64 wq_bytes cq_bytes eq"), fields("wq cq object:64")},
	{0x20007, "CONFIG_VPORT_RX", fields("vport:64 entries:16 rx_enable rss_enable update_default:8 update_key:8 update_table:8 default_object:64"), nil},
	{0x20006, "FENCE_RQ", fields("object:64"), nil},
	{0x2000b, "SET_BW_CLAMP", fields("vport:64 enable mbps"), fields("qos_unconfigured:8")},
	{0x20005, "DESTROY_WQ_OBJ", fields("type object:64"), nil},
	{13, "DISABLE_QUEUE", fields("type queue"), nil},
	{27, "DESTROY_DMA_REGION", fields("region:64"), nil},
	{5, "DEREGISTER_DEVICE", nil, nil},
}

// events are the event types that have names (reference, sections 3.2 and 8.2).
var events = []named{
	{129, "init-eq", "the hardware channel's event queue", eventFields},
	{130, "init-data", "one number about the hardware channel; there are nine", eventFields},
	{131, "init-done", "the hardware channel is ready", eventFields},
	{64, "test", "asked for with GENERATE_TEST_EQE", eventFields},
	{3, "completion", "a completion queue has news; details0 is its id", eventFields},
	{132, "fpga-reconfig", "the device is about to be reprogrammed", eventFields},
	{133, "hwc", "channel timeout, link up, link down: details0 bits 24-31", eventFields},
	{134, "soc-service", "RDMA is to suspend or resume", eventFields},
	{135, "reset-request", "the device wants to be set up again", eventFields},
}

// completions; of the receive queues' only fences occur, since the model delivers no packets.
var completions = []named{
	{CompletionSend.n, "send", "a packet has been sent", fields("type:6 wqe_offset wq:24 owner:3")},
	{CompletionReceive.n, "receive", "a packet has been received; this model delivers none", fields("type:6 wqe_offset wq:24 owner:3")},
	{CompletionFence.n, "fence", "a receive queue's fence is reached", fields("type:6 wq:24 owner:3")},
	{CompletionHWCSend.n, "hwc-send", "the hardware channel has taken a request", fields("wq:24 owner:3")},
	{CompletionHWCReceive.n, "hwc-receive", "the hardware channel has delivered an answer", fields("wqe_offset length wq:24 owner:3")},
}

// names are the steps of each kind that have names.
var names = func() (t [kinds][]named) {
	t[kindSMC], t[kindEvent], t[kindCompletion] = smcMessages, events, completions
	for _, m := range messages {
		t[kindRequest] = append(t[kindRequest], named{m.code, m.name, "", slices.Concat(requestHeader, m.request)})
		t[kindResponse] = append(t[kindResponse], named{m.code, m.name, "", slices.Concat(responseHeader, m.response)})
	}
	return t
}()

func (p Point) entry() *named {
	for i := range names[p.kind] {
		if e := &names[p.kind][i]; e.n == p.n {
			return e
		}
	}
	return nil
}

// String is the step's name.
func (p Point) String() string {
	k := kindTable[p.kind].name
	switch e := p.entry(); {
	case e != nil:
		return k + ":" + e.name
	case p.kind.access():
		return fmt.Sprintf("%s@%#x", k, p.n)
	case p.kind == kindVector:
		return fmt.Sprintf("%s:%d", k, p.n)
	}
	return fmt.Sprintf("%s:%#x", k, p.n)
}

// pattern is one step, or any of its kind.
type pattern struct {
	Point
	any bool
}

func (p pattern) matches(q Point) bool { return p.kind == q.kind && (p.any || p.n == q.n) }

func (p pattern) String() string {
	switch k := kindTable[p.kind].name; {
	case !p.any:
		return p.Point.String()
	case p.kind.access():
		return k
	default:
		return k + ":any"
	}
}

// ErrWide says that there is no room for what Alter is to store.
var ErrWide = errors.New("does not fit")

// ErrStep says that there is no step of a name; Steps lists those there are.
var ErrStep = errors.New("no such step")

func parse(step string) (pattern, error) {
	fail := func(why string) (pattern, error) { return pattern{}, fmt.Errorf("step %q: %w: %s", step, ErrStep, why) }
	name, rest, colon := strings.Cut(step, ":")
	if !colon {
		name, rest, _ = strings.Cut(step, "@")
	}
	k := kind(slices.IndexFunc(kindTable[:], func(t kindInfo) bool { return t.name == name })) // -1 is beyond all
	switch {
	case k >= kinds:
		return fail("see `irqlab list steps`")
	case k.access() == colon:
		return fail("want KIND:NAME, or for accesses KIND or KIND@0xOFFSET")
	case k.access() && step == name, !k.access() && rest == "any":
		return pattern{Point{kind: k}, true}, nil
	}
	for _, e := range names[k] {
		if e.name == rest {
			return pattern{Point{kind: k, n: e.n}, false}, nil
		}
	}
	bits := map[kind]int{kindEvent: 8, kindVector: 11, kindConfigRead: 12, kindConfigWrite: 12, kindRegisterRead: 24, kindRegisterWrite: 24}[k]
	switch {
	case k == kindSMC, k == kindCompletion:
		return fail(fmt.Sprintf("%s steps are %s", name, list(names[k])))
	case bits == 0:
		bits = 32
	}
	n, err := strconv.ParseUint(rest, 0, 32)
	if err != nil {
		return fail("neither a name on the trace nor a number such as 0x20001")
	} else if n>>bits != 0 {
		return fail(fmt.Sprintf("the number is not below %#x", uint64(1)<<bits))
	}
	return pattern{Point{kind: k, n: uint32(n)}, false}, nil
}

func list(e []named) string {
	var s []string
	for _, n := range e {
		s = append(s, n.name)
	}
	return strings.Join(s, ", ")
}

// Step is a step as people choose it.
type Step struct {
	Name, Text string
	Actions    []Action
	Fields     []string // that Alter knows by name
	Bits       []int    // each field has
}

// Steps are all steps that have names, in the order of the protocol. Besides them there are request:0xCODE, response:0xCODE, event:0xTYPE, vector:N and KIND@0xOFFSET.
func Steps() []Step {
	var all []Step
	for k := range kinds {
		t := &kindTable[k]
		for _, e := range names[k] {
			text := e.text
			if text == "" {
				text = t.text + fmt.Sprintf(" (code %#x)", e.n)
			}
			all = append(all, newStep(t.name+":"+e.name, text, t.actions, e.fields))
		}
		any := newStep(pattern{Point{kind: k}, true}.String(), "any "+t.text, t.actions, pattern{Point{kind: k}, true}.fields())
		switch {
		case k.access():
			any.Text += "; " + t.name + "@0xOFFSET: one that starts there"
		case k == kindVector:
			any.Text += "; vector:N: one of them"
		}
		all = append(all, any)
	}
	return all
}

func newStep(name, text string, actions []Action, known []field) Step {
	s := Step{Name: name, Text: text, Actions: actions}
	for _, f := range known {
		s.Fields, s.Bits = append(s.Fields, f.name), append(s.Bits, f.bits)
	}
	return s
}

// fields are what Alter knows by name at a step: for any of a kind, and for one without a name of its own, those all of the kind have.
func (p pattern) fields() []field {
	if e := p.entry(); e != nil && !p.any {
		return e.fields
	}
	return [kinds][]field{
		kindSMC: smcFields, kindRequest: requestHeader, kindResponse: responseHeader, kindEvent: eventFields, kindCompletion: fields("wq:24 owner:3"),
		kindConfigRead: accessFields, kindConfigWrite: accessFields, kindRegisterRead: accessFields, kindRegisterWrite: accessFields,
	}[p.kind]
}

// Rule is what is to become of some occurrences of a step.
type Rule struct {
	Name string // unique among the rules in force
	Step string
	// Nth is the first occurrence the rule is for, from 1, counted from Add; 0 means 1. Times is for how many from there on: 0 means 1, -1 for ever.
	Nth, Times int
	Action     Action
	From       Origin        // at a vector: whose firings are meant; "": anybody's
	For        time.Duration // Delay
	Status     uint32        // Status
	// Alter: Field is a name on the trace; or empty, and the Size (1, 2, 4 or 8) bytes at Offset are meant. Value is stored little-endian, and must fit: only of an access, whose
	// size the driver chooses, are the low bytes taken.
	Field        string
	Offset, Size int
	Value        uint64
	Vector       int // Add
}

// Origin is who fires a vector.
type Origin string

// The origins.
const (
	FromDevice Origin = "device" // for an event of its queues
	FromLab    Origin = "lab"    // settle, fire and storm
)

// instead says what to hold where nothing can be.
const instead = "QEMU stands still until the answer to a read is there, and gives up on the device after 5 s; hold an smc:, request: or response: step instead"

// Validate says what is wrong with a rule.
func (r Rule) Validate() error {
	if r.Name == "" {
		return fmt.Errorf("rule at %s: it has no name", r.Step)
	}
	p, err := parse(r.Step)
	if err == nil {
		err = r.check(p)
	}
	if err != nil {
		return fmt.Errorf("rule %q: %w", r.Name, err)
	}
	return nil
}

func (r Rule) check(p pattern) error {
	t := &kindTable[p.kind]
	read := p.kind == kindConfigRead || p.kind == kindRegisterRead
	switch {
	case !slices.Contains(everything, r.Action):
		return fmt.Errorf("unknown action %q; there are %s", r.Action, join(everything))
	case read && (r.Action == Hold || r.Action == Drop):
		return fmt.Errorf("%s is not possible at %s: %s", r.Action, r.Step, instead)
	case !slices.Contains(t.actions, r.Action):
		return fmt.Errorf("%s is not possible at %s; there are %s", r.Action, r.Step, join(t.actions))
	case r.From != "" && p.kind != kindVector:
		return fmt.Errorf("from %s: only a vector is fired by the device or the lab, and %s is none", r.From, r.Step)
	case r.From != "" && r.From != FromDevice && r.From != FromLab:
		return fmt.Errorf("from %q: there are %s and %s", r.From, FromDevice, FromLab)
	case r.Nth < 0:
		return fmt.Errorf("occurrence %d: they count from 1", r.Nth)
	case r.Times < -1:
		return fmt.Errorf("%d times: want 1 or more, or -1 for ever", r.Times)
	case r.Action == Delay && r.For <= 0:
		return fmt.Errorf("delay of %s: want more than nothing", r.For)
	case r.Action == Delay && read && r.For > MaxReadDelay:
		return fmt.Errorf("delay of %s: at most %s for a read: %s", r.For, MaxReadDelay, instead)
	case r.Action == Status && p.kind == kindSMC && r.Status > 0xff:
		return fmt.Errorf("status %#x: an SMC answer has 8 bits for it", r.Status)
	case r.Action == Add && (r.Vector < 0 || r.Vector > 2047):
		return fmt.Errorf("vector %d: an MSI-X table has 0 to 2047", r.Vector)
	case r.Action == Alter:
		return r.checkAlter(p)
	}
	return nil
}

func (r Rule) checkAlter(p pattern) error {
	limit := kindTable[p.kind].bytes
	known := p.fields()
	var names []string
	at := -1
	for i, f := range known {
		names = append(names, f.name)
		if f.name == r.Field {
			at = i
		}
	}
	switch {
	case r.Field != "" && (r.Size != 0 || r.Offset != 0):
		return fmt.Errorf("alter: name a field or say offset and size, not both")
	case r.Field != "" && at < 0:
		return fmt.Errorf("alter: %s has no field %q; it has %s", r.Step, r.Field, strings.Join(names, ", "))
	case r.Field != "" && !fits(r.Value, known[at].bits):
		bits := known[at].bits
		return fmt.Errorf("alter: %#x %w in %s of %s, which has %d bits; the largest value is %#x", r.Value, ErrWide, r.Field, r.Step, bits, uint64(1)<<bits-1)
	case r.Field == lengthField && p.kind == kindResponse && r.Value > uint64(limit):
		return fmt.Errorf("alter: %s %d %w: %s has at most %d bytes", r.Field, r.Value, ErrWide, r.Step, limit)
	case r.Field != "":
		return nil
	case r.Size != 1 && r.Size != 2 && r.Size != 4 && r.Size != 8:
		return fmt.Errorf("alter: no field is named and %d bytes are none of 1, 2, 4 and 8; fields of %s are %s", r.Size, r.Step, strings.Join(names, ", "))
	case r.Offset < 0 || r.Offset+r.Size > limit:
		return fmt.Errorf("alter: %d bytes at %d: %s has at most %d", r.Size, r.Offset, r.Step, limit)
	case !fits(r.Value, 8*r.Size):
		return fmt.Errorf("alter: %#x %w in %d bytes; the largest value is %#x", r.Value, ErrWide, r.Size, uint64(1)<<(8*r.Size)-1)
	}
	return nil
}

// fits says whether so many bits keep all of a value.
func fits(v uint64, bits int) bool { return v>>bits == 0 }

func join(a []Action) string {
	var s []string
	for _, x := range a {
		s = append(s, string(x))
	}
	return strings.Join(s, ", ")
}
