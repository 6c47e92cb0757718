// Package vfio opens a PCI function through VFIO's group interface and enables its MSI-X vectors one at a time, as a driver written in
// user space does. It knows the ioctls (include/uapi/linux/vfio.h), not how a function got bound to vfio-pci nor where interrupts go.
package vfio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
)

// ioctl numbers: _IO(';', 100+n).
const (
	base                = ';'<<8 | 100
	getAPIVersion       = base + 0
	checkExtension      = base + 1
	setIOMMU            = base + 2
	groupGetStatus      = base + 3
	groupSetContainer   = base + 4
	groupGetDeviceFD    = base + 6
	deviceGetRegionInfo = base + 8
	deviceGetIRQInfo    = base + 9
	deviceSetIRQs       = base + 10
)

const (
	apiVersion      = 0
	type1IOMMU      = 1
	groupViable     = 1 << 0
	regionBAR0      = 0
	regionConfig    = 7
	irqMSIX         = 2
	irqNoResize     = 1 << 3
	setDataNone     = 1 << 0
	setDataEventFD  = 1 << 2
	setTrigger      = 1 << 5
	pciCommand      = 0x04
	pciCommandMem   = 1 << 1
	pciCommandBusMS = 1 << 2
)

type groupStatus struct{ argsz, flags uint32 }

type regionInfo struct {
	argsz, flags, index, capOffset uint32
	size, offset                   uint64
}

type irqInfo struct{ argsz, flags, index, count uint32 }

// setIRQs carries at most one eventfd: vectors are enabled one by one.
type setIRQs struct {
	argsz, flags, index, start, count uint32
	eventfd                           int32
}

const setIRQsHeader = 20

// Function is an opened function. Its methods are not safe for concurrent use.
type Function struct {
	address   string
	container int
	group     int
	device    int
	count     int
	events    []int      // eventfd of vectors 0..len-1
	bar0      regionInfo // once a register was read
}

// Open opens the function at address, which is bound to vfio-pci and in IOMMU group number group, and lets it master the bus.
// No vector is enabled. The function's memory decode is switched on, as MSI-X needs.
func Open(address, group string) (_ *Function, err error) {
	f := &Function{address: address, container: -1, group: -1, device: -1}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if f.container, err = open("/dev/vfio/vfio"); err != nil {
		return nil, fmt.Errorf("function %s: %w", address, err)
	}
	if v, err := ioctl(f.container, getAPIVersion, 0); err != nil || v != apiVersion {
		return nil, fault.New(agentapi.CodeUnsupported, "function %s: VFIO API version %d, not %d: %w", address, v, apiVersion, err)
	}
	if ok, err := ioctl(f.container, checkExtension, type1IOMMU); err != nil || ok == 0 {
		return nil, fault.New(agentapi.CodeUnsupported, "function %s: VFIO has no type-1 IOMMU: load vfio_iommu_type1", address)
	}
	if f.group, err = open("/dev/vfio/" + group); err != nil {
		return nil, fmt.Errorf("function %s: IOMMU group %s: %w", address, group, err)
	}
	status := groupStatus{argsz: uint32(unsafe.Sizeof(groupStatus{}))}
	if _, err := ioctlPtr(f.group, groupGetStatus, unsafe.Pointer(&status)); err != nil {
		return nil, fmt.Errorf("function %s: IOMMU group %s: %w", address, group, err)
	}
	if status.flags&groupViable == 0 {
		return nil, fault.New(agentapi.CodeUnsupported,
			"function %s: IOMMU group %s holds functions with other drivers: put the function behind a root port of its own", address, group)
	}
	fd := int32(f.container)
	if _, err := ioctlPtr(f.group, groupSetContainer, unsafe.Pointer(&fd)); err != nil {
		return nil, fmt.Errorf("function %s: joining IOMMU group %s to its container: %w", address, group, err)
	}
	if _, err := ioctl(f.container, setIOMMU, type1IOMMU); err != nil {
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w: without interrupt remapping vfio_iommu_type1 wants allow_unsafe_interrupts=1", err)
		}
		return nil, fmt.Errorf("function %s: type-1 IOMMU: %w", address, err)
	}
	name, err := unix.BytePtrFromString(address)
	if err != nil {
		return nil, fault.New(agentapi.CodeInvalid, "function %q: %w", address, err)
	}
	if f.device, err = ioctlPtr(f.group, groupGetDeviceFD, unsafe.Pointer(name)); err != nil {
		f.device = -1
		return nil, fmt.Errorf("function %s: opening the device: %w", address, err)
	}
	unix.CloseOnExec(f.device)
	if err := f.enable(); err != nil {
		return nil, fmt.Errorf("function %s: %w", address, err)
	}
	info := irqInfo{argsz: uint32(unsafe.Sizeof(irqInfo{})), index: irqMSIX}
	if _, err := ioctlPtr(f.device, deviceGetIRQInfo, unsafe.Pointer(&info)); err != nil {
		return nil, fmt.Errorf("function %s: MSI-X: %w", address, err)
	}
	if info.count == 0 {
		return nil, fault.New(agentapi.CodeUnsupported, "function %s has no MSI-X", address)
	}
	if info.flags&irqNoResize != 0 {
		return nil, fault.New(agentapi.CodeUnsupported,
			"function %s: this kernel cannot add MSI-X vectors one at a time (VFIO reports NORESIZE; kernels from 6.4 on can)", address)
	}
	f.count = int(info.count)
	return f, nil
}

