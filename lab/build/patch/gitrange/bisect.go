package gitrange

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"irqlab/lab/foreign"
)

// Term is what a commit is found to be.
type Term string

// The terms, in git's words.
const (
	Good Term = "good"
	Bad  Term = "bad"
	Skip Term = "skip" // it cannot be told
)

// Commit is one of the tree's.
type Commit struct {
	Name    string // in full
	Subject string
}

// Bisection is git's own bisection of somebody's tree. It goes on in a bare repository of its own that borrows the tree's objects: no file of the tree is written, a bisection that its
// owner has under way there stays as it is, and neither its settings nor its hooks are looked at.
type Bisection struct {
	Good, Bad Commit // the ends
	Commits   int    // of the range
	Touching  int    // of these, that change what lies in the paths
	Elsewhere int    // that change something else which could matter

	g        *repository // the one of its own
	lock     *flock.Flock
	paths    []string // none: all but nothing
	nothing  []string
	touching []string          // commits of the range that change what lies in the paths
	diverged bool              // the good end is not an ancestor of the bad one: git asks for where they part first
	bases    []string          // where they part
	blobs    map[string]string // by name, those read so far
	judged   []string
	left     string
}

// NoRangeError tells why there is nothing to bisect between two commits.
type NoRangeError struct {
	Text      string
	Untouched bool // there are commits, and none changes what is looked at
}

func (e *NoRangeError) Error() string { return e.Text }

// StartBisection prepares to bisect what the commits behind good and up to bad make of the paths, which are folders, or without paths of the whole tree. nothing are folders and files
// whose changes matter to nobody. Its errors are about the tree and the two names.
func StartBisection(ctx context.Context, dir, good, bad string, paths, nothing []string) (*Bisection, error) {
	dir = home(dir)
	b, err := startBisection(ctx, &repository{dir: dir, source: dir}, good, bad, paths, nothing)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%s: %w", foreign.Line(dir), err)
	}
	return b, err
}

func startBisection(ctx context.Context, user *repository, good, bad string, paths, nothing []string) (_ *Bisection, err error) {
	if err := user.open(ctx); err != nil {
		return nil, err
	}
	b := &Bisection{paths: paths, nothing: nothing, blobs: map[string]string{}}
	if b.Good.Name, err = user.commit(ctx, good); err != nil {
		return nil, err
	}
	if b.Bad.Name, err = user.commit(ctx, bad); err != nil {
		return nil, err
	}
	cut, err := b.borrow(ctx, user)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = b.Close()
		}
	}()
	if err = b.measure(ctx, good, bad, cut); err != nil {
		return nil, err
	}
	for _, c := range []*Commit{&b.Good, &b.Bad} {
		if *c, err = b.Commit(ctx, c.Name); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// borrow makes the repository, and returns the commits whose parents a shallow clone lacks.
func (b *Bisection) borrow(ctx context.Context, user *repository) (cut []string, err error) {
	facts, err := user.git(ctx, "rev-parse", "--show-object-format", "--path-format=absolute", "--git-path", "objects", "--git-path", "shallow")
	if err != nil {
		return nil, err
	}
	words := strings.Split(strings.TrimSuffix(facts, "\n"), "\n")
	if len(words) != 3 {
		return nil, errors.New("its folder has a line break in its name, which git cannot borrow objects from")
	}
	sweep()
	dir, err := os.MkdirTemp("", ownPrefix)
	if err != nil {
		return nil, err
	}
	b.g, b.lock = &repository{dir: dir, source: user.source}, flock.New(filepath.Join(dir, ownLock))
	defer func() {
		if err != nil {
			_ = b.Close()
		}
	}()
	if _, err := b.lock.TryLock(); err != nil {
		return nil, err
	}
	if _, err := b.g.git(ctx, "init", "--quiet", "--bare", "--template=", "--initial-branch=bad", "--object-format="+words[0], "."); err != nil {
		return nil, err
	}
	b.g.own = true
	if err := os.MkdirAll(filepath.Join(dir, "objects", "info"), 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "objects", "info", "alternates"), []byte(words[1]+"\n"), 0o600); err != nil {
		return nil, err
	}
	if user.shallow {
		data, err := os.ReadFile(words[2])
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, "shallow"), data, 0o600); err != nil {
			return nil, err
		}
		b.g.shallow = true
		cut = strings.Fields(string(data))
	}
	_, err = b.g.git(ctx, "update-ref", "refs/heads/bad", b.Bad.Name) // HEAD, which bisect asks for
	return cut, err
}

