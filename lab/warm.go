package lab

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/strategy"
	"irqlab/images"
	"irqlab/lab/machine"
	"irqlab/lab/qemu"
	"irqlab/lab/qemu/klog"
)

const (
	snapshotFormat = 3 // raise when snapshots made before are of no use any more

	channelAddress = "0000:00:02.0" // where QEMU puts the virtio-serial device; being wrong costs a little time

	restTime = 5 * time.Second // how long a guest that has booted may take to come to rest
	// forkTime is how long a restored guest may take to answer, and more for each CPU: it goes on where it stopped, so that this is far more than it needs.
	forkTime       = 30 * time.Second
	forkTimePerCPU = time.Second

	maxRemoved  = 3         // how often another run, or a person, may remove the snapshot just when it was to be opened
	refusedFile = "refused" // in place of a snapshot: why QEMU cannot save the machine
)

// forkError tells that a snapshot did not make a guest that answers.
type forkError struct{ err error }

func (e *forkError) Error() string { return e.err.Error() }
func (e *forkError) Unwrap() error { return e.err }

// warm starts the guest from the cache's snapshot of the machine. A snapshot that does not come to life is discarded and made once more.
func (b boot) warm(ctx context.Context) (*VM, error) {
	key, err := b.snapshotKey()
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	var notes []string
	discarded := false
	for removed := 0; ; {
		entry, err := b.cfg.Cache.Snapshot(ctx, key, b.snapshot)
		var full *images.NoSpaceError
		if errors.As(err, &full) {
			return b.insteadOfWarm(ctx, notes, "no snapshot: "+full.Error())
		}
		if err != nil {
			return nil, err
		}
		if why, err := os.ReadFile(filepath.Join(entry.Dir, refusedFile)); err == nil {
			return b.insteadOfWarm(ctx, notes, "QEMU cannot save this machine: "+string(why))
		}
		if b.cfg.Takes != nil {
			b.cfg.Takes(entry.Dir)
		}
		vm, err := b.fork(ctx, entry.Dir)
		var bad *forkError
		switch {
		case err == nil:
			vm.Notes = notes
			return vm, nil
		case ctx.Err() != nil:
			return nil, err
		case errors.Is(err, fs.ErrNotExist) && removed < maxRemoved:
			removed++
			continue
		case !errors.As(err, &bad):
			return nil, err
		}
		if err := b.cfg.Cache.Discard(ctx, entry); err != nil {
			return nil, errors.Join(bad, err)
		}
		if discarded {
			return b.insteadOfWarm(ctx, notes, "nor did the new one: "+firstLine(bad))
		}
		discarded = true
		notes = append(notes, "the snapshot did not come to life and was made anew: "+firstLine(bad))
	}
}

