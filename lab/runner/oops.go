package runner

import (
	"context"
	"slices"
	"strings"
	"time"

	"irqlab/lab/qemu/klog"
)

const (
	// oopsGrace is how long a step may still take once the kernel has oopsed in it. The task that oopsed is dead: if it was the one that carries the step out, no answer comes.
	oopsGrace = 10 * time.Second
	oopsPoll  = time.Second
)

// untilOops ends a step a while after the kernel has oopsed in it.
func (s *stepper) untilOops(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	began, before := time.Now(), len(oopses(s.vm.Console().Scan()))
	go func() {
		defer cancel(context.Canceled)
		for {
			if pause(ctx, oopsPoll) != nil {
				return
			}
			found := oopses(s.vm.Console().Scan())
			if len(found) <= before {
				continue
			}
			if pause(ctx, oopsGrace) == nil {
				cancel(&lateError{after: time.Since(began), oops: found[before].Title})
			}
			return
		}
	}()
	return ctx
}

// oopses are the findings that have cost a task its life: the checks that print "BUG:" do not, BUG() does.
func oopses(found []klog.Finding) []klog.Finding {
	return slices.DeleteFunc(slices.Clone(found), func(f klog.Finding) bool {
		return f.Kind != klog.Oops && !(f.Kind == klog.BUG && strings.Contains(f.Title, "kernel BUG at"))
	})
}
