package images

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // the rewriter's source
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"go/format"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
)

// The guest's one binary holds the agent, its own commands and u-root's, each a main package that gobusybox's rewriter turned into a library.
//
// gobusybox's own build runs without modules, copies only packages whose path starts with a domain and cannot be cancelled; so only its
// rewriter is used, and the rewritten commands are laid over the module's source (go build -overlay) as if they lay in guestagent/bb.
// That way go.mod and go.sum decide every version, guestagent's internal packages stay reachable, and nothing is written to the source.
const (
	modulePath    = "irqlab"
	agentPackage  = modulePath + "/guestagent"
	agentCommand  = "irqlab-agent"
	overlayPath   = "guestagent/bb"       // below the module's root; exists only in the overlay
	rewriterPath  = "guestagent/rewriter" // likewise
	urootCmds     = "github.com/u-root/u-root/cmds/core/"
	ownCmds       = agentPackage + "/cmd/"
	bbmainPackage = "github.com/u-root/gobusybox/src/pkg/bb/bbmain"
	busyboxFormat = 2 // raise when the same sources would give another binary
)

// urootCommands are the u-root commands in the guest, by the last element of their package path. uroot_tools.go imports the same set.
var urootCommands = []string{
	"basename", "cat", "chmod", "cmp", "comm", "cp", "date", "dd", "df", "dirname", "dmesg", "du", "echo", "false", "find", "free", "grep",
	"head", "hexdump", "hostname", "id", "insmod", "ip", "kill", "ln", "ls", "lsdrivers", "lsmod", "md5sum", "mkdir", "mknod", "mktemp", "more",
	"mount", "mv", "nohup", "pci", "pidof", "poweroff", "printenv", "ps", "pwd", "readlink", "realpath", "rm", "rmmod", "seq", "shasum", "sleep",
	"sort", "strings", "stty", "sync", "tail", "tee", "time", "timeout", "touch", "tr", "true", "truncate", "tty", "umount", "uname", "uniq", "uptime",
	"wc", "which", "xargs",
}

// ownCommands are this module's own: what u-root does not have, and a shell that tells of a write the kernel refused.
var ownCommands = []string{"env", "ethtool", "modprobe", "sh", "taskset"}

// guestCommands are the names and package paths of all that the guest's binary holds, the agent first.
func guestCommands() (names, paths []string) {
	names, paths = []string{agentCommand}, []string{agentPackage}
	for _, from := range []struct {
		prefix   string
		commands []string
	}{{ownCmds, ownCommands}, {urootCmds, urootCommands}} {
		for _, c := range from.commands {
			names, paths = append(names, c), append(paths, from.prefix+c)
		}
	}
	return names, paths
}

// busyboxAliases are further names, as people and the kernel type them. "init" is how the kernel starts the agent.
var busyboxAliases = map[string]string{
	"init": agentCommand, "bash": "sh", "gosh": "sh", "less": "more", "lspci": "pci", "halt": "poweroff",
}

const busyboxKind = "busybox" // entries with the guest's binary

// NoGoError says that the guest's binary must be built and there is no Go toolchain to do it with, or none that will.
type NoGoError struct{ Err error }

func (e *NoGoError) Error() string {
	return "the guest agent is built from source, for which there is no Go toolchain: " + e.Err.Error() +
		" (put go in PATH, or point IRQLAB_CACHE at a cache filled by `irqlab fetch` of the same version on a machine that has one)"
}

func (e *NoGoError) Unwrap() error { return e.Err }

// NoSourceError says that irqlab's own source, which the guest agent is built from, was not found. Tried holds where it was looked for and why not.
type NoSourceError struct{ Tried []string }

func (e *NoSourceError) Error() string {
	return "the source of the guest agent was not found: " + strings.Join(e.Tried, "; ") + " (" + e.remedy() + ")"
}

