package port

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"irqlab/guestagent/kfile"
)

const (
	driver = "sys/bus/virtio/drivers/virtio_console"

	quiet    = time.Second      // for what is being written; a host that does not read keeps nobody from sleeping
	comeBack = 10 * time.Second // for ports that have been let go
	lookFor  = 5 * time.Millisecond
)

// Gate opens ports, and can have all of them let go for a while: their connections then wait, and go on when the ports are there again. Nothing is lost that the host has
// not sent meanwhile: QEMU keeps it.
//
// The agent does so while the guest sleeps. The driver's own way through a sleep does not do on every kernel: 7.3.4 asks the host whether it still listens before it has
// given the host room for the answer (virtcons_restore in drivers/char/virtio_console.c), takes it for gone from then on, and writes no more.
type Gate struct {
	root kfile.Root

	writing sync.RWMutex // for reading while something is written

	mu    sync.Mutex
	back  chan struct{} // closed when the ports are back; nil: they are there
	times int           // that they have been let go
}

// NewGate makes a gate; root holds sys and dev.
func NewGate(root kfile.Root) *Gate { return &Gate{root: root} }

// Find returns the device file of a port, as the package's Find does.
func (g *Gate) Find(name string) (string, error) { return Find(g.root, name) }

// Open opens a port by name, once it is there if it has been let go.
func (g *Gate) Open(name string) (*Conn, error) {
	times := g.await()
	path, err := g.Find(name)
	if err != nil {
		return nil, err
	}
	c, err := Open(path)
	if err != nil {
		return nil, err
	}
	c.gate, c.port, c.times = g, name, times
	return c, nil
}

// await waits until the ports are there, and tells how often they were not.
func (g *Gate) await() int {
	for {
		g.mu.Lock()
		back, times := g.back, g.times
		g.mu.Unlock()
		if back == nil {
			return times
		}
		<-back
	}
}

// gone tells how often the ports have been let go.
func (g *Gate) gone() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.times
}

// Without calls f while the ports are let go. One call at a time.
func (g *Gate) Without(ctx context.Context, f func() error) error {
	entries, err := g.root.Names(class)
	if err != nil {
		return fmt.Errorf("virtio-serial ports: %w", err)
	}
	var names []string
	device := ""
	for _, e := range entries {
		name, err := g.root.String(class, e, "name")
		if err != nil {
			return err
		}
		if device, err = g.root.LinkName(class, e, "device"); err != nil {
			return err
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return errors.New("there are no virtio-serial ports")
	}
	for until := time.Now().Add(quiet); ; time.Sleep(lookFor) {
		if g.writing.TryLock() {
			defer g.writing.Unlock()
			break
		}
		if time.Now().After(until) {
			break
		}
	}
	back := make(chan struct{})
	g.mu.Lock()
	g.back = back
	g.times++
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.back = nil
		g.mu.Unlock()
		close(back)
	}()
	if err := g.root.Write(device, driver, "unbind"); err != nil {
		return err
	}
	err = f()
	return errors.Join(err, g.restore(ctx, device, names))
}

// restore brings the ports back. Each is there before the host has told its name.
func (g *Gate) restore(ctx context.Context, device string, names []string) error {
	if err := g.root.Write(device, driver, "bind"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, comeBack)
	defer cancel()
	for _, n := range names {
		for {
			if path, err := g.Find(n); err == nil {
				if _, err := os.Stat(path); err == nil {
					break
				}
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("virtio-serial port %q is not back within %s", n, comeBack)
			case <-time.After(lookFor):
			}
		}
	}
	return nil
}
