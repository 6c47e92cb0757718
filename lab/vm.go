package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/crypto/ssh"

	"irqlab/guestagent/agentapi"
	"irqlab/images"
	"irqlab/lab/machine"
	"irqlab/lab/qemu"
)

// DefaultKernel is the kernel of a Config that names none.
const DefaultKernel = "debian:7.3"

// Accelerators a Config may ask for.
const (
	AccelAuto = "auto" // KVM where it works, else TCG
	AccelKVM  = "kvm"
	AccelTCG  = "tcg"
)

// Ways to start.
const (
	StartAuto = "auto" // warm, and cold where QEMU cannot save or restore the machine
	StartCold = "cold" // boot
	StartWarm = "warm" // from the cache's snapshot of the machine, which is made first if there is none
)

// FunctionSlot is the id of the slot that Config.Slots has when it is left empty.
const FunctionSlot = "function"

// Config says what to start. The zero value is a VM of the default shape with the default kernel and one slot on node 0.
type Config struct {
	Name        string              // names the run directory and `irqlab ssh NAME`; default: made up
	Shape       machine.Shape       // zero: machine.DefaultShape
	Kernel      string              // kernel SPEC as in `irqlab run --help`; "": DefaultKernel
	Irqchip     machine.Irqchip     // "": msi
	Accel       string              // AccelAuto, AccelKVM or AccelTCG; "": auto
	Start       string              // StartAuto, StartCold or StartWarm; "": cold
	Slots       []machine.Slot      // where functions can be attached; nil: one, FunctionSlot, on node 0
	Functions   []FunctionConfig    // attached at the earliest moment: before a restored guest runs, or once a booted one answers. See VM.Function
	Neighbours  []machine.Neighbour // other devices, present from boot
	Replugs     int                 // how often CPUs will be plugged in again (VM.PlugCPU): under TCG the guest then has more possible CPUs than present ones
	Initramfs   *images.Initramfs   // one made before, as for a machine without a Go toolchain; nil: found in the cache or made
	OneThread   bool                // under TCG the vCPUs take turns on one thread, as those of a large guest always do: no CPU can be unplugged then
	Cmdline     []string            // kernel command line words to add
	Modules     []Module            // that take the place of the kernel's own; sent to the guest, so that they are no part of the machine and cost no boot
	Packages    []string            // Debian packages in the guest, by name; see images.Cache.GuestPackages
	QEMU        string              // QEMU binary; "": the host's if it will do, else a fetched one
	Cache       *images.Cache       // nil: the default one
	Keep        bool                // keep the run directory after Close; VM.Dir names it
	ConsoleFile string              // where the serial console is kept; "": in the run directory
	Progress    images.Progress     // may be nil
	// Takes is told the files, and directories of the cache, that the VM is started from before it is; see images.Cache.Recheck. May be nil.
	Takes func(files ...string)
}

// VM is a running guest whose agent answers.
type VM struct {
	Agent  *Agent
	Kernel images.Kernel
	QEMU   images.QEMU
	Accel  machine.Accel
	// AccelReason says why Accel was chosen, for people; empty when it was asked for.
	AccelReason string
	Start       string        // StartCold or StartWarm: how it was started
	Notes       []string      // what was out of the ordinary in that, such as a snapshot that had to be made anew
	Info        agentapi.Info // what the guest said of itself when it had started
	// Modules are those that were put in place of the kernel's own.
	Modules []images.Replacement
	// Packages are those that were asked for, with what they depend on.
	Packages images.GuestPackages
	// Resumed is when a warm guest went on from where its snapshot had stopped it: what its log says of before is from another day. Zero: cold.
	Resumed time.Time

	process   *qemu.Process
	shape     machine.Shape
	slots     []machine.Slot
	disk      bool // to hibernate to is plugged in
	access    access
	mu        sync.Mutex
	functions map[string]*Function
	releases  []func() // of what was reserved for the VM
}

// access is what a person needs to reach a guest from another process; it lies in the run directory.
type access struct {
	ClientKey string `json:"client_key"`
	HostKey   string `json:"host_key"`
	Shared    bool   `json:"shared,omitempty"` // the VM's process lets several in at once
}

