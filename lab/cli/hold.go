package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"irqlab/devmodel/inject"
	"irqlab/lab/foreign"
	"irqlab/lab/layout"
	"irqlab/lab/report"
	"irqlab/lab/runner"
	"irqlab/lab/timeline"
	"irqlab/scenarios"
	"irqlab/scenarios/nearest"
	"irqlab/scenarios/result"
)

const (
	// stepPatience is how long the prompt waits for a step; after that the step goes on beside it.
	stepPatience = 3 * time.Second
	// reachTime is how long the device may take to come to the step it is to be held at. A reset service begins with a sleep of 10 s.
	reachTime = time.Minute
	logLines  = 20
)

// The prompt's own words; all others are steps.
const (
	wordVectors = scenarios.VerbVectors // of driver mana; of driver vfio, too, once there are queue vectors
	wordStatus  = "status"
	wordLog     = "log"
	wordShell   = "shell"
	wordSave    = "save"
	wordHelp    = "help"
	wordQuit    = "quit"
)

// holdWords are the prompt's own words, with what help says of each.
var holdWords = []struct{ word, form, text string }{
	{wordVectors, wordVectors, "read and show where every vector is"},
	{wordStatus, wordStatus, "what is held, how far the device got, which CPUs are online"},
	{wordLog, wordLog, "the kernel's last lines"},
	{wordShell, wordShell, "a terminal in the guest; leave it to come back here"},
	{wordSave, "save FILE.yaml", "what you did so far as a scenario, for irqlab run FILE.yaml; --force after the name writes over a file that is there"},
	{wordHelp, "help [STEP]", "this, or what one step does and how it is written"},
	{wordQuit, wordQuit, "end the VM; what is held is let go before. Ctrl-C ends it, too, with status 130"},
}

const holdHelp = `What you type is a step of the scenario language (irqlab list steps), such as
  offline 2-3          take CPUs offline; online 2-3 brings them back
  unplug 3             take a CPU out of the machine by ACPI; replug 3, online 3
  release              let the device go on
  settle               fire every vector until it has moved
  hold STEP            hold the device once more; reset-service, up, down,
                       set-channels 2 … to get there
or one of
`

const holdNote = `A step that takes longer goes on beside the prompt, which tells when it is done.
`

// holdSession lets a person lead an experiment whose device stands still.
type holdSession struct {
	s        Streams
	se       *runner.Session
	lines    lines
	led      atomic.Bool // the prompt is there
	leaving  atomic.Bool // and nobody wants to hear more
	first    string      // the hold that led here
	readings int         // made by "vectors"
	added    bool        // the queue vectors, by driver vfio
	driver   string
	remarks  []string // for the scenario that is saved
}

// begin brings the driver to where the device is to stand.
func (h *holdSession) begin(ctx context.Context, hold, trigger scenarios.Step, before []scenarios.Step) error {
	for _, step := range before {
		if err := h.do(ctx, step, true); err != nil {
			return errors.New(about(step.Verb, plainStep(err)))
		}
	}
	if _, err := h.se.Do(hold); err != nil {
		return errors.New(plainStep(err))
	}
	done := make(chan outcome, 1)
	go func() { done <- h.carryOut(ctx, trigger) }()
	timed, cancel := context.WithTimeoutCause(ctx, reachTime, fmt.Errorf("%s did not come to %s within %s", trigger, hold.Rule.Step, reachTime))
	defer cancel()
	reached := make(chan error, 1)
	go func() { reached <- h.se.AwaitHeld(timed, hold.Rule.Name) }()
	posted := slices.Contains([]string{scenarios.VerbResetService, scenarios.VerbPost, scenarios.VerbReset}, trigger.Verb) // what comes of these nobody waits for
	var end outcome
	select {
	case err := <-reached:
		if err == nil && !posted {
			go h.tell(trigger, done)
		}
		return err
	case end = <-done:
	}
	switch {
	case end.err != nil:
		return errors.New(about(trigger.Verb, plainStep(end.err)))
	case posted:
		return <-reached
	case slices.Contains(h.stands(), hold.Rule.Name): // with something that the step did not wait for
		return nil
	}
	return fmt.Errorf("%s came to its end and not to %s; does this kernel send it? %s", trigger, hold.Rule.Step, h.se.Progress())
}

