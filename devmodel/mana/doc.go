// Package mana is the MANA network function as the guest's driver sees it: the registers in BAR 0, the requests of the Ethernet device, vPorts with their queues, and
// packets. It implements pcifn.Behaviour on top of devmodel/gdma, which owns rings, doorbells and the hardware channel.
//
// The source of every number is the project's MANA protocol reference; the sections are named where they are used. The package knows nothing of vfio-user, of QEMU, or of
// which kernel drives it: answers follow the request's own version and asked response size.
package mana
