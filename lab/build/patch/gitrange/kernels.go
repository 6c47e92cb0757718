package gitrange

import (
	"errors"
	"fmt"
	"strings"

	"irqlab/lab/foreign"
)

// Place is the folder and the commit of a spec DIR@REV.
func Place(spec string) (dir, rev string, err error) {
	dir, rev = split(spec)
	switch {
	case !isDir(dir):
		err = fmt.Errorf("%s: no such folder", foreign.Line(dir))
	case rev == "":
		err = errors.New("it names no commit, as git:DIR@REV does")
	case strings.Contains(rev, ".."):
		err = errors.New("it names a range, and one commit is wanted")
	}
	return dir, rev, err
}

// Ends are the specs DIR@REV of both ends of a range DIR@A..B, of which DIR@A.. has HEAD for the second; of a spec without a range, itself.
func Ends(spec string) ([]string, error) {
	_, rev := split(spec)
	a, b, isRange := strings.Cut(rev, "..")
	if !isRange {
		_, _, err := Place(spec)
		return []string{spec}, err
	}
	if a == "" || strings.HasPrefix(b, ".") {
		return nil, errors.New("a range has two ends, as in git:DIR@A..B")
	}
	if b == "" {
		b = "HEAD"
	}
	dir := strings.TrimSuffix(spec, rev)
	return []string{dir + a, dir + b}, nil
}
