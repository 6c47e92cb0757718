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

// Client calls the agent over one channel. Calls may come from several goroutines; they are answered one at a time.
// A call whose context ends closes the channel, since the answer it left behind would be taken for the next call's: every later call fails.
type Client struct {
	mu     sync.Mutex
	conn   io.ReadWriteCloser
	in     *bufio.Reader
	nextID uint64
	broken error
}

// NewClient speaks the agent protocol over conn and owns it from then on.
func NewClient(conn io.ReadWriteCloser) *Client {
	return &Client{conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}
}

// Close ends the channel.
func (c *Client) Close() error { return c.conn.Close() }

// Call sends one request and decodes its answer into result, which may be nil. A failure the guest reports is an *Error.
func (c *Client) Call(ctx context.Context, method string, params, result any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return fmt.Errorf("guest agent: %s: the channel is gone: %w", method, c.broken)
	}
	p, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("guest agent: %s: %w", method, err)
	}
	c.nextID++
	req, err := json.Marshal(Request{ID: c.nextID, Method: method, Params: p})
	if err != nil {
		return fmt.Errorf("guest agent: %s: %w", method, err)
	}
	stop := context.AfterFunc(ctx, func() { c.conn.Close() })
	resp, err := c.exchange(append(req, '\n'))
	if !stop() && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		c.broken = err
		c.conn.Close()
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

func (c *Client) exchange(line []byte) (*Response, error) {
	if _, err := c.conn.Write(line); err != nil {
		return nil, err
	}
	answer, err := ReadLine(c.in)
	if err != nil {
		return nil, err
	}
	var resp Response
	if err := json.Unmarshal(answer, &resp); err != nil {
		return nil, fmt.Errorf("not a response: %w", err)
	}
	if resp.ID != c.nextID {
		return nil, fmt.Errorf("response to request %d while %d was asked", resp.ID, c.nextID)
	}
	return &resp, nil
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
