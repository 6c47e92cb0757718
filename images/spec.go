package images

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"pault.ag/go/debian/version"
)

// flavour is the kernel flavour irqlab uses: small, and with all that a virtual machine needs built in.
const flavour = "cloud-amd64"

// spec is a parsed kernel SPEC.
type spec struct {
	Debian string   // "7.3", "6.18.15", a release or a package version; "" if the SPEC names files
	Debs   []string // paths
	Path   string   // a bzImage, a vmlinux or a build tree
	Commit bool     // it names a commit of a git tree
}

// GitPrefix begins a SPEC that names a commit of a git tree, git:DIR@REV, whose kernel is built.
const GitPrefix = "git:"

// SpecError says that a kernel SPEC cannot be read.
type SpecError struct {
	Spec    string
	Problem string
}

func (e *SpecError) Error() string { return fmt.Sprintf("kernel %q: %s", e.Spec, e.Problem) }

// parseSpec tells the spellings of the contract apart. It touches no file: what a path holds is found out later.
func parseSpec(s string) (spec, error) {
	const ways = `want debian:VERSION (such as debian:7.3), a bzImage, a vmlinux, a kernel build tree, .deb files separated by commas, or git:DIR@REV`
	bad := func(format string, args ...any) (spec, error) {
		return spec{}, &SpecError{Spec: s, Problem: fmt.Sprintf(format, args...)}
	}
	if rest, ok := strings.CutPrefix(s, "debian:"); ok {
		if rest == "" {
			return bad("no version after debian: (%s)", ways)
		}
		for _, r := range rest {
			if !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune(".+~-", r)) {
				return bad("%q cannot be part of a Debian version (want digits and dots, such as debian:7.3 or debian:6.18.15)", r)
			}
		}
		if rest[0] < '0' || rest[0] > '9' {
			return bad("a version starts with a digit (such as debian:7.3 or debian:6.18.15)")
		}
		return spec{Debian: strings.TrimSuffix(rest, ".")}, nil
	}
	if strings.TrimSpace(s) == "" || strings.ContainsRune(s, 0) {
		return bad("empty (%s)", ways)
	}
	if strings.HasPrefix(s, GitPrefix) {
		return spec{Commit: true}, nil
	}
	parts := strings.Split(s, ",")
	if !slices.ContainsFunc(parts, func(p string) bool { return !strings.HasSuffix(p, ".deb") }) {
		for _, p := range parts {
			if p == ".deb" {
				return bad("a .deb without a name (%s)", ways)
			}
		}
		return spec{Debs: parts}, nil
	}
	return spec{Path: s}, nil
}

// candidate is one Debian kernel, in the index or in the cache.
type candidate struct {
	Release  string    `json:"release"`            // 7.3.4+deb13-cloud-amd64
	Version  string    `json:"version"`            // of the packages: 7.3.4-1~bpo13+1
	Suite    string    `json:"suite"`              // trixie-backports
	Packages []pkgName `json:"packages,omitempty"` // all that must be fetched
	Reason   string    `json:"reason,omitempty"`   // why it is incomplete, "" if it is not
}

// pkgName is one package to fetch; sizes in bytes.
type pkgName struct {
	Name      string `json:"name"`
	Size      int64  `json:"size"`
	Installed int64  `json:"installed"`
}

func (k candidate) key() string { return k.Release + "_" + k.Version }

// upstream is the kernel's own version: the package version without epoch and revision.
func (k candidate) upstream() string {
	v, err := version.Parse(k.Version)
	if err != nil {
		return k.Version
	}
	return v.Version
}

// matches tells whether what stands behind "debian:" means this kernel: whole leading components of its version (7.3 is not 7.30),
// its release with or without the flavour, or its exact package version.
func (k candidate) matches(want string) bool {
	if want == k.Version || want == k.Release || want+"-"+flavour == k.Release {
		return true
	}
	have, asked := strings.Split(k.upstream(), "."), strings.Split(want, ".")
	return len(asked) <= len(have) && slices.Equal(have[:len(asked)], asked)
}

