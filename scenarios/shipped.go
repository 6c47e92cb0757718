package scenarios

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"irqlab/scenarios/nearest"
)

//go:embed *.yaml faults/*.yaml
var files embed.FS

// Default is the scenario that run takes when none is named.
const Default = "low-vcpu"

// FaultsName stands for all of Faults.
const FaultsName = "faults"

// Shipped lists the scenarios in the binary, those of Faults apart: the default first, then by name.
func Shipped() []string {
	names := slices.DeleteFunc(within("."), func(n string) bool { return n == Default })
	return slices.Insert(names, 0, Default)
}

// Faults lists the scenarios of the fault catalogue, each of which has the device err in one way: "faults/hwc-status", by name.
func Faults() []string { return within(FaultsName) }

// within lists the scenarios in a folder of the binary.
func within(dir string) []string {
	paths, err := fs.Glob(files, path.Join(dir, "*.yaml"))
	if err != nil {
		panic(err) // the pattern is a good one
	}
	for i, p := range paths {
		paths[i] = strings.TrimSuffix(p, ".yaml")
	}
	return paths
}

// Source is the YAML of a scenario of Shipped or Faults.
func Source(name string) ([]byte, error) {
	data, err := files.ReadFile(name + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("no scenario %q is shipped; shipped: %s, and those of %s; a file of your own needs a path ending in .yaml%s",
			name, strings.Join(Shipped(), ", "), FaultsName, nearest.Hint(name, slices.Concat(Shipped(), Faults())))
	}
	return data, nil
}

// Get loads a scenario of Shipped or Faults.
func Get(name string) (*Scenario, error) {
	data, err := Source(name)
	if err != nil {
		return nil, err
	}
	return Load("scenarios/"+name+".yaml", data)
}
