package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/digitalocean/go-qemu/qmp"
	"github.com/digitalocean/go-qemu/qmp/raw"
	"golang.org/x/sys/unix"
)

// Files of a snapshot.
const (
	indexFile       = "snapshot.json"
	memoryFile      = "memory"  // the extents of every node, one after the other
	deviceFile      = "devices" // QEMU's migration stream, all but memory
	consoleSaveFile = "console" // the console up to then
)

const (
	snapshotFormat = 1
	maxNodes       = 1024
	maxIndex       = 64 << 20
	restoreTimeout = 60 * time.Second
	saveTimeout    = 60 * time.Second

	idlePoll = 20 * time.Millisecond
	idleRow  = 5 // how often in a row all CPUs must be found halted
)

// Errors of Save.
var (
	// ErrAttached: QEMU would leave the function out of the state without a word (reference, vfio-user 5.4).
	ErrAttached = errors.New("a function is attached")
	// ErrPrivateRAM: the process was started without Config.SharedRAM.
	ErrPrivateRAM = errors.New("the guest's memory is QEMU's own")
)

// UnsavableError tells that QEMU cannot save this machine: a device in it does not allow it.
type UnsavableError struct{ Reason string }

func (e *UnsavableError) Error() string { return "QEMU cannot save this machine: " + e.Reason }

// NoRoomError tells that the file system has no room for the saved state.
type NoRoomError struct {
	Need int64 // bytes that the state takes
	Err  error
}

func (e *NoRoomError) Error() string { return "no room for the saved state: " + e.Err.Error() }
func (e *NoRoomError) Unwrap() error { return e.Err }

// RestoreError tells that a saved state did not make a guest.
type RestoreError struct{ Err error }

func (e *RestoreError) Error() string { return "restore: " + e.Err.Error() }
func (e *RestoreError) Unwrap() error { return e.Err }

// snapshotIndex is indexFile.
type snapshotIndex struct {
	Format int         `json:"format"`
	Nodes  []savedNode `json:"nodes"`
}

type savedNode struct {
	Size    int64    `json:"size"`
	Extents []extent `json:"extents"`
}

// Quiesce returns once the guest has come to rest: all its CPUs are found halted several times in a row. It gives up, without an error, after limit.
func (p *Process) Quiesce(ctx context.Context, limit time.Duration) (idle bool, _ error) {
	q := raw.NewMonitor(typed{ctx, p})
	end := time.Now().Add(limit)
	for row := 0; ; {
		halted := true
		for cpu := int64(0); cpu < int64(p.machine.Shape.CPUs()) && halted; cpu++ {
			text, err := q.HumanMonitorCommand("info registers", &cpu)
			if err != nil {
				return false, fmt.Errorf("guest: waiting for it to come to rest: %w", err)
			}
			halted = strings.Contains(text, "HLT=1")
		}
		row++
		if !halted {
			row = 0
		}
		if row == idleRow {
			return true, nil
		}
		if time.Now().After(end) {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-time.After(idlePoll):
		}
	}
}

// Save stops the guest and writes its state into files in dir, for OpenSnapshot. The Process can only be closed afterwards.
func (p *Process) Save(ctx context.Context, dir string) error {
	err := p.save(ctx, dir)
	if err == nil {
		return nil
	}
	if full := room(dir); full != nil { // QEMU does not say that this was why
		err = &NoRoomError{Need: p.stateSize(), Err: full}
	}
	return fmt.Errorf("snapshot: %w", err)
}

// room is the error of writing some more into dir, if it is one of a full file system or of a user's share of it. A file system that is full for a state may have a little
// left, so as much is tried as the state's smallest part.
func room(dir string) error {
	f, err := os.CreateTemp(dir, "room-")
	if err == nil {
		_, err = f.Write(make([]byte, deviceSize))
		err = errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT} {
		if errors.Is(err, full) {
			return full
		}
	}
	return nil
}

