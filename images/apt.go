package images

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/xi2/xz"
)

// ErrNoApt says that packages cannot be had here.
var ErrNoApt = errors.New("no apt-get on this machine, so nothing can be fetched: give --qemu PATH and --kernel PATH")

// NoArchiveError says that this host's apt knows no Debian archive, or cannot verify one.
type NoArchiveError struct{ Problem, Remedy string }

func (e *NoArchiveError) Error() string {
	return e.Problem + " (" + e.Remedy + ", or give --qemu PATH and --kernel PATH)"
}

// Unobtainable reports whether err, of Kernel, QEMU, Initramfs or CheckGuest, says that something cannot be had on this machine as it is: neither is it there, nor can it be fetched or built.
func Unobtainable(err error) bool {
	return errors.Is(err, ErrNoApt) || errors.As(err, new(*NoArchiveError)) || errors.As(err, new(*AptError)) || errors.As(err, new(*NoGoError)) || errors.As(err, new(*NoSourceError))
}

const (
	aptLock = "apt" // held by whoever runs apt-get on the private state
	aptKind = "apt" // of the private state in a list of the cache
)

// aptOptions replace what is found on the host; tests and the user's environment set them.
type aptOptions struct {
	mirror  string // base URL of a Debian archive
	suites  []string
	trusted bool // no signature verification: tests only, with an archive of their own
}

// apt runs apt-get with a state of its own: the host's package lists, cache and status are neither read nor written, nothing is installed.
// The host's apt configuration still applies (proxies, certificates), except for its hooks.
type apt struct {
	c       *Cache
	dir     string // private state
	mirror  string
	suites  []string
	keyring string
	trusted bool
}

// keyrings that hold Debian's archive keys, the first found is used. Newer packages of debian-archive-keyring use the .pgp name.
var keyrings = []string{
	"/usr/share/keyrings/debian-archive-keyring.pgp",
	"/usr/share/keyrings/debian-archive-keyring.gpg",
}

// newApt prepares the private state; the caller holds aptLock. The mirror is the one x was made from, or the host's if x is nil.
func (c *Cache) newApt(ctx context.Context, x *index) (*apt, error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, ErrNoApt
	}
	a := &apt{c: c, mirror: c.apt.mirror, suites: c.apt.suites, trusted: c.apt.trusted}
	if strings.ContainsAny(c.dir, "\"\\\n;") {
		return nil, fmt.Errorf("cache %s: apt cannot work in a directory of that name (set IRQLAB_CACHE to another)", c.dir)
	}
	if len(a.suites) == 0 {
		a.suites = suites
	}
	if !a.trusted {
		var err error
		if a.keyring, err = findKeyring(); err != nil {
			return nil, err
		}
	}
	if a.mirror == "" && x != nil {
		a.mirror = x.Mirror
	}
	if a.mirror == "" {
		var err error
		if a.mirror, err = hostMirror(ctx); err != nil {
			return nil, err
		}
	}
	// Each mirror has lists of its own: those of another must not pass for its.
	a.dir = filepath.Join(c.aptDir(), entryName(redact(a.mirror)))
	c.sweepApt()
	if err := a.writeConfig(); err != nil {
		return nil, noSpace(c.dir, 0, fmt.Errorf("cache: private apt state: %w", err))
	}
	return a, nil
}

func findKeyring() (string, error) {
	for _, k := range keyrings {
		if f, err := os.Open(k); err == nil {
			f.Close()
			return k, nil
		}
	}
	return "", &NoArchiveError{"packages cannot be verified: Debian's archive keys are not in " + keyrings[len(keyrings)-1], "install debian-archive-keyring"}
}

