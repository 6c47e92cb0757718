// Package lifecycle takes the kernel's own MANA driver through all that can happen to a driver, cycle after cycle: load, bring up, change channels, down and up,
// reset service, unbind, function-level reset, bind, unload. After each step it compares what the guest says with what the device knows, and it ends at the first
// step that does not come out as it should.
//
// It judges a driver (or, the other way round, the device model) and knows neither scenarios nor where interrupts ought to land.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"irqlab/devmodel/gdma"
	"irqlab/devmodel/mana"
	"irqlab/devmodel/pcifn"
	"irqlab/devmodel/trace"
	"irqlab/guestagent/agentapi"
	"irqlab/lab"
)

// Step is one thing that happens to the driver.
type Step string

// The steps of a cycle, in order. The link is up when the driver is unbound and when it is unloaded.
const (
	Load         Step = "load"          // the module, until all links are registered
	Up           Step = "up"            // all links, by netlink
	Settle       Step = "settle"        // every vector is fired and has to be handled
	Channels     Step = "channels"      // 1 to the most the driver offers, by ethtool's netlink family
	Down         Step = "down"          //
	UpAgain      Step = "up again"      //
	ResetService Step = "reset service" // EQE 135: done by drivers that say they can (6.17+), ignored by the others
	Unbind       Step = "unbind"        //
	FLR          Step = "flr"           // through sysfs, while no driver is bound: no version of the driver has a reset handler, so a bound one would lose its channel untold
	Bind         Step = "bind"          // and all links up with their default number of channels
	Unload       Step = "unload"        // the module
)

// Steps are the steps of one cycle.
var Steps = []Step{Load, Up, Settle, Channels, Down, UpAgain, ResetService, Unbind, FLR, Bind, Unload}

// SelfReset is the driver capability that says it handles a reset request (EQE 135), by bit of the first capability word.
const SelfReset = 1 << 14

// Times the guest is given. The driver waits 30 s for any one answer of the device and for a test event. In a reset it sleeps 10 s, and waits up to 10 s for the fence of
// every receive queue whose request a later one has overtaken.
const (
	registerTime = 90 * time.Second
	resetTime    = 4 * time.Minute
	departure    = 10 * time.Second // from the driver's last word to QEMU having taken back the vectors
	poll         = 20 * time.Millisecond
)

const (
	module  = "mana"
	logTail = 40 // lines of the driver's log in an error
)

// Config says how often.
type Config struct {
	Cycles   int                                            // 0: 1
	Progress func(cycle int, step Step, took time.Duration) // after each step; may be nil
}

// Report is what was found out on the way.
type Report struct {
	Driver    gdma.Driver
	SelfReset bool // it handled reset requests; else it ignored them, and that was checked
	Channels  int  // the most a link can have
	Cycles    int  // completed
	Took      map[Step][]time.Duration
	Resets    int // reset services that ran
	// Abandoned is what drivers left in the device when they reset, and what it and they said of it. A driver that resets posts its last requests without waiting for
	// their answers (reference, section 8.2), so none of this is held against it.
	Abandoned []string
}

// Error is a step that did not come out as it should.
type Error struct {
	Cycle int // from 1
	Step  Step
	Err   error
	Log   []string // the last lines the driver logged
}

func (e *Error) Error() string {
	s := fmt.Sprintf("life cycle %d, %s: %v", e.Cycle, e.Step, e.Err)
	if len(e.Log) == 0 {
		return s
	}
	return s + "; the driver logged:\n  " + strings.Join(e.Log, "\n  ")
}

func (e *Error) Unwrap() error { return e.Err }

