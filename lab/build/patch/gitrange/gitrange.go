// Package gitrange has git give the changes of a tree as patches: what is not committed, or a range of commits. It only
// reads, and a repository that somebody else prepared runs nothing by it: no hook, no filter, no diff or text converter of
// the repository's own, and nothing is fetched.
package gitrange

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"irqlab/lab/build/patch"
	"irqlab/lab/foreign"
)

// maxCommits is how many commits one series may have: more are a kernel's release, which is built, not applied.
const maxCommits = 2000

// Read reads the patches that spec names: DIR for what is not committed there, DIR@A..B for the commits after A up to B
// (DIR@A.. up to HEAD), DIR@A for that commit. A range with merges comes as one patch, since its commits alone do not
// apply one after the other.
func Read(ctx context.Context, spec string) (patch.Series, error) {
	dir, revs := split(spec)
	g := &repository{dir: dir, source: "git:" + spec}
	s, err := g.read(ctx, revs)
	if err != nil {
		var e *patch.ReadError
		if ctx.Err() != nil || errors.As(err, &e) {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", foreign.Line(g.source), err)
	}
	return s, nil
}

// split splits spec at the first @ before which a folder's name stands, since both folders and revisions may have one.
func split(spec string) (dir, revs string) {
	at := 0
	for {
		i := strings.IndexByte(spec[at:], '@')
		if i < 0 {
			return home(spec), ""
		}
		at += i
		if isDir(home(spec[:at])) && !isDir(home(spec)) {
			return home(spec[:at]), spec[at+1:]
		}
		at++
	}
}

// home puts the home folder for the ~ that a shell leaves alone within a word.
func home(dir string) string {
	if dir == "~" || strings.HasPrefix(dir, "~/") {
		if h, err := os.UserHomeDir(); err == nil {
			return filepath.Join(h, dir[1:])
		}
	}
	return dir
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

type repository struct {
	dir, source string
	inert       []string // settings that keep the repository's own from running anything
	own         bool     // dir is a repository that was made here, bare
	shallow     bool
	noWorkTree  bool
}

// open finds out what the folder is.
func (g *repository) open(ctx context.Context) error {
	if !isDir(g.dir) {
		return errors.New("no such folder")
	}
	if _, err := exec.LookPath("git"); err != nil {
		return errors.New("git is not installed: install it")
	}
	facts, err := g.git(ctx, "rev-parse", "--is-bare-repository", "--is-shallow-repository", "--is-inside-git-dir")
	if err != nil {
		return err
	}
	words := append(strings.Fields(facts), "", "", "")
	g.shallow = words[1] == "true"
	g.noWorkTree = words[0] == "true" || words[2] == "true"
	return nil
}

func (g *repository) read(ctx context.Context, revs string) (patch.Series, error) {
	if err := g.open(ctx); err != nil {
		return nil, err
	}
	if err := g.disarm(ctx); err != nil {
		return nil, err
	}
	if revs == "" {
		if g.noWorkTree {
			return nil, errors.New("a repository without a work tree has no changes that are not committed: name commits, as in git:DIR@A..B")
		}
		return g.uncommitted(ctx)
	}
	return g.commits(ctx, revs)
}

// disarm finds the filters that the repository defines. The rest of what it could run has a switch of its own, in git below.
func (g *repository) disarm(ctx context.Context) error {
	names, err := g.git(ctx, "config", "--list", "--name-only", "-z")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(names, "\x00") {
		lower := strings.ToLower(name)
		if !strings.HasPrefix(lower, "filter.") {
			continue
		}
		if i := strings.LastIndexByte(name, '.'); i > len("filter.") && !strings.ContainsAny(name, "=\n") {
			for _, key := range []string{".clean=", ".smudge=", ".process=", ".required=false"} {
				g.inert = append(g.inert, "-c", name[:i]+key)
			}
		} else {
			// Git takes a setting's name up to the first =, so this one cannot be overridden.
			return errors.New("the repository defines a filter with a name that cannot be switched off: give the patch as a file")
		}
	}
	return nil
}

// diffFlags make git write what every git writes, whatever the user or the repository prefers.
var diffFlags = []string{"--patch", "--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "-U3", "-O/dev/null", "--inter-hunk-context=0",
	"--diff-algorithm=default", "--find-renames", "--no-relative", "--ignore-submodules=all", "--submodule=short"}

func (g *repository) uncommitted(ctx context.Context) (patch.Series, error) {
	if _, err := g.commit(ctx, "HEAD"); err != nil {
		return nil, errors.New("there is no commit yet to which changes could be told")
	}
	s, err := g.patches(ctx, append([]string{"diff"}, append(diffFlags, "HEAD", "--")...)...)
	if err == nil && s == nil {
		err = errors.New("nothing is changed that is not committed: name commits, as in git:DIR@A..B")
	}
	unknown, listErr := g.git(ctx, "ls-files", "--others", "--exclude-standard", "-z", "--full-name", "--", ":/")
	if listErr != nil {
		return nil, listErr
	}
	if files := strings.Split(strings.TrimSuffix(unknown, "\x00"), "\x00"); unknown != "" {
		note := fmt.Sprintf("%d files that git does not know are not in the patch (git add -N puts them in): %s", len(files), foreign.Line(files[0]))
		if len(files) > 1 {
			note += ", …"
		}
		if err != nil {
			return nil, fmt.Errorf("%w. %s", err, note)
		}
		s[0].Notes = append(s[0].Notes, note+".")
	}
	if err != nil {
		return nil, err
	}
	s[0].Title = "changes that are not committed"
	return s, nil
}

func (g *repository) commits(ctx context.Context, revs string) (patch.Series, error) {
	from, to, isRange := strings.Cut(revs, "..")
	if strings.HasPrefix(to, ".") {
		return nil, fmt.Errorf("%s: a symmetric difference is no series: give A..B", foreign.Line(revs))
	}
	if !isRange {
		from, to = revs+"^", revs
	}
	if to == "" {
		to = "HEAD"
	}
	b, err := g.commit(ctx, to)
	if err != nil {
		return nil, err
	}
	a, err := g.commit(ctx, from)
	if err != nil {
		return nil, err
	}
	if _, err := g.git(ctx, "merge-base", "--is-ancestor", a, b); err != nil {
		text := fmt.Sprintf("%s is no ancestor of %s, so the commits between them are no change of it", foreign.Line(from), foreign.Line(to))
		if g.shallow {
			text += ", or the clone is too shallow to tell (git fetch --unshallow)"
		}
		return nil, errors.New(text)
	}
	span := a + ".." + b
	count := func(args ...string) (int, error) {
		out, err := g.git(ctx, append(append([]string{"rev-list", "--count"}, args...), span, "--")...)
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(out))
	}
	all, err := count()
	if err != nil {
		return nil, err
	}
	if all == 0 {
		return nil, fmt.Errorf("no commits in %s", foreign.Line(revs))
	}
	merges, err := count("--merges")
	if err != nil {
		return nil, err
	}
	var s patch.Series
	if merges > 0 {
		if s, err = g.patches(ctx, append([]string{"diff"}, append(diffFlags, a, b, "--")...)...); s != nil {
			s[0].Title = foreign.Line(revs)
			s[0].Notes = append(s[0].Notes, fmt.Sprintf("The %d commits of %s have %d merges among them, so they are applied as one patch.", all, foreign.Line(revs), merges))
		}
	} else {
		if all > maxCommits {
			return nil, fmt.Errorf("%d commits in %s: more than %d are not applied one by one", all, foreign.Line(revs), maxCommits)
		}
		args := append([]string{"format-patch", "--stdout", "--numbered", "--subject-prefix=PATCH", "--no-cover-letter", "--no-attach", "--no-thread", "--no-signoff",
			"--no-to", "--no-cc", "--no-add-header", "--no-notes", "--no-signature", "--no-base", "--no-stat", "--no-binary"}, append(diffFlags, span, "--")...)
		s, err = g.patches(ctx, args...)
	}
	if err == nil && s == nil {
		err = fmt.Errorf("the commits of %s change nothing", foreign.Line(revs))
	}
	return s, err
}

// commit is the full name of a commit.
func (g *repository) commit(ctx context.Context, rev string) (string, error) {
	if rev == "" || strings.HasPrefix(rev, "-") {
		return "", fmt.Errorf("%q is no commit", foreign.Line(rev))
	}
	out, err := g.git(ctx, "rev-parse", "--verify", "--quiet", rev+"^{commit}", "--")
	name, _, _ := strings.Cut(out, "\n")
	if err != nil || name == "" {
		text := fmt.Sprintf("there is no commit %s", foreign.Line(rev))
		if g.shallow {
			text += " in this clone, which is shallow: git fetch --unshallow, or name a later one"
		}
		return "", errors.New(text)
	}
	return name, nil
}

// command is git with all that a repository could make it run switched off.
func (g *repository) command(ctx context.Context, args ...string) *exec.Cmd {
	all := []string{"-C", g.dir, "--no-pager", "--no-optional-locks", "--no-replace-objects"}
	if g.own {
		all = append(all, "--git-dir="+g.dir) // a user may have forbidden git to find bare ones
	}
	for _, s := range []string{"core.hooksPath=/dev/null", "core.fsmonitor=false", "core.attributesFile=/dev/null", "core.quotePath=true", "core.pager=cat",
		"protocol.allow=never", "log.showSignature=false", "diff.noprefix=false", "diff.mnemonicPrefix=false", "diff.external=", "format.useAutoBase=false",
		"format.outputDirectory=", "submodule.recurse=false", "diff.wordRegex=", "core.untrackedCache=false"} {
		all = append(all, "-c", s)
	}
	c := exec.CommandContext(ctx, "git", append(append(all, g.inert...), args...)...)
	for _, v := range os.Environ() {
		// What git is told by the environment is about another repository, or runs something.
		if !strings.HasPrefix(v, "GIT_") {
			c.Env = append(c.Env, v)
		}
	}
	c.Env = append(c.Env, "GIT_CONFIG_NOSYSTEM=1", "GIT_ATTR_NOSYSTEM=1", "GIT_NO_LAZY_FETCH=1", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	return c
}

// A tail keeps the end of what is written.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	const most = 4096
	t.b = append(t.b, p...)
	if len(t.b) > most {
		t.b = append([]byte(nil), t.b[len(t.b)-most:]...)
	}
	return len(p), nil
}

const maxOutput = 16 << 20 // of all but patches

// git runs git and gives what it prints.
func (g *repository) git(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	err := g.run(ctx, args, func(r io.Reader) error {
		_, err := io.Copy(&out, io.LimitReader(r, maxOutput+1))
		if err == nil && out.Len() > maxOutput {
			err = errors.New("git says too much")
		}
		return err
	})
	return out.String(), err
}

// patches runs git and reads what it prints as patches; nil if that is nothing.
func (g *repository) patches(ctx context.Context, args ...string) (patch.Series, error) {
	var s patch.Series
	err := g.run(ctx, args, func(r io.Reader) error {
		var first [1]byte
		if _, err := io.ReadFull(r, first[:]); err != nil {
			return nil // nothing, or git's error
		}
		var err error
		s, err = patch.Read(patch.Input{Name: g.source, R: io.MultiReader(bytes.NewReader(first[:]), r)})
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// run runs git and has read what it prints. Its error, if there is one, is git's.
func (g *repository) run(ctx context.Context, args []string, read func(io.Reader) error) error {
	return g.feed(ctx, args, nil, read)
}

// feed is run with something for git to read.
func (g *repository) feed(ctx context.Context, args []string, in io.Reader, read func(io.Reader) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c := g.command(ctx, args...)
	var said tail
	c.Stdin, c.Stderr = in, &said
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	readErr := read(out)
	if readErr != nil && !errors.Is(readErr, errEnded) {
		stop() // it may have more to say than anybody reads
		_ = c.Wait()
		return readErr
	}
	if err := c.Wait(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return g.explain(string(said.b), err)
	}
	return readErr
}

// errEnded is what read says when git ended too early: git may say why.
var errEnded = errors.New("git ends before its end")

// explain says what git's error means for the user.
func (g *repository) explain(said string, err error) error {
	said = strings.TrimSpace(said)
	switch {
	case strings.Contains(said, "dubious ownership"):
		return fmt.Errorf("the repository belongs to somebody else, so git does not read it: if you trust it, git config --global --add safe.directory %s", foreign.Line(g.dir))
	case strings.Contains(said, "not a git repository"):
		return errors.New("no git repository")
	case strings.Contains(said, "missing blob"), strings.Contains(said, "unable to read"), strings.Contains(said, "promisor"), strings.Contains(said, "lazy fetch"):
		return fmt.Errorf("the clone lacks objects that are needed, and nothing is fetched here: %s (git fetch --refetch --no-filter gets them)", lastLine(said))
	case said == "":
		return fmt.Errorf("git: %w", err)
	}
	return fmt.Errorf("git: %s", lastLine(said))
}

func lastLine(s string) string {
	return foreign.Line(strings.TrimPrefix(s[strings.LastIndexByte(s, '\n')+1:], "fatal: "))
}