// outcome is what became of a step, for the person who typed it.
type outcome struct {
	text string
	err  error
}

// carryOut does a step, and says what it has changed.
func (h *holdSession) carryOut(ctx context.Context, step scenarios.Step) outcome {
	cpus := changesCPUs(step.Verb)
	now := stand{step: step}
	if cpus {
		if info, err := h.se.VM().Agent.Info(ctx); err == nil {
			now.before = info.CPUs
		}
	}
	began := time.Now()
	did, err := h.se.Do(step)
	now.took, now.did = time.Since(began), did
	if cpus || step.Verb == scenarios.VerbStorm {
		info, ierr := h.se.VM().Agent.Info(ctx)
		if err = cmp.Or(err, ierr); ierr == nil {
			now.after = info.CPUs
		}
		if refused := now.changed(); err != nil && refused != "" { // some of them went before one did not
			return outcome{err: fmt.Errorf("%s; %s", plainStep(err), refused)}
		}
	}
	if err != nil {
		return outcome{err: err}
	}
	switch step.Verb {
	case scenarios.VerbObserve:
		o := h.se.Observation(step.Label)
		if o == nil {
			return outcome{err: fmt.Errorf("there is no observation %s", step.Label)}
		}
		var b bytes.Buffer
		if err := report.Observation(&b, o); err != nil {
			return outcome{err: err}
		}
		return outcome{text: b.String()}
	case scenarios.VerbSettle:
		now.settledOn = h.se.Settled()
	case scenarios.VerbProbe, scenarios.VerbUp, scenarios.VerbDown, scenarios.VerbSetChannels, scenarios.VerbLoad, scenarios.VerbUnload, scenarios.VerbBind, scenarios.VerbUnbind:
		if h.driver == scenarios.DriverMana {
			now.links, err = h.se.Links(ctx)
		}
	case scenarios.VerbVectors:
		h.added = true
	}
	return outcome{text: now.answer(), err: err}
}

// do carries out a step, waits for its end, and says what it has changed; if patience ends first, and it need not be done, it goes on beside the prompt.
func (h *holdSession) do(ctx context.Context, step scenarios.Step, toTheEnd bool) error {
	done := make(chan outcome, 1)
	go func() { done <- h.carryOut(ctx, step) }()
	var enough <-chan time.Time
	_, script := h.lines.(*piped)
	waits := step.Verb == scenarios.VerbWaitFor || step.Verb == scenarios.VerbSleep ||
		slices.Contains([]string{scenarios.VerbSettle, scenarios.VerbFire, scenarios.VerbObserve}, step.Verb) && len(h.stands()) == 0
	if !toTheEnd {
		enough = time.After(stepPatience)
	}
	for {
		select {
		case o := <-done:
			if o.err == nil && !toTheEnd {
				h.show(step, o.text)
			}
			return o.err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-enough:
			if script && waits { // its next line is meant for what comes after
				h.say(step.String() + " is waited for\n")
				continue
			}
			h.say(step.String() + " goes on\n")
			go h.tell(step, done)
			return nil
		}
	}
}

// show prints what came of a step: a table as it is, and words so that they fit.
func (h *holdSession) show(step scenarios.Step, text string) {
	if step.Verb == scenarios.VerbObserve {
		h.lines.print(text)
		return
	}
	h.say(text + "\n")
}

// say prints words so that they fit the terminal.
func (h *holdSession) say(text string) {
	h.lines.reprompt(h.prompt())
	h.lines.print(layout.Hang(foreign.Text(text), h.lines.width()))
}

// prompt says where the device stands.
func (h *holdSession) prompt() string {
	if at := h.stands(); len(at) > 0 {
		return "irqlab, held at " + strings.Join(at, ", ") + "> "
	}
	return "irqlab> "
}

