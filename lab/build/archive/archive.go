// Package archive reads one directory of a tar archive that xz compressed in blocks, as kernel sources are, without decompressing the rest: it is found by looking at what
// blocks start with.
package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"path"
	"sort"
	"strings"

	"github.com/xi2/xz"
)

// ErrFormat says that a file is no xz file, or one of a kind that nobody makes of kernel sources.
var ErrFormat = errors.New("not an xz file that can be read in parts")

const (
	headerSize = 12
	footerSize = 12
	maxBlocks  = 1 << 16
	maxBlock   = 1 << 30 // bytes, either way

	dictMax = 192 << 20 // of the decoder, in bytes; xz -9 has 64 MiB
)

// block is a part of the stream that can be decoded by itself.
type block struct {
	at   int64 // in the file
	size int64 // in the file, padding included
	from int64 // in the decompressed data
	len  int64 // decompressed
}

// Archive is an opened .tar.xz.
type Archive struct {
	r      io.ReaderAt
	header []byte
	blocks []block
}

// Open reads the index of blocks, which stands at the end of the file.
func Open(r io.ReaderAt, size int64) (*Archive, error) {
	a := &Archive{r: r, header: make([]byte, headerSize)}
	if size < headerSize+footerSize || size%4 != 0 {
		return nil, fmt.Errorf("%w: %d bytes", ErrFormat, size)
	}
	if err := readAt(r, a.header, 0); err != nil {
		return nil, err
	}
	if !bytes.Equal(a.header[:6], []byte("\xfd7zXZ\x00")) || crc32.ChecksumIEEE(a.header[6:8]) != binary.LittleEndian.Uint32(a.header[8:]) {
		return nil, fmt.Errorf("%w: no header", ErrFormat)
	}
	footer := make([]byte, footerSize)
	if err := readAt(r, footer, size-footerSize); err != nil {
		return nil, err
	}
	if string(footer[10:]) != "YZ" || crc32.ChecksumIEEE(footer[4:10]) != binary.LittleEndian.Uint32(footer) || !bytes.Equal(footer[8:10], a.header[6:8]) {
		return nil, fmt.Errorf("%w: no footer", ErrFormat)
	}
	indexSize := (int64(binary.LittleEndian.Uint32(footer[4:])) + 1) * 4
	start := size - footerSize - indexSize
	if start < headerSize || indexSize > maxBlocks*20 {
		return nil, fmt.Errorf("%w: an index of %d bytes", ErrFormat, indexSize)
	}
	index := make([]byte, indexSize)
	if err := readAt(r, index, start); err != nil {
		return nil, err
	}
	var err error
	if a.blocks, err = parseIndex(index, start); err != nil {
		return nil, err
	}
	return a, nil
}

func readAt(r io.ReaderAt, b []byte, at int64) error {
	if n, err := r.ReadAt(b, at); n < len(b) {
		return fmt.Errorf("reading %d bytes at %d: %w", len(b), at, err)
	}
	return nil
}

// parseIndex reads the index, whose blocks must fill the file from the header up to the index itself at end.
func parseIndex(index []byte, end int64) ([]block, error) {
	bad := func(what string) ([]block, error) { return nil, fmt.Errorf("%w: index: %s", ErrFormat, what) }
	if len(index) < 8 || index[0] != 0 || crc32.ChecksumIEEE(index[:len(index)-4]) != binary.LittleEndian.Uint32(index[len(index)-4:]) {
		return bad("damaged")
	}
	rest := index[1 : len(index)-4]
	number := func() (int64, bool) {
		v, n := binary.Uvarint(rest)
		if n <= 0 || v > math.MaxInt64 {
			return 0, false
		}
		rest = rest[n:]
		return int64(v), true
	}
	count, ok := number()
	if !ok || count == 0 || count > maxBlocks {
		return bad("number of blocks")
	}
	blocks := make([]block, 0, count)
	at, from := int64(headerSize), int64(0)
	for range count {
		size, ok1 := number()
		plain, ok2 := number()
		if !ok1 || !ok2 || size <= 0 || size > maxBlock || plain <= 0 || plain > maxBlock {
			return bad("size of a block")
		}
		b := block{at: at, size: (size + 3) &^ 3, from: from, len: plain}
		blocks = append(blocks, b)
		at, from = at+b.size, from+b.len
	}
	if at != end {
		return bad("it is not about this file") // or there are several streams in it, one after another
	}
	return blocks, nil
}

// decode returns what reads a block decompressed. The decoder checks the block's own checksum when its end has been read.
func (a *Archive) decode(b block) (io.Reader, error) {
	stream := io.MultiReader(bytes.NewReader(a.header), io.NewSectionReader(a.r, b.at, b.size))
	r, err := xz.NewReader(stream, dictMax)
	if err != nil {
		return nil, fmt.Errorf("block at %d: %w", b.at, err)
	}
	return io.LimitReader(r, b.len), nil
}

// from reads the archive decompressed, from the start of a block on.
func (a *Archive) from(ctx context.Context, first int) io.Reader {
	return &reader{ctx: ctx, a: a, next: first}
}

// reader decodes one block after another.
type reader struct {
	ctx  context.Context
	a    *Archive
	next int
	r    io.Reader
	left int64
}

