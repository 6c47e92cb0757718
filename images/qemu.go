package images

import (
	"cmp"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// QEMU is a QEMU ready to run.
type QEMU struct {
	Command []string // argv prefix: the program, or a loader with its library path and the program
	Env     []string // "NAME=value", to be added to the environment
	Version string   // "11.1.3"
	Source  string   // for people: where it came from
}

// Files are the program and, if it has one, its loader.
func (q QEMU) Files() []string {
	var files []string
	for _, word := range q.Command {
		if st, err := os.Stat(word); err == nil && st.Mode().IsRegular() {
			files = append(files, word)
		}
	}
	return files
}

// MinQEMU is the first version whose vfio-user client irqlab relies on (qemu-facts, "Packages").
const MinQEMU = "10.1.1"

const (
	qemuKind    = "qemu"
	qemuProgram = "qemu-system-x86_64"
	qemuFile    = "qemu.json"
)

// UnusableQEMUError says why a QEMU cannot be used.
type UnusableQEMUError struct {
	Path   string
	Reason string
	Err    error
}

func (e *UnusableQEMUError) Error() string {
	s := fmt.Sprintf("QEMU %s: %s", e.Path, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *UnusableQEMUError) Unwrap() error { return e.Err }

// QEMU returns the QEMU to run: the one at path if that is given, else the host's if it has the vfio-user client and is new enough, else one
// unpacked into the cache, fetched if needed. Nothing is installed.
//
// A path that cannot be used is an *UnusableQEMUError, never replaced by another QEMU.
func (c *Cache) QEMU(ctx context.Context, path string, p Progress) (QEMU, error) {
	if path != "" {
		q, err := c.probe(ctx, path)
		if err != nil {
			return QEMU{}, fmt.Errorf("%w (--qemu wants a %s of at least %s with the device vfio-user-pci; without --qemu one is fetched)", err, qemuProgram, MinQEMU)
		}
		q.Source = path
		return q, nil
	}
	if q, err := c.hostQEMU(ctx); err == nil {
		return q, nil
	} else if ctx.Err() != nil {
		return QEMU{}, fmt.Errorf("QEMU: %w", ctx.Err())
	}
	if q, ok := c.cachedQEMU(); ok {
		return q, nil
	}
	q, err := c.fetchQEMU(ctx, p)
	if err != nil {
		return QEMU{}, fmt.Errorf("QEMU: %w", err)
	}
	return q, nil
}

// hostQEMU is the QEMU in $PATH.
func (c *Cache) hostQEMU(ctx context.Context) (QEMU, error) {
	found, err := exec.LookPath(qemuProgram)
	if err != nil {
		return QEMU{}, &UnusableQEMUError{Path: qemuProgram, Reason: "not in $PATH"}
	}
	q, err := c.probe(ctx, found)
	q.Source = "the host's " + found
	return q, err
}

// probed is what a probe found, remembered as long as the program stays the same file.
type probed struct {
	Path    string
	Size    int64
	Time    int64 // Unix nanoseconds
	Version string
}

// probe checks that the program is a QEMU with a vfio-user client, new enough.
func (c *Cache) probe(ctx context.Context, name string) (QEMU, error) {
	file, err := exec.LookPath(name)
	if err != nil {
		return QEMU{}, &UnusableQEMUError{Path: name, Reason: "cannot be run", Err: err}
	}
	if file, err = filepath.Abs(file); err != nil {
		return QEMU{}, &UnusableQEMUError{Path: name, Reason: "cannot be run", Err: err}
	}
	st, err := os.Stat(file)
	if err != nil {
		return QEMU{}, &UnusableQEMUError{Path: file, Reason: "cannot be run", Err: err}
	}
	want := probed{Path: file, Size: st.Size(), Time: st.ModTime().UnixNano()}
	memo := filepath.Join(c.dir, stateDir, "qemu-probe-"+entryName(file)+".json")
	if data, err := os.ReadFile(memo); err == nil {
		var have probed
		if json.Unmarshal(data, &have) == nil && have.Version != "" {
			want.Version = have.Version
			if have == want {
				return QEMU{Command: []string{file}, Version: have.Version}, nil
			}
		}
	}
	version, err := probeQEMU(ctx, []string{file}, nil)
	if err != nil {
		return QEMU{}, err
	}
	want.Version = version
	if st.Size() > 1<<20 { // a small file is a script: what it runs may change without it
		if data, err := json.Marshal(want); err == nil {
			_ = c.writeFile(memo, data)
		}
	}
	return QEMU{Command: []string{file}, Version: version}, nil
}

var qemuVersionLine = regexp.MustCompile(`(?m)^QEMU emulator version (\d+(?:\.\d+)+)`)

// probeQEMU asks a QEMU for its version and for the vfio-user client.
func probeQEMU(ctx context.Context, command, env []string) (version string, err error) {
	name := command[len(command)-1]
	for _, arg := range command {
		if filepath.Base(arg) == qemuProgram {
			name = arg
		}
	}
	out, err := quick(ctx, command, env, "--version")
	if err != nil {
		return "", &UnusableQEMUError{Path: name, Reason: "does not run", Err: err}
	}
	m := qemuVersionLine.FindStringSubmatch(out)
	if m == nil {
		return "", &UnusableQEMUError{Path: name, Reason: "is no QEMU: --version says " + strconv.Quote(firstLine(out))}
	}
	version = m[1]
	if compareDotted(version, MinQEMU) < 0 {
		return "", &UnusableQEMUError{Path: name, Reason: "version " + version + " is older than " + MinQEMU}
	}
	out, err = quick(ctx, command, env, "-M", "none", "-device", "vfio-user-pci,help")
	if err != nil || !strings.Contains(out, "socket") {
		return "", &UnusableQEMUError{Path: name, Reason: "version " + version + " has no device vfio-user-pci", Err: err}
	}
	return version, nil
}

// quick runs a QEMU that ends by itself.
func quick(ctx context.Context, command, env []string, args ...string) (string, error) {
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], append(slices.Clone(command[1:]), args...)...)
	cmd.Env = append(os.Environ(), env...)
	out, stderr := shortBuffer{max: 1 << 20}, shortBuffer{max: 1 << 20}
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := RunOwned(ctx, cmd); err != nil {
		if out.full || stderr.full {
			return "", fmt.Errorf("no end of what %s writes", strings.Join(args, " "))
		}
		if ctx.Err() != nil {
			return "", fmt.Errorf("no end of %s after %v: %w", strings.Join(args, " "), patience, ctx.Err())
		}
		if line := firstLine(stderr.String()); line != "" {
			return "", fmt.Errorf("%w: %s", err, line)
		}
		return "", err
	}
	return out.String(), nil
}