// enable switches memory decode and bus mastering on; vfio-pci clears mastering at open, and without it the function's MSI writes are dropped.
func (f *Function) enable() error {
	info := regionInfo{argsz: uint32(unsafe.Sizeof(regionInfo{})), index: regionConfig}
	if _, err := ioctlPtr(f.device, deviceGetRegionInfo, unsafe.Pointer(&info)); err != nil {
		return fmt.Errorf("config space: %w", err)
	}
	at := int64(info.offset) + pciCommand
	var b [2]byte
	if _, err := unix.Pread(f.device, b[:], at); err != nil {
		return fmt.Errorf("reading the command register: %w", err)
	}
	binary.LittleEndian.PutUint16(b[:], binary.LittleEndian.Uint16(b[:])|pciCommandMem|pciCommandBusMS)
	if _, err := unix.Pwrite(f.device, b[:], at); err != nil {
		return fmt.Errorf("writing the command register: %w", err)
	}
	return nil
}

// Address returns the function's address.
func (f *Function) Address() string { return f.address }

// Vectors returns the size of the MSI-X table.
func (f *Function) Vectors() int { return f.count }

// Enabled returns how many vectors are enabled: indices 0..n-1.
func (f *Function) Enabled() int { return len(f.events) }

// AddVector enables the next vector, allocating one interrupt in the kernel. Nobody reads its eventfd: an eventfd counts to 2^64-2
// before it could matter, so draining it would only cost the guest time that the experiment measures.
func (f *Function) AddVector() (err error) {
	k := len(f.events)
	if k >= f.count {
		return fault.New(agentapi.CodeInvalid, "function %s has vectors 0-%d only", f.address, f.count-1)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("function %s: vector %d: eventfd: %w", f.address, k, err)
	}
	set := setIRQs{
		argsz: setIRQsHeader + 4, flags: setDataEventFD | setTrigger, index: irqMSIX,
		start: uint32(k), count: 1, eventfd: int32(fd),
	}
	if _, err := ioctlPtr(f.device, deviceSetIRQs, unsafe.Pointer(&set)); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w: the CPUs allowed by the default affinity have no free interrupt vector left", err)
		}
		return fmt.Errorf("function %s: vector %d: %w", f.address, k, err)
	}
	f.events = append(f.events, fd)
	return nil
}

// GiveUp frees the interrupt of an enabled vector.
func (f *Function) GiveUp(k int) error {
	if k < 0 || k >= len(f.events) || f.events[k] < 0 {
		return fault.New(agentapi.CodeInvalid, "function %s has no vector %d enabled", f.address, k)
	}
	set := setIRQs{argsz: setIRQsHeader + 4, flags: setDataEventFD | setTrigger, index: irqMSIX, start: uint32(k), count: 1, eventfd: -1}
	if _, err := ioctlPtr(f.device, deviceSetIRQs, unsafe.Pointer(&set)); err != nil {
		return fmt.Errorf("function %s: giving up vector %d: %w", f.address, k, err)
	}
	unix.Close(f.events[k])
	f.events[k] = -1
	return nil
}

// GivenUp reports whether a vector's interrupt was freed.
func (f *Function) GivenUp(k int) bool { return f.events[k] < 0 }

// ReadRegister reads size bytes of BAR 0, 1, 2, 4 or 8 at a multiple of that. The access goes all the way to the device.
func (f *Function) ReadRegister(offset uint64, size int) (uint64, error) {
	if f.bar0.argsz == 0 {
		info := regionInfo{argsz: uint32(unsafe.Sizeof(regionInfo{})), index: regionBAR0}
		if _, err := ioctlPtr(f.device, deviceGetRegionInfo, unsafe.Pointer(&info)); err != nil {
			return 0, fmt.Errorf("function %s: BAR 0: %w", f.address, err)
		}
		f.bar0 = info
	}
	if size > 8 || offset > f.bar0.size || uint64(size) > f.bar0.size-offset {
		return 0, fault.New(agentapi.CodeInvalid, "function %s: %d bytes at %#x do not lie in BAR 0, which has %d", f.address, size, offset, f.bar0.size)
	}
	var b [8]byte
	n, err := unix.Pread(f.device, b[:size], int64(f.bar0.offset+offset))
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes came", n)
	}
	if err != nil {
		return 0, fmt.Errorf("function %s: reading %d bytes at %#x of BAR 0: %w", f.address, size, offset, err)
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// Close frees all vectors and gives the function back to vfio-pci.
func (f *Function) Close() error {
	var errs []error
	if len(f.events) > 0 {
		set := setIRQs{argsz: setIRQsHeader, flags: setDataNone | setTrigger, index: irqMSIX}
		if _, err := ioctlPtr(f.device, deviceSetIRQs, unsafe.Pointer(&set)); err != nil {
			errs = append(errs, fmt.Errorf("function %s: disabling MSI-X: %w", f.address, err))
		}
	}
	for _, fd := range f.events {
		unix.Close(fd)
	}
	f.events = nil
	for _, fd := range []*int{&f.device, &f.group, &f.container} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
	return errors.Join(errs...)
}

func open(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

func ioctl(fd int, request, arg uintptr) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, arg)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

func ioctlPtr(fd int, request uintptr, arg unsafe.Pointer) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}
