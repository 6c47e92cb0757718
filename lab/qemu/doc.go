// Package qemu owns the QEMU process: its launch, its machine protocol (QMP), its serial console, and its death.
//
// Start gives a Process whose run directory is private to the user and whose channels are inherited descriptors, not files; only the socket that
// another program may reach the guest by has a name. QEMU is killed by the kernel when the lab dies, however it dies, and a small child of the lab then
// removes the run directory. Whatever that misses, the next Start sweeps up.
//
// Every QMP call has a deadline. A call that blows it means that QEMU hangs: it is killed, and the error says which call it was.
//
// Two error types tell a guest's failure from the lab's: *BootError, the guest did not get where it should, and *DeadError, QEMU has ended
// (DeadError.Guest reports whether the guest ended it).
//
// It must not know what is measured, nor what serves the sockets that functions are attached from.
package qemu
