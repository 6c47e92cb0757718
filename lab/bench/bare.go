package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/u-root/u-root/pkg/cpio"

	"irqlab/lab/machine"
)

// powerOff is a program of x86-64 Linux, all of it: reboot(LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2, LINUX_REBOOT_CMD_POWER_OFF).
var powerOff = []byte{
	0xbf, 0xad, 0xde, 0xe1, 0xfe, // mov edi, 0xfee1dead
	0xbe, 0x69, 0x19, 0x12, 0x28, // mov esi, 672274793
	0xba, 0xdc, 0xfe, 0x21, 0x43, // mov edx, 0x4321fedc
	0xb8, 0xa9, 0x00, 0x00, 0x00, // mov eax, SYS_reboot
	0x0f, 0x05, // syscall
	0xeb, 0xfe, // jmp to itself: init must not end
}

const (
	elfHeader  = 64
	elfSegment = 56
	elfBase    = 0x400000
)

// executable makes a static ELF executable of code.
func executable(code []byte) []byte {
	entry := uint64(elfBase + elfHeader + elfSegment)
	size := uint64(elfHeader + elfSegment + len(code))
	var b bytes.Buffer
	for _, v := range []any{
		[16]byte{0x7f, 'E', 'L', 'F', 2 /* 64 bits */, 1 /* little endian */, 1}, uint16(2) /* executable */, uint16(62) /* x86-64 */, uint32(1),
		entry, uint64(elfHeader), uint64(0), uint32(0), uint16(elfHeader), uint16(elfSegment), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1) /* load */, uint32(5) /* read, execute */, uint64(0), uint64(elfBase), uint64(elfBase), size, size, uint64(0x1000),
		code,
	} {
		_ = binary.Write(&b, binary.LittleEndian, v) // a Buffer takes all
	}
	return b.Bytes()
}

// writeInitramfs writes an initramfs whose init powers the machine off.
func writeInitramfs(path string) error {
	var b bytes.Buffer
	w := cpio.Newc.Writer(&b)
	for _, r := range []cpio.Record{
		cpio.Directory("dev", 0o755),
		cpio.CharDev("dev/console", 0o600, 5, 1),
		cpio.StaticFile("init", string(executable(powerOff)), 0o755),
	} {
		if err := w.WriteRecord(r); err != nil {
			return err
		}
	}
	if err := cpio.WriteTrailer(w); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o600)
}

// runOwned runs a command that gets a signal should this process die. The signal is bound to the thread that started the command, so the thread must outlive it.
func runOwned(cmd *exec.Cmd, death syscall.Signal) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = death
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}

// bareTime bounds a boot that does not come to its end.
const bareTime = 10 * time.Minute

// bare boots the kernel with nothing of irqlab's and returns the seconds until QEMU ended. Options are QEMU's, beyond what says the machine's size.
func (b *bench) bare(ctx context.Context, cmdline string, options ...string) (float64, error) {
	initramfs := filepath.Join(b.dir.Path, "bare.cpio")
	if err := writeInitramfs(initramfs); err != nil {
		return 0, err
	}
	s := machine.DefaultShape
	ctx, cancel := context.WithTimeoutCause(ctx, bareTime, fmt.Errorf("QEMU did not end within %s", bareTime))
	defer cancel()
	args := append(b.qemu.Command[1:len(b.qemu.Command):len(b.qemu.Command)],
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-machine", "q35", "-accel", string(b.accel),
		"-smp", fmt.Sprintf("cpus=%d,sockets=%d,cores=%d,threads=%d", s.CPUs(), s.Sockets, s.Cores, s.Threads), "-m", fmt.Sprintf("%dM", s.MemoryMiB),
		"-serial", "stdio", "-kernel", b.kernel.Image, "-initrd", initramfs, "-append", strings.Join(append([]string{cmdline}, b.Cmdline...), " "))
	args = append(args, options...)
	cmd := exec.CommandContext(ctx, b.qemu.Command[0], args...)
	cmd.Env = append(os.Environ(), b.qemu.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var console bytes.Buffer
	cmd.Stdout, cmd.Stderr = &console, &console
	start := time.Now()
	err := runOwned(cmd, syscall.SIGKILL)
	took := time.Since(start).Seconds()
	if err == nil && bytes.Contains(console.Bytes(), []byte("Kernel panic")) {
		err = errors.New("the kernel panicked")
	}
	if err != nil {
		tail := console.Bytes()
		return 0, fmt.Errorf("bare boot of %s: %w; %w; last on its console:\n%s", b.kernel.Release, err, context.Cause(ctx), tail[max(0, len(tail)-2000):])
	}
	return took, nil
}
