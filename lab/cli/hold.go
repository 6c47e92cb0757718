package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"irqlab/lab/foreign"
	"irqlab/lab/report"
	"irqlab/lab/runner"
	"irqlab/scenarios"
)

const (
	// stepPatience is how long the prompt waits for a step; after that the step goes on beside it.
	stepPatience = 3 * time.Second
	// reachTime is how long the device may take to come to the step it is to be held at. A reset service begins with a sleep of 10 s.
	reachTime = time.Minute
	logLines  = 20
)

// What a hold can be reached by.
var durings = []string{scenarios.VerbProbe, scenarios.VerbUp, scenarios.VerbResetService}

const holdHelp = `What you type is a step of the scenario language (irqlab list steps), for instance
  offline 2-3          take CPUs offline; online 2-3 brings them back
  unplug 3             take a CPU out of the machine by ACPI; replug 3, online 3
  release              let the device go on
  settle               fire every vector until it has moved
  hold STEP            hold the device once more; reset-service, up, down … to get there
or one of
  vectors              read and show where every vector is
  status               what is held, how far the device got, which CPUs are online
  log                  the kernel's last lines
  shell                a terminal in the guest; leave it to come back here
  help, quit
A step that takes longer goes on beside the prompt, which tells when it is done.
`

// holdSession lets a person lead an experiment whose device stands still.
type holdSession struct {
	s        Streams
	se       *runner.Session
	lines    lines
	readings int // made by "vectors"
}

// lines is where commands come from and messages go.
type lines interface {
	read(prompt string) (string, error)
	print(text string)
	leave() // for good: gives the terminal back although a line is still waited for
}

// begin brings the driver to where the device is to stand.
func (h *holdSession) begin(ctx context.Context, at, during string) error {
	hold, err := scenarios.ParseStep(scenarios.VerbHold + " " + at)
	if err != nil {
		return err
	}
	var before []string
	switch during {
	case scenarios.VerbUp:
		before = []string{scenarios.VerbProbe}
	case scenarios.VerbResetService:
		before = []string{scenarios.VerbProbe, scenarios.VerbUp}
	}
	for _, verb := range before {
		if err := h.do(ctx, scenarios.Step{Verb: verb}, true); err != nil {
			return err
		}
	}
	if err := h.se.Do(hold); err != nil {
		return err
	}
	trigger, err := scenarios.ParseStep(during)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- h.se.Do(trigger) }()
	timed, cancel := context.WithTimeoutCause(ctx, reachTime, fmt.Errorf("%s did not come to %s within %s", during, hold.Rule.Step, reachTime))
	defer cancel()
	reached := make(chan error, 1)
	go func() { reached <- h.se.AwaitHeld(timed, hold.Rule.Name) }()
	select {
	case err = <-reached:
	case err = <-done:
		if err == nil && during != scenarios.VerbResetService { // which is posted, and does not wait
			err = fmt.Errorf("%s came to its end and not to %s; does this kernel send it? %s", during, hold.Rule.Step, h.se.Progress())
		}
		if err == nil {
			err = <-reached
		}
		done <- nil
	}
	if err != nil {
		return err
	}
	if during != scenarios.VerbResetService {
		go h.tell(during, done)
	}
	return nil
}

// do carries out a step and waits for its end; if patience ends first, and it need not be done, it goes on beside the prompt.
func (h *holdSession) do(ctx context.Context, step scenarios.Step, toTheEnd bool) error {
	done := make(chan error, 1)
	go func() { done <- h.se.Do(step) }()
	var enough <-chan time.Time
	if !toTheEnd {
		enough = time.After(stepPatience)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-enough:
		h.lines.print(step.String() + " goes on\n")
		go h.tell(step.String(), done)
		return nil
	}
}

// tell says how a step ended that went on beside the prompt.
func (h *holdSession) tell(what string, done <-chan error) {
	end := "done"
	if err := <-done; err != nil {
		end = plainStep(err)
	}
	h.lines.print(what + ": " + end + "\n")
}

// plainStep is a step's error without the place of the step, which a person has just typed.
func plainStep(err error) string {
	var step *runner.StepError
	if !errors.As(err, &step) {
		return err.Error()
	}
	text := step.Err.Error()
	if step.Late && len(step.Holds) > 0 {
		text += "; the device is held: " + strings.Join(step.Holds, ", ")
	}
	return text
}

// about says what an error is about, unless it says so itself.
func about(word, text string) string {
	if strings.HasPrefix(text, word+" ") || strings.HasPrefix(text, word+": ") {
		return text
	}
	return word + ": " + text
}

// stands lists the holds the device stands at.
func (h *holdSession) stands() []string {
	var names []string
	for _, r := range h.se.Rules() {
		if r.Held {
			names = append(names, r.Name)
		}
	}
	return names
}

// loop takes commands until there are no more.
func (h *holdSession) loop(ctx context.Context) error {
	for {
		prompt := "irqlab> "
		if at := h.stands(); len(at) > 0 {
			prompt = "irqlab, held at " + strings.Join(at, ", ") + "> "
		}
		line, err := h.read(ctx, prompt)
		if errors.Is(err, io.EOF) || context.Cause(ctx) != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return &exitError{ExitError, err}
		}
		line = strings.TrimSpace(line)
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "":
		case "quit", "exit":
			return nil
		case "help", "?":
			h.lines.print(holdHelp)
		default:
			if err := h.command(ctx, word, strings.TrimSpace(rest), line); err != nil {
				h.lines.print(about(word, plainStep(err)) + "\n")
			}
		}
	}
}

