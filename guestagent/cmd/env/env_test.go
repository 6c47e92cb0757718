//go:build linux

package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	base := []string{"PATH=/bin", "A=1", "AB=2"}
	for _, x := range []struct {
		args         string
		env, command []string
		err          string
	}{
		{"", base, nil, ""},
		{"bash", base, []string{"bash"}, ""},
		{"bash|-c|a=b", base, []string{"bash", "-c", "a=b"}, ""},
		{"-i|A=3|sh", []string{"A=3"}, []string{"sh"}, ""},
		{"-|sh|-e", nil, []string{"sh", "-e"}, ""},
		{"-u|A|sh", []string{"PATH=/bin", "AB=2"}, []string{"sh"}, ""},
		{"-uA|sh", []string{"PATH=/bin", "AB=2"}, []string{"sh"}, ""},
		{"A=4|C=5|sh", []string{"PATH=/bin", "AB=2", "A=4", "C=5"}, []string{"sh"}, ""},
		{"-S bash -e|script", base, []string{"bash", "-e", "script"}, ""}, // what #!/usr/bin/env -S bash -e becomes
		{"-S|bash -e|script", base, []string{"bash", "-e", "script"}, ""},
		{"--|-x", base, []string{"-x"}, ""},
		{"-u", nil, nil, "-u wants a word"},
		{"-x|sh", nil, nil, "-x: unknown option"},
	} {
		var args []string
		if x.args != "" {
			args = strings.Split(x.args, "|")
		}
		env, command, err := parse(args, base)
		switch {
		case x.err != "":
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%q: %v, want %q", x.args, err, x.err)
			}
		case err != nil, !slices.Equal(env, x.env), !slices.Equal(command, x.command):
			t.Errorf("%q: %q and %q, %v; want %q and %q", x.args, env, command, err, x.env, x.command)
		}
	}
	if !slices.Equal(base, []string{"PATH=/bin", "A=1", "AB=2"}) {
		t.Errorf("the environment was changed: %q", base)
	}
}

// It becomes the program, found where the new PATH leads, and tells by its status when there is none.
func TestRun(t *testing.T) {
	if os.Getenv("ENV_TEST") != "" {
		os.Args = append([]string{"env"}, strings.Split(os.Getenv("ENV_TEST"), "|")...)
		main()
	}
	for _, x := range []struct {
		args, want string
		status     int
	}{
		{"-i|X=1", "X=1\n", 0},
		{"-i|PATH=/bin:/usr/bin|X=1|sh|-c|echo $X; exit 3", "1\n", 3},
		{"-i|PATH=/nowhere|sh", "env: sh: no such program\n", notFound},
		{"/etc/passwd", "permission denied", notExecutable},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=TestRun$")
		cmd.Env = append(os.Environ(), "ENV_TEST="+x.args)
		out, _ := cmd.CombinedOutput()
		if !strings.Contains(string(out), x.want) || cmd.ProcessState.ExitCode() != x.status {
			t.Errorf("%q: %q and status %d, want %q and %d", x.args, out, cmd.ProcessState.ExitCode(), x.want, x.status)
		}
	}
}
