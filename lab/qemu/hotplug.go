package qemu

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/digitalocean/go-qemu/qmp"

	"irqlab/lab/machine"
)

// hotplugTimeout is how long the guest may take to answer a request to eject or to accept a CPU: an idle one takes a tenth of a second, and a busy machine many times that.
const hotplugTimeout = 60 * time.Second

// cpuSlot is a place for a CPU, as query-hotpluggable-cpus tells it.
type cpuSlot struct {
	Type    string         `json:"type"`
	Props   map[string]any `json:"props"`    // what device_add wants: socket-id, core-id, thread-id, node-id…
	QOMPath string         `json:"qom-path"` // of the CPU that is there; "": none
}

// cpuSlots are the places by CPU number. QEMU numbers CPUs as a shape does, thread by thread, core by core, socket by socket, and so does the guest's kernel, which
// takes them in the order of the ACPI tables.
func (p *Process) cpuSlots(ctx context.Context) ([]cpuSlot, error) {
	var list []cpuSlot
	if err := p.QMP(ctx, "query-hotpluggable-cpus", nil, &list); err != nil {
		return nil, err
	}
	s := p.machine.Shape
	slots := make([]cpuSlot, (s.Sockets+p.machine.SpareSockets)*s.Cores*s.Threads)
	for _, e := range list {
		index := 0
		for _, level := range []struct {
			name  string
			count int
		}{{"socket-id", s.Sockets + p.machine.SpareSockets}, {"core-id", s.Cores}, {"thread-id", s.Threads}} {
			id, ok := e.Props[level.name].(float64)
			if !ok || id < 0 || int(id) >= level.count {
				return nil, fmt.Errorf("QMP query-hotpluggable-cpus: a CPU with %s %v, where the machine has %d", level.name, e.Props[level.name], level.count)
			}
			index = index*level.count + int(id)
		}
		slots[index] = e
	}
	return slots, nil
}

// CPURefusedError tells that the guest's kernel did not do what ACPI asked of it.
type CPURefusedError struct {
	CPU    int
	Eject  bool   // it was to go; else it had been plugged in
	Status uint32 // of _OST (ACPI 6.5, section 6.3.5)
}

func (e *CPURefusedError) Error() string {
	meaning := map[uint32]string{1: "failure", 2: "unrecognized notify", 0x80: "not supported", 0x81: "device in use", 0x82: "device busy", 0x83: "ejection dependency is busy"}[e.Status]
	if meaning == "" {
		meaning = "unknown status"
	}
	did := "take"
	if e.Eject {
		did = "eject"
	}
	return fmt.Sprintf("CPU %d: the guest refuses to %s it: %s (_OST %#x)", e.CPU, did, meaning, e.Status)
}

// Sources of _OST: the notification that the guest answers (ACPI 6.5, table 5.124), and what it may say.
const (
	ostDeviceCheck  = 1
	ostEjectRequest = 3

	ostSuccess         = 0
	ostEjectInProgress = 0x84 // Linux says so before it begins
)

// answered tells the guest's last word on a notification about a CPU, in an ACPI_DEVICE_OST event. It is what tells that a CPU is gone, too: QEMU 11.1 may send the
// CPU's DEVICE_DELETED much later, when the last reference to it is dropped.
func answered(e qmp.Event, cpu int, source uint32) (status uint32, ok bool) {
	info, _ := e.Data["info"].(map[string]any)
	from, _ := info["source"].(float64)
	what, isStatus := info["status"].(float64)
	ok = e.Event == "ACPI_DEVICE_OST" && info["slot-type"] == "CPU" && info["slot"] == strconv.Itoa(cpu) && uint32(from) == source && isStatus
	return uint32(what), ok && uint32(what) != ostEjectInProgress
}

// UnplugCPU asks the guest, through ACPI, to eject a CPU, and waits until it has. What would abort QEMU, or what no guest can grant, is a *machine.HotplugError before QEMU is asked.
// A guest that says no is a *CPURefusedError.
func (p *Process) UnplugCPU(ctx context.Context, cpu int) error {
	if err := p.machine.CheckUnplug(cpu); err != nil {
		return err
	}
	p.hotplug.Lock()
	defer p.hotplug.Unlock()
	slots, err := p.cpuSlots(ctx)
	if err != nil {
		return err
	}
	path := slots[cpu].QOMPath
	if path == "" {
		return &machine.HotplugError{CPU: cpu, Why: "unplugged already"}
	}
	since := p.eventCount()
	if err := p.QMP(ctx, "device_del", map[string]any{"id": path}, nil); err != nil {
		return fmt.Errorf("CPU %d: %w", cpu, err)
	}
	return p.hotplugAnswer(ctx, since, cpu, ostEjectRequest)
}

// PlugCPU puts a CPU back that was unplugged, and waits until the guest has taken it; it is then present and not online. What would abort QEMU is a *machine.HotplugError
// before QEMU is asked: under TCG every re-plug takes some of the machine's headroom.
func (p *Process) PlugCPU(ctx context.Context, cpu int) error {
	p.hotplug.Lock()
	defer p.hotplug.Unlock()
	if err := p.machine.CheckReplug(cpu, p.replugs); err != nil {
		return err
	}
	slots, err := p.cpuSlots(ctx)
	if err != nil {
		return err
	}
	if slots[cpu].QOMPath != "" {
		return &machine.HotplugError{CPU: cpu, Why: "not unplugged"}
	}
	since := p.eventCount()
	p.replugs++
	// An id of its own each time: QEMU forgets that of a removed device only when the last reference to it is gone.
	args := map[string]any{"driver": slots[cpu].Type, "id": fmt.Sprintf("cpu%d-%d", cpu, p.replugs)}
	for k, v := range slots[cpu].Props {
		args[k] = v
	}
	if err := p.QMP(ctx, "device_add", args, nil); err != nil {
		return fmt.Errorf("CPU %d: %w", cpu, err)
	}
	return p.hotplugAnswer(ctx, since, cpu, ostDeviceCheck)
}

// hotplugAnswer awaits the guest's answer to a notification about a CPU that was sent after the first since events.
func (p *Process) hotplugAnswer(ctx context.Context, since, cpu int, source uint32) error {
	timed, cancel := context.WithTimeoutCause(ctx, hotplugTimeout, &SilentCPUError{CPU: cpu, Eject: source == ostEjectRequest, After: hotplugTimeout})
	defer cancel()
	e, err := p.waitEvent(timed, since, func(e qmp.Event) bool {
		_, ok := answered(e, cpu, source)
		return ok
	})
	if err != nil {
		return err
	}
	if status, _ := answered(e, cpu, source); status != ostSuccess {
		return &CPURefusedError{CPU: cpu, Eject: source == ostEjectRequest, Status: status}
	}
	return nil
}
