package agentapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/api"
)

// channel is a connected pair as the lab and QEMU share one: the lab's end, and the guest's.
func channel(t *testing.T) (lab, guest net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]net.Conn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "channel")
		ends[i], err = net.FileConn(f)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

// serve runs the guest's agent on its end of a channel.
func serve(t *testing.T, guest net.Conn) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- api.New(api.Config{}).Serve(t.Context(), guest) }()
	t.Cleanup(func() {
		guest.Close()
		<-done
	})
}

// ask makes a call that the agent refuses with a word of the call's own, so that an answer meant for another is noticed.
func ask(ctx context.Context, c *agentapi.Client, word string, params any) error {
	err := c.Call(ctx, word, params, nil)
	var e *agentapi.Error
	if errors.As(err, &e) {
		if e.Code != agentapi.CodeUnsupported || !strings.Contains(e.Message, fmt.Sprintf("%q", word)) {
			return fmt.Errorf("call %s was answered with %w", word, e)
		}
		return nil
	}
	if err == nil {
		return fmt.Errorf("call %s: no error", word)
	}
	return err
}

// hooked is a connection that tells when a line of the lab's has been taken as a whole.
type hooked struct {
	net.Conn
	written func()
}

func (h hooked) Write(p []byte) (int, error) {
	n, err := h.Conn.Write(p)
	h.written()
	return n, err
}

// One call that is given up is nobody else's business, at whatever moment that happens.
func TestGivenUpCalls(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 2<<20) // far more than a socket's buffer holds
	for name, try := range map[string]func(t *testing.T, lab, guest net.Conn) *agentapi.Client{
		"before anything was sent": func(t *testing.T, lab, guest net.Conn) *agentapi.Client {
			serve(t, guest)
			var sent atomic.Int32
			c := agentapi.NewClient(hooked{lab, func() { sent.Add(1) }})
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			for range 100 {
				if err := ask(ctx, c, "one", nil); !errors.Is(err, context.Canceled) {
					t.Errorf("given up: %v", err)
				}
			}
			if n := sent.Load(); n > 0 {
				t.Errorf("%d of the calls were sent all the same", n)
			}
			return c
		},
		"just after the last byte": func(t *testing.T, lab, guest net.Conn) *agentapi.Client {
			serve(t, guest)
			ctx, cancel := context.WithCancel(t.Context())
			c := agentapi.NewClient(hooked{lab, func() {
				cancel()
				time.Sleep(20 * time.Millisecond) // whoever watches the context acts on it now
			}})
			_ = ask(ctx, c, "one", nil) // its answer may have been faster
			return c
		},
		"with half a line taken": func(t *testing.T, lab, guest net.Conn) *agentapi.Client {
			c := agentapi.NewClient(lab)
			ctx, cancel := context.WithCancel(t.Context())
			in := bufio.NewReader(guest)
			go func() {
				_, _ = in.Peek(1)
				cancel()
			}()
			if err := ask(ctx, c, "one", large); !errors.Is(err, context.Canceled) {
				t.Errorf("given up: %v", err)
			}
			late, stop := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errors.New("too late"))
			defer stop()
			if err := ask(late, c, "two", nil); err == nil || !strings.Contains(err.Error(), "too late") { // it waits behind the other
				t.Errorf("behind it: %v", err)
			}
			serve(t, buffered{guest, in})
			return c
		},
		"with its answer on the way": func(t *testing.T, lab, guest net.Conn) *agentapi.Client {
			c := agentapi.NewClient(lab)
			ctx, cancel := context.WithCancel(t.Context())
			in := bufio.NewReader(guest)
			asked := make(chan agentapi.Request, 1)
			go func() {
				line, _ := in.ReadBytes('\n')
				var r agentapi.Request
				_ = json.Unmarshal(line, &r)
				asked <- r
				cancel()
			}()
			if err := ask(ctx, c, "one", nil); !errors.Is(err, context.Canceled) {
				t.Errorf("given up: %v", err)
			}
			r := <-asked
			line, err := json.Marshal(agentapi.Response{ID: r.ID, Error: agentapi.Errorf(agentapi.CodeFailed, "late")})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := guest.Write(append(line, '\n')); err != nil {
				t.Fatal(err)
			}
			serve(t, buffered{guest, in})
			return c
		},
		"for its length": func(t *testing.T, lab, guest net.Conn) *agentapi.Client {
			serve(t, guest)
			c := agentapi.NewClient(lab)
			if err := ask(t.Context(), c, "one", strings.Repeat("x", agentapi.MaxLine)); err == nil || !strings.Contains(err.Error(), "longer than the channel allows") {
				t.Errorf("a line that the guest does not read to its end: %v", err)
			}
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab, guest := channel(t)
			c := try(t, lab, guest)
			for n := range 3 {
				if err := ask(t.Context(), c, fmt.Sprintf("next-%d", n), nil); err != nil {
					t.Errorf("a later call: %v", err)
				}
			}
		})
	}
}

// buffered reads what a reader has taken from the connection already.
type buffered struct {
	net.Conn
	in *bufio.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.in.Read(p) }

// Many callers that give up at random moments leave the others their answers.
func TestGivingUpAtRandom(t *testing.T) {
	t.Parallel()
	const callers, calls = 20, 20
	lab, guest := channel(t)
	serve(t, guest)
	c := agentapi.NewClient(lab)
	var all sync.WaitGroup
	var mu sync.Mutex
	given := 0
	for n := range callers {
		all.Go(func() {
			params := strings.Repeat("x", n%3*50_000) // some fill the socket's buffer
			for m := range calls {
				ctx, cancel := context.WithCancel(t.Context())
				patient := (n+m)%3 == 0
				if !patient {
					time.AfterFunc(time.Duration(rand.IntN(2000))*time.Microsecond, cancel)
				}
				err := ask(ctx, c, fmt.Sprintf("call-%d-%d", n, m), params)
				cancel()
				if errors.Is(err, context.Canceled) && !patient {
					mu.Lock()
					given++
					mu.Unlock()
				} else if err != nil {
					t.Errorf("caller %d, call %d, patient %v: %v", n, m, patient, err)
					return
				}
			}
		})
	}
	all.Wait()
	if given == 0 || given == callers*calls {
		t.Errorf("%d of %d calls were given up: this shows nothing", given, callers*calls)
	}
}

// The end of the channel is the end of every call, with its reason, and of those to come.
func TestChannelEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		guest func(net.Conn)
		want  string
	}{
		"closed":              {func(g net.Conn) { g.Close() }, ""},
		"half a request read": {func(g net.Conn) { _, _ = io.ReadFull(g, make([]byte, 10)); g.Close() }, ""},
		"no response":         {func(g net.Conn) { _, _ = g.Write([]byte("hello\n")) }, "not a response"},
		"never asked":         {func(g net.Conn) { _, _ = g.Write([]byte(`{"id":77}` + "\n")) }, "never asked"},
		"half a response":     {func(g net.Conn) { _, _ = g.Write([]byte(`{"id":`)); g.Close() }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab, guest := channel(t)
			client := agentapi.NewClient(lab)
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() {
					if err := client.Call(t.Context(), "x", nil, nil); err == nil || !strings.Contains(err.Error(), c.want) {
						t.Errorf("call under way: %v; want %q", err, c.want)
					}
				})
			}
			c.guest(guest)
			all.Wait()
			if err := client.Call(t.Context(), "x", nil, nil); err == nil || !strings.Contains(err.Error(), "the channel is gone") {
				t.Errorf("call to come: %v", err)
			}
		})
	}
}