func (a *apt) writeConfig() error {
	for _, d := range []string{"lists/partial", "cache/archives/partial", "sources", aptTemp} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o700); err != nil {
			return err
		}
	}
	status := filepath.Join(a.dir, "status")
	if err := os.WriteFile(status, nil, 0o600); err != nil { // nothing is installed, as far as this apt knows
		return err
	}
	var b strings.Builder
	for _, hook := range []string{"APT::Update::Pre-Invoke", "APT::Update::Post-Invoke", "APT::Update::Post-Invoke-Success", "DPkg::Pre-Invoke",
		"DPkg::Post-Invoke", "DPkg::Pre-Install-Pkgs", "APT::Architectures", "APT::Default-Release"} {
		fmt.Fprintf(&b, "#clear %s;\n", hook)
	}
	set := func(name, value string) { fmt.Fprintf(&b, "%s %q;\n", name, value) }
	set("Dir::State", a.dir)
	set("Dir::State::Lists", filepath.Join(a.dir, "lists"))
	set("Dir::State::status", status)
	set("Dir::State::extended_states", filepath.Join(a.dir, "extended_states"))
	set("Dir::Cache", filepath.Join(a.dir, "cache"))
	set("Dir::Cache::Archives", filepath.Join(a.dir, "cache/archives"))
	set("Dir::Cache::pkgcache", "")
	set("Dir::Cache::srcpkgcache", "")
	set("Dir::Etc::sourcelist", a.sourceFile("all"))
	set("Dir::Etc::sourceparts", "/dev/null")
	set("Dir::Etc::preferences", "/dev/null")
	set("Dir::Etc::preferencesparts", "/dev/null")
	set("Dir::Log", filepath.Join(a.dir, "log"))
	set("APT::Architecture", "amd64")
	b.WriteString("APT::Architectures { \"amd64\"; };\n")
	set("APT::Sandbox::User", "root") // the sandbox user could not enter a private directory; as a plain user there is none anyway
	set("APT::Install-Recommends", "false")
	set("APT::Get::AllowUnauthenticated", "false")
	set("Acquire::Languages", "none")
	set("Acquire::GzipIndexes", "true")
	set("Acquire::PDiffs", "false")
	set("Acquire::Retries", "2")
	set("Acquire::http::Timeout", "20")
	set("Acquire::https::Timeout", "20")

	if err := a.c.writeFile(a.configFile(), []byte(b.String())); err != nil {
		return err
	}
	write := func(name string, which ...string) error {
		var b strings.Builder
		for _, s := range which {
			option := "signed-by=" + a.keyring
			if a.trusted {
				option = "trusted=yes"
			}
			fmt.Fprintf(&b, "deb [arch=amd64 target=Packages %s] %s %s main\n", option, a.mirror, s)
		}
		return a.c.writeFile(a.sourceFile(name), []byte(b.String()))
	}
	for _, s := range a.suites {
		if err := write(s, s); err != nil {
			return err
		}
	}
	if err := write("qemu", qemuSuite, qemuBase); err != nil {
		return err
	}
	return write("all", a.suites...)
}

func (a *apt) configFile() string              { return filepath.Join(a.dir, "apt.conf") }
func (a *apt) sourceFile(name string) string   { return filepath.Join(a.dir, "sources", name+".list") }
func (a *apt) sourceOption(name string) string { return "Dir::Etc::sourcelist=" + a.sourceFile(name) }

// packageList is a downloaded list of one suite.
type packageList struct{ suite, file string }

// update fetches the package lists of every suite. A suite that the mirror lacks, or that cannot be fetched now, is left out with a warning.
func (a *apt) update(ctx context.Context, p Progress) ([]packageList, error) {
	// Error-Mode: apt otherwise calls an unreachable mirror a success, with old lists. Generate: it would build a cache that nobody reads.
	out, runErr := a.run(ctx, "", "package lists", 0, p, "-o", "APT::Update::Error-Mode=any", "-o", "pkgCacheFile::Generate=false", "-o", "Acquire::Retries=1", "update")
	if ctx.Err() != nil {
		return nil, runErr
	}
	reached := reachedSuites(out)
	var lists []packageList
	for _, suite := range a.suites {
		file := a.list(suite)
		if file != "" && (reached[suite] || runErr != nil) {
			lists = append(lists, packageList{suite, file})
		}
		switch {
		case file != "" && reached[suite]:
		case file != "" && runErr != nil:
			a.c.warn("suite %s not refreshed, its old package list is used: %s", suite, suiteTrouble(runErr, suite, redact(a.mirror)))
		default:
			a.c.warn("suite %s left out: %s", suite, suiteTrouble(runErr, suite, redact(a.mirror)))
		}
	}
	if len(reached) == 0 || len(lists) == 0 {
		if runErr == nil {
			runErr = errors.New("it has none of the suites " + strings.Join(a.suites, ", "))
		}
		return nil, fmt.Errorf("no package list from %s: %w (check the network and the host's apt sources, or give --qemu PATH and --kernel PATH)", redact(a.mirror), runErr)
	}
	return lists, nil
}

