package gitrange

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"irqlab/lab/foreign"
)

// Tree is all that one commit holds.
type Tree struct {
	Commit string // full name
	ID     string // its own full name: the same for all commits with the same files

	g *repository
}

// File is one of a commit's.
type File struct {
	Name       string // slash-separated
	Executable bool
	Link       bool // symbolic; what is read is where it leads

	blob string
}

// OpenTree finds a commit in a folder's repository.
func OpenTree(ctx context.Context, dir, rev string) (*Tree, error) {
	g := &repository{dir: home(dir), source: "git:" + dir + "@" + rev}
	t, err := g.openTree(ctx, rev)
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%s: %w", foreign.Line(g.source), err)
	}
	return t, err
}

func (g *repository) openTree(ctx context.Context, rev string) (*Tree, error) {
	if err := g.open(ctx); err != nil {
		return nil, err
	}
	id, err := g.commit(ctx, rev)
	if err != nil {
		return nil, err
	}
	tree, err := g.git(ctx, "rev-parse", "--verify", "--quiet", id+"^{tree}", "--")
	if err != nil {
		return nil, err
	}
	tree, _, _ = strings.Cut(tree, "\n")
	return &Tree{Commit: id, ID: tree, g: g}, nil
}

// Files lists the commit's files. Other repositories in it are left out.
func (t *Tree) Files(ctx context.Context) ([]File, error) {
	list, err := t.g.git(ctx, "ls-tree", "-r", "-z", "--full-tree", t.ID)
	if err != nil {
		return nil, err
	}
	var files []File
	for line := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		if line == "" {
			continue
		}
		about, name, ok := strings.Cut(line, "\t")
		words := strings.Fields(about)
		if !ok || len(words) != 3 {
			return nil, fmt.Errorf("git lists a file as %q", foreign.Line(line))
		}
		if words[1] != "blob" {
			continue
		}
		if !fs.ValidPath(name) || name == "." {
			return nil, fmt.Errorf("commit %s has a file %q", t.Commit, name)
		}
		files = append(files, File{Name: name, Executable: words[0] == "100755", Link: words[0] == "120000", blob: words[2]})
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("commit %s has no files", t.Commit)
	}
	return files, nil
}

// Walk calls visit for every file with what it holds, as it is in the repository: no attribute is looked at and no filter run. n counts from 0.
func (t *Tree) Walk(ctx context.Context, visit func(f File, n, of int, r io.Reader) error) error {
	files, err := t.Files(ctx)
	if err != nil {
		return err
	}
	return t.Read(ctx, files, visit)
}

// Read is Walk for some of the commit's files.
func (t *Tree) Read(ctx context.Context, files []File, visit func(f File, n, of int, r io.Reader) error) error {
	var names strings.Builder
	for _, f := range files {
		names.WriteString(f.blob + "\n")
	}
	return t.g.feed(ctx, []string{"cat-file", "--batch", "--buffer"}, strings.NewReader(names.String()), func(r io.Reader) error {
		from := bufio.NewReaderSize(r, 256<<10)
		for n, f := range files {
			size, err := blobHeader(from, f)
			if err != nil {
				return err
			}
			content := io.LimitReader(from, size)
			if err := visit(f, n, len(files), content); err != nil {
				return err
			}
			if _, err := io.Copy(io.Discard, content); err != nil {
				return err
			}
			if end, err := from.ReadByte(); err != nil || end != '\n' {
				return fmt.Errorf("%s: %w", f.Name, errEnded)
			}
		}
		return nil
	})
}

// blobHeader reads the line before a file's content: "NAME blob SIZE".
func blobHeader(r *bufio.Reader, f File) (size int64, err error) {
	line, err := r.ReadString('\n')
	if errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("%s: %w", f.Name, errEnded)
	}
	if err != nil {
		return 0, err
	}
	words := strings.Fields(line)
	if len(words) == 2 && words[1] == "missing" {
		return 0, fmt.Errorf("the repository lacks %s: git fsck tells what else", f.Name)
	}
	if len(words) != 3 || words[0] != f.blob || words[1] != "blob" {
		return 0, fmt.Errorf("%s: git says %q", f.Name, foreign.Line(line))
	}
	return strconv.ParseInt(words[2], 10, 64)
}