// tell says how a step ended that went on beside the prompt, unless nobody is there any more.
func (h *holdSession) tell(step scenarios.Step, done <-chan outcome) {
	o := <-done
	switch {
	case h.leaving.Load():
	case o.err != nil:
		h.say(about(step.String(), plainStep(o.err)) + "\n")
	case step.Verb == scenarios.VerbObserve:
		h.show(step, o.text)
	default:
		h.say(step.String() + ": done: " + o.text + "\n")
	}
}

// hurry says how long the device can stand at a step.
func (h *holdSession) hurry(step string) string {
	kind, _, _ := strings.Cut(step, ":")
	if h.driver != scenarios.DriverMana || kind != "request" && kind != "response" {
		return ""
	}
	return " " + driverPatience + "."
}

// stood is told when the device has come to a hold, or a reset has dropped what was held there.
func (h *holdSession) stood(name string, dropped bool) {
	switch {
	case !h.led.Load() || h.leaving.Load():
	case dropped:
		h.say("the device no longer stands at " + name + ": a reset has dropped what was held. " + driverPatience + "; hold it anew to stand there again\n")
	case name != h.first:
		h.say("the device stands at " + name + "\n")
	}
}

// ifUnknown names the rules there are, where one was asked for that there is not.
func (h *holdSession) ifUnknown(err error) string {
	if !errors.Is(err, inject.ErrUnknown) {
		return ""
	}
	var names []string
	for _, r := range h.se.Rules() {
		names = append(names, r.Name)
	}
	return "; there are: " + strings.Join(names, ", ")
}

