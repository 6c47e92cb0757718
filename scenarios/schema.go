package scenarios

import (
	_ "embed"
	"encoding/json"
	"reflect"
	"strings"

	"github.com/invopop/jsonschema"

	"irqlab/guestagent/cpulist"
	"irqlab/guestagent/strategy"
	"irqlab/scenarios/pkgname"
)

//go:generate go test . -run ^TestSchemaIsCurrent$ -update

// published is the schema as editors fetch it from the repository. A test keeps it equal to what the types give.
//
//go:embed schema.json
var published []byte

// Schema is the JSON Schema (draft 2020-12) of scenario files, for editors: keys, types and closed sets. What needs arithmetic, such as an offline
// CPU that the shape does not have, only Load finds.
func Schema() []byte { return published }

// Definitions within the schema: a step, and one of a branch of together.
const (
	stepDefinition   = "step"
	branchDefinition = "branch-step"
)

func definition(name string) *jsonschema.Schema { return &jsonschema.Schema{Ref: "#/$defs/" + name} }

const cpuListPattern = `^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$`

const masksPattern = `^masks:[0-9]+(-[0-9]+)?([,/][0-9]+(-[0-9]+)?)*$`

// generateSchema derives the schema from the types the loader fills.
func generateSchema() ([]byte, error) {
	r := reflector()
	s := r.ReflectFromType(reflect.TypeFor[file]())
	s.Title = "irqlab scenario"
	s.Definitions = jsonschema.Definitions{stepDefinition: stepSchema(true), branchDefinition: stepSchema(false)}
	b, err := json.MarshalIndent(s, "", "  ")
	return append(b, '\n'), err
}

func reflector() *jsonschema.Reflector {
	r := &jsonschema.Reflector{Anonymous: true, DoNotReference: true, Mapper: nil}
	r.Mapper = mapType
	return r
}

func schemaOf(t reflect.Type) *jsonschema.Schema {
	if s := mapType(t); s != nil {
		return s
	}
	s := reflector().ReflectFromType(t)
	s.Version = ""
	return s
}

// mapType gives the schema of types whose text form differs from their Go form; nil: derive it.
func mapType(t reflect.Type) *jsonschema.Schema {
	switch t {
	case reflect.TypeFor[spreading]():
		own := schemaOf(reflect.TypeFor[ownStrategy]())
		own.MinProperties, own.MaxProperties = pointer(1), pointer(1)
		return either(words(strategy.Names()...), pattern(masksPattern), own)
	case reflect.TypeFor[driverName]():
		return words(Drivers()...)
	case reflect.TypeFor[irqchipName]():
		return words(Irqchips()...)
	case reflect.TypeFor[logRule]():
		return words(ruleClean, ruleAny)
	case reflect.TypeFor[pendingRule]():
		return words(ruleNone, ruleAny)
	case reflect.TypeFor[offlineRule]():
		return words(ruleUnused, ruleAny)
	case reflect.TypeFor[kernelSpec]():
		return &jsonschema.Schema{Type: "string", MinLength: pointer(1)}
	case reflect.TypeFor[shapeText]():
		return pattern(`^(sockets|cores|threads|nodes|memory)=[0-9]+(M|G|MiB|GiB)?(,(sockets|cores|threads|nodes|memory)=[0-9]+(M|G|MiB|GiB)?)*$`)
	case reflect.TypeFor[Program]():
		type keys Program // of which this is not asked again
		return either(&jsonschema.Schema{Type: "string", MinLength: pointer(1)}, schemaOf(reflect.TypeFor[keys]()))
	case reflect.TypeFor[GuestFile]():
		type keys GuestFile
		return either(&jsonschema.Schema{Type: "string", MinLength: pointer(1)}, schemaOf(reflect.TypeFor[keys]()))
	case reflect.TypeFor[exitRule]():
		return either(words(ruleAny), integer(0))
	case reflect.TypeFor[Cmdline]():
		return &jsonschema.Schema{Type: "string", MaxLength: pointer(MaxCmdline)}
	case reflect.TypeFor[packageWord]():
		return pattern(pkgname.Pattern)
	case reflect.TypeFor[VectorCount]():
		return either(pattern(`^online([+-][0-9]+)?$`), integer(1))
	case reflect.TypeFor[deviceNode]():
		return either(words("none"), integer(0))
	case reflect.TypeFor[offlineList](), reflect.TypeFor[cpulist.List]():
		return either(pattern(cpuListPattern), integer(0))
	case reflect.TypeFor[profiles]():
		return either(profileSchema(), &jsonschema.Schema{Type: "object", MinProperties: pointer(1), AdditionalProperties: profileSchema()})
	case reflect.TypeFor[stepList]():
		return &jsonschema.Schema{Type: "array", MinItems: pointer(1), Items: definition(stepDefinition)}
	case reflect.TypeFor[ruleName]():
		return pattern(namePattern.String())
	case reflect.TypeFor[count]():
		return integer(1)
	case reflect.TypeFor[times]():
		return either(words("always"), integer(1))
	case reflect.TypeFor[numeral](), reflect.TypeFor[status32]():
		return either(pattern(`^(0x[0-9a-fA-F_]+|[0-9]+)$`), integer(0))
	case reflect.TypeFor[offset]():
		return either(pattern(`^0x[0-9a-fA-F]+$`), integer(0))
	case reflect.TypeFor[duration]():
		return pattern(`^([0-9.]+(ns|us|µs|ms|s|m|h))+$`)
	case reflect.TypeFor[Pattern]():
		return &jsonschema.Schema{Type: "string", MinLength: pointer(1), Format: "regex"}
	case reflect.TypeFor[linkState]():
		return words(Links()...)
	case reflect.TypeFor[Post]():
		return pattern(`^(reset-request|fpga-reconfig|link-up|link-down|soc-suspend|soc-resume|channel-timeout=[0-9]+|unknown=(0x[0-9a-fA-F]+|[0-9]+))$`)
	case reflect.TypeFor[VectorSet]():
		return either(pattern(`^(all|[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)$`), integer(0))
	case reflect.TypeFor[caseList]():
		return &jsonschema.Schema{Type: "object", MinProperties: pointer(1), AdditionalProperties: schemaOf(reflect.TypeFor[caseBody]())}
	}
	if strings.HasPrefix(t.Name(), "many[") {
		item := schemaOf(t.Elem())
		return either(item, &jsonschema.Schema{Type: "array", Items: item, MinItems: pointer(1)})
	}
	return nil
}

