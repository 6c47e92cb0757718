package api

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/cpu"
	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/disk"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/irq"
	"irqlab/guestagent/kfile"
	"irqlab/guestagent/kmsg"
	"irqlab/guestagent/link"
	"irqlab/guestagent/strategy"
)

// Bounds on what a request may ask for.
const (
	maxIRQsAsked = 1 << 14
	maxWait      = 10 * time.Minute
	maxRounds    = 1000
)

func (a *Agent) info(_ context.Context, p agentapi.InfoParams) (agentapi.Info, error) {
	if p.Version != agentapi.Version {
		return agentapi.Info{}, fault.New(agentapi.CodeUnsupported,
			"the agent speaks version %d, the lab version %d: rebuild the initramfs with irqlab fetch", agentapi.Version, p.Version)
	}
	out := agentapi.Info{Version: agentapi.Version}
	var err error
	if out.Release, err = a.cfg.Root.String("proc/sys/kernel/osrelease"); err != nil {
		return out, err
	}
	if out.Cmdline, err = a.cfg.Root.String("proc/cmdline"); err != nil {
		return out, err
	}
	uptime, err := a.cfg.Root.String("proc/uptime")
	if err != nil {
		return out, err
	}
	first, _, _ := strings.Cut(uptime, " ")
	if out.UptimeS, err = strconv.ParseFloat(first, 64); err != nil {
		return out, fmt.Errorf("uptime %q: %w", uptime, err)
	}
	out.CPUs, err = cpu.Topology(a.cfg.Root)
	return out, err
}

func (a *Agent) loadModule(_ context.Context, p agentapi.LoadModuleParams) (agentapi.LoadModuleResult, error) {
	loaded, err := a.cfg.Modules.Load(p.Name, p.Params)
	return agentapi.LoadModuleResult{Loaded: loaded}, err
}

func (a *Agent) unloadModule(_ context.Context, p agentapi.UnloadModuleParams) (agentapi.Empty, error) {
	return agentapi.Empty{}, a.cfg.Modules.Unload(p.Name)
}

func (a *Agent) replaceModule(_ context.Context, p agentapi.ReplaceModuleParams) (agentapi.Empty, error) {
	return agentapi.Empty{}, a.cfg.Modules.Replace(p)
}

func (a *Agent) setCPU(_ context.Context, p agentapi.SetCPUParams) (agentapi.SetCPUResult, error) {
	online, err := cpu.SetOnline(a.cfg.Root, p.CPU, p.Online)
	return agentapi.SetCPUResult{Online: online}, err
}

func (a *Agent) storm(ctx context.Context, p agentapi.StormParams) (agentapi.Empty, error) {
	if len(p.CPUs) == 0 || p.Rounds < 1 || p.Rounds > maxRounds {
		return agentapi.Empty{}, fault.New(agentapi.CodeInvalid, "%d rounds over %d CPUs: must be 1 to %d over at least one", p.Rounds, len(p.CPUs), maxRounds)
	}
	return agentapi.Empty{}, cpu.Storm(ctx, a.cfg.Root, p.CPUs, p.Rounds, func() error { return a.setMasks(p.Masks) })
}

func checkIRQs(n int) error {
	if n > maxIRQsAsked {
		return fault.New(agentapi.CodeInvalid, "%d IRQs asked for, at most %d at once", n, maxIRQsAsked)
	}
	return nil
}

func (a *Agent) observe(_ context.Context, p agentapi.ObserveParams) (agentapi.Observation, error) {
	if err := checkIRQs(len(p.IRQs)); err != nil {
		return agentapi.Observation{}, err
	}
	return irq.Observe(a.cfg.Root, p.IRQs)
}

func (a *Agent) readDisks(ctx context.Context, p agentapi.ReadDisksParams) (agentapi.DisksResult, error) {
	if p.Reads < 1 || p.Reads > agentapi.MaxDiskReads {
		return agentapi.DisksResult{}, fault.New(agentapi.CodeInvalid, "%d reads: allowed are 1 to %d", p.Reads, agentapi.MaxDiskReads)
	}
	return disk.Read(ctx, a.cfg.Root, p.Reads)
}

func (a *Agent) await(ctx context.Context, p agentapi.AwaitParams) (agentapi.Observation, error) {
	return awaiting(ctx, a, p, irq.Await)
}

func (a *Agent) awaitTotals(ctx context.Context, p agentapi.AwaitParams) (agentapi.TotalsResult, error) {
	seen, err := awaiting(ctx, a, p, irq.AwaitTotals)
	return agentapi.TotalsResult{Totals: seen}, err
}

// awaiting calls what waits for interrupts, for as long as was asked for.
func awaiting[R any](ctx context.Context, a *Agent, p agentapi.AwaitParams, wait func(context.Context, kfile.Root, map[int]uint64) (R, error)) (none R, err error) {
	if err := checkIRQs(len(p.Above)); err != nil {
		return none, err
	}
	limit, err := milliseconds(p.TimeoutMS)
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return wait(ctx, a.cfg.Root, p.Above)
}

