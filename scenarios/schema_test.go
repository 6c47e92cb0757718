package scenarios

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

var update = flag.Bool("update", false, "rewrite schema.json from the types")

func TestSchemaIsCurrent(t *testing.T) {
	want, err := generateSchema()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("schema.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(string(want), string(Schema())); d != "" {
		t.Errorf("schema.json differs from the types; run go test ./scenarios -run TestSchemaIsCurrent -update\n-types +file:\n%s", d)
	}
}

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("scenario.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("scenario.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// instance reads YAML as an editor does.
func instance(t *testing.T, data []byte) any {
	t.Helper()
	b, err := yaml.YAMLToJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSchemaAcceptsShipped(t *testing.T) {
	s := compiled(t)
	for _, name := range slices.Concat(Shipped(), Faults()) {
		data, err := Source(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(instance(t, data)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSchemaRejects holds the schema to what the loader rejects, as far as a schema can tell.
func TestSchemaRejects(t *testing.T) {
	s := compiled(t)
	for _, bad := range []string{
		"title: no name",
		"name: x\nstratgy: linear",
		"name: x\nstrategy: linaer",
		"name: x\nstrategy: []",
		"name: x\nstrategy: [linear, 3]",
		"name: x\nstrategy: {masks: []}",
		"name: x\nstrategy: {}",
		"name: x\nstrategy: masks:0-/1",
		"name: x\ndriver: e1000",
		"name: x\nvectors: 0",
		"name: x\nvectors: online*2",
		"name: x\nshape: cores=two",
		"name: x\ndevice-node: nowhere",
		"name: x\npressure: [sata:queues=1]",
		"name: x\npressure: {}",
		"name: x\noffline: 1..3",
		"name: x\ncases: {a: {expect: {setled: {}}}}",
		"name: x\ncases: {a: {expect: {settled: {queue: [0]}}}}",
		"name: x\ncases: [a]",
		"name: x\nexpect: {log: dirty}",
		manaHead + "  - prove",
		manaHead + "  - hold",
		manaHead + "  - {hold: {at: smc:establish}}",
		manaHead + "  - {hold: {at: smc:establish, as: a, forever: true}}",
		manaHead + "  - {probe: {wait: maybe}}",
		manaHead + "  - {up: 3}",
		manaHead + "  - {probe: , up: }",
		manaHead + "  - {refused: x}",
		manaHead + "  - {offline: many}",
		manaHead + "  - {post: link-upp}",
		manaHead + "  - {sleep: 5}",
		manaHead + "  - {wait-for: {link: op}}",
		manaHead + "  - {together: [[probe]]}",
		manaHead + "  - {together: [[probe], [{together: [[up], [up]]}]]}",
		manaHead + "  - {expect: {queue: [0]}}",
		manaHead + "  []",
		"name: x\ndriver: mana\ncases: {a: {known: {kernels: debian:6.17}}}",
	} {
		if err := s.Validate(instance(t, []byte(bad))); err == nil {
			t.Errorf("the schema accepts\n%s", bad)
		}
		if _, err := Load("bad.yaml", []byte(bad+"\n")); err == nil {
			t.Errorf("the loader accepts\n%s", bad)
		}
	}
}
