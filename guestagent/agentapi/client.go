package agentapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Client calls the agent over one channel. Calls may come from several goroutines and are answered as each is done.
// A call whose context ends is given up, which is no other call's business: the guest may still carry it out, and its answer is dropped.
type Client struct {
	conn io.ReadWriteCloser

	lines chan []byte   // to be sent, each as a whole
	ended chan struct{} // closed when nothing is sent or read any more

	mu      sync.Mutex
	lastID  uint64
	waiting map[uint64]chan<- Response
	broken  error // why there are no more answers
}

// NewClient speaks the agent protocol over conn and owns it from then on.
func NewClient(conn io.ReadWriteCloser) *Client {
	c := &Client{conn: conn, lines: make(chan []byte), ended: make(chan struct{}), waiting: map[uint64]chan<- Response{}}
	go c.write()
	go func() { c.end(c.read()) }()
	return c
}

// Close ends the channel, and with it all calls.
func (c *Client) Close() error { return c.conn.Close() }

// Call sends one request and decodes its answer into result, which may be nil. A failure the guest reports is an *Error.
func (c *Client) Call(ctx context.Context, method string, params, result any) error {
	resp, err := c.exchange(ctx, method, params)
	if err != nil {
		return fmt.Errorf("guest agent: %s: %w", method, err)
	}
	if resp.Error != nil {
		return fmt.Errorf("%s: %w", method, resp.Error)
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(resp.Result, result); err != nil {
		return fmt.Errorf("guest agent: %s: unreadable answer: %w", method, err)
	}
	return nil
}

func (c *Client) exchange(ctx context.Context, method string, params any) (Response, error) {
	p, err := json.Marshal(params)
	if err != nil {
		return Response{}, err
	}
	answer := make(chan Response, 1)
	id, err := c.expect(answer)
	if err != nil {
		return Response{}, err
	}
	defer c.forget(id)
	line, err := json.Marshal(Request{ID: id, Method: method, Params: p})
	if err != nil {
		return Response{}, err
	}
	if len(line) >= MaxLine { // the guest would read no further
		return Response{}, fmt.Errorf("the request of %d bytes is longer than the channel allows", len(line))
	}
	if err := context.Cause(ctx); err != nil { // select takes either of two that are ready
		return Response{}, err
	}
	select {
	case c.lines <- append(line, '\n'):
	case <-c.ended:
		return Response{}, c.gone()
	case <-ctx.Done():
		return Response{}, context.Cause(ctx)
	}
	select {
	case resp, ok := <-answer:
		if !ok {
			return Response{}, c.gone()
		}
		return resp, nil
	case <-ctx.Done():
		return Response{}, context.Cause(ctx)
	}
}

// expect makes sure that the answer to the returned id is sent; the channel is closed if none will come.
func (c *Client) expect(answer chan<- Response) (id uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return 0, fmt.Errorf("the channel is gone: %w", c.broken)
	}
	c.lastID++
	c.waiting[c.lastID] = answer
	return c.lastID, nil
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

func (c *Client) gone() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

// write sends the lines that calls hand over. Half a line would cost the guest its place, and with it all calls, so a line that has begun is sent to its end, even if
// its call is given up meanwhile; calls behind it that are given up before their turn leave nothing.
func (c *Client) write() {
	for {
		select {
		case line := <-c.lines:
			if _, err := c.conn.Write(line); err != nil {
				c.end(err)
				return
			}
		case <-c.ended:
			return
		}
	}
}

// read hands out the answers until there are no more.
func (c *Client) read() error {
	in := bufio.NewReaderSize(c.conn, 64<<10)
	for {
		line, err := ReadLine(in)
		if err != nil {
			return err
		}
		var resp Response
		if err := json.Unmarshal(line, &resp); err != nil {
			return fmt.Errorf("not a response: %w", err)
		}
		c.mu.Lock()
		answer, asked := c.waiting[resp.ID], resp.ID > 0 && resp.ID <= c.lastID
		delete(c.waiting, resp.ID)
		c.mu.Unlock()
		if !asked {
			return fmt.Errorf("response to request %d, which was never asked", resp.ID)
		}
		if answer != nil { // it may have been given up
			answer <- resp
		}
	}
}

// end fails all calls, those under way and those to come. The first reason counts.
func (c *Client) end(why error) {
	c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return
	}
	c.broken = why
	close(c.ended)
	for id, answer := range c.waiting {
		close(answer)
		delete(c.waiting, id)
	}
}

// ErrLineTooLong is returned by ReadLine for a line above MaxLine.
var ErrLineTooLong = errors.New("line longer than the protocol allows")

// ReadLine reads one line without its newline, at most MaxLine bytes.
func ReadLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > MaxLine {
			return nil, ErrLineTooLong
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		default:
			if errors.Is(err, io.EOF) && len(line) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}
