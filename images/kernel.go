package images

// Kernel is a kernel ready to boot.
type Kernel struct {
	Spec       string // as asked for
	Release    string // uname -r
	Image      string // path
	ImageKind  string // "vmlinux" (uncompressed, has a PVH entry) or "bzImage"
	ModulesDir string // …/lib/modules/<release>, "" if there is none; modules.dep may be missing from it
	Source     string // for people: "debian trixie-backports 7.3.4-1~bpo13+1", or the path
}