// insteadOfWarm boots if a cold start will do as well.
func (b boot) insteadOfWarm(ctx context.Context, notes []string, why string) (*VM, error) {
	notes = append(notes, why)
	if b.cfg.Start == StartWarm {
		return nil, fmt.Errorf("warm start: %s (start cold, or auto)", strings.Join(notes, "; "))
	}
	vm, err := b.cold(ctx)
	if err == nil {
		vm.Notes = notes
	}
	return vm, err
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// snapshotTries is how often a machine is booted for one snapshot.
const snapshotTries = 3

// leastSnapshot is less than any snapshot takes, in bytes: with no more room than that, nothing is booted for one.
const leastSnapshot = 32 << 20

// noRoom has, by its key, what a snapshot takes for which there was no room, so that the next case does not boot for it in vain.
var noRoom sync.Map

// snapshot boots the machine once and saves it into dir when its agent waits for the lab: no session is open and no function attached. A guest whose clock came out wrong
// is booted again, or every fork would have that clock; so is one that the emulator has led astray.
func (b boot) snapshot(ctx context.Context, dir string) error {
	key, err := b.snapshotKey()
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	need := int64(leastSnapshot)
	if known, ok := noRoom.Load(key); ok {
		need = known.(int64)
	}
	if err := b.cfg.Cache.Room(need, nil); err != nil {
		return err
	}
	var wrong *clockError
	for range snapshotTries {
		report(b.cfg.Progress, fmt.Sprintf("booting %s with %d CPUs once, to fork it from now on", b.kernel.Release, b.machine.Shape.CPUs()))
		err = b.snapshotOnce(ctx, dir)
		var full *qemu.NoRoomError
		if errors.As(err, &full) {
			noRoom.Store(key, full.Need)
			return errors.Join(emptyDir(dir), b.cfg.Cache.Room(full.Need, full.Err))
		}
		if !errors.As(err, &wrong) && !b.stale(err) {
			return err
		}
		report(b.cfg.Progress, firstLine(err)+"; booting again")
	}
	return err
}

// stale reports whether a boot ended in what only the emulator can have done (docs/hotplug.md, "Stale code"): the next one will hardly meet it again.
func (b boot) stale(err error) bool {
	var failed *qemu.BootError
	return b.machine.Accel == machine.TCG && errors.As(err, &failed) && slices.ContainsFunc(failed.Trouble, func(f klog.Finding) bool { return f.Stale() != "" })
}

func (b boot) snapshotOnce(ctx context.Context, dir string) error {
	cfg := b.process()
	cfg.Keep, cfg.ConsoleFile, cfg.SharedRAM = false, "", true // under the name that its fork will have: who asks for that learns that it is booting
	p, err := qemu.Start(ctx, cfg)
	if err != nil {
		return err
	}
	err = func() error {
		if err := p.Console().WaitFor(ctx, agentapi.ReadyMessage); err != nil {
			return err
		}
		agent := newAgent(p.AgentConn())
		first, err := readClock(ctx, agent)
		if err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		if err := rehearse(ctx, agent); err != nil {
			return fmt.Errorf("snapshot: rehearsal: %w", err)
		}
		if err := checkClock(ctx, agent, first); err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		idle, err := p.Quiesce(ctx, restTime)
		if err != nil {
			return err
		}
		if !idle {
			report(b.cfg.Progress, fmt.Sprintf("the guest was not at rest within %s; it is saved as it is", restTime))
		}
		err = p.Save(ctx, dir)
		var refused *qemu.UnsavableError
		if errors.As(err, &refused) {
			return errors.Join(emptyDir(dir), os.WriteFile(filepath.Join(dir, refusedFile), []byte(refused.Reason), 0o600))
		}
		return err
	}()
	if err != nil && b.cfg.ConsoleFile != "" {
		// There will be no fork, whose file it would be.
		text, _ := p.Console().Text()
		err = errors.Join(err, os.WriteFile(b.cfg.ConsoleFile, text, 0o666))
	}
	return errors.Join(err, p.Close())
}

// rehearse has the guest do once what every fork will ask of it, so that the snapshot holds the agent's code paged in, its tables computed and its caches filled
// (docs/dev/performance.md). Nothing is changed that an experiment could see, and the channel is left open: a fork goes on with it.
func rehearse(ctx context.Context, a *Agent) error {
	info, err := a.Info(ctx)
	if err != nil {
		return err
	}
	if _, err := a.refresh(ctx); err != nil {
		return err
	}
	if _, err := a.Warnings(ctx); err != nil {
		return err
	}
	if _, err := a.Links(ctx); err != nil {
		return err
	}
	if _, err := a.SetCPU(ctx, info.CPUs.Online[0], true); err != nil { // as it is
		return err
	}
	if _, err := a.Apply(ctx, agentapi.ApplyParams{Strategy: strategy.NUMAAware, Node: 0, Total: 1}); err != nil { // to no vector
		return err
	}
	// Its own channel's interrupts are there to be read; who is no function with interrupts is not an error worth a snapshot.
	serial, err := a.FunctionIRQs(ctx, channelAddress)
	if err != nil {
		return refusal(err)
	}
	serial = slices.DeleteFunc(serial, func(v agentapi.Vector) bool { return v.Name == "" })
	if len(serial) == 0 {
		return nil
	}
	seen, err := a.Observe(ctx, serial)
	if err != nil {
		return err
	}
	_, err = a.Await(ctx, seen, time.Millisecond)
	return refusal(err)
}

// refusal passes on an error of the channel, and not one that the guest reports.
func refusal(err error) error {
	var guest *agentapi.Error
	if errors.As(err, &guest) {
		return nil
	}
	return err
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
	}
	return err
}

