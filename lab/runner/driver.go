package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"irqlab/devmodel/gdma"
	"irqlab/devmodel/mana"
	"irqlab/devmodel/trace"
	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/strategy"
	"irqlab/images"
	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

const (
	manaModule = "mana"
	// netdevTime is how long the driver may take from its loading to a registered link. It waits 30 s for any one answer of the device, then gives up.
	netdevTime = 60 * time.Second
	// departure is how long the device may take to see what an unloaded driver did last: by then the guest has its answer, QEMU's messages may be under way.
	departure = 10 * time.Second
	// handleTime is how long the guest may take to handle what was fired.
	handleTime = 10 * time.Second
	poll       = 50 * time.Millisecond
	logTail    = 40 // of the driver's log lines, in an error
)

// The lab's own steps on the function's timeline. A step of the scenario has a number, from 1 in the order they begin, and an end whose text is its place and its outcome,
// "4.0.2 done"; what the lab does besides has the number 0 and no end.
var (
	kindStep    = trace.NewKind("step", "number")
	kindStepEnd = trace.NewKind("step-end", "number")
)

// DriverError tells that the kernel's driver did not get where it was expected.
type DriverError struct {
	What string
	Err  error    // the guest's words, or nil
	Log  []string // what the driver logged, the last lines of it
}

func (e *DriverError) Error() string {
	s := e.What
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if len(e.Log) == 0 {
		return s + "; it logged nothing"
	}
	return s + "; it logged:\n  " + strings.Join(e.Log, "\n  ")
}

func (e *DriverError) Unwrap() error { return e.Err }

// driver is what has been made of the function in the guest.
type driver struct {
	address string
	probing chan struct{} // closed when a probe in the background has ended; nil: there was none

	// the kernel's own
	link   agentapi.Link      // of no name: not known
	loaded bool               // its module was inserted by a step
	log    agentapi.LogRecord // the last one of the kernel log before its probe

	// in the guest's user space
	apply agentapi.ApplyParams
	press func(ctx context.Context, before string) error
}

