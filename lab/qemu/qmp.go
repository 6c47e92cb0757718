package qemu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/digitalocean/go-qemu/qmp"
)

const (
	qmpTimeout = 30 * time.Second // a busy TCG guest may hold QEMU's main loop for seconds
	// While a function is attached QEMU's main loop waits for the function's server, up to 5 s per message (reference, vfio-user 1.6).
	attachTimeout = 60 * time.Second
	maxQMPLine    = 8 << 20
	// go-qemu reads QMP with a bufio.Scanner, which gives up for good at a line of 64 KiB.
	maxMonitorLine = bufio.MaxScanTokenSize - 1024
	maxEvents      = 256
)

// monitor is go-qemu's monitor on an inherited descriptor.
//
// go-qemu's SocketMonitor only dials by path, so it is given a socket in the run directory that the lab itself accepts on and then unlinks. Between that and
// QEMU sits a relay which takes the events out of the stream: go-qemu reads on into the buffer that holds an answer it has just handed over, which is
// harmless only when nothing comes between an answer and the next command.
type monitor struct {
	mon   *qmp.SocketMonitor
	near  net.Conn // the lab's end of the socket go-qemu has dialled
	far   net.Conn // the lab's end of QEMU's socket
	run   chan struct{}
	done  sync.WaitGroup
	event func(qmp.Event)

	mu      sync.Mutex
	lastErr struct{ Class, Desc string } // of the last answer; empty: it was none
}

// newMonitor makes the monitor and the descriptor to hand to QEMU. dir is the run directory.
func newMonitor(dir string, event func(qmp.Event)) (*monitor, *os.File, error) {
	far, child, err := channel("qmp")
	if err != nil {
		return nil, nil, err
	}
	m := &monitor{far: far, run: make(chan struct{}, 1), event: event}
	if m.mon, m.near, err = dialed(filepath.Join(dir, "qmp.sock")); err != nil {
		return nil, nil, errors.Join(err, far.Close(), child.Close())
	}
	m.done.Add(2)
	go func() {
		defer m.done.Done()
		_, _ = io.Copy(m.far, m.near) // commands
	}()
	go func() {
		defer m.done.Done()
		m.relay()
		_ = m.near.Close() // whoever awaits an answer learns that none will come
	}()
	return m, child, nil
}

// dialed returns a go-qemu monitor and the other end of its connection.
func dialed(path string) (*qmp.SocketMonitor, net.Conn, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, nil, fmt.Errorf("QMP socket: %w", err)
	}
	defer l.Close() // unlinks the path
	mon, err := qmp.NewSocketMonitor("unix", path, qmpTimeout)
	if err != nil {
		return nil, nil, fmt.Errorf("QMP socket: %w", err)
	}
	conn, err := l.Accept()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("QMP socket: %w", err), mon.Disconnect())
	}
	return mon, conn, nil
}

// relay passes the greeting and the answers on to go-qemu and keeps the events.
func (m *monitor) relay() {
	in := bufio.NewReaderSize(m.far, 64<<10)
	for {
		line, err := readLine(in)
		if err != nil {
			return
		}
		var head struct {
			Event string
			Error struct{ Class, Desc string }
		}
		if json.Unmarshal(line, &head) != nil {
			continue
		}
		if head.Event != "" {
			var e qmp.Event
			if json.Unmarshal(line, &e) == nil {
				m.event(e)
			}
			continue
		}
		if len(line) > maxMonitorLine {
			head.Error.Class, head.Error.Desc = "GenericError", fmt.Sprintf("the answer is %d bytes, more than can be taken", len(line))
			line = fmt.Appendf(nil, `{"error":{"class":%q,"desc":%q}}`, head.Error.Class, head.Error.Desc)
		}
		m.setLastError(head.Error.Class, head.Error.Desc)
		if _, err := m.near.Write(append(bytes.TrimSpace(line), '\n')); err != nil {
			return
		}
	}
}

