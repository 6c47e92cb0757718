package runner

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
	"mvdan.cc/sh/v3/syntax"

	"irqlab/scenarios"
)

// maxFiles bounds what a case copies into its guest, whose file system is its memory.
const maxFiles = 64 << 20

// hostFile is one file on its way.
type hostFile struct {
	host, guest string
	size        int64
	mode        fs.FileMode
}

// hostFiles lists what a case copies, folders file by file. Links are followed if they stay within what is copied.
func hostFiles(c *scenarios.Case) (list []hostFile, err error) {
	total := int64(0)
	for _, f := range c.Files {
		root := c.HostFile(f.From)
		real, err := filepath.EvalSymlinks(root)
		if err != nil {
			return nil, err
		}
		err = filepath.WalkDir(real, func(name string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			below, err := filepath.Rel(real, name)
			if err != nil {
				return err
			}
			target, err := filepath.EvalSymlinks(name)
			if err != nil {
				return err
			}
			if inside, err := filepath.Rel(real, target); err != nil || inside == ".." || strings.HasPrefix(inside, "../") {
				return fmt.Errorf("%s is a link that leaves %s", filepath.Join(root, below), root)
			}
			st, err := os.Stat(target)
			if err != nil {
				return err
			}
			if !st.Mode().IsRegular() {
				return fmt.Errorf("%s: not a file", filepath.Join(root, below))
			}
			if total += st.Size(); total > maxFiles {
				return fmt.Errorf("files: more than %d MiB; a guest's file system is its memory", maxFiles>>20)
			}
			list = append(list, hostFile{target, path.Join(f.Target(), filepath.ToSlash(below)), st.Size(), st.Mode().Perm()})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// copyFiles puts the case's files into the guest.
func (s *stepper) copyFiles(ctx context.Context) error {
	if len(s.c.Files) == 0 {
		return nil
	}
	files, err := hostFiles(s.c)
	if err != nil {
		return &scriptError{err}
	}
	s.stage("copying files")
	client, err := s.ssh(ctx)
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := os.ReadFile(f.host)
		if err != nil {
			return &scriptError{err}
		}
		if err := put(ctx, client, f.guest, data, f.mode); err != nil {
			return fmt.Errorf("copying %s to the guest: %w", f.host, err)
		}
	}
	return nil
}

// put writes a file in the guest.
func put(ctx context.Context, client *ssh.Client, name string, data []byte, mode fs.FileMode) error {
	file, err := syntax.Quote(name, syntax.LangPOSIX)
	if err != nil {
		return err
	}
	dir, err := syntax.Quote(path.Dir(name), syntax.LangPOSIX)
	if err != nil {
		return err
	}
	got, err := execute(ctx, client, fmt.Sprintf("mkdir -p %s && cat >%s && chmod %o %s", dir, file, mode, file), nil, data, scenarios.ProgramDefault)
	if err == nil && (got.Status != 0 || got.Late) {
		err = fmt.Errorf("status %d: %s", got.Status, strings.TrimSpace(got.Output))
	}
	return err
}
