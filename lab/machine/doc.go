// Package machine turns a guest's description, its CPU and NUMA shape, interrupt chip, PCI slots and neighbours, into QEMU's argument vector.
//
// Everything here is a function from values to values: no file is opened, no process started, no host asked what it can do. Machine.Validate names the
// field at fault, and Machine.Args refuses whatever Validate refuses, so a caller can check a whole plan before anything has a side effect.
//
// It must not know how QEMU is started or spoken to (lab/qemu), what the function behind a slot does (devmodel), or what is being measured.
package machine
