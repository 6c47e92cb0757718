//go:build linux

package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// asShell, in the environment, makes this program the shell.
const asShell = "IRQLAB_TEST_SHELL"

func TestMain(m *testing.M) {
	if os.Getenv(asShell) != "" {
		main()
	}
	os.Exit(m.Run())
}

// script runs the shell with these arguments and standard input, both outputs in one file.
func script(t *testing.T, input string, args ...string) (status int, output string) {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, []byte(input), 0o600); err != nil {
		t.Fatal(err)
	}
	stdin, err := os.Open(in)
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := os.OpenFile(out, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	status = run(t.Context(), args, stdin, stdout, stdout)
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return status, string(text)
}

// Every builtin that prints tells of a write that was refused, and fails.
func TestRefused(t *testing.T) {
	const full = "write /dev/full: no space left on device\n"
	for _, tc := range []struct{ command, want string }{
		{"echo hi > /dev/full", "echo: " + full},
		{"echo hi >> /dev/full", "echo: " + full},
		{"printf '%s' hi > /dev/full", "printf: " + full},
		{"pwd > /dev/full", "pwd: " + full},
		{"type echo > /dev/full", "type: " + full},
		{"command -v echo > /dev/full", "command: " + full},
		{"command echo x > /dev/full", "echo: " + full},
		{"builtin printf x > /dev/full", "printf: " + full},
		{"alias x=y; alias > /dev/full", "alias: " + full},
		{"set -o > /dev/full", "set: " + full},
		{"shopt > /dev/full", "shopt: " + full},
		{"help > /dev/full", "help: " + full},
		{"times > /dev/full", "times: " + full},
		{"dirs > /dev/full", "dirs: " + full},
		{"pushd / > /dev/full", "pushd: " + full},
		{"cd /; cd - > /dev/full", "cd: " + full},
		{"{ echo a; } > /dev/full", "echo: " + full},
		{"(pwd) > /dev/full", "pwd: " + full},
		{"exec > /dev/full; echo x", "echo: " + full},
		{"f() { echo a; }; f > /dev/full", "echo: " + full},
		{"eval 'echo a' > /dev/full", "echo: " + full},
		{"echo a | tee /dev/full >/dev/null 2>&1", ""},
		{"cat > /dev/full 2>/dev/null <<X\nhey\nX", ""},
		{"set -e; echo a > /dev/full; echo no", "echo: " + full},
		{"echo a > /dev/full || exit 1; echo no", "echo: " + full},
	} {
		if status, got := script(t, "", "-c", tc.command); status != 1 || got != tc.want {
			t.Errorf("%s: status %d, %q; want 1, %q", tc.command, status, got, tc.want)
		}
	}
}

