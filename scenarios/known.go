package scenarios

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/goccy/go-yaml/ast"
)

// Known is a failure that is known: the case shows it on these kernels, and is expected to.
type Known struct {
	Kernels many[kernelSpec] `json:"kernels" jsonschema_description:"kernel SPECs, e.g. debian:6.17"`
	Reason  string           `json:"reason" jsonschema_description:"what goes wrong, in a sentence"`
	Where   string           `json:"where,omitempty" jsonschema_description:"where it is told of or mended: an issue, a commit, a section"`
}

func (k *Known) decodeNode(d *decoder, n ast.Node, path string) {
	type plain Known
	d.value(n, path, reflect.ValueOf((*plain)(k)).Elem())
	d.complete(path, reflect.TypeFor[plain]())
}

// KnownFailure says why the case fails on its kernel, as far as that is known; "": it is not known to fail.
func (c *Case) KnownFailure() string {
	for _, k := range c.Known {
		if k.of(c.Kernel) {
			if k.Where != "" {
				return fmt.Sprintf("%s (%s)", k.Reason, k.Where)
			}
			return k.Reason
		}
	}
	return ""
}

func (k *Known) of(kernel string) bool {
	return slices.ContainsFunc(k.Kernels, func(s kernelSpec) bool { return sameKernel(string(s), kernel) })
}

// RunOn has the case run on a kernel that was built of its own kernel's source, and fails as that is known to.
func (c *Case) RunOn(kernel string) {
	c.Known = slices.Clone(c.Known)
	for i := range c.Known {
		if k := &c.Known[i]; k.of(c.Kernel) {
			k.Kernels = append(slices.Clip(k.Kernels), kernelSpec(kernel))
		}
	}
	c.Kernel = kernel
}
