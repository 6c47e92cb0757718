package cli

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// program builds the irqlab command.
func program(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "irqlab")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", file, "irqlab").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}
