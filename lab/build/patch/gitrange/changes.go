package gitrange

import (
	"context"
	"fmt"
	"io"
	"strings"

	"irqlab/lab/foreign"
)

// maxChange is how much of a tree's files one commit may have otherwise than another: a release changes a tenth of that.
const maxChange = 512 << 20

// Changes are the files that the commit has otherwise than another one: their content, nil for one that it lacks. Those of which outside is true are left out. key is the same for
// commits that have the same changes. A *FilesError tells of a change that content cannot express.
func (t *Tree) Changes(ctx context.Context, from *Tree, outside func(path string) bool) (changed map[string][]byte, key string, err error) {
	before, err := from.Files(ctx)
	if err != nil {
		return nil, "", err
	}
	after, err := t.Files(ctx)
	if err != nil {
		return nil, "", err
	}
	was := map[string]File{}
	for _, f := range before {
		was[f.Name] = f
	}
	changed = map[string][]byte{}
	var read []File
	var keys strings.Builder
	for _, f := range after {
		old, there := was[f.Name]
		delete(was, f.Name)
		if outside(f.Name) || there && old == f {
			continue
		}
		if f.Link || there && old.Link {
			return nil, "", &FilesError{foreign.Line(f.Name) + " is a symbolic link, and another one than at " + from.Commit[:12]}
		}
		read = append(read, f)
		fmt.Fprintf(&keys, "%s %s\n", f.blob, f.Name)
	}
	for _, f := range before { // in order, for the key
		if _, gone := was[f.Name]; gone && !outside(f.Name) {
			changed[f.Name] = nil
			fmt.Fprintf(&keys, "- %s\n", f.Name)
		}
	}
	total := int64(0)
	err = t.Read(ctx, read, func(f File, _, _ int, r io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(r, maxChange-total+1))
		if total += int64(len(data)); err == nil && total > maxChange {
			err = &FilesError{"it changes too much: " + t.Commit[:12]}
		}
		if data == nil {
			data = []byte{}
		}
		changed[f.Name] = data
		return err
	})
	return changed, keys.String(), err
}