// measure counts the range's commits, and refuses one that is not there, or in which nothing is to be found.
func (b *Bisection) measure(ctx context.Context, good, bad string, cut []string) error {
	good, bad = foreign.Line(good), foreign.Line(bad)
	const deepen = "the clone is shallow: git fetch --unshallow, or --shallow-exclude a commit before it"
	span := b.Good.Name + ".." + b.Bad.Name
	bases, err := b.g.git(ctx, "merge-base", "--all", b.Good.Name, b.Bad.Name)
	b.bases = strings.Fields(bases)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	b.diverged = !slices.Equal(b.bases, []string{b.Good.Name})
	switch {
	case b.diverged && b.g.shallow:
		return &NoRangeError{Text: fmt.Sprintf("%s is no ancestor of %s as far as this clone goes (%s)", good, bad, deepen)}
	case err != nil || len(b.bases) == 0:
		return &NoRangeError{Text: fmt.Sprintf("%s and %s have no commit in common", good, bad)}
	}
	if b.Commits, err = b.count(ctx, span, "--"); err != nil {
		return err
	}
	if b.Commits == 0 {
		text := fmt.Sprintf("there is no commit behind %s up to %s", good, bad)
		if b.Good.Name != b.Bad.Name {
			text += ": the good one is the later of the two. What was mended in between is not looked for"
		}
		return &NoRangeError{Text: text}
	}
	if len(cut) > 0 {
		roots, err := b.g.git(ctx, "rev-list", "--max-parents=0", span, "--")
		if err != nil {
			return err
		}
		if slices.ContainsFunc(strings.Fields(roots), func(c string) bool { return slices.Contains(cut, c) }) {
			return &NoRangeError{Text: fmt.Sprintf("the commits between %s and %s are not all there (%s)", good, bad, deepen)}
		}
	}
	touching, err := b.g.git(ctx, append([]string{"rev-list", span, "--"}, b.pathspec()...)...)
	if err != nil {
		return err
	}
	b.touching = strings.Fields(touching)
	if b.Touching = len(b.touching); b.Touching == 0 {
		what := strings.Join(b.paths, " or ")
		if len(b.paths) == 0 {
			what = "more than " + strings.Join(b.nothing, ", ")
		}
		return &NoRangeError{fmt.Sprintf("no commit behind %s up to %s changes %s", good, bad, what), true}
	}
	if len(b.paths) > 0 {
		b.Elsewhere, err = b.count(ctx, append([]string{"--full-history", "--no-merges", span, "--"}, allBut(slices.Concat(b.paths, b.nothing))...)...)
	}
	return err
}

// pathspec is what git is to look at.
func (b *Bisection) pathspec() []string {
	if len(b.paths) > 0 {
		return b.paths
	}
	return allBut(b.nothing)
}

// allBut is the whole tree without some folders and files.
func allBut(paths []string) []string {
	all := []string{":(top)"}
	for _, path := range paths {
		all = append(all, ":(top,exclude,literal)"+path)
	}
	return all
}

func (b *Bisection) count(ctx context.Context, args ...string) (int, error) {
	out, err := b.g.git(ctx, append([]string{"rev-list", "--count"}, args...)...)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(out))
}

// Close removes the repository.
func (b *Bisection) Close() error { return errors.Join(os.RemoveAll(b.g.dir), b.lock.Close()) }

const (
	ownPrefix = "irqlab-bisect-"
	ownLock   = "irqlab.lock" // held as long as the repository is in use
	abandoned = time.Minute   // until one without its lock is taken for left behind, not just made
)