func (e *NoSourceError) remedy() string {
	if os.Getenv(SourceVariable) != "" {
		return "set " + SourceVariable + " to a checkout of irqlab, of this irqlab's version, or unset it"
	}
	return "set " + SourceVariable + " to a checkout of irqlab, of this irqlab's version"
}

var errSourceChanged = errors.New("the source of the guest agent changed while it was built")

// CheckGuest says, before anything that takes long, why there can be no guest's binary: a *NoSourceError or a *NoGoError.
func (c *Cache) CheckGuest(ctx context.Context) error {
	src, err := c.source(ctx)
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("go"); err != nil && !c.hasBusybox(src.dir) {
		return &NoGoError{err}
	}
	return nil
}

// hasBusybox reports whether the guest's binary is in the cache as a machine without Go takes it: built by the toolchain that built the lab, with which a copied cache was most
// likely filled.
func (c *Cache) hasBusybox(src string) bool {
	key, err := busyboxKey(src, runtime.Version())
	return err == nil && c.has(busyboxKind, key)
}

// busybox returns the path of the guest's binary, building it when the sources that matter have changed.
func (c *Cache) busybox(ctx context.Context, p Progress) (string, error) {
	from, err := c.source(ctx)
	if err != nil {
		return "", err
	}
	src := from.dir
	goTool, goErr := exec.LookPath("go")
	version := runtime.Version() // see hasBusybox
	if goErr == nil {
		own, err := goVersion(ctx, goTool, src)
		switch {
		case ctx.Err() != nil:
			return "", err
		case err != nil: // as one that is too old
			goErr = err
		default:
			version = own
		}
	}
	for try := 0; ; try++ {
		key, err := busyboxKey(src, version)
		if err != nil {
			return "", err
		}
		dir, err := c.entry(ctx, busyboxKind, key, func(ctx context.Context, dir string) error {
			if goErr != nil {
				return &NoGoError{goErr}
			}
			if err := buildBusybox(ctx, goTool, src, filepath.Join(dir, "bb"), p); err != nil {
				return err
			}
			if now, err := busyboxKey(src, version); err != nil || now != key {
				return errors.Join(errSourceChanged, err)
			}
			return nil
		})
		if errors.Is(err, errSourceChanged) && try < 3 {
			continue
		}
		if err != nil {
			return "", err
		}
		return filepath.Join(dir, "bb"), nil
	}
}

// SourceVariable names a checkout to build the guest's agent from.
const SourceVariable = "IRQLAB_SOURCE"

// Source is what the guest's agent is built from where there is no checkout: go.mod, go.sum and the folder guestagent, as the irqlab command carries them. nil: a program that
// uses the lab has none. Set before use.
var Source fs.FS

// sourceKind is that of entries with Source, unpacked.
const sourceKind = "source"

// source is irqlab's source as it was found.
type source struct {
	dir   string // its root
	found string // what led there, for people
}

// source finds irqlab's source: $IRQLAB_SOURCE, else where this file was compiled, else what this program carries, else what the module in the working directory resolves irqlab to.
func (c *Cache) source(ctx context.Context) (source, error) {
	if dir := os.Getenv(SourceVariable); dir != "" {
		abs, err := checkSource(dir)
		if err != nil {
			return source{}, &NoSourceError{[]string{SourceVariable + ": " + err.Error()}}
		}
		return source{abs, SourceVariable + " names it"}, nil
	}
	var tried []string
	dir, err := compiledIn()
	if err == nil {
		return source{dir, "where this irqlab was built"}, nil
	}
	tried = append(tried, err.Error())
	if Source != nil {
		dir, err := c.unpackSource(ctx)
		return source{dir, "this irqlab carries it"}, err
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", modulePath)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err = RunOwned(ctx, cmd); err == nil {
		dir, err := checkSource(strings.TrimSpace(out.String()))
		if err == nil {
			return source{dir, "the module in the working directory requires it"}, nil
		}
		tried = append(tried, err.Error())
	} else {
		if ctx.Err() != nil {
			return source{}, ctx.Err()
		}
		reason, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
		tried = append(tried, fmt.Sprintf("`go list -m irqlab` in the working directory: %v %s", err, reason))
	}
	return source{}, &NoSourceError{tried}
}