// compareCandidates orders by Debian version, then release, then suite.
func compareCandidates(a, b candidate) int {
	va, erra := version.Parse(a.Version)
	vb, errb := version.Parse(b.Version)
	if erra != nil || errb != nil {
		return cmp.Or(strings.Compare(a.Version, b.Version), strings.Compare(a.Release, b.Release))
	}
	return cmp.Or(version.Compare(va, vb), strings.Compare(a.Release, b.Release), suiteRank(a.Suite)-suiteRank(b.Suite))
}

func suiteRank(s string) int { return slices.Index(suites, s) }

// pickKernel finds the newest complete candidate that want means, and the newest incomplete one; nil where there is none.
func pickKernel(all []candidate, want string) (best, broken *candidate) {
	for i := range all {
		k := &all[i]
		if !k.matches(want) {
			continue
		}
		to := &best
		if k.Reason != "" {
			to = &broken
		}
		if *to == nil || compareCandidates(**to, *k) < 0 {
			*to = k
		}
	}
	return best, broken
}

// selectKernel picks the newest complete candidate that want means. The error is *UnknownKernelError when nothing matches and
// *IncompleteKernelError when only incomplete kernels do.
func selectKernel(all []candidate, want string) (candidate, error) {
	best, broken := pickKernel(all, want)
	switch {
	case best != nil:
		return *best, nil
	case broken != nil:
		return candidate{}, &IncompleteKernelError{Spec: "debian:" + want, Release: broken.Release, Reason: broken.Reason, Near: nearest(all, want)}
	}
	return candidate{}, &UnknownKernelError{Spec: "debian:" + want, Near: nearest(all, want)}
}

// nearest lists the newest complete kernel of each series, the series closest to want first.
func nearest(all []candidate, want string) []string {
	newest := map[string]candidate{}
	for _, k := range all {
		s := series(k.upstream())
		if have, ok := newest[s]; k.Reason == "" && (!ok || compareCandidates(have, k) < 0) {
			newest[s] = k
		}
	}
	var names []string
	for s := range newest {
		names = append(names, s)
	}
	target := seriesNumber(series(want))
	slices.SortFunc(names, func(a, b string) int {
		da, db := seriesNumber(a)-target, seriesNumber(b)-target
		return cmp.Or(max(da, -da)-max(db, -db), strings.Compare(b, a))
	})
	for i := range names {
		names[i] = "debian:" + names[i]
	}
	return names[:min(len(names), 5)]
}

func series(v string) string {
	parts := strings.SplitN(v, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

func seriesNumber(s string) int {
	var major, minor int
	_, _ = fmt.Sscanf(s, "%d.%d", &major, &minor) // a name that is no number sorts as 0
	return (major%1000)*1000 + minor%1000
}

// IncompleteKernelError says that a kernel cannot be used because part of it is missing.
type IncompleteKernelError struct {
	Spec    string
	Release string
	Reason  string
	Near    []string // SPECs of kernels that would work
}

func (e *IncompleteKernelError) Error() string {
	s := fmt.Sprintf("kernel %s: %s is incomplete: %s", e.Spec, e.Release, e.Reason)
	if len(e.Near) > 0 {
		s += " (complete ones: " + strings.Join(e.Near, ", ") + "; see irqlab list kernels)"
	}
	return s
}

// UnknownKernelError says that no suite has the kernel asked for.
type UnknownKernelError struct {
	Spec string
	Near []string // SPECs of kernels that would work
}

func (e *UnknownKernelError) Error() string {
	s := fmt.Sprintf("kernel %s: no such %s kernel in %s", e.Spec, flavour, strings.Join(suites, ", "))
	if len(e.Near) > 0 {
		s += " (nearest: " + strings.Join(e.Near, ", ") + "; see irqlab list kernels, or give a path)"
	}
	return s
}

// NotAKernelError says that a file is not something QEMU could boot.
type NotAKernelError struct {
	Path   string
	Reason string
}

func (e *NotAKernelError) Error() string {
	return fmt.Sprintf("kernel %s: not a usable kernel: %s (want an x86-64 bzImage, a vmlinux with CONFIG_PVH, a kernel build tree or .deb files)", e.Path, e.Reason)
}