// sweep removes the repositories of bisections that were killed.
func sweep() {
	found, _ := filepath.Glob(filepath.Join(os.TempDir(), ownPrefix+"*"))
	for _, dir := range found {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < abandoned {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Getuid() {
			continue
		}
		lock := flock.New(filepath.Join(dir, ownLock))
		if ok, err := lock.TryLock(); err == nil && ok {
			_ = os.RemoveAll(dir)
			_ = lock.Close()
		}
	}
}

// Commit is the one of that name.
func (b *Bisection) Commit(ctx context.Context, name string) (Commit, error) {
	subject, err := b.g.git(ctx, "log", "-1", "--no-notes", "--no-color", "--no-decorate", "--encoding=UTF-8", "--format=%s", name, "--")
	return Commit{name, strings.TrimSuffix(subject, "\n")}, err
}

// Begin tells git of the ends.
func (b *Bisection) Begin(ctx context.Context) error {
	if _, err := b.g.git(ctx, append([]string{"bisect", "start", "--"}, b.pathspec()...)...); err != nil {
		return err
	}
	if err := b.Judge(ctx, b.Bad.Name, Bad); err != nil {
		return err
	}
	return b.Judge(ctx, b.Good.Name, Good)
}

// Next is the commit to be judged, of git's choice; false if git asks for none any more.
func (b *Bisection) Next(ctx context.Context) (Commit, bool, error) {
	if first, suspects := b.Found(); first != "" || len(suspects) > 0 {
		return Commit{}, false, nil
	}
	name, err := b.g.commit(ctx, "BISECT_HEAD")
	if err == nil && slices.Contains(b.judged, name) {
		err = fmt.Errorf("git asks for %s again", name)
	}
	if err != nil {
		return Commit{}, false, err
	}
	c, err := b.Commit(ctx, name)
	return c, err == nil, err
}

// Left is git's estimate of what is to be judged beside the next commit: "3 revisions left to test after this (roughly 2 steps)".
func (b *Bisection) Left() string { return b.left }

var leftPattern = regexp.MustCompile(`(?m)^Bisecting: (.*)$`)

// Judge tells git what a commit is.
func (b *Bisection) Judge(ctx context.Context, commit string, t Term) error {
	if b.diverged && t == Bad && slices.Contains(b.bases, commit) {
		return &NoRangeError{Text: fmt.Sprintf("%.12s, where the two ends part, is bad: what is bad there was mended on the way to the good one, so that none of the range is the first", commit)}
	}
	out, err := b.g.git(ctx, "bisect", string(t), commit)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	b.judged, b.left = append(b.judged, commit), ""
	if m := leftPattern.FindStringSubmatch(out); m != nil {
		b.left = m[1]
	}
	if first, suspects := b.Found(); first != "" || len(suspects) > 0 {
		return nil // git's status is not 0 where only skipped ones are left
	}
	return err
}

var foundPattern = regexp.MustCompile(`(?m)^# (possible )?first bad commit: \[([0-9a-f]+)\]`)

// Found is the first bad commit, or those that it may be since what would tell was skipped.
func (b *Bisection) Found() (first string, suspects []string) {
	for _, m := range foundPattern.FindAllStringSubmatch(b.Log(), -1) {
		if m[1] == "" {
			return m[2], nil
		}
		if slices.Contains(b.touching, m[2]) { // git names all that lie between
			suspects = append(suspects, m[2])
		}
	}
	return "", suspects
}

// Log is what git bisect replay does again in the tree.
func (b *Bisection) Log() string {
	data, _ := os.ReadFile(filepath.Join(b.g.dir, "BISECT_LOG")) // before Begin there is none
	return string(data)
}

// FilesError tells that the files of a commit are not such as can be built.
type FilesError struct{ Text string }

func (e *FilesError) Error() string { return e.Text }

// Bounds of what a commit has in the paths: a driver's folder is a hundredth of that.
const (
	maxFiles = 2000
	maxBytes = 64 << 20
)

// Files are those that a commit has in the paths. key is the same for commits in which they are the same.
func (b *Bisection) Files(ctx context.Context, commit string) (files map[string][]byte, key string, err error) {
	list, err := b.g.git(ctx, append([]string{"ls-tree", "-r", "-z", "--full-tree", commit, "--"}, b.paths...)...)
	if err != nil {
		return nil, "", err
	}
	files = map[string][]byte{}
	total := 0
	for entry := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		about, path, ok := strings.Cut(entry, "\t")
		if !ok {
			continue
		}
		words := strings.Fields(about) // mode, type, name
		if len(words) != 3 || words[1] != "blob" || !strings.HasPrefix(words[0], "100") {
			return nil, "", &FilesError{foreign.Line(path) + " is no plain file"}
		}
		text, ok := b.blobs[words[2]]
		if !ok {
			if text, err = b.blob(ctx, words[2]); err != nil {
				return nil, "", err
			}
			b.blobs[words[2]] = text
		}
		if total += len(text); total > maxBytes || len(files) == maxFiles {
			return nil, "", &FilesError{"it has too much in " + strings.Join(b.paths, " and ")}
		}
		files[path] = []byte(text)
	}
	return files, list, nil
}

// blob reads a file's content.
func (b *Bisection) blob(ctx context.Context, name string) (string, error) {
	text, err := b.g.git(ctx, "cat-file", "blob", name)
	if err == nil || ctx.Err() != nil {
		return text, err
	}
	if _, missing := b.g.git(ctx, "cat-file", "-e", name); missing != nil && ctx.Err() == nil {
		paths := strings.Join(b.paths, " ")
		return "", fmt.Errorf("%s lacks objects that are needed, as a partial clone does, and nothing is fetched here; there, these do: (git grep -c . %.12[2]s -- %[3]s; git log --patch %.12[2]s..%.12[4]s -- %[3]s) >/dev/null",
			foreign.Line(b.g.source), b.Good.Name, paths, b.Bad.Name)
	}
	return "", err
}
