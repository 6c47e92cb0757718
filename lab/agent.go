package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"irqlab/devmodel/trace"
	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/lab/guestlog"
)

// Agent is the guest's PID 1, reached over a virtio-serial port that nobody else can reach. Its methods may be called from several goroutines; a call that takes long
// keeps no other waiting, and one that is given up breaks no other.
// A failure that the guest reports is an *agentapi.Error; any other error is the end of the call's context, or means that the channel is gone.
type Agent struct {
	// Trace receives every call that ends, and what CPUs were told; nil: nobody. It is set before the agent is shared.
	Trace *trace.Recorder

	client *agentapi.Client
}

// newAgent speaks with the guest's agent over its port and owns the connection from then on.
func newAgent(port net.Conn) *Agent { return &Agent{client: agentapi.NewClient(port)} }

// close drops the connection, which also ends the calls that are under way.
func (a *Agent) close() error { return a.client.Close() }

// Kinds of events in an Agent's and a Function's trace.
var (
	// TraceCall is the end of a call to the agent, which took so many microseconds; the text is the method and, if it failed, why.
	TraceCall = trace.NewKind("agent-call", "microseconds", "failed")
	// TraceCPU: the guest has taken a CPU on- or offline for the lab; the text is by which road.
	TraceCPU = trace.NewKind("cpu", "cpu", "online")
	// TraceRead is what the kernel says of a vector and of one CPU: how many of the vector's interrupts that CPU has handled, and whether the vector is routed to it now.
	// pending: the kernel has yet to move it into its requested mask.
	TraceRead = trace.NewKind("vector-read", "vector", "irq", "cpu", "handled", "effective", "pending")
	// TraceMasks is what was asked for a vector, what the kernel says is requested, and where it is effective, in the text; whether the first two differ.
	TraceMasks = trace.NewKind("vector-masks", "vector", "irq", "differ")
)

// call asks the agent for one method and returns its typed answer.
func call[Result any](ctx context.Context, a *Agent, method string, params any) (Result, error) {
	var r Result
	began := a.Trace.Now()
	asked := time.Now()
	err := a.client.Call(ctx, method, params, &r)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.As(err, new(*agentapi.Error)) {
		err = &UnansweredError{Method: method, After: time.Since(asked), Err: err}
	} else if err != nil && errors.As(err, new(*agentapi.Error)) {
		err = &CallError{Method: method, Err: err}
	}
	took := uint64((a.Trace.Now() - began).Microseconds())
	if err != nil {
		a.Trace.Note(TraceCall, fmt.Sprintf("%s: %.500s", method, err), took, 1)
	} else {
		a.Trace.Note(TraceCall, method, took)
	}
	return r, err
}

// Info describes the guest: kernel, command line, CPUs and nodes as they are now.
func (a *Agent) Info(ctx context.Context) (agentapi.Info, error) {
	return call[agentapi.Info](ctx, a, agentapi.MethodInfo, agentapi.InfoParams{Version: agentapi.Version})
}

// LoadModule inserts a kernel module of the image after those it depends on, and returns the names inserted.
func (a *Agent) LoadModule(ctx context.Context, name, params string) ([]string, error) {
	r, err := call[agentapi.LoadModuleResult](ctx, a, agentapi.MethodLoadModule, agentapi.LoadModuleParams{Name: name, Params: params})
	return r.Loaded, err
}

// UnloadModule removes a kernel module.
func (a *Agent) UnloadModule(ctx context.Context, name string) error {
	_, err := call[agentapi.Empty](ctx, a, agentapi.MethodUnloadModule, agentapi.UnloadModuleParams{Name: name})
	return err
}

// ReplaceModule sends the guest a module, which it inserts from then on in place of the one of that name in its image.
func (a *Agent) ReplaceModule(ctx context.Context, name string, data []byte) error {
	sum := sha256.Sum256(data)
	p := agentapi.ReplaceModuleParams{Name: name, Size: len(data), SHA256: hex.EncodeToString(sum[:])}
	for part := range slices.Chunk(data, agentapi.ModulePart) {
		p.Data = part
		if _, err := call[agentapi.Empty](ctx, a, agentapi.MethodReplaceModule, p); err != nil {
			return err
		}
		p.Offset += len(part)
	}
	return nil
}