// reachedSuites reads the lines of apt-get update, "Get:1 URL SUITE InRelease [size]" or "Hit:1 URL SUITE InRelease".
func reachedSuites(out string) map[string]bool {
	reached := map[string]bool{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) >= 4 && (strings.HasPrefix(f[0], "Get:") || strings.HasPrefix(f[0], "Hit:")) && (f[3] == "InRelease" || f[3] == "Release") {
			reached[f[2]] = true
		}
	}
	return reached
}

// list is the verified package list of a suite, "" if there is none. apt-get indextargets would tell too, after seconds spent on a cache of
// everything; apt moves lists here only once they are verified.
func (a *apt) list(suite string) string {
	found, err := filepath.Glob(filepath.Join(a.dir, "lists", "*_dists_"+suite+"_main_binary-amd64_Packages*"))
	if err != nil || len(found) == 0 {
		return ""
	}
	return slices.MaxFunc(found, func(a, b string) int { return modTime(a).Compare(modTime(b)) }) // an old mirror's list may lie beside
}

func modTime(path string) time.Time {
	st, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

// suiteTrouble finds the line of apt's output that is about the suite.
func suiteTrouble(err error, suite, mirror string) string {
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			if slices.Contains(strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" '/\"", r) }), suite) {
				return strings.TrimSpace(line)
			}
		}
	}
	return mirror + " does not have it"
}

