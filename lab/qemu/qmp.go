package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/digitalocean/go-qemu/qmp"
)

const (
	qmpTimeout = 30 * time.Second // a busy TCG guest may hold QEMU's main loop for seconds
	// While a function is attached QEMU's main loop waits for the function's server, up to 5 s per message (reference, vfio-user 1.6).
	attachTimeout = 60 * time.Second
	maxQMPLine    = 8 << 20 // the longest answers, QEMU's own schema aside, are some 100 KiB
	maxEvents     = 256
	greetingID    = 0 // the greeting counts as the answer to a command of this id
)

// errChannelEnded tells that QEMU has closed QMP, which it does only when it ends.
var errChannelEnded = errors.New("the QMP channel has ended")

// wire speaks QMP on an inherited descriptor.
//
// go-qemu's own SocketMonitor is not used for that: it only dials or listens by path, gives up at an answer of 64 KiB, knows no deadline, and hands out
// answers in a buffer that its reader goes on reading into. Commands, events and the typed calls above it are go-qemu's.
type wire struct {
	conn  net.Conn
	event func(qmp.Event)
	late  func(*TimeoutError) // called when a command has blown its deadline
	ended chan struct{}       // closed when nothing more comes

	writing sync.Mutex
	mu      sync.Mutex
	lastID  uint64
	pending map[uint64]*pending
}

// pending is a command that has not been answered. Its caller may have gone; its deadline stands.
type pending struct {
	answer   chan []byte
	deadline *time.Timer
}

func newWire(conn net.Conn, event func(qmp.Event), late func(*TimeoutError)) *wire {
	return &wire{conn: conn, event: event, late: late, ended: make(chan struct{}), pending: map[uint64]*pending{}}
}

