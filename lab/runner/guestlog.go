package runner

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"irqlab/guestagent/agentapi"
	"irqlab/lab/guestlog"
	"irqlab/lab/qemu/klog"
)

// consoleTime is how long the console may take to print what was logged before a line.
const consoleTime = 10 * time.Second

// consoleMark begins the line that tells how far the console is.
const consoleMark = "irqlab: console mark "

// guestLog is what the guest logged after a record; the zero record: since it booted. Where the guest's own buffer has forgotten lines, the console fills in.
func (e *experiment) guestLog(ctx context.Context, after agentapi.LogRecord) (guestlog.Log, error) {
	log, err := e.vm.Agent.Log(ctx, after.Seq)
	if err != nil {
		return guestlog.Log{}, err
	}
	whole := guestlog.Whole(log.Records)
	if log.Lost {
		shown, err := e.console(ctx)
		if err != nil {
			return guestlog.Log{}, err
		}
		whole = guestlog.Merge(after, log.Records, shown)
	}
	whole.Records = slices.DeleteFunc(whole.Records, func(r agentapi.LogRecord) bool { return strings.HasPrefix(r.Text, consoleMark) })
	return whole, nil
}

// console is what the console shows once it has come to now.
func (e *experiment) console(ctx context.Context) (guestlog.Shown, error) {
	mark := consoleMark + rand.Text()
	if err := e.vm.Agent.MarkShown(ctx, mark); err != nil {
		return guestlog.Shown{}, err
	}
	timed, cancel := context.WithTimeout(ctx, consoleTime)
	defer cancel()
	reached := e.vm.Console().Shows(timed, mark)
	text, cut := e.vm.Console().Text()
	shown := guestlog.FromConsole(text)
	shown.Cut = cut
	if !reached && cut == "" {
		shown.Cut = fmt.Sprintf("the console does not show a warning within %s of its being logged", consoleTime)
	}
	return shown, nil
}

// kernelLog finds the reports of trouble in all that the guest logged. Where none is found in a log that is not whole, the error says so: none can be ruled out.
func (e *experiment) kernelLog(ctx context.Context) ([]klog.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, diagnosis)
	defer cancel()
	warnings, err := e.vm.Agent.Warnings(ctx) // a tenth of the log
	if err != nil {
		return nil, err
	}
	log := guestlog.Whole(warnings.Records)
	if warnings.Lost {
		if log, err = e.guestLog(ctx, agentapi.LogRecord{}); err != nil {
			return nil, err
		}
	}
	var s klog.Scanner
	for _, r := range log.Records {
		if r.Level < guestlog.ShownBelow {
			fmt.Fprintf(&s, "[%12.6f] %s\n", r.Seconds, r.Text)
		}
	}
	s.Flush()
	findings := s.Findings()
	if len(findings) == 0 && e.c.Expect.CleanLog() {
		return nil, log.Lost(guestlog.ShownBelow)
	}
	return findings, nil
}
