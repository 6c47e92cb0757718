package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"irqlab/devmodel"
	"irqlab/devmodel/trace"
	"irqlab/lab"
)

func newDevice(s Streams) *cobra.Command {
	var socket, traceFile string
	var vectors int
	cmd := &cobra.Command{
		Use:   "device --socket PATH",
		Short: "Serve the function to a QEMU you start yourself",
		Long: `device serves one MANA function on a vfio-user socket until interrupted, for a QEMU (10.1.1 or newer) that you start:

  qemu-system-x86_64 -M q35,memory-backend=ram -m 512M \
    -object memory-backend-memfd,id=ram,size=512M,share=on \
    -device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"PATH"}}' …

The memory must be share=on: with a private mapping the function sees a stale copy. One client at a time; when it leaves, the function is reset and waits for the next.

Leave the function plugged in: QEMU 11.1 aborts when a function with MSI-X is removed (device_del); docs/dev/function-unplug.md tells what was tried.

An interrupt is its orderly end, with exit status 0.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if socket == "" {
				return usageError(fmt.Errorf("--socket PATH is missing: name the unix socket to listen on"))
			}
			if traceFile == "" && cmd.Flags().Changed("trace") { // a variable that is not set: the timeline would be lost
				return usageError(errors.New("--trace: it is empty; give a new FILE"))
			}
			f, err := lab.NewFunction(lab.FunctionConfig{Vectors: vectors})
			if err != nil {
				return usageError(err)
			}
			d, err := devmodel.Listen(socket, f.PCI)
			if err != nil {
				return usageError(fmt.Errorf("--socket: %w", err))
			}
			defer d.Close()
			fmt.Fprintf(s.Err, "serving function %04x:%04x with %d vectors on %s; interrupt to stop\n", lab.VendorID, lab.ManaID, vectors, socket)
			group, ctx := errgroup.WithContext(cmd.Context())
			group.Go(func() error { return d.Serve(ctx) })
			if traceFile != "" {
				group.Go(func() error { return streamTrace(ctx, f.Trace, traceFile) })
			}
			return group.Wait() // nil when interrupted: that is how it ends
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "unix `path` to listen on")
	cmd.Flags().IntVar(&vectors, "vectors", 5, "size of the MSI-X table, 1 to 2048")
	cmd.Flags().StringVar(&traceFile, "trace", "", "new `file` for the function's timeline, one JSON object a line")
	return cmd
}

// streamTrace writes the timeline to a new file until ctx ends.
func streamTrace(ctx context.Context, rec *trace.Recorder, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return usageError(fmt.Errorf("--trace: %w", err))
	}
	return errors.Join(rec.Stream(ctx, f), f.Close())
}
