package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"irqlab/images"
	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// flood has the guest log more lines of level info than its buffer holds. A write of each is a writer of its own: the kernel limits how much one may log.
const flood = `i=0; while [ $i -lt 2500 ]; do echo "<6>flood $i %s" > /dev/kmsg; i=$((i+1)); done; echo "<4>the flood is over" > /dev/kmsg`

const warning = `for line in "------------[ cut here ]------------" "WARNING: CPU: 0 PID: 1 at kernel/irq/manage.c:1 free_irq+0x1/0x2" "---[ end trace 0000000000000000 ]---"; do echo "<4>$line" > /dev/kmsg; done; `

// TestFloodedLog has a guest whose buffer has forgotten what it logged: what the console still has counts, and what nobody has is no pass.
func TestFloodedLog(t *testing.T) {
	const header = "name: flooded\ntitle: t\nquestion: q\nkernel: debian:7.3\nshape: sockets=1,cores=2,threads=1,nodes=1,memory=512M\nstrategy: linear\nvectors: 3\n"
	const steps = header + "steps:\n- probe\n- wait-for: {log: the flood is over, within: 4m}\n- expect: {%s}\n"
	script := fmt.Sprintf(flood, strings.Repeat("x", 180))
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, scenario, script string
		outcome                result.Outcome
		says                   string
	}{
		{"a warning, then the flood", header, warning + script, result.Fail, "The kernel log has a warning"},
		{"no warning", header + "expect: {log: clean}\n", script, result.Pass, ""},
		{"a line that must not be there", fmt.Sprintf(steps, `no-log: "no such line"`), "sleep 3; " + script, result.Error, "lines of the guest's log are lost"},
		{"a line that the console has", fmt.Sprintf(steps, `log: "WARNING: .*manage.c"`) + "expect: {log: any}\n", "sleep 3; " + warning + script, result.Pass, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sc, err := scenarios.Load("flooded.yaml", []byte(tc.scenario))
			c := plan(t, sc, err, scenarios.Overrides{})[0]
			flooded := make(chan error, 1)
			drown := func() error {
				access, err := lab.Reach(vmName(&c))
				if err != nil {
					return err
				}
				client, err := access.Dial(t.Context())
				if err != nil {
					return err
				}
				defer client.Close()
				session, err := client.NewSession()
				if err != nil {
					return err
				}
				out, err := session.CombinedOutput(tc.script)
				if err != nil {
					return fmt.Errorf("%w: %.300s", err, out)
				}
				return nil
			}
			got := runCase(t.Context(), &c, Options{Cache: cache, Start: lab.StartAuto, Out: t.TempDir()}, func() {
				if c.Steps == nil {
					flooded <- drown()
					return
				}
				go func() { flooded <- drown() }()
			})
			if err := <-flooded; err != nil {
				t.Fatal(err)
			}
			if got.Outcome != tc.outcome || !strings.Contains(strings.Join(got.Reasons, "\n"), tc.says) {
				t.Errorf("%s: %.2000q; want %s that says %q", got.Outcome, got.Reasons, tc.outcome, tc.says)
			}
			if trouble := strings.Contains(strings.Join(got.KernelLog.Warnings, "\n"), "manage.c"); trouble != strings.Contains(tc.script, "manage.c") {
				t.Errorf("warnings %.300q", got.KernelLog.Warnings)
			}
		})
	}
}

// TestPanicBeforeSnapshot: a kernel that panics while it boots for the snapshot leaves its console as the case's, and what came before the panic is in the report.
func TestPanicBeforeSnapshot(t *testing.T) {
	t.Parallel()
	sc, err := scenarios.Get("low-vcpu")
	cases := plan(t, sc, err, scenarios.Overrides{Strategies: []string{"linear"}})
	out := t.TempDir()
	c := runCases(t, cases, Options{Out: out, Start: lab.StartWarm, Cmdline: []string{"rdinit=/none", "root=/dev/none"}}).Cases[0]
	text, err := os.ReadFile(filepath.Join(out, c.Artifacts.Console))
	if err != nil || !strings.Contains(string(text), "Kernel panic - not syncing") {
		t.Errorf("the console is %q of %d bytes, %v", c.Artifacts.Console, len(text), err)
	}
	if c.Outcome != result.Fail || !strings.Contains(strings.Join(c.KernelLog.Warnings, "\n"), "Kernel panic") || !strings.Contains(strings.Join(c.Reasons, "\n"), "Kernel panic") {
		t.Errorf("%s: %q, warnings %q", c.Outcome, c.Reasons, c.KernelLog.Warnings)
	}
}
