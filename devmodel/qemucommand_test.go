package devmodel_test

import (
	"context"
	"os"
	"sync"
	"testing"

	"irqlab/images"
)

var findQEMU = sync.OnceValues(func() (images.QEMU, error) {
	cache, err := images.OpenCache("")
	if err != nil {
		return images.QEMU{}, err
	}
	return cache.QEMU(context.Background(), os.Getenv("IRQLAB_QEMU"), nil)
})

// qemuCommand is how to start QEMU: the one at $IRQLAB_QEMU, or what the image cache finds or fetches.
func qemuCommand(t testing.TB) (command, env []string) {
	t.Helper()
	q, err := findQEMU()
	if err != nil {
		t.Fatalf("QEMU for the test: %v", err)
	}
	return q.Command, q.Env
}
