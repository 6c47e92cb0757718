package try

import (
	"fmt"
	"strings"

	"irqlab/lab/build"
	"irqlab/lab/report"
	"irqlab/scenarios/result"
)

// Trial is a patch, what it was tried on, and what came of it. What was not come to is empty.
type Trial struct {
	Schema     int                `json:"schema"`
	IRQLab     string             `json:"irqlab,omitempty"`
	Command    string             `json:"command"` // that does it again
	Kernel     Kernel             `json:"kernel"`
	Patches    []Patch            `json:"patches"`
	ID         string             `json:"id"`       // of the whole: the patch's stable id, or for a series a hash of all
	Reversed   bool               `json:"reversed"` // it was taken out
	Hunks      []Hunk             `json:"hunks"`
	Outside    []string           `json:"outside,omitempty"` // files whose changes are built into nothing, and were passed over
	Beyond     []string           `json:"beyond,omitempty"`  // files that need more than a module to be built: whole kernels were
	Notes      []string           `json:"notes,omitempty"`
	Module     *Module            `json:"module,omitempty"`
	Kernels    *Kernels           `json:"kernels,omitempty"` // in place of Module
	Errors     []Diagnostic       `json:"errors,omitempty"`  // of the compiler, if it does not build
	Cases      []Compared         `json:"cases"`
	Comparison *report.Comparison `json:"comparison,omitempty"` // all of both sides, as irqlab compare has it
	Verdict    Verdict            `json:"verdict"`
	Seconds    Seconds            `json:"seconds"`
}

// Kernel is what the patch was tried on.
type Kernel struct {
	Spec     string `json:"spec"`
	Release  string `json:"release,omitempty"`
	Source   string `json:"source,omitempty"`   // where its source came from
	Compiler string `json:"compiler,omitempty"` // that built the module, or the kernels
}

// String is the release and how it was asked for, as far as they are known and not the same: "6.18.15+deb13-cloud-amd64 (debian:6.18)".
func (k Kernel) String() string {
	if k.Release == "" || k.Release == k.Spec {
		return k.Spec
	}
	return k.Release + " (" + k.Spec + ")"
}

// Patch is one patch of the series.
type Patch struct {
	Title     string   `json:"title"` // "" for a plain diff
	Author    string   `json:"author,omitempty"`
	MessageID string   `json:"message_id,omitempty"`
	Version   int      `json:"version,omitempty"`
	Tags      []string `json:"tags,omitempty"`
	ID        string   `json:"id"`     // stable id, as git patch-id --stable has it
	Source    string   `json:"source"` // the input it came in
}

// Subject is the patch's title with what was in brackets before it, as far as that is known.
func (p Patch) Subject() string {
	if p.Title == "" {
		return p.Source
	}
	words := p.Tags
	if p.Version > 1 {
		words = append([]string{fmt.Sprintf("v%d", p.Version)}, words...)
	}
	if len(words) == 0 {
		return p.Title
	}
	return p.Title + " (" + strings.Join(words, " ") + ")"
}

// Hunk is how one hunk fitted.
type Hunk struct {
	Path   string `json:"path"`
	Where  string `json:"where"`            // the file, which hunk of it, and where in the patch
	Line   int    `json:"line,omitempty"`   // where it was applied
	Offset int    `json:"offset,omitempty"` // lines from where the patch says
	Fuzz   int    `json:"fuzz,omitempty"`   // lines of context that were dropped
	Misfit string `json:"misfit,omitempty"` // why it does not apply
	Reason string `json:"reason,omitempty"` // the same as a word, such as "already-applied"
	// What the hunk expects, and what stands there, from line FoundLine on.
	Want      []string `json:"want,omitempty"`
	Found     []string `json:"found,omitempty"`
	FoundLine int      `json:"found_line,omitempty"`
}

// Module is the changed module.
type Module struct {
	Name      string       `json:"name"`
	SHA256    string       `json:"sha256,omitempty"`
	Cached    bool         `json:"cached"`   // built before, of the same
	Warnings  []Diagnostic `json:"warnings"` // of the compiler, that the unpatched module does not have
	Identical bool         `json:"identical"`
	Functions int          `json:"functions"`         // that were compared
	Differ    []string     `json:"differ,omitempty"`  // functions of the unpatched module, built here, that are not as the distribution's
	Unchecked string       `json:"unchecked"`         // why nothing could be compared; "": it was
	Without   string       `json:"without,omitempty"` // which module runs without the patch
}

// Diagnostic is what the compiler says of a line.
type Diagnostic struct {
	File string `json:"file"`
	Line int    `json:"line,omitempty"`
	Text string `json:"text"`
}

func (d Diagnostic) String() string { return build.Diagnostic(d).String() }

// Seconds is where the time went.
type Seconds struct {
	Source float64 `json:"source"`         // kernel, its source, and the toolchain
	Base   float64 `json:"base,omitempty"` // the whole kernel without the patch
	Build  float64 `json:"build"`
	Cases  float64 `json:"cases"`
	Total  float64 `json:"total"`
}

// sides name both sides of it.
func (t *Trial) sides() (before, after string) {
	if t.Reversed {
		return "as it is", "taken out"
	}
	return "without", "with"
}

// New is a Trial that nothing has come of yet.
func New(spec string) Trial {
	return Trial{Schema: result.Schema, Kernel: Kernel{Spec: spec}, Patches: []Patch{}, Hunks: []Hunk{}, Cases: []Compared{}}
}