// deviceSize is more than the state of the devices of a machine with few CPUs takes, and less than the memory of any.
const deviceSize = 4 << 20

// stateSize is about what the guest's state takes in files.
func (p *Process) stateSize() int64 {
	size := counter(deviceSize)
	w := bufio.NewWriterSize(&size, 1<<20)
	for n, bytes := range p.machine.NodeMemory() {
		if n < len(p.ram) {
			_, _ = pack(w, p.ram[n], bytes) // what cannot be read does not count
		}
	}
	_ = w.Flush()
	return int64(size)
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

func (p *Process) save(ctx context.Context, dir string) error {
	p.mu.Lock()
	attached := p.attached
	p.mu.Unlock()
	switch {
	case attached:
		return ErrAttached
	case p.ram == nil:
		return ErrPrivateRAM
	}
	if err := p.QMP(ctx, "stop", nil, nil); err != nil {
		return err
	}
	devices, err := os.OpenFile(filepath.Join(dir, deviceFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) // QEMU's umask is not ours to rely on
	if err != nil {
		return err
	}
	if err := devices.Close(); err != nil {
		return err
	}
	if err := p.migrate(ctx, saveTimeout, "migrate", devices.Name()); err != nil {
		var refused *CommandError
		if errors.As(err, &refused) {
			return &UnsavableError{refused.Desc}
		}
		return err
	}
	memory, err := os.OpenFile(filepath.Join(dir, memoryFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer memory.Close()
	w := bufio.NewWriterSize(memory, 1<<20)
	index := snapshotIndex{Format: snapshotFormat}
	for n, size := range p.machine.NodeMemory() {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		extents, err := pack(w, p.ram[n], size)
		if err != nil {
			return fmt.Errorf("memory of node %d: %w", n, err)
		}
		index.Nodes = append(index.Nodes, savedNode{size, extents})
	}
	if err := errors.Join(w.Flush(), memory.Close()); err != nil {
		return err
	}
	b, err := json.Marshal(index)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, consoleSaveFile), p.console.kept(), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, indexFile), b, 0o600)
}

// migrate runs the command that saves the state to a file, or restores it from one, and awaits its end.
func (p *Process) migrate(ctx context.Context, timeout time.Duration, command, path string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, &TimeoutError{Command: command, After: timeout})
	defer cancel()
	type capability struct {
		Capability string `json:"capability"`
		State      bool   `json:"state"`
	}
	// Memory stays where it is; events spare asking again and again.
	capabilities := map[string]any{"capabilities": []capability{{"x-ignore-shared", true}, {"events", true}}}
	if err := p.QMP(ctx, "migrate-set-capabilities", capabilities, nil); err != nil {
		return err
	}
	if err := p.QMP(ctx, command, map[string]any{"uri": "file:" + path}, nil); err != nil {
		return err
	}
	e, err := p.WaitEvent(ctx, func(e qmp.Event) bool {
		status, _ := e.Data["status"].(string)
		return e.Event == "MIGRATION" && (status == "completed" || status == "failed" || status == "cancelled")
	})
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	if status := e.Data["status"]; status != "completed" {
		var why struct {
			Description string `json:"error-desc"`
		}
		_ = p.QMP(ctx, "query-migrate", nil, &why)
		return fmt.Errorf("QMP %s: %v: %s", command, status, why.Description) // no refusal: it was begun
	}
	return nil
}

// Snapshot is a saved state, open: removing its directory does not take it away.
type Snapshot struct {
	dir     string
	index   snapshotIndex
	devices *os.File
	memory  []byte // mapped
	console []byte
}