// shortBuffer holds what a program writes that has little to say; one that says more is stopped by the error.
type shortBuffer struct {
	data []byte
	max  int
	full bool
}

func (b *shortBuffer) String() string { return string(b.data) }

func (b *shortBuffer) Write(p []byte) (int, error) {
	if len(b.data)+len(p) > b.max {
		b.full = true
		return 0, errors.New("too much output")
	}
	b.data = append(b.data, p...)
	return len(p), nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line[:min(len(line), 200)]
}

// compareDotted compares versions made of numbers and dots.
func compareDotted(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		var x, y int
		if i < len(as) {
			x, _ = strconv.Atoi(as[i])
		}
		if i < len(bs) {
			y, _ = strconv.Atoi(bs[i])
		}
		if x != y {
			return cmp.Compare(x, y)
		}
	}
	return 0
}

// unpackedQEMU is qemu.json in an entry.
type unpackedQEMU struct {
	Version string `json:"version"`
	Package string `json:"package"` // version of the package
}

// runFrom is how an unpacked QEMU is run from its entry: through the loader it was built with, so that the host's C library does not matter.
func (u unpackedQEMU) runFrom(entry string) QEMU {
	lib := filepath.Join(entry, "usr/lib/x86_64-linux-gnu")
	return QEMU{
		Command: []string{
			filepath.Join(lib, "ld-linux-x86-64.so.2"), "--library-path", lib, filepath.Join(entry, "usr/bin", qemuProgram),
			"-L", filepath.Join(entry, "usr/share/qemu"), "-L", filepath.Join(entry, "usr/share/seabios"), "-L", filepath.Join(entry, "usr/lib/ipxe/qemu"),
		},
		Env:     []string{"QEMU_MODULE_DIR=" + filepath.Join(lib, "qemu")},
		Version: u.Version,
		Source:  "Debian " + qemuSuite + " " + u.Package,
	}
}

