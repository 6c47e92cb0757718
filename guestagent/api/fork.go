package api

import (
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
)

// ioctl numbers of the random device (include/uapi/linux/random.h): _IOW('R', 3, int[2]) and _IO('R', 7).
const (
	addEntropy = 1<<30 | 8<<16 | 'R'<<8 | 3
	reseed     = 'R'<<8 | 7
)

// refresh gives a guest restored from a snapshot what its siblings do not have: the time of day, random numbers of its own, and a host key.
func (a *Agent) refresh(_ context.Context, p agentapi.RefreshParams) (agentapi.Empty, error) {
	switch {
	case p.UnixNS <= 0:
		return agentapi.Empty{}, fault.New(agentapi.CodeInvalid, "time %d ns: must be after 1970", p.UnixNS)
	case len(p.Entropy) != agentapi.EntropySize:
		return agentapi.Empty{}, fault.New(agentapi.CodeInvalid, "%d bytes of entropy: must be %d", len(p.Entropy), agentapi.EntropySize)
	case len(p.HostKeySeed) != ed25519.SeedSize:
		return agentapi.Empty{}, fault.New(agentapi.CodeInvalid, "a host key seed of %d bytes: must be %d", len(p.HostKeySeed), ed25519.SeedSize)
	}
	if err := mixIn(a.cfg.Root.Path("dev/urandom"), p.Entropy); err != nil {
		return agentapi.Empty{}, fmt.Errorf("entropy: %w", err)
	}
	now := unix.NsecToTimespec(p.UnixNS)
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
		return agentapi.Empty{}, fmt.Errorf("clock: setting it to %s: %w", time.Unix(0, p.UnixNS).UTC(), err)
	}
	a.cfg.HostKey(p.HostKeySeed)
	return agentapi.Empty{}, nil
}

// mixIn adds to the kernel's entropy and has its generator start from it at once: by itself it would do so within a minute.
func mixIn(device string, entropy []byte) error {
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	arg := entropyInfo(entropy)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), addEntropy, uintptr(unsafe.Pointer(&arg[0]))); errno != 0 {
		return os.NewSyscallError("RNDADDENTROPY", errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), reseed, 0); errno != 0 {
		return os.NewSyscallError("RNDRESEEDCRNG", errno)
	}
	return nil
}

// entropyInfo lays out struct rand_pool_info: entropy in bits, size in bytes, the bytes.
func entropyInfo(entropy []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(8*len(entropy)))
	b = binary.NativeEndian.AppendUint32(b, uint32(len(entropy)))
	return append(b, entropy...)
}