// driverPatience is the MANA driver's, on all kernels: a request that nobody answers ends after 30 s, and what follows is a reset.
const driverPatience = "The driver gives up on a request after 30 s without an answer"

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
	if len(step.Ate) > 0 {
		text += "; dropped by a rule: " + strings.Join(step.Ate, ", ")
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

// kernelPoll is how often the prompt looks whether the kernel is in trouble.
const kernelPoll = 500 * time.Millisecond

// watchKernel tells of each warning, oops and panic that the kernel has logged since the prompt is there, as it comes, until ctx ends.
func (h *holdSession) watchKernel(ctx context.Context) {
	told := len(h.se.VM().Console().Scan())
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(kernelPoll):
		}
		found := h.se.VM().Console().Scan()
		for _, f := range found[min(told, len(found)):] {
			h.say(fmt.Sprintf("the kernel is in trouble (%s): %s; log shows its last lines, and a run of this session as a scenario fails\n", f.Kind, f.Title))
		}
		told = len(found)
	}
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
	defer h.leaving.Store(true)
	watched, unwatch := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { h.watchKernel(watched) })
	defer watch.Wait()
	defer unwatch()
	for {
		line, err := h.read(ctx, h.prompt())
		switch {
		case context.Cause(ctx) != nil:
			return context.Cause(ctx)
		case errors.Is(err, errKey):
			return &exitError{ExitInterrupted, err}
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return &exitError{ExitError, err}
		}
		line = strings.TrimSpace(line)
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		switch word {
		case "":
		case wordQuit, "exit":
			return nil
		default:
			if err := h.command(ctx, word, rest, line); context.Cause(ctx) != nil {
				return context.Cause(ctx)
			} else if err != nil {
				h.say(about(word, plainStep(err)) + h.ifUnknown(err) + "\n")
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
	case wordHelp, "?":
		return h.help(rest)
	case wordStatus:
		return h.status(ctx)
	case wordLog:
		return h.log(ctx)
	case wordShell:
		return h.shell(ctx)
	case wordSave:
		return h.save(rest)
	case wordVectors:
		if h.driver == scenarios.DriverMana || h.added {
			h.readings++
			line = fmt.Sprintf("%s reading-%d", scenarios.VerbObserve, h.readings)
		}
	case scenarios.VerbRelease:
		if at := h.stands(); rest == "" {
			if len(at) != 1 {
				return fmt.Errorf("the device is held at %s; name the hold to release", cmp.Or(strings.Join(at, ", "), "nothing"))
			}
			line += " " + at[0]
		}
	}
	if known := promptWords(); !slices.Contains(known, strings.TrimSuffix(word, ":")) {
		return fmt.Errorf("there is no such word%s; help lists what there is", nearest.Hint(word, known))
	}
	step, err := scenarios.ParseStep(line)
	if err != nil {
		return fmt.Errorf("%w; help %s tells more", err, strings.TrimSuffix(word, ":"))
	}
	if step.Verb == scenarios.VerbExpect {
		return errors.New("nothing is judged here; vectors, status and log show what there is to see")
	}
	return h.do(ctx, h.se.Named(step), false)
}

// promptWords are all that a line may begin with.
func promptWords() []string {
	var words []string
	for _, w := range holdWords {
		words = append(words, w.word)
	}
	for _, v := range scenarios.Verbs() {
		words = append(words, v.Name)
	}
	return words
}

// help explains everything, or one word or step of the protocol.
func (h *holdSession) help(topic string) error {
	if topic == "" {
		h.say(holdHelp + helpList() + holdNote)
		return nil
	}
	text, err := explain(topic)
	if err != nil {
		return err
	}
	h.say(text)
	return nil
}

// helpList are the prompt's own words, a line or more for each.
func helpList() string {
	var b strings.Builder
	const column = 23
	for _, w := range holdWords {
		words := layout.Hang(w.text, layout.Default-column)
		for i, line := range strings.Split(strings.TrimSuffix(words, "\n"), "\n") {
			if i == 0 {
				fmt.Fprintf(&b, "  %-*s%s\n", column-2, w.form, line)
			} else {
				fmt.Fprintf(&b, "%*s%s\n", column, "", strings.TrimSpace(line))
			}
		}
	}
	return b.String()
}

// explain tells what a word of the prompt, a verb or a step of the protocol is.
func explain(topic string) (string, error) {
	var known []string
	for _, w := range holdWords {
		if w.word == topic {
			return w.form + "\n  " + w.text + "\n", nil
		}
		known = append(known, w.word)
	}
	for _, v := range scenarios.Verbs() {
		if v.Name == topic {
			text := v.Form + "\n  " + v.Text + "\n"
			if v.Driver != "" {
				text += "  driver " + v.Driver + " only\n"
			}
			if strings.Contains(v.Form, "{") {
				text += "  here the keys may be plain words, too: " + topic + " STEP key=value …\n"
			}
			return text, nil
		}
		known = append(known, v.Name)
	}
	point, _, _ := strings.Cut(topic, "@") // an access at a place, or one vector, is explained with all of its kind
	if n, ok := strings.CutPrefix(topic, "vector:"); ok && strings.Trim(n, "0123456789") == "" {
		point = "vector:any"
	}
	for _, s := range inject.Steps() {
		if s.Name == point {
			actions := make([]string, len(s.Actions))
			for i, a := range s.Actions {
				actions[i] = string(a)
			}
			return s.Name + "\n  " + s.Text + "\n  what can be done there: " + strings.Join(actions, ", ") + "\n", nil
		}
		known = append(known, s.Name)
	}
	return "", fmt.Errorf("there is no %q%s; help lists what there is", topic, nearest.Hint(topic, known))
}

func (h *holdSession) status(ctx context.Context) error {
	info, err := h.se.VM().Agent.Info(ctx)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "VM\t%s, kernel %s\n", h.se.VM().Process().Name(), foreign.Line(info.Release))
	fmt.Fprintf(t, "\tfrom another terminal: irqlab ssh %s\n", h.se.VM().Process().Name())
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
		case r.Hits == 1:
			state = "applied once"
		case r.Hits > 1:
			state = fmt.Sprintf("applied %d times", r.Hits)
		}
		fmt.Fprintf(t, "%s\t%s: %s\n", r.Name, scenarios.RuleText(r.Rule), state)
	}
	progress, ok := strings.CutPrefix(h.se.Progress(), "last: ")
	for i, step := range strings.Split(progress, ", ") {
		head := ""
		switch {
		case i == 0 && ok:
			head = "device"
			step = "last " + step
		case i == 0:
			head = "device"
		default:
			step = "     " + step
		}
		fmt.Fprintf(t, "%s\t%s\n", head, step)
	}
	_ = t.Flush() // to a Buffer
	h.say(b.String())
	return nil
}