func milliseconds(ms int) (time.Duration, error) {
	if ms < 0 || ms > int(maxWait/time.Millisecond) {
		return 0, fault.New(agentapi.CodeInvalid, "waiting %d ms: must be 0 to %s", ms, maxWait)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// apply computes the strategy's masks on the guest's own topology and writes them, the HWC's first and the queues' in the order they were
// added, as the driver does. A mask that the kernel refuses keeps none of the others from being written: a driver does not stop there either.
func (a *Agent) apply(_ context.Context, p agentapi.ApplyParams) (agentapi.ApplyResult, error) {
	topo, err := cpu.Topology(a.cfg.Root)
	if err != nil {
		return agentapi.ApplyResult{}, err
	}
	if err := checkIRQs(len(p.Queues)); err != nil {
		return agentapi.ApplyResult{}, err
	}
	var plan strategy.Plan
	if p.Masks != nil {
		plan, err = strategy.Given(p.Masks, len(p.Queues))
	} else {
		plan, err = strategy.Compute(p.Strategy, topo, p.Node, p.Total, len(p.Queues))
	}
	if err != nil {
		return agentapi.ApplyResult{}, fault.New(agentapi.CodeInvalid, "%w", err)
	}
	out := agentapi.ApplyResult{Branch: plan.Branch, Masks: []agentapi.AppliedMask{}}
	set := func(v agentapi.Vector, mask cpulist.List) error {
		m := agentapi.AppliedMask{Index: v.Index, IRQ: v.IRQ, Mask: mask}
		if mask != nil {
			if err := irq.SetAffinity(a.cfg.Root, v.IRQ, mask); err != nil {
				if fault.Reply(err).Code != agentapi.CodeRefused {
					return fmt.Errorf("strategy %s: vector %d: %w", p.Strategy, v.Index, err)
				}
				m.Refused = err.Error()
			}
		}
		out.Masks = append(out.Masks, m)
		return nil
	}
	if p.HWC != nil {
		if err := set(*p.HWC, plan.HWC); err != nil {
			return out, err
		}
	}
	if len(plan.Queues) != len(p.Queues) {
		return out, fmt.Errorf("strategy %s: %d masks for %d queue vectors", p.Strategy, len(plan.Queues), len(p.Queues))
	}
	for i, v := range p.Queues {
		if err := set(v, plan.Queues[i]); err != nil {
			return out, err
		}
	}
	return out, nil
}

// setAffinity writes masks that somebody else has decided on.
func (a *Agent) setAffinity(_ context.Context, p agentapi.SetAffinityParams) (agentapi.Empty, error) {
	return agentapi.Empty{}, a.setMasks(p.Masks)
}

func (a *Agent) setMasks(masks []agentapi.AppliedMask) error {
	if err := checkIRQs(len(masks)); err != nil {
		return err
	}
	for _, m := range masks {
		if err := irq.SetAffinity(a.cfg.Root, m.IRQ, m.Mask); err != nil {
			return err
		}
	}
	return nil
}

func (a *Agent) readLog(_ context.Context, p agentapi.LogParams) (agentapi.LogResult, error) {
	log, err := kmsg.Read(a.cfg.Root.Path("dev/kmsg"), p.After)
	if p.Below > 0 {
		log.Records = slices.DeleteFunc(log.Records, func(r agentapi.LogRecord) bool { return r.Level >= p.Below })
	}
	return log, err
}

func (a *Agent) mark(_ context.Context, p agentapi.MarkParams) (agentapi.LogRecord, error) {
	if p.Text == "" || len(p.Text) > agentapi.MaxMark || strings.ContainsFunc(p.Text, func(r rune) bool { return r < ' ' || r > '~' }) {
		return agentapi.LogRecord{}, fault.New(agentapi.CodeInvalid, "mark %.*q: must be one line of 1 to %d printable ASCII bytes", agentapi.MaxMark, p.Text, agentapi.MaxMark)
	}
	level := kmsg.Debug
	if p.Shown {
		level = kmsg.Warning
	}
	return kmsg.Mark(a.cfg.Root.Path("dev/kmsg"), level, p.Text)
}

func (a *Agent) links(context.Context, agentapi.Empty) (agentapi.LinksResult, error) {
	l, err := link.List(a.cfg.Root)
	return agentapi.LinksResult{Links: l}, err
}

func (a *Agent) setLink(_ context.Context, p agentapi.SetLinkParams) (agentapi.Link, error) {
	return link.Set(a.cfg.Root, p)
}

func (a *Agent) powerOff(context.Context, agentapi.Empty) (agentapi.Empty, error) {
	unix.Sync()
	return agentapi.Empty{}, nil
}
