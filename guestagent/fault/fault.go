// Package fault gives the agent's errors the code the lab decides by. It knows the channel's codes and errno, nothing else.
package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"irqlab/guestagent/agentapi"
)

// Error is an error with one of agentapi's codes.
type Error struct {
	Code string
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// New makes an Error; format may wrap with %w.
func New(code, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// Reply turns any error into what crosses the channel. An explicit code wins; else a missing file is not-found, an errno is the
// kernel's refusal, and the rest is failed.
func Reply(err error) *agentapi.Error {
	out := &agentapi.Error{Code: agentapi.CodeFailed, Message: err.Error()}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		out.Errno = int(errno)
		out.Code = agentapi.CodeRefused
	}
	if errors.Is(err, fs.ErrNotExist) {
		out.Code = agentapi.CodeNotFound
	}
	var coded *Error
	if errors.As(err, &coded) {
		out.Code = coded.Code
	}
	return out
}
