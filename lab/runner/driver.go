package runner

import (
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
	poll      = 50 * time.Millisecond
	logTail   = 40 // of the driver's log lines, in an error
)

// kindStep marks the lab's own steps on the function's timeline.
var kindStep = trace.NewKind("step")

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

// drive has the kernel's own driver bring the function up, with a channel on every queue vector, reads where it put them, and sees it off again.
func (e *experiment) drive(ctx context.Context) error {
	e.stage("loading " + manaModule)
	inserted, err := e.vm.Agent.LoadModule(ctx, manaModule, "dyndbg=+p")
	if err != nil {
		return e.refused(ctx, "the driver did not load", err)
	}
	link, err := e.awaitLink(ctx)
	if err != nil {
		return err
	}
	vectors, err := e.bringUp(ctx, link)
	if err != nil {
		return err
	}
	e.stage("settling")
	seen, err := e.fn.Settle(ctx, e.vm.Agent, vectors)
	if err != nil {
		return err
	}
	info, err := e.vm.Agent.Info(ctx)
	if err != nil {
		return err
	}
	e.observe(scenarios.LabelSettled, vectors, seen)
	assignRoles(e.out.Find(scenarios.LabelSettled), e.fn.MANA.Roles())
	e.out.Branch = driverBranch(info.CPUs, e.c.DeviceNode, seen.IRQs)
	return e.seeOff(ctx, link, len(inserted) > 0)
}