func TestShell(t *testing.T) {
	file := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(file, []byte("echo $1 $2\nexit 5\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args, input string // arguments apart by ¦
		status      int
		want        string
	}{
		{"-c¦exit 4", "", 4, ""},
		{"-c¦false", "", 1, ""},
		{"-c¦echo $1 $2¦name¦a¦b", "", 0, "a b\n"},
		{"-ec¦false; echo no", "", 1, ""},
		{"-c¦trap 'echo bye' EXIT; exit 3", "", 3, "bye\n"},
		{"-c¦echo -e 'a\\tb%d'; echo -n x; echo -ne 'y\\n'; echo -- -q", "", 0, "a\tb%d\nxy\n-- -q\n"},
		{"-c¦printf '%s-%d\\n' a 1 b 2", "", 0, "a-1\nb-2\n"},
		{"-c¦printf", "", 1, "printf: usage: printf FORMAT [ARGUMENT…]\n"},
		{"-c¦echo() { printf '<%s>' \"$@\"; }; echo a b", "", 0, "<a><b>"},
		{"-c¦x=$(echo a; pwd >/dev/null; printf b); echo \"$x\" | cat", "", 0, "a\nb\n"},
		{"-c¦head() { echo \"own $*\"; }; head -2", "", 0, "own -2\n"},
		{"-c¦echo 'a\nb\nc' > $1; head -2 $1; head -1 < $1¦name¦" + file + ".x", "", 0, "a\nb\na\n"},
		{"-c¦no-such-command", "", 127, "no-such-command: not found\n"},
		{"-c¦sh -c 'kill -9 $$'", "", 137, ""},
		{"-c¦kill -0 $$ && echo there", "", 0, "there\n"},
		{"-c¦A=1; export B=2; sh -c 'echo $A$B'", "", 0, "2\n"},
		{"-c¦cd /; pwd; cat < /dev/null; ls -d .", "", 0, "/\n.\n"},
		{"-c¦echo a; fi", "", 2, "sh: 1:9: `fi` can only be used to end an `if`\n"},
		{"-q", "", 2, "sh: -q: unknown option\n" + usage + "\n"},
		{"-c", "", 2, "sh: -c: takes a command\n" + usage + "\n"},
		{file + "¦a¦b", "", 5, "a b\n"},
		{"/no/such/script", "", 127, "sh: open /no/such/script: no such file or directory\n"},
		{"", "echo a\nexit 4\necho no\n", 4, "a\n"},
		{"", "false", 1, ""},
		{"", "cat\nrest of the input\n", 0, "rest of the input\n"},
		{"", "read x\nword\necho got $x\n", 0, "got word\n"},
		{"", "echo a; if true\nthen echo b\nfi\n", 0, "a\nb\n"},
		{"", "trap 'echo bye' EXIT\necho a\nfalse\n", 1, "a\nbye\n"},
		{"", "cat <<X\none\nX\necho two", 0, "one\ntwo\n"},
		{"", "echo a; fi\n", 2, "sh: 1:9: `fi` can only be used to end an `if`\n"},
	} {
		var args []string
		if tc.args != "" {
			args = strings.Split(tc.args, "¦")
		}
		if status, got := script(t, tc.input, args...); status != tc.status || got != tc.want {
			t.Errorf("sh %q, input %q: status %d, %q; want %d, %q", tc.args, tc.input, status, got, tc.status, tc.want)
		}
	}
}

// In /proc and /sys each write is a request of its own, so a builtin's line goes out in one piece, to a pipe, too.
func TestOneWrite(t *testing.T) {
	for _, command := range []string{"echo a b c", "printf '%s\n' a b c", "pwd", "type echo cat"} {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_DIRECT|unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		read, write := os.NewFile(uintptr(ends[0]), "read"), os.NewFile(uintptr(ends[1]), "write")
		pieces := make(chan int)
		go func() {
			n := 0
			for b := make([]byte, 1); ; n++ { // packets: a read takes what one write gave, and drops the rest of it
				if _, err := read.Read(b); err != nil {
					break
				}
			}
			pieces <- n
		}()
		if status := run(t.Context(), []string{"-c", command}, nil, write, os.Stderr); status != 0 {
			t.Errorf("%s: status %d", command, status)
		}
		write.Close()
		if n := <-pieces; n != 1 {
			t.Errorf("%s: %d writes", command, n)
		}
		read.Close()
	}
}

// On a terminal: lines are edited and completed, an interrupt gives up the line or ends what it runs, and the end has the shell's status.
func TestConverse(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe") // in a session of its own, or the terminal could not interrupt it
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), asShell+"=1")
	if err := os.WriteFile(filepath.Join(cmd.Dir, "a-long-name"), []byte("its contents\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	master, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	seen := make(chan byte, 1<<16)
	go func() {
		defer close(seen)
		b := make([]byte, 1)
		for {
			if _, err := master.Read(b); err != nil {
				return
			}
			seen <- b[0]
		}
	}()
	var shown bytes.Buffer
	expect := func(text string) {
		t.Helper()
		late := time.After(30 * time.Second)
		for from := shown.Len(); !strings.Contains(shown.String()[from:], text); {
			select {
			case c, ok := <-seen:
				if !ok {
					t.Fatalf("the end, without %q:\n%q", text, shown.String())
				}
				shown.WriteByte(c)
			case <-late:
				t.Fatalf("no %q:\n%q", text, shown.String())
			}
		}
	}
	for _, step := range []struct{ keys, want string }{
		{"", prompt},
		{"echo one\r", "\none\r\n" + prompt},
		{"cat a-\t\r", "\nits contents\r\n" + prompt},
		{"if true\r", more},
		{"then echo two; fi\r", "\ntwo\r\n" + prompt},
		{"echo three\x03", prompt},
		{"while true; do sleep 0.01; echo go; done\r", "\ngo\r\n"}, // of its output: what is echoed comes while the terminal is still the editor's, to which the next key is no signal
		{"\x03", "\n" + prompt},
		{"echo $((6*7))\r", "\n42\r\n" + prompt},
		{"echo a > /dev/full\r", "echo: write /dev/full: no space left on device\r\n" + prompt},
		{"fi\r", "sh: 1:1:"},
		{"\x1b[A\x1b[A\x15echo four\r", "\nfour\r\n" + prompt},
		{"exit 4\r", "exit 4"},
	} {
		if _, err := io.WriteString(master, step.keys); err != nil {
			t.Fatal(err)
		}
		expect(step.want)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 4 {
		t.Errorf("status: %v, want 4", err)
	}
	if strings.Contains(shown.String(), "\nthree") {
		t.Errorf("a line that was given up ran:\n%q", shown.String())
	}
}