// fork starts a guest from a snapshot.
func (b boot) fork(ctx context.Context, dir string) (*VM, error) {
	report(b.cfg.Progress, "restoring "+b.kernel.Release)
	s, err := qemu.OpenSnapshot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, &forkError{err}
	}
	defer s.Close()
	cfg := b.process()
	cfg.Snapshot = s
	p, err := qemu.Start(ctx, cfg)
	var bad *qemu.RestoreError
	if errors.As(err, &bad) {
		return nil, unborn(err)
	}
	if err != nil {
		return nil, err
	}
	vm := b.vm(p, StartWarm)
	limit := forkTime + time.Duration(b.machine.Shape.CPUs())*forkTimePerCPU
	timed, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the restored guest did not answer within %s", limit))
	defer cancel()
	// The guest does not run yet: it finds the functions plugged in.
	if err := vm.attachAll(timed, b.cfg.Functions); err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	vm.Resumed = time.Now() // no earlier than this
	err = p.Resume(timed)
	var hostKey string
	if err == nil { // side by side: each runs much of the guest's code for the first time
		var g errgroup.Group
		g.Go(func() error { return vm.Agent.rescan(timed) })
		g.Go(func() (err error) { vm.Info, err = vm.Agent.Info(timed); return err })
		g.Go(func() (err error) { hostKey, err = vm.Agent.refresh(timed); return err })
		err = g.Wait()
	}
	if err == nil {
		err = vm.publish(access{ClientKey: b.initramfs.ClientKey, HostKey: hostKey})
	}
	if err != nil {
		if e := vm.death(); e != nil {
			err = fmt.Errorf("%w: %w", err, e)
		}
		return nil, errors.Join(unborn(err), vm.Close())
	}
	return vm, nil
}

// unborn is the error of a fork that did not come to life: the snapshot's fault, unless somebody killed QEMU.
func unborn(err error) error {
	var dead *qemu.DeadError
	if errors.As(err, &dead) && dead.Killed() {
		return err
	}
	return &forkError{err}
}

// refresh gives a restored guest what its siblings do not have: the time of day, random numbers and a host key for later connections, which is returned.
func (a *Agent) refresh(ctx context.Context) (hostKey string, _ error) {
	p := agentapi.RefreshParams{Entropy: make([]byte, agentapi.EntropySize), HostKeySeed: make([]byte, ed25519.SeedSize)}
	for _, b := range [][]byte{p.Entropy, p.HostKeySeed} {
		if _, err := rand.Read(b); err != nil {
			return "", err
		}
	}
	public, err := ssh.NewPublicKey(ed25519.NewKeyFromSeed(p.HostKeySeed).Public())
	if err != nil {
		return "", err
	}
	p.UnixNS = time.Now().UnixNano()
	if _, err := call[agentapi.Empty](ctx, a, agentapi.MethodRefresh, p); err != nil {
		return "", err
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public))), nil
}

// snapshotKey names the snapshot by all that went into it: the contents of kernel and initramfs, the machine and its command line, QEMU, and what emulates or executes.
func (b boot) snapshotKey() (string, error) {
	m := b.machine
	var err error
	if m.Kernel, err = b.cfg.Cache.Hash(m.Kernel); err != nil {
		return "", err
	}
	if m.Initramfs, err = b.cfg.Cache.Hash(m.Initramfs); err != nil {
		return "", err
	}
	m.Channels = machine.Channels{QMPFD: 3, ConsoleFD: 4, AgentFD: 5, SSHSocket: "ssh"} // as good as any: they are no part of the state
	args, err := m.Args()
	if err != nil {
		return "", err
	}
	made := struct {
		Format  int
		Args    []string
		QEMU    []string
		Version string
		Files   []string // hashes of the program and its loader
		CPU     string
	}{Format: snapshotFormat, Args: args, QEMU: b.bin.Command, Version: b.bin.Version}
	for _, word := range b.bin.Files() {
		sum, err := b.cfg.Cache.Hash(word)
		if err != nil {
			return "", err
		}
		made.Files = append(made.Files, sum)
	}
	if m.Accel == machine.KVM {
		if made.CPU, err = hostCPU(); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(made)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return fmt.Sprintf("%s-%dcpu-%s", b.kernel.Release, m.Shape.CPUs(), hex.EncodeToString(sum[:12])), nil
}

// hostCPU is what a guest with the host's CPU depends on: its model and features.
func hostCPU() (string, error) {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(string(b), "\n\n")
	var keep []string
	for line := range strings.Lines(first) {
		switch name, _, _ := strings.Cut(line, "\t"); name {
		case "vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags":
			keep = append(keep, line)
		}
	}
	return strings.Join(keep, ""), nil
}
