package images

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"

	near "irqlab/scenarios/nearest"
	"irqlab/scenarios/pkgname"
)

const (
	packagesKind   = "packages"
	packagesName   = "packages.cpio"
	packagesFormat = 1 // raise when the same packages would give another archive

	// guestSuite is where the packages come from, whatever the kernel's suite: a comparison of kernels is to compare nothing else. It is also what own kernels are built with.
	guestSuite = "trixie"

	maxPackagedFile = 1 << 30
)

// GuestPackage is a package in a guest.
type GuestPackage struct{ Name, Version string }

// GuestPackages are Debian packages with all they depend on, as an archive that follows an initramfs.
type GuestPackages struct {
	Asked []GuestPackage // those that were asked for, by name
	All   int            // how many there are with what they depend on
	Size  int64          // of the archive in bytes, which is what they take of a guest's memory
	Path  string         `json:"-"`

	Key string // of the entry
}

// BadPackagesError tells that packages which were asked for cannot be put into a guest.
type BadPackagesError struct {
	Names []string
	Err   error
}

func (e *BadPackagesError) Error() string {
	return fmt.Sprintf("packages %s: %v", strings.Join(e.Names, ", "), e.Err)
}
func (e *BadPackagesError) Unwrap() error { return e.Err }

// Only maintainer scripts, which are not run, use these: what is reached through them alone is left out, unless it was asked for by name.
var forScripts = []string{"adduser", "base-files", "base-passwd", "debconf", "dpkg", "init-system-helpers", "install-info", "passwd", "runit-helper", "sensible-utils", "ucf"}

// With one of these a package wants to be started, or asked, by an init system that guests do not have.
var initSystems = []string{"systemd", "systemd-sysv", "sysvinit-core", "runit-init", "openrc"}

// GuestPackages finds packages and what they depend on, and fetches what is not in the cache. What was found for the same names before is taken again, so that a warm start
// asks nobody. The error is a *BadPackagesError where the names are at fault.
func (c *Cache) GuestPackages(ctx context.Context, names []string, p Progress) (GuestPackages, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	for _, n := range names {
		if err := pkgname.Check(n); err != nil {
			return GuestPackages{}, &BadPackagesError{names, err}
		}
	}
	memo := fmt.Sprintf("packages-%d-%s-%s", packagesFormat, guestSuite, strings.Join(names, "-"))
	var g GuestPackages
	if c.Recall(memo, &g) {
		if dir, ok := c.Find(packagesKind, g.Key); ok {
			g.Path = filepath.Join(dir, packagesName)
			return g, nil
		}
	}
	g, err := c.gatherPackages(ctx, names, p)
	if err != nil {
		return g, err
	}
	return g, c.Remember(memo, g)
}

