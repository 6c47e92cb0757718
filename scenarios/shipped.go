package scenarios

import (
	"embed"
	"fmt"
	"strings"

	"irqlab/scenarios/nearest"
)

//go:embed *.yaml
var files embed.FS

// Default is the scenario that run takes when none is named.
const Default = "low-vcpu"

// Shipped lists the scenarios in the binary: the default first, then by name.
func Shipped() []string {
	names := []string{Default}
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err) // an embedded folder is always readable
	}
	for _, e := range entries {
		if name := strings.TrimSuffix(e.Name(), ".yaml"); name != Default {
			names = append(names, name)
		}
	}
	return names
}

// Source is a shipped scenario's YAML.
func Source(name string) ([]byte, error) {
	data, err := files.ReadFile(name + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("no scenario %q is shipped; shipped: %s; a file of your own needs a path ending in .yaml%s",
			name, strings.Join(Shipped(), ", "), nearest.Hint(name, Shipped()))
	}
	return data, nil
}

// Get loads a shipped scenario.
func Get(name string) (*Scenario, error) {
	data, err := Source(name)
	if err != nil {
		return nil, err
	}
	return Load("scenarios/"+name+".yaml", data)
}
