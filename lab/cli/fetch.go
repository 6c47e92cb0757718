package cli

import (
	"github.com/spf13/cobra"

	"irqlab/images"
	"irqlab/lab"
)

func newFetch(s Streams) *cobra.Command {
	var kernels []string
	var qemu string
	cmd := &cobra.Command{
		Use:   "fetch",
		Short: "Fill the cache ahead of time: QEMU, kernels, initramfs",
		Long: `fetch brings QEMU, the named kernels and the initramfs for each into the cache, and checks what is there already. It may be interrupted and repeated,
and several may run at once: each piece is made once and appears whole or not at all.

Packages come from the Debian mirror that $IRQLAB_DEBIAN_MIRROR names, the URL that has dists/ and pool/ below it, else from the one in the host's apt sources; a host of another
distribution, such as Ubuntu, has none, and needs the variable and the package debian-archive-keyring. Naming another mirror takes effect at once; what is in the cache already is used
wherever it came from. A file larger than any of Debian's ends the fetch.

The guest's agent is built, by Go, from the checkout of irqlab that $IRQLAB_SOURCE names, else from where this irqlab was built, else from the source that irqlab carries.`,
		Example: "  irqlab fetch --kernel debian:6.18 --kernel debian:7.3",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, err := openCache(s)
			if err != nil {
				return err
			}
			p := newProgress(s.Err)
			defer p.close()
			ctx := cmd.Context()
			q, err := cache.QEMU(ctx, qemu, p.report)
			if err != nil {
				return err
			}
			p.result(s.Out, "QEMU %s (%s)", q.Version, q.Source)
			for _, spec := range kernels {
				k, err := cache.Kernel(ctx, spec, p.report)
				if err == nil {
					_, err = cache.Initramfs(ctx, k, p.report)
				}
				if err != nil {
					return labError(images.AsBadKernel(spec, err)) // names the kernel
				}
				p.result(s.Out, "kernel %s: %s", spec, k.Release)
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&kernels, "kernel", []string{lab.DefaultKernel}, "kernel `SPEC` to fetch; may be repeated")
	cmd.Flags().StringVar(&qemu, "qemu", "", "`path` of the QEMU binary to use instead of finding one")
	return cmd
}
