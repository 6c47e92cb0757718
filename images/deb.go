package images

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"pault.ag/go/debian/deb"
)

// debFile is an open .deb.
type debFile struct {
	Path    string
	Package string
	Version string
	deb     *deb.Deb
	close   func() error
}

// badDebError says that a file is no .deb, or no whole one.
type badDebError struct {
	path, problem string
	err           error
}

func (e *badDebError) Error() string { return fmt.Sprintf("%s: %s: %v", e.path, e.problem, e.err) }
func (e *badDebError) Unwrap() error { return e.err }

var errDamagedDeb = errors.New("damaged or truncated")

// openDeb opens a .deb and reads its control data.
func openDeb(file string) (*debFile, error) {
	if err := checkAr(file); err != nil {
		return nil, &badDebError{file, "not a usable .deb", err}
	}
	d, closer, err := deb.LoadFile(file)
	if err != nil {
		return nil, &badDebError{file, "not a usable .deb", err}
	}
	return &debFile{Path: file, Package: d.Control.Package, Version: d.Control.Version.String(), deb: d, close: closer}, nil
}

func (d *debFile) Close() { _ = d.close() }

// checkAr walks the members of the archive once: the library trusts their sizes.
func checkAr(file string) error {
	f, err := openRegular(file)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	return walkAr(f, st.Size())
}

func walkAr(r io.ReaderAt, size int64) error {
	ar, err := deb.LoadAr(r)
	if err != nil {
		return err
	}
	for at := int64(8); at < size; {
		m, err := ar.Next()
		if errors.Is(err, io.EOF) {
			return nil // padding behind the last member
		}
		if err != nil {
			return err
		}
		if m.Size < 0 || m.Size > size-at-60 {
			return fmt.Errorf("truncated: member %q has %d bytes, %d are left", m.Name, m.Size, size-at-60)
		}
		at += 60 + m.Size + m.Size%2
	}
	return nil
}

// unpack writes what keep wants into root: keep gets a clean slash-separated path and returns where it goes, "" for nowhere.
// Links are kept as they are, but absolute ones lead to where their target goes; os.Root lets nothing out of the directory.
func (d *debFile) unpack(ctx context.Context, root *os.Root, keep func(name string) string) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := d.deb.Data.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return &badDebError{d.Path, errDamagedDeb.Error(), err}
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		to := keep(name)
		if to == "" || h.Typeflag == tar.TypeDir {
			continue
		}
		if err := writeMember(root, to, h, d.deb.Data, keep); errors.Is(err, errDamagedDeb) {
			return &badDebError{d.Path, name, err}
		} else if err != nil {
			return fmt.Errorf("%s: %s: %w", d.Path, name, err)
		}
	}
}

func writeMember(root *os.Root, to string, h *tar.Header, r io.Reader, keep func(string) string) error {
	if dir := path.Dir(to); dir != "." {
		if err := root.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := root.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		mode := fs.FileMode(0o600)
		if h.Mode&0o111 != 0 {
			mode = 0o700
		}
		f, err := root.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		if _, err := io.Copy(f, r); err != nil {
			f.Close()
			var ours *fs.PathError // of the file written, as when the disk is full
			if errors.As(err, &ours) {
				return err
			}
			return fmt.Errorf("%w: %w", errDamagedDeb, err)
		}
		return f.Close()
	case tar.TypeSymlink:
		target := h.Linkname
		if path.IsAbs(target) { // meant for a package that is installed: here it leads to where that file goes
			at := keep(strings.TrimPrefix(path.Clean(target), "/"))
			if at == "" {
				return nil
			}
			target = strings.Repeat("../", strings.Count(to, "/")) + at
		}
		return root.Symlink(target, to)
	case tar.TypeLink:
		from := keep(strings.TrimPrefix(path.Clean("/"+h.Linkname), "/"))
		if from == "" {
			return nil
		}
		return root.Link(from, to)
	}
	return nil // devices and the like: nothing here has them
}
