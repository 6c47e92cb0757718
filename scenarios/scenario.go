package scenarios

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"irqlab/guestagent/cpulist"
	"irqlab/scenarios/shape"
)

// MaxCases bounds what one scenario may expand into.
const MaxCases = 4096

// Scenario is a loaded and valid scenario file.
type Scenario struct {
	Name     string // also its name on the command line, for a shipped one
	Title    string // one line
	Question string // what a run answers
	Text     string // explanation, Markdown
	Source   string // where the question comes from
	cases    []Case // as the file has them, before overrides
}

// Case is one concrete run: everything is decided but what the kernel makes of it.
type Case struct {
	Scenario   string
	Name       string // unique in the scenario, e.g. "linear", "numa-aware/busy"
	Question   string // what a run answers; the scenario's
	Text       string // why this case is as it is
	Kernel     string // SPEC
	Shape      shape.Shape
	Strategy   string         // a name, or masks:0/1/2-3; empty with driver mana, which has its own
	Script     *Program       // that writes the masks, where Strategy is one
	Masks      []cpulist.List // of the queue vectors, where Strategy is masks
	Driver     string
	Vectors    int // in all, HWC included
	DeviceNode int // NoNode: none
	Irqchip    string
	Pressure   Profile
	Cmdline    Cmdline      // words added to the guest kernel's command line
	Packages   []string     // Debian packages in the guest, by name
	Offline    cpulist.List // taken offline before the function's driver sees the machine
	Steps      []Step       // of the experiment; nil: bring the function up, settle, observe as LabelSettled, and see the driver off
	Labels     []string     // of the observations to make, in time order
	Expect     Expect
	Known      []Known  // failures that are known
	Notes      []string // what an override did to this case
	Command    string   // that runs it by itself; "": not known
	Modules    []Module // of the kernel's that are replaced
	Files      []GuestFile
	Dir        string // of the scenario's file, beside which other files are that it names

	count VectorCount // what Vectors follows
	key   string      // of the case in the file, "" for one that only the defaults make
	named []string    // which alternatives the case stands for
	line  string      // which of the alternatives that overrides made it stands for
	doing string      // what the steps do, for Setup
	bound bool        // to its kernel: it tells what no other need do
	taken bool        // a flag has taken away part of what it expects
	ours  bool        // the strategy is the command line's
	given bool        // the command line has said what to expect
}

// Module is a kernel module that takes the place of the kernel's own of that name, and the file it is in.
type Module struct{ Name, File string }

// Judges reports whether the case is held to all that the scenario expects of it, and that is something: else it is only observed, even if nothing goes wrong.
func (c *Case) Judges() bool { return c.given || !c.taken && c.Expect.states() }

// Booted are the CPUs that the kernel brings up, as far as the shape and the command line tell.
func (c *Case) Booted() cpulist.List {
	asleep, _ := c.Cmdline.asleep(c.Shape)
	return cpulist.Range(0, c.Shape.CPUs()-1).Minus(asleep)
}

// Online are the CPUs the function's driver sees.
func (c *Case) Online() cpulist.List { return c.Booted().Minus(c.Offline) }

// Queues is the number of queue vectors.
func (c *Case) Queues() int { return c.Vectors - 1 }

var notPathSafe = regexp.MustCompile(`[^a-zA-Z0-9._=+-]+`)

// maxSlug is well below what a file system allows for a name.
const maxSlug = 120

// Slug is the case's name as one path element.
func (c *Case) Slug() string {
	s := strings.Trim(notPathSafe.ReplaceAllString(c.Name, "_"), ".")
	if len(s) > maxSlug { // many alternatives, or one with a long list of CPUs; the hash keeps apart what the cut would join
		sum := sha256.Sum256([]byte(c.Name))
		s = fmt.Sprintf("%s-%x", s[:maxSlug-17], sum[:8])
	}
	return cmp.Or(s, "case")
}

