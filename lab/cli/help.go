package cli

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"irqlab/lab/layout"
)

// helpText is what --help says of a command, in a number of columns.
func helpText(cmd *cobra.Command, columns int) string {
	var b strings.Builder
	section := func(title, body string) {
		if body != "" {
			fmt.Fprintf(&b, "\n%s:\n%s\n", title, strings.TrimRight(body, "\n"))
		}
	}
	about := cmd.Long
	if about == "" {
		about = cmd.Short
	}
	fmt.Fprintln(&b, layout.Reflow(about, columns))
	var usage []string
	if cmd.Runnable() {
		usage = append(usage, "  "+cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		usage = append(usage, "  "+cmd.CommandPath()+" [command]")
	}
	section("Usage", layout.Wrap(strings.Join(usage, "\n"), columns, "      "))
	section("Examples", layout.Commands(cmd.Example, columns))
	children := layout.Table{Indent: "  "}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() || c.Name() == "help" {
			children.Rows = append(children.Rows, []string{c.Name(), c.Short})
		}
	}
	if children.Rows != nil {
		section("Commands", children.Render(columns))
	}
	if !cmd.IsAdditionalHelpTopicCommand() {
		section("Flags", flagTexts(cmd.LocalFlags(), columns))
	}
	section("Flags of all commands", flagTexts(cmd.InheritedFlags(), columns))
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\nUse \"%s [command] --help\" for more about a command.\n", cmd.CommandPath())
	}
	return b.String()
}

// flagText parts a flag from what pflag says of it.
var flagText = regexp.MustCompile(`^(.*?\S) {3,}(.*)$`)

// flagTexts is what pflag says of some flags. Its own FlagUsagesWrapped gives up at a word that is wider than the
// column.
func flagTexts(flags *pflag.FlagSet, columns int) string {
	t := layout.Table{Gap: 3}
	for line := range strings.SplitSeq(flags.FlagUsages(), "\n") {
		if m := flagText.FindStringSubmatch(line); m != nil {
			t.Rows = append(t.Rows, m[1:])
		}
	}
	if t.Rows == nil {
		return ""
	}
	return t.Render(columns)
}
