// Command irqlab shows on which CPU each interrupt vector of a MANA network function effectively lands, on a real kernel under QEMU.
package main

import (
	"embed"
	"os"

	"irqlab/images"
	"irqlab/lab/cli"
)

// source is what the guest's agent is built from, wherever irqlab is run.
//
//go:embed go.mod go.sum guestagent
var source embed.FS

func main() {
	images.Source = source
	os.Exit(cli.Main())
}
