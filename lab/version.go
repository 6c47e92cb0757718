package lab

import "runtime/debug"

// Version is irqlab's, as the Go toolchain stamped it: a release, a commit with its time and whether the tree was changed, or "(devel)" where there was nothing to stamp.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
