package api

import (
	"context"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/pci"
	"irqlab/guestagent/power"
)

// remove has the kernel forget a function. One that the agent drives it gives up before, as a driver in user space does when it is told: the kernel would wait for that.
func (a *Agent) remove(_ context.Context, p agentapi.FunctionParams) (agentapi.Empty, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f := a.functions[p.Address]; f != nil {
		delete(a.functions, p.Address)
		if err := f.Close(); err != nil {
			return agentapi.Empty{}, err
		}
	}
	return agentapi.Empty{}, pci.Remove(a.cfg.Root, p.Address)
}

func (a *Agent) rescanAll(context.Context, agentapi.Empty) (agentapi.Empty, error) {
	return agentapi.Empty{}, pci.RescanAll(a.cfg.Root)
}

// suspend puts the guest to sleep, and answers when it has been woken.
func (a *Agent) suspend(ctx context.Context, p agentapi.SuspendParams) (agentapi.Suspended, error) {
	if err := power.Prepare(ctx, a.cfg.Root, p.Mode); err != nil {
		return agentapi.Suspended{}, err
	}
	began, err := power.Clock()
	if err != nil {
		return agentapi.Suspended{}, err
	}
	if err := a.cfg.Without(ctx, func() error { return power.Suspend(a.cfg.Root, p.Mode) }); err != nil {
		return agentapi.Suspended{}, err
	}
	now, err := power.Clock()
	return agentapi.Suspended{Seconds: (now - began).Seconds()}, err
}
