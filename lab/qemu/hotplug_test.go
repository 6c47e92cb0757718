package qemu

import (
	"errors"
	"strings"
	"testing"

	"github.com/digitalocean/go-qemu/qmp"

	"irqlab/lab/machine"
)

// QEMU's places for CPUs are found by the numbers that the shape, and so the guest, gives them.
func TestCPUSlots(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Machine.Shape = machine.Shape{Sockets: 1, Cores: 4, Threads: 2, Nodes: 2, MemoryMiB: 512}
	cfg.Machine.SpareSockets = 1
	p := start(t, cfg)
	slots, err := p.cpuSlots(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(slots) != 16 {
		t.Fatalf("%d slots", len(slots))
	}
	paths := map[string]bool{}
	for cpu, s := range slots {
		there := cpu < cfg.Machine.Shape.CPUs()
		if (s.QOMPath != "") != there || s.Type == "" || paths[s.QOMPath] && there {
			t.Errorf("CPU %d: %+v", cpu, s)
		}
		paths[s.QOMPath] = true
		if node := cfg.Machine.Shape.Node(cpu); there && s.Props["node-id"] != float64(node) {
			t.Errorf("CPU %d is on node %v, the shape has it on %d", cpu, s.Props["node-id"], node)
		}
	}
	if err := p.UnplugCPU(testContext(t), 8); err == nil || !strings.Contains(err.Error(), "CPUs 0 to 7") {
		t.Errorf("a CPU of the spare socket: %v", err)
	}
	if err := p.PlugCPU(testContext(t), 7); err == nil || !strings.Contains(err.Error(), "CPU 7: not unplugged") {
		t.Errorf("plugging in a CPU that is there: %v", err)
	}
}

func TestAnswered(t *testing.T) {
	t.Parallel()
	event := func(kind, slot string, source, status any) qmp.Event {
		return qmp.Event{Event: "ACPI_DEVICE_OST", Data: map[string]any{"info": map[string]any{"slot-type": kind, "slot": slot, "source": source, "status": status}}}
	}
	for name, tt := range map[string]struct {
		e      qmp.Event
		status uint32
		ok     bool
	}{
		"ejected":     {event("CPU", "3", 3.0, 0.0), 0, true},
		"busy":        {event("CPU", "3", 3.0, 130.0), 0x82, true},
		"in progress": {event("CPU", "3", 3.0, 132.0), 0x84, false},
		"other CPU":   {event("CPU", "13", 3.0, 0.0), 0, false},
		"memory":      {event("DIMM", "3", 3.0, 0.0), 0, false},
		"taken":       {event("CPU", "3", 1.0, 0.0), 0, false},
		"no status":   {event("CPU", "3", 3.0, nil), 0, false},
		"other event": {qmp.Event{Event: "DEVICE_DELETED", Data: map[string]any{"path": "/machine"}}, 0, false},
		"odd":         {qmp.Event{Event: "ACPI_DEVICE_OST", Data: map[string]any{"info": 3}}, 0, false},
	} {
		if status, ok := answered(tt.e, 3, ostEjectRequest); status != tt.status && tt.ok || ok != tt.ok {
			t.Errorf("%s: %#x %t", name, status, ok)
		}
	}
	err := error(&CPURefusedError{CPU: 3, Eject: true, Status: 0x82})
	var refused *CPURefusedError
	if !errors.As(err, &refused) || err.Error() != "CPU 3: the guest refuses to eject it: device busy (_OST 0x82)" {
		t.Error(err)
	}
}
