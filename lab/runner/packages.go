package runner

import (
	"context"
	"fmt"
	"slices"

	"irqlab/scenarios"
)

// preparePackages brings what the guests are to have of Debian's packages into the cache. Nothing is run without them: what they depend on, and whether there is such a package,
// is the same for all kernels.
func preparePackages(ctx context.Context, cases []scenarios.Case, o Options) error {
	var done []string
	for _, c := range cases {
		what := fmt.Sprint(c.Packages)
		if len(c.Packages) == 0 || slices.Contains(done, what) {
			continue
		}
		done = append(done, what)
		if _, err := o.Cache.GuestPackages(ctx, c.Packages, o.Progress); ctx.Err() != nil {
			return context.Cause(ctx)
		} else if err != nil {
			return err
		}
	}
	return nil
}