// download fetches name=version from one suite into dir and returns the file; apt verifies it against the signed list.
func (a *apt) download(ctx context.Context, dir, suite string, name, ver string, size int64, p Progress) (string, error) {
	if _, err := a.run(ctx, dir, name, size, p, "-o", a.sourceOption(suite), "download", name+"="+ver); err != nil {
		return "", fmt.Errorf("package %s %s of %s: %w", name, ver, suite, err)
	}
	found, err := filepath.Glob(filepath.Join(dir, name+"_*.deb"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("package %s %s of %s: apt-get download left %d files", name, ver, suite, len(found))
	}
	return found[0], nil
}

// AptError is a failed apt-get.
type AptError struct {
	Command string
	Output  string // its errors and warnings, one a line
	Err     error
}

func (e *AptError) Error() string {
	if e.Output == "" {
		return fmt.Sprintf("apt-get %s: %v", e.Command, e.Err)
	}
	return fmt.Sprintf("apt-get %s: %s", e.Command, e.Output)
}

func (e *AptError) Unwrap() error { return e.Err }

// gone tells whether apt asked for something that the mirror no longer has: the lists are out of date.
func (e *AptError) gone() bool {
	for _, s := range []string{"404", "was not found", "Unable to locate package", "Can't find a source", "Hash Sum mismatch", "File has unexpected size"} {
		if strings.Contains(e.Output, s) {
			return true
		}
	}
	return false
}

// run runs apt-get in dir and returns what it prints, also when it fails. Progress is reported once it has taken two seconds: what apt says it does, in bytes of
// size if that is known, else in percent.
func (a *apt) run(ctx context.Context, dir, what string, size int64, p Progress, args ...string) (string, error) {
	tmp, err := os.MkdirTemp(filepath.Join(a.dir, aptTemp), "run-")
	if err != nil {
		return "", noSpace(a.c.dir, 0, fmt.Errorf("cache: private apt state: %w", err))
	}
	defer os.RemoveAll(tmp)
	read, write, err := os.Pipe()
	if err != nil {
		return "", startRemedy(fmt.Errorf("apt-get: %w", err))
	}
	defer read.Close()
	command := args[0]
	for i := 0; i+2 < len(args) && args[i] == "-o"; i += 2 {
		command = args[i+2]
	}
	limit := max(maxList, size)
	watched, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	cmd := writingAtMost(watched, 2*limit, "apt-get", append([]string{"-c", a.configFile(), "-q", "-o", "APT::Status-Fd=3"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", "TMPDIR="+tmp)
	cmd.ExtraFiles = []*os.File{write}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	done := make(chan struct{})
	go func() {
		defer close(done)
		followStatus(read, what, size, p)
	}()
	go watchFetch(watched, stop, limit, filepath.Join(a.dir, "lists", "partial"), dir)
	err = RunOwned(watched, cmd)
	<-done
	if err == nil {
		return stdout.String(), nil
	}
	a.c.sweepApt()
	if ctx.Err() != nil {
		return stdout.String(), fmt.Errorf("apt-get %s: %w", command, ctx.Err())
	}
	var gaveUp *fetchError
	if errors.As(context.Cause(watched), &gaveUp) {
		return stdout.String(), &AptError{Command: command, Output: gaveUp.Error(), Err: gaveUp}
	}
	e := &AptError{Command: command, Output: aptComplaints(stderr.String()), Err: err}
	return stdout.String(), noSpace(a.c.dir, 0, aptRemedy(e))
}

// maxList is more than any file of Debian's has that apt fetches or makes without a size known beforehand, in bytes: the largest list takes 25 MB, as apt stores it.
const maxList = 128 << 20

// writingAtMost is a command that may write no file larger than size bytes.
func writingAtMost(ctx context.Context, size int64, name string, args ...string) *exec.Cmd {
	const script = `ulimit -c 0 && ulimit -f "$0" && exec "$@"` // a process above the limit would leave a core file; -f counts blocks of 512 bytes
	return exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", script, strconv.FormatInt(size/512+1, 10), name}, args...)...)
}

// fetchError tells why an apt-get was ended that would not have ended by itself.
type fetchError struct{ reason string }

func (e *fetchError) Error() string { return e.reason }

// fetchPatience is how long nothing may come in. apt's own limits are shorter, and longer in sum where each of many files runs into them.
const fetchPatience = 5 * time.Minute

// watchFetch ends a fetch when a file in one of the directories grows above limit, or nothing does for fetchPatience. apt takes a Release file of any length; it holds other
// files to the size that Release states only where the server's chunks are larger than its buffer, and it may wait for ever once a process of its own has died.
func watchFetch(ctx context.Context, stop context.CancelCauseFunc, limit int64, dirs ...string) {
	const pause = 100 * time.Millisecond
	var last int64
	moved := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		var sum int64
		for _, dir := range dirs {
			if dir == "" {
				continue
			}
			largest, size := measure(dir)
			if largest > limit {
				stop(&fetchError{fmt.Sprintf("the mirror sends a file without end, or larger than any of Debian's: %s and more (give another mirror, see `irqlab fetch --help`)", mebibytes(limit))})
				return
			}
			sum += size
		}
		if sum != last {
			last, moved = sum, time.Now()
		}
		if time.Since(moved) > fetchPatience {
			stop(&fetchError{fmt.Sprintf("nothing has come from the mirror for %v", fetchPatience)})
			return
		}
	}
}

// aptTemp is where an apt-get writes what it needs on the way, in the private state.
const aptTemp = "tmp"

// aptDir holds the private state for each mirror.
func (c *Cache) aptDir() string { return filepath.Join(c.dir, stateDir, "mirrors") }

// sweepApt removes what apt-gets that were killed have left half done; the caller holds aptLock, so none runs.
func (c *Cache) sweepApt() {
	for _, path := range c.aptLeavings() {
		_ = os.RemoveAll(path)
	}
}

func (c *Cache) aptLeavings() (all []string) {
	const former = "../apt" // of a version that knew one mirror
	for _, pattern := range []string{"*/lists/partial/*", "*/cache/archives/partial/*", "*/" + aptTemp + "/*", former} {
		found, _ := filepath.Glob(filepath.Join(c.aptDir(), pattern))
		all = append(all, found...)
	}
	return all
}

// aptStates lists the private state for each mirror, as entries of the cache. The name of a mirror's state is also that of its directory.
func (c *Cache) aptStates() (list []Entry) {
	found, _ := os.ReadDir(c.aptDir())
	for _, f := range found {
		dir := filepath.Join(c.aptDir(), f.Name())
		if f.IsDir() {
			list = append(list, Entry{Kind: aptKind, Name: f.Name(), Size: DiskUsage(dir), Used: modTime((&apt{dir: dir}).configFile())})
		}
	}
	return list
}

// pruneApt removes the state for mirrors that were not asked since limit, and what was learnt of them, unless an apt-get is at work.
func (c *Cache) pruneApt(limit time.Time) (gone []string, err error) {
	unlock, ok := c.tryLock(aptLock)
	if !ok {
		return nil, nil
	}
	defer unlock()
	for _, e := range c.aptStates() {
		if e.Used.After(limit) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(c.aptDir(), e.Name)); err != nil {
			return gone, fmt.Errorf("cache: %w", err)
		}
		gone = append(gone, e.Kind+"/"+e.Name)
	}
	indexes, _ := filepath.Glob(filepath.Join(c.dir, stateDir, "kernels-*.json"))
	for _, path := range indexes {
		if !modTime(path).After(limit) {
			_ = os.Remove(path)
		}
	}
	return gone, nil
}

// followStatus reads apt's status lines, "dlstatus:FILE:PERCENT:TEXT", until the pipe closes.
func followStatus(r io.Reader, what string, size int64, p Progress) {
	const patience = 2 * time.Second // shorter operations are not worth a progress line
	began, last := time.Now(), -1.0
	s := bufio.NewScanner(r)
	for s.Scan() {
		percent, ok := parseStatus(s.Text())
		if !ok || p == nil || percent == last || time.Since(began) < patience {
			continue
		}
		last = percent
		done, total := int64(percent), int64(100)
		if size > 0 {
			done, total = int64(percent/100*float64(size)), size
		}
		p.report("fetching "+what, done, total)
	}
	_, _ = io.Copy(io.Discard, r) // a line too long stops the scanner; apt must not block on a full pipe
}

func parseStatus(line string) (percent float64, ok bool) {
	f := strings.SplitN(line, ":", 4)
	if len(f) < 4 || f[0] != "dlstatus" {
		return 0, false
	}
	v, err := strconv.ParseFloat(f[2], 64)
	if err != nil || !(v >= 0 && v <= 100) {
		return 0, false
	}
	return v, true
}

// aptComplaints keeps the errors and warnings of apt's output, without passwords.
func aptComplaints(out string) string {
	const maxLine = 500
	var keep []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "N: ") || strings.HasPrefix(line, "Notice: ") {
			continue
		}
		if !slices.Contains(keep, line) {
			if line = redact(line); len(line) > maxLine {
				line = line[:maxLine] + "…" // apt joins what it has to say of one file
			}
			keep = append(keep, line)
		}
	}
	if len(keep) > 12 {
		keep = append(keep[:12:12], "…")
	}
	return strings.Join(keep, "\n")
}

