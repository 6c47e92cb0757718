package scenarios

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/strategy"
	"irqlab/scenarios/shape"
)

// NoNode is the node of a function or neighbour that belongs to none.
const NoNode = strategy.NoNode

// Drivers of the function.
const (
	DriverVFIO = "vfio" // the guest agent owns the function and applies the strategy itself
	DriverMana = "mana" // the kernel's own driver decides
)

// Interrupt chips.
const (
	IrqchipMSI      = "msi"      // plain PCI-MSI: an affinity takes effect at the vector's next interrupt
	IrqchipRemapped = "remapped" // interrupt remapping: at once
)

// MaxVectors is the largest MSI-X table.
const MaxVectors = 2048

// Drivers are the drivers allowed.
func Drivers() []string { return []string{DriverVFIO, DriverMana} }

// Irqchips are the interrupt chips allowed.
func Irqchips() []string { return []string{IrqchipMSI, IrqchipRemapped} }

// settings are what a scenario says a run is, for the whole file or for one case; nil: not stated. The keys are the flags of the run command.
type settings struct {
	Kernel     many[kernelSpec]  `json:"kernel,omitempty" jsonschema_description:"kernel SPEC, e.g. debian:7.3; default debian:7.3"`
	Shape      many[shapeText]   `json:"shape,omitempty" jsonschema_description:"machine, e.g. sockets=1,cores=2,threads=2,nodes=1,memory=512M, which is the default"`
	Strategy   many[spreading]   `json:"strategy,omitempty" jsonschema_description:"affinity strategy, by name or as masks of its own; driver vfio only, and required there"`
	Driver     many[driverName]  `json:"driver,omitempty" jsonschema_description:"who drives the function: the guest agent (vfio, the default) or the kernel's driver (mana)"`
	Vectors    many[VectorCount] `json:"vectors,omitempty" jsonschema_description:"vectors of the function, HWC included: 1 to 2048, or relative to the online CPUs, as in online+1, which is the default"`
	DeviceNode many[deviceNode]  `json:"device-node,omitempty" jsonschema_description:"NUMA node of the function, or none; default 0"`
	Irqchip    many[irqchipName] `json:"irqchip,omitempty" jsonschema_description:"plain MSI (the default) or interrupt remapping"`
	Pressure   profiles          `json:"pressure,omitempty" jsonschema_description:"other interrupts in place before the function's: entries, or named lists of entries, each of which is a case of its own"`
	Packages   many[packageWord] `json:"packages,omitempty" jsonschema_description:"Debian packages that the guest has, with what they depend on, e.g. [irqbalance, ethtool]; all of them in each case, or none, the default"`
	Cmdline    many[Cmdline]     `json:"cmdline,omitempty" jsonschema_description:"words added to the guest kernel's command line, e.g. nosmt, or none; default none"`
	Offline    many[offlineList] `json:"offline,omitempty" jsonschema_description:"CPUs taken offline before the vectors are added, in the kernel's list format; default none"`
}

func defaultSettings() settings {
	return settings{
		Kernel:     many[kernelSpec]{"debian:7.3"},
		Shape:      many[shapeText]{shapeText(shape.Default())},
		Driver:     many[driverName]{DriverVFIO},
		Vectors:    many[VectorCount]{{Online: true, N: 1}},
		DeviceNode: many[deviceNode]{0},
		Irqchip:    many[irqchipName]{IrqchipMSI},
		Pressure:   profiles{{}},
		Cmdline:    many[Cmdline]{nil},
		Offline:    many[offlineList]{nil},
	}
}

// many is one value or a list of them.
type many[T any] []T

// The scalar types read one word of the file each, and say what is allowed when they cannot.

type kernelSpec string

func (k *kernelSpec) UnmarshalText(b []byte) error {
	if strings.TrimSpace(string(b)) == "" || strings.ContainsAny(string(b), "\n\x00") {
		return errors.New("no kernel is named; as in debian:7.3, or the path of a bzImage, vmlinux, build tree or .deb")
	}
	*k = kernelSpec(b)
	return nil
}

type shapeText shape.Shape

func (s *shapeText) UnmarshalText(b []byte) error {
	v, err := shape.ParseShape(string(b))
	*s = shapeText(v)
	return err
}

type driverName string

func (d *driverName) UnmarshalText(b []byte) error {
	return oneOf((*string)(d), b, "driver", Drivers())
}

type irqchipName string

func (i *irqchipName) UnmarshalText(b []byte) error {
	return oneOf((*string)(i), b, "irqchip", Irqchips())
}

type deviceNode int

func (d *deviceNode) UnmarshalText(b []byte) error {
	n, err := parseNode(string(b))
	*d = deviceNode(n)
	return err
}

type offlineList cpulist.List

func (o *offlineList) UnmarshalText(b []byte) error {
	l, err := cpulist.Parse(string(b))
	*o = offlineList(l)
	return err
}

func oneOf(dst *string, b []byte, what string, allowed []string) error {
	if !slices.Contains(allowed, string(b)) {
		return unknown(what, string(b), allowed)
	}
	*dst = string(b)
	return nil
}

// VectorCount is a number of vectors, or one relative to the CPUs that are online when the function appears.
type VectorCount struct {
	Online bool // count from the online CPUs
	N      int
}

// ParseVectorCount reads a --vectors: what UnmarshalText does.
func ParseVectorCount(text string) (v VectorCount, err error) {
	err = v.UnmarshalText([]byte(text))
	return v, err
}

// UnmarshalText reads "5", "online", "online+1" or "online-1".
func (v *VectorCount) UnmarshalText(b []byte) error {
	rest, online := strings.CutPrefix(string(b), "online")
	if online && rest == "" {
		*v = VectorCount{Online: true}
		return nil
	}
	signed := strings.HasPrefix(rest, "+") || strings.HasPrefix(rest, "-")
	n, err := strconv.Atoi(rest)
	if err != nil || signed != online || n > MaxVectors || n < -MaxVectors || !online && n < 1 {
		return fmt.Errorf("%q is no vector count; allowed: 1 to %d, or online+N, online-N", b, MaxVectors)
	}
	*v = VectorCount{Online: online, N: n}
	return nil
}

// String writes what UnmarshalText reads.
func (v VectorCount) String() string {
	switch {
	case !v.Online:
		return strconv.Itoa(v.N)
	case v.N == 0:
		return "online"
	}
	return fmt.Sprintf("online%+d", v.N)
}

// MarshalText writes what UnmarshalText reads.
func (v VectorCount) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// Of is the count on a machine with that many CPUs online.
func (v VectorCount) Of(online int) int {
	if v.Online {
		return online + v.N
	}
	return v.N
}

// profiles are alternatives of pressure; a single one has no name.
type profiles []NamedProfile

// NamedProfile is one alternative of pressure.
type NamedProfile struct {
	Name    string
	Entries Profile
}