// cachedQEMU is the newest whole QEMU in the cache.
func (c *Cache) cachedQEMU() (QEMU, bool) {
	found, err := os.ReadDir(filepath.Join(c.dir, qemuKind))
	if err != nil {
		return QEMU{}, false
	}
	var best *unpackedQEMU
	var at string
	for _, e := range found {
		entry := filepath.Join(c.dir, qemuKind, e.Name())
		u, err := readUnpackedQEMU(entry)
		if err != nil || best != nil && compareDotted(best.Version, u.Version) >= 0 || checkEntry(entry) != nil {
			continue
		}
		best, at = &u, entry
	}
	if best == nil {
		return QEMU{}, false
	}
	c.touch(qemuKind, filepath.Base(at))
	return best.runFrom(at), true
}

func readUnpackedQEMU(entry string) (unpackedQEMU, error) {
	var u unpackedQEMU
	data, err := os.ReadFile(filepath.Join(entry, qemuFile))
	if err == nil {
		err = json.Unmarshal(data, &u)
	}
	return u, err
}

func (c *Cache) fetchQEMU(ctx context.Context, p Progress) (QEMU, error) {
	x, err := c.ensureIndex(ctx, indexAge, p)
	if err != nil {
		return QEMU{}, err
	}
	const young = time.Minute
	for attempt := 0; ; attempt++ {
		if x.QEMU == "" {
			return QEMU{}, fmt.Errorf("%s has no package %s in %s (give --qemu PATH)", redact(x.Mirror), qemuPackage, qemuSuite)
		}
		entry, err := c.entry(ctx, qemuKind, withoutEpoch(x.QEMU), func(ctx context.Context, dir string) error { return c.buildQEMU(ctx, dir, x, p) })
		if err == nil {
			u, err := readUnpackedQEMU(entry)
			if err != nil {
				return QEMU{}, err
			}
			return u.runFrom(entry), nil
		}
		var a *AptError
		if attempt > 0 || !errors.As(err, &a) || !a.gone() || time.Since(x.Time) < young || ctx.Err() != nil {
			return QEMU{}, err
		}
		fresh, indexErr := c.ensureIndex(ctx, young, p) // the mirror has moved on since the index was made
		if indexErr != nil {
			return QEMU{}, errors.Join(err, indexErr)
		}
		x = fresh
	}
}

// withoutEpoch makes a package version fit for a path that a loader splits at colons.
func withoutEpoch(v string) string {
	if _, rest, ok := strings.Cut(v, ":"); ok {
		return rest
	}
	return v
}

// buildQEMU fetches QEMU with its dependencies and keeps what it needs to run a machine without a screen.
func (c *Cache) buildQEMU(ctx context.Context, dir string, x *index, p Progress) error {
	const need = 280 << 20 // packages, and what is unpacked of them before pruning
	if err := c.NeedSpace(need); err != nil {
		return err
	}
	if strings.ContainsAny(c.dir, ":;") {
		return fmt.Errorf("cache %s: QEMU's loader cannot work in a directory with a colon or semicolon in its name (set IRQLAB_CACHE to another)", c.dir)
	}
	debs := filepath.Join(dir, ".debs")
	if err := os.MkdirAll(filepath.Join(debs, "partial"), 0o700); err != nil {
		return err
	}
	if err := c.downloadQEMU(ctx, debs, x, p); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	p.report("unpacking QEMU", 0, 0)
	if err := Unpack(ctx, dir, files, qemuPlace); err != nil {
		return err
	}
	if err := os.RemoveAll(debs); err != nil {
		return err
	}
	if err := pruneLibraries(dir); err != nil {
		return fmt.Errorf("package %s %s: %w", qemuPackage, x.QEMU, err)
	}
	u := unpackedQEMU{Package: x.QEMU}
	q := u.runFrom(dir)
	if u.Version, err = probeQEMU(ctx, q.Command, q.Env); err != nil {
		return err
	}
	data, err := json.Marshal(u)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, qemuFile), data, 0o600)
}