// stepSchema is a verb that may stand alone, or one verb with its argument and perhaps refused. outer: steps may be run together.
func stepSchema(outer bool) *jsonschema.Schema {
	bare := words()
	verbed := &jsonschema.Schema{Type: "object", Properties: jsonschema.NewProperties(), AdditionalProperties: jsonschema.FalseSchema}
	for _, v := range verbs {
		if v.bare {
			bare.Enum = append(bare.Enum, v.Name)
		}
		arg := &jsonschema.Schema{}
		switch {
		case v.Name == VerbTogether && !outer:
			continue
		case v.Name == VerbTogether:
			branch := &jsonschema.Schema{Type: "array", MinItems: pointer(1), Items: definition(branchDefinition)}
			arg = &jsonschema.Schema{Type: "array", MinItems: pointer(2), Items: branch}
		case v.arg != nil:
			arg = schemaOf(reflect.TypeOf(v.arg(&Step{})).Elem())
		}
		if v.bare {
			null := &jsonschema.Schema{Type: "null"}
			if v.arg == nil {
				arg = null
			} else {
				arg = either(null, arg)
			}
		}
		described := *arg
		described.Description = v.Text
		if v.Driver != "" {
			described.Description += "; driver " + v.Driver + " only"
		}
		verbed.Properties.Set(v.Name, &described)
		verbed.OneOf = append(verbed.OneOf, &jsonschema.Schema{Required: []string{v.Name}})
	}
	refused := schemaOf(reflect.TypeFor[Pattern]())
	refused.Description = "beside any verb but together: the guest's kernel, or the lab, must refuse the step in words that match this regular expression"
	verbed.Properties.Set(keyRefused, refused)
	return either(bare, verbed)
}

func profileSchema() *jsonschema.Schema {
	entry := pattern(`^(none|nvme:.+|virtio-blk:.+|vectors:.+)$`)
	return either(entry, &jsonschema.Schema{Type: "array", Items: entry})
}

func words(allowed ...string) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "string"}
	for _, w := range allowed {
		s.Enum = append(s.Enum, w)
	}
	return s
}

func pattern(p string) *jsonschema.Schema { return &jsonschema.Schema{Type: "string", Pattern: p} }

func integer(low int) *jsonschema.Schema {
	b, _ := json.Marshal(low)
	return &jsonschema.Schema{Type: "integer", Minimum: json.Number(b)}
}

func either(options ...*jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{AnyOf: options}
}

func pointer(n uint64) *uint64 { return &n }
