package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

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
	section("Flags", trimLines(cmd.LocalFlags().FlagUsagesWrapped(columns)))
	section("Flags of all commands", trimLines(cmd.InheritedFlags().FlagUsagesWrapped(columns)))
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\nUse \"%s [command] --help\" for more about a command.\n", cmd.CommandPath())
	}
	return b.String()
}

func trimLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}
