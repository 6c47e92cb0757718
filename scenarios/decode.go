package scenarios

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"irqlab/scenarios/nearest"
)

// Bounds of a scenario file. The YAML parser's cost grows with the square of the nesting.
const (
	MaxFile    = 64 << 10 // bytes
	maxNesting = 100      // brackets open at once, or list dashes on one line; a scenario needs five
)

// Error is one thing wrong with a scenario file.
type Error struct {
	File         string
	Line, Column int    // from 1
	Key          string // dotted path, e.g. cases.linear.strategy; empty for the file as a whole
	Problem      string // what is wrong, what is allowed, and the nearest name
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s:%d:%d: ", e.File, e.Line, e.Column)
	if e.Key != "" {
		s += strings.Trim(strconv.Quote(e.Key), `"`) + ": " // as it is, unless it would steer a terminal
	}
	return s + e.Problem
}

// Errors is everything wrong with a scenario file, in the order of the file.
type Errors []*Error

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, err := range e {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find an *Error.
func (e Errors) Unwrap() []error {
	out := make([]error, len(e))
	for i, err := range e {
		out[i] = err
	}
	return out
}

// decoder fills Go values from a YAML tree, strictly, and remembers where each key stood.
type decoder struct {
	file string
	errs Errors
	at   map[string]*token.Position // of the value (or, for a collection, the key), by dotted path
}

func newDecoder(file string) *decoder { return &decoder{file: file, at: map[string]*token.Position{}} }

// fail records a problem with what stands at path.
func (d *decoder) fail(path string, format string, args ...any) {
	pos := d.at[path]
	for p := path; pos == nil && p != ""; {
		p = p[:max(0, strings.LastIndexByte(p, '.'))]
		pos = d.at[p]
	}
	d.failAt(pos, path, fmt.Sprintf(format, args...))
}

func (d *decoder) failAt(pos *token.Position, path, problem string) {
	e := &Error{File: d.file, Line: 1, Column: 1, Key: path, Problem: problem}
	if pos != nil {
		e.Line, e.Column = pos.Line, pos.Column
	}
	for _, other := range d.errs {
		if *other == *e {
			return // a default that is wrong is wrong in every case
		}
	}
	d.errs = append(d.errs, e)
}

// parse returns the document's root, nil when it has failed.
func (d *decoder) parse(data []byte) (root ast.Node) {
	if len(data) > MaxFile {
		d.failAt(nil, "", fmt.Sprintf("the file is longer than the %d bytes allowed", MaxFile))
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // a byte order mark says nothing in UTF-8
	if pos, problem := notText(data); pos != nil {
		d.failAt(pos, "", problem)
		return nil
	}
	if line := nestedTooDeeply(data); line > 0 {
		d.failAt(&token.Position{Line: line, Column: 1}, "", fmt.Sprintf("nested more than %d deep", maxNesting))
		return nil
	}
	// The parser is given foreign bytes and is known to trip over some; a user wants to hear that the file is broken, not that irqlab is.
	defer func() {
		if r := recover(); r != nil {
			d.failAt(nil, "", fmt.Sprintf("not readable as YAML (%v)", r))
			root = nil
		}
	}()
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		var syntax *yaml.SyntaxError
		if errors.As(err, &syntax) && syntax.GetToken() != nil {
			d.failAt(syntax.GetToken().Position, "", "not YAML: "+syntax.GetMessage())
		} else {
			d.failAt(nil, "", "not YAML: "+firstLine(err.Error()))
		}
		return nil
	}
	var docs []*ast.DocumentNode
	for _, doc := range f.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.CommentType && doc.Body.Type() != ast.DirectiveType {
			docs = append(docs, doc)
		}
	}
	switch len(docs) {
	case 0:
		d.failAt(nil, "", "the file is empty")
		return nil
	case 1:
		return docs[0].Body
	}
	d.failAt(docs[1].Body.GetToken().Position, "", "a second document; a file holds one scenario")
	return nil
}

