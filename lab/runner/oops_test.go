package runner

import (
	"testing"

	"irqlab/lab/qemu/klog"
)

func TestOopses(t *testing.T) {
	for title, tc := range map[string]struct {
		kind klog.Kind
		dead bool
	}{
		"BUG: kernel NULL pointer dereference, address: 0000000000000000": {klog.Oops, true},
		"kernel BUG at lib/list_debug.c:59!":                              {klog.BUG, true},
		"BUG: sleeping function called from invalid context at x.c:1":     {klog.BUG, false},
		"WARNING: CPU: 0 PID: 1 at kernel/irq/manage.c:1":                 {klog.Warning, false},
	} {
		if got := len(oopses([]klog.Finding{{Kind: tc.kind, Title: title}})) == 1; got != tc.dead {
			t.Errorf("%s: costs a task its life: %t", title, got)
		}
	}
}
