package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"irqlab/devmodel"
	"irqlab/devmodel/inject"
	"irqlab/devmodel/mana"
	"irqlab/devmodel/pcifn"
	"irqlab/devmodel/trace"
	"irqlab/devmodel/vfiouser"
	"irqlab/guestagent/cpulist"
)

// Function is a PCI function that this process serves to a VM.
type Function struct {
	PCI   *pcifn.Function
	MANA  *mana.Function
	Trace *trace.Recorder

	device *devmodel.Device
	served chan error // takes what Serve returned, once
}

// FunctionConfig describes a function to attach.
type FunctionConfig struct {
	Slot     string      // a slot of the VM's Config; "": FunctionSlot
	DeviceID uint16      // 0: ManaID, which the kernel's mana driver binds to
	Vectors  int         // MSI-X table size, 1 to 2048
	MANA     mana.Config // what the function tells its driver
	Trace    *trace.Recorder
	// Inject makes the function stand still or misbehave at chosen steps of its protocol, also by rules added while it runs; nil: never.
	Inject *inject.Controller
}

// PCI ids of the functions.
const (
	VendorID   = pcifn.DefaultVendorID
	ManaID     = pcifn.DefaultDeviceID
	PressureID = 0xfffe // no driver knows it: a function whose vectors the agent places on CPUs of its choice
)

// NewFunction makes a function that no VM has yet, validated.
func NewFunction(cfg FunctionConfig) (*Function, error) {
	cfg.MANA.Inject = cfg.Inject
	m, err := mana.New(cfg.MANA)
	if err != nil {
		return nil, err
	}
	if cfg.Vectors == 0 {
		return nil, errors.New("pci function: 0 vectors: an MSI-X table has at least 1")
	}
	pci := pcifn.DefaultConfig()
	pci.DeviceID, pci.Vectors, pci.Trace = cmp.Or(cfg.DeviceID, ManaID), cfg.Vectors, cfg.Trace
	pci.Inject = cfg.Inject
	p, err := pcifn.New(pci, m)
	if err != nil {
		return nil, err
	}
	return &Function{PCI: p, MANA: m, Trace: p.Trace()}, nil
}

// Attach makes a function, serves it, and plugs it into one of the VM's slots. It stays until the VM is closed: QEMU cannot unplug it (it aborts).
func (vm *VM) Attach(ctx context.Context, cfg FunctionConfig) (*Function, error) {
	if cfg.Slot == "" {
		cfg.Slot = FunctionSlot
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.functions == nil || vm.functions[cfg.Slot] != nil {
		return nil, fmt.Errorf("slot %s: taken, or the VM is closed", cfg.Slot)
	}
	if err := vm.makeRoom(cfg); err != nil {
		return nil, err
	}
	f, err := NewFunction(cfg)
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(vm.Dir(), cfg.Slot+".sock")
	if f.device, err = devmodel.Listen(socket, f.PCI); err != nil {
		return nil, errors.Join(err, f.MANA.Close())
	}
	f.served = make(chan error, 1)
	go func() { f.served <- f.device.Serve(context.Background()) }()
	if err := vm.process.AttachFunction(ctx, cfg.Slot, socket); err != nil {
		return nil, errors.Join(err, f.close())
	}
	vm.functions[cfg.Slot] = f
	return f, nil
}

func (vm *VM) attachAll(ctx context.Context, cfgs []FunctionConfig) error {
	for _, c := range cfgs {
		if _, err := vm.Attach(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// Function returns the function in a slot, nil if there is none.
func (vm *VM) Function(slot string) *Function {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.functions[slot]
}

func (f *Function) close() error {
	err := f.device.Close() // ends Serve
	return errors.Join(err, <-f.served, f.MANA.Close(), f.defect(), f.lost())
}

// lost tells of vectors whose eventfds did not arrive.
func (f *Function) lost() error {
	var lost cpulist.List
	for _, v := range f.PCI.VectorStates() {
		if v.Lost > 0 {
			lost = append(lost, v.Index)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return fmt.Errorf("the eventfds of vectors %s were sent to the function and did not arrive: this process has no descriptors left (ulimit -n)", lost)
}

// defect tells if the function's model panicked. The client was given an error and the VM went on, but nothing seen since can be trusted.
func (f *Function) defect() error {
	events, _ := f.Trace.Events()
	for _, e := range events {
		if e.Kind == vfiouser.TracePanic {
			return fmt.Errorf("the function's model has a defect: %s", e.Text)
		}
	}
	return nil
}