// notText returns where the file has what no YAML file may have: bytes that are not UTF-8, and control characters, which would also reach the user's terminal with
// an error message.
func notText(data []byte) (*token.Position, string) {
	pos := &token.Position{Line: 1, Column: 1}
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && n == 1:
			return pos, fmt.Sprintf("byte 0x%02x is not UTF-8, which a scenario is written in", data[0])
		case r == '\n':
			pos.Line, pos.Column = pos.Line+1, 0
		case r == '\t' || r == '\r' || r == 0x85:
		case unicode.IsControl(r):
			return pos, fmt.Sprintf("the control character %U, which no YAML file may have", r)
		}
		data = data[n:]
		pos.Column++
	}
	return nil, ""
}

// nestedTooDeeply returns the line where nesting exceeds what any scenario needs, 0 when it does not. It counts brackets and dashes wherever they
// stand: in a text that many unmatched ones are as odd.
func nestedTooDeeply(data []byte) int {
	line, open, dashes := 1, 0, 0
	for i, b := range data {
		switch b {
		case '\n':
			line++
			dashes = 0
		case '[', '{':
			open++
		case ']', '}':
			open = max(0, open-1)
		case '-', '?':
			if i+1 < len(data) && (data[i+1] == ' ' || data[i+1] == '\t') {
				dashes++
			}
		}
		if open > maxNesting || dashes > maxNesting {
			return line
		}
	}
	return 0
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// nodeDecoder is a type that reads a node of its own kind.
type nodeDecoder interface {
	decodeNode(d *decoder, n ast.Node, path string)
}

var nodeDecoderType = reflect.TypeFor[nodeDecoder]()

// value fills v, which must be addressable, from n.
func (d *decoder) value(n ast.Node, path string, v reflect.Value) {
	if n.Type() == ast.NullType {
		d.fail(path, "no value is given")
		return
	}
	if reflect.PointerTo(v.Type()).Implements(nodeDecoderType) {
		v.Addr().Interface().(nodeDecoder).decodeNode(d, n, path)
		return
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if text, ok := d.scalar(n, path); ok {
			if err := u.UnmarshalText([]byte(text)); err != nil {
				d.fail(path, "%v", err)
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, path, v.Elem())
	case reflect.Struct:
		d.structure(n, path, v)
	case reflect.Slice:
		d.sequence(n, path, v)
	case reflect.String:
		if text, ok := d.scalar(n, path); ok {
			v.SetString(text)
		}
	case reflect.Int:
		if text, ok := d.scalar(n, path); ok {
			i, err := strconv.ParseUint(text, 10, 31)
			if err != nil {
				d.fail(path, "%q is no number", text)
			}
			v.SetInt(int64(i))
		}
	case reflect.Bool:
		if text, ok := d.scalar(n, path); ok {
			if text != "true" && text != "false" {
				d.fail(path, "%q is neither; allowed: true, false", text)
			}
			v.SetBool(text == "true")
		}
	default:
		panic("scenarios: no decoding into " + v.Type().String())
	}
}

// pair is one key and its value.
type pair struct {
	key   string
	pos   *token.Position
	value ast.Node
}

// pairs returns a mapping's entries in order; ok is false when n is none, which has been reported.
func (d *decoder) pairs(n ast.Node, path string) (out []pair, ok bool) {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		d.fail(path, "want keys with values, got %s", kind(n))
		return nil, false
	}
	for _, v := range values {
		key, ok := scalarText(v.Key)
		if !ok {
			d.failAt(v.Key.GetToken().Position, path, "a key must be a plain word, got "+kind(v.Key))
			continue
		}
		p := pair{key, v.Key.GetToken().Position, v.Value}
		where := p.pos
		if _, scalar := scalarText(v.Value); scalar && v.Value.GetToken() != nil {
			where = v.Value.GetToken().Position
		}
		d.at[join(path, key)] = where
		out = append(out, p)
	}
	return out, true
}

func (d *decoder) structure(n ast.Node, path string, v reflect.Value) {
	pairs, ok := d.pairs(n, path)
	if !ok {
		return
	}
	fields, names := fieldsOf(v.Type())
	for _, p := range pairs {
		index, ok := fields[p.key]
		if !ok {
			d.failAt(p.pos, join(path, p.key), "unknown key; allowed: "+strings.Join(names, ", ")+nearest.Hint(p.key, names))
			continue
		}
		d.value(p.value, join(path, p.key), v.FieldByIndex(index))
	}
}

// fieldsOf maps a struct's keys, those of embedded structs included, to their fields; names keeps the order of declaration.
func fieldsOf(t reflect.Type) (fields map[string][]int, names []string) {
	fields = map[string][]int{}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = f.Index
			names = append(names, name)
		}
	}
	return fields, names
}

