package images

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
)

// makeVmlinux writes an ELF kernel that holds a banner and, if asked, a PVH note: no code, which nothing here runs.
func makeVmlinux(t testing.TB, release string, pvh bool) []byte {
	t.Helper()
	le := binary.LittleEndian
	text := []byte("padding Linux version (not this one) Linux version " + release + " (builder@example.org) #1 SMP")
	note := func(kind uint32) []byte {
		b := le.AppendUint32(nil, 4)
		b = le.AppendUint32(b, 8)
		b = le.AppendUint32(b, kind)
		b = append(b, "Xen\x00"...)
		return le.AppendUint64(b, 0x1000000)
	}
	notes := note(6)
	if pvh {
		notes = append(notes, note(18)...)
	}
	const ehsize, phsize = 64, 56
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Entry: 0x1000000, Phoff: ehsize, Ehsize: ehsize, Phentsize: phsize, Phnum: 2, Shentsize: 64}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	at := uint64(ehsize + 2*phsize)
	progs := []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Off: at, Vaddr: 0x1000000, Filesz: uint64(len(text)), Memsz: uint64(len(text))},
		{Type: uint32(elf.PT_NOTE), Off: at + uint64(len(text)), Filesz: uint64(len(notes)), Memsz: uint64(len(notes)), Align: 4},
	}
	var b bytes.Buffer
	if err := errors.Join(binary.Write(&b, le, h), binary.Write(&b, le, progs)); err != nil {
		t.Fatal(err)
	}
	b.Write(text)
	b.Write(notes)
	return b.Bytes()
}

// compress packs a payload the way the kernel's build does: every format but gzip is followed by the unpacked size.
func compress(t testing.TB, how string, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch how {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "xz":
		w, err = xz.WriterConfig{CheckSum: xz.CRC32}.NewWriter(&b)
	case "zstd":
		w, err = zstd.NewWriter(&b)
	case "lz4":
		z := lz4.NewWriter(&b)
		err = z.Apply(lz4.LegacyOption(true))
		w = z
	case "none":
		b.Write(data)
		return append(b.Bytes(), 0, 0, 0, 0)
	default:
		b.WriteString("unknown!" + how)
		b.Write(data)
		return b.Bytes()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if how != "gzip" {
		return binary.LittleEndian.AppendUint32(b.Bytes(), uint32(len(data)))
	}
	return b.Bytes()
}

// makeBzImage puts a payload behind a setup header of boot protocol 2.15.
func makeBzImage(t testing.TB, release, how string, vmlinux []byte) []byte {
	t.Helper()
	return wrapPayload(release, compress(t, how, vmlinux))
}

func wrapPayload(release string, payload []byte) []byte {
	const sects, lead = 1, 0x40
	le := binary.LittleEndian
	b := make([]byte, (sects+1)*512+lead)
	b[setupSectsAt] = sects
	le.PutUint16(b[bootFlagAt:], 0xaa55)
	copy(b[headerMagicAt:], "HdrS")
	le.PutUint16(b[protocolAt:], 0x020f)
	const text = 0x300
	le.PutUint16(b[kernelVersionAt:], text-0x200)
	copy(b[text:], release+" (builder@example.org) #1 SMP\x00")
	le.PutUint32(b[payloadOffsetAt:], lead)
	le.PutUint32(b[payloadLengthAt:], uint32(len(payload)))
	b = append(b, payload...)
	return append(b, make([]byte, 64)...) // the rest of the image
}

func writeFile(t testing.TB, dir, name string, data []byte) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, data, 0o600)); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestUnpackKernel(t *testing.T) {
	t.Parallel()
	const release = "9.1.0-test"
	vmlinux := makeVmlinux(t, release, true)
	for _, how := range []string{"gzip", "xz", "zstd", "lz4", "none"} {
		dir := t.TempDir()
		file := writeFile(t, dir, "bzImage", makeBzImage(t, release, how, vmlinux))
		dst := filepath.Join(dir, "vmlinux")
		image, kind, got, err := unpackKernel(file, dst)
		if err != nil || image != dst || kind != KindVmlinux || got != release {
			t.Errorf("%s: %s, %s, %q, %v; want the vmlinux of %s", how, image, kind, got, err, release)
			continue
		}
		if data, err := os.ReadFile(dst); err != nil || !bytes.Equal(data, vmlinux) {
			t.Errorf("%s: unpacked %d bytes, %v; want the %d packed", how, len(data), err, len(vmlinux))
		}
	}
}

// What cannot be unpacked, or has no PVH entry, boots as the bzImage it is.
func TestUnpackKernelFallsBack(t *testing.T) {
	t.Parallel()
	const release = "9.1.0-test"
	good := makeVmlinux(t, release, true)
	broken := compress(t, "xz", bytes.Repeat(good, 100))
	broken[len(broken)/2] ^= 0xff
	for name, image := range map[string][]byte{
		"no PVH":        makeBzImage(t, release, "gzip", makeVmlinux(t, release, false)),
		"unknown":       makeBzImage(t, release, "bz3", good),
		"broken stream": wrapPayload(release, broken),
		"not ELF":       makeBzImage(t, release, "zstd", []byte("this is no kernel, just a text of some length")),
		"no payload":    wrapPayload(release, nil),
	} {
		dir := t.TempDir()
		file := writeFile(t, dir, "bzImage", image)
		dst := filepath.Join(dir, "vmlinux")
		got, kind, r, err := unpackKernel(file, dst)
		if err != nil || got != file || kind != KindBzImage || r != release {
			t.Errorf("%s: %s, %s, %q, %v; want the bzImage itself", name, got, kind, r, err)
		}
		if _, err := os.Stat(dst); err == nil {
			t.Errorf("%s: left a half vmlinux", name)
		}
	}
}