// Module is a kernel module by name, and the file it is in.
type Module struct{ Name, File string }

// lastWords is how long QEMU may take to end once its channels have.
const lastWords = 2 * time.Second

const accessFile = "access.json"

// Start resolves QEMU, kernel and initramfs (fetching what is missing), boots the guest and connects to its agent.
//
// A guest that panics or hangs on the way is a *qemu.BootError; an *images.BadKernelError is the mistake of who named the kernel, an *images.BadModuleError of who gave
// a module; anything else is the lab's own failure. ctx bounds the start, not the VM's life: end that with Close.
func Start(ctx context.Context, cfg Config) (*VM, error) {
	b, reason, err := prepare(ctx, cfg)
	if err != nil {
		return nil, err
	}
	start := b.cold
	if b.cfg.Start != StartCold {
		start = b.warm
	}
	vm, err := b.withFiles(ctx, start)
	if err != nil {
		return nil, err
	}
	vm.AccelReason = reason
	if err := vm.replace(ctx, b.modules); err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	return vm, nil
}

// replace puts modules in the place of the image's own.
func (vm *VM) replace(ctx context.Context, modules []images.Replacement) error {
	for _, m := range modules {
		if err := vm.Agent.ReplaceModule(ctx, m.Name, m.Data); err != nil {
			return fmt.Errorf("module %s=%s: %w", m.Name, m.Path, err)
		}
	}
	vm.Modules = modules
	return nil
}

// prepare resolves what a start takes, and says why the accelerator was chosen.
func prepare(ctx context.Context, cfg Config) (b boot, reason string, err error) {
	if cfg, err = cfg.withDefaults(); err != nil {
		return b, "", err
	}
	accel, reason, err := ChooseAccel(cfg.Accel)
	if err != nil {
		return b, "", err
	}
	if !slices.Contains([]string{StartAuto, StartCold, StartWarm}, cfg.Start) {
		return b, "", fmt.Errorf("start %q: there are auto, cold and warm", cfg.Start)
	}
	if cfg.Initramfs == nil {
		if err := cfg.Cache.CheckGuest(ctx); err != nil { // before anything is fetched for it
			return b, "", err
		}
	}
	bin, err := cfg.Cache.QEMU(ctx, cfg.QEMU, cfg.Progress)
	if err != nil {
		return b, "", err // names QEMU
	}
	kernel, err := cfg.Cache.Kernel(ctx, cfg.Kernel, cfg.Progress)
	if err != nil {
		return b, "", images.AsBadKernel(cfg.Kernel, err) // names the kernel
	}
	if cfg.Initramfs == nil {
		i, err := cfg.Cache.Initramfs(ctx, kernel, cfg.Progress)
		if err != nil {
			return b, "", images.AsBadKernel(cfg.Kernel, fmt.Errorf("initramfs for %s: %w", kernel.Release, err))
		}
		cfg.Initramfs = &i
	}
	b = boot{cfg: cfg, bin: bin, kernel: kernel, initramfs: *cfg.Initramfs}
	if b.initramfs, b.packages, err = WithPackages(ctx, cfg.Cache, b.initramfs, cfg.Packages, cfg.Shape.MemoryMiB, cfg.Progress); err != nil {
		return b, "", err
	}
	for _, m := range cfg.Modules {
		r, err := cfg.Cache.Replacement(ctx, kernel, m.Name, m.File)
		if err == nil && !slices.Contains(cfg.Initramfs.Modules, r.Name) {
			err = &images.BadModuleError{Name: m.Name, Path: m.File, Err: fmt.Errorf("guests have the modules %s, and no other", strings.Join(cfg.Initramfs.Modules, ", "))}
		}
		if err != nil {
			return b, "", err
		}
		b.modules = append(b.modules, r)
	}
	if cfg.Takes != nil {
		taken := append([]string{kernel.Image, b.initramfs.Path}, bin.Files()...)
		if kernel.ModulesDir != "" {
			taken = append(taken, kernel.ModulesDir)
		}
		for _, path := range taken {
			if err := cfg.Cache.Pin(path); err != nil {
				return b, "", err
			}
		}
		cfg.Takes(taken...)
	}
	b.machine = machine.Machine{
		Shape:      cfg.Shape,
		Irqchip:    cfg.Irqchip,
		Accel:      accel,
		OneThread:  cfg.OneThread,
		Slots:      cfg.Slots,
		Neighbours: cfg.Neighbours,
		Kernel:     kernel.Image,
		Initramfs:  b.initramfs.Path,
		Cmdline:    cfg.Cmdline,
	}
	b.machine.SpareSockets = b.machine.SpareFor(cfg.Replugs)
	return b, reason, nil
}

