package klog

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// The samples have the shape that kernels 6.1 to 7.3 print; noise lines around them belong to no report.
var samples = []struct {
	name string
	log  string
	want []Finding // Kind and Title; the text is what lies between the lines "<<<" and ">>>" of the log
}{
	{
		name: "WARN",
		log: `
[    1.000000] pci 0000:00:1f.0: quirk_ich7_lpc+0x0/0x1b0 took 12000 usecs
<<<
[   12.345678] ------------[ cut here ]------------
[   12.345680] WARNING: CPU: 2 PID: 77 at kernel/irq/manage.c:2031 free_irq+0x1a3/0x3b0
[   12.345690] Modules linked in: mana(-)
[   12.345700] CPU: 2 UID: 0 PID: 77 Comm: rmmod Not tainted 6.12.57 #1
[   12.345800] RIP: 0010:free_irq+0x1a3/0x3b0
[   12.345900] Call Trace:
[   12.345910]  <TASK>
[   12.345920]  mana_gd_remove_irqs+0x88/0x100 [mana]
[   12.345990]  </TASK>
[   12.346000] ---[ end trace 0000000000000000 ]---
>>>
[   12.400000] mana 7870:00:00.0: removed
`,
		want: []Finding{{Kind: Warning, Title: "WARNING: CPU: 2 PID: 77 at kernel/irq/manage.c:2031 free_irq+0x1a3/0x3b0"}},
	},
	{
		name: "WARN of kernels from 6.18, with the condition first and carriage returns",
		log: "<<<\r\n[    3.1][   T41] ------------[ cut here ]------------\r\n" +
			"[    3.2][   T41] refcount_t: underflow; use-after-free.\r\n" +
			"[    3.3][   T41] WARNING: lib/refcount.c:28 at refcount_warn_saturate+0xf3/0x120, CPU#1: kworker/1:1/41\r\n" +
			"[    3.4][   T41] Call Trace:\r\n[    3.5][   T41]  <TASK>\r\n[    3.6][   T41]  </TASK>\r\n" +
			"[    3.7][   T41] ---[ end trace 0000000000000000 ]---\r\n>>>\r\n[    3.8] fine\r\n",
		want: []Finding{{Kind: Warning, Title: "WARNING: lib/refcount.c:28 at refcount_warn_saturate+0xf3/0x120, CPU#1: kworker/1:1/41"}},
	},
	{
		name: "BUG()",
		log: `
<<<
[    9.000000] ------------[ cut here ]------------
[    9.000001] kernel BUG at drivers/net/ethernet/microsoft/mana/gdma_main.c:1404!
[    9.000002] Oops: invalid opcode: 0000 [#1] SMP NOPTI
[    9.000003] CPU: 0 UID: 0 PID: 1 Comm: init Not tainted 7.3.4 #1
[    9.000004] ---[ end trace 0000000000000000 ]---
>>>
`,
		want: []Finding{{Kind: BUG, Title: "kernel BUG at drivers/net/ethernet/microsoft/mana/gdma_main.c:1404!"}},
	},
	{
		name: "oops, then panic",
		log: `
[    4.0] eth0: up
<<<
[    5.000000] BUG: kernel NULL pointer dereference, address: 0000000000000018
[    5.000001] #PF: supervisor read access in kernel mode
[    5.000002] #PF: error_code(0x0000) - not-present page
[    5.000003] PGD 0 P4D 0
[    5.000004] Oops: Oops: 0000 [#1] SMP NOPTI
[    5.000005] CPU: 3 UID: 0 PID: 0 Comm: swapper/3 Not tainted 7.3.4 #1
[    5.000006] RIP: 0010:mana_gd_intr+0x12/0x80 [mana]
[    5.000007] Call Trace:
[    5.000008]  <IRQ>
[    5.000009]  __handle_irq_event_percpu+0x4a/0x1b0
[    5.000010]  </IRQ>
[    5.000011] ---[ end trace 0000000000000000 ]---
>>>
[    5.100000] RIP: 0010:mana_gd_intr+0x12/0x80 [mana]
<<<
[    5.200000] Kernel panic - not syncing: Fatal exception in interrupt
[    5.300000] Kernel Offset: disabled
[    5.400000] ---[ end Kernel panic - not syncing: Fatal exception in interrupt ]---
>>>
`,
		want: []Finding{
			{Kind: Oops, Title: "BUG: kernel NULL pointer dereference, address: 0000000000000018"},
			{Kind: Panic, Title: "Kernel panic - not syncing: Fatal exception in interrupt"},
		},
	},
	{
		name: "panic in the middle of a warning",
		log: `
<<<
[    5.0] ------------[ cut here ]------------
[    5.1] WARNING: CPU: 0 PID: 1 at init/main.c:1 f+0x1/0x2
>>>
<<<
[    5.2] Kernel panic - not syncing: kernel: panic_on_warn set ...
[    5.3] Call Trace:
[    5.4]  </TASK>
[    5.5] Kernel Offset: disabled
>>>
`,
		want: []Finding{
			{Kind: Warning, Title: "WARNING: CPU: 0 PID: 1 at init/main.c:1 f+0x1/0x2"},
			{Kind: Panic, Title: "Kernel panic - not syncing: kernel: panic_on_warn set ..."},
		},
	},
	{
		name: "page fault and general protection",
		log: `
<<<
[    5.0] BUG: unable to handle page fault for address: ffffc90000a00000
[    5.1] Oops: Oops: 0002 [#1] SMP
[    5.2] ---[ end trace 0000000000000000 ]---
>>>
<<<
[    6.0] Oops: general protection fault, probably for non-canonical address 0xdead000000000100: 0000 [#2] SMP NOPTI
[    6.2] ---[ end trace 0000000000000000 ]---
>>>
`,
		want: []Finding{
			{Kind: Oops, Title: "BUG: unable to handle page fault for address: ffffc90000a00000"},
			{Kind: Oops, Title: "Oops: general protection fault, probably for non-canonical address 0xdead000000000100: 0000 [#2] SMP NOPTI"},
		},
	},
	{
		name: "lockdep: circular",
		log: `
[    6.9] mana: loading
<<<
[    7.000000] ======================================================
[    7.000001] WARNING: possible circular locking dependency detected
[    7.000002] 7.3.4 #1 Not tainted
[    7.000003] ------------------------------------------------------
[    7.000004] sh/101 is trying to acquire lock:
[    7.000005] ffff888003a0c0e8 (&gc->lock){+.+.}-{4:4}, at: mana_gd_setup_irqs+0x42/0x200
[    7.000006] 
[    7.000007] but task is already holding lock:
[    7.000008] ffffffff82c5a6d0 (cpu_hotplug_lock){++++}-{0:0}, at: cpu_up+0x2e/0x90
[    7.000009] 
[    7.000010] which lock already depends on the new lock.
[    7.000011] 
[    7.000012] the existing dependency chain (in reverse order) is:
[    7.000013] -> #1 (cpu_hotplug_lock){++++}-{0:0}:
[    7.000014]        cpus_read_lock+0x3e/0x100
[    7.000015] other info that might help us debug this:
[    7.000016]  Possible unsafe locking scenario:
[    7.000017]  *** DEADLOCK ***
[    7.000018] stack backtrace:
[    7.000019] CPU: 0 UID: 0 PID: 101 Comm: sh Not tainted 7.3.4 #1
[    7.000020] Call Trace:
[    7.000021]  <TASK>
[    7.000022]  dump_stack_lvl+0x5d/0x80
[    7.000023]  </TASK>
>>>
[    7.100000] mana: loaded
`,
		want: []Finding{{Kind: Lockdep, Title: "WARNING: possible circular locking dependency detected"}},
	},
	{
		name: "lockdep: RCU usage, wait context, lock state",
		log: `
<<<
[    7.0] =============================
[    7.1] WARNING: suspicious RCU usage
[    7.2] Call Trace:
[    7.3]  </TASK>
>>>
[    7.4] ok
<<<
[    7.5] =============================
[    7.6] [ BUG: Invalid wait context ]
[    7.7]  </TASK>
>>>
<<<
[    7.8] ================================
[    7.9] WARNING: inconsistent lock state
[    8.0]  </TASK>
>>>
`,
		want: []Finding{{Kind: Lockdep, Title: "WARNING: suspicious RCU usage"}, {Kind: Lockdep, Title: "[ BUG: Invalid wait context ]"}, {Kind: Lockdep, Title: "WARNING: inconsistent lock state"}},
	},
	{
		name: "hung tasks, one after the other",
		log: `
<<<
[  242.000000] INFO: task kworker/0:1:9 blocked for more than 120 seconds.
[  242.000001]       Not tainted 7.3.4 #1
[  242.000002] "echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.
[  242.000003] task:kworker/0:1     state:D stack:0     pid:9     tgid:9     ppid:2      task_flags:0x4208060 flags:0x00080000
[  242.000004] Workqueue: events mana_recovery_delayed_func [mana]
[  242.000005] Call Trace:
[  242.000006]  <TASK>
[  242.000007]  __schedule+0x3f5/0xb30
[  242.000008]  </TASK>
>>>
<<<
[  242.100000] INFO: task sh:101 blocked in I/O wait for more than 120 seconds.
[  242.100001]       Not tainted 7.3.4 #1
[  242.100002]  <TASK>
[  242.100003]  </TASK>
[  242.100004] INFO: task sh:101 is blocked on a mutex likely owned by task kworker/0:1:9.
>>>
`,
		want: []Finding{
			{Kind: HungTask, Title: "INFO: task kworker/0:1:9 blocked for more than 120 seconds."},
			{Kind: HungTask, Title: "INFO: task sh:101 blocked in I/O wait for more than 120 seconds."},
		},
	},
	{
		name: "soft lockup",
		log: `
<<<
[   64.000000] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [swapper/1:0]
[   64.000001] Modules linked in:
[   64.000002] CPU: 1 UID: 0 PID: 0 Comm: swapper/1 Not tainted 7.3.4 #1
[   64.000003] RIP: 0010:pv_native_safe_halt+0xf/0x20
[   64.000004] Code: 20 d0 c3 cc
[   64.000005] RSP: 0018:ffffffff83003dd0 EFLAGS: 00010216
[   64.000006] RAX: 0000000000000000 RBX: 0000000000000000 RCX: 0000000000000000
[   64.000007] R10: 0000000000000000 R11: ffff88801f41d000 R12: 0000000000000000
[   64.000008] FS:  0000000000000000(0000) GS:ffff88809b73c000(0000) knlGS:0000000000000000
[   64.000009] CS:  0010 DS: 0000 ES: 0000 CR0: 0000000080050033
[   64.000010] Call Trace:
[   64.000011]  <IRQ>
[   64.000012]  </IRQ>
[   64.000013]  <TASK>
[   64.000014]  default_idle+0x9/0x20
[   64.000015]  </TASK>
>>>
[   65.000000] init: still here
`,
		want: []Finding{{Kind: SoftLockup, Title: "watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [swapper/1:0]"}},
	},
	{
		name: "hard lockup and workqueue lockup",
		log: `
<<<
[   64.0] watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3
[   64.1] Modules linked in:
[   64.2]  </TASK>
>>>
<<<
[   65.0] BUG: workqueue lockup - pool cpus=2 node=0 flags=0x0 nice=0 stuck for 33s!
[   65.1] Showing busy workqueues and worker pools:
[   65.2] workqueue events: flags=0x100
[   65.3]   pwq 10: cpus=2 node=0 flags=0x0 nice=0 active=1 refcnt=2
[   65.4] Call Trace:
[   65.5]  <TASK>
[   65.6]  </TASK>
>>>
`,
		want: []Finding{
			{Kind: HardLockup, Title: "watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3"},
			{Kind: WorkqueueLockup, Title: "BUG: workqueue lockup - pool cpus=2 node=0 flags=0x0 nice=0 stuck for 33s!"},
		},
	},
	{
		name: "RCU stalls",
		log: `
<<<
[   26.000000] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:
[   26.000001] rcu: 	2-...0: (1 GPs behind) idle=0c14/1/0x4000000000000000 softirq=58/59 fqs=2625
[   26.000002] rcu: 	(detected by 0, t=5252 jiffies, g=-971, q=12 ncpus=4)
[   26.000003] Sending NMI from CPU 0 to CPUs 2:
[   26.000004] NMI backtrace for cpu 2
[   26.000005] CPU: 2 UID: 0 PID: 55 Comm: sh Not tainted 7.3.4 #1
[   26.000006] RIP: 0010:native_queued_spin_lock_slowpath+0x64/0x2b0
[   26.000007] Call Trace:
[   26.000008]  <TASK>
[   26.000009]  </TASK>
[   26.000010] rcu: rcu_preempt kthread starved for 5250 jiffies! g-971 f0x0 RCU_GP_WAIT_FQS(5) ->state=0x0 ->cpu=2
[   26.000011] rcu: 	Unless rcu_preempt kthread gets sufficient CPU time, OOM is now expected behavior.
[   26.000012] task:rcu_preempt     state:R  running task     stack:0     pid:16    tgid:16    ppid:2
[   26.000013]  <TASK>
[   26.000014]  </TASK>
>>>
<<<
[   89.000000] rcu: INFO: rcu_preempt self-detected stall on CPU
[   89.000001] rcu: 	1-....: (21000 ticks this GP) idle=2a5c/1/0x4000000000000000 softirq=100/100 fqs=5249
[   89.000002] Call Trace:
[   89.000003]  <IRQ>
[   89.000004]  </IRQ>
>>>
<<<
[   99.000000] rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-...D } 6302 jiffies s: 89 root: 0x2/.
[   99.000001] Call Trace:
[   99.000002]  </TASK>
>>>
`,
		want: []Finding{
			{Kind: RCUStall, Title: "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:"},
			{Kind: RCUStall, Title: "rcu: INFO: rcu_preempt self-detected stall on CPU"},
			{Kind: RCUStall, Title: "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-...D } 6302 jiffies s: 89 root: 0x2/."},
		},
	},
	{
		name: "KASAN and KFENCE",
		log: `
<<<
[    8.000000] ==================================================================
[    8.000001] BUG: KASAN: slab-use-after-free in mana_hwc_rx_event_handler+0x5c/0x700 [mana]
[    8.000002] Read of size 8 at addr ffff888006ad2010 by task swapper/0/0
[    8.000003] 
[    8.000004] Call Trace:
[    8.000005]  <IRQ>
[    8.000006]  </IRQ>
[    8.000007] Allocated by task 93:
[    8.000008]  kasan_save_stack+0x30/0x50
[    8.000009] The buggy address belongs to the object at ffff888006ad2000
[    8.000010] Memory state around the buggy address:
[    8.000011] >ffff888006ad2000: fa fb fb fb fb fb fb fb fb fb fb fb fb fb fb fb
[    8.000012] ==================================================================
>>>
[    8.000013] Disabling lock debugging due to kernel taint
<<<
[    8.2] ==================================================================
[    8.3] BUG: KFENCE: out-of-bounds read in f+0x1/0x2
[    8.4] ==================================================================
>>>
`,
		want: []Finding{
			{Kind: KASAN, Title: "BUG: KASAN: slab-use-after-free in mana_hwc_rx_event_handler+0x5c/0x700 [mana]"},
			{Kind: KFENCE, Title: "BUG: KFENCE: out-of-bounds read in f+0x1/0x2"},
		},
	},
	{
		name: "UBSAN",
		log: `
<<<
[    2.0] ------------[ cut here ]------------
[    2.1] UBSAN: array-index-out-of-bounds in drivers/net/ethernet/microsoft/mana/mana_en.c:1810:30
[    2.2] index 4 is out of range for type 'u32 [4]'
[    2.3] Call Trace:
[    2.4]  </TASK>
[    2.5] ---[ end trace ]---
>>>
`,
		want: []Finding{{Kind: UBSAN, Title: "UBSAN: array-index-out-of-bounds in drivers/net/ethernet/microsoft/mana/mana_en.c:1810:30"}},
	},
	{
		name: "BUG: in atomic context",
		log: `
<<<
[    3.0] BUG: sleeping function called from invalid context at kernel/locking/mutex.c:287
[    3.1] in_atomic(): 1, irqs_disabled(): 1, non_block: 0, pid: 90, name: sh
[    3.2] preempt_count: 1, expected: 0
[    3.3] RCU nest depth: 0, expected: 0
[    3.4] CPU: 1 UID: 0 PID: 90 Comm: sh Not tainted 7.3.4 #1
[    3.5] Call Trace:
[    3.6]  <TASK>
[    3.7]  </TASK>
>>>
[    3.8] done
`,
		want: []Finding{{Kind: BUG, Title: "BUG: sleeping function called from invalid context at kernel/locking/mutex.c:287"}},
	},
	{
		name: "lost and unwanted interrupts",
		log: `
<<<
[    3.0] __common_interrupt: 3.38 No irq handler for vector
>>>
[    3.1] eth0: fine
<<<
[    4.0] irq 29: nobody cared (try booting with the "irqpoll" option)
[    4.1] CPU: 1 UID: 0 PID: 0 Comm: swapper/1 Not tainted 7.3.4 #1
[    4.2] Call Trace:
[    4.3]  <IRQ>
[    4.4]  </IRQ>
[    4.5] handlers:
[    4.6] [<0000000041d8e2a5>] mana_gd_intr [mana]
[    4.7] Disabling IRQ #29
>>>
[    4.8] eth0: fine
`,
		want: []Finding{
			{Kind: NoIRQHandler, Title: "__common_interrupt: 3.38 No irq handler for vector"},
			{Kind: SpuriousIRQ, Title: `irq 29: nobody cared (try booting with the "irqpoll" option)`},
		},
	},
	{
		name: "nothing",
		log: `
[    0.0] Linux version 7.3.4+deb13-cloud-amd64
[    0.1] Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on, data leaks possible via Spectre v2 BHB attacks!
[    0.2] x86/bugs: Speculative Store Bypass: Vulnerable
[    0.3] debug: WARNING is a word, and so is BUG: in the middle of a line
[    0.4] mtrr: your CPUs had inconsistent fixed MTRR settings
[    0.5] INFO: NMI handler (nmi_cpu_backtrace_handler) took too long to run: 9.307 msecs
[    0.6] printk: legacy bootconsole [uart8250] enabled
irqlab: agent ready
`,
	},
}