// file is the YAML file's form.
type file struct {
	Name        string `json:"name" jsonschema_description:"what the scenario is called on the command line" jsonschema:"pattern=^[a-z0-9][a-z0-9._-]*$"`
	Title       string `json:"title,omitempty" jsonschema_description:"one line"`
	Question    string `json:"question,omitempty" jsonschema_description:"what a run answers"`
	Text        string `json:"text,omitempty" jsonschema_description:"explanation, Markdown"`
	Source      string `json:"source,omitempty" jsonschema_description:"where the question comes from"`
	KernelBound bool   `json:"kernel-bound,omitempty" jsonschema_description:"each case is for the kernels it names: --kernel chooses among the cases; a kernel that none names is held to those of the newest"`
	settings
	Files  []GuestFile `json:"files,omitempty" jsonschema_description:"files and folders that are copied into the guest before the experiment"`
	Steps  stepList    `json:"steps,omitempty" jsonschema_description:"the experiment, step by step; without it: bring the function up, settle, and observe as settled"`
	Expect *Expect     `json:"expect,omitempty" jsonschema_description:"what every case must show, unless it says otherwise"`
	Cases  caseList    `json:"cases,omitempty" jsonschema_description:"cases by name; each overrides the settings above; without any, the settings above are the case"`
}

type caseBody struct {
	Text string `json:"text,omitempty" jsonschema_description:"why the case is as it is"`
	settings
	Files  []GuestFile `json:"files,omitempty" jsonschema_description:"files and folders that are copied into the guest before the experiment, instead of the file's"`
	Steps  stepList    `json:"steps,omitempty" jsonschema_description:"the experiment, step by step, instead of the file's"`
	Expect *Expect     `json:"expect,omitempty" jsonschema_description:"what the case must show"`
	Known  many[Known] `json:"known,omitempty" jsonschema_description:"failures of the case that are known, by kernel: still a fail, but marked"`
}

type namedCase struct {
	name string
	caseBody
}

// caseList keeps the order of the file, which a map would not.
type caseList []namedCase

func (cs *caseList) decodeNode(d *decoder, n ast.Node, path string) {
	pairs, ok := d.pairs(n, path)
	if ok && len(pairs) == 0 {
		d.fail(path, "no case is named; leave the key out when the settings are the only case")
	}
	for _, p := range pairs {
		at := join(path, p.key)
		if !validName(p.key) {
			d.failAt(p.pos, at, nameProblem)
		}
		c := namedCase{name: p.key}
		d.value(p.value, at, reflect.ValueOf(&c.caseBody).Elem())
		*cs = append(*cs, c)
	}
}

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

const nameProblem = "not a name; allowed: a to z, 0 to 9, '.', '_', '-', 64 at most, beginning with a letter or digit"

func validName(s string) bool { return namePattern.MatchString(s) }

// Load reads a scenario. name is the file's, for messages: an error is an Errors, each line of it "file:line:column: key: problem".
func Load(name string, data []byte) (*Scenario, error) {
	d := newDecoder(name)
	var f file
	if root := d.parse(data); root != nil {
		d.value(root, "", reflect.ValueOf(&f).Elem())
	}
	if len(d.errs) > 0 {
		return nil, d.sorted()
	}
	if !validName(f.Name) {
		if f.Name == "" {
			d.fail("name", "the scenario has no name; add name: WORD")
		} else {
			d.fail("name", "%q is %s", f.Name, nameProblem)
		}
	}
	s := &Scenario{Name: f.Name, Title: f.Title, Question: f.Question, Text: f.Text, Source: f.Source}
	bodies := f.Cases
	if len(bodies) == 0 {
		bodies = caseList{{}}
	}
	for _, b := range bodies {
		s.cases = append(s.cases, d.expand(&f, b)...)
		if len(s.cases) > MaxCases {
			d.fail("cases", "the lists multiply to more than %d cases", MaxCases)
			break
		}
	}
	if len(d.errs) > 0 {
		return nil, d.sorted()
	}
	Disambiguate(s.cases)
	return s, nil
}

