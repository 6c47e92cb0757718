package lab

import (
	"context"
	"fmt"
	"sync"
	"syscall"

	"irqlab/lab/machine"
)

// Open files, by whom (counted with QEMU 11.1.3: 33 and 21 beside one for each vector, of a machine with one node; the rest is room).
const (
	ownFiles       = 32 // irqlab's, with no VM: standard streams, the cache, what the runtime has
	vmFiles        = 32 // irqlab's, of a VM: channels, sockets, memory
	qemuFiles      = 56 // QEMU's
	filesPerQueue  = 4  // of a neighbour, in QEMU: eventfds of both directions, and as many again under KVM
	filesPerVector = 1  // in irqlab, the eventfd that QEMU sends
)

// FilesError tells that a process may not have as many files open as a VM takes. QEMU and the function's model would go on without the eventfds of some vectors, which
// would look like lost interrupts.
type FilesError struct {
	Who         string // irqlab or QEMU
	Need, Limit int    // open files; the hard limit
}

func (e *FilesError) Error() string {
	return fmt.Sprintf("%s needs up to %d open files, and the hard limit is %d: raise it to that (ulimit -Hn %d, as root, or LimitNOFILE= of the service), or have fewer vectors or jobs",
		e.Who, e.Need, e.Limit, e.Need)
}

// files is what a VM takes in this process and in QEMU, with functions of so many vectors.
func (cfg Config) files(vectors int) (own, inQEMU int) {
	shape := cfg.Shape
	if shape == (machine.Shape{}) {
		shape = machine.DefaultShape
	}
	own = vmFiles + shape.Nodes + filesPerVector*vectors
	inQEMU = qemuFiles + shape.Nodes + 2*vectors // under KVM a vector has a second eventfd
	if cfg.Accel == AccelTCG {
		inQEMU -= vectors
	}
	for _, n := range cfg.Neighbours {
		inQEMU += filesPerQueue * (n.Queues + 1)
	}
	return own, inQEMU
}

// Files is how many files this process needs open for a VM, itself left out. The error is a *FilesError if this process or its QEMU may not have what the VM takes.
func Files(cfg Config, functions []FunctionConfig) (int, error) {
	if cfg.Accel != AccelKVM {
		if accel, _, err := ChooseAccel(cfg.Accel); err == nil && accel == machine.TCG {
			cfg.Accel = AccelTCG
		}
	}
	vectors := 0
	for _, f := range functions {
		vectors += f.Vectors
	}
	own, inQEMU := cfg.files(vectors)
	limit, err := FileLimit()
	switch {
	case err != nil:
		return own, err
	case ownFiles+own > limit:
		return own, &FilesError{"irqlab", ownFiles + own, limit}
	case inQEMU > limit:
		return own, &FilesError{"QEMU", inQEMU, limit}
	}
	return own, nil
}

// FileLimit is the hard limit of open files, which a process may raise its own to, what this process needs without any VM included.
func FileLimit() (int, error) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("the limit of open files: %w", err)
	}
	return int(min(r.Max, 1<<30)), nil
}

// FilesForVMs is the part of the limit that VMs can share out; see Files.
func FilesForVMs() int {
	limit, err := FileLimit()
	if err != nil {
		return 0
	}
	return limit - ownFiles
}

// opened are the files that this process's VMs may have open.
var opened struct {
	sync.Mutex
	files int
}

// reserve makes sure that so many more files can be open in this process, and raises its limit for that where it may. What is given is handed back by release.
func reserve(n int) (release func(), err error) {
	opened.Lock()
	defer opened.Unlock()
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return nil, fmt.Errorf("the limit of open files: %w", err)
	}
	need := uint64(ownFiles + opened.files + n)
	switch {
	case need > r.Max:
		return nil, &FilesError{"irqlab, with the VMs it has,", int(need), int(r.Max)}
	case need > r.Cur:
		r.Cur = need
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
			return nil, fmt.Errorf("raising the limit of open files to %d: %w", need, err)
		}
	}
	opened.files += n
	return sync.OnceFunc(func() {
		opened.Lock()
		defer opened.Unlock()
		opened.files -= n
	}), nil
}

// withFiles is start, with the files that the VM takes reserved until it is closed. Those of its functions are as they are attached, and looked at before anything is begun.
func (b boot) withFiles(ctx context.Context, start func(context.Context) (*VM, error)) (*VM, error) {
	if _, err := Files(b.cfg, b.cfg.Functions); err != nil {
		return nil, err
	}
	own, _ := b.cfg.files(0)
	release, err := reserve(own)
	if err != nil {
		return nil, err
	}
	vm, err := start(ctx)
	if err != nil {
		release()
		return nil, err
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.releases = append(vm.releases, release)
	return vm, nil
}

// makeRoom lets this process have the files open that another function takes. QEMU raises its own limit when it starts (seen with 11.1.3). The lock is held.
func (vm *VM) makeRoom(cfg FunctionConfig) error {
	release, err := reserve(filesPerVector * cfg.Vectors)
	if err != nil {
		return err
	}
	vm.releases = append(vm.releases, release)
	return nil
}