// bringUp sets the link up, a queue on every vector, and returns the vectors whose interrupts the driver takes.
func (e *experiment) bringUp(ctx context.Context, link agentapi.Link) ([]agentapi.Vector, error) {
	a := e.vm.Agent
	e.stage("bringing " + link.Name + " up")
	up := true
	if _, err := a.SetLink(ctx, agentapi.SetLinkParams{Name: link.Name, Up: &up}); err != nil {
		return nil, e.refused(ctx, "the driver did not bring "+link.Name+" up", err)
	}
	vectors, err := a.FunctionIRQs(ctx, link.PCI)
	if err != nil {
		return nil, err
	}
	// From 7.2 on a link has at most 16 channels unless it is told.
	if want := min(len(vectors)-1, e.queues()); want > queueVectors(e.fn.MANA.Roles()) {
		e.stage(fmt.Sprintf("setting %d channels", want))
		var guest *agentapi.Error
		switch _, err := a.SetLink(ctx, agentapi.SetLinkParams{Name: link.Name, Combined: want}); {
		case errors.As(err, &guest):
			// More than the driver allows: then it is the driver's number that counts.
			e.out.Notes = append(e.out.Notes, fmt.Sprintf("the driver refused %d channels: %s", want, guest.Message))
		case err != nil:
			return nil, err
		}
		if vectors, err = a.FunctionIRQs(ctx, link.PCI); err != nil {
			return nil, err
		}
	}
	var taken []agentapi.Vector
	for _, v := range vectors {
		if v.Name == "" {
			e.out.Notes = append(e.out.Notes, fmt.Sprintf("vector %d is allocated, but nobody requested its interrupt", v.Index))
			continue
		}
		taken = append(taken, v)
	}
	if len(taken) == 0 || taken[0].Index != 0 {
		return nil, e.driverError(ctx, fmt.Sprintf("%s is up, but the driver has no interrupt on the HWC's vector", link.Name), nil)
	}
	return taken, nil
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
func assignRoles(o *result.Observation, roles []mana.Role) {
	for i := range o.Vectors {
		v := &o.Vectors[i]
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
	*o = result.Observe(o.Label, o.Online, o.Vectors)
}

// awaitLink waits for the driver to register its link.
func (e *experiment) awaitLink(ctx context.Context) (agentapi.Link, error) {
	a := e.vm.Agent
	timed, cancel := context.WithTimeout(ctx, netdevTime)
	defer cancel()
	var read uint64
	for {
		links, err := a.Links(ctx)
		if err != nil {
			return agentapi.Link{}, err
		}
		if i := slices.IndexFunc(links, func(l agentapi.Link) bool { return l.Driver == manaModule }); i >= 0 {
			return links[i], nil
		}
		log, err := a.Log(ctx, read)
		if err != nil {
			return agentapi.Link{}, err
		}
		for _, r := range log.Records {
			read = r.Seq
			if probeFailed(r.Text) {
				// 7.0 and later try again in 10 s; that the first try failed is the finding.
				return agentapi.Link{}, e.driverError(ctx, "the driver's probe failed", nil)
			}
		}
		select {
		case <-timed.Done():
			if ctx.Err() != nil {
				return agentapi.Link{}, fmt.Errorf("waiting for the driver's link: %w", context.Cause(ctx))
			}
			return agentapi.Link{}, e.driverError(ctx, fmt.Sprintf("the driver registered no link within %s", netdevTime), nil)
		case <-time.After(poll):
		}
	}
}

// probeFailed tells the driver core's line about a failed probe of the driver: "mana 0000:01:00.0: probe with driver mana failed with error -28", or up to 6.6
// "mana: probe of 0000:01:00.0 failed with error -28".
func probeFailed(line string) bool {
	return strings.HasPrefix(line, manaModule) && strings.Contains(line, "probe ") && strings.Contains(line, " failed with error ")
}

// refused makes a failure of the driver's of what the guest's kernel refused; any other error stays what it is.
func (e *experiment) refused(ctx context.Context, what string, err error) error {
	var guest *agentapi.Error
	if errors.As(err, &guest) && guest.Code == agentapi.CodeRefused {
		return e.driverError(ctx, what, guest)
	}
	return err
}

func (e *experiment) driverError(ctx context.Context, what string, guest *agentapi.Error) error {
	log, err := e.vm.Agent.Log(ctx, 0)
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

// seeOff takes the link down and unloads the driver, and blames it for what it leaves behind in the device.
func (e *experiment) seeOff(ctx context.Context, link agentapi.Link, loaded bool) error {
	e.stage("taking " + link.Name + " down")
	down := false
	if _, err := e.vm.Agent.SetLink(ctx, agentapi.SetLinkParams{Name: link.Name, Up: &down}); err != nil {
		return e.refused(ctx, "the driver did not take "+link.Name+" down", err)
	}
	if !loaded {
		e.out.Notes = append(e.out.Notes, "the driver is built into the kernel, so it was not unloaded, and what it would leave behind is not known")
		return nil
	}
	e.stage("unloading " + manaModule)
	if err := e.vm.Agent.UnloadModule(ctx, manaModule); err != nil {
		return e.refused(ctx, "the driver did not unload", err)
	}
	timed, cancel := context.WithTimeout(ctx, departure)
	defer cancel()
	var left []string
	for {
		if left = leftBehind(e.fn); len(left) == 0 {
			return nil
		}
		select {
		case <-timed.Done():
			e.left = append(e.left, left...)
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}

// leftBehind says what an unloaded driver has not given back, one sentence each: by the device's own audits, and what it still holds.
func leftBehind(fn *lab.Function) []string {
	left := auditFindings(fn.MANA.Audits())
	if u := fn.MANA.Usage(); u != (gdma.Usage{}) {
		left = append(left, fmt.Sprintf("After the driver was unloaded the device still holds %d event, %d completion, %d send and %d receive queues, %d regions, %d registrations.",
			u.EQs, u.CQs, u.SQs, u.RQs, u.Regions, u.Registrations))
	}
	var enabled cpulist.List
	for _, v := range fn.PCI.VectorStates() {
		if v.Assigned {
			enabled = append(enabled, v.Index)
		}
	}
	if len(enabled) > 0 {
		left = append(left, fmt.Sprintf("After the driver was unloaded the vectors %s are still enabled.", enabled))
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
func driverBranch(topo agentapi.Topology, node int, irqs []agentapi.IRQ) string {
	if len(irqs) < 2 {
		return ""
	}
	var took []string
	for _, name := range []string{strategy.NUMAAware, strategy.Linear, strategy.LocalSpread, strategy.Unset} {
		plan, err := strategy.Compute(name, topo, node, len(irqs), len(irqs)-1)
		if err == nil && slices.EqualFunc(plan.Queues, irqs[1:], func(mask cpulist.List, irq agentapi.IRQ) bool {
			if mask == nil {
				mask = defaultMask(topo, node)
			}
			return slices.Equal(mask, irq.Affinity)
		}) {
			took = append(took, plan.Branch)
		}
	}
	if took == nil {
		return "unknown"
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