func (d *decoder) sorted() error {
	slices.SortStableFunc(d.errs, func(a, b *Error) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
	return d.errs
}

// expand makes the concrete cases of one case of the file and reports what is impossible about them.
func (d *decoder) expand(f *file, body namedCase) []Case {
	at := ""
	if body.name != "" {
		at = join("cases", body.name)
	}
	st := defaultSettings()
	overlaySettings(&st, f.settings)
	overlaySettings(&st, body.settings)
	stepsAt := "steps"
	where := func(key string) string {
		if rest, ok := strings.CutPrefix(key, "steps."); ok {
			return join(stepsAt, rest)
		}
		if p := join(at, key); d.at[p] != nil {
			return p
		}
		return key
	}
	if body.Strategy == nil && slices.Equal(st.Driver, many[driverName]{DriverMana}) && body.Driver != nil {
		st.Strategy = nil // a case that hands the function to the kernel's driver does without the file's strategies
	}
	steps := f.Steps
	if body.Steps != nil {
		steps, stepsAt = body.Steps, join(at, "steps")
	}
	files := f.Files
	if body.Files != nil {
		files = body.Files
	}
	expect := Expect{}
	if e := body.Expect.over(f.Expect); e != nil {
		expect = *e
	}
	expect.steps = steps
	alternatives := len(st.Kernel) * len(st.Shape) * max(1, len(st.Strategy)) * len(st.Driver) * len(st.Vectors) * len(st.DeviceNode) * len(st.Irqchip) *
		len(st.Pressure) * len(st.Cmdline) * len(st.Offline)
	if alternatives > MaxCases {
		d.fail(cmp.Or(at, "cases"), "the lists multiply to more than %d cases", MaxCases)
		return nil
	}
	cases := []Case{{Scenario: f.Name, Name: body.name, Question: f.Question, Text: body.Text, Files: files, Steps: steps, Expect: expect, Labels: expect.labels(), Known: body.Known, key: body.name, doing: setup(steps),
		bound: f.KernelBound}}
	cases = multiply(cases, st.Strategy, (*Case).spread)
	cases = multiply(cases, st.Driver, func(c *Case, v driverName) string { c.Driver = string(v); return string(v) })
	cases = multiply(cases, st.Shape, func(c *Case, v shapeText) string { c.Shape = shape.Shape(v); return shapeWord(c.Shape) })
	cases = multiply(cases, st.DeviceNode, func(c *Case, v deviceNode) string { c.DeviceNode = int(v); return nodeWord(c.DeviceNode) })
	cases = multiply(cases, st.Vectors, func(c *Case, v VectorCount) string { c.count = v; return vectorsWord(v) })
	cases = multiply(cases, st.Irqchip, func(c *Case, v irqchipName) string { c.Irqchip = string(v); return string(v) })
	cases = multiply(cases, st.Pressure, func(c *Case, v NamedProfile) string { c.Pressure = v.Entries; return v.Name })
	cases = multiply(cases, st.Cmdline, func(c *Case, v Cmdline) string { c.Cmdline = v; return cmdlineWord(v) })
	cases = multiply(cases, st.Offline, func(c *Case, v offlineList) string { c.Offline = cpulist.List(v); return offlineWord(c.Offline) })
	cases = multiply(cases, st.Kernel, func(c *Case, v kernelSpec) string { c.Kernel = string(v); return kernelWord(c.Kernel) })
	stepsFailed := false
	for i := range cases {
		c := &cases[i]
		c.setPackages(st.Packages)
		c.name()
		c.resolve()
		problems := c.validateSettings()
		if len(problems) == 0 && !stepsFailed { // what is wrong with one case's steps is as a rule wrong with the others'
			problems = c.validateSteps()
			stepsFailed = len(problems) > 0
		}
		for _, p := range problems {
			d.fail(where(p.key), "%s", p.text)
		}
		if len(problems) > 0 {
			continue
		}
		for _, p := range c.Expect.validate(c) {
			d.fail(where("expect."+p.key), "%s", p.text)
		}
	}
	return cases
}

func overlaySettings(dst *settings, src settings) {
	to, from := reflect.ValueOf(dst).Elem(), reflect.ValueOf(src)
	for i := range from.NumField() {
		if f := from.Field(i); !f.IsNil() {
			to.Field(i).Set(f)
		}
	}
}

// multiply makes a case for every value; where there are several, each adds the word set returns to the case's name.
func multiply[T any](cases []Case, values []T, set func(*Case, T) string) []Case {
	if len(values) == 0 {
		return cases
	}
	out := make([]Case, 0, len(cases)*len(values))
	for _, c := range cases {
		for _, v := range values {
			n := c
			n.named = slices.Clone(c.named)
			if word := set(&n, v); len(values) > 1 && word != "" {
				n.named = append(n.named, word)
			}
			out = append(out, n)
		}
	}
	return out
}

// name settles the case's name: its key in the file, then the words of the alternatives it stands for.
func (c *Case) name() {
	words := c.named
	if c.key != "" {
		words = append([]string{c.key}, words...)
	}
	c.Name = cmp.Or(strings.Join(words, "/"), c.Strategy, c.Driver)
}

// Disambiguate numbers the cases, of one scenario or several, that would share a name or a path.
func Disambiguate(cases []Case) {
	taken := map[[2]string]bool{}
	for i := range cases {
		c := &cases[i]
		base := c.Name
		id := func() [2]string { return [2]string{c.Scenario, c.Slug()} }
		for n := 2; taken[id()]; n++ {
			c.Name = fmt.Sprintf("%s-%d", base, n)
		}
		taken[id()] = true
	}
}

func shapeWord(s shape.Shape) string {
	w := fmt.Sprintf("%dx%dx%d", s.Sockets, s.Cores, s.Threads)
	if s.Nodes > 1 {
		w += fmt.Sprintf("-%dnodes", s.Nodes)
	}
	return w
}

func nodeWord(node int) string { return "node-" + formatNode(node) }

func vectorsWord(v VectorCount) string { return v.String() + "-vectors" }

func offlineWord(l cpulist.List) string {
	if len(l) == 0 {
		return "all-online"
	}
	return "offline-" + l.String()
}

// kernelWord is short for a path: its last element.
func kernelWord(spec string) string {
	trimmed := strings.TrimRight(spec, "/")
	return cmp.Or(trimmed[strings.LastIndexByte(trimmed, '/')+1:], spec)
}

// resolve computes what follows from the rest.
func (c *Case) resolve() {
	c.Vectors = c.count.Of(len(c.Online()))
}

// validate finds what is impossible about the case, each at the key to blame.
func (c *Case) validate() []problem {
	if out := c.validateSettings(); len(out) > 0 {
		return out
	}
	return c.validateSteps()
}

func (c *Case) validateSettings() []problem {
	var out []problem
	say := func(key, format string, args ...any) { out = append(out, problem{key, fmt.Sprintf(format, args...)}) }
	all := cpulist.Range(0, c.Shape.CPUs()-1)
	switch {
	case c.Driver == DriverVFIO && c.Strategy == "":
		say("strategy", "driver vfio needs a strategy; allowed: %s", strings.Join(append(strategyNames(), MasksForm, ScriptForm), ", "))
	case c.Driver == DriverMana && c.Strategy != "" && c.Script == nil:
		say("strategy", "driver mana spreads its vectors itself, so %s cannot be applied; leave strategy out, or use driver vfio", c.Strategy)
	}
	if err := c.validateMasks(); err != nil {
		say("strategy", "%v", err)
	}
	if c.Offline.Has(0) {
		say("offline", "CPU 0 cannot be taken offline; allowed: CPUs of %s", cpus(all.Minus(cpulist.List{0})))
	}
	if off := c.Offline.Minus(all); len(off) > 0 {
		say("offline", "%s not in the shape, which has %s", off.Are("is", "are"), all.Words())
	} else if off := c.Offline.Minus(c.Booted()); len(off) > 0 {
		say("offline", "%s not brought up with %q; allowed: CPUs of %s", off.Are("is", "are"), c.Cmdline, cpus(c.Booted().Minus(cpulist.List{0})))
	}
	if c.Vectors < 1 || c.Vectors > MaxVectors {
		say("vectors", "%d vectors are impossible; allowed: 1 to %d", c.Vectors, MaxVectors)
	}
	if c.DeviceNode >= c.Shape.Nodes {
		say("device-node", "node %d is not in the shape; allowed: none, %s", c.DeviceNode, cpulist.Range(0, c.Shape.Nodes-1))
	}
	c.checkPackages(say)
	for _, p := range c.Pressure {
		if p.Node >= c.Shape.Nodes {
			say("pressure", "%q: node %d is not in the shape; allowed: none, %s", p, p.Node, cpulist.Range(0, c.Shape.Nodes-1))
		}
		if gone := p.CPUs().Minus(c.Online()); len(gone) > 0 {
			say("pressure", "%q: %s not online; allowed: %s", p, gone.Are("is", "are"), c.Online())
		}
		total := 0
		for _, level := range p.Levels {
			total += Room(level)
		}
		if total > MaxVectors {
			say("pressure", "%q: the levels sum to %d vectors; allowed: %d", p, total, MaxVectors)
		}
	}
	return out
}