func (c *Cache) gatherPackages(ctx context.Context, names []string, p Progress) (g GuestPackages, err error) {
	what := "packages " + strings.Join(names, ", ")
	p.report("looking up "+what, 0, 0)
	plan, err := c.planPackages(ctx, names, p)
	if err != nil {
		return g, err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d %q %q", packagesFormat, names, plan.files)
	g.Key = fmt.Sprintf("%s-%s-%.8x", guestSuite, strings.Join(names, "-"), h.Sum(nil))
	for _, n := range names {
		g.Asked = append(g.Asked, GuestPackage{n, plan.packages[n].Version})
	}
	g.All = len(plan.packages)
	dir, err := c.entry(ctx, packagesKind, g.Key, func(ctx context.Context, dir string) error {
		if err := c.NeedSpace(plan.size + 2*plan.room); err != nil {
			return err
		}
		debs := filepath.Join(dir, ".debs")
		if err := os.Mkdir(debs, 0o700); err != nil {
			return err
		}
		files, err := c.DownloadClosure(ctx, debs, guestSuite, names, what, plan.size, p)
		if err != nil {
			return err
		}
		p.report("unpacking "+what, 0, 0)
		if err := packPackages(ctx, filepath.Join(dir, packagesName), files, plan.packages, names); err != nil {
			return err
		}
		return os.RemoveAll(debs)
	})
	if err != nil {
		return g, err
	}
	g.Path = filepath.Join(dir, packagesName)
	g.Size = fileSize(g.Path)
	return g, nil
}

// packagePlan is what a set of packages comes to.
type packagePlan struct {
	files      []string           // that apt would fetch
	packages   map[string]Package // that go into the guest, by name
	size, room int64              // of the files, and unpacked, in bytes
}

func (c *Cache) planPackages(ctx context.Context, names []string, p Progress) (*packagePlan, error) {
	var known []string
	found, err := c.Packages(ctx, guestSuite, p, func(name string) bool {
		known = append(known, name)
		return slices.Contains(names, name)
	})
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if !slices.ContainsFunc(found, func(k Package) bool { return k.Name == n }) {
			return nil, &BadPackagesError{names, fmt.Errorf("Debian %s has no package %s for amd64 (packages.debian.org says in which package a program is)%s", guestSuite, n, near.Hint(n, known))}
		}
	}
	plan := &packagePlan{}
	var apt *AptError
	if plan.files, plan.size, err = c.Closure(ctx, guestSuite, names, p); errors.As(err, &apt) && !apt.gone() && strings.Contains(apt.Output, "broken packages") {
		return nil, &BadPackagesError{names, fmt.Errorf("they cannot be had together: %w (give fewer of them)", err)}
	} else if err != nil {
		return nil, err
	}
	chosen := map[string]Package{}
	wanted := map[string]bool{}
	for _, f := range plan.files {
		name, _, _ := strings.Cut(f, "_")
		wanted[name] = true
	}
	all, err := c.Packages(ctx, guestSuite, p, func(name string) bool { return wanted[name] })
	if err != nil {
		return nil, err
	}
	for _, k := range all { // newest first, as apt would choose
		if _, ok := chosen[k.Name]; !ok {
			chosen[k.Name] = k
		}
	}
	var why map[string]string
	plan.packages, why = reachable(names, chosen)
	for _, name := range initSystems {
		if _, ok := plan.packages[name]; ok {
			return nil, &BadPackagesError{names, fmt.Errorf("%s: guests have no systemd, nor another init system; leave the package out, or bring the one program "+
				"that you need as a file", chain(name, why))}
		}
	}
	for _, k := range plan.packages {
		plan.room += k.Room
	}
	return plan, nil
}

// reachable are the chosen packages that the named ones lead to, and which led to each first: "" for the named.
func reachable(names []string, chosen map[string]Package) (reached map[string]Package, why map[string]string) {
	providers := map[string][]string{}
	for _, k := range chosen {
		for _, alternatives := range dependencies(k.Provides) {
			providers[alternatives[0]] = append(providers[alternatives[0]], k.Name)
		}
	}
	reached, why = map[string]Package{}, map[string]string{}
	todo := slices.Clone(names)
	for _, n := range names {
		why[n] = ""
	}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		k, ok := chosen[name]
		if _, done := reached[name]; done || !ok {
			continue
		}
		reached[name] = k
		for _, alternatives := range dependencies(k.Depends, k.PreDepends) {
			for _, to := range alternatives {
				for _, to := range append(slices.Sorted(slices.Values(providers[to])), to) {
					if _, known := why[to]; known || slices.Contains(forScripts, to) {
						continue
					}
					if _, ok := chosen[to]; ok {
						why[to] = name
						todo = append(todo, to)
					}
				}
			}
		}
	}
	return reached, why
}

// chain tells how a package came to be needed: "tuned needs polkitd, which needs systemd".
func chain(name string, why map[string]string) string {
	line := []string{name}
	for why[line[0]] != "" {
		line = slices.Insert(line, 0, why[line[0]])
	}
	if len(line) == 1 {
		return name
	}
	return line[0] + " needs " + strings.Join(line[1:], ", which needs ")
}

// dependencies reads fields such as Depends: each is a list of alternatives, of which the names are kept.
func dependencies(fields ...string) (all [][]string) {
	for _, field := range fields {
		for part := range strings.SplitSeq(field, ",") {
			var names []string
			for word := range strings.SplitSeq(part, "|") {
				word, _, _ = strings.Cut(strings.TrimSpace(word), " ")
				if name, _, _ := strings.Cut(word, ":"); name != "" {
					names = append(names, name)
				}
			}
			if len(names) > 0 {
				all = append(all, names)
			}
		}
	}
	return all
}

