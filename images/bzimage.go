package images

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/xi2/xz"
)

// Image kinds of a Kernel.
const (
	KindVmlinux = "vmlinux"
	KindBzImage = "bzImage"
)

// setupHeader is what irqlab reads of the x86 boot protocol's setup header.
type setupHeader struct {
	Version       uint16 // of the protocol, 0x020f = 2.15
	Release       string // uname -r
	PayloadOffset int64  // of the compressed kernel, in the file
	PayloadLength int64  // 0 when the protocol is older than 2.08
}

// Offsets in the file, from the kernel's Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header".
const (
	setupSectsAt    = 0x1f1
	bootFlagAt      = 0x1fe
	headerMagicAt   = 0x202 // "HdrS"
	protocolAt      = 0x206
	kernelVersionAt = 0x20e // pointer, less 0x200
	payloadOffsetAt = 0x248 // from the start of the protected-mode code
	payloadLengthAt = 0x24c
	headerEnd       = 0x268
)

// parseSetupHeader reads the setup header of a bzImage of the given size.
func parseSetupHeader(r io.ReaderAt, size int64) (setupHeader, error) {
	var h setupHeader
	b := make([]byte, headerEnd)
	if n, err := r.ReadAt(b, 0); n < len(b) {
		if err != nil && !errors.Is(err, io.EOF) {
			return h, err
		}
		return h, errors.New("too short for a boot header")
	}
	le := binary.LittleEndian
	if string(b[headerMagicAt:headerMagicAt+4]) != "HdrS" || le.Uint16(b[bootFlagAt:]) != 0xaa55 {
		return h, errors.New("no x86 boot header")
	}
	h.Version = le.Uint16(b[protocolAt:])
	if at := int64(le.Uint16(b[kernelVersionAt:])); at != 0 {
		text := make([]byte, 256)
		n, _ := r.ReadAt(text, at+0x200) // short at the end of a tiny file; what is there counts
		if line, _, ok := bytes.Cut(text[:n], []byte{0}); ok {
			if f := strings.Fields(string(line)); len(f) > 0 && plainRelease(f[0]) {
				h.Release = f[0]
			}
		}
	}
	if h.Version < 0x0208 {
		return h, nil
	}
	sects := int64(b[setupSectsAt])
	if sects == 0 {
		sects = 4
	}
	h.PayloadOffset = (sects+1)*512 + int64(le.Uint32(b[payloadOffsetAt:]))
	h.PayloadLength = int64(le.Uint32(b[payloadLengthAt:]))
	if h.PayloadOffset+h.PayloadLength > size {
		return h, fmt.Errorf("truncated: the compressed kernel ends at byte %d, the file at %d", h.PayloadOffset+h.PayloadLength, size)
	}
	return h, nil
}

// plainRelease tells whether a release is fit for a path component: it comes from a foreign file.
func plainRelease(s string) bool {
	for _, r := range s {
		if !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune(".+~-_", r)) {
			return false
		}
	}
	return s != "" && len(s) <= 128 && s[0] != '.' && s[0] != '-'
}

// maxKernel bounds an unpacked kernel, in bytes; the largest seen has 90 MB.
const maxKernel = 1 << 30

var errTooLarge = fmt.Errorf("unpacks to more than %d MiB", maxKernel>>20)

// extractVmlinux writes the uncompressed kernel inside a bzImage to w.
func extractVmlinux(w io.Writer, r io.ReaderAt, h setupHeader) error {
	if h.PayloadLength < 16 {
		return errors.New("the boot header names no compressed kernel")
	}
	magic := make([]byte, 6)
	if _, err := r.ReadAt(magic, h.PayloadOffset); err != nil {
		return err
	}
	// Every compressor but gzip leaves four more bytes, the unpacked size, behind its stream; some readers stumble over them.
	in := io.NewSectionReader(r, h.PayloadOffset, h.PayloadLength-4)
	var src io.Reader
	var err error
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		var z *gzip.Reader
		if z, err = gzip.NewReader(io.NewSectionReader(r, h.PayloadOffset, h.PayloadLength)); err == nil {
			z.Multistream(false)
			src = z
		}
	case bytes.HasPrefix(magic, []byte("\xfd7zXZ\x00")):
		var z *xz.Reader // this reader knows the x86 filter that kernels are packed with
		if z, err = xz.NewReader(in, 1<<28); err == nil {
			z.Multistream(false)
			src = z
		}
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		var z *zstd.Decoder
		if z, err = zstd.NewReader(in, zstd.WithDecoderMaxWindow(1<<28), zstd.WithDecoderMaxMemory(maxKernel)); err == nil {
			defer z.Close()
			src = z
		}
	case bytes.HasPrefix(magic, []byte{0x02, 0x21, 0x4c, 0x18}):
		src = lz4.NewReader(in)
	case bytes.HasPrefix(magic, []byte(elf.ELFMAG)):
		src = in // CONFIG_KERNEL_UNCOMPRESSED
	default:
		return fmt.Errorf("compressed in an unknown way (% x)", magic)
	}
	if err != nil {
		return err
	}
	n, err := io.Copy(w, io.LimitReader(src, maxKernel+1))
	if err != nil {
		return err
	}
	if n > maxKernel {
		return errTooLarge
	}
	return nil
}

