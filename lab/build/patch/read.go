package patch

import "fmt"

// A ReadError says what is wrong with an input, and where.
type ReadError struct {
	Name string
	Line int // in the input's decoded text, from 1; 0 if it is the whole
	Text string
}

func (e *ReadError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s, line %d: %s", e.Name, e.Line, e.Text)
	}
	return e.Name + ": " + e.Text
}

// Read reads the patches of all inputs, in their order. What an input is (a mailbox, a mail, an archive's page, a diff;
// gzipped or not) is told from its content. The mails of a series are put in the order of their numbers, a cover letter
// and replies are passed over. An error is a [*ReadError] unless reading itself failed.
func Read(inputs ...Input) (Series, error) {
	return nil, fmt.Errorf("reading is not there yet")
}