// boot is a start under way, all that it takes at hand.
type boot struct {
	cfg       Config
	bin       images.QEMU
	kernel    images.Kernel
	initramfs images.Initramfs
	modules   []images.Replacement
	packages  images.GuestPackages
	machine   machine.Machine
}

// process is the description of the VM's QEMU.
func (b boot) process() qemu.Config {
	return qemu.Config{Name: b.cfg.Name, Command: b.bin.Command, Env: b.bin.Env, Keep: b.cfg.Keep, ConsoleFile: b.cfg.ConsoleFile, Machine: b.machine}
}

func (b boot) vm(p *qemu.Process, start string) *VM {
	return &VM{Packages: b.packages, Kernel: b.kernel, QEMU: b.bin, Accel: b.machine.Accel, Start: start, process: p, shape: b.machine.Shape, slots: b.machine.Slots, functions: map[string]*Function{},
		Agent: newAgent(p.AgentConn())}
}

func (b boot) cold(ctx context.Context) (*VM, error) {
	report(b.cfg.Progress, "booting "+b.kernel.Release)
	process, err := qemu.Start(ctx, b.process())
	if err != nil {
		return nil, err
	}
	vm := b.vm(process, StartCold)
	err = vm.Console().WaitFor(ctx, agentapi.ReadyMessage)
	if err == nil {
		err = vm.publish(access{ClientKey: b.initramfs.ClientKey, HostKey: b.initramfs.HostKey})
	}
	if err == nil {
		vm.Console().Begin()
		vm.Info, err = vm.Agent.Info(ctx)
	}
	if err == nil {
		err = vm.attachAll(ctx, b.cfg.Functions)
	}
	if err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	return vm, nil
}

func report(p images.Progress, what string) {
	if p != nil {
		p(what, 0, 0)
	}
}

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Shape == (machine.Shape{}) {
		cfg.Shape = machine.DefaultShape
	}
	if cfg.Kernel == "" {
		cfg.Kernel = DefaultKernel
	}
	if cfg.Start == "" {
		cfg.Start = StartCold
	}
	if cfg.Irqchip == "" {
		cfg.Irqchip = machine.MSI
	}
	if cfg.Slots == nil {
		cfg.Slots = []machine.Slot{{ID: FunctionSlot}}
	}
	if cfg.Cache == nil {
		c, err := images.OpenCache("")
		if err != nil {
			return cfg, err
		}
		cfg.Cache = c
	}
	return cfg, nil
}

// ChooseAccel turns AccelAuto, AccelKVM or AccelTCG into what this machine can do, with the reason for people; "" is auto.
func ChooseAccel(want string) (_ machine.Accel, reason string, _ error) {
	usable, why := images.KVM()
	switch want {
	case AccelTCG:
		return machine.TCG, "", nil
	case AccelKVM:
		if !usable {
			return "", "", fmt.Errorf("accelerator kvm: %s (use tcg, or auto to fall back to it)", why)
		}
		return machine.KVM, "", nil
	case AccelAuto, "":
		if usable {
			return machine.KVM, why, nil
		}
		return machine.TCG, why, nil
	}
	return "", "", fmt.Errorf("accelerator %q: there are auto, kvm and tcg", want)
}

