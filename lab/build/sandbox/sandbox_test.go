package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runVariable makes this program run the command it holds, for tests that must change or kill the process that runs one.
const runVariable = "IRQLAB_TEST_SANDBOX"

func TestMain(m *testing.M) {
	if text := os.Getenv(runVariable); text != "" {
		var c Command
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			panic(err)
		}
		c.Output = os.Stdout
		if err := c.Run(context.Background()); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// shell is a script in a root that has the host's programs and one directory to write to.
func shell(t *testing.T, script string) Command {
	t.Helper()
	root, work := t.TempDir(), t.TempDir()
	for _, d := range []string{"dev", "proc", "tmp", "usr", "etc", "work"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := os.Symlink("usr/"+l, filepath.Join(root, l)); err != nil {
			t.Fatal(err)
		}
	}
	return Command{Root: root, Mounts: []Mount{{From: "/usr", To: "/usr"}, {From: work, To: "/work", Write: true}},
		Args: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/usr/sbin"}, Dir: "/work"}
}

func TestSandbox(t *testing.T) {
	for _, tt := range []struct{ name, script, want string }{
		{"its words", "echo out; echo err >&2", "out\nerr\n"},
		{"where it is", "pwd; hostname", "/work\nirqlab\n"},
		{"its environment alone", "/usr/bin/env | grep -v -e '^PWD=' -e '^_=' -e '^OLDPWD=' -e '^SHLVL='", "PATH=/usr/bin:/usr/sbin\n"},
		{"writes where it may", "echo x >/work/f && cat f && echo y >/tmp/f && cat /tmp/f", "x\ny\n"},
		{"root is read-only", "(echo x >/f) 2>/dev/null || echo no; (echo x >/etc/f) 2>/dev/null || echo no", "no\nno\n"},
		{"mounts are read-only", "(echo x >/usr/irqlab-test) 2>/dev/null || echo no; (echo x >/dev/f) 2>/dev/null || echo no", "no\nno\n"},
		{"nothing else of the host", "ls / | tr '\\n' ' '", "bin dev etc lib lib64 proc sbin tmp usr work "},
		{"no network", "grep -c : /proc/net/dev; grep -c lo: /proc/net/dev", "1\n1\n"},
		{"no other processes", "echo $$; ls /proc | grep -c '^[0-9]*$' | grep -c '^[1-9]$'", "1\n1\n"},
		{"no capabilities", "grep -e CapEff -e CapBnd /proc/self/status | tr -d '0\\t\\n'", "CapEff:CapBnd:"},
		{"no way back to writing", "mount -o remount,rw,bind / 2>/dev/null || echo no; unshare -rm mount -o remount,rw,bind /usr 2>/dev/null || echo no", "no\nno\n"},
		{"devices", "head -c 3 /dev/zero | wc -c; echo x >/dev/null && cat /dev/null; head -c 5 /dev/urandom | wc -c; ls /dev/sda /dev/vda /dev/kvm 2>/dev/null", "3\n5\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := shell(t, tt.script)
			var out bytes.Buffer
			c.Output = &out
			if err := c.Run(t.Context()); err != nil && !errors.As(err, new(*exec.ExitError)) {
				t.Fatal(err)
			}
			if out.String() != tt.want {
				t.Errorf("got %q, want %q", out.String(), tt.want)
			}
		})
	}
}

func TestSandboxStatus(t *testing.T) {
	err := shell(t, "exit 7").Run(t.Context())
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("exit 7 gave %v", err)
	}
	missing := shell(t, "")
	missing.Args = []string{"/bin/no-such-program"}
	if err := missing.Run(t.Context()); !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("a missing program gave %v", err)
	}
	mount := shell(t, "true")
	mount.Mounts = append(mount.Mounts, Mount{From: "/no/such", To: "/etc"})
	if err := mount.Run(t.Context()); !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), "/no/such") || errors.As(err, new(*RefusedError)) {
		t.Errorf("a missing mount gave %v", err)
	}
	large := shell(t, "head -c 2000000 /dev/zero >f")
	large.MaxFile = 1 << 20
	if err := large.Run(t.Context()); !errors.As(err, &exit) {
		t.Errorf("a file above the limit gave %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := shell(t, "true").Run(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that had ended gave %v", err)
	}
}

// duration is one that no other process sleeps for, in seconds.
func duration(seconds int) string { return fmt.Sprintf("%d.%d", seconds, os.Getpid()) }

// sleeping tells whether a sleep of so many seconds runs on this machine.
func sleeping(t *testing.T, seconds string) bool {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if data, err := os.ReadFile(f); err == nil && string(data) == "sleep\x00"+seconds+"\x00" {
			return true
		}
	}
	return false
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("%s: not within 20 s", what)
}

func TestSandboxEndsAll(t *testing.T) {
	script := func(seconds string) string {
		return fmt.Sprintf("setsid sleep %s >/dev/null 2>&1 & (trap '' TERM INT HUP; sleep %s)", seconds, seconds)
	}
	t.Run("cancelled", func(t *testing.T) {
		seconds := duration(86401)
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		go func() {
			for !sleeping(t, seconds) {
				time.Sleep(10 * time.Millisecond)
			}
			cancel(enough)
		}()
		if err := shell(t, script(seconds)).Run(ctx); !errors.Is(err, enough) {
			t.Errorf("got %v", err)
		}
		await(t, "the end of what it started", func() bool { return !sleeping(t, seconds) })
	})
	t.Run("ended by itself", func(t *testing.T) {
		seconds := duration(86402)
		if err := shell(t, "setsid sleep "+seconds+" >/dev/null 2>&1 & exit 0").Run(t.Context()); err != nil {
			t.Error(err)
		}
		await(t, "the end of what it started", func() bool { return !sleeping(t, seconds) })
	})
	t.Run("its process killed", func(t *testing.T) {
		seconds := duration(86403)
		cmd := runner(t, shell(t, script(seconds)), os.Args[0])
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		await(t, "its start", func() bool { return sleeping(t, seconds) })
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		await(t, "the end of what it started", func() bool { return !sleeping(t, seconds) })
	})
}