// Guests have all programs in /bin and all libraries in /lib, where /usr/bin, /sbin, /usr/lib and the like lead: the longest beginning counts.
var guestFolders = []struct{ from, to string }{
	{"usr/bin/", "bin/"}, {"usr/sbin/", "bin/"}, {"sbin/", "bin/"}, {"bin/", "bin/"},
	{"usr/lib/", "lib/"}, {"lib/", "lib/"}, {"usr/lib64/", "lib64/"}, {"lib64/", "lib64/"}, {"usr/lib32/", ""}, {"usr/libx32/", ""},
}

// What people read, what only building takes, and what other packages' triggers or an init system would use.
var notInGuests = []string{"usr/share/doc/", "usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/lintian/", "usr/share/bug/", "usr/share/doc-base/", "usr/share/applications/",
	"usr/share/icons/", "usr/share/pixmaps/", "usr/share/menu/", "usr/include/", "usr/share/i18n/", "usr/share/initramfs-tools/", "lib/systemd/", "lib/modules/", "lib/x86_64-linux-gnu/gconv/",
	"etc/init.d/", "etc/cron", "etc/apt/", "etc/runit/", "etc/sv/"}

// irqlab's own are kept where a package has one of the name: what the kernel calls, and what makes the guest.
var keptCommands = []string{agentCommand, "bb", "init", "modprobe"}

// guestPlace says where a file of a package goes in a guest, "" for nowhere.
func guestPlace(name string) string {
	for _, f := range guestFolders {
		if rest, ok := strings.CutPrefix(name+"/", f.from); ok {
			rest = strings.TrimSuffix(rest, "/")
			if f.to == "" || rest == "" {
				return ""
			}
			name = f.to + rest
			break
		}
	}
	top, rest, below := strings.Cut(name, "/")
	switch {
	case !below, !slices.Contains([]string{"bin", "etc", "lib", "lib64", "opt", "root", "srv", "usr", "var"}, top):
		return ""
	case top == "bin" && slices.Contains(keptCommands, rest), top == "etc" && strings.HasPrefix(rest, "irqlab/"), strings.HasSuffix(name, ".a"):
		return ""
	case slices.ContainsFunc(notInGuests, func(beginning string) bool { return strings.HasPrefix(name, beginning) }):
		return ""
	}
	return name
}

// guestLink says where a symbolic link of a package leads in a guest.
func guestLink(from, target string) string {
	abs := target
	if !path.IsAbs(abs) {
		abs = path.Join("/", path.Dir(from), target)
	}
	to := guestPlace(strings.TrimPrefix(path.Clean(abs), "/"))
	switch {
	case to == "": // a directory that others fill, or something outside of all packages
		return path.Clean(abs)
	case path.Dir(to) == path.Dir(guestPlace(from)):
		return path.Base(to)
	}
	return "/" + to
}

// alternatives are commands that a package's script would make a link of, and what it would lead to, the best first.
var alternatives = []struct {
	command string
	of      []string
}{{"awk", []string{"gawk", "mawk", "original-awk"}}, {"sh", []string{"dash", "bash"}}}

// packPackages writes what guests take of packages as an archive that the kernel unpacks over the first: what is there already is replaced.
func packPackages(ctx context.Context, to string, debs []string, keep map[string]Package, asked []string) error {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	w := &packer{w: cpio.Newc.Writer(f), have: map[string]bool{}}
	for _, l := range [][2]string{{"usr/lib", "../lib"}, {"usr/lib64", "../lib64"}} {
		if err := w.add(cpio.Symlink(l[0], l[1])); err != nil {
			return err
		}
	}
	for _, file := range debs {
		name, _, _ := strings.Cut(filepath.Base(file), "_")
		if _, ok := keep[name]; !ok {
			continue
		}
		if err := w.deb(ctx, file); err != nil {
			return err
		}
	}
	for _, a := range alternatives {
		for _, of := range a.of {
			// The shell is irqlab's own unless another was asked for.
			if w.have["bin/"+of] && !w.have["bin/"+a.command] && (a.command != "sh" || slices.Contains(asked, of)) {
				if err := w.add(cpio.Symlink("bin/"+a.command, of)); err != nil {
					return err
				}
			}
		}
	}
	if err := cpio.WriteTrailer(w.w); err != nil {
		return err
	}
	return f.Close()
}