// expected cuts the marked texts out of a sample and returns them and the log without marks.
func expected(log string) (texts []string, plain string) {
	var text, all strings.Builder
	in := false
	for line := range strings.SplitAfterSeq(strings.TrimPrefix(log, "\n"), "\n") {
		switch strings.TrimRight(line, "\r\n") {
		case "<<<":
			in = true
			continue
		case ">>>":
			in = false
			texts = append(texts, text.String())
			text.Reset()
			continue
		}
		if in {
			text.WriteString(strings.ReplaceAll(line, "\r", ""))
		}
		all.WriteString(line)
	}
	return texts, all.String()
}

func TestSamples(t *testing.T) {
	for _, tt := range samples {
		t.Run(tt.name, func(t *testing.T) {
			texts, log := expected(tt.log)
			for _, piece := range []int{1, 7, 80, len(log)} {
				var s Scanner
				for rest := log; rest != ""; {
					n := min(piece, len(rest))
					s.Write([]byte(rest[:n]))
					rest = rest[n:]
				}
				s.Flush()
				got := s.Findings()
				if len(got) != len(tt.want) {
					t.Fatalf("pieces of %d: %d reports, want %d: %+v", piece, len(got), len(tt.want), got)
				}
				for i, f := range got {
					if f.Kind != tt.want[i].Kind || f.Title != tt.want[i].Title {
						t.Errorf("pieces of %d: report %d is %s %q, want %s %q", piece, i, f.Kind, f.Title, tt.want[i].Kind, tt.want[i].Title)
					}
					if f.Text != texts[i] {
						t.Errorf("pieces of %d: report %d has text\n%s\nwant\n%s", piece, i, f.Text, texts[i])
					}
					if f.Cut || f.Open {
						t.Errorf("pieces of %d: report %d: cut %t, open %t", piece, i, f.Cut, f.Open)
					}
					if line := strings.Split(log, "\n")[f.Line-1]; !strings.HasPrefix(texts[i], strings.TrimRight(line, "\r")) {
						t.Errorf("report %d starts at line %d, which is %q", i, f.Line, line)
					}
				}
			}
		})
	}
}

