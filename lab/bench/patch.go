package bench

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"irqlab/lab"
	"irqlab/lab/build"
	"irqlab/lab/try"
)

// patched is the file of the driver that the patches which are timed add a line to.
const patched = try.ModuleDir + "/gdma_main.c"

// takeTries takes irqlab try of patches that nobody has tried before, and what a developer would do without: build the module, and boot a machine to look.
func takeTries(ctx context.Context, b *bench, round int) (map[string]float64, error) {
	builder := build.New(b.Cache, b.Progress)
	src, err := builder.Source(ctx, b.kernel, try.ModuleDir)
	if err != nil {
		return nil, err
	}
	pristine, err := fs.ReadFile(src.FS(), patched)
	if err != nil {
		return nil, err
	}
	if round == 0 { // for the unpatched module and the snapshots
		if _, err := b.try(ctx, pristine, "before"); err != nil {
			return nil, err
		}
	}
	values := map[string]float64{}
	start := time.Now()
	if err := builder.Scratch(ctx, src, map[string][]byte{patched: b.changed(pristine, "scratch", round)}, filepath.Join(b.dir.Path, fmt.Sprint("scratch-", round))); err != nil {
		return nil, err
	}
	values[ModuleBuild] = time.Since(start).Seconds()
	boot, err := b.bare(ctx, "console=ttyS0 panic=-1")
	if err != nil {
		return nil, err
	}
	values[ModuleAndBoot] = values[ModuleBuild] + boot
	if values[Try], err = b.try(ctx, pristine, fmt.Sprint("all-", round)); err != nil {
		return nil, err
	}
	values[TryOne], err = b.try(ctx, pristine, fmt.Sprint("one-", round), "--case", "neighbour")
	return values, err
}

// changed is the file with a line more, which differs from that of any other name and run.
func (b *bench) changed(pristine []byte, name string, round ...int) []byte {
	return append(pristine[:len(pristine):len(pristine)], b.line(fmt.Sprint(name, round))+"\n"...)
}

// line is a line of C that every name and every run has another of.
func (b *bench) line(name string) string {
	return fmt.Sprintf("const char irqlab_bench[] = %q;", b.tag+" "+name+" "+time.Now().Format(time.RFC3339Nano))
}

// try has the command try a patch that adds a line, and returns the seconds that took.
func (b *bench) try(ctx context.Context, pristine []byte, name string, flags ...string) (float64, error) {
	const context = 3
	lines := strings.SplitAfter(strings.TrimSuffix(string(pristine), "\n"), "\n")
	first := max(0, len(lines)-context)
	var diff strings.Builder
	fmt.Fprintf(&diff, "--- a/%s\n+++ b/%s\n@@ -%d,%d +%d,%d @@\n", patched, patched, first+1, len(lines)-first, first+1, len(lines)-first+1)
	for _, l := range lines[first:] {
		diff.WriteString(" " + strings.TrimSuffix(l, "\n") + "\n")
	}
	diff.WriteString("+" + b.line(name) + "\n")
	file := filepath.Join(b.dir.Path, path.Base(name)+".diff")
	if err := os.WriteFile(file, []byte(diff.String()), 0o600); err != nil {
		return 0, err
	}
	took, _, err := b.command(ctx, append([]string{"try", file, "--format", "json", "--start", lab.StartWarm, "--kernel", b.Kernel}, flags...)...)
	return took, err
}
