package qemu

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// startLab runs this test binary again as a lab with one VM.
func startLab(t *testing.T, root string) (pid, reaper int, dir string, lab *exec.Cmd) {
	t.Helper()
	lab = exec.Command(os.Args[0], "-test.run=^$")
	lab.Env = append(os.Environ(), "IRQLAB_TEST_LAB="+root)
	lab.Stderr = os.Stderr
	out, err := lab.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := lab.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = lab.Process.Kill()
		_ = lab.Wait()
	})
	if _, err := fmt.Fscan(out, &pid, &reaper, &dir); err != nil {
		t.Fatalf("the lab process: %v", err)
	}
	return pid, reaper, dir, lab
}