type packer struct {
	w    cpio.RecordWriter
	have map[string]bool
	ino  uint64
}

// add writes a record, after those of the directories it lies in.
func (p *packer) add(r cpio.Record) error {
	if p.have[r.Name] {
		return nil
	}
	if dir := path.Dir(r.Name); dir != "." && !p.have[dir] {
		if err := p.add(cpio.Directory(dir, 0o755)); err != nil {
			return err
		}
	}
	p.have[r.Name] = true
	p.ino++
	r.Ino, r.NLink = p.ino, 1
	return p.w.WriteRecord(cpio.MakeReproducible(r))
}

// deb adds the files of a package.
func (p *packer) deb(ctx context.Context, file string) error {
	d, err := openDeb(file)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := d.deb.Data.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return &badDebError{file, errDamagedDeb.Error(), err}
		}
		from := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		name := guestPlace(from)
		if name == "" {
			continue
		}
		switch h.Typeflag {
		case tar.TypeReg:
			if h.Size > maxPackagedFile {
				return &badDebError{file, from, fmt.Errorf("%d bytes are more than a guest could take", h.Size)}
			}
			data, err := io.ReadAll(io.LimitReader(d.deb.Data, h.Size))
			if err != nil {
				return &badDebError{file, from, fmt.Errorf("%w: %w", errDamagedDeb, err)}
			}
			err = p.add(cpio.StaticRecord(data, cpio.Info{Name: name, Mode: cpio.S_IFREG | uint64(h.Mode&0o7777)}))
			if err != nil {
				return err
			}
		case tar.TypeSymlink:
			if err := p.add(cpio.Symlink(name, guestLink(from, h.Linkname))); err != nil {
				return err
			}
		case tar.TypeLink: // one file by two names does as well
			if err := p.add(cpio.Symlink(name, guestLink(from, "/"+strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")))); err != nil {
				return err
			}
		case tar.TypeDir:
			if !slices.ContainsFunc([]string{"bin", "etc", "lib", "lib64", "usr", "var"}, func(top string) bool { return top == name }) {
				if err := p.add(cpio.Directory(name, uint64(h.Mode&0o7777))); err != nil {
					return err
				}
			}
		}
	}
}

// AddPackages makes an initramfs that also has packages: the kernel unpacks the one archive and then the other. It costs a copy of both for each kernel, and no vector, which
// a disk with the packages would.
func (c *Cache) AddPackages(ctx context.Context, i Initramfs, g GuestPackages) (Initramfs, error) {
	_, base, ok := c.entryOf(i.Path)
	if !ok { // the caller's own
		sum, err := c.Hash(i.Path)
		if err != nil {
			return i, err
		}
		base = sum[:32]
	}
	dir, err := c.entry(ctx, initramfsKind, base+"+"+g.Key, func(_ context.Context, dir string) error {
		if err := c.NeedSpace(fileSize(i.Path) + g.Size); err != nil {
			return err
		}
		out, err := os.OpenFile(filepath.Join(dir, initramfsName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer out.Close()
		for _, from := range []string{i.Path, g.Path} {
			if err := appendFile(out, from); err != nil {
				return err
			}
		}
		return out.Close()
	})
	if err != nil {
		return i, err
	}
	i.Path = filepath.Join(dir, initramfsName)
	return i, nil
}

// Size is the archive's in bytes.
func (i Initramfs) Size() int64 { return fileSize(i.Path) }

func appendFile(out io.Writer, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	n, err := io.Copy(out, in)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, bytes.NewReader(make([]byte, (4-n%4)%4))) // a header begins at a multiple of four
	return err
}
