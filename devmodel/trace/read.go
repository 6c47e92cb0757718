package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxLine is how long a line may be that ReadLines takes: more than any event comes to.
const MaxLine = 1 << 20

// Line is an event as it was written out, by this or another version of the program.
type Line struct {
	T      time.Duration
	Kind   string
	Text   string
	Fields []Field // in the order of the line
}

// Field is one of an event's numbers, in decimal.
type Field struct{ Name, Value string }

// ParseLine reads one event in the form of Event.AppendJSON.
func ParseLine(line []byte) (Line, error) {
	var l Line
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return l, orElse(err, errors.New("want one JSON object"))
	}
	timed := false
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return l, err
		}
		key := t.(string) // an object's keys are strings, or Token fails
		value, err := d.Token()
		if err != nil {
			return l, err
		}
		number, isNumber := value.(json.Number)
		text, isText := value.(string)
		switch {
		case key == "t" && isNumber:
			ns, err := number.Int64()
			if err != nil {
				return l, fmt.Errorf("t: %w", err)
			}
			l.T, timed = time.Duration(ns), true
		case key == "kind" && isText && text != "":
			l.Kind = text
		case key == "text" && isText:
			l.Text = text
		case key == "t" || key == "kind" || key == "text":
			return l, fmt.Errorf("%s: %v is not what belongs there", key, value)
		case isNumber:
			l.Fields = append(l.Fields, Field{key, number.String()})
		case isText:
			l.Fields = append(l.Fields, Field{key, strconv.Quote(text)})
		default:
			return l, fmt.Errorf("%s: want a number or a string", key)
		}
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return l, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return l, errors.New("something follows the object")
	}
	if !timed || l.Kind == "" {
		return l, errors.New("it has no t or no kind")
	}
	return l, nil
}

func orElse(err, other error) error {
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return other
}

// ReadLines gives parse every line of r that is not blank, without its end. What parse refuses is an error that names the line, but for a last line that lacks its end,
// which a writer that was killed leaves: that is cut.
func ReadLines(name string, r io.Reader, parse func(line []byte) error) (cut bool, err error) {
	in := bufio.NewReader(r)
	var line []byte
	for n := 1; ; n++ {
		line = line[:0]
		var part []byte
		for err = bufio.ErrBufferFull; errors.Is(err, bufio.ErrBufferFull); {
			part, err = in.ReadSlice('\n')
			if line = append(line, part...); len(line) > MaxLine {
				return false, fmt.Errorf("%s:%d: not a line of a timeline: it is longer than %d bytes", name, n, MaxLine)
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return false, fmt.Errorf("%s: %w", name, err)
		}
		whole := err == nil
		if text := bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")); len(bytes.TrimSpace(text)) > 0 {
			switch err := parse(text); {
			case err != nil && whole:
				return false, fmt.Errorf("%s:%d: not a line of a timeline: %w", name, n, err)
			case err != nil:
				return true, nil
			}
		}
		if !whole {
			return false, nil
		}
	}
}

// hexFields are numbers that are addresses, sizes of memory or registers.
var hexFields = []string{"details", "header", "iova", "offset", "register", "size", "value"}

// Describe is an event for a person: its text, then its numbers.
func Describe(text string, fields []Field) string {
	var numbers []string
	for _, f := range fields {
		v := f.Value
		if n, err := strconv.ParseUint(v, 10, 64); err == nil && n > 9 && slices.Contains(hexFields, f.Name) {
			v = "0x" + strconv.FormatUint(n, 16)
		}
		numbers = append(numbers, f.Name+"="+v)
	}
	switch all := strings.Join(numbers, " "); {
	case text == "":
		return all
	case all == "":
		return text
	default:
		return text + "  (" + all + ")"
	}
}
