// Package lab starts virtual machines in exact CPU and NUMA shapes, gives them MANA functions modelled in user space, and asks a guest agent where
// each interrupt vector effectively lands. The irqlab command is built on it, and a driver's own `go test` can be too: see the example.
//
// A VM is one QEMU process with its guest agent; a Function is one PCI function served to it. Everything is released by VM.Close, and if the
// calling process dies, QEMU and the run directory go with it. VMs are independent: tests may start several in parallel.
//
// The package knows nothing of scenarios, expectations or reports; irqlab/lab/runner joins those to it.
package lab