// Run takes the driver of a function that was just attached through cfg.Cycles cycles. The module is not loaded before, nor afterwards if all went well.
// The error is an *Error for what the driver or the device did wrong, and any other for the lab's own trouble. The report is never nil.
func Run(ctx context.Context, vm *lab.VM, f *lab.Function, cfg Config) (*Report, error) {
	l := &life{vm: vm, a: vm.Agent, f: f, report: &Report{Took: map[Step][]time.Duration{}}, complaints: len(vm.Console().Scan())}
	for cycle := 1; cycle <= max(cfg.Cycles, 1); cycle++ {
		for _, step := range Steps {
			start := time.Now()
			l.began = f.Trace.Now()
			err := l.do(ctx, step)
			if err == nil {
				err = l.check(ctx, step)
			}
			if err != nil {
				return l.report, l.blame(ctx, cycle, step, err)
			}
			took := time.Since(start)
			l.report.Took[step] = append(l.report.Took[step], took)
			if cfg.Progress != nil {
				cfg.Progress(cycle, step, took)
			}
		}
		l.report.Cycles = cycle
	}
	return l.report, nil
}

// life is one Run under way.
type life struct {
	vm      *lab.VM
	a       *lab.Agent
	f       *lab.Function
	report  *Report
	began   time.Duration // the step, on the function's timeline
	audits  uint64        // number of the last one seen
	read    uint64        // kernel log
	address string
	links   []string
	// complaints of the kernel before the driver was loaded
	complaints int
	idle       gdma.Usage // of a driver whose links are down
	fired      []uint64   // by vector, before its interrupt was requested
}

func (l *life) do(ctx context.Context, step Step) error {
	switch step {
	case Load:
		return l.load(ctx)
	case Up, UpAgain:
		return l.up(ctx)
	case Settle:
		return l.settle(ctx)
	case Channels:
		return l.channels(ctx)
	case Down:
		return l.down(ctx)
	case ResetService:
		return l.resetService(ctx)
	case Unbind:
		if err := l.a.Unbind(ctx, l.address); err != nil {
			return err
		}
		return l.gone(ctx)
	case FLR:
		return l.flr(ctx)
	case Bind:
		return l.bind(ctx)
	case Unload:
		if err := l.a.UnloadModule(ctx, module); err != nil {
			return err
		}
		return l.gone(ctx)
	}
	return fmt.Errorf("no step %q", step)
}

func (l *life) load(ctx context.Context) error {
	l.rememberFired()
	inserted, err := l.a.LoadModule(ctx, module, "")
	if err != nil {
		return err
	}
	if !slices.Contains(inserted, module) {
		return fmt.Errorf("module %s is built in or was loaded before: its life cannot be followed", module)
	}
	return l.register(ctx)
}

func (l *life) bind(ctx context.Context) error {
	l.rememberFired()
	if err := l.a.Bind(ctx, l.address, module); err != nil {
		return err
	}
	if err := l.register(ctx); err != nil {
		return err
	}
	return l.up(ctx)
}

// register waits for as many links as the device has vPorts, and compares what the driver and the device have set up.
func (l *life) register(ctx context.Context) error {
	timed, cancel := context.WithTimeoutCause(ctx, registerTime, fmt.Errorf("the driver registered its links on time: not within %s", registerTime))
	defer cancel()
	want := len(l.f.MANA.Ports())
	for {
		links, err := l.driversLinks(ctx)
		if err != nil {
			return err
		}
		if len(links) == want {
			l.links, l.address = nil, links[0].PCI
			for _, link := range links {
				l.links = append(l.links, link.Name)
				l.report.Channels = link.MaxCombined
			}
			break
		}
		if failed, err := l.probeFailed(ctx); err != nil || failed != "" {
			return cmpErr(err, failed)
		}
		if err := sleep(timed); err != nil {
			return err
		}
	}
	l.report.Driver = l.f.MANA.Driver()
	l.report.SelfReset = l.report.Driver.Capabilities&SelfReset != 0
	l.idle = l.f.MANA.Usage()
	return nil
}

func cmpErr(err error, failed string) error {
	if err != nil {
		return err
	}
	return errors.New("the probe failed: " + failed)
}

func sleep(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(poll):
		return nil
	}
}

func (l *life) driversLinks(ctx context.Context) ([]agentapi.Link, error) {
	links, err := l.a.Links(ctx)
	return slices.DeleteFunc(links, func(k agentapi.Link) bool { return k.Driver != module }), err
}

