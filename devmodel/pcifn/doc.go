// Package pcifn is one PCI Express function: its configuration space, BARs, MSI-X table size, bus-master gate and resets, between the vfio-user protocol on one
// side and a Behaviour, which lies behind BAR 0, on the other.
//
// It knows PCI. It does not know what the function does, how messages look on the socket, or who starts QEMU.
package pcifn