func (d *decoder) sequence(n ast.Node, path string, v reflect.Value) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.fail(path, "want a list, got %s", kind(n))
		return
	}
	out := reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values))
	for i, item := range seq.Values {
		p := join(path, strconv.Itoa(i))
		d.at[p] = item.GetToken().Position
		d.value(item, p, out.Index(i))
	}
	v.Set(out)
}

func (m *many[T]) decodeNode(d *decoder, n ast.Node, path string) {
	if _, isList := n.(*ast.SequenceNode); !isList {
		*m = make(many[T], 1)
		d.value(n, path, reflect.ValueOf(&(*m)[0]).Elem())
		return
	}
	d.sequence(n, path, reflect.ValueOf((*[]T)(m)).Elem())
	if len(*m) == 0 {
		d.fail(path, "the list is empty; leave the key out for the default")
	}
}

func (ps *profiles) decodeNode(d *decoder, n ast.Node, path string) {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		pairs, _ := d.pairs(n, path)
		for _, p := range pairs {
			at := join(path, p.key)
			if !validName(p.key) {
				d.failAt(p.pos, at, nameProblem)
			}
			*ps = append(*ps, NamedProfile{p.key, d.profile(p.value, at)})
		}
		if len(pairs) == 0 {
			d.fail(path, "no profile is named; allowed: entries, or named lists of entries")
		}
	default:
		*ps = profiles{{Entries: d.profile(n, path)}}
	}
}

// profile reads one entry or a list of them.
func (d *decoder) profile(n ast.Node, path string) Profile {
	var texts many[string]
	if seq, ok := n.(*ast.SequenceNode); ok {
		d.sequence(seq, path, reflect.ValueOf((*[]string)(&texts)).Elem())
	} else {
		texts.decodeNode(d, n, path)
	}
	p := Profile{}
	if len(texts) == 1 && texts[0] == "none" {
		return p
	}
	for i, text := range texts {
		at := join(path, strconv.Itoa(i))
		entry, err := ParsePressure(text)
		if err == nil {
			err = p.accept(entry)
		}
		if err != nil {
			d.fail(at, "%v", err)
			continue
		}
		p = append(p, entry)
	}
	return p
}

// scalar returns a scalar's text; a collection is reported.
func (d *decoder) scalar(n ast.Node, path string) (string, bool) {
	text, ok := scalarText(n)
	if !ok {
		d.fail(path, "want a single value, got %s", kind(n))
	}
	return text, ok
}

// scalarText is a scalar as it stands in the file: 010 and 0x10 stay what they are rather than becoming numbers.
func scalarText(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	case *ast.MappingNode:
		if len(n.Values) == 1 {
			return scalarText(n.Values[0])
		}
	case *ast.MappingValueNode:
		return rejoin(n)
	}
	return "", false
}

// rejoin undoes the parser's splitting of a plain word at its colon in a list within braces, as in {kernel: [debian:7.3]}: YAML wants a space
// after the colon of a key.
func rejoin(n *ast.MappingValueNode) (string, bool) {
	key, keyIsWord := n.Key.(*ast.StringNode)
	value := n.Value.GetToken()
	if !keyIsWord || value == nil || n.Start == nil || key.Token.Type != token.StringType || value.Type == token.DoubleQuoteType || value.Type == token.SingleQuoteType {
		return "", false
	}
	colon := n.Start.Position
	if p := value.Position; p.Line != colon.Line || p.Column != colon.Column+1 {
		return "", false
	}
	switch n.Value.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return key.Value + ":" + value.Value, true
	}
	return "", false
}

func kind(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys with values"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return "an anchor or alias, which scenarios do not use"
	case *ast.TagNode:
		return "a tag, which scenarios do not use"
	}
	name := strings.ToLower(n.Type().String())
	if strings.ContainsRune("aeiou", rune(name[0])) {
		return "an " + name
	}
	return "a " + name
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
