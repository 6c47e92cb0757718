package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/strategy"
	"irqlab/scenarios"
)

const (
	manaModule = "mana"
	// netdevTime is how long the driver may take from its loading to a registered link. It waits 30 s for any one answer of the device, then gives up.
	netdevTime = 60 * time.Second
	linkPoll   = 50 * time.Millisecond
)

// DriverError tells that the kernel's driver did not get where it was expected. Log is what it said.
type DriverError struct {
	What string
	Log  []string
}

func (e *DriverError) Error() string {
	if len(e.Log) == 0 {
		return e.What + "; it logged nothing"
	}
	return e.What + "; it logged:\n  " + strings.Join(e.Log, "\n  ")
}

// drive has the kernel's own driver bring the function up, a channel on every queue vector, and reads where it put them.
func (e *experiment) drive(ctx context.Context) error {
	a := e.vm.Agent
	e.stage("loading " + manaModule)
	if _, err := a.LoadModule(ctx, manaModule, "dyndbg=+p"); err != nil {
		return err
	}
	link, err := e.awaitLink(ctx)
	if err != nil {
		return err
	}
	e.stage("bringing " + link.Name + " up")
	up := true
	if link, err = a.SetLink(ctx, agentapi.SetLinkParams{Name: link.Name, Up: &up}); err != nil {
		return err
	}
	vectors, err := a.FunctionIRQs(ctx, link.PCI)
	if err != nil {
		return err
	}
	if want := len(vectors) - 1; want > e.queueEQs() {
		// From 7.2 on a link has at most 16 channels unless it is told; more than the driver allows is refused, and then it is the driver's choice that counts.
		if _, err := a.SetLink(ctx, agentapi.SetLinkParams{Name: link.Name, Combined: want}); err != nil {
			e.out.Notes = append(e.out.Notes, fmt.Sprintf("%d channels: %v", want, err))
		}
		if vectors, err = a.FunctionIRQs(ctx, link.PCI); err != nil {
			return err
		}
	}
	e.stage("settling")
	seen, err := e.fn.Settle(ctx, a, vectors)
	if err != nil {
		return err
	}
	e.observe(scenarios.LabelSettled, vectors, seen)
	info, err := a.Info(ctx)
	if err != nil {
		return err
	}
	e.out.Branch = driverBranch(info.CPUs, e.c.DeviceNode, seen)
	return nil
}

// queueEQs counts the vectors that an event queue of a queue signals on, as the device knows it.
func (e *experiment) queueEQs() int {
	on := map[int]bool{}
	for _, r := range e.fn.MANA.Roles() {
		if !r.HWC {
			on[r.Vector] = true
		}
	}
	return len(on)
}

// awaitLink waits for the driver to register its link.
func (e *experiment) awaitLink(ctx context.Context) (agentapi.Link, error) {
	limit := time.Now().Add(netdevTime)
	for {
		links, err := e.vm.Agent.Links(ctx)
		if err != nil {
			return agentapi.Link{}, err
		}
		if i := slices.IndexFunc(links, func(l agentapi.Link) bool { return l.Driver == manaModule }); i >= 0 {
			return links[i], nil
		}
		if time.Now().After(limit) {
			return agentapi.Link{}, e.driverError(ctx, fmt.Sprintf("the driver registered no link within %s", netdevTime))
		}
		select {
		case <-ctx.Done():
			return agentapi.Link{}, errors.Join(context.Cause(ctx), e.driverError(context.WithoutCancel(ctx), "the driver registered no link"))
		case <-time.After(linkPoll):
		}
	}
}

func (e *experiment) driverError(ctx context.Context, what string) error {
	log, err := e.vm.Agent.Log(ctx, 0)
	if err != nil {
		return err
	}
	d := &DriverError{What: what}
	for _, r := range log.Records {
		if strings.Contains(r.Text, manaModule) {
			d.Log = append(d.Log, r.Text)
		}
	}
	return d
}

// driverBranch names the strategy whose masks the queue vectors have: the way the driver went.
func driverBranch(topo agentapi.Topology, node int, seen agentapi.Observation) string {
	queues := len(seen.IRQs) - 1
	for _, name := range []string{strategy.NUMAAware, strategy.Linear, strategy.LocalSpread, strategy.Unset} {
		plan, err := strategy.Compute(name, topo, node, len(seen.IRQs), queues)
		if err != nil {
			continue
		}
		if slices.EqualFunc(plan.Queues, seen.IRQs[1:], func(mask cpulist.List, irq agentapi.IRQ) bool {
			if mask == nil {
				mask = topo.Online // what a vector has whose affinity nobody set
			}
			return slices.Equal(mask, irq.Affinity)
		}) {
			return plan.Branch
		}
	}
	return "unknown"
}
