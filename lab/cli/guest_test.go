package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"
)

// What shell --help promises is in the guest and works, what the kernel refuses is said and fails, and the shell's status is the command's: in one VM, the commands
// piped to irqlab shell.
func TestGuestCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	const mask = "/proc/irq/25/smp_affinity" // of the agent's channel
	cases := []struct {
		command string
		status  string
		want    string // in what it prints
	}{
		// refused: a CPU beyond the last, or a word that is no mask
		{"echo 100 > " + mask, "1", "echo: write " + mask + ": "},
		{"printf 100 > " + mask, "1", "printf: write " + mask + ": "},
		{"pwd > " + mask, "1", "pwd: write " + mask + ": "},
		{"type echo > " + mask, "1", "type: write " + mask + ": "},
		{"echo 100 | tee " + mask, "1", "tee: "},
		{"echo 100 | cat > " + mask, "1", "cat: "},
		{"cat > " + mask + " <<X\n100\nX", "1", "cat: "},
		{"echo 100 > /tmp/mask; cp /tmp/mask " + mask, "1", "cp: "},
		{"dd if=/tmp/mask of=" + mask, "1", mask},
		{"seq 100 100 > " + mask, "1", "seq: write " + mask + ": "}, // these do not look at what becomes of their writes
		{"tr -d x < /tmp/mask > " + mask, "1", "tr: write " + mask + ": "},
		{"seq 2 2 > " + mask + " && cat " + mask, "0", "2"},
		{"echo 7 > /sys/devices/system/cpu/cpu3/online", "1", "echo: write /sys/devices/system/cpu/cpu3/online: invalid argument"},
		// taken, by the one write of a line
		{"echo 2 > " + mask + " && cat " + mask, "0", "2"},
		{"echo 4 | tee " + mask + " && cat " + mask, "0", "4"},
		{"echo 1 | cat > " + mask + " && cat " + mask, "0", "1"},
		{"echo 0 > /sys/devices/system/cpu/cpu3/online && cat /sys/devices/system/cpu/online", "0", "0-2"},
		{"echo 1 > /sys/devices/system/cpu/cpu3/online && cat /sys/devices/system/cpu/online", "0", "0-3"},
		// promised
		{"modprobe mana && lsmod", "0", "mana"},
		{"modprobe no-such", "1", "modprobe: module \"no_such\" is not in this image"},
		{"ethtool -i eth0", "0", "driver: mana"},
		{"ethtool -l eth0", "0", "combined: 4 4"},
		{"ethtool -S eth0", "0", ": "},
		{"ethtool -L eth0 combined 2 && ethtool -l eth0", "0", "combined: 2 4"},
		{"ethtool -L eth0 combined 999", "1", "ethtool: eth0: "},
		{"taskset -c 1 grep Cpus_allowed_list /proc/self/status", "0", "Cpus_allowed_list:\t1\n"},
		{"taskset 6 sh -c 'taskset -c -p $$'", "0", "may run on CPUs 1-2"},
		{"taskset -c 77 true", "1", "taskset: CPUs 77: invalid argument"},
		{"ip link show eth0", "0", "eth0"},
		{"lspci", "0", "Microsoft"},
		{"grep -c . /proc/interrupts", "0", "\n"},
		{"dmesg | head -n 1", "0", "Linux version"},
		{"modprobe -r mana; cat /sys/module/mana/refcnt", "1", "/sys/module/mana"},
	}
	var input strings.Builder
	for _, tc := range cases {
		input.WriteString("( " + tc.command + "\n) 2>&1; echo \"@ $? @\"\n")
	}
	input.WriteString("exit 4\necho not reached\n")
	var out, errs bytes.Buffer
	in := io.MultiReader(&reading{strings.NewReader(""), nil, func() { // while the shell waits for its first command
		_, after, _ := strings.Cut(errs.String(), ": VM ")
		name, _, _ := strings.Cut(after, " ")
		sshBeside(ctx, t, name)
	}}, strings.NewReader(input.String()))
	if status := Run(ctx, []string{"shell", "low-vcpu-driver"}, Streams{In: in, Out: &out, Err: &errs}); status != 4 {
		t.Errorf("exit 4: status %d", status)
	}
	rest := out.String()
	for _, tc := range cases {
		shown, after, ok := strings.Cut(rest, " @\n")
		text, status, found := strings.Cut(shown, "@ ")
		if !ok || !found {
			t.Fatalf("no status after %q:\n%s%s", tc.command, rest, &errs)
		}
		if rest = after; status != tc.status || !strings.Contains(text, tc.want) {
			t.Errorf("%s: status %s and %q; want %s and %q", tc.command, status, text, tc.status, tc.want)
		}
	}
	if rest != "" {
		t.Errorf("after the end: %q", rest)
	}
}
