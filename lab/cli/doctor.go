package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"irqlab/images"
	"irqlab/lab/foreign"
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
			for _, c := range checks {
				fmt.Fprintf(s.Out, "%-4s  %-13s  %s\n", c.Status, c.Name, foreign.Line(c.Detail))
				if c.Remedy != "" && c.Status != images.OK {
					fmt.Fprintf(s.Out, "%21s-> %s\n", "", foreign.Line(c.Remedy))
				}
				if c.Status == images.Fail {
					failed++
				}
			}
			if failed > 0 {
				return &exitError{ExitFail, fmt.Errorf("%d of %d checks failed: a run cannot work yet", failed, len(checks))}
			}
			return nil
		},
	}
}