func (h *holdSession) log(ctx context.Context) error {
	records, err := h.se.Log(ctx)
	if err != nil {
		return err
	}
	if len(records) == 0 {
		h.say("the kernel has logged nothing since the session began\n")
		return nil
	}
	var b strings.Builder
	for _, r := range records[max(0, len(records)-logLines):] {
		fmt.Fprintf(&b, "[%12.6f] %s\n", r.Seconds, foreign.Line(r.Text))
	}
	h.say(b.String())
	return nil
}

func (h *holdSession) shell(ctx context.Context) error {
	client, err := h.se.VM().Access().Dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	h.say("a shell in the guest; exit comes back here\n")
	s := h.s
	if t, ok := h.lines.(*typed); ok {
		s.In = t.tty
	}
	err = session(ctx, client, s, "")
	var exit *exitError
	if errors.As(err, &exit) && exit.err == nil {
		h.say(fmt.Sprintf("the shell has ended with status %d\n", exit.status)) // its own
		return nil
	}
	return err
}

// save writes the session so far as a scenario.
func (h *holdSession) save(rest string) error {
	words := strings.Fields(rest)
	force := slices.Contains(words, "--force")
	words = slices.DeleteFunc(words, func(w string) bool { return w == "--force" })
	if len(words) != 1 {
		return errors.New("give the name of a new file, as in save mine.yaml")
	}
	leftOut, err := h.saveAs(words[0], force)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s has what you did; run it again: irqlab run %s\n", words[0], words[0])
	for _, what := range leftOut {
		text += "not in it: " + what + "\n"
	}
	h.say(text)
	return nil
}

// saveAs writes the session so far to a file, and says what is not in it.
func (h *holdSession) saveAs(path string, force bool) (leftOut []string, err error) {
	ext := filepath.Ext(path)
	if ext != ".yaml" && ext != ".yml" {
		return nil, fmt.Errorf("%s: irqlab run takes a file for a scenario if its name ends in .yaml", path)
	}
	if _, err := os.Lstat(path); err == nil && !force {
		return nil, fmt.Errorf("%s is there, and was left as it is; %s %s --force writes over it", path, wordSave, path)
	}
	file, leftOut, err := h.se.Scenario(scenarios.NameFor(strings.TrimSuffix(filepath.Base(path), ext)), h.remarks...)
	if err != nil {
		return nil, err
	}
	return leftOut, replaceFile(path, func(w io.Writer) error { _, err := w.Write(file); return err })
}

// keep leaves the session in a directory as a scenario, while there is still a session, and says what is not in it.
func (h *holdSession) keep(out string) (leftOut []string, err error) {
	if leftOut, err = h.saveAs(filepath.Join(out, sessionFile), true); err != nil {
		err = fmt.Errorf("--out: %w", err)
	}
	return leftOut, err
}

// What a session leaves in --out beside its console, trace and timeline.
const (
	sessionFile = "session.yaml"
	pageFile    = "timeline.html"
)

// page makes a page of a session's timeline, and names all that is in the directory.
func page(ctx context.Context, out string, a result.Artifacts) (names []string, err error) {
	for _, name := range []string{sessionFile, a.Timeline, pageFile, a.Console, a.Trace} {
		if name != "" {
			names = append(names, name)
		}
	}
	f, err := os.Open(filepath.Join(out, a.Timeline))
	if err != nil {
		return names, err
	}
	defer f.Close()
	tl, _, err := timeline.Read(a.Timeline, f)
	if err != nil {
		return names, err
	}
	return names, replaceFile(filepath.Join(out, pageFile), func(w io.Writer) error { return tl.HTML(ctx, w, timeline.Filter{}, false) })
}
