package report

import (
	"fmt"
	"io"
	"math"
	"regexp"
	"strings"

	"irqlab/scenarios/result"
)

// Markdown writes the report for an issue or a mail: a table with a line per case for each scenario, then each case as Table shows it, its words kept as they are.
func Markdown(w io.Writer, r result.Report) error {
	p := page{columns: FileColumns}
	for _, group := range groups(r.Cases) {
		head, t := p.summaryTable(group)
		p.WriteString("## " + head + "\n\n" + t.Markdown() + "\n\n")
	}
	for i := range r.Cases {
		c := page{columns: FileColumns}
		c.caseInFull(&r.Cases[i])
		title, body, _ := strings.Cut(c.String(), "\n")
		fmt.Fprintf(&p, "### %s\n\n%s\n\n", title, fenced(strings.TrimRight(body, "\n")))
	}
	p.columns = math.MaxInt // a paragraph, which a reader's program fills
	p.total(r)
	_, err := w.Write(p.Bytes())
	return err
}

var backticks = regexp.MustCompile("`+")

// fenced is text as a code block, whose fence is longer than any in the text.
func fenced(text string) string {
	n := 3
	for _, run := range backticks.FindAllString(text, -1) {
		n = max(n, len(run)+1)
	}
	return fmt.Sprintf("%[1]s\n%[2]s\n%[1]s", strings.Repeat("`", n), text)
}