// probeFailed is the driver core's line about a probe that failed, "" where there is none.
func (l *life) probeFailed(ctx context.Context) (string, error) {
	log, err := l.a.Log(ctx, l.read)
	if err != nil {
		return "", err
	}
	for _, r := range log.Records {
		if lab.ProbeFailed(module, r.Text) {
			return r.Text, nil
		}
	}
	return "", nil
}

func (l *life) up(ctx context.Context) error {
	on := true
	for _, name := range l.links {
		link, err := l.a.SetLink(ctx, agentapi.SetLinkParams{Name: name, Up: &on})
		if err != nil {
			return err
		}
		if err := l.running(link); err != nil {
			return err
		}
	}
	return nil
}

// running compares a link that is up with its vPort: both directions on, a send and a receive queue per channel, each on an event queue.
func (l *life) running(link agentapi.Link) error {
	port := slices.Index(l.links, link.Name)
	s := l.f.MANA.Ports()[port]
	if !link.Up || !s.TX || !s.RX || s.SendQueues != link.Combined || s.ReceiveQueues != link.Combined || link.Combined == 0 {
		return fmt.Errorf("%s is up %t with %d channels, its vPort %+v", link.Name, link.Up, link.Combined, s)
	}
	onEQ := map[int]bool{}
	for _, r := range l.f.MANA.Roles() {
		for _, q := range r.Queues {
			if q.VPort == port {
				onEQ[q.Queue] = true
			}
		}
	}
	if len(onEQ) != link.Combined {
		return fmt.Errorf("%s has %d channels, and event queues for %d", link.Name, link.Combined, len(onEQ))
	}
	return nil
}

// settle fires every vector the driver has requested until each is handled, and checks that no vector was handled more often than it was fired.
func (l *life) settle(ctx context.Context) error {
	vectors, err := l.a.FunctionIRQs(ctx, l.address)
	if err != nil {
		return err
	}
	// One that is allocated and not requested is masked.
	vectors = slices.DeleteFunc(vectors, func(v agentapi.Vector) bool { return v.Name == "" })
	seen, err := l.f.Settle(ctx, l.a, vectors)
	if err != nil {
		return err
	}
	states := l.f.PCI.VectorStates()
	for _, v := range seen.Vectors {
		fired := states[v.Index].Fired - l.fired[v.Index]
		if handled := v.State.Total; handled == 0 || handled > fired {
			return fmt.Errorf("vector %d was fired %d times since its interrupt was requested, and handled %d times", v.Index, fired, handled)
		}
	}
	for _, r := range l.f.MANA.Roles() {
		if !slices.ContainsFunc(vectors, func(v agentapi.Vector) bool { return v.Index == r.Vector }) {
			return fmt.Errorf("event queue %d signals on vector %d, whose interrupt nobody requested", r.EQ, r.Vector)
		}
	}
	return nil
}

func (l *life) rememberFired() {
	l.fired = nil
	for _, s := range l.f.PCI.VectorStates() {
		l.fired = append(l.fired, s.Fired)
	}
}

func (l *life) channels(ctx context.Context) error {
	for _, name := range l.links {
		for n := range l.report.Channels {
			link, err := l.a.SetLink(ctx, agentapi.SetLinkParams{Name: name, Combined: n + 1})
			if err != nil {
				return err
			}
			if link.Combined != n+1 {
				return fmt.Errorf("%s has %d channels after it was set to %d", name, link.Combined, n+1)
			}
			if err := l.running(link); err != nil {
				return err
			}
		}
	}
	return nil
}

// down takes all links down: nothing is left in the device but what there was before they were ever up.
func (l *life) down(ctx context.Context) error {
	off := false
	for i, name := range l.links {
		if _, err := l.a.SetLink(ctx, agentapi.SetLinkParams{Name: name, Up: &off}); err != nil {
			return err
		}
		if s := l.f.MANA.Ports()[i]; s.RX || s.SendQueues > 0 || s.ReceiveQueues > 0 {
			return fmt.Errorf("%s is down, its vPort %+v", name, s)
		}
	}
	if u := l.f.MANA.Usage(); u != l.idle {
		return fmt.Errorf("with all links down the device holds %+v, and held %+v before they were up", u, l.idle)
	}
	return nil
}

