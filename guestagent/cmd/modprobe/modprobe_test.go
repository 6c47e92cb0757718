//go:build linux

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"irqlab/guestagent/kfile"
	"irqlab/guestagent/module"
)

// An image without the module wanted, on a machine without any loaded.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "modules.order"), []byte("vfio vfio.ko\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := module.Loader{Root: kfile.Root(dir), Dir: dir}
	for args, want := range map[string]string{
		"":           "usage:",
		"-x vfio":    "-x: unknown option",
		"mana x=1":   `module "mana" is not in this image`,
		"-r":         "no module",
		"-r vfio":    `module "vfio" is not loaded`,
		"mana-ib":    "never loaded here",
		"vfio":       "vfio.ko: no such file",
		"../../vfio": "is not a module name",
	} {
		if err := run(strings.Fields(args), l, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("modprobe %s: %v; want %q", args, err, want)
		}
	}
}