func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxQMPLine {
			return nil, errors.New("QMP line too long")
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

func (m *monitor) lastError() (class, desc string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lastErr.Class, m.lastErr.Desc
}

func (m *monitor) setLastError(class, desc string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastErr.Class, m.lastErr.Desc = class, desc
}

// close ends the monitor. QEMU is gone.
func (m *monitor) close() {
	_ = m.far.Close()
	_ = m.near.Close()
	m.done.Wait()
	_ = m.mon.Disconnect()
}

// QMP runs one command and decodes what it returns into result, which may be nil; args may be nil. Calls are answered one at a time.
//
// A refusal is a *CommandError. When QEMU does not answer in 30 s it is killed, and the error is a *DeadError with a *TimeoutError inside. When ctx ends
// first QMP returns at once and leaves QEMU alone: the answer is still awaited, by the same deadline, before the next command goes out.
func (p *Process) QMP(ctx context.Context, command string, args, result any) error {
	return p.qmp(ctx, p.qmpTimeout, command, args, result)
}

func (p *Process) qmp(ctx context.Context, timeout time.Duration, command string, args, result any) error {
	line, err := json.Marshal(qmp.Command{Execute: command, Args: args})
	if err != nil {
		return fmt.Errorf("QMP %s: %w", command, err)
	}
	var out []byte
	err = p.exchange(ctx, timeout, command, func() error {
		answer, err := p.monitor.mon.Run(line)
		out = bytes.Clone(answer)
		return err
	})
	if err != nil {
		return err
	}
	if result == nil {
		return nil
	}
	answer := struct{ Return any }{result}
	if err := json.Unmarshal(out, &answer); err != nil {
		return fmt.Errorf("QMP %s: unreadable answer: %w", command, err)
	}
	return nil
}

// exchange runs one conversation with the monitor, alone and within the deadline.
func (p *Process) exchange(ctx context.Context, timeout time.Duration, command string, talk func() error) error {
	select {
	case p.monitor.run <- struct{}{}:
	case <-p.done:
		return p.deadError(command)
	case <-ctx.Done():
		return fmt.Errorf("QMP %s: %w", command, context.Cause(ctx))
	}
	if !p.begin() {
		<-p.monitor.run
		<-p.done
		return p.deadError(command)
	}
	finished := make(chan error, 1)
	go func() {
		defer p.background.Done()
		defer func() { <-p.monitor.run }()
		late := time.AfterFunc(timeout, func() { p.kill(&TimeoutError{Command: command, After: timeout}) })
		defer late.Stop()
		p.monitor.setLastError("", "")
		err := talk()
		class, desc := p.monitor.lastError()
		switch {
		case err == nil:
		case desc != "":
			err = &CommandError{Command: command, Class: class, Desc: desc}
		default:
			// The channel has ended, so QEMU has, or is about to.
			select {
			case <-p.done:
			case <-time.After(exitGrace):
				p.kill(fmt.Errorf("QMP %s: the channel has ended: %w", command, err))
				<-p.done
			}
			err = p.deadError(command)
		}
		finished <- err
	}()
	select {
	case err := <-finished:
		return err
	case <-ctx.Done():
		return fmt.Errorf("QMP %s: %w", command, context.Cause(ctx))
	}
}

// begin takes part in what Close waits for; false: it is too late.
func (p *Process) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return false
	}
	p.background.Add(1)
	return true
}

// Events returns the events QEMU has sent, oldest first, at most the last 256.
func (p *Process) Events() []qmp.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]qmp.Event(nil), p.events...)
}

func (p *Process) onEvent(e qmp.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.events = append(p.events, e); len(p.events) > maxEvents {
		p.events = append(p.events[:0], p.events[1:]...)
	}
	if e.Event == "SHUTDOWN" {
		p.shutdown, _ = e.Data["reason"].(string)
	}
	close(p.eventCame)
	p.eventCame = make(chan struct{})
}

// WaitEvent returns the first event, past or to come, that match accepts.
func (p *Process) WaitEvent(ctx context.Context, match func(qmp.Event) bool) (qmp.Event, error) {
	for {
		p.mu.Lock()
		came := p.eventCame
		for _, e := range p.events {
			if match(e) {
				p.mu.Unlock()
				return e, nil
			}
		}
		p.mu.Unlock()
		select {
		case <-came:
		case <-p.done:
			return qmp.Event{}, p.deadError("")
		case <-ctx.Done():
			return qmp.Event{}, fmt.Errorf("QEMU event: %w\nlast console lines:\n%s", context.Cause(ctx), indent(p.console.Tail(tailLines)))
		}
	}
}
