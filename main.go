// Command irqlab shows on which CPU each interrupt vector of a MANA network function effectively lands, on a real kernel under QEMU.
package main

import (
	"os"

	"irqlab/lab/cli"
)

func main() { os.Exit(cli.Main()) }
