package klog

import (
	"fmt"
	"strings"
	"testing"
)

// oops is a report as kernels from 6.1 to 7.3 print one, with a user's registers and code at the end.
func oops(title, rip, code string) string {
	return fmt.Sprintf(`[   24.447823] %s
[   24.447900] CPU: 3 UID: 0 PID: 125 Comm: yes Not tainted 7.3.4+deb13-cloud-amd64 #1 PREEMPT(lazy)
[   24.447910] RIP: %s
[   24.447920] Code: %s
[   24.447930] RSP: 0018:ffffc90000447bb0 EFLAGS: 00000082
[   24.447940] Call Trace:
[   24.447950]  <TASK>
[   24.447960] RIP: 0033:0x47b7a0
[   24.447970] Code: 40 00 48 c7 c2 e0 ff ff ff f7 d8 64 89 02 <48> 3d 00 f0 ff ff 77
[   24.447980]  </TASK>
[   24.447990] ---[ end trace 0000000000000000 ]---
`, title, rip, code)
}

func TestStale(t *testing.T) {
	const (
		title  = "Oops: int3: 0000 [#1] SMP NOPTI"
		rip    = "0010:__schedule+0x9f/0x1080"
		before = "00 48 89 c6 e8 46 40 db 00 "
	)
	for name, tt := range map[string]struct {
		log  string
		want string
	}{
		"the NOP of a jump label":        {oops(title, rip, before+"0f <1f> 44 00 00 0f"), "before __schedule+0x9f/0x1080, where memory held 0x0f by then"},
		"its jump":                       {oops(title, rip, before+"e9 <d5> 04 00 00 0f"), "held 0xe9"},
		"the short NOP":                  {oops(title, rip, before+"66 <90> f7 c1"), "held 0x66"},
		"as 6.1 writes it":               {oops("int3: 0000 [#1] PREEMPT SMP NOPTI", rip, before+"eb <1f> 44"), "held 0xeb"},
		"nothing follows":                {oops(title, rip, before+"e9 <d5>"), "held 0xe9"},
		"carriage returns":               {strings.ReplaceAll(oops(title, rip, before+"e9 <d5> 04"), "\n", "\r\n"), "held 0xe9"},
		"a breakpoint that is there":     {oops(title, rip, before+"cc <1f> 44 00 00 0f"), ""},
		"no code could be read":          {oops(title, rip, "Unable to access opcode bytes at 0xffffffff81000000."), ""},
		"nothing before RIP":             {oops(title, rip, "<1f> 44 00 00 0f"), ""},
		"no byte marked":                 {oops(title, rip, before+"0f 1f 44"), ""},
		"cut in the middle of a byte":    {oops(title, rip, before+"0f <1"), ""},
		"the byte is garbled":            {oops(title, rip, before+"zz <1f> 44"), ""},
		"in user space":                  {oops(title, "0033:0x47b7a0", before+"0f <1f> 44"), ""},
		"an invalid opcode":              {oops("Oops: invalid opcode: 0000 [#1] SMP NOPTI", rip, before+"0f <1f> 44"), ""},
		"a page fault":                   {oops("BUG: unable to handle page fault for address: ffffc90000a00000", rip, before+"0f <1f> 44"), ""},
		"general protection":             {oops("Oops: general protection fault, maybe for address 0x0: 0000 [#1] SMP", rip, before+"0f <1f> 44"), ""},
		"a warning that speaks of int3:": {oops("WARNING: CPU: 0 PID: 1 at int3: f+0x1/0x2", rip, before+"0f <1f> 44"), ""},
		"the code line never came":       {"[    1.0] " + title + "\n[    1.1] RIP: " + rip + "\n", ""},
		"no RIP":                         {"[    1.0] " + title + "\n[    1.1] Code: " + before + "0f <1f> 44\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var s Scanner
			fmt.Fprint(&s, tt.log)
			s.Flush()
			found := s.Findings()
			if len(found) != 1 {
				t.Fatalf("%d reports", len(found))
			}
			got := found[0].Stale()
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
