package runner

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"irqlab/images"
	"irqlab/lab"
	"irqlab/scenarios"
	"irqlab/scenarios/result"
)

// A module that this kernel does not insert says nothing about its code: the case is an error, in the kernel's words, and the result names the module. One that is no module
// comes to no guest.
func TestModuleNotInserted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*caseTime)
	defer cancel()
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := cache.Kernel(ctx, "debian:7.3", nil)
	if err != nil {
		t.Fatal(err)
	}
	own, err := cache.OwnModule(ctx, kernel, "mana")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mana.ko")
	changed := bytes.Replace(own, []byte("Adapter driver"), []byte("adapter driver"), 1) // which its signature does not cover
	if bytes.Equal(changed, own) {
		t.Fatal("nothing was changed")
	}
	write := func(data []byte) {
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sc, err := scenarios.Get("low-vcpu-driver")
	if err != nil {
		t.Fatal(err)
	}
	cases, _, err := sc.Plan(scenarios.Overrides{Kernels: []string{"debian:7.3"}})
	if err != nil {
		t.Fatal(err)
	}
	cases[0].Modules = []scenarios.Module{{Name: "mana", File: file}}
	o := Options{Cache: cache, Timeout: caseTime, Start: lab.StartAuto}
	write(changed)
	rep, err := Run(ctx, cases[:1], o)
	if err != nil {
		t.Fatal(err)
	}
	c := rep.Cases[0]
	if c.Outcome != result.Error || len(c.Reasons) == 0 || !strings.Contains(c.Reasons[0], "this kernel cannot insert it") || !strings.Contains(c.Reasons[0], "signature") {
		t.Errorf("%s: %q; want an error that says what the kernel refused", c.Outcome, c.Reasons)
	}
	if len(c.Modules) != 1 || c.Modules[0].Name != "mana" || c.Modules[0].File != file || len(c.Modules[0].SHA256) != 64 {
		t.Errorf("modules %+v", c.Modules)
	}

	write(own)
	vm, err := Boot(ctx, &cases[0], o) // as irqlab shell does
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := vm.Agent.LoadModule(ctx, "mana", "")
	if err != nil || len(loaded) != 1 || len(vm.Modules) != 1 {
		t.Errorf("the kernel's own module, given back: inserted %q of %d, %v", loaded, len(vm.Modules), err)
	}
	if err := vm.Close(); err != nil {
		t.Error(err)
	}

	write(own[:len(own)/2])
	var bad *images.BadModuleError
	if _, err := Run(ctx, cases[:1], o); !errors.As(err, &bad) || !strings.Contains(err.Error(), "not a whole module") {
		t.Errorf("with half a module: %v", err)
	}
}