// FindFunction finds a PCI function by vendor and device id, with any driver or none.
func (a *Agent) FindFunction(ctx context.Context, vendor, device uint16) (agentapi.FunctionInfo, error) {
	return call[agentapi.FunctionInfo](ctx, a, agentapi.MethodFindFunction, agentapi.FindFunctionParams{Vendor: vendor, Device: device})
}

// rescan has the guest find the functions that were plugged in.
func (a *Agent) rescan(ctx context.Context) error {
	_, err := call[agentapi.Empty](ctx, a, agentapi.MethodRescan, agentapi.Empty{})
	return err
}

// OpenFunction binds a PCI function to vfio-pci and opens it from user space, without a vector yet.
func (a *Agent) OpenFunction(ctx context.Context, p agentapi.OpenFunctionParams) (agentapi.FunctionInfo, error) {
	return call[agentapi.FunctionInfo](ctx, a, agentapi.MethodOpenFunction, p)
}

// AddVectors enables count MSI-X vectors of an opened function one at a time, and returns all that are enabled, by ascending index. When the kernel refuses one, which
// is an *agentapi.Error of code refused, those before it are returned, too.
func (a *Agent) AddVectors(ctx context.Context, address string, first, count int) ([]agentapi.Vector, error) {
	r, err := call[agentapi.AddVectorsResult](ctx, a, agentapi.MethodAddVectors, agentapi.AddVectorsParams{Address: address, First: first, Count: count})
	if err == nil && r.Refused != nil {
		err = &CallError{Method: agentapi.MethodAddVectors, Err: r.Refused}
	}
	return r.Vectors, err
}

// ReadRegister reads a register of BAR 0 of an opened function, over and over, and tells how long that took by the guest's clock.
func (a *Agent) ReadRegister(ctx context.Context, p agentapi.ReadRegisterParams) (agentapi.ReadRegisterResult, error) {
	return call[agentapi.ReadRegisterResult](ctx, a, agentapi.MethodReadRegister, p)
}

// FunctionIRQs lists the interrupts of a function bound to any driver.
func (a *Agent) FunctionIRQs(ctx context.Context, address string) ([]agentapi.Vector, error) {
	r, err := call[agentapi.AddVectorsResult](ctx, a, agentapi.MethodFunctionIRQs, agentapi.FunctionIRQsParams{Address: address})
	return r.Vectors, err
}

// Bind has a driver of the kernel probe a function that has none. The probe's own failure is the error.
func (a *Agent) Bind(ctx context.Context, address, driver string) error {
	_, err := call[agentapi.Empty](ctx, a, agentapi.MethodBind, agentapi.BindParams{Address: address, Driver: driver})
	return err
}

// Unbind takes a function from its driver, which removes what it set up.
func (a *Agent) Unbind(ctx context.Context, address string) error {
	_, err := call[agentapi.Empty](ctx, a, agentapi.MethodUnbind, agentapi.FunctionParams{Address: address})
	return err
}

// ResetFunction has the kernel reset a function, through its function-level reset. A driver that is bound and has no reset handler is not told: mana has none.
func (a *Agent) ResetFunction(ctx context.Context, address string) error {
	_, err := call[agentapi.Empty](ctx, a, agentapi.MethodReset, agentapi.FunctionParams{Address: address})
	return err
}

// CloseFunction frees an opened function's vectors and gives the function back.
func (a *Agent) CloseFunction(ctx context.Context, address string) error {
	_, err := call[agentapi.Empty](ctx, a, agentapi.MethodCloseFunction, agentapi.CloseFunctionParams{Address: address})
	return err
}

// Apply has the guest compute a strategy's masks from its own topology and write them.
func (a *Agent) Apply(ctx context.Context, p agentapi.ApplyParams) (agentapi.ApplyResult, error) {
	return call[agentapi.ApplyResult](ctx, a, agentapi.MethodApply, p)
}

// SetAffinity writes masks.
func (a *Agent) SetAffinity(ctx context.Context, masks []agentapi.AppliedMask) error {
	_, err := call[agentapi.Empty](ctx, a, agentapi.MethodSetAffinity, agentapi.SetAffinityParams{Masks: masks})
	return err
}

// Occupy tops up the number of device interrupt vectors that sit on each CPU with vectors of an opened function.
func (a *Agent) Occupy(ctx context.Context, p agentapi.OccupyParams) (agentapi.OccupyResult, error) {
	return call[agentapi.OccupyResult](ctx, a, agentapi.MethodOccupy, p)
}

