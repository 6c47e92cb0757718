package klog

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	int3Title  = regexp.MustCompile(`^(?:Oops: )?int3: `)
	kernelRIP  = regexp.MustCompile(`^RIP: 0010:(\S+)`)
	codeAtTrap = regexp.MustCompile(`^Code: (?:[0-9a-f]{2} )*([0-9a-f]{2}) <[0-9a-f]{2}>(?: [0-9a-f]{2})*\s*$`)
)

const int3 = "cc"

// Stale says why a report tells of code that was executed although it was no longer in memory; "" if it does not.
//
// A breakpoint that nobody knows of is an oops. The kernel makes them itself while it patches code (jump labels, static
// calls, tracing), and removes the last trace of one only after every CPU has confirmed that it has seen the new bytes.
// So where the byte that trapped, the one before RIP, is not a breakpoint any more, a CPU ran what had been there
// before. A CPU does not; TCG with a thread for each vCPU does, when it translates the old bytes in the moment in which
// they are overwritten (docs/hotplug.md, "Stale code"). A breakpoint that is still there is the kernel's own affair,
// though it may be the same defect, seen after the next patch of the place had begun.
func (f Finding) Stale() string {
	if !int3Title.MatchString(f.Title) {
		return ""
	}
	at := ""
	for line := range strings.Lines(f.Text) {
		message := Message(line)
		if m := kernelRIP.FindStringSubmatch(message); m != nil && at == "" {
			at = m[1]
		}
		if !strings.HasPrefix(message, "Code: ") {
			continue
		}
		m := codeAtTrap.FindStringSubmatch(message)
		if at == "" || m == nil || m[1] == int3 {
			return ""
		}
		return fmt.Sprintf("a breakpoint (int3) was executed before %s, where memory held 0x%s by then: "+
			"code that the kernel had patched ran stale", at, m[1])
	}
	return ""
}