// OpenSnapshot opens what Save has written. Whether the files are whole is the cache's to know; what does not fit together is found here.
func OpenSnapshot(dir string) (_ *Snapshot, err error) {
	s := &Snapshot{dir: dir}
	defer func() {
		if err != nil {
			_ = s.Close()
			err = fmt.Errorf("snapshot %s: %w", dir, err)
		}
	}()
	b, err := os.ReadFile(filepath.Join(dir, indexFile))
	if err != nil {
		return nil, err
	}
	memory, err := os.Open(filepath.Join(dir, memoryFile))
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	info, err := memory.Stat()
	if err != nil {
		return nil, err
	}
	if s.index, err = parseIndex(b, info.Size()); err != nil {
		return nil, err
	}
	if info.Size() > 0 {
		if s.memory, err = unix.Mmap(int(memory.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED); err != nil {
			return nil, os.NewSyscallError("mmap", err)
		}
	}
	if s.console, err = os.ReadFile(filepath.Join(dir, consoleSaveFile)); err != nil {
		return nil, err
	}
	s.devices, err = os.Open(filepath.Join(dir, deviceFile))
	return s, err
}

// parseIndex reads indexFile of a snapshot whose memory file has the given size.
func parseIndex(b []byte, size int64) (snapshotIndex, error) {
	var x snapshotIndex
	if len(b) > maxIndex {
		return x, fmt.Errorf("%s: %d bytes", indexFile, len(b))
	}
	if err := json.Unmarshal(b, &x); err != nil {
		return x, fmt.Errorf("%s: %w", indexFile, err)
	}
	if x.Format != snapshotFormat || len(x.Nodes) == 0 || len(x.Nodes) > maxNodes {
		return x, fmt.Errorf("%s: format %d with %d nodes", indexFile, x.Format, len(x.Nodes))
	}
	left := size
	for i, n := range x.Nodes {
		total, err := checkExtents(n.Extents, n.Size)
		if err != nil {
			return x, fmt.Errorf("%s: node %d: %w", indexFile, i, err)
		}
		if total > left {
			return x, fmt.Errorf("%s: node %d: %d bytes, %s holds no more than %d", indexFile, i, total, memoryFile, left)
		}
		left -= total
	}
	if left != 0 {
		return x, fmt.Errorf("%s: %d bytes that belong nowhere in %s", indexFile, left, memoryFile)
	}
	return x, nil
}

// Close gives the files up.
func (s *Snapshot) Close() error {
	var errs []error
	if s.memory != nil {
		errs = append(errs, unix.Munmap(s.memory))
		s.memory = nil
	}
	if s.devices != nil {
		errs = append(errs, s.devices.Close())
	}
	return errors.Join(errs...)
}

// Resident is how much memory the guest had that was not zero, in bytes.
func (s *Snapshot) Resident() int64 { return int64(len(s.memory)) }

// fill copies the saved memory into a guest's, which must be empty.
func (s *Snapshot) fill(ctx context.Context, r ram) error {
	if len(r) != len(s.index.Nodes) {
		return fmt.Errorf("a snapshot of %d nodes for a machine of %d", len(s.index.Nodes), len(r))
	}
	rest := s.memory
	for i, n := range s.index.Nodes {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		info, err := r[i].Stat()
		if err != nil {
			return err
		}
		if info.Size() != n.Size {
			return fmt.Errorf("node %d: a snapshot of %d bytes for a machine of %d", i, n.Size, info.Size())
		}
		total, err := checkExtents(n.Extents, n.Size)
		if err != nil {
			return err
		}
		if err := unpack(r[i], rest[:total], n.Extents); err != nil {
			return fmt.Errorf("memory of node %d: %w", i, err)
		}
		rest = rest[total:]
	}
	return nil
}

// Resume lets a guest run that was restored, or stopped.
func (p *Process) Resume(ctx context.Context) error { return p.QMP(ctx, "cont", nil, nil) }

// restore waits for the memory and has QEMU load the rest. The guest is then ready to run.
func (p *Process) restore(ctx context.Context, filled <-chan error, devices string) error {
	if err := <-filled; err != nil { // it reads a context of its own, or ends by itself
		return err
	}
	return p.migrate(ctx, restoreTimeout, "migrate-incoming", devices)
}

// kept is what memory holds of the console.
func (c *Console) kept() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]byte(nil), c.tail...)
}