// SetCPU takes a CPU on- or offline through sysfs and returns the CPUs online afterwards.
func (a *Agent) SetCPU(ctx context.Context, cpu int, online bool) (cpulist.List, error) {
	r, err := call[agentapi.SetCPUResult](ctx, a, agentapi.MethodSetCPU, agentapi.SetCPUParams{CPU: cpu, Online: online})
	switch {
	case err != nil:
	case online:
		a.Trace.Note(TraceCPU, "sysfs", uint64(cpu), 1)
	default:
		a.Trace.Note(TraceCPU, "sysfs", uint64(cpu), 0)
	}
	return r.Online, err
}

// Storm takes CPUs offline and online again, one after the other, so many times, and writes masks at the end of each round. The guest does so by itself, and cannot be
// stopped: rounds should be few. Its log tells of each CPU that goes and comes.
func (a *Agent) Storm(ctx context.Context, cpus cpulist.List, rounds int, masks []agentapi.AppliedMask) error {
	_, err := call[agentapi.Empty](ctx, a, agentapi.MethodStorm, agentapi.StormParams{CPUs: cpus, Rounds: rounds, Masks: masks})
	return err
}

// AwaitTotals waits until every IRQ's total count has risen above the given one, and returns them. Unlike Await it costs the guest little.
func (a *Agent) AwaitTotals(ctx context.Context, above map[int]uint64, timeout time.Duration) (map[int]uint64, error) {
	r, err := call[agentapi.TotalsResult](ctx, a, agentapi.MethodAwaitTotals, agentapi.AwaitParams{Above: above, TimeoutMS: int(timeout.Milliseconds())})
	return r.Totals, err
}

// ReadDisks reads from each of the machine's disks, so many times from each online CPU, and tells which interrupts served that.
func (a *Agent) ReadDisks(ctx context.Context, reads int) (agentapi.DisksResult, error) {
	return call[agentapi.DisksResult](ctx, a, agentapi.MethodReadDisks, agentapi.ReadDisksParams{Reads: reads})
}

// Log returns kernel log records with a sequence number above after; 0 returns all.
func (a *Agent) Log(ctx context.Context, after uint64) (agentapi.LogResult, error) {
	return call[agentapi.LogResult](ctx, a, agentapi.MethodLog, agentapi.LogParams{After: after})
}

// Mark adds a line to the kernel log and returns its record, which tells the log's clock at that moment. The text is a line of printable ASCII.
func (a *Agent) Mark(ctx context.Context, text string) (agentapi.LogRecord, error) {
	return call[agentapi.LogRecord](ctx, a, agentapi.MethodMark, agentapi.MarkParams{Text: text})
}

// MarkShown is Mark whose line the console shows, too: once it has, it has shown whatever was logged before.
func (a *Agent) MarkShown(ctx context.Context, text string) error {
	_, err := call[agentapi.LogRecord](ctx, a, agentapi.MethodMark, agentapi.MarkParams{Text: text, Shown: true})
	return err
}

// Warnings returns the kernel log records that are warnings or worse, which every line of a report of trouble is; a tenth of the log.
func (a *Agent) Warnings(ctx context.Context) (agentapi.LogResult, error) {
	return call[agentapi.LogResult](ctx, a, agentapi.MethodLog, agentapi.LogParams{Below: guestlog.ShownBelow})
}

// Links lists the guest's network interfaces.
func (a *Agent) Links(ctx context.Context) ([]agentapi.Link, error) {
	r, err := call[agentapi.LinksResult](ctx, a, agentapi.MethodLinks, agentapi.Empty{})
	return r.Links, err
}

// SetLink changes a network interface and returns its new state.
func (a *Agent) SetLink(ctx context.Context, p agentapi.SetLinkParams) (agentapi.Link, error) {
	return call[agentapi.Link](ctx, a, agentapi.MethodSetLink, p)
}

// ProbeFailed tells the driver core's line about a failed probe of a driver: "mana 0000:01:00.0: probe with driver mana failed with error -28", or up to 6.6
// "mana: probe of 0000:01:00.0 failed with error -28".
func ProbeFailed(driver, line string) bool {
	return strings.HasPrefix(line, driver) && strings.Contains(line, "probe ") && strings.Contains(line, " failed with error ")
}
