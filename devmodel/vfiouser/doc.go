// Package vfiouser is the server side of the vfio-user protocol as QEMU's vfio-user-pci client (11.1) speaks it: messages, the descriptors that ride on them, the
// map of guest memory, and the eventfds of interrupts.
//
// It knows nothing of PCI configuration, BAR contents or what the function does: that is behind Device. QEMU forgives little (a late, spurious, split or oversized
// reply costs the device, a dead socket can cost the VM), so every rule of shared/reference/vfio-user.md that can be kept here is kept here, whatever the Device
// does: one reply per request and none when none is wanted, header and body in one write, no answer after the client has given up.
//
// Guest memory is reached through the descriptors that come with DMA_MAP, never by messages: QEMU cannot serve those while it waits for a reply, and a range without
// a descriptor is an error that says what to change (ErrNoDescriptor). Nothing is logged here; what happens is on the trace.
package vfiouser
