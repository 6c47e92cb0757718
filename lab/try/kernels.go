package try

import (
	"fmt"
	"strings"

	"irqlab/lab/report"
)

// Kernels are two whole kernels built of one source with one configuration, without the patch and with it.
type Kernels struct {
	Without  Built        `json:"without"`
	With     Built        `json:"with"`
	Debug    []string     `json:"debug,omitempty"`  // sets of debugging options that both have
	Warnings []Diagnostic `json:"warnings"`         // of the compiler, that the kernel without the patch does not have
	Unused   []string     `json:"unused,omitempty"` // changed files that nothing in the kernel is made of: what the patch does there is not seen
}

// Built is a kernel that was built.
type Built struct {
	Release string `json:"release"`
	Path    string `json:"path"`   // as --kernel takes it
	Cached  bool   `json:"cached"` // built before, of the same
}

// kernels says what was built, and what of the patch is not in it.
func (p *page) kernels(t Trial) {
	k := t.Kernels
	if k == nil {
		return
	}
	built := func(b Built, seconds float64) string {
		if b.Cached {
			return "built before, of the same source"
		}
		return fmt.Sprintf("built in %.0f s", seconds)
	}
	p.item("kernels: ", fmt.Sprintf("whole, with a small configuration%s; without the patch %s, with it %s",
		k.with(), built(k.Without, t.Seconds.Base), built(k.With, t.Seconds.Build)))
	for _, w := range k.Warnings {
		p.item("  - ", "new warning: "+w.String())
	}
	if len(k.Unused) > 0 {
		p.item("unseen:  ", "not compiled in that configuration, so that what is changed there is not seen: "+strings.Join(k.Unused, ", "))
	}
}

// with names the debugging options, behind a comma.
func (k *Kernels) with() string {
	if len(k.Debug) == 0 {
		return ""
	}
	return " and " + strings.Join(k.Debug, ", ")
}

// mailKernels says in a mail what was built.
func (p *page) mailKernels(t Trial) {
	k := t.Kernels
	if k == nil {
		return
	}
	text := "both whole, built with a small configuration" + k.with()
	if t.Kernel.Compiler != "" {
		text += ", by " + t.Kernel.Compiler
	}
	p.item("Kernels: ", text)
	if t.Kernel.Source != "" {
		p.item("Source:  ", t.Kernel.Source)
	}
	if len(k.Unused) > 0 {
		p.item("Unseen:  ", "not compiled there: "+strings.Join(k.Unused, ", "))
	}
}

// Unseen is the verdict on a patch of which some files are in no kernel that was built: that nothing differs says nothing of these.
func (v Verdict) Unseen(files []string) Verdict {
	if len(files) == 0 || v.Word != WordUnchanged {
		return v
	}
	return NotCompiled(files)
}

// NotCompiled is the verdict on a patch that changes these files, and nothing else that is compiled.
func NotCompiled(files []string) Verdict {
	return Verdict{Word: WordUnknown, Status: report.ExitError, Reasons: []string{
		"not compiled in the small configuration, so that what the patch does there is not seen: " + strings.Join(files, ", ")}}
}