// read takes what QEMU sends until it ends.
func (w *wire) read() {
	defer close(w.ended)
	in := bufio.NewReaderSize(w.conn, 64<<10)
	for {
		line, err := readLine(in)
		if err != nil {
			break
		}
		var head struct {
			QMP   json.RawMessage
			Event string
			ID    *uint64
		}
		if json.Unmarshal(line, &head) != nil {
			continue
		}
		switch {
		case head.QMP != nil:
			w.answer(greetingID, line)
		case head.Event != "":
			var e qmp.Event
			if json.Unmarshal(line, &e) == nil {
				w.event(e)
			}
		case head.ID != nil:
			w.answer(*head.ID, line)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.pending {
		p.deadline.Stop()
	}
	clear(w.pending)
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

func (w *wire) answer(id uint64, line []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pending[id]; p != nil {
		delete(w.pending, id)
		p.deadline.Stop()
		p.answer <- line
	}
}

// expect registers a command before it is sent.
func (w *wire) expect(id uint64, command string, timeout time.Duration) *pending {
	p := &pending{answer: make(chan []byte, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	p.deadline = time.AfterFunc(timeout, func() { w.late(&TimeoutError{Command: command, After: timeout}) })
	w.pending[id] = p
	return p
}

func (w *wire) await(ctx context.Context, p *pending) ([]byte, error) {
	select {
	case line := <-p.answer:
		return line, nil
	case <-w.ended:
		select {
		case line := <-p.answer: // QEMU's last words
			return line, nil
		default:
			p.deadline.Stop()
			return nil, errChannelEnded
		}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// greet awaits QEMU's greeting and agrees to talk.
func (w *wire) greet(ctx context.Context, greeting *pending, timeout time.Duration) error {
	if _, err := w.await(ctx, greeting); err != nil {
		return err
	}
	_, err := w.run(ctx, timeout, qmp.Command{Execute: "qmp_capabilities"})
	return err
}

// run sends a command and returns the line that answers it.
func (w *wire) run(ctx context.Context, timeout time.Duration, command qmp.Command) ([]byte, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.lastID++
	id := w.lastID
	w.mu.Unlock()
	line, err := json.Marshal(struct {
		qmp.Command
		ID uint64 `json:"id"`
	}{command, id})
	if err != nil {
		return nil, err
	}
	p := w.expect(id, command.Execute, timeout)
	w.writing.Lock()
	_, err = w.conn.Write(append(line, '\n'))
	w.writing.Unlock()
	if err != nil { // for which there is one reason; what QEMU said before it ended may still be on its way
		p.deadline.Stop()
		<-w.ended
		return nil, errChannelEnded
	}
	answer, err := w.await(ctx, p)
	if err != nil {
		return nil, err
	}
	var refusal struct {
		Error *struct{ Class, Desc string }
	}
	if err := json.Unmarshal(answer, &refusal); err != nil {
		return nil, fmt.Errorf("unreadable answer: %w", err)
	}
	if e := refusal.Error; e != nil {
		return nil, &CommandError{Command: command.Execute, Class: e.Class, Desc: e.Desc}
	}
	return answer, nil
}

// QMP runs one command and decodes what it returns into result, which may be nil; args may be nil.
//
// A refusal is a *CommandError. When QEMU does not answer in 30 s it is killed, and the error is a *DeadError with a *TimeoutError inside. When ctx ends
// first QMP returns at once and leaves QEMU alone, though not without that deadline.
func (p *Process) QMP(ctx context.Context, command string, args, result any) error {
	return p.qmp(ctx, p.qmpTimeout, command, args, result)
}

func (p *Process) qmp(ctx context.Context, timeout time.Duration, command string, args, result any) error {
	line, err := p.wire.run(ctx, timeout, qmp.Command{Execute: command, Args: args})
	if err != nil {
		return p.qmpError(command, err)
	}
	if result == nil {
		return nil
	}
	answer := struct{ Return any }{result}
	if err := json.Unmarshal(line, &answer); err != nil {
		return fmt.Errorf("QMP %s: unreadable answer: %w", command, err)
	}
	return nil
}

// qmpError names the command in an error, and turns the end of the channel into the end of QEMU, which it awaits.
func (p *Process) qmpError(command string, err error) error {
	var refused *CommandError
	switch {
	case errors.As(err, &refused):
		return err
	case errors.Is(err, errChannelEnded):
		select {
		case <-p.done:
		case <-time.After(exitGrace):
			p.kill(fmt.Errorf("QMP %s: %w", command, err))
			<-p.done
		}
		return p.deadError(command)
	}
	return fmt.Errorf("QMP %s: %w", command, err)
}

// typed is the process as go-qemu's typed calls want it. Its calls have the deadline of any other.
type typed struct {
	ctx context.Context // go-qemu's interface has no other place for one
	p   *Process
}

var _ qmp.Monitor = typed{}

// Connect does nothing: Start has connected.
func (typed) Connect() error { return nil }

// Disconnect does nothing: Close disconnects.
func (typed) Disconnect() error { return nil }

// Events is not supported: see Process.WaitEvent.
func (typed) Events(context.Context) (<-chan qmp.Event, error) { return nil, qmp.ErrEventsNotSupported }

// Run runs a command as go-qemu writes it.
func (t typed) Run(line []byte) ([]byte, error) {
	var command struct {
		Execute   string
		Arguments json.RawMessage
	}
	if err := json.Unmarshal(line, &command); err != nil {
		return nil, fmt.Errorf("QMP: %w", err)
	}
	answer, err := t.p.wire.run(t.ctx, t.p.qmpTimeout, qmp.Command{Execute: command.Execute, Args: command.Arguments})
	if err != nil {
		return nil, t.p.qmpError(command.Execute, err)
	}
	return answer, nil
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
		p.forgotten++
	}
	if e.Event == "SHUTDOWN" {
		p.shutdown, _ = e.Data["reason"].(string)
	}
	close(p.eventCame)
	p.eventCame = make(chan struct{})
}

// eventCount is how many events QEMU has sent.
func (p *Process) eventCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.forgotten + len(p.events)
}

// WaitEvent returns the first event, past or to come, that match accepts.
func (p *Process) WaitEvent(ctx context.Context, match func(qmp.Event) bool) (qmp.Event, error) {
	return p.waitEvent(ctx, 0, match)
}

// waitEvent is WaitEvent for those that followed the first since events.
func (p *Process) waitEvent(ctx context.Context, since int, match func(qmp.Event) bool) (qmp.Event, error) {
	for {
		p.mu.Lock()
		came := p.eventCame
		for _, e := range p.events[min(max(since-p.forgotten, 0), len(p.events)):] {
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