// resetService asks for a reset. A driver that can handle it tears everything down and sets it up again by itself, links included; one that cannot must go on as if
// nothing had been said, which the audits at the end of its life confirm: a reset it did not tell of would be one more.
func (l *life) resetService(ctx context.Context) error {
	vectors, err := l.a.FunctionIRQs(ctx, l.address)
	if err != nil {
		return err
	}
	hwc, err := l.a.Observe(ctx, vectors[:1])
	if err != nil {
		return err
	}
	l.rememberFired()
	before := l.f.MANA.Ports()
	if err := l.f.MANA.PostEvent(mana.ResetRequest()); err != nil {
		return err
	}
	if !l.report.SelfReset {
		if _, err := l.a.Await(ctx, hwc, departure); err != nil {
			return fmt.Errorf("the event's interrupt: %w", err)
		}
		// Going through the hardware channel once more shows that it is alive.
		if err := l.down(ctx); err != nil {
			return err
		}
		return l.up(ctx)
	}
	l.report.Resets++
	timed, cancel := context.WithTimeoutCause(ctx, resetTime, fmt.Errorf("the driver has not come back from the reset within %s", resetTime))
	defer cancel()
	for !l.departed() || !slices.EqualFunc(before, l.f.MANA.Ports(), sameQueues) {
		if err := sleep(timed); err != nil {
			return fmt.Errorf("%w: vPorts %+v, before %+v", err, l.f.MANA.Ports(), before)
		}
	}
	audits, err := l.newAudits()
	if err != nil {
		return err
	}
	for _, a := range audits {
		for _, k := range a.Leaks {
			l.report.Abandoned = append(l.report.Abandoned, "left at "+a.Cause+": "+k.String())
		}
	}
	links, err := l.driversLinks(ctx)
	if err != nil {
		return err
	}
	if len(links) != len(l.links) {
		return fmt.Errorf("%d links after the reset, %d before", len(links), len(l.links))
	}
	for _, link := range links {
		if err := l.running(link); err != nil {
			return err
		}
	}
	return l.settle(ctx)
}

func sameQueues(a, b mana.PortState) bool {
	a.Packets, a.Bytes, b.Packets, b.Bytes = 0, 0, 0, 0
	return a == b
}

// departed tells if the driver has ended its hardware channel since the last audit that was seen.
func (l *life) departed() bool {
	audits, _ := l.f.MANA.Audits(l.audits)
	return slices.ContainsFunc(audits, func(a gdma.Audit) bool { return a.Cause == causeDestroy })
}

// newAudits are the device's audits since it was last asked.
func (l *life) newAudits() ([]gdma.Audit, error) {
	audits, missed := l.f.MANA.Audits(l.audits)
	if missed > 0 {
		return nil, fmt.Errorf("the device has audited the driver so often that it has forgotten %d audits", missed)
	}
	l.audits += uint64(len(audits))
	return audits, nil
}

// Causes of the audits of an orderly departure, in order.
const (
	causeDeregister = "DEREGISTER_DEVICE"
	causeDestroy    = "SMC destroy"
)