// runner runs a command in a process of its own, started by what stands before this test's program.
func runner(t *testing.T, c Command, words ...string) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), runVariable+"="+string(text))
	return cmd
}

// Inside a user namespace of its own, user namespaces can be switched off for what runs there.
func TestSandboxRefused(t *testing.T) {
	const off = "echo 0 >/proc/sys/user/max_user_namespaces && "
	for _, tt := range []struct{ name, script, want string }{
		{"as root", off + `exec "$0"`, "in\n"},
		{"as nobody in particular", off + `exec setpriv --bounding-set=-all --inh-caps=-all "$0"`, "sysctl user.max_user_namespaces"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := runner(t, shell(t, "echo in"), "unshare", "-r", "sh", "-c", tt.script, os.Args[0]).CombinedOutput()
			if !strings.Contains(string(out), tt.want) {
				t.Errorf("got %q (%v), want %q in it", out, err, tt.want)
			}
		})
	}
	for _, tt := range []struct {
		errno syscall.Errno
		want  string
	}{{syscall.ENOSPC, "max_user_namespaces"}, {syscall.EPERM, "apparmor_restrict"}, {syscall.EINVAL, "no user namespaces"}, {syscall.EMFILE, ""}} {
		err := refusedStart(&os.PathError{Op: "fork/exec", Path: "/proc/self/exe", Err: tt.errno})
		if refused := new(RefusedError); errors.As(err, &refused) != (tt.want != "") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v gave %v", tt.errno, err)
		}
	}
}

// Directories that are laid over each other show what the upper ones have, and only the uppermost changes. Their names may have what separates a mount's options.
func TestSandboxOverlay(t *testing.T) {
	top := filepath.Join(t.TempDir(), `a,b:c\d e`)
	put := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(top, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(top, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"low/both", "low/low", "low/dir/low", "low/removed", "low/dir/removed", "mid/both", "mid/mid", "mid/dir/mid", "up/dir/up"} {
		put(name, name+"\n")
	}
	if err := os.Mkdir(filepath.Join(top, "scratch"), 0o700); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(top, name) }
	over := Mount{From: in("up"), To: "/work", Write: true, Over: []string{in("mid"), in("low")}, Scratch: in("scratch"), Remove: []string{"removed", "dir/removed", "never"}}
	probe := shell(t, "true")
	probe.Mounts = append(probe.Mounts[:1:1], over)
	if err := probe.Run(t.Context()); errors.As(err, new(*OverlayError)) {
		t.Skip(err) // such as in a container whose files are such a mount already
	}
	for _, tt := range []struct {
		name, script, want string
		write              bool
	}{
		{"what shows", "cat both low mid dir/low dir/mid dir/up; ls removed dir/removed 2>/dev/null", "mid/both\nlow/low\nmid/mid\nlow/dir/low\nmid/dir/mid\nup/dir/up\n", true},
		{"what is written", "echo x >low; echo x >dir/mid; rm both; mv mid moved; cat low dir/mid moved; ls both mid 2>/dev/null", "x\nx\nmid/mid\n", true},
		{"again", "cat low dir/mid moved", "x\nx\nmid/mid\n", true},
		{"not to be written to", "(echo y >low) 2>/dev/null || cat low", "x\n", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := shell(t, tt.script)
			m := over
			m.Write = tt.write
			c.Mounts = append(c.Mounts[:1:1], m)
			var out bytes.Buffer
			c.Output = &out
			if err := c.Run(t.Context()); err != nil && !errors.As(err, new(*exec.ExitError)) {
				t.Fatal(err)
			}
			if out.String() != tt.want {
				t.Errorf("got %q, want %q", out.String(), tt.want)
			}
		})
	}
	for _, name := range []string{"low/both", "low/low", "low/dir/low", "low/removed", "low/dir/removed", "mid/both", "mid/mid", "mid/dir/mid", "up/dir/up"} {
		if data, err := os.ReadFile(in(name)); err != nil || string(data) != name+"\n" {
			t.Errorf("%s became %q, %v", name, data, err)
		}
	}
	if data, err := os.ReadFile(in("up/low")); err != nil || string(data) != "x\n" {
		t.Errorf("what was written is %q, %v", data, err)
	}
}

// Where directories cannot be laid over each other that is told apart from all else, and nothing is run.
func TestSandboxOverlayRefused(t *testing.T) {
	c := shell(t, "echo ran")
	var out bytes.Buffer
	c.Output = &out
	// The scratch directory on another file system than what is written to.
	elsewhere, err := os.MkdirTemp("/dev/shm", "irqlab-test-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(elsewhere) })
	work := c.Mounts[1].From
	c.Mounts[1].Over, c.Mounts[1].Scratch = []string{t.TempDir()}, elsewhere
	var overlay *OverlayError
	if err := c.Run(t.Context()); !errors.As(err, &overlay) || errors.As(err, new(*RefusedError)) || out.Len() > 0 {
		t.Errorf("got %v, %q", err, out.String())
	}
	c.Mounts[1].Scratch = filepath.Join(work, "none")
	if err := c.Run(t.Context()); !errors.Is(err, syscall.ENOENT) || errors.As(err, &overlay) {
		t.Errorf("got %v", err)
	}
}