func (r *reader) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	if r.left == 0 {
		if r.next == len(r.a.blocks) {
			return 0, io.EOF
		}
		b := r.a.blocks[r.next]
		var err error
		if r.r, err = r.a.decode(b); err != nil {
			return 0, err
		}
		r.next, r.left = r.next+1, b.len
	}
	n, err := r.r.Read(p)
	r.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = nil
		if r.left > 0 {
			err = fmt.Errorf("block before %d: %w", r.next, io.ErrUnexpectedEOF)
		}
	}
	return n, err
}

// Walk calls visit for every file, link and directory of a tar archive, in its order, with its path below the archive's one top directory.
func Walk(r io.Reader, visit func(name string, h *tar.Header, r io.Reader) error) error {
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if name := inTree(h); name != "" {
			if err := visit(name, h, t); err != nil {
				return err
			}
		}
	}
}

var errStop = errors.New("enough")

// inTree is the path of an entry below the archive's top directory; "" for that one and for what belongs to the archive itself.
func inTree(h *tar.Header) string {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
	default:
		return ""
	}
	_, name, _ := strings.Cut(strings.TrimPrefix(path.Clean("/"+h.Name), "/"), "/")
	return name
}

// Directory is Walk for what lies in one directory. It decodes only the blocks that may hold it, if the archive is sorted by name, as all of a kernel's are; else all.
func (a *Archive) Directory(ctx context.Context, dir string, visit func(name string, h *tar.Header, r io.Reader) error) error {
	found := 0
	in := func(name string, h *tar.Header, r io.Reader) error {
		if name != dir && !strings.HasPrefix(name, dir+"/") {
			return nil
		}
		found++
		return visit(name, h, r)
	}
	if err := a.directory(ctx, dir, in); err != nil || found > 0 {
		return err
	}
	return Walk(a.from(ctx, 0), in)
}

func (a *Archive) directory(ctx context.Context, dir string, visit func(name string, h *tar.Header, r io.Reader) error) error {
	var probeErr error
	behind := sort.Search(len(a.blocks), func(i int) bool {
		e, err := a.firstEntry(ctx, i)
		if err != nil {
			probeErr = err
		}
		return err != nil || e.name == "" || compare(e.name, dir) >= 0
	})
	if probeErr != nil {
		return probeErr
	}
	var start entry
	if behind > 0 { // the last block that starts before the directory
		var err error
		if start, err = a.firstEntry(ctx, behind-1); err != nil {
			return err
		}
	}
	r := bufio.NewReader(a.from(ctx, start.block))
	if _, err := io.CopyN(io.Discard, r, start.at); err != nil {
		return err
	}
	err := Walk(r, func(name string, h *tar.Header, r io.Reader) error {
		if compare(name, dir) > 0 {
			return errStop
		}
		return visit(name, h, r)
	})
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// compare tells where a path stands to a directory in a sorted archive: -1 surely before it, 1 surely behind it, 0 in it or unsure. Some sort whole paths, others the names of
// each directory: they disagree about names of which one begins with the other.
func compare(name, dir string) int {
	n, d := strings.Split(name, "/"), strings.Split(dir, "/")
	for i := range min(len(n), len(d)) {
		switch {
		case n[i] == d[i]:
		case strings.HasPrefix(n[i], d[i]) || strings.HasPrefix(d[i], n[i]):
			return 0
		case n[i] < d[i]:
			return -1
		default:
			return 1
		}
	}
	if len(n) < len(d) {
		return -1 // a directory that it lies in
	}
	return 0
}

const tarBlock = 512

// entry is where a file starts.
type entry struct {
	name  string // "": there is none
	block int
	at    int64 // in the block
}

// firstEntry finds the first entry that starts in a block or, if none does, behind it.
func (a *Archive) firstEntry(ctx context.Context, first int) (entry, error) {
	for i := first; i < len(a.blocks); i++ {
		b := a.blocks[i]
		at := (tarBlock - b.from%tarBlock) % tarBlock
		r := bufio.NewReaderSize(a.from(ctx, i), 64<<10)
		if _, err := io.CopyN(io.Discard, r, min(at, b.len)); err != nil {
			return entry{}, err
		}
		for ; at < b.len; at += tarBlock {
			head, err := r.Peek(tarBlock)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return entry{}, err
			}
			if isHeader(head) {
				h, err := tar.NewReader(r).Next() // with the extended header that may come first
				if err != nil {
					return entry{}, err
				}
				if name := inTree(h); name != "" {
					return entry{name, i, at}, nil
				}
				break // the top directory itself: the next block has others
			}
			if _, err := r.Discard(tarBlock); err != nil {
				return entry{}, err
			}
		}
	}
	return entry{}, nil
}

// isHeader tells whether a record is the header of an entry: it has the magic and the sum that all headers have.
func isHeader(b []byte) bool {
	if string(b[257:262]) != "ustar" {
		return false
	}
	var want, sum int64
	for _, c := range b[148:156] {
		if c >= '0' && c <= '7' {
			want = want*8 + int64(c-'0')
		} else if want > 0 {
			break
		}
	}
	for i, c := range b[:tarBlock] {
		if i >= 148 && i < 156 {
			c = ' '
		}
		sum += int64(c)
	}
	return sum == want
}
