// Package api serves agentapi's methods over a channel of JSON lines: it decodes requests, calls the packages that know the kernel's
// interfaces, and turns their errors into replies. It knows no port.
package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
	"irqlab/guestagent/module"
)

// Function is a PCI function the agent drives; *vfio.Function in a guest.
type Function interface {
	Vectors() int       // MSI-X table size
	Enabled() int       // vectors 0..n-1 are enabled
	AddVector() error   // enables the next one
	GiveUp(k int) error // frees an enabled one's interrupt; its place in the table stays taken
	GivenUp(k int) bool
	// ReadRegister reads size bytes of BAR 0: 1, 2, 4 or 8, aligned.
	ReadRegister(offset uint64, size int) (uint64, error)
	Close() error // frees all
}

// Config is what an Agent works with.
type Config struct {
	Root     kfile.Root                                    // holds proc, sys and dev
	Modules  module.Loader                                 // where module files are
	Open     func(address, group string) (Function, error) // opens a function bound to vfio-pci
	PowerOff func()                                        // called after the request for it was answered
	HostKey  func(seed []byte)                             // gives later SSH connections the host key of an ed25519 seed
	Log      func(format string, args ...any)
}

// Agent holds what outlives one channel: the functions it drives. Its methods run side by side; what allocates interrupts waits its turn.
type Agent struct {
	cfg     Config
	methods map[string]handler

	mu        sync.Mutex // guards functions, and serializes all that allocates interrupts
	functions map[string]Function
}

type handler func(ctx context.Context, params json.RawMessage) (any, error)

// New makes an Agent.
func New(cfg Config) *Agent {
	if cfg.Log == nil {
		cfg.Log = func(string, ...any) {}
	}
	a := &Agent{cfg: cfg, functions: map[string]Function{}}
	a.methods = map[string]handler{
		agentapi.MethodInfo:          method(a.info),
		agentapi.MethodLoadModule:    method(a.loadModule),
		agentapi.MethodUnloadModule:  method(a.unloadModule),
		agentapi.MethodReplaceModule: method(a.replaceModule),
		agentapi.MethodFindFunction:  method(a.findFunction),
		agentapi.MethodRescan:        method(a.rescan),
		agentapi.MethodOpenFunction:  method(a.openFunction),
		agentapi.MethodAddVectors:    method(a.addVectors),
		agentapi.MethodCloseFunction: method(a.closeFunction),
		agentapi.MethodReadRegister:  method(a.readRegister),
		agentapi.MethodFunctionIRQs:  method(a.functionIRQs),
		agentapi.MethodBind:          method(a.bind),
		agentapi.MethodUnbind:        method(a.unbind),
		agentapi.MethodReset:         method(a.reset),
		agentapi.MethodApply:         method(a.apply),
		agentapi.MethodSetAffinity:   method(a.setAffinity),
		agentapi.MethodOccupy:        method(a.occupy),
		agentapi.MethodSetCPU:        method(a.setCPU),
		agentapi.MethodStorm:         method(a.storm),
		agentapi.MethodObserve:       method(a.observe),
		agentapi.MethodAwait:         method(a.await),
		agentapi.MethodAwaitTotals:   method(a.awaitTotals),
		agentapi.MethodLog:           method(a.readLog),
		agentapi.MethodMark:          method(a.mark),
		agentapi.MethodLinks:         method(a.links),
		agentapi.MethodSetLink:       method(a.setLink),
		agentapi.MethodReadDisks:     method(a.readDisks),
		agentapi.MethodRefresh:       method(a.refresh),
		agentapi.MethodPowerOff:      method(a.powerOff),
	}
	return a
}

// method adapts a typed method. Unknown parameters are refused: a silently ignored one would make an experiment not what it says.
func method[P, R any](f func(context.Context, P) (R, error)) handler {
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		var p P
		if len(raw) > 0 {
			d := json.NewDecoder(bytes.NewReader(raw))
			d.DisallowUnknownFields()
			if err := d.Decode(&p); err != nil {
				return nil, fault.New(agentapi.CodeInvalid, "parameters: %w", err)
			}
		}
		return f(ctx, p)
	}
}

// Serve answers the requests of one channel, each as soon as it is done, until the peer closes it, which is no error, or ctx ends. It returns when the last request has.
// A line that is no JSON ends it: nothing tells where the next request would begin or which id to answer.
func (a *Agent) Serve(ctx context.Context, channel io.ReadWriter) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(nil)
	var writing sync.Mutex
	in := bufio.NewReaderSize(channel, 64<<10)
	for {
		line, err := agentapi.ReadLine(in)
		if errors.Is(err, io.EOF) {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		var req agentapi.Request
		if err := json.Unmarshal(line, &req); err != nil {
			return fmt.Errorf("not a request: %w", err)
		}
		running.Go(func() {
			out := encode(req, a.answer(ctx, req))
			writing.Lock()
			defer writing.Unlock()
			if _, err := channel.Write(out); err != nil {
				cancel(err)
			} else if req.Method == agentapi.MethodPowerOff {
				a.cfg.PowerOff()
			}
		})
	}
}

// encode makes a line of a response.
func encode(req agentapi.Request, resp agentapi.Response) []byte {
	out, err := json.Marshal(resp)
	if err == nil && len(out) >= agentapi.MaxLine {
		err = fmt.Errorf("the answer of %d bytes is longer than the channel allows", len(out))
	}
	if err != nil {
		out, _ = json.Marshal(agentapi.Response{ID: req.ID, Error: agentapi.Errorf(agentapi.CodeFailed, "%.64s: %s", req.Method, err)})
	}
	return append(out, '\n')
}

// answer runs one request. A panic in it is answered as a failure, for it must not take PID 1 and the kernel down.
func (a *Agent) answer(ctx context.Context, req agentapi.Request) (resp agentapi.Response) {
	defer func() {
		if p := recover(); p != nil {
			a.cfg.Log("%s: panic: %v\n%s", req.Method, p, debug.Stack())
			resp = agentapi.Response{ID: req.ID, Error: agentapi.Errorf(agentapi.CodeFailed, "%s: the agent panicked: %v", req.Method, p)}
		}
	}()
	m, ok := a.methods[req.Method]
	if !ok {
		return agentapi.Response{ID: req.ID, Error: agentapi.Errorf(agentapi.CodeUnsupported, "no method %.64q", req.Method)}
	}
	result, err := m(ctx, req.Params)
	if err == nil {
		var raw []byte
		if raw, err = json.Marshal(result); err == nil {
			return agentapi.Response{ID: req.ID, Result: raw}
		}
	}
	return agentapi.Response{ID: req.ID, Error: fault.Reply(err)}
}

// Close gives all functions back.
func (a *Agent) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for address, f := range a.functions {
		errs = append(errs, f.Close())
		delete(a.functions, address)
	}
	return errors.Join(errs...)
}