// compiledIn is the checkout that this program was built in, if it is there still.
func compiledIn() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return "", errors.New("this irqlab was built with -trimpath")
	}
	return checkSource(filepath.Dir(filepath.Dir(file)))
}

// unpackSource unpacks what this program carries into the cache, once for each content.
func (c *Cache) unpackSource(ctx context.Context) (string, error) {
	h := sha256.New()
	err := fs.WalkDir(Source, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(Source, path)
		fmt.Fprintf(h, "%s %d\n", path, len(data))
		h.Write(data)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("source: %w", err)
	}
	return c.entry(ctx, sourceKind, hex.EncodeToString(h.Sum(nil))[:32], func(_ context.Context, dir string) error { return os.CopyFS(dir, Source) })
}

// checkSource returns dir as an absolute path without symbolic links if it holds irqlab's module and the agent.
func checkSource(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("no directory")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return "", err
	}
	mod, err := os.ReadFile(filepath.Join(abs, "go.mod"))
	if err != nil {
		return "", err
	}
	if got := modfile.ModulePath(mod); got != modulePath {
		return "", fmt.Errorf("%s holds module %q, not %q", abs, got, modulePath)
	}
	if _, err := os.Stat(filepath.Join(abs, "guestagent")); err != nil {
		return "", err
	}
	return abs, nil
}