// read waits for a line, but not longer than there is a VM to lead: a signal or its end comes while nobody types.
func (h *holdSession) read(ctx context.Context, prompt string) (string, error) {
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1)
	go func() {
		text, err := h.lines.read(prompt)
		read <- line{text, err}
	}()
	vm := h.se.VM().Process()
	select {
	case l := <-read:
		if err := vm.Err(); err != nil {
			return "", fmt.Errorf("the VM has ended: %w", err)
		}
		return l.text, l.err
	case <-ctx.Done():
		h.lines.leave()
		return "", context.Cause(ctx)
	case <-vm.Done():
		h.lines.leave()
		return "", fmt.Errorf("the VM has ended: %w", vm.Err())
	}
}

func (h *holdSession) command(ctx context.Context, word, rest, line string) error {
	switch word {
	case "status":
		return h.status(ctx)
	case "log":
		return h.log(ctx)
	case "shell":
		return h.shell(ctx)
	case "vectors":
		h.readings++
		line = fmt.Sprintf("observe reading-%d", h.readings)
	case scenarios.VerbRelease:
		if at := h.stands(); rest == "" {
			if len(at) != 1 {
				return fmt.Errorf("the device is held at %s; name the hold to release", cmp.Or(strings.Join(at, ", "), "nothing"))
			}
			line += " " + at[0]
		}
	}
	step, err := scenarios.ParseStep(line)
	if err != nil {
		return fmt.Errorf("%w; help lists what there is", err)
	}
	if step.Verb == scenarios.VerbExpect {
		return errors.New("nothing is judged here; vectors, status and log show what there is to see")
	}
	before := h.stands()
	if err := h.do(ctx, step, false); err != nil {
		return err
	}
	if step.Verb == scenarios.VerbObserve {
		var b bytes.Buffer
		if o := h.se.Observation(); o != nil {
			if err := report.Observation(&b, o); err != nil {
				return err
			}
		}
		h.lines.print(b.String())
		return nil
	}
	for _, name := range h.stands() {
		if !slices.Contains(before, name) {
			h.lines.print("the device stands at " + name + "\n")
		}
	}
	return nil
}

func (h *holdSession) status(ctx context.Context) error {
	info, err := h.se.VM().Agent.Info(ctx)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "VM\t%s, kernel %s; from another terminal: irqlab ssh %[1]s\n", h.se.VM().Process().Name(), info.Release)
	fmt.Fprintf(t, "CPUs\tonline %s, present %s\n", info.CPUs.Online, info.CPUs.Present)
	for _, r := range h.se.Rules() {
		state := "not reached"
		switch {
		case r.Held:
			state = "HELD"
		case r.Dropped:
			state = "dropped by a reset"
		case r.Released:
			state = "released"
		case r.Hits > 0:
			state = fmt.Sprintf("applied %d times", r.Hits)
		}
		fmt.Fprintf(t, "%s\t%s: %s\n", r.Name, scenarios.RuleText(r.Rule), state)
	}
	fmt.Fprintf(t, "device\t%s\n", cmp.Or(h.se.Progress(), "has seen nothing yet"))
	_ = t.Flush() // to a Buffer
	h.lines.print(b.String())
	return nil
}

func (h *holdSession) log(ctx context.Context) error {
	records, err := h.se.Log(ctx)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, r := range records[max(0, len(records)-logLines):] {
		fmt.Fprintf(&b, "[%12.6f] %s\n", r.Seconds, foreign.Line(r.Text))
	}
	h.lines.print(b.String())
	return nil
}

func (h *holdSession) shell(ctx context.Context) error {
	client, err := h.se.VM().Access().Dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	err = session(ctx, client, h.s, "")
	var exit *exitError
	if errors.As(err, &exit) && exit.err == nil {
		return nil // the shell's own status
	}
	return err
}

// typed are lines from a terminal, edited and with a history.
type typed struct {
	tty  *os.File
	term *term.Terminal
	out  io.Writer

	mu     sync.Mutex
	before *term.State // of the terminal, while a line is typed
	left   bool        // for good
}

func newLines(s Streams) lines {
	if in, ok := s.In.(*os.File); ok && isTerminal(in) {
		return &typed{tty: in, out: s.Out, term: term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{s.In, s.Out}, "")}
	}
	return &piped{in: bufio.NewScanner(s.In), out: s.Out}
}

// read has the terminal in raw mode only while a line is typed.
func (t *typed) read(prompt string) (string, error) {
	t.term.SetPrompt(prompt)
	if err := t.enter(); err != nil {
		return "", err
	}
	defer t.restore()
	return t.term.ReadLine()
}

func (t *typed) enter() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left {
		return io.EOF
	}
	old, err := term.MakeRaw(int(t.tty.Fd()))
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	t.before = old
	return nil
}

func (t *typed) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.before != nil {
		_ = term.Restore(int(t.tty.Fd()), t.before)
	}
	t.before = nil
}

func (t *typed) leave() {
	t.mu.Lock()
	t.left = true
	t.mu.Unlock()
	t.restore()
}

// print writes above the line that is being typed, if one is.
func (t *typed) print(text string) {
	text = foreign.Text(text)
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.out
	if t.before != nil {
		w = t.term
	}
	_, _ = io.WriteString(w, text)
}

// piped are lines from anything else.
type piped struct {
	in  *bufio.Scanner
	mu  sync.Mutex
	out io.Writer
}

func (p *piped) read(string) (string, error) {
	if p.in.Scan() {
		return p.in.Text(), nil
	}
	if err := p.in.Err(); errors.Is(err, bufio.ErrTooLong) {
		return "", fmt.Errorf("standard input: a line of more than %d bytes is no step; one step on each line", bufio.MaxScanTokenSize)
	} else if err != nil {
		return "", fmt.Errorf("standard input: %w", err)
	}
	return "", io.EOF
}

func (p *piped) leave() {}

func (p *piped) print(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = io.WriteString(p.out, foreign.Text(text))
}
