package images

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Status is the outcome of a Check.
type Status string

// Statuses of a Check. A run can work as long as no check fails.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Check is one line of `irqlab doctor`.
type Check struct {
	Name   string
	Status Status
	Detail string
	Remedy string // "" when there is nothing to do
}

// Doctor checks what a run needs of this machine. It fetches nothing; it asks the mirror for one small file.
func (c *Cache) Doctor(ctx context.Context) []Check {
	packages := c.checkPackages(ctx)
	qemu, haveQEMU := c.checkQEMU(ctx, packages.Status != Fail)
	kernel, haveKernel := c.checkKernel(packages.Status != Fail)
	if packages.Status == Fail && haveQEMU && haveKernel {
		packages.Status = Warn // what is cached will do
	}
	source, src := c.checkSource(ctx)
	return []Check{qemu, kernel, checkKVM(), checkMemory(), c.checkDisk(haveQEMU && haveKernel), packages, source, c.checkGo(ctx, src)}
}

func (c *Cache) checkQEMU(ctx context.Context, fetchable bool) (Check, bool) {
	k := Check{Name: "qemu", Status: OK}
	host, err := c.hostQEMU(ctx)
	if err == nil {
		k.Detail = fmt.Sprintf("%s, version %s, with vfio-user-pci", host.Source, host.Version)
		return k, true
	}
	if q, ok := c.cachedQEMU(); ok {
		if version, err := probeQEMU(ctx, q.Command, q.Env); err != nil {
			k.Status, k.Detail, k.Remedy = Fail, fmt.Sprintf("the cached QEMU does not run: %v", err), "give --qemu PATH"
		} else {
			k.Detail = fmt.Sprintf("version %s from the cache (%s), with vfio-user-pci", version, q.Source)
		}
		return k, k.Status == OK
	}
	k.Detail = err.Error()
	if fetchable {
		k.Status, k.Remedy = Warn, fmt.Sprintf("nothing to do: the first run fetches one from Debian %s (irqlab fetch does it now)", qemuSuite)
	} else {
		k.Status, k.Remedy = Fail, fmt.Sprintf("give --qemu PATH, a %s of at least %s", qemuProgram, MinQEMU)
	}
	return k, false
}

func (c *Cache) checkKernel(fetchable bool) (Check, bool) {
	k := Check{Name: "kernel", Status: OK}
	var releases []string
	for _, have := range c.cachedKernels() {
		releases = append(releases, have.Release)
	}
	switch {
	case len(releases) > 0:
		k.Detail = "cached: " + strings.Join(releases, ", ")
	case fetchable:
		k.Status, k.Detail, k.Remedy = Warn, "none cached", "nothing to do: the first run fetches one (irqlab fetch --kernel SPEC does it now)"
	default:
		k.Status, k.Detail, k.Remedy = Fail, "none cached and none can be fetched", "give --kernel PATH: a bzImage, a vmlinux, a build tree or .deb files"
	}
	return k, len(releases) > 0
}

// KVM tells whether a stock kernel can run under /dev/kvm here, and why not.
//
// The device alone is not enough: a host that is itself a guest may offer KVM without hardware virtualisation, under which an unmodified
// guest dies at once; so the CPU must have vmx or svm too.
func KVM() (usable bool, why string) {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, "no /dev/kvm: using TCG"
	case errors.Is(err, os.ErrPermission):
		return false, "/dev/kvm is there but this user may not open it: using TCG"
	case err != nil:
		return false, fmt.Sprintf("/dev/kvm: %v: using TCG", err)
	}
	f.Close()
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return false, fmt.Sprintf("/proc/cpuinfo: %v: using TCG", err)
	}
	feature := virtualisation(info)
	if feature == "" {
		return false, "/dev/kvm is there but the CPU offers no vmx/svm: using TCG"
	}
	return true, "/dev/kvm opens and the CPU has " + feature
}

// virtualisation finds vmx or svm in the flags of the first CPU.
func virtualisation(cpuinfo []byte) string {
	for line := range bytes.Lines(cpuinfo) {
		key, flags, ok := strings.Cut(string(line), ":")
		if !ok || strings.TrimSpace(key) != "flags" {
			continue
		}
		for _, f := range strings.Fields(flags) {
			if f == "vmx" || f == "svm" {
				return f
			}
		}
		return ""
	}
	return ""
}

func checkKVM() Check {
	usable, why := KVM()
	k := Check{Name: "kvm", Status: OK, Detail: why}
	if !usable {
		k.Status = Warn
		k.Remedy = "none needed; runs are several times faster with KVM"
		if strings.Contains(why, "may not open") {
			k.Remedy = "add the user to the group kvm (usermod -aG kvm USER) and log in again"
		}
	}
	return k
}

// checkMemory tries what the guest's RAM is made of: a memfd as large as the default guest.
func checkMemory() Check {
	const ram = 512 << 20
	k := Check{Name: "shared-memory", Status: OK}
	fd, err := unix.MemfdCreate("irqlab-doctor", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, ram)
		unix.Close(fd)
	}
	if err != nil {
		k.Status, k.Detail, k.Remedy = Fail, fmt.Sprintf("no memfd of %s: %v", mebibytes(ram), err), "a sandbox forbids memfd_create: run outside of it"
		return k
	}
	k.Detail = "memfd works"
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		free := availableMemory()
		if free == 0 {
			free = int64(info.Freeram) * int64(info.Unit)
		}
		k.Detail += ", " + mebibytes(free) + " of memory available"
		if free < ram {
			k.Status, k.Remedy = Warn, "free some memory, or give a smaller shape: --shape memory=256M"
		}
	}
	return k
}

