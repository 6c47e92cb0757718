package cli

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A start makes nothing outside irqlab's cache: neither in the user's directories nor where temporary files go.
func TestNothingOutsideTheCache(t *testing.T) {
	t.Parallel()
	program := program(t)
	home, cache := t.TempDir(), filepath.Join(t.TempDir(), "cache")
	for _, args := range [][]string{{"list"}, {"list", "kernels"}, {"cache", "list"}, {"--help"}} {
		cmd := exec.Command(program, args...)
		cmd.Dir = home
		cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "XDG_RUNTIME_DIR=" + home, "PATH=" + os.Getenv("PATH"), "IRQLAB_CACHE=" + cache}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil && cmd.ProcessState.ExitCode() > ExitUsage { // an empty cache knows of no kernels
			t.Errorf("irqlab %v: %v: %s", args, err, &out)
		}
		err := filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
			if path != home {
				t.Errorf("irqlab %v made %s", args, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