// aptRemedy adds the way out to failures that have a known one.
func aptRemedy(e *AptError) error {
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(e.Output, w) })
	}
	switch {
	case has("NO_PUBKEY", "is not signed", "not available:", "EXPKEYSIG"):
		return fmt.Errorf("%w\n(the keys of that suite are missing or expired: upgrade the package debian-archive-keyring)", e)
	case has("Temporary failure resolving", "Could not resolve", "Could not connect", "Unable to connect", "Connection timed out", "Connection failed", "Connection refused"):
		return fmt.Errorf("%w\n(the mirror cannot be reached: check the network and the host's apt configuration, or give --qemu PATH and --kernel PATH)", e)
	}
	return e
}

// redact removes user names and passwords from URLs in a text.
func redact(text string) string {
	out := ""
	for {
		i := strings.Index(text, "://")
		if i < 0 {
			return out + text
		}
		out, text = out+text[:i+3], text[i+3:]
		end := strings.IndexAny(text, "/ \t\n'\"")
		if end < 0 {
			end = len(text)
		}
		if at := strings.LastIndexByte(text[:end], '@'); at >= 0 {
			text = text[at+1:]
		}
	}
}

// target is a line of `apt-get indextargets`: an index of one of the host's sources.
type target struct {
	Origin, Label string // "" until the host has fetched its lists
	Suite         string // as the source names it
	Component     string
	URI           string // of the archive
}

const targetFormat = "$(ORIGIN)\t$(LABEL)\t$(RELEASE)\t$(COMPONENT)\t$(REPO_URI)"