// goVersion is the version of the toolchain that a build in dir will use (GOTOOLCHAIN may choose another than the one in PATH).
func goVersion(ctx context.Context, goTool, dir string) (string, error) {
	out, err := runGo(ctx, goTool, dir, "", nil, "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(out), nil
}

// busyboxKey hashes everything the binary is made from. Versions of other modules are pinned by go.mod and go.sum.
func busyboxKey(src, goVersion string) (string, error) {
	h := sha256.New()
	_, commands := guestCommands()
	fmt.Fprintf(h, "format %d\n%s\n%s\n%q\n", busyboxFormat, goVersion, strings.Join(commands, " "), busyboxMain(nil))
	add := func(path string) error {
		data, err := os.ReadFile(filepath.Join(src, path))
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %d\n", filepath.ToSlash(path), len(data))
		h.Write(data)
		return nil
	}
	for _, path := range []string{"go.mod", "go.sum"} {
		if err := add(path); err != nil {
			return "", fmt.Errorf("source: %w", err)
		}
	}
	err := filepath.WalkDir(filepath.Join(src, "guestagent"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "testdata":
			return filepath.SkipDir
		case !d.Type().IsRegular() || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		return add(rel)
	})
	if err != nil {
		return "", fmt.Errorf("source: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// goEnv makes a go command do the same whatever the caller's environment asks for: only where modules come from is left to it.
func goEnv(dir string) []string {
	drop := map[string]bool{"GOFLAGS": true, "GOWORK": true, "GO111MODULE": true, "GOOS": true, "GOARCH": true, "GOAMD64": true, "CGO_ENABLED": true,
		"GOEXPERIMENT": true, "GOFIPS140": true, "GODEBUG": true, "PWD": true}
	var env []string
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); !drop[name] {
			env = append(env, kv)
		}
	}
	return append(env, "GOFLAGS=", "GOWORK=off", "GO111MODULE=on", "GOOS=linux", "GOARCH=amd64", "GOAMD64=v1", "CGO_ENABLED=0", "PWD="+dir)
}

// buildFlags keep paths, version control and timestamps out of the binary, and the module's requirements as they are.
var buildFlags = []string{"-mod=readonly", "-trimpath", "-buildvcs=false"}

// buildBusybox compiles the agent and the u-root commands into one static binary at out.
func buildBusybox(ctx context.Context, goTool, src, out string, p Progress) error {
	work, err := os.MkdirTemp(filepath.Dir(out), ".build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	stop := ticking(p, "loading and compiling the guest's commands")
	overlay, err := rewriteCommands(ctx, goTool, src, work)
	stop()
	if err != nil {
		return err
	}
	overlayFile := filepath.Join(work, "overlay.json")
	data, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return err
	}
	if err := os.WriteFile(overlayFile, data, 0o600); err != nil {
		return err
	}
	var compiled int64
	p.report("compiling the guest's commands", 0, 0)
	args := append([]string{"build", "-v", "-overlay", overlayFile, "-ldflags", "-s -w -buildid=", "-o", out}, buildFlags...)
	_, err = runGo(ctx, goTool, src, work, func(line string) {
		if !strings.HasPrefix(line, "#") {
			compiled++
			p.report("compiling the guest's commands", compiled, 0)
		}
	}, append(args, "./"+overlayPath)...)
	if err != nil {
		return fmt.Errorf("build the guest agent: %w", err)
	}
	return nil
}

// rewriteCommands writes the rewritten commands and the busybox's main package below work and returns where each file belongs in the
// overlay over src.
func rewriteCommands(ctx context.Context, goTool, src, work string) (map[string]string, error) {
	names, patterns := guestCommands()
	var imports []string
	args := []string{filepath.Join(work, "bb"), bbmainPackage}
	for i, path := range patterns {
		name := names[i]
		imports = append(imports, modulePath+"/"+overlayPath+"/"+name)
		args = append(args, name+"="+path)
	}
	list := append([]string{"list", "-export", "-deps", "-json=ImportPath,Name,Dir,Export,DepOnly,GoFiles,EmbedFiles,Imports,ImportMap"}, buildFlags...)
	listed, err := runGo(ctx, goTool, src, work, nil, append(list, patterns...)...)
	if err != nil {
		return nil, fmt.Errorf("load the guest's commands from %s: %w", src, err)
	}
	if err := runRewriter(ctx, goTool, src, work, listed, args); err != nil {
		return nil, fmt.Errorf("rewrite the guest's commands from %s: %w", src, err)
	}
	main, err := format.Source([]byte(busyboxMain(imports)))
	if err != nil {
		return nil, fmt.Errorf("busybox main: %w", err)
	}
	if err := os.WriteFile(filepath.Join(work, "bb", "main.go"), main, 0o600); err != nil {
		return nil, err
	}

	overlay := make(map[string]string)
	err = filepath.WalkDir(filepath.Join(work, "bb"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(filepath.Join(work, "bb"), path)
		overlay[filepath.Join(src, filepath.FromSlash(overlayPath), rel)] = path
		return err
	})
	if err != nil {
		return nil, err
	}
	return overlay, nil
}

//go:embed rewriter/main.go
var rewriterSource []byte

// runRewriter builds the rewriter in the module at src, whose go.mod decides its versions like all others, and runs it on what go list said.
//
// It is a program of its own since gobusybox imports a formatter that makes a directory in the user's cache as soon as a program that has it starts. Here that is below
// work.
func runRewriter(ctx context.Context, goTool, src, work, listed string, args []string) error {
	source, program := filepath.Join(work, "rewriter.go"), filepath.Join(work, "rewriter")
	if err := os.WriteFile(source, rewriterSource, 0o600); err != nil {
		return err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(src, filepath.FromSlash(rewriterPath), "main.go"): source}})
	if err != nil {
		return err
	}
	overlayFile := filepath.Join(work, "rewriter.json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		return err
	}
	build := append([]string{"build", "-overlay", overlayFile, "-o", program}, buildFlags...)
	if _, err := runGoFor(ctx, []string{"GOARCH=" + runtime.GOARCH}, goTool, src, work, nil, append(build, "./"+rewriterPath)...); err != nil { // it runs here, not in the guest
		return err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = src, append(goEnv(src), "XDG_CACHE_HOME="+work)
	cmd.Stdin = strings.NewReader(listed)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := RunOwned(ctx, cmd); err != nil {
		if text := strings.TrimSpace(stderr.String()); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return ctxFirst(ctx, err)
	}
	return nil
}

// busyboxMain is the main package that starts the command its name or, called by another name, its first argument says.
func busyboxMain(imports []string) string {
	var b strings.Builder
	b.WriteString("// Package main is the guest's one binary: the agent and u-root's commands. Generated by irqlab/images.\npackage main\n\nimport (\n")
	fmt.Fprintf(&b, "\"fmt\"\n\"os\"\n\"path/filepath\"\n\"strings\"\n\n%q\n", bbmainPackage)
	for _, path := range imports {
		fmt.Fprintf(&b, "_ %q\n", path)
	}
	b.WriteString(")\n\nvar aliases = map[string]string{\n")
	for _, alias := range sortedKeys(busyboxAliases) {
		fmt.Fprintf(&b, "%q: %q,\n", alias, busyboxAliases[alias])
	}
	b.WriteString(`}

func main() {
	name := run()
	if name == "bb" && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = run()
	}
	fmt.Fprintf(os.Stderr, "bb: no command %q; there are: %s\n", name, strings.Join(bbmain.ListCmds(), " "))
	os.Exit(127)
}

// run starts the command named by the first argument and returns only if there is none.
func run() string {
	name := strings.TrimPrefix(filepath.Base(os.Args[0]), "-")
	if command, ok := aliases[name]; ok {
		name = command
	}
	_ = bbmain.Run(name)
	return name
}
`)
	return b.String()
}

// runGo runs the go tool in dir and returns its standard output. What it builds in passing lies in tmp, which a go that is killed does not clean. Each line on standard
// error goes to onLine, if given; their tail is in the error. When ctx ends, or this process dies, go and its compilers are killed.
func runGo(ctx context.Context, goTool, dir, tmp string, onLine func(string), args ...string) (string, error) {
	return runGoFor(ctx, nil, goTool, dir, tmp, onLine, args...)
}

// runGoFor is runGo with more of an environment.
func runGoFor(ctx context.Context, env []string, goTool, dir, tmp string, onLine func(string), args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, goTool, args...)
	cmd.Dir = dir
	cmd.Env = append(goEnv(dir), env...)
	if tmp != "" {
		cmd.Env = append(cmd.Env, "GOTMPDIR="+tmp)
	}
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	tail := &lineTail{onLine: onLine, max: 40}
	r, w := io.Pipe()
	cmd.Stderr = w
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(r); s.Scan(); {
			tail.add(s.Text())
		}
		_, _ = io.Copy(io.Discard, r) // an overlong line must not block go
	}()
	err := RunOwned(ctx, cmd)
	w.Close()
	<-read
	if err == nil {
		return stdout.String(), nil
	}
	err = ctxFirst(ctx, err)
	if ctx.Err() == nil && len(tail.lines) > 0 {
		err = fmt.Errorf("%w:\n%s", err, strings.Join(tail.lines, "\n"))
	}
	return "", fmt.Errorf("go %s: %w", args[0], err)
}

// lineTail keeps the last lines of a command's diagnostics.
type lineTail struct {
	onLine func(string)
	max    int
	lines  []string
}

func (t *lineTail) add(line string) {
	if t.onLine != nil {
		t.onLine(line)
	}
	if len(t.lines) == t.max {
		t.lines = append(t.lines[:0], t.lines[1:]...)
	}
	t.lines = append(t.lines, line)
}

// ctxFirst prefers the context's end over what it made fail.
func ctxFirst(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return err
	case errors.Is(cause, ctx.Err()):
		return fmt.Errorf("%w (%v)", cause, err)
	default:
		return fmt.Errorf("%w: %w (%v)", ctx.Err(), cause, err)
	}
}

// ticking reports a step that cannot count every second until stop is called; stop waits for the last report.
func ticking(p Progress, what string) (stop func()) {
	p.report(what, 0, 0)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				p.report(what, 0, 0)
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
