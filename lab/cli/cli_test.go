package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// irqlab runs the command and returns its exit status and streams.
func irqlab(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = Run(t.Context(), args, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	return status, out.String(), errs.String()
}

func TestBadUsage(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("name: x\nstrategies: [linear]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	full := filepath.Join(dir, "full")
	if err := os.MkdirAll(full, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(full, "results.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args string
		want string // in the message
	}{
		{"rnu", `unknown command "rnu"`},
		{"run low-vpcu", `did you mean "low-vcpu"`},
		{"run --kernle debian:7.3", `did you mean "--kernel"`},
		{"run --strategy linaer", `did you mean "linear"`},
		{"run --driver vifo", `did you mean "vfio"`},
		{"run --irqchip remaped", `did you mean "remapped"`},
		{"run --accel hax", "allowed: auto, kvm, tcg"},
		{"run --format jsno", `did you mean "json"`},
		{"run --start wram", `did you mean "warm"`},
		{"run --shape sockets=1,cores=0", "--shape"},
		{"run --shape socket=1", "sockets"},
		{"run --vectors 0", "1 to 2048"},
		{"run --vectors 4096", "1 to 2048"},
		{"run --device-node 7", "node 7"},
		{"run --device-node x", "--device-node"},
		{"run --offline 0", "CPU 0 cannot be taken offline"},
		{"run --offline 1-0", "runs backwards"},
		{"run --pressure nvm:queues=4", `did you mean "nvme"`},
		{"run --jobs -1", "--jobs"},
		{"run --out=", "--out: it is empty"},
		{"run --timeout -5s", "--timeout"},
		{"run --kernel /no/such/kernel", "/no/such/kernel"},
		{"run --kernel debian:", "no version after debian:"},
		{"run --kernel debian:seven", "starts with a digit"},
		{"run " + bad, bad + ":2:1: strategies"},
		{"run /no/such/file.yaml", "/no/such/file.yaml"},
		{"run " + dir + "/", "a directory"},
		{"run /dev/zero", "longer than"},
		{"help lsit", `did you mean "list"`},
		{"run --out " + full, "results.json"},
		{"shell --during up", "--hold"},
		{"run low-vcpu --case linaer", `did you mean "linear"`},
		{"run --timeline --format json", "--out DIR"},
		{"run --summary --format json", "--format json gives the whole"},
		{"shell --hold requst:QUERY_DEV_CONFIG", "request:QUERY_DEV_CONFIG"},
		{"shell --hold register-read", "irqlab: --hold: hold is not possible at register-read: "},
		{"shell --hold=", "irqlab: --hold: it is empty; give a STEP"},
		{"shell --hold nth=0", `irqlab: --hold: "0" is no count; allowed: 1 to 1000000 (hold: {at: STEP, nth: N, as: NAME})`},
		{"shell --hold smc:establish --during reboot", "allowed: probe, load, bind, up, down, set-channels, unload"},
		{"bench frok", `did you mean "fork"`},
		{"bench --rounds 0", "--rounds"},
		{"bench --format csv", "--format"},
		{"bench --kernel debian:seven", `irqlab: kernel "debian:seven": a version starts with a digit`},
		{"bench --kernel /no/such/kernel", "irqlab: kernel /no/such/kernel: "},
		{"bench --accel hax", "allowed: auto, kvm, tcg"},
		{"list strategie", `did you mean "strategies"`},
		{"trace", "accepts 1 arg"},
		{"trace /no/such/trace.jsonl", "/no/such/trace.jsonl"},
		{"trace " + dir, dir},
		{"compare", "--kernel SPEC"},
		{"compare --kernel debian:7.3", "two kernels"},
		{"compare --kernel debian:7.3 --kernel debian:7.3", "two kernels"},
		{"run low-vcpu-driver --module mana", "--module: \"mana\" is not NAME=FILE"},
		{"run low-vcpu-driver --module mana=", "is not NAME=FILE"},
		{"run low-vcpu-driver --module mana=a.ko --module mana=b.ko", "--module: mana is given twice"},
		{"run low-vcpu --module mana=a.ko", "give --driver mana, or a scenario of the kernel's driver"},
		{"compare --module mana=a.ko low-vcpu", "no case loads mana"},
		{"compare --kernel a --kernel b one two", "accepts at most 1 arg"},
		{"compare --kernel a --kernel b low-vcpu-drivr", `did you mean "low-vcpu-driver"`},
		{"compare --kernel a --kernel b --format txt", "allowed: table, json"},
		{"compare --kernel a --kernel b --strategy linear", "--driver vfio"},
		{"compare --kernel debian:7.3 --kernel /no/such/kernel", "/no/such/kernel"},
		{"shell one two", "accepts at most 1 arg"},
	} {
		status, out, msg := irqlab(t, strings.Fields(tc.args)...)
		if status != ExitUsage || out != "" {
			t.Errorf("irqlab %s: status %d, stdout %q, stderr %q; want status %d and nothing on stdout", tc.args, status, out, msg, ExitUsage)
		}
		if !strings.Contains(msg, tc.want) {
			t.Errorf("irqlab %s: %q does not say %q", tc.args, msg, tc.want)
		}
	}
}

// TestExitStatus holds the commands that judge no case to the statuses of those that do: a mistake of the user's is 2, what irqlab cannot do is 125, and neither is 1.
func TestExitStatus(t *testing.T) {
	dir := t.TempDir()
	file, text := filepath.Join(dir, "file"), []byte("no kernel, no socket, no timeline\n")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	// QEMU is looked for before the kernel is, and none must be fetched for a kernel that there is not: this one answers what is asked of it until then.
	qemu := filepath.Join(dir, "qemu-system-x86_64")
	if err := os.WriteFile(qemu, []byte("#!/bin/sh\necho QEMU emulator version 11.1.3\necho socket\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	none := filepath.Join(dir, "none")
	for _, tc := range []struct {
		args   string
		env    string // NAME=value; IRQLAB_CACHE is an empty directory otherwise
		status int
		want   string // in the message
	}{
		{"shell --qemu " + qemu + " --kernel " + none, "", ExitUsage, none},
		{"shell --qemu " + qemu + " --kernel " + file, "", ExitUsage, "not a usable kernel"},
		{"shell --qemu " + qemu + " --kernel " + dir, "", ExitUsage, "not a kernel build tree"},
		{"shell --qemu " + qemu + " --kernel " + none + ".deb", "", ExitUsage, none},
		{"shell --qemu " + qemu + " --kernel debian:seven", "", ExitUsage, "starts with a digit"},
		{"shell --qemu " + qemu + " --hold smc:establish --kernel " + none, "", ExitUsage, none},
		{"shell --qemu " + none + " --kernel " + none, "", ExitError, "QEMU " + none},
		{"shell low-vpcu", "", ExitUsage, `did you mean "low-vcpu"`},
		{"shell " + none + ".yaml", "", ExitUsage, none},
		{"shell --accel hax", "", ExitUsage, "--accel"},
		{"shell", "IRQLAB_CACHE=" + file, ExitError, "IRQLAB_CACHE"},

		{"fetch --qemu " + qemu + " --kernel " + none, "", ExitUsage, none},
		{"fetch --qemu " + qemu + " --kernel " + file, "", ExitUsage, "not a usable kernel"},
		{"fetch --qemu " + qemu + " --kernel debian:", "", ExitUsage, "no version after debian:"},
		{"fetch --qemu " + qemu + " --kernel=", "", ExitUsage, "empty"},
		{"fetch --qemu " + none, "", ExitError, "QEMU " + none},
		{"fetch debian:7.3", "", ExitUsage, "irqlab fetch --help"},
		{"fetch --kernels", "", ExitUsage, `did you mean "--kernel"`},
		{"fetch", "IRQLAB_CACHE=" + file, ExitError, "IRQLAB_CACHE"},

		{"device", "", ExitUsage, "--socket PATH is missing"},
		{"device --socket=", "", ExitUsage, "--socket PATH is missing"},
		{"device --socket " + none + "/socket", "", ExitUsage, none},
		{"device --socket " + file, "", ExitUsage, "not a socket"},
		{"device --socket " + socket, "", ExitUsage, "another process listens there"},
		{"device --socket " + none + strings.Repeat("x", 108), "", ExitUsage, "shorter"},
		{"device --socket " + none + " --vectors 0", "", ExitUsage, "0 vectors"},
		{"device --socket " + none + " --vectors 2049", "", ExitUsage, "1 to 2048"},
		{"device --socket " + none + " --vectors five", "", ExitUsage, "--vectors"},
		{"device --socket " + none + " --trace " + file, "", ExitUsage, "file exists"},
		{"device --socket " + none + " --trace=", "", ExitUsage, "--trace: it is empty"},
		{"device --socket " + none + " there", "", ExitUsage, "irqlab device --help"},

		{"ssh", "", ExitUsage, "irqlab ssh --help"},
		{"ssh --shwo vm", "", ExitUsage, "--shwo"},
		{"proxy", "", ExitUsage, "irqlab proxy --help"},

		{"cache prun", "", ExitUsage, `unknown command "prun"`},
		{"cache prune --unused soon", "", ExitUsage, "irqlab cache prune --help"},
		{"cache prune", "IRQLAB_CACHE_LIMIT=plenty", ExitUsage, "plenty"},
		{"cache verify --repair", "", ExitUsage, "--repair"},
		{"cache list", "IRQLAB_CACHE=" + file, ExitError, "IRQLAB_CACHE"},

		{"doctor qemu", "", ExitUsage, "irqlab doctor --help"},
		{"doctor --fix", "", ExitUsage, "--fix"},
		{"doctor", "IRQLAB_CACHE=" + file, ExitError, "IRQLAB_CACHE"},

		{"list kernels", "IRQLAB_CACHE=" + file, ExitError, "IRQLAB_CACHE"},
		{"completion bsah", "", ExitUsage, "irqlab completion --help"},
		{"completion bash twice", "", ExitUsage, "irqlab completion bash --help"},
		{"help cache prun", "", ExitUsage, `did you mean "cache prune"`},
		{"-x", "", ExitUsage, "(see irqlab --help)"},
	} {
		t.Run(tc.args+" "+tc.env, func(t *testing.T) {
			t.Setenv("IRQLAB_CACHE", t.TempDir())
			if name, value, ok := strings.Cut(tc.env, "="); ok {
				t.Setenv(name, value)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a device that is served after all would be for ever
			defer cancel()
			var errs bytes.Buffer
			status := Run(ctx, strings.Fields(tc.args), Streams{In: strings.NewReader(""), Out: io.Discard, Err: &errs})
			msg := errs.String()
			if status != tc.status || !strings.Contains(msg, tc.want) {
				t.Errorf("status %d, %q; want %d and %q", status, msg, tc.status, tc.want)
			}
		})
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("beside the file and QEMU there is %v, %v", left, err)
	}
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, text) {
		t.Errorf("the file is now %q, %v", now, err)
	}
}

// An error without a status of its own is never a verdict.
func TestUnforeseenError(t *testing.T) {
	if got := exitStatus(io.ErrUnexpectedEOF); got != ExitError {
		t.Errorf("status %d, want %d", got, ExitError)
	}
}

func TestHelp(t *testing.T) {
	for _, c := range append(newRoot(Streams{}).Commands(), nil) {
		args := []string{"--help"}
		if c != nil {
			args = []string{c.Name(), "--help"}
		}
		status, out, _ := irqlab(t, args...)
		want := "Usage:"
		if c != nil && c.IsAdditionalHelpTopicCommand() {
			want, _, _ = strings.Cut(c.Long, "\n")
			if _, page, _ := irqlab(t, "help", c.Name()); page != out {
				t.Errorf("irqlab help %s: %q", c.Name(), page)
			}
		}
		if status != ExitPass || !strings.Contains(out, want) {
			t.Errorf("irqlab %s: status %d, %q", strings.Join(args, " "), status, out)
		}
	}
}

func TestList(t *testing.T) {
	t.Setenv("IRQLAB_CACHE", t.TempDir())
	status, out, msg := irqlab(t, "list")
	if status != ExitPass {
		t.Fatalf("status %d: %s", status, msg)
	}
	for _, want := range append(scenarios.Shipped(), "numa-aware", "mana-7.2", "sockets=1,cores=2,threads=2,nodes=1,memory=512M", "reset-service", "request:QUERY_DEV_CONFIG") {
		if !strings.Contains(out, want) {
			t.Errorf("the list lacks %s:\n%s", want, out)
		}
	}
}

func TestUnreachableVM(t *testing.T) {
	for _, cmd := range []string{"ssh no-such-vm", "ssh no-such-vm ls -l --all", "proxy no-such-vm", "proxy --show no-such-vm"} {
		status, _, msg := irqlab(t, strings.Fields(cmd)...)
		if status != ExitError || !strings.Contains(msg, "no-such-vm") {
			t.Errorf("irqlab %s: status %d, %q; want %d and the name", cmd, status, msg, ExitError)
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestFullOutput makes sure that a result that could not be written is no success.
func TestFullOutput(t *testing.T) {
	t.Setenv("IRQLAB_CACHE", t.TempDir())
	for _, args := range []string{"list", "list shapes", "cache list", "run --help", "help run"} {
		var errs bytes.Buffer
		status := Run(t.Context(), strings.Fields(args), Streams{In: strings.NewReader(""), Out: fullDisk{}, Err: &errs})
		if status != ExitError || !strings.Contains(errs.String(), "standard output: no space left") {
			t.Errorf("irqlab %s: status %d, %q; want %d and what is wrong", args, status, errs.String(), ExitError)
		}
	}
}

// TestJSONOfNothing makes sure that who asked for JSON gets it, too, when no case could run.
func TestJSONOfNothing(t *testing.T) {
	t.Setenv("IRQLAB_CACHE", t.TempDir())
	status, out, msg := irqlab(t, "run", "--format", "json", "--qemu", "/no/such/qemu")
	var rep struct {
		Schema int
		Cases  []struct {
			Case, Outcome string
			Reasons       []string
		}
	}
	if err := json.Unmarshal([]byte(out), &rep); err != nil {
		t.Fatalf("status %d, stdout %q: %v", status, out, err)
	}
	if status != ExitError || !strings.Contains(msg, "/no/such/qemu") || rep.Schema != result.Schema || len(rep.Cases) != 3 {
		t.Errorf("status %d, stderr %q, %+v", status, msg, rep)
	}
	for _, c := range rep.Cases {
		if c.Outcome != "error" || len(c.Reasons) != 1 || !strings.Contains(c.Reasons[0], "/no/such/qemu") {
			t.Errorf("%+v", c)
		}
	}
}

// TestKnownToFail makes sure that who runs what must fail is told before it starts.
func TestKnownToFail(t *testing.T) {
	t.Setenv("IRQLAB_CACHE", t.TempDir())
	for _, tc := range []struct{ args, want string }{
		{"run faults/max-msix --kernel debian:7.3", "irqlab: one of these 2 cases is known to fail on this kernel; the exit status will be 1\n"},
		{"run faults/max-msix --kernel debian:7.3 --case none", "irqlab: this case is known to fail on this kernel; the exit status will be 1\n"},
		{"run unplug-during-reset --case left-before-count --kernel debian:6.17 --kernel debian:6.18 --kernel debian:7.3", "irqlab: 2 of these 3 cases are known to fail on this kernel; the exit status will be 1\n"},
		{"run faults/max-msix --case one", ""},
		{"compare faults/max-msix --kernel debian:7.2 --kernel debian:7.3", ""}, // whose status is not about that
	} {
		status, _, msg := irqlab(t, append(strings.Fields(tc.args), "--qemu", "/no/such/qemu")...)
		before, _, ok := strings.Cut(msg, "irqlab: QEMU")
		if status != ExitError || !ok || !strings.HasPrefix(before, tc.want) || (tc.want == "") != (before == "") {
			t.Errorf("irqlab %s: status %d, %q; want %q before what is wrong with QEMU", tc.args, status, msg, tc.want)
		}
	}
}

// TestSameScenarioTwice makes sure that no case writes over another's artifacts.
func TestSameScenarioTwice(t *testing.T) {
	cases, err := new(scenarioFlags).plan(t.Context(), []string{"low-vcpu", "low-vcpu"}, Streams{Err: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range cases {
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); got != "numa-aware linear unset numa-aware-2 linear-2 unset-2" {
		t.Errorf("cases %s", got)
	}
}
