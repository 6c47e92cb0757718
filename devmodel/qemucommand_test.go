package devmodel_test

import (
	"os"
	"testing"
)

// qemuCommand is how to start QEMU: $IRQLAB_QEMU, or what the image cache finds.
func qemuCommand(t testing.TB) (command, env []string) {
	t.Helper()
	if path := os.Getenv("IRQLAB_QEMU"); path != "" {
		return []string{path}, nil
	}
	t.Fatal("no QEMU")
	return nil, nil
}