// probe starts the driver: the kernel's own until its link is there, or the one in user space until it has the HWC vector.
func (s *stepper) probe(ctx context.Context) error {
	if s.c.Driver != scenarios.DriverMana {
		return s.open(ctx)
	}
	if err := s.load(ctx); err != nil {
		return err
	}
	link, err := s.awaitLink(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.driver.link, s.driver.address = link, link.PCI
	return nil
}

// open gives the function to the guest's user space, with its HWC vector.
func (s *stepper) open(ctx context.Context) error {
	a := s.vm.Agent
	fn, err := a.OpenFunction(ctx, agentapi.OpenFunctionParams{Vendor: lab.VendorID, Device: lab.ManaID, WaitMS: int(hotPlug.Milliseconds())})
	if err != nil {
		return err
	}
	press, err := s.openPressure(ctx)
	if err != nil {
		return err
	}
	if err := press(ctx, scenarios.BeforeHWC); err != nil {
		return err
	}
	s.stage("adding the HWC vector")
	vectors, err := a.AddVectors(ctx, fn.Address, 0, 1)
	if err != nil {
		return refusedVector(0, err)
	}
	apply := agentapi.ApplyParams{Strategy: s.c.Strategy, Masks: s.c.Masks, Node: fn.Node, Total: s.c.Vectors, HWC: &vectors[0]}
	if s.c.Script == nil {
		if err := s.apply(ctx, apply); err != nil {
			return err
		}
	}
	if _, err := s.fn.Settle(ctx, a, vectors); err != nil && !errors.As(err, new(*lab.UnsettledError)) { // it settles again with the queues'
		return err
	}
	apply.HWC = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.driver.address, s.driver.apply, s.driver.press = fn.Address, apply, press
	return nil
}

// apply has the guest spread vectors by the case's strategy, and takes down what was asked for them.
func (s *stepper) apply(ctx context.Context, p agentapi.ApplyParams) error {
	applied, err := s.vm.Agent.Apply(ctx, p)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asks.set(applied.Masks)
	s.out.Branch = applied.Branch
	return nil
}

// VectorRefusedError tells that the guest's kernel did not give a function a vector.
type VectorRefusedError struct {
	Index int
	Err   *agentapi.Error // its words
}

func (e *VectorRefusedError) Error() string {
	return fmt.Sprintf("the kernel refused vector %d: %s", e.Index, e.Err.Message)
}
func (e *VectorRefusedError) Unwrap() error { return e.Err }

// refusedVector makes a *VectorRefusedError of what the kernel said no to; any other error stays what it is.
func refusedVector(index int, err error) error {
	var guest *agentapi.Error
	if errors.As(err, &guest) && guest.Code == agentapi.CodeRefused {
		return &VectorRefusedError{index, guest}
	}
	return err
}

// addQueues adds the queue vectors, under the pressure of other devices', and applies the strategy: to those that there are, if the kernel refuses one.
func (s *stepper) addQueues(ctx context.Context) error {
	d, err := s.probed(ctx)
	if err != nil {
		return err
	}
	if d.press == nil {
		return refusef("the function is not open: begin with probe")
	}
	if err := d.press(ctx, scenarios.BeforeQueues); err != nil || s.c.Queues() == 0 {
		return err
	}
	s.stage("adding the queue vectors")
	vectors, err := s.vm.Agent.AddVectors(ctx, d.address, 1, s.c.Queues())
	refused := refusedVector(len(vectors), err)
	if refused != nil && !errors.As(refused, new(*VectorRefusedError)) {
		return refused
	}
	if s.c.Script != nil {
		return cmp.Or(s.spreadByScript(ctx), refused)
	}
	d.apply.Queues = vectors[1:]
	if err := s.apply(ctx, d.apply); err != nil {
		return err
	}
	return refused
}

// probed awaits the end of a probe in the background, and tells what there is.
func (s *stepper) probed(ctx context.Context) (driver, error) {
	s.mu.Lock()
	d := s.driver
	s.mu.Unlock()
	if d.probing == nil {
		return d, nil
	}
	select {
	case <-d.probing:
	case <-ctx.Done():
		return d, fmt.Errorf("the probe in the background has not ended: %w", context.Cause(ctx))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.driver, context.Cause(ctx)
}

// theLink is the driver's link, which a step before may have had the driver register.
func (s *stepper) theLink(ctx context.Context) (agentapi.Link, error) {
	d, err := s.probed(ctx)
	if err != nil || d.link.Name != "" {
		return d.link, err
	}
	link, err := s.awaitLink(ctx)
	if err != nil {
		return link, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.driver.link, s.driver.address = link, link.PCI
	return link, nil
}

// load inserts the driver's module, which probes the function meanwhile. How that ended the module does not tell.
func (s *stepper) load(ctx context.Context) error {
	if err := s.beforeProbe(ctx); err != nil {
		return err
	}
	s.stage("loading " + manaModule)
	var inserted []string
	var err error
	if perr := s.underPressure(ctx, func() error {
		inserted, err = s.vm.Agent.LoadModule(ctx, manaModule, "dyndbg=+p")
		return err
	}); perr != nil {
		return perr
	}
	if err != nil {
		return s.unloadable(ctx, s.refused(ctx, "the driver did not load", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.driver.loaded = len(inserted) > 0
	return nil
}

// UnloadableError tells that a module which was given in place of the kernel's own cannot be inserted into this kernel: that is no finding about what the module does.
type UnloadableError struct {
	Module images.Replacement
	Err    error
}

func (e *UnloadableError) Error() string {
	return fmt.Sprintf("module %s=%s: this kernel cannot insert it: %v", e.Module.Name, e.Module.Path, e.Err)
}

func (e *UnloadableError) Unwrap() error { return e.Err }

// unloadable makes an *UnloadableError of the kernel's answer to a replaced driver that does not fit into it; what the driver itself answers stays what it is.
func (s *stepper) unloadable(ctx context.Context, err error) error {
	i := slices.IndexFunc(s.vm.Modules, func(m images.Replacement) bool { return m.Name == manaModule })
	var guest *agentapi.Error
	if i < 0 || !errors.As(err, &guest) || guest.Code != agentapi.CodeFailed && guest.Code != agentapi.CodeUnsupported {
		return err
	}
	return &UnloadableError{s.vm.Modules[i], s.driverError(ctx, "the driver did not load", guest)}
}

// beforeProbe remembers where the log of the probe begins.
func (s *stepper) beforeProbe(ctx context.Context) error {
	if s.c.Steps == nil { // this is the only one
		return nil
	}
	from, err := s.logged(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.driver.log = from
	return err
}

// bind gives the function to the kernel's driver.
func (s *stepper) bind(ctx context.Context) error {
	address, err := s.address(ctx)
	if err == nil {
		err = s.beforeProbe(ctx)
	}
	if err != nil {
		return err
	}
	perr := s.underPressure(ctx, func() error {
		err = s.vm.Agent.Bind(ctx, address, manaModule)
		return err
	})
	return cmp.Or(perr, s.refused(ctx, "the driver did not bind", err))
}

// up sets the link up, with a queue on every queue vector.
func (s *stepper) up(ctx context.Context) error {
	link, err := s.theLink(ctx)
	if err != nil {
		return err
	}
	a := s.vm.Agent
	s.stage("bringing " + link.Name + " up")
	up := true
	if _, err := a.SetLink(ctx, agentapi.SetLinkParams{Name: link.Name, Up: &up}); err != nil {
		return s.refused(ctx, "the driver did not bring "+link.Name+" up", err)
	}
	vectors, err := a.FunctionIRQs(ctx, link.PCI)
	if err != nil {
		return err
	}
	// From 7.2 on a link has at most 16 channels unless it is told.
	if want := min(len(vectors)-1, s.queues()); want > queueVectors(s.fn.MANA.Roles()) {
		var guest *agentapi.Error
		switch err := s.setChannels(ctx, want); {
		case errors.As(err, &guest):
			// More than the driver allows: then it is the driver's number that counts.
			s.note("the driver refused %d channels: %s", want, guest.Message)
		case err != nil:
			return err
		}
		if vectors, err = a.FunctionIRQs(ctx, link.PCI); err != nil {
			return err
		}
	}
	hwc := false
	for _, v := range vectors {
		if v.Name == "" {
			s.note("vector %d is allocated, but nobody requested its interrupt", v.Index)
		}
		hwc = hwc || v.Index == 0 && v.Name != ""
	}
	if !hwc {
		return s.driverError(ctx, fmt.Sprintf("%s is up, but the driver has no interrupt on the HWC's vector", link.Name), nil)
	}
	return s.spreadByScript(ctx)
}

// setChannels changes the number of the link's channels.
func (s *stepper) setChannels(ctx context.Context, n int) error {
	link, err := s.theLink(ctx)
	if err != nil {
		return err
	}
	s.stage(fmt.Sprintf("setting %d channels", n))
	_, err = s.vm.Agent.SetLink(ctx, agentapi.SetLinkParams{Name: link.Name, Combined: n})
	return err
}

// down takes the link down.
func (s *stepper) down(ctx context.Context) error {
	link, err := s.theLink(ctx)
	if err != nil {
		return err
	}
	s.stage("taking " + link.Name + " down")
	s.leaveResets()
	down := false
	_, err = s.vm.Agent.SetLink(ctx, agentapi.SetLinkParams{Name: link.Name, Up: &down})
	return s.refused(ctx, "the driver did not take "+link.Name+" down", err)
}

// unload removes the driver's module, and blames the driver for what it leaves behind in the device.
func (s *stepper) unload(ctx context.Context) error {
	d, err := s.probed(ctx)
	if err != nil {
		return err
	}
	if s.c.Steps == nil && !d.loaded {
		s.note("the driver is built into the kernel, so it was not unloaded, and what it would leave behind is not known")
		return nil
	}
	s.stage("unloading " + manaModule)
	return s.depart(ctx, "the driver did not unload", func() error { return s.vm.Agent.UnloadModule(ctx, manaModule) })
}

// unbind takes the function from the kernel's driver, which owes it as much as when it is unloaded.
func (s *stepper) unbind(ctx context.Context) error {
	if _, err := s.probed(ctx); err != nil {
		return err
	}
	address, err := s.address(ctx)
	if err != nil {
		return err
	}
	return s.depart(ctx, "the driver did not let the function go", func() error { return s.vm.Agent.Unbind(ctx, address) })
}

// depart has the driver leave, and waits for the device to see what it did last.
func (s *stepper) depart(ctx context.Context, what string, leave func() error) error {
	s.leaveResets()
	if err := s.audit(); err != nil {
		return err
	}
	if err := leave(); err != nil {
		return s.refused(ctx, what, err)
	}
	s.mu.Lock()
	s.driver.link, s.driver.probing = agentapi.Link{}, nil
	s.asks.forget()
	s.mu.Unlock()
	deadline := time.Now().Add(departure)
	held := leftBehind(s.fn)
	for len(held) > 0 && time.Now().Before(deadline) {
		if err := pause(ctx, poll); err != nil {
			return err
		}
		held = leftBehind(s.fn)
	}
	if err := s.audit(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.returned = append(s.returned, held...)
	return nil
}

// LostAuditsError tells that the device audited the driver so often between two looks that it has forgotten some of what it found.
type LostAuditsError struct{ N uint64 }

func (e *LostAuditsError) Error() string {
	return fmt.Sprintf("the device has ended the driver's use of it so often that %d of its audits are forgotten: whether the driver left anything behind is not known", e.N)
}

// audit takes note of what the device has found missing since it was last asked. A driver that was told to reset does not wait for answers meanwhile, and owes nothing.
func (s *stepper) audit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	audits, missed := s.fn.MANA.Audits(s.audited)
	if missed > 0 {
		return &LostAuditsError{missed}
	}
	found := auditFindings(audits)
	s.audited += uint64(len(audits))
	if len(s.resets) == 0 {
		s.returned = append(s.returned, found...)
		return nil
	}
	for _, f := range found {
		s.out.Notes = append(s.out.Notes, "In a reset that the device had asked for: "+f)
	}
	for _, r := range s.resets {
		what := fmt.Sprintf("after %s in line %d ", r.step, r.step.Line)
		switch {
		case s.inject.Count(stepDestroy) == r.destroys:
			s.out.Notes = append(s.out.Notes, what+"the driver did not set the device up anew")
		case r.running && !s.running():
			s.out.Notes = append(s.out.Notes, what+"the driver had not brought its link up again when the steps were over; "+s.inject.Progress())
		}
	}
	s.resets = nil
	return nil
}

// queueVectors counts the vectors that the event queue of a queue signals on.
func queueVectors(roles []mana.Role) int {
	on := map[int]bool{}
	for _, r := range roles {
		if !r.HWC {
			on[r.Vector] = true
		}
	}
	return len(on)
}

// assignRoles says of each vector what the device does with it: which event queue names its index, for which queues. /proc tells names, but not what is behind them.
func assignRoles(vectors []result.Vector, roles []mana.Role) {
	for i := range vectors {
		v := &vectors[i]
		v.Role = result.RoleUnused
		for _, r := range roles {
			switch {
			case r.Vector != v.Index:
				continue
			case r.HWC:
				v.Role = result.RoleHWC
			case v.Role != result.RoleHWC:
				v.Role = result.RoleQueue
			}
			for _, q := range r.Queues {
				v.Queues = append(v.Queues, result.Queue{VPort: q.VPort, Index: q.Queue})
			}
		}
	}
}

// awaitLink waits for the driver to register its link.
func (s *stepper) awaitLink(ctx context.Context) (agentapi.Link, error) {
	a := s.vm.Agent
	timed, cancel := context.WithTimeout(ctx, netdevTime)
	defer cancel()
	s.mu.Lock()
	read := s.driver.log
	s.mu.Unlock()
	for {
		links, err := a.Links(ctx)
		if err != nil {
			return agentapi.Link{}, err
		}
		if i := slices.IndexFunc(links, func(l agentapi.Link) bool { return l.Driver == manaModule }); i >= 0 {
			return links[i], nil
		}
		log, err := s.guestLog(ctx, read)
		if err != nil {
			return agentapi.Link{}, err
		}
		for _, r := range log.Records {
			if r.Seq > 0 {
				read = r
			}
			if lab.ProbeFailed(manaModule, r.Text) {
				// 7.0 and later try again in 10 s; that the first try failed is the finding.
				return agentapi.Link{}, s.driverError(ctx, "the driver's probe failed", nil)
			}
		}
		select {
		case <-timed.Done():
			if ctx.Err() != nil {
				return agentapi.Link{}, fmt.Errorf("waiting for the driver's link: %w", context.Cause(ctx))
			}
			return agentapi.Link{}, s.driverError(ctx, fmt.Sprintf("the driver registered no link within %s", netdevTime), nil)
		case <-time.After(poll):
		}
	}
}

// refused makes a failure of the driver's of what the guest's kernel refused; any other error stays what it is.
func (s *stepper) refused(ctx context.Context, what string, err error) error {
	var guest *agentapi.Error
	if errors.As(err, &guest) && guest.Code == agentapi.CodeRefused {
		return s.driverError(ctx, what, guest)
	}
	return err
}

func (s *stepper) driverError(ctx context.Context, what string, guest *agentapi.Error) error {
	log, err := s.guestLog(ctx, s.first)
	if err != nil {
		return err
	}
	d := &DriverError{What: what}
	if guest != nil {
		d.Err = guest
	}
	for _, r := range log.Records {
		if strings.Contains(r.Text, manaModule) {
			d.Log = append(d.Log, r.Text)
		}
	}
	d.Log = d.Log[max(0, len(d.Log)-logTail):]
	return d
}

// leftBehind says what the device still holds of a driver that has left, one sentence each.
func leftBehind(fn *lab.Function) []string {
	var left []string
	if u := fn.MANA.Usage(); u != (gdma.Usage{}) {
		left = append(left, fmt.Sprintf("After the driver had left the device still holds %d event, %d completion, %d send and %d receive queues, %d regions, %d registrations.",
			u.EQs, u.CQs, u.SQs, u.RQs, u.Regions, u.Registrations))
	}
	var enabled cpulist.List
	for _, v := range fn.PCI.VectorStates() {
		if v.Assigned {
			enabled = append(enabled, v.Index)
		}
	}
	if len(enabled) > 0 {
		left = append(left, fmt.Sprintf("After the driver had left the vectors %s are still enabled.", enabled))
	}
	return left
}

// auditFindings are the leaks the device found. A reset owes the driver nothing: what it finds was in use.
func auditFindings(audits []gdma.Audit) []string {
	var found []string
	for _, a := range audits {
		if len(a.Leaks) == 0 || strings.HasPrefix(a.Cause, "reset: ") {
			continue
		}
		words := make([]string, len(a.Leaks))
		for i, l := range a.Leaks {
			words[i] = l.String()
		}
		found = append(found, fmt.Sprintf("The driver left behind at %s: %s.", a.Cause, strings.Join(words, ", ")))
	}
	return found
}

// driverBranch names the branch whose masks the queue vectors have: the way the driver went. Where the shape makes several the same, it names them all.
func driverBranch(topo agentapi.Topology, node int, vectors []result.Vector) string {
	if len(vectors) < 2 {
		return ""
	}
	var took []string
	for _, name := range []string{strategy.NUMAAware, strategy.Linear, strategy.LocalSpread, strategy.Unset} {
		plan, err := strategy.Compute(name, topo, node, len(vectors), len(vectors)-1)
		if err == nil && slices.EqualFunc(plan.Queues, vectors[1:], func(mask cpulist.List, v result.Vector) bool {
			if mask == nil {
				mask = defaultMask(topo, node)
			}
			return slices.Equal(mask, v.Asked)
		}) {
			took = append(took, plan.Branch)
		}
	}
	if took == nil {
		return result.BranchUnknown
	}
	return strings.Join(took, " or ")
}

// defaultMask is what a vector has whose affinity nobody set: the online CPUs of its device's node, or all where it has none.
func defaultMask(topo agentapi.Topology, node int) cpulist.List {
	for _, n := range topo.Nodes {
		if cpus := n.CPUs.And(topo.Online); n.ID == node && len(cpus) > 0 {
			return cpus
		}
	}
	return topo.Online
}
