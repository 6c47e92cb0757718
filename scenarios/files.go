package scenarios

import (
	"fmt"
	"path"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// GuestDir is where files of the host are put in a guest unless a scenario says otherwise, and where scripts run from.
const GuestDir = "/tmp/irqlab"

// GuestFile is a file or folder of the host that is copied into the guest before the experiment.
type GuestFile struct {
	From string `json:"from" jsonschema_description:"a file or folder beside the scenario's"`
	To   string `json:"to,omitempty" jsonschema_description:"its path in the guest; default: by its own name in /tmp/irqlab"`
}

// Target is its path in the guest.
func (f GuestFile) Target() string {
	if f.To != "" {
		return path.Clean(f.To)
	}
	return path.Join(GuestDir, filepath.Base(f.From))
}

func (f *GuestFile) decodeNode(d *decoder, n ast.Node, at string) {
	if text, ok := scalarText(n); ok {
		f.From = text
	} else {
		type keys GuestFile // which has no decoding of its own
		before := len(d.errs)
		d.structure(n, at, reflect.ValueOf((*keys)(f)).Elem())
		if len(d.errs) > before {
			return
		}
	}
	if err := f.validate(); err != nil {
		d.fail(at, "%v", err)
	}
}

func (f *GuestFile) validate() error {
	if f.From == "" {
		return fmt.Errorf("no file is named; as in {from: tune.conf, to: /etc/tune.conf}")
	}
	if strings.ContainsAny(f.From+f.To, "\x00\n") {
		return fmt.Errorf("%q is no path", f.From+f.To)
	}
	if f.To == "" {
		if base := filepath.Base(f.From); base == "." || base == ".." || base == "/" {
			return fmt.Errorf("%s has no name of its own; say to: /path/in/guest", f.From)
		}
		return nil
	}
	for _, top := range []string{"/proc", "/sys", "/dev", "/bin", "/sbin", "/init", "/lib"} {
		if t := f.Target(); t == top || strings.HasPrefix(t, top+"/") {
			return fmt.Errorf("%s is the guest's own; allowed: /tmp, /etc, /usr, /root, …", f.To)
		}
	}
	if !path.IsAbs(f.To) || f.Target() == "/" {
		return fmt.Errorf("%q is no path of a file in the guest; it begins with /", f.To)
	}
	return nil
}

// HostFile is where a file is that the case names: beside the scenario's own file, unless it says otherwise.
func (c *Case) HostFile(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(c.Dir, name)
}
