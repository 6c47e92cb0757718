//go:build linux

// Command modprobe inserts a module of the guest's image and what it depends on, or removes one, as the agent does.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"irqlab/guestagent/module"
)

const usage = "usage: modprobe NAME [PARAMETER=VALUE…]\n       modprobe -r NAME…"

func main() {
	loader, err := module.Image()
	if err == nil {
		err = run(os.Args[1:], loader, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "modprobe:", err)
		os.Exit(1)
	}
}

func run(args []string, l module.Loader, out io.Writer) error {
	remove := false
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch args[0] {
		case "-r":
			remove = true
		case "-h", "--help":
			_, err := fmt.Fprintln(out, usage)
			return err
		default:
			return fmt.Errorf("%s: unknown option\n%s", args[0], usage)
		}
		args = args[1:]
	}
	if len(args) == 0 {
		return errors.New("no module\n" + usage)
	}
	if !remove {
		_, err := l.Load(args[0], strings.Join(args[1:], " "))
		return err
	}
	for _, name := range args {
		if err := l.Unload(name); err != nil {
			return err
		}
	}
	return nil
}