// audit takes note of one orderly departure, and of what it left behind: nothing.
func (l *life) audit() error {
	audits, err := l.newAudits()
	if err != nil {
		return err
	}
	var causes, left []string
	for _, a := range audits {
		causes = append(causes, a.Cause)
		for _, k := range a.Leaks {
			left = append(left, a.Cause+": "+k.String())
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("the driver left behind: %s", strings.Join(left, ", "))
	}
	if want := []string{causeDeregister, causeDestroy}; !slices.Equal(causes, want) {
		return fmt.Errorf("the device saw %q, where a driver that leaves does %q", causes, want)
	}
	return nil
}

// gone checks that a driver that has left has given everything back: queues, regions, registration, vectors, links.
func (l *life) gone(ctx context.Context) error {
	if err := l.audit(); err != nil {
		return err
	}
	if u := l.f.MANA.Usage(); u != (gdma.Usage{}) {
		return fmt.Errorf("without a driver the device still holds %+v", u)
	}
	links, err := l.driversLinks(ctx)
	if err != nil {
		return err
	}
	if len(links) > 0 {
		return fmt.Errorf("without a driver there are still links: %+v", links)
	}
	timed, cancel := context.WithTimeoutCause(ctx, departure, fmt.Errorf("vectors are still enabled %s after the driver left", departure))
	defer cancel()
	for slices.ContainsFunc(l.f.PCI.VectorStates(), func(s pcifn.VectorState) bool { return s.Assigned }) {
		if err := sleep(timed); err != nil {
			return err
		}
	}
	return nil
}

// flr resets the function through sysfs; the device has to have seen it.
func (l *life) flr(ctx context.Context) error {
	if err := l.a.ResetFunction(ctx, l.address); err != nil {
		return err
	}
	if n := l.count(func(e trace.Event) bool { return e.Kind == pcifn.TraceReset && e.Text == pcifn.ResetFLR.String() }); n != 1 {
		return fmt.Errorf("the device saw %d function-level resets", n)
	}
	return nil
}

// count counts events of the step.
func (l *life) count(match func(trace.Event) bool) (n int) {
	events, _ := l.f.Trace.Events()
	for _, e := range slices.Backward(events) {
		if e.T < l.began {
			break
		}
		if match(e) {
			n++
		}
	}
	return n
}

// trouble are the kinds of events that a correct driver on a correct device does not cause. Doorbells of queues that are gone are none: the driver wakes the caller, who
// may destroy the channel, before its interrupt handler has rung.
var trouble = []string{"gdma-anomaly", "eq-full", "dma-error", "vector-invalid", "device-panic"}

// check looks for complaints: the kernel's on the console, the driver's in the log, the device's on its timeline.
func (l *life) check(ctx context.Context, step Step) error {
	if f := l.vm.Console().Scan(); len(f) > l.complaints {
		return fmt.Errorf("the kernel complained: %s", f[l.complaints].Text)
	}
	log, err := l.a.Log(ctx, l.read)
	if err != nil {
		return err
	}
	tearingDown := false
	for _, r := range log.Records {
		l.read = r.Seq
		switch {
		case step == ResetService && strings.Contains(r.Text, resetStarts):
			tearingDown = true
		case strings.Contains(r.Text, probed):
			tearingDown = false
		case r.Level > warning || !strings.Contains(r.Text, module):
		case tearingDown:
			l.report.Abandoned = append(l.report.Abandoned, "the driver said: "+r.Text)
		default:
			return fmt.Errorf("the driver complained: %s", r.Text)
		}
	}
	var said []string
	l.count(func(e trace.Event) bool {
		status, _ := e.Field("status")
		refused := e.Kind.Name() == "hwc-response" && status != 0
		switch {
		case step == ResetService && (refused || e.Kind.Name() == "gdma-anomaly" && strings.Contains(e.Text, "overrun")):
			l.report.Abandoned = append(l.report.Abandoned, "the device said: "+e.String())
		case refused, slices.Contains(trouble, e.Kind.Name()):
			said = append(said, e.String())
		}
		return false
	})
	if len(said) > 0 {
		return fmt.Errorf("the device complained: %s", strings.Join(said, "; "))
	}
	return nil
}

// What the driver logs when it begins a reset, and when a probe or resume has got through to the device. In between it does not wait for answers, and complains of it.
const (
	resetStarts = "MANA reset cycle start"
	probed      = "Microsoft Azure Network Adapter protocol version"
)

const warning = 4 // the kernel's log level; less is worse

// blame makes an *Error of what the guest or the device did, and leaves the lab's own trouble what it is.
func (l *life) blame(ctx context.Context, cycle int, step Step, err error) error {
	log, lerr := l.a.Log(ctx, 0)
	if lerr != nil {
		return fmt.Errorf("life cycle %d, %s: %w", cycle, step, errors.Join(err, lerr))
	}
	e := &Error{Cycle: cycle, Step: step, Err: err}
	for _, r := range log.Records {
		if strings.Contains(r.Text, module) {
			e.Log = append(e.Log, r.Text)
		}
	}
	e.Log = e.Log[max(0, len(e.Log)-logTail):]
	return e
}
