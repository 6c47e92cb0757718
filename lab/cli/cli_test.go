package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"irqlab/scenarios"
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
		{"shell --hold requst:QUERY_DEV_CONFIG", "request:QUERY_DEV_CONFIG"},
		{"shell --hold register-read", "irqlab: --hold: hold is not possible at register-read: "},
		{"shell --hold=", "irqlab: --hold: it is empty; give a STEP"},
		{"shell --hold nth=0", `irqlab: --hold: "0" is no count; allowed: 1 to 1000000 (hold: {at: STEP, nth: N, as: NAME})`},
		{"shell --hold smc:establish --during reboot", "allowed: probe, up, reset-service"},
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
		{"compare --kernel a --kernel b one two", "accepts at most 1 arg"},
		{"compare --kernel a --kernel b low-vcpu-drivr", `did you mean "low-vcpu-driver"`},
		{"compare --kernel a --kernel b --format txt", "allowed: table, json"},
		{"compare --kernel a --kernel b --strategy linear", "--driver vfio"},
		{"compare --kernel debian:7.3 --kernel /no/such/kernel", "/no/such/kernel"},
		{"shell one two", "accepts at most 1 arg"},
		{"device", "--socket"},
		{"device --socket " + filepath.Join(dir, "s") + " --vectors 0", "vectors"},
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

func TestHelp(t *testing.T) {
	for _, c := range append(newRoot(Streams{}).Commands(), nil) {
		args := []string{"--help"}
		if c != nil {
			args = []string{c.Name(), "--help"}
		}
		status, out, _ := irqlab(t, args...)
		if status != ExitPass || !strings.Contains(out, "Usage:") {
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
	if status != ExitError || !strings.Contains(msg, "/no/such/qemu") || rep.Schema != 1 || len(rep.Cases) != 3 {
		t.Errorf("status %d, stderr %q, %+v", status, msg, rep)
	}
	for _, c := range rep.Cases {
		if c.Outcome != "error" || len(c.Reasons) != 1 || !strings.Contains(c.Reasons[0], "/no/such/qemu") {
			t.Errorf("%+v", c)
		}
	}
}

// TestSameScenarioTwice makes sure that no case writes over another's artifacts.
func TestSameScenarioTwice(t *testing.T) {
	cases, err := new(scenarioFlags).plan([]string{"low-vcpu", "low-vcpu"}, Streams{Err: io.Discard})
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