func TestNotAKernel(t *testing.T) {
	t.Parallel()
	whole := makeBzImage(t, "9.1.0", "gzip", makeVmlinux(t, "9.1.0", true))
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"empty":          nil,
		"text":           []byte(strings.Repeat("not a kernel\n", 100)),
		"truncated":      whole[:len(whole)-200],
		"header only":    whole[:0x230],
		"vmlinux no PVH": makeVmlinux(t, "9.1.0", false),
		"program":        program,
		"ELF stub":       []byte("\x7fELF"),
	} {
		c := newCache(t)
		file := writeFile(t, t.TempDir(), "k", data)
		_, err := c.Kernel(t.Context(), file, nil)
		var not *NotAKernelError
		if !errors.As(err, &not) || not.Path != file || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v; want a NotAKernelError that names the file", name, err)
		}
	}
}

// A stream packed by xz --check=crc32 --x86 --lzma2=dict=32MiB, as the kernel's xz_wrap.sh does: the x86 filter is what most readers lack.
func TestXZWithX86Filter(t *testing.T) {
	t.Parallel()
	payload, err := hex.DecodeString(x86FilteredXZ)
	if err != nil {
		t.Fatal(err)
	}
	image := wrapPayload("9.1.0", append(payload, 0, 0, 0, 0))
	h, err := parseSetupHeader(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := extractVmlinux(&out, bytes.NewReader(image), h); err != nil {
		t.Fatal(err)
	}
	if want := x86FilteredPlain(); !bytes.Equal(out.Bytes(), want) {
		t.Errorf("got %x, want %x", out.Bytes(), want)
	}
}

// x86FilteredPlain is code-like: calls to one place from many, which the filter rewrites.
func x86FilteredPlain() []byte {
	var b []byte
	for i := range uint32(64) {
		b = append(b, 0x55, 0xe8)
		b = binary.LittleEndian.AppendUint32(b, 0x1000-i*12)
		b = append(b, 0x48, 0x89, 0xc3, 0x90, 0xc3, byte(i))
	}
	return b
}

func FuzzSetupHeader(f *testing.F) {
	vmlinux := makeVmlinux(f, "9.1.0", true)
	for _, how := range []string{"gzip", "xz", "zstd", "lz4", "none", "?"} {
		f.Add(makeBzImage(f, "9.1.0", how, vmlinux))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		h, err := parseSetupHeader(r, int64(len(data)))
		if err != nil {
			return
		}
		if h.Release != "" && (!plainRelease(h.Release) || h.Release != filepath.Base(h.Release)) {
			t.Errorf("release %q is unfit for a path", h.Release)
		}
		if h.PayloadLength > 0 && (h.PayloadOffset < 0 || h.PayloadOffset+h.PayloadLength > int64(len(data))) {
			t.Errorf("payload %d+%d lies outside of %d bytes", h.PayloadOffset, h.PayloadLength, len(data))
		}
	})
}

// FuzzExtractVmlinux feeds the readers of every compression.
func FuzzExtractVmlinux(f *testing.F) {
	vmlinux := makeVmlinux(f, "9.1.0", true)
	for _, how := range []string{"gzip", "xz", "zstd", "lz4", "none", "?"} {
		f.Add(compress(f, how, vmlinux))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		image := wrapPayload("9.1.0", payload)
		h, err := parseSetupHeader(bytes.NewReader(image), int64(len(image)))
		if err != nil {
			t.Fatal(err)
		}
		_ = extractVmlinux(&limited{64 << 20}, bytes.NewReader(image), h) // must end without a panic, whatever the payload says
	})
}

// limited takes so many bytes and then refuses: a fuzzed stream may unpack to anything.
type limited struct{ left int }

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

func FuzzVmlinux(f *testing.F) {
	f.Add(makeVmlinux(f, "9.1.0", true))
	f.Add(makeVmlinux(f, "9.1.0", false))
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if checkVmlinux(bytes.NewReader(data)) != nil {
			return
		}
		if r, err := vmlinuxRelease(bytes.NewReader(data)); err == nil && !plainRelease(r) {
			t.Errorf("release %q is unfit for a path", r)
		}
	})
}

const x86FilteredXZ = "" +
	"fd377a585a0000016922de360201040021011a0001c980b3e002ff00615d002ab9fcc0ffc6b440786b01de27b9e4f92b90111ec680137fd95c4e7947ebbf0b54bacfaa0cb0e8" +
	"48edcbdfc67509b2f3af29fc342970b60714d1dc531d6bbd5c2086f625e2be89efa4fb48a2d1811476f65d9a34d434d6ba1bb90e4f1447c9d200000000008e4bb9fc00017980" +
	"060000009a67f57b3e300d8b020000000001595a"