// checkVmlinux checks that an ELF file is a kernel QEMU can enter directly: x86-64 with a PVH entry point
// (note XEN_ELFNOTE_PHYS32_ENTRY, CONFIG_PVH).
func checkVmlinux(r io.ReaderAt) error {
	f, err := elf.NewFile(r)
	if err != nil {
		return err
	}
	if f.Machine != elf.EM_X86_64 || f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return fmt.Errorf("an ELF file for %v, type %v: not an x86-64 kernel", f.Machine, f.Type)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_NOTE && p.Filesz < 1<<20 {
			data := make([]byte, p.Filesz)
			if _, err := p.ReadAt(data, 0); err != nil {
				return fmt.Errorf("truncated: %w", err)
			}
			if hasPVHNote(data) {
				return nil
			}
		}
	}
	return errNoPVH
}

var errNoPVH = errors.New("an x86-64 ELF file without a PVH entry point (build the kernel with CONFIG_PVH, or give its bzImage)")

// hasPVHNote walks ELF notes: name size, descriptor size, type, then name and descriptor, each padded to four bytes.
func hasPVHNote(b []byte) bool {
	const xenPhys32Entry = 18
	le := binary.LittleEndian
	pad := func(n uint32) uint64 { return (uint64(n) + 3) &^ 3 }
	for len(b) >= 12 {
		nameSize, descSize, kind := le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:])
		end := 12 + pad(nameSize) + pad(descSize)
		if end > uint64(len(b)) {
			return false
		}
		if kind == xenPhys32Entry && nameSize == 4 && string(b[12:16]) == "Xen\x00" && descSize >= 4 {
			return true
		}
		b = b[end:]
	}
	return false
}

// vmlinuxRelease finds the kernel's banner, "Linux version R (…", in an ELF kernel.
func vmlinuxRelease(r io.ReaderAt) (string, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return "", err
	}
	banner := []byte("Linux version ")
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD {
			continue
		}
		src := p.Open()
		buf := make([]byte, 0, 1<<20)
		for {
			n, err := io.ReadFull(src, buf[len(buf):cap(buf)])
			buf = buf[:len(buf)+n]
			for rest := buf; ; {
				i := bytes.Index(rest, banner)
				if i < 0 {
					break
				}
				rest = rest[i+len(banner):]
				if word, _, ok := bytes.Cut(rest[:min(len(rest), 200)], []byte{' '}); ok && plainRelease(string(word)) && word[0] >= '0' && word[0] <= '9' {
					return string(word), nil
				}
			}
			if err != nil {
				break // the segment ends
			}
			buf = append(buf[:0], buf[len(buf)-256:]...) // a banner may lie across two reads
		}
	}
	return "", errors.New("no kernel banner in it")
}

// unpackKernel makes a bootable image of the kernel file at path: its vmlinux if it has a PVH entry, written to dst, else the file itself.
// It returns dst or path, the kind, and the release ("" if the file does not tell).
func unpackKernel(path, dst string) (image, kind, release string, err error) {
	f, err := openRegular(path)
	if err != nil {
		return "", "", "", fmt.Errorf("kernel: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", "", "", fmt.Errorf("kernel: %w", err)
	}
	magic := make([]byte, 4)
	if n, _ := f.ReadAt(magic, 0); n == 4 && string(magic) == elf.ELFMAG {
		if err := checkVmlinux(f); err != nil {
			return "", "", "", &NotAKernelError{Path: path, Reason: err.Error()}
		}
		release, err := vmlinuxRelease(f)
		if err != nil {
			return "", "", "", &NotAKernelError{Path: path, Reason: err.Error()}
		}
		return path, KindVmlinux, release, nil
	}
	h, err := parseSetupHeader(f, st.Size())
	if err != nil {
		return "", "", "", &NotAKernelError{Path: path, Reason: err.Error()}
	}
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return "", "", "", err
	}
	err = extractVmlinux(out, f, h)
	if err == nil {
		err = checkVmlinux(out)
	}
	if e := out.Close(); err == nil {
		err = e
	}
	if err != nil {
		os.Remove(dst)
		if isNoSpace(err) {
			return "", "", "", err
		}
		return path, KindBzImage, h.Release, nil // QEMU's firmware unpacks it in the guest: slower, but it boots
	}
	return dst, KindVmlinux, h.Release, nil
}