func fileSize(path string) int64 {
	st, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return st.Size()
}

func (c *Cache) downloadQEMU(ctx context.Context, dir string, x *index, p Progress) error {
	_, err := locked(ctx, c, x, func(a *apt) (none struct{}, err error) {
		want := []string{"-t", qemuSuite, qemuPackage + "=" + x.QEMU}
		plan, err := a.planClosure(ctx, dir, "qemu", want)
		if err == nil {
			err = a.downloadClosure(ctx, dir, "qemu", want, "QEMU", totalSize(plan), p)
		}
		if err != nil {
			err = fmt.Errorf("package %s %s: %w", qemuPackage, x.QEMU, err)
		}
		return none, err
	})
	return err
}

// totalSize adds up the lines "'URI' FILE SIZE HASH" of --print-uris, in bytes.
func totalSize(plan string) int64 {
	var sum int64
	for line := range strings.Lines(plan) {
		if f := strings.Fields(line); len(f) >= 3 && strings.HasPrefix(f[0], "'") {
			if n, err := strconv.ParseInt(f[2], 10, 64); err == nil && n > 0 {
				sum += n
			}
		}
	}
	return sum
}

// qemuPlace says which files of QEMU and its dependencies are kept: the program, every library (pruned afterwards), and the firmware and
// option ROMs of x86. No screen, sound or USB redirection; the only loadable module is the qtest accelerator.
func qemuPlace(name string) string {
	const lib = "usr/lib/x86_64-linux-gnu/"
	if rest, ok := strings.CutPrefix(name, "lib/"); ok { // a package that is not merged into /usr yet
		name = "usr/lib/" + rest
	}
	switch dir, file := path.Split(name); dir {
	case "usr/bin/":
		if file == qemuProgram {
			return name
		}
	case lib:
		if strings.Contains(file, ".so") {
			return name
		}
	case lib + "qemu/":
		if strings.HasPrefix(file, "accel-") {
			return name
		}
	case "usr/share/qemu/":
		for _, pattern := range []string{"*.rom", "kvmvapic.bin", "linuxboot*.bin", "multiboot*.bin", "pvh.bin", "bios*.bin", "vgabios*.bin"} {
			if ok, _ := path.Match(pattern, file); ok {
				return name
			}
		}
	case "usr/share/seabios/", "usr/lib/ipxe/qemu/":
		return name
	}
	return ""
}

// pruneLibraries removes the libraries below dir that neither QEMU nor its modules need, following DT_NEEDED.
func pruneLibraries(dir string) error {
	lib := filepath.Join(dir, "usr/lib/x86_64-linux-gnu")
	todo, err := filepath.Glob(filepath.Join(lib, "qemu", "*.so"))
	if err != nil {
		return err
	}
	todo = append(todo, filepath.Join(dir, "usr/bin", qemuProgram))
	keep := map[string]bool{"ld-linux-x86-64.so.2": true}
	for len(todo) > 0 {
		file := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		needed, err := neededLibraries(file)
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
		for _, n := range needed {
			if n != filepath.Base(n) || keep[n] {
				continue
			}
			keep[n] = true
			target, err := filepath.EvalSymlinks(filepath.Join(lib, n))
			if err != nil {
				return fmt.Errorf("%s needs %s, which no package brought: %w", filepath.Base(file), n, err)
			}
			keep[filepath.Base(target)] = true
			todo = append(todo, target)
		}
	}
	found, err := os.ReadDir(lib)
	if err != nil {
		return err
	}
	for _, e := range found {
		if !e.IsDir() && !keep[e.Name()] {
			if err := os.Remove(filepath.Join(lib, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func neededLibraries(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ImportedLibraries()
}
