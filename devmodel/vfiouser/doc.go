// Package vfiouser is the server side of the vfio-user protocol as QEMU's vfio-user-pci client (11.1) speaks it: messages, the descriptors that ride on them, the
// map of guest memory, and the eventfds of interrupts.
//
// It knows nothing of PCI configuration, BAR contents or what the function does: that is behind Device. QEMU forgives little (a late, spurious, split or oversized
// reply costs the device, a dead socket can cost the VM), so every rule of shared/reference/vfio-user.md that can be kept here is kept here, whatever the Device
// does: one reply per request and none when none is wanted, header and body in one write, no answer after the client has given up.
//
// A server process should log trace kinds of this package; nothing here prints.
package vfiouser