// publish lets a person in.
func (vm *VM) publish(a access) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(filepath.Join(vm.Dir(), accessFile), b, 0o600, renameio.WithTempDir(vm.Dir())); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	vm.access = a
	return nil
}

// Access is how a person, or this process as one, reaches the guest: by SSH, for shells, commands and files.
func (vm *VM) Access() Access {
	a := Access{Socket: vm.process.SSHSocket(), access: vm.access}
	if a.Shared {
		a.Socket = filepath.Join(vm.Dir(), shareSocket)
	}
	return a
}

// Dir is the VM's run directory: private to the user, removed by Close unless Config.Keep was set.
func (vm *VM) Dir() string { return vm.process.Dir() }

// Console is the guest's serial console, kept from the first line.
func (vm *VM) Console() *qemu.Console { return vm.process.Console() }

// Process is QEMU.
func (vm *VM) Process() *qemu.Process { return vm.process }

// death is how QEMU ended, nil if it runs: the agent's channel ends a moment before it does.
func (vm *VM) death() error {
	select {
	case <-vm.process.Done():
	case <-time.After(lastWords):
	}
	return vm.process.Err()
}

// Explain adds to an error what a hung or dead guest still tells, as an *ExplainedError: QEMU's end, or whether its agent answers, a backtrace of every CPU, the
// registers, and the last console lines. The guest is of no more use after that.
func (vm *VM) Explain(ctx context.Context, err error) error {
	if e := vm.death(); e != nil {
		return &ExplainedError{Err: err, Cause: e}
	}
	e := &ExplainedError{Err: err, Answers: vm.answers(ctx)}
	e.Text, e.Cause = vm.process.Diagnose(ctx)
	return e
}

// Close ends the guest and its functions, and removes the run directory. It may be called again.
func (vm *VM) Close() error {
	_ = vm.Agent.close()
	err := vm.process.Close() // before the functions: QEMU aborts when a function's server leaves first and the guest reboots
	vm.mu.Lock()
	defer vm.mu.Unlock()
	for _, f := range vm.functions {
		err = errors.Join(err, f.close())
	}
	vm.functions = nil
	for _, release := range vm.releases {
		release()
	}
	vm.releases = nil
	return err
}

// Access is how to reach a guest over SSH: VM.Access tells it of one's own VM, Reach of another process's.
type Access struct {
	Socket string // of the guest's second SSH port
	access
}

// Dial logs in to the guest; ctx bounds the handshake. The guest has one seat for this: while somebody sits there, others wait, unless VM.Share lets them in.
func (a Access) Dial(ctx context.Context) (*ssh.Client, error) {
	cfg, err := sshConfig(a.ClientKey, a.HostKey)
	if err != nil {
		return nil, err
	}
	return dialSSH(ctx, newSeat(ctx, a.Socket), cfg)
}

// Connect returns the guest's SSH port as a byte stream for a client that speaks first, as OpenSSH does; ctx bounds the wait for the guest's answer.
func (a Access) Connect(ctx context.Context) Stream { return newSeat(ctx, a.Socket) }

// Stream is a byte stream of which each direction can end by itself.
type Stream interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// NotReadyError is the answer to Reach for a VM that runs, but whose guest serves nobody yet.
type NotReadyError struct{ Name string }

func (e *NotReadyError) Error() string {
	return fmt.Sprintf("VM %s: its guest is still booting, or about to be saved and forked; try again when it has", e.Name)
}

// Reach finds a running VM by name. The error is a *NotReadyError while its guest boots, and a *qemu.NotRunningError when there is none.
func Reach(name string) (Access, error) {
	r, err := qemu.Find(name)
	if err != nil {
		return Access{}, err
	}
	a := Access{Socket: r.SSHSocket}
	b, err := os.ReadFile(filepath.Join(r.Dir, accessFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Access{}, &NotReadyError{Name: name}
	}
	if err == nil {
		err = json.Unmarshal(b, &a.access)
	}
	if err != nil {
		return Access{}, fmt.Errorf("VM %s: %w", name, err)
	}
	if a.Shared {
		a.Socket = filepath.Join(r.Dir, shareSocket)
	}
	return a, nil
}
