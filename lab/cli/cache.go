package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"irqlab/images"
	"irqlab/lab/layout"
)

func newCache(s Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cache",
		Short: "List, prune or verify what is in the cache",
		Long: `The cache holds QEMU, kernels, initramfs, packages for guests, snapshots of booted machines, and what changed drivers and kernels are made of and became (toolchain, headers, modsource, module; kernelsource, kernelbase, kernelpart, kernelbuild):
$IRQLAB_CACHE, else irqlab in your cache directory. All of it is made again when it is needed. Snapshots go by themselves, the least recently used first, when they take more than $IRQLAB_CACHE_LIMIT (4G unless it is set).

Each of these may run while others use the cache.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCacheList(s), newCachePrune(s), newCacheVerify(s))
	return cmd
}

func newCacheList(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the cache's entries, their sizes and when they were last used",
		Long: `list names the cache's entries by kind. Two kinds are no entries: apt is a mirror's package lists, with what a fetch has under way, and tmp is what is being made. What was
left there by an irqlab that was killed goes at the next start.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, err := openCache(s)
			if err != nil {
				return err
			}
			entries, err := cache.Entries(cmd.Context())
			if err != nil {
				return err
			}
			t := layout.Table{Header: []string{"KIND", "MiB", "LAST USED", "NAME"}, Right: []int{1}}
			var total int64
			names := layout.Columns(s.Out) - len("snapshot   00000.0  0000-00-00 00:00  ")
			for _, e := range entries {
				// The beginning of a hash does to tell it from others.
				t.Rows = append(t.Rows, []string{e.Kind, mebibytes(e.Size), e.Used.Format("2006-01-02 15:04"), layout.Snip(e.Name, names)})
				total += e.Size
			}
			show(s.Out, t)
			fmt.Fprintf(s.Out, "%d entries, %s MiB, in %s\n", len(entries), mebibytes(total), cache.Dir())
			return nil
		},
	}
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) }

func newCachePrune(s Streams) *cobra.Command {
	var unused time.Duration
	var snapshots string
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove what was not used for a while, and the oldest snapshots above a limit",
		Long: `prune removes the entries, and the package lists of mirrors, that were not used for the time of --unused, except what somebody works on, and then the least recently
used snapshots until the rest takes no more than --snapshots. It names what it removed.`,
		Example: `  irqlab cache prune                   # what nobody has used for 30 days
  irqlab cache prune --snapshots 0     # all snapshots: the next run of each machine boots it once more
  irqlab cache prune --unused 0s       # everything`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if unused < 0 {
				return usageError(fmt.Errorf("--unused: %s is negative", unused))
			}
			limit, err := images.SnapshotLimit()
			if cmd.Flags().Changed("snapshots") {
				if limit, err = images.ParseSize(snapshots); err != nil {
					err = fmt.Errorf("--snapshots: %w", err)
				}
			}
			if err != nil {
				return usageError(err)
			}
			cache, err := openCache(s)
			if err != nil {
				return err
			}
			gone, err := cache.Prune(cmd.Context(), unused)
			if err == nil {
				gone = append(gone, cache.TrimSnapshots(limit)...)
			}
			for _, name := range gone {
				fmt.Fprintln(s.Out, name)
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&unused, "unused", 30*24*time.Hour, "remove entries not used for this `time`, such as 720h")
	cmd.Flags().StringVar(&snapshots, "snapshots", "", "`size` that snapshots may take, such as 512M (default $IRQLAB_CACHE_LIMIT, else 4G)")
	return cmd
}

func newCacheVerify(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Check every file of the cache, and remove damaged entries",
		Long: `verify reads every file of every entry and compares it with the hash it had when it was made. A damaged entry is removed, so that its next use makes it again; what
was wrong with it is told. The exit status is 1 if there was one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, err := openCache(s)
			if err != nil {
				return err
			}
			p := newProgress(s.Err)
			p.report("verifying", 0, 0)
			damaged, err := cache.Verify(cmd.Context())
			p.close()
			for _, d := range damaged {
				fmt.Fprintln(s.Out, d)
			}
			if err != nil {
				return err
			}
			if len(damaged) > 0 {
				return &exitError{ExitFail, fmt.Errorf("%d damaged entries were removed", len(damaged))}
			}
			fmt.Fprintln(s.Out, "every entry is whole")
			return nil
		},
	}
}
