package qemu

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"irqlab/lab/machine"
)

// page is the unit in which memory is saved; guest memory is a multiple of it.
const page = 4096

// extentGap is how much zero memory is saved along rather than split an extent: reading it costs less than another system call.
const extentGap = 4 * page

// ram is a guest's memory: a file without a name for each node, gone with the last process that has it open.
type ram []*os.File

func newRAM(m machine.Machine) (_ ram, err error) {
	var r ram
	defer func() {
		if err != nil {
			_ = r.Close()
		}
	}()
	for n, size := range m.NodeMemory() {
		name := fmt.Sprintf("irqlab-ram%d", n)
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
		if err != nil {
			return nil, fmt.Errorf("memory of node %d: %w", n, err)
		}
		r = append(r, os.NewFile(uintptr(fd), name))
		if err := r[n].Truncate(size); err != nil {
			return nil, fmt.Errorf("memory of node %d: %d bytes: %w", n, size, err)
		}
	}
	return r, nil
}

// Close gives up the files; a QEMU that has them goes on.
func (r ram) Close() error {
	var errs []error
	for _, f := range r {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// extent is a run of saved memory.
type extent struct {
	Offset, Length int64 // in the node's memory, bytes
}

// pack appends to w what is not zero in the memory of f and returns where that belongs, in ascending order.
func pack(w io.Writer, f *os.File, size int64) ([]extent, error) {
	var extents []extent
	var zero [page]byte
	buf := make([]byte, 256*page)
	at := int64(0) // end of what has been looked at
	for at < size {
		start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // only a hole is left
			break
		}
		if err != nil {
			return nil, os.NewSyscallError("seek data", err)
		}
		end, err := unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return nil, os.NewSyscallError("seek hole", err)
		}
		for at = start; at < end; {
			chunk := buf[:min(int64(len(buf)), end-at)]
			if _, err := f.ReadAt(chunk, at); err != nil {
				return nil, err
			}
			for from := 0; from < len(chunk); {
				// A run of pages ends where extentGap zero bytes follow.
				for from < len(chunk) && bytes.Equal(chunk[from:from+page], zero[:]) {
					from += page
				}
				to, gap := from, 0
				for i := from; i < len(chunk) && gap < extentGap; i += page {
					if bytes.Equal(chunk[i:i+page], zero[:]) {
						gap += page
					} else {
						to, gap = i+page, 0
					}
				}
				if to == from {
					break
				}
				if _, err := w.Write(chunk[from:to]); err != nil {
					return nil, err
				}
				e := extent{at + int64(from), int64(to - from)}
				if n := len(extents); n > 0 && extents[n-1].Offset+extents[n-1].Length == e.Offset {
					extents[n-1].Length += e.Length
				} else {
					extents = append(extents, e)
				}
				from = to
			}
			at += int64(len(chunk))
		}
	}
	return extents, nil
}

// checkExtents returns the length of what the extents hold if they can be the memory of a node: whole pages in ascending order, within size.
func checkExtents(extents []extent, size int64) (total int64, err error) {
	end := int64(0)
	for _, e := range extents {
		if e.Offset < end || e.Length <= 0 || e.Offset%page != 0 || e.Length%page != 0 || e.Offset > size || e.Length > size-e.Offset {
			return 0, fmt.Errorf("memory of %d bytes: extent of %d at %d, after %d", size, e.Length, e.Offset, end)
		}
		end = e.Offset + e.Length
		total += e.Length
	}
	return total, nil
}

// unpack copies saved memory, which begins with the first extent's, into the empty file f.
//
// Writing from a mapping was the fastest of what was tried (docs/dev/performance.md); a page written whole is not cleared first.
func unpack(f *os.File, saved []byte, extents []extent) error {
	for _, e := range extents {
		if _, err := f.WriteAt(saved[:e.Length], e.Offset); err != nil {
			return err
		}
		saved = saved[e.Length:]
	}
	return nil
}