func parseTargets(out string) []target {
	var all []target
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimRight(line, "\r\n"), "\t")
		if len(f) == 5 {
			all = append(all, target{f[0], f[1], f[2], f[3], f[4]})
		}
	}
	return all
}

// chooseMirror picks the host's source that serves Debian's main archive: not a security mirror, nor someone else's repository.
func chooseMirror(all []target) (string, bool) {
	names := []string{"sid", "unstable", "testing", "stable", "oldstable", "oldoldstable", "bullseye", "bookworm", "trixie", "forky", "duke"}
	best, rank := "", 0
	for _, t := range all {
		base, variant, _ := strings.Cut(t.Suite, "-")
		switch {
		case t.URI == "" || strings.ContainsAny(t.URI, " \t[]") || t.Component != "main" || !slices.Contains(names, base):
			continue
		case t.Origin != "" && t.Origin != "Debian", t.Label != "" && t.Label != "Debian" && t.Label != "Debian Backports":
			continue
		case variant == "security" || strings.Contains(t.URI, "security"):
			continue
		}
		r := 1
		if variant == "" {
			r += 2 // a whole suite: certainly the archive itself
		}
		if t.Origin != "" {
			r++ // seen by the host, not only configured
		}
		if r > rank {
			best, rank = t.URI, r
		}
	}
	return best, best != ""
}

// MirrorVariable names the Debian mirror to use instead of the one in the host's apt sources, for hosts that are not Debian.
const MirrorVariable = "IRQLAB_DEBIAN_MIRROR"

// mirrorOrigin tells what decides on the mirror: what was learnt of another one is not asked. It runs no apt-get, which would cost every start half a second.
func (c *Cache) mirrorOrigin() string {
	if c.apt.mirror != "" {
		return c.apt.mirror
	}
	if m := os.Getenv(MirrorVariable); m != "" {
		return MirrorVariable + "=" + m
	}
	h := sha256.New()
	for _, pattern := range hostSources {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			if data, err := os.ReadFile(path); err == nil {
				fmt.Fprintf(h, "%s %d\n%s", path, len(data), data)
			}
		}
	}
	return fmt.Sprintf("apt sources %x", h.Sum(nil))
}

// hostSources are the files that name the host's mirrors.
var hostSources = []string{"/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list", "/etc/apt/sources.list.d/*.sources"}

// mirrorRemedy is what helps where no mirror is known.
const mirrorRemedy = "set " + MirrorVariable + " to the URL of one, that which has dists/ and pool/ below it, such as http://mirror.example.org/debian"

// hostMirror asks the host's own apt which mirror it uses, unless MirrorVariable names one.
func hostMirror(ctx context.Context) (string, error) {
	if m := os.Getenv(MirrorVariable); m != "" {
		if u, err := url.Parse(m); err != nil || u.Scheme == "" || strings.ContainsAny(m, " \t\n[]") {
			return "", &NoArchiveError{fmt.Sprintf("%s=%s: not a URL", MirrorVariable, redact(m)), mirrorRemedy}
		}
		return m, nil
	}
	cmd := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", targetFormat, "Identifier: Packages")
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := RunOwned(ctx, cmd); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", fmt.Errorf("the host's apt sources cannot be read: %w", &AptError{Command: "indextargets", Output: aptComplaints(stderr.String()), Err: err})
	}
	if m, ok := chooseMirror(parseTargets(out.String())); ok {
		return m, nil
	}
	return "", &NoArchiveError{"the host's apt sources name no mirror of Debian's main archive", mirrorRemedy}
}

// openCompressed opens a file that apt stored, decompressing by its suffix.
func openCompressed(path string) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	var r io.Reader
	switch filepath.Ext(path) {
	case ".lz4":
		r = lz4.NewReader(f)
	case ".gz":
		r, err = gzip.NewReader(f)
	case ".xz":
		r, err = xz.NewReader(f, 0)
	case ".zst":
		var z *zstd.Decoder
		if z, err = zstd.NewReader(f); err == nil {
			return readCloser{z, func() error { z.Close(); return f.Close() }}, nil
		}
	default:
		r = f
	}
	if err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "decompress", Path: path, Err: err}
	}
	return readCloser{r, f.Close}, nil
}

type readCloser struct {
	io.Reader
	close func() error
}

func (r readCloser) Close() error { return r.close() }