func availableMemory() int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}

func (c *Cache) checkDisk(filled bool) Check {
	const (
		empty = 1 << 30   // package lists, QEMU, a kernel, its initramfs and what is fetched meanwhile
		full  = 128 << 20 // a run's files
	)
	free := freeSpace(c.dir)
	k := Check{Name: "disk", Status: OK, Detail: fmt.Sprintf("%s free for the cache %s", mebibytes(free), c.dir)}
	switch {
	case free < full || !filled && free < empty/2:
		k.Status = Fail
	case free < empty:
		k.Status = Warn
	}
	if k.Status != OK {
		k.Remedy = "free some space, or set IRQLAB_CACHE to a directory on another file system"
	}
	return k
}

func (c *Cache) checkPackages(ctx context.Context) Check {
	k := Check{Name: "packages", Status: OK}
	bad := func(err error, remedy string) Check {
		k.Status, k.Detail, k.Remedy = Fail, err.Error(), remedy
		return k
	}
	const byPath = "give --qemu PATH and --kernel PATH"
	if _, err := exec.LookPath("apt-get"); err != nil {
		return bad(errors.New("no apt-get on this machine"), byPath)
	}
	var problems, remedies []string // all of them: a host of another distribution has two
	lacks := func(err error) {
		var no *NoArchiveError
		if !errors.As(err, &no) {
			no = &NoArchiveError{err.Error(), "mend the host's apt configuration"}
		}
		problems, remedies = append(problems, no.Problem), append(remedies, no.Remedy)
	}
	if _, err := findKeyring(); err != nil {
		lacks(err)
	}
	mirror := c.apt.mirror
	if mirror == "" {
		var err error
		if mirror, err = hostMirror(ctx); err != nil {
			lacks(err)
		}
	}
	if len(problems) > 0 {
		return bad(errors.New(strings.Join(problems, "; ")), strings.Join(remedies, ", and ")+"; or "+byPath+" (docs/mirrors.md)")
	}
	named := "the host's apt sources name it"
	if os.Getenv(MirrorVariable) != "" {
		named = MirrorVariable + " names it"
	}
	if err := c.askMirror(ctx, mirror); err != nil {
		return bad(fmt.Errorf("%s (%s) does not answer: %w", redact(mirror), named, err), "check the network and the host's apt configuration, or "+byPath)
	}
	k.Detail = fmt.Sprintf("apt-get reaches %s (%s)", redact(mirror), named)
	if x := c.readIndex(); x != nil {
		k.Detail += fmt.Sprintf("; package index of %s", x.Time.Local().Format("2006-01-02 15:04"))
	}
	return k
}

// aptHelper is apt's own downloader: it uses the host's proxies, certificates and transports.
const aptHelper = "/usr/lib/apt/apt-helper"

// askMirror fetches one small file.
func (c *Cache) askMirror(ctx context.Context, mirror string) error {
	if _, err := os.Stat(aptHelper); err != nil {
		return nil // an apt without it: cannot be asked, which is no reason to complain
	}
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	const lock = "doctor"
	unlock, err := c.lock(ctx, lock)
	if err != nil {
		return err
	}
	defer unlock()
	tmp, err := os.MkdirTemp(filepath.Join(c.dir, tmpDir), lock+"@") // where the next start sweeps it, should this one be killed
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	cmd := writingAtMost(ctx, maxList, aptHelper, "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10",
		"-o", "Acquire::https::Timeout=10", "download-file", strings.TrimSuffix(mirror, "/")+"/dists/"+qemuSuite+"/InRelease", filepath.Join(tmp, "InRelease"))
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := RunOwned(ctx, cmd); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("no answer in %v", patience)
		}
		if text := aptComplaints(stderr.String()); text != "" {
			return errors.New(firstLine(text))
		}
		return err
	}
	return nil
}

// checkSource looks for what the guest's agent is built from.
func (c *Cache) checkSource(ctx context.Context) (Check, source) {
	k := Check{Name: "source", Status: OK}
	src, err := c.source(ctx)
	if err != nil {
		k.Status, k.Detail, k.Remedy = Fail, err.Error(), "see irqlab --version, check that version out, and set "+SourceVariable+" to the checkout"
		var none *NoSourceError
		if errors.As(err, &none) {
			k.Detail = "of the guest's agent: " + strings.Join(none.Tried, "; ")
		}
		return k, src
	}
	k.Detail = fmt.Sprintf("of the guest's agent: %s (%s)", src.dir, src.found)
	return k, src
}

// checkGo looks for what builds the guest's agent from its source, if that was found.
func (c *Cache) checkGo(ctx context.Context, src source) Check {
	k := Check{Name: "go", Status: OK}
	goTool, err := exec.LookPath("go")
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		k.Detail, err = goVersion(ctx, goTool, cmp.Or(src.dir, "/")) // the source says which it wants
	}
	switch {
	case err == nil:
	case src.dir != "" && c.hasBusybox(src.dir):
		k.Status, k.Detail = Warn, "no go that works, but what it is needed for, the guest's agent, is in the cache" // which will do
	default:
		k.Status, k.Detail = Fail, fmt.Sprintf("the guest's agent cannot be built: %v", err)
	}
	if err != nil {
		k.Remedy = "install Go (package golang, or from go.dev) and put it in $PATH"
	}
	return k
}