// All samples after each other: no report swallows or cuts another. Those with a panic are left out, since a panic is the end of a log.
func TestSamplesTogether(t *testing.T) {
	order := rand.New(rand.NewPCG(1, 2)).Perm(len(samples))
	var s Scanner
	var want []string
	for _, i := range order {
		if strings.Contains(samples[i].log, "Kernel panic") {
			continue
		}
		texts, log := expected(samples[i].log)
		want = append(want, texts...)
		s.Write([]byte(log + "[  999.0] something else\n"))
	}
	s.Flush()
	got := s.Findings()
	for i := range min(len(want), len(got)) {
		if got[i].Text != want[i] {
			t.Fatalf("report %d:\n%s\nwant\n%s", i, got[i].Text, want[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d reports, want %d", len(got), len(want))
	}
}

func TestOpen(t *testing.T) {
	var s Scanner
	fmt.Fprint(&s, "[ 1.0] ------------[ cut here ]------------\n")
	if got := s.Findings(); len(got) != 0 {
		t.Errorf("what has no name yet: %+v", got)
	}
	fmt.Fprint(&s, "[ 1.1] WARNING: CPU: 0 PID: 1 at a.c:1 f+0x1/0x2\n[ 1.2] Call")
	got := s.Findings()
	if len(got) != 1 || !got[0].Open || strings.Count(got[0].Text, "\n") != 2 {
		t.Errorf("half a report: %+v", got)
	}
	s.Flush()
	if got := s.Findings(); len(got) != 1 || got[0].Open || !strings.HasSuffix(got[0].Text, "Call\n") {
		t.Errorf("at the log's end: %+v", got)
	}
}

// A guest may print what it likes for as long as it likes.
func TestBounds(t *testing.T) {
	var s Scanner
	for i := range 3 * MaxFindings {
		fmt.Fprintf(&s, "[ 1.0] ------------[ cut here ]------------\n[ 1.0] WARNING: CPU: 0 PID: %d at a.c:1 f+0x1/0x2\n[ 1.0] ---[ end trace 0 ]---\n", i)
	}
	if n := len(s.Findings()); n != MaxFindings || s.Dropped() != 2*MaxFindings {
		t.Errorf("%d reports kept, %d dropped", n, s.Dropped())
	}

	s = Scanner{}
	fmt.Fprintln(&s, "BUG: KASAN: endless")
	for range 2 * maxLines {
		fmt.Fprintln(&s, strings.Repeat("x", 2*MaxLine))
	}
	fmt.Fprintln(&s, "Kernel panic - not syncing: enough")
	for range 10 * maxLines {
		fmt.Fprintln(&s, strings.Repeat("y", 100))
	}
	got := s.Findings()
	if len(got) != 2 || !got[0].Cut || len(got[0].Text) > MaxReport || !got[1].Cut || len(got[1].Text) > MaxReport || got[1].Kind != Panic {
		t.Errorf("%d reports, %d and %d bytes", len(got), len(got[0].Text), len(got[len(got)-1].Text))
	}
	if len(s.line) > MaxLine {
		t.Errorf("a line of %d bytes is kept", len(s.line))
	}
}

func FuzzScanner(f *testing.F) {
	for _, s := range samples {
		_, log := expected(s.log)
		f.Add([]byte(log), 5)
	}
	f.Add([]byte("\x00\xff\n===================="), 1)
	f.Fuzz(func(t *testing.T, log []byte, piece int) {
		var whole, pieces Scanner
		whole.Write(log)
		whole.Flush()
		piece = max(1, min(piece, 1<<16))
		for rest := log; len(rest) > 0; {
			n := min(piece, len(rest))
			pieces.Write(rest[:n])
			pieces.Findings()
			rest = rest[n:]
		}
		pieces.Flush()
		a, b := whole.Findings(), pieces.Findings()
		if len(a) != len(b) {
			t.Fatalf("%d reports at once, %d in pieces of %d", len(a), len(b), piece)
		}
		for i := range a {
			if a[i] != b[i] {
				t.Fatalf("report %d: %+v at once, %+v in pieces", i, a[i], b[i])
			}
			if len(a[i].Text) > MaxReport || a[i].Kind == "" || a[i].Open {
				t.Fatalf("report %d: %+v", i, a[i])
			}
		}
	})
}

func BenchmarkScanner(b *testing.B) {
	quiet := strings.Repeat("[    0.123456] pci 0000:00:1f.0: BAR 4 [io  0x0600-0x061f]: assigned by the firmware of some machine\n", 100)
	b.SetBytes(int64(len(quiet)))
	b.ReportAllocs()
	var s Scanner
	for b.Loop() {
		s.Write([]byte(quiet))
	}
}

// What is told of a report begins with what it is about.
func TestTold(t *testing.T) {
	for text, want := range map[string]string{
		"[    7.000000] ======================================================\n[    7.000001] WARNING: possible circular locking dependency detected\nmore\n": "[    7.000001] WARNING: possible circular locking dependency detected\nmore\n",
		"[    7.0] WARNING: CPU: 1\n[    7.1] ====================\n":                                                                                          "[    7.0] WARNING: CPU: 1\n[    7.1] ====================\n",
		"====================": "====================",
		"":                     "",
	} {
		if got := (&Finding{Text: text}).Told(); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
