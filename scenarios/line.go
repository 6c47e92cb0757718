package scenarios

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"irqlab/scenarios/nearest"
)

// ParseStep reads a step as a person types it: a verb and its argument as in a scenario, "offline 2-3" or "wait-for {held: window}", or with the argument's keys as plain
// words, "hold request:QUERY_DEV_CONFIG nth=2", where the word without a key is where a rule applies. A hold need not be named: this one would be query-dev-config.
// Only the words are checked, not whether the step makes sense where an experiment stands. An error does not repeat the verb: who asks has it, and puts it before.
func ParseStep(line string) (Step, error) {
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	word, rest = strings.TrimSuffix(word, ":"), strings.TrimSpace(rest)
	i := slices.IndexFunc(verbs, func(v verb) bool { return v.Name == word })
	if i < 0 {
		return Step{}, nearest.Unknown("verb", word, verbNames())
	}
	text := "- " + word
	if rest != "" {
		if word == VerbRun && !strings.HasPrefix(rest, "{") {
			rest = scalar(rest)
		}
		if v := verbs[i]; v.arg != nil && !strings.HasPrefix(rest, "{") && v.keyed() {
			rest = flow(word, rest)
		}
		text += ": " + rest
	}
	d := newDecoder("")
	var steps stepList
	if root := d.parse([]byte(text)); root != nil {
		d.value(root, "", reflect.ValueOf(&steps).Elem())
	}
	if len(d.errs) > 0 {
		problem := strings.TrimPrefix(d.errs[0].Problem, word+" ")
		if form := verbs[i].Form; !strings.Contains(problem, form) {
			problem += " (" + form + ")"
		}
		return Step{}, errors.New(problem)
	}
	if len(steps) != 1 {
		return Step{}, errors.New("one step at a time")
	}
	if r := steps[0].Rule; r != nil {
		if err := r.Validate(); err != nil {
			return Step{}, fmt.Errorf("%w%s", errors.Unwrap(err), stepHint(err, r.Step)) // the rule's name may be of our making
		}
	}
	return steps[0], nil
}

// keyed reports whether the verb's argument is made of keys and values.
func (v verb) keyed() bool {
	t := reflect.TypeOf(v.arg(&Step{})).Elem()
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[Post]() && t != reflect.TypeFor[Program]()
}

// flow makes a mapping of words, KEY=VALUE or the place of a rule.
func flow(verb, text string) string {
	words := strings.Fields(text)
	at, named := "", false
	for i, w := range words {
		key, value, ok := strings.Cut(w, "=")
		if !ok {
			key, value = "at", w
		}
		if key == "at" {
			at = value
		}
		named = named || key == "as"
		if strings.Contains(value, ",") && !strings.ContainsAny(value[:1], "[{\"'") { // which would end it within braces
			value = scalar(value)
		}
		words[i] = key + ": " + value
	}
	if verb == VerbHold && !named && at != "" {
		words = append(words, "as: "+holdNamed(at))
	}
	return "{" + strings.Join(words, ", ") + "}"
}

// holdNamed is a name for a hold at a step of the protocol: what comes behind its kind, unless that alone would tell nothing.
func holdNamed(step string) string {
	name := strings.ToLower(step[strings.LastIndexByte(step, ':')+1:])
	if name == "any" || strings.Trim(name, "0123456789") == "" {
		name = strings.ToLower(step)
	}
	return strings.Trim(notPathSafe.ReplaceAllString(strings.ReplaceAll(name, "_", "-"), "-"), "-")
}
