package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestForeignWords has QEMU, a file's name and a stage say what would steer the terminal. None of it gets there.
func TestForeignWords(t *testing.T) {
	const steer = "\x1b]0;owned\x07\x1b[31m\u202e\rpass"
	qemu := filepath.Join(t.TempDir(), "qemu-system-x86_64")
	script := "#!/bin/sh\ncase \"$*\" in\n*--version*) echo QEMU emulator version 11.1.3;;\n*help*) echo socket;;\n*) printf '\\033]0;owned\\007\\033[31m\\rpass' >&2; exit 1;;\nesac\n"
	if err := os.WriteFile(qemu, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"QEMU's words in shell's error": {"shell", "--start", "cold", "--accel", "tcg", "--qemu", qemu},
		"QEMU's words in a verbose run": {"run", "-v", "--start", "cold", "--accel", "tcg", "--strategy", "linear", "--qemu", qemu},
		"a file's name":                 {"trace", "/none/" + steer},
		"a flag":                        {"run", "--" + steer},
	} {
		t.Run(name, func(t *testing.T) {
			status, out, msg := irqlab(t, args...)
			if status == ExitPass || !strings.Contains(out+msg, "pass") {
				t.Fatalf("status %d, %q, %q: its words are not told", status, out, msg)
			}
			if i := strings.IndexAny(out+msg, "\x1b\x07\r\u202e"); i >= 0 {
				t.Errorf("raw: %q", (out + msg)[max(0, i-40):])
			}
		})
	}
	var said strings.Builder
	p := newProgress(&said)
	p.result(&said, "a/b: %s", "the driver's word: "+steer)
	p.close()
	if strings.ContainsAny(said.String(), "\x1b\x07\r\u202e") || !strings.Contains(said.String(), "pass") {
		t.Errorf("raw: %q", said.String())
	}
}
