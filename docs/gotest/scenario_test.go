package gotest

import (
	"testing"

	"irqlab/lab/labtest"
)

// Does this kernel's own driver give each CPU a queue? A scenario is a test in one line; name your own kernel: labtest.Kernel("../linux").
func TestSpread(t *testing.T) {
	t.Parallel()
	labtest.RunScenario(t, "spread", labtest.Kernel("debian:7.3"), labtest.Shape("cores=2,threads=2"))
}
