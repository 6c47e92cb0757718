// Package module inserts and removes kernel modules that the image brought along, dependencies first. It knows the image's manifest,
// not what a module is for.
package module

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
)

// forbidden modules are never inserted: mana_ib would take queue vectors of its own and distort what is observed.
var forbidden = []string{"mana_ib"}

// Entry is one line of modules.order.
type Entry struct {
	Name string   // with '_', as /sys/module shows it
	File string   // a decompressed .ko beside the manifest
	Deps []string // direct dependencies by name
}

// Manifest is modules.order: all modules of the image in load order.
type Manifest []Entry

var validName = regexp.MustCompile(`^[A-Za-z0-9_]{1,64}$`)

func check(name string) error {
	if !validName.MatchString(name) {
		return fault.New(agentapi.CodeInvalid, "%.64q is not a module name", name)
	}
	return nil
}

// Canonical writes a module's name the way the kernel does.
func Canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }

// ParseManifest reads lines of "name file.ko dep1,dep2"; the last field may be missing. File names are plain: they never leave the directory.
func ParseManifest(data []byte) (Manifest, error) {
	var m Manifest
	seen := map[string]bool{}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if len(f) < 2 || len(f) > 3 {
			return nil, fmt.Errorf("modules.order:%d: %d fields, want name, file and dependencies", n, len(f))
		}
		e := Entry{Name: Canonical(f[0]), File: f[1]}
		if e.File != filepath.Base(e.File) || e.File == "." || e.File == ".." || e.File == "/" {
			return nil, fmt.Errorf("modules.order:%d: %q is not a plain file name", n, e.File)
		}
		if seen[e.Name] {
			return nil, fmt.Errorf("modules.order:%d: module %s is listed twice", n, e.Name)
		}
		if len(f) == 3 {
			for d := range strings.SplitSeq(f[2], ",") {
				if d == "" {
					continue
				}
				d = Canonical(d)
				if !seen[d] {
					return nil, fmt.Errorf("modules.order:%d: module %s depends on %s, which is not listed before it", n, e.Name, d)
				}
				e.Deps = append(e.Deps, d)
			}
		}
		seen[e.Name] = true
		m = append(m, e)
	}
	return m, nil
}

// Closure returns the module and all it depends on, in load order.
func (m Manifest) Closure(name string) ([]Entry, bool) {
	want := map[string]bool{Canonical(name): true}
	var out []Entry
	for _, e := range slices.Backward(m) { // dependencies precede their users, so one pass from the end finds all
		if want[e.Name] {
			out = append(out, e)
			for _, d := range e.Deps {
				want[d] = true
			}
		}
	}
	slices.Reverse(out)
	return out, len(out) > 0 && out[len(out)-1].Name == Canonical(name)
}

func (m Manifest) names() string {
	var out []string
	for _, e := range m {
		out = append(out, e.Name)
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

// Loader inserts modules of one image.
type Loader struct {
	Root kfile.Root
	Dir  string // directory of modules.order and the .ko files
	// Params gives module parameters that hold whenever a module is inserted, before the caller's; nil for none.
	Params map[string]string
}

// Image is the loader of the guest's own image, with the parameters that the kernel's command line gives.
func Image() (Loader, error) {
	root := kfile.Root("/")
	release, err := root.String("proc/sys/kernel/osrelease")
	if err != nil {
		return Loader{}, err
	}
	cmdline, err := root.String("proc/cmdline")
	if err != nil {
		return Loader{}, err
	}
	return Loader{Root: root, Dir: "/lib/modules/" + release + "/irqlab", Params: CmdlineParams(cmdline)}, nil
}

func (l Loader) loaded(name string) bool { return l.Root.Has("sys/module", Canonical(name)) }

// Load inserts the module and what it needs; params go to the module itself. A module that is loaded or built in is left alone.
// It returns the names inserted, in order.
func (l Loader) Load(name, params string) ([]string, error) {
	name = Canonical(name)
	if err := check(name); err != nil {
		return nil, err
	}
	if slices.Contains(forbidden, name) {
		return nil, fault.New(agentapi.CodeUnsupported, "module %s is never loaded here: it would take vectors of its own", name)
	}
	if l.loaded(name) {
		return nil, nil
	}
	closure, err := l.closure(name)
	if err != nil {
		return nil, err
	}
	var done []string
	for _, e := range closure {
		if l.loaded(e.Name) {
			continue
		}
		args := l.Params[e.Name]
		if e.Name == name {
			args = strings.TrimSpace(args + " " + params)
		}
		inserted, err := l.insert(e, args)
		if err != nil {
			return done, fmt.Errorf("module %s: inserting %s: %w", name, e.Name, err)
		}
		if inserted {
			done = append(done, e.Name)
		}
	}
	return done, nil
}

// closure is the module and what it needs, as the image has them.
func (l Loader) closure(name string) ([]Entry, error) {
	data, err := os.ReadFile(filepath.Join(l.Dir, "modules.order"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("module %s: %w", name, err)
	}
	manifest, err := ParseManifest(data)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", name, err)
	}
	closure, ok := manifest.Closure(name)
	if !ok {
		return nil, fault.New(agentapi.CodeNotFound, "module %q is not in this image and not visibly built into the kernel; the image has %s", name, manifest.names())
	}
	return closure, nil
}

func (l Loader) insert(e Entry, params string) (bool, error) {
	f, err := os.Open(filepath.Join(l.Dir, e.File))
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), params, 0)
	switch {
	case errors.Is(err, unix.EEXIST): // someone else was faster
		return false, nil
	case errors.Is(err, unix.ENOENT):
		return false, fault.New(agentapi.CodeFailed, "%w: a symbol or parameter is unknown; the kernel log names it", err)
	case errors.Is(err, unix.ENOEXEC):
		return false, fault.New(agentapi.CodeUnsupported, "%w: %s is not a module of this kernel", err, e.File)
	case errors.Is(err, unix.EKEYREJECTED), errors.Is(err, unix.ENOKEY):
		return false, fault.New(agentapi.CodeUnsupported, "%w: this kernel does not take its signature, or none", err)
	}
	return err == nil, err
}

// Unload removes one module; the kernel refuses (EWOULDBLOCK) while it is in use.
func (l Loader) Unload(name string) error {
	name = Canonical(name)
	if err := check(name); err != nil {
		return err
	}
	if !l.loaded(name) {
		return fault.New(agentapi.CodeNotFound, "module %q is not loaded", name)
	}
	if err := unix.DeleteModule(name, unix.O_NONBLOCK); err != nil {
		return fmt.Errorf("module %s: removing it: %w", name, err)
	}
	return nil
}

// CmdlineParams picks "module.parameter=value" words from a kernel command line, the way modprobe does for modules not built in.
func CmdlineParams(cmdline string) map[string]string {
	out := map[string]string{}
	for word := range strings.FieldsSeq(cmdline) {
		key, value, _ := strings.Cut(word, "=")
		mod, param, ok := strings.Cut(key, ".")
		if !ok || mod == "" || param == "" {
			continue
		}
		arg := param
		if strings.Contains(word, "=") {
			arg += "=" + value
		}
		mod = Canonical(mod)
		out[mod] = strings.TrimSpace(out[mod] + " " + arg)
	}
	return out
}
