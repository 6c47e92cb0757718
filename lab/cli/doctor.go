package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"irqlab/images"
	"irqlab/lab/foreign"
	"irqlab/lab/layout"
)

func newDoctor(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this machine can run irqlab",
		Long: `doctor checks QEMU and its vfio-user client, KVM, shared memory, disk space, package access and the Go toolchain. Each line is ok, warn or fail, with the remedy.
It exits 0 if a run can work, else 1.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, err := openCache(s)
			if err != nil {
				return err
			}
			p := newProgress(s.Err)
			p.report("checking", 0, 0)
			checks := cache.Doctor(cmd.Context())
			p.close()
			failed := 0
			var t layout.Table
			for _, c := range checks {
				detail := foreign.Line(c.Detail)
				if c.Remedy != "" && c.Status != images.OK {
					detail += "\n-> " + foreign.Line(c.Remedy)
				}
				t.Rows = append(t.Rows, []string{string(c.Status), c.Name, detail})
				if c.Status == images.Fail {
					failed++
				}
			}
			show(s.Out, t)
			if failed > 0 {
				return &exitError{ExitFail, fmt.Errorf("%d of %d checks failed: a run cannot work yet", failed, len(checks))}
			}
			return nil
		},
	}
}
